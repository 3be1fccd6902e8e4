//! The use of credits by key, by person and by day, for the owners of the account.

use std::collections::HashMap;

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;

use crate::service::usage::{self, API, FORMER_PERSON, STUDIO, UNKNOWN_KEY, UsageLine};
use crate::studio::chart::{Chart, Measure, Step};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{BYTE_ORDER_MARK, DAY, Frame, csv, html, local_day};
use crate::studio::session::Visitor;
use crate::studio::texts::Texts;
use tintype_domain::person::Role;
use tintype_store::{UsageBy, UsageFilter};
use tintype_system::clock::Timestamp;

/// Periods in days, the usual one first.
const PERIODS: [u32; 3] = [30, 90, 365];

/// How to group the rows, and their period.
#[derive(Debug, Default, Deserialize)]
pub struct UsageQuery {
    #[serde(default)]
    by: String,
    #[serde(default)]
    days: String,
}

impl UsageQuery {
    fn by(&self) -> UsageBy {
        self.by.parse().ok().filter(|by| *by != UsageBy::Account).unwrap_or(UsageBy::Key)
    }

    fn heading(&self) -> &'static str {
        match self.by() {
            UsageBy::Day => "usage-day",
            UsageBy::Person => "name",
            _ => "key-hint",
        }
    }

    /// The start of the period, which ends today.
    fn from(&self, now: Timestamp) -> Option<Timestamp> {
        Some(Timestamp::of_day(&now.day())?.saturating_sub(DAY * (self.days() - 1)))
    }

    fn days(&self) -> u32 {
        PERIODS.into_iter().find(|days| days.to_string() == self.days).unwrap_or(PERIODS[0])
    }
}

#[derive(Template)]
#[template(path = "usage.html")]
struct UsagePage<'a> {
    frame: Frame<'a>,
    lines: Vec<UsageLine>,
    total: UsageLine,
    /// The credits of each day, if the rows are days.
    chart: Option<Chart>,
    periods: [u32; 3],
    query: &'a UsageQuery,
    /// The first day of the period and the last one, which is today, as HTML.
    days: String,
}

impl UsagePage<'_> {
    /// The day of a row, as HTML.
    fn day(&self, line: &UsageLine) -> Option<String> {
        Some(local_day(self.frame.t, Timestamp::of_day(line.day.as_deref()?)?))
    }

    fn name(&self, line: &UsageLine) -> String {
        let name = line.key.as_ref().or(line.person.as_ref());
        let text = match name.map(String::as_str) {
            Some(STUDIO) => "usage-studio",
            Some(API) => "usage-api",
            Some(FORMER_PERSON) => "usage-former-person",
            Some(UNKNOWN_KEY) | None => "usage-unknown-key",
            Some(name) => return name.to_owned(),
        };
        self.frame.t.get(text)
    }

    fn is_shown(&self, by: &str) -> bool {
        self.query.by().as_str() == by
    }

    /// The groups to choose from: their words in URLs, and their texts.
    fn groups(&self) -> [(&'static str, &'static str); 3] {
        [("key", "usage-by-key"), ("person", "usage-by-person"), ("day", "usage-by-day")]
    }
}

async fn lines(visitor: &Visitor, query: &UsageQuery) -> Result<Vec<UsageLine>, PageError> {
    let (store, by) = (visitor.studio.shared.store.clone(), query.by());
    let filter = UsageFilter { account_id: Some(visitor.account_id()), from: query.from(store.now()), until: None };
    let read = async move { usage::lines(&store, by, filter).await };
    visitor.studio.report(visitor, Role::Owner, read).await
}

/// The page.
pub async fn usage(visitor: Visitor, Query(query): Query<UsageQuery>) -> PageResult {
    let mut lines = lines(&visitor, &query).await?;
    let total = UsageLine::total(&lines);
    lines.reverse();
    let now = visitor.studio.shared.store.now();
    let from = query.from(now).unwrap_or(now);
    let chart = (query.by() == UsageBy::Day).then(|| chart(visitor.texts, &lines, from, query.days()));
    let days = format!("{} – {}", local_day(visitor.texts, from), local_day(visitor.texts, now));
    let frame = Frame::new("usage", &visitor).await?;
    html(&UsagePage { frame, lines, total, chart, periods: PERIODS, query: &query, days })
}

/// The credits of each day of the period, also of those without a row.
fn chart(t: &'static Texts, lines: &[UsageLine], from: Timestamp, days: u32) -> Chart {
    let used: HashMap<&str, i64> = lines.iter().filter_map(|line| Some((line.day.as_deref()?, line.credits))).collect();
    let days = (0..days).map(|day| from.saturating_add(DAY * day));
    let series: Vec<_> = days.map(|day| (day, used.get(day.day().as_str()).copied().unwrap_or(0))).collect();
    Chart::new(t, "credits-use", (Step::Day, Measure::Count), &series)
}

/// The rows as CSV.
pub async fn usage_csv(visitor: Visitor, Query(query): Query<UsageQuery>) -> PageResult {
    let lines = lines(&visitor, &query).await?;
    let table = format!("{BYTE_ORDER_MARK}{}", usage::csv(query.by(), &lines));
    Ok(csv("attachment; filename=\"usage.csv\"", table))
}
