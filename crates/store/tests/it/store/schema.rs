//! The schema in force, and the way from the schema of an earlier release to it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tempfile::TempDir;
use tintype_domain::model::{FailureCause, Id, ReferenceProblem, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::postgres;
use tintype_store::sqlite;
use tintype_store::{FIRST_VERSION, GalleryFilter, OpenError, Result, Schema, Store};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use super::fixture::{self, Fixture, images, new_key, one_file};
use tintype_rigs::database::{Backend, NOON};
use tintype_rigs::postgres::{cluster, schema};

const BOTH: [Backend; 2] = [Backend::Sqlite, Backend::Postgres];
/// A change that no release has made, in the SQL of both databases.
const CHANGE: &str = "ALTER TABLE accounts ADD COLUMN plan TEXT; CREATE INDEX accounts_by_plan ON accounts (plan);";

fn current(backend: Backend) -> Schema {
    match backend {
        Backend::Sqlite => sqlite::SCHEMA,
        Backend::Postgres => postgres::SCHEMA,
    }
}

fn kept(text: String) -> &'static str {
    text.leak()
}

/// The schema of a later release, which makes a change to the one in force.
fn later(backend: Backend, change: &'static str) -> Schema {
    let Schema { in_force, changes } = current(backend);
    Schema { in_force: kept(format!("{in_force}\n{change}")), changes: [changes, &[change][..]].concat().leak() }
}

/// Opens the database in `directory` as a release with this schema does.
async fn open(backend: Backend, directory: &TempDir, schema: &Schema) -> std::result::Result<Box<Store>, OpenError> {
    let (clock, faults) = (Clock::manual(NOON), Faults::default());
    Ok(match backend {
        Backend::Sqlite => Box::new(sqlite::open_with(&directory.path().join("tintype.db"), clock, faults, schema)?),
        Backend::Postgres => {
            let url = cluster().url(directory.path());
            Box::new(postgres::open_with(&url, None, clock, faults, schema).await?)
        }
    })
}

/// The version of the schema of a database, or the one it gets.
fn version(backend: Backend, directory: &TempDir, new: Option<i64>) -> i64 {
    match backend {
        Backend::Sqlite => {
            let database = Connection::open(directory.path().join("tintype.db")).expect("a database");
            new.into_iter().for_each(|new| database.pragma_update(None, "user_version", new).expect("a version"));
            database.query_row("PRAGMA user_version", [], |row| row.get(0)).expect("a version")
        }
        Backend::Postgres => {
            let schema = schema(directory.path());
            new.into_iter().for_each(|new| cluster().execute(&format!("UPDATE {schema}.tintype SET version = {new}")));
            cluster().number(&format!("SELECT version::bigint FROM {schema}.tintype"))
        }
    }
}

/// The parts of a database's schema, each as a text. Columns have no order.
fn parts(backend: Backend, directory: &TempDir) -> BTreeSet<String> {
    match backend {
        Backend::Sqlite => {
            let database = Connection::open(directory.path().join("tintype.db")).expect("a database");
            let sql = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL";
            let mut found = database.prepare(sql).expect("SQL");
            let found = found.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).expect("a query");
            found.flat_map(|row| parts_of(row.expect("a row"))).collect()
        }
        Backend::Postgres => {
            let schema = schema(directory.path());
            let found = cluster().query(&CATALOG.replace("{schema}", &schema));
            found.iter().map(|row| row.get::<_, String>(0).replace(&format!("{schema}."), "")).collect()
        }
    }
}

/// Columns, constraints, tables, indexes and functions of a schema of PostgreSQL.
const CATALOG: &str = "
    WITH relations AS (SELECT * FROM pg_class WHERE relnamespace = '{schema}'::regnamespace)
    SELECT concat_ws(' ', relname, relkind, relpersistence, array(SELECT unnest(reloptions) ORDER BY 1)) FROM relations
    UNION ALL
    SELECT concat_ws(' ', r.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attcollation, a.attnotnull,
        a.attstorage, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
    FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum) WHERE r.relkind = 'r'
    UNION ALL
    SELECT concat_ws(' ', r.relname, c.conname, pg_get_constraintdef(c.oid))
    FROM relations r JOIN pg_constraint c ON c.conrelid = r.oid
    UNION ALL SELECT pg_get_indexdef(oid) FROM relations WHERE relkind = 'i'
    UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace";

/// The parts of one statement that SQLite keeps: a table's columns and constraints are apart from each other.
fn parts_of((kind, name, sql): (String, String, String)) -> Vec<String> {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sql: String = sql.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join(" ");
    if kind != "table" {
        return vec![plain(&sql)];
    }
    let (start, end) = (sql.find('(').expect("columns"), sql.rfind(')').expect("columns"));
    let mut depth = 0;
    let columns = sql[start + 1..end].split(|letter: char| {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        letter == ',' && depth == 0
    });
    columns.chain([&sql[end + 1..]]).map(|part| format!("{name}: {}", plain(part))).collect()
}

