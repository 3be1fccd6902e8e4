//! References in the form of the first page: lines of text, each shown with a small picture.

use tintype_domain::model::{Id, Status, Surface};
use tintype_domain::stored_reference::StoredReference;
use tintype_store::{Result, Store};

#[derive(Debug, Clone)]
pub(super) struct Chip {
    pub(super) reference: String,
    /// The path of its thumbnail, unless it is elsewhere.
    pub(super) thumbnail: Option<String>,
    pub(super) host: String,
}

impl Chip {
    pub(super) fn new(reference: &str) -> Self {
        let host =
            reference.split("://").nth(1).and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or(reference);
        Self {
            reference: reference.to_owned(),
            thumbnail: StoredReference::parse(reference).map(thumbnail),
            host: host.to_owned(),
        }
    }
}

pub(super) fn thumbnail(reference: StoredReference) -> String {
    match reference {
        StoredReference::Upload(id) => format!("/studio/uploads/{id}"),
        StoredReference::Result { task, number } => format!("/studio/tasks/{task}/pictures/{number}"),
    }
}

/// The references of a form, which are the lines with something in them.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

pub(super) struct Found {
    pub(super) name: String,
    /// Its size in pixels.
    pub(super) width: u32,
    pub(super) height: u32,
    /// Its prompt; an upload has none.
    pub(super) prompt: Option<String>,
}

pub(super) async fn find(store: &Store, account: Id, reference: StoredReference) -> Result<Option<Found>> {
    match reference {
        StoredReference::Upload(id) => {
            let upload = store.find_upload(account, Surface::Web, id).await?;
            let picture = upload.map(|upload| upload.picture);
            Ok(picture.map(|p| Found { name: p.name, width: p.width, height: p.height, prompt: None }))
        }
        StoredReference::Result { task, number } => result(store, account, task, number).await,
    }
}

async fn result(store: &Store, account: Id, task: Id, number: u8) -> Result<Option<Found>> {
    let Some(record) = store.find_record(account, Surface::Web, task).await? else {
        return Ok(None);
    };
    let (width, height) = record.request.aspect_ratio.size();
    let Status::Completed(names) = record.task.status else { return Ok(None) };
    let name = names.into_iter().nth(usize::from(number) - 1);
    Ok(name.map(|name| Found { name, width, height, prompt: Some(record.request.prompt) }))
}
