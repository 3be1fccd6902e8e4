//! The downloader in a network namespace of its own, where every address leads to one server that records the address
//! dialled. The kernel counts connections to every port as well. No connection goes unnoticed, and a forbidden one
//! would even get a valid picture.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Cursor};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use image::{ImageFormat, RgbImage};
use rcgen::{CertificateParams, date_time_ymd};
use tintype_domain::reference_url::ReferenceUrl;
use tintype_outbound::public::Lookup;
use tintype_outbound::references::{FaultKind, ReferenceFault, ReferenceOptions, References, TrustedTestHost};
use tintype_system::sandbox::Decoder;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::rigs::binary::TINTYPE;
use crate::rigs::certificates::{accept, certificate_with};
use crate::rigs::network;

const A: &str = "93.184.215.14";
const B: &str = "8.8.8.8";
const V6: &str = "2606:2800:21f:cb07:6820:80da:af6b:8b2c";

/// DNS answers by name, one for each lookup; the last one repeats.
struct Names(Mutex<HashMap<String, Vec<Vec<IpAddr>>>>);

#[async_trait]
impl Lookup for Names {
    async fn lookup(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let mut names = self.0.lock().unwrap();
        let answers = names.get_mut(name).ok_or_else(|| io::Error::other("no such name"))?;
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

/// The server at every address.
struct World {
    port: u16,
    ca_pem: String,
    names: Arc<Names>,
    dialled: Arc<Mutex<Vec<IpAddr>>>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl World {
    /// Serves a valid picture, and the redirects of [`redirect`].
    async fn start(leaf: CertificateParams, names: &[(&str, &[&[&str]])]) -> Self {
        let (tls, ca_pem) = certificate_with(leaf);
        // For IPv4 and IPv6 at once.
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let parse = |answers: &&[&[&str]]| -> Vec<Vec<IpAddr>> {
            answers.iter().map(|answer| answer.iter().map(|ip| ip.parse().unwrap()).collect()).collect()
        };
        let names = names.iter().map(|(name, answers)| ((*name).to_owned(), parse(answers))).collect();
        let world = Self {
            port: listener.local_addr().unwrap().port(),
            ca_pem,
            names: Arc::new(Names(Mutex::new(names))),
            dialled: Arc::default(),
            heads: Arc::default(),
        };
        let (dialled, heads) = (world.dialled.clone(), world.heads.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                dialled.lock().unwrap().push(stream.local_addr().unwrap().ip().to_canonical());
                tokio::spawn(converse(stream, tls.clone(), heads.clone()));
            }
        });
        world
    }

    /// Fetches with `PORT` in the text standing for the port of the server.
    async fn fetch(&self, text: &str) -> Result<(), FaultKind> {
        // Only its authority is used here; no test names its host.
        let trust = TrustedTestHost {
            host: "unused.example".into(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 1)),
            ca_pem: self.ca_pem.clone().into_bytes(),
        };
        let options = ReferenceOptions {
            ports: vec![443, self.port],
            decoder: Decoder::new(TINTYPE),
            trust: Some(trust),
            ..ReferenceOptions::default()
        };
        let url = ReferenceUrl::parse(&text.replace("PORT", &self.port.to_string()), &options.ports).unwrap();
        let references = References::with_lookup(options, self.names.clone()).unwrap();
        references.fetch(&[url]).await.map(drop).map_err(|ReferenceFault { kind, .. }| kind)
    }

    /// Fetches a URL, and returns the addresses dialled meanwhile, as the server saw them and as the kernel counted
    /// them.
    async fn dialled_by(&self, text: &str) -> (Result<(), FaultKind>, Vec<String>) {
        let before = connections_made();
        let outcome = self.fetch(text).await;
        let dialled: Vec<String> = self.dialled.lock().unwrap().drain(..).map(|ip| ip.to_string()).collect();
        assert_eq!(connections_made() - before, dialled.len() as u64, "{text}: none but {dialled:?}");
        (outcome, dialled)
    }
}

