//! `tintype doctor` checks whether this machine and its data can run a server.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use serde::Serialize;
use tokio::process::Command;

use super::{Failure, Outcome, open_files, open_or_create_store, show};
use crate::clock::{Clock, Timestamp};
use crate::config::{
    DataSettings, DatabaseUrl, EngineSettings, EngineTarget, FilesSettings, PolicySettings, RedisSettings,
    RetentionSettings,
};
use crate::data_dir;
use crate::domain::model::IdSource;
use crate::domain::text::counted;
use crate::engines::{self, Surroundings};
use crate::fault::Faults;
use crate::files::{Creation, FileName};
use crate::policy::Policy;
use crate::sandbox::{Confinement, Decoder};
use crate::service::{file_store, limits};
use crate::store::Store;
use crate::store::postgres::PostgresStore;
use crate::store::sqlite::SqliteStore;
use tintype_engine::{Brief, CancellationToken, Progress};

/// The check of the free space fails below this number of bytes: the images of one task take a few MiB.
const LITTLE_SPACE: u64 = 1024 * 1024 * 1024;
/// A clock that shows a time before this, 2026-01-01, is wrong: this release is younger.
const EARLIEST: Timestamp = Timestamp::from_millis(1_767_225_600_000);
/// Time limit for the probe of the engine.
const PROBE_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    retention: RetentionSettings,
    #[command(flatten)]
    policy: PolicySettings,
    #[command(flatten)]
    files: FilesSettings,
    #[command(flatten)]
    redis: RedisSettings,
    #[command(flatten)]
    engine: EngineSettings,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The outcome of one check.
#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    ok: bool,
    detail: String,
}

