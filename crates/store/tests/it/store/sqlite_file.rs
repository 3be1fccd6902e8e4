//! The SQLite file: opening and refusing files, migrating, and a full database.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use futures::future::join_all;
use rusqlite::Connection;
use tempfile::TempDir;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::sqlite;
use tintype_store::{GalleryFilter, KeyChange, OpenError, Result, Store, StoreError};
use tintype_system::clock::Clock;

use super::fixture::{Fixture, LEASE, UNLIMITED, accepted, ids, images, new_key, one_file};
use tintype_rigs::database::{Backend, NOON};

fn open(path: &Path) -> std::result::Result<Store, OpenError> {
    sqlite::open(path, Clock::manual(NOON))
}

/// Asserts that the file is refused and does not change, and returns the reason.
#[track_caller]
fn assert_refused(path: &Path) -> OpenError {
    let before = fs::read(path).expect("a file");
    let error = open(path).expect_err("a refusal");
    assert!(fs::read(path).expect("a file") == before, "the file was changed");
    error
}

/// Creates a database, closes it and changes it with `sql`.
fn closed_database(directory: &TempDir, sql: &str) -> PathBuf {
    let path = directory.path().join("tintype.db");
    drop(open(&path).expect("a fresh database opens"));
    Connection::open(&path).expect("a database").execute_batch(sql).expect("valid SQL");
    path
}

#[tokio::test]
async fn a_reopened_database_keeps_all_data() -> Result<()> {
    let mut fx = Fixture::new(Backend::Sqlite);
    let ada = fx.account("ada", 100).await?;
    let key = fx.store.create_key(ada, new_key("studio")).await?.expect("the account exists");
    fx.store.change_key(key.id, KeyChange::FlagLeaked).await?;
    for _ in 0..4 {
        fx.submit(ada).await?;
    }
    fx.store.complete(fx.claim().await?, one_file()).await?;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    let lease = fx.claim().await?;
    let before = (fx.state().await?, fx.store.cursor_secret().await?);
    // The store of another database takes the place of this one, so that this one is closed.
    let other = Fixture::new(Backend::Sqlite);
    fx.store = other.store.clone();
    fx.store = fx.another_process();
    assert_eq!((fx.state().await?, fx.store.cursor_secret().await?), before);
    assert_eq!(fx.store.renew(vec![lease], LEASE).await?, []);
    Ok(())
}

#[test]
fn a_database_of_a_newer_release_is_refused_and_not_changed() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = closed_database(&directory, "PRAGMA user_version = 999");
    let error = assert_refused(&path);
    assert!(error.to_string().contains("newer Tintype (schema 999;"), "{error}");
}

#[tokio::test]
async fn a_ping_does_not_change_the_schema_version() -> Result<()> {
    let fx = Fixture::new(Backend::Sqlite);
    let database = Connection::open(fx.directory.path().join("tintype.db")).expect("the database");
    // A command of a later release has migrated the database while this server runs.
    database.pragma_update(None, "user_version", 9).expect("a version");
    fx.store.ping().await?;
    let version: i64 = database.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("a version");
    assert_eq!(version, 9);
    Ok(())
}

#[test]
fn a_database_of_another_program_is_refused_and_not_changed() {
    for sql in ["CREATE TABLE songs (title TEXT)", "PRAGMA application_id = 7", "CREATE TABLE accounts (id TEXT)"] {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("tintype.db");
        Connection::open(&path).expect("a database").execute_batch(sql).expect("valid SQL");
        let error = assert_refused(&path);
        assert!(matches!(error, OpenError::Foreign(_)), "{sql}: {error}");
    }
}

#[test]
fn a_file_that_is_no_database_is_refused_and_not_changed() {
    let long = "Dear diary, ".repeat(1_000);
    for text in ["x", "xy", "Dear diary, today I made a list of accounts.", &long] {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().join("tintype.db");
        fs::write(&path, text).expect("a file");
        let error = assert_refused(&path);
        assert!(matches!(error, OpenError::Unusable(_)), "{error}");
        let said = error.to_string();
        assert!(said.contains("tintype.db") && said.contains("not a database"), "{error}");
    }
}

