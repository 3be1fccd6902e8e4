//! Normalises text, so that all ways to write a word become one.
//!
//! The result consists of lower-case words with one space around each. Invisible characters and marks that only
//! decorate a letter are removed, and Unicode compatibility forms (full width, mathematical, circled) become the
//! letters that they represent. Scripts without spaces between words stay without spaces, so that their words are found
//! anywhere.
//!
//! A text has several [`readings`], because a letter can be literal or replace a Latin letter that it resembles: `ВОДА`
//! is Russian for water, but `ВОМВ` isn't Russian at all.

use std::collections::HashMap;

use unicode_normalization::UnicodeNormalization as _;
use unicode_properties::{GeneralCategory as Category, UnicodeGeneralCategory as _};
use unicode_script::{Script, UnicodeScript as _};
use unicode_security::skeleton;

/// Shortest run of single letters that counts as a spelt-out word.
const MIN_SPELT: usize = 3;

/// Shortest word in which digits and signs are read as letters.
const MIN_MASKED: usize = 3;

/// Characters used in place of an i or an l.
const IS_ONE: [char; 3] = ['1', '|', '!'];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// As it stands.
    Literal,
    /// As the Latin letter that it resembles.
    Lookalike,
}

/// Role of a character in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Part of a word in a script with spaces; the word ends at a character of another kind.
    Letter,
    /// Part of a script that appends endings to words, or a pictograph; matched anywhere.
    Free,
    /// Part of a script without spaces; matched anywhere, and spaces between two of these are ignored.
    Unspaced,
    /// A separator between words.
    Gap,
    /// A separator between sentences, also in scripts without spaces.
    Stop,
}

/// All readings of a text, each normalised. The first one is the literal reading.
pub(super) fn readings(text: &str) -> Vec<String> {
    let mut all = readings_of(text);
    let plain = without_emphasis(text);
    let parted = [parted(text), plain.as_deref().and_then(parted)];
    for other in plain.into_iter().chain(parted.into_iter().flatten()) {
        let more = readings_of(&other).into_iter().filter(|reading| !all.contains(reading)).collect::<Vec<_>>();
        all.extend(more);
    }
    all
}

/// The text with a space for each invisible character that may stand between two words. `None` without one.
fn parted(text: &str) -> Option<String> {
    let parts = |character| is_invisible(character) && !belongs_in_words(character);
    text.contains(parts).then(|| text.replace(parts, " "))
}

/// Whether there are invisible characters between two letters or digits, which could hide the end of a word. The ones
/// in emoji divide nothing.
pub(super) fn is_divided(text: &str) -> bool {
    let (mut after_letter, mut hidden) = (false, false);
    for character in text.chars() {
        if is_invisible(character) {
            hidden = after_letter;
            continue;
        }
        let is_letter = character.is_alphanumeric() || decorates(character);
        if hidden && is_letter {
            return true;
        }
        (after_letter, hidden) = (is_letter, false);
    }
    false
}

/// The text without signs of emphasis, such as `(word:1.3)`, which some engines remove: the parts of a word that the signs
/// divide become one. `None` without a bracket.
fn without_emphasis(text: &str) -> Option<String> {
    const BRACKETS: [char; 6] = ['(', ')', '[', ']', '{', '}'];
    if !text.contains(BRACKETS) {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|sign: char| BRACKETS.contains(&sign) || matches!(sign, ':' | '\\')) {
        let (before, signs) = rest.split_at(at);
        out.push_str(before);
        let number = signs[1..].trim_start_matches(|sign: char| sign.is_ascii_digit() || "+-. ".contains(sign));
        rest = match signs.as_bytes()[0] {
            b':' if number.starts_with([')', ']']) => &number[1..],
            b':' => {
                out.push(':');
                &signs[1..]
            }
            _ => &signs[1..],
        };
    }
    out.push_str(rest);
    Some(out)
}

fn readings_of(text: &str) -> Vec<String> {
    let mut all = vec![words(text, Reading::Literal)];
    let mut add = |reading: String| {
        if !all.contains(&reading) {
            all.push(reading);
        }
    };
    let alike = words(text, Reading::Lookalike);
    for ones in [['i', 'i'], ['l', 'l'], ['i', 'l'], ['l', 'i']] {
        if let Some(unmasked) = unmask(text, ones) {
            let unmasked = words(&unmasked, Reading::Lookalike);
            add(join_spelt(&unmasked));
            add(unmasked);
        }
    }
    add(join_spelt(&alike));
    add(alike);
    all
}

