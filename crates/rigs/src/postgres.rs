//! PostgreSQL clusters for tests: one that the first test starts and all share, and separate ones for tests that stop
//! theirs. All are removed when the tests end.

use std::collections::HashSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tintype_store::Store;
use tintype_store::postgres;
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;
use tokio::runtime::Runtime;

use crate::debian;

/// Debian's directory of the programs of each major version.
const DEBIAN: &str = "/usr/lib/postgresql";
/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster that listens on a socket in its own directory.
#[derive(Debug)]
pub struct Cluster {
    /// Where it listens and keeps its data.
    pub directory: PathBuf,
    programs: PathBuf,
    owner: Option<(u32, u32)>,
    /// Directories of installations that have their database here.
    known: Mutex<HashSet<PathBuf>>,
    /// The watcher removes the cluster when this pipe closes.
    _life: ChildStdin,
}

/// The data that survives an immediate stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// None: `fsync` is off, which is fast.
    Nothing,
    /// Everything that was committed, as by default.
    Commits,
}

/// A shutdown mode of `pg_ctl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shutdown {
    /// Ends all sessions, rolls their transactions back, and writes a checkpoint.
    Fast,
    /// As in a crash: the next start recovers from the log.
    Immediate,
}

/// A runtime that outlives the tests' runtimes, because stores are opened by code that isn't async.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let build = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    RUNTIME.get_or_init(|| build().expect("a runtime"))
}

/// The cluster that all tests of this process share.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(Durability::Nothing))
}

impl Cluster {
    /// Starts a new cluster.
    pub fn start(durability: Durability) -> Self {
        Self::start_in(&std::env::temp_dir(), durability, "-c shared_buffers=64MB")
    }

    /// Starts a cluster for a benchmark, with durable commits. `place` is on a disk, unlike many a /tmp.
    pub fn start_for_benchmark(place: &Path) -> Self {
        // As in /tmp, the user of the server may remove its own directory.
        let place = place.join("postgresql");
        std::fs::create_dir_all(&place).expect("a directory");
        std::fs::set_permissions(&place, Permissions::from_mode(0o1777)).expect("permissions of our own directory");
        Self::start_in(&place, Durability::Commits, "-c shared_buffers=512MB -c max_wal_size=4GB")
    }

