//! `tintype migrate`: an installation from SQLite to PostgreSQL.

use std::path::Path;

use clap::Args;
use serde::Serialize;

use super::{Failure, Outcome, describe, existing_file, progress, show};
use crate::clock::Clock;
use crate::config::{DataSettings, DatabaseUrl};
use crate::data_dir::{self, DataLock};
use crate::fault::Faults;
use crate::store::Audit;
use crate::store::postgres::{Import, PostgresStore};
use crate::store::sqlite::Snapshot;

#[derive(Debug, Args)]
#[command(after_help = "\
No server may run on the SQLite database meanwhile, and PostgreSQL's must have no accounts. Everything arrives in \
one transaction, and is kept only if its books add up to the same there. The SQLite database stays as it was: do \
not start a server on it again, or its tasks are worked on twice. Result files are not touched; point --files to \
where they are.")]
pub(super) struct MigrateArgs {
    /// Database to move, as sqlite:PATH
    #[arg(long, value_name = "URL")]
    from: DatabaseUrl,
    /// Where to, as postgres://USER:PASSWORD@HOST/DATABASE [default: --database]
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
        return Err(Failure("--from must be sqlite:PATH: an installation moves from SQLite to PostgreSQL only".into()));
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
            "the PostgreSQL database has accounts already: give --to an empty database, or a schema of its own".into(),
        )),
        Import::Differs(books) => Err(Failure(format!(
            "the books would not be the same in PostgreSQL, so nothing was moved: {} accounts, {} tasks, {} entries, {} drifts",
            books.accounts,
            books.tasks,
            books.entries,
            books.drifts.len()
        ))),
    }
}

fn text(moved: &Moved<'_>) -> String {
    format!(
        "Moved {} accounts, {} tasks and {} ledger entries; their books balance. {} is as it was: start servers \
         with --database postgres://… from now on, and never again on it.",
        moved.books.accounts, moved.books.tasks, moved.books.entries, moved.from
    )
}

/// Keeps servers away from the database until all of it has moved: what they accepted meanwhile would stay behind.
fn lock(database: &Path) -> Result<DataLock, String> {
    data_dir::lock(data_dir::directory_of(database), database)
}

/// The database at this moment, in a file that has no name any more, and its books, which must balance.
fn copy_of(database: &Path) -> Result<(Snapshot, Audit), Failure> {
    let mut copy = database.as_os_str().to_owned();
    copy.push(".migrating");
    let copy = Path::new(&copy);
    if copy.exists() {
        std::fs::remove_file(copy)?;
    }
    let taken = Snapshot::take(database, copy).and_then(|()| Snapshot::open(copy));
    // It is not there when taking it failed.
    drop(std::fs::remove_file(copy));
    let source = taken?;
    let books = source.audit()?;
    if books.drifts.is_empty() {
        return Ok((source, books));
    }
    let drifts: Vec<String> = books.drifts.iter().take(10).map(describe).collect();
    Err(Failure(format!(
        "the books do not balance, so nothing is moved; see `tintype credits audit`\n{}",
        drifts.join("\n")
    )))
}
