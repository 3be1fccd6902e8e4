//! The balance of the account, its use, and its ledger.

use std::collections::HashSet;
use std::io;

use askama::Template;
use axum::body::Body;
use axum::extract::Query;
use futures::{StreamExt as _, stream};
use serde::Deserialize;

use crate::service::limits::RateLimit;
use crate::studio::chart::{Chart, Measure, Step};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{BYTE_ORDER_MARK, DAY, Frame, html, last_of_page, query};
use crate::studio::session::Visitor;
use tintype_domain::model::{EntryKind, ExpiringGrant, Id, LedgerEntry};
use tintype_domain::person::Role;
use tintype_domain::text;
use tintype_store::EntryFilter;
use tintype_system::clock::Timestamp;

const PAGE: u32 = 50;
/// Most grants that the page shows.
const GRANTS: u32 = 50;
/// Entries of a download that are read at a time.
const ROWS: u32 = 1_000;
/// Periods of the chart, in days, the usual one first.
const PERIODS: [u32; 2] = [30, 90];

/// The period of the chart, and the entries to show. Empty fields of a form count as absent.
#[derive(Debug, Default, Deserialize)]
pub struct PeriodQuery {
    #[serde(default)]
    days: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    from: String,
    #[serde(default)]
    until: String,
    #[serde(default)]
    before: String,
}

impl PeriodQuery {
    fn days(&self) -> u32 {
        PERIODS.into_iter().find(|days| days.to_string() == self.days).unwrap_or(PERIODS[0])
    }

    /// The filter, with the last day as a whole.
    fn filter(&self) -> Result<EntryFilter, PageError> {
        let day = |text: &str| match text {
            "" => Ok(None),
            text => Timestamp::of_day(text).map(Some).ok_or_else(PageError::bad_request),
        };
        let kind = match self.kind.as_str() {
            "" => None,
            kind => Some(kind.parse::<EntryKind>().map_err(|_| PageError::bad_request())?),
        };
        let until = day(&self.until)?.map(|until| until.saturating_add(DAY));
        Ok(EntryFilter { kind, from: day(&self.from)?, until })
    }

    fn query(&self) -> String {
        query([("kind", self.kind.as_str()), ("from", &self.from), ("until", &self.until)])
    }
}

#[derive(Template)]
#[template(path = "credits.html")]
struct CreditsPage<'a> {
    frame: Frame<'a>,
    chart: Chart,
    periods: [u32; 2],
    kinds: [EntryKind; 4],
    /// The grants that have not lapsed, the soonest expiry first.
    grants: Vec<ExpiringGrant>,
    entries: Vec<LedgerEntry>,
    /// Tasks of the entries that have a page.
    shown: HashSet<Id>,
    older: Option<String>,
    query: &'a PeriodQuery,
    /// The balance below which the event `credits.low` is sent.
    low_balance: Option<i64>,
}

/// The page.
pub async fn credits(visitor: Visitor, Query(query): Query<PeriodQuery>) -> PageResult {
    let account = visitor.account_id();
    let filter = query.filter()?;
    let cursors = &visitor.studio.tasks.cursors;
    let before = match query.before.as_str() {
        "" => None,
        cursor => Some(cursors.open_entry(account, cursor).ok_or_else(PageError::bad_request)?),
    };
    let store = visitor.studio.shared.store.clone();
    let read = async move { store.entries(account, filter, before, PAGE + 1).await };
    let mut entries = if filter == EntryFilter::default() {
        read.await?
    } else {
        visitor.studio.report(&visitor, Role::Viewer, read).await?
    };
    let mut grants = visitor.studio.shared.store.expiring_grants(account, GRANTS).await?;
    grants.retain(|grant| grant.remaining > 0);
    let older = last_of_page(&mut entries, PAGE).map(|entry| cursors.seal_entry(account, entry.id));
    let tasks: Vec<Id> = entries.iter().filter_map(|entry| entry.task_id).map(|task| task.0).collect();
    let page = CreditsPage {
        frame: Frame::new("credits", &visitor).await?,
        chart: chart(&visitor, query.days()).await?,
        periods: PERIODS,
        kinds: EntryKind::ALL,
        grants,
        older,
        entries,
        shown: visitor.studio.shared.store.shown(account, &tasks).await?.into_iter().collect(),
        query: &query,
        low_balance: visitor.account().await?.and_then(|account| account.low_balance),
    };
    html(&page)
}

/// The use of each of the last days, until today.
async fn chart(visitor: &Visitor, days: u32) -> Result<Chart, PageError> {
    let (studio, account) = (&visitor.studio, visitor.account_id());
    let store = &studio.shared.store;
    let length = i64::try_from(DAY.as_millis()).unwrap_or(i64::MAX);
    let today = store.now().as_millis().div_euclid(length);
    let midnight = |day: i64| Timestamp::from_millis(day * length);
    let first = today - i64::from(days) + 1;
    // The longest period first, so that the other one never counts again.
    let longest = i64::from(PERIODS.into_iter().max().unwrap_or(days));
    let used = studio.usage.since(store, account, midnight(today - longest + 1)).await?;
    let days = (first..=today).map(midnight);
    let series: Vec<_> = days.map(|day| (day, used.get(&day).copied().unwrap_or(0))).collect();
    Ok(Chart::new(visitor.texts, "credits-use", (Step::Day, Measure::Count), &series))
}

/// The ledger as CSV (RFC 4180), newest first, with the filters of the page. It is read while it is sent, as long as the
/// session lasts: some entries at a time, so that nothing waits long for them, whatever the filter.
pub async fn csv(visitor: Visitor, Query(query): Query<PeriodQuery>) -> PageResult {
    visitor.studio.count_person(&visitor.session.person, RateLimit::Report).await?;
    let filter = query.filter()?;
    let download = visitor.studio.downloads.try_take(Some(visitor.account_id())).map_err(|_| PageError::busy())?;
    let head = format!("{BYTE_ORDER_MARK}time,kind,amount,balance,task_id,note\r\n");
    let head = stream::iter([io::Result::Ok(head)]);
    let rest = stream::try_unfold((visitor, download, Some(None)), move |(visitor, download, from)| async move {
        let Some(before) = from else { return Ok(None) };
        if !visitor.has_session().await.map_err(io::Error::other)? {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
        let entries = store.history(account, before, ROWS).await.map_err(io::Error::other)?;
        let next = entries.last().map(|entry| Some(entry.id)).filter(|_| entries.len() == ROWS as usize);
        let lines = entries.into_iter().filter(|entry| filter.passes(entry)).map(line).collect::<String>();
        // SQLite reads on this thread, so other tasks may run in between.
        tokio::task::yield_now().await;
        Ok(Some((lines, (visitor, download, next))))
    });
    Ok(crate::studio::page::csv("attachment; filename=\"credits.csv\"", Body::from_stream(head.chain(rest))))
}

/// An entry as a line of the download, without its number, which counts the entries of all accounts.
fn line(entry: LedgerEntry) -> String {
    let task = entry.task_id.map(|id| id.to_string()).unwrap_or_default();
    let LedgerEntry { kind, amount, balance, created_at, note, .. } = entry;
    let note = text::csv_field(note.as_deref().unwrap_or_default());
    format!("{created_at},{},{amount},{balance},{task},{note}\r\n", kind.as_str())
}
