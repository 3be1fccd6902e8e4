//! The networks of webhooks.

use clap::Args;
use ipnet::IpNet;

use super::values::network;

/// The flag for the networks of webhooks.
#[derive(Debug, Clone, Default, Args)]
pub struct WebhookSettings {
    /// Networks besides the public ones that webhooks may reach, also by plain HTTP, if the operator has added the endpoint
    /// [default: none]
    #[arg(long, env = "TINTYPE_WEBHOOK_NETWORK", value_name = "CIDR", num_args = 1.., value_delimiter = ',', value_parser = network)]
    pub webhook_network: Vec<IpNet>,
}
