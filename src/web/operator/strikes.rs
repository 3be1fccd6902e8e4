//! Keys that the content policy has struck or suspended.

use askama::Template;
use axum::body::Body;
use axum::http::Response;

use super::Operator;
use crate::store::StruckKey;
use crate::web::error::PageError;
use crate::web::page::{Frame, html};

/// Most keys on the page.
const MAX_KEYS: u32 = 200;

#[derive(Template)]
#[template(path = "operator/strikes.html")]
struct StrikesPage<'a> {
    frame: Frame<'a>,
    keys: Vec<StruckKey>,
}

/// The page.
pub async fn strikes(operator: Operator) -> Result<Response<Body>, PageError> {
    let visitor = &operator.0;
    let keys = visitor.studio.shared.store.struck_keys(MAX_KEYS).await?;
    Ok(html(StrikesPage { frame: Frame::new("operator", visitor).await?, keys }.render()?))
}
