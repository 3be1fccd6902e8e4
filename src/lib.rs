//! Tintype turns prompts into images: asynchronously, behind API keys and credits.
//!
//! ARCHITECTURE.md tells how the modules depend on each other and which invariants hold.

pub mod backup;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod domain;
pub mod fault;
pub mod files;
pub mod http;
pub mod metrics;
pub mod outbound;
pub mod policy;
pub mod sandbox;
pub mod server;
pub mod service;
pub mod store;
pub mod worker;
