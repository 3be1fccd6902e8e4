//! The OpenAPI document, compared with the router and with real answers.

use std::io::Read as _;

use serde_json::{Value, json};

use crate::rigs::http::{GENERATE, TASKS};
use crate::rigs::service::Service;

fn document() -> Value {
    serde_json::from_str(&tintype::http::docs::openapi_json()).expect("JSON")
}

/// Finds where `value` violates `schema`. Covers the keywords that the document uses.
fn faults(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let pointer = reference.strip_prefix('#').expect("a local reference");
        return faults(document, document.pointer(pointer).expect("an existing schema"), value, place);
    }
    let mut found = Vec::new();
    if let Some(options) = schema["oneOf"].as_array() {
        let fits = options.iter().filter(|option| faults(document, option, value, place).is_empty()).count();
        if fits != 1 {
            found.push(format!("{place}: fits {fits} of oneOf"));
        }
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        found.extend(faults(document, part, value, place));
    }
    if !has_type(&schema["type"], value) {
        found.push(format!("{place}: {value} is not {}", schema["type"]));
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        found.push(format!("{place}: {value} is none of {words:?}"));
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().expect("a name")).is_none() {
            found.push(format!("{place}: {name} is missing"));
        }
    }
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        if let Some(inner) = value.get(name) {
            found.extend(faults(document, property, inner, &format!("{place}.{name}")));
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        if schema["items"].is_object() {
            found.extend(faults(document, &schema["items"], item, &format!("{place}[{index}]")));
        }
    }
    found
}

/// The object itself, or the one that it refers to.
fn resolved<'a>(document: &'a Value, object: &'a Value) -> &'a Value {
    match object["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).expect("an existing component"),
        None => object,
    }
}

fn has_type(wanted: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    };
    match wanted {
        Value::Null => true,
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        other => panic!("unreadable type {other}"),
    }
}

/// Compares an answer with the schema of its operation and status.
pub fn assert_documented(document: &Value, path: &str, method: &str, status: u16, body: &Value) {
    let response = resolved(document, &document["paths"][path][method]["responses"][status.to_string()]);
    let schema = &response["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{method} {path} {status} is not documented");
    let found = faults(document, schema, body, "body");
    assert!(found.is_empty(), "{method} {path} {status}: {found:#?}\n{body:#}");
    // Every field that is sent is documented.
    let undocumented = undocumented(document, schema, body, "body");
    assert!(undocumented.is_empty(), "{method} {path} {status}: {undocumented:?}");
}

fn undocumented(document: &Value, schema: &Value, value: &Value, place: &str) -> Vec<String> {
    let mut parts = vec![schema];
    let mut known = Vec::new();
    let mut items = Vec::new();
    while let Some(part) = parts.pop() {
        // A message of another protocol, which is described elsewhere.
        if part["additionalProperties"] == true {
            return Vec::new();
        }
        if let Some(reference) = part["$ref"].as_str() {
            parts.push(document.pointer(&reference[1..]).expect("an existing schema"));
        }
        parts.extend(part["allOf"].as_array().into_iter().flatten());
        parts.extend(part["oneOf"].as_array().into_iter().flatten());
        known.extend(part["properties"].as_object().into_iter().flatten());
        items.extend(part.get("items"));
    }
    let mut found = Vec::new();
    for (name, inner) in value.as_object().into_iter().flatten() {
        match known.iter().find(|(known, _)| *known == name) {
            Some((_, property)) => found.extend(undocumented(document, property, inner, &format!("{place}.{name}"))),
            None => found.push(format!("{place}.{name}")),
        }
    }
    for item in value.as_array().into_iter().flatten() {
        found.extend(items.iter().flat_map(|schema| undocumented(document, schema, item, place)));
    }
    found
}

#[tokio::test]
async fn the_document_is_served_and_is_openapi_3_1() {
    let service = Service::start().await;
    let answer = service.call("GET", "/openapi.json", &[], "").await;
    assert_eq!((answer.status.as_u16(), answer.header("content-type")), (200, "application/json"));
    assert_eq!(answer.json(), document());
    assert!(document()["openapi"].as_str().expect("a version").starts_with("3.1"));
    assert_eq!(document()["components"]["securitySchemes"]["key"]["scheme"], "bearer");
}

