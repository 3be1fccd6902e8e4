//! The rest of a body that a refusal left unread. Many clients look for an answer only when they have
//! sent everything, and to close before that would take the answer from them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};

/// Most bytes of a body that are read only to be thrown away.
const MAX_DISCARDED: usize = 16 * 1024 * 1024;
/// Longest time spent on that.
const DISCARD_TIME_LIMIT: Duration = Duration::from_secs(5);

/// Where a body goes back to when its reader drops it.
type Slot = Arc<Mutex<Option<Body>>>;

/// A body that does not end with its reader.
struct Lent {
    body: Body,
    /// Whether the peer may wait for a go-ahead that only reading gives.
    held_back: bool,
    slot: Slot,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if !self.held_back && !self.body.is_end_stream() {
            let body = std::mem::take(&mut self.body);
            *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.held_back = false;
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reads on for a while after a refusal.
pub(super) async fn read_on<F: Future<Output = Response>>(
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    if request.body().is_end_stream() {
        return answer(request).await;
    }
    let slot = Slot::default();
    let held_back = request.headers().contains_key(header::EXPECT);
    let lent = slot.clone();
    let response = answer(request.map(|body| Body::new(Lent { body, held_back, slot: lent }))).await;
    let left = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    let status = response.status();
    let refused = status.is_client_error() || status.is_server_error();
    // Who was too slow already gets no more time.
    if let Some(body) = left
        && refused
        && status != StatusCode::REQUEST_TIMEOUT
    {
        // Whether all of it came makes no difference to the answer.
        drop(tokio::time::timeout(DISCARD_TIME_LIMIT, discard(body)).await);
    }
    response
}

async fn discard(mut body: Body) {
    let mut left = MAX_DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            break;
        }
    }
}
