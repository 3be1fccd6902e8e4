//! URLs of reference images, validated by their text alone.

use std::fmt;
use std::net::Ipv6Addr;

use url::{Host, Url};

use crate::address::is_public;

#[cfg(test)]
mod tests;

/// The default port of reference URLs.
pub const HTTPS_PORT: u16 = 443;
/// Longest reference URL, in characters.
pub const MAX_URL_CHARS: usize = 4_096;

const SCHEME: &str = "https://";

/// Domains that are never public, including their subdomains:
/// RFC 6761 (localhost), RFC 6762 (local), RFC 8375 (home.arpa), and internal, which ICANN set aside in 2024.
const PRIVATE_DOMAINS: [&str; 4] = ["localhost", "local", "internal", "home.arpa"];

/// A URL that may be downloaded: it uses https, and its host is not private by its name. The addresses of the host are
/// checked during the download.
#[derive(Clone, PartialEq, Eq)]
pub struct ReferenceUrl {
    text: String,
    url: Url,
}

/// The rule that a URL violates. Displays as the rest of a sentence about the URL: "must name a host".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlFault {
    /// Not https; also for `data:` URIs and bare base64.
    #[error("must use the https:// scheme")]
    Scheme,
    /// Longer than [`MAX_URL_CHARS`].
    #[error("must be at most {MAX_URL_CHARS} characters long")]
    Length,
    /// White space or a control character, in ASCII or elsewhere in Unicode.
    #[error("must not contain white space or control characters")]
    Characters,
    /// A backslash, which only some URL parsers treat as a slash.
    #[error("must not contain a backslash")]
    Backslash,
    /// An `@` before the path.
    #[error("must not contain a user name or password")]
    Userinfo,
    /// No host, as in `https:///path`.
    #[error("must name a host")]
    NoHost,
    /// The host or the port is malformed.
    #[error("is not a valid URL")]
    Malformed,
    /// A port that this service does not connect to.
    #[error("must not name a port other than the one for https")]
    Port,
    /// The host is not public, whatever it may resolve to.
    #[error("must point to a public host")]
    NotPublic,
    /// The host or port differs from its plain spelling: `0x08080808`, full-width digits, a final dot, `%61`.
    #[error("must spell its host and port plainly")]
    Disguised,
}

impl ReferenceUrl {
    /// Parses a URL whose port (default 443) must be one of `ports`. Does no I/O.
    ///
    /// # Errors
    /// [`UrlFault`]: the first rule that the URL violates.
    pub fn parse(text: &str, ports: &[u16]) -> Result<Self, UrlFault> {
        check_text(text)?;
        let url = Url::parse(text).map_err(|_| UrlFault::Malformed)?;
        if !url.port_or_known_default().is_some_and(|port| ports.contains(&port)) {
            return Err(UrlFault::Port);
        }
        let host_may_be_public = match url.host() {
            None => return Err(UrlFault::NoHost),
            Some(Host::Ipv4(ip)) => is_public(ip.into()),
            Some(Host::Ipv6(ip)) => is_public(ip.into()),
            Some(Host::Domain(name)) => may_be_public_name(name),
        };
        match host_may_be_public {
            false => Err(UrlFault::NotPublic),
            true if !is_plain(authority(text), &url) => Err(UrlFault::Disguised),
            true => Ok(Self { text: text.to_owned(), url }),
        }
    }

    /// The text as the caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The parsed URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The host to resolve.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Resolves a `Location` header of this URL under the rules for reference URLs. A host in it is validated as
    /// written, before any normalisation.
    pub fn redirected(&self, location: &str, ports: &[u16]) -> Result<Self, UrlFault> {
        if location.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME)) {
            return Self::parse(location, ports);
        }
        if location.starts_with("//") {
            return Self::parse(&format!("https:{location}"), ports);
        }
        check_characters(location)?;
        let target = self.url.join(location).map_err(|_| UrlFault::Malformed)?;
        Self::parse(target.as_str(), ports)
    }

    /// The URL without query and fragment, which may contain secrets.
    pub fn loggable(&self) -> &str {
        &self.url[..url::Position::AfterPath]
    }
}

impl fmt::Display for ReferenceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Leaves out query and fragment, because Debug output tends to end up in logs.
impl fmt::Debug for ReferenceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ReferenceUrl").field(&self.loggable()).finish()
    }
}

/// Rejects text that the URL standard would repair: it drops tabs and newlines, turns backslashes into slashes, and
/// accepts any number of slashes after the scheme. Other software may repair it differently.
fn check_text(text: &str) -> Result<(), UrlFault> {
    // The scheme is ASCII, so splitting inside a character means that the URL is not https.
    let (scheme, _) = text.split_at_checked(SCHEME.len()).ok_or(UrlFault::Scheme)?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Err(UrlFault::Scheme);
    }
    if text.chars().count() > MAX_URL_CHARS {
        return Err(UrlFault::Length);
    }
    check_characters(text)?;
    let authority = authority(text);
    if authority.is_empty() {
        return Err(UrlFault::NoHost);
    }
    if authority.contains('@') {
        return Err(UrlFault::Userinfo);
    }
    Ok(())
}

fn check_characters(text: &str) -> Result<(), UrlFault> {
    if text.contains(is_blank_or_control) {
        return Err(UrlFault::Characters);
    }
    if text.contains('\\') { Err(UrlFault::Backslash) } else { Ok(()) }
}

fn authority(text: &str) -> &str {
    text.get(SCHEME.len()..).and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default()
}

/// Whether the authority spells the host and port exactly as the parser understood them.
fn is_plain(authority: &str, url: &Url) -> bool {
    let host_end = authority.rfind(']').map_or_else(|| authority.find(':').unwrap_or(authority.len()), |end| end + 1);
    let (host, port) = authority.split_at(host_end);
    let port_is_plain = port.is_empty() || url.port_or_known_default().is_some_and(|known| port == format!(":{known}"));
    let host_is_plain = match url.host() {
        None => false,
        Some(Host::Ipv4(ip)) => host == ip.to_string(),
        Some(Host::Ipv6(ip)) => host.trim_matches(['[', ']']).parse() == Ok::<Ipv6Addr, _>(ip),
        Some(Host::Domain(name)) if name.ends_with('.') => false,
        Some(Host::Domain(name)) if host.is_ascii() => host.eq_ignore_ascii_case(name),
        // An internationalised name in its Unicode form.
        Some(Host::Domain(name)) => idna::domain_to_unicode(name).0 == host.to_lowercase(),
    };
    port_is_plain && host_is_plain
}

/// White space and control characters, including zero-width spaces and the controls of writing
/// direction. The zero-width joiners are spared, because some scripts need them in a path.
fn is_blank_or_control(character: char) -> bool {
    character.is_whitespace()
        || character.is_control()
        || matches!(character, '\u{180e}' | '\u{200b}' | '\u{2060}' | '\u{feff}')
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a name, in the lower-case ASCII form of the URL parser, could be a public host.
fn may_be_public_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let has_domain = name.contains('.') && name.split('.').all(|label| !label.is_empty());
    has_domain && !PRIVATE_DOMAINS.iter().any(|domain| is_within(name, domain))
}

fn is_within(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
