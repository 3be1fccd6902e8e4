//! PostgreSQL: one database that many processes share.
//!
//! A method is one statement, and so one round trip and one transaction, but for the few that say otherwise.
//! What comes often and from many at once shares a statement: see `batch.rs`.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio_util::task::AbortOnDropHandle;

use self::batch::Batcher;
use self::bell::Bell;
use self::claim::Rota;
use self::connection::{Database, MAX_CONNECTIONS};
use self::journal::Journal;
use self::lanes::Lanes;
use self::months::Months;
use self::queue::Completing;
use self::submit::{Order, Submitting};
use self::sweep::{Sought, Step, Swept};
use self::tasks::{Place, Wanted};
use super::{
    AccountCreation, Audit, Claim, CompletedTask, KeyChange, Lease, LeaseWrite, NewKey, QueueDepth, Refusal, Rescue,
    Rescued, Result, Retry, Store, StoreError, StrikeRule, Submission, TaskFiles, TaskRecord, WorkerReport,
};
use crate::clock::{Clock, Timestamp};
use crate::domain::key::{ApiKey, KeyHash};
use crate::domain::model::{Account, Id, LedgerEntry, Surface, Task};
use crate::domain::request::GenerateRequest;
use crate::fault::{Effect, Faults, Point};

mod accounts;
mod audit;
mod batch;
mod bell;
mod claim;
mod columns;
mod connection;
mod files;
mod import;
mod journal;
mod keys;
mod lanes;
mod months;
mod newest;
mod queue;
mod schema;
mod settle;
mod submit;
mod sweep;
mod tasks;
mod time;
mod tls;
mod tries;
mod upkeep;
mod workers;

pub use self::import::Import;
pub use self::journal::unsettled;
pub use self::schema::OpenError;

/// Batches of submits that can be under way at once: while one is made durable, the next is made ready. More would be
/// smaller, and dearer for each submit.
const SUBMIT_LANES: usize = 2;
/// Batches of look-ups that can be under way at once.
const FIND_LANES: usize = 4;

/// A database on a PostgreSQL server.
pub struct PostgresStore {
    database: Arc<Database>,
    months: Arc<Months>,
    faults: Faults,
    bell: Bell,
    _upkeep: AbortOnDropHandle<()>,
    journal: Arc<OnceLock<Arc<Journal>>>,
    submits: Lanes<Submitting>,
    finds: Vec<Batcher<Wanted, Option<Task>>>,
    completions: Lanes<Completing>,
    /// Anybody may ask, and all write the same row: one of them for all who wait.
    pings: Batcher<(), ()>,
    rota: Mutex<Rota>,
    leases_swept: Swept,
    overdue_swept: Swept,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("database", &self.database).finish_non_exhaustive()
    }
}

/// Host and database that a `postgres://` URL names, without what opens them.
///
/// # Errors
/// A sentence for the operator, without the password.
pub fn describe(url: &str) -> std::result::Result<String, String> {
    connection::configuration(url).map(|config| connection::describe(&config))
}

impl PostgresStore {
    /// Opens the database that `url` names, bringing its schema up to date as needed. TLS trusts the public
    /// authorities, and those in the file `ca`. Must be called inside of a Tokio runtime, which the store
    /// then lives in.
    ///
    /// # Errors
    /// [`OpenError`], with the database left as it was.
    pub async fn open(
        url: &str,
        ca: Option<&Path>,
        clock: Clock,
        faults: Faults,
    ) -> std::result::Result<Self, OpenError> {
        let unusable = |error: String| OpenError::Unusable { name: "PostgreSQL database".into(), error };
        let config = connection::configuration(url).map_err(unusable)?;
        let tls = tls::connector(&config, ca).map_err(unusable)?;
        let database = Database::new(&config, tls, clock).map_err(|error| unusable(connection::words(error)))?;
        schema::migrate(&database).await?;
        let database = Arc::new(database);
        let months = Arc::new(Months::default());
        let name = database.name().to_owned();
        let unusable = |error: StoreError| OpenError::Unusable { name, error: connection::words(error) };
        upkeep::once(&database, &months).await.map_err(unusable)?;
        let upkeep = tokio::spawn(upkeep::keep(database.clone(), months.clone()));
        let journal = Arc::<OnceLock<_>>::default();
        let submitting = Submitting {
            database: database.clone(),
            months: months.clone(),
            faults: faults.clone(),
            journal: journal.clone(),
        };
        let finds = (0..FIND_LANES).map(|_| {
            let database = database.clone();
            Batcher::start(move |wanted| {
                let database = database.clone();
                Box::pin(async move { tasks::find(&database, wanted).await })
            })
        });
        let completing = Completing { database: database.clone() };
        let of_pings = database.clone();
        let pings = Batcher::start(move |asked| {
            let database = of_pings.clone();
            Box::pin(async move { vec![ping(&database).await; asked.len()] })
        });
        Ok(Self {
            submits: Lanes::open(submitting, SUBMIT_LANES, MAX_CONNECTIONS / 2),
            completions: Lanes::open(completing, 1, MAX_CONNECTIONS / 4),
            journal,
            finds: finds.collect(),
            pings,
            rota: Mutex::default(),
            leases_swept: Swept::default(),
            overdue_swept: Swept::default(),
            bell: Bell::hang(database.clone()),
            _upkeep: AbortOnDropHandle::new(upkeep),
            months,
            database,
            faults,
        })
    }

