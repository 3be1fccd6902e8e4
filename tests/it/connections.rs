//! Limits on connections: a peer that exceeds one does not affect other callers.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use tintype_config::ConnectionLimits;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::rigs::binary::Server;
use crate::rigs::http::{GENERATE, TASKS};
use crate::rigs::service::{Caller, Service};

/// Longer than any limit under test. The paused clock advances while everything waits.
const FOR_EVER: Duration = Duration::from_secs(3_600);

impl Service {
    /// A connection on which these bytes were written.
    pub async fn write(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        self.write_from(1, bytes).await
    }

    /// A connection from 127.0.0.`host` on which these bytes were written.
    pub async fn write_from(&self, host: u8, bytes: impl AsRef<[u8]>) -> TcpStream {
        self.write_on(TcpSocket::new_v4().expect("a socket"), host, bytes).await
    }

    /// The same with a peer that takes little from the network.
    async fn write_narrow(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4_096).expect("a small buffer");
        self.write_on(socket, 2, bytes).await
    }

    async fn write_on(&self, socket: TcpSocket, host: u8, bytes: impl AsRef<[u8]>) -> TcpStream {
        socket.bind(([127, 0, 0, host], 0).into()).expect("a local address");
        let mut stream = socket.connect(self.address).await.expect("the service listens");
        stream.write_all(bytes.as_ref()).await.expect("the service reads");
        stream
    }
}

impl Caller {
    /// The head of a submit whose body has this length.
    pub fn submit_head(&self, length: usize) -> String {
        format!(
            "POST {GENERATE} HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n",
            self.authorization()
        )
    }

    /// An answered connection from 127.0.0.`host`, which has a slot.
    pub async fn hold(&self, host: u8) -> TcpStream {
        let mut stream = self.service.write_from(host, get(TASKS, self)).await;
        assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
        stream
    }
}

/// The bytes that arrive until the other end closes or resets.
pub async fn rest(mut stream: impl AsyncRead + Unpin) -> String {
    let mut answer = Vec::new();
    let read = timeout(FOR_EVER, stream.read_to_end(&mut answer)).await;
    drop(read.expect("the connection is closed by the service"));
    String::from_utf8_lossy(&answer).into_owned()
}

/// The head and body of one answer on a connection that stays open.
pub async fn one_answer(stream: &mut TcpStream) -> String {
    let mut answer = String::new();
    loop {
        if let Some((head, body)) = answer.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
            if body.len() >= length.parse().expect("a number") {
                return answer;
            }
        }
        let mut buffer = [0; 4_096];
        let read = timeout(FOR_EVER, stream.read(&mut buffer)).await.expect("an answer").expect("an open connection");
        assert_ne!(read, 0, "closed after {answer:?}");
        answer.push_str(std::str::from_utf8(&buffer[..read]).expect("text"));
    }
}

pub fn get(path: &str, caller: &Caller) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\n\r\n", caller.authorization())
}

/// Seconds on the paused clock that pass while `wait` runs.
async fn seconds(wait: impl Future<Output = ()>) -> u64 {
    let start = tokio::time::Instant::now();
    wait.await;
    (start.elapsed().as_secs_f64()).round() as u64
}

/// Limits that differ from each other, so that the duration tells them apart.
fn distinct(limits: &mut ConnectionLimits) {
    limits.first_byte = Duration::from_secs(11);
    limits.header = Duration::from_secs(22);
    limits.body_idle = Duration::from_secs(33);
    limits.body_total = Duration::from_secs(66);
    limits.keep_alive = Duration::from_secs(44);
    limits.write_stall = Duration::from_secs(55);
}

#[tokio::test(start_paused = true)]
async fn each_wait_of_a_connection_has_its_own_limit() {
    let service = Service::start_changed(&[], distinct).await;
    let caller = service.caller("ada", 10).await;
    let stream = service.write("").await;
    assert_eq!(seconds(async { assert_eq!(rest(stream).await, "") }).await, 11, "for the first byte");

    let stream = service.write(b"GET / HTTP/1.1\r\nhost").await;
    assert_eq!(seconds(async { assert_eq!(rest(stream).await, "") }).await, 22, "for a header");

    let mut stream = caller.hold(1).await;
    stream.write_all(get(TASKS, &caller).as_bytes()).await.expect("the service reads");
    assert!(one_answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(seconds(async { assert_eq!(rest(stream).await, "") }).await, 44, "for the next request");

    let mut stream = caller.hold(1).await;
    stream.write_all(b"G").await.expect("the service reads");
    assert_eq!(seconds(async { assert_eq!(rest(stream).await, "") }).await, 22, "for a second header");

    let stream = service.write(caller.submit_head(10) + "{").await;
    let waited = seconds(async {
        let answer = rest(stream).await;
        assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("INVALID_REQUEST"), "{answer}");
    });
    assert_eq!(waited.await, 33, "for more of a body");
    assert_eq!(caller.credits().await, 10);
}

