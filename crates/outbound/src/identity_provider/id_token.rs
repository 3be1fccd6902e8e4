//! The ID token (OpenID Connect Core 1.0, 3.1.3.7): strict about all that proves who signed in, and nothing else.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

use super::fields::{Fields, kind, seconds, text, text_or_number};
use super::keys::{Algorithm, Key};
use super::words;

/// Some providers pad.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How far the clocks of the provider and of this server may differ.
const LEEWAY_SECONDS: f64 = 60.0;

/// Why an ID token proves nothing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// No key has made the signature. The provider may have changed its keys.
    NoMatchingKey,
    /// A message for the log.
    Invalid(String),
}

impl Fault {
    /// A message for the log.
    pub(super) fn reason(self) -> String {
        match self {
            Self::NoMatchingKey => "none of the provider's keys made its signature (RSA keys need 2,048 bits)".into(),
            Self::Invalid(reason) => reason,
        }
    }
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self::Invalid(reason)
    }
}

#[derive(Debug)]
pub(super) struct Signed {
    /// Its claims.
    pub claims: Fields,
    algorithm: &'static Algorithm,
}

impl Signed {
    pub(super) fn read(token: &str, keys: &[Key]) -> Result<Self, Fault> {
        let parts: Vec<&str> = token.split('.').collect();
        let [header, payload, signature] = parts[..] else {
            return Err(match parts.len() {
                5 => "it is encrypted: set the provider to sign ID tokens without encrypting them".to_owned().into(),
                count => format!("it has {count} parts, and a signed token has 3").into(),
            });
        };
        let fields = object(header, "its header")?;
        if fields.contains_key("crit") {
            return Err(Fault::Invalid("its header has `crit`, which demands extensions".into()));
        }
        let name = text(&fields, "alg")?;
        let algorithm = Algorithm::named(name).ok_or_else(|| {
            format!("`alg` is {:?}, which is not supported: let the provider sign with RS256 or ES256", words(name))
        })?;
        // Without one that can be read, every key may have made the signature.
        let id = text_or_number(&fields, "kid").ok();
        let signature = BASE64.decode(signature).map_err(|_| "its signature is not base64url".to_owned())?;
        let message = &token.as_bytes()[..header.len() + 1 + payload.len()];
        let may_be = |key: &&Key| id.is_none() || key.id == id;
        if !keys.iter().filter(may_be).any(|key| key.has_signed(message, &signature, algorithm)) {
            return Err(Fault::NoMatchingKey);
        }
        Ok(Self { claims: object(payload, "its payload")?, algorithm })
    }

    /// Checks that the token belongs to an access token, if it names one.
    pub(super) fn check_access_token(&self, access_token: &str) -> Result<(), String> {
        let Some(expected) = self.claims.get("at_hash").filter(|hash| !hash.is_null()) else { return Ok(()) };
        let expected = expected.as_str().and_then(|text| BASE64.decode(text).ok());
        match expected == Some(self.algorithm.half_hash(access_token)) {
            true => Ok(()),
            false => Err("`at_hash` belongs to another access token".into()),
        }
    }
}

fn object(part: &str, name: &str) -> Result<Fields, String> {
    let json = BASE64.decode(part).map_err(|_| format!("{name} is not base64url"))?;
    serde_json::from_slice(&json).map_err(|_| format!("{name} is not a JSON object"))
}

/// The claims that a token must have.
pub(super) struct Expected<'a> {
    pub issuer: &'a str,
    /// The id of this server.
    pub client_id: &'a str,
    /// Other audiences that may have the same token.
    pub audiences: &'a [String],
    pub nonce: &'a str,
    /// Seconds since 1970.
    pub now: f64,
}

/// Checks the claims of a signed token, and returns its subject.
///
/// # Errors
/// A message for the log.
pub(super) fn subject(claims: &Fields, expected: &Expected<'_>) -> Result<String, String> {
    let issuer = text(claims, "iss")?;
    if issuer != expected.issuer {
        return Err(format!("`iss` is {:?} instead of {:?}", words(issuer), expected.issuer));
    }
    check_audience(claims, expected)?;
    if text(claims, "nonce")? != expected.nonce {
        return Err("`nonce` belongs to another sign-in".into());
    }
    let end = seconds(claims, "exp")?.ok_or("`exp` is missing, and must be a time in seconds")?;
    if expected.now >= end + LEEWAY_SECONDS {
        let ago = expected.now - end;
        return Err(format!("`exp` was {ago:.0} s ago: compare the clocks of the provider and of this server"));
    }
    if let Some(start) = seconds(claims, "nbf")?.filter(|start| expected.now < start - LEEWAY_SECONDS) {
        let away = start - expected.now;
        return Err(format!("`nbf` is {away:.0} s away: compare the clocks of the provider and of this server"));
    }
    text_or_number(claims, "sub")
}