    /// Writes down in `directory` which submits were answered with an error although they may exist, and takes back,
    /// from now on and beside all else, what earlier processes have left there. The directory itself is made when it
    /// is needed, the one above it must exist. Must be called inside of the runtime that the store lives in.
    ///
    /// # Errors
    /// When the database cannot be read.
    pub async fn keep_unsettled_in(&self, directory: &Path) -> Result<()> {
        let secret = self.cursor_secret().await?;
        let journal = Arc::new(Journal::new(directory.to_owned(), &secret, self.faults.clone()));
        if self.journal.set(journal.clone()).is_ok() {
            let database = self.database.clone();
            tokio::spawn(async move {
                let left = journal.left().await;
                settle::take_back(database, Some(journal), left).await;
            });
        }
        Ok(())
    }

    /// Whether what the server acknowledges outlasts a power cut.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub async fn check_durability(&self) -> std::result::Result<(), String> {
        let settings = "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on'";
        let rows = self.database.read(settings, &[]).await.map_err(|error| error.to_string())?;
        match rows.first().map(|row| row.try_get(0)) {
            Some(Ok(true)) => Ok(()),
            _ => Err("PostgreSQL runs with fsync or full_page_writes off: a power cut loses accepted tasks".into()),
        }
    }

    /// Does what may end a test at its two sides.
    async fn write<T>(&self, effect: Effect, write: impl Future<Output = Result<T>>) -> Result<T> {
        self.faults.pass(Point::before(effect)).await?;
        let outcome = write.await;
        self.faults.pass(Point::after(effect)).await?;
        outcome
    }
}

/// Writes what is there already: nothing changes, but a server that only reads refuses it.
async fn ping(database: &Database) -> Result<()> {
    database.write("UPDATE tintype SET version = version", &[]).await?;
    Ok(())
}

/// Which of so many lanes is for this id.
fn lane<T>(lanes: &[T], id: Id) -> &T {
    let sum: usize = id.as_str().bytes().map(usize::from).sum();
    &lanes[sum % lanes.len()]
}

#[async_trait]
impl Store for PostgresStore {
    async fn create_account(&self, name: &str, credits: i64) -> Result<AccountCreation> {
        self.write(Effect::CreateAccount, accounts::create(&self.database, name, credits)).await
    }

    async fn create_first_account(&self, name: &str, credits: i64, key: NewKey) -> Result<Option<Account>> {
        self.write(Effect::CreateFirstAccount, accounts::create_first(&self.database, name, credits, &key)).await
    }

    async fn find_account(&self, name_or_id: &str) -> Result<Option<Account>> {
        accounts::find(&self.database, name_or_id).await
    }

    async fn list_accounts(&self) -> Result<Vec<Account>> {
        accounts::list(&self.database).await
    }

    async fn create_key(&self, account_id: Id, key: NewKey) -> Result<Option<ApiKey>> {
        self.write(Effect::CreateKey, keys::create(&self.database, account_id, &key)).await
    }

    async fn find_key(&self, id: Id) -> Result<Option<ApiKey>> {
        keys::find(&self.database, id).await
    }

