//! Discards the unread rest of a request body. Many clients only read the response once they have sent the whole body;
//! if the connection closed earlier, they would never see it.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Version, header};
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::{Frame, SizeHint};
use tintype_config::MAX_EDIT_BODY;
use tintype_system::locked::Locked as _;

/// Most bytes of a body that are discarded: the largest that any route takes.
const MAX_DISCARDED: usize = MAX_EDIT_BODY as usize;
/// Longest time spent on discarding, and the longest pause of the client in it.
const DISCARD_TIME_LIMIT: Duration = Duration::from_secs(30);
const DISCARD_IDLE: Duration = Duration::from_secs(5);

#[derive(Default)]
enum Leftover {
    /// Nothing: it was read to its end.
    #[default]
    Nothing,
    /// Something that never arrives: the client may hold back all of it, or it broke off.
    Missing,
    /// The rest.
    Rest(Body),
}

type Returned = Arc<Mutex<Leftover>>;

/// A body that returns itself when its reader drops it.
struct LentBody {
    body: Body,
    /// Whether the client may still wait for "100 Continue", which is sent by the first read.
    held_back: bool,
    is_broken: bool,
    returned: Returned,
}

impl Drop for LentBody {
    fn drop(&mut self) {
        *self.returned.locked() = if self.held_back || self.is_broken {
            Leftover::Missing
        } else if self.body.is_end_stream() {
            Leftover::Nothing
        } else {
            Leftover::Rest(std::mem::take(&mut self.body))
        };
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
        let polled = Pin::new(&mut self.body).poll_frame(context);
        self.is_broken |= matches!(polled, Poll::Ready(Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Answers a request, and discards the rest of its body.
pub(super) async fn discard_rest<F: Future<Output = Response>>(
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response {
    if request.body().is_end_stream() {
        return answer(request).await;
    }
    let returned = Returned::default();
    let held_back = request.headers().contains_key(header::EXPECT);
    let lent = returned.clone();
    let (is_http1, is_safe) = (request.version() <= Version::HTTP_11, request.method().is_safe());
    let mut response =
        answer(request.map(|body| Body::new(LentBody { body, held_back, is_broken: false, returned: lent }))).await;
    let left = std::mem::take(&mut *returned.locked());
    let status = response.status();
    let is_refused = status.is_client_error() || status.is_server_error();
    let is_read = match left {
        Leftover::Nothing => true,
        // A body that was too slow gets no more time, and one that means nothing delays no answer.
        Leftover::Rest(body) if status != StatusCode::REQUEST_TIMEOUT && (is_refused || !is_safe) => {
            tokio::time::timeout(DISCARD_TIME_LIMIT, discard(body)).await.unwrap_or(false)
        }
        Leftover::Missing | Leftover::Rest(_) => false,
    };
    // The connection ends then. A client that does not know would send its next request in vain.
    if !is_read && is_http1 {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads the rest of a body; whether it has ended.
async fn discard(mut body: Body) -> bool {
    let mut left = MAX_DISCARDED;
    loop {
        let frame = match tokio::time::timeout(DISCARD_IDLE, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return true,
            Ok(Some(Err(_))) | Err(_) => return false,
        };
        left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        if left == 0 {
            return false;
        }
    }
}