/// Writes a byte at this interval until the other end closes, and returns the seconds until then.
async fn trickle(stream: TcpStream, every: Duration, byte: &[u8]) -> (u64, String) {
    let (read, mut write) = stream.into_split();
    let writing = async {
        while write.write_all(byte).await.is_ok() {
            tokio::time::sleep(every).await;
        }
        std::future::pending::<()>().await;
    };
    let mut answer = String::new();
    let took = seconds(async {
        tokio::select! {
            () = writing => {}
            said = rest(read) => answer = said,
        }
    });
    (took.await, answer)
}

#[tokio::test(start_paused = true)]
async fn a_request_that_trickles_in_is_cut_off() {
    let service = Service::start_changed(&[], distinct).await;
    let caller = service.caller("ada", 10).await;
    let stream = service.write(b"GET / HTTP/1.1\r\nhost: x\r\nx: ").await;
    let (took, answer) = trickle(stream, Duration::from_secs(1), b"a").await;
    assert!((22..=24).contains(&took) && answer.is_empty(), "{took} s: {answer}");

    let stream = service.write(caller.submit_head(1_000)).await;
    let (took, answer) = trickle(stream, Duration::from_secs(5), b" ").await;
    assert!((66..=75).contains(&took) && answer.starts_with("HTTP/1.1 408 "), "{took} s: {answer}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_peer_reads_too_slowly_is_closed() {
    let service = Service::start_changed(&[], distinct).await;
    let request = "GET /docs/scalar.js HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut stream = service.write(request.repeat(64)).await;
    let mut answers = Vec::new();
    let dripping = async {
        let mut bytes = [0; 16];
        // The peer reads once every ten seconds.
        while let Ok(read) = stream.read(&mut bytes).await {
            answers.extend_from_slice(&bytes[..read]);
            tokio::time::sleep(Duration::from_secs(10)).await;
            if read == 0 || answers.len() > 100_000 {
                break;
            }
        }
    };
    // A peer sees the end only after it has read everything under way, so the test asks the service instead.
    drop(timeout(Duration::from_secs(600), dripping).await);
    drop(timeout(FOR_EVER, stream.read_to_end(&mut answers)).await.expect("an end"));
    let begun = answers.windows(15).filter(|window| window == b"HTTP/1.1 200 OK").count();
    assert!((1..63).contains(&begun), "{begun} answers were begun");
}

/// Proxies made with Node.js do so: they pass the header on, and the body at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_reaches_a_caller_that_announces_to_wait_and_does_not() {
    const BYTES: usize = 32 * 1024 * 1024;
    let service = Service::start().await;
    let head = format!(
        "POST {GENERATE} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer tt_no\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {BYTES}\r\n\r\n"
    );
    let mut stream = service.write(head).await;
    stream.write_all(&vec![b' '; BYTES]).await.expect("the service reads all of it");
    stream.shutdown().await.expect("an open connection");
    let answer = rest(stream).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn the_kernel_holds_little_of_what_a_peer_does_not_read_and_the_connection_is_aborted() {
    let service = Service::start_changed(&[], distinct).await;
    let request = "GET /docs/scalar.js HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let mut stream = service.write_narrow(request).await;
    // Everything waits for this peer until the service gives up. An aborted connection discards what was under way.
    tokio::time::sleep(FOR_EVER).await;
    let mut taken = Vec::new();
    let read = stream.read_to_end(&mut taken).await.expect_err("the connection is reset");
    assert_eq!(read.kind(), std::io::ErrorKind::ConnectionReset, "after {} bytes", taken.len());
}

#[tokio::test(start_paused = true)]
async fn a_connection_keeps_its_slot_until_its_peer_has_closed_or_is_too_late() {
    let flags = ["--max-connections-per-address", "1"];
    let service = Service::start_changed(&flags, distinct).await;
    let status = async || {
        let stream = service.write_from(2, b"GET /docs/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        rest(stream).await.get(9..12).map(str::to_owned)
    };
    for request in ["GET /openapi.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", "nonsense\r\n\r\n"] {
        let unread = service.write_narrow(request).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(status().await.as_deref(), Some("503"), "the response of {request:?} lingers in the kernel");
        tokio::time::sleep(Duration::from_secs(55)).await;
        assert_eq!(status().await.as_deref(), Some("200"), "{request:?}");
        drop(unread);
    }
}

#[tokio::test]
async fn an_address_at_its_limit_still_learns_of_the_health_of_the_server() {
    for flags in [["--max-connections-per-address", "1"], ["--max-connections", "1"]] {
        let (service, caller) = Service::with_caller(&flags, 10).await;
        let _held = caller.hold(2).await;
        let ask =
            async |line: &str| rest(service.write_from(2, format!("{line} HTTP/1.1\r\nhost: x\r\n\r\n")).await).await;
        for path in ["/healthz", "/readyz"] {
            let answer = ask(&format!("GET {path}")).await;
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\r\nconnection: close\r\n"), "{answer}");
            assert!(
                answer.contains("\r\ncache-control: no-store\r\n"),
                "a cache in between must not keep it: {answer}"
            );
            assert!(ask(&format!("HEAD {path}")).await.starts_with("HTTP/1.1 200 "));
        }
        service.readiness.stop();
        assert!(ask("GET /readyz").await.starts_with("HTTP/1.1 503 "));
        for line in ["GET /docs/", "GET /healthz/", "POST /healthz", "GET /metrics", "GET /api/v1/account"] {
            let answer = ask(line).await;
            assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\"INTERNAL_ERROR\""), "{line}: {answer}");
        }
    }
}

