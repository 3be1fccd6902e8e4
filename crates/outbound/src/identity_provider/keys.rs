//! The keys of a provider (RFC 7517), and the signatures that they make (RFC 7518).

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::NO_PAD;
use ring::digest::{self, SHA256, SHA384, SHA512};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};
use serde_json::Value;

use super::fields::{Fields, kind, text_or_number};

/// The last character may have more bits than the number.
const BASE64: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, NO_PAD.with_decode_allow_trailing_bits(true));

/// An algorithm of signatures.
#[derive(Debug)]
pub(super) struct Algorithm {
    name: &'static str,
    method: Method,
    hash: &'static digest::Algorithm,
}

#[derive(Debug)]
enum Method {
    Rsa(&'static RsaParameters),
    /// With the name of its curve.
    Curve(&'static str, &'static dyn VerificationAlgorithm),
}

/// Signatures that no secret of this server makes. A provider chooses among them.
static ALGORITHMS: [Algorithm; 9] = [
    Algorithm { name: "RS256", method: Method::Rsa(&RSA_PKCS1_2048_8192_SHA256), hash: &SHA256 },
    Algorithm { name: "RS384", method: Method::Rsa(&RSA_PKCS1_2048_8192_SHA384), hash: &SHA384 },
    Algorithm { name: "RS512", method: Method::Rsa(&RSA_PKCS1_2048_8192_SHA512), hash: &SHA512 },
    Algorithm { name: "PS256", method: Method::Rsa(&RSA_PSS_2048_8192_SHA256), hash: &SHA256 },
    Algorithm { name: "PS384", method: Method::Rsa(&RSA_PSS_2048_8192_SHA384), hash: &SHA384 },
    Algorithm { name: "PS512", method: Method::Rsa(&RSA_PSS_2048_8192_SHA512), hash: &SHA512 },
    Algorithm { name: "ES256", method: Method::Curve("P-256", &ECDSA_P256_SHA256_FIXED), hash: &SHA256 },
    Algorithm { name: "ES384", method: Method::Curve("P-384", &ECDSA_P384_SHA384_FIXED), hash: &SHA384 },
    Algorithm { name: "EdDSA", method: Method::Curve("Ed25519", &ED25519), hash: &SHA512 },
];

impl Algorithm {
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        // RFC 9864 replaces `EdDSA` by the names of its curves.
        let name = if name == "Ed25519" { "EdDSA" } else { name };
        ALGORITHMS.iter().find(|algorithm| algorithm.name == name)
    }

    /// The half of a hash that identifies an access token in an ID token.
    pub(super) fn half_hash(&self, text: &str) -> Vec<u8> {
        let hash = digest::digest(self.hash, text.as_bytes());
        hash.as_ref()[..self.hash.output_len() / 2].to_vec()
    }
}

/// A key that this program can use.
#[derive(Debug)]
pub(super) struct Key {
    pub id: Option<String>,
    /// The only algorithm that it can be used with, if it names one.
    algorithm: Option<String>,
    public: Public,
}

#[derive(Debug)]
enum Public {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// A point on a curve, by its name.
    Curve(String, Vec<u8>),
}

impl Key {
    fn read(fields: &Fields) -> Option<Self> {
        let word = |name: &str| text_or_number(fields, name).ok();
        let bytes = |name: &str| BASE64.decode(fields.get(name)?.as_str()?.trim_end_matches('=')).ok();
        let point = |size| Some([vec![4], with_size(&bytes("x")?, size)?, with_size(&bytes("y")?, size)?].concat());
        let operations = fields.get("key_ops").and_then(Value::as_array);
        let verifies = operations.is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        if !verifies || word("use").is_some_and(|used| used != "sig") {
            return None;
        }
        let curve = word("crv");
        let public = match (word("kty")?.as_str(), curve.as_deref()) {
            ("RSA", _) => {
                let [n, e] = [bytes("n")?, bytes("e")?].map(|number| without_zeros(&number).to_vec());
                Public::Rsa(RsaPublicKeyComponents { n, e })
            }
            ("EC", Some("P-256")) => Public::Curve(curve?, point(32)?),
            ("EC", Some("P-384")) => Public::Curve(curve?, point(48)?),
            ("OKP", Some("Ed25519")) => Public::Curve(curve?, bytes("x")?),
            _ => return None,
        };
        Some(Self { id: word("kid"), algorithm: word("alg"), public })
    }

    /// Whether it has made a signature.
    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8], algorithm: &Algorithm) -> bool {
        let is_another = |own: &str| Algorithm::named(own).is_none_or(|own| own.name != algorithm.name);
        if self.algorithm.as_deref().is_some_and(is_another) {
            return false;
        }
        match (&self.public, &algorithm.method) {
            (Public::Rsa(key), Method::Rsa(parameters)) => key.verify(parameters, message, signature).is_ok(),
            (Public::Curve(found, point), Method::Curve(curve, method)) if found == curve => {
                UnparsedPublicKey::new(*method, point).verify(message, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// The keys of a document that this program can use.
///
/// # Errors
/// A message for the log: it is not a list of keys.
pub(super) fn read(document: &Fields) -> Result<Vec<Key>, String> {
    let found = document.get("keys");
    let keys =
        found.and_then(Value::as_array).ok_or_else(|| format!("`keys` is {}, and must be a list", kind(found)))?;
    Ok(keys.iter().filter_map(Value::as_object).filter_map(Key::read).collect())
}

fn without_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}

/// A coordinate with the size of its curve (RFC 7518, 6.2.1.2). Some providers send a number instead, without its
/// leading zeros or with one more.
fn with_size(coordinate: &[u8], size: usize) -> Option<Vec<u8>> {
    let number = without_zeros(coordinate);
    let mut whole = vec![0; size.checked_sub(number.len())?];
    whole.extend(number);
    Some(whole)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_that_are_not_known_do_not_matter() {
        let document = json!({"keys": [
            5, {"kty": "oct", "kid": 1}, {"kty": "AKP", "alg": "ML-DSA-44"}, {"kty": "RSA", "n": 5},
            {"kty": "RSA", "kid": "e", "n": "AQAB", "e": "AQAB", "use": "enc"},
            {"kty": "RSA", "kid": "o", "n": "AQAB", "e": "AQAB", "use": "sig", "key_ops": ["encrypt", "wrapKey"]},
            {"kty": "RSA", "kid": 7, "n": "AQAB", "e": "AQAB=", "x5c": "text", "ext": true, "key_ops": {}, "use": "sig"},
            {"kty": "RSA", "kid": 8, "n": "AQAB", "e": "AR", "key_ops": ["sign", "verify"]},
        ]});
        let found = read(document.as_object().expect("an object")).expect("a list");
        assert_eq!(found.iter().map(|key| key.id.as_deref()).collect::<Vec<_>>(), [Some("7"), Some("8")], "{found:?}");
        assert!(read(json!({"keys": "none"}).as_object().expect("an object")).is_err());
    }

    #[test]
    fn a_coordinate_gets_the_size_of_its_curve() {
        assert_eq!(with_size(&[7; 31], 32), Some([&[0][..], &[7; 31]].concat()));
        assert_eq!(with_size(&[&[0][..], &[7; 48]].concat(), 48), Some(vec![7; 48]));
        assert_eq!(with_size(&[7; 33], 32), None);
    }
}
