//! The rules of the service, whoever calls: what may be submitted, how a task ends, what is limited and swept.

pub mod app;
pub mod backlog;
pub mod failures;
pub mod keyring;
pub mod limits;
pub mod sweeper;
pub mod tasks;
