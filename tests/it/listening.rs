//! The forms of `--listen`: ports, names, several addresses, and Unix domain sockets.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use tempfile::TempDir;
use tokio::net::{TcpStream, UnixStream};

use crate::rigs::binary::{Server, json, refused, tintype};
use crate::rigs::http::{Answer, TASKS, exchange, send};

fn listen(data: &Path, addresses: &[&str], flags: &[&str]) -> Server {
    let mut command = tintype();
    command.args(["serve", "--log", "warn", "--data"]).arg(data).args(flags);
    for address in addresses {
        command.args(["--listen", address]);
    }
    Server::spawn(command)
}

fn places(server: &Server) -> Vec<String> {
    let lines = server.said.lines().filter_map(|line| line.trim().strip_prefix("API"));
    lines.map(|place| place.trim().trim_end_matches("/api/v1").to_owned()).collect()
}

fn get(path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let request = Request::get(path).header("host", "images.example.com");
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    request.body(Full::default()).expect("a request")
}

async fn through(socket: &Path, request: Request<Full<Bytes>>) -> Answer {
    exchange(UnixStream::connect(socket).await.expect("the server listens"), request).await
}

fn key(data: &Path) -> String {
    let created = json(data, &["key", "create", "--account", "default"]);
    format!("Bearer {}", created["key"].as_str().expect("a key"))
}

#[tokio::test]
async fn a_server_listens_on_several_addresses() {
    let data = TempDir::new().expect("a directory");
    let server = listen(data.path(), &["127.0.0.1:0", "127.0.0.2:0", "localhost:0"], &[]);
    let places = places(&server);
    assert!(places.len() >= 3 && places[1].starts_with("http://127.0.0.2:"), "{places:?}");
    for place in &places {
        let address = place.strip_prefix("http://").expect("a URL").parse().expect("an address");
        assert_eq!(send(address, "GET", "/readyz", "", "").await.status, 200, "{place}");
    }
    server.stop();
}

#[tokio::test]
async fn a_port_alone_is_local_and_a_port_after_a_colon_is_everywhere() {
    let data = TempDir::new().expect("a directory");
    for (address, elsewhere) in [("0", false), (":0", true)] {
        let server = listen(data.path(), &[address], &[]);
        let port = server.address.port();
        assert_eq!(send(server.address, "GET", "/readyz", "", "").await.status, 200);
        // Every address of 127.0.0.0/8 is this machine's, and only the first is the one that a port alone means.
        assert_eq!(TcpStream::connect(("127.0.0.9", port)).await.is_ok(), elsewhere, "{address}");
        server.stop();
    }
}

#[test]
fn an_address_that_cannot_be_used_is_reported_with_valid_forms() {
    let data = TempDir::new().expect("a directory");
    let said = refused(data.path(), &["serve", "--listen", "localhost"]);
    assert!(said.contains("--listen") && said.contains(":8080") && said.contains("unix:/"), "{said}");
    let said = refused(data.path(), &["serve", "--listen", "no-such-host.invalid:0"]);
    assert!(said.contains("no-such-host.invalid:0"), "{said}");
}

#[tokio::test]
async fn a_unix_domain_socket_serves_the_api_to_its_group_and_is_removed_at_the_end() {
    let data = TempDir::new().expect("a directory");
    let socket = data.path().join("api.sock");
    let address = format!("unix:{}", socket.display());
    let said = refused(data.path(), &["serve", "--listen", &address]);
    assert!(said.contains("--public-url"), "{said}");
    assert!(!socket.exists());
    // One connection for each address is no limit on a socket, whose peers have no address.
    let flags = ["--public-url", "https://images.example.com", "--max-connections-per-address", "1"];
    let server = listen(data.path(), &[&address], &flags);
    assert_eq!(places(&server), [address.as_str()]);
    assert_eq!(std::fs::metadata(&socket).expect("a socket").permissions().mode() & 0o777, 0o660);
    let key = key(data.path());
    let held = [UnixStream::connect(&socket).await, UnixStream::connect(&socket).await];
    assert!(held.iter().all(Result::is_ok));
    assert_eq!(through(&socket, get(TASKS, &[("authorization", &key)])).await.status, 200);
    through(&socket, get(TASKS, &[])).await.assert_error(401, "UNAUTHORIZED");
    drop(held);
    server.stop();
    assert!(!socket.exists());
}

#[tokio::test]
async fn forwarding_headers_count_on_a_socket_only_if_it_is_trusted() {
    for (flags, status) in [(&["--trusted-proxy", "unix"][..], 200), (&["--trusted-proxy", "127.0.0.0/8"], 401)] {
        let data = TempDir::new().expect("a directory");
        let socket = data.path().join("api.sock");
        let fixed = ["--production", "--public-url", "https://images.example.com"];
        let server = listen(data.path(), &[&format!("unix:{}", socket.display())], &[&fixed[..], flags].concat());
        let key = key(data.path());
        let https = [("authorization", key.as_str()), ("x-forwarded-proto", "https")];
        assert_eq!(through(&socket, get(TASKS, &https)).await.status, status, "{flags:?}");
        assert_eq!(through(&socket, get(TASKS, &https[..1])).await.status, 401, "{flags:?}");
        server.stop();
    }
}

/// Starts a server with a socket and its TCP address beside it.
fn with_socket(data: &Path) -> (Server, PathBuf) {
    let socket = data.join("api.sock");
    (listen(data, &["127.0.0.1:0", &format!("unix:{}", socket.display())], &[]), socket)
}

#[tokio::test]
async fn the_socket_of_a_killed_server_is_replaced_and_anything_else_is_not() {
    let data = TempDir::new().expect("a directory");
    let (server, socket) = with_socket(data.path());
    server.signal("KILL");
    server.wait();
    assert!(socket.exists());
    let (server, _) = with_socket(data.path());
    assert_eq!(through(&socket, get("/readyz", &[])).await.status, 200);

    let other = TempDir::new().expect("a directory");
    let address = format!("unix:{}", socket.display());
    let said = refused(other.path(), &["serve", "--listen", "127.0.0.1:0", "--listen", &address]);
    assert!(said.contains("in use") && said.contains("api.sock"), "{said}");
    assert_eq!(through(&socket, get("/readyz", &[])).await.status, 200, "the other server still has its socket");
    server.stop();

    std::fs::write(&socket, "precious").expect("a file");
    let said = refused(other.path(), &["serve", "--listen", "127.0.0.1:0", "--listen", &address]);
    assert!(said.contains("not a socket"), "{said}");
    assert_eq!(std::fs::read(&socket).expect("a file"), b"precious");
}
