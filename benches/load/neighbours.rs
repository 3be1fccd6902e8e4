//! The cost for another account of one caller that takes as much as it can. For each resource that callers share, the same
//! requests of a neighbour are timed with and without the attacker, in turns.
//!
//! The server is the real binary with default limits. Attackers have addresses of their own, and keys with the limits of the
//! server.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use serde::Serialize;
use tempfile::TempDir;
use tintype::service::people::People;
use tintype_domain::person::Role;
use tintype_engine::picture::Picture;
use tintype_store::sqlite;
use tintype_store::{PersonAdded, Store};
use tintype_system::clock::Clock;
use tokio::runtime::Runtime;

use crate::attack::attackers::{Attackers, Tactic};
use crate::engine;
use crate::fixture::{self, Caller};
use crate::generator::{Answer, SILENCE, histogram, now, sleep_until};
use crate::server::Server;
use crate::subjects::{GENERATE, TASKS, get, post};
use crate::{Options, Outcome};

const IMAGES: &str = "/v1/images/generations";
const PASSWORD: &str = "a long message about boats";
/// People who sign in, one after the other: each name has few attempts a minute.
const PEOPLE: usize = 40;
/// Interval of the neighbour's tasks that fail: 300 of them within ten minutes would be too many.
const FAILS_EVERY: Duration = Duration::from_millis(250);
/// Requests before the measurement.
const WARM_UP: usize = 3;
/// Pause after an attack in which the server ends what it began.
const RECOVERY: Duration = Duration::from_secs(1);

/// How long the requests of a neighbour take beside one attacker.
#[derive(Debug, Serialize)]
pub struct NeighbourRow {
    pub resource: &'static str,
    /// The requests of the neighbour, in words.
    pub neighbour: &'static str,
    pub calm_p99_millis: f64,
    pub p99_millis: f64,
    pub ratio: f64,
    /// Requests of the neighbour that were refused.
    pub failed: u64,
    /// Attempts of the attacker per second.
    pub tries_per_second: f64,
}

/// A resource, its attacker and a neighbour.
struct Case {
    resource: &'static str,
    neighbour: &'static str,
    tactic: Box<dyn Fn() -> Tactic>,
    /// The requests of the neighbour, repeated in order.
    requests: Vec<Bytes>,
    every: Duration,
}

/// Results of a neighbour.
struct Series {
    latencies: Histogram<u64>,
    failed: u64,
}

/// Measures all cases.
pub fn measure(runtime: &Runtime, directory: &TempDir, options: &Options) -> Outcome<Vec<NeighbourRow>> {
    tintype::server::raise_file_limit();
    let mut rows = Vec::new();
    let site = Site::start(runtime, &directory.path().join("neighbours"), options.tasks, None)?;
    for case in site.cases()? {
        rows.push(site.row(&case, options)?);
    }
    let engine = runtime.block_on(engine::Server::start(Duration::from_millis(50)))?;
    let beside = Site::start(runtime, &directory.path().join("neighbours-engine"), 0, Some(engine.url()))?;
    rows.push(beside.row(&beside.poisoned(), options)?);
    Ok(rows)
}

/// A server, an attacker and a neighbour.
struct Site {
    server: Server,
    attacker: Caller,
    /// The cookie of an owner of the attacker's account, and the proof in its forms.
    owner: (String, String),
    neighbour: Caller,
}

impl Site {
    fn start(runtime: &Runtime, data: &Path, entries: usize, engine: Option<&str>) -> Outcome<Self> {
        std::fs::create_dir(data)?;
        let store: Arc<Store> = Arc::new(sqlite::open(&data.join("tintype.db"), Clock::system())?);
        let (attacker, neighbour) = runtime.block_on(async {
            let neighbour = fixture::caller(&store, "neighbour").await?;
            if entries > 0 {
                eprintln!("neighbours: filling a database with {entries} tasks");
                fixture::queue(&store, std::slice::from_ref(&neighbour), entries).await?;
                fixture::complete_all(&store, 500).await?;
            }
            let attacker = fixture::limited_caller(&store, "attacker").await?;
            people(&store, &neighbour, "neighbour", PEOPLE).await?;
            people(&store, &attacker, "attacker", 1).await?;
            Ok::<_, Box<dyn std::error::Error>>((attacker, neighbour))
        })?;
        drop(store);
        let engine = engine.map(|url| format!("openai:{url}"));
        let flags = engine.iter().flat_map(|engine| ["--engine", engine]).collect::<Vec<_>>();
        let server = Server::start(data, &[&flags[..], &["--renders", "4"]].concat())?;
        let signed_in = exchange(&mut connect(server.address)?, &sign_in("attacker-0"))?;
        let cookie = between(&signed_in.text, "set-cookie: ", ";").ok_or("no cookie")?.to_owned();
        let page = exchange(&mut connect(server.address)?, &page("/studio/sessions", &cookie))?;
        let proof = between(&page.text, "name=\"proof\" value=\"", "\"").ok_or("no form")?.to_owned();
        Ok(Self { server, attacker, owner: (cookie, proof), neighbour })
    }

