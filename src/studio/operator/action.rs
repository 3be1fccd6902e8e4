//! Actions of operators' forms.

use serde::Deserialize;

/// Actions on any account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AccountAction {
    Disable,
    Enable,
}

/// Actions on a key of any account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AnyKeyAction {
    Disable,
    Enable,
    Lift,
}

/// Actions on a person of any account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AnyPersonAction {
    Lift,
    ResetFactor,
}

/// Actions on the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum QueueAction {
    Pause,
    Resume,
}
