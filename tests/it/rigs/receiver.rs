//! A receiver of webhooks, which writes down what it is sent and answers as it is told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::{HeaderMap, HeaderName, HeaderValue};
use standardwebhooks::{Webhook, WebhookError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

pub use super::faulty_http::{Asked, Reply};
use super::faulty_http::{answer, read};
use super::wait::in_time;

/// The receiver, until it is dropped.
#[derive(Clone)]
pub struct Receiver {
    pub address: SocketAddr,
    replies: Arc<Mutex<Replies>>,
    heard: watch::Receiver<Vec<Asked>>,
    _stop: Arc<DropGuard>,
}

struct Replies {
    next: VecDeque<Reply>,
    usual: Reply,
}

/// A secret in the URL of each endpoint here.
pub const TOKEN: &str = "token-5f4dcc3b";

/// An answer with this status and no body.
pub fn status(status: u16) -> Reply {
    Reply::Whole(status, Vec::new(), Vec::new())
}

impl Receiver {
    /// Answers 204 unless it is told otherwise.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let (told, heard) = watch::channel(Vec::new());
        let replies = Arc::new(Mutex::new(Replies { next: VecDeque::new(), usual: status(204) }));
        let (told, of_receiver) = (Arc::new(told), replies.clone());
        let _stop = Arc::new(stop.clone().drop_guard());
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                tokio::spawn(serve(stream, of_receiver.clone(), told.clone()));
            }
        }));
        Self { address, replies, heard, _stop }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hooks?token={TOKEN}", self.address)
    }

    /// The replies to the next requests, in order.
    pub fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.replies.lock().unwrap().next.extend(replies);
    }

    pub fn always(&self, reply: Reply) {
        self.replies.lock().unwrap().usual = reply;
    }

    /// The requests so far.
    pub fn heard(&self) -> Vec<Asked> {
        self.heard.borrow().clone()
    }

    /// Waits for `count` requests, and returns all.
    pub async fn hears(&self, count: usize) -> Vec<Asked> {
        let mut heard = self.heard.clone();
        let waiting = heard.wait_for(|heard| heard.len() >= count);
        in_time(format!("there were not {count} requests"), waiting).await.expect("the receiver is there").clone()
    }

    /// The bodies so far, as JSON.
    pub fn bodies(&self) -> Vec<serde_json::Value> {
        self.heard().iter().map(Asked::json).collect()
    }
}

async fn serve(mut stream: TcpStream, replies: Arc<Mutex<Replies>>, told: Arc<watch::Sender<Vec<Asked>>>) {
    let Some(asked) = read(&mut stream).await else { return };
    let reply = {
        let mut replies = replies.lock().unwrap();
        replies.next.pop_front().unwrap_or_else(|| replies.usual.clone())
    };
    told.send_modify(|heard| heard.push(asked));
    answer(stream, reply).await;
}

/// Verifies a request with the official library, which also looks at the time.
pub fn verify(asked: &Asked, secret: &str) -> Result<(), WebhookError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &asked.headers {
        headers.insert(HeaderName::try_from(name).expect("a name"), HeaderValue::try_from(value).expect("a value"));
    }
    Webhook::new(secret)?.verify(&asked.body, &headers)
}
