//! The pace that a connection must keep: how long it may take to say something.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use futures::task::AtomicWaker;
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::config::ConnectionLimits;
use crate::http::HeadCheck;

/// Nothing has come yet.
const FRESH: u8 = 0;
/// The last request is answered.
const KEPT: u8 = 1;
/// A part of a header has come.
const HEADER: u8 = 2;
/// A request is being answered.
const EXCHANGE: u8 = 3;

/// What a connection is doing: the stream and the service on it tell each other.
#[derive(Debug, Default)]
pub(super) struct Stage {
    now: AtomicU8,
    ambiguous: AtomicBool,
    /// The library reads ahead during an exchange and does not come back by itself for the time after it.
    reader: AtomicWaker,
}

impl Stage {
    /// A whole header has come; whether it can be read in one way only.
    pub(super) fn begin_exchange(&self) -> bool {
        self.now.store(EXCHANGE, Ordering::Relaxed);
        !self.ambiguous.swap(false, Ordering::Relaxed)
    }

    fn is(&self, stage: u8) -> bool {
        self.now.load(Ordering::Relaxed) == stage
    }
}

/// The body of an answer, which ends the exchange.
#[derive(Debug)]
pub(super) struct AnswerBody {
    body: Body,
    stage: Arc<Stage>,
}

impl AnswerBody {
    pub(super) fn new(body: Body, stage: Arc<Stage>) -> Self {
        Self { body, stage }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.stage.now.store(KEPT, Ordering::Relaxed);
        self.stage.reader.wake();
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose peer must begin, go on and come back in time.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    stage: Arc<Stage>,
    limits: ConnectionLimits,
    /// Runs while something is due, for the stage named.
    timer: Option<(u8, Pin<Box<Sleep>>)>,
    head: HeadCheck,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, stage: Arc<Stage>, limits: ConnectionLimits) -> Self {
        Self { stream, stage, limits, timer: None, head: HeadCheck::default() }
    }

    fn due_within(&self, stage: u8) -> Option<Duration> {
        match stage {
            FRESH => Some(self.limits.first_byte),
            KEPT => Some(self.limits.keep_alive),
            HEADER => Some(self.limits.header),
            // Bodies have limits of their own, where they are read.
            _ => None,
        }
    }

    /// Ready when the peer is too late.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let stage = self.stage.now.load(Ordering::Relaxed);
        if self.timer.as_ref().is_none_or(|(timed, _)| *timed != stage) {
            self.timer = self.due_within(stage).map(|due| (stage, Box::pin(tokio::time::sleep(due))));
        }
        self.timer.as_mut().map_or(Poll::Pending, |(_, timer)| timer.as_mut().poll(context))
    }

    /// Looks at what arrived.
    fn note(&mut self, bytes: &[u8]) {
        if self.stage.is(FRESH) || self.stage.is(KEPT) {
            self.stage.now.store(HEADER, Ordering::Relaxed);
            self.head = HeadCheck::default();
            // The time that the request may take begins now.
            self.timer = None;
        }
        if self.stage.is(HEADER) && self.head.is_ambiguous_with(bytes) {
            self.stage.ambiguous.store(true, Ordering::Relaxed);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // A header that trickles in is late although there is always something to read.
        if this.stage.is(HEADER) && this.poll_late(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, buffer) {
            if buffer.filled().len() > before {
                this.note(&buffer.filled()[before..]);
            }
            return Poll::Ready(read);
        }
        if this.stage.is(EXCHANGE) {
            this.stage.reader.register(context.waker());
        }
        this.poll_late(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
