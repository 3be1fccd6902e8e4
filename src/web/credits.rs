//! The balance of the account and its ledger.

use askama::Template;
use axum::body::Body;
use axum::extract::Query;
use axum::http::Response;
use axum::http::header::{self, HeaderValue};
use serde::Deserialize;

use super::error::PageError;
use super::page::{Frame, html, secured};
use super::session::Visitor;
use crate::domain::model::{EntryKind, LedgerEntry};

/// Entries of one page.
const PAGE: u32 = 50;
/// Most entries of a download.
const MAX_ROWS: u32 = 100_000;

/// The place in the ledger.
#[derive(Debug, Deserialize)]
pub struct Before {
    before: Option<i64>,
}

#[derive(Template)]
#[template(path = "credits.html")]
struct CreditsPage<'a> {
    frame: Frame<'a>,
    entries: Vec<LedgerEntry>,
    older: Option<i64>,
}

impl CreditsPage<'_> {
    fn kind(&self, entry: &LedgerEntry) -> &'static str {
        match entry.kind {
            EntryKind::Grant => "credits-grant",
            EntryKind::Charge => "credits-charge",
            EntryKind::Refund => "credits-refund",
        }
    }
}

/// The page.
pub async fn credits(visitor: Visitor, Query(before): Query<Before>) -> Result<Response<Body>, PageError> {
    let account = visitor.session.person.account_id;
    let mut entries = visitor.studio.shared.store.history(account, before.before, PAGE + 1).await?;
    let more = entries.len() > PAGE as usize;
    entries.truncate(PAGE as usize);
    let older = entries.last().map(|entry| entry.id).filter(|_| more);
    Ok(html(CreditsPage { frame: Frame::new("credits", &visitor).await?, entries, older }.render()?))
}

/// The ledger as CSV (RFC 4180), newest first.
pub async fn csv(visitor: Visitor) -> Result<Response<Body>, PageError> {
    let account = visitor.session.person.account_id;
    let entries = visitor.studio.shared.store.history(account, None, MAX_ROWS).await?;
    let mut text = "id,time,kind,amount,balance,task_id,note\r\n".to_owned();
    for entry in entries {
        let task = entry.task_id.map(|id| id.to_string()).unwrap_or_default();
        let LedgerEntry { id, kind, amount, balance, created_at, note, .. } = entry;
        let note = quoted(note.as_deref().unwrap_or_default());
        text.push_str(&format!("{id},{created_at},{},{amount},{balance},{task},{note}\r\n", kind.as_str()));
    }
    let mut response = secured(Response::new(Body::from(text)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/csv; charset=utf-8"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"credits.csv\""));
    Ok(response)
}

/// A field that no spreadsheet takes for a formula.
fn quoted(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t']) { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}
