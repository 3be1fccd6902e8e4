//! Parses a prompt into terms: phrases with a known meaning.

use super::glyph::Glyph;
use super::lexicon::Lexicon;
use super::vocabulary::{Language, Meaning, Vocabulary, fold};

/// Most words of a prompt, or characters of a text without spaces, that are parsed; no picture needs more.
const MAX_TOKENS: usize = 600;
/// Longest phrase to look up, in words.
const MAX_WORDS: usize = 4;
/// Longest word to look up in a text without spaces, in characters.
const MAX_CHARS: usize = 8;
/// Longest emoji sequence, in code points.
const MAX_SEQUENCE: usize = 10;
/// German compounds shorter than this are not split.
const MIN_COMPOUND: usize = 8;

/// A part of a prompt with a meaning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Term {
    Known(Meaning),
    Thing(Glyph),
    /// The next noun is in the plural.
    Plural,
    /// An unknown word.
    Unknown,
    /// A comma or full stop, which ends a phrase.
    Break,
}

/// A parsed prompt.
#[derive(Debug)]
pub struct Prompt {
    pub terms: Vec<Term>,
    /// The most likely language.
    pub language: Language,
}

#[derive(Debug)]
enum Token {
    Word(String),
    /// Characters of a text without spaces.
    Run(Vec<char>),
    Emoji(Glyph),
    Break,
}

impl Prompt {
    /// Parses a prompt in time linear in the parsed length.
    pub fn read(text: &str) -> Self {
        let tokens = tokens(text);
        let languages = languages(&tokens);
        let mut terms = Vec::new();
        let mut next = 0;
        while next < tokens.len() {
            next += match &tokens[next] {
                Token::Break => {
                    terms.push(Term::Break);
                    1
                }
                Token::Emoji(glyph) => {
                    terms.push(Term::Thing(*glyph));
                    1
                }
                Token::Run(characters) => {
                    read_run(characters, &languages, &mut terms);
                    1
                }
                Token::Word(_) => read_words(&tokens[next..], &languages, &mut terms),
            };
        }
        Self { terms, language: languages.first().copied().unwrap_or(Language::English) }
    }
}

/// Parses the longest known phrase at the start of `tokens`; also returns its number of tokens.
fn read_words(tokens: &[Token], languages: &[Language], terms: &mut Vec<Term>) -> usize {
    let words: Vec<&str> = tokens
        .iter()
        .take(MAX_WORDS)
        .map_while(|token| if let Token::Word(word) = token { Some(word.as_str()) } else { None })
        .collect();
    for length in (1..=words.len()).rev() {
        let phrase = words[..length].join(" ");
        if let Some(term) = languages.iter().find_map(|language| look_up(&phrase, *language)) {
            if matches!(term, Term::Thing(_)) && !phrase.contains(" of ") && is_plural(&phrase, term, languages[0]) {
                terms.push(Term::Plural);
            }
            terms.push(term);
            return length;
        }
    }
    if languages.contains(&Language::German)
        && let Some((modifier, noun)) = take_apart(words[0])
    {
        terms.extend([modifier, noun]);
    } else {
        terms.push(Term::Unknown);
    }
    1
}

/// Looks up a folded phrase, first exactly, then by its stem.
fn look_up(phrase: &str, language: Language) -> Option<Term> {
    // The ending of a short word may change its meaning, so only longer words are compared by stem.
    let has_stem = !language.is_unspaced() && phrase.chars().count() >= 4;
    look_up_exact(phrase, language).or_else(|| {
        let stem = has_stem.then(|| language.stem(phrase))?;
        term(Vocabulary::of(language).stem(&stem), || Lexicon::of(language).stem(&stem))
    })
}

fn look_up_exact(phrase: &str, language: Language) -> Option<Term> {
    term(Vocabulary::of(language).exact(phrase), || Lexicon::of(language).exact(phrase))
}

/// The term for a meaning, or else for an emoji.
fn term(meaning: Option<Meaning>, emoji: impl FnOnce() -> Option<&'static str>) -> Option<Term> {
    match meaning {
        Some(Meaning::Thing(glyph)) => Some(Term::Thing(glyph)),
        Some(other) => Some(Term::Known(other)),
        None => emoji().and_then(Glyph::of_emoji).map(Term::Thing),
    }
}

/// Whether the phrase is the plural of a word for the same thing.
fn is_plural(phrase: &str, term: Term, language: Language) -> bool {
    let singular = |ending: &str, instead: &str| {
        let stem = phrase.strip_suffix(ending)?;
        (stem.len() >= 3).then(|| look_up_exact(&format!("{stem}{instead}"), language) == Some(term))
    };
    match language {
        Language::Italian | Language::Russian | Language::Chinese | Language::Japanese => false,
        Language::German => singular("en", "e") == Some(true) || singular("e", "") == Some(true),
        _ => [("s", ""), ("es", ""), ("ies", "y")]
            .iter()
            .any(|(ending, instead)| singular(ending, instead) == Some(true)),
    }
}

