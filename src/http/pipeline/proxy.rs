//! The headers that a reverse proxy adds to a request. They only count from trusted peers.

use std::net::{IpAddr, SocketAddr};

use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::HeaderName;

use super::auth::ConnectionInfo;
use tintype_config::TrustedProxy;
use tintype_domain::source::{Peer, Source};

const PROTOCOL: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Whether a request came over HTTPS, to us or to a trusted proxy.
pub(super) fn arrived_over_https(trusted: &[TrustedProxy], request: &Request) -> bool {
    let Some(connection) = request.extensions().get::<ConnectionInfo>() else { return false };
    connection.tls || (is_trusted(trusted, connection.peer) && is_forwarded_over_https(request.headers()))
}

/// Whether there is one value and it says so. More than one means that the client added its own.
fn is_forwarded_over_https(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(&PROTOCOL).iter();
    values.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"https")) && values.next().is_none()
}

/// Why a request counts as plain HTTP, for the operator.
pub(super) fn over_plain_http(trusted: &[TrustedProxy], request: &Request) -> &'static str {
    let peer = request.extensions().get::<ConnectionInfo>().map(|connection| connection.peer);
    match peer.is_some_and(|peer| is_trusted(trusted, peer)) {
        true => "over plain HTTP: the trusted proxy's X-Forwarded-Proto is missing or not exactly https",
        false if request.headers().contains_key(&PROTOCOL) => {
            "over plain HTTP: X-Forwarded-Proto is ignored, because the sender is not a --trusted-proxy"
        }
        false => "over plain HTTP, which --production rejects",
    }
}

/// The source of a request, which limits count.
pub(super) fn source(trusted: &[TrustedProxy], request: &Request) -> Option<Source> {
    client(trusted, request).map(Source::of)
}

/// The client of a request: the peer, or the last hop before the trusted proxies.
pub(super) fn client(trusted: &[TrustedProxy], request: &Request) -> Option<Peer> {
    let peer = request.extensions().get::<ConnectionInfo>()?.peer;
    Some(last_untrusted(trusted, peer, request.headers()))
}

fn is_trusted(trusted: &[TrustedProxy], peer: Peer) -> bool {
    trusted.iter().any(|proxy| proxy.is(peer))
}

/// Walks back from the peer while the hops are trusted: each trusted hop names the previous one.
fn last_untrusted(trusted: &[TrustedProxy], peer: Peer, headers: &HeaderMap) -> Peer {
    let mut hop = peer;
    let lines: Vec<_> = headers.get_all("x-forwarded-for").iter().collect();
    let hops = lines.iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    for text in hops {
        if !is_trusted(trusted, hop) {
            break;
        }
        let Some(before) = address(text) else { break };
        hop = Peer::Address(before);
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
    use axum::http::header::HeaderValue;

    use super::*;

    #[test]
    fn the_source_is_the_last_hop_that_is_not_trusted() {
        let trusted: Vec<TrustedProxy> =
            ["10.0.0.0/8", "fd00::/8"].iter().map(|network| network.parse().expect("a network")).collect();
        let found = |peer: &str, lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("x-forwarded-for", line.parse().expect("a value"));
            }
            let peer = Peer::Address(peer.parse().expect("an address"));
            last_untrusted(&trusted, peer, &headers).to_string()
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

    #[test]
    fn a_unix_domain_socket_is_a_proxy_only_if_it_is_trusted() {
        let headers =
            HeaderMap::from_iter([("x-forwarded-for".parse().expect("a name"), HeaderValue::from_static("192.0.2.1"))]);
        let forwarded = Peer::Address("192.0.2.1".parse().expect("an address"));
        assert_eq!(last_untrusted(&[TrustedProxy::Socket], Peer::Socket, &headers), forwarded);
        let others = ["127.0.0.0/8".parse().expect("a network")];
        assert_eq!(last_untrusted(&others, Peer::Socket, &headers), Peer::Socket);
        assert_eq!(last_untrusted(&[TrustedProxy::Socket], forwarded, &headers), forwarded);
    }
}
