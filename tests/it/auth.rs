//! Authentication of callers.

use std::time::Duration;

use serde_json::json;
use tintype_config::KEY_CACHE_TTL;
use tintype_domain::model::Id;
use tintype_store::{AccountChange, KeyChange};
use tintype_system::clock::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::rigs::http::{Answer, GENERATE, TASKS};
use crate::rigs::service::Service;
use crate::rigs::wait::until_some;

/// An answer without the parts that differ between any two answers.
fn shape(answer: &Answer) -> (u16, Vec<(String, String)>, serde_json::Value) {
    let mut headers: Vec<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| !["x-request-id", "date"].contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().expect("text").to_owned()))
        .collect();
    headers.sort();
    let mut body = answer.json();
    body["error"]["request_id"] = "".into();
    (answer.status.as_u16(), headers, body)
}

async fn get_with(service: &Service, authorization: &str) -> Answer {
    service.call("GET", TASKS, &[("authorization", authorization)], "").await
}

#[tokio::test]
async fn every_bad_key_gets_the_same_401() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let account = caller.account.id;
    let (disabled, disabled_key) = service.new_key(account, |_| {}).await;
    let (revoked, revoked_key) = service.new_key(account, |_| {}).await;
    let (_, expired_key) = service.new_key(account, |key| key.expires_at = Some(service.clock.now())).await;
    service.shared.store.change_key(disabled, KeyChange::Disable).await.expect("a store");
    service.shared.store.change_key(revoked, KeyChange::Revoke).await.expect("a store");
    let key = &caller.key;
    let other_end = if key.ends_with('0') { "1" } else { "0" };
    let typo = format!("{}{other_end}", &key[..key.len() - 1]);
    let unknown = tintype_domain::key::KeySecret::random().reveal().to_owned();
    let mut answers = vec![service.call("GET", TASKS, &[], "").await];
    for authorization in [
        "".to_owned(),
        "Bearer".to_owned(),
        "Bearer ".to_owned(),
        key.clone(),
        format!("Basic {key}"),
        format!("Bearer{key}"),
        format!("Bearer {key} {key}"),
        format!("Bearer {key}x"),
        format!("Bearer \"{key}\""),
        format!("Bearer {}", key.to_uppercase()),
        format!("Bearer {typo}"),
        format!("Bearer {unknown}"),
        format!("Bearer {disabled_key}"),
        format!("Bearer {revoked_key}"),
        format!("Bearer {expired_key}"),
        format!("Bearer {}", "x".repeat(8_000)),
    ] {
        answers.push(get_with(&service, &authorization).await);
    }
    answers.push(caller.call("GET", TASKS, &[("authorization", &caller.authorization())], "").await);
    answers.push(caller.get(&format!("{TASKS}?api_key={key}")).await);
    answers.push(service.call("GET", &format!("{GENERATE}?api_key={key}"), &[], "").await);
    for answer in &answers {
        answer.assert_error(401, "UNAUTHORIZED");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert_eq!(shape(answer), shape(&answers[0]));
    }
    assert_eq!(caller.get(TASKS).await.status, 200);
    assert_eq!(get_with(&service, &format!("bearer  {key}")).await.status, 200, "the scheme has no letter case");
}

#[tokio::test]
async fn a_key_in_the_query_is_refused_even_beside_a_valid_header() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let key = &caller.key;
    for query in [
        "api_key=x",
        "apikey=x",
        "api-key=x",
        "key=x",
        "token=x",
        "access_token=x",
        "auth=x",
        "authorization=x",
        "API_KEY=x",
        "Token=",
        "token",
        "limit=5&kEy=x",
        "api%5Fkey=x",
        "%74oken=x",
    ] {
        caller.get(&format!("{TASKS}?{query}")).await.assert_error(401, "UNAUTHORIZED");
    }
    let almost = format!("tt_{}", "a".repeat(38));
    let inside = format!("https://example.com/?k={key}");
    let around = [format!("{key}%20"), format!("%20{key}"), format!("{key},b"), format!("x{key}x")];
    let values = [key.clone(), format!("Bearer%20{key}"), format!("bearer+{key}"), almost, inside];
    for value in values.iter().chain(&around) {
        caller.get(&format!("{TASKS}?cursor={value}")).await.assert_error(401, "UNAUTHORIZED");
    }
    caller.get(&format!("{TASKS}?{key}")).await.assert_error(401, "UNAUTHORIZED");
    caller.get(&format!("/api/v1/?token={key}")).await.assert_error(401, "UNAUTHORIZED");
    let post = service.call("POST", &format!("{GENERATE}?token={key}"), &[], "{}").await;
    post.assert_error(401, "UNAUTHORIZED");
    for path in ["/v1/models", GENERATE] {
        let asked = service.call("OPTIONS", &format!("{path}?api_key={key}"), &[], "").await;
        assert_eq!(asked.status, 401, "{path}");
    }
    caller.get(&format!("{TASKS}?keyword=x&tokens=5&limit=2")).await.json()["success"].as_bool().expect("a success");
}

