//! Submits that are answered with 500 because nobody can know what became of them, and what the next process makes of
//! them when the one that answered has died.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use tintype::clock::Clock;
use tintype::domain::model::{Id, Status, Surface};
use tintype::domain::request::{AspectRatio, GenerateRequest};
use tintype::fault::{Faults, Point};
use tintype::store::postgres::{PostgresStore, unsettled};
use tintype::store::{AccountCreation, Accounts as _, StoreError, Submission, Tasks as _, Upkeep as _};
use tokio::task::{JoinSet, block_in_place};

use super::Site;
use super::node::{HANG, Node, Part, eventually};
use super::relay::{Cut, Passage, Relay};
use crate::faults::OF_A_NETWORK;
use crate::installation::Installation;
use crate::postgres::{cluster, url};
use crate::process::{submit, try_send};
use crate::support::{GENERATE, NOON};

/// Longer than a caller is kept waiting.
const PATIENCE: Duration = Duration::from_secs(30);
const UNHEARD: &str = "a boat unheard of";

/// The files of a directory, by name.
fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A process whose network goes away over a submit, and which dies before it is back.
struct Doubt {
    api: Node,
    _relay: Relay,
    /// Its installation, by a network that works.
    installation: Installation,
    name: String,
    unsettled: PathBuf,
    /// Whether the caller was told 500, rather than nothing.
    answered: bool,
}

impl Doubt {
    /// One submit is accepted, and then one is cut off. `fault` ends the process, or else the test.
    async fn arise(site: &Site, number: usize, cut: Cut, fault: Option<&str>) -> Self {
        let relay = Relay::to(&site.postgres.directory);
        let (data, name) = (site.installation.data.join(number.to_string()), format!("ada {number}"));
        std::fs::create_dir(&data).expect("a directory");
        let installation = Installation { data: data.clone(), ..site.installation.clone() };
        let by_relay = Installation { data: data.clone(), ..site.by_way_of(relay.directory.path()) };
        let start = || Node::start_with_fault(Part::Api, number, &by_relay, &[], fault);
        let (mut api, key) = block_in_place(|| (start(), installation.account(&name, "100")));
        submit(&api.server, &key, "a boat").await;
        relay.cut(UNHEARD, cut);
        let body = json!({ "prompt": UNHEARD }).to_string();
        let answer = try_send(api.address(), "POST", GENERATE, &key, &body).await;
        assert_eq!(relay.cuts_left(), 0);
        if let Some(answer) = &answer {
            answer.assert_error(500, "INTERNAL_ERROR");
        }
        match (fault, &answer) {
            (None, _) => api.kill().await,
            (Some(_), Some(_)) => eventually("it says so", || api.logged("cannot take back submits") > 0).await,
            (Some(_), None) => {}
        }
        relay.set(Passage::Open);
        tokio::time::timeout(HANG, api.server.until_ended()).await.expect("an end");
        let unsettled = data.join("unsettled");
        Self { api, _relay: relay, installation, name, unsettled, answered: answer.is_some() }
    }

    /// The only file.
    fn file(&self) -> PathBuf {
        let files = files(&self.unsettled);
        assert_eq!(files.len(), 1, "{files:?} {:#?}", self.api.lines());
        self.unsettled.join(&files[0])
    }

    /// Starts the next process, and waits until it has settled what it knows of.
    async fn settle(&mut self) {
        let open: Vec<PathBuf> = files(&self.unsettled).iter().map(|name| self.unsettled.join(name)).collect();
        block_in_place(|| self.api.restart(None));
        eventually("it is settled", || open.iter().all(|file| !file.exists())).await;
    }

    /// Credits left, and the tasks but for the one that was accepted.
    async fn books(&self) -> (i64, Vec<Status>) {
        let store = self.installation.store(Clock::system()).await;
        let account = store.find_account(&self.name).await.expect("a store").expect("an account");
        let mut tasks = store.list_tasks(account.id, Surface::Api, None, 10).await.expect("a store");
        let accepted = tasks.pop().expect("a task");
        assert_eq!(accepted.status, Status::Processing);
        (account.credits, tasks.into_iter().map(|task| task.status).collect())
    }