#[test]
fn slow_readers_of_a_large_page_share_one_copy_of_it() {
    let (_data, server, _) = Server::install(&[]);
    let before = server.memory();
    let begun = |_| {
        let mut stream = std::net::TcpStream::connect(server.address).expect("the service listens");
        let request = "GET /docs/scalar.js HTTP/1.1\r\nhost: x\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("the service reads");
        stream.read_exact(&mut [0]).expect("an answer");
        stream
    };
    let held: Vec<_> = (0..300).map(begun).collect();
    let grown = server.memory() - before;
    assert!(grown < 100, "{grown} MiB for {} readers", held.len());
}

#[tokio::test]
async fn all_addresses_together_have_a_limit_and_places_become_free_again() {
    let (service, caller) = Service::with_caller(&["--max-connections", "5"], 10).await;
    let mut held = Vec::new();
    for host in 2..7 {
        held.push(caller.hold(host).await);
    }
    let turned_away = service.write_from(7, get(TASKS, &caller)).await;
    assert!(rest(turned_away).await.starts_with("HTTP/1.1 503 "), "no place is left");

    held.clear();
    let back = async {
        let ask = async || one_answer(&mut service.write_from(2, get(TASKS, &caller)).await).await;
        while !ask().await.starts_with("HTTP/1.1 200 ") {}
    };
    timeout(Duration::from_secs(60), back).await.expect("places become free again");
}

#[tokio::test]
async fn trusted_proxies_may_hold_many_connections() {
    let (_, caller) =
        Service::with_caller(&["--max-connections-per-address", "1", "--trusted-proxy", "127.0.0.2"], 10).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(caller.hold(2).await);
    }
}

/// Opens many hostile connections from one address, and returns how many stay open.
async fn attack(service: &Service, said: &str) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for _ in 0..200 {
        let mut stream = service.write_from(66, "").await;
        // Connections without a slot may be closed already.
        drop(stream.write_all(said.as_bytes()).await);
        held.push(stream);
    }
    held
}

#[tokio::test]
async fn good_callers_are_served_during_an_attack() {
    let flags = ["--max-connections-per-address", "50", "--max-connections", "80"];
    let (service, caller) = Service::with_caller(&flags, 1_000).await;
    let attacker = service.caller("eve", 1_000).await;
    let slow_read = "GET /docs/scalar.js HTTP/1.1\r\nhost: x\r\n\r\n".repeat(16);
    let slow_body = attacker.submit_head(1_000) + "{";
    for (name, said) in [
        ("connection flood", ""),
        ("slow header", "GET / HTTP/1.1\r\nhost: x\r\nx: a"),
        ("slow body", slow_body.as_str()),
        ("slow read", slow_read.as_str()),
        ("nonsense", "nonsense\r\n\r\n"),
    ] {
        let held = attack(&service, said).await;
        for _ in 0..20 {
            let task_id = caller.submit_prompt("a boat").await;
            assert_eq!(caller.task(&task_id).await["status"], "processing", "under {name}");
            service.work().await;
            assert_eq!(caller.task(&task_id).await["status"], "completed", "under {name}");
        }
        drop(held);
    }
    assert_eq!(attacker.credits().await, 1_000);
}