#[tokio::test]
async fn a_real_key_in_a_query_is_flagged_for_rotation() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    service.call("GET", &format!("{TASKS}?token={}", caller.key), &[], "").await.assert_error(401, "UNAUTHORIZED");
    // The flag is written in the background. Later writes go through the same writer, so it is there when they return.
    let key = async || service.shared.store.find_key(caller.key_id).await.expect("a store").expect("the key");
    let at = until_some(async || key().await.leaked_at).await;
    assert_eq!(at, service.clock.now());
    assert_eq!(caller.get(TASKS).await.status, 200, "the key itself goes on working");
}

#[tokio::test]
async fn a_real_key_in_the_query_of_any_path_is_flagged() {
    let service = Service::start().await;
    let account = service.caller("ada", 0).await.account;
    let store = &service.shared.store;
    let leaked_at = async |id| store.find_key(id).await.expect("a store").expect("the key").leaked_at;
    for (path, status) in [
        ("/nope?api_key=", 404),
        ("/files/2026-11-21/x.png?token=", 404),
        ("/docs/?q=", 200),
        ("/studio/sign-in?next=", 200),
        ("/healthz?", 200),
    ] {
        let (id, key) = service.new_key(account.id, |_| {}).await;
        assert_eq!(service.call("GET", &format!("{path}{key}"), &[], "").await.status, status, "{path}");
        until_some(async || leaked_at(id).await).await;
    }
    // Nothing waits in a line that any caller can make long.
    let [(first, first_key), (second, second_key)] =
        [service.new_key(account.id, |_| {}).await, service.new_key(account.id, |_| {}).await];
    let busy = service.api.flagging.acquire_many(16).await.expect("a semaphore");
    service.call("GET", &format!("/nope?{first_key}"), &[], "").await.assert_error(404, "NOT_FOUND");
    drop(busy);
    service.call("GET", &format!("/nope?{second_key}"), &[], "").await.assert_error(404, "NOT_FOUND");
    until_some(async || leaked_at(second).await).await;
    assert_eq!(leaked_at(first).await, None);
}

async fn last_used_at(service: &Service, key: Id) -> Option<tintype_system::clock::Timestamp> {
    service.shared.store.find_key(key).await.expect("a store").expect("the key").last_used_at
}

#[tokio::test]
async fn the_last_use_of_a_key_is_written_in_the_background_and_again_after_a_failed_write() {
    let (service, caller) = Service::with_caller(&["--test-fault", "before-touch-keys=error@2"], 10).await;
    let (unused, unused_key) = service.new_key(caller.account.id, |_| {}).await;
    service.shared.store.change_key(unused, KeyChange::Disable).await.expect("a store");
    let use_keys = async || {
        for _ in 0..3 {
            service.clock.advance(Duration::from_secs(10));
            assert_eq!(caller.get(TASKS).await.status, 200);
            assert_eq!(get_with(&service, &format!("Bearer {unused_key}")).await.status, 401);
        }
        Some(service.clock.now())
    };
    let first = use_keys().await;
    assert_eq!(last_used_at(&service, caller.key_id).await, None, "no request writes it");
    service.api.keys.record_uses().await;
    assert_eq!(last_used_at(&service, caller.key_id).await, first);
    let second = use_keys().await;
    service.api.keys.record_uses().await;
    assert_eq!(last_used_at(&service, caller.key_id).await, first, "that write failed");
    service.api.keys.record_uses().await;
    assert_eq!(last_used_at(&service, caller.key_id).await, second, "and nothing was forgotten");
    assert!(service.faults.all_happened());
    assert_eq!(last_used_at(&service, unused).await, None, "a key that opened nothing was not used");
}

#[tokio::test]
async fn changes_of_a_key_take_effect_within_a_second() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let store = &service.shared.store;
    let (id, key) = service.new_key(caller.account.id, |_| {}).await;
    let status = async || {
        service.clock.advance(Duration::from_secs(1));
        get_with(&service, &format!("Bearer {key}")).await.status.as_u16()
    };
    assert_eq!(status().await, 200);
    store.change_key(id, KeyChange::Disable).await.expect("a store");
    assert_eq!(status().await, 401);
    store.change_key(id, KeyChange::Enable).await.expect("a store");
    assert_eq!(status().await, 200);
    store.change_account(caller.account.id, AccountChange::Disable).await.expect("a store");
    assert_eq!(status().await, 401);
    store.change_account(caller.account.id, AccountChange::Enable).await.expect("a store");
    assert_eq!(status().await, 200);
    store.change_key(id, KeyChange::Revoke).await.expect("a store");
    assert_eq!(status().await, 401);
    store.change_key(id, KeyChange::Enable).await.expect("a store");
    assert_eq!(status().await, 401, "a revoked key cannot be enabled");
}

