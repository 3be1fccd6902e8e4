//! Open sign-up in the studio.

use clap::Args;
use clap::builder::BoolishValueParser;

/// Most credits that `--sign-up-credits` grants.
const MAX_CREDITS: i64 = 1_000_000;

/// Whether strangers may open accounts in the studio, and what they get.
#[derive(Debug, Clone, Copy, Args)]
pub struct SignUpSettings {
    /// Let everybody who reaches the studio open an account there
    #[arg(long, env = "TINTYPE_SIGN_UP", value_parser = BoolishValueParser::new())]
    pub sign_up: bool,
    /// Credits of an account that somebody opens in the studio
    #[arg(long, env = "TINTYPE_SIGN_UP_CREDITS", default_value_t = 0, value_name = "N", requires = "sign_up",
        value_parser = clap::value_parser!(i64).range(0..=MAX_CREDITS))]
    pub sign_up_credits: i64,
    /// Accounts that may be opened from one IPv4 address or IPv6 /64 network in a day, with the attempts whose name was
    /// taken; 0 means unlimited
    #[arg(long, env = "TINTYPE_SIGN_UP_PER_ADDRESS", default_value_t = 3, value_name = "N", requires = "sign_up")]
    pub sign_up_per_address: u32,
}
