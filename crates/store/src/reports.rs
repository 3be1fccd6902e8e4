//! The look-ups of operators and owners: accounts, the use of credits, how tasks went, workers, and struck keys and
//! people.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Result;
use super::accounts::{ACCOUNT, account, entry};
use super::driver::{Dialect, Parameter, Row, Store, from_row, of_account};
use super::keys::{KEY, api_key};
use super::people::{PERSON, person};
use super::tasks::cause;
use tintype_domain::key::ApiKey;
use tintype_domain::model::{Account, CREDITS_PER_IMAGE, EntryKind, Id, LedgerEntry, Surface, TaskFailure};
use tintype_domain::person::Person;
use tintype_domain::string_enum;
use tintype_system::clock::Timestamp;

/// Most reasons for failures that an [`Hour`] lists. It counts the other failures without a reason.
const MAX_REASONS: usize = 50;

/// An account with what belongs to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountSummary {
    /// The account.
    pub account: Account,
    /// Its keys that are suspended and not revoked.
    pub suspended_keys: u64,
    /// Its people.
    pub people: u64,
}

/// The ledger entries to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EntryFilter {
    /// Only entries of this kind.
    pub kind: Option<EntryKind>,
    /// Not from before this time.
    pub from: Option<Timestamp>,
    /// From before this time.
    pub until: Option<Timestamp>,
}

impl EntryFilter {
    /// Whether an entry passes.
    pub fn passes(&self, entry: &LedgerEntry) -> bool {
        self.kind.is_none_or(|kind| entry.kind == kind)
            && self.from.is_none_or(|from| entry.created_at >= from)
            && self.until.is_none_or(|until| entry.created_at < until)
    }
}

/// The credits that an account used on one day in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DayUsage {
    /// Midnight, when the day begins.
    pub day: Timestamp,
    /// Charges less refunds of that day. Negative if more came back than was charged.
    pub used: i64,
    /// The id of the newest of these entries.
    pub last: i64,
}

string_enum! {
    /// Grouping of usage rows.
    pub enum UsageBy: "grouping" {
        /// By account.
        Account = "account",
        /// By account and key; tasks of the studio have none.
        Key = "key",
        /// By account and person; tasks of the API have none.
        Person = "person",
        /// By day in UTC.
        Day = "day",
    }
}

impl UsageBy {
    /// The columns of a [`UsageRow`] to group by.
    fn columns(self) -> &'static str {
        match self {
            Self::Account => {
                "CAST(NULL AS bigint) AS day, account_id, CAST(NULL AS text) AS key_id, CAST(NULL AS text) AS surface,
                 CAST(NULL AS text) AS person_id"
            }
            Self::Person => {
                "CAST(NULL AS bigint) AS day, account_id, CAST(NULL AS text) AS key_id,
                 (SELECT CASE WHEN person_id IS NULL THEN surface END FROM tasks t WHERE t.id = l.task_id) AS surface,
                 (SELECT person_id FROM tasks t WHERE t.id = l.task_id) AS person_id"
            }
            Self::Key => {
                "CAST(NULL AS bigint) AS day, account_id, key_id,
                 CASE WHEN key_id IS NULL THEN (SELECT surface FROM tasks t WHERE t.id = l.task_id) END AS surface,
                 CAST(NULL AS text) AS person_id"
            }
            Self::Day => {
                "created_at / 86400000 AS day, CAST(NULL AS text) AS account_id, CAST(NULL AS text) AS key_id,
                 CAST(NULL AS text) AS surface, CAST(NULL AS text) AS person_id"
            }
        }
    }
}

/// The ledger entries that count as use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageFilter {
    /// Only entries of this account.
    pub account_id: Option<Id>,
    /// Not from before this time.
    pub from: Option<Timestamp>,
    /// From before this time.
    pub until: Option<Timestamp>,
}

