//! Tintype is a self-hosted service that turns prompts into images asynchronously, with API keys and credits.
//!
//! ARCHITECTURE.md describes how the modules depend on each other and which invariants they keep.

pub mod backup;
pub mod cli;
pub mod files;
pub mod http;
pub mod metrics;
pub mod policy;
pub mod server;
pub mod service;
pub mod studio;
pub mod traces;
pub mod worker;
