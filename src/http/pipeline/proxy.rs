//! The headers that a reverse proxy adds to a request. Only those of trusted peers count.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::HeaderValue;
use ipnet::IpNet;

use super::auth::Arrival;
use crate::domain::source::Source;

/// Whether a request came over HTTPS, to us or to a trusted proxy.
pub(super) fn arrived_over_https(trusted: &[IpNet], request: &Request) -> bool {
    let Some(arrival) = request.extensions().get::<Arrival>() else { return false };
    // More than one value means that the client added one of its own.
    let mut forwarded = request.headers().get_all("x-forwarded-proto").iter();
    let https = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"https");
    let mut forwarded_over_https = || forwarded.next().is_some_and(https) && forwarded.next().is_none();
    arrival.tls || (is_trusted(trusted, arrival.peer.ip()) && forwarded_over_https())
}

/// The source of a request: the peer, or the last hop before the trusted proxies.
pub(super) fn source(trusted: &[IpNet], request: &Request) -> Option<Source> {
    let peer = request.extensions().get::<Arrival>()?.peer.ip();
    Some(Source::of(last_untrusted(trusted, peer, request.headers())))
}

fn is_trusted(trusted: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    trusted.iter().any(|network| network.contains(&address))
}

/// Walks back from the peer while the hops are trusted: a trusted hop names the one before it.
fn last_untrusted(trusted: &[IpNet], peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let mut hop = peer;
    let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
    let hops = lines.iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    for text in hops {
        if !is_trusted(trusted, hop) {
            break;
        }
        let Some(before) = address(text) else { break };
        hop = before;
    }
    hop
}

/// Parses an address; some proxies add brackets or a port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_the_last_hop_that_is_not_trusted() {
        let trusted: Vec<IpNet> =
            ["10.0.0.0/8", "fd00::/8"].iter().map(|network| network.parse().expect("a network")).collect();
        let found = |peer: &str, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().expect("a value"));
            }
            last_untrusted(&trusted, peer.parse().expect("an address"), &headers).to_string()
        };
        for (peer, lines, source) in [
            ("198.51.100.1", &["192.0.2.1"][..], "198.51.100.1"),
            ("198.51.100.1", &["10.0.0.2"], "198.51.100.1"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["192.0.2.1"], "192.0.2.1"),
            ("10.0.0.1", &["203.0.113.9, 192.0.2.1"], "192.0.2.1"),
            ("10.0.0.1", &["203.0.113.9", "192.0.2.1"], "192.0.2.1"),
            ("10.0.0.1", &["203.0.113.9,192.0.2.1 , 10.0.0.7"], "192.0.2.1"),
            ("10.0.0.1", &["192.0.2.1", "10.0.0.7"], "192.0.2.1"),
            ("10.0.0.1", &["10.0.0.3,10.0.0.7"], "10.0.0.3"),
            ("10.0.0.1", &["192.0.2.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["192.0.2.1, , "], "10.0.0.1"),
            ("10.0.0.1", &["192.0.2.1:4711"], "192.0.2.1"),
            ("fd00::1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("fd00::1", &["[2001:db8::1]"], "2001:db8::1"),
            ("::ffff:10.0.0.1", &["2001:db8::1"], "2001:db8::1"),
        ] {
            assert_eq!(found(peer, lines), source, "{peer} {lines:?}");
        }
    }
}
