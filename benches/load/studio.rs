//! The studio, for an account with many tasks: bytes of the first page, time of each page, time from the end of a task to
//! its picture, and open streams.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use tempfile::TempDir;
use tintype_domain::model::{Id, Surface};
use tintype_domain::person::{Role, Token};
use tintype_domain::request::{AspectRatio, GenerateRequest};
use tintype_engine::picture::Picture;
use tintype_rigs::postgres::Cluster;
use tintype_store::postgres;
use tintype_store::sqlite;
use tintype_store::{NewSession, PersonAdded, Store, Submission};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;
use tokio::runtime::Runtime;

use crate::generator::{Load, SILENCE, histogram, now};
use crate::report::{Aim, Report};
use crate::server::Server;
use crate::service::{self, Service};
use crate::{Options, Outcome, fixture};

/// The account and its owner, an operator.
const NAME: &str = "studio";
/// One task in five is one of the API.
const API_SHARE: usize = 5;
/// Days over which the tasks are spread.
const DAYS: u32 = 30;
const BATCH: usize = 500;
const PAGES: [&str; 12] = [
    "",
    "/gallery",
    "/gallery?q=fox",
    "/gallery?q=marker77+dawn",
    "/gallery?state=failed",
    "/activity",
    "/keys",
    "/credits",
    "/docs",
    "/operator",
    "/operator/accounts",
    "/operator/audit",
];
const STREAMS: usize = 1_000;
const STREAMS_OF_SESSION: usize = 8;
/// Time in which the queries beside quiet streams are counted.
const QUIET: Duration = Duration::from_secs(10);
/// Tasks whose pictures a page awaits.
const SHOWN: usize = 100;

/// Measures all of it.
pub fn measure(runtime: &Runtime, directory: &TempDir, options: &Options, report: &mut Report) -> Outcome<()> {
    let data = directory.path().join("studio");
    std::fs::create_dir(&data)?;
    let path = data.join("tintype.db");
    let open = |clock: Clock| Ok::<Arc<Store>, Box<dyn std::error::Error>>(Arc::new(sqlite::open(&path, clock)?));
    eprintln!("studio: filling a database with {} tasks", options.tasks);
    let clock = Clock::manual(Clock::system().now());
    runtime.block_on(fill(&*open(clock.clone())?, &clock, options.tasks))?;
    pages(runtime, open(Clock::system())?, "SQLite", &data, options, report)?;
    let cluster = Cluster::start_for_benchmark(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let url = cluster.database_url();
    let connect = async |clock: Clock| {
        let store = postgres::open(&url, None, clock, Faults::default()).await?;
        Ok::<Arc<Store>, Box<dyn std::error::Error>>(Arc::new(store))
    };
    eprintln!("studio: filling PostgreSQL with {} tasks", options.tasks);
    runtime.block_on(async { fill(&*connect(clock.clone()).await?, &clock, options.tasks).await })?;
    let beside = directory.path().join("studio-postgres");
    std::fs::create_dir(&beside)?;
    pages(runtime, runtime.block_on(connect(Clock::system()))?, "PostgreSQL", &beside, options, report)?;
    streams(runtime, &cluster, &directory.path().join("studio-streams"), report)
}

/// Creates the account with its tasks, spread over the days before now.
async fn fill(store: &Store, clock: &Clock, tasks: usize) -> Outcome<()> {
    let end = Clock::system().now();
    let span = Duration::from_secs(60 * 60 * 24) * DAYS;
    clock.set(end.saturating_sub(span));
    let created = store.create_account_as(NAME, fixture::CREDITS, true).await?;
    let Some(account) = created else { return Err("the account exists".into()) };
    let ratios = AspectRatio::ALL;
    for begin in (0..tasks).step_by(BATCH) {
        clock.set(end.saturating_sub(span.mul_f64(1.0 - begin as f64 / tasks as f64)));
        let submits = (begin..tasks.min(begin + BATCH)).map(|index| async move {
            let surface = if index % API_SHARE == 0 { Surface::Api } else { Surface::Web };
            let request = GenerateRequest {
                aspect_ratio: ratios[index % ratios.len()],
                n: 1 + (index % 4) as u8,
                ..GenerateRequest::new(format!("{}, marker{} number{index}", fixture::PROMPT, index % 1_000))
            };
            match store.submit(account.id, None, surface, request, 0).await? {
                Submission::Accepted(_) => Ok::<_, Box<dyn std::error::Error>>(()),
                refused => Err(format!("a submit was refused: {refused:?}").into()),
            }
        });
        try_join_all(submits).await?;
        fixture::complete_all(store, BATCH).await?;
    }
    while store.index_prompts().await? > 0 {}
    Ok(())
}

/// Signs a new person in to an account and returns the cookie.
async fn sign_in(store: &Store, account: Id, name: &str) -> Outcome<String> {
    let PersonAdded::Done(person) = store.create_person(account, name, Role::Owner).await? else {
        return Err(format!("the person {name} exists").into());
    };
    let token = Token::random();
    let expires_at = store.now().saturating_add(Duration::from_secs(60 * 60));
    let new = NewSession { hash: token.hash(), expires_at, agent: "a benchmark".into() };
    store.begin_session(person.id, None, new).await?.ok_or("no session")?;
    Ok(format!("tintype={}", token.reveal()))
}

fn get(address: SocketAddr, path: &str, cookie: &str) -> Load {
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\naccept-encoding: gzip, deflate, br, zstd\r\n\r\n"
    );
    Load { address, requests: vec![Bytes::from(head)] }
}

