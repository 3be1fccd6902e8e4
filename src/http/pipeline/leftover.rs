//! Discards the rest of a request body after an error response. Many clients read the response only once they have sent
//! the whole body; if the connection closed earlier, they would never see it.

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

/// Most bytes of a body that are discarded.
const MAX_DISCARDED: usize = 16 * 1024 * 1024;
/// Longest time spent on discarding.
const DISCARD_TIME_LIMIT: Duration = Duration::from_secs(5);

/// The body, once its reader has dropped it.
type Returned = Arc<Mutex<Option<Body>>>;

/// A body that returns itself when its reader drops it.
struct LentBody {
    body: Body,
    /// Whether the client may still wait for "100 Continue", which is sent by the first read.
    held_back: bool,
    returned: Returned,
}

impl Drop for LentBody {
    fn drop(&mut self) {
        if !self.held_back && !self.body.is_end_stream() {
            let body = std::mem::take(&mut self.body);
            *self.returned.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
        }
    }
}

impl HttpBody for LentBody {
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

/// Answers a request, and discards the rest of its body after an error.
pub(super) async fn discard_after_error<F: Future<Output = Response>>(
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    if request.body().is_end_stream() {
        return answer(request).await;
    }
    let returned = Returned::default();
    let held_back = request.headers().contains_key(header::EXPECT);
    let lent = returned.clone();
    let response = answer(request.map(|body| Body::new(LentBody { body, held_back, returned: lent }))).await;
    let left = returned.lock().unwrap_or_else(PoisonError::into_inner).take();
    let status = response.status();
    let refused = status.is_client_error() || status.is_server_error();
    // A body that was too slow gets no more time.
    if let Some(body) = left
        && refused
        && status != StatusCode::REQUEST_TIMEOUT
    {
        // The response is the same whether the whole body came or not.
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
