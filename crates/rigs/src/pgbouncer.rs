//! PgBouncer between a store and the shared PostgreSQL cluster.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use tempfile::TempDir;

use crate::debian;
use crate::postgres::{Cluster, owner, path};

/// Debian's path; `sbin` may be missing from `PATH`.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A running PgBouncer, which ends with this value.
#[derive(Debug)]
pub struct PgBouncer {
    process: Child,
    /// It must not be closed: PgBouncer writes its log there.
    log: BufReader<ChildStderr>,
    directory: TempDir,
}

impl PgBouncer {
    /// Starts one before `cluster` with these lines in its configuration.
    pub fn start(cluster: &Cluster, lines: &[&str]) -> Self {
        debian::install("pgbouncer", || Path::new(PROGRAM).exists());
        let directory = TempDir::with_prefix("tintype-pgbouncer-").expect("a directory");
        let (process, log) = run(cluster, directory.path(), lines);
        Self { process, log, directory }
    }

    /// Starts it again at the same place with other lines.
    pub fn restart(&mut self, cluster: &Cluster, lines: &[&str]) {
        self.end();
        (self.process, self.log) = run(cluster, self.directory.path(), lines);
    }

    /// The URL of a database through it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://tintype@{}:6432/{database}", path(self.directory.path()).replace('/', "%2F"))
    }

    fn end(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs it in a directory, and waits until it listens there.
fn run(cluster: &Cluster, directory: &Path, lines: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let (socket, file) = (path(directory), directory.join("pgbouncer.ini"));
    let server = path(&cluster.directory);
    let fixed = format!(
        "[databases]\n* = host={server} user=tintype\n[pgbouncer]\nlisten_port = 6432\nunix_socket_dir = {socket}\n\
         auth_type = any\nlog_connections = 0\nlog_disconnections = 0\nlog_stats = 0\n"
    );
    std::fs::write(&file, fixed + &lines.join("\n")).expect("a file");
    let mut command = Command::new(PROGRAM);
    if let Some((user, group)) = owner() {
        std::os::unix::fs::chown(directory, Some(user), Some(group)).expect("root may give it away");
        command.uid(user).gid(group);
    }
    command.arg(&file).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("pgbouncer runs");
    let mut log = BufReader::new(process.stderr.take().expect("a pipe"));
    let mut lines = String::new();
    while !lines.contains("process up") {
        assert_ne!(log.read_line(&mut lines).expect("its log"), 0, "pgbouncer ended: {lines}");
    }
    (process, log)
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.end();
    }
}
