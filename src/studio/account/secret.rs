//! Secrets that are shown once. The form that makes a secret redirects to this page, so a reload makes no other secret,
//! and shows the same one until the person puts it away.

use askama::Template;
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::studio::HOME;
use crate::studio::cookies::SECRET;
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Frame, html, redirect};
use crate::studio::session::{Form, Visitor};
use tintype_domain::signed_tokens::{Fact, TICKET_LIFE};

const PAGE: &str = "/studio/secret";

/// A secret, and what its page says.
///
/// A signed cookie of this session carries it from the form to the page, so no database and no log ever holds it.
#[derive(Serialize, Deserialize)]
pub(in crate::studio) struct Secret {
    /// The paragraph above it. Cookies of earlier releases call it `said`.
    #[serde(rename = "said")]
    pub(in crate::studio) lead: String,
    /// One text to keep, or several.
    pub(in crate::studio) texts: Vec<String>,
    /// The name of the text of the button that copies it.
    pub(in crate::studio) copy: String,
    /// The page from which the form came.
    pub(in crate::studio) back: String,
}

#[derive(Template)]
#[template(path = "secret.html")]
struct SecretPage<'a> {
    frame: Frame<'a>,
    secret: Secret,
}

pub(in crate::studio) async fn show(visitor: &Visitor, secret: &Secret) -> PageResult {
    let json = serde_json::to_vec(secret).map_err(PageError::caused_by)?;
    let text = BASE64_URL_SAFE_NO_PAD.encode(json);
    let ticket = visitor.studio.tickets().await?.issue(visitor.session.id, Fact::Shown(&text));
    let response = redirect(PAGE);
    Ok(SECRET.set(response, &visitor.context, &format!("{text}.{ticket}"), TICKET_LIFE.as_secs()))
}

/// The secret that was made in this session some minutes ago, and not put away.
async fn found(visitor: &Visitor, headers: &HeaderMap) -> Result<Option<Secret>, PageError> {
    let Some((text, ticket)) = SECRET.read(headers, &visitor.context).and_then(|value| value.split_once('.')) else {
        return Ok(None);
    };
    if !visitor.studio.tickets().await?.verify(ticket, visitor.session.id, Fact::Shown(text)) {
        return Ok(None);
    }
    let json = BASE64_URL_SAFE_NO_PAD.decode(text).unwrap_or_default();
    Ok(serde_json::from_slice(&json).ok())
}

/// The page.
pub async fn secret(visitor: Visitor, headers: HeaderMap) -> PageResult {
    let gone = || PageError::new(StatusCode::GONE, "secret-gone");
    let secret = found(&visitor, &headers).await?.ok_or_else(gone)?;
    let frame = Frame::new("secret", &visitor).await?;
    html(&SecretPage { frame, secret })
}

/// Hides the secret, and returns to where it was created.
pub async fn put_away(form: Form) -> PageResult {
    let Form { visitor, headers, .. } = form;
    let secret = found(&visitor, &headers).await?;
    let back = secret.as_ref().map_or(HOME, |secret| &secret.back);
    Ok(SECRET.remove(redirect(back), &visitor.context))
}