    async fn assert_taken_back(&self) {
        let (credits, tasks) = self.books().await;
        assert!(matches!(tasks[..], [Status::Failed(_)]), "{tasks:?}");
        assert_eq!(credits, 98);
    }
}

/// It was done, and its caller told that it failed; the file is all that is left of that knowledge. Beside it lie a file
/// of another database and a damaged one.
async fn done(site: &Site) {
    let mut doubt = Doubt::arise(site, 0, Cut::AnswerAndAll, None).await;
    assert!(doubt.answered);
    let (credits, tasks) = doubt.books().await;
    assert_eq!((credits, tasks), (96, vec![Status::Processing]));
    let file = doubt.file();
    let note = std::fs::read(&file).expect("a file");
    let mut foreign: Value = serde_json::from_slice(&note).expect("JSON");
    foreign["installation"] = "of somebody else".into();
    let (of_others, damaged) = (doubt.unsettled.join("foreign.json"), doubt.unsettled.join("damaged.json"));
    std::fs::write(&of_others, foreign.to_string()).expect("a file");
    std::fs::write(&damaged, &note[..note.len() / 2]).expect("a file");
    let said = block_in_place(|| doubt.installation.run(&["doctor"]));
    assert!(String::from_utf8_lossy(&said.stdout).contains("has still to take back: 3"), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stdout).contains("any number may run on PostgreSQL"), "{said:?}");
    block_in_place(|| doubt.api.restart(None));
    eventually("it is settled", || !file.exists() && !damaged.exists()).await;
    doubt.assert_taken_back().await;
    assert_eq!(files(&doubt.unsettled), ["damaged.json.damaged", "foreign.json"]);
    assert_eq!(doubt.api.logged("is damaged and put aside"), 1, "{:#?}", doubt.api.lines());
    assert_eq!(doubt.api.logged("of another database"), 1, "{:#?}", doubt.api.lines());
}

/// It never arrived.
async fn not_done(site: &Site) {
    let mut doubt = Doubt::arise(site, 1, Cut::StatementAndAll, None).await;
    assert!(doubt.answered);
    doubt.file();
    doubt.settle().await;
    assert_eq!(doubt.books().await, (98, Vec::new()));
}

/// The process dies before it has written it down, so its caller gets no answer.
async fn killed_before_the_note(site: &Site) {
    let mut doubt = Doubt::arise(site, 2, Cut::AnswerAndAll, Some("before-note-unsettled=kill")).await;
    assert!(!doubt.answered);
    doubt.settle().await;
    assert_eq!(doubt.books().await, (96, vec![Status::Processing]));
}

async fn killed_after_the_note(site: &Site) {
    let mut doubt = Doubt::arise(site, 3, Cut::AnswerAndAll, Some("after-note-unsettled=kill")).await;
    assert!(!doubt.answered);
    doubt.file();
    doubt.settle().await;
    doubt.assert_taken_back().await;
}

/// The network comes back, and the process dies when all is done but the file.
async fn killed_before_the_end(site: &Site) {
    let mut doubt = Doubt::arise(site, 4, Cut::AnswerAndAll, Some("before-forget-unsettled=kill")).await;
    assert!(doubt.answered);
    doubt.file();
    doubt.assert_taken_back().await;
    doubt.settle().await;
    doubt.assert_taken_back().await;
}

async fn killed_at_the_end(site: &Site) {
    let mut doubt = Doubt::arise(site, 5, Cut::AnswerAndAll, Some("after-forget-unsettled=kill")).await;
    assert!(doubt.answered);
    assert_eq!(files(&doubt.unsettled), [""; 0]);
    doubt.settle().await;
    doubt.assert_taken_back().await;
}

/// Each waits for as long as a caller does, so they do so together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_500_is_taken_back_by_the_next_process() {
    let site = Arc::new(Site::new().await);
    let mut cases = JoinSet::new();
    for case in 0..6 {
        let site = site.clone();
        cases.spawn(async move {
            match case {
                0 => done(&site).await,
                1 => not_done(&site).await,
                2 => killed_before_the_note(&site).await,
                3 => killed_after_the_note(&site).await,
                4 => killed_before_the_end(&site).await,
                _ => killed_at_the_end(&site).await,
            }
        });
    }
    cases.join_all().await;
    assert_eq!(site.installation.json(&["credits", "audit"])["drifts"], json!([]));
}

