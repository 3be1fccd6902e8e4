//! The kernel's part of a connection: memory for data that the peer does not read, and the end of the connection.
//!
//! A socket that is closed while data waits for its peer stays in the kernel, with the data, where no limit counts it. So
//! a connection keeps its slot until its peer has closed too, and is aborted, which frees the memory at once, when the
//! peer takes too long.

use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;

use tintype_config::{MAX_EDIT_BODY, MAX_UNSENT, SEND_BUFFER};

/// Longest wait for the end of a peer that was too slow with its request.
const LATE_TIME_LIMIT: Duration = Duration::from_secs(2);
/// Most bytes that a peer can send after the last response: the largest body, whose sender didn't wait for "100
/// Continue" and would miss the error response if the connection were aborted. TLS adds less than a 64th.
const MAX_DISCARDED: u64 = MAX_EDIT_BODY + MAX_EDIT_BODY / 64;
/// How many times the slow reader limit the kernel waits for a peer that acknowledges nothing or keeps its window
/// closed. A slow reader's window only opens when much of its buffer is free again, so the kernel must be more patient
/// than [`close`] and the write limits, which see what is read.
const KERNEL_PATIENCE: u32 = 4;

/// Limits the memory of all connections accepted by the listener and, as a last resort, how long the kernel waits for a
/// peer that acknowledges or reads nothing.
pub(super) fn bound(listener: &TcpListener, stall_limit: Duration) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.set_tcp_notsent_lowat(MAX_UNSENT)?;
    socket.set_tcp_user_timeout(Some(stall_limit.saturating_mul(KERNEL_PATIENCE)))
}

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {
    /// Makes closing the connection discard what the peer has not read.
    fn abort(&self);
}

impl Socket for TcpStream {
    fn abort(&self) {
        // An error means that the connection is gone.
        drop(self.set_zero_linger());
    }
}

impl Socket for UnixStream {
    // The kernel discards it in any case.
    fn abort(&self) {}
}

/// How the exchange of requests and responses ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The last response was written, or the peer closed between two requests.
    Complete,
    /// The peer did not send a request in time.
    Late,
    /// The peer read too slowly, or disappeared.
    Broken,
}

/// Closes a connection: waits up to `limit` until the peer has closed too, else aborts it.
pub(super) async fn close(mut stream: impl Socket, ending: Ending, limit: Duration) {
    let limit = if ending == Ending::Late { limit.min(LATE_TIME_LIMIT) } else { limit };
    let closed =
        ending != Ending::Broken && tokio::time::timeout(limit, is_closed_by_peer(&mut stream)).await.unwrap_or(false);
    // Otherwise the kernel would keep what the peer has not read, uncounted.
    if !closed {
        stream.abort();
    }
}

/// Closes this side of the stream and waits until the peer closes its own. Returns whether it did.
async fn is_closed_by_peer(stream: &mut impl Socket) -> bool {
    if stream.shutdown().await.is_err() {
        return true;
    }
    let discarded = tokio::io::copy(&mut stream.take(MAX_DISCARDED), &mut tokio::io::sink()).await;
    discarded.is_ok_and(|bytes| bytes < MAX_DISCARDED)
}

/// A stream that returns to its owner when its user drops it.
#[derive(Debug)]
pub(super) struct LentStream<S> {
    stream: Option<S>,
    owner: Option<oneshot::Sender<S>>,
}

/// Lends a stream; the receiver gets it back. A pinned pointer to a stream is a stream.
pub(super) fn lend<S: Socket>(stream: S) -> (Pin<LentStream<S>>, oneshot::Receiver<S>) {
    let (owner, returned) = oneshot::channel();
    (Pin::new(LentStream { stream: Some(stream), owner: Some(owner) }), returned)
}

impl<S> Deref for LentStream<S> {
    type Target = S;

    fn deref(&self) -> &S {
        self.stream.as_ref().expect("only dropping takes the stream")
    }
}

impl<S> DerefMut for LentStream<S> {
    fn deref_mut(&mut self) -> &mut S {
        self.stream.as_mut().expect("only dropping takes the stream")
    }
}

impl<S> Drop for LentStream<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(owner)) = (self.stream.take(), self.owner.take()) {
            // Without an owner the stream is closed.
            drop(owner.send(stream));
        }
    }
}
