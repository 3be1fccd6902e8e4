//! The OpenID Connect provider at which people may sign in.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::environment::secret_in;
use super::values::base_url;
use tintype_domain::joining::{JoinRule, JoinRules};
use tintype_domain::provider::OidcProvider;

/// The provider of an organisation, and this server as it is registered there.
#[derive(Debug, Clone, Args)]
pub struct OidcSettings {
    /// URL of an OpenID Connect provider at which people may sign in to the studio. Its redirect URI is
    /// `PUBLIC-URL/studio/oidc/callback` [default: none]
    #[arg(long, env = "TINTYPE_OIDC_ISSUER", value_name = "URL", value_parser = issuer, requires = "oidc_client_id")]
    oidc_issuer: Option<String>,
    /// Id of this server at the provider
    #[arg(long, env = "TINTYPE_OIDC_CLIENT_ID", value_name = "ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,
    /// File that holds the secret of this server at the provider [default: a client without a secret]
    #[arg(long, env = "TINTYPE_OIDC_CLIENT_SECRET_FILE", value_name = "FILE", requires = "oidc_issuer")]
    oidc_client_secret_file: Option<PathBuf>,
    /// Other audiences that the provider may name beside this server in an ID token that does not say to whom it was issued
    #[arg(long, env = "TINTYPE_OIDC_AUDIENCE", value_name = "ID", num_args = 1.., value_delimiter = ',', requires = "oidc_issuer")]
    oidc_audience: Vec<String>,
    /// Name of the provider on the button of the sign-in page [default: its host]
    #[arg(long, env = "TINTYPE_OIDC_NAME", value_name = "NAME", requires = "oidc_issuer")]
    oidc_name: Option<String>,
    /// Scopes to ask the provider for, besides `openid profile email`
    #[arg(long, env = "TINTYPE_OIDC_SCOPE", value_name = "SCOPE", num_args = 1.., value_delimiter = ',', requires = "oidc_issuer")]
    oidc_scope: Vec<String>,
    /// Rule by which somebody new who signs in at the provider joins an account: `domain:DOMAIN=ACCOUNT:ROLE` for a verified
    /// e-mail address in a domain, `group:GROUP=ACCOUNT:ROLE` for a group. The first one that matches counts. In the environment,
    /// write a semicolon between two
    #[arg(long, env = "TINTYPE_OIDC_JOIN", value_name = "RULE", value_delimiter = ';', requires = "oidc_issuer")]
    oidc_join: Vec<JoinRule>,
    /// When the role of somebody in an account with a rule is what the rules say: at the `first` sign-in, or `always`. With
    /// `always`, somebody who matches no rule about the own account any more loses access
    #[arg(long, env = "TINTYPE_OIDC_ROLES", value_name = "WHEN", default_value = "first", requires = "oidc_join")]
    oidc_roles: RolesFollow,
    /// Claim that holds the groups of a person, as a text or a list of texts
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
    /// The provider, if the operator names one.
    ///
    /// # Errors
    /// A sentence for the operator: a file cannot be read, or holds no secret.
    pub fn provider(&self) -> Result<Option<OidcProvider>, String> {
        let Some((issuer, client_id)) = self.oidc_issuer.clone().zip(self.oidc_client_id.clone()) else {
            return Ok(None);
        };
        let secret = self.oidc_client_secret_file.as_deref();
        let client_secret = secret.map(|file| secret_in(file, "--oidc-client-secret-file")).transpose()?;
        if client_secret.as_deref() == Some("") {
            return Err("--oidc-client-secret-file is empty: leave it out for a client without a secret".into());
        }
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| format!("cannot read --oidc-ca {}: {error}", path.display()))
        };
        let authorities = self.oidc_ca.as_ref().map(read).transpose()?;
        let (audiences, scopes, groups_claim) =
            (self.oidc_audience.clone(), self.oidc_scope.clone(), self.oidc_groups_claim.clone());
        let joins = JoinRules { rules: self.oidc_join.clone(), follow: self.oidc_roles == RolesFollow::Always };
        let name = self.oidc_name.clone().filter(|name| !name.trim().is_empty());
        Ok(Some(OidcProvider {
            issuer,
            client_id,
            client_secret,
            audiences,
            name,
            scopes,
            joins,
            groups_claim,
            authorities,
        }))
    }
}

/// Parses the URL of a provider, which the provider repeats to the letter: a slash at its end counts.
fn issuer(text: &str) -> Result<String, String> {
    base_url(text)?;
    let url = url::Url::parse(text).map_err(|error| error.to_string())?;
    let is_local = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    if url.scheme() == "http" && !is_local {
        return Err(
            "a provider on another machine must have https: everybody on the way could sign in as anybody".into()
        );
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("the URL of a provider holds no user name and no password".into());
    }
    Ok(text.to_owned())
}
