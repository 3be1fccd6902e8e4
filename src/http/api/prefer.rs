//! The header `Prefer` (RFC 7240). The service supports `wait` and, in OpenAI's dialect, `respond-async`.

use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::header::{HeaderName, HeaderValue};
use axum::response::Response;

/// The longest wait. Many proxies close a connection on which nothing happens for longer.
const MAX_SECONDS: u64 = 60;

pub(in crate::http) static PREFERENCE_APPLIED: HeaderName = HeaderName::from_static("preference-applied");

/// How long a caller wants to wait for the end of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wait {
    seconds: u64,
}

impl Wait {
    /// Reads the preference; `None` if it is absent or malformed. Only the first `wait` counts.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let value = preferences(headers).find_map(|preference| {
            let (name, value) = preference.split_once('=').unwrap_or((preference, ""));
            name.trim().eq_ignore_ascii_case("wait").then(|| value.trim())
        })?;
        let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
        let digits = quoted.unwrap_or(value);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        // Too many digits for a number are a long wait too.
        let seconds = digits.parse().unwrap_or(u64::MAX).min(MAX_SECONDS);
        (seconds > 0).then_some(Self { seconds })
    }

    /// The longest time to wait.
    pub(super) fn limit(self) -> Duration {
        Duration::from_secs(self.seconds)
    }

    /// Says that the preference was honoured: the task in the response has ended.
    pub(super) fn applied_to(self, mut response: Response) -> Response {
        if let Ok(value) = HeaderValue::try_from(format!("wait={}", self.seconds)) {
            response.headers_mut().insert(PREFERENCE_APPLIED.clone(), value);
        }
        response
    }
}

/// Whether a caller wants an answer at once instead of waiting for the task.
pub(in crate::http) fn responds_async(headers: &HeaderMap) -> bool {
    preferences(headers).any(|preference| preference.trim().eq_ignore_ascii_case("respond-async"))
}

/// The preferences without their parameters, which follow a semicolon: the supported ones have none.
fn preferences(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all("prefer").iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| split(line, ',')).filter_map(|preference| split(preference, ';').next())
}

/// Splits a header at a separator outside of quoted strings.
fn split(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |letter: char| {
        let literal = escaped;
        escaped = quoted && !literal && letter == '\\';
        if letter == '"' && !literal {
            quoted = !quoted;
        }
        letter == separator && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(lines: &[&str]) -> Option<u64> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("prefer", HeaderValue::from_bytes(line.as_bytes()).expect("a value"));
        }
        Wait::of(&headers).map(|wait| wait.seconds)
    }

    #[test]
    fn the_first_wait_counts() {
        for (lines, seconds) in [
            (&["wait=10"][..], Some(10)),
            (&["WAIT = 10"], Some(10)),
            (&["wait=\"10\""], Some(10)),
            (&["respond-async, wait=5"], Some(5)),
            (&["respond-async", "wait=5"], Some(5)),
            (&["wait=5; note=\"a, wait=7\""], Some(5)),
            (&["handling=\"a, wait=7\", wait=5"], Some(5)),
            (&["handling=\"\\\", wait=7\", wait=5"], Some(5)),
            (&[",, ,wait=5,"], Some(5)),
            (&["wait=5, wait=7"], Some(5)),
            (&["wait=5", "wait=7"], Some(5)),
            (&["wait=0007"], Some(7)),
            (&["wait=60"], Some(60)),
            (&["wait=61"], Some(60)),
            (&["wait=99999999999999999999999999999999"], Some(60)),
        ] {
            assert_eq!(wait(lines), seconds, "{lines:?}");
        }
    }

    #[test]
    fn an_answer_at_once_is_a_preference_among_others() {
        for (line, expected) in [
            ("respond-async", true),
            ("wait=5, Respond-Async ;a=b", true),
            ("respond-asynchronously", false),
            ("a=\"respond-async\"", false),
            ("respond-async=1", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.append("prefer", HeaderValue::from_static(line));
            assert_eq!(responds_async(&headers), expected, "{line}");
        }
    }

    #[test]
    fn a_preference_that_cannot_be_understood_is_ignored() {
        for lines in [
            &[][..],
            &[""],
            &["wait"],
            &["wait="],
            &["wait=0"],
            &["wait=-1"],
            &["wait=+1"],
            &["wait=1.5"],
            &["wait=1s"],
            &["wait=1 0"],
            &["wait=\"10"],
            &["wait='10'"],
            &["wait=10=20"],
            &["wait=\u{661}"],
            &["waits=10"],
            &["a;wait=10"],
            &["a=\"wait=10"],
            &["wait=x, wait=10"],
        ] {
            assert_eq!(wait(lines), None, "{lines:?}");
        }
        let long = "wait=1".repeat(10_000) + "\\\"";
        assert_eq!(wait(&[&long]), None);
    }
}
