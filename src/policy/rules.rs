//! Finds the words of all rules in a prompt with one automaton, in time linear in the length of the prompt.

use aho_corasick::AhoCorasick;

use super::normalise::{Look, continues, readings, words};

/// A rule of the policy file.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) words: Vec<String>,
}

/// All rules, compiled for matching.
#[derive(Debug)]
pub(super) struct Matcher {
    names: Vec<String>,
    automaton: AhoCorasick,
    /// Index of the rule that each pattern of the automaton belongs to.
    rule_of: Vec<usize>,
}

impl Matcher {
    /// Compiles the rules.
    ///
    /// # Errors
    /// A sentence for the operator: a word without letters, or too many words.
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
                rule_of.extend(spellings.iter().map(|_| index));
                patterns.extend(spellings);
            }
        }
        let automaton = AhoCorasick::new(&patterns).map_err(|error| format!("there are too many rules: {error}"))?;
        Ok(Self { names: rules.iter().map(|rule| rule.name.clone()).collect(), automaton, rule_of })
    }

    /// Number of rules.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether any rule refuses the prompt.
    pub(super) fn refuses(&self, prompt: &str) -> bool {
        self.found(&readings(prompt)).next().is_some()
    }

    /// The names of the rules that refuse the prompt, in the order of the file.
    pub(super) fn matches(&self, prompt: &str) -> Vec<&str> {
        let mut rules: Vec<usize> = self.found(&readings(prompt)).collect();
        rules.sort_unstable();
        rules.dedup();
        rules.into_iter().map(|rule| self.names[rule].as_str()).collect()
    }

    fn found<'a>(&'a self, readings: &'a [String]) -> impl Iterator<Item = usize> + 'a {
        readings.iter().flat_map(|reading| {
            let found = self.automaton.find_overlapping_iter(reading.as_str());
            // A match in a script without spaces must not end inside a syllable.
            let whole = found.filter(|found| !reading[found.end()..].starts_with(continues));
            whole.map(|found| self.rule_of[found.pattern().as_usize()])
        })
    }
}

/// All normalised forms that a word can have in a reading of a prompt.
fn spellings(word: &str) -> Vec<String> {
    let mut spellings = vec![words(word, Look::Meant)];
    // A lower-case letter and its capital can resemble different Latin letters.
    for cased in [word.to_owned(), word.to_lowercase(), word.to_uppercase()] {
        spellings.push(words(&cased, Look::Lookalike));
    }
    spellings.sort_unstable();
    spellings.dedup();
    spellings.retain(|spelling| !spelling.trim().is_empty());
    spellings
}
