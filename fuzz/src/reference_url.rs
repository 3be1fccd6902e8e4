//! URLs of reference images, and the classification of public addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tintype_domain::address::is_public;
use tintype_domain::reference_url::{HTTPS_PORT, ReferenceUrl};
use url::{Host, Url};

/// An accepted URL is https to a public host, and two independent parsers agree on that host.
pub fn reference_url(data: &[u8]) -> bool {
    if let Some(octets) = data.first_chunk::<16>() {
        check_address(Ipv6Addr::from(*octets));
    }
    let text = String::from_utf8_lossy(data);
    let Ok(accepted) = ReferenceUrl::parse(&text, &[HTTPS_PORT]) else { return false };
    assert_eq!(accepted.as_str(), text);
    assert!(text.chars().count() <= 4_096);
    assert!(!text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\'));
    assert!(text.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://")), "{text}");

    let url = Url::parse(&text).expect("a URL");
    assert!(url.username().is_empty() && url.password().is_none(), "{text}");
    assert_eq!(url.port_or_known_default(), Some(443), "{text}");
    match url.host().expect("a host") {
        Host::Ipv4(ip) => assert!(is_public(ip.into()), "{text}"),
        Host::Ipv6(ip) => assert!(is_public(ip.into()), "{text}"),
        Host::Domain(name) => {
            let (_, last) = name.rsplit_once('.').expect("more than one label");
            assert!(!["", "localhost", "local", "internal"].contains(&last), "{text}");
            assert!(name != "home.arpa" && !name.ends_with(".home.arpa"), "{text}");
            assert!(!last.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        }
    }
    assert!(
        !format!("{accepted:?}").contains(['?', '#']),
        "the Debug form goes to the log and must not contain the query: {text}"
    );
    if let Ok(other) = text.parse::<http::Uri>() {
        let host = other.host().expect("a host");
        assert!(host.eq_ignore_ascii_case(url.host_str().expect("a host")) || is_same_address(host, &url), "{text}");
        assert!(matches!(other.port_u16(), None | Some(443)), "{text}");
    }
    true
}

fn is_same_address(host: &str, url: &Url) -> bool {
    let Some(Host::Ipv6(ip)) = url.host() else { return false };
    host.trim_matches(['[', ']']).parse() == Ok(ip)
}

/// An address that the standard library classifies as special is never public, whether written as IPv4, IPv6 or mapped.
/// A URL with a literal address is accepted exactly if the address is public and in its canonical spelling.
fn check_address(v6: Ipv6Addr) {
    let [.., a, b, c, d] = v6.octets();
    let v4 = Ipv4Addr::new(a, b, c, d);
    let special_v4 = v4.is_private()
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_broadcast()
        || v4.is_documentation()
        || v4.is_unspecified()
        || v4.is_multicast()
        || a == 0
        || a >= 240;
    let special_v6 = v6.is_loopback()
        || v6.is_unspecified()
        || v6.is_multicast()
        || v6.is_unique_local()
        || v6.is_unicast_link_local()
        || v6.to_ipv4_mapped().is_some();
    assert!(!special_v4 || !is_public(v4.into()), "{v4}");
    assert!(!special_v6 || !is_public(v6.into()), "{v6}");
    assert!(!is_public(v4.to_ipv6_mapped().into()) && !is_public(v4.to_ipv6_compatible().into()), "{v4}");

    let accepts = |host: &str| ReferenceUrl::parse(&format!("https://{host}/a.png"), &[HTTPS_PORT]).is_ok();
    for ip in [IpAddr::V4(v4), IpAddr::V6(v6)] {
        let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
        assert_eq!(accepts(&host), is_public(ip), "{host}");
        assert_eq!(accepts(&format!("{host}:443")), is_public(ip), "{host}");
        assert!(!accepts(&format!("{host}:80")) && !accepts(&format!("{host}.")), "{host}");
    }
    let number = u32::from(v4);
    for disguise in [
        format!("{number}"),
        format!("0x{number:x}"),
        format!("0{number:o}"),
        format!("0x{a:x}.{b}.{c}.{d}"),
        format!("{a}.{b}.{}", u32::from(c) * 256 + u32::from(d)),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("localhost.{v4}"),
    ] {
        assert!(!accepts(&disguise), "{disguise}");
    }
}
