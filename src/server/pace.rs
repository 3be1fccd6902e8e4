//! The pace that a connection must keep: how long it may take to say something.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

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
#[derive(Debug)]
pub(super) struct Stage {
    now: AtomicU8,
    ambiguous: AtomicBool,
    begun: Instant,
    /// When the last request was answered, in nanoseconds since `begun`.
    answered: AtomicU64,
}

impl Stage {
    pub(super) fn new() -> Self {
        Self {
            now: AtomicU8::new(FRESH),
            ambiguous: AtomicBool::new(false),
            begun: Instant::now(),
            answered: AtomicU64::new(0),
        }
    }

    /// A whole header has come; whether it can be read in one way only.
    pub(super) fn begin_exchange(&self) -> bool {
        self.now.store(EXCHANGE, Ordering::Relaxed);
        !self.ambiguous.swap(false, Ordering::Relaxed)
    }

    fn end_exchange(&self) {
        let nanos = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.answered.store(nanos, Ordering::Relaxed);
        self.now.store(KEPT, Ordering::Release);
    }

    /// When the last request was answered, or the connection began.
    fn idle_since(&self) -> Instant {
        self.begun + Duration::from_nanos(self.answered.load(Ordering::Relaxed))
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
        self.stage.end_exchange();
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
    /// When the header that is under way began.
    header_since: Option<Instant>,
    /// Rings no later than anything is due. It is set for every wait of a connection and not for every
    /// request, so it may ring early; then it is set anew.
    alarm: Option<Pin<Box<Sleep>>>,
    /// When it last did, or when the connection began.
    rang: Instant,
    head: HeadCheck,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S, stage: Arc<Stage>, limits: ConnectionLimits) -> Self {
        let rang = stage.begun;
        Self { stream, stage, limits, header_since: None, alarm: None, rang, head: HeadCheck::default() }
    }

    /// When the peer is too late, and whether anything is due at all.
    fn due(&mut self) -> (Instant, bool) {
        match self.stage.now.load(Ordering::Acquire) {
            FRESH => (self.stage.idle_since() + self.limits.first_byte, true),
            KEPT => (self.stage.idle_since() + self.limits.keep_alive, true),
            HEADER => (*self.header_since.get_or_insert_with(Instant::now) + self.limits.header, true),
            // Bodies have limits of their own, where they are read. Nobody comes back here when the answer
            // is given, so the alarm must ring before the next request is due.
            _ => (self.stage.idle_since().max(self.rang) + self.limits.keep_alive, false),
        }
    }

    /// Ready when the peer is too late.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (due, matters) = self.due();
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if alarm.deadline() > due {
            alarm.as_mut().reset(due);
        }
        while alarm.as_mut().poll(context).is_ready() {
            self.rang = Instant::now();
            if matters && due <= self.rang {
                return Poll::Ready(());
            }
            alarm.as_mut().reset(if matters { due } else { self.rang + self.limits.keep_alive });
        }
        Poll::Pending
    }

    /// Looks at what arrived.
    fn note(&mut self, bytes: &[u8]) {
        let stage = self.stage.now.load(Ordering::Acquire);
        if matches!(stage, FRESH | KEPT) {
            self.stage.now.store(HEADER, Ordering::Relaxed);
            self.head = HeadCheck::default();
            self.header_since = None;
        }
        if stage != EXCHANGE && self.head.is_ambiguous_with(bytes) {
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
        let trickles = this.stage.now.load(Ordering::Relaxed) == HEADER;
        if trickles && this.poll_late(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, buffer) {
            if buffer.filled().len() > before {
                this.note(&buffer.filled()[before..]);
            }
            return Poll::Ready(read);
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
