//! Bodies with pictures, as they arrive. The pages and OpenAI's edits read them alike.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderMap};
use http_body_util::BodyExt as _;

use tintype_config::{MIN_UPLOAD_RATE, UPLOAD_GRACE};
use tintype_system::clock::Clock;

pub(crate) struct ImageBody {
    body: Body,
    /// Longest pause.
    idle: Duration,
    clock: Clock,
    /// Start, on the monotonic clock.
    begun: Duration,
    bytes: u64,
    /// Most bytes.
    most: u64,
}

/// The body did not arrive.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// Its sender is so slow that others wait for the slot.
    TooSlow,
    /// It ended before its announced length or its last chunk.
    EndedEarly,
    /// It has more bytes than allowed.
    TooLarge,
}

impl ImageBody {
    pub(crate) fn new(body: Body, idle: Duration, clock: &Clock, most: u64) -> Self {
        Self { body, idle, clock: clock.clone(), begun: clock.elapsed(), bytes: 0, most }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Stopped> {
        loop {
            let frame = tokio::time::timeout(self.idle, self.body.frame()).await.map_err(|_| Stopped::TooSlow)?;
            let frame = frame.transpose().map_err(|_| Stopped::EndedEarly)?;
            let Some(frame) = frame else { return Ok(None) };
            if let Ok(bytes) = frame.into_data()
                && !bytes.is_empty()
            {
                self.bytes += bytes.len() as u64;
                let allowed = UPLOAD_GRACE + Duration::from_secs(self.bytes / MIN_UPLOAD_RATE);
                if self.clock.elapsed().saturating_sub(self.begun) > allowed {
                    return Err(Stopped::TooSlow);
                }
                return if self.bytes > self.most { Err(Stopped::TooLarge) } else { Ok(Some(bytes)) };
            }
        }
    }
}

/// The length announced in the header. A body of another length is cut off there, or ends early.
pub(crate) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}
