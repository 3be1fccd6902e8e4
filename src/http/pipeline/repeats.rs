//! Calls that a client of OpenAI's dialect sends again.

use axum::http::header::{HeaderMap, HeaderName};
use sha2::{Digest as _, Sha256};

use super::error::ApiError;
use tintype_domain::images_api_request::ImagesCall;
use tintype_domain::model::Id;
use tintype_store::Call;

/// The number of attempts before this one, as the official clients count.
static RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Longest idempotency key, in bytes.
const MAX_IDEMPOTENCY_KEY: usize = 255;

/// The signs in the header of a request that an earlier attempt may have made its task.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::http) struct RetryHeaders {
    attempt: u32,
    /// Whether the client counts its attempts.
    counted: bool,
    idempotency: Option<[u8; 32]>,
}

impl RetryHeaders {
    /// Reads the signs. A count that cannot be read counts as 0.
    pub(in crate::http) fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let attempt = headers.get(&RETRY_COUNT).and_then(|count| count.to_str().ok()?.parse().ok()).unwrap_or(0);
        let mut keys = headers.get_all(&IDEMPOTENCY_KEY).iter();
        let idempotency = match (keys.next(), keys.next()) {
            (None, _) => None,
            (Some(key), None) if (1..=MAX_IDEMPOTENCY_KEY).contains(&key.len()) => Some(Sha256::digest(key).into()),
            (Some(_), Some(_)) => return Err(ApiError::invalid_request("Idempotency-Key must not be repeated.")),
            _ => return Err(ApiError::invalid_request("Idempotency-Key must have 1 to 255 characters.")),
        };
        Ok(Self { attempt, counted: headers.contains_key(&RETRY_COUNT), idempotency })
    }

    /// Whether an earlier attempt may have made the task of the request.
    pub(in crate::http) fn may_repeat(&self) -> bool {
        self.attempt > 0 || self.idempotency.is_some()
    }

    /// Whether the header bears such a sign, even one that is refused later.
    pub(super) fn is_claimed(headers: &HeaderMap) -> bool {
        headers.contains_key(&IDEMPOTENCY_KEY) || Self::of(headers).is_ok_and(|repeat| repeat.may_repeat())
    }

    pub(in crate::http) fn call(self, line: Id, call: &ImagesCall) -> Call {
        let digest = call.digest(line.as_str().as_bytes());
        let wants_previews = call.stream.is_some_and(|partial_images| partial_images > 0);
        let Self { attempt, counted, idempotency } = self;
        Call { digest, idempotency, attempt, counted, holder: rand::random(), wants_previews }
    }
}