/// Checks that the token is for us. It can be for others too if the provider issued it to us, or if the operator trusts
/// them: everyone in the audience could use our tokens, and we theirs.
fn check_audience(claims: &Fields, expected: &Expected<'_>) -> Result<(), String> {
    let found = claims.get("aud");
    let audiences = match found {
        Some(Value::String(one)) => vec![one.as_str()],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => return Err(format!("`aud` is {}, and must be a text or a list of texts", kind(found))),
    };
    if !audiences.contains(&expected.client_id) {
        let found = words(&audiences.join(", "));
        return Err(format!("`aud` is {found:?}, without the client id {:?}", expected.client_id));
    }
    let issued_to = claims.get("azp").filter(|party| !party.is_null()).map(|_| text(claims, "azp")).transpose()?;
    if let Some(party) = issued_to.filter(|party| *party != expected.client_id) {
        return Err(format!("`azp` is {:?} instead of the client id {:?}", words(party), expected.client_id));
    }
    let is_known = |one: &&str| *one == expected.client_id || expected.audiences.iter().any(|known| known == one);
    match audiences.iter().find(|one| !is_known(one)) {
        Some(other) if issued_to.is_none() => {
            let other = words(other);
            Err(format!("`aud` contains {other:?} too, and there is no `azp`: trust it with --oidc-audience"))
        }
        _ => Ok(()),
    }
}

