//! Budgets of keys. A key has spent the sum of its ledger entries, so that no count can differ from them.

use tokio_postgres::Row;

use super::columns::word;
use super::connection::{Database, Transaction};
use crate::Result;
use crate::failure::Failure;
use tintype_domain::budget::{Allowance, Budget, Period};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// The budget of a key, if it has one.
pub(super) fn budget(row: &Row) -> Result<Option<Budget>> {
    let Some(credits) = row.try_get("budget")? else { return Ok(None) };
    Ok(Some(Budget { credits, period: word(row, "budget_period")? }))
}

/// The budget of the key $1 and what its line has spent of it on tasks from the ids $2 on and below the ids $3, which
/// are those of a day, a week and a month. A refund is summed with the charge of its task, whenever it came.
const ALLOWANCE: &str = "
    SELECT k.budget, k.budget_period, (
        SELECT coalesce(-sum(l.amount), 0)::bigint FROM api_keys line JOIN ledger l ON l.key_id = line.id
        WHERE line.first_id = k.first_id AND l.key_id IS NOT NULL
            AND l.task_id >= ($2::text[])[p.place] COLLATE \"C\" AND l.task_id < ($3::text[])[p.place] COLLATE \"C\"
    ) AS spent
    FROM api_keys k, LATERAL (SELECT array_position(ARRAY['day', 'week', 'month'], k.budget_period)) AS p (place)
    WHERE k.id = $1 AND k.budget IS NOT NULL";

/// The lowest ids of the day, the week and the month that contain `at`, and those of the next ones.
fn bounds(at: Timestamp) -> (Vec<Id>, Vec<Id>) {
    let periods = Period::ALL.into_iter().map(|period| period.around(at));
    periods.map(|(begin, end)| (Id::floor(begin), Id::floor(end))).unzip()
}

fn found(row: Option<&Row>, at: Timestamp) -> Result<Option<Allowance>> {
    let Some(row) = row else { return Ok(None) };
    let Some(budget) = budget(row)? else { return Ok(None) };
    let (_, resets_at) = budget.period.around(at);
    Ok(Some(Allowance { budget, spent: row.try_get("spent")?, resets_at }))
}

/// The use of the budget of a key, if it has one.
pub(super) async fn allowance(database: &Database, key_id: Id) -> Result<Option<Allowance>> {
    let now = database.now();
    let (begins, ends) = bounds(now);
    found(database.read_one(ALLOWANCE, &[&key_id, &begins, &ends]).await?.as_ref(), now)
}

/// The use of the budget of a key in the period that contains `at`.
pub(super) async fn allowance_within(
    begun: &Transaction<'_>,
    key_id: Id,
    at: Timestamp,
) -> std::result::Result<Option<Allowance>, Failure> {
    let (begins, ends) = bounds(at);
    Ok(found(begun.query_opt(ALLOWANCE, &[&key_id, &begins, &ends]).await?.as_ref(), at)?)
}

/// Sets the budget of a key and of all others of its line, in the order in which other statements lock keys. A rotation
/// also locks the first key of the line, so that it adds no key meanwhile.
pub(super) async fn set(
    begun: &Transaction<'_>,
    key_id: Id,
    budget: Option<Budget>,
    by_operator: bool,
) -> std::result::Result<(), Failure> {
    let line = "first_id = (SELECT first_id FROM api_keys WHERE id = $1)";
    // After the lock, the second statement sees a key that a rotation has added before.
    begun.execute(&format!("SELECT 1 FROM api_keys WHERE {line} ORDER BY id FOR NO KEY UPDATE"), &[&key_id]).await?;
    let set = format!(
        "UPDATE api_keys SET budget = $2, budget_period = $3,
             operator_budget = CASE WHEN $4 THEN $2::bigint IS NOT NULL ELSE operator_budget END WHERE {line}"
    );
    let (credits, period) = budget.map(|budget| (budget.credits, budget.period.as_str())).unzip();
    begun.execute(&set, &[&key_id, &credits, &period, &by_operator]).await?;
    Ok(())
}
