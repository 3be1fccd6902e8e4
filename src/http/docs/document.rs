//! The OpenAPI 3.1 document of the public API.
//!
//! Macros beside the handlers describe paths, parameters and successes, and 400 if an operation has its own rules. This
//! file adds what all operations share: their errors, written by the code that sends them, and response headers.

use axum::http::StatusCode;
use serde_json::{Value, json};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{
    ContactBuilder, Content, Header, HeaderBuilder, Object, OpenApi, Ref, RefOr, Response, ResponseBuilder, Type,
};
use utoipa::{Modify, OpenApi as _};

use super::super::pipeline::error::ApiError;
use super::submitted;
use tintype_domain::request::AspectRatio;

const EXAMPLE_REQUEST_ID: &str = "kCf1TtZ7Ovb2gYyzS1Wk";

const JSON: &str = "application/json";

#[derive(utoipa::OpenApi)]
#[openapi(
    info(title = "Tintype", description = include_str!("introduction.md")),
    servers((url = "/", description = "The server that serves this document")),
    paths(
        crate::http::api::images::generate, crate::http::api::images::find, crate::http::api::images::list,
        crate::http::api::account::find
    ),
    tags(
        (name = "images", description = "Create tasks and get their images. An account sees the tasks that were created \
                                         through the API with any of its keys."),
        (name = "account", description = "The account that owns the key.")
    ),
    modifiers(&Names, &Errors, &Headers)
)]
struct Api;

/// The document, as JSON.
pub fn openapi_json() -> String {
    serde_json::to_string_pretty(&openapi()).expect("our own document is always JSON")
}

pub(in crate::http) fn openapi() -> Value {
    let mut document = serde_json::to_value(Api::openapi()).expect("our own document is always JSON");
    sort_extensions(&mut document);
    document
}

/// Puts the extensions of each object in order. Their library keeps them in none, and the document would be another one
/// in each process.
fn sort_extensions(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(sort_extensions),
        Value::Object(fields) => {
            let mut names: Vec<_> = fields.keys().filter(|name| name.starts_with("x-")).cloned().collect();
            names.sort();
            for name in names {
                fields.shift_remove(&name).map(|extension| fields.insert(name, extension));
            }
            fields.values_mut().for_each(sort_extensions);
        }
        _ => {}
    }
}