/// The use of credits by an account, with a key, or on a day.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageRow {
    /// Midnight, when the day begins, when grouped by day.
    pub day: Option<Timestamp>,
    /// The account, unless grouped by day.
    pub account_id: Option<Id>,
    /// The key, when grouped by key and the tasks came with one.
    pub key_id: Option<Id>,
    /// The person, when grouped by person and the tasks have one.
    pub person_id: Option<Id>,
    /// When grouped by key or person and none is known, the surface of the tasks: the studio, or the API before ledger
    /// entries named their keys.
    pub surface: Option<Surface>,
    /// Tasks charged.
    pub tasks: u64,
    /// Credits charged.
    pub charged: i64,
    /// Credits refunded, including refunds of earlier charges.
    pub refunded: i64,
}

impl UsageRow {
    /// Images of the tasks that were charged.
    pub fn images(&self) -> i64 {
        self.charged / CREDITS_PER_IMAGE
    }

    /// Credits charged less those refunded.
    pub fn credits(&self) -> i64 {
        self.charged - self.refunded
    }
}

/// How the tasks went that were created in one hour, of all accounts and surfaces. Cancelled ones are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hour {
    /// Tasks that were completed.
    pub completed: u64,
    /// Completed tasks whose last claim is known; earlier releases didn't record it.
    pub timed: u64,
    /// Time from the creation of the timed tasks to their last claim, in total. Earlier attempts count as waiting.
    pub waited: Duration,
    /// Time from the last claim of the timed tasks to their end, in total.
    pub rendered: Duration,
    /// Images of the timed tasks.
    pub images: u64,
    /// The number of failed tasks by failure, with other failures under `None`.
    pub failed: BTreeMap<Option<TaskFailure>, u64>,
}

impl Hour {
    /// The number of tasks that failed.
    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Mean time from the creation of a completed task to its last claim.
    pub fn mean_wait(&self) -> Option<Duration> {
        mean(self.waited, self.timed)
    }

    /// Mean time from the last claim of a completed task to its end.
    pub fn mean_render(&self) -> Option<Duration> {
        mean(self.rendered, self.timed)
    }

    /// Mean time from the last claim of a completed task to its end, for each of its images.
    pub fn mean_of_image(&self) -> Option<Duration> {
        mean(self.rendered, self.images)
    }

    /// Counts a task that was completed at `ended`, with `images` images.
    fn count_completed(&mut self, id: Id, claimed: Option<Timestamp>, ended: Timestamp, images: u32) {
        self.completed += 1;
        let Some(claimed) = claimed else { return };
        self.timed += 1;
        self.images += u64::from(images);
        self.waited = self.waited.saturating_add(claimed.since(id.timestamp()));
        self.rendered = self.rendered.saturating_add(ended.since(claimed));
    }

    fn count_failed(&mut self, failure: TaskFailure) {
        let failure = Some(failure);
        let is_known = self.failed.contains_key(&failure) || self.failed.len() < MAX_REASONS;
        *self.failed.entry(failure.filter(|_| is_known)).or_default() += 1;
    }
}

fn mean(total: Duration, count: u64) -> Option<Duration> {
    (count > 0).then(|| total / u32::try_from(count).unwrap_or(u32::MAX))
}

/// A key or a person with strikes, or suspended for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Struck<T> {
    /// The key or the person.
    pub who: T,
    /// The name of the account.
    pub account: String,
    /// The strikes; of a key also those of the keys that it was rotated from and to. Strikes that are too old to count
    /// are removed at the next one.
    pub strikes: u64,
}

/// A person with the name of the account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPerson {
    /// The person.
    pub person: Person,
    /// The name of the account.
    pub account: String,
}

const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

