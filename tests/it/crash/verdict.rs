//! What must hold in the end, asked from outside: through the API, the files and the ledger.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tintype::clock::Clock;
use tintype::store::Store as _;
use tintype::tasks::OVERDUE;

use super::Tally;
use super::clients::Recorded;
use super::life::{Life, PUBLIC_URL};
use super::zombie::store_beside;
use crate::binary;
use crate::process::try_send;
use crate::support::TASKS;

/// Everything that should be zero, and what it is about.
#[derive(Debug, Default)]
pub struct Verdict {
    submits: u64,
    acknowledged: usize,
    tasks: usize,
    lost: Vec<String>,
    double_charges: Vec<String>,
    wrong_charges: Vec<String>,
    double_refunds: Vec<String>,
    missing_refunds: Vec<String>,
    refunded_but_not_failed: Vec<String>,
    dangling_urls: Vec<String>,
    refused_but_created: Vec<String>,
    unfinished: Vec<String>,
    drifts: Vec<String>,
    violations: Vec<String>,
}

impl Verdict {
    /// Asks a running server about everything.
    pub async fn of(life: &Life, keys: &[String], accounts: &[&str], recorded: &Arc<Recorded>, clock: &Clock) -> Self {
        let acknowledged = recorded.acknowledged.lock().expect("no panic").clone();
        let mut verdict = Self {
            submits: recorded.submits.load(Ordering::SeqCst),
            acknowledged: acknowledged.len(),
            ..Self::default()
        };
        for (index, (key, account)) in keys.iter().zip(accounts).enumerate() {
            let asked = clock.elapsed();
            let tasks = all_tasks(life, key).await;
            for task in tasks.values() {
                recorded.see(task, asked, clock);
                verdict.fetch_images(life, task).await;
            }
            let own = acknowledged.iter().filter(|(_, order)| order.account == index);
            for (task_id, order) in own {
                match tasks.get(task_id) {
                    None => verdict.lost.push(task_id.clone()),
                    Some(task) => verdict.count_images(task, order.n),
                }
            }
            verdict.read_ledger(&binary::json(&life.data, &["credits", "history", account]), &tasks);
            verdict.tasks += tasks.len();
        }
        verdict
    }

    fn count_images(&mut self, task: &Value, n: u64) {
        let images = task["images"].as_array().map_or(0, Vec::len) as u64;
        if task["status"] == "completed" && images != n {
            self.violations.push(format!("{n} images were ordered: {task}"));
        }
    }

    async fn fetch_images(&mut self, life: &Life, task: &Value) {
        let address = life.address().await.expect("it listens");
        for image in task["images"].as_array().into_iter().flatten() {
            let url = image["url"].as_str().expect("a URL");
            let path = url.strip_prefix(PUBLIC_URL).expect("our URL");
            let file = try_send(address, "GET", path, "", "").await.expect("an answer");
            let whole = file.body.starts_with(b"\x89PNG\r\n\x1a\n") && file.body.ends_with(b"IEND\xaeB`\x82");
            if file.status != 200 || !whole {
                self.dangling_urls.push(url.to_owned());
            }
        }
    }

    /// Matches the ledger of an account with its tasks.
    fn read_ledger(&mut self, history: &Value, tasks: &HashMap<String, Value>) {
        let (mut charged, mut refunded): (HashMap<&str, i64>, HashMap<&str, i64>) = Default::default();
        for entry in history.as_array().expect("entries") {
            let Some(task_id) = entry["task_id"].as_str() else { continue };
            let amount = entry["amount"].as_i64().expect("an amount");
            let (seen, again) = match entry["kind"].as_str() {
                Some("charge") => (&mut charged, &mut self.double_charges),
                _ => (&mut refunded, &mut self.double_refunds),
            };
            if seen.insert(task_id, amount).is_some() {
                again.push(task_id.to_owned());
            }
        }
        for (task_id, task) in tasks {
            let refund = refunded.get(task_id.as_str());
            let images = task["images"].as_array().map(|images| images.len() as i64);
            match charged.get(task_id.as_str()) {
                Some(charge) if images.is_none_or(|n| *charge == -2 * n) => {
                    if task["status"] == "failed" && refund != Some(&-charge) {
                        self.missing_refunds.push(task_id.clone());
                    }
                }
                charge => self.wrong_charges.push(format!("{task_id}: {charge:?}")),
            }
            if refund.is_some() && task["status"] != "failed" {
                self.refunded_but_not_failed.push(task_id.clone());
            }
        }
        let unknown = charged.keys().filter(|task_id| !tasks.contains_key(**task_id));
        self.wrong_charges.extend(unknown.map(|task_id| format!("{task_id}: no such task")));
    }

