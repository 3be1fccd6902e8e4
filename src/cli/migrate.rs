//! `tintype migrate` moves an installation from SQLite to PostgreSQL.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::printing::JsonArgs;
use super::{Failure, Outcome, describe, existing_file, progress, show};
use tintype_config::{DataSettings, DatabaseUrl};
use tintype_domain::text::counted;
use tintype_store::postgres::{self, Import};
use tintype_store::sqlite::{self, mark_as_moved};
use tintype_store::{Audit, Store, StoreError};
use tintype_system::clock::Clock;
use tintype_system::data_dir::{self, DataLock};
use tintype_system::fault::Faults;

#[derive(Debug, Args)]
#[command(after_help = "\
No server may be running on the SQLite database, and the PostgreSQL database must have no accounts. The command \
copies everything in one transaction and commits it only if the ledger in PostgreSQL matches. The SQLite database is \
marked as moved: from then on, every command rejects it and says where its content is. --take-back removes the mark. \
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
    let bar = progress::bar(!args.json);
    bar.set_message("copying the SQLite database");
    let _lock = lock(from)?;
    let store = postgres::open(&to, data.database_ca.as_deref(), Clock::system(), Faults::default()).await?;
    // Before the copy, which nothing may overtake. Whatever interrupts this command, two databases are never in use.
    mark_as_moved(from, &postgres::describe(&to)?)?;
    let moving = async {
        let (source, expected) = copy_of(from).await?;
        bar.set_message("moving");
        Ok::<_, Failure>(store.import(&source, &expected, |rows| bar.inc(rows)).await)
    };
    let imported = moving.await;
    bar.finish_and_clear();
    // Without an answer to the commit, the rows may be there.
    if !matches!(imported, Ok(Ok(Import::Done(_)) | Err(StoreError::Unknown(_)))) {
        sqlite::take_back(from)?;
    }
    match imported?? {
        Import::Done(books) => {
            let from = from.display().to_string();
            let Audit { accounts, tasks, entries, .. } = books;
            let moved = json!({ "from": from, "accounts": accounts, "tasks": tasks, "entries": entries });
            show(args.json, &moved, || {
                format!(
                    "Moved {}; all balances match. From now on use --database postgres://…; every command refuses {from}.",
                    contents(&books)
                )
            })
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

/// Takes a snapshot of the database in an unlinked file and audits it. A drift is an error.
async fn copy_of(database: &Path) -> Result<(Store, Audit), Failure> {
    let mut copy = database.as_os_str().to_owned();
    copy.push(".migrating");
    let copy = Path::new(&copy);
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
