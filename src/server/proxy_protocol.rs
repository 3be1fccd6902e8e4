//! The PROXY protocol, versions 1 and 2: a balancer of TCP connections says in front of each whom it comes from.
//!
//! Only balancers that the operator trusts may speak it, and with it they have to.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The start of each header of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The start of each header of version 1.
const PREFIX: &[u8] = b"PROXY ";
/// Longest line of version 1, with its end.
const LONGEST_LINE: usize = 107;
/// Most bytes behind the fixed part of version 2: addresses, and what balancers add to them.
const MAX_REST: usize = 4096;

/// Reads the header, and nothing behind it. Returns the caller, or `None` if the connection is the balancer's own.
///
/// # Errors
/// The connection ends early, or does not begin with a header.
pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    // No header of either version is shorter.
    let mut start = [0; SIGNATURE.len()];
    stream.read_exact(&mut start).await?;
    if start == SIGNATURE {
        let mut head = [0; 4];
        stream.read_exact(&mut head).await?;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        if length > MAX_REST {
            return Err(malformed("it is longer than 4 KiB"));
        }
        let mut rest = vec![0; length];
        stream.read_exact(&mut rest).await?;
        return binary(head[0], head[1], &rest).map_err(malformed);
    }
    if !start.starts_with(PREFIX) {
        return Err(malformed("the connection does not begin with one"));
    }
    let mut line = start.to_vec();
    while !line.ends_with(b"\r\n") {
        if line.len() == LONGEST_LINE {
            return Err(malformed("the line has no end"));
        }
        line.push(stream.read_u8().await?);
    }
    text(&line[PREFIX.len()..line.len() - 2]).map_err(malformed)
}

fn malformed(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

/// Parses what stands between `PROXY ` and the end of a line of version 1.
fn text(line: &[u8]) -> Result<Option<IpAddr>, &'static str> {
    let line = std::str::from_utf8(line).map_err(|_| "the line is not text")?;
    let fields: Vec<_> = line.split(' ').collect();
    let (family, fields) = fields.split_first().ok_or("the line is empty")?;
    let invalid = "the line names no address";
    let ports = || fields[2..].iter().all(|port| port.parse::<u16>().is_ok());
    match *family {
        // For example, a simple load balancer's health check. Anything may follow.
        "UNKNOWN" => Ok(None),
        "TCP4" if fields.len() == 4 && fields[1].parse::<Ipv4Addr>().is_ok() && ports() => {
            fields[0].parse().map(|address| Some(IpAddr::V4(address))).map_err(|_| invalid)
        }
        "TCP6" if fields.len() == 4 && fields[1].parse::<Ipv6Addr>().is_ok() && ports() => {
            fields[0].parse().map(|address| Some(IpAddr::V6(address))).map_err(|_| invalid)
        }
        _ => Err(invalid),
    }
}