/// Measures the pages on a filled store; with SQLite also their bytes, and the time to a picture.
fn pages(
    runtime: &Runtime,
    store: Arc<Store>,
    name: &str,
    data: &Path,
    options: &Options,
    report: &mut Report,
) -> Outcome<()> {
    let settings = service::settings(&["--renders", "1"])?;
    let account = runtime.block_on(store.find_account(NAME))?.ok_or("no account")?;
    let cookie = runtime.block_on(sign_in(&store, account.id, NAME))?;
    let shared = service::shared_on(store, data, &settings)?;
    let service = runtime.block_on(async { Service::start_on(shared, &settings).await })?;
    if name == "SQLite" {
        let kib = weight(service.address, &cookie)? as f64 / 1024.0;
        report.fact("first page with style, script and icons", kib, "KiB", Some(Aim::AtMost(100_000.0 / 1024.0)));
    }
    for page in PAGES {
        let load = get(service.address, &format!("/studio{page}"), &cookie);
        load.once()?;
        let window = load.run(1, Duration::from_secs_f64(options.window()))?;
        let millis = |quantile| window.latencies.value_at_quantile(quantile) as f64 / 1e6;
        report.fact(format!("{name}: /studio{page}, p50"), millis(0.5), "ms", None);
        report.fact(format!("{name}: /studio{page}, p99"), millis(0.99), "ms", Some(Aim::AtMost(20.0)));
    }
    let (p50, p99) = completions(runtime, &service, account.id, &cookie)?;
    report.fact(format!("{name}: end of a task to its picture, p50"), p50, "ms", None);
    report.fact(format!("{name}: end of a task to its picture, p99"), p99, "ms", Some(Aim::AtMost(200.0)));
    Ok(())
}

/// Bytes of the first page and of the files that it loads, apart from pictures of tasks.
fn weight(address: SocketAddr, cookie: &str) -> Outcome<usize> {
    let (head, page) = get(address, "/studio", cookie).once()?;
    let mut bytes = head.len() + page.len();
    let text = String::from_utf8_lossy(&page);
    let named = text.split('"').filter(|text| text.starts_with("/studio/assets/") || *text == "/docs/icon.svg");
    let mut files: Vec<_> = named.collect();
    files.sort_unstable();
    files.dedup();
    for file in files {
        let (head, body) = get(address, file, cookie).once()?;
        bytes += head.len() + body.len();
    }
    Ok(bytes)
}

/// Opens a stream of changes and reads its begin.
fn open(address: SocketAddr, cookie: &str) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.write_all(&get(address, "/studio/events", cookie).requests[0])?;
    hear(&mut stream, "event: begin")?;
    Ok(stream)
}

/// Reads until some words have come. Nothing is sent after them until the next change.
fn hear(stream: &mut TcpStream, words: &str) -> Outcome<()> {
    let (mut heard, mut buffer) = (String::new(), [0; 4_096]);
    while !heard.contains(words) {
        let count = stream.read(&mut buffer)?;
        if count == 0 {
            return Err("a stream ended".into());
        }
        heard.push_str(&String::from_utf8_lossy(&buffer[..count]));
    }
    Ok(())
}