#[tokio::test]
async fn a_key_ends_at_its_expiry() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let end = service.clock.now().saturating_add(Duration::from_secs(60));
    let (_, key) = service.new_key(caller.account.id, |key| key.expires_at = Some(end)).await;
    let authorization = format!("Bearer {key}");
    service.clock.advance(Duration::from_millis(59_999));
    assert_eq!(get_with(&service, &authorization).await.status, 200);
    service.clock.advance(Duration::from_millis(1));
    assert_eq!(get_with(&service, &authorization).await.status, 401, "to the millisecond, remembered or not");
}

#[tokio::test]
async fn a_rotated_key_works_during_the_overlap() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let fresh = tintype_domain::key::KeySecret::random();
    let overlap = Duration::from_secs(60);
    let rotated = service.shared.store.rotate_key(caller.key_id, fresh.hash(), &fresh.hint(), overlap).await;
    rotated.expect("a store").expect("the key exists");
    let fresh = format!("Bearer {}", fresh.reveal());
    assert_eq!(get_with(&service, &fresh).await.status, 200);
    assert_eq!(caller.get(TASKS).await.status, 200);
    service.clock.advance(overlap);
    assert_eq!(caller.get(TASKS).await.status, 401);
    assert_eq!(get_with(&service, &fresh).await.status, 200);
}

#[tokio::test]
async fn only_one_form_of_one_header_vouches_for_https() {
    let trusting = Service::start_with(&["--production", "--trusted-proxy", "127.0.0.0/8"]).await;
    let distrusting = Service::start_with(&["--production", "--trusted-proxy", "10.0.0.0/8"]).await;
    let callers = [trusting.caller("ada", 10).await, distrusting.caller("ada", 10).await];
    for (headers, believed) in [
        (&[("x-forwarded-proto", "https")][..], true),
        (&[("X-Forwarded-Proto", "HtTpS")], true),
        (&[("x-forwarded-proto", " https ")], true),
        (&[], false),
        (&[("x-forwarded-proto", "http")], false),
        (&[("x-forwarded-proto", "")], false),
        (&[("x-forwarded-proto", "https,https")], false),
        (&[("x-forwarded-proto", "https, http")], false),
        (&[("x-forwarded-proto", "http, https")], false),
        (&[("x-forwarded-proto", "https,")], false),
        (&[("x-forwarded-proto", "https;")], false),
        (&[("x-forwarded-proto", "\"https\"")], false),
        (&[("x-forwarded-proto", "https://")], false),
        (&[("x-forwarded-proto", "https\u{a0}")], false),
        (&[("x-forwarded-proto", "wss")], false),
        (&[("x-forwarded-proto", "https"), ("x-forwarded-proto", "https")], false),
        (&[("x-forwarded-proto", "http"), ("x-forwarded-proto", "https")], false),
        (&[("x-forwarded-proto", "https"), ("X-FORWARDED-PROTO", "http")], false),
        (&[("x_forwarded_proto", "https")], false),
        (&[("forwarded", "proto=https")], false),
        (&[("forwarded", "for=192.0.2.1;proto=https;by=203.0.113.1")], false),
        (&[("x-forwarded-scheme", "https")], false),
        (&[("x-forwarded-protocol", "https")], false),
        (&[("x-forwarded-ssl", "on")], false),
        (&[("front-end-https", "on")], false),
        (&[("x-url-scheme", "https")], false),
        (&[("x-forwarded-for", "127.0.0.1"), ("x-forwarded-port", "443")], false),
    ] {
        for (caller, trusted) in callers.iter().zip([true, false]) {
            let answer = caller.call("GET", TASKS, headers, "").await;
            let over_https = believed && trusted;
            assert_eq!(answer.status.as_u16(), if over_https { 200 } else { 401 }, "{headers:?}, trusted: {trusted}");
            assert_eq!(answer.headers.contains_key("strict-transport-security"), over_https, "{headers:?}");
            assert!(!answer.headers.contains_key("location"), "no caller is redirected to HTTPS");
        }
        // Failures are delayed after a while.
        trusting.clock.advance(Duration::from_secs(60));
        distrusting.clock.advance(Duration::from_secs(60));
    }
}