#[tokio::test]
async fn real_answers_match_the_document() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "7"], 20).await;
    let document = document();
    let one = "/api/v1/images/task/{id}";
    for prompt in ["a boat", "a boat [[fail]]"] {
        let created = caller.post(json!({ "prompt": prompt, "n": 2 }).to_string()).await;
        assert_documented(&document, GENERATE, "post", 200, &created.json());
        let path = format!("{TASKS}/{}", created.json()["data"]["task_id"].as_str().expect("a task_id"));
        assert_documented(&document, one, "get", 200, &caller.get(&path).await.json());
        service.work().await;
        assert_documented(&document, one, "get", 200, &caller.get(&path).await.json());
        let waits = [("prefer", "wait=30")];
        let waited = service.worked(caller.post_with(&waits, json!({ "prompt": prompt }).to_string())).await;
        assert_ne!(waited.json()["data"]["status"], "processing");
        assert_documented(&document, GENERATE, "post", 200, &waited.json());
    }
    assert_documented(&document, TASKS, "get", 200, &caller.get(TASKS).await.json());
    assert_documented(&document, TASKS, "get", 200, &caller.get(&format!("{TASKS}?limit=1")).await.json());
    assert_documented(&document, TASKS, "get", 400, &caller.get(&format!("{TASKS}?limit=0")).await.json());
    let absent = format!("{TASKS}/imgmodel-AAAAAAAAAAAAAAAAAAAAA");
    assert_documented(&document, one, "get", 404, &caller.get(&absent).await.json());
    assert_documented(&document, one, "get", 401, &service.call("GET", &absent, &[], "").await.json());
    assert_documented(&document, GENERATE, "post", 400, &caller.post("{}").await.json());
    let poor = service.caller("bob", 1).await;
    let refused = poor.post(r#"{"prompt": "a boat"}"#).await;
    assert_documented(&document, GENERATE, "post", 402, &refused.json());
    for _ in 0..8 {
        caller.post("{}").await;
    }
    assert_documented(&document, GENERATE, "post", 429, &caller.post("{}").await.json());
}

#[tokio::test]
async fn the_request_schema_states_every_rule_that_a_schema_can_express() {
    let document = document();
    let request = &document["components"]["schemas"]["GenerateRequest"];
    assert_eq!(request["required"], json!(["prompt"]));
    let properties = &request["properties"];
    assert_eq!((&properties["n"]["minimum"], &properties["n"]["maximum"]), (&json!(1), &json!(4)));
    assert_eq!(properties["prompt"]["maxLength"], 32_000);
    assert_eq!(properties["reference_images"]["maxItems"], 4);
    let ratios = document["components"]["schemas"]["AspectRatio"].to_string();
    for ratio in ["1:1", "16:9", "9:16", "4:3", "3:4", "3:2", "2:3", "5:4", "4:5", "2:1", "1:2", "21:9", "9:21"] {
        assert!(ratios.contains(&format!("\"{ratio}\"")), "{ratio}: {ratios}");
    }
}

/// Every response of every operation, each with the name of its place.
fn responses(document: &Value) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            for (status, response) in operation["responses"].as_object().expect("responses") {
                found.push((format!("{method} {path} {status}"), resolved(document, response)));
            }
        }
    }
    assert!(found.len() > 20, "{found:?}");
    found
}

#[test]
fn every_response_and_header_has_an_example_that_matches_its_schema() {
    let document = document();
    for (place, response) in responses(&document) {
        let content = &response["content"]["application/json"];
        let several = content["examples"].as_object().into_iter().flatten().map(|(_, example)| &example["value"]);
        let examples: Vec<_> = several.chain(content.get("example")).collect();
        assert!(!examples.is_empty(), "{place} has no example");
        for example in examples {
            let found = faults(&document, &content["schema"], example, &place);
            assert!(found.is_empty(), "{found:#?}");
            assert_eq!(undocumented(&document, &content["schema"], example, &place), [""; 0]);
        }
    }
    for (name, header) in document["components"]["headers"].as_object().expect("headers") {
        let found = faults(&document, &header["schema"], &header["example"], name);
        assert!(found.is_empty(), "{found:#?}");
    }
}

#[test]
fn the_example_of_an_error_is_its_own() {
    let document = document();
    let code = |status: &str| match status {
        "401" => "UNAUTHORIZED",
        "402" => "INSUFFICIENT_CREDITS",
        "404" => "NOT_FOUND",
        "429" => "RATE_LIMITED",
        status if status.starts_with('4') => "INVALID_REQUEST",
        _ => "INTERNAL_ERROR",
    };
    let mut seen = 0;
    for (place, response) in responses(&document) {
        let status = place.rsplit(' ').next().expect("a status");
        if status != "200" {
            assert_eq!(response["content"]["application/json"]["example"]["error"]["code"], code(status), "{place}");
            seen += 1;
        }
    }
    assert!(seen > 20);
}

