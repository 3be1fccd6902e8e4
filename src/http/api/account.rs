//! The caller's own account: its balance, and the limits of the key.

use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Success, examples, success};
use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::ApiError;
use crate::http::routes;
use crate::service::limits::RateLimit;
use tintype_domain::budget::Allowance;
use tintype_domain::model::Surface;
use tintype_system::clock::Timestamp;

/// The account that owns the key.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Account)]
pub struct AccountBody {
    /// The name that the operator gave to the account.
    name: String,
    /// Credits left. Each image costs 2.
    credits: i64,
    /// Tasks created through the API, with any key of the account, that are still `processing`.
    unfinished_tasks: u64,
    /// The limits of this key and its account.
    limits: AccountLimits,
    /// The budget of this key; null if it has none.
    #[schema(required = true)]
    budget: Option<KeyBudget>,
}

/// Credits that a key may spend in each day, week or month, in UTC. Weeks begin on Monday.
#[derive(Debug, Serialize, ToSchema)]
pub struct KeyBudget {
    /// Credits for each period.
    #[schema(minimum = 1)]
    credits: i64,
    /// `day`, `week` or `month`.
    period: &'static str,
    /// Credits spent in this period. A refund returns to the period of its task.
    spent: i64,
    /// Credits left in this period.
    #[schema(minimum = 0)]
    left: i64,
    /// When the next period begins.
    #[schema(value_type = String, format = DateTime)]
    resets_at: Timestamp,
}

impl From<Allowance> for KeyBudget {
    fn from(allowance: Allowance) -> Self {
        let Allowance { budget, spent, resets_at } = allowance;
        Self { credits: budget.credits, period: budget.period.as_str(), spent, left: allowance.left(), resets_at }
    }
}

/// Limits; null means no limit.
#[derive(Debug, Serialize, ToSchema)]
pub struct AccountLimits {
    /// Submits per minute that are allowed with this key.
    #[schema(required = true, minimum = 1)]
    submits_per_minute: Option<u32>,
    /// Other calls per minute that are allowed with this key.
    #[schema(required = true, minimum = 1)]
    reads_per_minute: Option<u32>,
    /// Tasks of the account that may be unfinished at the same time.
    #[schema(required = true, minimum = 1)]
    unfinished_tasks: Option<u32>,
}

/// Retrieve the account
///
/// The balance of the account that owns the key, its unfinished tasks, the limits that apply, and the budget of the key.
#[utoipa::path(
    get, path = routes::ACCOUNT, operation_id = "getAccount", tag = "account",
    security(("key" = [])),
    responses(
        (status = 200, description = "The account", body = Success<AccountBody>, example = json!(examples::account())),
    ),
)]
pub async fn find(caller: Caller) -> Result<Response, ApiError> {
    let key = caller.recheck().await?;
    let api = &caller.api;
    let store = &api.shared.store;
    // An account that was deleted since the key was checked has no valid key any more.
    let account = store.find_account(&caller.account_id.to_string()).await?.ok_or_else(ApiError::unauthorized)?;
    let unfinished_tasks = store.count_unfinished(account.id, Surface::Api).await?;
    let budget = store.find_allowance(caller.key_id).await?.map(KeyBudget::from);
    let max_unfinished = api.settings.limits.max_unfinished;
    Ok(success(AccountBody {
        name: account.name,
        credits: account.credits,
        unfinished_tasks,
        limits: AccountLimits {
            submits_per_minute: api.limits.of(&key, RateLimit::Submit),
            reads_per_minute: api.limits.of(&key, RateLimit::Read),
            unfinished_tasks: (max_unfinished > 0).then_some(max_unfinished),
        },
        budget,
    }))
}
