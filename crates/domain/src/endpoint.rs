//! Endpoints: the URLs that get events, as Standard Webhooks 1.0 says, and the deliveries to them.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::Serialize;
use sha2::Sha256;
use url::Url;

use crate::event::{EventType, Subscription};
use crate::model::Id;
use crate::string_enum;
use crate::timestamp::Timestamp;

/// Most characters of the URL of an endpoint.
pub const MAX_URL_CHARS: usize = 2_048;
/// Most endpoints of one account.
pub const MAX_ENDPOINTS: u32 = 20;
/// Most deliveries that wait for one endpoint; the oldest beyond them are dropped within the hour.
pub const MAX_WAITING: u32 = 10_000;
/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
const SECRET_PREFIX: &str = "whsec_";

/// The URL of an endpoint. Its path and query may hold a secret of the receiver, so its `Debug` output has the origin
/// alone.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointUrl {
    text: String,
    url: Url,
}

/// The text is not the URL of an endpoint. Displays as a message that says what to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    /// It is too long.
    #[error("the URL of an endpoint has at most {MAX_URL_CHARS} characters")]
    Length,
    /// It holds white space or control characters.
    #[error("the URL of an endpoint has no spaces and no control characters: write %20 for a space")]
    Characters,
    /// It is not an absolute URL with a host.
    #[error("the URL of an endpoint is an absolute one, such as https://example.com/hooks")]
    Malformed,
    /// It is neither for HTTPS nor for HTTP.
    #[error("the URL of an endpoint begins with https://, or with http:// in a network that --webhook-network names")]
    Scheme,
    /// It holds a user name or a password.
    #[error("the URL of an endpoint has no user name and no password: the signature proves who sends")]
    Userinfo,
    /// It has a fragment, which is never sent.
    #[error("the URL of an endpoint has no fragment (#)")]
    Fragment,
}

impl EndpointUrl {
    /// The text, as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The parsed URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Whether requests are encrypted.
    pub fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    /// Scheme, host and port, for logs.
    pub fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

impl FromStr for EndpointUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        if text.chars().nth(MAX_URL_CHARS).is_some() {
            return Err(InvalidUrl::Length);
        }
        // The parser would drop some of them.
        if text.chars().any(|char| char.is_whitespace() || char.is_control()) {
            return Err(InvalidUrl::Characters);
        }
        let url: Url = text.parse().map_err(|_| InvalidUrl::Malformed)?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(InvalidUrl::Scheme);
        }
        if url.host_str().is_none_or(str::is_empty) || url.port() == Some(0) {
            return Err(InvalidUrl::Malformed);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidUrl::Userinfo);
        }
        if url.fragment().is_some() {
            return Err(InvalidUrl::Fragment);
        }
        Ok(Self { text: text.to_owned(), url })
    }
}

impl fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointUrl({})", self.origin())
    }
}

impl Serialize for EndpointUrl {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// The secret for signing deliveries to an endpoint: `whsec_` and the base64 of its bytes. Hidden from `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningSecret(String);

/// The text is not a secret of an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("not the secret of an endpoint")]
pub struct InvalidSecret;

impl SigningSecret {
    /// Creates a secret of 256 random bits from the generator of the operating system.
    pub fn random() -> Self {
        Self(format!("{SECRET_PREFIX}{}", BASE64_STANDARD.encode(rand::random::<[u8; SECRET_BYTES]>())))
    }

    /// The text, for the receiver alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The bytes that sign.
    fn key(text: &str) -> Option<Vec<u8>> {
        let key = BASE64_STANDARD.decode(text.strip_prefix(SECRET_PREFIX)?).ok()?;
        (key.len() == SECRET_BYTES).then_some(key)
    }

    /// The signature of an attempt: `v1,` and a base64 of HMAC-SHA256.
    pub fn sign(&self, webhook_id: &str, unix_seconds: i64, body: &str) -> String {
        let key = Self::key(&self.0).unwrap_or_default();
        let mut mac: Hmac<Sha256> = Hmac::new_from_slice(&key).expect("HMAC takes keys of any length");
        mac.update(format!("{webhook_id}.{unix_seconds}.{body}").as_bytes());
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }
}

impl FromStr for SigningSecret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        Self::key(text).map(|_| Self(text.to_owned())).ok_or(InvalidSecret)
    }
}

crate::opaque_debug!(SigningSecret);

string_enum! {
    /// Who added an endpoint. This decides which networks it may be in.
    pub enum AddedBy: "origin of an endpoint" {
        /// The operator. The endpoint may also be in the networks that the operator named.
        Operator = "operator",
        /// An owner of the account. The endpoint must be public, and use HTTPS.
        Owner = "owner",
    }
}

string_enum! {
    /// The reason why an endpoint is disabled.
    pub enum DisabledFor: "reason to disable an endpoint" {
        /// A person disabled it.
        Request = "request",
        /// The receiver answered 410 Gone.
        Gone = "gone",
        /// Nothing could be delivered for days.
        Failing = "failing",
    }
}

string_enum! {
    /// Why an attempt got no answer.
    pub enum Trouble: "trouble of a delivery" {
        /// There was no connection, or it broke.
        Unreachable = "unreachable",
        /// The time limit ran out.
        Timeout = "timeout",
        /// The address is outside of the networks that the operator named.
        Address = "address",
    }
}

