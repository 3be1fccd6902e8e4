//! Time limits of a connection: for its first byte, for each request header and for idle periods.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::http::HeadCheck;
use tintype_config::ConnectionLimits;

/// No byte has arrived yet.
const FRESH: u8 = 0;
/// The last request has been answered.
const KEPT: u8 = 1;
/// A part of a header has arrived.
const HEADER: u8 = 2;
/// A request is in progress.
const EXCHANGE: u8 = 3;

/// State of a connection, shared by its stream and its service.
#[derive(Debug)]
pub(super) struct ConnectionPhase {
    now: AtomicU8,
    ambiguous: AtomicBool,
    begun: Instant,
    /// Time of the last response, in nanoseconds since `begun`.
    answered: AtomicU64,
}

impl ConnectionPhase {
    pub(super) fn new() -> Self {
        Self {
            now: AtomicU8::new(FRESH),
            ambiguous: AtomicBool::new(false),
            begun: Instant::now(),
            answered: AtomicU64::new(0),
        }
    }

    /// Notes that a complete header has arrived; returns whether it is unambiguous.
    pub(super) fn begin_exchange(&self) -> bool {
        self.now.store(EXCHANGE, Ordering::Relaxed);
        !self.ambiguous.swap(false, Ordering::Relaxed)
    }

    /// Whether a request is due or incomplete.
    pub(super) fn awaits_request(&self) -> bool {
        matches!(self.now.load(Ordering::Acquire), FRESH | HEADER)
    }

    fn end_exchange(&self) {
        let nanos = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.answered.store(nanos, Ordering::Relaxed);
        self.now.store(KEPT, Ordering::Release);
    }

    /// Time of the last response, or of the start of the connection.
    fn idle_since(&self) -> Instant {
        self.begun + Duration::from_nanos(self.answered.load(Ordering::Relaxed))
    }
}

/// An exchange in progress; dropping it completes the exchange.
#[derive(Debug)]
pub(super) struct Exchange(pub(super) Arc<ConnectionPhase>);

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.end_exchange();
    }
}

/// A stream that enforces the time limits on its peer.
#[derive(Debug)]
pub(super) struct TimedStream<S> {
    stream: S,
    phase: Arc<ConnectionPhase>,
    limits: ConnectionLimits,
    /// Start of the header in progress.
    header_since: Option<Instant>,
    /// Timer that fires no later than the next deadline. It is not reset for every request, so it may fire early; then
    /// it is set again.
    timer: Option<Pin<Box<Sleep>>>,
    /// Time at which the timer last fired, or of the start of the connection.
    fired_at: Instant,
    head: HeadCheck,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S, phase: Arc<ConnectionPhase>, limits: ConnectionLimits) -> Self {
        let fired_at = phase.begun;
        Self { stream, phase, limits, header_since: None, timer: None, fired_at, head: HeadCheck::default() }
    }

    /// The next deadline, and whether it applies to the peer or only wakes this stream.
    fn deadline(&mut self) -> (Instant, bool) {
        match self.phase.now.load(Ordering::Acquire) {
            FRESH => (self.phase.idle_since() + self.limits.first_byte, true),
            KEPT => (self.phase.idle_since() + self.limits.keep_alive, true),
            HEADER => (*self.header_since.get_or_insert_with(Instant::now) + self.limits.header, true),
            // Bodies have their own limits where they are read. No wake-up follows the response, so the timer must
            // fire before the next request is due.
            _ => (self.phase.idle_since().max(self.fired_at) + self.limits.keep_alive, false),
        }
    }

    /// Ready when the peer has missed its deadline.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let (due, matters) = self.deadline();
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        while timer.as_mut().poll(context).is_ready() {
            self.fired_at = Instant::now();
            if matters && due <= self.fired_at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(if matters { due } else { self.fired_at + self.limits.keep_alive });
        }
        Poll::Pending
    }

    /// Updates the state with the bytes that arrived.
    fn note(&mut self, bytes: &[u8]) {
        let phase = self.phase.now.load(Ordering::Acquire);
        if matches!(phase, FRESH | KEPT) {
            self.phase.now.store(HEADER, Ordering::Relaxed);
            self.head = HeadCheck::default();
            self.header_since = None;
        }
        if phase != EXCHANGE && self.head.is_ambiguous_with(bytes) {
            self.phase.ambiguous.store(true, Ordering::Relaxed);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        // A slow header misses its deadline although there is always something to read.
        let trickles = this.phase.now.load(Ordering::Relaxed) == HEADER;
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
        // An idle connection ends as if its peer had closed it: in order, since nothing is owed.
        let idle = this.phase.now.load(Ordering::Relaxed) == KEPT;
        this.poll_late(context).map(|()| if idle { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
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
