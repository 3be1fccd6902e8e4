//! The look-ups of operators and owners: accounts, the use of credits, how tasks went, workers, and struck keys and
//! people.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use super::{Result, WorkerReport};
use tintype_domain::key::ApiKey;
use tintype_domain::model::{Account, CREDITS_PER_IMAGE, EntryKind, Id, LedgerEntry, Surface, TaskFailure};
use tintype_domain::person::Person;
use tintype_system::clock::Timestamp;

/// Most reasons of failures that an [`Hour`] tells apart. The rest has none.
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
    /// Of this kind.
    pub kind: Option<EntryKind>,
    /// Not from before this time.
    pub from: Option<Timestamp>,
    /// From before this time.
    pub until: Option<Timestamp>,
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

/// Grouping of usage rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageBy {
    /// By account.
    Account,
    /// By account and key; tasks of the studio have none.
    Key,
    /// By account and person; tasks of the API have none.
    Person,
    /// By day in UTC.
    Day,
}

impl UsageBy {
    /// The columns of a [`UsageRow`] to group by, for both databases.
    pub(super) fn columns(self) -> &'static str {
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
    /// Of this account.
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
    /// When grouped by key or person and none is known, the surface of the tasks: the studio, or the API before ledger entries
    /// named their keys.
    pub surface: Option<Surface>,
    /// Tasks charged.
    pub tasks: u64,
    /// Credits charged.
    pub charged: i64,
    /// Credits refunded, also those of tasks that were charged before.
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
    /// Of these, tasks whose last claim is known. Those of releases without it are missing.
    pub timed: u64,
    /// Time from the creation of the timed tasks to their last claim, in total. Earlier attempts count as waiting.
    pub waited: Duration,
    /// Time from the last claim of the timed tasks to their end, in total.
    pub rendered: Duration,
    /// Images of the timed tasks.
    pub images: u64,
    /// The number of tasks that failed, by their failure; without one, those of all others.
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

    /// The same for each of its images.
    pub fn mean_of_image(&self) -> Option<Duration> {
        mean(self.rendered, self.images)
    }

    /// Counts a task that was completed at `ended`, with so many images.
    pub(super) fn count_completed(&mut self, id: Id, claimed: Option<Timestamp>, ended: Timestamp, images: u32) {
        self.completed += 1;
        let Some(claimed) = claimed else { return };
        self.timed += 1;
        self.images += u64::from(images);
        self.waited = self.waited.saturating_add(claimed.since(id.timestamp()));
        self.rendered = self.rendered.saturating_add(ended.since(claimed));
    }

    /// Counts a task that failed.
    pub(super) fn count_failed(&mut self, failure: TaskFailure) {
        let failure = Some(failure);
        let is_known = self.failed.contains_key(&failure) || self.failed.len() < MAX_REASONS;
        *self.failed.entry(failure.filter(|_| is_known)).or_default() += 1;
    }
}

fn mean(total: Duration, count: u64) -> Option<Duration> {
    (count > 0).then(|| total / u32::try_from(count).unwrap_or(u32::MAX))
}

/// A key with strikes, or suspended for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StruckKey {
    /// The key.
    pub key: ApiKey,
    /// The name of its account.
    pub account: String,
    /// Its strikes. Those that are too old to count go with its next one.
    pub strikes: u64,
}

/// A person with strikes, or suspended for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StruckPerson {
    /// The person.
    pub person: Person,
    /// The name of the account.
    pub account: String,
    /// The strikes. Those that are too old to count go with the next one.
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

/// Look-ups that change nothing.
#[async_trait]
pub trait Reports: std::fmt::Debug + Send + Sync + 'static {
    /// Accounts with `text` in their name, sorted by name, after the name `after`.
    async fn find_accounts(&self, text: &str, after: &str, limit: u32) -> Result<Vec<AccountSummary>>;

    /// People of one account, or of all, with `text` in their name, sorted by name, after the name `after`. Names have no
    /// capitals, and those of `text` do not count.
    async fn find_people(
        &self,
        account_id: Option<Id>,
        text: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<FoundPerson>>;

    /// Ledger entries of an account that pass a filter, newest first, older than the entry `before`.
    async fn entries(
        &self,
        account_id: Id,
        filter: EntryFilter,
        before: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LedgerEntry>>;

    /// The use of credits by an account, on each day since `since` on which it was charged or refunded, in order.
    /// Counts ledger entries with an id above `after` only.
    async fn usage(&self, account_id: Id, since: Timestamp, after: i64) -> Result<Vec<DayUsage>>;

    /// The charges and refunds that pass a filter, added up: exactly those of the ledger. Without a bound on the time
    /// of an account, this reads its whole ledger.
    async fn usage_by(&self, by: UsageBy, filter: UsageFilter) -> Result<Vec<UsageRow>>;

    /// How the tasks went that were created within an hour from `begin`.
    async fn hour(&self, begin: Timestamp) -> Result<Hour>;

    /// The last report of each worker that has not been forgotten, with its time, the latest first.
    async fn workers(&self) -> Result<Vec<(WorkerReport, Timestamp)>>;

    /// Keys with strikes or a suspension that are not revoked, the latest suspension first.
    async fn struck_keys(&self, limit: u32) -> Result<Vec<StruckKey>>;

    /// People with strikes or a suspension, the latest suspension first.
    async fn struck_people(&self, limit: u32) -> Result<Vec<StruckPerson>>;
}

/// One hour.
pub(super) const HOUR: Duration = Duration::from_secs(60 * 60);
/// Milliseconds of one day.
pub(super) const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
