//! The outcome of a submit: its task, or an error.

use super::pipeline::auth::Caller;
use super::pipeline::error::ApiError;
use tintype_domain::ledger::NotCharged;
use tintype_domain::model::Task;
use tintype_domain::text::counted;
use tintype_store::{Result, StoreError, Submission};

/// `Retry-After` of a submit beyond the limit of unfinished tasks, in seconds.
const UNFINISHED_RETRY_SECONDS: u64 = 5;

/// The accepted task; `None` when its fate is unknown, so that no answer would be true. The task costs `required` credits.
pub(super) fn task(
    submission: Result<Submission>,
    required: i64,
    caller: &Caller,
) -> std::result::Result<Option<Task>, ApiError> {
    if let Err(StoreError::Unknown(cause)) = &submission {
        caller.api.shared.metrics.unanswered.inc();
        tracing::error!(
            %cause,
            account = %caller.account_id,
            "closing the connection without an answer: the task may exist and be charged. The caller should list its \
             tasks; check the connection to the database"
        );
        return Ok(None);
    }
    match submission? {
        Submission::Accepted(task) => Ok(Some(task)),
        Submission::NotCharged(NotCharged::InsufficientCredits { available }) => {
            Err(ApiError::insufficient_credits(required, available))
        }
        Submission::NotCharged(NotCharged::OverBudget { available, left, resets_at }) => {
            Err(ApiError::over_budget(required, available, left, resets_at))
        }
        Submission::NotCharged(NotCharged::TooManyUnfinished) => Err(ApiError::rate_limited(
            format!(
                "The account can have at most {}, those of the studio included.",
                counted(caller.api.settings.limits.max_unfinished, "unfinished task", "unfinished tasks")
            ),
            UNFINISHED_RETRY_SECONDS,
        )),
        Submission::TooManyFailed { wait } => Err(ApiError::rate_limited(
            format!(
                "{} of the account have failed within ten minutes, which is its limit.",
                counted(caller.api.settings.limits.max_failed_tasks, "task", "tasks")
            ),
            wait.as_secs() + 1,
        )),
        Submission::NoReference { index } => {
            Err(ApiError::invalid_request(format!("reference_images[{index}] does not exist.")))
        }
        Submission::Repeated => Err(ApiError::caused_by("the task of an earlier attempt was found and lost again")),
        Submission::NotStarted => Err(ApiError::caused_by("the database did not begin the submit in time")),
        Submission::Overloaded { excess } => Err(ApiError::overloaded(
            "The queue is so long that the task would not be finished in time.",
            excess.as_secs().max(UNFINISHED_RETRY_SECONDS),
        )),
    }
}
