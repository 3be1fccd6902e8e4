//! `tintype migrate` moves an installation from SQLite to PostgreSQL.

use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use tintype::service::endings::REFUSED;
use tintype_domain::endpoint::{AddedBy, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_domain::identity::Identity;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{FailureCause, Id, LedgerEntry, Surface, Task};
use tintype_domain::person::Role;
use tintype_domain::request::{GenerateRequest, TaskSettings};
use tintype_domain::second_factor::{FactorSecret, NewFactor};
use tintype_store::sqlite;
use tintype_store::{
    Actor, Addition, AttemptProgress, BoardWrite, Credential, EndpointChange, GalleryFilter, KeyChange, NewEndpoint,
    NewKey, NewSharedLink, Origin, PersonAdded, SignUp, StartLimit, Store, StrikeRule, Submission, Target, UsageBy,
    UsageFilter, Via,
};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use crate::rigs::binary::{self, Killed, Ran as _, Server};
use crate::rigs::http::{ended, submit};
use crate::rigs::postgres::{cluster, schema};

const LEASE: Duration = Duration::from_secs(30);
/// The address of somebody who signed up.
const SOURCE: &str = "192.0.2.7";

fn identity() -> Identity {
    Identity::new("https://id.example.com", "eve").expect("an identity")
}

/// The name of a picture of a task or an upload.
pub(super) fn file_name(id: Id, index: usize) -> String {
    format!("2026-11-21/{id}-{index}-{}.png", "a".repeat(24))
}

/// A SQLite installation with rows in every table that a copy keeps but those of the gallery, and the key of its account.
pub(super) async fn installation(data: &Path) -> String {
    let store = sqlite::open(&data.join("tintype.db"), Clock::system()).expect("a fresh database");
    let Some(ada) = store.create_account("ada", 100).await.expect("a store") else { panic!("a new name") };
    store.create_account("poor", 0).await.expect("a store");
    let (secret, bad) = (KeySecret::random(), KeySecret::random());
    let limited = NewKey { budget: "500/day".parse().ok(), ..NewKey::new(&secret) };
    store.create_key(ada.id, limited).await.expect("a store");
    let bad = store.create_key(ada.id, NewKey::new(&bad)).await.expect("a store").expect("a key");
    add_endpoint(&store, ada.id).await;
    let submit = async |origin: Origin, surface| {
        let request = GenerateRequest {
            n: 2,
            settings: TaskSettings { preset: Some("portrait".into()), ..TaskSettings::default() },
            request_id: Some("quoted".into()),
            ..GenerateRequest::new("a boat")
        };
        let submission =
            store.submit_before(StartLimit::none(), ada.id, origin, surface, request, 0).await.expect("a store");
        assert!(matches!(submission, Submission::Accepted(_)));
    };
    let claim = async || store.claim(1, LEASE).await.expect("a store").remove(0).lease;
    submit(None.into(), Surface::Api).await;
    let lease = claim().await;
    let names = vec![file_name(lease.task_id, 0), file_name(lease.task_id, 1)];
    store.complete(lease, names).await.expect("a store");
    submit(None.into(), Surface::Web).await;
    store.fail(claim().await, FailureCause::Engine, "it sank").await.expect("a store");
    let rule = StrikeRule { limit: 1, window: LEASE };
    let PersonAdded::Done(person) = store.create_person(ada.id, "ada", Role::Member).await.expect("a store") else {
        panic!("a new name")
    };
    submit(Origin { person_id: Some(person.id), ..Origin::default() }, Surface::Web).await;
    store.refuse(claim().await, REFUSED, Some(rule)).await.expect("a store");
    submit(Some(bad.id).into(), Surface::Api).await;
    store.refuse(claim().await, REFUSED, Some(rule)).await.expect("a store");
    store.change_key(bad.id, KeyChange::FlagLeaked).await.expect("a store");
    let end = store.now().saturating_add(LEASE * 10_000);
    store.grant(ada.id, 7, Some("for being nice"), Some(end)).await.expect("a store");
    submit(None.into(), Surface::Api).await;
    let actor = Actor { name: "root".into(), person_id: None, via: Via::Command, source: None };
    store.acting(actor).pause_queue().await.expect("a store");
    let source = SOURCE.to_owned();
    let new = SignUp {
        name: "eve".into(),
        credential: Credential::Password("$argon2id$…".into()),
        credits: 5,
        source,
        limit: 3,
    };
    let PersonAdded::Done(eve) = store.sign_up(new).await.expect("a store") else { panic!("a new name") };
    store.link_identity(eve.id, &identity()).await.expect("a store");
    let factor = NewFactor { secret: FactorSecret::random(), step: 7, recovery: vec![[1; 32], [2; 32]] };
    assert!(store.add_factor(eve.id, factor, eve.id).await.expect("a store"));
    secret.reveal().to_owned()
}

/// Adds an endpoint that nobody reaches, and gives it a second secret.
async fn add_endpoint(store: &Store, account: Id) {
    let (events, added_by) = (Subscription::to_all(), AddedBy::Owner);
    let url = "https://10.0.0.1/hooks".parse().expect("a URL");
    let new = NewEndpoint { url, events, added_by, secret: SigningSecret::random() };
    let Addition::Created(endpoint) = store.add_endpoint(account, new, 20).await.expect("a store") else {
        panic!("room")
    };
    let rotate = EndpointChange::Rotate { secret: SigningSecret::random(), overlap: LEASE };
    store.change_endpoint(endpoint.id, rotate).await.expect("a store");
}

/// Everything that a store shows.
async fn everything(store: &Store) -> (Vec<String>, Vec<LedgerEntry>, Vec<Task>, [u8; 32]) {
    let mut nouns = Vec::new();
    let mut entries = Vec::new();
    for account in store.list_accounts().await.expect("a store") {
        entries.extend(store.history(account.id, None, 1_000).await.expect("a store"));
        nouns.push(format!("{account:?}"));
        nouns.push(format!("{:?}", store.expiring_grants(account.id, 10).await.expect("a store")));
    }
    nouns.push(format!("{:?}", store.usage_by(UsageBy::Key, UsageFilter::default()).await.expect("a store")));
    nouns.extend(store.list_keys(None).await.expect("a store").iter().map(|key| format!("{key:?}")));
    let struck = store.struck_people(10).await.expect("a store");
    assert!(struck.len() == 1 && struck[0].who.suspension.is_some() && struck[0].strikes == 1, "{struck:?}");
    nouns.push(format!("{struck:?}"));
    let tasks = store.recent_tasks(None, 1_000).await.expect("a store");
    for task in &tasks {
        nouns.push(format!("{:?}", store.inspect_task(task.id).await.expect("a store")));
    }
    nouns.push(format!("{:?}", store.queue_depth().await.expect("a store")));
    let log = store.audit_entries(None, None, 10).await.expect("a store");
    assert_eq!(log.len(), 4, "{log:?}");
    nouns.push(format!("{log:?}"));
    let eve = store.find_person("eve").await.expect("a store").expect("a person");
    let factor = store.find_factor(eve.person.id).await.expect("a store").expect("a second factor");
    assert_eq!((factor.step, factor.recovery_codes), (7, 2));
    nouns.push(format!("{eve:?} {}", factor.secret.base32()));
    let known = store.find_identity(&identity()).await.expect("a store");
    assert!(known.is_some());
    nouns.push(format!("{known:?}"));
    for endpoint in store.list_endpoints(None).await.expect("a store") {
        let deliveries = store.list_deliveries(endpoint.id, None, 10).await.expect("a store");
        assert_eq!(deliveries.len(), 3, "two ends of tasks and a suspended key");
        nouns.push(format!("{endpoint:?} {deliveries:?}"));
    }
    nouns.push(format!("{} sign-ups", store.sign_ups_of(SOURCE).await.expect("a store")));
    (nouns, entries, tasks, store.cursor_secret().await.expect("a store"))
}

fn sqlite(data: &TempDir) -> String {
    format!("sqlite:{}", data.path().join("tintype.db").display())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migrated_installation_keeps_all_data_and_completes_its_tasks() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let key = installation(data.path()).await;
    let source = sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("the source");
    let (before, audit) = (everything(&source).await, source.audit().await.unwrap());
    drop(source);
    let url = cluster().url(elsewhere.path());
    let moved = binary::json(elsewhere.path(), &["migrate", "--from", &sqlite(&data), "--to", &url]);
    assert_eq!((&moved["accounts"], &moved["tasks"]), (&json!(3), &json!(5)), "{moved}");
    let target = cluster().open(elsewhere.path(), &Clock::system(), Faults::default());
    assert_eq!(everything(&target).await, before);
    assert_eq!(target.audit().await.unwrap(), audit);
    let took_back = binary::json(data.path(), &["migrate", "--from", &sqlite(&data), "--take-back"]);
    assert_eq!(took_back["was_moved"], true);
    let source = sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("the source");
    assert_eq!(
        (everything(&source).await, source.audit().await.unwrap()),
        (before, audit),
        "the source is not changed"
    );
    drop(source);

    let server = Server::start(elsewhere.path(), &["--database", &url]);
    assert_eq!(server.first_key(), None, "it is not a first start");
    target.resume_queue().await.expect("a store");
    let new = submit(&server, &key, "A boat").await;
    let ended = ended(&server, &key, &new).await;
    assert_eq!(ended["status"], "completed");
    server.stop();
    assert_eq!(target.queue_depth().await.unwrap().waiting, 0, "the unfinished task was completed as well");
    assert_eq!(target.audit().await.unwrap().drifts, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gallery_is_migrated_and_its_prompts_are_indexed_anew() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let source = sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("a fresh database");
    let Some(ada) = source.create_account("ada", 100).await.unwrap() else { panic!("a new name") };
    let mut tasks = Vec::new();
    for prompt in ["a red boat", "a blue boat", "a green boat", "an old boat"] {
        let request = GenerateRequest::new(prompt);
        let Submission::Accepted(task) = source.submit(ada.id, None, Surface::Web, request, 0).await.unwrap() else {
            panic!("it has credits")
        };
        source.fail(source.claim(1, LEASE).await.unwrap()[0].lease, FailureCause::Engine, "it sank").await.unwrap();
        tasks.push(task.id);
    }
    let [red, blue, green, old] = tasks[..] else { panic!("four tasks") };
    while source.index_prompts().await.unwrap() > 0 {}
    let BoardWrite::Done(board) = source.create_board(ada.id, None, "Ships & <boats>", 10).await.unwrap() else {
        panic!("a new name")
    };
    let PersonAdded::Done(fan) = source.create_person(ada.id, "fan", Role::Member).await.unwrap() else {
        panic!("a new name")
    };
    source.star_tasks(ada.id, fan.id, &[red, green], true).await.unwrap();
    let BoardWrite::Done(own) = source.create_board(ada.id, Some(fan.id), "Own", 10).await.unwrap() else {
        panic!("a new name")
    };
    let target = Target::Board(own);
    let link = NewSharedLink { account_id: ada.id, person_id: fan.id, target, with_prompts: true, expires_at: None };
    let Addition::Created(link) = source.create_shared_link(link, 10).await.unwrap() else { panic!("it has a target") };
    source.put_on_board(ada.id, fan.id, board, &[red, blue], true).await.unwrap();
    source.delete_tasks(ada.id, &[old], None).await.unwrap();
    // Long enough ago to be erased.
    assert_eq!(source.erase_deleted(source.now().saturating_add(LEASE), None).await.unwrap(), 1);
    source.delete_tasks(ada.id, &[green], None).await.unwrap();
    drop(source);
    let url = cluster().url(elsewhere.path());
    binary::json(elsewhere.path(), &["migrate", "--from", &sqlite(&data), "--to", &url]);
    let target = cluster().open(elsewhere.path(), &Clock::system(), Faults::default());
    while target.index_prompts().await.unwrap() > 0 {}
    let boards: Vec<Id> = target.boards(ada.id, fan.id).await.unwrap().iter().map(|board| board.id).collect();
    assert_eq!(boards, [own, board], "by name, the private one included");
    let links = target.list_shared_links(ada.id, None, None, 10).await.unwrap();
    assert_eq!(links.iter().map(|link| (link.id, link.target)).collect::<Vec<_>>(), [(link, Target::Board(own))]);
    let shown = async |filter| -> Vec<Id> {
        let page = target.gallery(ada.id, &filter, None, 10).await.unwrap();
        page.records.iter().map(|record| record.task.id).collect()
    };
    let text = |text: &str| GalleryFilter { text: text.into(), ..GalleryFilter::default() };
    assert_eq!(shown(text("boat")).await, [blue, red]);
    assert_eq!(shown(text("green")).await, []);
    assert_eq!(shown(GalleryFilter { board: Some(board), ..text("") }).await, [blue, red]);
    assert_eq!(shown(GalleryFilter { starred_by: Some(fan.id), ..text("") }).await, [red]);
    assert_eq!(target.restore_tasks(ada.id, &[green, old], None).await.unwrap(), [green]);
    assert_eq!(shown(text("green")).await, [green]);
    assert_eq!(shown(GalleryFilter { starred_by: Some(fan.id), ..text("") }).await, [green, red]);
    let erased = target.erased_tasks(target.now().saturating_add(LEASE), 10).await.unwrap();
    assert_eq!(erased.iter().map(|task| task.id).collect::<Vec<_>>(), [old]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_progress_of_attempts_is_not_migrated() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    installation(data.path()).await;
    let store = sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("a database");
    store.resume_queue().await.expect("a store");
    let claim = store.claim(1, LEASE).await.expect("a store").remove(0);
    let progress = AttemptProgress { running: LEASE / 2, stage: None };
    store.report_progress(vec![(claim.lease, progress)]).await.expect("a store");
    store.report_previews(vec![(claim.lease, vec![1].into())]).await.expect("a store");
    let shown = async |store: &Store| {
        let polled = store.poll_task(claim.account_id, claim.surface, claim.lease.task_id).await.expect("a store");
        polled.expect("the task exists").1
    };
    assert!(shown(&store).await.is_some());
    drop(store);
    let url = cluster().url(elsewhere.path());
    binary::json(elsewhere.path(), &["migrate", "--from", &sqlite(&data), "--to", &url]);
    let target = cluster().open(elsewhere.path(), &Clock::system(), Faults::default());
    assert_eq!(shown(&*target).await, None);
    for table in ["progress", "previews"] {
        let rows = format!("SELECT count(*) FROM {}.{table}", schema(elsewhere.path()));
        assert_eq!(cluster().number(&rows), 0, "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_refuses_a_database_that_was_moved_and_says_where_it_went() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let key = installation(data.path()).await;
    let secret = "hunter2-of-the-database";
    let url = cluster().url(elsewhere.path()).replace("postgres://tintype@", &format!("postgres://tintype:{secret}@"));
    binary::json(elsewhere.path(), &["migrate", "--from", &sqlite(&data), "--to", &url]);
    let (from, backup) = (sqlite(&data), data.path().join("backup").display().to_string());
    let commands: &[&[&str]] = &[
        &["serve", "--listen", "127.0.0.1:0"],
        &["account", "list"],
        &["account", "create", "bob"],
        &["key", "list"],
        &["key", "revoke", "000000000000000000000"],
        &["credits", "grant", "ada", "5"],
        &["credits", "audit"],
        &["usage", "--by", "key"],
        &["person", "list"],
        &["webhook", "list"],
        &["task", "list"],
        &["queue", "pause"],
        &["files", "adopt"],
        &["backup", &backup],
        &["migrate", "--from", &from, "--to", &url],
    ];
    for command in commands {
        let said = binary::refused(data.path(), command);
        assert!(said.contains("was moved to the PostgreSQL database \"postgres\""), "{command:?}: {said}");
        assert!(said.contains("--take-back") && !said.contains(secret), "{command:?}: {said}");
    }
    let doctor = binary::run(data.path(), ["doctor"]);
    let said = doctor.text();
    assert!(!doctor.status.success() && said.contains("was moved to the PostgreSQL"), "{said}");
    assert!(!std::fs::exists(&backup).unwrap());
    // The move is one to what earlier releases see as another program's database.
    let file = rusqlite::Connection::open(data.path().join("tintype.db")).unwrap();
    let id: i64 = file.query_row("PRAGMA application_id", [], |row| row.get(0)).unwrap();
    drop(file);
    assert_ne!(id, 0x7469_6E74);

    // The documented way back.
    let said = binary::json(data.path(), &["migrate", "--from", &from, "--take-back"]);
    assert_eq!(said["was_moved"], true);
    let server = Server::start(data.path(), &[]);
    binary::json(data.path(), &["queue", "resume"]);
    let task = submit(&server, &key, "a boat").await;
    assert_eq!(ended(&server, &key, &task).await["status"], "completed");
    let said = binary::refused(data.path(), &["migrate", "--from", &from, "--take-back"]);
    assert!(said.contains("another server"), "{said}");
    server.stop();
    assert_eq!(binary::json(data.path(), &["migrate", "--from", &from, "--take-back"])["was_moved"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_is_refused_into_a_database_in_use() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    installation(data.path()).await;
    let url = cluster().url(elsewhere.path());
    let target = cluster().open(elsewhere.path(), &Clock::system(), Faults::default());
    target.create_account("eve", 3).await.unwrap();
    let said = binary::refused(elsewhere.path(), &["migrate", "--from", &sqlite(&data), "--to", &url]);
    assert!(said.contains("already has accounts"), "{said}");
    binary::json(data.path(), &["account", "list"]);
    assert_eq!(target.audit().await.unwrap().accounts, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn migrate_is_refused_beside_a_running_server() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = Server::start(data.path(), &[]);
    let url = cluster().url(elsewhere.path());
    let said = binary::refused(elsewhere.path(), &["migrate", "--from", &sqlite(&data), "--to", &url]);
    assert!(said.contains("another server"), "{said}");
    server.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_starts_on_a_database_that_is_being_migrated() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    installation(data.path()).await;
    let url = cluster().url(elsewhere.path());
    let target = cluster().open(elsewhere.path(), &Clock::system(), Faults::default());
    // The copy of the SQLite database is made, and the migration waits for a reader.
    let schema = schema(elsewhere.path());
    let reader = cluster().session().await;
    reader.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.accounts IN SHARE MODE")).await.unwrap();
    let moving = std::thread::spawn({
        let (elsewhere, arguments) = (elsewhere.path().to_owned(), ["migrate".into(), "--from".into(), sqlite(&data)]);
        move || binary::run(&elsewhere, arguments.into_iter().chain(["--to".into(), url]))
    });
    let waits = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.accounts'::regclass");
    cluster().until(&waits, |locks| locks > 0 || moving.is_finished()).await;
    let said = binary::refused(data.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert!(said.contains("another server"), "{said}");
    reader.batch_execute("ROLLBACK").await.unwrap();
    moving.join().expect("no panic").succeeded();
    assert_eq!(target.audit().await.unwrap().accounts, 3);
    let rows = format!("SELECT reltuples::bigint FROM pg_class WHERE oid = '{schema}.ledger'::regclass");
    assert!(cluster().number(&rows) > 0, "the planner knows of them");
}

/// `tintype migrate` of a new installation, which waits for a reader of the destination.
struct Waiting {
    data: TempDir,
    elsewhere: TempDir,
    reader: tokio_postgres::Client,
    migrate: Killed,
}

impl Waiting {
    async fn begin() -> Self {
        let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        installation(data.path()).await;
        let url = cluster().url(elsewhere.path());
        drop(cluster().open(elsewhere.path(), &Clock::system(), Faults::default()));
        let schema = schema(elsewhere.path());
        let reader = cluster().session().await;
        reader.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.accounts IN SHARE MODE")).await.unwrap();
        let mut migrate = binary::tintype();
        migrate.args(["migrate", "--from", &sqlite(&data), "--to", &url, "--data"]).arg(elsewhere.path());
        let migrate = Killed(migrate.stderr(Stdio::piped()).spawn().expect("a migration"));
        let waits =
            format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{schema}.accounts'::regclass");
        cluster().until(&waits, |locks| locks > 0).await;
        Self { data, elsewhere, reader, migrate }
    }

    fn again(&self) -> Vec<String> {
        let (from, to) = (sqlite(&self.data), cluster().url(self.elsewhere.path()));
        ["migrate", "--from", &from, "--to", &to].map(str::to_owned).to_vec()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.migrate), signal).expect("a process");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_a_signal_stops_moves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut waiting = Waiting::begin().await;
        waiting.signal(signal);
        let mut said = String::new();
        waiting.migrate.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
        assert_eq!(waiting.migrate.wait().expect("a child").code(), Some(1), "{said}");
        assert!(said.contains("stopped by a signal"), "{said}");
        waiting.reader.batch_execute("ROLLBACK").await.unwrap();
        let accounts = binary::json(waiting.data.path(), &["account", "list"]);
        assert_eq!(accounts.as_array().map(Vec::len), Some(3));
        let again = waiting.again();
        let again: Vec<&str> = again.iter().map(String::as_str).collect();
        assert_eq!(binary::json(waiting.elsewhere.path(), &again)["accounts"], 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_was_killed_goes_on_when_it_is_repeated() {
    let mut waiting = Waiting::begin().await;
    waiting.signal(Signal::KILL);
    waiting.migrate.wait().expect("a child");
    let (other, from) = (TempDir::new().unwrap(), sqlite(&waiting.data));
    let to = cluster().url(other.path());
    for command in
        [&["account", "list"][..], &["serve", "--listen", "127.0.0.1:0"], &["migrate", "--from", &from, "--to", &to]]
    {
        let said = binary::refused(waiting.data.path(), command);
        assert!(said.contains("was interrupted: run the same `tintype migrate` command again"), "{command:?}: {said}");
    }
    waiting.reader.batch_execute("ROLLBACK").await.unwrap();
    let again = waiting.again();
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    assert_eq!(binary::json(waiting.elsewhere.path(), &again)["accounts"], 3);
    assert!(binary::refused(waiting.data.path(), &["account", "list"]).contains("was moved to"));

    // One that was killed between the commit and the note that the move has ended.
    let id: Vec<u8> = cluster()
        .query(&format!("SELECT value FROM {}.secrets WHERE name = 'move'", schema(waiting.elsewhere.path())))[0]
        .get(0);
    let note = rusqlite::Connection::open(waiting.data.path().join("tintype.db")).unwrap();
    note.execute("INSERT INTO secrets (name, value) VALUES ('move', ?1)", [id]).unwrap();
    drop(note);
    let target = cluster().open(waiting.elsewhere.path(), &Clock::system(), Faults::default());
    target.create_account("new", 3).await.unwrap();
    assert!(binary::refused(waiting.data.path(), &["account", "list"]).contains("was interrupted"));
    binary::json(waiting.elsewhere.path(), &again);
    assert!(binary::refused(waiting.data.path(), &["account", "list"]).contains("was moved to"));
    assert_eq!(target.audit().await.unwrap().accounts, 4, "what came since is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_migration_is_undone_if_others_use_its_destination() {
    let mut waiting = Waiting::begin().await;
    waiting.signal(Signal::KILL);
    waiting.migrate.wait().expect("a child");
    waiting.reader.batch_execute("ROLLBACK").await.unwrap();
    let target = cluster().open(waiting.elsewhere.path(), &Clock::system(), Faults::default());
    target.create_account("eve", 3).await.unwrap();
    let again = waiting.again();
    let again: Vec<&str> = again.iter().map(String::as_str).collect();
    assert!(binary::refused(waiting.elsewhere.path(), &again).contains("already has accounts"));
    binary::json(waiting.data.path(), &["account", "list"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_does_not_balance_is_not_migrated() {
    let (data, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    installation(data.path()).await;
    let path = data.path().join("tintype.db");
    rusqlite::Connection::open(&path).unwrap().execute("UPDATE ledger SET balance = balance + 1", []).unwrap();
    let url = cluster().url(elsewhere.path());
    let said = binary::refused(elsewhere.path(), &["migrate", "--from", &sqlite(&data), "--to", &url]);
    assert!(said.contains("credits audit"), "{said}");
    binary::json(data.path(), &["account", "list"]);
    let target = cluster().open(elsewhere.path(), &Clock::system(), Faults::default());
    assert_eq!(target.audit().await.unwrap().accounts, 0);
}

#[test]
fn migrate_goes_only_from_sqlite_to_postgres() {
    let data = TempDir::new().unwrap();
    let postgres = "postgres://tintype@localhost/tintype";
    for (from, to, complaint) in [
        (postgres, postgres, "--from must be sqlite:PATH"),
        ("sqlite:nowhere.db", "sqlite:there.db", "--to must be postgres://"),
        ("sqlite:nowhere.db", postgres, "there is no database at nowhere.db"),
        ("sqlite::memory:", postgres, "a database in memory would be lost"),
        ("mysql://somewhere", postgres, "'--from <URL>': it must be sqlite:PATH or postgres://"),
    ] {
        let said = binary::refused(data.path(), &["migrate", "--from", from, "--to", to]);
        assert!(said.contains(complaint), "{said}");
        let json: Result<Value, _> = serde_json::from_str(&said);
        assert!(json.is_err(), "a message");
    }
}

#[test]
fn a_database_that_is_not_there_is_named_with_the_flag_that_names_it() {
    let data = TempDir::new().expect("a directory");
    let from = sqlite(&data);
    for more in [&["--to", "postgres://localhost/tintype"][..], &["--take-back"]] {
        let said = binary::refused(data.path(), &[&["migrate", "--from", &from][..], more].concat());
        assert!(said.contains("there is no database at") && said.contains("--from sqlite:PATH"), "{said}");
        assert!(!said.contains("--data"), "{said}");
    }
}
