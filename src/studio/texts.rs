//! The studio's texts, in all of its languages. Pages contain no texts of their own.

use std::fmt::Display;
use std::sync::LazyLock;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header;
use fluent_bundle::concurrent::FluentBundle;
use fluent_bundle::types::FluentNumber;
use fluent_bundle::{FluentArgs, FluentResource, FluentValue};

use super::cookies;

struct Language {
    /// As in `lang="en"`.
    code: &'static str,
    /// Its own name.
    name: &'static str,
    /// What stands between the thousands of a number, and before its decimals.
    separators: [char; 2],
    texts: &'static str,
}

/// The languages, the default first.
const LANGUAGES: [Language; 2] = [
    Language { code: "en", name: "English", separators: [',', '.'], texts: include_str!("texts/en.ftl") },
    Language { code: "de", name: "Deutsch", separators: ['.', ','], texts: include_str!("texts/de.ftl") },
];

static CATALOGUE: LazyLock<Vec<Texts>> = LazyLock::new(|| LANGUAGES.iter().map(Texts::new).collect());

/// The languages, each with its own name.
pub(super) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    LANGUAGES.iter().map(|language| (language.code, language.name))
}

/// The texts in one language.
pub struct Texts {
    /// The language, as in `lang="en"`.
    pub language: &'static str,
    separators: [char; 2],
    bundle: FluentBundle<FluentResource>,
}

tintype_domain::opaque_debug!(Texts);

impl Texts {
    fn new(language: &Language) -> Self {
        let Language { code, separators, texts, .. } = *language;
        let mut bundle = FluentBundle::new_concurrent(vec![code.parse().expect("a language of this program")]);
        // Without marks around values, which would show in attributes and be copied with names.
        bundle.set_use_isolating(false);
        bundle.set_formatter(Some(if separators[0] == ',' { number::<',', _> } else { number::<'.', _> }));
        let resource = FluentResource::try_new(texts.to_owned()).expect("a test parses every catalogue");
        bundle.add_resource(resource).expect("a catalogue has each text once");
        Self { language: code, separators, bundle }
    }

    /// The texts in the language that the person has chosen, or else that the browser prefers.
    pub fn of(headers: &HeaderMap) -> &'static Self {
        if let Some(chosen) = cookies::value(headers, cookies::LANGUAGE).and_then(Self::named) {
            return chosen;
        }
        let accepted = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        preferred(accepted, &CATALOGUE)
    }

    /// The texts in a language; `None` if the studio does not speak it.
    pub(super) fn named(language: &str) -> Option<&'static Self> {
        CATALOGUE.iter().find(|texts| texts.language == language)
    }

    /// A text by its name. A name without a text is shown as it is; a test finds those.
    pub fn get(&self, name: &str) -> String {
        self.with(name, [])
    }

    /// The text for a word, such as `role-viewer` for a role. A word without a text is shown as it is; a test finds
    /// those.
    pub(super) fn of_word(&self, kind: &str, word: impl Display) -> String {
        self.get(&format!("{kind}-{word}"))
    }

    /// A text with one number in it, called `n`, which decides between singular and plural.
    pub(super) fn count(&self, name: &str, n: impl Into<FluentNumber>) -> String {
        self.with(name, [("n", n.into().into())])
    }

    /// A text with a number and a word in it, called `n` and `word`.
    pub(super) fn count_of(&self, name: &str, n: impl Into<FluentNumber>, word: &str) -> String {
        self.with(name, [("n", n.into().into()), ("word", word.into())])
    }

    /// A number with separators between its thousands.
    pub(super) fn number(&self, n: impl Into<FluentNumber>) -> String {
        grouped(n.into().value as i64, self.separators[0])
    }

    /// A number with its sign, also if it is above zero.
    pub(super) fn change(&self, n: impl Into<FluentNumber>) -> String {
        let number = self.number(n);
        if number.starts_with(['-', '0']) { number } else { format!("+{number}") }
    }

    /// A time in seconds, with a decimal if it is short.
    pub(super) fn seconds(&self, time: Duration) -> String {
        match time.as_secs_f64() {
            seconds if seconds < 100.0 => format!("{seconds:.1} s").replace('.', &self.separators[1].to_string()),
            _ => format!("{} s", self.number(time.as_secs())),
        }
    }

    /// A text with one word in it, called `word`.
    pub fn word(&self, name: &str, word: &str) -> String {
        self.with(name, [("word", word.into())])
    }

    /// A text about a range, with one word in it: they are called `word`, `least` and `most`.
    pub(super) fn range(&self, name: &str, word: &str, least: f64, most: f64) -> String {
        let [least, most] = [least.to_string(), most.to_string()];
        self.with(name, [("word", word.into()), ("least", least.into()), ("most", most.into())])
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.bundle.has_message(name)
    }

    fn with<const N: usize>(&self, name: &str, values: [(&'static str, FluentValue<'_>); N]) -> String {
        let Some(pattern) = self.bundle.get_message(name).and_then(|message| message.value()) else {
            return name.to_owned();
        };
        let arguments: FluentArgs<'_> = values.into_iter().collect();
        self.bundle.format_pattern(pattern, Some(&arguments), &mut Vec::new()).into_owned()
    }
}

/// A number in a text, with separators between its thousands. Other values are shown as they are.
fn number<const SEPARATOR: char, M>(value: &FluentValue<'_>, _: &M) -> Option<String> {
    let FluentValue::Number(number) = value else { return None };
    Some(grouped(number.value as i64, SEPARATOR))
}

fn grouped(n: i64, separator: char) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut grouped = if n < 0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped
}