/// The name that the person probably uses.
pub(super) fn name(claims: &Fields) -> Option<&str> {
    let text = |name: &&str| claims.get(*name)?.as_str().filter(|text| !text.trim().is_empty());
    ["preferred_username", "email", "name"].iter().find_map(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: f64 = 1_700_000_000.0;

    /// A token with these claims, or without those that are null.
    fn read(change: Value) -> Result<String, String> {
        let mut claims = json!({"iss": "https://id", "aud": "us", "nonce": "n", "exp": NOW + 1.0, "sub": "ada"});
        let claims = claims.as_object_mut().expect("an object");
        for (name, value) in change.as_object().expect("an object") {
            claims.insert(name.clone(), value.clone());
        }
        claims.retain(|_, value| *value != json!("absent"));
        let audiences = ["them".to_owned()];
        subject(
            claims,
            &Expected { issuer: "https://id", client_id: "us", audiences: &audiences, nonce: "n", now: NOW },
        )
    }

    /// Claims as providers send them, with the provider and a report of a program that refused them.
    #[test]
    fn tokens_of_the_field_are_read() {
        for (source, change) in [
            (
                "Zitadel, SQLPage#965: applications and the project",
                json!({"aud": ["us", "app", "project"], "azp": "us"}),
            ),
            ("an audience that the operator trusts", json!({"aud": ["them", "us"]})),
            ("a list with one audience", json!({"aud": ["us"]})),
            ("Auth0, openidconnect-rs#23: a date as text", json!({"updated_at": "2023-01-01T00:00:00.000Z"})),
            (
                "AWS Cognito, zitadel/oidc#139: a boolean as text",
                json!({"email_verified": "true", "phone_number_verified": "false"}),
            ),
            ("Azure AD B2C: texts as lists", json!({"emails": ["a@example.com"], "email": ["a@example.com"]})),
            ("Keycloak: an address as text, groups as an object", json!({"address": "1 Road", "groups": {"a": 1}})),
            ("Auth0, openidconnect-rs#136: seconds as text", json!({"updated_at": "1698745800"})),
            ("indigo-iam/iam#272: a date in words", json!({"updated_at": "Wed Apr 04 18:45:44 CEST 2018"})),
            (
                "JumpCloud, listmonk#2237: unknown lists",
                json!({"email_verified": "true", "member_of": ["a"], "rat": 1}),
            ),
            ("times as texts", json!({"exp": format!("{}", NOW + 1.0), "iat": "1700000000", "auth_time": "1"})),
            ("times with fractions", json!({"exp": NOW + 0.5, "iat": 1.5})),
            ("no time of issue", json!({"iat": null, "azp": null, "nbf": null})),
            ("a clock that is ahead", json!({"exp": NOW - 59.0, "nbf": NOW + 59.0, "iat": NOW + 3_000.0})),
        ] {
            assert_eq!(read(change).as_deref(), Ok("ada"), "{source}");
        }
        assert_eq!(read(json!({"sub": 12_345})).as_deref(), Ok("12345"));
    }

    #[test]
    fn claims_that_protect_are_checked_and_named() {
        for (change, wanted) in [
            (json!({"iss": "https://other"}), "`iss` is \"https://other\""),
            (json!({"iss": 5}), "`iss` is a number"),
            (json!({"aud": "them"}), "without the client id"),
            (json!({"aud": []}), "without the client id"),
            (json!({"aud": {"us": true}}), "`aud` is an object"),
            (json!({"aud": ["us", "stranger"]}), "--oidc-audience"),
            (json!({"aud": ["us", "them"], "azp": "them"}), "`azp` is \"them\""),
            (json!({"azp": "them"}), "`azp` is \"them\""),
            (json!({"azp": 5}), "`azp` is a number"),
            (json!({"nonce": "other"}), "`nonce`"),
            (json!({"nonce": "absent"}), "`nonce` is missing"),
            (json!({"exp": NOW - 60.0}), "`exp` was 60 s ago"),
            (json!({"exp": "soon"}), "`exp` is a text"),
            (json!({"exp": "inf"}), "`exp` is a text"),
            (json!({"exp": "absent"}), "`exp` is missing"),
            (json!({"nbf": NOW + 61.0}), "`nbf` is 61 s away"),
            (json!({"sub": ""}), "`sub` is an empty text"),
            (json!({"sub": 1.5}), "`sub` is a number"),
            (json!({"sub": null}), "`sub` is null"),
        ] {
            let error = read(change.clone()).expect_err("not ours");
            assert!(error.contains(wanted), "{change}: {error}");
        }
    }

    #[test]
    fn long_claims_do_not_fill_the_log() {
        let long = "x".repeat(500_000);
        for claims in [
            json!({"iss": long}),
            json!({"aud": long}),
            json!({"aud": [long, long]}),
            json!({"aud": ["us", long]}),
            json!({"azp": long}),
            json!({"nonce": long}),
            json!({"exp": long}),
        ] {
            let error = read(claims).expect_err("not ours");
            assert!(error.len() < 500, "{} bytes", error.len());
        }
        let header = BASE64.encode(json!({"alg": long}).to_string());
        let Err(Fault::Invalid(reason)) = Signed::read(&format!("{header}.."), &[]) else {
            panic!("no such algorithm")
        };
        assert!(reason.len() < 500, "{} bytes", reason.len());
    }

    /// The example of RFC 7515, A.2.
    const KEY: &str = "\
        ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yR\
        T-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXB\
        dQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9ia\
        GNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
    const TOKEN: &str = "\
        eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19\
        yb290Ijp0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt\
        _O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb\
        1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI\
        8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";

    #[test]
    fn only_the_holder_of_a_key_makes_tokens() {
        let with = |id: Value| {
            let document = json!({"keys": [{"kty": "RSA", "kid": id, "n": KEY, "e": "AQAB"}]});
            super::super::keys::read(document.as_object().expect("an object")).expect("a list")
        };
        let keys = with(json!("one"));
        let signed = Signed::read(TOKEN, &keys).expect("a signature");
        assert_eq!(signed.claims["iss"], "joe");
        // The documents of some providers name their keys, and the tokens don't, or with nothing.
        for keys in [with(json!(null)), with(json!(7)), with(json!(""))] {
            assert!(Signed::read(TOKEN, &keys).is_ok(), "{keys:?}");
        }
        let [header, payload, signature] = TOKEN.split('.').collect::<Vec<_>>()[..] else { panic!("three parts") };
        let encoded = |value: Value| BASE64.encode(value.to_string()).trim_end_matches('=').to_owned();
        let header_with = |header: Value| format!("{}.{payload}.{signature}", encoded(header));
        for (token, wanted) in [
            (format!("{header}.{}.{signature}", encoded(json!({"iss": "eve"}))), None),
            (format!("{header}.{payload}."), None),
            (header_with(json!({"alg": "RS256", "kid": "two"})), None),
            (header_with(json!({"alg": "none"})), Some("`alg` is \"none\"")),
            (header_with(json!({"alg": "HS256"})), Some("`alg` is \"HS256\"")),
            (header_with(json!({"alg": "ES512"})), Some("sign with RS256 or ES256")),
            (header_with(json!({"alg": 5})), Some("`alg` is a number")),
            (header_with(json!({"alg": "RS256", "crit": ["b64"]})), Some("`crit`")),
            (format!("{header}.{payload}"), Some("2 parts")),
            (format!("{TOKEN}.{payload}.{signature}"), Some("encrypted")),
            ("a.b.c".into(), Some("its header")),
        ] {
            match (Signed::read(&token, &keys).expect_err("forged"), wanted) {
                (Fault::NoMatchingKey, None) => {}
                (Fault::Invalid(reason), Some(wanted)) => assert!(reason.contains(wanted), "{reason}"),
                (fault, _) => panic!("{token}: {fault:?}"),
            }
        }
        assert_eq!(Signed::read(TOKEN, &[]).expect_err("no key"), Fault::NoMatchingKey);
    }

    /// Signatures of the claims `{"iss":"joe"}` from the Python package `cryptography`, with the private key in RFC
    /// 7515 (A.2) and private keys with the seeds 0, 1, …
    const SIGNATURES: [(&str, &str); 8] = [
        (
            "RS384",
            "\
            P1q7bTneKArFa9fvkFTGu7Ukr3rtZBiO0Z7u-SQDF-WvgbUdb7i3H8wtK6h38b7fWf80vZnQX1Ls-WZJ6gLlgpltyaDPgbIyGd5I\
            jDEw9IdCESbUdqQzC1KM4X6aU40Es7yzRFaUPnxaq4cBnVt_ZFeE-v0UDdZX8WSGknlU6pXTqCnlFh2HFhpl7XH0hBKOaAEhwKA_\
            20VGq3Qs0I5rZJLAHcALfpx6H11ZL3iVrZuPLh7rzp0YFjSVvWkC47ivs1UC83nVE7NpPlfxf76onllZf7UI4siMpy2XkaeJmoqS\
            9xlQRZZQ37SvDmRensX4CY39RliLvvQMfmKaHpI5KA",
        ),
        (
            "RS512",
            "\
            Ruv700gLd6NRaP1kXhebjRM0nCyGMM5bvr2JT9mFAMjX4wX8VtmUDksYm6RfeMfk-CVpGpWbkfBbDNWdMQWSq7YRIREJVOHWgsXM\
            zWBfIFKR9hJROQSawYe6Y9DdMIqkiTHJwG7NA_rQ0dSj46Uc8iESFFvckBI96MYtKOKSXoNxM31NkerlMo8M9V16r1ZZtD5_iuP0\
            inP7uhHWszxgUUa8j7mJRpvWtMVI_d42UegCYxxoHB_O0By6vMykFkrH_R88NqjFATHukUswz-Us0XOFcDCs2wZyQKro6JncNmgY\
            n2nRjGdqIW_ytGuf6OI9AqAtGiHW-ThRgUnRc1q9lA",
        ),
        (
            "PS256",
            "\
            aPA-HWbXcXoSxdMaUGBPSVL85IJjotB2nXKaduVQQBXXpZsHMgvPn85UsW5WjLXAK5ncbXPTEDVys0ISfNCYMFuatKKKGl15IY-G\
            CknJcROBNkqs7SanVFk1KfDNFyqs4fK12UMolRimqQGN_JpEAY4IXZ_zxcq4Eecsad6ukjyc8Gu5IQPTjiwD_anu6EDFm0b75cP8\
            z7slooVQ3Ffh3lDWHhBjISm5cK0jKvVq4bsNpcgSLke9VxlrkM64RJ4y0UUKgjw0y60AoSsqIlzyN1phD_W3nhlkdxB2QOn3GJAR\
            G6tSHW4tRoM-5rFVKWH_nh7RPkFeprNgZZEJbSbvpw",
        ),
        (
            "PS384",
            "\
            L2ISUtQiNS9YDPFigEzSBXvxCueWERHb1gr3-k5MlnJGzGq8sHNikd0N31zNfmEJ0qveMX80j0KvZbhtLPd2DhVddmQySc62Zn9I\
            v7viCIb734ffBbkQoJrJMdbTrsDIGRMJRZIuPUQs_LgBR6RHGOUj7_fXKygZ_OuF5vRniH5yo2sG7SqOClENjxy_BTozA-D2-4_7\
            oMYJEvtKSIxNRSIWmtIiGRpBhCuyFHBy_gLMuFZXoh12FDE2qMPyDIQTNvoFs-0LG4nGxbaKWmU716UBv-Ft9z1a1GuGsxCzIOJh\
            IW1j8X3eZGaGM3aKKSEUXPkzhcYexuuOC31MmDq0RA",
        ),
        (
            "PS512",
            "\
            VAMATqPshSauVWbXAUMAZXGq-tz0PSyvrc5t8Awozek3h4Ix1pJjB7Tr9RmxYWZP7wAX2rleIVbTqDLXe8SyLzo8l6Blm3xZ-I69\
            WCH-6nR5HpksUIxyHskRxEEe6-ghXBvw_fE6HKzKG2r1LO8us0EA_rcmv8Wqqrv0ffongHFwejCowe3WWB6C0FCeZSYxmoUIAwNO\
            fUQmqMMMF_QJh7WVxgj8jE8HOnSbxQKymvWonQD8p2tmXSjyV4emGre9zhmvE6ENHNbC_36dS8Evoh7ssUTiv00cDHKkFDT36FDs\
            HuNh7s8KUu22-ybYkcCuWb4_WCELzDngH2SFz71IXw",
        ),
        ("ES256", "-TH2rCzyVVVeEzTW0nIUG0TlcZb878UNwiRO3p2Z0P5Aw00LggS3Vd4GOG7rpt1n2Kz0ECGLs4ML5ATz_H4O_Q"),
        (
            "ES384",
            "\
            yC6KrR1AGDeqUPngPy9wYxvMLaPVnZTjwi9e8lEHSctqAbS3SG-oR0ie0XQAqvcudLrM26fuljsQq68_o2WhhNjolOqK1Zzn5NCY\
            MbEGeFQWcH71AsMbs2xvLHta9Nlb",
        ),
        ("Ed25519", "AH5PGm2SqXA9Yys0n4epU-gh7bjIfG6jucC7aLGC4xg80kmPRwxrzQO1uqFOA2ezlwI-57lStm8GYqSiZWMjDA"),
    ];

    #[test]
    fn each_algorithm_is_verified_with_keys_of_its_own_kind() {
        let key = |key: Value| {
            let document = json!({"keys": [key]});
            super::super::keys::read(document.as_object().expect("an object")).expect("a list")
        };
        let rsa = key(json!({"kty": "RSA", "n": KEY, "e": "AQAB"}));
        let p256 = key(json!({
            "kty": "EC", "crv": "P-256",
            "x": "elkxgIYMQDfIPBJ0mEXI7hQk3Sl_rcuJXjWCVdLH0rI", "y": "qMolWA8mJv5XkGL_G5n_kcJKDaBvsytb4gFIySSfVlA",
        }));
        let p384 = key(json!({
            "kty": "EC", "crv": "P-384",
            "x": "5io6lOQHsWv_gpR7VqMDgCadpkoTA3HLZBUB2bkLImqT0ujAWbJlMPAlvY2D1VYT",
            "y": "zJbplNcAWB4tl4XLKXTl4KCTfnHwnHtRF4tAytso4UROOHucK5Z63QQLCHFXw5g2",
        }));
        let edwards = |algorithm: &str| {
            let x = "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg";
            key(json!({"kty": "OKP", "crv": "Ed25519", "alg": algorithm, "x": x}))
        };
        let (ed25519, old, other) = (edwards("Ed25519"), edwards("EdDSA"), edwards("ES256"));
        for (algorithm, signature) in SIGNATURES {
            let key = match algorithm {
                "ES256" => &p256,
                "ES384" => &p384,
                "Ed25519" => &ed25519,
                _ => &rsa,
            };
            let header = BASE64.encode(json!({"alg": algorithm}).to_string());
            let token = format!("{}.eyJpc3MiOiJqb2UifQ.{signature}", header.trim_end_matches('='));
            for keys in [&rsa, &p256, &p384, &ed25519, &old, &other] {
                // An Edwards curve may be called by its own name.
                let is_own = std::ptr::eq(keys, key) || (algorithm == "Ed25519" && std::ptr::eq(keys, &old));
                let read = Signed::read(&token, keys);
                assert_eq!(read.is_ok(), is_own, "{algorithm}: {read:?} with {keys:?}");
            }
        }
    }
}
