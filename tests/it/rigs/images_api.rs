//! A server with OpenAI's Images API, written from the documents of its profiles: it answers as they say, refuses what
//! they refuse, and misbehaves on demand.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tintype_engine::Picture;

use super::faulty_http::Double;
pub use super::faulty_http::{Asked, Reply, Then};

/// The documents that the server is written from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    VllmOmni,
    Sglang,
    LocalAi,
}

/// The server, until it is dropped. It is told what to reply to requests for pictures.
#[derive(Clone)]
pub struct ImagesServer {
    double: Double,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The reply to requests whose body contains this.
    poison: Option<(&'static str, Reply)>,
    probes_fail: bool,
    /// The reply at `/health`, of servers that have this route.
    health: Option<Reply>,
}

impl State {
    fn reply(&self, asked: &Asked) -> Option<Reply> {
        let posted = asked.method == "POST";
        let has = |word: &str| asked.body.windows(word.len()).any(|bytes| bytes == word.as_bytes());
        match (&self.poison, &self.health) {
            (Some((word, reply)), _) if posted && has(word) => Some(reply.clone()),
            (_, Some(reply)) if asked.path == "/health" => Some(reply.clone()),
            _ if !posted && self.probes_fail => Some(Reply::json(503, &json!({ "detail": "loading" }))),
            _ => None,
        }
    }
}

impl Deref for ImagesServer {
    type Target = Double;

    fn deref(&self) -> &Double {
        &self.double
    }
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
        let state: Arc<Mutex<State>> = Arc::default();
        let of_server = state.clone();
        let double = Double::on(address, move |asked| {
            let told = of_server.lock().unwrap().reply(asked);
            told.unwrap_or_else(|| documented(dialect, key, asked))
        });
        let double = double.await;
        Self { double, state }
    }

    pub fn engine(&self) -> String {
        format!("openai:{}", self.url())
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
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
        self.all().into_iter().filter(|asked| asked.method == "POST").collect()
    }

    /// All requests so far.
    pub fn all(&self) -> Vec<Asked> {
        self.double.asked()
    }
}

pub fn openai_error(message: &str, kind: &str, param: Option<&str>, code: Option<&str>) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
}

fn documented(dialect: Dialect, key: Option<&str>, asked: &Asked) -> Reply {
    let expected = key.map(|key| format!("Bearer {key}"));
    if expected.is_some() && asked.header("authorization") != expected.as_deref() {
        let error = openai_error("Incorrect API key.", "invalid_request_error", None, Some("invalid_api_key"));
        return Reply::json(401, &error);
    }
    match (asked.method.as_str(), asked.path.as_str()) {
        ("GET", "/health") if matches!(dialect, Dialect::VllmOmni | Dialect::Sglang) => Reply::status(200),
        ("GET", "/v1/models") => {
            Reply::json(200, &json!({ "object": "list", "data": [{ "id": "m", "object": "model" }] }))
        }
        ("GET", "/v1/files/moved.png") => Reply::Whole(302, vec![("location", "red.png".into())], Vec::new()),
        ("GET", "/v1/files/red.png") => {
            Reply::Whole(200, vec![("content-type", "image/png".into())], painted(64, 64, 0))
        }
        ("POST", "/v1/images/generations") => generated(dialect, &asked.json(), &[]),
        ("POST", "/v1/images/edits") if dialect == Dialect::LocalAi => {
            Reply::json(404, &json!({ "error": "not found" }))
        }
        ("POST", "/v1/images/edits") => generated(dialect, &asked.fields(), &asked.files()),
        _ => Reply::json(404, &json!({ "detail": "Not Found" })),
    }
}

/// Pictures as the documents of the dialect say; of one colour, which the seed chooses.
fn generated(dialect: Dialect, body: &Value, files: &[(String, Vec<u8>)]) -> Reply {
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
    Reply::json(200, &json!({ "created": 1_795_262_400, "data": data, "usage": { "total_tokens": 1 } }))
}

fn check(dialect: Dialect, body: &Value, files: &[(String, Vec<u8>)]) -> Result<(), Reply> {
    let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
    let openai = |message: &str, param: &str, code: &str| {
        Err(Reply::json(400, &openai_error(message, "invalid_request_error", Some(param), Some(code))))
    };
    let fastapi = |field: &str, message: &str| {
        let fault = json!({ "loc": ["body", field], "msg": message, "type": "value_error", "input": body["prompt"] });
        Err(Reply::json(422, &json!({ "detail": [fault] })))
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
            Err(Reply::json(400, &json!({ "detail": "model mismatch" })))
        }
        Dialect::Sglang if names.iter().any(|name| !["image", "image[]"].contains(name)) => {
            fastapi("image", "field required")
        }
        Dialect::LocalAi if body["model"].is_null() => {
            Err(Reply::json(500, &openai_error("Bad Request", "", None, None)))
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
