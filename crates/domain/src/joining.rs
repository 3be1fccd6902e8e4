//! Rules for joining an account on sign-in at an OpenID Connect provider.

use std::fmt;
use std::str::FromStr;

use crate::model::Account;
use crate::person::Role;

/// The claims of an identity that rules look at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    /// The e-mail address, if the provider says that it has verified it.
    pub verified_email: Option<String>,
    /// The groups.
    pub groups: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RuleSubject {
    /// People with a verified email address in this domain, not in its subdomains. In the form that DNS uses.
    Domain(String),
    /// People in this group.
    Group(String),
}

/// A rule: its people join an account with a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRule {
    subject: RuleSubject,
    /// Name or id of the account.
    pub account: String,
    /// The role there.
    pub role: Role,
}

/// The text is not a rule.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidRule {
    /// It has another form.
    #[error("write domain:DOMAIN=ACCOUNT:ROLE or group:GROUP=ACCOUNT:ROLE, where ROLE is viewer, member or owner")]
    Form,
    /// The domain is not a name.
    #[error("{0:?} is not the domain of an e-mail address")]
    Domain(String),
}

impl FromStr for JoinRule {
    type Err = InvalidRule;

    /// Reads a rule. The name of a group may contain every sign, so the account and the role are the last parts.
    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (start, role) = text.trim().rsplit_once(':').ok_or(InvalidRule::Form)?;
        let role = role.parse().map_err(|_| InvalidRule::Form)?;
        let (subject, account) =
            start.rsplit_once('=').filter(|(_, name)| !name.is_empty()).ok_or(InvalidRule::Form)?;
        let subject = match subject.split_once(':') {
            Some(("domain", name)) => {
                RuleSubject::Domain(in_dns(name).ok_or_else(|| InvalidRule::Domain(name.to_owned()))?)
            }
            Some(("group", name)) if !name.is_empty() => RuleSubject::Group(name.to_owned()),
            _ => return Err(InvalidRule::Form),
        };
        Ok(Self { subject, account: account.to_owned(), role })
    }
}

impl fmt::Display for JoinRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            RuleSubject::Domain(name) => write!(f, "domain:{name}={}:{}", self.account, self.role),
            RuleSubject::Group(name) => write!(f, "group:{name}={}:{}", self.account, self.role),
        }
    }
}

impl JoinRule {
    fn matches(&self, claims: &Claims) -> bool {
        match &self.subject {
            RuleSubject::Domain(domain) => {
                let email = claims.verified_email.as_deref();
                let found = email.and_then(|email| email.rsplit_once('@')).filter(|(local, _)| !local.is_empty());
                found.and_then(|(_, found)| in_dns(found)).is_some_and(|found| found == *domain)
            }
            RuleSubject::Group(group) => claims.groups.contains(group),
        }
    }

    fn is_about(&self, account: &Account) -> bool {
        self.account == account.name || self.account == account.id.as_str()
    }
}

/// A domain name in DNS form, where names that look alike differ.
fn in_dns(name: &str) -> Option<String> {
    // The parser of URLs would take percent signs for other signs.
    let is_of_letters = |name: &str| {
        let mut labels = name.split('.');
        let is_label =
            |label: &str| !label.is_empty() && label.bytes().all(|sign| sign.is_ascii_alphanumeric() || sign == b'-');
        name.contains('.') && labels.all(is_label)
    };
    let is_plain = !name.contains(|sign: char| sign == '%' || sign.is_whitespace() || sign.is_control());
    match url::Host::parse(name) {
        Ok(url::Host::Domain(name)) if is_plain && is_of_letters(&name) => Some(name),
        _ => None,
    }
}

/// The rules of a service, in order.
#[derive(Debug, Clone, Default)]
pub struct JoinRules {
    /// The rules.
    pub rules: Vec<JoinRule>,
    /// Whether roles follow the rules at each sign-in, and not only at the first one.
    pub follow: bool,
}

/// A person's access to an account, as the rules say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Not decided by rules: none is about the account, or roles do not follow.
    Unmanaged,
    /// The person has this role.
    Granted(Role),
    /// The person has no access any more.
    Denied,
}

impl JoinRules {
    /// The first rule for someone who is new.
    pub fn first(&self, claims: &Claims) -> Option<&JoinRule> {
        self.rules.iter().find(|rule| rule.matches(claims))
    }

