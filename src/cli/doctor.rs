//! `tintype doctor` checks whether this machine and its data can run a server, and changes nothing.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use clap::Args;
use object_store::GetRange;
use rand::Rng as _;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, accessat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::Serialize;
use tokio::process::Command;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::health::ask;
use super::printing::{JsonArgs, show_verdict};
use super::queue::TASKS_EXPIRE;
use super::{Failure, Outcome, is_there};
use crate::files::{Creation, FileName, Files, REPLACES};
use crate::policy::Policy;
use crate::service::{file_store, limits};
use tintype_config::{
    AdoptedSettings, DataSettings, DatabaseUrl, EngineSettings, EngineTarget, FileBackend, FilesSettings,
    ListenAddress, NamedEngine, OidcSettings, PolicySettings, RedisSettings, RetentionSettings, SpaceSettings,
};
use tintype_domain::model::IdSource;
use tintype_domain::text::counted;
use tintype_engine::{Brief, CancellationToken, Progress};
use tintype_engines::models;
use tintype_engines::{EngineContext, diffusion};
use tintype_outbound::identity_provider::{IdentityProvider, Registration};
use tintype_store::{EngineState, QueueDepth, ReferenceLimits, Store, WaitingForEngine};
use tintype_store::{postgres, sqlite};
use tintype_system::clock::{Clock, Timestamp};
use tintype_system::data_dir;
use tintype_system::disk::Disk;
use tintype_system::owner;
use tintype_system::sandbox::{Confinement, Decoder};

/// A clock that shows a time before this, 2026-01-01, is wrong: this release is younger.
const EARLIEST: Timestamp = Timestamp::from_millis(1_767_225_600_000);
/// Size of the test object that is written to a bucket: as large as a big picture.
const PROBE_BYTES: usize = 8 << 20;
const PROBE_LIMIT: std::time::Duration = std::time::Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    retention: RetentionSettings,
    #[command(flatten)]
    policy: PolicySettings,
    #[command(flatten)]
    oidc: OidcSettings,
    #[command(flatten)]
    pub(super) files: FilesSettings,
    #[command(flatten)]
    redis: RedisSettings,
    #[command(flatten)]
    engine: EngineSettings,
    #[command(flatten)]
    space: SpaceSettings,
    #[arg(long, env = "TINTYPE_LISTEN", default_value = "127.0.0.1:8080", num_args = 1.., value_delimiter = ',', hide = true)]
    listen: Vec<ListenAddress>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Check {
    check: &'static str,
    ok: bool,
    detail: String,
}

impl Check {
    fn new(check: &'static str, found: Result<String, impl Into<Failure>>) -> Self {
        let (ok, detail) = match found.map_err(Into::into) {
            Ok(detail) => (true, detail),
            Err(Failure(detail)) => (false, detail),
        };
        Self { check, ok, detail }
    }
}

