//! Actions of forms: the last part of a form's URL. A URL with any other word has no page.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde::de::value::{Error, StrDeserializer};

use super::PageError;

/// Reads an action.
///
/// # Errors
/// The page for a URL that does not exist.
pub(super) fn action<T: DeserializeOwned>(word: &str) -> Result<T, PageError> {
    T::deserialize(StrDeserializer::<Error>::new(word)).map_err(|_| PageError::not_found())
}

/// Actions on a key of one's own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KeyAction {
    Budget,
    Disable,
    Enable,
    Revoke,
    Rotate,
}

/// Actions on a webhook endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WebhookAction {
    Disable,
    Enable,
    Events,
    Remove,
    Rotate,
    Test,
}

/// Actions on selected tasks of the gallery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum GalleryAction {
    Delete,
    Put,
    Restore,
    Star,
    Take,
    Unstar,
}

/// Actions on tasks in the bin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BinAction {
    Empty,
    Erase,
    Restore,
    RestoreAll,
}

/// Actions on a board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum BoardAction {
    Publish,
    Remove,
    Rename,
}

/// Actions on a person of one's own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PersonAction {
    Link,
    Remove,
    Role,
}
