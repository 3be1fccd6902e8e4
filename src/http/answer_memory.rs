//! What an answer holds until the connection has sent it: its share of memory, and its call's hold on a task.

use std::any::Any;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use crate::service::call_hold::CallHold;
use tintype_system::locked::Locked as _;

/// Bytes of a part of an answer. The connection takes a part when it has sent most of those before it.
const PART: usize = 16 * 1024;

/// What one answer holds, and the hold that ends with it. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct AnswerMemory {
    held: Arc<Mutex<Vec<Box<dyn Any + Send>>>>,
    hold: Arc<Mutex<Option<CallHold>>>,
}

impl AnswerMemory {
    pub(super) fn keep(&self, held: impl Any + Send) {
        self.held.locked().push(Box::new(held));
    }

    /// Ends this hold when the connection has taken the last part: until then the client may break off, and repeat its
    /// call.
    pub(super) fn end_with(&self, hold: CallHold) {
        *self.hold.locked() = Some(hold);
    }

    fn deliver_last(&self) {
        if let Some(hold) = self.hold.locked().take() {
            hold.deliver_last();
        }
    }

    /// `bytes`, which hold the memory until the last slice of them is gone.
    pub(super) fn attach_to(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ReservedBytes { bytes, _memory: self })
    }

    /// `body` in parts, which hold the memory.
    pub(super) fn attach_to_body(self, body: Body) -> ReservedBody {
        ReservedBody { body, rest: Bytes::new(), memory: self }
    }
}

/// `response`, which ends the hold when the connection takes its last part.
pub(super) fn deliver(hold: CallHold, response: Response) -> Response {
    let memory = AnswerMemory::default();
    memory.end_with(hold);
    response.map(|body| Body::new(memory.attach_to_body(body)))
}

/// Takes the next part of what is left of an answer.
pub(super) fn next_part(rest: &mut Bytes) -> Bytes {
    rest.split_to(rest.len().min(PART))
}

/// A body that holds memory until all of it has been sent.
pub(super) struct ReservedBody {
    body: Body,
    rest: Bytes,
    memory: AnswerMemory,
}

/// Bytes that hold memory: a slice of them in a connection's buffer keeps all of them alive.
struct ReservedBytes {
    bytes: Bytes,
    _memory: AnswerMemory,
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for ReservedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.rest = self.memory.clone().attach_to(bytes),
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                None => {
                    self.memory.deliver_last();
                    return Poll::Ready(None);
                }
                broken => return Poll::Ready(broken),
            }
        }
        let part = next_part(&mut self.rest);
        // The connection may ask for nothing after that.
        if self.is_end_stream() {
            self.memory.deliver_last();
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
