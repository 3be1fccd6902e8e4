//! API keys: `tt_`, 32 random base62 characters, 6 base62 characters of their CRC32.
//!
//! The secret is known only to the caller and, for an instant, to this process; the database stores its SHA-256. The
//! checksum lets secret scanners recognise keys and exposes typing errors.

use rand::RngExt as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::budget::Budget;
use crate::model::Id;
use crate::string_enum;
use crate::timestamp::Timestamp;

const PREFIX: &str = "tt_";
const BODY_LEN: usize = 32;
const CHECK_LEN: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// SHA-256 of the text of a key.
pub type KeyHash = [u8; 32];

/// The text of a key. It is never logged or stored; its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret(String);

impl KeySecret {
    /// Creates a key with 190 random bits from the generator of the operating system.
    pub fn random() -> Self {
        let mut rng = rand::rng();
        let body: String = (0..BODY_LEN).map(|_| char::from(BASE62[rng.random_range(0..BASE62.len())])).collect();
        let check = checksum(&body);
        Self(format!("{PREFIX}{body}{check}"))
    }

    /// The first part of a text with the format of a key, whether or not its checksum is valid.
    pub fn find_shape(text: &str) -> Option<&str> {
        let length = PREFIX.len() + BODY_LEN + CHECK_LEN;
        let candidates = text.match_indices(PREFIX).filter_map(|(start, _)| text.get(start..start + length));
        candidates.into_iter().find(|candidate| Self::without_prefix(candidate).is_some())
    }

    fn without_prefix(text: &str) -> Option<&str> {
        text.strip_prefix(PREFIX)
            .filter(|rest| rest.len() == BODY_LEN + CHECK_LEN && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    }

    /// Parses a key; `None` if the format or the checksum is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let (body, check) = Self::without_prefix(text)?.split_at(BODY_LEN);
        (checksum(body) == check).then(|| Self(text.to_owned()))
    }

    /// The text, to show to the operator once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash that identifies the key in the database.
    pub fn hash(&self) -> KeyHash {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// The first characters, which help people recognise the key.
    pub fn hint(&self) -> String {
        format!("{}…", &self.0[..PREFIX.len() + 4])
    }
}

crate::opaque_debug!(KeySecret);

fn checksum(body: &str) -> String {
    let mut number = crc32fast::hash(body.as_bytes());
    let mut text = [b'0'; CHECK_LEN];
    for character in text.iter_mut().rev() {
        *character = BASE62[(number % 62) as usize];
        number /= 62;
    }
    text.iter().copied().map(char::from).collect()
}

/// A key without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApiKey {
    /// Identifier, for the operator.
    pub id: Id,
    /// The first of the keys that it was rotated from: they share rate limits and a budget.
    #[serde(skip)]
    pub first_id: Id,
    /// The account that owns the key.
    pub account_id: Id,
    /// The person who made it in the studio, or made the key that it was rotated from.
    pub made_by: Option<Id>,
    /// Label, chosen by the operator.
    pub name: String,
    /// The first characters of the key.
    pub hint: String,
    /// Submits per minute; `None` means the server's default, 0 means unlimited.
    pub submit_rate: Option<u32>,
    /// Reads per minute; `None` means the server's default, 0 means unlimited.
    pub read_rate: Option<u32>,
    /// Credits that it may spend in a period, together with the keys that it was rotated from and to.
    pub budget: Option<Budget>,
    /// Whether the operator has set the budget, and not an owner of the account.
    #[serde(skip)]
    pub operator_budget: bool,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time at which the key expires.
    pub expires_at: Option<Timestamp>,
    /// Disabled by the operator, who can enable it again.
    pub disabled: bool,
    /// The account is disabled, and with it all of its keys.
    pub account_disabled: bool,
    /// Revoked permanently.
    pub revoked_at: Option<Timestamp>,
    /// Time at which the key was first seen in a query string; it should be rotated.
    pub leaked_at: Option<Timestamp>,
    /// Time of the last recorded use.
    pub last_used_at: Option<Timestamp>,
    /// Suspended for strikes, until the operator enables the key.
    pub suspension: Option<Suspension>,
}

/// The suspension of a key or a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Suspension {
    /// Time of the suspension.
    pub at: Timestamp,
    /// Reason, for the operator.
    pub reason: String,
}

impl ApiKey {
    /// Whether the key is valid at `now`.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.state(now) == KeyState::Active
    }

    /// State of the key at `now`. If several states apply, the most permanent one.
    pub fn state(&self, now: Timestamp) -> KeyState {
        if self.revoked_at.is_some() {
            KeyState::Revoked
        } else if self.expires_at.is_some_and(|end| end <= now) {
            KeyState::Expired
        } else if self.disabled || self.account_disabled {
            KeyState::Disabled
        } else if self.suspension.is_some() {
            KeyState::Suspended
        } else {
            KeyState::Active
        }
    }
}

string_enum! {
    /// State of a key.
    pub enum KeyState: "state of a key" {
        /// Valid.
        Active = "active",
        /// Disabled by the operator, who can enable it again.
        Disabled = "disabled",
        /// Suspended for violations of the content policy.
        Suspended = "suspended",
        /// Expired.
        Expired = "expired",
        /// Revoked permanently.
        Revoked = "revoked",
    }
}

impl KeyState {
    /// Whether the key can no longer be changed.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Revoked | Self::Expired)
    }
}
