//! Which URLs a caller may name, decided from the text alone.

use std::fmt;

use url::{Host, Url};

use crate::address::is_public;

/// Most characters in a reference URL.
pub const MAX_URL_CHARS: usize = 4_096;

const SCHEME: &str = "https://";

/// Domains that never mean a public host, with everything below them:
/// RFC 6761 (localhost), RFC 6762 (local), RFC 8375 (home.arpa), and internal, which ICANN set aside in 2024.
const PRIVATE_DOMAINS: [&str; 4] = ["localhost", "local", "internal", "home.arpa"];

/// A URL that may be tried: literally https, and not literally anything but public.
/// Where its host leads is known only once it is resolved, which happens when it is downloaded.
#[derive(Clone, PartialEq, Eq)]
pub struct ReferenceUrl {
    text: String,
    url: Url,
}

/// Why a URL may not be tried. Displays as what a sentence about the URL goes on with: "must name a host".
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
        if host_may_be_public { Ok(Self { text: text.to_owned(), url }) } else { Err(UrlFault::NotPublic) }
    }

    /// The text as the caller wrote it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The URL as it is requested.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// Where a `Location` header found at this URL leads, under the same rules as a caller's URL.
    pub(super) fn redirected(&self, location: &str, ports: &[u16]) -> Result<Self, UrlFault> {
        let target = self.url.join(location).map_err(|_| UrlFault::Malformed)?;
        Self::parse(target.as_str(), ports)
    }

    /// The URL without its query and fragment, which may hold secrets.
    pub(super) fn loggable(&self) -> &str {
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
    let (scheme, rest) = text.split_at_checked(SCHEME.len()).ok_or(UrlFault::Scheme)?;
    if !scheme.eq_ignore_ascii_case(SCHEME) {
        return Err(UrlFault::Scheme);
    }
    if text.chars().count() > MAX_URL_CHARS {
        return Err(UrlFault::Length);
    }
    if text.contains(is_blank_or_control) {
        return Err(UrlFault::Characters);
    }
    if text.contains('\\') {
        return Err(UrlFault::Backslash);
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.is_empty() {
        return Err(UrlFault::NoHost);
    }
    if authority.contains('@') {
        return Err(UrlFault::Userinfo);
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expected: Result<(), UrlFault>, texts: &[&str]) {
        for text in texts {
            assert_eq!(ReferenceUrl::parse(text, &[443]).map(drop), expected, "{text:?}");
        }
    }

    #[test]
    fn public_urls_pass() {
        check(
            Ok(()),
            &[
                "https://img.example.com/a.png",
                "https://x.example",
                "https://x.example.",
                "https://x.example?size=2",
                "https://x.example#top",
                "HTTPS://X.EXAMPLE/",
                "hTtPs://x.example:443/a",
                "https://x.example:/a",
                "https://x.example/a@b/c?mail=a@b",
                "https://x.example//127.0.0.1/",
                "https://8.8.8.8/a.png",
                "https://0x08080808/",
                "https://[2606:4700:4700::1111]/a.png",
                "https://bücher.example/größe.png",
                "https://x.example/\u{645}\u{6cc}\u{200c}\u{62e}.png",
                "https://notlocalhost.example/",
                "https://local.example/",
                "https://xlocal.internals/",
                "https://home.arpa.example/",
                "https://a_b.example/",
                "https://127.0.0.1.example/",
            ],
        );
    }

    #[test]
    fn other_schemes_are_refused() {
        check(
            Err(UrlFault::Scheme),
            &[
                "",
                "https",
                "https:",
                "https:/x.example/",
                "https:x.example",
                "http://x.example/",
                "httpss://x.example",
                "ftp://x.example/",
                "//x.example/",
                "x.example/a.png",
                "file:///etc/passwd",
                "data:image/png;base64,iVBORw0KGgo=",
                "iVBORw0KGgoAAAANSUhEUgAA",
                " https://x.example/",
                "\u{feff}https://x.example/",
                "ht\ntps://x.example/",
                "https:\\\\x.example/",
                "httpѕ://x.example/",
                "https:/／x.example/",
            ],
        );
    }

    #[test]
    fn blank_and_control_characters_are_refused() {
        check(
            Err(UrlFault::Characters),
            &[
                "https://x.example/a b",
                "https://x.example/ ",
                "https://x.exa\tmple/",
                "https://x.example/\n",
                "https://x.example/\r\nHost: y",
                "https://x.example/\0",
                "https://x.example/\u{7f}",
                "https://x.example/\u{85}",
                "https://x.example/\u{a0}",
                "https://x.example/\u{3000}",
                "https://x.example/\u{2028}",
                "https://x.exam\u{200b}ple/",
                "https://x.example/\u{202e}gnp.a",
                "https://x.example/\u{feff}",
                "https:// /",
            ],
        );
    }

    #[test]
    fn odd_authorities_are_refused() {
        check(Err(UrlFault::Backslash), &["https://x.example\\@y.example/", "https://x.example/a\\b", "https://\\x/"]);
        check(
            Err(UrlFault::Userinfo),
            &[
                "https://@x.example/",
                "https://u@x.example/",
                "https://u:p@x.example/",
                "https://:@x.example",
                "https://@",
            ],
        );
        check(
            Err(UrlFault::NoHost),
            &["https://", "https:///x.example/", "https:////x.example", "https://?a", "https://#a"],
        );
        check(
            Err(UrlFault::Malformed),
            &[
                "https://:443/",
                "https://x.example:port/",
                "https://x.example:65536/",
                "https://x.example:-1/",
                "https://[::1/",
                "https://[::1%25eth0]/",
                "https://[fe80::1%eth0]/",
                "https://[2606:4700:4700::1111]x/",
                "https://1.2.3.4.5/",
                "https://256.256.256.256/",
                "https://x.0x7f/",
                "https://x.example%00/",
                "https://x.example%2fy/",
                "https://u%40x.example/",
                "https://u＠x.example/",
                "https://x.example／y/",
                "https://<x>.example/",
                "https://%zz.example/",
                "https://\u{ad}/",
            ],
        );
    }

    #[test]
    fn only_the_given_ports_pass() {
        check(
            Err(UrlFault::Port),
            &["https://x.example:80/", "https://x.example:8443/", "https://8.8.8.8:22/", "https://127.0.0.1:22/"],
        );
        assert!(ReferenceUrl::parse("https://x.example:8443/", &[443, 8443]).is_ok());
        assert_eq!(ReferenceUrl::parse("https://x.example/", &[8443]), Err(UrlFault::Port));
    }

    #[test]
    fn names_that_are_not_public_are_refused() {
        check(
            Err(UrlFault::NotPublic),
            &[
                "https://localhost/",
                "https://LOCALHOST:443/",
                "https://localhost./",
                "https://localhost../",
                "https://%6cocalhost/",
                "https://ｌｏｃａｌｈｏｓｔ/",
                "https://local\u{ad}host/",
                "https://a.localhost/",
                "https://a.localhost./",
                "https://printer.local/",
                "https://printer.LOCAL./",
                "https://printer。local/",
                "https://metadata.google.internal/",
                "https://metadata.google.internal./",
                "https://home.arpa/",
                "https://nas.home.arpa./",
                "https://intranet/",
                "https://intranet./",
                "https://com./",
                "https://./",
                "https://../",
                "https://.example.com/",
                "https://x..example/",
                "https://x.example../",
                "https://127.0.0.1../",
            ],
        );
    }

    #[test]
    fn addresses_that_are_not_public_are_refused_in_every_spelling() {
        check(
            Err(UrlFault::NotPublic),
            &[
                "https://127.0.0.1/",
                "https://127.0.0.1./",
                "https://127.0.0.1:443/",
                "https://127.1/",
                "https://127.0.1/",
                "https://2130706433/",
                "https://0x7f000001/",
                "https://0x7f.1/",
                "https://0X7F.0.0.0x1/",
                "https://017700000001/",
                "https://0177.0.0.01/",
                "https://１２７.０.０.１/",
                "https://①②⑦.⓪.⓪.①/",
                "https://127。0。0。1/",
                "https://127%2e0%2e0%2e1/",
                "https://%31%32%37.0.0.1/",
                "https://0/",
                "https://0.0.0.0/",
                "https://10.1.2.3/",
                "https://100.64.0.1/",
                "https://169.254.169.254/latest/meta-data/",
                "https://2852039166/",
                "https://172.16.0.1/",
                "https://192.168.1.1/",
                "https://224.0.0.1/",
                "https://255.255.255.255/",
                "https://[::]/",
                "https://[::1]/",
                "https://[0:0:0:0:0:0:0:1]/",
                "https://[::ffff:127.0.0.1]/",
                "https://[::ffff:7f00:1]/",
                "https://[::ffff:8.8.8.8]/",
                "https://[::127.0.0.1]/",
                "https://[64:ff9b::10.0.0.1]/",
                "https://[2002:7f00:1::]/",
                "https://[fe80::1]/",
                "https://[fd00:ec2::254]/",
                "https://[ff02::1]/",
            ],
        );
    }

    #[test]
    fn length_is_counted_in_characters() {
        let of_length = |characters: usize| {
            let start = "https://x.example/";
            format!("{start}{}", "é".repeat(characters - start.len()))
        };
        assert!(ReferenceUrl::parse(&of_length(MAX_URL_CHARS), &[443]).is_ok());
        assert_eq!(ReferenceUrl::parse(&of_length(MAX_URL_CHARS + 1), &[443]), Err(UrlFault::Length));
    }

    #[test]
    fn the_original_text_is_kept_and_the_query_not_debugged() {
        let text = "HTTPS://X.example:443/a/../b?signature=secret#part";
        let url = ReferenceUrl::parse(text, &[443]).unwrap();
        assert_eq!(url.as_str(), text);
        assert_eq!(url.to_string(), text);
        assert_eq!(format!("{url:?}"), r#"ReferenceUrl("https://x.example/b")"#);
    }

    #[test]
    fn redirects_obey_the_same_rules() {
        let from = ReferenceUrl::parse("https://x.example/a/b", &[443]).unwrap();
        let followed = |location: &str| from.redirected(location, &[443]).map(|url| url.to_string());
        for (location, expected) in [
            ("c", Ok("https://x.example/a/c")),
            ("/c?d", Ok("https://x.example/c?d")),
            ("//y.example/c", Ok("https://y.example/c")),
            ("https://y.example/c", Ok("https://y.example/c")),
            ("http://y.example/c", Err(UrlFault::Scheme)),
            ("file:///etc/passwd", Err(UrlFault::Scheme)),
            ("//127.0.0.1/c", Err(UrlFault::NotPublic)),
            ("\\\\10.0.0.1\\c", Err(UrlFault::NotPublic)),
            ("https://u:p@y.example/", Err(UrlFault::Userinfo)),
            ("https://y.example:22/", Err(UrlFault::Port)),
            ("https://[", Err(UrlFault::Malformed)),
        ] {
            assert_eq!(followed(location).as_deref(), expected.as_ref().copied(), "{location}");
        }
    }
}
