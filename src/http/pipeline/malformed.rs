//! The stream below the HTTP library.
//!
//! Bytes that are not HTTP never reach a route: the HTTP library answers them with a bare status. This stream replaces
//! that response with one that has our envelope. It also ends the connection of a peer that reads too
//! slowly.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::StatusCode;
use memchr::memmem;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::observe::refusal;
use tintype_config::MIN_WRITE_PROGRESS;

/// A stream that replaces bare refusals and limits how long a write may stall.
#[derive(Debug)]
pub struct EnvelopeStream<S> {
    stream: S,
    /// Whether the bytes since the last answer hold a length that the HTTP library cannot count to. It refuses their
    /// header as too large.
    has_endless_length: bool,
    /// The response that replaces a bare error, and how many of its bytes are written.
    replacement: Option<(Vec<u8>, usize)>,
    /// The timer of a stalled write, and the bytes that the peer has read since it began.
    stall: Option<(Pin<Box<Sleep>>, usize)>,
    stall_limit: Duration,
}

impl<S> EnvelopeStream<S> {
    /// Wraps `stream`, whose writes may stall for `stall_limit`.
    pub fn new(stream: S, stall_limit: Duration) -> Self {
        Self { stream, has_endless_length: false, replacement: None, stall: None, stall_limit }
    }

    /// Ready when the peer has read too little for too long.
    fn poll_stalled(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let limit = self.stall_limit;
        let (stall, _) = self.stall.get_or_insert_with(|| (Box::pin(tokio::time::sleep(limit)), 0));
        stall.as_mut().poll(context).map(|()| io::ErrorKind::TimedOut.into())
    }
}

/// Whether there is one of the two lengths that the HTTP library reserves for bodies of unknown length.
fn has_endless_length(bytes: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"1844674407370955161";
    let next = |at: usize| bytes.get(at + BEGINNING.len());
    memmem::find_iter(bytes, BEGINNING).any(|at| matches!(next(at), Some(b'4' | b'5')))
}

/// The position of a bare error in `written`, and its status. The HTTP library writes it last on a connection, in one
/// piece, and unlike our own responses it has no request id.
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

impl<S: AsyncWrite + Unpin> EnvelopeStream<S> {
    /// Writes some of `buffer`, or fails when the peer has read too little for too long.
    fn poll_progress(&mut self, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, buffer) else {
            return self.poll_stalled(context).map(Err);
        };
        if let (Some((_, taken)), Ok(count)) = (&mut self.stall, &written) {
            *taken += count;
            if *taken >= MIN_WRITE_PROGRESS {
                self.stall = None;
            }
        }
        Poll::Ready(written)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EnvelopeStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.replacement.is_none() {
            match bare_refusal(buffer) {
                None => {
                    this.has_endless_length = false;
                    return this.poll_progress(context, buffer);
                }
                Some((0, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)) if this.has_endless_length => {
                    this.replacement = Some((refusal(StatusCode::PAYLOAD_TOO_LARGE), 0));
                }
                Some((0, status)) => this.replacement = Some((refusal(status), 0)),
                // The bytes before it are written first, unchanged.
                Some((start, _)) => return this.poll_progress(context, &buffer[..start]),
            }
        }
        while let Some((answer, written)) = this.replacement.take() {
            let progress = this.poll_progress(context, &answer[written..]);
            let count = if let Poll::Ready(outcome) = &progress { outcome.as_ref().copied().unwrap_or(0) } else { 0 };
            if written + count < answer.len() {
                this.replacement = Some((answer, written + count));
            }
            match ready!(progress)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                _ => continue,
            }
        }
        Poll::Ready(Ok(buffer.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS buffers writes, so only a flush shows that the peer isn't reading.
        let Poll::Ready(flushed) = Pin::new(&mut self.stream).poll_flush(context) else {
            return self.poll_stalled(context).map(Err);
        };
        self.stall = None;
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Poll::Ready(closed) = Pin::new(&mut self.stream).poll_shutdown(context) else {
            return self.poll_stalled(context).map(Err);
        };
        Poll::Ready(closed)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EnvelopeStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        let bytes = &buffer.filled()[before..];
        self.has_endless_length |= has_endless_length(bytes);
        Poll::Ready(read)
    }
}
