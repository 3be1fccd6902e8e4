//! Statements for operators and owners who look things up.

use async_trait::async_trait;
use rusqlite::{Row, named_params, params};

use super::SqliteStore;
use super::accounts::{KEYS, account, api_key, ledger_entry};
use super::columns::{of_account, person, word};
use super::tasks::cause;
use crate::reports::{DAY_MS, HOUR};
use crate::{
    AccountSummary, DayUsage, EntryFilter, FoundPerson, Hour, Reports, Result, StruckKey, StruckPerson, UsageBy,
    UsageFilter, UsageRow, WorkerReport,
};
use tintype_domain::model::{EntryKind, Id, LedgerEntry, TaskFailure};
use tintype_system::clock::Timestamp;

/// The use of credits of one account, which an index finds, or of all.
fn usage_by(by: UsageBy, account_id: Option<Id>) -> String {
    format!(
        "SELECT {}, count(*) FILTER (WHERE kind = 'charge') AS tasks,
             coalesce(-sum(amount) FILTER (WHERE kind = 'charge'), 0) AS charged,
             coalesce(sum(amount) FILTER (WHERE kind = 'refund'), 0) AS refunded
         FROM ledger l WHERE kind IN ('charge', 'refund') AND {}
         AND (?2 IS NULL OR created_at >= ?2) AND (?3 IS NULL OR created_at < ?3)
         GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3 NULLS LAST, 5 NULLS LAST, 4",
        by.columns(),
        of_account(account_id)
    )
}

/// People of one account, which an index finds, or of all.
fn find_people(account_id: Option<Id>) -> String {
    format!(
        "SELECT p.*, a.name AS account FROM people p JOIN accounts a ON a.id = p.account_id
         WHERE {} AND p.name > ?3 AND instr(p.name, ?2) > 0 ORDER BY p.name LIMIT ?4",
        of_account(account_id)
    )
}

fn usage_row(row: &Row<'_>) -> rusqlite::Result<UsageRow> {
    let day: Option<i64> = row.get("day")?;
    let surface: Option<String> = row.get("surface")?;
    Ok(UsageRow {
        day: day.map(|day| Timestamp::from_millis(day * DAY_MS)),
        account_id: row.get("account_id")?,
        key_id: row.get("key_id")?,
        person_id: row.get("person_id")?,
        surface: surface.map(|_| word(row, "surface")).transpose()?,
        tasks: row.get("tasks")?,
        charged: row.get("charged")?,
        refunded: row.get("refunded")?,
    })
}

#[async_trait]
impl Reports for SqliteStore {
    async fn find_accounts(&self, text: &str, after: &str, limit: u32) -> Result<Vec<AccountSummary>> {
        self.read(|connection| {
            connection
                .prepare_cached(
                    "SELECT a.*, (SELECT count(*) FROM people p WHERE p.account_id = a.id) AS people,
                         (SELECT count(*) FROM api_keys k WHERE k.account_id = a.id AND k.suspended_at IS NOT NULL
                          AND k.revoked_at IS NULL) AS suspended_keys
                     FROM accounts a WHERE a.name > ?2 AND instr(lower(a.name), lower(?1)) > 0
                     ORDER BY a.name LIMIT ?3",
                )?
                .query_map(params![text, after, limit], |row| {
                    let (suspended_keys, people) = (row.get("suspended_keys")?, row.get("people")?);
                    Ok(AccountSummary { account: account(row)?, suspended_keys, people })
                })?
                .collect()
        })
    }

