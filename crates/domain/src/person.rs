//! People who use the web studio, their sessions, and the secrets that sign them in.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use unicode_normalization::UnicodeNormalization as _;

use crate::key::Suspension;
use crate::model::Id;
use crate::string_enum;
use crate::text::{self, InvalidText};
use crate::timestamp::Timestamp;

/// Most people of one account.
pub const MAX_PEOPLE: u32 = 1_000;
/// Random bytes of a token.
const TOKEN_BYTES: usize = 32;

string_enum! {
    /// The rights of a person within an account.
    pub enum Role: "role" {
        /// Looks at the account's pictures and spends nothing.
        Viewer = "viewer",
        /// Also makes and changes pictures.
        Member = "member",
        /// Also manages keys and people.
        Owner = "owner",
    }
}

/// A person who may sign in to the studio, for one account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Person {
    /// Identifier.
    pub id: Id,
    /// The account whose pictures and credits the person uses.
    pub account_id: Id,
    /// The name that the person types to sign in: unique, in lower case.
    pub name: String,
    /// The person's rights.
    pub role: Role,
    /// Whether the person can sign in with a password.
    pub has_password: bool,
    /// Whether a sign-in with a password or a link also needs a code.
    pub has_second_factor: bool,
    /// Suspended from creating tasks because of strikes, until the operator lifts them.
    pub suspension: Option<Suspension>,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Parses a person's name, which can be an email address: trims white space, lowercases it, and composes letters with
/// their accents (NFC), because devices differ in that.
pub fn person_name(name: &str) -> Result<String, InvalidText> {
    text::person_name(&name.to_lowercase().nfc().collect::<String>())
}

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

/// A secret that signs a person in: the cookie of a session, or the end of a sign-in link. The database stores its hash
/// alone, and its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Creates a token of 256 random bits from the generator of the operating system.
    pub fn random() -> Self {
        Self(BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; TOKEN_BYTES]>()))
    }

    /// Parses a token; `None` if it does not have the format of one.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        (bytes.len() == TOKEN_BYTES).then(|| Self(text.to_owned()))
    }

    /// The text, for the person alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash that identifies the token in the database.
    pub fn hash(&self) -> TokenHash {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

crate::opaque_debug!(Token);

/// A browser that a person is signed in with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Identifies the session, so that the person can end it. It isn't secret: it cannot be used to sign in.
    pub id: Id,
    /// The person.
    pub person: Person,
    /// Time of the latest request that has been recorded.
    pub seen_at: Timestamp,
    /// The session ends at this time.
    pub expires_at: Timestamp,
    /// The browser, as it named itself when the person signed in.
    pub agent: String,
    /// Whether the person signed in at an OpenID Connect provider, which is responsible for second factors then.
    pub by_provider: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_parsed_as_it_was_shown() {
        let token = Token::random();
        assert_eq!(Token::parse(token.reveal()), Some(token.clone()));
        assert_ne!(Token::random(), token);
        assert_eq!(format!("{token:?}"), "Token(…)");
        for text in ["", "short", &"A".repeat(44), &format!("{}=", token.reveal()), &"*".repeat(43)] {
            assert_eq!(Token::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_is_kept_in_lower_case_without_white_space_around_it() {
        assert_eq!(person_name("  Ada@Example.COM ").expect("a name"), "ada@example.com");
        assert_eq!(person_name("Zoe\u{308}").expect("a name"), "zo\u{eb}");
        for text in ["", "   ", "two\nlines", &"x".repeat(101)] {
            assert!(person_name(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn roles_are_ordered_by_their_rights() {
        assert!(Role::Viewer < Role::Member && Role::Member < Role::Owner);
    }
}