impl Check {
    fn new(check: &'static str, found: Result<String, String>) -> Self {
        let (ok, detail) = match found {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        Self { check, ok, detail }
    }
}

pub(super) async fn run(args: DoctorArgs, data: &DataSettings) -> Outcome {
    let checks = [
        Check::new("clock", clock()),
        Check::new("data directory", directory(data)),
        Check::new("free space", free_space(data)),
        Check::new("server", server(data)),
        Check::new("database", database(data).await),
        Check::new("files", files(data, args.files.files.as_deref()).await),
        Check::new("rate limits", rate_limits(&args.redis).await),
        Check::new("engine", engine(&args.engine).await),
        Check::new("policy", policy(&args.policy).await),
        Check::new("references", references().await),
        Check::new("retention", Ok(args.retention.to_string())),
    ];
    let healthy = checks.iter().all(|check| check.ok);
    show(args.json, &checks, || {
        let line =
            |check: &Check| format!("{}  {:<15} {}", if check.ok { "ok  " } else { "FAIL" }, check.check, check.detail);
        checks.iter().map(line).collect::<Vec<_>>().join("\n")
    })?;
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn clock() -> Result<String, String> {
    let now = Clock::system().now();
    if now < EARLIEST { Err(format!("the system clock shows {now}; set it")) } else { Ok(now.to_string()) }
}

fn directory(data: &DataSettings) -> Result<String, String> {
    data_dir::create(&data.data)?;
    let probe = data.data.join(".doctor");
    std::fs::write(&probe, b"probe")
        .and_then(|()| std::fs::remove_file(&probe))
        .map_err(|error| format!("cannot write in {}: {error}", data.data.display()))?;
    Ok(data.data.display().to_string())
}

fn free_space(data: &DataSettings) -> Result<String, String> {
    let filesystem = rustix::fs::statvfs(&data.data).map_err(|error| format!("unknown: {error}"))?;
    let free = filesystem.f_bavail.saturating_mul(filesystem.f_frsize);
    let shown = format!("{:.1} GiB", free as f64 / LITTLE_SPACE as f64);
    if free < LITTLE_SPACE {
        Err(format!("only {shown} free for {}; make room", data.data.display()))
    } else {
        Ok(shown)
    }
}

fn server(data: &DataSettings) -> Result<String, String> {
    let state = match data.database()? {
        DatabaseUrl::Postgres(_) => "not checked: with PostgreSQL, each process reports its state at its own /readyz",
        DatabaseUrl::Sqlite(_) if data_dir::is_locked(&data.data) => "running on this data directory",
        DatabaseUrl::Sqlite(_) => "not running",
    };
    Ok(state.to_owned())
}

async fn database(data: &DataSettings) -> Result<String, String> {
    let store: Box<dyn Store> = match data.database()? {
        DatabaseUrl::Sqlite(path) if !path.exists() => {
            return Ok(format!("no database yet; the first start creates {}", path.display()));
        }
        DatabaseUrl::Sqlite(path) => {
            let store = SqliteStore::open(&path, Clock::system()).map_err(|error| error.to_string())?;
            store.check_integrity().map_err(|error| error.to_string())?;
            Box::new(store)
        }
        DatabaseUrl::Postgres(url) => {
            let ca = data.database_ca.as_deref();
            let store = PostgresStore::open(&url, ca, Clock::system(), Faults::default()).await;
            let store = store.map_err(|error| error.to_string())?;
            store.check_durability().await?;
            Box::new(store)
        }
    };
    store.ping().await.map_err(|error| error.to_string())?;
    let audit = store.audit().await.map_err(|error| error.to_string())?;
    if !audit.drifts.is_empty() {
        let drifts = counted(audit.drifts.len() as u64, "drift", "drifts");
        return Err(format!("{drifts} in the ledger; see `tintype credits audit`"));
    }
    let accounts = counted(audit.accounts, "account", "accounts");
    Ok(format!("{accounts}, {}: all balances match", counted(audit.tasks, "task", "tasks")))
}

async fn files(data: &DataSettings, files: Option<&str>) -> Result<String, String> {
    let files = open_files(data, files).await.map_err(|Failure(sentence)| sentence)?;
    let clock = Clock::system();
    let started = clock.elapsed();
    let probe = IdSource::default().next(clock.now());
    let name = files.write(probe, 0, bytes::Bytes::from_static(b"probe")).await.map_err(|error| error.to_string())?;
    let took = clock.elapsed() - started;
    let named = FileName::parse(&name).ok_or("the file store chose an invalid name: report this as a bug")?;
    let again = files.create(named, bytes::Bytes::from_static(b"other")).await;
    files.remove(&name).await.map_err(|error| error.to_string())?;
    match again.map_err(|error| error.to_string())? {
        Creation::Exists => {}
        Creation::Done => {
            return Err(format!("{} overwrote a file: use a store that obeys If-None-Match: *", files.describe()));
        }
    }
    let marked = match existing_store(data).await? {
        Some(store) => file_store::check(&*store, &files).await?.is_some(),
        None => false,
    };
    let marked = if marked { "belongs to this database" } else { "the first start assigns it to the database" };
    Ok(format!("{} ({marked}; a durable write took {:.1} ms)", files.describe(), took.as_secs_f64() * 1e3))
}

async fn existing_store(data: &DataSettings) -> Result<Option<Arc<dyn Store>>, String> {
    match data.database()? {
        DatabaseUrl::Sqlite(path) if !path.exists() => Ok(None),
        _ => open_or_create_store(data).await.map(Some).map_err(|Failure(sentence)| sentence),
    }
}

async fn rate_limits(settings: &RedisSettings) -> Result<String, String> {
    match settings.server()? {
        Some(redis) => limits::probe(&redis).await,
        None => Ok("each process counts on its own".into()),
    }
}

async fn policy(settings: &PolicySettings) -> Result<String, String> {
    let policy = Policy::open(settings.policy.as_deref()).await?;
    Ok(policy.describe().unwrap_or_else(|| "no policy file; only the engine refuses prompts".into()))
}

/// Probes the engine. Only the built-in engine also renders: a picture of a server may cost money.
async fn engine(settings: &EngineSettings) -> Result<String, String> {
    let choice = engines::choose(settings)?;
    if settings.engine == EngineTarget::OwnSdServer {
        // A second process would load the model once more, beside the one of a running server.
        return version(&settings.engine_program)
            .await
            .map(|version| format!("{}: {version}", choice.info.description));
    }
    let engine = choice.build(Surroundings { quotes_server: true, ..Surroundings::default() })?;
    let probe = tokio::time::timeout(PROBE_LIMIT, engine.probe()).await;
    let probe = probe.map_err(|_| format!("{} gave no answer within {} s", settings.engine, PROBE_LIMIT.as_secs()))?;
    probe.map_err(|error| error.to_string())?;
    if settings.engine == EngineTarget::Sketch {
        let brief = Brief {
            prompt: "A lighthouse at dusk".into(),
            width: 256,
            height: 256,
            seeds: vec![1],
            references: Vec::new(),
            time_limit: std::time::Duration::from_secs(60),
        };
        let rendering = engine.render(brief, Progress::default(), CancellationToken::new());
        rendering.await.map_err(|error| error.to_string())?;
    }
    Ok(choice.info.description)
}

/// The version of a program that renders, from its first line.
async fn version(program: &Path) -> Result<String, String> {
    let run = Command::new(program).arg("--version").kill_on_drop(true).output();
    let output = tokio::time::timeout(PROBE_LIMIT, run).await;
    let output = output.map_err(|_| format!("{} --version did not end", program.display()))?;
    let output = output.map_err(|error| format!("cannot run {} (--engine-program): {error}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or("unknown version").trim().to_owned())
}

async fn references() -> Result<String, String> {
    match Decoder::default().probe().await.map_err(|error| error.to_string())? {
        Confinement::Full => Ok("decoded in a child process without access to files, network or new processes".into()),
        Confinement::LimitsOnly => {
            Ok("decoded in a child process with resource limits only: this kernel does not filter system calls".into())
        }
    }
}
