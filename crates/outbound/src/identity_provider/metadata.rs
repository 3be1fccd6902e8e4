//! The endpoints of a provider (OpenID Connect Discovery 1.0). Only the fields that are used are read.

use serde_json::Value;
use url::Url;
use url::form_urlencoded::byte_serialize;

use super::fields::{Fields, text};
use super::words;

#[derive(Debug, Clone)]
pub(super) struct Endpoints {
    pub authorization: Url,
    pub token: Url,
    pub keys: Url,
    /// The endpoint that returns more claims, if there is one.
    pub userinfo: Option<Url>,
    /// The endpoint at which a browser signs out, if there is one.
    pub end_session: Option<Url>,
    /// The scopes that it announces, perhaps not all of them; `None` if it announces none.
    pub scopes: Option<Vec<String>>,
    takes_basic: bool,
    takes_post: bool,
}

impl Endpoints {
    /// Reads the document of the provider with the URL `issuer`.
    ///
    /// # Errors
    /// A message for the log.
    pub(super) fn read(document: &Fields, issuer: &str) -> Result<Self, String> {
        let found = text(document, "issuer")?;
        if found != issuer {
            return Err(format!(
                "`issuer` is {:?}, and --oidc-issuer is {issuer:?}: write it as the provider does",
                words(found)
            ));
        }
        let is_plain = issuer.starts_with("http:");
        let endpoint = |name: &str| {
            let url = Url::parse(text(document, name)?).map_err(|error| format!("`{name}` is not a URL: {error}"))?;
            if url.scheme() == "https" || (url.scheme() == "http" && is_plain) {
                Ok(url)
            } else {
                Err(format!("`{name}` names an endpoint without https"))
            }
        };
        let texts = |list: &Vec<Value>| list.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        // Basic is what a provider takes that does not say, or says nothing that we know.
        let methods = document.get("token_endpoint_auth_methods_supported").and_then(Value::as_array);
        let takes = |method: &str| methods.is_some_and(|methods| methods.iter().any(|found| found == method));
        Ok(Self {
            authorization: endpoint("authorization_endpoint")?,
            token: endpoint("token_endpoint")?,
            keys: endpoint("jwks_uri")?,
            userinfo: endpoint("userinfo_endpoint").ok(),
            end_session: endpoint("end_session_endpoint").ok(),
            scopes: document.get("scopes_supported").and_then(Value::as_array).map(texts),
            takes_basic: takes("client_secret_basic") || !takes("client_secret_post"),
            takes_post: takes("client_secret_post"),
        })
    }

    /// Whether to send the secret to the token endpoint in a header first, and not in the form. RFC 6749 (2.3.1) wants
    /// it encoded there, but many providers compare it unencoded, so only a secret that needs no encoding goes there.
    pub(super) fn wants_header(&self, id: &str, secret: &str) -> bool {
        let is_plain = |text: &str| encoded(text) == text;
        self.takes_basic && (!self.takes_post || (is_plain(id) && is_plain(secret)))
    }

    /// Whether the token endpoint accepts the secret both in a header and in the form. It may bind each client to one
    /// of them.
    pub(super) fn takes_both(&self) -> bool {
        self.takes_basic && self.takes_post
    }
}

/// An id or secret as encoded in a header (RFC 6749, appendix B). No other standard requires encoding a tilde, and
/// Authelia's secrets are full of them.
pub(super) fn encoded(text: &str) -> String {
    byte_serialize(text.as_bytes()).collect::<String>().replace("%7E", "~")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ISSUER: &str = "https://id.example.com/realm";

    fn with(change: Value) -> Result<Endpoints, String> {
        let mut document = json!({
            "issuer": ISSUER,
            "authorization_endpoint": "https://id.example.com/authorize?tenant=1",
            "token_endpoint": "https://id.example.com/token",
            "jwks_uri": "https://id.example.com/keys",
        });
        let (document, change) = (document.as_object_mut().expect("an object"), change);
        for (name, value) in change.as_object().expect("an object") {
            document.insert(name.clone(), value.clone());
        }
        Endpoints::read(document, ISSUER)
    }

    #[test]
    fn fields_that_are_not_used_may_be_anything() {
        for odd in [
            json!({"response_types_supported": null, "subject_types_supported": 5}),
            json!({"id_token_signing_alg_values_supported": "RS256", "claims_supported": [1, {}]}),
            json!({"scopes_supported": {}, "userinfo_endpoint": "", "registration_endpoint": "not a URL"}),
            json!({"token_endpoint_auth_methods_supported": "client_secret_basic"}),
            json!({"token_endpoint_auth_methods_supported": [null, 7, "tls_client_auth"]}),
        ] {
            let read = with(odd.clone()).unwrap_or_else(|error| panic!("{odd}: {error}"));
            assert!(read.wants_header("us", "a secret+"), "{odd}");
        }
        let taking =
            |methods: Value| with(json!({"token_endpoint_auth_methods_supported": methods})).expect("a document");
        assert!(!taking(json!(["client_secret_post"])).wants_header("us", "secret"));
        let both = taking(json!(["client_secret_post", "client_secret_basic"]));
        assert!(both.wants_header("us", "s3cret-._*~") && !both.wants_header("us", "s+/="));
        assert!(!both.wants_header("https://us", "s3cret"));
        assert_eq!(encoded("a b~c+ü"), "a+b~c%2B%C3%BC");
    }

    #[test]
    fn fields_that_protect_are_checked_and_named() {
        for (change, wanted) in [
            // Authentik, mantrae#47: the slash is part of the name.
            (json!({"issuer": "https://id.example.com/realm/"}), "--oidc-issuer is \"https://id.example.com/realm\""),
            // Entra for every organisation: the tokens of each have another issuer.
            (json!({"issuer": "https://login.example.com/{tenantid}/v2.0"}), "{tenantid}"),
            (json!({"issuer": 5}), "`issuer` is a number"),
            (json!({"token_endpoint": null}), "`token_endpoint` is null"),
            (json!({"token_endpoint": "http://id.example.com/token"}), "without https"),
            (json!({"jwks_uri": "keys"}), "`jwks_uri` is not a URL"),
            (json!({"authorization_endpoint": "javascript:alert(1)"}), "without https"),
        ] {
            let error = with(change.clone()).expect_err("not usable");
            assert!(error.contains(wanted), "{change}: {error}");
        }
        let error = with(json!({"issuer": "x".repeat(500_000)})).expect_err("another one");
        assert!(error.len() < 500, "{} bytes", error.len());
    }
}
