//! Finds the words of all rules in a prompt with one automaton, in time linear in the length of the prompt.

use aho_corasick::AhoCorasick;

use super::normalise::{Reading, continues, is_divided, readings, words};

/// Most gaps between the words of a phrase where each may be hidden while others are not.
const MAX_GAPS: usize = 3;

#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) words: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Matcher {
    names: Vec<String>,
    automaton: AhoCorasick,
    /// Index of the rule that each pattern of the automaton belongs to, and whether the pattern is a phrase without
    /// some of its spaces, which counts only where a prompt has invisible characters between letters.
    rule_of: Vec<(usize, bool)>,
}

impl Matcher {
    /// Compiles the rules.
    ///
    /// # Errors
    /// A message for the operator: a word without letters, or too many words.
    pub(super) fn new(rules: &[Rule]) -> Result<Self, String> {
        let (mut patterns, mut rule_of) = (Vec::new(), Vec::new());
        for (index, rule) in rules.iter().enumerate() {
            for word in &rule.words {
                let spellings = spellings(word);
                if spellings.is_empty() {
                    return Err(format!(
                        "rule {:?} has a word without letters, which would match everything",
                        rule.name
                    ));
                }
                let closed: Vec<String> = spellings.iter().flat_map(|spelling| closed(spelling)).collect();
                rule_of.extend(spellings.iter().map(|_| (index, false)).chain(closed.iter().map(|_| (index, true))));
                patterns.extend(spellings.into_iter().chain(closed));
            }
        }
        let automaton = AhoCorasick::new(&patterns).map_err(|error| format!("there are too many rules: {error}"))?;
        Ok(Self { names: rules.iter().map(|rule| rule.name.clone()).collect(), automaton, rule_of })
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn refuses(&self, prompt: &str) -> bool {
        self.found(&readings(prompt), is_divided(prompt)).next().is_some()
    }

    /// The names of the rules that refuse the prompt, in the order of the file.
    pub(super) fn matches(&self, prompt: &str) -> Vec<&str> {
        let mut rules: Vec<usize> = self.found(&readings(prompt), is_divided(prompt)).collect();
        rules.sort_unstable();
        rules.dedup();
        rules.into_iter().map(|rule| self.names[rule].as_str()).collect()
    }

    fn found<'a>(&'a self, readings: &'a [String], divided: bool) -> impl Iterator<Item = usize> + 'a {
        readings.iter().flat_map(move |reading| {
            let found = self.automaton.find_overlapping_iter(reading.as_str());
            // A match in a script without spaces must not end inside a syllable.
            let whole = found.filter(|found| !reading[found.end()..].starts_with(continues));
            let rules = whole.map(|found| self.rule_of[found.pattern().as_usize()]);
            rules.filter(move |(_, closed)| divided || !closed).map(|(rule, _)| rule)
        })
    }
}

/// A phrase with every subset of its spaces removed, because an invisible character could have been there. With more
/// than [`MAX_GAPS`] spaces, only all of them are removed.
fn closed(spelling: &str) -> Vec<String> {
    let gaps: Vec<usize> = spelling.trim_end().match_indices(' ').map(|(at, _)| at).filter(|at| *at > 0).collect();
    let without = |left_out: &[usize]| {
        spelling.char_indices().filter(|(at, _)| !left_out.contains(at)).map(|(_, character)| character).collect()
    };
    if gaps.len() > MAX_GAPS {
        return vec![without(&gaps)];
    }
    let chosen =
        |set: usize| (0..gaps.len()).filter(|bit| set >> bit & 1 == 1).map(|bit| gaps[bit]).collect::<Vec<_>>();
    (1..1 << gaps.len()).map(|set| without(&chosen(set))).collect()
}

/// All normalised forms that a word can have in a reading of a prompt.
fn spellings(word: &str) -> Vec<String> {
    let mut spellings = vec![words(word, Reading::Literal)];
    // A lower-case letter and its capital can resemble different Latin letters.
    for cased in [word.to_owned(), word.to_lowercase(), word.to_uppercase()] {
        spellings.push(words(&cased, Reading::Lookalike));
    }
    spellings.sort_unstable();
    spellings.dedup();
    spellings.retain(|spelling| !spelling.trim().is_empty());
    spellings
}