/// Splits a German compound such as `schneefuchs` into two known words.
fn take_apart(word: &str) -> Option<(Term, Term)> {
    let boundaries: Vec<usize> = word.char_indices().map(|(index, _)| index).collect();
    if !(MIN_COMPOUND..=40).contains(&boundaries.len()) {
        return None;
    }
    boundaries[3..boundaries.len() - 2].iter().find_map(|&split| {
        let (first, second) = word.split_at(split);
        let find = |part| look_up_exact(part, Language::German);
        let modifier = find(first).or_else(|| find(first.strip_suffix('s')?))?;
        Some((modifier, find(second)?))
    })
}

/// Parses a text without spaces: at each character it takes the longest known word.
fn read_run(characters: &[char], languages: &[Language], terms: &mut Vec<Term>) {
    let mut next = 0;
    while next < characters.len() {
        let found = (1..=MAX_CHARS.min(characters.len() - next)).rev().find_map(|length| {
            let word: String = characters[next..next + length].iter().collect();
            languages.iter().filter(|language| language.is_unspaced()).find_map(|language| {
                // A single character outside the vocabulary is too likely to be part of another word.
                let term = match Vocabulary::of(*language).exact(&word) {
                    None if length == 1 => None,
                    _ => look_up_exact(&word, *language),
                };
                term.map(|term| (term, length))
            })
        });
        match found {
            Some((term, length)) => {
                terms.push(term);
                next += length;
            }
            None => next += 1,
        }
    }
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut characters_in_runs = 0;
    while let Some(first) = rest.chars().next() {
        if tokens.len() + characters_in_runs >= MAX_TOKENS {
            break;
        }
        let taken = if is_unspaced(first) {
            let run: Vec<char> = rest.chars().take(256).take_while(|c| is_unspaced(*c)).collect();
            let length = run.iter().map(|c| c.len_utf8()).sum();
            characters_in_runs += run.len();
            tokens.push(Token::Run(run));
            length
        } else if first.is_alphanumeric() {
            let end = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
            // `fold` turns hyphens into spaces: "red-haired" becomes two words.
            tokens.extend(fold(&rest[..end]).split_whitespace().take(16).map(|word| Token::Word(number(word))));
            end
        } else if let Some((glyph, length)) = emoji_at(rest) {
            tokens.push(Token::Emoji(glyph));
            length
        } else {
            if matches!(first, ',' | '.' | ';' | ':' | '!' | '?' | '\n' | '(' | ')' | '|' | '，' | '。' | '、' | '；')
            {
                tokens.push(Token::Break);
            }
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    tokens
}

fn in_word(c: char) -> bool {
    (c.is_alphanumeric() && !is_unspaced(c)) || matches!(c, '\'' | '’' | '-' | '&' | '\u{300}'..='\u{36f}')
}

/// Spells small numerals as the vocabulary has them.
fn number(word: &str) -> String {
    let spelled = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    match word.parse::<usize>() {
        Ok(value @ 1..=10) => spelled[value - 1].to_owned(),
        Ok(11..=30) => "twelve".to_owned(),
        _ => word.to_owned(),
    }
}

fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{3005}'..='\u{3007}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2ffff}')
}

/// Longest emoji at the start of `text`, and its length in bytes.
fn emoji_at(text: &str) -> Option<(Glyph, usize)> {
    let first = text.chars().next()?;
    if (first as u32) < 0x203c {
        return None;
    }
    let ends: Vec<usize> = text.char_indices().take(MAX_SEQUENCE).map(|(start, c)| start + c.len_utf8()).collect();
    ends.into_iter().rev().find_map(|end| Glyph::of_emoji(&text[..end]).map(|glyph| (glyph, end)))
}

/// Languages in which to look up words, the most likely one first.
fn languages(tokens: &[Token]) -> Vec<Language> {
    let mut found = Vec::new();
    let runs = || tokens.iter().filter_map(|token| if let Token::Run(run) = token { Some(run) } else { None });
    if runs().flatten().any(|c| matches!(c, '\u{3040}'..='\u{30ff}')) {
        found.extend([Language::Japanese, Language::Chinese]);
    } else if runs().next().is_some() {
        found.extend([Language::Chinese, Language::Japanese]);
    }
    let words: Vec<&str> = tokens
        .iter()
        .filter_map(|token| if let Token::Word(word) = token { Some(word.as_str()) } else { None })
        .take(400)
        .collect();
    if words.iter().any(|word| word.chars().any(|c| ('а'..='я').contains(&c))) {
        found.push(Language::Russian);
    }
    let spoken: Vec<(Language, usize)> = Language::ALL[..6]
        .iter()
        .map(|&language| {
            let vocabulary = Vocabulary::of(language);
            let score = |word: &&str| match vocabulary.exact(word) {
                Some(meaning) if meaning.tells_language() => 2,
                Some(_) => 1,
                None => 0,
            };
            (language, words.iter().map(score).sum())
        })
        .collect();
    let best = spoken.iter().map(|(_, score)| *score).max().unwrap_or(0);
    let mut likely: Vec<_> = spoken.into_iter().filter(|(_, score)| *score * 3 >= best * 2).collect();
    // The sort is stable, so English comes first among equals.
    likely.sort_by_key(|(_, score)| std::cmp::Reverse(*score));
    found.extend(likely.into_iter().map(|(language, _)| language));
    if !found.contains(&Language::English) {
        found.push(Language::English);
    }
    found
}
