//! A moderation endpoint in the format of OpenAI's, called over real HTTP.

use std::ops::Deref;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tintype::policy::{Rules, Verdict};

use super::*;
use crate::references_fetch::{self, HOST, Server};
use crate::rigs::faulty_http::{Asked, Double, Reply};
use crate::rigs::ports::Port;
use crate::rigs::service::pass;

/// The time limit of the endpoint in tests that let it pass.
const PATIENCE: Duration = Duration::from_secs(30);

struct Endpoint(Double);

impl Deref for Endpoint {
    type Target = Double;

    fn deref(&self) -> &Double {
        &self.0
    }
}

impl Endpoint {
    async fn start() -> Self {
        Self(Double::start(judged).await)
    }

    fn policy(&self, more: &str) -> PolicyFile {
        let file = PolicyFile::new(&format!("[moderation]\nurl = \"http://{}/v1/moderations\"\n{more}", self.address));
        // As Notepad writes it.
        file.write("key", "\u{feff}sk-secret\r\n");
        file
    }

    /// Runs something while no request is answered: the clock passes the time limit as soon as one arrives.
    async fn wasting_time<T>(&self, outcome: impl Future<Output = T>) -> T {
        let before = self.asked().len();
        let wasting = async {
            for questions in 1.. {
                while self.asked().len() < before + questions {
                    tokio::task::yield_now().await;
                }
                pass(PATIENCE).await;
            }
        };
        tokio::select! {
            biased;
            () = wasting => unreachable!("it goes on"),
            outcome = outcome => outcome,
        }
    }
}

/// Flags texts that say "forbidden", and pictures that are mostly red, as "violence".
fn judged(asked: &Asked) -> Reply {
    if asked.path != "/v1/moderations" {
        return Reply::status(404);
    }
    let asked = asked.json();
    let flagged = asked["input"].as_array().expect("inputs").iter().any(flagged);
    let categories = json!({ "violence": flagged, "hate": false, "illicit": null });
    let result = json!({ "flagged": flagged, "categories": categories, "category_scores": { "violence": 0.5 } });
    Reply::json(200, &json!({ "id": "modr-1", "model": asked["model"], "results": [result] }))
}

fn flagged(input: &Value) -> bool {
    match input["type"].as_str() {
        Some("text") => input["text"].as_str().expect("a text").contains("forbidden"),
        Some("image_url") => {
            let url = input["image_url"]["url"].as_str().expect("a URL");
            let png = url.strip_prefix("data:image/png;base64,").expect("a data URL");
            let picture = Picture::decode(&BASE64_STANDARD.decode(png).expect("base64")).expect("a PNG");
            assert!(picture.width().max(picture.height()) <= 768);
            is_red(&picture)
        }
        other => panic!("{other:?}"),
    }
}

fn is_red(picture: &Picture) -> bool {
    picture.as_rgb().chunks_exact(3).all(|pixel| pixel[0] > 200 && pixel[1] < 50)
}

fn red() -> Vec<u8> {
    Picture::from_rgb(2, 2, [255, 0, 0].repeat(4)).expect("four pixels").to_png()
}

#[tokio::test]
async fn a_flagged_prompt_is_refused_and_the_endpoint_gets_the_documented_request() {
    let endpoint = Endpoint::start().await;
    let file =
        endpoint.policy("unreachable = \"closed\"\ncheck = [\"prompt\"]\nkey_file = \"key\"\nmodel = \"judge-1\"\n");
    let service = file.service(&[]).await;
    let ada = service.caller("ada", 10).await;
    assert_refused(&ada.outcome("a forbidden boat").await);
    assert_eq!(ada.credits().await, 10);
    assert_eq!(ada.outcome("a boat").await["status"], "completed");
    let asked = endpoint.asked();
    let texts: Vec<_> = asked.iter().map(|asked| asked.json()["input"][0]["text"].clone()).collect();
    assert_eq!(texts, ["a forbidden boat", "a boat"]);
    assert_eq!(asked[0].json()["model"], "judge-1");
    assert_eq!(asked[0].header("authorization"), Some("Bearer sk-secret"));
    assert_eq!(asked[0].header("content-type"), Some("application/json"));
    assert!(metrics(&service).contains("tintype_tasks_refused_total{kind=\"moderation\"} 1"));
}

