//! OpenAI's Images API beside the native one: the time that it adds to a picture, and the cost of calls that wait.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use tempfile::TempDir;
use tintype_rigs::postgres::Cluster;
use tintype_store::postgres;
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;
use tokio::runtime::Runtime;

use crate::engine::{Beside, Client, Server as Engine};
use crate::fixture::{self, PROMPT};
use crate::generator::{SILENCE, histogram, now};
use crate::report::{Aim, Report};
use crate::server::Server;
use crate::subjects::GENERATE;
use crate::{Options, Outcome};

/// Calls that wait at the same time, and the most that may wait with one key.
const WAITING: usize = 1_000;
const WAITING_WITH_KEY: usize = 100;
/// Time in which the queries beside them are counted.
const QUIET: Duration = Duration::from_secs(30);
/// Time after which PostgreSQL has reported the transactions of idle connections.
const REPORTED: Duration = Duration::from_secs(15);

/// Measures both.
pub fn measure(runtime: &Runtime, directory: &TempDir, options: &Options, report: &mut Report) -> Outcome<()> {
    let (face, native) = runtime.block_on(pictures(directory, options))?;
    let millis = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e6;
    for (name, times) in [("/v1/images/generations", &face), ("Prefer: wait, then the file", &native)] {
        report.fact(format!("{name}, p50"), millis(times, 0.5), "ms", None);
        report.fact(format!("{name}, p99"), millis(times, 0.99), "ms", None);
    }
    report.fact("  ratio, p50", millis(&face, 0.5) / millis(&native, 0.5), "times", None);
    let cluster = Cluster::start_for_benchmark(Path::new(env!("CARGO_TARGET_TMPDIR")));
    ["call", "stream"]
        .into_iter()
        .try_for_each(|kind| waits(runtime, &cluster, &directory.path().join(format!("face-{kind}")), kind, report))
}

/// One picture after another, from an engine that answers at once, in turns by both APIs until the caller has its bytes.
async fn pictures(directory: &TempDir, options: &Options) -> Outcome<(Histogram<u64>, Histogram<u64>)> {
    let servers = [Engine::start(Duration::ZERO).await?];
    let beside = Beside::start(directory, "face", &servers).await?;
    let authorization = format!("Bearer {}", beside.caller.key);
    let mut client = Client::connect(&beside.service.address.to_string()).await?;
    let (mut face, mut native) = (histogram(), histogram());
    for turn in 0..options.pictures {
        if turn % 50 == 0 {
            eprintln!("both APIs, picture {turn} of {}", options.pictures);
        }
        let asked = now();
        client.post("/v1/images/generations", &[("authorization", &authorization)]).await?;
        face.record(asked.elapsed().as_nanos() as u64)?;
        let asked = now();
        let task = client.post(GENERATE, &[("authorization", &authorization), ("prefer", "wait=60")]).await?;
        let task: serde_json::Value = serde_json::from_slice(&task)?;
        let url = task["data"]["media_url"].as_str().ok_or_else(|| format!("a task was not completed: {task}"))?;
        client.get(url.split_once("/files").map_or("", |(base, _)| &url[base.len()..])).await?;
        native.record(asked.elapsed().as_nanos() as u64)?;
    }
    Ok((face, native))
}

/// Lets many calls wait for tasks that nobody works on, on the real binary, reads its memory, and counts the transactions of
/// the database. `kind` is `call` or `stream`; each has a server of its own, whose memory nothing has used before.
fn waits(runtime: &Runtime, cluster: &Cluster, data: &Path, kind: &str, report: &mut Report) -> Outcome<()> {
    std::fs::create_dir(data)?;
    let url = cluster.database_url();
    let (store, keys) = runtime.block_on(async {
        let store = postgres::open(&url, None, Clock::system(), Faults::default()).await?;
        let callers = fixture::callers(&store, kind, WAITING.div_ceil(WAITING_WITH_KEY)).await?;
        store.pause_queue().await?;
        let keys: Vec<String> = callers.into_iter().map(|caller| caller.key).collect();
        Ok::<_, Box<dyn std::error::Error>>((store, keys))
    })?;
    let client = runtime.block_on(cluster.session());
    let files = format!("file:{}", data.with_file_name("face-files").display());
    let limits = ["--max-connections-per-address", "4000", "--max-unfinished", "0"];
    let server =
        Server::start(data, &[&["--database", url.as_str(), "--files", files.as_str()], &limits[..]].concat())?;
    let transactions = || -> Outcome<i64> {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
        Ok(runtime.block_on(client.query_one(sql, &[]))?.get(0))
    };
    let in_quiet = || -> Outcome<f64> {
        std::thread::sleep(REPORTED);
        let begun = transactions()?;
        std::thread::sleep(QUIET);
        Ok((transactions()? - begun) as f64)
    };
    let fields = ["Private_Clean:", "Private_Dirty:"];
    let body = format!(r#"{{"prompt": "{PROMPT}", "stream": {}}}"#, kind == "stream");
    // The caches of connections and statements, and the first writes, are there before.
    let warm = wait(server.address, &keys[0], &body)?;
    let (quiet, before) = (in_quiet()?, server.memory(&fields)?);
    let begun = runtime.block_on(store.queue_depth())?.waiting;
    let calls: Vec<_> = (0..WAITING - 1)
        .map(|number| wait(server.address, &keys[(number + 1) % keys.len()], &body))
        .collect::<Outcome<_>>()?;
    while runtime.block_on(store.queue_depth())?.waiting < begun + calls.len() as u64 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let waiting = in_quiet()?;
    let each = (server.memory(&fields)? - before) * 1024.0 / calls.len() as f64;
    if kind == "call" {
        calls.iter().chain([&warm]).try_for_each(silent)?;
    }
    report.fact(format!("memory of a {kind} that waits"), each, "KiB", Some(Aim::AtMost(50.0)));
    report.fact(format!("transactions in 30 s beside one {kind}"), quiet, "", None);
    report.fact(format!("transactions in 30 s beside 1,000 {kind}s"), waiting, "", Some(Aim::AtMost(quiet + 100.0)));
    Ok(())
}

/// Fails if a call got an answer, so that only calls that wait are measured.
fn silent(call: &TcpStream) -> Outcome<()> {
    call.set_nonblocking(true)?;
    let mut answer = [0; 12];
    match call.peek(&mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        _ => Err(format!("a call did not wait: {}", String::from_utf8_lossy(&answer)).into()),
    }
}

/// Sends a call whose answer does not come; a stream begins, and says no more than that it is alive.
fn wait(address: SocketAddr, key: &str, body: &str) -> Outcome<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let head = format!(
        "POST /v1/images/generations HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    if body.contains(r#""stream": true"#) {
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        if !status.ends_with(b"200") {
            return Err(format!("a stream did not begin: {}", String::from_utf8_lossy(&status)).into());
        }
    }
    Ok(stream)
}