/// Normalises a text: ` like this ` with a space wherever a word of a spaced script begins or ends.
pub(super) fn words(text: &str, reading: Reading) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    let mut last = Kind::Stop;
    let mut between = Kind::Letter;
    let mut small = String::with_capacity(text.len());
    let visible = text.chars().filter(|c| !is_invisible(*c)).nfkd().filter(|c| !is_invisible(*c) && !decorates(*c));
    let mut seen = HashMap::new();
    for character in visible {
        if character.is_ascii() {
            small.push(character.to_ascii_lowercase());
        } else {
            small.push_str(seen.entry(character).or_insert_with(|| small_letters(character, reading)));
        }
    }
    for character in small.nfc() {
        let kind = kind(character);
        match kind {
            Kind::Gap if between == Kind::Stop => {}
            Kind::Gap | Kind::Stop => between = kind,
            Kind::Letter | Kind::Free | Kind::Unspaced => {
                if is_apart(last, between, kind) {
                    out.push(' ');
                }
                out.push(character);
                (last, between) = (kind, Kind::Letter);
            }
        }
    }
    if last == Kind::Letter {
        out.push(' ');
    }
    out
}

/// Whether a space belongs between two characters. `between` is the kind of separator that was there;
/// [`Kind::Letter`] means none.
fn is_apart(last: Kind, between: Kind, next: Kind) -> bool {
    match (last, between, next) {
        (Kind::Stop, _, next) => next == Kind::Letter,
        (Kind::Unspaced, Kind::Gap, Kind::Unspaced) => false,
        (_, Kind::Gap | Kind::Stop, _) => true,
        (last, _, next) => (last == Kind::Letter) != (next == Kind::Letter),
    }
}

/// Whether `character` combines with the previous one, so that no word ends between them.
pub(super) fn continues(character: char) -> bool {
    matches!(character.general_category(), Category::NonspacingMark | Category::SpacingMark | Category::EnclosingMark)
}

fn kind(character: char) -> Kind {
    use Script::{Han, Hangul, Hiragana, Katakana, Khmer, Lao, Myanmar, Thai};
    if character.is_ascii() {
        return match character {
            'a'..='z' | '0'..='9' => Kind::Letter,
            '.' | ',' | '!' | '?' | ';' | ':' | '\n' => Kind::Stop,
            _ => Kind::Gap,
        };
    }
    match character.general_category() {
        // The braille pattern without dots, which looks like a space.
        Category::OtherSymbol if character == '\u{2800}' => return Kind::Gap,
        Category::OtherSymbol => return Kind::Free,
        Category::OtherPunctuation if matches!(character, '。' | '、' | '，' | '？' | '！' | '；' | '：') => {
            return Kind::Stop;
        }
        _ if character.is_alphanumeric() || continues(character) => {}
        _ => return Kind::Gap,
    }
    match character.script() {
        Han | Hiragana | Katakana | Thai | Lao | Khmer | Myanmar => Kind::Unspaced,
        Hangul => Kind::Free,
        // The Japanese prolonged sound mark, which belongs to two scripts.
        _ if character == 'ー' => Kind::Unspaced,
        _ => Kind::Letter,
    }
}

/// Whether a character is invisible, or only changes the presentation of another.
fn is_invisible(character: char) -> bool {
    match character {
        ' '..='~' => false,
        '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{3164}' | '\u{ffa0}' => true,
        '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0000}'..='\u{e0fff}' => true,
        // Arabic tatweel, and the skin tone modifiers of emoji.
        '\u{640}' | '\u{1f3fb}'..='\u{1f3ff}' => true,
        // Not assigned, but not to be displayed either, and what stands for an object that is not there.
        '\u{2065}' | '\u{fff0}'..='\u{fff8}' | '\u{fffc}' => true,
        _ if character.is_whitespace() => false,
        _ => matches!(character.general_category(), Category::Format | Category::Control),
    }
}