/// Programs that show SQLite files lock them so, and SMB without byte-range locks looks the same.
#[test]
fn a_database_that_another_program_has_locked_is_reported() {
    let directory = TempDir::new().expect("a directory");
    let path = closed_database(&directory, "");
    let other = Connection::open(&path).expect("a database");
    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; UPDATE accounts SET name = name").expect("a lock");
    let error = open(&path).expect_err("a refusal").to_string();
    assert!(error.contains("locked by another program"), "{error}");
}

#[test]
fn a_file_in_a_directory_that_does_not_exist_is_refused() {
    let directory = TempDir::new().expect("a temporary directory");
    let error = open(&directory.path().join("missing").join("tintype.db")).expect_err("there is no such directory");
    assert!(matches!(error, OpenError::Unusable(_)), "{error}");
}

#[tokio::test]
async fn an_empty_file_becomes_a_database() -> Result<()> {
    let directory = TempDir::new().expect("a temporary directory");
    fs::write(directory.path().join("tintype.db"), "").expect("a file");
    let clock = Clock::manual(NOON);
    assert_eq!(Backend::Sqlite.open(&directory, &clock).list_accounts().await?, []);
    Ok(())
}

/// A directory in memory, where the system has one, so that a slow disk does not delay the test.
fn in_memory() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a temporary directory")
}

#[test]
fn processes_that_create_the_database_at_once_all_open_it() {
    for _ in 0..10 {
        let directory = in_memory();
        let path = directory.path().join("tintype.db");
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    drop(open(&path).expect("each process opens the database"));
                });
            }
        });
    }
}

#[test]
fn an_undamaged_file_passes_the_integrity_check() {
    let directory = TempDir::new().expect("a temporary directory");
    let path = closed_database(&directory, "");
    open(&path).expect("a valid database").check_integrity().expect("no damage");
}

/// Bytes per page: the minimum of SQLite.
const PAGE_SIZE: u64 = 512;
/// Pages per database: the maximum of SQLite.
const MAX_PAGES: u32 = 0xFFFF_FFFE;
/// Offset of the number of pages in the header of the file.
const PAGE_COUNT_OFFSET: u64 = 28;

/// Fills a closed database: extends it to the maximum number of pages, nearly all of them a hole in a sparse file. SQLite
/// then reports a full disk, although the disk has space.
fn fill(path: &Path) {
    let mut file = fs::File::options().write(true).open(path).expect("the database");
    file.set_len(u64::from(MAX_PAGES) * PAGE_SIZE).expect("a file system with sparse files");
    file.seek(SeekFrom::Start(PAGE_COUNT_OFFSET)).expect("a header");
    file.write_all(&MAX_PAGES.to_be_bytes()).expect("a header");
}

/// An account with 100 credits on a database that has no room for a long prompt.
async fn full_database() -> Result<(Fixture, Id)> {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path().join("tintype.db");
    let small_pages = format!("PRAGMA page_size = {PAGE_SIZE}; CREATE TABLE t (x); DROP TABLE t");
    Connection::open(&path).expect("a database").execute_batch(&small_pages).expect("valid SQL");
    let clock = Clock::manual(NOON);
    Backend::Sqlite.open(&directory, &clock).create_account("ada", 100).await?;
    fill(&path);
    let fx = Fixture::inside(directory, Backend::Sqlite);
    let ada = fx.store.find_account("ada").await?.expect("the account exists").id;
    Ok((fx, ada))
}

/// A request that takes many pages to store.
fn long() -> GenerateRequest {
    GenerateRequest { prompt: "a boat ".repeat(4_000), ..images(1) }
}

#[tokio::test]
async fn a_submit_to_a_full_database_is_not_charged() -> Result<()> {
    let (fx, ada) = full_database().await?;
    let before = fx.state().await?;
    for _ in 0..3 {
        let refused = fx.store.submit(ada, None, Surface::Api, long(), UNLIMITED).await;
        assert!(matches!(refused, Err(StoreError::Full(_))), "{refused:?}");
    }
    assert_eq!(fx.state().await?, before);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test]
async fn a_submit_batched_with_one_that_does_not_fit_is_acknowledged_only_if_stored() -> Result<()> {
    let (fx, ada) = full_database().await?;
    let requests = [images(1), images(1), long(), images(1), long(), images(1)];
    let submits = requests.map(|request| fx.store.submit(ada, None, Surface::Api, request, UNLIMITED));
    let mut acknowledged = Vec::new();
    for submission in join_all(submits).await {
        acknowledged.extend(submission.map(accepted).ok().map(|task| task.id));
    }
    acknowledged.sort_unstable_by(|older, newer| newer.cmp(older));
    assert_eq!(ids(&fx.store.list_tasks(ada, Surface::Api, None, 100).await?), acknowledged);
    assert_eq!(fx.credits(ada).await?, 100 - 2 * acknowledged.len() as i64);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test]
