//! Board covers: the newest picture of each board. Browsers fetch a cover when it scrolls into view.

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use axum::http::header;
use axum::response::{IntoResponse as _, Redirect};

use super::error::PageError;
use super::page::secured;
use super::references;
use super::session::Visitor;
use tintype_domain::model::Id;
use tintype_domain::stored_reference::StoredReference;
use tintype_store::{GalleryFilter, TaskState};

/// What an empty board shows.
const EMPTY: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>"#;

/// Leads to the thumbnail of the newest picture on a board. A board without one, or of another account, has an empty cover.
pub async fn cover(visitor: Visitor, Path(id): Path<String>) -> Result<Response<Body>, PageError> {
    let board: Id = id.parse().map_err(|_| PageError::not_found())?;
    let filter = GalleryFilter { board: Some(board), state: Some(TaskState::Completed), ..GalleryFilter::default() };
    let page = visitor.store().gallery(visitor.session.person.account_id, &filter, None, 1).await?;
    let newest = page.records.first().map(|record| StoredReference::Result { task: record.task.id, number: 1 });
    let response = match newest {
        Some(picture) => Redirect::to(&references::thumbnail(picture)).into_response(),
        None => ([(header::CONTENT_TYPE, "image/svg+xml")], EMPTY).into_response(),
    };
    Ok(secured(response))
}
