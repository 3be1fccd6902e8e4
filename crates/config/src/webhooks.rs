//! Networks that webhooks can reach.

use clap::Args;
use ipnet::IpNet;

use super::values::network;

/// The flag for networks that webhooks can reach.
#[derive(Debug, Clone, Default, Args)]
pub struct WebhookSettings {
    /// Private networks that webhooks may reach, also by plain HTTP, if the operator added the endpoint [default: none]
    #[arg(long, env = "TINTYPE_WEBHOOK_NETWORK", value_name = "CIDR", num_args = 1.., value_delimiter = ',', value_parser = network)]
    pub webhook_network: Vec<IpNet>,
}

/// The networks that the running server's webhooks can reach, for a command that checks an endpoint.
#[derive(Debug, Clone, Default, Args)]
pub struct WebhookNetworks {
    #[arg(long, env = "TINTYPE_WEBHOOK_NETWORK", num_args = 1.., value_delimiter = ',', value_parser = network, hide = true)]
    webhook_network: Vec<IpNet>,
}

impl WebhookNetworks {
    /// The networks.
    pub fn all(&self) -> &[IpNet] {
        &self.webhook_network
    }
}
