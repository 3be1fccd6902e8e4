//! The OpenID Connect provider for sign-in.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::environment::{authorities_in, secret_in};
use super::values::base_url;
use tintype_domain::address::is_this_machine;
use tintype_domain::joining::{JoinRule, JoinRules};
use tintype_domain::provider::OidcProvider;

/// The scopes of each sign-in, when the operator names none. Profile and email are for a name to show, and for rules.
const USUAL_SCOPES: [&str; 3] = ["openid", "profile", "email"];

/// An organisation's provider, and this server as registered there.
#[derive(Debug, Clone, Args)]
pub struct OidcSettings {
    /// URL of an OpenID Connect provider for sign-in to the studio. Register the redirect URI
    /// `PUBLIC-URL/studio/oidc/callback` [default: none]
    #[arg(long, env = "TINTYPE_OIDC_ISSUER", value_name = "URL", value_parser = issuer, requires = "oidc_client_id")]
    oidc_issuer: Option<String>,
    /// Client ID of this server at the provider
    #[arg(long, env = "TINTYPE_OIDC_CLIENT_ID", value_name = "ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,
    /// File that holds the client secret [default: a public client]
    #[arg(long, env = "TINTYPE_OIDC_CLIENT_SECRET_FILE", value_name = "FILE", requires = "oidc_issuer")]
    oidc_client_secret_file: Option<PathBuf>,
    /// Other audiences to accept beside this server in ID tokens without `azp`
    #[arg(long, env = "TINTYPE_OIDC_AUDIENCE", value_name = "ID", num_args = 1.., value_delimiter = ',', requires = "oidc_issuer")]
    oidc_audience: Vec<String>,
    /// Name of the provider on the button of the sign-in page [default: its host]
    #[arg(long, env = "TINTYPE_OIDC_NAME", value_name = "NAME", requires = "oidc_issuer")]
    oidc_name: Option<String>,
    /// Scopes to request in addition to `openid profile email`; if `openid` is among them, only these are requested
    #[arg(long, env = "TINTYPE_OIDC_SCOPE", value_name = "SCOPE", num_args = 1.., value_delimiter = ',', requires = "oidc_issuer")]
    oidc_scope: Vec<String>,
    /// Rule by which new people join an account at sign-in: `domain:DOMAIN=ACCOUNT:ROLE` for a verified email address,
    /// `group:GROUP=ACCOUNT:ROLE` for a group. The first match counts. In the environment, separate rules by semicolons
    #[arg(long, env = "TINTYPE_OIDC_JOIN", value_name = "RULE", value_delimiter = ';', requires = "oidc_issuer")]
    oidc_join: Vec<JoinRule>,
    /// When the rules set a person's role: at the `first` sign-in, or `always`. With `always`, people who no longer match
    /// a rule of their account lose access
    #[arg(long, env = "TINTYPE_OIDC_ROLES", value_name = "WHEN", default_value = "first", requires = "oidc_join")]
    oidc_roles: RolesFollow,
    /// Claim that holds a person's groups, as a string or a list of strings
    #[arg(
        long,
        env = "TINTYPE_OIDC_GROUPS_CLAIM",
        value_name = "CLAIM",
        default_value = "groups",
        requires = "oidc_join"
    )]
    oidc_groups_claim: String,
    /// PEM file with certificate authorities to trust for the provider, in addition to the public ones
    #[arg(long, env = "TINTYPE_OIDC_CA", value_name = "FILE", requires = "oidc_issuer")]
    oidc_ca: Option<PathBuf>,
}

/// When the rules for joining decide about a role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RolesFollow {
    /// At the first sign-in.
    First,
    /// At each sign-in.
    Always,
}

impl OidcSettings {
    /// The provider, if there is one.
    ///
    /// # Errors
    /// A message for the operator: a file cannot be read, or contains no secret.
    pub fn provider(&self) -> Result<Option<OidcProvider>, String> {
        let Some((issuer, client_id)) = self.oidc_issuer.clone().zip(self.oidc_client_id.clone()) else {
            return Ok(None);
        };
        let secret = self.oidc_client_secret_file.as_deref();
        let client_secret = secret.map(|file| secret_in(file, "--oidc-client-secret-file")).transpose()?;
        if client_secret.as_deref() == Some("") {
            return Err("--oidc-client-secret-file is empty: leave it out for a client without a secret".into());
        }
        let authorities = authorities_in(self.oidc_ca.as_deref(), "--oidc-ca")?;
        let (audiences, groups_claim) = (self.oidc_audience.clone(), self.oidc_groups_claim.clone());
        let joins = JoinRules { rules: self.oidc_join.clone(), follow: self.oidc_roles == RolesFollow::Always };
        let name = self.oidc_name.clone().filter(|name| !name.trim().is_empty());
        Ok(Some(OidcProvider {
            issuer,
            client_id,
            client_secret,
            audiences,
            name,
            scopes: self.scopes(),
            joins,
            groups_claim,
            authorities,
        }))
    }

    /// The scopes to ask for, each once.
    fn scopes(&self) -> Vec<String> {
        // Some providers, such as Discord and Twitch, refuse a sign-in with a scope that they do not have.
        let named: Vec<&str> = self.oidc_scope.iter().flat_map(|scope| scope.split_whitespace()).collect();
        let mut scopes = if named.contains(&"openid") { Vec::new() } else { USUAL_SCOPES.to_vec() };
        for scope in named {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes.into_iter().map(str::to_owned).collect()
    }
}

/// Parses a provider's URL, which must exactly match what the provider reports, including a trailing slash.
fn issuer(text: &str) -> Result<String, String> {
    base_url(text)?;
    let url = url::Url::parse(text).map_err(|error| error.to_string())?;
    if url.scheme() == "http" && !is_this_machine(&url) {
        return Err(
            "a provider on another machine needs https: without it, anyone on the network could sign in as any user"
                .into(),
        );
    }
    if text.ends_with("/.well-known/openid-configuration") {
        return Err("this is the provider's discovery document: give its `issuer`".into());
    }
    Ok(text.to_owned())
}
