//! Tintype is a self-hosted service that turns prompts into images asynchronously, with API keys and credits.
//!
//! ARCHITECTURE.md describes how the modules depend on each other and which invariants they keep.

// A unit test includes a file of the other tests.
#[cfg(test)]
extern crate self as tintype;

pub mod backup;
pub mod cli;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod disk;
pub mod domain;
pub mod engines;
pub mod fault;
pub mod files;
pub mod http;
pub mod metrics;
pub mod models;
pub mod outbound;
pub mod outlet;
pub mod owner;
pub mod policy;
pub mod sandbox;
pub mod server;
pub mod service;
pub mod store;
pub mod traces;
pub mod web;
pub mod worker;
