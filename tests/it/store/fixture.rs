//! The fixture of every case of the store suite.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use tintype::clock::Clock;
use tintype::domain::key::{ApiKey, KeySecret};
use tintype::domain::model::{Account, Id, LedgerEntry, Surface, Task};
use tintype::domain::request::{AspectRatio, GenerateRequest};
use tintype::store::{AccountCreation, Ended, Lease, NewKey, QueueDepth, Result, Store, Submission};

use crate::rigs::postgres::{cluster, schema};
use crate::rigs::service::{self, Backend, NOON};

/// How long the cases lease tasks for.
pub const LEASE: Duration = Duration::from_secs(60);
/// The smallest step of a clock.
pub const MILLISECOND: Duration = Duration::from_millis(1);
/// No limit on unfinished tasks.
pub const UNLIMITED: u32 = 0;

/// An empty database and its clock.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    pub clock: Clock,
    pub backend: Backend,
    pub directory: TempDir,
}

/// All that a store shows of itself.
#[derive(Debug, PartialEq)]
pub struct State {
    accounts: Vec<Account>,
    keys: Vec<ApiKey>,
    entries: Vec<LedgerEntry>,
    tasks: Vec<(Task, Option<u32>)>,
    depth: QueueDepth,
}

/// Runs one case on a fresh database and audits the books it leaves.
pub async fn check(backend: Backend, case: impl AsyncFnOnce(&Fixture) -> Result<()>) {
    let fixture = Fixture::new(backend);
    case(&fixture).await.expect("a store that works");
    assert_eq!(fixture.store.audit().await.expect("a store that works").drifts, []);
}

impl Fixture {
    pub fn new(backend: Backend) -> Self {
        Self::inside(TempDir::new().expect("a temporary directory"), backend)
    }

    /// On the database that is in `directory` already, if one is.
    pub fn inside(directory: TempDir, backend: Backend) -> Self {
        let clock = Clock::manual(NOON);
        Self { store: backend.open(&directory, &clock), clock, backend, directory }
    }

    /// The same database in the hands of another process.
    pub fn another_process(&self) -> Arc<dyn Store> {
        self.process_with_clock(&self.clock)
    }

    /// The same database in the hands of a process that reads another clock.
    pub fn process_with_clock(&self, clock: &Clock) -> Arc<dyn Store> {
        self.backend.open(&self.directory, clock)
    }

    /// Runs SQL behind the store's back.
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

    /// A new account.
    pub async fn account(&self, name: &str, credits: i64) -> Result<Id> {
        match self.store.create_account(name, credits).await? {
            AccountCreation::Created(account) => Ok(account.id),
            AccountCreation::NameTaken => panic!("the name {name} is taken"),
        }
    }

    /// Credits left.
    pub async fn credits(&self, account: Id) -> Result<i64> {
        let found = self.store.find_account(account.as_str()).await?;
        Ok(found.expect("the account exists").credits)
    }

    /// A task for one image.
    pub async fn submit(&self, account: Id) -> Result<Task> {
        self.submit_request(account, Surface::Api, images(1)).await
    }

    /// A task, a millisecond after whatever came before, so that its time is its own.
    pub async fn submit_request(&self, account: Id, surface: Surface, request: GenerateRequest) -> Result<Task> {
        self.clock.advance(MILLISECOND);
        Ok(accepted(self.store.submit(account, None, surface, request, UNLIMITED).await?))
    }

    /// The task as a write that ends it names it.
    pub async fn ended(&self, id: Id) -> Result<Ended> {
        let Task { account_id, surface, .. } = self.task(id).await?;
        Ok(Ended { task_id: id, account_id, surface })
    }

    /// Claims the next task.
    pub async fn claim(&self) -> Result<Lease> {
        let claims = self.store.claim(1, LEASE).await?;
        Ok(claims.first().expect("a task waits").lease)
    }

    /// A new account's only task, claimed.
    pub async fn leased(&self) -> Result<Lease> {
        let account = self.account("ada", 10).await?;
        self.submit(account).await?;
        self.claim().await
    }

    /// The task as it is now.
    pub async fn task(&self, id: Id) -> Result<Task> {
        Ok(self.store.inspect_task(id).await?.expect("the task exists").task)
    }

    /// How many leases the task has lost; `None` once it is terminal.
    pub async fn lost_leases(&self, id: Id) -> Result<Option<u32>> {
        Ok(self.store.inspect_task(id).await?.expect("the task exists").lost_leases)
    }

    /// Everything, to be compared with everything later.
    pub async fn state(&self) -> Result<State> {
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
        Ok(State { accounts, keys, entries, tasks, depth: self.store.queue_depth().await? })
    }
}

/// An order for `n` images.
pub fn images(n: u8) -> GenerateRequest {
    GenerateRequest {
        prompt: "a boat".into(),
        aspect_ratio: AspectRatio::Square,
        n,
        reference_images: Vec::new(),
        request_id: None,
    }
}

/// The names of one result file.
pub fn drawn() -> Vec<String> {
    vec!["boat.png".into()]
}

/// A key that nobody has.
pub fn new_key(name: &str) -> NewKey {
    NewKey { name: name.into(), ..service::new_key(&KeySecret::random()) }
}

/// The task of a submission that must have been accepted.
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
