//! The black-box tests: one module a feature.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails best where it stands")]

mod rigs;

mod account;
mod acme;
mod auth;
mod backup;
mod cli;
mod cluster;
mod configuration;
mod connections;
mod cors;
mod crash;
mod decoder;
mod disk_faults;
mod documents;
mod endings;
mod engines;
mod envelope;
mod every_store;
mod faults;
mod fetching;
mod file_store;
mod files;
mod fuzz;
mod generate;
mod https;
mod limits;
mod list;
mod log;
mod metrics;
mod migrate;
mod openapi;
mod partitions;
mod policy;
mod power_loss;
mod process;
mod read;
mod redis;
mod references_fetch;
mod references_oracle;
mod retention;
mod s3;
mod sd_server;
mod secrets;
mod space;
mod store;
mod store_model;
mod submit;
mod surface;
mod sweeper;
mod sweeps;
mod tidy;
mod work;
