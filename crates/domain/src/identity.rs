//! Identities of people at OpenID Connect providers, and the way there and back.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use crate::model::Id;
use crate::person::Token;
use crate::timestamp::Timestamp;

/// Most bytes of a subject (OpenID Connect Core 1.0, section 2).
const MAX_SUBJECT_BYTES: usize = 255;
/// Longest time that an authentication request may take.
const AUTHENTICATION_LIFE: Duration = Duration::from_secs(10 * 60);

/// A person's identity at an OpenID Connect provider. An issuer never reuses a subject for another person; names and
/// email addresses can change hands, so they identify no one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The URL of the provider.
    pub issuer: String,
    /// The person there.
    pub subject: String,
}

impl Identity {
    /// An identity; `None` if the subject is invalid.
    pub fn new(issuer: &str, subject: &str) -> Option<Self> {
        let fits = (1..=MAX_SUBJECT_BYTES).contains(&subject.len()) && !subject.contains(char::is_control);
        fits.then(|| Self { issuer: issuer.to_owned(), subject: subject.to_owned() })
    }
}

/// The purpose of an authentication request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A person wants to sign in.
    SignIn,
    /// The person of this session wants to link an identity.
    Link(Id),
}

/// A browser's trip to a provider and back. The browser keeps it in a cookie signed by this server, and nothing is
/// stored for it. The values that the provider sees are derived from it irreversibly, so the provider's answer only
/// counts in the browser that was sent there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationRequest {
    secret: Token,
    began_at: Timestamp,
    purpose: Purpose,
}

impl AuthenticationRequest {
    /// Begins an authentication request.
    pub fn begin(purpose: Purpose, now: Timestamp) -> Self {
        Self { secret: Token::random(), began_at: now, purpose }
    }

    /// The authentication request that [`AuthenticationRequest::text`] gave; `None` for any other text, and when it
    /// took too long.
    pub(super) fn resume(text: &str, now: Timestamp) -> Option<Self> {
        let mut parts = text.split('.');
        let (secret, began_at) = (Token::parse(parts.next()?)?, Timestamp::from_millis(parts.next()?.parse().ok()?));
        let purpose = match parts.next() {
            None => Purpose::SignIn,
            Some(session) => Purpose::Link(session.parse().ok()?),
        };
        let fits = parts.next().is_none() && began_at <= now && now.since(began_at) <= AUTHENTICATION_LIFE;
        fits.then_some(Self { secret, began_at, purpose })
    }

    /// Its purpose.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// When it began.
    pub fn began_at(&self) -> Timestamp {
        self.began_at
    }

    /// The authentication request as text, which
    /// [`TokenSigner::sign_authentication`](super::signed_tokens::TokenSigner::sign_authentication) makes a cookie of.
    pub(super) fn text(&self) -> String {
        let start = format!("{}.{}", self.secret.reveal(), self.began_at.as_millis());
        match self.purpose {
            Purpose::SignIn => start,
            Purpose::Link(session) => format!("{start}.{session}"),
        }
    }

    /// How many seconds the cookie lasts.
    pub fn life_seconds() -> u64 {
        AUTHENTICATION_LIFE.as_secs()
    }

    /// The `state` of the request, which the answer repeats.
    pub fn state(&self) -> String {
        self.derived("state")
    }

    /// The `nonce` of the request, which the ID token repeats.
    pub fn nonce(&self) -> String {
        self.derived("nonce")
    }

    /// The PKCE code verifier (RFC 7636). The request contains its hash.
    pub fn verifier(&self) -> String {
        self.derived("verifier")
    }

    fn derived(&self, part: &str) -> String {
        let digest = Sha256::new().chain_update(format!("tintype journey {part} ")).chain_update(self.text());
        BASE64_URL_SAFE_NO_PAD.encode(digest.finalize())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_795_262_400_000);

    #[test]
    fn an_authentication_request_is_resumed_as_it_began_and_in_time() {
        let session: Id = "FAAAAAAAAAAAAAAAAAAAA".parse().expect("an id");
        for purpose in [Purpose::SignIn, Purpose::Link(session)] {
            let authentication = AuthenticationRequest::begin(purpose, NOW);
            let text = authentication.text();
            let last = NOW.saturating_add(AUTHENTICATION_LIFE);
            assert_eq!(AuthenticationRequest::resume(&text, last).as_ref(), Some(&authentication));
            assert_eq!(AuthenticationRequest::resume(&text, last.saturating_add(Duration::from_millis(1))), None);
            assert_eq!(AuthenticationRequest::resume(&text, NOW.saturating_sub(Duration::from_millis(1))), None);
            for other in [format!("{text}."), format!("{text}.{session}.x"), text.replace('.', ""), String::new()] {
                assert_ne!(AuthenticationRequest::resume(&other, NOW).as_ref(), Some(&authentication), "{other}");
            }
        }
    }

    #[test]
    fn what_the_provider_sees_follows_from_every_part_of_the_request() {
        let authentication = AuthenticationRequest::begin(Purpose::SignIn, NOW);
        let session = "FAAAAAAAAAAAAAAAAAAAA".parse().expect("an id");
        let others = [
            AuthenticationRequest::begin(Purpose::SignIn, NOW),
            AuthenticationRequest { began_at: Timestamp::from_millis(0), ..authentication.clone() },
            AuthenticationRequest { purpose: Purpose::Link(session), ..authentication.clone() },
        ];
        for other in others {
            assert_ne!(other.state(), authentication.state());
        }
        let seen = [authentication.state(), authentication.nonce(), authentication.verifier()];
        assert!(seen[0] != seen[1] && seen[1] != seen[2] && seen.iter().all(|text| text.len() == 43));
        assert!(seen.iter().all(|text| !text.contains(authentication.secret.reveal())));
    }

    #[test]
    fn a_subject_has_1_to_255_bytes_without_control_characters() {
        assert!(Identity::new("https://id.example", &"x".repeat(255)).is_some());
        for subject in ["", &"x".repeat(256), "a\nb"] {
            assert_eq!(Identity::new("https://id.example", subject), None, "{subject:?}");
        }
    }
}
