//! Texts that browsers keep for this server between two requests, signed so that only this server can make them.
//!
//! An authentication request is signed, so that only browsers that this server sent to the provider can make it ask the
//! provider. When the provider has identified the person, the person is asked before the identity is linked. The form
//! in between proves with its ticket that the provider said so; otherwise people could claim others' identities. In the
//! same way, the form for a code proves that the password was correct, and the form that turns on a second factor
//! proves that this server created the secret.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::identity::{AuthenticationRequest, Identity};
use crate::model::{ID_LEN, Id};
use crate::second_factor::FactorSecret;
use crate::timestamp::Timestamp;

/// How long a ticket is valid.
pub const TICKET_LIFE: Duration = Duration::from_secs(10 * 60);

/// Bytes of the signature of a shared link: 128 bits, which cannot be guessed.
const LINK_TAG: usize = 16;

/// Issues and checks tickets, and signs authentication requests, with the secret of the installation.
#[derive(Clone)]
pub struct TokenSigner {
    mac: Hmac<Sha256>,
    now: Timestamp,
}

crate::opaque_debug!(TokenSigner);

/// A fact that a ticket proves about a person, or about a session.
#[derive(Clone, Copy)]
pub enum Fact<'a> {
    /// The provider has shown that someone in this session has this identity.
    Identity(&'a Identity),
    /// Someone has shown the person's password, which has this hash.
    Password(&'a str),
    /// This server has made this secret for the person.
    Secret(&'a FactorSecret),
    /// This server has made this text, to show it in this session.
    Shown(&'a str),
}

crate::opaque_debug!(Fact<'_>);

impl TokenSigner {
    /// The tickets for this moment, signed with the cursor secret. The signature includes the purpose.
    pub fn new(secret: &[u8; 32], now: Timestamp) -> Self {
        Self { mac: Hmac::new_from_slice(secret).expect("HMAC takes keys of any length"), now }
    }

    /// The text of an authentication request for its cookie.
    pub fn sign_authentication(&self, authentication: &AuthenticationRequest) -> String {
        let text = authentication.text();
        let tag = self.tag_of_authentication(&text).finalize().into_bytes();
        format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(tag))
    }

    /// The authentication request of a cookie; `None` if this server has not signed it, and when it took too long.
    pub fn verify_authentication(&self, cookie: &str) -> Option<AuthenticationRequest> {
        let (text, tag) = cookie.rsplit_once('.')?;
        let tag = BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?;
        self.tag_of_authentication(text).verify_slice(&tag).ok()?;
        AuthenticationRequest::resume(text, self.now)
    }

    /// A ticket for a fact about a person or a session.
    pub fn issue(&self, about: Id, fact: Fact<'_>) -> String {
        let tag = self.tag_of(about, fact, self.now).finalize().into_bytes();
        format!("{}.{}", self.now.as_millis(), BASE64_URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whether a ticket proves this fact about this person or session, and is still valid.
    pub fn verify(&self, ticket: &str, about: Id, fact: Fact<'_>) -> bool {
        let Some((millis, tag)) = ticket.split_once('.') else { return false };
        let (Ok(millis), Ok(tag)) = (millis.parse(), BASE64_URL_SAFE_NO_PAD.decode(tag)) else { return false };
        let at = Timestamp::from_millis(millis);
        let is_valid = at <= self.now && self.now.since(at) <= TICKET_LIFE;
        is_valid && self.tag_of(about, fact, at).verify_slice(&tag).is_ok()
    }

    /// The text of a shared link, which cannot be guessed from its id.
    pub fn sign_link(&self, link: Id) -> String {
        let tag = self.tag_of_link(link).finalize().into_bytes();
        format!("{link}{}", BASE64_URL_SAFE_NO_PAD.encode(&tag[..LINK_TAG]))
    }

    /// The shared link of a text; `None` if this server has not signed it.
    pub fn verify_link(&self, text: &str) -> Option<Id> {
        let (link, tag) = text.split_at_checked(ID_LEN)?;
        let (link, tag) = (link.parse().ok()?, BASE64_URL_SAFE_NO_PAD.decode(tag).ok()?);
        let is_signed = tag.len() == LINK_TAG && self.tag_of_link(link).verify_truncated_left(&tag).is_ok();
        is_signed.then_some(link)
    }

    fn tag_of_link(&self, link: Id) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(format!("tintype shared link\n{link}").as_bytes());
        mac
    }

    fn tag_of_authentication(&self, text: &str) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        mac.update(format!("tintype journey\n{text}").as_bytes());
        mac
    }

    fn tag_of(&self, about: Id, fact: Fact<'_>, at: Timestamp) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        let (purpose, bytes) = match fact {
            Fact::Identity(Identity { issuer, subject }) => {
                // No part holds a line break.
                mac.update(format!("tintype link\n{about}\n{issuer}\n{subject}\n{}", at.as_millis()).as_bytes());
                return mac;
            }
            Fact::Password(hash) => ("password", hash.as_bytes()),
            Fact::Secret(secret) => ("secret", secret.bytes()),
            Fact::Shown(text) => ("shown", text.as_bytes()),
        };
        mac.update(format!("tintype {purpose}\n{about}\n{}\n", at.as_millis()).as_bytes());
        mac.update(bytes);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Purpose;

    #[test]
    fn an_authentication_request_is_one_that_this_server_has_begun() {
        let now = Timestamp::from_millis(1_795_262_400_000);
        let tickets = TokenSigner::new(&[7; 32], now);
        let authentication = AuthenticationRequest::begin(Purpose::SignIn, now);
        let cookie = tickets.sign_authentication(&authentication);
        assert_eq!(tickets.verify_authentication(&cookie).as_ref(), Some(&authentication));
        assert_eq!(TokenSigner::new(&[8; 32], now).verify_authentication(&cookie), None);
        let (text, tag) = cookie.rsplit_once('.').expect("two parts");
        let other = AuthenticationRequest::begin(Purpose::SignIn, now).text();
        for forged in [text, tag, "", ".", &format!("{text}."), &format!("{other}.{tag}"), &format!("{text}.x.{tag}")] {
            assert_eq!(tickets.verify_authentication(forged), None, "{forged}");
        }
        assert_eq!(
            TokenSigner::new(&[7; 32], now.saturating_add(TICKET_LIFE * 2)).verify_authentication(&cookie),
            None
        );
    }

    #[test]
    fn a_ticket_is_for_one_session_and_one_identity_and_some_minutes() {
        let now = Timestamp::from_millis(1_795_262_400_000);
        let id = |text: &str| text.parse::<Id>().expect("an id");
        let (ada, eve) = (id("FAAAAAAAAAAAAAAAAAAAA"), id("FAAAAAAAAAAAAAAAAAAAB"));
        let of = |subject: &str| Identity::new("https://id.example", subject).expect("an identity");
        let ticket = TokenSigner::new(&[7; 32], now).issue(ada, Fact::Identity(&of("ada")));
        let at = |after: Duration| TokenSigner::new(&[7; 32], now.saturating_add(after));
        assert!(at(TICKET_LIFE).verify(&ticket, ada, Fact::Identity(&of("ada"))));
        assert!(!at(TICKET_LIFE + Duration::from_millis(1)).verify(&ticket, ada, Fact::Identity(&of("ada"))));
        assert!(
            !at(TICKET_LIFE).verify(&ticket, eve, Fact::Identity(&of("ada")))
                && !at(TICKET_LIFE).verify(&ticket, ada, Fact::Identity(&of("eve")))
        );
        assert!(!TokenSigner::new(&[8; 32], now).verify(&ticket, ada, Fact::Identity(&of("ada"))));
        let (millis, tag) = ticket.split_once('.').expect("two parts");
        let later = format!("{}.{tag}", millis.parse::<i64>().expect("a number") + 1);
        for forged in [later.as_str(), "", ".", millis, &format!("{millis}.")] {
            assert!(!at(TICKET_LIFE).verify(forged, ada, Fact::Identity(&of("ada"))), "{forged}");
        }
    }

    #[test]
    fn a_shared_link_is_one_that_this_server_has_signed() {
        let now = Timestamp::from_millis(1_795_262_400_000);
        let tickets = TokenSigner::new(&[7; 32], now);
        let id: Id = "FAAAAAAAAAAAAAAAAAAAA".parse().expect("an id");
        let text = tickets.sign_link(id);
        assert_eq!((text.len(), tickets.verify_link(&text)), (43, Some(id)));
        assert_eq!(TokenSigner::new(&[7; 32], now.saturating_add(TICKET_LIFE * 999)).verify_link(&text), Some(id));
        assert_eq!(TokenSigner::new(&[8; 32], now).verify_link(&text), None);
        let of_other = text.replacen("FAAAAAAAAAAAAAAAAAAAA", "FAAAAAAAAAAAAAAAAAAAB", 1);
        let longer = format!("{text}AAAA");
        for forged in [&of_other, &longer, &text[..42], &text[..21], "", "FAAAAAAAAAAAAAAAAAAAé", &text[1..]] {
            assert_eq!(tickets.verify_link(forged), None, "{forged}");
        }
    }

    #[test]
    fn a_ticket_proves_one_fact_about_one_person() {
        let now = Timestamp::from_millis(1_795_262_400_000);
        let tickets = TokenSigner::new(&[7; 32], now);
        let id = |text: &str| text.parse::<Id>().expect("an id");
        let (ada, eve) = (id("FAAAAAAAAAAAAAAAAAAAA"), id("FAAAAAAAAAAAAAAAAAAAB"));
        let secret = FactorSecret::random();
        let ticket = tickets.issue(ada, Fact::Password("$hash"));
        assert!(tickets.verify(&ticket, ada, Fact::Password("$hash")));
        assert!(!tickets.verify(&ticket, eve, Fact::Password("$hash")));
        assert!(!tickets.verify(&ticket, ada, Fact::Password("$new")));
        assert!(!tickets.verify(&ticket, ada, Fact::Secret(&secret)));
        let ticket = tickets.issue(ada, Fact::Secret(&secret));
        assert!(tickets.verify(&ticket, ada, Fact::Secret(&secret)));
        assert!(!tickets.verify(&ticket, ada, Fact::Secret(&FactorSecret::random())));
        let late = TokenSigner::new(&[7; 32], now.saturating_add(TICKET_LIFE + Duration::from_millis(1)));
        assert!(!late.verify(&ticket, ada, Fact::Secret(&secret)));
    }
}