    fn cases(&self) -> Outcome<Vec<Case>> {
        let (bad, good) = (&self.attacker.key, &self.neighbour.key);
        let (cookie, proof) = &self.owner;
        // Both have a picture that a repeated call gets without charge.
        for key in [bad, good] {
            exchange(&mut connect(self.server.address)?, &images(key, "paid", 4, "a boat"))?;
        }
        let paid = |key: &str| images(key, "paid", 4, "a boat");
        let seats = images(bad, "waiting", 1, "[[hang]] a boat");
        let upload = upload(bad)?;
        let board = format!("proof={proof}&name=a+board");
        let millis = Duration::from_millis;
        let flood = |request: Bytes, rate| -> Box<dyn Fn() -> Tactic> {
            Box::new(move || Tactic::Flood(request.clone(), rate))
        };
        let hold = |count, said: Bytes, drip| -> Box<dyn Fn() -> Tactic> {
            Box::new(move || Tactic::Hold(count, said.clone(), drip))
        };
        let case = |resource, neighbour, tactic, requests, every| Case { resource, neighbour, tactic, requests, every };
        let (submit, list) = (post(good, r#"{"prompt":"[[fail]]"}"#), get(TASKS, good));
        let sign_ins = (0..PEOPLE).map(|number| sign_in(&format!("neighbour-{number}"))).collect();
        Ok(vec![
            case("Requests", "lists its tasks", flood(get(TASKS, bad), 2_000), vec![list.clone()], millis(20)),
            case(
                "Failed tasks",
                "submits",
                flood(post(bad, r#"{"prompt":"[[fail]]"}"#), 200),
                vec![submit],
                FAILS_EVERY,
            ),
            case("Calls that wait", "repeats a /v1 call", hold(60, seats, b""), vec![paid(good)], millis(250)),
            case("Memory of answers", "repeats a /v1 call", hold(60, paid(bad), b""), vec![paid(good)], millis(250)),
            case("Encoders", "repeats a /v1 call", flood(paid(bad), 200), vec![paid(good)], millis(250)),
            case("Places for uploads", "lists its tasks", hold(60, upload, b"a"), vec![list.clone()], millis(20)),
            case("Password hashes", "signs in", flood(sign_in("nobody"), 500), sign_ins, millis(200)),
            case(
                "Usage reports",
                "lists its tasks",
                flood(page("/studio/usage", cookie), 200),
                vec![list.clone()],
                millis(20),
            ),
            case(
                "Forms",
                "lists its tasks",
                flood(form("/studio/boards", cookie, &board), 1_000),
                vec![list.clone()],
                millis(20),
            ),
            // The last one: its tasks hang.
            case(
                "Unfinished tasks",
                "lists its tasks",
                flood(post(bad, r#"{"prompt":"[[hang]]"}"#), 200),
                vec![list],
                millis(20),
            ),
        ])
    }

    /// A prompt that the engine always turns away.
    fn poisoned(&self) -> Case {
        let poison = post(&self.attacker.key, r#"{"prompt":"poison"}"#);
        let request = post_with(GENERATE, &self.neighbour.key, "prefer: wait=60\r\n", r#"{"prompt":"a boat"}"#);
        Case {
            resource: "Servers of an engine",
            neighbour: "waits for a picture",
            tactic: Box::new(move || Tactic::Flood(poison.clone(), 2)),
            requests: vec![request],
            every: Duration::from_millis(250),
        }
    }

    fn row(&self, case: &Case, options: &Options) -> Outcome<NeighbourRow> {
        let window = Duration::from_secs_f64(options.window());
        let empty = || Series { latencies: histogram(), failed: 0 };
        let (mut calm, mut beside, mut tries) = (empty(), empty(), 0);
        for round in 1..=options.rounds {
            eprintln!("round {round} of {}: {}", options.rounds, case.resource);
            self.neighbour(case, window, &mut calm)?;
            let attackers = Attackers::start((case.tactic)(), self.server.address);
            attackers.wait();
            let before = attackers.tally.tries.load(Ordering::Relaxed);
            self.neighbour(case, window, &mut beside)?;
            tries += attackers.tally.tries.load(Ordering::Relaxed) - before;
            drop(attackers);
            std::thread::sleep(RECOVERY);
        }
        let p99 = |series: &Series| series.latencies.value_at_quantile(0.99) as f64 / 1e6;
        Ok(NeighbourRow {
            resource: case.resource,
            neighbour: case.neighbour,
            calm_p99_millis: p99(&calm),
            p99_millis: p99(&beside),
            ratio: p99(&beside) / p99(&calm),
            failed: calm.failed + beside.failed,
            tries_per_second: tries as f64 / options.seconds,
        })
    }

    /// Sends the requests of a neighbour at fixed times over one connection.
    fn neighbour(&self, case: &Case, window: Duration, series: &mut Series) -> Outcome<()> {
        let mut stream = connect(self.server.address)?;
        let mut requests = case.requests.iter().cycle();
        for request in requests.by_ref().take(WARM_UP) {
            exchange(&mut stream, request)?;
        }
        let start = now();
        for (turn, request) in (0_u32..).zip(requests) {
            let due = start + case.every * turn;
            if due >= start + window {
                break;
            }
            sleep_until(due);
            let from = now();
            let answer = exchange(&mut stream, request)?;
            series.latencies.saturating_record(from.elapsed().as_nanos() as u64);
            series.failed += u64::from(!matches!(&answer.status, b"200" | b"303"));
            if answer.closes {
                stream = connect(self.server.address)?;
            }
        }
        Ok(())
    }
}

/// Creates people with a password.
async fn people(store: &Arc<Store>, caller: &Caller, name: &str, count: usize) -> Outcome<()> {
    for number in 0..count {
        let created = store.create_person(caller.account_id, &format!("{name}-{number}"), Role::Owner).await?;
        let PersonAdded::Done(person) = created else { return Err("the person exists".into()) };
        People::new(store.clone()).set_password(&person, PASSWORD.into()).await?.map_err(|_| "a bad password")?;
    }
    Ok(())
}

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(6 * SILENCE))?;
    Ok(stream)
}

/// A response.
struct Response {
    status: [u8; 3],
    text: String,
    closes: bool,
}

/// Sends a request and reads the whole response.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> io::Result<Response> {
    stream.write_all(request)?;
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
        if let Some(Answer { status, .. }) = Answer::parse(&bytes)? {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let closes = text.to_ascii_lowercase().contains("connection: close\r\n");
            return Ok(Response { status, text, closes });
        }
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

fn post_with(path: &str, key: &str, headers: &str, body: &str) -> Bytes {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         {headers}content-length: {}\r\n\r\n{body}",
        body.len()
    );
    head.into()
}

/// A call that is charged once, however often it is repeated.
fn images(key: &str, order: &str, n: u8, prompt: &str) -> Bytes {
    let body = format!(r#"{{"prompt":"{prompt}","n":{n}}}"#);
    post_with(IMAGES, key, &format!("idempotency-key: {order}\r\n"), &body)
}

/// An edit whose picture does not end.
fn upload(key: &str) -> Outcome<Bytes> {
    let png = Picture::from_rgb(64, 64, vec![7; 64 * 64 * 3]).ok_or("a picture")?.to_png();
    let mut request = format!(
        "POST /v1/images/edits HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: multipart/form-data; boundary=b\r\ncontent-length: 1000000\r\n\r\n\
         --b\r\ncontent-disposition: form-data; name=\"prompt\"\r\n\r\na boat\r\n\
         --b\r\ncontent-disposition: form-data; name=\"image\"; filename=\"a.png\"\r\ncontent-type: image/png\r\n\r\n"
    )
    .into_bytes();
    request.extend_from_slice(&png);
    Ok(request.into())
}

fn sign_in(name: &str) -> Bytes {
    form("/studio/sign-in", "", &format!("name={name}&password={}", PASSWORD.replace(' ', "+")))
}

fn form(path: &str, cookie: &str, body: &str) -> Bytes {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    head.into()
}

fn page(path: &str, cookie: &str) -> Bytes {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\ncookie: {cookie}\r\n\r\n").into()
}
