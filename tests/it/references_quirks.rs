//! Hosts of reference images as they are in the field: busy, restarting, and compressing whatever they send.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use image::ImageFormat;
use tintype_outbound::references::{FaultKind, ReferenceOptions};

use crate::references_fetch::{Reply, Server, answer, picture, png};

type Fetched = Result<(u32, u32), FaultKind>;

const FETCHED: Fetched = Ok((6, 4));
const UNREACHABLE: Fetched = Err(FaultKind::Unreachable);

fn status(line: &str, headers: &str) -> Reply {
    Reply::Whole(answer(line, headers, b"<html>no</html>"))
}

/// An answer that announces one byte more than it has.
fn truncated() -> Reply {
    let mut bytes = answer("200 OK", "", &png());
    bytes.pop();
    Reply::Whole(bytes)
}

#[tokio::test]
async fn a_host_that_is_busy_or_breaks_off_is_asked_again_and_one_that_says_no_is_not() {
    let date = "Date: Thu, 26 Nov 2026 00:00:00 GMT\r\n";
    let later = |time: &str| format!("{date}Retry-After: Thu, 26 Nov 2026 {time} GMT\r\n");
    let odd = "Server : Apache\r\nPHP Warning: no module in Unknown on line 0\r\nSet-Cookie: __utmv=d\x01O\r\n";
    let odd = Reply::Whole(answer("200 OK", odd, &png()));
    for (source, first, outcome, requests) in [
        ("reqwest#1189, attohttpc#96, hyper#2879 (Imperva): lines that are no headers", vec![odd], FETCHED, 1),
        ("upload.wikimedia.org under load", vec![status("429 Too Many Requests", "Retry-After: 0\r\n")], FETCHED, 2),
        ("a date that is reached", vec![status("503 Service Unavailable", &later("00:00:00"))], FETCHED, 2),
        (
            "nginx while its upstream restarts",
            vec![status("502 Bad Gateway", ""), status("502 Bad Gateway", "")],
            FETCHED,
            3,
        ),
        ("a load balancer", vec![status("504 Gateway Time-out", "")], FETCHED, 2),
        ("Cloudflare with its origin down", vec![status("521 ", "")], FETCHED, 2),
        ("a connection reset before the answer", vec![Reply::Whole(Vec::new())], FETCHED, 2),
        ("github.com/antiwork/gumroad/pull/4719: broken off", vec![truncated(), truncated(), truncated()], FETCHED, 4),
        ("a host that never recovers", vec![status("503 Service Unavailable", ""); 9], UNREACHABLE, 4),
        ("a host that asks for a minute", vec![status("429 Too Many Requests", "Retry-After: 60\r\n")], UNREACHABLE, 1),
        ("a date that is far away", vec![status("503 Service Unavailable", &later("00:10:00"))], UNREACHABLE, 1),
        (
            "github.com/NousResearch/hermes-agent/issues/32296: missing",
            vec![status("404 Not Found", "")],
            UNREACHABLE,
            1,
        ),
        ("hotlinking is forbidden", vec![status("403 Forbidden", "Retry-After: 0\r\n")], UNREACHABLE, 1),
        ("gone", vec![status("410 Gone", "")], UNREACHABLE, 1),
        ("a bug of the host", vec![status("500 Internal Server Error", "")], UNREACHABLE, 1),
        ("a page instead of the picture", vec![Reply::ok(b"<html>")], Err(FaultKind::NotAnImage), 1),
        ("a file that is damaged at its host", vec![Reply::ok(&png()[..40])], Err(FaultKind::Damaged), 1),
    ] {
        let replies = Reply::in_turn(first.into_iter().chain([Reply::ok(&png())]));
        let server = Server::start([("/a.png", replies)]).await;
        assert_eq!((server.fetch("/a.png").await, server.requests()), (outcome, requests), "{source}");
    }
}

