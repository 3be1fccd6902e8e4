//! The second factor of a person: the codes of an authenticator app (TOTP, RFC 6238), and recovery codes for the day on
//! which the app is lost.

use sha2::{Digest as _, Sha256};
use totp_rs::{Builder, Secret, Totp};

use crate::person::TokenHash;
use crate::timestamp::Timestamp;

/// Recovery codes that a person gets at once.
pub const RECOVERY_CODES: usize = 10;
/// Bytes of the secret: 160 bits, as RFC 4226 recommends.
const SECRET_BYTES: usize = 20;
const DIGITS: usize = 6;
/// Characters of a recovery code without its dashes: 80 bits in base 32.
const RECOVERY_CHARS: usize = 16;
/// Characters of a recovery code between two dashes.
const GROUP: usize = 4;
/// The name of the service in the app.
const ISSUER: &str = "Tintype";

/// The secret that an authenticator app shares with the server. Its `Debug` output hides it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FactorSecret([u8; SECRET_BYTES]);

impl FactorSecret {
    /// A secret from the generator of the operating system.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The secret with these bytes; `None` if their number is another one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Its bytes, for the database.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads a secret in base 32.
    pub fn parse(text: &str) -> Option<Self> {
        Self::from_bytes(Secret::try_from_base32(text).ok()?.as_bytes())
    }

    /// The secret in base 32, as people type it into an app.
    pub fn base32(&self) -> String {
        Secret::new_stack(self.0).to_base32()
    }

    /// The URI that an app reads from a QR code, with the name under which it shows the codes.
    pub fn uri(&self, name: &str) -> String {
        // The URI separates its parts with colons.
        self.totp(&name.replace(':', " ")).to_url().unwrap_or_default()
    }

    /// The time step of this code: the current, previous or next one, because clocks differ.
    pub fn step_of(&self, code: &str, now: Timestamp) -> Option<i64> {
        self.totp("").check(code, seconds(now)).and_then(|step| step.try_into().ok())
    }

    /// The code of a moment.
    pub fn code(&self, now: Timestamp) -> String {
        self.totp("").generate(seconds(now)).to_string()
    }

    /// SHA-1, six digits and 30 seconds, because apps know nothing else for certain.
    fn totp(&self, name: &str) -> Totp {
        let secret = Secret::new_stack(self.0);
        Builder::new().with_secret(secret).with_issuer(Some(ISSUER)).with_account_name(name).build_noncompliant()
    }
}

crate::opaque_debug!(FactorSecret);

fn seconds(now: Timestamp) -> u64 {
    u64::try_from(now.as_millis() / 1_000).unwrap_or(0)
}

/// The second factor of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Factor {
    /// The secret.
    pub secret: FactorSecret,
    /// The step of the last code used.
    pub step: i64,
    /// Recovery codes that were not used yet.
    pub recovery_codes: u32,
}

/// A code as someone has typed it.
#[derive(Clone, PartialEq, Eq)]
pub enum TypedCode {
    /// A code of an authenticator app.
    App(String),
    /// The hash of a recovery code.
    Recovery(TokenHash),
}

impl TypedCode {
    /// Reads a code; `None` if the text does not have the format of one. White space, dashes and letter case do not
    /// count.
    pub fn parse(text: &str) -> Option<Self> {
        let is_mark = |char: &char| char.is_whitespace() || *char == '-';
        let code: String = text.chars().filter(|char| !is_mark(char)).take(RECOVERY_CHARS + 1).collect();
        let code = code.to_ascii_uppercase();
        let of_base32 = |byte: u8| matches!(byte, b'A'..=b'Z' | b'2'..=b'7');
        if code.len() == DIGITS && code.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Self::App(code));
        }
        (code.len() == RECOVERY_CHARS && code.bytes().all(of_base32)).then(|| Self::Recovery(recovery_hash(&code)))
    }
}

crate::opaque_debug!(TypedCode);

/// A code to use up: it works once.
#[derive(Clone, PartialEq, Eq)]
pub enum FactorCode {
    /// The code of a step, computed with this secret. It works while the secret is the person's, and no code of this
    /// step or a later one was used.
    Step(FactorSecret, i64),
    /// The recovery code with this hash.
    Recovery(TokenHash),
}