#[tokio::test]
async fn the_headers_of_real_answers_are_documented() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "3"], 4).await;
    let document = document();
    // Headers that every answer over HTTP may have say nothing about this API.
    let general = ["content-type", "content-length", "cache-control", "date", "connection"];
    let task = format!("{TASKS}/imgmodel-AAAAAAAAAAAAAAAAAAAAA");
    let mut answers =
        vec![(TASKS, "get", caller.get(TASKS).await), ("/api/v1/images/task/{id}", "get", caller.get(&task).await)];
    for body in [r#"{"prompt": "a boat"}"#, "{}", r#"{"prompt": "a boat", "n": 4}"#, "{}"] {
        answers.push((GENERATE, "post", caller.post(body).await));
    }
    answers.push((TASKS, "get", service.call("GET", TASKS, &[], "").await));
    answers.push((TASKS, "get", service.call("PUT", TASKS, &[], "").await));
    let statuses: Vec<_> = answers.iter().map(|(_, _, answer)| answer.status.as_u16()).collect();
    assert_eq!(statuses, [200, 404, 200, 400, 402, 429, 401, 405]);
    for (path, method, answer) in answers {
        let response = &document["paths"][path][method]["responses"][answer.status.as_str()];
        let documented = resolved(&document, response)["headers"].as_object().expect("headers");
        let documented: Vec<_> = documented.keys().map(|name| name.to_lowercase()).collect();
        for name in answer.headers.keys().map(|name| name.as_str()).filter(|name| !general.contains(name)) {
            assert!(documented.iter().any(|known| known == name), "{path} {}: {name}", answer.status);
        }
    }
}

#[test]
fn everything_has_a_description() {
    let document = document();
    let mut bare = Vec::new();
    let mut check = |place: String, described: &Value| {
        if described["description"].as_str().unwrap_or_default().is_empty() {
            bare.push(place);
        }
    };
    for (name, schema) in document["components"]["schemas"].as_object().expect("schemas") {
        check(name.clone(), schema);
        for (property, schema) in schema["properties"].as_object().into_iter().flatten() {
            // Of an object that may be null, the description stands beside the reference to it.
            let object =
                schema["oneOf"].as_array().and_then(|either| either.iter().find(|one| one["$ref"].is_string()));
            check(format!("{name}.{property}"), resolved(&document, object.unwrap_or(schema)));
        }
    }
    for (name, header) in document["components"]["headers"].as_object().expect("headers") {
        check(name.clone(), header);
    }
    for (path, operations) in document["paths"].as_object().expect("paths") {
        for (method, operation) in operations.as_object().expect("operations") {
            check(format!("{method} {path}"), operation);
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                check(format!("{method} {path} {}", parameter["name"]), parameter);
            }
        }
    }
    for (place, response) in responses(&document) {
        check(place, response);
    }
    assert!(bare.is_empty(), "{bare:#?}");
}

#[test]
fn no_schema_is_copied_into_another() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().expect("schemas");
    for name in ["TaskEnvelope", "SubmittedTaskEnvelope", "TaskPageEnvelope"] {
        let data = name.trim_end_matches("Envelope");
        assert_eq!(schemas[name]["properties"]["data"], json!({ "$ref": format!("#/components/schemas/{data}") }));
    }
}

#[tokio::test]
async fn pages_have_a_policy_and_are_sent_once_to_a_browser_that_keeps_them() {
    let service = Service::start().await;
    for path in [
        "/",
        "/docs/",
        "/docs/page.css",
        "/docs/page.js",
        "/docs/quick-start.js",
        "/docs/scalar.js",
        "/openapi-other.json",
        "/docs/icon.svg",
        "/favicon.ico",
    ] {
        let page = service.call("GET", path, &[], "").await;
        assert_eq!(page.status, 200, "{path}");
        let policy = page.header("content-security-policy");
        assert!(policy.contains("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        // A proxy that compresses makes the tag a weak one.
        let etag = page.header("etag");
        for tags in [etag, &format!("W/{etag}"), &format!("\"x\", {etag}"), "*"] {
            let kept = service.call("GET", path, &[("if-none-match", tags)], "").await;
            assert_eq!((kept.status.as_u16(), kept.body.len()), (304, 0), "{path}: {tags}");
        }
        let accepts = ("accept-encoding", "gzip, br");
        let packed = service.call("GET", path, &[accepts], "").await;
        assert_eq!((packed.header("content-encoding"), packed.header("vary")), ("gzip", "accept-encoding"), "{path}");
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&*packed.body).read_to_end(&mut unpacked).expect("gzip");
        assert_eq!(unpacked, page.body, "{path}");
        assert_ne!(packed.header("etag"), page.header("etag"), "{path}");
        let kept = service.call("GET", path, &[accepts, ("if-none-match", packed.header("etag"))], "").await;
        assert_eq!((kept.status.as_u16(), kept.body.len()), (304, 0), "{path}");
        let head = service.call("HEAD", path, &[accepts], "").await;
        assert_eq!(head.header("content-length"), packed.header("content-length"), "{path}");
    }
    assert_eq!(service.call("GET", "/docs", &[], "").await.header("location"), "/docs/");
}
