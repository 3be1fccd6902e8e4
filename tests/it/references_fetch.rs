//! Reference images downloaded over real TLS from a server on loopback.

use std::collections::{HashMap, VecDeque};
use std::io::{Cursor, ErrorKind};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use image::{ImageFormat, RgbImage};
use serde_json::json;
use tintype_domain::reference_url::ReferenceUrl;
use tintype_outbound::SetupError;
use tintype_outbound::references::{FaultKind, ReferenceFault, ReferenceOptions, References, TrustedTestHost};
use tintype_system::sandbox::Decoder;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use tokio_rustls::TlsAcceptor;

use crate::rigs::binary::TINTYPE;
use crate::rigs::certificates::{accept, certificate};
use crate::rigs::service::Service;

pub const HOST: &str = "images.example.com";

#[derive(Clone)]
pub enum Reply {
    /// One after the other, and the last one again and again.
    InTurn(Arc<Mutex<VecDeque<Reply>>>),
    /// These bytes, and then it closes.
    Whole(Vec<u8>),
    /// These bytes, once all requests have arrived at the barrier.
    Together(Arc<Barrier>, Vec<u8>),
    /// These bytes, and then zeros without end.
    Endless(Vec<u8>),
    /// These bytes, and then nothing.
    Stalled(Vec<u8>),
    /// These bytes, and then one byte now and then, without end.
    Dripping(Vec<u8>),
}

impl Reply {
    pub fn in_turn(replies: impl IntoIterator<Item = Reply>) -> Self {
        Self::InTurn(Arc::new(Mutex::new(replies.into_iter().collect())))
    }

    fn next(self) -> Self {
        let Self::InTurn(replies) = self else { return self };
        let mut replies = replies.lock().unwrap();
        if replies.len() > 1 { replies.pop_front().unwrap() } else { replies[0].clone() }
    }

    pub fn ok(body: &[u8]) -> Self {
        Self::Whole(answer("200 OK", "", body))
    }

    fn redirect(location: &str) -> Self {
        Self::Whole(answer("302 Found", &format!("Location: {location}\r\n"), b""))
    }
}

pub fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A TLS server for [`HOST`], with an authority of its own.
pub struct Server {
    pub address: SocketAddr,
    pub ca_pem: String,
    /// The request heads so far.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub async fn start<const N: usize>(replies: [(&str, Reply); N]) -> Self {
        Self::start_as(HOST, replies).await
    }

    async fn start_as<const N: usize>(certified_host: &str, replies: [(&str, Reply); N]) -> Self {
        let (tls, ca_pem) = certificate(certified_host);
        let replies: Arc<HashMap<String, Reply>> =
            Arc::new(replies.into_iter().map(|(path, reply)| (path.to_owned(), reply)).collect());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self { address: listener.local_addr().unwrap(), ca_pem, heads: Arc::default() };
        let heads = server.heads.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(converse(stream, tls.clone(), replies.clone(), heads.clone()));
            }
        });
        server
    }

    pub fn requests(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    fn references(&self, options: ReferenceOptions) -> References {
        let trust =
            TrustedTestHost { host: HOST.into(), address: self.address, ca_pem: self.ca_pem.clone().into_bytes() };
        References::new(ReferenceOptions { trust: Some(trust), decoder: Decoder::new(TINTYPE), ..options }).unwrap()
    }

    /// The size of the picture at `path`.
    pub async fn fetch(&self, path: &str) -> Result<(u32, u32), FaultKind> {
        let hasty = ReferenceOptions { retry_pause: Duration::from_millis(1), ..ReferenceOptions::default() };
        self.fetch_with(hasty, path).await
    }

    pub async fn fetch_with(&self, options: ReferenceOptions, path: &str) -> Result<(u32, u32), FaultKind> {
        match self.references(options).fetch(&[url(path)]).await {
            Ok(pictures) => {
                assert_eq!(pictures.len(), 1);
                Ok((pictures[0].width(), pictures[0].height()))
            }
            Err(ReferenceFault { index, kind }) => {
                assert_eq!(index, 0);
                Err(kind)
            }
        }
    }
}