/// Reads a header such as `de-AT,de;q=0.9,en;q=0.5` (RFC 9110, section 12.5.4).
fn preferred<'a>(accepted: &str, catalogue: &'a [Texts]) -> &'a Texts {
    let mut best: Option<(f32, &Texts)> = None;
    for range in accepted.split(',').take(20) {
        let (tag, weight) = range.split_once(";q=").unwrap_or((range, "1"));
        let weight: f32 = weight.trim().parse().unwrap_or(0.0);
        let language = tag.trim().split('-').next().unwrap_or_default();
        let Some(texts) = catalogue.iter().find(|texts| texts.language.eq_ignore_ascii_case(language)) else {
            continue;
        };
        if weight > best.map_or(0.0, |(weight, _)| weight) {
            best = Some((weight, texts));
        }
    }
    best.map_or(&catalogue[0], |(_, texts)| texts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use tintype_domain::budget::Period;
    use tintype_domain::endpoint::DeliveryState;
    use tintype_domain::key::KeyState;
    use tintype_domain::model::{EntryKind, ReferenceProblem};
    use tintype_domain::person::Role;
    use tintype_engine::Setting;
    use tintype_store::{Action, Via};

    fn keys(text: &str) -> BTreeSet<&str> {
        let entry = |line: &str| !line.starts_with([' ', '#', '}', '[', '*']) && line.contains(" =");
        text.lines().filter(|line| entry(line)).filter_map(|line| line.split(" =").next()).collect()
    }

    #[test]
    fn every_language_has_every_text() {
        let [english, others @ ..] = LANGUAGES;
        for language in others {
            assert_eq!(keys(language.texts), keys(english.texts), "{}", language.code);
        }
        assert!(CATALOGUE.iter().all(|texts| !texts.get("title-create").contains("title-create")));
    }

    /// The files of the studio with this extension.
    fn files(extension: &str) -> Vec<String> {
        let mut folders = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/studio")];
        let mut found = Vec::new();
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|found| found == extension) {
                    found.push(std::fs::read_to_string(path).expect("text"));
                }
            }
        }
        found
    }

    #[test]
    fn every_text_of_the_pages_exists_and_every_text_is_used() {
        let known = keys(LANGUAGES[0].texts);
        let pages = files("html");
        for html in &pages {
            for call in [".get(\"", ".count(\"", ".word(\""] {
                for rest in html.split(call).skip(1) {
                    let name = rest.split('"').next().expect("a name");
                    assert!(known.contains(name), "{name}");
                }
            }
        }
        let users = [pages, files("rs")].concat().concat();
        let words = [
            ("role", Role::ALL.map(Role::as_str).to_vec()),
            ("credits", EntryKind::ALL.map(EntryKind::as_str).to_vec()),
            ("key-per", Period::ALL.map(Period::as_str).to_vec()),
            ("key-state", KeyState::ALL.map(KeyState::as_str).to_vec()),
            ("via", Via::ALL.map(Via::as_str).to_vec()),
            ("delivery", DeliveryState::ALL.map(DeliveryState::as_str).to_vec()),
            ("setting", Setting::ALL.map(Setting::as_str).to_vec()),
            ("reference", ReferenceProblem::ALL.map(ReferenceProblem::as_str).to_vec()),
        ];
        let of_kind = |(kind, words): (&'static str, Vec<&'static str>)| {
            words.into_iter().filter(|word| !word.is_empty()).map(move |word| format!("{kind}-{word}"))
        };
        let actions = Action::ALL.iter().map(|action| action.as_str().to_owned());
        let words: Vec<String> = words.into_iter().flat_map(of_kind).chain(actions).collect();
        assert!(words.iter().all(|word| known.contains(word.as_str())), "{words:?}");
        let is_used = |name: &str| users.contains(&format!("\"{name}\"")) || words.iter().any(|word| word == name);
        let unused: Vec<_> = known.iter().filter(|name| !is_used(name)).collect();
        assert!(unused.is_empty(), "{unused:?}");
    }

    #[test]
    fn a_browser_gets_the_language_that_it_prefers() {
        for (accepted, language) in [
            ("", "en"),
            ("de", "de"),
            ("de-AT,de;q=0.9,en;q=0.5", "de"),
            ("en;q=0.5, de;q=0.9", "de"),
            ("en-GB,de;q=0.9", "en"),
            ("fr,es", "en"),
            ("de;q=0", "en"),
            ("de;q=NaN", "en"),
            ("*;q=0.1", "en"),
        ] {
            assert_eq!(preferred(accepted, &CATALOGUE).language, language, "{accepted}");
        }
    }

    #[test]
    fn numbers_have_their_plural_and_their_separators() {
        let [english, german] = [0, 1].map(|index| &CATALOGUE[index]);
        assert_eq!(english.count("credits", 1_i64), "1 credit");
        assert_eq!(english.count("credits", 1_200_i64), "1,200 credits");
        assert_eq!(german.count("credits", -1_234_567_i64), "-1.234.567 Credits");
        assert_eq!([0_i64, 999, 100_000].map(|n| english.number(n)), ["0", "999", "100,000"]);
        assert_eq!([1_200_i64, 0, -2].map(|n| german.change(n)), ["+1.200", "0", "-2"]);
        let times = [Duration::from_millis(1_250), Duration::from_secs(3_600)];
        assert_eq!(times.map(|time| german.seconds(time)), ["1,2 s", "3.600 s"]);
        assert_eq!(english.word("signed-in-as", "ada"), "Signed in as ada");
    }
}
