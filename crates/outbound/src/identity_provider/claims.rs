//! The claims that rules for joining look at.

use serde_json::Value;

use super::fields::{Fields, kind, text};
use tintype_domain::joining::Claims;

pub(super) struct NeededClaims<'a> {
    /// The verified e-mail address.
    pub email: bool,
    /// The claim with the groups.
    pub groups: Option<&'a String>,
}

impl NeededClaims<'_> {
    pub(super) fn is_more_than(&self, claims: &Fields) -> bool {
        (self.email && !has_email(claims)) || self.groups.is_some_and(|name| !has_groups(claims, name))
    }

    /// Reads them from the ID token, or, where it lacks them, from the other claims. Anything ambiguous fails: a
    /// misunderstood claim would let someone in, or lock someone out.
    ///
    /// # Errors
    /// A message for the log.
    pub(super) fn read(&self, token: &Fields, others: &Fields) -> Result<Claims, String> {
        // An address and its verification belong together.
        let with_email = if has_email(token) { token } else { others };
        let verified_email = if self.email { verified_email(with_email)? } else { None };
        let groups = match self.groups {
            Some(name) => groups(if has_groups(token, name) { token } else { others }, name)?,
            None => Vec::new(),
        };
        Ok(Claims { verified_email, groups })
    }
}

/// The claim with this name, or with this dotted path: Keycloak keeps roles in `realm_access.roles`. Names can
/// themselves contain dots, such as Auth0's URLs and Keycloak's clients.
fn find<'a>(claims: &'a Fields, name: &str) -> Option<&'a Value> {
    let inside = |at: usize| find(claims.get(&name[..at])?.as_object()?, &name[at + 1..]);
    let found = claims.get(name).or_else(|| name.match_indices('.').find_map(|(at, _)| inside(at)));
    found.filter(|value| !value.is_null())
}

fn is_there(claims: &Fields, name: &str) -> bool {
    find(claims, name).is_some()
}

fn has_email(claims: &Fields) -> bool {
    is_there(claims, "email") && is_there(claims, "email_verified")
}

fn has_groups(claims: &Fields, name: &str) -> bool {
    is_there(claims, name) || is_elsewhere(claims, name)
}

/// Whether the claim is too large for this place (OpenID Connect Core 1.0, 5.6.2): Entra sends no more than 200 groups.
fn is_elsewhere(claims: &Fields, name: &str) -> bool {
    claims.get("_claim_names").and_then(Value::as_object).is_some_and(|names| names.contains_key(name))
}

fn verified_email(claims: &Fields) -> Result<Option<String>, String> {
    let is_verified = match claims.get("email_verified") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(verified)) => *verified,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        Some(other) => return Err(format!("`email_verified` is {}, and must be a boolean", kind(Some(other)))),
    };
    if !is_verified || !is_there(claims, "email") {
        return Ok(None);
    }
    text(claims, "email").map(|email| Some(email.to_owned()))
}

fn groups(claims: &Fields, name: &str) -> Result<Vec<String>, String> {
    let wrong = |found: &'static str| format!("`{name}` is {found}, and must be a text or a list of texts");
    match find(claims, name) {
        None if is_elsewhere(claims, name) => Err(format!(
            "`{name}` has too many groups for a token: configure the provider to send only this application's groups"
        )),
        None => Ok(Vec::new()),
        Some(Value::String(group)) => Ok(vec![group.clone()]),
        Some(Value::Array(groups)) => {
            let text = |group: &Value| match group {
                Value::String(text) => Ok(text.clone()),
                _ => Err(wrong("a list with something else than texts")),
            };
            groups.iter().map(text).collect()
        }
        // Zitadel's roles, each with the organisations that have granted it.
        Some(Value::Object(roles)) if roles.values().all(names_organisations) => Ok(roles.keys().cloned().collect()),
        found => Err(wrong(kind(found))),
    }
}

