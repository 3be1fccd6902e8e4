//! Open sign-up in the studio.

use clap::Args;
use clap::builder::BoolishValueParser;

/// Most credits that `--sign-up-credits` grants.
const MAX_CREDITS: i64 = 1_000_000;

/// Whether anyone can create an account in the studio, and what it starts with.
#[derive(Debug, Clone, Copy, Args)]
pub struct SignUpSettings {
    /// Let anyone create an account in the studio
    #[arg(long, env = "TINTYPE_SIGN_UP", value_parser = BoolishValueParser::new())]
    pub sign_up: bool,
    /// Credits that a new account starts with
    #[arg(long, env = "TINTYPE_SIGN_UP_CREDITS", default_value_t = 0, value_name = "N", requires = "sign_up",
        value_parser = clap::value_parser!(i64).range(0..=MAX_CREDITS))]
    pub sign_up_credits: i64,
    /// Accounts per IPv4 address or IPv6 /64 network per day, including attempts with a name already in use; 0 means
    /// unlimited
    #[arg(long, env = "TINTYPE_SIGN_UP_PER_ADDRESS", default_value_t = 3, value_name = "N", requires = "sign_up")]
    pub sign_up_per_address: u32,
}
