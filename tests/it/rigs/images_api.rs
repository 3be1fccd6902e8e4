//! A server with OpenAI's Images API, written from the documents of its profiles: it answers as they say, refuses what
//! they refuse, and misbehaves on demand. It speaks HTTP by hand, so that it can break off anywhere.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tintype_engine::Picture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The documents that the server is written from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    VllmOmni,
    Sglang,
    LocalAi,
}

/// The next thing that the server does with a request for pictures.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Answers as the documents say.
    Documented,
    /// Sends this status, these headers and this body.
    Whole(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Announces more bytes than it sends, and closes.
    Truncated(Vec<u8>),
    /// Sends a head and one byte, and then nothing.
    Drip,
    /// Reads the request and closes.
    HangUp,
    /// Reads the request and never answers.
    Silence,
    /// Sends white space without end.
    Endless,
}

impl Reply {
    /// An answer in JSON.
    pub fn json(status: u16, body: &Value) -> Self {
        Self::Whole(status, vec![("content-type", "application/json".into())], body.to_string().into_bytes())
    }

    /// An answer with this file as its only picture.
    pub fn file(bytes: &[u8]) -> Self {
        Self::json(200, &json!({ "created": 1, "data": [{ "b64_json": BASE64_STANDARD.encode(bytes) }] }))
    }
}

/// A request that the server received.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Asked {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The parts of a form: each with its name, its file name and its content.
    pub fn parts(&self) -> Vec<(String, Option<String>, Vec<u8>)> {
        let (_, boundary) = self.header("content-type").expect("a type").split_once("boundary=").expect("a boundary");
        let separator = format!("--{boundary}");
        let mut parts = Vec::new();
        for part in split(&self.body, separator.as_bytes()).into_iter().skip(1) {
            let Some(at) = find(part, b"\r\n\r\n") else { break };
            let head = String::from_utf8_lossy(&part[..at]).into_owned();
            let value = |name: &str| {
                let (_, rest) = head.split_once(&format!("{name}=\""))?;
                rest.split('"').next().map(str::to_owned)
            };
            parts.push((value("; name").expect("a name"), value("filename"), part[at + 4..part.len() - 2].to_vec()));
        }
        parts
    }

    /// The fields of a form that are no files.
    pub fn fields(&self) -> Value {
        let texts = self.parts().into_iter().filter(|(_, file, _)| file.is_none());
        texts.map(|(name, _, text)| (name, Value::from(String::from_utf8(text).expect("text")))).collect()
    }

    /// The names of the parts that are files, and the files.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let files = self.parts().into_iter().filter(|(_, file, _)| file.is_some());
        files.map(|(name, _, bytes)| (name, bytes)).collect()
    }
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    text.windows(wanted.len()).position(|window| window == wanted)
}

fn split<'a>(text: &'a [u8], separator: &[u8]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = find(rest, separator) {
        pieces.push(&rest[..at]);
        rest = &rest[at + separator.len()..];
    }
    pieces.push(rest);
    pieces
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
    probes_fail: bool,
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
        let listener = TcpListener::bind(address).await.expect("a port");
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

    /// The flag that names it.
    pub fn engine(&self) -> String {
        format!("openai:{}", self.url())
    }

    /// Its base URL.
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

    /// Whether its list of models answers 503 from now on.
    pub fn fail_probes(&self, fail: bool) {
        self.state.lock().unwrap().probes_fail = fail;
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
        match (posted, state.probes_fail) {
            (true, _) => state.replies.pop_front().or(state.usual.clone()).unwrap_or(Reply::Documented),
            (false, true) => Reply::json(503, &json!({ "detail": "loading" })),
            (false, false) => Reply::Documented,
        }
    };
    let (status, headers, body) = match reply {
        Reply::Documented => documented(dialect, key, &asked),
        Reply::Whole(status, headers, body) => (status, headers, body),
        Reply::HangUp => return,
        Reply::Silence => return std::future::pending().await,
        Reply::Truncated(body) => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len() + 100);
            drop(stream.write_all(&[head.as_bytes(), &body].concat()).await);
            return;
        }
        Reply::Drip => {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{").await);
            return std::future::pending().await;
        }
        Reply::Endless => {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await);
            let chunk = [b"100000\r\n".to_vec(), vec![b' '; 0x10_0000], b"\r\n".to_vec()].concat();
            while stream.write_all(&chunk).await.is_ok() {}
            return;
        }
    };
    let mut head = format!("HTTP/1.1 {status} Status\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    drop(stream.write_all(&[head.as_bytes(), b"\r\n", &body].concat()).await);
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = find(&bytes, b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).expect("a head in ASCII");
    let mut lines = head.lines();
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<_> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let length = headers
        .iter()
        .find(|(name, _)| name == "content-length")
        .map_or(0, |(_, value)| value.parse::<usize>().expect("a length"));
    let mut body = bytes.split_off(end);
    while body.len() < length {
        if stream.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some(Asked { method, path, headers, body })
}

type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

fn json_answer(status: u16, body: &Value) -> Answer {
    (status, vec![("content-type", "application/json".into())], body.to_string().into_bytes())
}

/// The error shape of OpenAI.
pub fn openai_error(message: &str, kind: &str, param: Option<&str>, code: Option<&str>) -> Value {
    json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
}

fn documented(dialect: Dialect, key: Option<&'static str>, asked: &Asked) -> Answer {
    let expected = key.map(|key| format!("Bearer {key}"));
    if expected.is_some() && asked.header("authorization") != expected.as_deref() {
        let error = openai_error("Incorrect API key", "invalid_request_error", None, Some("invalid_api_key"));
        return json_answer(401, &error);
    }
    match (asked.method.as_str(), asked.path.as_str()) {
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
            match names.iter().all(|name| *name == "image[]") {
                true => Ok(()),
                false => openai("Invalid image", "image", "invalid_value"),
            }
        }
        Dialect::VllmOmni if body["response_format"] != "b64_json" => fastapi("response_format", "b64_json or file"),
        Dialect::VllmOmni if names.iter().any(|name| *name != "image") => fastapi("image", "field required"),
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