/// Whether an invisible character has a use within a word: soft hyphens, joiners of letters, and what changes the
/// presentation of the character before it.
fn belongs_in_words(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{34f}' | '\u{640}' | '\u{200c}' | '\u{200d}' | '\u{180b}'..='\u{180f}' | '\u{fe00}'..='\u{fe0f}'
            | '\u{1f3fb}'..='\u{1f3ff}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Whether a mark only decorates a letter, such as an accent, a point or a stroke. The marks of Thai and Hindi are
/// vowels, and two Japanese marks change the consonant, so these do not count.
fn decorates(character: char) -> bool {
    if character.is_ascii() || matches!(character, '\u{3099}' | '\u{309a}') {
        return false;
    }
    match character.general_category() {
        Category::EnclosingMark => true,
        Category::NonspacingMark => matches!(
            character.script(),
            Script::Inherited
                | Script::Common
                | Script::Latin
                | Script::Greek
                | Script::Cyrillic
                | Script::Hebrew
                | Script::Arabic
        ),
        _ => false,
    }
}

fn small_letters(character: char, reading: Reading) -> String {
    let seen = if reading == Reading::Lookalike { lookalike(character) } else { None };
    let seen = seen.unwrap_or_else(|| character.to_string());
    // Via upper case, which unifies letters that differ only in lower case: ß and ss, ς and σ, ı and i.
    let capitals = seen.chars().flat_map(char::to_lowercase).flat_map(char::to_uppercase);
    capitals.flat_map(char::to_lowercase).filter(|c| !decorates(*c)).collect()
}

/// The Latin letters that a character of another spaced script, or a pictograph of a letter, resembles. A lower-case
/// letter that resembles none is replaced by its capital: `м` by `М`, which resembles an M.
fn lookalike(character: char) -> Option<String> {
    if let Some(letter) = pictured(character) {
        return Some(letter.to_string());
    }
    if kind(character) != Kind::Letter {
        return None;
    }
    latin(character).or_else(|| character.to_uppercase().find_map(latin))
}

fn latin(character: char) -> Option<String> {
    let prototype = |c: char| skeleton(c.encode_utf8(&mut [0; 4])).filter(|c| !decorates(*c)).collect::<String>();
    let like = match prototype(character) {
        // The Unicode confusables map a capital I to a lower-case l.
        like if like == "l" && character.is_uppercase() => character.to_lowercase().map(prototype).collect(),
        like if like == "rn" => "m".to_owned(),
        like => like,
    };
    let like: String = like.chars().map(|c| pictured(c).unwrap_or(c)).collect();
    (!like.is_empty() && like.chars().all(|c| c.is_ascii_alphanumeric())).then_some(like)
}

/// The letter that a character depicts: a small capital, a regional indicator or a letter in a disc.
fn pictured(character: char) -> Option<char> {
    const SMALL_CAPITALS: &str = "ᴀʙᴄᴅᴇꜰɢʜɪᴊᴋʟᴍɴᴏᴘꞯʀꜱᴛᴜᴠᴡ-ʏᴢ";
    let from = |first: char| u8::try_from(u32::from(character) - u32::from(first)).ok().map(|at| char::from(b'a' + at));
    match character {
        '\u{1f150}'..='\u{1f169}' => from('\u{1f150}'),
        '\u{1f170}'..='\u{1f189}' => from('\u{1f170}'),
        '\u{1f1e6}'..='\u{1f1ff}' => from('\u{1f1e6}'),
        'ĸ' => Some('k'),
        _ => SMALL_CAPITALS.chars().zip('a'..='z').find(|(small, _)| *small == character).map(|(_, letter)| letter),
    }
}

/// Replaces digits and signs by the letters that they imitate, in words with letters. `None` if there is nothing to
/// replace. A 1 can be an i or an l: `ones` are the letters for a word's first 1 and for its others. `None` if these
/// differ and no word has two.
fn unmask(text: &str, ones: [char; 2]) -> Option<String> {
    let masks = |c: char| match c {
        '0' => Some('o'),
        '3' => Some('e'),
        '4' | '@' => Some('a'),
        '5' | '$' => Some('s'),
        '7' => Some('t'),
        _ => None,
    };
    let mut out = String::with_capacity(text.len());
    let compatible: String = text.chars().filter(|c| !is_invisible(*c)).nfkc().collect();
    if !compatible.contains(|c| IS_ONE.contains(&c) || masks(c).is_some()) {
        return None;
    }
    let has_two = |word: &str| word.matches(IS_ONE).nth(1).is_some();
    if ones[0] != ones[1] && !compatible.split_whitespace().any(has_two) {
        return None;
    }
    for word in compatible.split_inclusive(char::is_whitespace) {
        // Signs at the end of a word are more likely to be punctuation.
        let body = word.trim_end_matches(['!', '|', ' ', '\n', '\t', '.', ',', '?']);
        if body.chars().count() >= MIN_MASKED && body.chars().any(char::is_alphabetic) {
            let mut ones = ones.into_iter().chain(std::iter::repeat(ones[1]));
            let letter = |c| if IS_ONE.contains(&c) { ones.next() } else { masks(c) };
            out.extend(body.chars().map(letter).zip(body.chars()).map(|(letter, c)| letter.unwrap_or(c)));
            out.push_str(&word[body.len()..]);
        } else {
            out.push_str(word);
        }
    }
    Some(out)
}

/// Joins runs of single letters, with and without the first and the last letter, which can be separate words.
fn join_spelt(words: &str) -> String {
    let mut out = String::with_capacity(words.len());
    let mut spelt: Vec<&str> = Vec::new();
    let flush = |spelt: &mut Vec<&str>, out: &mut String| {
        if spelt.len() < MIN_SPELT {
            spelt.iter().for_each(|letter| out.extend([letter, " "]));
        } else {
            let last = spelt.len() - 1;
            for letters in [&spelt[..], &spelt[1..], &spelt[..last], &spelt[1..last]] {
                out.extend([&letters.concat(), " "]);
            }
        }
        spelt.clear();
    };
    out.push(' ');
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        if word.chars().nth(1).is_none() && kind_of(word) == Kind::Letter {
            spelt.push(word);
        } else {
            flush(&mut spelt, &mut out);
            out.extend([word, " "]);
        }
    }
    flush(&mut spelt, &mut out);
    out
}

fn kind_of(word: &str) -> Kind {
    word.chars().next().map_or(Kind::Gap, kind)
}
