//! The rules of the service, independent of its callers: submits, the endings of tasks, limits and sweeps.

pub mod auth_throttle;
pub mod call_hold;
mod context;
pub mod encoder;
pub mod endings;
pub mod engine_record;
pub mod failed_tasks;
pub mod file_store;
pub mod finished;
pub mod hourly_stats;
pub mod key_cache;
pub mod keys;
mod limiters;
pub mod limits;
pub mod links;
pub mod people;
pub mod presets;
pub mod previews;
pub mod queue_positions;
mod refresh;
pub mod rejections;
pub mod shares;
pub mod sign_in_attempts;
pub mod sweeper;
pub mod task_ages;
pub mod tasks;
pub mod thumbnails;
pub mod uploads;
pub mod usage;
pub mod wait_estimator;
pub mod waiters;
pub mod webhooks;

pub use context::ServiceContext;
