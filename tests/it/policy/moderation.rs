//! A moderation endpoint in the format of OpenAI's, called over real HTTP.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::rigs::certificates::certificate;
use crate::rigs::ports::Port;

const HOST: &str = "pictures.example.com";
/// The time limit of the endpoint in tests that let it pass.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Flags texts that say "forbidden", and pictures that are mostly red, as "violence".
    Judging,
    Failing,
    Redirecting,
    Babbling,
    Endless,
    Silent,
    /// An answer without results.
    Empty,
}

#[derive(Clone)]
struct Endpoint {
    address: SocketAddr,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<Mutex<Vec<(HeaderMap, Value)>>>,
}

impl Endpoint {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let endpoint = Self { address, mood: Arc::new(Mutex::new(Mood::Judging)), asked: Arc::default() };
        let routes = Router::new().route("/v1/moderations", post(answer)).with_state(endpoint.clone());
        tokio::spawn(axum::serve(listener, routes).into_future());
        endpoint
    }

    fn be(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn policy(&self, more: &str) -> PolicyFile {
        let file = PolicyFile::new(&format!("[moderation]\nurl = \"http://{}/v1/moderations\"\n{more}", self.address));
        file.write("key", "sk-secret\n");
        file
    }

    fn asked(&self) -> Vec<(HeaderMap, Value)> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Runs something while no request is answered: the clock passes the time limit as soon as one arrives.
    async fn wasting_time<T>(&self, outcome: impl Future<Output = T>) -> T {
        let wasting = async {
            for questions in 1.. {
                while self.asked.lock().unwrap().len() < questions {
                    tokio::task::yield_now().await;
                }
                tokio::time::pause();
                tokio::time::advance(PATIENCE).await;
                tokio::time::resume();
            }
        };
        tokio::select! {
            biased;
            () = wasting => unreachable!("it goes on"),
            outcome = outcome => outcome,
        }
    }
}

async fn answer(State(endpoint): State<Endpoint>, headers: HeaderMap, body: Bytes) -> Response {
    let asked: Value = serde_json::from_slice(&body).expect("JSON");
    endpoint.asked.lock().unwrap().push((headers, asked.clone()));
    let mood = *endpoint.mood.lock().unwrap();
    match mood {
        Mood::Judging => {
            let flagged = asked["input"].as_array().expect("inputs").iter().any(flagged);
            let categories = json!({ "violence": flagged, "hate": false, "illicit": null });
            let result =
                json!({ "flagged": flagged, "categories": categories, "category_scores": { "violence": 0.5 } });
            json!({ "id": "modr-1", "model": asked["model"], "results": [result] }).to_string().into_response()
        }
        Mood::Failing => (StatusCode::INTERNAL_SERVER_ERROR, "{\"results\":[{\"flagged\":false}]}").into_response(),
        Mood::Redirecting => (StatusCode::FOUND, [("location", "/v1/elsewhere")]).into_response(),
        Mood::Babbling => "no json".into_response(),
        Mood::Endless => " ".repeat(2 * 1024 * 1024).into_response(),
        Mood::Silent => std::future::pending().await,
        Mood::Empty => "{\"results\":[]}".into_response(),
    }
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
    assert_refused(&outcome(&ada, "a forbidden boat").await);
    assert_eq!(ada.credits().await, 10);
    assert_eq!(outcome(&ada, "a boat").await["status"], "completed");
    let asked = endpoint.asked();
    let texts: Vec<_> = asked.iter().map(|(_, body)| body["input"][0]["text"].clone()).collect();
    assert_eq!(texts, ["a forbidden boat", "a boat"]);
    assert_eq!(asked[0].1["model"], "judge-1");
    assert_eq!(asked[0].0["authorization"], "Bearer sk-secret");
    assert_eq!(asked[0].0["content-type"], "application/json");
    assert!(metrics(&service).contains("tintype_tasks_refused_total{kind=\"moderation\"} 1"));
}

#[tokio::test]
async fn only_the_configured_categories_count() {
    let endpoint = Endpoint::start().await;
    for (categories, status) in [("[\"violence\"]", "failed"), ("[\"hate\", \"illicit\", \"none\"]", "completed")] {
        let more = format!("unreachable = \"closed\"\ncheck = [\"prompt\"]\ncategories = {categories}\n");
        let service = endpoint.policy(&more).service(&[]).await;
        let ada = service.caller("ada", 10).await;
        assert_eq!(outcome(&ada, "a forbidden boat").await["status"], status, "{categories}");
    }
}

