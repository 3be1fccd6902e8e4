//! Every way in which a server with the Images API misbehaves: the operator's line, the caller's message, the attempts
//! and the refund.

use std::fmt::Debug;
use std::time::Duration;

use serde_json::json;
use tintype_engine::{EngineError, Picture};
use tintype_engines::EngineContext;

use super::lost_leases;
use super::openai::brief;
use crate::rigs::engine::{choose, engine, render};
use crate::rigs::images_api::{Dialect, ImagesServer, Reply, Then, openai_error, painted};
use crate::rigs::service::{Caller, Service, pass};
use crate::rigs::wait::until;

/// The meaning of a fault for the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// Refused by the content policy, at once.
    Refused,
    /// Failed at once.
    Permanent,
    /// Failed after three attempts.
    Temporary,
    /// Waits without a lost attempt, as the engine takes no task or not this one.
    NotAvailable,
}

impl Meaning {
    pub fn of(error: &EngineError) -> Self {
        match error {
            EngineError::Refused(_) => Self::Refused,
            EngineError::Permanent(_) => Self::Permanent,
            EngineError::Temporary(_) => Self::Temporary,
            EngineError::NotAvailable(_) | EngineError::TurnedAway { .. } => Self::NotAvailable,
        }
    }

    /// Asserts what a fault of this meaning does to the task of a caller who had 10 credits. Returns how often the server
    /// was to be asked, unless the task waits.
    pub async fn assert_outcome(self, caller: &Caller, task_id: &str, fault: &impl Debug) -> Option<usize> {
        let (task, credits) = (caller.task(task_id).await, caller.credits().await);
        if let Some((message, asked)) = self.ending() {
            assert!(task["error"].as_str().is_some_and(|error| error.contains(message)), "{fault:?}: {task}");
            assert_eq!(credits, 10, "{fault:?}");
            return Some(asked);
        }
        assert_eq!((task["status"].as_str(), credits), (Some("processing"), 8), "{fault:?}: {task}");
        assert_eq!(lost_leases(caller, task_id).await, Some(0), "{fault:?}");
        None
    }

    /// The message for the caller, and how often the server is asked.
    fn ending(self) -> Option<(&'static str, usize)> {
        match self {
            Self::Refused => Some(("was refused by the content policy", 1)),
            Self::Permanent => Some(("The images could not be generated. The credits were refunded.", 1)),
            Self::Temporary => Some(("could not be generated after several attempts", 3)),
            Self::NotAvailable => None,
        }
    }
}

pub fn html(status: u16) -> Reply {
    let body = b"<html><body>502 Bad Gateway: a boat of secrets</body></html>".to_vec();
    Reply::Whole(status, vec![("content-type", "text/html; charset=utf-8".into())], body)
}

fn openai(status: u16, kind: &str, code: Option<&str>) -> Reply {
    Reply::json(status, &openai_error("a boat of secrets is wrong", kind, None, code))
}

fn flat(side: u32, level: u8) -> Vec<u8> {
    Picture::from_rgb(side, side, vec![level; (side * side * 3) as usize]).expect("a picture").to_png()
}

/// A PNG whose header claims 20,000 pixels a side.
pub fn enormous() -> Vec<u8> {
    let mut png = painted(64, 64, 1);
    png[16..24].copy_from_slice(&[20_000_u32.to_be_bytes(), 20_000_u32.to_be_bytes()].concat());
    let crc = crc32fast::hash(&png[12..29]);
    png[29..33].copy_from_slice(&crc.to_be_bytes());
    png
}

/// Answers that carry an error of the server.
fn errors() -> Vec<(Reply, Meaning, &'static str)> {
    use Meaning::{NotAvailable, Permanent, Refused, Temporary};
    let detail = json!({ "detail": [{ "loc": ["body", "size"], "msg": "a boat of secrets", "type": "value_error" }] });
    vec![
        (openai(400, "invalid_request_error", Some("content_policy_violation")), Refused, "content_policy_violation"),
        (openai(400, "image_generation_user_error", Some("moderation_blocked")), Refused, "moderation_blocked"),
        (openai(200, "content_filter", None), Refused, "content_filter"),
        (openai(400, "invalid_request_error", Some("invalid_value")), Permanent, "answered 400 (invalid_value)"),
        (Reply::json(422, &detail), Permanent, "answered 422 (value_error)"),
        (Reply::json(400, &json!({ "detail": "a boat of secrets" })), Permanent, "answered 400"),
        (Reply::json(404, &json!({ "detail": "Not Found" })), NotAvailable, "answered 404"),
        (Reply::json(413, &json!({})), Permanent, "answered 413"),
        (openai(401, "invalid_request_error", Some("invalid_api_key")), NotAvailable, "check --engine-key"),
        (openai(403, "invalid_request_error", None), NotAvailable, "check --engine-key"),
        (openai(429, "insufficient_quota", Some("insufficient_quota")), NotAvailable, "429 (insufficient_quota)"),
        (Reply::json(503, &json!({ "detail": "loading" })), NotAvailable, "answered 503"),
        (Reply::Whole(307, vec![("location", "http://10.0.0.1/".into())], Vec::new()), NotAvailable, "redirect"),
        (Reply::Whole(302, vec![("location", "/login".into())], Vec::new()), NotAvailable, "redirect"),
        (Reply::json(500, &json!({ "error": "a boat of secrets" })), Temporary, "answered 500"),
        (html(500), Temporary, "answered 500"),
        (html(502), NotAvailable, "answered 502"),
        (
            Reply::json(200, &json!({ "error": { "message": "a boat of secrets", "code": 7 } })),
            Temporary,
            "error inside (7)",
        ),
        (Reply::json(200, &json!({ "error": "a boat of secrets", "data": [] })), Temporary, "with an error inside"),
    ]
}

