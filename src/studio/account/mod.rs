//! The pages of a person and of their account: keys, webhooks, use, credits, people, invitations and sessions.

pub(crate) mod credits;
pub(crate) mod invitations;
pub(crate) mod keys;
pub(super) mod overlap;
pub(crate) mod people;
pub(crate) mod secret;
pub(crate) mod sessions;
pub(crate) mod usage;
pub(crate) mod webhooks;
