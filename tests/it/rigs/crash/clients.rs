//! Callers that use the service while it crashes, and record every answer.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};
use tintype_system::clock::Clock;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::editors::Editor;
use super::visitors::Visitor;
use crate::rigs::http::{Answer, GENERATE, TASKS, try_send};

/// Concurrent callers per account.
const CALLERS: usize = 3;

#[derive(Debug, Clone, Copy)]
pub struct Manners {
    /// Pause between two calls of one caller.
    pub rest: Duration,
    /// Whether reads may be answered with 500, because the database goes away too.
    pub patient: bool,
}

/// All answers that callers got.
#[derive(Debug, Default)]
pub struct Recorded {
    /// Number of submits, which also numbers the prompts.
    pub submits: AtomicU64,
    pub acknowledged: Mutex<HashMap<String, Order>>,
    /// Prompts of submits that were refused with 402 or 429.
    pub refused: Mutex<HashSet<String>>,
    /// Prompts of submits that were answered with 500.
    pub broken: Mutex<HashSet<String>>,
    /// Reads that were answered with 500.
    pub unread: AtomicU64,
    /// Terminal tasks as they were first seen, and the time.
    pub ended: Mutex<HashMap<String, (Duration, Value)>>,
    pub violations: Mutex<Vec<String>>,
}

#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub account: usize,
    pub n: u64,
}

impl Recorded {
    /// Records a task as an answer showed it to a caller that asked at `asked`, and any violation in it. An answer that
    /// was under way while the task ended may show the older state.
    pub fn see(&self, task: &Value, asked: Duration, clock: &Clock) {
        let task_id = task["task_id"].as_str().expect("a task_id").to_owned();
        let terminal = task["status"] != "processing";
        let mut ended = self.ended.lock().expect("no panic");
        match ended.get(&task_id) {
            Some((at, before)) if before != task && (terminal || *at < asked) => {
                self.violation(format!("a terminal task changed: {before} {task}"));
            }
            Some(_) => {}
            None if terminal => drop(ended.insert(task_id, (clock.elapsed(), task.clone()))),
            None => {}
        }
    }

    pub fn violation(&self, what: String) {
        self.violations.lock().expect("no panic").push(what);
    }
}

/// The callers, which run until they are stopped.
pub struct Clients {
    callers: JoinSet<()>,
    servers: Arc<watch::Sender<Vec<SocketAddr>>>,
    stop: CancellationToken,
}

impl Clients {
    pub fn start(keys: &[String], manners: Manners, recorded: &Arc<Recorded>, clock: &Clock) -> Self {
        let (servers, addresses) = watch::channel(Vec::new());
        let stop = CancellationToken::new();
        let mut callers = JoinSet::new();
        for (account, key) in keys.iter().enumerate() {
            for _ in 0..CALLERS {
                let caller = Caller {
                    account,
                    key: key.clone(),
                    servers: addresses.clone(),
                    manners,
                    recorded: recorded.clone(),
                    clock: clock.clone(),
                    own: Vec::new(),
                };
                callers.spawn(caller.run(stop.clone()));
            }
        }
        Self { callers, servers: Arc::new(servers), stop }
    }

    /// Has people use the studio of the first server, too.
    pub fn join(&mut self, visitors: Vec<Visitor>, manners: Manners, recorded: &Arc<Recorded>) {
        for visitor in visitors {
            let servers = self.servers.subscribe();
            self.callers.spawn(visitor.run(servers, manners, recorded.clone(), self.stop.clone()));
        }
    }

    /// Has callers of OpenAI's API use the first server, too.
    pub fn join_editors(&mut self, keys: &[String], manners: Manners, recorded: &Arc<Recorded>) {
        for (account, key) in keys.iter().enumerate() {
            let editor = Editor { account, key: key.clone() };
            self.callers.spawn(editor.run(self.servers.subscribe(), manners, recorded.clone(), self.stop.clone()));
        }
    }

