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

/// The networks of the running server's webhooks, for a command that asks whether it could reach an endpoint.
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
