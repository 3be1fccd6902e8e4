//! HTTP by hand, for servers that misbehave: they can break off anywhere.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::wait::{in_time, listen_again};

/// The next thing that a server does with a request.
#[derive(Debug, Clone)]
pub enum Reply {
    /// Answers as the server's documents say.
    Documented,
    /// Sends this status, these headers and this body.
    Whole(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Announces more bytes than it sends, and closes.
    Truncated(Vec<u8>),
    /// Sends this status, these headers and less of a body than it announces. Then it closes, or sends nothing more.
    Partial(u16, Vec<(&'static str, String)>, Vec<u8>, Then),
    /// Sends a head and one byte, and then nothing.
    Drip,
    /// Reads the request and closes.
    HangUp,
    /// Reads the request and never answers.
    Silence,
    /// Sends white space without end.
    Endless,
}

/// What follows the beginning of a body.
#[derive(Debug, Clone, Copy)]
pub enum Then {
    Close,
    Nothing,
}

impl Reply {
    /// An answer with this status and no body.
    pub fn status(status: u16) -> Self {
        Self::Whole(status, Vec::new(), Vec::new())
    }

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
    pub at: Instant,
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

    /// The fields of a form other than files.
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

/// A server, until it is dropped. It writes down what it is asked, and answers as it is told or else as its documents say.
#[derive(Clone)]
pub struct Double {
    pub address: SocketAddr,
    asked: watch::Receiver<Vec<Asked>>,
    replies: Arc<Mutex<Replies>>,
    _stop: Arc<DropGuard>,
}

/// Replies to requests with POST.
#[derive(Default)]
struct Replies {
    next: VecDeque<Reply>,
    usual: Option<Reply>,
}

impl Replies {
    fn to(&mut self, asked: &Asked) -> Reply {
        if asked.method != "POST" {
            return Reply::Documented;
        }
        self.next.pop_front().or_else(|| self.usual.clone()).unwrap_or(Reply::Documented)
    }
}

impl Double {
    pub async fn start(documented: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        Self::on("127.0.0.1:0".parse().expect("an address"), documented).await
    }

    /// A server at this address, where one may have listened before.
    pub async fn on(address: SocketAddr, documented: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = listen_again(address).await;
        let (stop, (notes, asked)) = (CancellationToken::new(), watch::channel(Vec::new()));
        let server = Self {
            address: listener.local_addr().expect("an address"),
            asked,
            replies: Arc::default(),
            _stop: Arc::new(stop.clone().drop_guard()),
        };
        let parts = Arc::new((server.replies.clone(), notes, documented));
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            loop {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let parts = parts.clone();
                tokio::spawn(async move {
                    let (replies, notes, documented) = &*parts;
                    let Some(asked) = read(&mut stream).await else { return };
                    let told = replies.lock().unwrap().to(&asked);
                    let reply = if matches!(told, Reply::Documented) { documented(&asked) } else { told };
                    notes.send_modify(|all| all.push(asked));
                    answer(stream, reply).await;
                });
            }
        }));
        server
    }

    /// The next replies to requests with POST, in order.
    pub fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.replies.lock().unwrap().next.extend(replies);
    }

    /// The reply to all further requests with POST.
    pub fn always(&self, reply: Reply) {
        self.replies.lock().unwrap().usual = Some(reply);
    }

    /// All requests so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.borrow().clone()
    }

    /// Waits for `count` requests, and returns all.
    pub async fn hears(&self, count: usize) -> Vec<Asked> {
        let mut asked = self.asked.clone();
        let waiting = asked.wait_for(|asked| asked.len() >= count);
        in_time(format!("there were not {count} requests"), waiting).await.expect("the server is there").clone()
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

/// Reads a request; `None` if the caller has gone.
pub async fn read(stream: &mut TcpStream) -> Option<Asked> {
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
    Some(Asked { method, path, headers, body, at: Instant::now() })
}

/// Sends a reply, and closes the connection.
pub async fn answer(mut stream: TcpStream, reply: Reply) {
    let (status, headers, body) = match reply {
        Reply::Documented => panic!("only the server knows its documents"),
        Reply::Whole(status, headers, body) => (status, headers, body),
        Reply::HangUp => return,
        Reply::Silence => return std::future::pending().await,
        Reply::Truncated(body) => return begin(stream, 200, Vec::new(), &body, Then::Close).await,
        Reply::Drip => return begin(stream, 200, Vec::new(), b"{", Then::Nothing).await,
        Reply::Partial(status, headers, body, then) => return begin(stream, status, headers, &body, then).await,
        Reply::Endless => {
            drop(stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await);
            let chunk = [b"100000\r\n".to_vec(), vec![b' '; 0x10_0000], b"\r\n".to_vec()].concat();
            while stream.write_all(&chunk).await.is_ok() {}
            return;
        }
    };
    let head = head(status, headers, body.len());
    drop(stream.write_all(&[head.as_bytes(), &body].concat()).await);
}

fn head(status: u16, headers: Vec<(&'static str, String)>, length: usize) -> String {
    let mut head = format!("HTTP/1.1 {status} Status\r\nconnection: close\r\ncontent-length: {length}\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head + "\r\n"
}

/// Sends the beginning of a longer reply.
async fn begin(mut stream: TcpStream, status: u16, headers: Vec<(&'static str, String)>, body: &[u8], then: Then) {
    let head = head(status, headers, body.len() + 100);
    drop(stream.write_all(&[head.as_bytes(), body].concat()).await);
    if matches!(then, Then::Nothing) {
        std::future::pending::<()>().await;
    }
}