async fn a_submit_batched_with_an_expiry_that_does_not_fit_is_acknowledged_only_if_stored() -> Result<()> {
    let (fx, ada) = full_database().await?;
    let overdue = fx.submit(ada).await?.id;
    // An error message that does not fit into the database.
    let message = "it sank ".repeat(4_000);
    let sweep = fx.store.expire(fx.clock.now(), &message);
    let submits = (0..12).map(|_| fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED));
    let (swept, submissions) = tokio::join!(sweep, join_all(submits));
    // SQLite may roll back the statement or the whole transaction; in neither case does the expiry report that it ended
    // the task.
    assert_eq!(swept.unwrap_or_default(), []);
    let status = fx.store.inspect_task(overdue).await?.map(|record| record.task.status.as_str());
    assert_eq!(status, Some("processing"));
    let mut acknowledged = vec![overdue];
    acknowledged
        .extend(submissions.into_iter().filter_map(|submission| submission.map(accepted).ok()).map(|task| task.id));
    let mut kept: Vec<_> =
        fx.store.list_tasks(ada, Surface::Api, None, 100).await?.iter().map(|task| task.id).collect();
    kept.reverse();
    assert_eq!(kept, acknowledged);
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

/// The files of the database that contain a text.
fn files_with(fx: &Fixture, text: &str) -> Vec<String> {
    let entries = fs::read_dir(fx.directory.path()).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let holds = |path: &PathBuf| {
        fs::read(path).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    paths.filter(holds).map(|path| path.display().to_string()).collect()
}

#[tokio::test]
async fn an_erased_prompt_is_in_no_file_of_the_database() -> Result<()> {
    // A word of the middle of a prompt, one of a long prompt, and one of a task that retention removes.
    const RARE: [&str; 3] = ["quokkaphone", "vexillology", "jabberwock"];
    let fx = Fixture::new(Backend::Sqlite);
    let ada = fx.account("ada", 10_000).await?;
    let long = format!("{} {} boat", "a sea of words ".repeat(1_000), RARE[1]);
    let prompts = [format!("a boat {} at sea", RARE[0]), long, format!("{} and a boat", RARE[2])];
    let mut tasks = Vec::new();
    for number in 0..900_u64 {
        let rare = prompts.get(usize::try_from(number / 300).expect("few")).filter(|_| number % 300 == 150);
        let other = format!("a boat {:x} with {:x}", number * 0x9E37_79B9, number * 7_919);
        let request = GenerateRequest { prompt: rare.cloned().unwrap_or(other), ..images(1) };
        let id = fx.submit_request(ada, Surface::Web, request).await?.id;
        if rare.is_some() {
            fx.store.fail_unleased(id, FailureCause::Operator, "it sank").await?;
            tasks.push(id);
        }
        // Small segments, which the index merges.
        if number % 20 == 0 {
            while fx.store.index_prompts().await? > 0 {}
        }
    }
    while fx.store.index_prompts().await? > 0 {}
    let flushed = || {
        let connection = Connection::open(fx.directory.path().join("tintype.db")).expect("the database");
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("a checkpoint");
    };
    flushed();
    for word in RARE {
        assert_eq!(files_with(&fx, word).len(), 1, "{word} is there before");
    }
    fx.store.delete_tasks(ada, &tasks[..2], None).await?;
    fx.clock.advance(Duration::from_secs(1));
    assert_eq!(fx.store.erase_deleted(fx.clock.now(), None).await?, 2);
    assert_eq!(fx.store.remove_tasks_of(ada, fx.clock.now()).await?, 1);
    flushed();
    for word in RARE {
        // The index leaves out the beginning that a word shares with the one before.
        for part in [word, &word[4..]] {
            assert_eq!(files_with(&fx, part), Vec::<String>::new(), "{part}");
        }
    }
    fx.execute("INSERT INTO prompt_words (prompt_words) VALUES ('integrity-check')");
    let others =
        fx.store.gallery(ada, &GalleryFilter { text: "boat".into(), ..Default::default() }, None, 1_000).await?;
    assert_eq!(others.records.len(), 897);
    Ok(())
}
