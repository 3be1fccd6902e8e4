//! Reads along with the header of a request, for what the protocol library mends in silence.
//!
//! Two ways to read one message are what request smuggling lives on, so a header that has two is
//! refused: bare line feeds, a length given twice, or a length beside chunks. Only headers that a
//! connection waited for are looked at: proxies send no others, and nobody smuggles past himself.

/// Header bytes looked at; more are too many for the library too.
const MAX_HEADER: usize = 64 * 1024;

/// The header of one request as it arrives.
#[derive(Debug, Default)]
pub struct HeadCheck {
    seen: Vec<u8>,
    done: bool,
}

impl HeadCheck {
    /// Takes the bytes that arrived; whether they complete a header that can be read in two ways.
    pub fn is_ambiguous_with(&mut self, mut bytes: &[u8]) -> bool {
        if self.done {
            return false;
        }
        if self.seen.is_empty() {
            // The library skips empty lines before a request.
            bytes = &bytes[bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count()..];
            if let Some(end) = end_of_head(bytes) {
                self.done = true;
                return is_ambiguous(&bytes[..end]);
            }
        }
        self.seen.extend_from_slice(bytes);
        match end_of_head(&self.seen) {
            Some(end) => {
                self.done = true;
                is_ambiguous(&std::mem::take(&mut self.seen)[..end])
            }
            None => {
                self.done = self.seen.len() > MAX_HEADER;
                false
            }
        }
    }
}

/// Where a header ends, its empty line included.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut feeds = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at);
    feeds.find_map(|at| match &bytes[at + 1..] {
        [b'\n', ..] => Some(at + 2),
        [b'\r', b'\n', ..] => Some(at + 3),
        _ => None,
    })
}

fn is_ambiguous(head: &[u8]) -> bool {
    let (mut lengths, mut encodings) = (0, 0);
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        if !line.ends_with(b"\r\n") {
            return true;
        }
        let name = line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii();
        lengths += usize::from(name.eq_ignore_ascii_case(b"content-length"));
        encodings += usize::from(name.eq_ignore_ascii_case(b"transfer-encoding"));
    }
    lengths + encodings > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict, the same however the bytes are cut in two.
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
    fn headers_with_one_reading_pass() {
        for request in [
            "GET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\na\nb\n\nc\n\n",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nx-content-length: 1\r\ncontent-length: 1\r\n\r\na",
        ] {
            assert!(!verdict(request), "{request:?}");
        }
    }

    #[test]
    fn headers_with_two_readings_do_not() {
        for request in [
            "GET / HTTP/1.1\nhost: x\n\n",
            "GET / HTTP/1.1\r\nhost: x\n\r\n",
            "GET / HTTP/1.1\r\nhost: x\r\n\n",
            "GET / HTTP/1.1\r\nx: a\ntransfer-encoding: chunked\r\n\r\n",
            "\r\n\r\nPOST / HTTP/1.1\r\ncontent-length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: x\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            assert!(verdict(request), "{request:?}");
        }
    }
}