async fn open(relay: &Relay, directory: &Path, clock: &Clock, faults: &Faults) -> PostgresStore {
    let url = url(relay.directory.path(), directory);
    let store = PostgresStore::open(&url, None, clock.clone(), faults.clone()).await.expect("a store");
    store.keep_unsettled_in(&directory.join("unsettled")).await.expect("a store");
    store
}

async fn ask(store: &PostgresStore, account: Id, prompt: &str) -> Result<Submission, StoreError> {
    let (prompt, aspect_ratio, reference_images) = (prompt.into(), AspectRatio::Square, Vec::new());
    let request = GenerateRequest { prompt, aspect_ratio, n: 1, reference_images, request_id: None };
    store.submit(account, None, Surface::Api, request, 0).await
}

/// Submits what will be cut off, and moves the clock until nobody waits for it any more.
async fn give_up(relay: &Relay, store: &PostgresStore, clock: &Clock, account: Id) {
    relay.cut(UNHEARD, Cut::AnswerAndAll);
    let impatience = async {
        loop {
            clock.advance(PATIENCE);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let outcome = tokio::select! {
        outcome = ask(store, account, UNHEARD) => outcome,
        () = impatience => unreachable!("it goes on"),
    };
    assert!(matches!(outcome, Err(StoreError::Unknown(_))), "{outcome:?}");
}

/// Waits until the newest task of an account has failed.
async fn failed(store: &PostgresStore, account: Id) {
    let failing = async {
        while !matches!(
            store.list_tasks(account, Surface::Api, None, 1).await.expect("a store")[0].status,
            Status::Failed(_)
        ) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(HANG, failing).await.expect("it is taken back");
}

async fn live_through(fault: String) {
    let (directory, clock) = (TempDir::new().unwrap(), Clock::manual(NOON));
    let (relay, faults) = (Relay::to(&cluster().directory), fault.parse::<Faults>().expect("a plan"));
    cluster().url(directory.path());
    let store = open(&relay, directory.path(), &clock, &faults).await;
    let AccountCreation::Created(account) = store.create_account("ada", 100).await.expect("a store") else {
        panic!("a new name")
    };
    ask(&store, account.id, "a boat").await.expect("a submit");
    give_up(&relay, &store, &clock, account.id).await;
    relay.set(Passage::Open);
    failed(&store, account.id).await;
    eventually(&fault, || faults.all_happened()).await;
    // Whatever is left is for the next one, which has nothing to do any more but to remove it.
    let next = open(&relay, directory.path(), &clock, &Faults::default()).await;
    eventually(&fault, || unsettled(&directory.path().join("unsettled")).expect("a directory") == 0).await;
    let account = next.find_account("ada").await.expect("a store").expect("an account");
    assert_eq!(account.credits, 98, "{fault}");
    assert_eq!(next.audit().await.expect("a store").drifts, [], "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_a_panic_or_a_delay_around_the_file_loses_nothing() {
    let points: Vec<Point> =
        OF_A_NETWORK.iter().flat_map(|effect| [Point::before(*effect), Point::after(*effect)]).collect();
    let faults = ["error", "panic", "delay"]
        .iter()
        .flat_map(|action| points.iter().map(move |point| format!("{point}={action}")));
    join_all(faults.map(live_through)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_nothing_can_be_written_memory_takes_back() {
    let (directory, clock) = (TempDir::new().unwrap(), Clock::manual(NOON));
    let relay = Relay::to(&cluster().directory);
    cluster().url(directory.path());
    // Whoever runs this, a file is no directory.
    std::fs::write(directory.path().join("unsettled"), "in the way").expect("a file");
    let store = open(&relay, directory.path(), &clock, &Faults::default()).await;
    let AccountCreation::Created(account) = store.create_account("ada", 100).await.expect("a store") else {
        panic!("a new name")
    };
    give_up(&relay, &store, &clock, account.id).await;
    relay.set(Passage::Open);
    failed(&store, account.id).await;
    assert_eq!(store.find_account("ada").await.expect("a store").expect("an account").credits, 100);
}