/// Milliseconds from before the commit that completes a task until the page has heard of it, fetched its card and the
/// thumbnail, which is made meanwhile: the median and the 99th percentile.
fn completions(runtime: &Runtime, service: &Service, account: Id, cookie: &str) -> Outcome<(f64, f64)> {
    let (shared, address) = (&service.shared, service.address);
    let (width, height) = AspectRatio::default().size();
    let pixels = (0..width * height).flat_map(|at| [at % 251, at / 7 % 253, at / width % 255].map(|level| level as u8));
    let png = Bytes::from(Picture::from_rgb(width, height, pixels.collect()).ok_or("a picture")?.to_png());
    let mut stream = open(address, cookie)?;
    let mut latencies = histogram();
    for _ in 0..SHOWN {
        let request = GenerateRequest::new(fixture::PROMPT);
        let (claim, name) = runtime.block_on(async {
            shared.store.submit(account, None, Surface::Web, request, 0).await?;
            let claim = shared.store.claim(1, SILENCE).await?.pop().ok_or("no claim")?;
            let name = shared.files.write(claim.lease.task_id, 0, png.clone()).await?;
            Ok::<_, Box<dyn std::error::Error>>((claim, name))
        })?;
        let task = claim.lease.task_id;
        let begun = now();
        runtime.block_on(shared.endings.complete(&claim, &[name], Duration::ZERO))?;
        hear(&mut stream, &format!("event: task\ndata: {{\"id\":\"{task}\"}}"))?;
        get(address, &format!("/studio/tasks/{task}"), cookie).once()?;
        get(address, &format!("/studio/tasks/{task}/pictures/1"), cookie).once()?;
        latencies.saturating_record(begun.elapsed().as_nanos() as u64);
    }
    let millis = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e6;
    Ok((millis(0.5), millis(0.99)))
}

/// Opens many quiet streams of as many accounts as sessions on the real binary, reads its memory, and counts the
/// transactions of the database.
fn streams(runtime: &Runtime, cluster: &Cluster, data: &Path, report: &mut Report) -> Outcome<()> {
    std::fs::create_dir(data)?;
    let url = cluster.database_url();
    let cookies = runtime.block_on(async {
        let store = postgres::open(&url, None, Clock::system(), Faults::default()).await?;
        let mut cookies = Vec::new();
        for number in 0..STREAMS.div_ceil(STREAMS_OF_SESSION) {
            let caller = fixture::caller(&store, &format!("watcher-{number}")).await?;
            cookies.push(sign_in(&store, caller.account_id, &caller.name).await?);
        }
        Ok::<_, Box<dyn std::error::Error>>(cookies)
    })?;
    let client = runtime.block_on(cluster.session());
    let files = format!("file:{}", data.join("files").display());
    let flags = ["--database", url.as_str(), "--files", files.as_str(), "--max-connections-per-address", "2000"];
    let server = Server::start(data, &flags)?;
    get(server.address, "/studio/gallery", &cookies[0]).once()?;
    std::thread::sleep(Duration::from_secs(2));
    let fields = ["Private_Clean:", "Private_Dirty:"];
    let transactions = || -> Outcome<i64> {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        Ok(runtime.block_on(client.query_one(sql, &[]))?.get(0))
    };
    let before = server.memory(&fields)?;
    let begun = transactions()?;
    std::thread::sleep(QUIET);
    let quiet = transactions()? - begun;
    let streams: Vec<_> = (0..STREAMS)
        .map(|number| open(server.address, &cookies[number / STREAMS_OF_SESSION]))
        .collect::<Outcome<_>>()?;
    std::thread::sleep(Duration::from_secs(2));
    let each = (server.memory(&fields)? - before) * 1024.0 / streams.len() as f64;
    let begun = transactions()?;
    std::thread::sleep(QUIET);
    let watched = transactions()? - begun;
    report.fact("memory of an open stream", each, "KiB", None);
    report.fact("transactions in 10 s, nobody watches", quiet as f64, "", None);
    report.fact(
        "transactions in 10 s beside 1,000 streams",
        watched as f64,
        "",
        Some(Aim::AtMost(quiet as f64 + 50.0)),
    );
    Ok(())
}
