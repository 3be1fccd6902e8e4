//! Calls that wait for their pictures, and the memory and the encoders of their answers.

use std::iter::from_fn;

use futures::FutureExt as _;
use serde_json::{Value, json};
use tintype::service::encoder::{MAX_WAIT, PICTURE_BYTES};
use tintype::service::shares::{FairShares, Share};
use tintype::service::waiters::MAX_SLOTS_OF_ACCOUNT;
use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

use crate::openai_shares::BODY;
use crate::rigs::http::Answer;
use crate::rigs::service::{Caller, Service, pass};
use crate::rigs::wait::until;

#[tokio::test]
async fn calls_that_wait_for_a_task() {
    let (service, [ada, bob]) = Service::with_callers(&[], ["ada", "bob"], 100).await;
    let (key_id, key) = service.new_key(ada.account.id, |_| {}).await;
    let other_key = Caller { service: service.clone(), account: ada.account.clone(), key_id, key };
    let waiters = &service.shared.endings.waiters;
    let mut held: Vec<_> = from_fn(|| waiters.slot(ada.account.id).ok()).collect();
    let message = async |caller: &Caller| {
        let refused = caller.generations(&[], BODY).await;
        assert_eq!(refused.status, 429, "{refused:?}");
        refused.json()["error"]["message"].as_str().expect("a message").to_owned()
    };
    assert!(
        message(&other_key)
            .await
            .starts_with(&format!("This account already has {MAX_SLOTS_OF_ACCOUNT} open requests"))
    );
    for (attempt, body) in [("0", r#"{"prompt": "a boat", "stream": true}"#), ("1", "{")] {
        let refused = ada.generations(&[("x-stainless-retry-count", attempt)], body).await;
        assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded", "{refused:?}");
        assert_eq!((refused.status.as_u16(), refused.header("retry-after")), (429, "5"));
        assert!(!refused.headers.contains_key("x-should-retry"), "the clients try again");
    }
    let at_once = ada.generations(&[("prefer", "respond-async")], BODY).await;
    assert_eq!(at_once.status, 202, "it does not wait");
    service.work().await;
    assert_eq!(ada.credits().await, 98, "nothing else was charged");
    assert_eq!(service.worked(bob.generations(&[], BODY)).await.status, 200);
    // Accounts that do not exist take all others.
    held.extend((0..).map_while(|number| waiters.slot(Id::floor(Timestamp::from_millis(number))).ok()));
    assert!(message(&bob).await.starts_with("Too many requests are open"));
    drop(held);
    assert_eq!((waiters.slots(), ada.credits().await), (0, 98));
    assert_eq!(service.worked(ada.generations(&[], BODY)).await.status, 200);
}

/// Takes for an account all portions that it gets without waiting, and leaves one for another account.
#[track_caller]
fn all_of(shares: &FairShares, account: &Caller, portion: usize, other: &Caller) -> Vec<Share> {
    let held: Vec<_> = from_fn(|| shares.take(account.account.id, portion).now_or_never()).collect();
    assert!(held.len() > 1, "the account has a share");
    assert!(shares.is_free(other.account.id, portion), "the account took {} portions, which are all", held.len());
    held
}

/// Runs a call until it waits for a share.
pub(super) async fn awaits<T>(shares: &FairShares, mut call: impl Future<Output = T> + Unpin) {
    until(async || {
        let is_awaited = shares.is_awaited();
        assert!(is_awaited || (&mut call).now_or_never().is_none(), "the call did not wait");
        is_awaited
    })
    .await;
}

/// Works on the task of a call until the call waits for a share. The work is done by then: half a step would hold what
/// the next one needs.
async fn awaits_after_work(service: &Service, shares: &FairShares, mut call: impl Future<Output = Answer> + Unpin) {
    let work = async {
        service.waiting(1).await;
        service.work().await;
    };
    tokio::select! {
        answer = &mut call => panic!("the call did not wait: {answer:?}"),
        () = work => {}
    }
    awaits(shares, call).await;
}

#[tokio::test]
async fn memory_of_v1_answers() {
    let service = Service::start().await;
    let (ada, bob) = (service.caller("ada", 4).await, service.caller("bob", 2).await);
    let memory = service.api.encoder.memory();
    let held = all_of(memory, &ada, PICTURE_BYTES, &bob);
    let mut of_ada = Box::pin(ada.generations(&[], BODY));
    awaits_after_work(&service, memory, &mut of_ada).await;
    assert_eq!(service.worked(bob.generations(&[], BODY)).await.status, 200);
    assert!(memory.is_awaited());
    pass(MAX_WAIT).await;
    assert_eq!(of_ada.await.status, 503);
    // The repeated call gets the pictures of the task that is paid already.
    let mut of_ada = Box::pin(ada.generations(&[], BODY));
    awaits(memory, &mut of_ada).await;
    drop(held);
    assert_eq!((of_ada.await.status.as_u16(), ada.credits().await), (200, 2));
}

#[tokio::test]
async fn memory_of_mcp_answers() {
    let (service, [ada, bob]) = Service::with_callers(&[], ["ada", "bob"], 2).await;
    let tasks = [ada.submit_prompt("a boat").await, bob.submit_prompt("a boat").await];
    service.work().await;
    let memory = service.api.encoder.memory_of_tools();
    let _held = all_of(memory, &ada, PICTURE_BYTES, &bob);
    let arguments = tasks.map(|task_id| json!({ "task_id": task_id }));
    let has_picture = |told: &Value| told["content"].as_array().expect("content").iter().any(|c| c["type"] == "image");
    let mut of_ada = Box::pin(ada.tool("get_task", &arguments[0]));
    awaits(memory, &mut of_ada).await;
    assert!(has_picture(&bob.tool("get_task", &arguments[1]).await));
    pass(MAX_WAIT).await;
    let told = of_ada.await;
    assert!(!has_picture(&told) && told.to_string().contains("The images could not be added"), "{told}");
}

#[tokio::test]
async fn encoders_of_v1_answers() {
    let (service, [ada, bob]) = Service::with_callers(&[], ["ada", "bob"], 2).await;
    let encoders = service.api.encoder.slots();
    let held = all_of(encoders, &ada, 1, &bob);
    let mut of_ada = Box::pin(ada.generations(&[], BODY));
    awaits_after_work(&service, encoders, &mut of_ada).await;
    assert_eq!(service.worked(bob.generations(&[], BODY)).await.status, 200);
    assert!(encoders.is_awaited());
    drop(held);
    assert_eq!(of_ada.await.status, 200);
}
