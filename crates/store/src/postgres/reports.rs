//! Statements for operators and owners who look things up.

use async_trait::async_trait;

use super::PostgresStore;
use super::accounts::{ACCOUNT_COLUMNS, entry};
use super::columns::{KEY, PERSON, account, api_key, cause, number, of_account, person, word};
use super::queue::millis;
use super::workers::worker;
use crate::reports::{DAY_MS, HOUR};
use crate::{
    AccountSummary, DayUsage, ENGINE_SILENCE, EntryFilter, FoundPerson, Hour, Reports, Result, StruckKey, StruckPerson,
    UsageBy, UsageFilter, UsageRow, WorkerReport,
};
use tintype_domain::model::{EntryKind, Id, LedgerEntry, TaskFailure};
use tintype_system::clock::Timestamp;

#[async_trait]
impl Reports for PostgresStore {
    async fn find_accounts(&self, text: &str, after: &str, limit: u32) -> Result<Vec<AccountSummary>> {
        let sql = format!(
            "SELECT {ACCOUNT_COLUMNS}, (SELECT count(*) FROM people p WHERE p.account_id = accounts.id) AS people,
                 (SELECT count(*) FROM api_keys k WHERE k.account_id = accounts.id AND k.suspended_at IS NOT NULL
                  AND k.revoked_at IS NULL) AS suspended_keys
             FROM accounts WHERE name > $2 AND strpos(lower(name), lower($1)) > 0 ORDER BY name LIMIT $3"
        );
        let rows = self.database.read(&sql, &[&text, &after, &i64::from(limit)]).await?;
        let summary = |row| {
            let (suspended_keys, people) = (number(row, "suspended_keys")?, number(row, "people")?);
            Ok(AccountSummary { account: account(row)?, suspended_keys, people })
        };
        rows.iter().map(summary).collect()
    }

