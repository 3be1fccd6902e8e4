//! PostgreSQL: one database that many processes share.
//!
//! A method is one statement, and so one round trip and one transaction, but for the few that say otherwise.
//! What comes often and from many at once shares a statement: see `batch.rs`.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

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
use self::submit::Submitting;
use self::sweep::Swept;
use self::tasks::Wanted;
use super::{Fleet as _, Result, StoreError};
use crate::clock::Clock;
use crate::domain::model::{Id, Task};
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
        let database =
            Database::new(&config, tls, clock).map_err(|error| unusable(connection::words(error).to_string()))?;
        schema::migrate(&database).await?;
        let database = Arc::new(database);
        let months = Arc::new(Months::default());
        let name = database.name().to_owned();
        let unusable = |error: StoreError| OpenError::Unusable { name, error: connection::words(error).to_string() };
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
