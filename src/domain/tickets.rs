//! Tickets by which a person confirms that an identity is the own one.
//!
//! The provider has told who came back, and the person is asked before that is kept. The form in between proves by its
//! ticket that the provider said so, because a person who could name any identity would take those of others.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::domain::identity::Identity;
use crate::domain::model::Id;
use crate::domain::timestamp::Timestamp;

/// Time for which a ticket is valid.
const LIFE: Duration = Duration::from_secs(10 * 60);

/// Issues and checks tickets with the secret of the installation.
#[derive(Clone)]
pub struct Tickets {
    mac: Hmac<Sha256>,
    now: Timestamp,
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets(…)")
    }
}

impl Tickets {
    /// The tickets of this moment, with the secret that signs cursors. The purpose is part of what is signed.
    pub fn new(secret: &[u8; 32], now: Timestamp) -> Self {
        Self { mac: Hmac::new_from_slice(secret).expect("HMAC takes keys of any length"), now }
    }

    /// A ticket for a person to link an identity.
    pub fn issue(&self, person: Id, identity: &Identity) -> String {
        let tag = self.tag(person, identity, self.now).finalize().into_bytes();
        format!("{}.{}", self.now.as_millis(), BASE64_URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whether a ticket is one for this person and identity, and still valid.
    pub fn admits(&self, ticket: &str, person: Id, identity: &Identity) -> bool {
        let Some((millis, tag)) = ticket.split_once('.') else { return false };
        let (Ok(millis), Ok(tag)) = (millis.parse(), BASE64_URL_SAFE_NO_PAD.decode(tag)) else { return false };
        let at = Timestamp::from_millis(millis);
        let is_valid = at <= self.now && self.now.since(at) <= LIFE;
        is_valid && self.tag(person, identity, at).verify_slice(&tag).is_ok()
    }

    /// No part holds a line break.
    fn tag(&self, person: Id, identity: &Identity, at: Timestamp) -> Hmac<Sha256> {
        let mut mac = self.mac.clone();
        let Identity { issuer, subject } = identity;
        mac.update(format!("tintype link\n{person}\n{issuer}\n{subject}\n{}", at.as_millis()).as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_for_one_person_and_one_identity_and_some_minutes() {
        let now = Timestamp::from_millis(1_795_262_400_000);
        let id = |text: &str| text.parse::<Id>().expect("an id");
        let (ada, eve) = (id("FAAAAAAAAAAAAAAAAAAAA"), id("FAAAAAAAAAAAAAAAAAAAB"));
        let of = |subject: &str| Identity::new("https://id.example", subject).expect("an identity");
        let ticket = Tickets::new(&[7; 32], now).issue(ada, &of("ada"));
        let at = |after: Duration| Tickets::new(&[7; 32], now.saturating_add(after));
        assert!(at(LIFE).admits(&ticket, ada, &of("ada")));
        assert!(!at(LIFE + Duration::from_millis(1)).admits(&ticket, ada, &of("ada")));
        assert!(!at(LIFE).admits(&ticket, eve, &of("ada")) && !at(LIFE).admits(&ticket, ada, &of("eve")));
        assert!(!Tickets::new(&[8; 32], now).admits(&ticket, ada, &of("ada")));
        let (millis, tag) = ticket.split_once('.').expect("two parts");
        let later = format!("{}.{tag}", millis.parse::<i64>().expect("a number") + 1);
        for forged in [later.as_str(), "", ".", millis, &format!("{millis}.")] {
            assert!(!at(LIFE).admits(forged, ada, &of("ada")), "{forged}");
        }
    }
}