    async fn find_people(
        &self,
        account_id: Option<Id>,
        text: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<FoundPerson>> {
        let sql = format!(
            "SELECT {PERSON}, a.name AS account FROM people p JOIN accounts a ON a.id = p.account_id
             WHERE {} AND p.name > $3 AND strpos(p.name, $2) > 0 ORDER BY p.name LIMIT $4",
            of_account(account_id)
        );
        let rows = self.database.read(&sql, &[&account_id, &text.to_lowercase(), &after, &i64::from(limit)]).await?;
        let found = |row| Ok(FoundPerson { person: person(row)?, account: row.try_get("account")? });
        rows.iter().map(found).collect()
    }

    async fn entries(
        &self,
        account_id: Id,
        filter: EntryFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>> {
        let sql = "SELECT id, kind, amount, balance, task_id, note, created_at FROM ledger
            WHERE account_id = $1 AND id < $2 AND ($3::text IS NULL OR kind = $3)
            AND ($4::bigint IS NULL OR created_at >= $4) AND ($5::bigint IS NULL OR created_at < $5)
            ORDER BY id DESC LIMIT $6";
        let EntryFilter { kind, from, until } = filter;
        let (kind, before) = (kind.map(EntryKind::as_str), before.unwrap_or(i64::MAX));
        let rows = self.database.read(sql, &[&account_id, &before, &kind, &from, &until, &i64::from(limit)]).await?;
        rows.iter().map(entry).collect()
    }

    async fn usage(&self, account_id: Id, since: Timestamp, after: i64) -> Result<Vec<DayUsage>> {
        let sql = "SELECT created_at / $3::bigint AS day, -sum(amount)::bigint AS used, max(id) AS last FROM ledger
            WHERE account_id = $1 AND id > $4 AND created_at >= $2 AND kind IN ('charge', 'refund')
            GROUP BY day ORDER BY day";
        let rows = self.database.read(sql, &[&account_id, &since, &DAY_MS, &after]).await?;
        let usage = |row: &tokio_postgres::Row| {
            let day: i64 = row.try_get("day")?;
            let day = Timestamp::from_millis(day * DAY_MS);
            Ok(DayUsage { day, used: row.try_get("used")?, last: row.try_get("last")? })
        };
        rows.iter().map(usage).collect()
    }

    async fn usage_by(&self, by: UsageBy, filter: UsageFilter) -> Result<Vec<UsageRow>> {
        let sql = format!(
            "SELECT {}, count(*) FILTER (WHERE kind = 'charge') AS tasks,
                 coalesce(-sum(amount) FILTER (WHERE kind = 'charge'), 0)::bigint AS charged,
                 coalesce(sum(amount) FILTER (WHERE kind = 'refund'), 0)::bigint AS refunded
             FROM ledger l WHERE kind IN ('charge', 'refund') AND {}
             AND ($2::bigint IS NULL OR created_at >= $2) AND ($3::bigint IS NULL OR created_at < $3)
             GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3 NULLS LAST, 5 NULLS LAST, 4",
            by.columns(),
            of_account(filter.account_id)
        );
        let rows = self.database.read(&sql, &[&filter.account_id, &filter.from, &filter.until]).await?;
        let usage = |row: &tokio_postgres::Row| {
            let day: Option<i64> = row.try_get("day")?;
            let surface: Option<&str> = row.try_get("surface")?;
            Ok(UsageRow {
                day: day.map(|day| Timestamp::from_millis(day * DAY_MS)),
                account_id: row.try_get("account_id")?,
                key_id: row.try_get("key_id")?,
                person_id: row.try_get("person_id")?,
                surface: surface.map(|_| word(row, "surface")).transpose()?,
                tasks: number(row, "tasks")?,
                charged: row.try_get("charged")?,
                refunded: row.try_get("refunded")?,
            })
        };
        rows.iter().map(usage).collect()
    }

    async fn hour(&self, begin: Timestamp) -> Result<Hour> {
        let sql = "SELECT id, claimed_at, updated_at, n::bigint AS n, error, cause FROM tasks
            WHERE id >= $1 AND id < $2 AND status <> 'processing' AND cause IS DISTINCT FROM 'cancelled'";
        let (first, end) = (Id::floor(begin), Id::floor(begin.saturating_add(HOUR)));
        let mut hour = Hour::default();
        for row in self.database.read(sql, &[&first, &end]).await? {
            match row.try_get("error")? {
                Some(sentence) => hour.count_failed(TaskFailure { cause: cause(&row)?, sentence }),
                None => {
                    let n = number(&row, "n")?;
                    hour.count_completed(row.try_get("id")?, row.try_get("claimed_at")?, row.try_get("updated_at")?, n);
                }
            }
        }
        Ok(hour)
    }

    async fn workers(&self) -> Result<Vec<(WorkerReport, Timestamp)>> {
        let sql = "SELECT id, engine, max_references::bigint AS max_references, masks, slots::bigint AS slots, mean_ms,
                image_ms, is_available, seen_at
            FROM workers WHERE seen_at > tintype_now($1) - $2 ORDER BY seen_at DESC, id";
        let rows = self.database.read(sql, &[&self.database.given_time(), &millis(ENGINE_SILENCE)]).await?;
        let report = |row: &tokio_postgres::Row| {
            let is_available = row.try_get("is_available")?;
            Ok((WorkerReport { is_available, ..worker(row)? }, row.try_get("seen_at")?))
        };
        rows.iter().map(report).collect()
    }

    async fn struck_keys(&self, limit: u32) -> Result<Vec<StruckKey>> {
        let sql = format!(
            "SELECT {KEY}, (SELECT name FROM accounts a WHERE a.id = account_id) AS account,
                 (SELECT count(*) FROM strikes s WHERE s.key_id = api_keys.id) AS strikes
             FROM api_keys WHERE revoked_at IS NULL
             AND (suspended_at IS NOT NULL OR id IN (SELECT key_id FROM strikes))
             ORDER BY suspended_at DESC NULLS LAST, id DESC LIMIT $1"
        );
        let rows = self.database.read(&sql, &[&i64::from(limit)]).await?;
        let struck = |row| {
            Ok(StruckKey { key: api_key(row)?, account: row.try_get("account")?, strikes: number(row, "strikes")? })
        };
        rows.iter().map(struck).collect()
    }

    async fn struck_people(&self, limit: u32) -> Result<Vec<StruckPerson>> {
        let sql = format!(
            "SELECT {PERSON}, a.name AS account,
                 (SELECT count(*) FROM person_strikes s WHERE s.person_id = p.id) AS strikes
             FROM people p JOIN accounts a ON a.id = p.account_id
             WHERE p.suspended_at IS NOT NULL OR p.id IN (SELECT person_id FROM person_strikes)
             ORDER BY p.suspended_at DESC NULLS LAST, p.id DESC LIMIT $1"
        );
        let rows = self.database.read(&sql, &[&i64::from(limit)]).await?;
        let struck = |row: &tokio_postgres::Row| {
            let (account, strikes) = (row.try_get("account")?, number(row, "strikes")?);
            Ok(StruckPerson { person: person(row)?, account, strikes })
        };
        rows.iter().map(struck).collect()
    }
}