    /// Sends the callers to a process once it listens.
    pub fn meet(&self, address: impl Future<Output = Option<SocketAddr>> + Send + 'static) {
        self.turn_to(Vec::new());
        let servers = self.servers.clone();
        tokio::spawn(async move { servers.send_replace(address.await.into_iter().collect()) });
    }

    pub fn turn_to(&self, addresses: Vec<SocketAddr>) {
        self.servers.send_replace(addresses);
    }

    /// Waits until the callers have an address.
    pub async fn met(&self) {
        let met = self.servers.subscribe().wait_for(|servers| !servers.is_empty()).await.map(drop);
        met.expect("the sender is ours");
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.callers.join_all().await;
    }
}

struct Caller {
    account: usize,
    key: String,
    servers: watch::Receiver<Vec<SocketAddr>>,
    manners: Manners,
    recorded: Arc<Recorded>,
    clock: Clock,
    /// Its tasks that it has not yet seen in a terminal state.
    own: Vec<String>,
}

impl Caller {
    async fn run(mut self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            let address = self.servers.borrow().choose(&mut rand::rng()).copied();
            if let Some(address) = address {
                match rand::random_range(0..10) {
                    0..4 => self.submit(address).await,
                    4..9 => self.poll(address).await,
                    _ => self.list(address).await,
                }
            }
            tokio::time::sleep(self.manners.rest).await;
        }
    }

    async fn submit(&mut self, address: SocketAddr) {
        let number = self.recorded.submits.fetch_add(1, Ordering::SeqCst);
        let manner = ["", "", "[[fail]]", "[[policy]]", "[[panic]]", "[[delay 300ms]]"][rand::random_range(0..6)];
        let n = if rand::random_ratio(1, 5) { 2 } else { 1 };
        let prompt = format!("boat number {number} {manner}");
        let body = json!({ "prompt": prompt, "n": n }).to_string();
        // Without an answer the task may exist, as the interface says.
        let Some(answer) = try_send(address, "POST", GENERATE, &self.key, &body).await else { return };
        match answer.status.as_u16() {
            200 => {
                let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
                let order = Order { account: self.account, n };
                let known = self.recorded.acknowledged.lock().expect("no panic").insert(task_id.clone(), order);
                assert!(known.is_none(), "{task_id} was given twice");
                self.own.push(task_id);
            }
            402 | 429 => drop(self.recorded.refused.lock().expect("no panic").insert(prompt)),
            500 => drop(self.recorded.broken.lock().expect("no panic").insert(prompt)),
            _ => self.recorded.violation(format!("{answer:?}")),
        }
    }

    async fn poll(&mut self, address: SocketAddr) {
        if self.own.is_empty() {
            return;
        }
        let one = rand::random_range(0..self.own.len());
        let path = format!("{TASKS}/{}", self.own[one]);
        let asked = self.clock.elapsed();
        let Some(answer) = self.read(address, &path).await else { return };
        let task = &answer.json()["data"];
        self.recorded.see(task, asked, &self.clock);
        if task["status"] != "processing" && rand::random_ratio(1, 2) {
            self.own.swap_remove(one);
        }
    }

    async fn list(&mut self, address: SocketAddr) {
        let path = format!("{TASKS}?limit=50");
        let asked = self.clock.elapsed();
        let Some(answer) = self.read(address, &path).await else { return };
        for task in answer.json()["data"]["items"].as_array().into_iter().flatten() {
            self.recorded.see(task, asked, &self.clock);
        }
    }

    async fn read(&self, address: SocketAddr, path: &str) -> Option<Answer> {
        let answer = try_send(address, "GET", path, &self.key, "").await?;
        match answer.status.as_u16() {
            200 => return Some(answer),
            500 if self.manners.patient => drop(self.recorded.unread.fetch_add(1, Ordering::SeqCst)),
            _ => self.recorded.violation(format!("{path}: {answer:?}")),
        }
        None
    }
}
