//! The PROXY protocol: a balancer of TCP connections, HAProxy from Debian, says whom each comes from.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use tempfile::TempDir;
use tintype::http::ApiSettings;
use tintype_config::{ServerSettings, TrustedProxy};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::rigs::certificates;
use crate::rigs::http::{TASKS, exchange};
use crate::rigs::proxy::Proxy;
use crate::rigs::service::Service;

const FLAGS: [&str; 3] = ["--trusted-proxy", "127.0.0.1", "--proxy-protocol"];

/// A connection to `address` from an address of this machine.
async fn from(caller: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{caller}:0").parse().expect("an address")).expect("an address of this machine");
    socket.connect(address).await.expect("a listener")
}

/// The answer to a request for the list of tasks with no valid key, over a connection that stays open.
async fn ask(stream: &mut TcpStream) -> String {
    let request = format!("GET {TASKS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer tt_nonsense\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("an open connection");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer[9..]).into_owned()
}

#[tokio::test]
async fn callers_behind_a_balancer_are_told_apart() {
    for option in ["send-proxy", "send-proxy-v2", "send-proxy-v2-ssl-cn", "send-proxy check inter 50ms"] {
        let service = Service::start_with(&[&FLAGS[..], &["--max-connections-per-address", "1"]].concat()).await;
        let balancer = Proxy::balance(service.address, option).await;
        let mut first = from("127.0.0.2", balancer.address).await;
        assert_eq!(ask(&mut first).await, "401", "{option}");
        // The address of the first caller has no connection left, that of another one has.
        assert_eq!(ask(&mut from("127.0.0.2", balancer.address).await).await, "503", "{option}");
        assert_eq!(ask(&mut from("127.0.0.3", balancer.address).await).await, "401", "{option}");
    }
}

#[tokio::test]
async fn only_a_trusted_balancer_that_speaks_it_is_served() {
    let service = Service::start_with(&FLAGS).await;
    let header = "PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n";
    let request = "GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = async |caller: &str, text: String| {
        let mut stream = from(caller, service.address).await;
        // A connection that was closed already is an answer, too.
        drop(stream.write_all(text.as_bytes()).await);
        let mut answer = Vec::new();
        drop(stream.read_to_end(&mut answer).await);
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert!(answer("127.0.0.1", format!("{header}{request}")).await.starts_with("HTTP/1.1 200"));
    assert!(answer("127.0.0.1", format!("PROXY UNKNOWN\r\n{request}")).await.starts_with("HTTP/1.1 200"));
    assert_eq!(answer("127.0.0.1", request.into()).await, "", "without a header");
    assert_eq!(answer("127.0.0.2", format!("{header}{request}")).await, "", "from somebody else");
    assert_eq!(answer("127.0.0.1", format!("{header}{header}{request}")).await.get(9..12), Some("400"), "twice");
}

#[tokio::test]
async fn tls_begins_behind_the_header() {
    let files = TempDir::new().expect("a directory");
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| files.path().join(name).display().to_string());
    std::fs::write(&cert, signed.cert.pem()).expect("a file");
    std::fs::write(&key, signed.signing_key.serialize_pem()).expect("a file");
    let service = Service::start_with(&[&FLAGS[..], &["--tls-cert", &cert, "--tls-key", &key]].concat()).await;
    let balancer = Proxy::balance(service.address, "send-proxy-v2").await;
    let stream = from("127.0.0.2", balancer.address).await;
    let stream = certificates::connect(stream, "localhost", signed.cert.der()).await.expect("a handshake");
    let request = Request::get("/healthz").header("host", "localhost").body(Full::<Bytes>::default());
    assert_eq!(exchange(stream, request.expect("a request")).await.status, 200);
}

#[test]
fn it_needs_a_balancer() {
    let settings = ServerSettings::from_flags(["--proxy-protocol"]).expect("flags");
    let refused = ApiSettings::new(&settings, "http://127.0.0.1:8080").expect_err("no balancer");
    assert!(refused.contains("--trusted-proxy"), "{refused}");
    let flags = ["--proxy-protocol", "--trusted-proxy", "10.0.0.0/8", "unix"];
    let settings = ServerSettings::from_flags(flags).expect("flags");
    let settings = ApiSettings::new(&settings, "http://127.0.0.1:8080").expect("settings");
    // A balancer of connections sets no headers, so those come from callers.
    assert_eq!(settings.trusted_proxies, [TrustedProxy::Socket]);
    assert_eq!(settings.balancers.len(), 1);
}
