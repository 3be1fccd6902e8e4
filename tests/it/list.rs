//! Listing tasks.

use std::io::Read as _;

use serde_json::{Value, json};

use crate::rigs::http::TASKS;
use crate::rigs::service::{Caller, Service};

async fn page(caller: &Caller, query: &str) -> (Vec<Value>, Option<String>) {
    let answer = caller.get(&format!("{TASKS}{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    assert_eq!(body["success"], true);
    let data = body["data"].as_object().expect("an object");
    assert_eq!(data.keys().collect::<Vec<_>>(), ["items", "next_cursor"]);
    let items = data["items"].as_array().expect("items").clone();
    (items, data["next_cursor"].as_str().map(str::to_owned))
}

fn ids(items: &[Value]) -> Vec<String> {
    items.iter().map(|item| item["task_id"].as_str().expect("a task_id").to_owned()).collect()
}

#[tokio::test]
async fn a_long_page_is_compressed_for_a_caller_that_accepts_gzip() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    caller.submit_many(10, "a boat").await;
    let list = async |method: &str, path: &str, accepts: &str| {
        caller.call(method, path, &[("accept-encoding", accepts)], "").await
    };
    let plain = list("GET", TASKS, "br, gzip;q=0").await;
    assert!(plain.body.len() > 1_024 && !plain.headers.contains_key("content-encoding"), "{plain:?}");
    let packed = list("GET", TASKS, "gzip, deflate, br").await;
    assert_eq!((packed.status.as_u16(), packed.header("content-encoding")), (200, "gzip"));
    assert_eq!(packed.header("content-length"), packed.body.len().to_string());
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&*packed.body).read_to_end(&mut unpacked).expect("gzip");
    assert_eq!(unpacked, plain.body);
    assert!(packed.body.len() * 2 < plain.body.len());
    for answer in [&plain, &packed] {
        assert_eq!(answer.header("vary"), "accept-encoding");
    }
    let head = list("HEAD", TASKS, "gzip").await;
    assert_eq!((head.header("content-encoding"), head.body.len()), ("gzip", 0));
    let short = list("GET", &format!("{TASKS}?limit=1"), "gzip").await;
    assert!(!short.headers.contains_key("content-encoding") && !short.headers.contains_key("vary"), "{short:?}");
}

#[tokio::test]
async fn pages_lead_from_the_newest_task_to_the_oldest() {
    let (_, caller) = Service::with_caller(&["--submit-rate", "0"], 1_000).await;
    let mut submitted = Vec::new();
    for _ in 0..45 {
        submitted.push(caller.submit_prompt("a boat").await);
    }
    submitted.reverse();
    let (first, cursor) = page(&caller, "").await;
    assert_eq!(ids(&first), submitted[..20]);
    // Tasks that come later do not shift the pages that follow.
    caller.submit_prompt("a later boat").await;
    let (second, cursor) = page(&caller, &format!("?cursor={}", cursor.expect("more pages"))).await;
    assert_eq!(ids(&second), submitted[20..40]);
    let (third, cursor) = page(&caller, &format!("?limit=5&cursor={}", cursor.expect("more pages"))).await;
    assert_eq!(ids(&third), submitted[40..]);
    assert_eq!(cursor, None, "exactly 45 tasks: the last full page is the last");
}

#[tokio::test]
async fn items_are_what_the_single_task_endpoint_returns() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let done = caller.submit_prompt("a boat").await;
    let failed = caller.submit_prompt("a boat [[fail]]").await;
    service.work().await;
    let processing = caller.submit_prompt("a boat").await;
    let (items, _) = page(&caller, "").await;
    assert_eq!(ids(&items), [processing, failed, done]);
    for item in items {
        assert_eq!(item, caller.task(item["task_id"].as_str().expect("a task_id")).await);
    }
}

#[tokio::test]
async fn only_the_accounts_own_tasks_are_listed() {
    let (service, ada) = Service::with_caller(&[], 100).await;
    let bob = service.caller("bob", 100).await;
    bob.submit_prompt("a boat").await;
    assert_eq!(page(&ada, "").await, (Vec::new(), None));
    let of_ada = ada.submit_prompt("a boat").await;
    assert_eq!(ids(&page(&ada, "").await.0), [of_ada]);
}

#[tokio::test]
async fn limits_outside_1_to_100_are_400() {
    let (_, caller) = Service::with_caller(&["--submit-rate", "0"], 1_000).await;
    caller.submit_many(3, "a boat").await;
    assert_eq!(page(&caller, "?limit=1").await.0.len(), 1);
    assert_eq!(page(&caller, "?limit=100").await.0.len(), 3);
    assert_eq!(page(&caller, "?limit=3").await.1, None);
    for limit in ["0", "101", "-1", "1.0", "ten", "", "%201", "1e1", "+5", "99999999999999999999", "0x10", "1&limit=2"]
    {
        let answer = caller.get(&format!("{TASKS}?limit={limit}")).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("limit"), "{limit}");
    }
}

#[tokio::test]
async fn cursors_are_bound_to_their_account() {
    let (service, ada) = Service::with_caller(&[], 100).await;
    let bob = service.caller("bob", 100).await;
    for _ in 0..2 {
        ada.submit_prompt("a boat").await;
        bob.submit_prompt("a boat").await;
    }
    let cursor = page(&ada, "?limit=1").await.1.expect("another page");
    assert_eq!(page(&ada, &format!("?cursor={cursor}")).await.0.len(), 1);
    bob.get(&format!("{TASKS}?cursor={cursor}")).await.assert_error(400, "INVALID_REQUEST");
    let other_key = service.new_key(ada.account.id, |_| {}).await.1;
    let authorization = format!("Bearer {other_key}");
    let path = format!("{TASKS}?cursor={cursor}");
    let answer = service.call("GET", &path, &[("authorization", &authorization)], "").await;
    assert_eq!(answer.status, 200, "another key of the account may go on");
    let (head, last) = cursor.split_at(cursor.len() - 1);
    let tampered = format!("{head}{}", if last == "A" { "B" } else { "A" });
    let id = page(&ada, "").await.0[0]["id"].as_str().expect("an id").to_owned();
    for cursor in [tampered.as_str(), head, &id, "x", "%00", "%ff", "!!!", &"A".repeat(5_000), &format!("{cursor}A")] {
        let answer = ada.get(&format!("{TASKS}?cursor={cursor}")).await;
        assert!(answer.assert_error(400, "INVALID_REQUEST").contains("cursor"), "{cursor}");
    }
    assert_eq!(page(&ada, "?cursor=").await.0, page(&ada, "").await.0, "an empty cursor is the first page");
}

#[tokio::test]
async fn unknown_parameters_are_ignored() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    caller.submit_prompt("a boat").await;
    assert_eq!(page(&caller, "?status=failed&limit=1&page=7").await.0.len(), 1);
    assert_eq!(caller.get(TASKS).await.json()["data"]["next_cursor"], json!(null));
}
