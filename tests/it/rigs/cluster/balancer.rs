//! A load balancer that probes the readiness of each node, and callers behind it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::node::HANG;
use crate::rigs::http::{GENERATE, TASKS, try_send};

/// Interval of the readiness probes of one node.
const PROBE: Duration = Duration::from_millis(50);
/// Pause between two calls of one caller.
const REST: Duration = Duration::from_millis(40);
/// Limit of unfinished tasks of one caller. It keeps the queue short on a slow machine.
const MOST_UNFINISHED: usize = 10;

/// The results that callers saw.
#[derive(Debug, Default)]
pub struct Met {
    pub requests: AtomicU64,
    /// Requests that were not answered with 200.
    pub failed: Mutex<Vec<String>>,
    pub tasks: Mutex<Vec<String>>,
}

/// Sends callers to nodes that are ready.
#[derive(Default)]
pub struct Balancer {
    /// One probing task per node, so that none waits for another.
    asking: Mutex<HashMap<SocketAddr, AbortOnDropHandle<()>>>,
    ready: watch::Sender<Vec<SocketAddr>>,
}

impl Balancer {
    pub fn start(nodes: Vec<SocketAddr>) -> Arc<Self> {
        let balancer = Arc::new(Self::default());
        nodes.into_iter().for_each(|node| balancer.add(node));
        balancer
    }

    pub fn add(&self, node: SocketAddr) {
        let asking = tokio::spawn(ask(node, self.ready.clone()));
        self.asking.lock().expect("no panic").insert(node, AbortOnDropHandle::new(asking));
    }

    pub fn replace(&self, old: SocketAddr, new: SocketAddr) {
        drop(self.asking.lock().expect("no panic").remove(&old));
        self.add(new);
    }

    /// Waits until this number of nodes is ready.
    pub async fn until_ready(&self, count: usize) {
        let mut ready = self.ready.subscribe();
        let waiting = ready.wait_for(|ready| ready.len() == count);
        drop(tokio::time::timeout(HANG, waiting).await.expect("nodes become ready").expect("the sender is ours"));
    }

    /// One caller: submits tasks and polls them until they end, on connections that it keeps alive.
    async fn call(self: Arc<Self>, key: String, met: Arc<Met>, stop: CancellationToken) {
        let mut kept: Option<(SocketAddr, Kept)> = None;
        let (mut unfinished, mut ended) = (Vec::<String>::new(), Vec::new());
        while !stop.is_cancelled() {
            let ready = self.ready.borrow().clone();
            let Some(&node) = ready.choose(&mut rand::rng()) else {
                met.failed.lock().expect("no panic").push("no node is ready".to_owned());
                tokio::time::sleep(REST).await;
                continue;
            };
            // As a balancer does, reuse a connection only if it is open and its node is ready.
            let reusable =
                kept.take().filter(|(to, kept)| ready.contains(to) && kept.is_open() && rand::random_ratio(3, 4));
            let (to, mut connection) = match reusable {
                Some(kept) => kept,
                None => (node, Kept::open(node).await),
            };
            let polls = unfinished.len() >= MOST_UNFINISHED || rand::random_ratio(3, 4);
            let poll = unfinished.choose(&mut rand::rng()).filter(|_| polls).cloned();
            let answer = match &poll {
                None => connection.send(&key, "POST", GENERATE, json!({ "prompt": "a boat" }).to_string()).await,
                Some(task_id) => connection.send(&key, "GET", &format!("{TASKS}/{task_id}"), String::new()).await,
            };
            met.requests.fetch_add(1, Ordering::SeqCst);
            match answer {
                Ok((200, answer)) => {
                    match poll {
                        None => unfinished.push(answer["data"]["task_id"].as_str().expect("a task_id").to_owned()),
                        Some(task_id) if answer["data"]["status"] != "processing" => {
                            unfinished.retain(|one| *one != task_id);
                            ended.push(task_id);
                        }
                        Some(_) => {}
                    }
                    kept = Some((to, connection));
                }
                failed => met.failed.lock().expect("no panic").push(format!("{to}: {failed:?}")),
            }
            tokio::time::sleep(REST).await;
        }
        met.tasks.lock().expect("no panic").extend(ended.into_iter().chain(unfinished));
    }

    /// Starts callers, which run until they are stopped.
    pub fn callers(self: &Arc<Self>, keys: &[String], met: &Arc<Met>, stop: &CancellationToken) -> JoinSet<()> {
        keys.iter().map(|key| self.clone().call(key.clone(), met.clone(), stop.clone())).collect()
    }
}

/// Probes the readiness of a node forever.
async fn ask(node: SocketAddr, ready: watch::Sender<Vec<SocketAddr>>) {
    loop {
        let answer = try_send(node, "GET", "/readyz", "", "").await;
        let is_ready = answer.is_some_and(|answer| answer.status == 200);
        ready.send_modify(|ready| {
            ready.retain(|one| *one != node);
            ready.extend(is_ready.then_some(node));
        });
        tokio::time::sleep(PROBE).await;
    }
}

/// A keep-alive connection.
struct Kept(Option<SendRequest<Full<Bytes>>>);

impl Kept {
    async fn open(node: SocketAddr) -> Self {
        let Ok(stream) = TcpStream::connect(node).await else { return Self(None) };
        let Ok((sender, connection)) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await else {
            return Self(None);
        };
        tokio::spawn(connection);
        Self(Some(sender))
    }

    fn is_open(&self) -> bool {
        self.0.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    async fn send(&mut self, key: &str, method: &str, path: &str, body: String) -> Result<(u16, Value), String> {
        let sender = self.0.as_mut().ok_or("no connection")?;
        let request = Request::builder().method(method).uri(path).header("host", "images.test");
        let request = request.header("authorization", format!("Bearer {key}"));
        let request = request.header("content-type", "application/json").body(Full::new(Bytes::from(body)));
        let answer = sender.send_request(request.expect("a request")).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        // After this a connection that the server closes reports itself as closed.
        drop(sender.ready().await);
        Ok((status, serde_json::from_slice(&body).map_err(|error| error.to_string())?))
    }
}
