//! Every route of the table: its callers, its limit, its methods, and its place in the OpenAPI document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tintype::http::docs::openapi_json;
use tintype::http::routes::{Access, ROUTES, Route, RouteGroup};

use crate::rigs::http::{Answer, GENERATE};
use crate::rigs::service::Service;

fn path(route: &Route) -> String {
    let filled = route.pattern.replace("{id}", "imgmodel-AAAAAAAAAAAAAAAAAAAAA").replace("{asset}", "index.html");
    let filled = filled.replace("{*id}", "owner/name").replace("{change}", "revoke").replace("{token}", "nonsense");
    filled.replace("{*name}", "2026-11-21/AAAAAAAAAAAAAAAAAAAAA-0-AAAAAAAAAAAAAAAAAAAAAA.png")
}

/// Checks a 401 in the form of the errors of its route.
#[track_caller]
fn assert_unauthorized(route: &Route, answer: &Answer) {
    match route.group {
        RouteGroup::OpenAi => {
            assert_eq!(answer.status, 401, "{route:?}: {answer:?}");
            assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
        }
        RouteGroup::Mcp => drop(answer.assert_json_rpc_error(401, "UNAUTHORIZED")),
        _ => drop(answer.assert_error(401, "UNAUTHORIZED")),
    }
}

/// The routes of the listener for callers.
fn served() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| route.group != RouteGroup::Metrics)
}

/// The methods of each path.
fn methods() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut methods = BTreeMap::<_, BTreeSet<_>>::new();
    for route in served() {
        let of_path = methods.entry(path(route)).or_default();
        of_path.insert(route.method.as_str());
        if route.method == "GET" {
            of_path.insert("HEAD");
        }
    }
    methods
}

#[tokio::test]
async fn a_route_opens_to_its_callers_only() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    for route in served() {
        let (method, path) = (route.method.as_str(), path(route));
        let with_key = caller.call(method, &path, &[], "").await;
        assert!(!matches!(with_key.status.as_u16(), 401 | 405), "{route:?}: {with_key:?}");
        let without_key = service.call(method, &path, &[], "").await;
        let in_query = format!("{path}?Token={}", caller.key);
        let leaked = caller.call(method, &in_query, &[], "").await;
        match route.access {
            Access::Key => {
                assert_unauthorized(route, &without_key);
                assert_unauthorized(route, &leaked);
            }
            // A key opens nothing here.
            Access::Anyone | Access::Session => assert_eq!(without_key.status, with_key.status, "{route:?}"),
        }
    }
}

#[tokio::test]
async fn a_route_that_takes_a_key_wants_https_in_production() {
    let (_, caller) = Service::with_caller(&["--production", "--trusted-proxy", "127.0.0.0/8"], 10).await;
    for route in served() {
        let (method, path) = (route.method.as_str(), path(route));
        let plain = caller.call(method, &path, &[], "").await;
        let over_https = caller.call(method, &path, &[("x-forwarded-proto", "https")], "").await;
        assert_ne!(over_https.status, 401, "{route:?}");
        match route.access {
            Access::Key => assert_unauthorized(route, &plain),
            Access::Anyone | Access::Session => assert_ne!(plain.status, 401, "{route:?}"),
        }
    }
}

#[tokio::test]
async fn a_call_counts_against_the_limit_of_its_route() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    for route in served() {
        let answer = caller.call(route.method.as_str(), &path(route), &[], "").await;
        let policy = answer.headers.get("ratelimit-policy").map(|value| value.to_str().expect("text"));
        let limit = policy.and_then(|policy| policy.split('"').nth(1));
        assert_eq!(limit, route.limit.map(|limit| limit.as_str()), "{route:?}");
    }
}

#[tokio::test]
async fn other_methods_are_405_and_allow_names_the_methods_of_the_path() {
    let service = Service::start().await;
    // The path for agents asks for a key first.
    let caller = service.caller("ada", 0).await;
    for (path, methods) in methods() {
        for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"] {
            if methods.contains(method) {
                continue;
            }
            let answer = caller.call(method, &path, &[], "").await;
            // Clients of OpenAI's dialect ask whether a path is there.
            let expected = if method == "OPTIONS" && path.starts_with("/v1/") { 204 } else { 405 };
            assert_eq!(answer.status, expected, "{method} {path}: {answer:?}");
            if [GENERATE, "/healthz", "/"].contains(&path.as_str()) && method != "HEAD" {
                let message = answer.assert_error(405, "INVALID_REQUEST");
                assert_eq!(message.contains("MCP at /mcp"), path == "/", "{message}");
            }
            assert_eq!(
                answer.header("allow").split(',').map(str::trim).collect::<BTreeSet<_>>(),
                methods,
                "{method} {path}"
            );
        }
    }
}

#[test]
fn the_document_describes_the_routes_of_the_api_and_no_others() {
    let document: Value = serde_json::from_str(&openapi_json()).expect("JSON");
    let mut documented = BTreeSet::new();
    for (pattern, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            assert_eq!(operation["security"], json!([{ "key": [] }]), "{method} {pattern}");
            documented.insert((pattern.as_str(), method.to_uppercase()));
        }
    }
    let api = ROUTES.iter().filter(|route| route.group == RouteGroup::Api);
    let routed: BTreeSet<_> = api.map(|route| (route.pattern, route.method.as_str().to_owned())).collect();
    assert_eq!(documented, routed);
}