/// Whether this is an object with texts alone: the domain of each organisation, by its id.
fn names_organisations(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| !fields.is_empty() && fields.values().all(Value::is_string))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(token: Value, others: Value) -> Result<Claims, String> {
        let name = "groups".to_owned();
        let wanted = NeededClaims { email: true, groups: Some(&name) };
        wanted.read(token.as_object().expect("an object"), others.as_object().expect("an object"))
    }

    fn email(claims: Value) -> Result<Option<String>, String> {
        read(claims, json!({})).map(|claims| claims.verified_email)
    }

    /// Claims as providers send them, with the provider and a report of a program that misread them.
    #[test]
    fn an_address_counts_if_the_provider_has_verified_it() {
        for (source, claims, counts) in [
            ("Google", json!({"email": "a@b.org", "email_verified": true}), true),
            ("AWS Cognito, pocketbase#6657", json!({"email": "a@b.org", "email_verified": "true"}), true),
            ("Keycloak, new user", json!({"email": "a@b.org", "email_verified": false}), false),
            ("Apple, hidden", json!({"email": "a@b.org", "email_verified": "false"}), false),
            ("Entra, chirpstack#302", json!({"email": "a@b.org"}), false),
            ("no address", json!({"email_verified": true}), false),
            ("nulls", json!({"email": null, "email_verified": null}), false),
            ("an empty text", json!({"email": "a@b.org", "email_verified": ""}), false),
        ] {
            assert_eq!(email(claims).expect(source), counts.then(|| "a@b.org".to_owned()), "{source}");
        }
        for odd in
            [json!({"email": "a@b.org", "email_verified": 1}), json!({"email": ["a@b.org"], "email_verified": true})]
        {
            assert!(email(odd).expect_err("an odd type").contains("`email"));
        }
        // The verification of one address says nothing about another one.
        let split = read(json!({"email": "eve@b.org"}), json!({"email_verified": true, "email": "other@c.org"}));
        assert_eq!(split.expect("claims").verified_email.as_deref(), Some("other@c.org"));
        let split = read(json!({"email": "eve@b.org"}), json!({"email_verified": true}));
        assert_eq!(split.expect("claims").verified_email, None);
    }

    #[test]
    fn groups_are_a_text_or_a_list_of_texts() {
        let groups = |claims: Value| read(claims, json!({})).map(|claims| claims.groups.join("|"));
        for (source, claims, found) in [
            ("Keycloak, Okta, Authentik", json!({"groups": ["/a", "b"]}), "/a|b"),
            ("IdentityServer, harbor#15416: a single group", json!({"groups": "CN=a,DC=b"}), "CN=a,DC=b"),
            ("no groups at all", json!({}), ""),
            ("an empty list", json!({"groups": []}), ""),
            ("null", json!({"groups": null}), ""),
            (
                "Zitadel, filebrowser#2084",
                json!({"groups": {"artists": {"1": "a.org", "2": "b.org"}, "b": {"1": "a.org"}}}),
                "artists|b",
            ),
        ] {
            assert_eq!(groups(claims).as_deref(), Ok(found), "{source}");
        }
        for (source, claims, wanted) in [
            ("a list inside", json!({"groups": {"my.client": {"roles": ["artists"]}}}), "an object"),
            ("not granted by anyone", json!({"groups": {"a": {"1": "a.org"}, "b": {}}}), "an object"),
            ("a number", json!({"groups": 5}), "a number"),
            ("a list of objects", json!({"groups": [{"name": "artists"}]}), "something else than texts"),
            ("Entra above 200, vault#7510", json!({"_claim_names": {"groups": "src1"}}), "too many groups"),
        ] {
            assert!(groups(claims).expect_err(source).contains(wanted), "{source}");
        }
    }

    #[test]
    fn dots_lead_to_a_claim_inside_of_another() {
        let keycloak = json!({
            "realm_access": {"roles": ["a", "b"]}, "resource_access": {"my.client": {"roles": ["d"]}},
            "https://example.org/roles": ["c"], "x": "y",
        });
        let claims = keycloak.as_object().expect("an object");
        let found = |name: &str| groups(claims, name).map(|groups| groups.join("|"));
        assert_eq!(found("realm_access.roles").as_deref(), Ok("a|b"));
        assert_eq!(found("https://example.org/roles").as_deref(), Ok("c"));
        assert_eq!(found("resource_access.my.client.roles").as_deref(), Ok("d"));
        for nowhere in ["realm_access.groups", "x.roles", "realm_access.roles.a", ".", ""] {
            assert_eq!(found(nowhere).as_deref(), Ok(""), "{nowhere}");
        }
        assert!(found("realm_access").expect_err("an object").contains("an object"));
    }

    #[test]
    fn the_other_endpoint_is_asked_for_what_the_token_lacks() {
        let name = "groups".to_owned();
        let lacks = |email, groups: bool, claims: Value| {
            let wanted = NeededClaims { email, groups: groups.then_some(&name) };
            wanted.is_more_than(claims.as_object().expect("an object"))
        };
        let whole = json!({"email": "a@b.org", "email_verified": false, "groups": []});
        assert!(!lacks(true, true, whole) && !lacks(false, false, json!({})));
        assert!(lacks(true, false, json!({"email": "a@b.org"})) && lacks(false, true, json!({"groups": null})));
        assert!(!lacks(false, true, json!({"_claim_names": {"groups": "src1"}})));
    }
}
