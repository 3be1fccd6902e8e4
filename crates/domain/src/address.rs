//! Classification of public IP addresses, and of URLs of this machine.
//!
//! The rows are the IANA special-purpose address registries (RFC 6890, as kept at
//! <https://www.iana.org/assignments/iana-ipv4-special-registry> and `iana-ipv6-special-registry`), read strictly:
//! a block that is public only for one protocol, such as the anycast addresses inside 192.0.0.0/24, counts as not
//! public, because no web server lives there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use url::{Host, Url};

/// IPv4 blocks that are not public.
const SPECIAL_V4: [Ipv4Net; 19] = [
    v4([0, 0, 0, 0], 8),          // "this network", RFC 791; Linux dials 0.0.0.0 as the machine itself
    v4([10, 0, 0, 0], 8),         // private use, RFC 1918
    v4([100, 64, 0, 0], 10),      // shared by carrier-grade NAT, RFC 6598
    v4([127, 0, 0, 0], 8),        // loopback, RFC 1122
    v4([169, 254, 0, 0], 16),     // link-local and cloud metadata, RFC 3927
    v4([172, 16, 0, 0], 12),      // private use, RFC 1918
    v4([192, 0, 0, 0], 24),       // IETF protocol assignments, RFC 6890
    v4([192, 0, 2, 0], 24),       // documentation TEST-NET-1, RFC 5737
    v4([192, 31, 196, 0], 24),    // AS112, a sink for reverse look-ups, RFC 7535
    v4([192, 52, 193, 0], 24),    // multicast relays, RFC 7450
    v4([192, 88, 99, 0], 24),     // 6to4 relay anycast, RFC 3068, retired by RFC 7526
    v4([192, 168, 0, 0], 16),     // private use, RFC 1918
    v4([192, 175, 48, 0], 24),    // AS112 again, RFC 7534
    v4([198, 18, 0, 0], 15),      // benchmarking, RFC 2544
    v4([198, 51, 100, 0], 24),    // documentation TEST-NET-2, RFC 5737
    v4([203, 0, 113, 0], 24),     // documentation TEST-NET-3, RFC 5737
    v4([224, 0, 0, 0], 4),        // multicast, RFC 5771
    v4([240, 0, 0, 0], 4),        // reserved, RFC 1112
    v4([255, 255, 255, 255], 32), // limited broadcast, RFC 8190
];

/// The only IPv6 block handed out as global unicast, RFC 4291. Everything outside it is refused without a row of its
/// own: loopback and unspecified (RFC 4291), IPv4-mapped and IPv4-compatible (RFC 4291), local-use NAT64 64:ff9b:1::/48
/// (RFC 8215), discard-only 100::/64 (RFC 6666), segment routing 5f00::/16 (RFC 9602), unique local fc00::/7 (RFC
/// 4193), link-local fe80::/10 (RFC 4291), site-local fec0::/10 (RFC 3879), and multicast ff00::/8 (RFC 4291).
const GLOBAL_UNICAST_V6: Ipv6Net = v6([0x2000, 0, 0, 0, 0, 0], 3);

/// IPv6 blocks within [`GLOBAL_UNICAST_V6`] that are not public.
const SPECIAL_V6: [Ipv6Net; 5] = [
    // IETF protocol assignments, RFC 2928: Teredo 2001::/32 (RFC 4380), benchmarking 2001:2::/48 (RFC 5180),
    // ORCHID 2001:10::/28 (RFC 4843) and ORCHIDv2 2001:20::/28 (RFC 7343), drone ids 2001:30::/28 (RFC 9374).
    v6([0x2001, 0, 0, 0, 0, 0], 23),
    v6([0x2001, 0xdb8, 0, 0, 0, 0], 32),     // documentation, RFC 3849
    v6([0x2002, 0, 0, 0, 0, 0], 16),         // 6to4, RFC 3056: carries an IPv4 address, private ones too
    v6([0x2620, 0x4f, 0x8000, 0, 0, 0], 48), // AS112, RFC 7534
    v6([0x3fff, 0, 0, 0, 0, 0], 20),         // documentation, RFC 9637
];

