//! Concurrent callers of a real server that record every answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::rigs::binary::{self, Ran as _};
use crate::rigs::http::{Answer, GENERATE, TASKS, try_send};
use crate::rigs::wait::until;

/// Credits of each caller.
const CREDITS: i64 = 1_000;
/// Limit of unfinished tasks of one caller.
const MAX_OPEN: usize = 3;
/// Interval between two checks of a condition.
const MOMENT: Duration = Duration::from_millis(5);

pub struct Caller {
    account: String,
    key: String,
    tasks: Mutex<BTreeMap<String, Told>>,
}

/// A task as its caller knows it: its cost, and the task itself once it has ended.
#[derive(Debug, Clone)]
struct Told {
    credits: i64,
    ended: Option<Value>,
}

pub struct Crowd {
    callers: Vec<Caller>,
}

/// Contradictions to the recorded answers; all empty if nothing was lost.
#[derive(Debug, Default)]
pub struct Findings {
    pub lost: Vec<String>,
    pub mischarged: Vec<String>,
    pub changed: Vec<String>,
    /// Completed tasks with a missing or damaged image.
    pub dangling: Vec<String>,
    /// Findings of `credits audit` and of SQLite's integrity check.
    pub drifts: Vec<String>,
}

impl Findings {
    pub fn is_clean(&self) -> bool {
        [&self.lost, &self.mischarged, &self.changed, &self.dangling, &self.drifts].iter().all(|found| found.is_empty())
    }
}

impl Caller {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<String, Told>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits once, and records the task if it was acknowledged.
    pub async fn submit(&self, address: SocketAddr, prompt: &str, n: i64) -> Option<Answer> {
        let body = json!({ "prompt": prompt, "n": n }).to_string();
        let answer = try_send(address, "POST", GENERATE, &self.key, &body).await?;
        if answer.status == 200 {
            let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
            self.tasks().insert(task_id, Told { credits: 2 * n, ended: None });
        }
        Some(answer)
    }

    /// Polls a task, and records its end.
    pub async fn poll(&self, address: SocketAddr, task_id: &str) -> Option<Answer> {
        let answer = try_send(address, "GET", &format!("{TASKS}/{task_id}"), &self.key, "").await?;
        if answer.status == 200 {
            let task = answer.json()["data"].clone();
            if task["status"] != "processing"
                && let Some(told) = self.tasks().get_mut(task_id)
                && told.ended.is_none()
            {
                told.ended = Some(task);
            }
        }
        Some(answer)
    }

    /// Tasks that this caller has not yet seen in a terminal state.
    fn open(&self) -> Vec<String> {
        self.tasks().iter().filter(|(_, told)| told.ended.is_none()).map(|(task_id, _)| task_id.clone()).collect()
    }

    /// Submits and polls until it is stopped.
    async fn press(&self, address: SocketAddr, stop: &impl Fn() -> bool) {
        let mut turn = 0;
        while !stop() {
            let open = self.open();
            if open.len() < MAX_OPEN {
                turn += 1;
                // Some tasks have several files. A refused or unanswered submit loses nothing.
                self.submit(address, "a boat", if turn % 4 == 0 { 2 } else { 1 }).await;
            }
            for task_id in open {
                self.poll(address, &task_id).await;
            }
            tokio::time::sleep(MOMENT).await;
        }
    }

    /// Polls every task that was acknowledged.
    async fn poll_all(&self, address: SocketAddr) -> Vec<(String, Answer)> {
        let task_ids: Vec<String> = self.tasks().keys().cloned().collect();
        let mut answers = Vec::new();
        for task_id in task_ids {
            let answer = self.poll(address, &task_id).await.expect("the server answers");
            answers.push((task_id, answer));
        }
        answers
    }

    /// Every task, and the ledger read while none of them ended.
    async fn state(&self, address: SocketAddr, data: &Path) -> (Vec<(String, Answer)>, Value) {
        let states = |answers: &[(String, Answer)]| -> Vec<Value> {
            answers.iter().map(|(_, answer)| answer.json()["data"]["status"].clone()).collect()
        };
        let mut before = self.poll_all(address).await;
        loop {
            let history = binary::json(data, &["credits", "history", &self.account]);
            let after = self.poll_all(address).await;
            if states(&before) == states(&after) {
                return (after, history);
            }
            before = after;
        }
    }