    /// Moves the clock by ten minutes, after the last process, and looks at what is left.
    pub async fn settle(mut self, data: &Path, recorded: &Recorded) -> Self {
        let now = Clock::system().now();
        let later = Clock::manual(now.saturating_add(Duration::from_secs(10 * 60)));
        let store = store_beside(data, later);
        let refused: HashSet<String> = recorded.refused.lock().expect("no panic").iter().cloned().collect();
        store.expire(now.saturating_add(Duration::from_secs(60)), OVERDUE).await.expect("a store");
        for task in store.recent_tasks(None, u32::MAX).await.expect("a store") {
            let record = store.inspect_task(task.id).await.expect("a store").expect("a task");
            if refused.contains(&record.request.prompt) {
                self.refused_but_created.push(record.request.prompt);
            }
            if !task.status.is_terminal() {
                self.unfinished.push(task.id.to_string());
            }
        }
        store.check_integrity().expect("a whole database");
        let audit = binary::run(data, ["credits", "audit", "--json"]);
        let audit: Value = serde_json::from_slice(&audit.stdout).expect("JSON");
        self.drifts.extend(audit["drifts"].as_array().expect("drifts").iter().map(Value::to_string));
        self.violations.extend(recorded.violations.lock().expect("no panic").drain(..));
        self
    }

    /// Prints the table, and fails unless everything is zero that should be.
    pub fn print_and_assert(&self, tally: &Tally) {
        let mut recoveries = tally.recoveries.clone();
        recoveries.sort();
        let at =
            |share: usize| recoveries.get((recoveries.len().max(1) - 1) * share / 100).copied().unwrap_or_default();
        let zeros: [(&str, &[String]); 11] = [
            ("acknowledged tasks lost", &self.lost),
            ("charged twice", &self.double_charges),
            ("charged wrongly", &self.wrong_charges),
            ("refunded twice", &self.double_refunds),
            ("failed but not refunded", &self.missing_refunds),
            ("refunded but not failed", &self.refunded_but_not_failed),
            ("dangling result URLs", &self.dangling_urls),
            ("refused but created", &self.refused_but_created),
            ("unfinished after 10 minutes", &self.unfinished),
            ("drifts found by the audit", &self.drifts),
            ("other broken promises", &self.violations),
        ];
        println!("SIGKILL at random moments        {}", tally.kills);
        println!("SIGKILL at named points          {}", tally.kills_at_points);
        println!("SIGTERM under load               {}", tally.stops);
        println!("stopped past the lease, resumed  {}", tally.zombies);
        println!("zombie writes attempted          {}", tally.zombie_writes_attempted);
        println!("zombie writes refused            {}", tally.zombie_writes_refused);
        println!("submits                          {}", self.submits);
        println!("acknowledged tasks               {}", self.acknowledged);
        println!("tasks                            {}", self.tasks);
        for (what, found) in zeros {
            println!("{what:<32} {}", found.len());
        }
        println!("from restart to first claim      median {:?}, 99% {:?}, longest {:?}", at(50), at(99), at(100));
        assert!(self.acknowledged > 0 && self.tasks >= self.acknowledged, "{self:?}");
        assert!(zeros.iter().all(|(_, found)| found.is_empty()), "{self:#?}");
        assert_eq!(tally.zombie_writes_attempted, tally.zombie_writes_refused);
    }
}

/// Every task of an account, page by page.
async fn all_tasks(life: &Life, key: &str) -> HashMap<String, Value> {
    let address = life.address().await.expect("it listens");
    let mut tasks = HashMap::new();
    let mut path = format!("{TASKS}?limit=100");
    loop {
        let page = try_send(address, "GET", &path, key, "").await.expect("an answer").json();
        for task in page["data"]["items"].as_array().expect("items") {
            tasks.insert(task["task_id"].as_str().expect("a task_id").to_owned(), task.clone());
        }
        match page["data"]["next_cursor"].as_str() {
            Some(cursor) => path = format!("{TASKS}?limit=100&cursor={cursor}"),
            None => return tasks,
        }
    }
}
