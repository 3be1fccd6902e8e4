//! HTTP: the route table, the steps that every request passes, and the handlers.

mod answer_memory;
pub mod api;
mod compression;
pub mod docs;
mod files;
mod fresh;
mod mcp;
mod openai;
mod ops;
mod pipeline;
pub mod routes;
mod state;
mod submitted;

pub use ops::Readiness;
pub use pipeline::auth::ConnectionInfo;
pub use pipeline::error::NoAnswer;
pub use pipeline::framing::HeadCheck;
pub use pipeline::malformed::EnvelopeStream;
pub use pipeline::observe::REQUEST_ID;
pub use routes::{metrics_router, router};
pub use state::{ApiSettings, ApiState};
