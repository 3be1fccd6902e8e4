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

/// Defines the actions on something. Each is a word in URLs, such as `reset-factor`.
macro_rules! actions {
    ($($(#[$about:meta])* $name:ident { $($action:ident),+ })+) => {
        $($(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub(super) enum $name { $($action),+ })+
    };
}

actions! {
    /// On a key of one's own account.
    KeyAction { Budget, Disable, Enable, Revoke, Rotate }

    /// On a webhook endpoint.
    WebhookAction { Disable, Enable, Events, Remove, Rotate, Test }

    /// On selected tasks of the gallery.
    GalleryAction { Delete, Put, Restore, Star, Take, Unstar }

    /// On tasks in the bin.
    BinAction { Empty, Erase, Restore, RestoreAll }

    /// On a board.
    BoardAction { Publish, Remove, Rename }

    /// On a person of one's own account.
    PersonAction { Link, Remove, Role }

    /// By an operator, on any account.
    AccountAction { Disable, Enable }

    /// By an operator, on a key of any account.
    AnyKeyAction { Disable, Enable, Lift }

    /// By an operator, on a person of any account.
    AnyPersonAction { Lift, ResetFactor }

    /// By an operator, on the queue.
    QueueAction { Pause, Resume }
}
