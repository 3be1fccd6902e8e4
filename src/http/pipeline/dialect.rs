//! Errors in OpenAI's dialect.

use axum::body::Body;
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::{Response, StatusCode};

use super::error::{ApiError, ErrorCode};
use tintype_config::MAX_UPLOADS;
use tintype_domain::images_api::{ErrorAnswer, ErrorObject};
use tintype_domain::images_api_request::InvalidCall;
use tintype_domain::model::{FailureCause, TaskFailure};

/// The message of every 401. It begins like OpenAI's, which gateways recognise.
const INCORRECT_KEY: &str = "Incorrect API key provided: a valid key of this service is required, sent over HTTPS as \"Authorization: Bearer <API_KEY>\".";

/// Tells the official clients whether to repeat a call by themselves.
static SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The parts of an error that only OpenAI's dialect has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Dialect {
    /// The status, unless it is the native API's.
    pub(super) status: Option<StatusCode>,
    pub(super) param: Option<&'static str>,
    /// The exact error, if the general code says too little.
    pub(super) code: Option<&'static str>,
    /// Another attempt would end in the same way.
    pub(super) is_final: bool,
}

impl From<InvalidCall> for ApiError {
    fn from(fault: InvalidCall) -> Self {
        let dialect = Dialect { param: fault.param, ..Dialect::default() };
        Self { dialect, ..Self::invalid_request(fault.message) }
    }
}

impl ApiError {
    /// The error for an image that an edit cannot take. A repeated call would fail as well.
    pub(in crate::http) fn bad_image(message: impl Into<String>) -> Self {
        let dialect = Dialect { param: Some("image"), ..Dialect::default() };
        Self { dialect, ..Self::invalid_request(message) }
    }

    pub(in crate::http) fn bad_mask(message: impl Into<String>) -> Self {
        let dialect = Dialect { param: Some("mask"), ..Dialect::default() };
        Self { dialect, ..Self::invalid_request(message) }
    }

    /// The error for an account that has reached its limit of uploads. A repeated call would fail too.
    pub(in crate::http) fn too_many_uploads() -> Self {
        let message = format!("The account has {MAX_UPLOADS} uploads, which is its limit. Delete some in the studio.");
        let dialect = Dialect { code: Some("too_many_uploads"), is_final: true, ..Dialect::default() };
        Self { dialect, ..Self::invalid_request(message) }
    }

    pub(in crate::http) fn too_large(message: &str, param: Option<&'static str>) -> Self {
        let dialect = Dialect { param, ..Dialect::default() };
        Self { message: message.into(), dialect, ..Self::of_status(StatusCode::PAYLOAD_TOO_LARGE) }
    }

    /// The error for a task that failed. A repeated call would fail as well, or cost again.
    pub(in crate::http) fn failed_task(failure: &TaskFailure) -> Self {
        let (code, param, is_callers) = match failure.cause {
            FailureCause::Policy => ("content_policy_violation", None, true),
            FailureCause::Reference(..) => ("task_failed", Some("image"), true),
            _ => ("task_failed", None, false),
        };
        let dialect = Dialect { code: Some(code), param, is_final: true, ..Dialect::default() };
        let base = if is_callers { Self::invalid_request("") } else { Self::internal() };
        // The message was written for the API that calls images of an edit references.
        Self { message: failure.message.replace("reference_images[", "image["), dialect, ..base }
    }

    /// The error for a task that was accepted but whose pictures this call cannot return. The official clients retry on
    /// their own, and get the same task's pictures.
    pub(in crate::http) fn task_continues() -> Self {
        let message = "The task was accepted and continues, but this call cannot return its images. Repeat the call as \
                       a retry (X-Stainless-Retry-Count above 0), or fetch the task by its id, which \
                       X-Tintype-Task-Id names: neither is charged.";
        let dialect =
            Dialect { status: Some(StatusCode::SERVICE_UNAVAILABLE), code: Some("task_goes_on"), ..Dialect::default() };
        Self { message: message.into(), dialect, ..Self::internal() }
    }

    /// The error for an idempotency key that another call has used. A repeated call would fail as well.
    pub(in crate::http) fn reused_idempotency_key() -> Self {
        let dialect = Dialect {
            status: Some(StatusCode::UNPROCESSABLE_ENTITY),
            code: Some("idempotency_key_reused"),
            is_final: true,
            ..Dialect::default()
        };
        Self { dialect, ..Self::invalid_request("The Idempotency-Key belongs to a call with another body.") }
    }

    /// The error for a repeated call whose task has been removed. Another call would fail too.
    pub(in crate::http) fn removed_task() -> Self {
        let message = "The task of this call has been removed, by its owner or at the end of its retention. This \
                       call was not charged. To make new images, send the call with another Idempotency-Key.";
        let dialect = Dialect {
            status: Some(StatusCode::GONE),
            code: Some("task_removed"),
            is_final: true,
            ..Dialect::default()
        };
        Self { message: message.into(), dialect, ..Self::no_such_task() }
    }

    pub(in crate::http) fn dialect_status(&self) -> StatusCode {
        let no_credit = self.code == ErrorCode::InsufficientCredits;
        let status = if no_credit { StatusCode::TOO_MANY_REQUESTS } else { self.status };
        self.dialect.status.unwrap_or(status)
    }

    /// Whether the response asks the official clients not to retry.
    pub(in crate::http) fn is_final(&self) -> bool {
        self.dialect.is_final
    }

    /// This error for a call whose task was accepted. Saying that nothing was charged would be wrong.
    pub(in crate::http) fn after_the_charge(self) -> Self {
        match (self.code, self.dialect.code) {
            (ErrorCode::InternalError, None) => Self { cause: self.cause, ..Self::task_continues() },
            _ => self,
        }
    }

    /// `type` and `code` of the error.
    fn words(&self) -> (&'static str, Option<&'static str>) {
        let (kind, code) = match self.code {
            ErrorCode::Unauthorized => ("invalid_request_error", Some("invalid_api_key")),
            ErrorCode::InvalidRequest => ("invalid_request_error", None),
            ErrorCode::InsufficientCredits => ("insufficient_quota", Some("insufficient_quota")),
            ErrorCode::NotFound => ("invalid_request_error", Some("not_found")),
            ErrorCode::RateLimited if self.dialect.status.is_some() => ("server_error", Some("overloaded")),
            ErrorCode::RateLimited => ("requests", Some("rate_limit_exceeded")),
            ErrorCode::InternalError => ("server_error", None),
        };
        (kind, self.dialect.code.or(code))
    }

    pub(in crate::http) fn object(&self) -> ErrorObject {
        let (kind, code) = self.words();
        let message = if self.code == ErrorCode::Unauthorized { INCORRECT_KEY } else { &self.message };
        ErrorObject {
            message: message.to_owned(),
            kind: Some(kind.to_owned()),
            param: self.dialect.param.map(str::to_owned),
            code: code.map(Into::into),
        }
    }

    /// Sets status and headers of a response in OpenAI's dialect, and returns its body.
    pub(super) fn write_dialect(&self, response: &mut Response<Body>) -> Vec<u8> {
        let no_credit = self.code == ErrorCode::InsufficientCredits;
        *response.status_mut() = self.dialect_status();
        if no_credit || self.dialect.is_final {
            response.headers_mut().insert(SHOULD_RETRY.clone(), HeaderValue::from_static("false"));
        }
        serde_json::to_vec(&ErrorAnswer { error: self.object() }).expect("an error is always JSON")
    }
}