string_enum! {
    /// The state of a delivery.
    pub enum DeliveryState: "state of a delivery" {
        /// It is in progress, or waits for its next attempt.
        Waiting = "waiting",
        /// The receiver has answered with a status of 2xx.
        Delivered = "delivered",
        /// It was abandoned.
        Failed = "failed",
    }
}

string_enum! {
    /// The state of an endpoint.
    pub enum EndpointState: "state of an endpoint" {
        /// It gets events.
        Active = "active",
        /// The latest attempts failed; it still gets events.
        Failing = "failing",
        /// It gets none.
        Disabled = "disabled",
    }
}

/// An endpoint without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoint {
    /// Identifier, which contains the time at which it was added.
    pub id: Id,
    /// The account whose events it gets.
    pub account_id: Id,
    /// The URL.
    pub url: EndpointUrl,
    /// The types of events.
    pub events: Subscription,
    /// Who added it.
    pub added_by: AddedBy,
    /// Time of the first failure since the last success.
    pub failing_since: Option<Timestamp>,
    /// When it was disabled.
    pub disabled_at: Option<Timestamp>,
    /// The reason why it is disabled.
    pub disabled_for: Option<DisabledFor>,
}

impl Endpoint {
    /// Its state.
    pub fn state(&self) -> EndpointState {
        match (self.disabled_at, self.failing_since) {
            (Some(_), _) => EndpointState::Disabled,
            (None, Some(_)) => EndpointState::Failing,
            (None, None) => EndpointState::Active,
        }
    }
}

/// A delivery of an event to an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// Identifier, which contains the time at which it was written.
    pub id: Id,
    /// The endpoint.
    pub endpoint_id: Id,
    /// The event.
    pub event_id: Id,
    /// The type of the event.
    pub kind: EventType,
    /// The number of attempts that have begun.
    pub attempts: u32,
    /// Time of the next attempt; in the past if it is due. `None` if there will be none.
    pub next_attempt_at: Option<Timestamp>,
    /// Time of the success.
    pub delivered_at: Option<Timestamp>,
    /// The status of the last answer.
    pub status: Option<u16>,
    /// The reason why the last attempt had no answer.
    pub trouble: Option<Trouble>,
}

impl Delivery {
    /// Its state.
    pub fn state(&self) -> DeliveryState {
        match (self.delivered_at, self.next_attempt_at) {
            (Some(_), _) => DeliveryState::Delivered,
            (None, Some(_)) => DeliveryState::Waiting,
            (None, None) => DeliveryState::Failed,
        }
    }

    /// When the next attempt is made. A delivery that jumps the queue has no time of its own.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.next_attempt_at.map(|at| at.max(self.id.timestamp()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_syntax_of_urls_is_checked() {
        for good in [
            "https://example.com",
            "https://example.com:8443/hooks?token=a",
            "http://10.0.0.7/hooks",
            "http://localhost:3000",
            "HTTPS://BÜCHER.example/",
            "https://[2606:4700::1]/",
        ] {
            let url = good.parse::<EndpointUrl>().unwrap_or_else(|error| panic!("{good}: {error}"));
            assert_eq!(url.as_str(), good);
        }
        let long = format!("https://example.com/{}", "a".repeat(MAX_URL_CHARS));
        for (bad, expected) in [
            ("", InvalidUrl::Malformed),
            ("example.com/hooks", InvalidUrl::Malformed),
            ("/hooks", InvalidUrl::Malformed),
            ("https://", InvalidUrl::Malformed),
            ("https://example.com:0/", InvalidUrl::Malformed),
            ("https://example.com:99999/", InvalidUrl::Malformed),
            ("ftp://example.com/", InvalidUrl::Scheme),
            ("file:///etc/passwd", InvalidUrl::Scheme),
            ("unix:/run/hooks.sock", InvalidUrl::Scheme),
            ("https://ada@example.com/", InvalidUrl::Userinfo),
            ("https://:secret@example.com/", InvalidUrl::Userinfo),
            ("https://example.com/#part", InvalidUrl::Fragment),
            ("https://example.com/a b", InvalidUrl::Characters),
            (" https://example.com/", InvalidUrl::Characters),
            ("https://exa\nmple.com/", InvalidUrl::Characters),
            (&long, InvalidUrl::Length),
        ] {
            assert_eq!(bad.parse::<EndpointUrl>(), Err(expected), "{bad:?}");
        }
    }

    #[test]
    fn nothing_secret_is_debugged() {
        let url: EndpointUrl = "https://example.com/hooks/secret?token=secret".parse().expect("a URL");
        assert_eq!(format!("{url:?}"), "EndpointUrl(https://example.com)");
        let secret = SigningSecret::random();
        assert_eq!(format!("{secret:?}"), "SigningSecret(…)");
        assert_eq!(secret.reveal().parse::<SigningSecret>().expect("a secret"), secret);
        for bad in ["", "whsec_", "whsec_AAAA", "AAAA", "whsec_*"] {
            assert!(bad.parse::<SigningSecret>().is_err(), "{bad}");
        }
    }
}
