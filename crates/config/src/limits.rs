//! Limits on callers.

use clap::Args;

use super::connections::ConnectionLimits;
use super::values::rate;

/// Limits on what callers may do.
#[derive(Debug, Clone, Args)]
pub struct LimitSettings {
    /// Submits per minute allowed for each key; 0 means unlimited
    #[arg(long, env = "TINTYPE_SUBMIT_RATE", default_value = "60", value_name = "N/min", value_parser = rate)]
    pub submit_rate: u32,
    /// Reads per minute allowed for each key; 0 means unlimited
    #[arg(long, env = "TINTYPE_READ_RATE", default_value = "1200", value_name = "N/min", value_parser = rate)]
    pub read_rate: u32,
    /// Submits per minute allowed for all keys of an account together; 0 means unlimited [default: ten times --submit-rate]
    #[arg(long, env = "TINTYPE_ACCOUNT_SUBMIT_RATE", value_name = "N/min", value_parser = rate)]
    pub account_submit_rate: Option<u32>,
    /// Reads per minute allowed for all keys of an account together; 0 means unlimited [default: ten times --read-rate]
    #[arg(long, env = "TINTYPE_ACCOUNT_READ_RATE", value_name = "N/min", value_parser = rate)]
    pub account_read_rate: Option<u32>,
    /// Number of suspended keys at which an account's owners can no longer create, rotate or enable keys; 0 means never
    #[arg(long, env = "TINTYPE_MAX_SUSPENDED_KEYS", default_value_t = 3, value_name = "N")]
    pub max_suspended_keys: u32,
    /// Unfinished tasks allowed for each account; 0 means unlimited
    #[arg(long, env = "TINTYPE_MAX_UNFINISHED", default_value_t = 100, value_name = "N")]
    pub max_unfinished: u32,
    /// Number of failed tasks within ten minutes at which an account cannot submit more; 0 means unlimited
    #[arg(long, env = "TINTYPE_MAX_FAILED_TASKS", default_value_t = 300, value_name = "N")]
    pub max_failed_tasks: u32,
    /// Most connections open at the same time; further ones are refused
    #[arg(long, env = "TINTYPE_MAX_CONNECTIONS", value_name = "N", default_value_t = ConnectionLimits::DEFAULT.max_connections)]
    pub max_connections: usize,
    /// Most connections from one address, except from trusted proxies; 0 means unlimited
    #[arg(long, env = "TINTYPE_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", default_value_t = ConnectionLimits::DEFAULT.max_per_address)]
    pub max_connections_per_address: usize,
}