struct Refusal {
    name: &'static str,
    description: &'static str,
    example: ApiError,
    /// A header that comes with it, in addition to every response's headers.
    header: Option<&'static str>,
    operations: Operations,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operations {
    All,
    /// Operations with a body.
    WithBody,
    /// Operations that name a task in the path.
    OfOneTask,
}

impl Operations {
    fn include(self, path: &str, operation: &Operation) -> bool {
        match self {
            Self::All => true,
            Self::WithBody => operation.request_body.is_some(),
            Self::OfOneTask => path.contains("{id}"),
        }
    }
}

/// Every error that operations share.
fn refusals() -> Vec<Refusal> {
    refusals_of_rules().into_iter().chain(refusals_by_status()).collect()
}

/// The errors with their own code or message.
fn refusals_of_rules() -> [Refusal; 4] {
    [
        Refusal {
            name: "Unauthorized",
            description: "`UNAUTHORIZED`: no valid key, or a key that came in the URL or, in production, over plain HTTP. \
                          The response is the same for every cause.",
            example: ApiError::unauthorized(),
            header: Some("WWW-Authenticate"),
            operations: Operations::All,
        },
        Refusal {
            name: "InsufficientCredits",
            description: "`INSUFFICIENT_CREDITS`: the account has fewer credits than the task costs, or less is left of the \
                          budget of the key. Nothing was charged.",
            example: ApiError::insufficient_credits(4, 3),
            header: None,
            operations: Operations::WithBody,
        },
        Refusal {
            name: "NotFound",
            description: "`NOT_FOUND`: this account has created no such task through the API.",
            example: ApiError::no_such_task(),
            header: None,
            operations: Operations::OfOneTask,
        },
        Refusal {
            name: "RateLimited",
            description: "`RATE_LIMITED`: the rate limit of the key is exceeded; for a submit also: the account has too \
                          many unfinished tasks, or the queue is too long.",
            example: ApiError::rate_limited("The rate limit of this key is exceeded. Try again in 7 s.", 7),
            header: Some("Retry-After"),
            operations: Operations::All,
        },
    ]
}

fn refusals_by_status() -> impl Iterator<Item = Refusal> {
    use Operations::{All, WithBody};
    let rows = [
        ("InvalidRequest", StatusCode::BAD_REQUEST, All, "`INVALID_REQUEST`: the request is not plain HTTP."),
        ("MethodNotAllowed", StatusCode::METHOD_NOT_ALLOWED, All, "`INVALID_REQUEST`: the path has no such method."),
        ("RequestTimeout", StatusCode::REQUEST_TIMEOUT, WithBody, "`INVALID_REQUEST`: the body arrived too slowly."),
        (
            "ContentTooLarge",
            StatusCode::PAYLOAD_TOO_LARGE,
            WithBody,
            "`INVALID_REQUEST`: the body is larger than 512 KiB.",
        ),
        (
            "UnsupportedMediaType",
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            WithBody,
            "`INVALID_REQUEST`: the body is compressed otherwise than with gzip or deflate.",
        ),
        ("UriTooLong", StatusCode::URI_TOO_LONG, All, "`INVALID_REQUEST`: path and query are too long."),
        (
            "HeadersTooLarge",
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            All,
            "`INVALID_REQUEST`: the headers are too large or too many.",
        ),
        (
            "InternalError",
            StatusCode::INTERNAL_SERVER_ERROR,
            All,
            "`INTERNAL_ERROR`: the service failed. Nothing stays charged. Try again after 2, 4 and 8 seconds.",
        ),
        (
            "Unavailable",
            StatusCode::SERVICE_UNAVAILABLE,
            All,
            "`INTERNAL_ERROR`: the server has too many connections. Try again later.",
        ),
    ];
    rows.into_iter().map(|(name, status, operations, description)| {
        let header = (status == StatusCode::METHOD_NOT_ALLOWED).then_some("Allow");
        let unreadable = status == StatusCode::UNSUPPORTED_MEDIA_TYPE;
        let example = if unreadable { ApiError::unknown_coding() } else { ApiError::of_status(status) };
        Refusal { name, description, example, header, operations }
    })
}

/// Adds the errors that operations share, each with the body that the service really sends.
struct Errors;

impl Modify for Errors {
    fn modify(&self, document: &mut OpenApi) {
        let refusals = refusals();
        for (path, operation) in operations(document) {
            for refusal in &refusals {
                if !refusal.operations.include(path, operation) {
                    continue;
                }
                let component = Ref::from_response_name(refusal.name);
                let status = refusal.example.status().as_u16().to_string();
                // An operation with its own rules describes its 400 itself.
                operation.responses.responses.entry(status).or_insert(RefOr::Ref(component));
            }
        }
        let components = document.components.get_or_insert_default();
        for refusal in refusals {
            let mut content = Content::new(Some(Ref::from_schema_name("ErrorEnvelope")));
            content.example = Some(example(&refusal.example));
            let mut response = ResponseBuilder::new().description(refusal.description).content(JSON, content).build();
            response.headers.extend(refusal.header.map(header));
            components.responses.insert(refusal.name.into(), RefOr::T(response));
        }
    }
}

/// The body of an error, as an example.
pub fn example(error: &ApiError) -> Value {
    serde_json::from_slice(&error.body(EXAMPLE_REQUEST_ID)).expect("an error is always JSON")
}

/// The headers of responses: name, type, an example, and a description.
fn headers() -> [(&'static str, Type, Value, &'static str); 13] {
    [
        ("X-Request-Id", Type::String, json!(EXAMPLE_REQUEST_ID), "Identifies this request. Quote it to support."),
        (
            "RateLimit-Policy",
            Type::String,
            json!("\"submit\";q=60;w=60"),
            "The limit of this key that the request counted against: `q` requests in `w` seconds.",
        ),
        (
            "RateLimit",
            Type::String,
            json!("\"submit\";r=59;t=1"),
            "The state of that limit: `r` requests are left; in `t` seconds the full limit is available again.",
        ),
        (
            "X-Poll-After",
            Type::Number,
            json!(10.0),
            "Seconds to wait before the next poll. Absent once the task has ended.",
        ),
        (
            "X-Queue-Position",
            Type::Integer,
            json!(3),
            "While the task is processing: its position among the account's waiting tasks of the API, from 1, and 0 \
             while a worker has it.",
        ),
        (
            "X-Expected-Wait",
            Type::Integer,
            json!(12),
            "While the task is processing, if it can be estimated: seconds until the task ends.",
        ),
        (
            "X-Progress",
            Type::Number,
            json!(0.35),
            "While a worker has the task, if its engine reports progress: the part that is done, from 0 to \
             1. About a second old.",
        ),
        (
            "X-Steps",
            Type::String,
            json!("7/20"),
            "While a worker has the task, if its engine works in steps: the steps done, and the steps in all.",
        ),
        (
            "X-Ignored-Fields",
            Type::String,
            json!("aspect, seed"),
            "The fields of the body that the service does not know and has ignored. Absent if there are none.",
        ),
        (
            "Preference-Applied",
            Type::String,
            json!("wait=30"),
            "The wait of `Prefer`, if the task has ended. Absent otherwise.",
        ),
        ("Retry-After", Type::Integer, json!(7), "Seconds to wait before the next request, at least 1."),
        ("WWW-Authenticate", Type::String, json!("Bearer"), "Always `Bearer`."),
        ("Allow", Type::String, json!("GET,HEAD"), "The methods of this path."),
    ]
}

fn header(name: &'static str) -> (String, RefOr<Header>) {
    (name.into(), RefOr::Ref(Ref::new(format!("#/components/headers/{name}"))))
}

struct Headers;

impl Modify for Headers {
    fn modify(&self, document: &mut OpenApi) {
        for (path, operation) in operations(document) {
            let mut own = Vec::new();
            if Operations::WithBody.include(path, operation) {
                own.extend(["X-Poll-After", "X-Expected-Wait", "X-Ignored-Fields", "Preference-Applied"]);
            } else if Operations::OfOneTask.include(path, operation) {
                own.extend(["X-Poll-After", "X-Queue-Position", "X-Expected-Wait", "X-Progress", "X-Steps"]);
                own.push("Preference-Applied");
            }
            for (status, response) in &mut operation.responses.responses {
                let RefOr::T(response) = response else { continue };
                add_common_headers(response);
                if status == "200" {
                    response.headers.extend(own.iter().map(|name| header(name)));
                }
            }
        }
        let components = document.components.get_or_insert_default();
        let before_keys = ["Unauthorized", "MethodNotAllowed", "UriTooLong", "HeadersTooLarge", "Unavailable"];
        for (name, response) in &mut components.responses {
            let RefOr::T(response) = response else { continue };
            // These are sent before a key is looked up, or reveal nothing about one.
            if before_keys.contains(&name.as_str()) {
                response.headers.extend([header("X-Request-Id")]);
            } else {
                add_common_headers(response);
            }
        }
        for (name, kind, example, description) in headers() {
            let schema = Object::with_type(kind);
            let header =
                HeaderBuilder::new().schema(Some(schema)).description(Some(description)).example(Some(example));
            components.headers.insert(name.into(), RefOr::T(header.build()));
        }
    }
}

fn add_common_headers(response: &mut Response) {
    response.headers.extend(["X-Request-Id", "RateLimit", "RateLimit-Policy"].map(header));
}

/// Adds names and references that the macros cannot express.
struct Names;

impl Modify for Names {
    fn modify(&self, document: &mut OpenApi) {
        document.info.contact = Some(ContactBuilder::new().name(Some("The operator of this server")).build());
        let components = document.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("tt_ and 38 letters and digits");
        let bearer = bearer.description(Some(
            "An API key of this server. Owners of an account create keys in the studio (Account, then Keys), and so does \
             the operator.",
        ));
        components.add_security_scheme("key", SecurityScheme::Http(bearer.build()));
        if let Some(RefOr::T(Schema::Object(ratios))) = components.schemas.get_mut("AspectRatio") {
            ratios.extensions = Some(ratio_names());
        }
        submitted::describe(components);
        let schemas = std::mem::take(&mut components.schemas);
        components.schemas = schemas.into_iter().map(|(name, schema)| refer_to_data(name, schema)).collect();
        for (_, operation) in operations(document) {
            for response in operation.responses.responses.values_mut() {
                let RefOr::T(response) = response else { continue };
                for content in response.content.values_mut() {
                    let RefOr::T(content) = content else { continue };
                    if let Some(RefOr::Ref(schema)) = &mut content.schema {
                        schema.ref_location = envelope_name(&schema.ref_location);
                    }
                }
            }
        }
    }
}

/// Names of the aspect ratios for client generators, because `16:9` isn't an identifier, and their sizes.
fn ratio_names() -> Extensions {
    let name = |ratio: &AspectRatio| format!("Ratio{}", ratio.as_str().replace(':', "x"));
    let size = |ratio: &AspectRatio| format!("{}x{} pixels", ratio.size().0, ratio.size().1);
    let names: Vec<_> = AspectRatio::ALL.iter().map(name).collect();
    let sizes: Vec<_> = AspectRatio::ALL.iter().map(size).collect();
    Extensions::from_iter([("x-enum-varnames", json!(names)), ("x-enum-descriptions", json!(sizes))])
}

/// The derived name of `Success<Task>` is `Success_Task`; callers know it as `TaskEnvelope`.
fn envelope_name(name: &str) -> String {
    match name.split_once("Success_") {
        Some((path, data)) => format!("{path}{data}Envelope"),
        None => name.into(),
    }
}

/// Renames the schema of an envelope, and replaces its copy of the data's schema by a reference.
fn refer_to_data(name: String, mut schema: RefOr<Schema>) -> (String, RefOr<Schema>) {
    if let (Some(data), RefOr::T(Schema::Object(object))) = (name.strip_prefix("Success_"), &mut schema) {
        object.properties.insert("data".into(), RefOr::Ref(Ref::from_schema_name(data)));
    }
    (envelope_name(&name), schema)
}

fn operations(document: &mut OpenApi) -> impl Iterator<Item = (&str, &mut Operation)> {
    document.paths.paths.iter_mut().flat_map(|(path, item)| {
        let all = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
        all.into_iter().flatten().map(|operation| (path.as_str(), operation))
    })
}
