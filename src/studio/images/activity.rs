//! The tasks that programs have created, to look at.

use askama::Template;
use axum::extract::Query;

use crate::studio::cards::url;
use crate::studio::error::PageResult;
use crate::studio::failures;
use crate::studio::page::{Cursor, Frame, html, last_of_page};
use crate::studio::session::Visitor;
use tintype_domain::model::{Id, Status, Surface};
use tintype_store::TaskRecord;

const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage<'a> {
    frame: Frame<'a>,
    /// The tasks, each with its pictures' URLs.
    tasks: Vec<(TaskRecord, Vec<String>)>,
    older: Option<Id>,
}

impl ActivityPage<'_> {
    /// The name of the text for the state of a task, and why it failed.
    fn state(&self, record: &TaskRecord) -> (&'static str, Option<String>) {
        match &record.task.status {
            Status::Processing => ("gallery-processing", None),
            Status::Completed(_) => ("gallery-completed", None),
            Status::Failed(failure) => ("failed", Some(failures::failure(self.frame.t, failure))),
        }
    }
}

/// The page.
pub async fn activity(visitor: Visitor, Query(cursor): Query<Cursor>) -> PageResult {
    let before = cursor.before()?;
    let (studio, account) = (&visitor.studio, visitor.account_id());
    let mut records = studio.shared.store.list_records(account, Surface::Api, before, PAGE + 1).await?;
    let older = last_of_page(&mut records, PAGE).map(|record| record.task.id);
    let mut tasks = Vec::with_capacity(records.len());
    for record in records {
        let mut urls = Vec::new();
        if let Status::Completed(names) = &record.task.status {
            for name in names {
                urls.push(url(&visitor, name).await?);
            }
        }
        tasks.push((record, urls));
    }
    html(&ActivityPage { frame: Frame::new("activity", &visitor).await?, tasks, older })
}
