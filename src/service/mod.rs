//! The rules of the service, whoever calls: what may be submitted, how a task ends, what is limited and swept.

pub mod backlog;
pub mod failures;
pub mod finished;
pub mod keyring;
pub mod limits;
pub mod links;
mod shared;
pub mod sweeper;
pub mod task_ages;
pub mod tasks;

pub use shared::Shared;