/// The URL at `host` that redirects to `target`.
fn redirect(host: &str, target: &str) -> String {
    let target: String = url::form_urlencoded::byte_serialize(target.as_bytes()).collect();
    format!("https://{host}:PORT/to?u={target}")
}

/// Connections that anything in this namespace has begun.
fn connections_made() -> u64 {
    let text = std::fs::read_to_string("/proc/net/snmp").unwrap();
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let names = rows.next().unwrap().split(' ');
    let row: BTreeMap<_, _> = names.zip(rows.next().unwrap().split(' ')).collect();
    row["ActiveOpens"].parse().unwrap()
}

async fn converse(stream: TcpStream, tls: TlsAcceptor, heads: Arc<Mutex<Vec<String>>>) {
    let port = stream.local_addr().unwrap().port();
    let Some((mut stream, head)) = accept(stream, &tls).await else { return };
    let sni = stream.get_ref().1.server_name().unwrap_or("none").to_owned();
    heads.lock().unwrap().push(format!("{sni} {head}"));
    let path = head.split(' ').nth(1).unwrap();
    let answer = match path.strip_prefix("/to?") {
        Some(query) => {
            let (_, target) = url::form_urlencoded::parse(query.as_bytes()).next().unwrap();
            let target = target.replace("PORT", &port.to_string());
            format!("HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n").into_bytes()
        }
        None => {
            let mut png = Cursor::new(Vec::new());
            RgbImage::new(4, 4).write_to(&mut png, ImageFormat::Png).unwrap();
            let png = png.into_inner();
            [format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", png.len()).as_bytes(), &png].concat()
        }
    };
    drop(stream.write_all(&answer).await);
    drop(stream.shutdown().await);
}

fn every_host() -> CertificateParams {
    let names =
        ["a.example", "b.example", "moves.example", "rebinds.example", A, B, V6, "127.0.0.1", "::1", "169.254.169.254"];
    CertificateParams::new(names.map(str::to_owned)).unwrap()
}

#[tokio::test]
async fn the_vetted_addresses_are_dialled_with_the_name_of_the_host() {
    if !network::is_own("references_addresses::the_vetted_addresses_are_dialled_with_the_name_of_the_host") {
        return;
    }
    let world = World::start(
        every_host(),
        &[("a.example", &[&[A]]), ("b.example", &[&[V6, B]]), ("moves.example", &[&[A], &[B]])],
    )
    .await;
    assert_eq!(world.dialled_by("https://a.example:PORT/a.png").await, (Ok(()), vec![A.into()]));
    assert_eq!(world.dialled_by("https://b.example:PORT/a.png").await, (Ok(()), vec![V6.into()]));
    assert_eq!(world.dialled_by(&format!("https://{B}:PORT/a.png")).await, (Ok(()), vec![B.into()]));
    assert_eq!(world.dialled_by(&format!("https://[{V6}]:PORT/a.png")).await, (Ok(()), vec![V6.into()]));
    // A redirect to the same name resolves it again, and dials the new address.
    let moves = redirect("moves.example", "https://moves.example:PORT/a.png");
    assert_eq!(world.dialled_by(&moves).await, (Ok(()), vec![A.into(), B.into()]));
    let heads = world.heads.lock().unwrap();
    assert!(heads[0].starts_with("a.example GET /a.png HTTP/1.1\r\n"), "{}", heads[0]);
    assert!(heads[0].to_lowercase().contains(&format!("\r\nhost: a.example:{}\r\n", world.port)), "{}", heads[0]);
}

#[tokio::test]
async fn no_address_that_is_not_public_is_ever_dialled() {
    if !network::is_own("references_addresses::no_address_that_is_not_public_is_ever_dialled") {
        return;
    }
    // One of each kind of address that is not public, alone and between good ones.
    for bad in [
        "0.0.0.0",
        "10.0.0.1",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "192.31.196.1",
        "192.52.193.1",
        "192.88.99.1",
        "192.168.0.1",
        "192.175.48.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::8.8.8.8",
        "::ffff:8.8.8.8",
        "::ffff:127.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "100::1",
        "2001::1",
        "2001:2::1",
        "2001:10::1",
        "2001:20::1",
        "2001:db8::1",
        "2002:7f00:1::",
        "2620:4f:8000::1",
        "3fff::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fec0::1",
        "ff02::1",
    ] {
        let answers: [&[&str]; 4] = [&[bad], &[A, bad], &[bad, V6], &[A, V6, B, bad]];
        for answer in answers {
            let world = World::start(every_host(), &[("a.example", &[answer]), ("b.example", &[&[A]])]).await;
            let direct = world.dialled_by("https://a.example:PORT/a.png").await;
            assert_eq!(direct, (Err(FaultKind::Unreachable), vec![]), "{answer:?}");
            let by_redirect = world.dialled_by(&redirect("b.example", "https://a.example:PORT/a.png")).await;
            assert_eq!(by_redirect, (Err(FaultKind::Unreachable), vec![A.into()]), "{answer:?}");
        }
    }
}

#[tokio::test]
async fn redirects_and_dns_rebinding_reach_no_private_address() {
    if !network::is_own("references_addresses::redirects_and_dns_rebinding_reach_no_private_address") {
        return;
    }
    let names: &[(&str, &[&[&str]])] = &[("a.example", &[&[A]]), ("rebinds.example", &[&[A], &["127.0.0.1"]])];
    for target in [
        "https://127.0.0.1:PORT/",
        "https://[::1]:PORT/",
        "https://169.254.169.254/",
        "https://2130706433:PORT/",
        "https://[::ffff:127.0.0.1]:PORT/",
        "https://0:PORT/",
        "https://127.1:PORT/",
        "https://0x7f.1:PORT/",
        "https://localhost:PORT/",
        "http://127.0.0.1:PORT/",
        "//10.0.0.1:PORT/",
        "/\\10.0.0.1:PORT/",
        "https://a.example@127.0.0.1:PORT/",
        "https://[64:ff9b::127.0.0.1]:PORT/",
        "https://１２７.0.0.1:PORT/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:PORT/",
    ] {
        let world = World::start(every_host(), names).await;
        let (outcome, dialled) = world.dialled_by(&redirect("a.example", target)).await;
        assert_eq!(outcome, Err(FaultKind::Unreachable), "{target}");
        assert!(dialled.iter().all(|ip| ip == A), "{target}: {dialled:?}");
    }
    let world = World::start(every_host(), names).await;
    let rebinds = redirect("rebinds.example", "https://rebinds.example:PORT/a.png");
    assert_eq!(world.dialled_by(&rebinds).await, (Err(FaultKind::Unreachable), vec![A.into()]));
}

#[tokio::test]
async fn a_server_with_a_bad_certificate_gets_no_request() {
    if !network::is_own("references_addresses::a_server_with_a_bad_certificate_gets_no_request") {
        return;
    }
    let mut expired = every_host();
    expired.not_after = date_time_ymd(2020, 1, 1);
    let mut early = every_host();
    early.not_before = date_time_ymd(4000, 1, 1);
    let wrong_name = CertificateParams::new(["other.test".to_owned()]).unwrap();
    let too_wide = CertificateParams::new(["*.b.example".to_owned()]).unwrap();
    for (what, leaf) in
        [("expired", expired), ("not yet valid", early), ("wrong name", wrong_name), ("other level", too_wide)]
    {
        let world = World::start(leaf, &[("a.example", &[&[A]])]).await;
        let outcome = world.dialled_by("https://a.example:PORT/a.png").await;
        assert_eq!(outcome, (Err(FaultKind::Unreachable), vec![A.into()]), "{what}");
        assert!(world.heads.lock().unwrap().is_empty(), "{what}");
    }
    let mut self_signed = World::start(every_host(), &[("a.example", &[&[A]])]).await;
    self_signed.ca_pem = certificate_with(every_host()).1;
    assert_eq!(self_signed.fetch("https://a.example:PORT/a.png").await, Err(FaultKind::Unreachable));
    assert!(self_signed.heads.lock().unwrap().is_empty());
}