/// The differences between a database that began with `base` and ran all changes, and a new one.
async fn differences(backend: Backend, base: &'static str, schema: &Schema) -> BTreeSet<String> {
    let (old, new) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    open(backend, &old, &Schema { in_force: base, changes: &[] }).await.expect("the first schema");
    open(backend, &old, schema).await.expect("the changes");
    open(backend, &new, schema).await.expect("the schema in force");
    let (old, new) = (parts(backend, &old), parts(backend, &new));
    assert!(old.len() > 200, "{old:#?}");
    old.symmetric_difference(&new).cloned().collect()
}

/// The files of the changes, and before them the first schema.
fn files(backend: Backend) -> Vec<PathBuf> {
    let driver = if matches!(backend, Backend::Sqlite) { "sqlite" } else { "postgres" };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(driver);
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

fn read(path: &PathBuf) -> String {
    std::fs::read_to_string(path).expect("a migration")
}

/// The schema of a database without any change.
fn first(backend: Backend) -> &'static str {
    kept(read(&files(backend)[0]))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_in_force_is_that_of_a_database_that_ran_every_change() {
    for backend in BOTH {
        let schema = current(backend);
        let files = files(backend);
        for (path, version) in files.iter().zip(FIRST_VERSION..) {
            assert!(path.file_name().expect("a name").to_string_lossy().starts_with(&format!("{version:04}_")));
        }
        assert_eq!(files.iter().skip(1).map(read).collect::<Vec<_>>(), schema.changes);
        assert_eq!(differences(backend, first(backend), &schema).await, BTreeSet::new());
    }
    let names = |backend| files(backend).iter().map(|path| path.file_name().map(ToOwned::to_owned)).collect::<Vec<_>>();
    assert_eq!(names(Backend::Sqlite), names(Backend::Postgres));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_file_that_differs_from_its_changes_is_noticed() {
    for backend in BOTH {
        let (now, later) = (current(backend), later(backend, CHANGE));
        assert_eq!(differences(backend, first(backend), &later).await, BTreeSet::new());
        let only_change = Schema { in_force: now.in_force, ..later };
        let only_file = Schema { changes: now.changes, ..later };
        for schema in [only_change, only_file] {
            let found = differences(backend, first(backend), &schema).await;
            assert!(found.iter().any(|part| part.contains("plan")), "{found:?}");
        }
    }
}

/// Takes the changes since the first version back, with a star and a board of that version.
fn older_sqlite(fx: &Fixture, ada: Id, refused: Id) {
    let database = Connection::open(fx.directory.path().join("tintype.db")).expect("a database");
    database
        .execute_batch(
            "DROP TABLE invitations;
                         DROP TABLE shared_links;
                         DROP TABLE board_tasks;
                         DROP TABLE boards;
                         CREATE TABLE boards (id TEXT PRIMARY KEY, account_id TEXT NOT NULL, name TEXT NOT NULL,
                             UNIQUE (account_id, name)) STRICT, WITHOUT ROWID;
                         CREATE TABLE board_tasks (board_id TEXT NOT NULL REFERENCES boards (id) ON DELETE CASCADE,
                             task_id TEXT NOT NULL, PRIMARY KEY (board_id, task_id)) STRICT, WITHOUT ROWID;
                         CREATE INDEX boards_of_task ON board_tasks (task_id);
                         DROP TABLE stars;
                         CREATE TABLE stars (task_id TEXT PRIMARY KEY, account_id TEXT NOT NULL) STRICT, WITHOUT ROWID;
                         CREATE INDEX stars_of_account ON stars (account_id, task_id)",
        )
        .expect("SQL");
    database.execute("INSERT INTO stars VALUES (?1, ?2)", [refused.as_str(), ada.as_str()]).expect("SQL");
    database.execute("INSERT INTO boards VALUES (?1, ?2, 'boats')", [refused.as_str(), ada.as_str()]).expect("SQL");
    database.execute("INSERT INTO board_tasks VALUES (?1, ?1)", [refused.as_str()]).expect("SQL");
    for index in ["queue_of_account", "tasks_of_person", "deletions_of_account", "deletions_final"] {
        database.execute(&format!("DROP INDEX {index}"), []).expect("SQL");
    }
    database.execute("ALTER TABLE deletions DROP COLUMN is_final", []).expect("SQL");
    for sum in ["balance", "unfinished"] {
        database
            .execute(&format!("ALTER TABLE accounts ADD COLUMN {sum} INTEGER NOT NULL DEFAULT 7"), [])
            .expect("SQL");
    }
    for later in ["person_id", "is_mask"] {
        database.execute(&format!("ALTER TABLE uploads DROP COLUMN {later}"), []).expect("SQL");
    }
    for later in ["cause", "settings", "person_id"] {
        database.execute(&format!("ALTER TABLE tasks DROP COLUMN {later}"), []).expect("SQL");
    }
}

/// Takes the changes since the first version back on PostgreSQL.
fn older_postgres(fx: &Fixture, ada: Id, refused: Id) {
    let schema = schema(fx.directory.path());
    cluster()
        .execute(&format!("ALTER TABLE {schema}.tasks DROP COLUMN cause, DROP COLUMN settings, DROP COLUMN person_id"));
    cluster().execute(&format!("ALTER TABLE {schema}.workers DROP COLUMN masks"));
    cluster().execute(&format!("ALTER TABLE {schema}.deletions DROP COLUMN is_final"));
    cluster().execute(&format!("DROP INDEX {schema}.deletions_of_account"));
    for statement in [
        format!("ALTER TABLE {schema}.tintype DROP CONSTRAINT tintype_pkey"),
        format!("ALTER TABLE {schema}.uploads DROP COLUMN person_id, DROP COLUMN is_mask"),
        format!("DROP TABLE {schema}.invitations"),
        format!("DROP TABLE {schema}.shared_links"),
        format!("ALTER TABLE {schema}.boards DROP COLUMN person_id"),
        format!("ALTER TABLE {schema}.boards ADD UNIQUE (account_id, name)"),
        format!("INSERT INTO {schema}.boards VALUES ('{refused}', '{ada}', 'boats')"),
        format!("INSERT INTO {schema}.board_tasks VALUES ('{refused}', '{refused}')"),
        format!("DROP TABLE {schema}.stars"),
        format!("CREATE TABLE {schema}.stars (task_id text COLLATE \"C\" PRIMARY KEY, account_id text)"),
        format!("CREATE INDEX stars_of_account ON {schema}.stars (account_id, task_id)"),
        format!("INSERT INTO {schema}.stars VALUES ('{refused}', '{ada}')"),
    ] {
        cluster().execute(&statement);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_tasks_of_schema_100_get_a_cause() -> Result<()> {
    const REFUSED: &str = "The request was refused by the content policy. Its credits were refunded.";
    for backend in BOTH {
        let fx = Fixture::new(backend);
        let ada = fx.account("ada", 100).await?;
        let (refused, failed) = (fx.submit(ada).await?.id, fx.submit(ada).await?.id);
        let broken = FailureCause::Reference(2, ReferenceProblem::Damaged);
        fx.store.refuse(fx.claim().await?, REFUSED, None).await?;
        fx.store.fail(fx.claim().await?, broken, "it sank").await?;
        let fan = fx.person(ada, "fan").await?.id;
        let causes = async || -> Result<_> { Ok([fx.task(refused).await?.status, fx.task(failed).await?.status]) };
        let expected = |cause| [fixture::failure(FailureCause::Policy, REFUSED), fixture::failure(cause, "it sank")];
        assert_eq!(causes().await?, expected(broken));
        match backend {
            Backend::Sqlite => older_sqlite(&fx, ada, refused),
            Backend::Postgres => older_postgres(&fx, ada, refused),
        }
        version(backend, &fx.directory, Some(FIRST_VERSION));
        open(backend, &fx.directory, &current(backend)).await.expect("a migration");
        assert_eq!((causes().await?, fx.credits(ada).await?), (expected(FailureCause::Unknown), 100));
        assert_eq!(fx.store.starred(fan, &[refused, failed]).await?, [refused], "a star of all people of the account");
        let boards = fx.store.boards(ada, fan).await?;
        assert_eq!((boards.len(), boards[0].owner), (1, None), "a board of all people of the account");
        assert_eq!(fx.count("board_tasks"), 1);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_prompt_is_indexed_again_after_the_terms_have_changed() -> Result<()> {
    for backend in BOTH {
        let fx = Fixture::new(backend);
        let ada = fx.account("ada", 100).await?;
        let fox = GenerateRequest { prompt: "a 🦊".into(), ..images(1) };
        let indexed = fx.submit_request(ada, Surface::Web, fox.clone()).await?.id;
        assert_eq!(fx.store.index_prompts().await?, 1);
        let waiting = fx.submit_request(ada, Surface::Web, fox).await?.id;
        let file = files(backend).into_iter().find(|path| path.ends_with("0108_symbols.sql")).expect("the change");
        open(backend, &fx.directory, &later(backend, kept(read(&file)))).await.expect("a migration");
        assert_eq!((fx.count("prompts"), fx.count("unindexed")), (0, 2));
        assert_eq!(fx.store.index_prompts().await?, 2);
        let search = GalleryFilter { text: "🦊".into(), ..GalleryFilter::default() };
        let page = fx.store.gallery(ada, &search, None, 10).await?;
        let found: Vec<_> = page.records.iter().map(|record| record.task.id).collect();
        assert_eq!(found, [waiting, indexed]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_the_release_before_is_migrated_with_all_its_data() -> Result<()> {
    for backend in BOTH {
        let fx = Fixture::new(backend);
        let ada = fx.account("ada", 100).await?;
        fx.store.create_key(ada, new_key("laptop")).await?.expect("the account exists");
        for _ in 0..3 {
            fx.submit(ada).await?;
        }
        fx.store.complete(fx.claim().await?, one_file()).await?;
        fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
        let before = (fx.state().await?, fx.store.cursor_secret().await?);
        let later = later(backend, CHANGE);
        for _start in ["the first migrates", "the second has nothing to do"] {
            let store = open(backend, &fx.directory, &later).await.expect("a migration");
            assert_eq!(store.audit().await?.drifts, []);
            assert_eq!(version(backend, &fx.directory, None), current(backend).version() + 1);
        }
        // A process of the release before that runs already goes on; a new one does not start.
        assert_eq!((fx.state().await?, fx.store.cursor_secret().await?), before);
        fx.store.complete(fx.claim().await?, one_file()).await?;
        let error = open(backend, &fx.directory, &current(backend)).await.expect_err("a newer schema");
        assert!(error.to_string().contains("newer Tintype"), "{error}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_fails_changes_nothing() {
    for backend in BOTH {
        let fx = Fixture::new(backend);
        let before = parts(backend, &fx.directory);
        let fails = later(backend, "ALTER TABLE accounts ADD COLUMN plan TEXT; DROP TABLE no_such_table;");
        let error = open(backend, &fx.directory, &fails).await.expect_err("a failure");
        assert!(matches!(error, OpenError::Unusable(_)), "{error}");
        assert_eq!(parts(backend, &fx.directory), before);
        assert_eq!(version(backend, &fx.directory, None), current(backend).version());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_an_unreleased_version_is_refused_and_not_changed() {
    for (backend, unreleased) in BOTH.into_iter().flat_map(|backend| [-1, 1, 38, 99].map(|found| (backend, found))) {
        let fx = Fixture::new(backend);
        version(backend, &fx.directory, Some(unreleased));
        let error = open(backend, &fx.directory, &current(backend)).await.expect_err("a refusal");
        let said = error.to_string();
        assert!(said.contains(&format!("(schema {unreleased})")) && said.contains("tools/bring-over"), "{said}");
        assert_eq!(version(backend, &fx.directory, None), unreleased);
    }
}

/// Tables and columns of one database alone, as `SECTION: TABLE` or `SECTION: TABLE.COLUMN`.
const ONLY_SQLITE: [&str; 2] = ["Gallery: prompts.number", "Gallery: prompt_words"];
const ONLY_POSTGRES: [&str; 13] = [
    "Server state: tintype",
    "Server state: tintype.version",
    "Gallery: prompts.words",
    "Workers: workers",
    "Workers: workers.id",
    "Workers: workers.engine",
    "Workers: workers.max_references",
    "Workers: workers.slots",
    "Workers: workers.mean_ms",
    "Workers: workers.image_ms",
    "Workers: workers.is_available",
    "Workers: workers.seen_at",
    "Workers: workers.masks",
];

/// The sections, tables and columns of a schema file, in their order.
fn outline(sql: &str) -> Vec<String> {
    let (mut section, mut table) = ("", "");
    let mut outline = Vec::new();
    for line in sql.lines() {
        if let Some(title) = line.strip_prefix("-- ---- ") {
            section = title.trim_end_matches(['-', ' ']);
            outline.push(section.to_owned());
        } else if let Some((_, named)) = line.split_once(" TABLE ").filter(|(start, _)| start.starts_with("CREATE")) {
            table = named.split([' ', '(']).next().unwrap_or_default();
            outline.push(format!("{section}: {table}"));
        } else if line.starts_with(')') {
            table = "";
        } else if let Some(column) = line.strip_prefix("    ").and_then(|line| line.split(' ').next())
            && !table.is_empty()
            && column.starts_with(|letter: char| letter.is_ascii_lowercase())
        {
            outline.push(format!("{section}: {table}.{column}"));
        }
    }
    outline
}

#[test]
fn both_schema_files_have_the_same_sections_tables_and_columns_in_the_same_order() {
    let shared = |schema: Schema, own: &[&str]| {
        let (alone, shared): (Vec<_>, Vec<_>) =
            outline(schema.in_force).into_iter().partition(|line| own.contains(&line.as_str()));
        assert_eq!(alone, own);
        shared
    };
    let sqlite = shared(sqlite::SCHEMA, &ONLY_SQLITE);
    assert_eq!(sqlite, shared(postgres::SCHEMA, &ONLY_POSTGRES));
    assert!(sqlite.len() > 200, "{sqlite:#?}");
}
