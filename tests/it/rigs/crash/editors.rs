//! Callers of OpenAI's API while it crashes: they edit pictures, read streams, and repeat a call until they get its answer,
//! as the official clients do.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use rusqlite::Connection;
use serde_json::json;
use tintype_engine::picture::Picture;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::clients::{Manners, Order, Recorded};
use crate::rigs::http::{Answer, try_exchange};

/// Begins the prompts of these callers, and of no other.
const PROMPT: &str = "edit number";
/// Attempts at one call. A process that is killed is replaced within some of them.
const MAX_ATTEMPTS: u32 = 500;

pub struct Editor {
    pub account: usize,
    pub key: String,
}

/// A call, whose attempts differ in their form alone.
struct Call {
    path: &'static str,
    prompt: String,
    picture: Option<Vec<u8>>,
    n: u64,
    stream: bool,
    in_form: bool,
}

/// The end of an attempt.
enum Outcome {
    /// The pictures of this task.
    Pictures(String),
    /// Nothing was made of the call, or it has failed.
    Refused,
    /// The client tries again.
    Again,
}

impl Call {
    fn random(number: u64) -> Self {
        let edits = rand::random_ratio(3, 4);
        let png = || Picture::from_rgb(8, 8, rand::random::<[u8; 3]>().repeat(64)).expect("a picture").to_png();
        let manner = ["", "", "", "[[fail]]", "[[delay 200ms]]"][rand::random_range(0..5)];
        Self {
            path: if edits { "/v1/images/edits" } else { "/v1/images/generations" },
            prompt: format!("{PROMPT} {number} {manner}"),
            picture: edits.then(png),
            n: rand::random_range(1..=2),
            stream: rand::random(),
            in_form: edits && rand::random(),
        }
    }

    fn body(&self) -> (String, Vec<u8>) {
        let Self { prompt, n, stream, .. } = self;
        let picture = self.picture.as_deref().unwrap_or_default();
        if !self.in_form {
            let mut body = json!({ "prompt": prompt, "n": n, "stream": stream });
            if self.picture.is_some() {
                body["image"] = json!(format!("data:image/png;base64,{}", BASE64_STANDARD.encode(picture)));
            }
            return ("application/json".into(), body.to_string().into_bytes());
        }
        // The official clients choose a boundary for each attempt.
        let boundary = format!("b-{}", rand::random::<u64>());
        let mut body = Vec::new();
        for (name, value) in [("prompt", prompt.clone()), ("n", n.to_string()), ("stream", stream.to_string())] {
            let part = format!("--{boundary}\r\ncontent-disposition: form-data; name={name}\r\n\r\n{value}\r\n");
            body.extend_from_slice(part.as_bytes());
        }
        let head = format!("--{boundary}\r\ncontent-disposition: form-data; name=image; filename=a.png\r\n\r\n");
        body.extend_from_slice(&[head.as_bytes(), picture, format!("\r\n--{boundary}--\r\n").as_bytes()].concat());
        (format!("multipart/form-data; boundary={boundary}"), body)
    }

    async fn attempt(&self, address: SocketAddr, key: &str, attempt: u32) -> Option<Answer> {
        let (kind, body) = self.body();
        let request = Request::post(self.path)
            .header("host", address.to_string())
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", kind)
            .header("x-stainless-retry-count", attempt.to_string())
            .body(Full::new(Bytes::from(body)));
        try_exchange(TcpStream::connect(address).await.ok()?, request.expect("a request")).await.ok()
    }

    fn outcome(&self, answer: Option<&Answer>, recorded: &Recorded) -> Outcome {
        let Some(answer) = answer else { return Outcome::Again };
        let is_final = answer.headers.get("x-should-retry").is_some_and(|value| value == "false");
        match answer.status.as_u16() {
            200 => self.pictures(answer, recorded),
            408 | 409 | 429 | 500.. if !is_final => Outcome::Again,
            400 | 429 | 500 => Outcome::Refused,
            _ => {
                recorded.violation(format!("{answer:?}"));
                Outcome::Refused
            }
        }
    }

    fn pictures(&self, answer: &Answer, recorded: &Recorded) -> Outcome {
        let files = if self.stream {
            let text = String::from_utf8_lossy(&answer.body);
            if text.contains("\"task_goes_on\"") {
                return Outcome::Again;
            }
            if text.contains("event: error") {
                return Outcome::Refused;
            }
            text.matches(".completed\ndata: ").count() as u64
        } else {
            answer.json()["data"].as_array().map_or(0, Vec::len) as u64
        };
        if files != self.n {
            recorded.violation(format!("{files} pictures instead of {}: {}", self.n, self.prompt));
        }
        Outcome::Pictures(answer.header("x-tintype-task-id").to_owned())
    }
}

impl Editor {
    /// Sends calls until it is stopped.
    pub(super) async fn run(
        self,
        servers: watch::Receiver<Vec<SocketAddr>>,
        manners: Manners,
        recorded: Arc<Recorded>,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            let call = Call::random(recorded.submits.fetch_add(1, Ordering::SeqCst));
            let mut attempt = 0;
            while attempt < MAX_ATTEMPTS && !stop.is_cancelled() {
                tokio::time::sleep(manners.rest * 2).await;
                let Some(address) = servers.borrow().first().copied() else { continue };
                let answer = call.attempt(address, &self.key, attempt).await;
                match call.outcome(answer.as_ref(), &recorded) {
                    Outcome::Pictures(task_id) => {
                        let order = Order { account: self.account, n: call.n };
                        let known = recorded.acknowledged.lock().expect("no panic").insert(task_id.clone(), order);
                        if known.is_some() {
                            recorded.violation(format!("{task_id} went to two callers"));
                        }
                        break;
                    }
                    Outcome::Refused => break,
                    Outcome::Again => attempt += 1,
                }
            }
        }
    }
}

/// The calls that were charged more than once, although no answer to an earlier attempt had been handed over: their prompts
/// with the number of their tasks. And the number of all calls that made a task.
pub fn charged_twice(data: &Path) -> (Vec<String>, usize) {
    let connection = Connection::open(data.join("tintype.db")).expect("a database");
    let sql = "SELECT t.prompt, t.status, c.delivered_at IS NOT NULL FROM tasks t JOIN calls c ON c.task_id = t.id
        WHERE t.prompt LIKE ?1 ORDER BY t.id";
    let mut calls: HashMap<String, Vec<(String, bool)>> = HashMap::new();
    let mut select = connection.prepare(sql).expect("SQL");
    let rows = select.query_map([format!("{PROMPT}%")], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))));
    for row in rows.expect("a query") {
        let (prompt, task) = row.expect("a row");
        calls.entry(prompt).or_default().push(task);
    }
    let again = |tasks: &[(String, bool)]| {
        let earlier = &tasks[..tasks.len() - 1];
        earlier.iter().any(|(status, delivered)| status != "failed" && !delivered)
    };
    let twice = calls.iter().filter(|(_, tasks)| again(tasks));
    (twice.map(|(prompt, tasks)| format!("{prompt}: {}", json!(tasks))).collect(), calls.len())
}