crate::opaque_debug!(FactorCode);

/// A second factor to turn on.
#[derive(Debug, Clone)]
pub struct NewFactor {
    /// The secret.
    pub secret: FactorSecret,
    /// The step of the code that has confirmed it.
    pub step: i64,
    /// The hashes of the recovery codes.
    pub recovery: Vec<TokenHash>,
}

/// Codes that each stand in for the app once. The database keeps their hashes alone.
pub struct RecoveryCodes(Vec<String>);

impl RecoveryCodes {
    /// Codes of 80 bits from the generator of the operating system.
    pub fn random() -> Self {
        let code = || -> String {
            let secret = Secret::new_stack(rand::random());
            secret.to_base32().chars().take(RECOVERY_CHARS).collect()
        };
        Self(std::iter::repeat_with(code).take(RECOVERY_CODES).collect())
    }

    /// Their hashes.
    pub fn hashes(&self) -> Vec<TokenHash> {
        self.0.iter().map(|code| recovery_hash(code)).collect()
    }

    /// The codes in groups of characters, for the person alone.
    pub fn reveal(&self) -> Vec<String> {
        let groups = |code: &String| {
            let chars: Vec<char> = code.chars().collect();
            chars.chunks(GROUP).map(String::from_iter).collect::<Vec<_>>().join("-")
        };
        self.0.iter().map(groups).collect()
    }
}

crate::opaque_debug!(RecoveryCodes);

/// The codes are random enough for a plain hash.
fn recovery_hash(code: &str) -> TokenHash {
    Sha256::new().chain_update(b"tintype recovery ").chain_update(code).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(seconds * 1_000)
    }

    #[test]
    fn codes_are_those_of_the_rfc() {
        // Appendix B of RFC 6238 has eight digits. Apps show the last six.
        let secret = FactorSecret(*b"12345678901234567890");
        for (seconds, code) in [(59, "287082"), (1_111_111_109, "081804"), (20_000_000_000, "353130")] {
            assert_eq!(secret.code(at(seconds)), code);
            assert_eq!(secret.step_of(code, at(seconds)), Some(seconds / 30));
        }
        assert_eq!(secret.base32(), "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        assert_eq!(FactorSecret::parse(&secret.base32()), Some(secret));
        assert_eq!(FactorSecret::parse("GEZDGNBV"), None);
    }

    #[test]
    fn a_code_counts_one_step_early_and_one_late() {
        let secret = FactorSecret::random();
        let code = secret.code(at(900));
        let valid = [869, 870, 900, 929, 959, 960].map(|seconds| secret.step_of(&code, at(seconds)));
        assert_eq!(valid, [None, Some(30), Some(30), Some(30), Some(30), None]);
    }

    #[test]
    fn the_uri_names_the_service_and_the_person() {
        let uri = FactorSecret(*b"12345678901234567890").uri("ada:lovelace@example.com");
        assert!(uri.starts_with("otpauth://totp/Tintype:ada%20lovelace%40example.com?secret=GEZDGNBV"), "{uri}");
        assert!(uri.contains("issuer=Tintype"), "{uri}");
    }

    #[test]
    fn codes_are_read_as_people_type_them() {
        assert_eq!(TypedCode::parse(" 123 456 "), Some(TypedCode::App("123456".into())));
        let codes = RecoveryCodes::random();
        let (shown, hashes) = (codes.reveal(), codes.hashes());
        assert_eq!((shown.len(), shown[0].len()), (RECOVERY_CODES, 19));
        for (code, hash) in shown.iter().zip(hashes) {
            assert_eq!(TypedCode::parse(code), Some(TypedCode::Recovery(hash)));
            assert_eq!(TypedCode::parse(&code.to_lowercase().replace('-', " ")), Some(TypedCode::Recovery(hash)));
        }
        for text in
            ["", "12345", "1234567", "12345a", "+12345", "１２３４５６", "correct horse battery", "AAAA-AAAA-AAAA-AAA1"]
        {
            assert_eq!(TypedCode::parse(text), None, "{text}");
        }
    }
}
