//! The OpenAPI document, compared with the router and with real answers.

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
fn assert_documented(document: &Value, path: &str, method: &str, status: u16, body: &Value) {
    let response = &document["paths"][path][method]["responses"][status.to_string()];
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
    let service = Service::start_with(&["--submit-rate", "7"]).await;
    let caller = service.caller("ada", 20).await;
    let document = document();
    let one = "/api/v1/images/task/{id}";
    for prompt in ["a boat", "a boat [[fail]]"] {
        let created = caller.post(json!({ "prompt": prompt, "n": 2 }).to_string()).await;
        assert_documented(&document, GENERATE, "post", 200, &created.json());
        let path = format!("{TASKS}/{}", created.json()["data"]["task_id"].as_str().expect("a task_id"));
        assert_documented(&document, one, "get", 200, &caller.get(&path).await.json());
        service.work().await;
        assert_documented(&document, one, "get", 200, &caller.get(&path).await.json());
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

#[tokio::test]
async fn the_page_loads_nothing_from_other_hosts() {
    let service = Service::start().await;
    let index = service.call("GET", "/docs/", &[], "").await;
    assert_eq!(index.status, 200);
    let html = String::from_utf8(index.body.to_vec()).expect("text");
    assert!(!html.contains("http://") && !html.contains("https://"), "{html}");
    for asset in ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-ui-standalone-preset.js", "swagger-initializer.js"]
    {
        assert!(html.contains(asset), "{html}");
        assert_eq!(service.call("GET", &format!("/docs/{asset}"), &[], "").await.status, 200, "{asset}");
    }
    let initializer = service.call("GET", "/docs/swagger-initializer.js", &[], "").await;
    assert!(String::from_utf8_lossy(&initializer.body).contains("/openapi.json"));
}
