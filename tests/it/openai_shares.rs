//! Calls of OpenAI's dialect share seats, memory and encoders fairly between accounts.

use tintype::service::waiters::MAX_SEATS_OF_ACCOUNT;

use crate::rigs::http::Answer;
use crate::rigs::service::{Caller, Service};

const GENERATIONS: &str = "/v1/images/generations";
const BODY: &str = r#"{"prompt": "a boat"}"#;

/// Sends a call with these headers besides the key.
async fn call(caller: &Caller<'_>, headers: &[(&str, &str)], body: &str) -> Answer {
    let key = caller.authorization();
    let mut all = vec![("authorization", key.as_str()), ("content-type", "application/json")];
    all.extend(headers);
    caller.service.call("POST", GENERATIONS, &all, body.to_owned()).await
}

#[tokio::test]
async fn the_keys_of_an_account_share_its_seats_and_the_message_says_whose_limit_it_is() {
    let service = Service::start().await;
    let (ada, bob) = (service.caller("ada", 100).await, service.caller("bob", 100).await);
    let (key_id, key) = service.new_key(ada.account.id, |_| {}).await;
    let other_key = Caller { service: &service, account: ada.account.clone(), key_id, key };
    let waiters = &service.shared.endings.waiters;
    let mut held: Vec<_> = (0..MAX_SEATS_OF_ACCOUNT).map(|_| waiters.seat(ada.account.id).expect("room")).collect();
    let message = async |caller| {
        let refused = call(caller, &[], BODY).await;
        assert_eq!(refused.status, 429, "{refused:?}");
        refused.json()["error"]["message"].as_str().expect("a message").to_owned()
    };
    assert!(message(&other_key).await.starts_with("100 calls of this account wait"));
    let work = async {
        service.waiting(1).await;
        service.work().await;
    };
    assert_eq!(tokio::join!(call(&bob, &[], BODY), work).0.status, 200);
    let mut accounts = 0..;
    while let Some(Ok(seat)) = accounts.next().map(|number| waiters.seat(id(number))) {
        held.push(seat);
    }
    assert!(message(&bob).await.starts_with("The calls of all accounts"));
    drop(held);
    assert_eq!((waiters.seats(), ada.credits().await), (0, 100));
}

#[tokio::test]
async fn repeats_of_a_call_share_a_seat() {
    let service = Service::start().await;
    let caller = service.caller("ada", 2).await;
    let repeat = || call(&caller, &[("idempotency-key", "order 66")], BODY);
    let work = async {
        service.waiting(5).await;
        assert_eq!(service.shared.endings.waiters.seats(), 1);
        service.work().await;
    };
    let (first, second, third, fourth, fifth, ()) =
        tokio::join!(repeat(), repeat(), repeat(), repeat(), repeat(), work);
    assert!([&first, &second, &third, &fourth, &fifth].iter().all(|answer| answer.status == 200));
    assert_eq!((first.json(), caller.credits().await), (fifth.json(), 0));
}

/// An id that no account has.
fn id(number: i64) -> tintype::domain::model::Id {
    tintype::domain::model::Id::floor(tintype::clock::Timestamp::from_millis(number))
}