/// Answers that make no sense.
fn nonsense() -> Vec<(Reply, Meaning, &'static str)> {
    use Meaning::Temporary;
    let picture = painted(64, 64, 1);
    let cut = picture[..picture.len() / 2].to_vec();
    let data = |data: serde_json::Value| Reply::json(200, &json!({ "created": 1, "data": data }));
    vec![
        (Reply::HangUp, Temporary, "http"),
        (Reply::Truncated(b"{\"created\": 1, \"data\": [".to_vec()), Temporary, "http"),
        (Reply::Endless, Temporary, "answered with more than"),
        (html(200), Temporary, "answered 200 with text/html"),
        (Reply::json(200, &json!({ "data": "a boat of secrets" })), Temporary, "no Images API answer"),
        (Reply::Whole(200, Vec::new(), Vec::new()), Temporary, "no Images API answer"),
        (Reply::Whole(200, Vec::new(), b"\xff\xfe{".to_vec()), Temporary, "no Images API answer"),
        (data(json!([])), Temporary, "0 pictures instead of 1"),
        (data(json!([{}])), Temporary, "neither b64_json nor url"),
        (data(json!([{ "b64_json": "not base64!" }])), Temporary, "invalid base64"),
        (data(json!([{ "url": "files/none.png" }])), Temporary, "returned a picture by a URL that"),
        (data(json!([{ "url": "files/moved.png" }])), Temporary, "returned a picture by a URL that"),
        (Reply::file(b"<html>a boat of secrets</html>"), Temporary, "not a PNG, JPEG or WebP"),
        (Reply::file(b"GIF89a"), Temporary, "not a PNG, JPEG or WebP"),
        (Reply::file(&cut), Temporary, "damaged"),
        (Reply::file(&flat(1, 9)), Temporary, "only 1x1 pixels"),
        (Reply::file(&enormous()), Temporary, "too many pixels"),
        (Reply::file(&flat(64, 0)), Temporary, "is black"),
    ]
}

#[tokio::test]
async fn each_fault_of_a_server_has_a_line_for_the_operator_without_the_prompt() {
    for (reply, meaning, line) in errors().into_iter().chain(nonsense()) {
        let server = ImagesServer::start(Dialect::Sglang).await;
        server.always(reply.clone());
        let engine = engine(["--engine", &server.engine(), "--engine-profile", "sglang"]);
        let error = render(&engine, brief("a boat of secrets", &[7], Vec::new())).await.expect_err("a fault");
        assert_eq!(Meaning::of(&error), meaning, "{reply:?}: {error}");
        let shown = error.to_string();
        assert!(shown.contains(line) && !shown.contains("secrets"), "{reply:?}: {shown}");
    }
}

#[tokio::test]
async fn each_meaning_of_a_fault_ends_its_task_with_a_plain_message_and_a_refund_or_leaves_it_waiting() {
    for (reply, meaning) in [
        (openai(400, "invalid_request_error", Some("content_policy_violation")), Meaning::Refused),
        (Reply::json(400, &json!({ "detail": "a boat of secrets" })), Meaning::Permanent),
        (html(500), Meaning::Temporary),
        (Reply::HangUp, Meaning::Temporary),
        (html(502), Meaning::NotAvailable),
        (Reply::Whole(307, vec![("location", "http://10.0.0.1/".into())], Vec::new()), Meaning::NotAvailable),
    ] {
        let server = ImagesServer::start(Dialect::Sglang).await;
        server.always(reply.clone());
        server.fail_probes(meaning == Meaning::NotAvailable);
        let (service, caller) =
            Service::with_caller(&["--engine", &server.engine(), "--engine-profile", "sglang"], 10).await;
        let task_id = caller.submit_prompt("a boat").await;
        service.work().await;
        let asked = meaning.assert_outcome(&caller, &task_id, &reply).await;
        assert_eq!(
            server.asked().len(),
            asked.unwrap_or(1),
            "{reply:?}: of a task that waits, nothing more is claimed"
        );
    }
}

