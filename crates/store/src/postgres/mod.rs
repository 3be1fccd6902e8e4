//! PostgreSQL: one database that many processes share.
//!
//! A method is one transaction. The rules of credits are in `domain::ledger`: a transaction locks an account, loads it,
//! and writes what they decide (`ledger.rs`). Locks are taken in one order, so that transactions do not wait in a
//! circle: people, rows of the queue, one account, keys, endpoints. A write by the right of a key locks that key first;
//! if that ends in a deadlock, `Store::write` repeats it.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use self::claim::ServedLast;
pub(crate) use self::connection::{Database, Transaction};
use self::listen_notify::Notifier;
use self::submit::Turns;
use super::driver::Driver;
use super::{OpenError, Schema, Store};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

mod claim;
mod connect;
mod connection;
mod gallery;
mod hosts;
mod import;
mod listen_notify;
mod pooler;
mod schema;
mod submit;
mod upkeep;
mod url;
mod workers;

pub use self::import::Import;
pub(crate) use self::listen_notify::notify_ending;
pub(crate) use self::schema::LOCK;
pub use self::schema::SCHEMA;

#[derive(Debug)]
pub(crate) struct PostgresStore {
    pub(crate) database: Arc<Database>,
    pub(crate) faults: Faults,
    pub(crate) notifier: Notifier,
    _upkeep: AbortOnDropHandle<()>,
    /// The accounts with a submit in progress.
    turns: Turns,
    /// The accounts that the last claims of this process ended with.
    served_last: ServedLast,
    /// Held while a report is read.
    pub(crate) reports: Arc<Semaphore>,
}

/// Most reports that are read at a time: of the connections for reading, most are left to others.
const MAX_REPORTS: usize = 2;

/// Host, database and schema that a `postgres://` URL names, without what opens them. An error is a message for the
/// operator, without the password.
pub fn describe(url: &str) -> std::result::Result<String, String> {
    let (config, _) = connect::configuration(url)?;
    let schema = connect::schema(&config).map(|schema| format!(", schema {schema}")).unwrap_or_default();
    Ok(format!("{}{schema}", connect::describe(&config)))
}

/// The database that `url` names, reached without a pooler that would share our sessions.
async fn connect(url: &str, ca: Option<&Path>, clock: Clock) -> std::result::Result<Database, OpenError> {
    let unusable = |error: String| OpenError::Unusable(format!("cannot open the PostgreSQL database: {error}"));
    let (config, trust) = connect::configuration(url).map_err(unusable)?;
    let tls = connect::tls(&config, &trust, ca).map_err(unusable)?;
    let database =
        Database::new(config, tls, clock).map_err(|error| unusable(crate::failure::cause_of(error).to_string()))?;
    pooler::refuse(&database).await?;
    Ok(database)
}

/// Opens the database that `url` names, bringing its schema up to date as needed. TLS trusts the public
/// authorities, and those in the file `ca`. Must be called inside of a Tokio runtime, which the store
/// then lives in. After an error, the database is unchanged.
pub async fn open(url: &str, ca: Option<&Path>, clock: Clock, faults: Faults) -> std::result::Result<Store, OpenError> {
    open_with(url, ca, clock, faults, &SCHEMA).await
}

/// [`open`]. Only tests have another schema than [`SCHEMA`].
pub async fn open_with(
    url: &str,
    ca: Option<&Path>,
    clock: Clock,
    faults: Faults,
    schema: &Schema,
) -> std::result::Result<Store, OpenError> {
    let database = connect(url, ca, clock).await?;
    schema::migrate(&database, schema).await?;
    let database = Arc::new(database);
    let once = upkeep::once(&database).await;
    let ahead_ms = once.map_err(|error| schema::unusable(&database, error.into()))?;
    let upkeep = tokio::spawn(upkeep::keep(database.clone(), ahead_ms));
    let store = PostgresStore {
        turns: Turns::default(),
        served_last: ServedLast::default(),
        reports: Arc::new(Semaphore::new(MAX_REPORTS)),
        notifier: Notifier::start(database.clone()),
        _upkeep: AbortOnDropHandle::new(upkeep),
        database,
        faults,
    };
    Ok(Driver::Postgres(Arc::new(store)).into())
}

/// [`open`] for a database that has the current schema already; `None` for any other one, which
/// stays as it is.
pub async fn open_current(url: &str, ca: Option<&Path>) -> std::result::Result<Option<Store>, OpenError> {
    let database = connect(url, ca, Clock::system()).await?;
    match schema::is_current(&database).await? {
        true => open(url, ca, Clock::system(), Faults::default()).await.map(Some),
        false => Ok(None),
    }
}

impl PostgresStore {
    pub(crate) async fn check_durability(&self) -> std::result::Result<(), String> {
        let settings = "SELECT current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on' AS syncs";
        let rows = self.database.read(settings, &[]).await.map_err(|error| error.to_string())?;
        match rows.first().map(|row| row.get("syncs")) {
            Some(Ok(true)) => Ok(()),
            _ => Err("PostgreSQL runs with fsync or full_page_writes off: a power cut loses accepted tasks".into()),
        }
    }
}
