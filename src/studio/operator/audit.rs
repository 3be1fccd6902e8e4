//! The audit log.

use askama::Template;
use axum::body::Body;
use axum::extract::Query;
use axum::http::Response;
use serde::Deserialize;

use super::Operator;
use crate::studio::error::PageError;
use crate::studio::page::{Frame, html, minute};
use tintype_domain::model::Id;
use tintype_store::{AuditEntry, Via};
use tintype_system::clock::Timestamp;

/// Entries of one page.
const PAGE: u32 = 50;

/// The account, and the place in the log.
#[derive(Debug, Deserialize)]
pub struct PageQuery {
    account: Option<String>,
    before: Option<String>,
}

#[derive(Template)]
#[template(path = "operator/audit.html")]
struct AuditPage<'a> {
    frame: Frame<'a>,
    entries: Vec<AuditEntry>,
    account: Option<Id>,
    older: Option<Id>,
}

impl AuditPage<'_> {
    /// The name of the text for the door of an entry.
    fn via(&self, entry: &AuditEntry) -> &'static str {
        match entry.actor.via {
            Via::Command => "via-command",
            Via::Studio => "via-studio",
            Via::Server => "via-server",
        }
    }

    fn detail(&self, entry: &AuditEntry) -> Option<String> {
        entry.deed.detail.as_deref().map(in_minutes)
    }
}

/// A detail with its times as the page shows others, to the minute.
fn in_minutes(detail: &str) -> String {
    let shown = |word: &str| {
        let (time, rest) = word.split_at_checked(word.find('Z').map_or(0, |end| end + 1)).unwrap_or_default();
        let at = time.parse::<jiff::Timestamp>().map(|at| Timestamp::from_millis(at.as_millisecond()));
        at.map_or_else(|_| word.to_owned(), |at| format!("{}{rest}", minute(at)))
    };
    detail.split(' ').map(shown).collect::<Vec<_>>().join(" ")
}

fn id(text: Option<&str>) -> Result<Option<Id>, PageError> {
    text.filter(|text| !text.is_empty()).map(str::parse).transpose().map_err(|_| PageError::bad_request())
}

/// The page.
pub async fn audit(operator: Operator, Query(place): Query<PageQuery>) -> Result<Response<Body>, PageError> {
    let visitor = &operator.0;
    let (account, before) = (id(place.account.as_deref())?, id(place.before.as_deref())?);
    let mut entries = visitor.studio.shared.store.audit_entries(account, before, PAGE + 1).await?;
    let more = entries.len() > PAGE as usize;
    entries.truncate(PAGE as usize);
    let older = entries.last().map(|entry| entry.id).filter(|_| more);
    Ok(html(AuditPage { frame: Frame::new("operator", visitor).await?, entries, account, older }.render()?))
}