    /// The access of someone who is already in an account.
    pub fn access(&self, account: &Account, claims: &Claims) -> Access {
        let mut about = self.rules.iter().filter(|rule| rule.is_about(account)).peekable();
        if !self.follow || about.peek().is_none() {
            return Access::Unmanaged;
        }
        about.find(|rule| rule.matches(claims)).map_or(Access::Denied, |rule| Access::Granted(rule.role))
    }

    /// Whether a rule needs an e-mail address.
    pub fn need_email(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.subject, RuleSubject::Domain(_)))
    }

    /// Whether a rule needs groups.
    pub fn need_groups(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.subject, RuleSubject::Group(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[&str]) -> JoinRules {
        JoinRules { rules: texts.iter().map(|text| text.parse().expect(text)).collect(), follow: true }
    }

    fn with(email: &str, groups: &[&str]) -> Claims {
        let verified_email = Some(email).filter(|email| !email.is_empty()).map(str::to_owned);
        Claims { verified_email, groups: groups.iter().map(|&group| group.to_owned()).collect() }
    }

    #[test]
    fn a_domain_is_the_whole_of_it_in_any_case() {
        for (domain, email, is_in) in [
            ("example.org", "ada@example.org", true),
            ("Example.ORG", "Ada@EXAMPLE.org", true),
            ("bücher.example", "ada@xn--bcher-kva.example", true),
            ("xn--bcher-kva.example", "ada@Bücher.example", true),
            // Another domain.
            ("example.org", "ada@sub.example.org", false),
            ("example.org", "ada@notexample.org", false),
            ("example.org", "ada@example.org.evil.com", false),
            ("example.org", "ada@example.org@evil.com", false),
            ("example.org", "\"ada@example.org\"@evil.com", false),
            // The first letter is Cyrillic.
            ("example.org", "ada@\u{435}xample.org", false),
            // Not an address.
            ("example.org", "example.org", false),
            ("example.org", "@example.org", false),
            ("example.org", "ada@example.org.", false),
            ("example.org", "ada@ex%61mple.org", false),
            ("example.org", "ada@example.org\n", false),
            ("example.org", "", false),
        ] {
            let rules = rules(&[&format!("domain:{domain}=studio:member")]);
            assert_eq!(rules.first(&with(email, &["example.org"])).is_some(), is_in, "{domain}: {email:?}");
        }
    }

    /// Group names, each with a program that uses such names.
    #[test]
    fn a_group_has_the_name_that_the_provider_gives_it() {
        for (source, group) in [
            ("Keycloak, full path", "/team/artists"),
            ("Active Directory", "CN=Artists,OU=Groups,DC=example,DC=org"),
            ("Entra", "8b1f4c1e-5f0a-4f0e-9f55-000000000000"),
            ("GitLab", "org/sub:team"),
            ("Okta", "Artists & Friends"),
        ] {
            let rules = rules(&[&format!("group:{group}=studio:viewer")]);
            let found = rules.first(&with("", &["other", group])).expect(source);
            assert_eq!((found.account.as_str(), found.role), ("studio", Role::Viewer), "{source}");
            for other in [group.to_lowercase(), format!("{group} "), group[1..].to_owned()] {
                assert!(other == group || rules.first(&with("", &[&other])).is_none(), "{source}: {other}");
            }
        }
    }

    #[test]
    fn a_rule_that_cannot_be_read_is_refused() {
        for text in [
            "",
            "example.org=studio:member",
            "domain:example.org=studio",
            "domain:example.org=studio:admin",
            "domain:example.org=:member",
            "domain:=studio:member",
            "domain:org=studio:member",
            "domain:*.example.org=studio:member",
            "domain:192.0.2.1=studio:member",
            "domain:ada@example.org=studio:member",
            "group:=studio:member",
            "email:ada@example.org=studio:member",
        ] {
            assert!(text.parse::<JoinRule>().is_err(), "{text}");
        }
        let rule = "group:a=b:c=studio:owner";
        assert_eq!(rule.parse::<JoinRule>().expect("a rule").to_string(), rule);
    }

    #[test]
    fn the_first_rule_decides() {
        let rules = rules(&["group:chiefs=studio:owner", "domain:example.org=studio:viewer", "group:x=other:member"]);
        let role = |claims: &Claims| rules.first(claims).map(|rule| rule.role);
        assert_eq!(role(&with("ada@example.org", &["x", "chiefs"])), Some(Role::Owner));
        assert_eq!(role(&with("ada@example.org", &["x"])), Some(Role::Viewer));
        assert_eq!(role(&with("", &["x"])), Some(Role::Member));
        assert_eq!(role(&with("", &[])), None);
    }
}
