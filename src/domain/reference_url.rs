//! The URLs that a caller may name, checked by their text alone.

use std::fmt;
use std::net::Ipv6Addr;

use url::{Host, Url};

use crate::domain::address::is_public;

#[cfg(test)]
mod tests;

/// The port that reference URLs may name unless the settings allow others.
pub const HTTPS_PORT: u16 = 443;
/// Most characters in a reference URL.
pub const MAX_URL_CHARS: usize = 4_096;

const SCHEME: &str = "https://";

/// Domains that never mean a public host, with everything below them:
/// RFC 6761 (localhost), RFC 6762 (local), RFC 8375 (home.arpa), and internal, which ICANN set aside in 2024.
const PRIVATE_DOMAINS: [&str; 4] = ["localhost", "local", "internal", "home.arpa"];

/// A URL that may be downloaded: it uses https, and its text names no host that is not public. The addresses of its
/// host are checked when it is downloaded.
#[derive(Clone, PartialEq, Eq)]
pub struct ReferenceUrl {
    text: String,
    url: Url,
}

/// A rule for URLs that a text breaks. Displays as the rest of a sentence about the URL: "must name a host".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlFault {
    /// Not https; a `data:` URI or bare base64 ends here too.
    #[error("must use the https:// scheme")]
    Scheme,
    /// Longer than [`MAX_URL_CHARS`].
    #[error("must be at most {MAX_URL_CHARS} characters long")]
    Length,
    /// White space or a control character, of ASCII or of the rest of Unicode.
    #[error("must not contain white space or control characters")]
    Characters,
    /// A backslash, which some URL parsers read as a slash and others do not.
    #[error("must not contain a backslash")]
    Backslash,
    /// An `@` before the path.
    #[error("must not contain a user name or password")]
    Userinfo,
    /// No host, as in `https:///path`.
    #[error("must name a host")]
    NoHost,
    /// The host or the port cannot be read.
    #[error("is not a valid URL")]
    Malformed,
    /// A port that this service does not connect to.
    #[error("must not name a port other than the one for https")]
    Port,
    /// The host is not on the public internet, whatever it may resolve to.
    #[error("must point to a public host")]
    NotPublic,
    /// The host or port is another than the text plainly says: `0x08080808`, full-width digits, a final dot, `%61`.
    #[error("must spell its host and port plainly")]
    Disguised,
}

impl ReferenceUrl {
    /// Reads a URL whose port, 443 unless it names another, is one of `ports`. Does no I/O.
    ///
    /// # Errors
    /// [`UrlFault`]: the first rule that the text breaks.
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

    /// The URL as it is requested.
    pub(crate) fn url(&self) -> &Url {
        &self.url
    }

    /// The host as it is looked up.
    pub(crate) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Where a `Location` header found at this URL leads, under the same rules as a caller's URL. A host that it names
    /// is judged as it is written there, before anything is mended.
    pub(crate) fn redirected(&self, location: &str, ports: &[u16]) -> Result<Self, UrlFault> {
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

    /// The URL without its query and fragment, which may hold secrets.
    pub(crate) fn loggable(&self) -> &str {
        &self.url[..url::Position::AfterPath]
    }
}

impl fmt::Display for ReferenceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Leaves out the query and fragment, since what is debugged tends to be logged.
impl fmt::Debug for ReferenceUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("ReferenceUrl").field(&self.loggable()).finish()
    }
}

/// Refuses what the URL standard would mend: it drops tabs and newlines, turns backslashes into slashes, and takes
/// any number of slashes after the scheme. Other software may mend it otherwise.
fn check_text(text: &str) -> Result<(), UrlFault> {
    // The scheme is ASCII, so a split at its length is either at a character or not https anyway.
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

/// What stands between the scheme, which the text is known to begin with, and the path.
fn authority(text: &str) -> &str {
    text.get(SCHEME.len()..).and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default()
}

/// Whether the text of an authority says the same host and port as the parser understood.
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
        // A name of other scripts, as it would be shown.
        Some(Host::Domain(name)) => idna::domain_to_unicode(name).0 == host.to_lowercase(),
    };
    port_is_plain && host_is_plain
}

/// White space and controls, including what Unicode files elsewhere: zero-width spaces and the controls of writing
/// direction. The zero-width joiners are spared, because some scripts need them in a path.
fn is_blank_or_control(character: char) -> bool {
    character.is_whitespace()
        || character.is_control()
        || matches!(character, '\u{180e}' | '\u{200b}' | '\u{2060}' | '\u{feff}')
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a name, in the lower-case ASCII that the URL parser leaves, could be a host on the public internet.
fn may_be_public_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let has_domain = name.contains('.') && name.split('.').all(|label| !label.is_empty());
    has_domain && !PRIVATE_DOMAINS.iter().any(|domain| is_within(name, domain))
}

fn is_within(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
