//! The fixture of every case of the store suite.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tintype_domain::key::{ApiKey, KeySecret};
use tintype_domain::model::{Account, FailureCause, Id, LedgerEntry, Status, Surface, Task, TaskFailure, TaskRef};
use tintype_domain::request::GenerateRequest;
use tintype_store::{Lease, NewKey, QueueDepth, Result, Store, Submission};
use tintype_system::clock::Clock;

use tintype_rigs::database::{Backend, NOON};
use tintype_rigs::postgres::{cluster, schema};

/// Length of a lease in these tests.
pub const LEASE: Duration = Duration::from_secs(60);
/// The smallest step of a clock.
pub const MILLISECOND: Duration = Duration::from_millis(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(60 * 60);
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// No limit on unfinished tasks.
pub const UNLIMITED: u32 = 0;

/// An empty database and its clock.
pub struct Fixture {
    pub store: Arc<Store>,
    pub clock: Clock,
    pub backend: Backend,
    pub directory: TempDir,
}

/// The status of a task that failed.
pub fn failure(cause: FailureCause, message: &str) -> Status {
    Status::Failed(TaskFailure::new(cause, message))
}

/// Everything that a store returns.
#[derive(Debug, PartialEq)]
pub struct TaskState {
    accounts: Vec<Account>,
    keys: Vec<ApiKey>,
    entries: Vec<LedgerEntry>,
    tasks: Vec<(Task, Option<u32>)>,
    depth: QueueDepth,
}

/// Runs one case on an empty database and audits the ledger afterwards.
pub async fn check(backend: Backend, case: impl AsyncFnOnce(&Fixture) -> Result<()>) {
    let fixture = Fixture::new(backend);
    case(&fixture).await.expect("no store error");
    assert_eq!(fixture.store.audit().await.expect("no store error").drifts, []);
}

impl Fixture {
    pub fn new(backend: Backend) -> Self {
        Self::inside(TempDir::new().expect("a temporary directory"), backend)
    }

    /// Opens the database in `directory`, or creates it.
    pub fn inside(directory: TempDir, backend: Backend) -> Self {
        let clock = Clock::manual(NOON);
        Self { store: backend.open(&directory, &clock), clock, backend, directory }
    }

    /// Opens the same database as another process does.
    pub fn another_process(&self) -> Arc<Store> {
        self.process_with_clock(&self.clock)
    }

    /// Opens the same database as a process with another clock does.
    pub fn process_with_clock(&self, clock: &Clock) -> Arc<Store> {
        self.backend.open(&self.directory, clock)
    }

    /// Executes SQL directly, past the store.
    pub fn execute(&self, sql: &str) {
        match self.backend {
            Backend::Sqlite => {
                let connection = Connection::open(self.directory.path().join("tintype.db")).expect("the database");
                connection.execute_batch(sql).expect("valid SQL");
            }
            Backend::Postgres => {
                cluster().execute(&format!("SET search_path = {}; {sql}", schema(self.directory.path())))
            }
        }
    }

    /// Number of rows of a table.
    pub fn count(&self, table: &str) -> i64 {
        match self.backend {
            Backend::Sqlite => {
                let connection = Connection::open(self.directory.path().join("tintype.db")).expect("the database");
                let count = connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0));
                count.expect("a table")
            }
            Backend::Postgres => {
                cluster().number(&format!("SELECT count(*) FROM {}.{table}", schema(self.directory.path())))
            }
        }
    }

    /// Creates an account.
    pub async fn account(&self, name: &str, credits: i64) -> Result<Id> {
        Ok(self.store.create_account(name, credits).await?.expect("a free name").id)
    }

    /// The balance of the account.
    pub async fn credits(&self, account: Id) -> Result<i64> {
        let found = self.store.find_account(account.as_str()).await?;
        Ok(found.expect("the account exists").credits)
    }

    /// Submits a task for one image.
    pub async fn submit(&self, account: Id) -> Result<Task> {
        self.submit_request(account, Surface::Api, images(1)).await
    }

    /// Moves the clock by a millisecond, so that no two tasks have the same time, and submits a task.
    pub async fn submit_request(&self, account: Id, surface: Surface, request: GenerateRequest) -> Result<Task> {
        self.clock.advance(MILLISECOND);
        Ok(accepted(self.store.submit(account, None, surface, request, UNLIMITED).await?))
    }

    /// Adds copies of an account's latest task, which waits or is completed, with their charges. Where their number
    /// alone matters, submits would take most of a test's time.
    pub fn copy_task(&self, task: Id, copies: usize) {
        let copy = |table: &str, key: &str, others: &str| {
            let values = others.replace("balance", "balance + number * amount");
            format!(
                "INSERT INTO {table} ({key}{others}) WITH RECURSIVE numbers (number) AS
                     (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < {copies})
                 SELECT substr('{task}', 1, 12) || substr(CAST(1000000000 + number AS text), 2){values}
                 FROM {table}, numbers WHERE {key} = '{task}' ORDER BY number;"
            )
        };
        let request = ", account_id, surface, image_to_image, n, aspect_ratio, reference_images, prompt";
        let columns = format!("{request}, status, images, updated_at, claimed_at");
        let sql = [
            copy("tasks", "id", &columns),
            copy("queue", "task_id", ", account_id, reference_count"),
            copy("unindexed", "task_id", ""),
            copy("ledger", "task_id", ", account_id, kind, amount, balance, created_at"),
        ];
        self.execute(&sql.concat());
    }

    /// The record that a write returns for a task that it ends.
    pub async fn ended(&self, id: Id) -> Result<TaskRef> {
        let Task { account_id, surface, .. } = self.task(id).await?;
        Ok(TaskRef { id, account_id, surface })
    }

    /// Claims the next task.
    pub async fn claim(&self) -> Result<Lease> {
        let claims = self.store.claim(1, LEASE).await?;
        Ok(claims.first().expect("a task waits").lease)
    }

    /// Creates an account, submits a task and claims it.
    pub async fn leased(&self) -> Result<Lease> {
        let account = self.account("ada", 10).await?;
        self.submit(account).await?;
        self.claim().await
    }

    /// The task as it is now.
    pub async fn task(&self, id: Id) -> Result<Task> {
        Ok(self.store.inspect_task(id).await?.expect("the task exists").task)
    }

    /// Number of leases that the task has lost; `None` once it is terminal.
    pub async fn lost_leases(&self, id: Id) -> Result<Option<u32>> {
        Ok(self.store.inspect_task(id).await?.expect("the task exists").lost_leases)
    }

    /// Reads everything, for a comparison with a later state.
    pub async fn state(&self) -> Result<TaskState> {
        let accounts = self.store.list_accounts().await?;
        let mut entries = Vec::new();
        for account in &accounts {
            entries.extend(self.store.history(account.id, None, u32::MAX).await?);
        }
        let mut tasks = Vec::new();
        for task in self.store.recent_tasks(None, u32::MAX).await? {
            let lost_leases = self.lost_leases(task.id).await?;
            tasks.push((task, lost_leases));
        }
        let keys = self.store.list_keys(None).await?;
        Ok(TaskState { accounts, keys, entries, tasks, depth: self.store.queue_depth().await? })
    }
}

/// A request for `n` images.
pub fn images(n: u8) -> GenerateRequest {
    GenerateRequest { n, ..GenerateRequest::new("a boat") }
}

/// The names of one result file.
pub fn one_file() -> Vec<String> {
    vec!["boat.png".into()]
}

/// A key with a random secret.
pub fn new_key(name: &str) -> NewKey {
    NewKey { name: name.into(), ..NewKey::new(&KeySecret::random()) }
}

/// The accepted task; panics if the submit was refused.
#[track_caller]
pub fn accepted(submission: Submission) -> Task {
    match submission {
        Submission::Accepted(task) => task,
        refused => panic!("{refused:?}"),
    }
}

/// The ids of `tasks`, in their order.
pub fn ids(tasks: &[Task]) -> Vec<Id> {
    tasks.iter().map(|task| task.id).collect()
}
