//! `tintype migrate` moves an installation from SQLite to PostgreSQL.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::{Failure, Outcome, describe, existing_file, progress, show};
use crate::clock::Clock;
use crate::config::{DataSettings, DatabaseUrl};
use crate::data_dir::{self, DataLock};
use crate::domain::text::counted;
use crate::fault::Faults;
use crate::store::Audit;
use crate::store::postgres::{Import, PostgresStore};
use crate::store::sqlite::Snapshot;

#[derive(Debug, Args)]
#[command(after_help = "\
No server may be running on the SQLite database, and the PostgreSQL database must have no accounts. The command \
copies everything in one transaction and commits it only if the ledger in PostgreSQL matches. The SQLite database \
stays unchanged: never start a server on it again, or its tasks will run twice. Result files are not moved; set \
--files to their location.")]
pub(super) struct MigrateArgs {
    /// Database to move, as sqlite:PATH
    #[arg(long, value_name = "URL")]
    pub(super) from: DatabaseUrl,
    /// Destination, as postgres://USER:PASSWORD@HOST/DATABASE [default: --database]
    #[arg(long, value_name = "URL")]
    to: Option<DatabaseUrl>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Moved<'a> {
    from: String,
    accounts: u64,
    tasks: u64,
    entries: u64,
    #[serde(skip)]
    books: &'a Audit,
}

pub(super) async fn run(args: MigrateArgs, data: &DataSettings) -> Outcome {
    let DatabaseUrl::Sqlite(from) = &args.from else {
        return Err(Failure("--from must be sqlite:PATH: only a SQLite installation can be migrated".into()));
    };
    let to = match args.to {
        Some(to) => to,
        None => data.database()?,
    };
    let DatabaseUrl::Postgres(to) = to else {
        return Err(Failure("--to must be postgres://USER:PASSWORD@HOST/DATABASE".into()));
    };
    existing_file(from)?;
    let bar = progress::bar(!args.json);
    bar.set_message("copying the SQLite database");
    let _lock = lock(from)?;
    let (source, expected) = copy_of(from)?;
    let store = PostgresStore::open(&to, data.database_ca.as_deref(), Clock::system(), Faults::default()).await?;
    bar.set_message("moving");
    let imported = store.import(&source, &expected, |rows| bar.inc(rows)).await;
    bar.finish_and_clear();
    match imported? {
        Import::Done(books) => {
            let moved = Moved {
                from: from.display().to_string(),
                accounts: books.accounts,
                tasks: books.tasks,
                entries: books.entries,
                books: &books,
            };
            show(args.json, &moved, || text(&moved))
        }
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

fn text(moved: &Moved<'_>) -> String {
    format!(
        "Moved {}; all balances match. {} is unchanged: from now on start servers with --database postgres://…, and \
         never again on the SQLite database.",
        contents(moved.books),
        moved.from
    )
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

/// Takes a snapshot of the database in an unlinked file and audits it. A drift is an error.
fn copy_of(database: &Path) -> Result<(Snapshot, Audit), Failure> {
    let mut copy = database.as_os_str().to_owned();
    copy.push(".migrating");
    let copy = Path::new(&copy);
    if copy.exists() {
        std::fs::remove_file(copy)?;
    }
    let taken = Snapshot::take(database, copy).and_then(|()| Snapshot::open(copy));
    // The file does not exist if the snapshot failed.
    drop(std::fs::remove_file(copy));
    let source = taken?;
    let books = source.audit()?;
    if books.drifts.is_empty() {
        return Ok((source, books));
    }
    let drifts: Vec<String> = books.drifts.iter().take(10).map(describe).collect();
    Err(Failure(format!(
        "the balances do not match the ledger, so nothing was moved; see `tintype credits audit`\n{}",
        drifts.join("\n")
    )))
}
