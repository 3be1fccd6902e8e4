//! The last layer before the wire, for what no route can see.
//!
//! What is not HTTP never reaches a route: the protocol library answers it by itself, with a bare
//! status. This puts our envelope around that answer as it leaves. And a peer that takes nothing of
//! what is written to it is given up.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::observe::refusal;
use crate::config::WRITE_STALL_LIMIT;

/// A connection on which no bare refusal leaves.
#[derive(Debug)]
pub struct Enveloping<S> {
    stream: S,
    /// The answer that replaces a bare refusal, and how much of it is written.
    replacement: Option<(Vec<u8>, usize)>,
    /// Runs while the peer takes nothing.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> Enveloping<S> {
    /// Watches over what is written to `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, replacement: None, stall: None }
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

impl<S: AsyncWrite + Unpin> Enveloping<S> {
    /// Writes some of `buffer`, or fails when the peer has taken nothing for too long.
    fn poll_progress(&mut self, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        if let Poll::Ready(written) = Pin::new(&mut self.stream).poll_write(context, buffer) {
            self.stall = None;
            return Poll::Ready(written);
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_STALL_LIMIT)));
        ready!(stall.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Enveloping<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.replacement.is_none() {
            match bare_refusal(buffer) {
                None => return this.poll_progress(context, buffer),
                Some((0, status)) => this.replacement = Some((refusal(status), 0)),
                // What comes before it leaves first, as it is.
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