    async fn check(&self, address: SocketAddr, data: &Path, findings: &mut Findings) {
        let tasks = self.tasks().clone();
        let (answers, history) = self.state(address, data).await;
        for (task_id, answer) in answers {
            let told = &tasks[&task_id];
            if answer.status == 404 {
                findings.lost.push(task_id);
                continue;
            }
            assert_eq!(answer.status, 200, "{answer:?}");
            let charges: Vec<i64> = entries(&history, &task_id, "charge");
            let refunds: Vec<i64> = entries(&history, &task_id, "refund");
            let task = answer.json()["data"].clone();
            let due = if task["status"] == "failed" { vec![told.credits] } else { vec![] };
            if charges != [-told.credits] || refunds != due {
                findings.mischarged.push(format!("{task_id} {charges:?} {refunds:?}"));
            }
            if told.ended.as_ref().is_some_and(|ended| essence(ended) != essence(&task)) {
                findings.changed.push(task_id.clone());
            }
            if task["status"] == "completed" && !images_are_whole(address, &task).await {
                findings.dangling.push(task_id);
            }
        }
    }
}

fn entries(history: &Value, task_id: &str, kind: &str) -> Vec<i64> {
    let entries = history.as_array().expect("entries").iter();
    let entries = entries.filter(|entry| entry["task_id"] == task_id && entry["kind"] == kind);
    entries.map(|entry| entry["amount"].as_i64().expect("an amount")).collect()
}

/// A task without the address of the server, which changes with each start.
fn essence(task: &Value) -> Vec<String> {
    let paths = urls(task).into_iter().map(|url| path(&url).to_owned());
    [task["status"].to_string(), task["updated_at"].to_string()].into_iter().chain(paths).collect()
}

fn urls(task: &Value) -> Vec<String> {
    let images = task["images"].as_array().into_iter().flatten();
    images.map(|image| image["url"].as_str().expect("a URL").to_owned()).collect()
}

fn path(url: &str) -> &str {
    &url[url.find("/files/").expect("our URL")..]
}

/// Whether the bytes are a PNG from its signature to its end, by its own checksums.
fn is_whole_png(bytes: &[u8]) -> bool {
    let Some(mut rest) = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n") else { return false };
    while let Some((length, chunk)) = rest.split_first_chunk() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some((chunk, after)) = chunk.split_at_checked(4 + length) else { return false };
        let Some((sum, after)) = after.split_first_chunk() else { return false };
        if crc32fast::hash(chunk) != u32::from_be_bytes(*sum) {
            return false;
        }
        if chunk.starts_with(b"IEND") {
            return after.is_empty();
        }
        rest = after;
    }
    false
}

async fn images_are_whole(address: SocketAddr, task: &Value) -> bool {
    for url in urls(task) {
        let answer = try_send(address, "GET", path(&url), "", "").await;
        if !answer.is_some_and(|answer| answer.status == 200 && is_whole_png(&answer.body)) {
            return false;
        }
    }
    true
}

impl Crowd {
    /// This number of callers, each with an account and a key of its own.
    pub fn new(data: &Path, count: usize) -> Self {
        let caller = |number| {
            let account = format!("caller-{number}");
            binary::json(data, &["account", "create", &account, "--credits", &CREDITS.to_string()]);
            let key = binary::json(data, &["key", "create", "--account", &account]);
            Caller { account, key: key["key"].as_str().expect("a key").to_owned(), tasks: Mutex::default() }
        };
        Self { callers: (0..count).map(caller).collect() }
    }

    pub fn caller(&self) -> &Caller {
        &self.callers[0]
    }

    /// The number of acknowledged tasks, and of those that were seen completed.
    pub fn told(&self) -> (usize, usize) {
        let all: Vec<Told> =
            self.callers.iter().flat_map(|caller| caller.tasks().values().cloned().collect::<Vec<_>>()).collect();
        let completed = |told: &&Told| told.ended.as_ref().is_some_and(|task| task["status"] == "completed");
        (all.len(), all.iter().filter(completed).count())
    }

    /// All callers use the server until they are stopped.
    pub async fn press(&self, address: SocketAddr, stop: impl Fn() -> bool) {
        futures::future::join_all(self.callers.iter().map(|caller| caller.press(address, &stop))).await;
    }

    /// Polls until every acknowledged task has ended.
    pub async fn finish(&self, address: SocketAddr) {
        for caller in &self.callers {
            until(async || {
                for task_id in caller.open() {
                    caller.poll(address, &task_id).await.expect("the server answers");
                }
                caller.open().is_empty()
            })
            .await;
        }
    }

    /// Compares the recorded answers with those of a server now.
    pub async fn check(&self, address: SocketAddr, data: &Path) -> Findings {
        let mut findings = Findings::default();
        for caller in &self.callers {
            caller.check(address, data, &mut findings).await;
        }
        let audit = binary::run(data, ["credits", "audit", "--json"]).json();
        findings.drifts.extend(audit["drifts"].as_array().expect("drifts").iter().map(Value::to_string));
        findings
    }
}

/// The result of SQLite's integrity check; the server must not run.
pub fn integrity(data: &Path) -> String {
    let connection = rusqlite::Connection::open(data.join("tintype.db")).expect("a database");
    connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("an answer")
}
