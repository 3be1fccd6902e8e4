//! The choice of a language, which a browser keeps for a year.

use super::HOME;
use super::cookies::{referring_page, studio_page, with_language};
use super::error::{PageError, PageResult};
use super::page::redirect;
use super::session::GuestForm;
use super::texts::Texts;

/// Sets the language, and redirects back to the page with the form.
pub async fn choose(GuestForm { guest, fields }: GuestForm) -> PageResult {
    let texts = Texts::named(fields.text("language")).ok_or_else(PageError::bad_request)?;
    // A page whose address is secret names itself here, because its referrer doesn't.
    let back = fields.get("back").map_or_else(|| referring_page(guest.headers()), studio_page);
    let response = redirect(back.as_deref().unwrap_or(HOME));
    Ok(with_language(response, texts.language))
}
