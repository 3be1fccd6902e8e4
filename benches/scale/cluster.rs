//! A PostgreSQL cluster that keeps what it acknowledges.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::Outcome;

/// A running cluster; dropping it stops it.
pub struct Cluster {
    directory: PathBuf,
    /// The path of a socket is short by tradition, so it is not beside the data.
    socket: TempDir,
    programs: PathBuf,
    owner: Option<(u32, u32)>,
}

impl Cluster {
    /// Makes and starts one in a directory.
    pub fn start(directory: &TempDir) -> Outcome<Self> {
        let programs = std::fs::read_dir("/usr/lib/postgresql")
            .map_err(|_| "this benchmark needs PostgreSQL: install Debian's package postgresql")?
            .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
            .filter(|programs| programs.join("initdb").exists())
            .max()
            .ok_or("this benchmark needs PostgreSQL's initdb: install Debian's package postgresql")?;
        let cluster =
            Self { directory: directory.path().to_owned(), socket: TempDir::new()?, programs, owner: owner()? };
        for place in [directory.path(), cluster.socket.path()] {
            if let Some((user, group)) = cluster.owner {
                std::os::unix::fs::chown(place, Some(user), Some(group))?;
            }
            std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o755))?;
        }
        cluster.run(
            "initdb",
            &["-D", text(&cluster.data()), "-U", "tintype", "-A", "trust", "-E", "UTF8", "--locale=C"],
        )?;
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -c shared_buffers=512MB -c max_wal_size=4GB \
             -c max_connections=400",
            text(cluster.socket.path())
        );
        let log = cluster.data().join("server.log");
        cluster.run("pg_ctl", &["-D", text(&cluster.data()), "-l", text(&log), "-w", "-o", &options, "start"])?;
        Ok(cluster)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Where it is.
    pub fn url(&self) -> String {
        format!("postgres://tintype@{}/postgres", text(self.socket.path()).replace('/', "%2F"))
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Outcome<()> {
        let status = self.command(program).args(arguments).stdout(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(format!("{program} failed").into()) }
    }

    /// Runs pgbench with a script of its own; returns transactions a second.
    pub fn pgbench(&self, script: &str, clients: usize, seconds: f64) -> Outcome<f64> {
        let path = self.directory.join("script.sql");
        std::fs::write(&path, script)?;
        File::open(&path)?.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        let (clients, seconds) = (clients.to_string(), (seconds.ceil() as u64).max(1).to_string());
        let output = self
            .command("pgbench")
            .args(["-n", "-M", "prepared", "-h", text(self.socket.path()), "-U", "tintype"])
            .args(["-c", &clients, "-j", "2", "-T", &seconds, "-f", text(&path), "postgres"])
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        rate.ok_or_else(|| format!("pgbench: {said} {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    /// A connection that is not the store's.
    pub async fn connect(&self) -> Outcome<tokio_postgres::Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(), tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Err(error) = self.run("pg_ctl", &["-D", text(&self.data()), "-m", "immediate", "-w", "stop"]) {
            eprintln!("scale: the cluster was left running: {error}");
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the benchmark's own")
}

/// PostgreSQL refuses to run as root.
fn owner() -> Outcome<Option<(u32, u32)>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let id = |flag: &str| -> Outcome<u32> {
        let output = Command::new("id").args([flag, "postgres"]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    Ok(Some((id("-u")?, id("-g")?)))
}
