//! Every outgoing HTTP request of the service: one set-up for all clients, and one client for hosts that untrusted
//! callers name.

mod http;
pub mod identity_provider;
pub mod public;
pub mod receivers;
pub mod references;
pub mod trust;

pub use http::{Proxies, SetupError, asked_wait, client_builder, describe};
