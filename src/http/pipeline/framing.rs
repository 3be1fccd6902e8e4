//! Checks the head of a request for what the HTTP library silently repairs.
//!
//! Request smuggling needs a message with two interpretations, so heads with two are rejected: bare line feeds,
//! repeated lengths, a length next to chunks, a transfer coding other than chunks, which this server doesn't decode, or
//! a URL with a fragment, which the HTTP library cuts off. Only heads that a connection waited for are checked, not
//! pipelined ones: proxies don't pipeline, and a client that does could only deceive itself.

use tintype_config::MAX_HEADER;

/// The head of one request as it arrives.
#[derive(Debug, Default)]
pub struct HeadCheck {
    /// The bytes received of a head that arrives in parts.
    seen: Vec<u8>,
    done: bool,
}

impl HeadCheck {
    /// Takes the bytes that arrived; returns whether they complete a head with two interpretations.
    pub fn is_ambiguous_with(&mut self, bytes: &[u8]) -> bool {
        if self.done {
            return false;
        }
        let verdict = if self.seen.is_empty() {
            verdict(bytes)
        } else {
            self.seen.extend_from_slice(bytes);
            verdict(&self.seen)
        };
        match verdict {
            Some(ambiguous) => {
                *self = Self { seen: Vec::new(), done: true };
                ambiguous
            }
            None => {
                if self.seen.is_empty() {
                    self.seen.extend_from_slice(bytes);
                }
                // The HTTP library refuses larger ones.
                self.done = self.seen.len() > MAX_HEADER;
                false
            }
        }
    }
}

/// Whether a head has two interpretations; `None` when its end has not arrived.
fn verdict(bytes: &[u8]) -> Option<bool> {
    // The HTTP library skips empty lines before a request.
    let start = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let head = &bytes[start..];
    let (mut lengths, mut encodings, mut bare, mut unknown) = (0, 0, false, false);
    let mut begin = 0;
    for feed in memchr::memchr_iter(b'\n', head) {
        let line = &head[begin..feed];
        bare |= !line.ends_with(b"\r");
        unknown |= begin == 0 && line.contains(&b'#');
        if begin > 0 && matches!(line, b"" | b"\r") {
            return Some(bare || unknown || lengths + encodings > 1);
        }
        begin = feed + 1;
        // The first letter excludes most other names.
        match line.trim_ascii_start().first() {
            Some(b'c' | b'C') => lengths += usize::from(is_named(line, b"content-length")),
            Some(b't' | b'T') if is_named(line, b"transfer-encoding") => {
                encodings += 1;
                unknown |= !value(line).eq_ignore_ascii_case(b"chunked");
            }
            _ => {}
        }
    }
    None
}

fn is_named(line: &[u8], name: &[u8]) -> bool {
    let found = line.split(|byte| *byte == b':').next().unwrap_or_default();
    found.trim_ascii().eq_ignore_ascii_case(name)
}

fn value(line: &[u8]) -> &[u8] {
    let colon = memchr::memchr(b':', line).map_or(line.len(), |colon| colon + 1);
    line[colon..].trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict, which must not depend on how the bytes are split.
    fn verdict(request: &str) -> bool {
        let whole = HeadCheck::default().is_ambiguous_with(request.as_bytes());
        for at in 0..request.len() {
            let mut check = HeadCheck::default();
            let parts = [&request.as_bytes()[..at], &request.as_bytes()[at..]];
            let found = parts.map(|part| check.is_ambiguous_with(part)).contains(&true);
            assert_eq!(found, whole, "{request:?} cut at {at}");
        }
        whole
    }

    #[test]
    fn a_request_head_with_one_interpretation_passes() {
        for request in [
            "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\na\nb\n\nc\n\n",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding:Chunked \r\n\r\n",
            "GET / HTTP/1.1\r\nx-content-length: 1\r\ncontent-length: 1\r\n\r\na",
        ] {
            assert!(!verdict(request), "{request:?}");
        }
    }

    #[test]
    fn a_request_head_with_two_interpretations_is_found() {
        for request in [
            "GET / HTTP/1.1\nhost: x\n\n",
            "GET /a?b#&api_key=c HTTP/1.1\r\nhost: x\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\n\n",
            "GET / HTTP/1.1\r\nx: a\ntransfer-encoding: chunked\r\n\r\n",
            "\r\n\r\nPOST / HTTP/1.1\r\ncontent-length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: ,chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding:\r\n\r\n",
        ] {
            assert!(verdict(request), "{request:?}");
        }
    }
}
