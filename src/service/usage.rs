//! The use of credits: per day for charts, and with names for people. Counting a ledger of 100,000 entries takes 40 ms,
//! so counts for charts are cached, and only later entries are read.

use std::collections::{BTreeMap, HashMap};

use quick_cache::sync::Cache;
use serde::Serialize;

use tintype_domain::model::{Id, Surface};
use tintype_domain::text::csv_field;
use tintype_store::{Result, Store, UsageBy, UsageFilter, UsageRow};
use tintype_system::clock::Timestamp;

const MAX_ACCOUNTS: usize = 1_000;

/// The usage that this process has counted.
#[derive(Debug)]
pub struct UsageCache(Cache<Id, Counted>);

#[derive(Debug, Clone)]
struct Counted {
    /// Days before this one are not kept.
    since: Timestamp,
    /// The newest entry that is counted. An account is locked while an entry of it is written, so that ids of its later
    /// entries are higher.
    last: i64,
    /// By midnight, when the day begins.
    days: BTreeMap<Timestamp, i64>,
}

impl Default for UsageCache {
    fn default() -> Self {
        Self(Cache::new(MAX_ACCOUNTS))
    }
}

impl UsageCache {
    /// The credits that an account used, on each day from midnight `since` on which it was charged or refunded.
    pub async fn since(&self, store: &Store, account: Id, since: Timestamp) -> Result<BTreeMap<Timestamp, i64>> {
        let known = self.0.get(&account).filter(|counted| counted.since <= since);
        let mut counted = known.unwrap_or(Counted { since, last: 0, days: BTreeMap::new() });
        for usage in store.usage(account, counted.last).await? {
            *counted.days.entry(usage.day).or_default() += usage.used;
            counted.last = counted.last.max(usage.last);
        }
        counted.days = counted.days.split_off(&since);
        counted.since = since;
        self.0.insert(account, counted.clone());
        Ok(counted.days)
    }
}

/// The name of the row of tasks of the studio.
pub const STUDIO: &str = "(studio)";
/// The name of the row of tasks of the API, when grouped by person.
pub const API: &str = "(API)";
/// The name of the row of tasks of a person who has left.
pub const FORMER_PERSON: &str = "(former member)";
/// The row name for API tasks whose ledger entries contain no key.
pub const UNKNOWN_KEY: &str = "(unknown key)";

/// A row of the use of credits, with names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UsageLine {
    /// The day in UTC, such as `2026-11-21`, when grouped by day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The name of the account, unless grouped by day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account_id: Option<Id>,
    /// The first characters of the key and its label, [`STUDIO`] or [`UNKNOWN_KEY`], when grouped by key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Id>,
    /// The name of the person, [`STUDIO`] for studio tasks without an author, [`API`] or [`FORMER_PERSON`], when grouped by
    /// person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub person: Option<String>,
    /// The person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub person_id: Option<Id>,
    /// Tasks charged.
    pub tasks: u64,
    /// Their images.
    pub images: i64,
    /// Credits charged.
    pub charged: i64,
    /// Credits refunded.
    pub refunded: i64,
    /// Credits charged less those refunded.
    pub credits: i64,
}

impl UsageLine {
    /// The sums of all rows.
    pub fn total(lines: &[Self]) -> Self {
        lines.iter().fold(Self::default(), |total, line| Self {
            tasks: total.tasks + line.tasks,
            images: total.images + line.images,
            charged: total.charged + line.charged,
            refunded: total.refunded + line.refunded,
            credits: total.credits + line.credits,
            ..total
        })
    }
}

/// The use of credits that passes a filter, with names, by day or by the name of the account.
pub async fn lines(store: &Store, by: UsageBy, filter: UsageFilter) -> Result<Vec<UsageLine>> {
    let accounts = match filter.account_id {
        _ if by == UsageBy::Day => Vec::new(),
        Some(id) => store.find_account(id.as_str()).await?.into_iter().collect(),
        None => store.list_accounts().await?,
    };
    let keys = if by == UsageBy::Key { store.list_keys(filter.account_id).await? } else { Vec::new() };
    let accounts: HashMap<Id, String> = accounts.into_iter().map(|account| (account.id, account.name)).collect();
    let keys: HashMap<Id, String> =
        keys.into_iter().map(|key| (key.id, format!("{} {}", key.hint, key.name).trim_end().to_owned())).collect();
    let people = if by == UsageBy::Person { store.list_people(filter.account_id).await? } else { Vec::new() };
    let people: HashMap<Id, String> = people.into_iter().map(|person| (person.id, person.name)).collect();
    let rows = store.usage_by(by, filter).await?;
    let line = |row: &UsageRow| {
        let key = match (row.key_id, row.surface) {
            (Some(id), _) => keys.get(&id).cloned(),
            (None, Some(Surface::Web)) => Some(STUDIO.to_owned()),
            (None, Some(Surface::Api)) => Some(UNKNOWN_KEY.to_owned()),
            (None, None) => None,
        };
        let person = match (row.person_id, row.surface) {
            (Some(id), _) => people.get(&id).cloned().unwrap_or_else(|| FORMER_PERSON.to_owned()),
            (None, Some(Surface::Web)) => STUDIO.to_owned(),
            (None, _) => API.to_owned(),
        };
        UsageLine {
            day: row.day.map(Timestamp::day),
            account: row.account_id.map(|id| accounts.get(&id).cloned().unwrap_or_default()),
            account_id: row.account_id,
            key: key.filter(|_| by == UsageBy::Key),
            key_id: row.key_id,
            person: (by == UsageBy::Person).then_some(person),
            person_id: row.person_id,
            tasks: row.tasks,
            images: row.images(),
            charged: row.charged,
            refunded: row.refunded,
            credits: row.credits(),
        }
    };
    let mut lines: Vec<UsageLine> = rows.iter().map(line).collect();
    lines.sort_by(|one, other| (&one.day, &one.account).cmp(&(&other.day, &other.account)));
    Ok(lines)
}

/// The rows as CSV (RFC 4180).
pub fn csv(by: UsageBy, lines: &[UsageLine]) -> String {
    let names = match by {
        UsageBy::Day => "day",
        UsageBy::Account => "account",
        UsageBy::Key => "account,key_id,key",
        UsageBy::Person => "account,person_id,person",
    };
    let mut csv = format!("{names},tasks,images,charged,refunded,credits\r\n");
    for line in lines {
        let account = csv_field(line.account.as_deref().unwrap_or_default());
        let names = match by {
            UsageBy::Day => line.day.clone().unwrap_or_default(),
            UsageBy::Account => account,
            UsageBy::Key | UsageBy::Person => {
                let (id, name) =
                    if by == UsageBy::Key { (line.key_id, &line.key) } else { (line.person_id, &line.person) };
                let id = id.map(|id| id.to_string()).unwrap_or_default();
                format!("{account},{id},{}", csv_field(name.as_deref().unwrap_or_default()))
            }
        };
        let UsageLine { tasks, images, charged, refunded, credits, .. } = line;
        csv.push_str(&format!("{names},{tasks},{images},{charged},{refunded},{credits}\r\n"));
    }
    csv
}