#[tokio::test]
async fn further_tries_end_with_the_time_of_the_reference() {
    let server = Server::start([("/a.png", status("503 Service Unavailable", "Retry-After: 4\r\n"))]).await;
    let options = ReferenceOptions { time_limit: Duration::from_millis(500), ..ReferenceOptions::default() };
    assert_eq!((server.fetch_with(options, "/a.png").await, server.requests()), (UNREACHABLE, 1));
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn zlib(body: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

fn deflate(body: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

/// Brotli in its simplest form: one block that is not compressed, and an empty last one.
fn brotli(body: &[u8]) -> Vec<u8> {
    let header = (body.len() as u32 - 1) << 4 | 1 << 20;
    [&header.to_le_bytes()[..3], body, &[3]].concat()
}

#[tokio::test]
async fn the_encoding_of_a_body_is_undone_as_browsers_do() {
    let png = png();
    for (source, encoding, body, outcome) in [
        ("github.com/QuantumNous/new-api/issues/834: gzip that nobody asked for", "gzip", gzip(&png), FETCHED),
        ("an old name", "X-GZip", gzip(&png), FETCHED),
        ("bytes behind the end, which browsers ignore", "gzip", [gzip(&png), b"\r\n".to_vec()].concat(), FETCHED),
        ("deflate as the standard has it", "deflate", zlib(&png), FETCHED),
        ("deflate as IIS had it", "deflate", deflate(&png), FETCHED),
        ("Brotli of a content delivery network", "br", brotli(&png), FETCHED),
        ("a proxy that compresses once more", "br, gzip", gzip(&brotli(&png)), FETCHED),
        ("a name that is no encoding", "utf-8", png.clone(), FETCHED),
        ("S3 after an upload in chunks", "aws-chunked", png.clone(), FETCHED),
        ("no name", "", png.clone(), FETCHED),
        ("github.com/langgenius/dify/issues/9275: it is no gzip", "gzip", png.clone(), UNREACHABLE),
        ("gzip that is cut off", "gzip", gzip(&png)[..20].to_vec(), UNREACHABLE),
        ("Brotli that is cut off", "br", brotli(&png)[..20].to_vec(), UNREACHABLE),
        ("more encodings than anybody applies", "gzip,gzip,gzip,gzip", png.clone(), UNREACHABLE),
        ("a page", "gzip", gzip(b"<html>"), Err(FaultKind::NotAnImage)),
    ] {
        let reply = Reply::Whole(answer("200 OK", &format!("Content-Encoding: {encoding}\r\n"), &body));
        let server = Server::start([("/a.png", reply)]).await;
        assert_eq!((server.fetch("/a.png").await, server.requests()), (outcome, 1), "{source}");
    }
}

#[tokio::test]
async fn a_compressed_body_has_the_limit_of_an_uncompressed_one() {
    let limit = 1 << 20;
    let zeros = |length: usize| vec![0; length];
    for (encoding, body, outcome) in [
        ("gzip", gzip(&zeros(limit)), FaultKind::NotAnImage),
        ("gzip", gzip(&zeros(limit + 1)), FaultKind::TooLarge),
        ("gzip", gzip(&zeros(40 * limit)), FaultKind::TooLarge),
        ("deflate", zlib(&zeros(40 * limit)), FaultKind::TooLarge),
        ("deflate", deflate(&zeros(40 * limit)), FaultKind::TooLarge),
        ("gzip, gzip", gzip(&gzip(&zeros(40 * limit))), FaultKind::TooLarge),
    ] {
        assert!(body.len() < limit, "a bomb of {} bytes", body.len());
        let reply = Reply::Whole(answer("200 OK", &format!("Content-Encoding: {encoding}\r\n"), &body));
        let server = Server::start([("/a", reply)]).await;
        let options = ReferenceOptions { max_bytes: limit, ..ReferenceOptions::default() };
        assert_eq!(server.fetch_with(options, "/a").await, Err(outcome), "{encoding}");
    }
}

#[tokio::test]
async fn a_jpeg_that_is_cut_off_at_its_host_is_damaged() {
    let jpeg = picture(ImageFormat::Jpeg, 640, 480);
    for (cut, outcome) in
        [(jpeg.len(), Ok((640, 480))), (jpeg.len() - 2, Ok((640, 480))), (jpeg.len() / 2, Err(FaultKind::Damaged))]
    {
        let server = Server::start([("/a.jpg", Reply::ok(&jpeg[..cut]))]).await;
        assert_eq!(server.fetch("/a.jpg").await, outcome, "{cut} of {}", jpeg.len());
    }
}