#[tokio::test]
async fn a_call_for_two_pictures_that_returns_one_is_a_fault() {
    let server = ImagesServer::with_key(Dialect::OpenAi, "sk-secret").await;
    server.always(Reply::file(&painted(64, 64, 1)));
    let engine = engine(["--engine", &server.engine(), "--engine-profile", "openai", "--engine-key", "sk-secret"]);
    let error = render(&engine, brief("a boat", &[1, 2], Vec::new())).await.expect_err("one picture is missing");
    assert_eq!(Meaning::of(&error), Meaning::Temporary, "{error}");
    assert!(error.to_string().contains("1 picture instead of 2"), "{error}");
}

#[tokio::test]
async fn a_server_that_hangs_or_drips_costs_an_attempt_when_the_time_limit_has_passed() {
    for reply in [Reply::Silence, Reply::Drip] {
        let server = ImagesServer::start(Dialect::Sglang).await;
        server.always(reply.clone());
        let flags = ["--engine", &server.engine(), "--engine-profile", "sglang", "--render-timeout", "20s"];
        let (service, caller) = Service::with_caller(&flags, 10).await;
        let task_id = caller.submit_prompt("a boat").await;
        for attempt in 1..=3 {
            let passing = async {
                until(async || server.asked().len() >= attempt).await;
                pass(Duration::from_secs(20)).await;
            };
            let (stepped, ()) = tokio::join!(service.worker.step(), passing);
            assert_eq!(stepped.expect("a store"), 1, "{reply:?}");
            service.clock.advance(Duration::from_secs(5));
        }
        Meaning::Temporary.assert_outcome(&caller, &task_id, &reply).await;
    }
}

#[tokio::test]
async fn an_error_counts_although_its_body_breaks_off_or_stops() {
    for then in [Then::Close, Then::Nothing] {
        let server = ImagesServer::start(Dialect::Sglang).await;
        server.always(Reply::Partial(503, vec![("retry-after", "5".into())], b"{\"deta".to_vec(), then));
        let engine = engine(["--engine", &server.engine(), "--engine-profile", "sglang"]);
        let passing = async {
            until(async || !server.asked().is_empty()).await;
            pass(Duration::from_secs(2)).await;
        };
        let (outcome, ()) = tokio::join!(render(&engine, brief("a boat", &[7], Vec::new())), passing);
        let error = outcome.expect_err("a busy server");
        let EngineError::TurnedAway { cause, pause, .. } = &error else { panic!("{then:?}: {error}") };
        assert!(cause.contains("answered 503"), "{then:?}: {cause}");
        assert_eq!(*pause, Some(Duration::from_secs(5)), "{then:?}");
    }
}

#[tokio::test]
async fn a_key_and_a_prompt_go_to_no_host_that_a_redirect_names() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    let other = ImagesServer::start(Dialect::Sglang).await;
    for status in [301, 302, 303, 307, 308] {
        server.always(Reply::Whole(
            status,
            vec![("location", format!("{}/images/generations", other.url()))],
            Vec::new(),
        ));
        let engine = engine(["--engine", &server.engine(), "--engine-profile", "sglang", "--engine-key", "sk-secret"]);
        let error = render(&engine, brief("a boat", &[7], Vec::new())).await.expect_err("a redirect");
        assert!(error.to_string().contains("redirect"), "{error}");
    }
    assert!(other.all().is_empty());
}

#[tokio::test]
async fn the_key_of_the_engine_is_never_quoted() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    let flags = ["--engine", &server.engine(), "--engine-profile", "sglang", "--engine-key", "sekret-key"];
    let choice = choose(flags).expect("an engine");
    let engine = choice.build(EngineContext { quotes_server: true, ..EngineContext::default() }).expect("an engine");
    // The last is cut in the middle of the key.
    for message in ["bad key Bearer sekret-key".to_owned(), format!("{}sekret-key", "x".repeat(295))] {
        server.always(Reply::json(500, &openai_error(&message, "server_error", None, Some("sekret-key"))));
        let error = render(&engine, brief("a boat", &[7], Vec::new())).await.expect_err("an error").to_string();
        assert!(error.contains("answered 500: ") && error.contains("**") && !error.contains("sekret"), "{error}");
    }
}

#[tokio::test]
async fn words_of_a_server_are_shown_to_an_operator_who_wrote_the_prompt() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.always(Reply::json(400, &json!({ "detail": "size is\u{1b}[31m odd" })));
    let engine = server.engine();
    let choice = choose(["--engine", &engine, "--engine-profile", "sglang"]).expect("an engine");
    let engine = choice.build(EngineContext { quotes_server: true, ..EngineContext::default() }).expect("an engine");
    let error = render(&engine, brief("a boat", &[7], Vec::new())).await.expect_err("an error");
    assert!(error.to_string().ends_with("answered 400: size is [31m odd"), "{error}");
}
