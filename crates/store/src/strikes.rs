//! Strikes by the content policy, and the suspension of people because of them.

use super::driver::Transaction;
use super::people::{PERSON, person};
use super::{Actor, Deed, StrikeRule, audit_log};
use crate::failure::Failure;
use tintype_domain::model::Id;

/// Adds a strike to a person, if there still is one; returns whether it suspends the person, which the audit log tells.
pub(crate) async fn of_person(
    begun: &Transaction<'_>,
    task_id: Id,
    person_id: Id,
    rule: StrikeRule,
) -> std::result::Result<bool, Failure> {
    let now = begun.now();
    // The row lock makes concurrent strikes wait, so that they count this one too.
    if begun.lock("SELECT 1 FROM people WHERE id = $1", &[&person_id]).await?.is_none() {
        return Ok(false);
    }
    let old = "DELETE FROM person_strikes WHERE person_id = $1 AND created_at <= $2";
    begun.execute(old, &[&person_id, &now.saturating_sub(rule.window)]).await?;
    let strike = "INSERT INTO person_strikes (task_id, person_id, created_at) VALUES ($1, $2, $3)";
    begun.execute(strike, &[&task_id, &person_id, &now]).await?;
    // Tasks in progress may add further strikes; the first suspension remains.
    let suspend = format!(
        "UPDATE people SET suspended_at = $2, suspended_for = $3 WHERE id = $1 AND suspended_at IS NULL
         AND (SELECT count(*) FROM person_strikes WHERE person_id = $1) >= $4 RETURNING {PERSON}"
    );
    let suspended = begun.query_opt(&suspend, &[&person_id, &now, &rule.to_string(), &i64::from(rule.limit)]).await?;
    let Some(row) = suspended else { return Ok(false) };
    audit_log::record(begun, &Actor::policy(), &Deed::of_suspension(&person(&row)?)).await?;
    Ok(true)
}
