//! Rehearsal directives such as `[[fail]]`: a prompt makes the engine misbehave, so that client authors can test.

use std::time::Duration;

/// Longest delay; longer ones are capped.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// Longest directive, in bytes. Without the bound, parsing a prompt of nothing but `[[` would take quadratic time.
const MAX_LENGTH: usize = 64;

/// How a rehearsed task ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// `[[fail]]`: a permanent error.
    Fail,
    /// `[[policy]]`: a refusal by the content policy.
    Policy,
    /// `[[panic]]`: the engine panics.
    Panic,
    /// `[[hang]]`: the engine never answers.
    Hang,
}

/// The directives of a prompt, and the rest of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rehearsal {
    /// Sum of all delays, which elapse before anything else happens.
    pub delay: Duration,
    /// The first ending in the prompt; `None` renders normally.
    pub ending: Option<Ending>,
    /// The prompt without its directives.
    pub words: String,
}

enum Directive {
    Delay(Duration),
    Ending(Ending),
}

impl Rehearsal {
    /// Removes the directives from a prompt. Unknown directives remain part of the text.
    pub fn read(prompt: &str) -> Self {
        let mut rehearsal = Self { delay: Duration::ZERO, ending: None, words: String::with_capacity(prompt.len()) };
        let mut rest = prompt;
        while let Some(start) = rest.find("[[") {
            let (before, bracketed) = rest.split_at(start);
            rehearsal.words.push_str(before);
            // A directive cannot contain another opening bracket, so `[[ [[fail]]` still fails the task.
            let inside = &bracketed[2..];
            let near = &inside[..inside.floor_char_boundary(MAX_LENGTH)];
            let end = near.find("]]").filter(|&end| !inside[..end].contains("[["));
            match end.and_then(|end| Some((Directive::parse(&inside[..end])?, end))) {
                Some((directive, end)) => {
                    rehearsal.apply(directive);
                    rehearsal.words.push(' ');
                    rest = &inside[end + 2..];
                }
                None => {
                    rehearsal.words.push('[');
                    rest = &bracketed[1..];
                }
            }
        }
        rehearsal.words.push_str(rest);
        rehearsal
    }

    fn apply(&mut self, directive: Directive) {
        match directive {
            Directive::Delay(delay) => self.delay = self.delay.saturating_add(delay).min(MAX_DELAY),
            Directive::Ending(ending) => self.ending = self.ending.or(Some(ending)),
        }
    }
}

impl Directive {
    fn parse(inside: &str) -> Option<Self> {
        let lower = inside.to_ascii_lowercase();
        let mut words = lower.split_whitespace();
        let directive = match words.next()? {
            "fail" => Self::Ending(Ending::Fail),
            "policy" => Self::Ending(Ending::Policy),
            "panic" => Self::Ending(Ending::Panic),
            "hang" => Self::Ending(Ending::Hang),
            "delay" => return duration(&words.collect::<String>()).map(Self::Delay),
            _ => return None,
        };
        words.next().is_none().then_some(directive)
    }
}

/// Parses `500ms`, `1.5s` or `10m`.
fn duration(text: &str) -> Option<Duration> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (amount, unit) = text.split_at(split);
    let unit_seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    let seconds = amount.parse::<f64>().ok()? * unit_seconds;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(MAX_DELAY).min(MAX_DELAY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_found_anywhere_and_removed() {
        let read = Rehearsal::read("a fox [[ DELAY  500ms ]] in [[fail]]snow[[policy]]");
        assert_eq!(read.delay, Duration::from_millis(500));
        assert_eq!(read.ending, Some(Ending::Fail));
        assert_eq!(read.words.split_whitespace().collect::<Vec<_>>(), ["a", "fox", "in", "snow"]);
    }

    #[test]
    fn delays_add_up_to_the_cap() {
        assert_eq!(Rehearsal::read("[[delay 3s]] [[delay 1 m]]").delay, Duration::from_secs(63));
        assert_eq!(Rehearsal::read("[[delay 99999999999999999999m]]").delay, MAX_DELAY);
    }

    #[test]
    fn unknown_directives_stay_text() {
        for text in
            ["[[dance]]", "[[delay]]", "[[delay -1s]]", "[[delay 1h]]", "[[fail", "[[fail now]]", "[fail]", "[["]
        {
            let read = Rehearsal::read(text);
            assert_eq!((read.ending, read.delay, read.words.as_str()), (None, Duration::ZERO, text));
        }
    }

    #[test]
    fn nested_and_repeated_brackets_do_not_hide_a_directive() {
        assert_eq!(Rehearsal::read("[[[hang]]]").ending, Some(Ending::Hang));
        assert_eq!(Rehearsal::read("[[ [[panic]]").ending, Some(Ending::Panic));
        assert_eq!(Rehearsal::read(&"[[".repeat(16_000)).ending, None);
    }
}
