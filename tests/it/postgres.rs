//! A PostgreSQL cluster of the tests' own: started by the first test that wants it, gone when the tests have ended.

use std::collections::HashSet;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tempfile::TempDir;
use tintype::clock::Clock;
use tintype::fault::Faults;
use tintype::store::Store;
use tintype::store::postgres::PostgresStore;
use tokio::runtime::Runtime;

use crate::debian;

/// Where Debian puts the programs of each major version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A cluster that listens on a socket in its own directory.
pub struct Cluster {
    directory: PathBuf,
    /// Outlives every test's own runtime, as stores are opened by code that cannot wait.
    runtime: Runtime,
    admin: tokio_postgres::Client,
    /// Directories whose installation has its database here.
    known: Mutex<HashSet<PathBuf>>,
    /// While it is open the cluster lives.
    _life: ChildStdin,
}

/// The cluster that all tests of this process share.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(Cluster::start)
}

impl Cluster {
    fn start() -> Self {
        let programs = programs();
        let directory = TempDir::with_prefix("tintype-pg-").expect("a temporary directory").keep();
        let owner = owner();
        if let Some((user, group)) = owner {
            std::os::unix::fs::chown(&directory, Some(user), Some(group)).expect("root may give a directory away");
        }
        let data = directory.join("data");
        run(
            &programs,
            owner,
            "initdb",
            &[
                "--pgdata",
                path(&data),
                "--username",
                "tintype",
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
                "--locale",
                "C",
                "--no-sync",
                "--no-instructions",
            ],
        );
        // What tests write need not outlast a power cut, but for those that say otherwise.
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -c fsync=off -c full_page_writes=off \
             -c max_connections=400 -c shared_buffers=64MB -c log_min_messages=fatal",
            path(&directory)
        );
        let log = directory.join("log");
        run(&programs, owner, "pg_ctl", &["--pgdata", path(&data), "--log", path(&log), "-w", "-o", &options, "start"]);
        let life = watch(&programs, &directory, owner);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let admin = connect(&runtime, &directory);
        Self { directory, runtime, admin, known: Mutex::default(), _life: life }
    }

    /// The URL of the schema that belongs to a directory, which is made when it is not there.
    pub fn url(&self, directory: &Path) -> String {
        let schema = schema(directory);
        self.execute(&format!("CREATE SCHEMA IF NOT EXISTS {schema}"));
        let host = path(&self.directory).replace('/', "%2F");
        format!("postgres://tintype@{host}/postgres?options=-csearch_path%3D{schema}&application_name={schema}")
    }

    /// The URL of the database of an installation in a directory, if that is here.
    pub fn url_of_known(&self, directory: &Path) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(directory);
        known.then(|| self.url(directory))
    }

    /// Opens the store in the schema that belongs to a directory.
    pub fn open(&'static self, directory: &Path, clock: &Clock, faults: Faults) -> Arc<dyn Store> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(directory.to_owned());
        let (url, clock) = (self.url(directory), clock.clone());
        let (opened, store) = std::sync::mpsc::channel();
        self.runtime.spawn(async move {
            let store = PostgresStore::open(&url, None, clock, faults).await;
            opened.send(store).expect("the test waits");
        });
        Arc::new(store.recv().expect("an answer").expect("a fresh schema opens"))
    }

    /// Runs SQL behind every store's back.
    pub fn execute(&self, sql: &str) {
        self.run(&self.admin, sql);
    }

    /// Runs SQL on a connection that [`Cluster::connect`] made.
    pub fn run(&self, client: &tokio_postgres::Client, sql: &str) {
        self.wait(client.batch_execute(sql)).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// The number that a query returns.
    pub fn number(&self, sql: &str) -> i64 {
        let row = self.wait(self.admin.query_one(sql, &[])).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        row.try_get(0).expect("a number")
    }

    /// Cuts all connections of stores in the schema that belongs to a directory.
    pub fn terminate(&self, directory: &Path) {
        let of = schema(directory);
        self.number(&format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{of}'"
        ));
    }

    /// A connection of a test's own.
    pub fn connect(&self) -> tokio_postgres::Client {
        connect(&self.runtime, &self.directory)
    }

    /// What comes of a future of the driver, whose own task runs on the runtime, so this thread may wait.
    fn wait<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        std::thread::scope(|scope| scope.spawn(|| self.runtime.block_on(future)).join().expect("no panic"))
    }
}

/// The schema that belongs to a directory: the directory's own name.
pub fn schema(directory: &Path) -> String {
    let name = directory.file_name().expect("a directory with a name").to_str().expect("text");
    let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    // Quoted nowhere, and PostgreSQL folds case, as file names do not.
    let folded: String = plain
        .chars()
        .map(|c| if c.is_ascii_uppercase() { format!("{}_", c.to_ascii_lowercase()) } else { c.to_string() })
        .collect();
    format!("t_{folded}")
}

fn path(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// PostgreSQL refuses to run as root.
fn owner() -> Option<(u32, u32)> {
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

/// The programs of the newest version, installed if there is none.
fn programs() -> PathBuf {
    let newest = || {
        let versions = std::fs::read_dir(DEBIAN).ok()?;
        let programs = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
        programs.filter(|programs| programs.join("initdb").exists()).max()
    };
    debian::install("postgresql", || newest().is_some());
    newest().expect("it was just found")
}

fn command(programs: &Path, owner: Option<(u32, u32)>, program: &str) -> Command {
    let mut command = Command::new(programs.join(program));
    if let Some((user, group)) = owner {
        command.uid(user).gid(group);
    }
    command.current_dir("/");
    command
}

fn run(programs: &Path, owner: Option<(u32, u32)>, program: &str, arguments: &[&str]) {
    let output = command(programs, owner, program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status();
    assert!(output.expect("the program runs").success(), "{program} {arguments:?} failed");
}

/// Lets a process that outlives this one stop the cluster and remove its directory when this one has ended, in
/// whatever way.
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

fn connect(runtime: &Runtime, directory: &Path) -> tokio_postgres::Client {
    let mut config = tokio_postgres::Config::new();
    config.host_path(directory).user("tintype").dbname("postgres");
    let (sent, client) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let (client, connection) = config.connect(tokio_postgres::NoTls).await.expect("the cluster runs");
        sent.send(client).expect("somebody waits");
        // It may be cut, which is for whoever uses it to notice.
        drop(connection.await);
    });
    client.recv().expect("a client")
}
