//! Budgets of keys. A key has spent the sum of its ledger entries, so that no count can differ from them.

use super::Result;
use super::driver::{Parameter, Row, Store, Transaction};
use crate::failure::DbResult;
use tintype_domain::budget::{Allowance, Budget, Period};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

pub(crate) fn budget(row: &Row) -> Result<Option<Budget>> {
    let Some(credits) = row.get("budget")? else { return Ok(None) };
    Ok(Some(Budget { credits, period: row.get("budget_period")? }))
}

/// The budget of the key $1, and what this key and those that it was rotated from and to have spent of it on tasks of
/// the current period: the day from id $2, the week from $4 or the month from $6, each ending before the next
/// parameter. A refund counts in its charge's period, whenever it came.
const ALLOWANCE: &str = "
    SELECT k.budget, k.budget_period, (
        SELECT CAST(coalesce(-sum(l.amount), 0) AS bigint) FROM api_keys line JOIN ledger l ON l.key_id = line.id
        WHERE line.first_id = k.first_id AND l.key_id IS NOT NULL
            AND l.task_id >= CASE k.budget_period WHEN 'day' THEN $2 WHEN 'week' THEN $4 ELSE $6 END
            AND l.task_id < CASE k.budget_period WHEN 'day' THEN $3 WHEN 'week' THEN $5 ELSE $7 END
    ) AS spent
    FROM api_keys k WHERE k.id = $1 AND k.budget IS NOT NULL";

/// The lowest ids of the day, week and month that contain a time, each followed by the lowest id of the next period.
fn bounds(at: Timestamp) -> [Id; 6] {
    let [day, week, month] = Period::ALL.map(|period| period.around(at));
    [day.0, day.1, week.0, week.1, month.0, month.1].map(Id::floor)
}

fn parameters<'a>(key_id: &'a Id, [a, b, c, d, e, f]: &'a [Id; 6]) -> [&'a dyn Parameter; 7] {
    [key_id, a, b, c, d, e, f]
}

fn found(row: Option<&Row>, at: Timestamp) -> Result<Option<Allowance>> {
    let Some(row) = row else { return Ok(None) };
    let Some(budget) = budget(row)? else { return Ok(None) };
    let (_, resets_at) = budget.period.around(at);
    Ok(Some(Allowance { budget, spent: row.get("spent")?, resets_at }))
}

/// The use of the budget of a key in the period that contains `at`.
pub(crate) async fn allowance_within(tx: &Transaction<'_>, key_id: Id, at: Timestamp) -> DbResult<Option<Allowance>> {
    Ok(found(tx.query_opt(ALLOWANCE, &parameters(&key_id, &bounds(at))).await?.as_ref(), at)?)
}

/// Sets the budget of a key and of those that it was rotated from and to, unless an owner may not replace the present
/// one. Returns whether it did. Locks keys in the same order as other statements. A rotation locks the first of these
/// keys, too, so it cannot add one meanwhile.
pub(crate) async fn set(tx: &Transaction<'_>, key_id: Id, budget: Option<Budget>, by_operator: bool) -> DbResult<bool> {
    let keys = "first_id = (SELECT first_id FROM api_keys WHERE id = $1)";
    // After the lock, the second statement sees a key that a rotation has added before.
    tx.lock(&format!("SELECT 1 FROM api_keys WHERE {keys} ORDER BY id"), &[&key_id]).await?;
    let present = "SELECT budget, budget_period FROM api_keys WHERE id = $1";
    let Some(present) = tx.query_opt(present, &[&key_id]).await? else { return Ok(false) };
    if !by_operator && !Budget::may_replace(self::budget(&present)?, budget) {
        return Ok(false);
    }
    let set = format!(
        "UPDATE api_keys SET budget = $2, budget_period = $3,
             operator_budget = CASE WHEN $4 THEN CAST($2 AS bigint) IS NOT NULL ELSE operator_budget END WHERE {keys}"
    );
    let (credits, period) = budget.map(|budget| (budget.credits, budget.period)).unzip();
    Ok(tx.execute(&set, &[&key_id, &credits, &period, &by_operator]).await? > 0)
}

impl Store {
    /// What a key has spent of its budget, if it has one, in the period of [`Store::now`].
    pub async fn find_allowance(&self, id: Id) -> Result<Option<Allowance>> {
        let now = self.driver.now();
        found(self.driver.read_one(ALLOWANCE, &parameters(&id, &bounds(now))).await?.as_ref(), now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::plans;

    #[test]
    fn what_a_key_has_spent_is_read_from_indexes_alone() {
        let mut steps = plans::steps(&plans::empty(), ALLOWANCE);
        steps.retain(|step| step.starts_with("S") && !step.contains(" k "));
        assert_eq!(
            steps,
            [
                "SEARCH line USING COVERING INDEX keys_of_line (first_id=?)",
                "SEARCH l USING COVERING INDEX ledger_of_key (key_id=? AND task_id>? AND task_id<?)",
            ]
        );
    }
}
