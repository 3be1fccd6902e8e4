//! Answers of servers with the Images API as they are seen in the field, each with its source.

use serde_json::json;

use super::lost_leases;
use super::openai::brief;
use super::openai_faults::Meaning;
use crate::rigs::engine::{engine, render};
use crate::rigs::images_api::{Dialect, ImagesServer, Reply, openai_error, painted};
use crate::rigs::service::Service;

/// An answer, and what it means: pictures, or a fault with words for the operator.
struct Quirk {
    source: &'static str,
    reply: Reply,
    outcome: Result<(), (Meaning, &'static str)>,
}

fn picture() -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_STANDARD.encode(painted(64, 48, 7))
}

/// An answer with the picture in place of `PICTURE`.
fn written(body: &str) -> Reply {
    let url_safe = picture().replace('+', "-").replace('/', "_");
    Reply::Whole(200, Vec::new(), body.replace("PICTURE", &picture()).replace("URLSAFE", &url_safe).into_bytes())
}

/// Answers with a picture whose other fields are odd.
fn unused_fields() -> Vec<Quirk> {
    [
        (
            "created as a float: servers that write Python's time.time()",
            r#"{"created": 1795262400.25, "data": [{"b64_json": "PICTURE"}]}"#,
        ),
        (
            "github.com/BerriAI/litellm/issues/9239: Together AI",
            r#"{"id": "913e-LOC", "model": "m", "object": "list", "created": null, "data": [{"b64_json": "PICTURE", "revised_prompt": null, "url": null, "timings": {"inference": 0.98}, "index": 0}]}"#,
        ),
        (
            "github.com/nextcloud/integration_openai/issues/65: LocalAI",
            r#"{"created": 1701806913, "id": "b995", "data": [{"embedding": null, "index": 0, "b64_json": "PICTURE"}], "usage": {"prompt_tokens": 0}}"#,
        ),
        (
            "a field twice: gateways that add their own",
            r#"{"created": 1, "created": "now", "model": "a", "model": "b", "data": [{"b64_json": "PICTURE", "index": 0, "index": 0}]}"#,
        ),
        (
            "an empty url beside the picture",
            r#"{"created": "2026-11-26", "data": [{"url": "", "b64_json": "PICTURE"}], "error": null}"#,
        ),
        (
            "a url of another type beside the picture",
            r#"{"data": [{"url": {"expires": 1}, "b64_json": "PICTURE", "revised_prompt": ["a"]}]}"#,
        ),
        (
            "the picture as a data URL in `url`",
            r#"{"data": [{"url": "data:image/png;base64,PICTURE", "b64_json": false}]}"#,
        ),
        ("the alphabet of base64 for URLs", r#"{"data": [{"b64_json": "URLSAFE"}]}"#),
        ("a byte order mark: servers on .NET", "\u{feff}{\"data\": [{\"b64_json\": \"PICTURE\"}]}"),
    ]
    .map(|(source, body)| Quirk { source, reply: written(body), outcome: Ok(()) })
    .into()
}

fn openai(status: u16, kind: &str, param: Option<&str>, code: Option<&str>) -> Reply {
    Reply::json(status, &openai_error("about a boat of secrets", kind, param, code))
}

fn said(status: u16, message: &str) -> Reply {
    Reply::json(status, &openai_error(message, "invalid_request_error", None, None))
}

fn operators((source, reply, line): (&'static str, Reply, &'static str)) -> Quirk {
    Quirk { source, reply, outcome: Err((Meaning::NotAvailable, line)) }
}

/// Errors of an account, or of the fields of a profile, that no prompt causes.
fn of_accounts_and_fields() -> Vec<Quirk> {
    let pay = "see to the bill";
    let profile = "check --engine-profile";
    [
        (
            "github.com/dfinke/PowerShellAI/issues/127",
            openai(400, "invalid_request_error", None, Some("billing_hard_limit_reached")),
            pay,
        ),
        ("github.com/ollama/ollama/issues/14017", said(400, "Billing hard limit has been reached."), pay),
        ("OpenAI without credits", openai(429, "insufficient_quota", None, Some("insufficient_quota")), pay),
        (
            "OpenRouter and Together without credits",
            Reply::json(402, &json!({ "error": { "code": 402, "message": "Insufficient credits" } })),
            "billing problem",
        ),
        (
            "github.com/vercel/ai/issues/6102",
            openai(400, "invalid_request_error", Some("response_format"), Some("unknown_parameter")),
            profile,
        ),
        (
            "LiteLLM: a parameter that its provider lacks",
            said(400, "litellm.UnsupportedParamsError: Setting `seed` is not supported by openai, m"),
            profile,
        ),
        (
            "LiteLLM before the server of a bill",
            said(400, "litellm.BadRequestError: OpenAIException - Billing hard limit has been reached."),
            pay,
        ),
        (
            "github.com/BerriAI/litellm/issues/15963: a form whose field has another name",
            Reply::json(422, &json!({ "detail": [{ "type": "missing", "loc": ["body", "image"], "msg": "Field required" }] })),
            profile,
        ),
        (
            "github.com/rikkahub/rikkahub/issues/1602: xAI",
            Reply::json(400, &json!({ "code": "400", "error": "Argument not supported: size" })),
            profile,
        ),
        ("OpenAI before codes for parameters", said(400, "Unrecognized request argument supplied: seed"), profile),
        (
            "pydantic with extra fields forbidden",
            Reply::json(422, &json!({ "detail": [{ "type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted" }] })),
            profile,
        ),
    ]
    .map(operators)
    .into()
}

/// Errors of models and URLs, which no prompt causes either.
fn of_models() -> Vec<Quirk> {
    let model = "check --model";
    [
        (
            "github.com/noahgsolomon/brainrot.js/issues/32",
            openai(404, "invalid_request_error", None, Some("model_not_found")),
            model,
        ),
        (
            "OpenAI after a model was shut down",
            openai(400, "invalid_request_error", Some("model"), Some("model_deprecated")),
            model,
        ),
        (
            "an error of the field model without a code",
            openai(400, "invalid_request_error", Some("model"), None),
            model,
        ),
        (
            "github.com/nearai/ironclaw/issues/2450",
            said(404, "Model 'flux-1.1-pro' not found"),
            "the name of its model",
        ),
        (
            "github.com/BerriAI/litellm/issues/5024",
            Reply::json(404, &json!({ "detail": "Not Found" })),
            "check the URL",
        ),
        (
            "vLLM: an error without an envelope",
            Reply::json(404, &json!({ "object": "error", "message": "The model `m` does not exist.", "type": "NotFoundError", "param": "model", "code": 404 })),
            model,
        ),
        (
            "github.com/BerriAI/litellm/issues/25466",
            said(400, "litellm.BadRequestError: You passed in model=m. There are no healthy deployments for this model"),
            model,
        ),
        (
            "LiteLLM: a name that it does not know",
            said(400, "/images/generations: Invalid model name passed in model=m. Call `/v1/models` to view them"),
            model,
        ),
        (
            "github.com/BerriAI/litellm/issues/27030",
            Reply::json(200, &openai_error("x", "invalid_request_error", None, Some("model_not_found"))),
            model,
        ),
        (
            "Azure OpenAI without this deployment",
            Reply::json(404, &json!({ "error": { "code": "DeploymentNotFound", "message": "x" } })),
            model,
        ),
    ]
    .map(operators)
    .into()
}

/// Answers of proxies while their server restarts.
fn of_proxies() -> Vec<Quirk> {
    let page = |status| {
        let body = b"<html><h1>a boat of secrets</h1></html>".to_vec();
        Reply::Whole(status, vec![("content-type", "text/html".into())], body)
    };
    [
        ("nginx: connection refused by the upstream", 502, "answered 502"),
        ("nginx: no answer of the upstream in time", 504, "answered 504"),
        ("HAProxy: no server", 503, "answered 503"),
        ("Cloudflare: unknown error of the origin", 520, "answered 520"),
        ("Cloudflare: the origin is down", 521, "answered 521"),
        ("Cloudflare: connection timed out", 522, "answered 522"),
        ("Cloudflare: the origin is unreachable", 523, "answered 523"),
        ("Cloudflare: the origin did not answer", 524, "answered 524"),
        ("overloaded, as Anthropic's API has it", 529, "answered 529"),
    ]
    .map(|(source, status, line)| Quirk { source, reply: page(status), outcome: Err((Meaning::NotAvailable, line)) })
    .into()
}

/// Errors that are still the prompt's, or count as lost attempts.
fn of_the_prompt() -> Vec<Quirk> {
    use Meaning::{Permanent, Refused, Temporary};
    let inner = json!({ "code": "ResponsibleAIPolicyViolation" });
    let inner = json!({ "error": { "code": "BadRequest", "message": null, "inner_error": inner } });
    let null = json!({ "error": { "message": null, "type": null, "param": null, "code": "moderation_blocked" } });
    [
        ("Azure OpenAI with the code inside", Reply::json(400, &inner), Refused, "BadRequest"),
        (
            "LiteLLM: a refusal without its code",
            said(400, "litellm.BadRequestError: OpenAIException - Your request was rejected by the safety system. about a boat of secrets"),
            Refused,
            "invalid_request_error",
        ),
        (
            "LiteLLM: a refusal by its class",
            said(400, "litellm.ContentPolicyViolationError: ContentPolicyViolationError: AzureException - about a boat of secrets"),
            Refused,
            "invalid_request_error",
        ),
        ("a refusal without a message", Reply::json(400, &null), Refused, "moderation_blocked"),
        (
            "the prompt is too long",
            Reply::json(400, &openai_error("x", "invalid_request_error", Some("prompt"), None)),
            Permanent,
            "answered 400",
        ),
        (
            "a code and a message of other types",
            Reply::json(500, &json!({ "error": { "code": [1], "message": { "a": 1 } } })),
            Temporary,
            "answered 500",
        ),
        (
            "a proxy that compresses for everybody",
            Reply::Whole(200, vec![("content-type", "application/json".into())], vec![0x1f, 0x8b, 8, 0, 0]),
            Temporary,
            "turn off its compression",
        ),
        ("a picture of null", written(r#"{"data": [null]}"#), Temporary, "neither b64_json nor url"),
        ("no list", written(r#"{"data": null}"#), Temporary, "0 pictures instead of 1"),
    ]
    .map(|(source, reply, meaning, line)| Quirk { source, reply, outcome: Err((meaning, line)) })
    .into()
}

#[tokio::test]
async fn each_quirk_of_a_server_means_what_it_meant_to_its_users() {
    let quirks =
        [unused_fields(), of_accounts_and_fields(), of_models(), of_proxies(), of_the_prompt()].into_iter().flatten();
    for Quirk { source, reply, outcome } in quirks {
        let server = ImagesServer::start(Dialect::Sglang).await;
        server.always(reply);
        let engine = engine(["--engine", &server.engine(), "--engine-profile", "sglang"]);
        let rendered = render(&engine, brief("a boat of secrets", &[7], Vec::new())).await;
        match (rendered, outcome) {
            (Ok(pictures), Ok(())) => assert_eq!(pictures[0].as_rgb()[..3], [200, 7, 0], "{source}"),
            (Err(error), Err((meaning, line))) => {
                let shown = error.to_string();
                assert_eq!(Meaning::of(&error), meaning, "{source}: {shown}");
                assert!(shown.contains(line) && !shown.contains("secrets"), "{source}: {shown}");
            }
            (rendered, _) => panic!("{source}: {:?}", rendered.map(|pictures| pictures.len())),
        }
    }
}

#[tokio::test]
async fn tasks_wait_for_the_operator_who_has_not_paid_and_are_rendered_afterwards() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.always(Reply::json(400, &openai_error("x", "billing", None, Some("billing_hard_limit_reached"))));
    let (service, caller) =
        Service::with_caller(&["--engine", &server.engine(), "--engine-profile", "sglang"], 10).await;
    let tasks = [caller.submit_prompt("a boat").await, caller.submit_prompt("a fish").await];
    for _ in 0..5 {
        service.worker.step().await.expect("a store");
        service.clock.advance(std::time::Duration::from_secs(60));
    }
    for task in &tasks {
        assert_eq!(lost_leases(&caller, task).await, Some(0));
    }
    server.always(Reply::Documented);
    service.worker.step().await.expect("a store");
    for task in &tasks {
        assert_eq!(caller.task(task).await["status"], "completed");
    }
    assert_eq!(caller.credits().await, 6);
}