/// Time on the paused clock until a 401 comes, in fifths of a second.
async fn refused_after(service: &Service, headers: &[(&str, &str)]) -> u64 {
    let start = tokio::time::Instant::now();
    let answer = service.call("GET", TASKS, headers, "").await;
    answer.assert_error(401, "UNAUTHORIZED");
    (start.elapsed().as_secs_f64() * 5.0).round() as u64
}

#[tokio::test(start_paused = true)]
async fn failed_authentications_from_one_address_are_delayed_and_valid_keys_are_not() {
    let (service, caller) = Service::with_caller(&["--trusted-proxy", "127.0.0.1"], 10).await;
    let from = |address: &'static str| [("x-forwarded-for", address), ("authorization", "Bearer tt_nonsense")];
    for _ in 0..300 {
        assert_eq!(refused_after(&service, &from("192.0.2.1")).await, 0, "the first failures are not delayed");
    }
    let late: Vec<_> = (0..9).map(|_| from("192.0.2.1")).collect();
    let waits = futures::future::join_all(late.iter().map(|headers| refused_after(&service, headers))).await;
    let mut sorted = waits.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2, 3, 4, 5, 6, 7, 8], "failures wait in turn, at most eight steps");

    let start = tokio::time::Instant::now();
    assert_eq!(caller.call("GET", TASKS, &[("x-forwarded-for", "192.0.2.1")], "").await.status, 200);
    assert_eq!(start.elapsed().as_secs(), 0, "a valid key from the same address does not wait");
    assert_eq!(refused_after(&service, &from("192.0.2.2")).await, 0, "another address does not wait");
    assert_eq!(
        refused_after(&service, &from("192.0.2.9, 192.0.2.1")).await,
        1,
        "addresses before the last hop are ignored"
    );
    service.clock.advance(Duration::from_secs(60));
    assert_eq!(refused_after(&service, &from("192.0.2.1")).await, 0, "the delay ends after a minute");
}

#[tokio::test(start_paused = true)]
async fn delayed_refusals_do_not_reveal_which_keys_exist() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let (id, disabled) = service.new_key(caller.account.id, |_| {}).await;
    service.shared.store.change_key(id, KeyChange::Disable).await.expect("a store");
    let unknown = tintype_domain::key::KeySecret::random().reveal().to_owned();
    for _ in 0..300 {
        get_with(&service, "Bearer x").await.assert_error(401, "UNAUTHORIZED");
    }
    let mut answers = Vec::new();
    for key in [disabled, unknown, "tt_nonsense".to_owned()] {
        let authorization = format!("Bearer {key}");
        assert_eq!(refused_after(&service, &[("authorization", &authorization)]).await, 1);
        answers.push(shape(&get_with(&service, &authorization).await));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
}

#[tokio::test]
async fn a_key_that_is_revoked_while_the_body_arrives_creates_no_task() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let body = json!({ "prompt": "a boat" }).to_string();
    let (first, rest) = body.split_at(1);
    let head = format!(
        "POST {GENERATE} HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        caller.authorization(),
        body.len()
    );
    let mut stream = service.write(head).await;
    // The service asks for the body once it has accepted the key.
    let mut asked = [0; 25];
    stream.read_exact(&mut asked).await.expect("an interim answer");
    assert!(asked.starts_with(b"HTTP/1.1 100"), "{asked:?}");
    stream.write_all(first.as_bytes()).await.expect("an open connection");
    service.shared.store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store");
    service.clock.advance(KEY_CACHE_TTL + Duration::from_millis(1));
    stream.write_all(rest.as_bytes()).await.expect("an open connection");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    assert!(!answer.to_ascii_lowercase().contains("ratelimit"), "a 401 tells no cause: {answer}");
    assert_eq!(caller.credits().await, 10);
    assert_eq!(service.shared.store.recent_tasks(None, 1).await.expect("a store"), []);
}

#[tokio::test]
async fn a_key_expires_by_the_time_of_the_database() {
    let service = Service::start().await;
    let account = service.caller("ada", 10).await.account;
    let hour = Duration::from_secs(3_600);
    let end = service.clock.now().saturating_add(hour);
    let (_, key) = service.new_key(account.id, |key| key.expires_at = Some(end)).await;
    let authorization = format!("Bearer {key}");
    let ahead = service.join_with_clock(&Clock::manual(end.saturating_add(hour))).await;
    let behind = service.join_with_clock(&Clock::manual(service.clock.now().saturating_sub(hour))).await;
    for process in [&ahead, &behind] {
        assert_eq!(get_with(process, &authorization).await.status, 200);
    }
    service.clock.set(end);
    for process in [&ahead, &behind] {
        assert_eq!(get_with(process, &authorization).await.status, 401);
    }
}
