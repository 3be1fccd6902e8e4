//! Second factors of people.

use clap::{Args, ValueEnum};

/// The people who must have a second factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RequiredFor {
    /// Owners of accounts, operators included
    Owners,
    /// Everyone who signs in with a password or a link
    Everyone,
}

/// Whether people need a second factor.
#[derive(Debug, Clone, Copy, Args)]
pub struct SecondFactorSettings {
    /// People who must set up an authenticator app before they can use the studio [default: nobody]
    #[arg(long, env = "TINTYPE_REQUIRE_SECOND_FACTOR", value_name = "PEOPLE")]
    pub require_second_factor: Option<RequiredFor>,
}