/// Answers one request. Clients that go away early are part of the tests, so input and output may fail.
async fn converse(
    stream: TcpStream,
    tls: TlsAcceptor,
    replies: Arc<HashMap<String, Reply>>,
    heads: Arc<Mutex<Vec<String>>>,
) {
    let Some((mut stream, head)) = accept(stream, &tls).await else { return };
    let path = head.split(' ').nth(1).unwrap().to_owned();
    heads.lock().unwrap().push(head);
    let reply = replies.get(&path).cloned().unwrap_or_else(|| Reply::Whole(answer("404 Not Found", "", b"no")));
    match reply.next() {
        Reply::InTurn(_) => unreachable!("replies in turn are not nested"),
        Reply::Whole(bytes) => drop(stream.write_all(&bytes).await),
        Reply::Together(barrier, bytes) => {
            barrier.wait().await;
            drop(stream.write_all(&bytes).await);
        }
        Reply::Endless(bytes) => {
            let mut written = stream.write_all(&bytes).await;
            while written.is_ok() {
                written = stream.write_all(&[0; 16 * 1024]).await;
            }
        }
        Reply::Dripping(bytes) => {
            let mut written = stream.write_all(&bytes).await;
            while written.is_ok() && stream.flush().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
                written = stream.write_all(&[0]).await;
            }
        }
        Reply::Stalled(bytes) => {
            drop(stream.write_all(&bytes).await);
            drop(stream.flush().await);
            std::future::pending().await
        }
    }
    drop(stream.shutdown().await);
}

