//! The audit log.

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;

use super::{Operator, details};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Frame, html, last_of_page};
use tintype_domain::model::Id;
use tintype_store::AuditEntry;

const PAGE: u32 = 50;

/// The account, and the position in the log.
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
    fn actor(&self, entry: &AuditEntry) -> String {
        details::actor(self.frame.t, &entry.actor.name)
    }

    fn detail(&self, entry: &AuditEntry) -> Option<String> {
        details::detail(self.frame.t, &entry.audited)
    }
}

fn id(text: Option<&str>) -> Result<Option<Id>, PageError> {
    text.filter(|text| !text.is_empty()).map(str::parse).transpose().map_err(|_| PageError::bad_request())
}

/// The page.
pub async fn audit(operator: Operator, Query(query): Query<PageQuery>) -> PageResult {
    let visitor = &operator.0;
    let (account, before) = (id(query.account.as_deref())?, id(query.before.as_deref())?);
    let mut entries = visitor.studio.shared.store.audit_entries(account, before, PAGE + 1).await?;
    let older = last_of_page(&mut entries, PAGE).map(|entry| entry.id);
    html(&AuditPage { frame: Frame::new("operator-audit", visitor).await?, entries, account, older })
}