pub(super) async fn run(args: DoctorArgs, data: &DataSettings, adopted: &AdoptedSettings) -> Outcome {
    let existing = existing_database(data).await.map_err(|Failure(message)| message);
    let existing = existing.as_ref();
    let checks = [
        Check::new("settings", settings(adopted)),
        Check::new("clock", clock()),
        Check::new("data directory", directory(data)),
        Check::new("free space", free_space(data, &args.space)),
        Check::new("server", server(data, adopted.is_running.then_some(&args.listen)).await),
        Check::new("database", database(existing).await),
        Check::new("queue", queue(existing).await),
        Check::new("files", files(data, args.files.files.as_deref(), existing).await),
        Check::new("rate limits", rate_limits(&args.redis).await),
        Check::new("engine", engines(&args.engine, &data.data).await),
        Check::new("models", installed_models(data)),
        Check::new("policy", policy(&args.policy).await),
        Check::new("sign-in", sign_in(&args.oidc).await),
        Check::new("references", references().await),
        Check::new("retention", Ok::<_, Failure>(args.retention.to_string())),
    ];
    let healthy = checks.iter().all(|check| check.ok);
    show_verdict(healthy, args.json, &checks, || {
        let line =
            |check: &Check| format!("{}  {:<15} {}", if check.ok { "ok  " } else { "FAIL" }, check.check, check.detail);
        checks.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

/// Where the checked settings come from.
fn settings(adopted: &AdoptedSettings) -> Result<String, String> {
    match (&adopted.unread, &adopted.unused_file) {
        (Some(unread), _) => Err(format!("{unread}: run this command as {}", tintype_config::reader_of_servers())),
        (None, Some(fault)) => Err(format!("{fault}; the server would not start with it")),
        (None, None) => Ok(adopted.origin.clone().unwrap_or_else(|| "this command's own".to_owned())),
    }
}

fn clock() -> Result<String, String> {
    let now = Clock::system().now();
    if now < EARLIEST { Err(format!("the system clock shows {now}; set it")) } else { Ok(now.to_string()) }
}

fn directory(data: &DataSettings) -> Result<String, String> {
    if !is_there(&data.data)? {
        if let DatabaseUrl::Sqlite(_) = data.database()? {
            return Err(format!(
                "there is no directory {}: name the installation's directory with --data; the first start of a new one creates it",
                data.data.display()
            ));
        }
        return Ok(format!("none yet; the first start creates {}", data.data.display()));
    }
    writable(&data.data)?;
    check_owners(&data.data)?;
    let database = data.database()?;
    let secret = data_dir::SECRET_FILES.iter().map(|name| data.data.join(name));
    let mut private = std::iter::once(data.data.clone()).chain(database.path().map(Path::to_owned)).chain(secret);
    // The first start closes a directory that is made for it.
    let is_used = database.path().is_none_or(Path::exists);
    let open = |path: PathBuf| data_dir::open_to_others(&path).filter(|_| !data_dir::is_shared_volume(&path));
    match private.find_map(open).filter(|_| is_used) {
        Some(open) => Err(open),
        None => Ok(format!("{}{}", data.data.display(), network_note(&database))),
    }
}

/// What to mind where other machines can use the database of SQLite as well.
fn network_note(database: &DatabaseUrl) -> String {
    let Some(kind) = database.path().map(data_dir::directory_of).and_then(data_dir::network_file_system) else {
        return String::new();
    };
    format!(" (the database is on {kind}: run the server and all commands on one machine, or use PostgreSQL)")
}

/// Checks that this process may create files in a directory.
fn writable(directory: &Path) -> Result<(), String> {
    let access = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
    match accessat(CWD, directory, access, AtFlags::EACCESS) {
        Err(Errno::ACCESS) => Err(owner::denied(directory)),
        Err(error @ (Errno::ROFS | Errno::NOENT | Errno::NOTDIR)) => {
            Err(format!("cannot write in {}: {error}", directory.display()))
        }
        _ if directory.is_dir() => Ok(()),
        _ => Err(format!("{} is not a directory", directory.display())),
    }
}

/// The service user, judging by this directory. A mounted volume may belong to root, but its content doesn't.
fn user_of(directory: &Path) -> std::io::Result<u32> {
    let owner = std::fs::metadata(directory)?.uid();
    if owner != 0 {
        return Ok(owner);
    }
    if let Ok(lock) = std::fs::metadata(data_dir::lock_file_in(directory)) {
        return Ok(lock.uid());
    }
    // With PostgreSQL there is no lock.
    let user = geteuid();
    if !user.is_root() {
        return Ok(user.as_raw());
    }
    let mut entries = std::fs::read_dir(directory)?.flatten().filter(|entry| entry.file_name() != "lost+found");
    Ok(entries.find_map(|entry| entry.metadata().ok()).map_or(owner, |entry| entry.uid()))
}

/// Finds entries of a directory that do not belong to the service's user, for example because root made them by
/// mistake.
fn check_owners(directory: &Path) -> Result<(), String> {
    let unreadable = |error: std::io::Error| format!("cannot look into {}: {error}", directory.display());
    let own = user_of(directory).map_err(unreadable)?;
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        // An entry that was removed meanwhile has no owner any more.
        let Ok(metadata) = entry.metadata() else { continue };
        // The directory of a mounted file system has one that belongs to root.
        if metadata.uid() != own && entry.file_name() != "lost+found" {
            return Err(format!(
                "{} belongs to {}, and the service runs as {}: run `chown -R {} {}` as root",
                entry.path().display(),
                owner::name(metadata.uid()),
                owner::name(own),
                owner::name(own),
                directory.display()
            ));
        }
    }
    Ok(())
}

fn free_space(data: &DataSettings, settings: &SpaceSettings) -> Result<String, String> {
    // A data directory that does not exist yet will be on the disk of the nearest directory that does.
    let nearest = std::path::absolute(&data.data).map_err(|error| error.to_string())?;
    let nearest = nearest.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let disk = Disk::new(vec![nearest.to_owned()], settings.min_free_space, Clock::system());
    let (free, floor) = disk.free_and_floor().ok_or("unknown")?;
    let directory = data.data.display();
    match free < floor {
        true => Err(format!(
            "{} free for {directory}, and below {} no tasks are accepted: make room",
            ByteSize(free),
            ByteSize(floor)
        )),
        false => Ok(format!("{}; below {} no tasks are accepted", ByteSize(free), ByteSize(floor))),
    }
}

/// Whether a server runs, and is ready. `listen` has the addresses of one that was found.
async fn server(data: &DataSettings, listen: Option<&Vec<ListenAddress>>) -> Result<String, String> {
    let state = match data.database()? {
        DatabaseUrl::Postgres(_) => "not checked: with PostgreSQL, each process reports its state at its own /readyz",
        DatabaseUrl::Sqlite(_) => match data_dir::is_locked(&data.data) {
            Ok(true) => {
                let state = "running on this data directory";
                let ready = readiness(listen.map_or(&[], Vec::as_slice)).await;
                return ready.map(|ready| format!("{state}{ready}")).map_err(|fault| format!("{state}, and {fault}"));
            }
            Ok(false) => "not running",
            Err(_) => "unknown: this user cannot read the data directory",
        },
    };
    Ok(state.to_owned())
}

/// Asks a server whether it is ready, at its first address with a known port.
async fn readiness(listen: &[ListenAddress]) -> Result<&'static str, String> {
    let Some(address) = listen.iter().find(|address| address.has_known_port()) else { return Ok("") };
    match tokio::time::timeout(PROBE_LIMIT, ask(address, "/readyz")).await {
        Ok(Ok(status)) if status == "200" => Ok(", and ready"),
        Ok(Ok(status)) => Err(format!("not ready: /readyz at {address} answers {status}; its log says why")),
        // It is about to listen, or takes only connections with a PROXY header.
        Ok(Err(_)) => Ok(""),
        Err(_) => Err(format!("it does not answer at {address} within {} s", PROBE_LIMIT.as_secs())),
    }
}

/// Whether people can sign in at the provider.
async fn sign_in(settings: &OidcSettings) -> Result<String, String> {
    let Some(provider) = settings.provider()? else { return Ok("no OpenID Connect provider".to_owned()) };
    let issuer = provider.issuer.clone();
    let registration = Registration { provider, redirect: String::new(), post_logout_redirect: String::new() };
    let provider = IdentityProvider::new(registration, Clock::system())?;
    let unannounced = provider.check().await.map_err(|error| format!("{issuer}: {error}"))?;
    match unannounced.is_empty() {
        true => Ok(issuer),
        false => Ok(format!(
            "{issuer}; it does not announce the scope {}: if sign-ins fail, see --oidc-scope",
            unannounced.join(", ")
        )),
    }
}

async fn database(existing: Result<&Existing, &String>) -> Result<String, Failure> {
    let store = match existing? {
        Existing::None => return Ok("none yet; the first start creates it".into()),
        Existing::Older => {
            return Ok("no tables of this release; the next start creates or migrates them".into());
        }
        Existing::Current(store) => store,
    };
    store.check_integrity()?;
    store.check_durability().await?;
    // That of SQLite is open only for reading.
    if store.is_shared() {
        store.ping().await?;
    }
    let audit = store.audit().await?;
    if !audit.drifts.is_empty() {
        let drifts = counted(audit.drifts.len() as u64, "drift", "drifts");
        return Err(format!("{drifts} in the ledger; see `tintype credits audit`").into());
    }
    let accounts = counted(audit.accounts, "account", "accounts");
    Ok(format!("{accounts}, {}: all balances match", counted(audit.tasks, "task", "tasks")))
}

async fn queue(existing: Result<&Existing, &String>) -> Result<String, Failure> {
    let Existing::Current(store) = existing? else { return Ok("empty".into()) };
    let depth = store.queue_depth().await?;
    if let Some(since) = depth.paused_at {
        return Err(format!("paused since {since}; {TASKS_EXPIRE}; `tintype queue resume` ends the pause").into());
    }
    let found = format!("{} waiting, {} running", depth.waiting, depth.leased);
    // The engines of a server on SQLite are known to that server alone; the check of the engines probes them.
    let missing = match store.is_shared() {
        true => without_engine(&depth, &store.engines().await?, &store.waiting_for_engines().await?),
        false => None,
    };
    match missing {
        Some(missing) => Err(format!("{found}; {missing}; {TASKS_EXPIRE}").into()),
        None => Ok(found),
    }
}

fn without_engine(depth: &QueueDepth, engines: &[EngineState], named: &[WaitingForEngine]) -> Option<String> {
    let limits = ReferenceLimits::of(engines);
    let tasks = depth.beyond(limits.available);
    if tasks == 0 {
        let named = named.iter().filter(|waiting| waiting.lacks_worker(engines));
        let waits = |waiting: &WaitingForEngine| {
            let tasks = counted(waiting.tasks, "task waits", "tasks wait");
            format!("{tasks} for the engine {}, which no worker has now", waiting.engine)
        };
        let named: Vec<String> = named.map(waits).collect();
        return (!named.is_empty()).then(|| named.join("; "));
    }
    let tasks = counted(tasks, "task waits", "tasks wait");
    let missing: Vec<String> =
        limits.missing(engines).map(|engine| format!("{} (last seen {})", engine.name, engine.seen_at)).collect();
    Some(match missing.as_slice() {
        [] => format!("{tasks}, and no worker runs"),
        missing => format!("{tasks} for an engine that no worker has now: {}", missing.join(", ")),
    })
}

/// The database as it is. Nothing is created or migrated.
enum Existing {
    None,
    Older,
    Current(Box<Store>),
}

async fn existing_database(data: &DataSettings) -> Result<Existing, Failure> {
    Ok(match data.database()? {
        DatabaseUrl::Sqlite(path) if !is_there(&path)? && !is_there(&sqlite::restoring(&path))? => Existing::None,
        DatabaseUrl::Sqlite(path) => {
            data_dir::check_same_machine(&path)?;
            let (store, is_current) = sqlite::open_in_place(&path)?;
            if is_current { Existing::Current(store.into()) } else { Existing::Older }
        }
        DatabaseUrl::Postgres(url) => {
            let ca = data.database_ca.as_deref();
            let found = postgres::open_current(&url, ca).await?;
            found.map_or(Existing::Older, |store| Existing::Current(store.into()))
        }
    })
}

async fn files(
    data: &DataSettings,
    files: Option<&str>,
    existing: Result<&Existing, &String>,
) -> Result<String, Failure> {
    let backend = data.file_backend(files)?;
    let known = match existing? {
        Existing::None | Existing::Older => None,
        Existing::Current(store) => store.files_marker().await?,
    };
    if let FileBackend::Directory(directory) = &backend
        && !is_there(directory)?
    {
        return match known {
            None => Ok(format!("none yet; the first start creates {}", directory.display())),
            Some(_) => Err(format!(
                "there is no directory {}: point --files at the result files of this database, or run `tintype files adopt` \
                 after you have moved them",
                directory.display()
            )
            .into()),
        };
    }
    let files = Files::on_backend(&backend)?;
    files.check_access().await?;
    let clock = Clock::system();
    let started = clock.elapsed();
    match files.directory() {
        Some(directory) => try_directory(directory)?,
        None => try_bucket(&files, &clock).await?,
    }
    let took = clock.elapsed() - started;
    let written = if files.directory().is_some() { "a durable write" } else { "a durable write of 8 MiB" };
    let marked = match known {
        Some(known) => file_store::compare(known, &files).await.map(|()| "belongs to this database")?,
        None => "the first start assigns it to the database",
    };
    Ok(format!("{} ({marked}; {written} took {:.1} ms)", files.describe(), took.as_secs_f64() * 1e3))
}

/// Writes a nameless file, which leaves nothing behind, and checks who owns the directory's entries.
fn try_directory(directory: &Path) -> Result<(), String> {
    writable(directory)?;
    check_owners(directory)?;
    let unnamed = OFlags::TMPFILE | OFlags::WRONLY;
    let unwritable = |error: std::io::Error| format!("cannot write in {}: {error}", directory.display());
    match rustix::fs::open(directory, unnamed, Mode::RUSR | Mode::WUSR).map(File::from) {
        Ok(mut file) => file.write_all(b"probe").and_then(|()| file.sync_all()).map_err(unwritable),
        // Not every file system has files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(()),
        Err(error) => Err(unwritable(error.into())),
    }
}

/// Writes an object to a bucket and removes it. Like a big picture it cannot be compressed, so that a limit of a proxy
/// before the bucket shows here.
async fn try_bucket(files: &Files, clock: &Clock) -> Result<(), Failure> {
    let mut picture = vec![0; PROBE_BYTES];
    rand::rng().fill_bytes(&mut picture);
    let (probe, picture) = (IdSource::default().next(clock.now()), bytes::Bytes::from(picture));
    let name = files.write(probe, 0, picture.clone()).await?;
    let named = FileName::parse(&name).ok_or("the file store chose an invalid name: report this as a bug")?;
    let again = files.create(named, bytes::Bytes::from_static(b"other")).await;
    let part = files.open(named, Some(GetRange::Bounded(1..3))).await;
    let part = match part {
        Ok(Some(part)) => part.bytes().await.map_err(|error| error.to_string()),
        Ok(None) => Err("the file that was just written is not there".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    files.remove(&name).await?;
    if again? == Creation::Done {
        return Err(format!("{}: {REPLACES}", files.describe()).into());
    }
    match part {
        Ok(part) if *part == picture[1..3] => Ok(()),
        Ok(_) => Err(format!("{} ignored the Range header", files.describe()).into()),
        Err(error) => Err(format!("{} did not send a part of a file: {error}", files.describe()).into()),
    }
}

async fn rate_limits(settings: &RedisSettings) -> Result<String, String> {
    match settings.server()? {
        Some(redis) => limits::probe(&redis).await,
        None => Ok("each process counts on its own".into()),
    }
}

/// Lists the installed models; one that is damaged is an error.
fn installed_models(data: &DataSettings) -> Result<String, String> {
    let entries = models::entries(&data.data)?;
    let damaged: Vec<_> = entries
        .iter()
        .filter_map(|entry| Some(format!("{} is damaged: {}", entry.name, entry.found.as_ref().err()?)))
        .collect();
    if !damaged.is_empty() {
        let advice = "remove it with `tintype model remove`, and pull or add it again";
        return Err(format!("{}; {advice}", damaged.join("; ")));
    }
    let mut parts: Vec<_> = entries.iter().map(|entry| entry.name.clone()).collect();
    let unfinished = models::unfinished(&data.data)?;
    parts.extend(unfinished.iter().map(|name| format!("{name} (unfinished: `tintype model pull` continues)")));
    if parts.is_empty() { Ok("none installed; `tintype model list` shows some".into()) } else { Ok(parts.join(", ")) }
}

async fn policy(settings: &PolicySettings) -> Result<String, String> {
    let policy = Policy::open(settings.policy.as_deref()).await?;
    Ok(policy.describe().unwrap_or_else(|| "no policy file; only the engine refuses prompts".into()))
}

async fn engines(settings: &EngineSettings, data: &Path) -> Result<String, String> {
    let engines = tintype_engines::configured(settings, data)?;
    let mut lines = Vec::new();
    for NamedEngine { name, settings, .. } in &engines {
        let unused = settings.without_effect().into_iter().map(|setting| format!("; {setting} has no effect with it"));
        let unused: String = unused.collect();
        let found = engine(settings, data).await.map(|found| found + &unused);
        let named = |message: String| if engines.len() == 1 { message } else { format!("{name}: {message}") };
        lines.push(found.map(named).map_err(|Failure(message)| named(message)));
    }
    let all_well = lines.iter().all(Result::is_ok);
    let found = lines.into_iter().map(|line| line.unwrap_or_else(|line| line)).collect::<Vec<_>>().join("; ");
    if all_well { Ok(found) } else { Err(found) }
}

/// Probes the engine. Only the built-in engine also renders: a picture of a server may cost money.
async fn engine(settings: &EngineSettings, data: &Path) -> Result<String, Failure> {
    let choice = tintype_engines::choose(settings, data)?;
    if settings.engine == Some(EngineTarget::Diffusion) {
        return Ok(diffusion::check(settings, data, &Decoder::default()).await?);
    }
    if settings.engine == Some(EngineTarget::OwnSdServer) {
        // A second process would load the model again, next to a running server's.
        let version = version(&settings.engine_program).await?;
        return Ok(format!("{}: {version}", choice.info.description));
    }
    let engine = choice.build(EngineContext { quotes_server: true, ..EngineContext::default() })?;
    // The outcome says what the log would.
    let probe = tokio::time::timeout(PROBE_LIMIT, engine.check()).with_subscriber(NoSubscriber::default()).await;
    let probe =
        probe.map_err(|_| format!("no answer within {} s from {}", PROBE_LIMIT.as_secs(), choice.info.description))?;
    probe?;
    if settings.engine == Some(EngineTarget::Sketch) {
        let brief = Brief {
            prompt: "A lighthouse at dusk".into(),
            width: 256,
            height: 256,
            seeds: vec![1],
            time_limit: std::time::Duration::from_secs(60),
            ..Brief::default()
        };
        let rendering = engine.render(brief, Progress::default(), CancellationToken::new());
        rendering.await?;
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

async fn references() -> Result<String, Failure> {
    match Decoder::default().probe().await? {
        Confinement::Full => Ok("decoded in a child process without access to files, network or new processes".into()),
        Confinement::LimitsOnly => {
            Ok("decoded in a child process with resource limits only: this kernel does not filter system calls".into())
        }
    }
}