    async fn find_people(
        &self,
        account_id: Option<Id>,
        text: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<FoundPerson>> {
        self.read(|connection| {
            connection
                .prepare_cached(&find_people(account_id))?
                .query_map(params![account_id, text.to_lowercase(), after, limit], |row| {
                    Ok(FoundPerson { person: person(row)?, account: row.get("account")? })
                })?
                .collect()
        })
    }

    async fn entries(
        &self,
        account_id: Id,
        filter: EntryFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>> {
        self.read(|connection| {
            connection
                .prepare_cached(
                    "SELECT id, kind, amount, balance, task_id, note, created_at FROM ledger
                     WHERE account_id = :account AND id < :before AND (:kind IS NULL OR kind = :kind)
                     AND (:from IS NULL OR created_at >= :from) AND (:until IS NULL OR created_at < :until)
                     ORDER BY id DESC LIMIT :limit",
                )?
                .query_map(
                    named_params! {
                        ":account": account_id,
                        ":before": before.unwrap_or(i64::MAX),
                        ":kind": filter.kind.map(EntryKind::as_str),
                        ":from": filter.from,
                        ":until": filter.until,
                        ":limit": limit,
                    },
                    ledger_entry,
                )?
                .collect()
        })
    }

    async fn usage(&self, account_id: Id, since: Timestamp, after: i64) -> Result<Vec<DayUsage>> {
        self.read(|connection| {
            connection
                .prepare_cached(
                    "SELECT created_at / ?3 AS day, -sum(amount) AS used, max(id) AS last FROM ledger
                     WHERE account_id = ?1 AND id > ?4 AND created_at >= ?2 AND kind IN ('charge', 'refund')
                     GROUP BY day ORDER BY day",
                )?
                .query_map(params![account_id, since, DAY_MS, after], |row| {
                    let day: i64 = row.get("day")?;
                    let day = Timestamp::from_millis(day * DAY_MS);
                    Ok(DayUsage { day, used: row.get("used")?, last: row.get("last")? })
                })?
                .collect()
        })
    }

    async fn usage_by(&self, by: UsageBy, filter: UsageFilter) -> Result<Vec<UsageRow>> {
        let sql = usage_by(by, filter.account_id);
        self.read_apart(move |connection| {
            connection
                .prepare_cached(&sql)?
                .query_map(params![filter.account_id, filter.from, filter.until], usage_row)?
                .collect()
        })
        .await
    }

    async fn hour(&self, begin: Timestamp) -> Result<Hour> {
        let (first, end) = (Id::floor(begin), Id::floor(begin.saturating_add(HOUR)));
        self.read(|connection| {
            let mut ended = connection.prepare_cached(
                "SELECT id, claimed_at, updated_at, n, error, cause FROM tasks
                 WHERE id >= ?1 AND id < ?2 AND status <> 'processing' AND cause IS NOT 'cancelled'",
            )?;
            let mut rows = ended.query([first, end])?;
            let mut hour = Hour::default();
            while let Some(row) = rows.next()? {
                match row.get(4)? {
                    Some(sentence) => hour.count_failed(TaskFailure { cause: cause(row, 5)?, sentence }),
                    None => hour.count_completed(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?),
                }
            }
            Ok(hour)
        })
    }

    async fn workers(&self) -> Result<Vec<(WorkerReport, Timestamp)>> {
        let mut workers: Vec<_> = self.workers().values().cloned().collect();
        workers.sort_by_key(|(_, seen_at)| std::cmp::Reverse(*seen_at));
        Ok(workers)
    }

    async fn struck_keys(&self, limit: u32) -> Result<Vec<StruckKey>> {
        self.read(|connection| {
            let sql = format!(
                "SELECT k.*, a.name AS account, (SELECT count(*) FROM strikes s WHERE s.key_id = k.id) AS strikes
                 FROM ({KEYS}) k JOIN accounts a ON a.id = k.account_id
                 WHERE k.revoked_at IS NULL
                 AND (k.suspended_at IS NOT NULL OR k.id IN (SELECT key_id FROM strikes))
                 ORDER BY k.suspended_at DESC NULLS LAST, k.id DESC LIMIT ?1"
            );
            connection
                .prepare_cached(&sql)?
                .query_map([limit], |row| {
                    Ok(StruckKey { key: api_key(row)?, account: row.get("account")?, strikes: row.get("strikes")? })
                })?
                .collect()
        })
    }

    async fn struck_people(&self, limit: u32) -> Result<Vec<StruckPerson>> {
        self.read(|connection| {
            connection
                .prepare_cached(
                    "SELECT p.*, a.name AS account,
                         (SELECT count(*) FROM person_strikes s WHERE s.person_id = p.id) AS strikes
                     FROM people p JOIN accounts a ON a.id = p.account_id
                     WHERE p.suspended_at IS NOT NULL OR p.id IN (SELECT person_id FROM person_strikes)
                     ORDER BY p.suspended_at DESC NULLS LAST, p.id DESC LIMIT ?1",
                )?
                .query_map([limit], |row| {
                    let (account, strikes) = (row.get("account")?, row.get("strikes")?);
                    Ok(StruckPerson { person: person(row)?, account, strikes })
                })?
                .collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::super::schema::SCHEMA;
    use super::*;

    #[test]
    fn reports_about_one_account_read_its_rows_alone() {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(SCHEMA.in_force).expect("valid SQL");
        let account: Id = "FAAAAAAAAAAAAAAAAAAAA".parse().expect("an id");
        let own = of_account(Some(account));
        let mut statements: Vec<String> =
            [UsageBy::Day, UsageBy::Key, UsageBy::Account].into_iter().map(|by| usage_by(by, Some(account))).collect();
        statements.push(format!("{KEYS} WHERE {own} ORDER BY id"));
        statements.push(format!("SELECT * FROM people WHERE {own} ORDER BY id"));
        statements.push(find_people(Some(account)));
        statements.push(format!("SELECT * FROM endpoints WHERE {own} ORDER BY id"));
        for sql in statements {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("valid SQL");
            let steps: Vec<String> = {
                let none = vec![rusqlite::types::Null; plan.parameter_count()];
                let steps = plan.query_map(rusqlite::params_from_iter(none), |row| row.get(3)).expect("a plan");
                steps.collect::<rusqlite::Result<_>>().expect("steps")
            };
            assert!(steps.iter().any(|step| step.contains("(account_id=?")), "{sql}: {steps:?}");
            assert!(!steps.iter().any(|step| step.starts_with("SCAN")), "{sql}: {steps:?}");
        }
    }
}