    /// Starts a new cluster, in its own directory in `place`, with additional `postgres` options.
    fn start_in(place: &Path, durability: Durability, others: &str) -> Self {
        let programs = programs();
        let directory = TempDir::with_prefix_in("tintype-pg-", place).expect("a temporary directory").keep();
        let owner = owner();
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(&directory, Some(user), Some(group)).expect("root may give a directory away");
        }
        let life = watch(&programs, &directory, owner);
        let cluster = Self { directory, programs, owner, known: Mutex::default(), _life: life };
        let data = cluster.data();
        let superuser = ["--username", "tintype", "--auth", "trust"];
        let kind = ["--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"];
        cluster.run("initdb", &[&["--pgdata", path(&data)], &superuser[..], &kind].concat());
        let durability = match durability {
            Durability::Nothing => "-c fsync=off -c full_page_writes=off",
            Durability::Commits => "-c fsync=on",
        };
        cluster.control(&["-o", &cluster.options(&format!("-c listen_addresses= {durability} {others}")), "start"]);
        cluster
    }

    /// Starts a standby that replicates this cluster.
    pub fn standby(&self) -> Self {
        let directory = TempDir::with_prefix("tintype-pg-").expect("a temporary directory").keep();
        if let Some((user, group)) = self.owner {
            std::os::unix::fs::chown(&directory, Some(user), Some(group)).expect("root may give a directory away");
        }
        let life = watch(&self.programs, &directory, self.owner);
        let programs = self.programs.clone();
        let standby = Self { directory, programs, owner: self.owner, known: Mutex::default(), _life: life };
        let (from, data) = (path(&self.directory), standby.data());
        let copy = ["--host", from, "--username", "tintype", "--pgdata", path(&data)];
        let kind = ["--write-recovery-conf", "--checkpoint", "fast", "--no-sync"];
        self.run("pg_basebackup", &[&copy[..], &kind].concat());
        standby.control(&["-o", &standby.options("-c listen_addresses="), "start"]);
        standby
    }

    /// Makes a standby the primary.
    pub fn promote(&self) {
        self.control(&["promote"]);
    }

    /// Stops it for good, as in a crash.
    pub fn crash(&self) {
        self.control(&["-m", "immediate", "stop"]);
    }

    /// The options of the server: fixed ones and `others`.
    fn options(&self, others: &str) -> String {
        let socket = path(&self.directory);
        format!(
            "-c unix_socket_directories={socket} -c max_connections=400 \
             -c log_min_messages=fatal {others}"
        )
    }

    /// Restarts it on this port of 127.0.0.1 with TLS. From then on it survives no crash, and [`Cluster::session`] no
    /// longer finds it.
    pub fn encrypt(&self, port: u16, certificate_pem: &str, key_pem: &str) {
        let files = [("server.crt", certificate_pem), ("server.key", key_pem)];
        for (name, pem) in files {
            let file = self.data().join(name);
            std::fs::write(&file, pem).expect("a file");
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("a private file");
            if let Some((user, group)) = self.owner {
                std::os::unix::fs::chown(&file, Some(user), Some(group)).expect("root may give a file away");
            }
        }
        let options = format!("-c listen_addresses=127.0.0.1 -c port={port} -c ssl=on -c fsync=off");
        self.control(&["-m", "fast", "-o", &self.options(&options), "restart"]);
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn control(&self, arguments: &[&str]) {
        let (data, log) = (self.data(), self.directory.join("log"));
        let common = ["--pgdata", path(&data), "--log", path(&log), "-w", "-t", "120"];
        self.run("pg_ctl", &[&common, arguments].concat());
    }

    /// Restarts it, and returns when it accepts connections.
    pub fn restart(&self, how: Shutdown) {
        let mode = match how {
            Shutdown::Fast => "fast",
            Shutdown::Immediate => "immediate",
        };
        self.control(&["-m", mode, "restart"]);
    }

    /// Terminates up to this number of random connections, and returns how many.
    pub fn terminate(&self, connections: u32) -> i64 {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
                 SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
                 ORDER BY random() LIMIT {connections}) AS unlucky"
        );
        self.number(&sql)
    }

    /// The URL of the schema of a directory. Creates the schema if necessary.
    pub fn url(&self, directory: &Path) -> String {
        self.execute(&format!("CREATE SCHEMA IF NOT EXISTS {}", schema(directory)));
        url(&self.directory, directory)
    }

    /// The URL of its database, without a schema.
    pub fn database_url(&self) -> String {
        format!("postgres://tintype@{}/postgres", path(&self.directory).replace('/', "%2F"))
    }

    /// The URL of the database of the installation in a directory, if that is in this cluster.
    pub fn url_of_known(&self, directory: &Path) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(directory);
        known.then(|| self.url(directory))
    }

    /// Opens the store in the schema of a directory.
    pub fn open(&'static self, directory: &Path, clock: &Clock, faults: Faults) -> Arc<Store> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(directory.to_owned());
        let (url, clock) = (self.url(directory), clock.clone());
        let (opened, store) = std::sync::mpsc::channel();
        runtime().spawn(async move {
            let store = postgres::open(&url, None, clock, faults).await;
            opened.send(store).expect("the test waits");
        });
        Arc::new(store.recv().expect("an answer").expect("a fresh schema opens"))
    }

    /// Runs SQL directly, past the stores.
    pub fn execute(&self, sql: &str) {
        self.attempt(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// Runs SQL that may fail.
    pub fn attempt(&self, sql: &str) -> Result<(), tokio_postgres::Error> {
        self.in_session(async move |session| session.batch_execute(sql).await)
    }

    /// The rows of a query.
    pub fn query(&self, sql: &str) -> Vec<tokio_postgres::Row> {
        let found = self.in_session(async move |session| session.query(sql, &[]).await);
        found.unwrap_or_else(|error| panic!("{sql}: {error:?}"))
    }

    /// The number that a query returns.
    pub fn number(&self, sql: &str) -> i64 {
        self.query(sql)[0].get(0)
    }

    /// Terminates all connections of stores in the schema of a directory, and waits until they have ended.
    pub fn terminate_all_of(&self, directory: &Path) {
        let of = schema(directory);
        // `pg_terminate_backend` waits for each.
        self.number(&format!(
            "SELECT count(pg_terminate_backend(pid, 60000)) FROM pg_stat_activity WHERE application_name = '{of}'"
        ));
    }

    /// A session of an administrator. It ends when the value is dropped.
    pub async fn session(&self) -> tokio_postgres::Client {
        let mut config = tokio_postgres::Config::new();
        config.host_path(&self.directory).user("tintype").dbname("postgres");
        let (session, connection) = config.connect(tokio_postgres::NoTls).await.expect("the cluster runs");
        // The task ends with the session or with the cluster.
        tokio::spawn(async move { drop(connection.await) });
        session
    }

    /// Waits until a query returns this number.
    pub async fn until(&self, sql: &str, wanted: impl Fn(i64) -> bool) {
        let waiting = async {
            let session = self.session().await;
            while !wanted(session.query_one(sql, &[]).await.expect("valid SQL").get(0)) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {sql}"));
    }

    /// Waits until a statement of the store in a schema waits for a lock.
    pub async fn until_waiting(&self, schema: &str) {
        self.until(&waiting(schema), |statements| statements > 0).await;
    }

    fn in_session<T: Send>(&self, what: impl AsyncFnOnce(&tokio_postgres::Client) -> T + Send) -> T {
        // The caller's thread may belong to a runtime and must not block, so another thread waits.
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| runtime().block_on(async { what(&self.session().await).await }));
            asking.join().expect("no panic")
        })
    }

    /// A program of this version of PostgreSQL, to run as the user of the server.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let ended = self.program(program).args(arguments).stdout(Stdio::null()).status();
        assert!(ended.expect("the program runs").success(), "{program} {arguments:?} failed");
    }
}

