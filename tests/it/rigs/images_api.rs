//! A server with OpenAI's Images API, written from the documents of its profiles: it answers as they say, refuses what
//! they refuse, and misbehaves on demand.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tintype_engine::Picture;
use tokio::net::TcpStream;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use super::faulty_http::{Asked, Reply};
use super::faulty_http::{answer, read};
use super::wait::listen_again;

/// The documents that the server is written from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    VllmOmni,
    Sglang,
    LocalAi,
}

/// The server, until it is dropped.
#[derive(Clone)]
pub struct ImagesServer {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    _stop: Arc<DropGuard>,
}

#[derive(Default)]
struct State {
    asked: Vec<Asked>,
    replies: VecDeque<Reply>,
    /// The reply when there is none in the queue.
    usual: Option<Reply>,
    /// The reply to requests whose body contains this.
    poison: Option<(&'static str, Reply)>,
    probes_fail: bool,
    /// The reply at `/health`, of servers that have this route.
    health: Option<Reply>,
}

impl ImagesServer {
    pub async fn start(dialect: Dialect) -> Self {
        Self::on("127.0.0.1:0".parse().expect("an address"), dialect, None).await
    }

    /// A server that answers only requests with this key.
    pub async fn with_key(dialect: Dialect, key: &'static str) -> Self {
        Self::on("127.0.0.1:0".parse().expect("an address"), dialect, Some(key)).await
    }

    /// A server at this address, where one may have listened before.
    pub async fn on(address: SocketAddr, dialect: Dialect, key: Option<&'static str>) -> Self {
        let listener = listen_again(address).await;
        let stop = CancellationToken::new();
        let address = listener.local_addr().expect("an address");
        let state: Arc<Mutex<State>> = Arc::default();
        let server = Self { address, state: state.clone(), _stop: Arc::new(stop.clone().drop_guard()) };
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(serve(stream, state.clone(), dialect, key));
            }
        }));
        server
    }

    pub fn engine(&self) -> String {
        format!("openai:{}", self.url())
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// The next replies to requests for pictures, in order.
    pub fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.state.lock().unwrap().replies.extend(replies);
    }

    /// The reply to all further requests for pictures.
    pub fn always(&self, reply: Reply) {
        self.state.lock().unwrap().usual = Some(reply);
    }

    pub fn to_prompts_with(&self, word: &'static str, reply: Reply) {
        self.state.lock().unwrap().poison = Some((word, reply));
    }

    /// Whether its list of models answers 503 from now on.
    pub fn fail_probes(&self, fail: bool) {
        self.state.lock().unwrap().probes_fail = fail;
    }

    /// The reply at `/health` from now on.
    pub fn answer_health(&self, reply: Reply) {
        self.state.lock().unwrap().health = Some(reply);
    }

    /// The requests for pictures so far.
    pub fn asked(&self) -> Vec<Asked> {
        let state = self.state.lock().unwrap();
        state.asked.iter().filter(|asked| asked.method == "POST").cloned().collect()
    }

    /// All requests so far.
    pub fn all(&self) -> Vec<Asked> {
        self.state.lock().unwrap().asked.clone()
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>, dialect: Dialect, key: Option<&'static str>) {
    let Some(asked) = read(&mut stream).await else { return };
    let posted = asked.method == "POST";
    let reply = {
        let mut state = state.lock().unwrap();
        state.asked.push(asked.clone());
        let has = |word: &str| asked.body.windows(word.len()).any(|bytes| bytes == word.as_bytes());
        let poison = state.poison.as_ref().filter(|(word, _)| posted && has(word)).map(|(_, reply)| reply.clone());
        match (posted, state.probes_fail) {
            _ if poison.is_some() => poison.unwrap_or(Reply::Documented),
            (true, _) => state.replies.pop_front().or(state.usual.clone()).unwrap_or(Reply::Documented),
            (false, _) if asked.path == "/health" && state.health.is_some() => {
                state.health.clone().unwrap_or(Reply::Documented)
            }
            (false, true) => Reply::json(503, &json!({ "detail": "loading" })),
            (false, false) => Reply::Documented,
        }
    };
    let reply = match reply {
        Reply::Documented => {
            let (status, headers, body) = documented(dialect, key, &asked);
            Reply::Whole(status, headers, body)
        }
        reply => reply,
    };
    answer(stream, reply).await;
}

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

fn json_answer(status: u16, body: &Value) -> Answer {
    (status, vec![("content-type", "application/json".into())], body.to_string().into_bytes())
}

pub fn openai_error(message: &str, kind: &str, param: Option<&str>, code: Option<&str>) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
}

