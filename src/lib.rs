//! Tintype turns prompts into images: asynchronously, behind API keys and credits.
//!
//! ARCHITECTURE.md tells how the modules hang together and what may never happen.

pub mod address;
pub mod app;
pub mod backlog;
pub mod backup;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod cursor;
pub mod data_dir;
pub mod decoder;
pub mod disk;
pub mod engine;
pub mod failures;
pub mod fault;
pub mod files;
pub mod http;
pub mod key;
pub mod keyring;
pub mod limits;
pub mod metrics;
pub mod model;
pub mod picture;
pub mod policy;
pub mod references;
pub mod render;
pub mod request;
pub mod results;
pub mod server;
pub mod source;
pub mod store;
pub mod sweeper;
pub mod tasks;
pub mod trust;
pub mod worker;