/// The credits that one account, found by an index, or all accounts spent.
fn usage_by(by: UsageBy, account_id: Option<Id>) -> String {
    format!(
        "SELECT {}, count(*) FILTER (WHERE kind = 'charge') AS tasks,
             CAST(coalesce(-sum(amount) FILTER (WHERE kind = 'charge'), 0) AS bigint) AS charged,
             CAST(coalesce(sum(amount) FILTER (WHERE kind = 'refund'), 0) AS bigint) AS refunded
         FROM ledger l WHERE kind IN ('charge', 'refund') AND {}
         AND (CAST($2 AS bigint) IS NULL OR created_at >= $2) AND (CAST($3 AS bigint) IS NULL OR created_at < $3)
         GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3 NULLS LAST, 5 NULLS LAST, 4",
        by.columns(),
        of_account(account_id)
    )
}

fn midnight(day: i64) -> Timestamp {
    Timestamp::from_millis(day * DAY_MS)
}

from_row! { fn day_usage(row) -> DayUsage { day: midnight(row.get("day")?), used, last } }

from_row! { fn summary(row) -> AccountSummary { account: account(row)?, suspended_keys, people } }

from_row! { fn found(row) -> FoundPerson { person: person(row)?, account } }

fn struck<T>(row: &Row, who: T) -> Result<Struck<T>> {
    Ok(Struck { who, account: row.get("account")?, strikes: row.get("strikes")? })
}

from_row! { fn usage_row(row) -> UsageRow {
    day: row.get::<Option<i64>>("day")?.map(midnight), account_id, key_id, person_id, surface, tasks, charged, refunded,
} }

/// Whether a search cannot find anything: no name contains U+0000, and PostgreSQL rejects every text that does.
fn finds_nothing(texts: [&str; 2]) -> bool {
    texts.iter().any(|text| text.contains('\0'))
}

impl Store {
    /// Accounts with `text` in their name, sorted by name, after the name `after`.
    pub async fn find_accounts(&self, text: &str, after: &str, limit: u32) -> Result<Vec<AccountSummary>> {
        if finds_nothing([text, after]) {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {ACCOUNT}, (SELECT count(*) FROM people p WHERE p.account_id = accounts.id) AS people,
                 (SELECT count(*) FROM api_keys k WHERE k.account_id = accounts.id AND k.suspended_at IS NOT NULL
                  AND k.revoked_at IS NULL) AS suspended_keys
             FROM accounts WHERE name > $2 AND {}(lower(name), lower($1)) > 0 ORDER BY name LIMIT $3",
            self.driver.position()
        );
        self.driver.list(&sql, &[&text, &after, &limit], summary).await
    }

