//! Headers of responses about an unfinished task: when to poll it, and how far it is.

use std::time::Duration;

use axum::http::header::{HeaderName, HeaderValue};
use axum::response::Response;
use tintype_engine::Stage;

use crate::http::state::ApiState;
use crate::service::queue_positions::poll_after;
use crate::service::tasks::PolledTask;
use tintype_domain::model::Id;

/// The suggested wait before the next poll, in seconds with a fraction.
static POLL_AFTER: HeaderName = HeaderName::from_static("x-poll-after");
/// The estimated time until the task ends, in whole seconds.
static EXPECTED_WAIT: HeaderName = HeaderName::from_static("x-expected-wait");
/// Position among the account's own waiting tasks: 1 is next, 0 is running.
static QUEUE_POSITION: HeaderName = HeaderName::from_static("x-queue-position");
/// The part of the task's work that is done, from 0 to 1.
static PROGRESS: HeaderName = HeaderName::from_static("x-progress");
/// The task's steps done and total steps, as in `7/20`.
static STEPS: HeaderName = HeaderName::from_static("x-steps");

/// Says when to poll an unfinished task and, where it is known, the estimated time until the task ends.
pub(super) fn with_poll_hint(mut response: Response, api: &ApiState, id: Id, wait: Option<Duration>) -> Response {
    let poll_after = poll_after(wait, api.shared.ages.of(id), api.typical_duration);
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::try_from(format!("{:.2}", poll_after.as_secs_f64())) {
        headers.insert(POLL_AFTER.clone(), value);
    }
    if let Some(wait) = wait {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        headers.insert(EXPECTED_WAIT.clone(), seconds.max(1).into());
    }
    response
}

/// Says when to poll an unfinished task, and adds its position in the queue and the progress that its engine reports.
pub(in crate::http) async fn with_progress(response: Response, api: &ApiState, found: &PolledTask) -> Response {
    let queue = api.tasks.queue_position(found).await;
    let mut response = with_poll_hint(response, api, found.task.id, queue.wait);
    let headers = response.headers_mut();
    headers.insert(QUEUE_POSITION.clone(), queue.position.into());
    let Some(stage) = found.attempt.and_then(|attempt| attempt.stage) else { return response };
    if let Ok(part) = HeaderValue::try_from(format!("{:.2}", stage.fraction())) {
        headers.insert(PROGRESS.clone(), part);
    }
    if let Stage::Step { done, of } = stage
        && let Ok(steps) = HeaderValue::try_from(format!("{done}/{of}"))
    {
        headers.insert(STEPS.clone(), steps);
    }
    response
}
