//! API keys: `tt_`, 32 random base62 characters, 6 base62 characters of their CRC32.
//!
//! The secret exists only in the caller's hands and, for an instant, in memory: the database keeps
//! its SHA-256. The checksum lets secret scanners and typing errors be told apart from keys.

use std::fmt;

use rand::RngExt as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::domain::model::Id;
use crate::domain::timestamp::Timestamp;

const PREFIX: &str = "tt_";
const BODY_LEN: usize = 32;
const CHECK_LEN: usize = 6;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// SHA-256 of a key's text.
pub type KeyHash = [u8; 32];

/// A key's text. Never logged, never stored: its `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret(String);

impl KeySecret {
    /// A new key with 190 random bits from the system's generator.
    pub fn random() -> Self {
        let mut rng = rand::rng();
        let body: String = (0..BODY_LEN).map(|_| char::from(BASE62[rng.random_range(0..BASE62.len())])).collect();
        let check = checksum(&body);
        Self(format!("{PREFIX}{body}{check}"))
    }

    /// The first part of a text that has a key's shape, right checksum or not.
    pub fn find_shape(text: &str) -> Option<&str> {
        let length = PREFIX.len() + BODY_LEN + CHECK_LEN;
        let candidates = text.match_indices(PREFIX).filter_map(|(start, _)| text.get(start..start + length));
        candidates.into_iter().find(|candidate| Self::without_prefix(candidate).is_some())
    }

    fn without_prefix(text: &str) -> Option<&str> {
        text.strip_prefix(PREFIX)
            .filter(|rest| rest.len() == BODY_LEN + CHECK_LEN && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
    }

    /// Reads a key; `None` unless shape and checksum are right.
    pub fn parse(text: &str) -> Option<Self> {
        let (body, check) = Self::without_prefix(text)?.split_at(BODY_LEN);
        (checksum(body) == check).then(|| Self(text.to_owned()))
    }

    /// The text, to be shown once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What the database knows the key by.
    pub fn hash(&self) -> KeyHash {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// The first characters, enough for a person to recognise the key by.
    pub fn hint(&self) -> String {
        format!("{}…", &self.0[..PREFIX.len() + 4])
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

fn checksum(body: &str) -> String {
    let mut number = crc32fast::hash(body.as_bytes());
    let mut text = [b'0'; CHECK_LEN];
    for character in text.iter_mut().rev() {
        *character = BASE62[(number % 62) as usize];
        number /= 62;
    }
    text.iter().copied().map(char::from).collect()
}

/// What is known of a key, all but its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApiKey {
    /// Identifier, for the operator.
    pub id: Id,
    /// Whose it is.
    pub account_id: Id,
    /// Label, chosen by the operator.
    pub name: String,
    /// The key's first characters.
    pub hint: String,
    /// Submits a minute; `None` takes the server's default, 0 means no limit.
    pub submit_rate: Option<u32>,
    /// Reads a minute; `None` takes the server's default, 0 means no limit.
    pub read_rate: Option<u32>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it stops working.
    pub expires_at: Option<Timestamp>,
    /// Switched off for now.
    pub disabled: bool,
    /// Switched off for ever.
    pub revoked_at: Option<Timestamp>,
    /// When it was first seen in a query string: rotate it.
    pub leaked_at: Option<Timestamp>,
    /// When it last opened the API, as far as that is written down by now.
    pub last_used_at: Option<Timestamp>,
    /// Taken out of use over strikes, until it is enabled.
    pub suspension: Option<Suspension>,
}

/// Why a key lost its use, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Suspension {
    /// Since when.
    pub at: Timestamp,
    /// For the operator.
    pub reason: String,
}

impl ApiKey {
    /// Whether the key opens anything at `now`.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.state(now) == KeyState::Active
    }

    /// What stands in the key's way at `now`; of several reasons the most final one.
    pub fn state(&self, now: Timestamp) -> KeyState {
        if self.revoked_at.is_some() {
            KeyState::Revoked
        } else if self.expires_at.is_some_and(|end| end <= now) {
            KeyState::Expired
        } else if self.disabled {
            KeyState::Disabled
        } else if self.suspension.is_some() {
            KeyState::Suspended
        } else {
            KeyState::Active
        }
    }
}

/// Whether a key opens anything, and if not, why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// It works.
    Active,
    /// Switched off for now.
    Disabled,
    /// Out of use over violations of the content policy.
    Suspended,
    /// Past its end.
    Expired,
    /// Switched off for ever.
    Revoked,
}
