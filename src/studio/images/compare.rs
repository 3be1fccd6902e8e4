//! Two pictures side by side, or one over the other.

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;

use crate::studio::cards::{Card, latest_of, url};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Frame, html, redirect};
use crate::studio::references::{Found, find, thumbnail};
use crate::studio::session::Visitor;
use tintype_domain::model::Id;
use tintype_domain::stored_reference::StoredReference;

const GALLERY: &str = "/studio/gallery";

/// The pictures to compare. Without the second one the page offers the latest pictures; without the first one people choose
/// it in the gallery.
#[derive(Debug, Deserialize)]
pub struct Pair {
    a: Option<String>,
    b: Option<String>,
    before: Option<String>,
}

struct Compared {
    reference: StoredReference,
    url: String,
    thumbnail: String,
    prompt: Option<String>,
    width: u32,
    height: u32,
}

#[derive(Template)]
#[template(path = "compare.html")]
struct ComparePage<'a> {
    frame: Frame<'a>,
    a: Compared,
    b: Option<Compared>,
    /// Pictures to choose the second one from.
    cards: Vec<Card<'a>>,
    older: Option<Id>,
}

/// The page.
pub async fn compare(visitor: Visitor, Query(pair): Query<Pair>) -> PageResult {
    let Some(a) = &pair.a else { return Ok(redirect(GALLERY)) };
    let a = compared(&visitor, a).await?;
    let b = match &pair.b {
        Some(b) => Some(compared(&visitor, b).await?),
        None => None,
    };
    let before = pair.before.as_deref().map(str::parse).transpose().map_err(|_| PageError::bad_request())?;
    let (cards, older) = if b.is_none() { latest_of(&visitor, None, before).await? } else { (Vec::new(), None) };
    html(&ComparePage { frame: Frame::new("compare", &visitor).await?, a, b, cards, older })
}

async fn compared(visitor: &Visitor, text: &str) -> Result<Compared, PageError> {
    let reference = StoredReference::parse(text).ok_or_else(PageError::not_found)?;
    let (store, account) = (&*visitor.studio.shared.store, visitor.account_id());
    let found = find(store, account, reference).await?;
    let Found { name, width, height, prompt } = found.ok_or_else(PageError::not_found)?;
    Ok(Compared { reference, url: url(visitor, &name).await?, thumbnail: thumbnail(reference), prompt, width, height })
}