    async fn find_key_by_hash(&self, hash: KeyHash) -> Result<Option<ApiKey>> {
        keys::find_by_hash(&self.database, &hash).await
    }

    async fn list_keys(&self, account_id: Option<Id>) -> Result<Vec<ApiKey>> {
        keys::list(&self.database, account_id).await
    }

    async fn change_key(&self, id: Id, change: KeyChange) -> Result<Option<ApiKey>> {
        self.write(Effect::ChangeKey, keys::change(&self.database, id, change)).await
    }

    async fn touch_keys(&self, uses: Vec<(Id, Timestamp)>) -> Result<()> {
        self.write(Effect::TouchKeys, async { keys::touch(&self.database, &uses).await }).await
    }

    async fn rotate_key(&self, id: Id, hash: KeyHash, hint: &str, overlap: Duration) -> Result<Option<ApiKey>> {
        self.write(Effect::RotateKey, keys::rotate(&self.database, id, hash, hint, overlap)).await
    }

    async fn grant(&self, account_id: Id, amount: i64, note: Option<&str>) -> Result<Option<i64>> {
        self.write(Effect::Grant, accounts::grant(&self.database, account_id, amount, note)).await
    }

    async fn history(&self, account_id: Id, before: Option<i64>, limit: u32) -> Result<Vec<LedgerEntry>> {
        accounts::history(&self.database, account_id, before, limit).await
    }

    async fn audit(&self) -> Result<Audit> {
        audit::audit(&self.database).await
    }

    async fn submit(
        &self,
        account_id: Id,
        key_id: Option<Id>,
        surface: Surface,
        request: GenerateRequest,
        max_unfinished: u32,
    ) -> Result<Submission> {
        let order = Order { account_id, key_id, surface, request, max_unfinished };
        let submission = self.write(Effect::Submit, self.submits.ask(account_id, order)).await?;
        if matches!(submission, Submission::Accepted(_)) {
            self.bell.ring();
        }
        Ok(submission)
    }

    async fn find_task(&self, account_id: Id, surface: Surface, id: Id) -> Result<Option<Task>> {
        lane(&self.finds, id).ask((account_id, surface, id)).await
    }

    async fn list_tasks(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        tasks::list(&self.database, account_id, surface, before, limit).await
    }

    async fn list_task_ids(&self, account_id: Id, surface: Surface, before: Option<Id>, limit: u32) -> Result<Vec<Id>> {
        tasks::list_ids(&self.database, account_id, surface, before, limit).await
    }

    async fn inspect_task(&self, id: Id) -> Result<Option<TaskRecord>> {
        tasks::inspect(&self.database, id).await
    }

    async fn recent_tasks(&self, account_id: Option<Id>, limit: u32) -> Result<Vec<Task>> {
        tasks::recent(&self.database, account_id, limit).await
    }

    async fn completed_tasks(&self, after: Option<Id>, limit: u32) -> Result<Vec<CompletedTask>> {
        tasks::completed(&self.database, after, limit).await
    }

    async fn task_files(&self, ids: &[Id]) -> Result<Vec<TaskFiles>> {
        files::of_tasks(&self.database, ids).await
    }

    async fn claim_except(&self, max: usize, lease: Duration, passed_over: &[Id]) -> Result<Vec<Claim>> {
        let passed_over: HashSet<Id> = passed_over.iter().copied().collect();
        let mut rota = self.rota.lock().await;
        self.write(Effect::Claim, claim::claim(&self.database, &mut rota, max, lease, &passed_over)).await
    }

    async fn renew(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        self.write(Effect::Renew, queue::renew(&self.database, &leases, lease)).await
    }

    async fn release(&self, lease: Lease) -> Result<LeaseWrite> {
        let released = self.write(Effect::Release, queue::release(&self.database, lease)).await?;
        self.bell.ring();
        Ok(released)
    }

    async fn retry(&self, lease: Lease, delay: Duration, last_error: &str) -> Result<Retry> {
        self.write(Effect::Retry, queue::retry(&self.database, lease, delay, last_error)).await
    }

    async fn complete(&self, lease: Lease, images: Vec<String>) -> Result<LeaseWrite> {
        let end = (lease, columns::to_json(&images));
        self.write(Effect::Complete, self.completions.ask(lease.task_id, end)).await
    }