    /// People of one account, or of all, with `text` in their name, sorted by name, after the name `after`. Names have
    /// no capitals, and capitals in `text` are ignored.
    pub async fn find_people(
        &self,
        account_id: Option<Id>,
        text: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<FoundPerson>> {
        if finds_nothing([text, after]) {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {PERSON}, a.name AS account FROM people JOIN accounts a ON a.id = people.account_id
             WHERE {} AND people.name > $3 AND {}(people.name, $2) > 0 ORDER BY people.name LIMIT $4",
            of_account(account_id),
            self.driver.position()
        );
        self.driver.list(&sql, &[&account_id, &text.to_lowercase(), &after, &limit], found).await
    }

    /// Ledger entries of an account that pass a filter, newest first, older than the entry `before`. With a filter, this
    /// may read the account's whole ledger, so it waits for its turn among reports.
    pub async fn entries(
        &self,
        account_id: Id,
        filter: EntryFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>> {
        let sql = "SELECT id, kind, amount, balance, task_id, note, created_at FROM ledger
            WHERE account_id = $1 AND id < $2 AND (CAST($3 AS text) IS NULL OR kind = $3)
            AND (CAST($4 AS bigint) IS NULL OR created_at >= $4) AND (CAST($5 AS bigint) IS NULL OR created_at < $5)
            ORDER BY id DESC LIMIT $6";
        let EntryFilter { kind, from, until } = filter;
        let (kind, before) = (kind.map(EntryKind::as_str), before.unwrap_or(i64::MAX));
        let parameters: [&dyn Parameter; 6] = [&account_id, &before, &kind, &from, &until, &limit];
        let rows = if filter == EntryFilter::default() {
            self.driver.read(sql, &parameters).await?
        } else {
            self.driver.report(sql.into(), &parameters).await?
        };
        rows.iter().map(entry).collect()
    }

    /// The use of credits by an account, on each day on which it was charged or refunded, in order. Counts ledger entries
    /// with an id above `after` only.
    pub async fn usage(&self, account_id: Id, after: i64) -> Result<Vec<DayUsage>> {
        let sql = "SELECT created_at / CAST($2 AS bigint) AS day, CAST(-sum(amount) AS bigint) AS used, max(id) AS last
            FROM ledger WHERE account_id = $1 AND id > $3 AND kind IN ('charge', 'refund') GROUP BY 1 ORDER BY 1";
        self.driver.list(sql, &[&account_id, &DAY_MS, &after], day_usage).await
    }

    /// The charges and refunds that pass a filter, added up exactly as in the ledger. Without a time range for an
    /// account, this reads its whole ledger.
    pub async fn usage_by(&self, by: UsageBy, filter: UsageFilter) -> Result<Vec<UsageRow>> {
        let UsageFilter { account_id, from, until } = filter;
        let rows = self.driver.report(usage_by(by, account_id), &[&account_id, &from, &until]).await?;
        rows.iter().map(usage_row).collect()
    }

    /// How the tasks went that were created within an hour from `begin`.
    pub async fn hour(&self, begin: Timestamp) -> Result<Hour> {
        let sql = "SELECT id, claimed_at, updated_at, CAST(n AS bigint) AS n, error, cause FROM tasks
            WHERE id >= $1 AND id < $2 AND status <> 'processing' AND cause IS DISTINCT FROM 'cancelled'";
        let (first, end) = (Id::floor(begin), Id::floor(begin.saturating_add(HOUR)));
        let mut hour = Hour::default();
        for row in self.driver.read(sql, &[&first, &end]).await? {
            match row.get("error")? {
                Some(message) => hour.count_failed(TaskFailure { cause: cause(&row)?, message }),
                None => {
                    let (claimed, ended) = (row.get("claimed_at")?, row.get("updated_at")?);
                    hour.count_completed(row.get("id")?, claimed, ended, row.get("n")?);
                }
            }
        }
        Ok(hour)
    }

    /// Keys with strikes or a suspension that are not revoked, the latest suspension first.
    pub async fn struck_keys(&self, limit: u32) -> Result<Vec<Struck<ApiKey>>> {
        let sql = format!(
            "SELECT {KEY}, (SELECT name FROM accounts a WHERE a.id = account_id) AS account,
                 (SELECT count(*) FROM strikes s JOIN api_keys k ON k.id = s.key_id
                  WHERE k.first_id = api_keys.first_id) AS strikes
             FROM api_keys WHERE revoked_at IS NULL
             AND (suspended_at IS NOT NULL
                  OR first_id IN (SELECT k.first_id FROM strikes s JOIN api_keys k ON k.id = s.key_id))
             ORDER BY suspended_at DESC NULLS LAST, id DESC LIMIT $1"
        );
        self.driver.list(&sql, &[&limit], |row| struck(row, api_key(row)?)).await
    }

    /// People with strikes or a suspension, the latest suspension first.
    pub async fn struck_people(&self, limit: u32) -> Result<Vec<Struck<Person>>> {
        let sql = format!(
            "SELECT {PERSON}, a.name AS account,
                 (SELECT count(*) FROM person_strikes s WHERE s.person_id = people.id) AS strikes
             FROM people JOIN accounts a ON a.id = people.account_id
             WHERE people.suspended_at IS NOT NULL OR people.id IN (SELECT person_id FROM person_strikes)
             ORDER BY people.suspended_at DESC NULLS LAST, people.id DESC LIMIT $1"
        );
        self.driver.list(&sql, &[&limit], |row| struck(row, person(row)?)).await
    }
}