fn documented(dialect: Dialect, key: Option<&'static str>, asked: &Asked) -> Answer {
    let expected = key.map(|key| format!("Bearer {key}"));
    if expected.is_some() && asked.header("authorization") != expected.as_deref() {
        let error = openai_error("Incorrect API key.", "invalid_request_error", None, Some("invalid_api_key"));
        return json_answer(401, &error);
    }
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/health") if matches!(dialect, Dialect::VllmOmni | Dialect::Sglang) => (200, Vec::new(), Vec::new()),
        ("GET", "/v1/models") => {
            json_answer(200, &json!({ "object": "list", "data": [{ "id": "m", "object": "model" }] }))
        }
        ("GET", "/v1/files/moved.png") => (302, vec![("location", "red.png".into())], Vec::new()),
        ("GET", "/v1/files/red.png") => (200, vec![("content-type", "image/png".into())], painted(64, 64, 0)),
        ("POST", "/v1/images/generations") => generated(dialect, &asked.json(), &[]),
        ("POST", "/v1/images/edits") if dialect == Dialect::LocalAi => {
            json_answer(404, &json!({ "error": "not found" }))
        }
        ("POST", "/v1/images/edits") => generated(dialect, &asked.fields(), &asked.files()),
        _ => json_answer(404, &json!({ "detail": "Not Found" })),
    }
}

/// Pictures as the documents of the dialect say; of one colour, which the seed chooses.
fn generated(dialect: Dialect, body: &Value, files: &[(String, Vec<u8>)]) -> Answer {
    if let Err(answer) = check(dialect, body, files) {
        return answer;
    }
    let number = |name: &str| match &body[name] {
        Value::String(text) => text.parse().ok(),
        value => value.as_u64(),
    };
    let (width, height) = body["size"].as_str().and_then(|size| size.split_once('x')).expect("a size");
    let (width, height) = (width.parse().expect("a width"), height.parse().expect("a height"));
    let n = number("n").unwrap_or(1);
    let seed = number("seed").unwrap_or(0);
    let png = |index| BASE64_STANDARD.encode(painted(width, height, seed + index));
    let data: Vec<_> = (0..n).map(|index| json!({ "b64_json": png(index) })).collect();
    json_answer(200, &json!({ "created": 1_795_262_400, "data": data, "usage": { "total_tokens": 1 } }))
}

fn check(dialect: Dialect, body: &Value, files: &[(String, Vec<u8>)]) -> Result<(), Answer> {
    let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
    let openai = |message: &str, param: &str, code: &str| {
        Err(json_answer(400, &openai_error(message, "invalid_request_error", Some(param), Some(code))))
    };
    let fastapi = |field: &str, message: &str| {
        let fault = json!({ "loc": ["body", field], "msg": message, "type": "value_error", "input": body["prompt"] });
        Err(json_answer(422, &json!({ "detail": [fault] })))
    };
    match dialect {
        Dialect::OpenAi => {
            let known =
                ["prompt", "model", "n", "size", "output_format", "quality", "background", "moderation", "user"];
            let unknown = body.as_object().expect("an object").keys().find(|name| !known.contains(&name.as_str()));
            if let Some(name) = unknown {
                return openai(&format!("Unknown parameter: '{name}'."), name, "unknown_parameter");
            }
            if !["1024x1024", "1536x1024", "1024x1536"].contains(&body["size"].as_str().unwrap_or_default()) {
                return openai("Invalid size", "size", "invalid_value");
            }
            match names.iter().all(|name| ["image[]", "mask"].contains(name)) {
                true => Ok(()),
                false => openai("Invalid image", "image", "invalid_value"),
            }
        }
        Dialect::VllmOmni if body["response_format"] != "b64_json" => fastapi("response_format", "b64_json or file"),
        Dialect::VllmOmni if names.iter().any(|name| !["image", "mask_image"].contains(name)) => {
            fastapi("image", "field required")
        }
        Dialect::VllmOmni if !body["model"].is_null() && body["model"] != "m" => {
            Err(json_answer(400, &json!({ "detail": "model mismatch" })))
        }
        Dialect::Sglang if names.iter().any(|name| !["image", "image[]"].contains(name)) => {
            fastapi("image", "field required")
        }
        Dialect::LocalAi if body["model"].is_null() => {
            Err(json_answer(500, &openai_error("Bad Request", "", None, None)))
        }
        Dialect::VllmOmni | Dialect::Sglang | Dialect::LocalAi => Ok(()),
    }
}

/// A PNG of one colour, never black.
pub fn painted(width: u32, height: u32, seed: u64) -> Vec<u8> {
    let colour = [200, (seed % 251) as u8, (seed / 251 % 251) as u8];
    let pixels = colour.repeat((width * height) as usize);
    Picture::from_rgb(width, height, pixels).expect("a picture").to_png()
}
