//! The harness of the tests: servers, disks, networks and clusters that features are tested on.

pub mod binary;
pub mod browser;
pub mod caller;
pub mod certificates;
pub mod cluster;
pub mod crash;
pub mod crowd;
pub mod debian;
pub mod disk;
pub mod faulty_http;
pub mod http;
pub mod hub;
pub mod images_api;
pub mod installation;
pub mod network;
pub mod oidc;
pub mod packages;
pub mod ports;
pub mod postgres;
pub mod proxy;
pub mod receiver;
pub mod redis;
pub mod s3;
pub mod service;
pub mod staged;
pub mod visitor;
