//! The formats in which a client accepts an answer. The protocol requires both, but many programs name one, `*/*` or
//! none.

use axum::http::header::{self, HeaderMap, HeaderValue};

/// The formats that the transport wants to be named.
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AcceptedFormats {
    /// Whether it is answered with JSON, and not with a stream of events: it names no stream, or cannot take one.
    pub(super) json: bool,
    /// Whether it takes a stream, which may hold reports before the answer.
    pub(super) stream: bool,
}

impl AcceptedFormats {
    /// Reads the header `Accept`; `None` if it allows neither form. Without one, any is allowed.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let lines = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
        let ranges: Vec<String> = lines.flat_map(|line| line.split(',')).filter_map(media_range).collect();
        if ranges.is_empty()
            && !headers.get_all(header::ACCEPT).iter().any(|line| !line.as_bytes().trim_ascii().is_empty())
        {
            return Some(Self { json: true, stream: false });
        }
        let names = |one: &[&str]| ranges.iter().any(|range| one.contains(&range.as_str()));
        let stream = names(&["text/event-stream", "text/*"]);
        let json = names(&["application/json", "application/*", "*/*"]);
        (json || stream).then_some(Self { json: !stream, stream })
    }

    /// Names both formats, so that the transport takes the message.
    pub(super) fn allow_both(headers: &mut HeaderMap) {
        headers.insert(header::ACCEPT, BOTH);
    }
}

/// The media range of one entry, unless its weight is 0.
fn media_range(entry: &str) -> Option<String> {
    let mut parts = entry.split(';').map(str::trim);
    let range = parts.next().filter(|range| !range.is_empty())?.to_ascii_lowercase();
    let refused = parts.any(|part| {
        part.split_once('=').is_some_and(|(name, weight)| {
            name.trim().eq_ignore_ascii_case("q") && weight.trim().parse::<f32>().is_ok_and(|weight| weight == 0.0)
        })
    });
    (!refused).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `Accept` that programs send. `None`: refused; otherwise whether the answer is JSON, and whether reports may
    /// come before it.
    #[test]
    fn clients_get_a_form_that_they_take() {
        let json = Some((true, false));
        let stream = Some((false, true));
        for (lines, expected) in [
            // The official clients.
            (&["application/json, text/event-stream"][..], stream),
            (&["text/event-stream, application/json;q=0.9"], stream),
            (&["application/json", "text/event-stream"], stream),
            // curl and httpx, axios, Java: programs that do not set the header themselves. Go sends none (mcptools, issue 69).
            (&["*/*"], json),
            (&["application/json, text/plain, */*"], json),
            (&["text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"], json),
            (&[], json),
            (&[""], json),
            // Clients for JSON alone (dify-plugin-tools-mcp_sse, issue 70), and for streams alone (composio, issue 2152).
            (&["application/json"], json),
            (&["application/json;charset=utf-8"], json),
            (&["text/event-stream"], stream),
            (&["Text/Event-Stream"], stream),
            (&["application/json, text/event-stream;q=0"], json),
            (&["text/html"], None),
            (&["application/json;q=0"], None),
            (&["application/jsonl"], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::ACCEPT, line.parse().expect("a value"));
            }
            assert_eq!(
                AcceptedFormats::of(&headers).map(|formats| (formats.json, formats.stream)),
                expected,
                "{lines:?}"
            );
        }
    }
}
