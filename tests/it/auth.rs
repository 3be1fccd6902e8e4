//! Who may call: interface, section 5.

use std::time::Duration;

use tintype::store::KeyChange;

use crate::support::{Answer, Caller, GENERATE, Service, TASKS};

/// Everything of an answer but what names this one answer.
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
    let service = Service::start().await;
    let caller = service.caller("ada", 10).await;
    let account = caller.account.id;
    let (disabled, disabled_key) = service.new_key(account, |_| {}).await;
    let (revoked, revoked_key) = service.new_key(account, |_| {}).await;
    let (_, expired_key) = service.new_key(account, |key| key.expires_at = Some(service.clock.now())).await;
    service.app.store.change_key(disabled, KeyChange::Disable).await.expect("a store");
    service.app.store.change_key(revoked, KeyChange::Revoke).await.expect("a store");
    let key = &caller.key;
    let other_end = if key.ends_with('0') { "1" } else { "0" };
    let typo = format!("{}{other_end}", &key[..key.len() - 1]);
    let unknown = tintype::key::KeySecret::random().reveal().to_owned();
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
    let authorization = caller.authorization();
    let twice = [("authorization", authorization.as_str()), ("authorization", authorization.as_str())];
    answers.push(service.call("GET", TASKS, &twice, "").await);
    answers
        .push(service.call("GET", &format!("{TASKS}?api_key={key}"), &[("authorization", &authorization)], "").await);
    for answer in &answers {
        answer.assert_error(401, "UNAUTHORIZED");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert_eq!(shape(answer), shape(&answers[0]));
    }
    assert_eq!(get_with(&service, &authorization).await.status, 200);
    assert_eq!(get_with(&service, &format!("bearer  {key}")).await.status, 200, "the scheme has no letter case");
}

#[tokio::test]
async fn no_route_of_the_api_opens_without_a_key() {
    let service = Service::start().await;
    let routes = [("POST", GENERATE.to_owned()), ("GET", TASKS.to_owned()), ("GET", format!("{TASKS}/imgmodel-x"))];
    for (method, path) in routes {
        let answer = service.call(method, &path, &[("content-type", "application/json")], "not json").await;
        answer.assert_error(401, "UNAUTHORIZED");
    }
}

#[tokio::test]
async fn a_key_in_the_query_is_refused_whatever_else_is_right() {
    let service = Service::start().await;
    let caller = service.caller("ada", 10).await;
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
    caller.get(&format!("{TASKS}?keyword=x&tokens=5&limit=2")).await.json()["success"].as_bool().expect("a success");
}

#[tokio::test]
async fn a_real_key_in_a_query_is_flagged_for_rotation() {
    let service = Service::start().await;
    let caller = service.caller("ada", 10).await;
    service.call("GET", &format!("{TASKS}?token={}", caller.key), &[], "").await.assert_error(401, "UNAUTHORIZED");
    // The flag is set beside the answer; other writes follow it through the one writer.
    let flagged = async {
        loop {
            let key = service.app.store.find_key(caller.key_id).await.expect("a store").expect("the key");
            if let Some(at) = key.leaked_at {
                break at;
            }
            tokio::task::yield_now().await;
        }
    };
    let at = tokio::time::timeout(Duration::from_secs(30), flagged).await.expect("the key is flagged");
    assert_eq!(at, service.clock.now());
    assert_eq!(caller.get(TASKS).await.status, 200, "the key itself goes on working");
}

#[tokio::test]
async fn changes_of_a_key_take_effect_within_a_second() {
    let service = Service::start().await;
    let caller = service.caller("ada", 10).await;
    let store = &service.app.store;
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
    store.change_key(id, KeyChange::Revoke).await.expect("a store");
    assert_eq!(status().await, 401);
    store.change_key(id, KeyChange::Enable).await.expect("a store");
    assert_eq!(status().await, 401, "revoked is for ever");
}

#[tokio::test]
async fn a_key_ends_at_its_expiry() {
    let service = Service::start().await;
    let caller = service.caller("ada", 10).await;
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
    let service = Service::start().await;
    let caller = service.caller("ada", 10).await;
    let fresh = tintype::key::KeySecret::random();
    let overlap = Duration::from_secs(60);
    let rotated = service.app.store.rotate_key(caller.key_id, fresh.hash(), &fresh.hint(), overlap).await;
    rotated.expect("a store").expect("the key exists");
    let fresh = format!("Bearer {}", fresh.reveal());
    assert_eq!(get_with(&service, &fresh).await.status, 200);
    assert_eq!(caller.get(TASKS).await.status, 200);
    service.clock.advance(overlap);
    assert_eq!(caller.get(TASKS).await.status, 401);
    assert_eq!(get_with(&service, &fresh).await.status, 200);
}

async fn forwarded(caller: &Caller<'_>, values: &[&str]) -> u16 {
    let authorization = caller.authorization();
    let mut headers = vec![("authorization", authorization.as_str())];
    headers.extend(values.iter().map(|value| ("x-forwarded-proto", *value)));
    caller.service.call("GET", TASKS, &headers, "").await.status.as_u16()
}

#[tokio::test]
async fn plain_http_is_refused_in_production() {
    let service = Service::start_with(&["--production"]).await;
    let caller = service.caller("ada", 10).await;
    caller.get(TASKS).await.assert_error(401, "UNAUTHORIZED");
    caller.post("{}").await.assert_error(401, "UNAUTHORIZED");
    assert_eq!(forwarded(&caller, &["https"]).await, 401, "nobody vouches for the header");
    assert_eq!(service.call("GET", "/healthz", &[], "").await.status, 200, "only the API is guarded");
}

#[tokio::test]
async fn a_trusted_proxy_vouches_for_https() {
    let service = Service::start_with(&["--production", "--trusted-proxy", "127.0.0.0/8"]).await;
    let caller = service.caller("ada", 10).await;
    assert_eq!(forwarded(&caller, &["https"]).await, 200);
    assert_eq!(forwarded(&caller, &["HTTPS"]).await, 200);
    for spoofed in
        [&[][..], &["http"], &["https", "https"], &["https", "http"], &["https,http"], &["https, https"], &[""]]
    {
        assert_eq!(forwarded(&caller, spoofed).await, 401, "{spoofed:?}");
    }
}
