//! Everything that this program fetches from other hosts, and whom it trusts then.

pub mod references;
pub mod trust;
