//! Statements whose answer is lost, and statements that arrive late.

use std::time::Duration;

use futures::future::{join, join_all};
use tempfile::TempDir;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{Id, Status, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::postgres;
use tintype_store::{LeaseWrite, NewKey, Store, StoreError, Submission};
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use crate::rigs::cluster::node::HANG;
use crate::rigs::cluster::relay::{Passage, Relay};
use crate::rigs::postgres::{cluster, schema, url, waiting};

const LEASE: Duration = Duration::from_secs(60);
/// Tasks that are completed at once.
const TASKS: usize = 20;

/// A store behind a relay, with an account of 100 credits.
async fn store(directory: &TempDir) -> (Relay, Store, Id) {
    let relay = Relay::to(&cluster().directory);
    cluster().url(directory.path());
    let url = url(relay.directory.path(), directory.path());
    let store = postgres::open(&url, None, Clock::system(), Faults::default()).await.expect("a store");
    let Some(account) = store.create_account("ada", 100).await.expect("a store") else { panic!("a new name") };
    (relay, store, account.id)
}

async fn submit(store: &Store, account: Id, prompt: &str) -> Result<Submission, StoreError> {
    let request = GenerateRequest::new(prompt);
    store.submit(account, None, Surface::Api, request, 0).await
}

async fn credits(store: &Store) -> i64 {
    store.find_account("ada").await.expect("a store").expect("an account").credits
}

#[tokio::test]
async fn completions_whose_answer_is_lost_are_not_taken_for_lost_leases() {
    let directory = TempDir::new().unwrap();
    let (relay, store, account) = store(&directory).await;
    for _ in 0..TASKS {
        submit(&store, account, "a boat").await.expect("a submit");
    }
    let claims = store.claim(TASKS, LEASE).await.expect("a store");
    assert_eq!(claims.len(), TASKS);
    relay.cut_answers("lost-answer", 1);
    let complete = |claim: &tintype_store::Claim| store.complete(claim.lease, vec!["lost-answer.png".into()]);
    let outcomes = join_all(claims.iter().map(complete)).await;
    assert_eq!(relay.cuts_left(), 0);
    // A worker that is told that its lease is lost would remove the files that the task now names.
    let lost = outcomes.iter().filter(|outcome| matches!(outcome, Ok(LeaseWrite::Lost))).count();
    assert_eq!(lost, 0, "{outcomes:?}");
    assert!(outcomes.iter().any(|outcome| matches!(outcome, Err(StoreError::Unknown(_)))), "{outcomes:?}");
    let tasks = store.list_tasks(account, Surface::Api, None, 100).await.expect("a store");
    assert!(tasks.iter().all(|task| matches!(task.status, Status::Completed(_))), "{tasks:?}");
}

#[tokio::test]
async fn a_submit_whose_answer_is_lost_is_accepted_and_charged_once() {
    let directory = TempDir::new().unwrap();
    let (relay, store, account) = store(&directory).await;
    relay.cut_answers("a boat unheard of", 1);
    let submission = submit(&store, account, "a boat unheard of").await.expect("the truth is found out");
    assert_eq!(relay.cuts_left(), 0);
    let Submission::Accepted(task) = submission else { panic!("{submission:?}") };
    let tasks = store.list_tasks(account, Surface::Api, None, 100).await.expect("a store");
    assert_eq!(tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [task.id]);
    assert_eq!(credits(&store).await, 98);
}

#[tokio::test]
async fn a_submit_whose_commit_arrives_late_is_accepted_and_charged_once() {
    let directory = TempDir::new().unwrap();
    let (relay, store, account) = store(&directory).await;
    relay.set(Passage::Late);
    let submitting = async { submit(&store, account, "a late boat").await.expect("the truth is found out") };
    let arriving = async {
        // The store asks what became of it, which the transaction that still lasts delays.
        cluster().until(&waiting(&schema(directory.path())), |waits| waits == 1).await;
        relay.set(Passage::Open);
        relay.done_late("COMMIT").await;
    };
    let (submission, ()) = join(submitting, arriving).await;
    let Submission::Accepted(task) = submission else { panic!("{submission:?}") };
    let tasks = store.list_tasks(account, Surface::Api, None, 100).await.expect("a store");
    assert_eq!(tasks.iter().map(|task| task.id).collect::<Vec<_>>(), [task.id]);
    assert_eq!(credits(&store).await, 98);
}

#[tokio::test]
async fn a_statement_to_a_server_that_does_not_answer_times_out() {
    let directory = TempDir::new().unwrap();
    let (relay, store, account) = store(&directory).await;
    let hash = |byte| [byte; 32];
    let key = NewKey { hash: hash(1), ..NewKey::new(&KeySecret::random()) };
    let old = store.create_key(account, key).await.expect("a store").expect("an account");
    let rotate = || store.rotate_key(old.id, hash(2), "0123", Duration::ZERO);
    relay.set(Passage::Deaf);
    // The rotation is a transaction of several statements, the lookup a single statement that the store repeats.
    let (rotated, found) =
        tokio::time::timeout(2 * HANG, join(rotate(), store.find_key(old.id))).await.expect("an end");
    assert!(matches!(rotated, Err(StoreError::Other(_))), "nothing was done: {rotated:?}");
    assert!(found.is_err(), "{found:?}");
    relay.set(Passage::Open);
    let new = rotate().await.expect("a store").expect("the key is there");
    assert_ne!(new.id, old.id);
}
