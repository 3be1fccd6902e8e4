//! What is not HTTP never reaches a route: the protocol library answers it by itself, with a bare
//! status. This puts our envelope around that answer as it leaves.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::observe::refusal;

/// A connection on which no bare refusal leaves.
#[derive(Debug)]
pub struct Enveloping<S> {
    stream: S,
    /// The answer that replaces a bare refusal, and how much of it is written.
    replacement: Option<(Vec<u8>, usize)>,
}

impl<S> Enveloping<S> {
    /// Watches over what is written to `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, replacement: None }
    }
}

/// Where in `written` a bare refusal begins, and its status. It is the last thing the library writes
/// on a connection, it is written whole, and unlike our own answers it has no request id.
fn bare_refusal(written: &[u8]) -> Option<(usize, StatusCode)> {
    const STATUS_LINE: &[u8] = b"HTTP/1.1 4";
    if !written.ends_with(b"\r\n\r\n") {
        return None;
    }
    let start = written.windows(STATUS_LINE.len()).rposition(|window| window == STATUS_LINE)?;
    let head = std::str::from_utf8(&written[start..]).ok()?;
    let ours = head.lines().any(|line| line.get(..12).is_some_and(|name| name.eq_ignore_ascii_case("x-request-id")));
    let whole = head.find("\r\n\r\n") == Some(head.len() - 4);
    let status = head.get(9..12).and_then(|status| status.parse().ok())?;
    (whole && !ours).then_some((start, status))
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Enveloping<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.replacement.is_none() {
            match bare_refusal(buffer) {
                None => return Pin::new(&mut this.stream).poll_write(context, buffer),
                Some((0, status)) => this.replacement = Some((refusal(status), 0)),
                // What comes before it leaves first, as it is.
                Some((start, _)) => return Pin::new(&mut this.stream).poll_write(context, &buffer[..start]),
            }
        }
        if let Some((answer, written)) = &mut this.replacement {
            while *written < answer.len() {
                match ready!(Pin::new(&mut this.stream).poll_write(context, &answer[*written..]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    count => *written += count,
                }
            }
            this.replacement = None;
        }
        Poll::Ready(Ok(buffer.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Enveloping<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}