/// Well-known NAT64 prefix, RFC 6052: the IPv4 internet as a host with IPv6 alone sees it.
const NAT64: Ipv6Net = v6([0x64, 0xff9b, 0, 0, 0, 0], 96);

const fn v4([a, b, c, d]: [u8; 4], prefix_len: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix_len)
}

/// The last two groups are zero in every block above.
const fn v6([a, b, c, d, e, f]: [u16; 6], prefix_len: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, e, f, 0, 0), prefix_len)
}

/// Whether a URL points to this machine, so that no network sees what is sent there.
pub fn is_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    }
}

/// Whether `ip` is a globally routable unicast address, judging by the address alone.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) if NAT64.contains(&ip) => is_public_v4(last_four_bytes(ip)),
        IpAddr::V6(ip) => GLOBAL_UNICAST_V6.contains(&ip) && !SPECIAL_V6.iter().any(|block| block.contains(&ip)),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    !SPECIAL_V4.iter().any(|block| block.contains(&ip))
}

/// The IPv4 address in a NAT64 address.
fn last_four_bytes(ip: Ipv6Addr) -> Ipv4Addr {
    let [.., a, b, c, d] = ip.octets();
    Ipv4Addr::new(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expected: bool, addresses: &str) {
        for text in addresses.split_whitespace() {
            let ip: IpAddr = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(is_public(ip), expected, "{text}");
        }
    }

    #[test]
    fn public_addresses_pass() {
        check(true, "1.1.1.1 8.8.8.8 93.184.215.14 2606:4700:4700::1111 64:ff9b::808:808");
        // Both neighbours of every special block.
        check(
            true,
            "1.0.0.0
            9.255.255.255 11.0.0.0
            100.63.255.255 100.128.0.0
            126.255.255.255 128.0.0.0
            169.253.255.255 169.255.0.0
            172.15.255.255 172.32.0.0
            191.255.255.255 192.0.1.0 192.0.3.0
            192.31.195.255 192.31.197.0
            192.52.192.255 192.52.194.0
            192.88.98.255 192.88.100.0
            192.167.255.255 192.169.0.0
            192.175.47.255 192.175.49.0
            198.17.255.255 198.20.0.0
            198.51.99.255 198.51.101.0
            203.0.112.255 203.0.114.0
            223.255.255.255
            2000::1 2001:200::1
            2001:db7:ffff:: 2001:db9::
            2003::1
            2620:4f:7fff::1 2620:4f:8001::1
            3ffe:ffff::1 3fff:1000::1",
        );
    }

    #[test]
    fn special_ipv4_addresses_are_refused() {
        check(
            false,
            "0.0.0.0 0.255.255.255
            10.0.0.0 10.255.255.255
            100.64.0.0 100.100.100.200 100.127.255.255
            127.0.0.1 127.255.255.255
            169.254.0.0 169.254.169.254 169.254.255.255
            172.16.0.0 172.31.255.255
            192.0.0.0 192.0.0.9 192.0.0.192 192.0.0.255
            192.0.2.1
            192.31.196.1
            192.52.193.1
            192.88.99.1
            192.168.0.0 192.168.255.255
            192.175.48.6
            198.18.0.0 198.19.255.255
            198.51.100.1
            203.0.113.255
            224.0.0.1 239.255.255.255
            240.0.0.0 255.255.255.254 255.255.255.255",
        );
    }

    #[test]
    fn special_ipv6_addresses_are_refused() {
        check(
            false,
            ":: ::1 ::8.8.8.8
            ::ffff:8.8.8.8 ::ffff:127.0.0.1 ::ffff:0:8.8.8.8
            64:ff9b:: 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254
            64:ff9b::1:808:808 64:ff9b:1::808:808
            100::1 1fff:ffff::1
            2001::1 2001:2::1 2001:10::1 2001:20::1 2001:1ff:ffff::1
            2001:db8::1 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff
            2002:808:808::1 2002:7f00:1::1
            2620:4f:8000::1
            3fff::1 3fff:fff:ffff::1
            4000::1 5f00::1
            fc00::1 fd00:ec2::254
            fe80::1 fec0::1
            ff02::1",
        );
    }
}