pub fn picture(format: ImageFormat, width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_pixel(width, height, image::Rgb([200, 40, 90])).write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

pub fn png() -> Vec<u8> {
    picture(ImageFormat::Png, 6, 4)
}

fn url(path: &str) -> ReferenceUrl {
    ReferenceUrl::parse(&format!("https://{HOST}{path}"), &[443]).unwrap()
}

#[tokio::test]
async fn pictures_come_back_in_the_order_of_their_urls() {
    let server = Server::start([
        ("/a.png", Reply::ok(&picture(ImageFormat::Png, 6, 4))),
        ("/b.jpg?size=full", Reply::ok(&picture(ImageFormat::Jpeg, 16, 9))),
        ("/c.webp", Reply::ok(&picture(ImageFormat::WebP, 7, 5))),
    ])
    .await;
    let urls = [url("/c.webp"), url("/a.png"), url("/b.jpg?size=full"), url("/a.png")];
    let pictures = server.references(ReferenceOptions::default()).fetch(&urls).await.unwrap();
    let sizes: Vec<_> = pictures.iter().map(|picture| (picture.width(), picture.height())).collect();
    assert_eq!(sizes, [(7, 5), (6, 4), (16, 9), (6, 4)]);
    assert_eq!(pictures[1].as_rgb()[..3], [200, 40, 90]);
}

#[tokio::test]
async fn without_urls_there_are_no_pictures() {
    let references = References::new(ReferenceOptions::default()).unwrap();
    assert_eq!(references.fetch(&[]).await, Ok(vec![]));
}

#[tokio::test]
async fn downloads_run_at_the_same_time() {
    let all_four = Arc::new(Barrier::new(4));
    let reply = Reply::Together(all_four, answer("200 OK", "", &png()));
    let server = Server::start([("/a.png", reply)]).await;
    let urls = [url("/a.png"), url("/a.png"), url("/a.png"), url("/a.png")];
    let references = server.references(ReferenceOptions::default());
    // In a spawned task, as in the worker, which requires a `Send` future.
    let pictures = tokio::spawn(async move { references.fetch(&urls).await }).await.unwrap().unwrap();
    assert_eq!(pictures.len(), 4);
}

#[tokio::test]
async fn the_request_sends_only_the_necessary_headers() {
    let server = Server::start([("/from?a=1", Reply::redirect("/a.png#part")), ("/a.png", Reply::ok(&png()))]).await;
    assert_eq!(server.fetch("/from?a=1").await, Ok((6, 4)));
    let heads = server.heads.lock().unwrap();
    for (head, target) in heads.iter().zip(["/from?a=1", "/a.png"]) {
        let mut lines: Vec<String> = head.trim_end().lines().map(str::to_ascii_lowercase).collect();
        lines.sort();
        let mut expected = [
            format!("get {target} http/1.1"),
            format!("host: {HOST}"),
            "accept: image/png, image/jpeg, image/webp".into(),
            "accept-encoding: identity".into(),
            format!("user-agent: tintype/{}", env!("CARGO_PKG_VERSION")),
        ];
        expected.sort();
        assert_eq!(lines, expected);
    }
    assert_eq!(heads.len(), 2);
}

#[tokio::test]
async fn three_redirects_are_followed_and_a_fourth_is_not() {
    let server = Server::start([
        ("/4", Reply::redirect("/3")),
        ("/3", Reply::redirect(&format!("https://{HOST}/2"))),
        ("/2", Reply::Whole(answer("308 Permanent Redirect", &format!("Location: //{HOST}/1\r\n"), b"gone"))),
        ("/1", Reply::redirect("a.png?b")),
        ("/a.png?b", Reply::ok(&png())),
    ])
    .await;
    assert_eq!(server.fetch("/3").await, Ok((6, 4)));
    assert_eq!(server.requests(), 4);
    assert_eq!(server.fetch("/4").await, Err(FaultKind::Unreachable));
    assert_eq!(server.requests(), 8, "the target of the fourth redirect was not asked for");
}

#[tokio::test]
async fn redirects_do_not_leave_public_https() {
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap().into_std().unwrap();
    let port = trap.local_addr().unwrap().port();
    let server = Server::start([
        ("/http", Reply::redirect(&format!("http://{HOST}:{port}/a.png"))),
        ("/loopback", Reply::redirect(&format!("https://127.0.0.1:{port}/a.png"))),
        ("/number", Reply::redirect(&format!("https://2130706433:{port}/a.png"))),
        ("/mapped", Reply::redirect(&format!("https://[::ffff:127.0.0.1]:{port}/a.png"))),
        ("/localhost", Reply::redirect(&format!("//localhost:{port}/a.png"))),
        ("/metadata", Reply::redirect("https://169.254.169.254/latest/meta-data/")),
        ("/port", Reply::redirect(&format!("https://{HOST}:1/a.png"))),
        ("/data", Reply::redirect("data:image/png;base64,AAAA")),
        ("/nowhere", Reply::Whole(answer("302 Found", "", b""))),
    ])
    .await;
    let paths = ["/http", "/loopback", "/number", "/mapped", "/localhost", "/metadata", "/port", "/data", "/nowhere"];
    for path in paths {
        let options = ReferenceOptions { ports: vec![443, port], ..ReferenceOptions::default() };
        assert_eq!(server.fetch_with(options, path).await, Err(FaultKind::Unreachable), "{path}");
    }
    assert_eq!(server.requests(), paths.len());
    // The kernel completes connections to a listener by itself, so a connection would be waiting here.
    assert_eq!(trap.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "no connection was opened");
}

#[tokio::test]
async fn only_status_200_counts() {
    let server = Server::start([
        ("/204", Reply::Whole(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec())),
        ("/206", Reply::Whole(answer("206 Partial Content", "Content-Range: bytes 0-9/10\r\n", &png()))),
        ("/304", Reply::Whole(b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec())),
        ("/401", Reply::Whole(answer("401 Unauthorized", "WWW-Authenticate: Basic\r\n", &png()))),
        ("/500", Reply::Whole(answer("500 Internal Server Error", "", &png()))),
        ("/garbage", Reply::Whole(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec())),
        ("/silent", Reply::Whole(vec![])),
    ])
    .await;
    for path in ["/204", "/206", "/304", "/401", "/500", "/garbage", "/silent", "/missing"] {
        assert_eq!(server.fetch(path).await, Err(FaultKind::Unreachable), "{path}");
    }
}

#[tokio::test]
async fn the_size_of_a_body_is_limited_with_and_without_a_content_length() {
    let max_bytes = 100_000;
    let limited = || ReferenceOptions { max_bytes, ..ReferenceOptions::default() };
    let announced = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", max_bytes + 1);
    let server = Server::start([
        // The body never comes: the length alone decides.
        ("/announced", Reply::Stalled(announced.into_bytes())),
        ("/endless", Reply::Endless(b"HTTP/1.1 200 OK\r\n\r\n".to_vec())),
        ("/exact", Reply::ok(&vec![0; max_bytes])),
    ])
    .await;
    assert_eq!(server.fetch_with(limited(), "/announced").await, Err(FaultKind::TooLarge));
    assert_eq!(server.fetch_with(limited(), "/endless").await, Err(FaultKind::TooLarge));
    assert_eq!(server.fetch_with(limited(), "/exact").await, Err(FaultKind::NotAnImage), "read to its end");
}

#[tokio::test]
async fn the_format_of_a_picture_is_found_from_its_content() {
    let mut damaged = picture(ImageFormat::Png, 64, 64);
    damaged.truncate(damaged.len() / 2);
    let server = Server::start([
        ("/html", Reply::Whole(answer("200 OK", "Content-Type: image/png\r\n", b"<!doctype html><title>hi</title>"))),
        ("/empty", Reply::ok(b"")),
        ("/gif", Reply::ok(b"GIF89a\x01\x00\x01\x00\x00\x00\x00;")),
        ("/damaged", Reply::ok(&damaged)),
        ("/wide", Reply::ok(&picture(ImageFormat::Png, 9_000, 1))),
        ("/mislabelled", Reply::Whole(answer("200 OK", "Content-Type: text/html\r\n", &png()))),
    ])
    .await;
    for path in ["/html", "/empty", "/gif"] {
        assert_eq!(server.fetch(path).await, Err(FaultKind::NotAnImage), "{path}");
    }
    assert_eq!(server.fetch("/damaged").await, Err(FaultKind::Damaged));
    assert_eq!(server.fetch("/wide").await, Err(FaultKind::TooLarge));
    assert_eq!(server.fetch("/mislabelled").await, Ok((6, 4)));
}

#[tokio::test]
async fn chunked_bodies_are_read_and_mislabelled_or_truncated_ones_refused() {
    let chunked = [
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n", png().len()).as_bytes(),
        &png(),
        b"\r\n0\r\n\r\n",
    ]
    .concat();
    let mut cut_short = answer("200 OK", "", &png());
    cut_short.pop();
    let server = Server::start([
        ("/chunked", Reply::Whole(chunked)),
        ("/identity", Reply::Whole(answer("200 OK", "Content-Encoding: Identity\r\n", &png()))),
        ("/gzip", Reply::Whole(answer("200 OK", "Content-Encoding: gzip\r\n", &png()))),
        ("/twice", Reply::Whole(answer("200 OK", "Content-Encoding: identity\r\nContent-Encoding: br\r\n", &png()))),
        ("/cut-short", Reply::Whole(cut_short)),
    ])
    .await;
    assert_eq!(server.fetch("/chunked").await, Ok((6, 4)));
    assert_eq!(server.fetch("/identity").await, Ok((6, 4)));
    for path in ["/gzip", "/twice", "/cut-short"] {
        assert_eq!(server.fetch(path).await, Err(FaultKind::Unreachable), "{path}");
    }
}

#[tokio::test]
async fn the_time_limit_covers_the_whole_download() {
    let hurried = || ReferenceOptions { time_limit: Duration::from_millis(300), ..ReferenceOptions::default() };
    let server = Server::start([
        ("/head", Reply::Stalled(vec![])),
        ("/body", Reply::Stalled(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n\x89PNG".to_vec())),
    ])
    .await;
    assert_eq!(server.fetch_with(hurried(), "/head").await, Err(FaultKind::Unreachable));
    assert_eq!(server.fetch_with(hurried(), "/body").await, Err(FaultKind::Unreachable));

    // This listener accepts no connection, so no TLS handshake begins.
    let deaf = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let elsewhere = Server { address: deaf.local_addr().unwrap(), ..server };
    assert_eq!(elsewhere.fetch_with(hurried(), "/body").await, Err(FaultKind::Unreachable));
}

#[tokio::test]
async fn a_response_must_begin_soon_and_keep_flowing() {
    let patient = || ReferenceOptions { time_limit: Duration::from_secs(600), ..ReferenceOptions::default() };
    let limit = Duration::from_millis(300);
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n\x89PNG".to_vec();
    let server = Server::start([
        ("/silent", Reply::Stalled(vec![])),
        ("/half-a-head", Reply::Stalled(b"HTTP/1.1 200 OK\r\nX: ".to_vec())),
        ("/stops", Reply::Stalled(head.clone())),
        ("/drips", Reply::Dripping(head)),
    ])
    .await;
    for path in ["/silent", "/half-a-head"] {
        let options = ReferenceOptions { first_byte_limit: limit, ..patient() };
        assert_eq!(server.fetch_with(options, path).await, Err(FaultKind::Unreachable), "{path}");
    }
    for path in ["/stops", "/drips"] {
        let options = ReferenceOptions { rate_period: limit, ..patient() };
        assert_eq!(server.fetch_with(options, path).await, Err(FaultKind::Unreachable), "{path}");
    }
}

#[tokio::test]
async fn certificates_are_checked() {
    let server = Server::start([("/a.png", Reply::ok(&png()))]).await;
    assert_eq!(server.fetch("/a.png").await, Ok((6, 4)));
    let other_authority = Server { ca_pem: certificate(HOST).1, ..server };
    assert_eq!(other_authority.fetch("/a.png").await, Err(FaultKind::Unreachable));
    assert_eq!(other_authority.requests(), 1, "no request was sent to a server with an untrusted certificate");

    let other_name = Server::start_as("other.example.com", [("/a.png", Reply::ok(&png()))]).await;
    assert_eq!(other_name.fetch("/a.png").await, Err(FaultKind::Unreachable));
    assert_eq!(other_name.requests(), 0);
}

#[tokio::test]
async fn the_first_bad_entry_is_named() {
    let server = Server::start([
        ("/a.png", Reply::ok(&png())),
        ("/html", Reply::ok(b"<!doctype html>")),
        ("/stalled", Reply::Stalled(vec![])),
    ])
    .await;
    let references = server.references(ReferenceOptions::default());

    let fault = references.fetch(&[url("/a.png"), url("/html"), url("/missing")]).await.unwrap_err();
    assert_eq!(fault.to_string(), "reference_images[1] is not a PNG, JPEG or WebP image.");

    // Downloads after a bad entry are not awaited.
    let fault = references.fetch(&[url("/missing"), url("/stalled")]).await.unwrap_err();
    assert_eq!(fault.to_string(), "reference_images[0] could not be downloaded.");
}

#[test]
fn the_test_authority_has_to_be_readable() {
    let address = "127.0.0.1:1".parse().unwrap();
    let ca_pem = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n".to_vec();
    let trust = Some(TrustedTestHost { host: HOST.into(), address, ca_pem });
    let error = References::new(ReferenceOptions { trust, ..ReferenceOptions::default() }).unwrap_err();
    assert!(matches!(error, SetupError::Authorities(_)), "{error}");
}

#[tokio::test]
async fn a_task_uses_its_references_and_fails_if_one_is_missing() {
    let server = Server::start([("/a.png", Reply::ok(&png())), ("/page", Reply::ok(b"<html>"))]).await;
    let ca = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(ca.path(), &server.ca_pem).unwrap();
    let trusted = format!("{HOST}={}", server.address);
    let flags = ["--test-reference-host", &trusted, "--test-reference-ca", &ca.path().display().to_string()];
    let (service, caller) = Service::with_caller(&flags, 100).await;
    let submit = async |paths: &[&str]| {
        let urls: Vec<_> = paths.iter().map(|path| format!("https://{HOST}{path}")).collect();
        let task = caller.submit(json!({ "prompt": "a boat", "reference_images": urls })).await;
        service.work().await;
        caller.task(task["task_id"].as_str().unwrap()).await
    };
    let task = submit(&["/a.png"]).await;
    assert_eq!((&task["status"], &task["type"]), (&json!("completed"), &json!("image-to-image")));
    assert_eq!(caller.credits().await, 98);

    for (paths, entry, reason) in [
        (&["/a.png", "/missing"][..], "reference_images[1]", "could not be downloaded"),
        (&["/page", "/a.png"], "reference_images[0]", "not a PNG, JPEG or WebP"),
    ] {
        let task = submit(paths).await;
        assert_eq!((&task["status"], &task["images"]), (&json!("failed"), &json!(null)));
        let error = task["error"].as_str().unwrap();
        assert!(error.contains(entry) && error.contains(reason), "{error}");
        assert_eq!(caller.credits().await, 98, "refunded");
    }
}
