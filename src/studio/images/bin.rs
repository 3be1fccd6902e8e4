//! The bin: deleted tasks, which can be restored until their time is over or their deletion is made final.

use std::time::Duration;

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use serde::Deserialize;

use super::gallery::chosen;
use crate::service::thumbnails;
use crate::studio::action::{BinAction, action};
use crate::studio::error::{PageError, PageResult};
use crate::studio::live::Mark;
use crate::studio::page::{Frame, html, redirect};
use crate::studio::references::thumbnail;
use crate::studio::session::{Form, Visitor};
use tintype_domain::model::{Id, Status};
use tintype_domain::stored_reference::StoredReference;
use tintype_store::TaskRecord;
use tintype_system::clock::Timestamp;

const BIN: &str = "/studio/bin";
/// Tasks of one page, and tasks that are restored or purged at a time.
const PAGE: u32 = 48;

/// The page to show.
#[derive(Debug, Default, Deserialize)]
pub struct PageQuery {
    #[serde(default)]
    before: String,
    /// `1` to begin with every task of the page chosen.
    #[serde(default)]
    all: String,
}

struct Deleted {
    id: Id,
    prompt: String,
    thumbnail: Option<String>,
    /// The size of the thumbnail, in pixels.
    width: u32,
    height: u32,
    /// Its images.
    count: usize,
    deleted_at: Timestamp,
}

impl Deleted {
    fn new(TaskRecord { task, request, removed_at, .. }: TaskRecord) -> Self {
        let (width, height) = thumbnails::size(request.aspect_ratio.size());
        let count = if let Status::Completed(names) = &task.status { names.len() } else { 0 };
        let first = (count > 0).then(|| thumbnail(StoredReference::Result { task: task.id, number: 1 }));
        let deleted_at = removed_at.unwrap_or_else(|| task.created_at());
        Self { id: task.id, prompt: request.prompt, thumbnail: first, width, height, count, deleted_at }
    }
}

#[derive(Template)]
#[template(path = "bin.html")]
struct BinPage<'a> {
    frame: Frame<'a>,
    tasks: Vec<Deleted>,
    older: Option<Id>,
    /// The task before which this page begins.
    before: Option<Id>,
    /// Whether every task is chosen.
    all: bool,
    /// The whole days that a task stays in the bin, or its hours if these are fewer than a day.
    stay: (&'static str, u64),
}

/// The page.
pub async fn bin(visitor: Visitor, Query(query): Query<PageQuery>) -> PageResult {
    visitor.check_can_change()?;
    let shared = &visitor.studio.shared;
    let (account, before) = (visitor.account_id(), query.before.parse().ok());
    let found = shared.store.bin(account, visitor.author_filter(), before, PAGE).await?;
    let hours = visitor.studio.settings.in_bin.as_secs() / 3_600;
    let stay = if hours < 24 { ("bin-lead-hours", hours) } else { ("bin-lead", hours / 24) };
    let tasks = found.records.into_iter().map(Deleted::new).collect();
    let frame = Frame::new("gallery", &visitor).await?;
    let page = BinPage { frame, tasks, older: found.older, before, all: query.all == "1", stay };
    html(&page)
}

/// Whether a task lies in the bin, and the visitor may restore it.
pub(in crate::studio) async fn holds(visitor: &Visitor, task: Id) -> Result<bool, PageError> {
    if !visitor.can_create() {
        return Ok(false);
    }
    let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
    // Ids begin with a time: the first ones of this page were created in the millisecond of the task.
    let after = Id::floor(task.timestamp().saturating_add(Duration::from_millis(1)));
    let found = store.bin(account, visitor.author_filter(), Some(after), PAGE).await?;
    Ok(found.records.iter().any(|record| record.task.id == task))
}

/// Restores tasks, or makes their deletion final: the chosen ones, or all that the person may.
pub async fn change_bin(Path(word): Path<String>, form: Form) -> PageResult {
    let visitor = &form.visitor;
    visitor.check_can_change()?;
    let (account, author, person) = (visitor.account_id(), visitor.author_filter(), visitor.person_id());
    let (store, change) = (visitor.store(), action(&word)?);
    let purge = async |tasks: &[Id]| -> Result<(), PageError> {
        let purged = store.purge_tasks(account, tasks, author).await?;
        tracing::info!(tasks = purged, %account, %person, "the deletion of tasks was made final: the next sweep erases them");
        Ok(())
    };
    let restore = async |tasks: &[Id]| -> Result<(), PageError> {
        let tasks = store.restore_tasks(account, tasks, author).await?;
        visitor.announce(Mark::Restored, tasks);
        Ok(())
    };
    let some = || match chosen(&form) {
        none if none.is_empty() => Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "choose-first")),
        tasks => Ok(tasks),
    };
    match change {
        BinAction::Restore => restore(&some()?).await?,
        BinAction::Erase => purge(&some()?).await?,
        BinAction::RestoreAll | BinAction::Empty => {
            let mut before = None;
            loop {
                let found = visitor.studio.shared.store.bin(account, author, before, PAGE).await?;
                let tasks: Vec<Id> = found.records.iter().map(|record| record.task.id).collect();
                match change {
                    BinAction::Empty => purge(&tasks).await?,
                    _ => restore(&tasks).await?,
                }
                before = found.older;
                if before.is_none() {
                    break;
                }
            }
        }
    }
    Ok(redirect(BIN))
}
