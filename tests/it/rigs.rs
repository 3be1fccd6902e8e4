//! The harness of the tests: servers, disks, networks and clusters that features are tested on.

pub mod binary;
pub mod browser;
pub mod caller;
pub mod certificates;
pub mod cluster;
pub mod crash;
pub mod crowd;
pub mod disk;
pub mod engine;
pub mod faulty_http;
pub mod glewlwyd;
pub mod http;
pub mod hub;
pub mod images_api;
pub mod installation;
pub mod lemonldap;
pub mod network;
pub mod oidc;
pub mod packages;
pub mod proxy;
pub mod receiver;
pub mod redis;
pub mod s3;
pub mod service;
pub mod staged;
pub mod visitor;
pub mod wait;

pub use tintype_rigs::{debian, pgbouncer, ports, postgres};