#[tokio::test]
async fn only_the_configured_categories_count() {
    let endpoint = Endpoint::start().await;
    for (categories, status) in [("[\"violence\"]", "failed"), ("[\"hate\", \"illicit\"]", "completed")] {
        let more = format!("unreachable = \"closed\"\ncheck = [\"prompt\"]\ncategories = {categories}\n");
        let service = endpoint.policy(&more).service(&[]).await;
        let ada = service.caller("ada", 10).await;
        assert_eq!(ada.outcome("a forbidden boat").await["status"], status, "{categories}");
    }
}

#[tokio::test]
async fn an_answer_without_a_configured_category_is_no_verdict() {
    let endpoint = Endpoint::start().await;
    let without = Reply::json(200, &json!({ "results": [{ "flagged": true }] }));
    let other = json!({ "results": [{ "flagged": true, "categories": { "violence/graphic": true } }] });
    for (unreachable, status, tries) in [("closed", "failed", 3), ("open", "completed", 1)] {
        let more =
            format!("unreachable = \"{unreachable}\"\ncheck = [\"prompt\"]\ncategories = [\"hate\", \"violense\"]\n");
        let file = endpoint.policy(&more);
        let service = file.service(&[]).await;
        let ada = service.caller("ada", 100).await;
        for reply in [Reply::Documented, without.clone(), Reply::json(200, &other)] {
            let before = endpoint.asked().len();
            endpoint.always(reply.clone());
            let task = ada.outcome("a forbidden boat").await;
            assert_eq!(task["status"], status, "{unreachable} {reply:?}: {task}");
            assert_ne!(task["error"], REFUSED, "the endpoint gave no verdict");
            assert_eq!(endpoint.asked().len() - before, tries, "{unreachable} {reply:?}");
        }
        let rules = Arc::new(Rules::read(&file.path()).expect("a policy"));
        endpoint.always(Reply::Documented);
        match rules.judge_prompt("a forbidden boat").await {
            Verdict::Undetermined(cause) | Verdict::Skipped(cause) => {
                assert!(cause.contains("\"violense\""), "{cause}")
            }
            verdict => panic!("{verdict:?}"),
        }
        // What one category forbids needs no other.
        endpoint
            .always(Reply::json(200, &json!({ "results": [{ "flagged": false, "categories": { "hate": true } }] })));
        assert_refused(&ada.outcome("a boat").await);
    }
}

#[tokio::test]
async fn forbidden_words_are_refused_without_a_call_to_the_endpoint() {
    let endpoint = Endpoint::start().await;
    let service = endpoint.policy(&format!("unreachable = \"closed\"\n{WORDS}")).service(&[]).await;
    let ada = service.caller("ada", 10).await;
    assert_refused(&ada.outcome("a bomb").await);
    assert_eq!(endpoint.asked().len(), 0);
}

#[tokio::test]
async fn an_endpoint_without_an_answer_fails_closed_or_open_as_configured() {
    let replies = [
        Reply::Whole(500, Vec::new(), b"{\"results\":[{\"flagged\":false}]}".to_vec()),
        Reply::Whole(302, vec![("location", "/v1/elsewhere".into())], Vec::new()),
        Reply::Whole(200, Vec::new(), b"no json".to_vec()),
        Reply::Endless,
        Reply::Silence,
        Reply::json(200, &json!({ "results": [] })),
    ];
    for (unreachable, status, tries, unmoderated) in [("closed", "failed", 3, 0), ("open", "completed", 1, 1)] {
        let endpoint = Endpoint::start().await;
        let timeout = PATIENCE.as_secs();
        let more =
            format!("unreachable = \"{unreachable}\"\ncheck = [\"prompt\"]\ntimeout = \"{timeout}s\"\n{STRIKES}");
        let service = endpoint.policy(&more).service(&[]).await;
        let ada = service.caller("ada", 100).await;
        for reply in &replies {
            let before = endpoint.asked().len();
            endpoint.always(reply.clone());
            let task = match reply {
                Reply::Silence => endpoint.wasting_time(ada.outcome("a boat")).await,
                _ => ada.outcome("a boat").await,
            };
            assert_eq!(task["status"], status, "{unreachable} {reply:?}: {task}");
            assert_ne!(task["error"], REFUSED, "the task failed without a refusal");
            assert_eq!(endpoint.asked().len() - before, tries, "{unreachable} {reply:?}");
        }
        let counted = metrics(&service);
        let expected = format!("tintype_unmoderated_total {}", unmoderated * replies.len());
        assert!(counted.contains(&expected), "{counted}");
        endpoint.always(Reply::Documented);
        service.clock.advance(Duration::from_secs(1));
        assert_eq!(ada.get(TASKS).await.status, 200, "an endpoint in trouble is no strike");
        assert_refused(&ada.outcome("a forbidden boat").await);
    }
}

