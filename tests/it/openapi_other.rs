//! The second OpenAPI document, of all surfaces for programs but the native API, compared with the router and real answers.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tintype::http::docs::other_openapi_json;
use tintype::http::routes::{ROUTES, RouteGroup};

use crate::openapi::assert_documented;
use crate::rigs::service::Service;

fn document() -> Value {
    serde_json::from_str(&other_openapi_json()).expect("JSON")
}

#[test]
fn the_second_document_describes_the_other_routes_for_programs() {
    let document = document();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let mut documented = BTreeSet::new();
    for (pattern, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            let open = ["/files", "/healthz", "/readyz"].iter().any(|start| pattern.starts_with(start));
            let security = if open { json!([]) } else { json!([{ "key": [] }]) };
            assert_eq!(operation["security"], security, "{method} {pattern}");
            let pattern = pattern.replace("{day}/{name}", "{*name}").replace("models/{id}", "models/{*id}");
            documented.insert((pattern, method.to_uppercase()));
        }
    }
    let others = ROUTES.iter().filter(|route| {
        matches!(route.group, RouteGroup::OpenAi | RouteGroup::Mcp | RouteGroup::Files | RouteGroup::Ops)
            // The same as without the slash.
            && route.pattern != "/mcp/"
    });
    let routed: BTreeSet<_> = others.map(|route| (route.pattern.to_owned(), route.method.to_string())).collect();
    assert_eq!(documented, routed);
}

#[tokio::test]
async fn real_answers_of_the_other_routes_match_the_second_document() {
    let (service, caller) = Service::with_caller(&["--retention", "7d", "--model-alias", "dall-e-3=sketch"], 100).await;
    let document = document();
    let (generations, at_once) = ("/v1/images/generations", "/v1/images/generations/async");
    let send = async |path: &str, body: Value| caller.post_json(path, &[], body.to_string()).await;
    for (body, status) in [
        (json!({ "prompt": "a boat" }), 200),
        (json!({ "prompt": "a boat", "response_format": "url", "size": "1792x1024" }), 200),
        (json!({ "prompt": "a boat [[fail]]" }), 500),
        (json!({ "prompt": "a boat [[policy]]" }), 400),
    ] {
        let answer = service.worked(send(generations, body)).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_documented(&document, generations, "post", status, &answer.json());
    }
    assert_documented(&document, generations, "post", 400, &send(generations, json!({})).await.json());
    for prompt in ["a boat", "a boat [[fail]]"] {
        let made = send(at_once, json!({ "prompt": prompt })).await;
        assert_documented(&document, at_once, "post", 202, &made.json());
        let path = made.header("location").to_owned();
        service.work().await;
        assert_documented(&document, "/v1/images/tasks/{id}", "get", 200, &caller.get(&path).await.json());
    }
    let absent = caller.get("/v1/images/tasks/imgmodel-AAAAAAAAAAAAAAAAAAAAA").await;
    assert_documented(&document, "/v1/images/tasks/{id}", "get", 404, &absent.json());
    assert_documented(&document, "/v1/models", "get", 200, &caller.get("/v1/models").await.json());
    assert_documented(&document, "/v1/models", "get", 401, &service.call("GET", "/v1/models", &[], "").await.json());
    assert_documented(&document, "/v1/models/{id}", "get", 200, &caller.get("/v1/models/flux").await.json());
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    assert_documented(&document, "/mcp", "post", 200, &send("/mcp", list).await.json());
    assert_documented(&document, "/mcp", "post", 401, &service.call("POST", "/mcp", &[], "").await.json());
    let made = send(generations, json!({ "prompt": "a boat", "response_format": "url" }));
    let url = service.worked(made).await.json()["data"][0]["url"].as_str().expect("a URL").to_owned();
    let mut statuses = BTreeSet::from([200, 206, 304, 500, 502]);
    for (header, status) in [(("if-match", "\"x\""), 412), (("range", "bytes=9999999-"), 416)] {
        let refused = service.fetch(&url, &[header]).await;
        assert_eq!(refused.status, status, "{refused:?}");
        assert_documented(&document, "/files/{day}/{name}", "get", status, &refused.json());
        statuses.insert(status);
    }
    let absent = service.call("GET", "/files/2026-11-21/x.png", &[], "").await;
    assert_documented(&document, "/files/{day}/{name}", "get", 404, &absent.json());
    statuses.insert(404);
    let documented = document["paths"]["/files/{day}/{name}"]["get"]["responses"].as_object().expect("responses");
    assert_eq!(documented.keys().cloned().collect::<BTreeSet<_>>(), statuses.iter().map(u16::to_string).collect());
    for path in ["/healthz", "/readyz"] {
        assert_documented(&document, path, "get", 200, &service.call("GET", path, &[], "").await.json());
    }
}
