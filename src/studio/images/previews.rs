//! Previews of pictures that are being made, for the people of their account alone.

use axum::extract::Path;

use crate::studio::error::{PageError, PageResult};
use crate::studio::page::file;
use crate::studio::session::Visitor;
use tintype_domain::model::Surface;

/// The latest preview of a task, as PNG.
pub async fn preview(visitor: Visitor, Path(id): Path<String>) -> PageResult {
    let id = id.parse()?;
    let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
    let png = store.find_preview(account, Surface::Web, id).await?.ok_or_else(PageError::not_found)?;
    Ok(file("image/png", png))
}