/// Parses a header of version 2 behind its signature: version and command, family, and the bytes behind the length.
fn binary(command: u8, family: u8, rest: &[u8]) -> Result<Option<IpAddr>, &'static str> {
    match command {
        // A check of health by the balancer itself.
        0x20 => return Ok(None),
        0x21 => {}
        _ => return Err("its version or command is unknown"),
    }
    let short = "it is too short for its addresses";
    match family {
        // Unspecified, or Unix domain sockets: the load balancer has no address.
        0x00 | 0x31 => Ok(None),
        // The addresses of both ends and their ports.
        0x11 => {
            rest.get(..12).and_then(|all| all.first_chunk::<4>()).map(|address| Some((*address).into())).ok_or(short)
        }
        0x21 => {
            rest.get(..36).and_then(|all| all.first_chunk::<16>()).map(|address| Some((*address).into())).ok_or(short)
        }
        _ => Err("it is not about a TCP connection"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a header from bytes, and returns how many were left.
    fn parse(mut bytes: &[u8]) -> (Result<Option<IpAddr>, String>, usize) {
        let read = futures::FutureExt::now_or_never(read(&mut bytes)).expect("bytes are there");
        (read.map_err(|error| error.to_string()), bytes.len())
    }

    fn of_version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).expect("a short header").to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[test]
    fn headers_of_the_field_are_read() {
        let v4 = Some("192.0.2.7".parse().expect("an address"));
        let v6 = Some("2001:db8::7".parse().expect("an address"));
        let addresses: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 1, 0xdc, 0x04, 1, 0xbb];
        let long = [&addresses[..], &[0x03, 0, 4, 1, 2, 3, 4, 0x04, 0, 0]].concat();
        let v6_bytes =
            ["2001:db8::7", "2001:db8::1"].map(|text| text.parse::<Ipv6Addr>().expect("an address").octets());
        let of_v6 = [v6_bytes.concat(), vec![0xdc, 0x04, 1, 0xbb]].concat();
        let cases = [
            ("HAProxy, send-proxy", b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n".to_vec(), v4),
            ("the same over IPv6", b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 443\r\n".to_vec(), v6),
            ("a check of HAProxy 1.5", b"PROXY UNKNOWN\r\n".to_vec(), None),
            ("the longest line of the specification", format!("PROXY UNKNOWN{:<92}\r\n", "").into_bytes(), None),
            ("HAProxy, send-proxy-v2", of_version_2(0x21, 0x11, &addresses), v4),
            ("AWS NLB, with TLVs", of_version_2(0x21, 0x11, &long), v4),
            ("the same over IPv6", of_version_2(0x21, 0x21, &of_v6), v6),
            ("a check of AWS NLB: LOCAL", of_version_2(0x20, 0x00, &[]), None),
            ("LOCAL with addresses", of_version_2(0x20, 0x11, &addresses), None),
            ("a Unix domain socket", of_version_2(0x21, 0x31, &[0; 216]), None),
        ];
        for (source, header, caller) in cases {
            let behind = [&header[..], b"GET /"].concat();
            assert_eq!(parse(&behind), (Ok(caller), 5), "{source}");
            for length in 0..header.len() {
                assert!(parse(&header[..length]).0.is_err(), "{source}, cut at {length}");
            }
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let overlong = format!("PROXY TCP4 {}", "1".repeat(200));
        let cases = [
            ("no header", b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
            ("TLS", [&[0x16, 3, 1, 2, 0, 1][..], &[0; 60]].concat()),
            ("no end", overlong.into_bytes()),
            ("a name for an address", b"PROXY TCP4 localhost 198.51.100.1 1 2\r\n".to_vec()),
            ("an address of the other family", b"PROXY TCP4 2001:db8::7 2001:db8::1 1 2\r\n".to_vec()),
            ("two spaces", b"PROXY TCP4  192.0.2.7 198.51.100.1 1 2\r\n".to_vec()),
            ("a port too many", b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2 3\r\n".to_vec()),
            ("a port that is none", b"PROXY TCP4 192.0.2.7 198.51.100.1 1 65536\r\n".to_vec()),
            ("lower case", b"proxy TCP4 192.0.2.7 198.51.100.1 1 2\r\n".to_vec()),
            ("a short version 2", of_version_2(0x21, 0x11, &[1; 11])),
            ("version 3", of_version_2(0x31, 0x11, &[1; 12])),
            ("UDP", of_version_2(0x21, 0x12, &[1; 12])),
            ("mastercactapus/caddy-proxyprotocol#8, which ended a server", of_version_2(0x21, 0x12, &[])),
            ("a long version 2", of_version_2(0x21, 0x11, &[1; MAX_REST + 1])),
        ];
        for (case, bytes) in cases {
            assert!(parse(&bytes).0.is_err(), "{case}");
        }
    }

    proptest! {
        #[test]
        fn every_address_survives(address: IpAddr, other: IpAddr, port: u16, rest: Vec<u8>) {
            let line = match (address, other) {
                (IpAddr::V4(from), IpAddr::V4(to)) => format!("PROXY TCP4 {from} {to} {port} 1\r\n"),
                (IpAddr::V6(from), IpAddr::V6(to)) => format!("PROXY TCP6 {from} {to} {port} 1\r\n"),
                _ => "PROXY UNKNOWN\r\n".into(),
            };
            let named = (address.is_ipv4() == other.is_ipv4()).then_some(address);
            let bytes = [line.as_bytes(), &rest].concat();
            prop_assert_eq!(parse(&bytes), (Ok(named), rest.len()));
        }

        #[test]
        fn no_bytes_make_it_panic_or_read_too_far(prefix in 0..3_usize, bytes: Vec<u8>) {
            let start = [&b""[..], PREFIX, &SIGNATURE][prefix];
            let all = [start, &bytes].concat();
            let (_, left) = parse(&all);
            prop_assert!(all.len() - left <= SIGNATURE.len() + 4 + MAX_REST);
        }
    }
}
