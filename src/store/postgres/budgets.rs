//! Budgets of keys. A key has spent the sum of its ledger entries, so that no count can differ from them.

use tokio_postgres::{Row, Transaction};

use super::columns::word;
use super::connection::Database;
use super::failure::Failure;
use crate::clock::Timestamp;
use crate::domain::budget::{Allowance, Budget, Period};
use crate::domain::model::Id;
use crate::store::Result;

/// The budget of a key, if it has one.
pub(super) fn budget(row: &Row) -> Result<Option<Budget>> {
    let Some(credits) = row.try_get("budget")? else { return Ok(None) };
    Ok(Some(Budget { credits, period: word(row, "budget_period")? }))
}

/// The lowest ids of the day, the week and the month that contain `at`, and those of the next ones.
pub(super) fn bounds(at: Timestamp) -> (Vec<Id>, Vec<Id>) {
    Period::ALL
        .into_iter()
        .map(|period| period.around(at))
        .map(|(begin, end)| (Id::floor(begin), Id::floor(end)))
        .unzip()
}

/// The use of the budget of a key, if it has one.
pub(super) async fn allowance(database: &Database, key_id: Id) -> Result<Option<Allowance>> {
    let sql = "SELECT budget, budget_period, first_id FROM api_keys WHERE id = $1 AND budget IS NOT NULL";
    let Some(row) = database.read_one(sql, &[&key_id]).await? else { return Ok(None) };
    let (line, Some(budget)): (Id, _) = (row.try_get("first_id")?, budget(&row)?) else { return Ok(None) };
    let (begin, resets_at) = budget.period.around(database.now());
    let spent = "SELECT tintype_spent('', $1, $2, $3) AS spent";
    let rows = database.read(spent, &[&line, &Id::floor(begin), &Id::floor(resets_at)]).await?;
    Ok(Some(Allowance { budget, spent: rows[0].try_get("spent")?, resets_at }))
}

/// Sets the budget of a key and of all others of its line, in the order in which other statements lock keys. A rotation also
/// locks the first key of the line, so that it adds no key meanwhile.
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