/// A database in the shared cluster that is dropped with this value. PgBouncer needs one, because it forwards no
/// `search_path`.
#[derive(Debug)]
pub struct Database {
    _directory: TempDir,
    name: String,
}

impl Database {
    /// Creates it with these options of `CREATE DATABASE`.
    pub fn create(options: &str) -> Self {
        let directory = TempDir::new().expect("a directory");
        let name = schema(directory.path());
        cluster().execute(&format!("CREATE DATABASE {name} {options}"));
        Self { _directory: directory, name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL without a pooler.
    pub fn direct(&self) -> String {
        format!("postgres://tintype@{}/{}", path(&cluster().directory).replace('/', "%2F"), self.name)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        cluster().execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name));
    }
}

/// The URL of the schema of a directory, through the socket in another directory.
pub fn url(socket: &Path, directory: &Path) -> String {
    let (host, schema) = (path(socket).replace('/', "%2F"), schema(directory));
    format!("postgres://tintype@{host}/postgres?options=-csearch_path%3D{schema}&application_name={schema}")
}

/// Counts statements of the store in a schema that wait for a lock.
pub fn waiting(schema: &str) -> String {
    format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND wait_event_type = 'Lock'")
}

/// The schema of a directory has the directory's name.
pub fn schema(directory: &Path) -> String {
    let name = directory.file_name().expect("a directory with a name").to_str().expect("text");
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    // The name is used without quotes, and PostgreSQL folds case where file names do not.
    let folded: String = plain
        .chars()
        .map(|c| if c.is_ascii_uppercase() { format!("{}_", c.to_ascii_lowercase()) } else { c.to_string() })
        .collect();
    format!("t_{folded}")
}

/// A path as text.
pub fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// User and group that run the servers instead of root, whom they refuse.
pub fn owner() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let id = |flag: &str| {
        let output = Command::new("id").args([flag, "postgres"]).output().expect("id, from coreutils, runs");
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse()
            .expect("Debian's package postgresql makes the user postgres")
    };
    Some((id("-u"), id("-g")))
}

/// The programs of the newest version, installed if necessary.
fn programs() -> PathBuf {
    let newest = || {
        let versions = std::fs::read_dir(DEBIAN).ok()?;
        let programs = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
        // By number: 9.6 is older than 15.
        let version = |programs: &PathBuf| {
            let name = programs.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or_default();
            name.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>()
        };
        programs.filter(|programs| programs.join("initdb").exists()).max_by_key(version)
    };
    debian::install("postgresql", || newest().is_some());
    newest().expect("the package was just installed")
}

/// Starts a watcher process that stops the cluster and removes its directory when this process ends, even by SIGKILL.
#[expect(clippy::zombie_processes, reason = "the watcher ends after this process, so no parent can wait for it")]
fn watch(programs: &Path, directory: &Path, owner: Option<(u32, u32)>) -> ChildStdin {
    let mut watcher = Command::new("setsid");
    if let Some((user, group)) = owner {
        watcher.uid(user).gid(group);
    }
    let script = r#"cat > /dev/null; "$0"/pg_ctl --pgdata "$1"/data -m immediate stop > /dev/null; rm -rf "$1""#;
    watcher.args(["sh", "-c", script, path(programs), path(directory)]).current_dir("/").stdin(Stdio::piped());
    let mut watcher = watcher.stdout(Stdio::null()).spawn().expect("setsid, from util-linux, runs");
    watcher.stdin.take().expect("a pipe")
}