#[tokio::test]
async fn forbidden_words_are_refused_without_a_call_to_the_endpoint() {
    let endpoint = Endpoint::start().await;
    let service = endpoint.policy(&format!("unreachable = \"closed\"\n{WORDS}")).service(&[]).await;
    let ada = service.caller("ada", 10).await;
    assert_refused(&outcome(&ada, "a bomb").await);
    assert_eq!(endpoint.asked().len(), 0);
}

#[tokio::test]
async fn an_endpoint_without_an_answer_fails_closed_or_open_as_configured() {
    let moods = [Mood::Failing, Mood::Redirecting, Mood::Babbling, Mood::Endless, Mood::Silent, Mood::Empty];
    for (unreachable, status, tries, unmoderated) in [("closed", "failed", 3, 0), ("open", "completed", 1, 1)] {
        let endpoint = Endpoint::start().await;
        let timeout = PATIENCE.as_secs();
        let more =
            format!("unreachable = \"{unreachable}\"\ncheck = [\"prompt\"]\ntimeout = \"{timeout}s\"\n{STRIKES}");
        let service = endpoint.policy(&more).service(&[]).await;
        let ada = service.caller("ada", 100).await;
        for mood in moods {
            endpoint.be(mood);
            let task = match mood {
                Mood::Silent => endpoint.wasting_time(outcome(&ada, "a boat")).await,
                _ => outcome(&ada, "a boat").await,
            };
            assert_eq!(task["status"], status, "{unreachable} {mood:?}: {task}");
            assert_ne!(task["error"], REFUSED, "the task failed without a refusal");
            assert_eq!(endpoint.asked().len(), tries, "{unreachable} {mood:?}");
        }
        let counted = metrics(&service);
        let expected = format!("tintype_unmoderated_total {}", unmoderated * moods.len());
        assert!(counted.contains(&expected), "{counted}");
        endpoint.be(Mood::Judging);
        service.clock.advance(Duration::from_secs(1));
        assert_eq!(ada.get(TASKS).await.status, 200, "an endpoint in trouble is no strike");
        assert_refused(&outcome(&ada, "a forbidden boat").await);
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
    let task = ada.submit(json!({ "prompt": "a forbidden boat", "n": 2 })).await;
    service.work().await;
    assert_eq!(ada.task(task["task_id"].as_str().unwrap()).await["status"], "completed");
    let asked = endpoint.asked();
    assert_eq!(asked.len(), 2, "each picture, and no prompt");
    assert!(asked.iter().all(|(_, body)| body["input"][0]["type"] == "image_url"));
    endpoint.be(Mood::Failing);
    let files = || {
        std::fs::read_dir(service.directory.path().join("files"))
            .unwrap()
            .flatten()
            .map(|day| std::fs::read_dir(day.path()).unwrap().count())
            .sum::<usize>()
    };
    let before = files();
    assert_eq!(outcome(&ada, "a boat").await["status"], "failed");
    assert_eq!((before, files()), (2, 2));
}

/// A TLS server for [`HOST`] that answers everything with a picture; its address and its authority in PEM.
async fn picture_server(picture: Vec<u8>) -> (SocketAddr, String) {
    let (tls, ca_pem) = certificate(HOST);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = tls.accept(stream).await else { continue };
            let mut head = [0; 4096];
            if stream.read(&mut head).await.is_ok() {
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", picture.len());
                drop(stream.write_all(&[answer.as_bytes(), &picture].concat()).await);
                drop(stream.shutdown().await);
            }
        }
    });
    (address, ca_pem)
}

#[tokio::test]
async fn a_flagged_or_blocked_reference_is_refused() {
    let (address, ca_pem) = picture_server(red()).await;
    let endpoint = Endpoint::start().await;
    let file = endpoint.policy("unreachable = \"closed\"\n");
    file.write("ca.pem", &ca_pem);
    let ca = file.0.path().join("ca.pem");
    let trusted = format!("{HOST}={address}");
    let flags = ["--test-reference-host", &trusted, "--test-reference-ca", ca.to_str().unwrap()];
    let service = file.service(&flags).await;
    let ada = service.caller("ada", 10).await;
    let with_reference = async || {
        let body = json!({ "prompt": "a boat", "reference_images": [format!("https://{HOST}/red.png")] });
        let task = ada.submit(body).await;
        service.work().await;
        ada.task(task["task_id"].as_str().unwrap()).await
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
