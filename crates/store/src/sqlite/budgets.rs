//! Budgets of keys. A key has spent the sum of its ledger entries, so that no count can differ from them.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::columns::word;
use tintype_domain::budget::{Allowance, Budget};
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

/// The credits that the keys of the line ?1 have spent on tasks from the id ?2 on and below ?3. A refund is summed with
/// the charge of its task, whenever it came.
const SPENT: &str = "
    SELECT coalesce(-sum(l.amount), 0) FROM api_keys k JOIN ledger l ON l.key_id = k.id
    WHERE k.first_id = ?1 AND l.key_id IS NOT NULL AND l.task_id >= ?2 AND l.task_id < ?3";

/// The budget of a key, if it has one.
pub(super) fn budget(row: &Row<'_>) -> rusqlite::Result<Option<Budget>> {
    let Some(credits) = row.get("budget")? else { return Ok(None) };
    Ok(Some(Budget { credits, period: word(row, "budget_period")? }))
}

/// The use of the budget of a key, if it has one, in the period that contains `at`.
pub(super) fn allowance(connection: &Connection, key_id: Id, at: Timestamp) -> rusqlite::Result<Option<Allowance>> {
    let limited = connection
        .prepare_cached("SELECT first_id, budget, budget_period FROM api_keys WHERE id = ?1 AND budget IS NOT NULL")?
        .query_row([key_id], |row| Ok((row.get::<_, Id>("first_id")?, budget(row)?)))
        .optional()?;
    let Some((line, Some(budget))) = limited else { return Ok(None) };
    let (begin, resets_at) = budget.period.around(at);
    let spent = connection
        .prepare_cached(SPENT)?
        .query_row(params![line, Id::floor(begin), Id::floor(resets_at)], |row| row.get(0))?;
    Ok(Some(Allowance { budget, spent, resets_at }))
}

/// Sets the budget of a key and of all others of its line.
pub(super) fn set(connection: &Connection, key_id: Id, budget: Option<Budget>) -> rusqlite::Result<()> {
    let (credits, period) = budget.map(|budget| (budget.credits, budget.period.as_str())).unzip();
    connection
        .prepare_cached(
            "UPDATE api_keys SET budget = ?2, budget_period = ?3
             WHERE first_id = (SELECT first_id FROM api_keys WHERE id = ?1)",
        )?
        .execute(params![key_id, credits, period])?;
    Ok(())
}

/// The key of the task that is refunded: that of its charge.
pub(super) fn charged_key(connection: &Connection, task_id: Id) -> rusqlite::Result<Option<Id>> {
    let found = connection
        .prepare_cached("SELECT key_id FROM ledger WHERE task_id = ?1 AND kind = 'charge'")?
        .query_row([task_id], |row| row.get(0))
        .optional()?;
    Ok(found.flatten())
}

#[cfg(test)]
mod tests {
    use super::super::schema::SCHEMA;
    use super::*;

    #[test]
    fn what_a_key_has_spent_is_read_from_indexes_alone() {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(SCHEMA.in_force).expect("valid SQL");
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {SPENT}")).expect("valid SQL");
        let steps = plan.query_map(params!["ada", "a", "b"], |row| row.get::<_, String>(3)).expect("a plan");
        assert_eq!(
            steps.map(|step| step.expect("a step")).collect::<Vec<_>>(),
            [
                "SEARCH k USING COVERING INDEX keys_of_line (first_id=?)",
                "SEARCH l USING COVERING INDEX ledger_of_key (key_id=? AND task_id>? AND task_id<?)",
            ]
        );
    }
}
