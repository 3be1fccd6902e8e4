//! Addresses below the studio that no page has. A page that somebody may not know of answers like them.

use super::error::PageError;
use super::session::{Form, Visitor};

/// A page.
pub async fn page_not_found(_: Visitor) -> PageError {
    PageError::not_found()
}

/// The target of a form.
pub async fn form_not_found(_: Form) -> PageError {
    PageError::not_found()
}