#[tokio::test]
async fn a_closed_port_fails_closed_until_the_endpoint_is_there() {
    let endpoint = Endpoint::start().await;
    let closed = Port::take();
    let url = format!("http://{}/", closed.address);
    let file = PolicyFile::new(&format!("[moderation]\nurl = \"{url}\"\nunreachable = \"closed\"\n"));
    let service = file.service(&[]).await;
    let ada = service.caller("ada", 10).await;
    let task_id = ada.submit_prompt("a boat").await;
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    assert_eq!(ada.task(&task_id).await["status"], "processing", "another attempt may do");
    file.write("policy.toml", &std::fs::read_to_string(endpoint.policy("unreachable = \"closed\"\n").path()).unwrap());
    assert_eq!(service.policy.refresh().await, Ok(true));
    service.work().await;
    assert_eq!(ada.task(&task_id).await["status"], "completed");
}

#[tokio::test]
async fn results_are_moderated_before_their_files_are_written() {
    let endpoint = Endpoint::start().await;
    let service = endpoint.policy("unreachable = \"closed\"\ncheck = [\"results\"]\n").service(&[]).await;
    let ada = service.caller("ada", 10).await;
    assert_eq!(ada.outcome_of(json!({ "prompt": "a forbidden boat", "n": 2 })).await["status"], "completed");
    let asked = endpoint.asked();
    assert_eq!(asked.len(), 2, "each picture, and no prompt");
    assert!(asked.iter().all(|asked| asked.json()["input"][0]["type"] == "image_url"));
    endpoint.always(Reply::status(500));
    let files = || {
        std::fs::read_dir(service.directory.path().join("files"))
            .unwrap()
            .flatten()
            .map(|day| std::fs::read_dir(day.path()).unwrap().count())
            .sum::<usize>()
    };
    let before = files();
    assert_eq!(ada.outcome("a boat").await["status"], "failed");
    assert_eq!((before, files()), (2, 2));
}

#[tokio::test]
async fn a_flagged_or_blocked_reference_is_refused() {
    let pictures = Server::start([("/red.png", references_fetch::Reply::ok(&red()))]).await;
    let endpoint = Endpoint::start().await;
    let file = endpoint.policy("unreachable = \"closed\"\n");
    file.write("ca.pem", &pictures.ca_pem);
    let ca = file.0.path().join("ca.pem");
    let trusted = format!("{HOST}={}", pictures.address);
    let flags = ["--test-reference-host", &trusted, "--test-reference-ca", ca.to_str().unwrap()];
    let service = file.service(&flags).await;
    let ada = service.caller("ada", 10).await;
    let with_reference = async || {
        let body = json!({ "prompt": "a boat", "reference_images": [format!("https://{HOST}/red.png")] });
        ada.outcome_of(body).await
    };
    assert_refused(&with_reference().await);
    assert_eq!(endpoint.asked().len(), 2, "the prompt, the reference, and nothing drawn");

    let hash = picture_hash(&Picture::decode(&red()).unwrap());
    file.write("known.txt", &format!("{hash:016x}"));
    file.write("policy.toml", "[blocklist]\nfile = \"known.txt\"\ndistance = 0\n");
    assert_eq!(service.policy.refresh().await, Ok(true));
    assert_refused(&with_reference().await);
    file.write("policy.toml", "");
    assert_eq!(service.policy.refresh().await, Ok(true));
    assert_eq!(with_reference().await["status"], "completed");
    assert_eq!(ada.credits().await, 8);
}
