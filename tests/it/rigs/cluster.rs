//! A service of several processes: API and worker nodes on one PostgreSQL cluster and one S3 server, the network
//! between them, and a load balancer in front.

use std::collections::HashSet;
use std::path::Path;

use tempfile::TempDir;

use self::node::{Node, Part};
use super::binary::TINTYPE;
use super::installation::Installation;
use super::ports;
use super::postgres::{Cluster, Durability, schema, url};
use super::s3::S3Server;

pub mod balancer;
pub mod node;
pub mod relay;

const FILES: &str = "s3://files";

/// Lines of each log that a failed test prints beside the warnings. Printing all would bury why it failed.
const END_OF_LOG: usize = 10;

/// More credits than any test spends.
pub const FOREVER: &str = "1000000";

/// A database, a bucket and a data directory for several processes.
pub struct Site {
    pub installation: Installation,
    pub postgres: Cluster,
    pub s3: S3Server,
    _directory: TempDir,
}

impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for entry in std::fs::read_dir(&self.installation.data).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
                let lines: Vec<_> = log.lines().collect();
                let end = lines.len().saturating_sub(END_OF_LOG);
                println!("{}, what went wrong and the end:", entry.path().display());
                // A node that stops answers every probe with 503.
                let telling = |line: &&&str| {
                    [" WARN ", "ERROR "].iter().any(|level| line.contains(level)) && !line.contains("/readyz")
                };
                lines[..end].iter().filter(telling).chain(&lines[end..]).for_each(|line| println!("{line}"));
            }
        }
    }
}

impl Site {
    pub async fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let postgres = Cluster::start(Durability::Commits);
        let s3 = S3Server::start(&directory.path().join("s3"), "files").await;
        let data = directory.path().join("data");
        std::fs::create_dir(&data).expect("a directory");
        let mut variables = s3.variables();
        variables.push(("TINTYPE_FILES".into(), FILES.into()));
        variables.push(("TINTYPE_LISTEN".into(), ports::of_own_address().to_string()));
        let database = Some(postgres.url(&data));
        let installation = Installation { program: TINTYPE.into(), data, database, variables };
        Self { installation, postgres, s3, _directory: directory }
    }

    /// This installation with PostgreSQL behind another socket.
    pub fn by_way_of(&self, socket: &Path) -> Installation {
        Installation { database: Some(url(socket, &self.installation.data)), ..self.installation.clone() }
    }

    /// The leased tasks, each with its lease epoch.
    pub fn leases(&self) -> HashSet<(String, i64)> {
        let schema = schema(&self.installation.data);
        let sql = format!("SELECT task_id, lease_epoch FROM {schema}.queue WHERE lease_until IS NOT NULL");
        self.postgres.query(&sql).iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    pub fn start(&self, part: Part, number: usize, flags: &[&str]) -> Node {
        Node::start(part, number, &self.installation, flags)
    }
}
