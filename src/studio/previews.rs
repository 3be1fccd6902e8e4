//! Previews of pictures that are being made, for the people of their account alone.

use axum::body::Body;
use axum::extract::Path;
use axum::http::Response;
use axum::http::header::{self, HeaderValue};

use super::error::PageError;
use super::page::secured;
use super::session::Visitor;
use tintype_domain::model::Surface;

/// The latest preview of a task, as PNG.
pub async fn preview(visitor: Visitor, Path(id): Path<String>) -> Result<Response<Body>, PageError> {
    let id = id.parse().map_err(|_| PageError::not_found())?;
    let (store, account) = (&visitor.studio.shared.store, visitor.session.person.account_id);
    let png = store.find_preview(account, Surface::Web, id).await?.ok_or_else(PageError::not_found)?;
    let mut response = Response::new(Body::from(png));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("image/png"));
    Ok(secured(response))
}
