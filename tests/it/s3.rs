//! Result files in a bucket: a whole service on a real S3 server, which goes down and comes back.

mod administration;
mod files;
mod links;
mod outages;
mod quirks;
mod setups;
