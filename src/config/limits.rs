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
    /// Unfinished tasks allowed for each account; 0 means unlimited
    #[arg(long, env = "TINTYPE_MAX_UNFINISHED", default_value_t = 100, value_name = "N")]
    pub max_unfinished: u32,
    /// Most connections open at the same time; further ones are refused
    #[arg(long, env = "TINTYPE_MAX_CONNECTIONS", value_name = "N", default_value_t = ConnectionLimits::DEFAULT.max_connections)]
    pub max_connections: usize,
    /// Most connections from one address, except from trusted proxies; 0 means unlimited
    #[arg(long, env = "TINTYPE_MAX_CONNECTIONS_PER_ADDRESS", value_name = "N", default_value_t = ConnectionLimits::DEFAULT.max_per_address)]
    pub max_connections_per_address: usize,
}
