//! `tintype migrate` moves an installation from SQLite to PostgreSQL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::printing::JsonArgs;
use super::signals::catch_stops;
use super::{Failure, Outcome, describe, existing_file, progress, show};
use tintype_config::{DataSettings, DatabaseUrl};
use tintype_domain::text::counted;
use tintype_store::postgres::{self, Import};
use tintype_store::sqlite;
use tintype_store::{Audit, Store, StoreError};
use tintype_system::clock::Clock;
use tintype_system::data_dir::{self, DataLock};
use tintype_system::fault::Faults;

#[derive(Debug, Args)]
#[command(after_help = "\
No server may be running on the SQLite database, and the PostgreSQL database must have no accounts. The command \
copies everything in one transaction and commits it only if the ledger in PostgreSQL matches. The SQLite database is \
marked as moved: from then on, every command rejects it and says where its content is. --take-back removes the mark. \
After an interruption, run the same command again. \
Result files are not moved; set --files to their location.")]
pub(super) struct MigrateArgs {
    /// Database to move, as sqlite:PATH
    #[arg(long, value_name = "URL")]
    pub(super) from: DatabaseUrl,
    /// Destination, as postgres://USER:PASSWORD@HOST/DATABASE [default: --database]
    #[arg(long, value_name = "URL")]
    to: Option<DatabaseUrl>,
    /// Return to the SQLite database: remove its mark, and copy nothing. Later changes stay in PostgreSQL
    #[arg(long, conflicts_with = "to")]
    take_back: bool,
    #[command(flatten)]
    json: JsonArgs,
}

pub(super) async fn run(args: MigrateArgs, data: &DataSettings) -> Outcome {
    let DatabaseUrl::Sqlite(from) = &args.from else {
        return Err(Failure("--from must be sqlite:PATH: only a SQLite installation can be migrated".into()));
    };
    if args.take_back {
        return take_back(from, args.json);
    }
    let to = match args.to {
        Some(to) => to,
        None => data.database()?,
    };
    let DatabaseUrl::Postgres(to) = to else {
        return Err(Failure("--to must be postgres://USER:PASSWORD@HOST/DATABASE".into()));
    };
    existing_file(from, ELSEWHERE)?;
    let stopped = catch_stops()?;
    let bar = progress::bar(!args.json);
    bar.set_message("copying the SQLite database");
    let _lock = lock(from)?;
    let opening = postgres::open(&to, data.database_ca.as_deref(), Clock::system(), Faults::default());
    let store = stopped.run_until_cancelled(opening).await.ok_or(STOPPED)??;
    // Before the copy, which nothing may overtake. Whatever interrupts this command, two databases are never in use.
    let is_repeat = sqlite::begin_move(from, &postgres::describe(&to)?)?;
    let imported = import(from, &store, &stopped, &bar).await;
    bar.finish_and_clear();
    match &imported {
        Ok(Ok(Import::Done(_))) => sqlite::end_move(from)?,
        Ok(Ok(Import::NotEmpty | Import::Differs(_))) => drop(sqlite::take_back(from)?),
        // Without an answer to the commit, the rows may be there.
        Ok(Err(error @ StoreError::Unknown(_))) => {
            return Err(Failure(format!("{error}; to find out, run the same command again")));
        }
        // So they may after an earlier interruption.
        _ if is_repeat => {}
        _ => drop(sqlite::take_back(from)?),
    }
    report(args.json, from, imported??)
}

fn report(json: JsonArgs, from: &Path, imported: Import) -> Outcome {
    match imported {
        Import::Done(books) => {
            let from = from.display().to_string();
            let Audit { accounts, tasks, entries, .. } = books;
            let moved = json!({ "from": from, "accounts": accounts, "tasks": tasks, "entries": entries });
            show(json, &moved, || {
                format!(
                    "Moved {}; all balances match. From now on use --database postgres://…; every command refuses {from}.",
                    contents(&books)
                )
            })
        }
        Import::Interrupted => Err(Failure(STOPPED.into())),
        Import::NotEmpty => Err(Failure(
            "the PostgreSQL database already has accounts: set --to to an empty database or to a separate schema"
                .into(),
        )),
        Import::Differs(books) => Err(Failure(format!(
            "the ledger in PostgreSQL would differ, so nothing was moved; report this as a bug: {}, {}",
            contents(&books),
            counted(books.drifts.len() as u64, "drift", "drifts")
        ))),
    }
}

const STOPPED: &str = "stopped by a signal; run the same command to start over";

/// Copies the database and imports the copy.
async fn import(
    from: &Path,
    store: &Store,
    stopped: &CancellationToken,
    bar: &ProgressBar,
) -> Result<Result<Import, StoreError>, Failure> {
    let (database, runtime) = (from.to_owned(), Handle::current());
    // On a thread of its own, because SQLite makes the copy in one call.
    let copying = tokio::task::spawn_blocking(move || runtime.block_on(copy_of(&database)));
    let Some(copied) = stopped.run_until_cancelled(copying).await else {
        // That thread ends with this process. The copy has no name unless it has just begun.
        drop(std::fs::remove_file(copy_beside(from)));
        return Ok(Ok(Import::Interrupted));
    };
    let (source, expected) = copied??;
    bar.set_message("moving");
    Ok(store.import(&source, &expected, |rows| bar.inc(rows), stopped.cancelled()).await)
}

const ELSEWHERE: &str = "give its path as --from sqlite:PATH";

/// Removes the mark of an earlier migration.
fn take_back(database: &Path, json: JsonArgs) -> Outcome {
    existing_file(database, ELSEWHERE)?;
    let _lock = lock(database)?;
    let was_moved = sqlite::take_back(database)?;
    let path = database.display().to_string();
    show(json, &json!({ "from": path, "was_moved": was_moved }), || {
        if was_moved {
            format!(
                "{path} can be used again. Stop every process that uses the PostgreSQL database first: the two are not kept in step."
            )
        } else {
            format!("{path} was not moved, so nothing was changed.")
        }
    })
}

fn contents(books: &Audit) -> String {
    let accounts = counted(books.accounts, "account", "accounts");
    let tasks = counted(books.tasks, "task", "tasks");
    format!("{accounts}, {tasks}, {}", counted(books.entries, "ledger entry", "ledger entries"))
}

/// Locks the database until the migration ends, because tasks that a server accepts meanwhile would not be moved.
fn lock(database: &Path) -> Result<DataLock, String> {
    data_dir::lock(data_dir::directory_of(database), database, Duration::ZERO)
}

fn copy_beside(database: &Path) -> PathBuf {
    let mut copy = database.as_os_str().to_owned();
    copy.push(".migrating");
    copy.into()
}

/// Takes a snapshot of the database in an unlinked file and audits it. A drift is an error.
async fn copy_of(database: &Path) -> Result<(Store, Audit), Failure> {
    let copy = &copy_beside(database);
    if copy.exists() {
        std::fs::remove_file(copy)?;
    }
    let snapshot = sqlite::copy_moved(database, copy).and_then(|()| sqlite::open_for_reading(copy));
    // The file does not exist if the snapshot failed.
    drop(std::fs::remove_file(copy));
    let (source, _) = snapshot?;
    let books = source.audit().await?;
    if books.drifts.is_empty() {
        return Ok((source, books));
    }
    let drifts: Vec<String> =
        books.drifts.iter().take(10).map(|drift| describe(drift, drift.account_id.as_str())).collect();
    Err(Failure(format!(
        "the balances do not match the ledger, so nothing was moved; see `tintype credits audit`\n{}",
        drifts.join("\n")
    )))
}