    async fn fail(&self, lease: Lease, error: &str) -> Result<LeaseWrite> {
        self.write(Effect::Fail, queue::fail(&self.database, lease, error)).await
    }

    async fn refuse(&self, lease: Lease, error: &str, rule: Option<StrikeRule>) -> Result<Refusal> {
        self.write(Effect::Refuse, keys::refuse(&self.database, lease, error, rule)).await
    }

    async fn fail_unleased(&self, id: Id, error: &str) -> Result<bool> {
        self.write(Effect::FailUnleased, queue::fail_unleased(&self.database, id, error)).await
    }

    async fn rescue(&self, which: Rescue, last_error: &str) -> Result<Rescued> {
        let from = match which {
            Rescue::Expired => self.leases_swept.from(&self.database),
            Rescue::All => Timestamp::MIN,
        };
        let through = self.database.now();
        let sought = Sought::Leases { which, from, last_error };
        let mut all = Rescued::default();
        loop {
            let Step { rescued: some, more, clean } = self.write(Effect::Rescue, sought.step(&self.database)).await?;
            all = Rescued { queued: all.queued + some.queued, failed: all.failed + some.failed };
            if clean {
                self.leases_swept.done(&self.database, from, through);
            }
            if !more {
                return Ok(all);
            }
        }
    }

    async fn expire(&self, cutoff: Timestamp, error: &str) -> Result<usize> {
        let from = self.overdue_swept.from(&self.database);
        let sought = Sought::Overdue { from, cutoff, error };
        let mut all = 0;
        loop {
            let Step { rescued, more, clean } = self.write(Effect::Expire, sought.step(&self.database)).await?;
            all += rescued.failed;
            if clean {
                self.overdue_swept.done(&self.database, from, cutoff);
            }
            if !more {
                return Ok(all);
            }
        }
    }

    async fn remove_tasks(&self, cutoff: Timestamp) -> Result<usize> {
        let mut all = 0;
        for account_id in tasks::removable_accounts(&self.database, cutoff).await? {
            let mut next = Some(Place::default());
            while let Some(after) = next {
                let remove = tasks::remove(&self.database, account_id, &after, cutoff);
                let removal = self.write(Effect::RemoveTasks, remove).await?;
                all += removal.removed;
                next = removal.reached;
            }
        }
        Ok(all)
    }

    async fn forget_months(&self, before: Timestamp, removed_before: Timestamp) -> Result<usize> {
        let mut all = 0;
        loop {
            let forget = self.months.forget_oldest(&self.database, before, removed_before);
            if !self.write(Effect::ForgetMonth, forget).await? {
                return Ok(all);
            }
            all += 1;
        }
    }

    async fn take_sweep(&self, sweeps: &[String], hold: Duration) -> Result<Option<String>> {
        files::take_sweep(&self.database, sweeps, hold).await
    }

    async fn put_off_sweep(&self, sweep: &str, pause: Duration) -> Result<()> {
        files::put_off_sweep(&self.database, sweep, pause).await
    }

    async fn queue_depth(&self) -> Result<QueueDepth> {
        queue::depth(&self.database).await
    }

    async fn report_worker(&self, report: WorkerReport) -> Result<()> {
        workers::report(&self.database, report).await
    }

    async fn withdraw_worker(&self, id: Id) -> Result<()> {
        workers::withdraw(&self.database, id).await
    }

    async fn other_workers(&self, id: Id) -> Result<Vec<WorkerReport>> {
        workers::others(&self.database, id).await
    }

    async fn cursor_secret(&self) -> Result<[u8; 32]> {
        let rows = self.database.read("SELECT value FROM secrets WHERE name = 'cursor'", &[]).await?;
        let lost = || StoreError::Other("the secret that signs cursors is gone".into());
        let value: Vec<u8> = rows.first().ok_or_else(lost)?.try_get(0)?;
        value.try_into().map_err(|_| lost())
    }

    async fn tasks_elsewhere(&self) {
        self.bell.heard().await;
    }

    fn now(&self) -> Timestamp {
        self.database.now()
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn ping(&self) -> Result<()> {
        self.pings.ask(()).await
    }
}
