//! The final check of every promise from outside: through the API, the files and the ledger.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tintype::service::endings::OVERDUE;
use tintype_domain::model::Status;
use tintype_system::clock::Clock;

use super::ACCOUNTS;
use super::clients::Recorded;
use super::process_run::PUBLIC_URL;
use super::visitors::tasks_of_studio;
use crate::rigs::binary::Ran as _;
use crate::rigs::http::{TASKS, try_send};
use crate::rigs::installation::Installation;

/// Counts that must be zero, each with its meaning.
#[derive(Debug, Default)]
pub struct Verdict {
    submits: u64,
    /// Submits that were answered with 500.
    broken: usize,
    /// Reads that were answered with 500.
    unread: u64,
    acknowledged: usize,
    tasks: usize,
    pub of_studio: usize,
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
    /// Ends of tasks of which a receiver was not told, or not as it should have been.
    pub untold: Vec<String>,
    violations: Vec<String>,
}

impl Verdict {
    /// Compares a running server with the recorded answers.
    pub async fn of(
        installation: &Installation,
        server: SocketAddr,
        keys: &[String],
        recorded: &Recorded,
        clock: &Clock,
    ) -> Self {
        let acknowledged = recorded.acknowledged.lock().expect("no panic").clone();
        let mut verdict = Self {
            submits: recorded.submits.load(Ordering::SeqCst),
            acknowledged: acknowledged.len(),
            ..Self::default()
        };
        let store = installation.store(Clock::system()).await;
        for (index, (key, account)) in keys.iter().zip(ACCOUNTS).enumerate() {
            let asked = clock.elapsed();
            let mut tasks = all_tasks(server, key).await;
            let of_studio = tasks_of_studio(&store, account).await;
            verdict.of_studio += of_studio.len();
            tasks.extend(of_studio);
            for task in tasks.values() {
                recorded.see(task, asked, clock);
                verdict.fetch_images(server, task).await;
            }
            let own = acknowledged.iter().filter(|(_, order)| order.account == index);
            for (task_id, order) in own {
                match tasks.get(task_id) {
                    None => verdict.lost.push(task_id.clone()),
                    Some(task) => verdict.count_images(task, order.n),
                }
            }
            verdict.read_ledger(&installation.json(&["credits", "history", account]), &tasks);
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

    async fn fetch_images(&mut self, server: SocketAddr, task: &Value) {
        for image in task["images"].as_array().into_iter().flatten() {
            let url = image["url"].as_str().expect("a URL");
            let path = url.strip_prefix(PUBLIC_URL).expect("our URL");
            let file = try_send(server, "GET", path, "", "").await.expect("an answer");
            let whole = file.body.starts_with(b"\x89PNG\r\n\x1a\n") && file.body.ends_with(b"IEND\xaeB`\x82");
            if file.status != 200 || !whole {
                self.dangling_urls.push(url.to_owned());
            }
        }
    }

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

    /// After the last process, moves the clock by ten minutes and checks that nothing is unfinished.
    pub async fn settle(mut self, installation: &Installation, recorded: &Recorded) -> Self {
        let now = Clock::system().now();
        let later = Clock::manual(now.saturating_add(Duration::from_secs(10 * 60)));
        let store = installation.store(later).await;
        let refused = recorded.refused.lock().expect("no panic").clone();
        let broken = recorded.broken.lock().expect("no panic").clone();
        self.broken = broken.len();
        self.unread = recorded.unread.load(Ordering::SeqCst);
        store.expire(now.saturating_add(Duration::from_secs(60)), OVERDUE).await.expect("a store");
        for task in store.recent_tasks(None, u32::MAX).await.expect("a store") {
            let record = store.inspect_task(task.id).await.expect("a store").expect("a task");
            // A submit answered with 500 may have created a task that failed; its refund is checked with all others.
            let failed = matches!(task.status, Status::Failed(_));
            if refused.contains(&record.request.prompt) || broken.contains(&record.request.prompt) && !failed {
                self.refused_but_created.push(record.request.prompt);
            }
            if !task.status.is_terminal() {
                self.unfinished.push(task.id.to_string());
            }
        }
        let audit = installation.run(&["credits", "audit", "--files", "--json"]).json();
        self.drifts.extend(audit["drifts"].as_array().expect("drifts").iter().map(Value::to_string));
        self.violations.extend(recorded.violations.lock().expect("no panic").drain(..));
        self
    }

    /// Prints the table and fails unless every such count is zero.
    pub fn print_and_assert(&self, tally: &impl Display) {
        let zeros: [(&str, &[String]); 12] = [
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
            ("ends of tasks not told", &self.untold),
            ("other broken promises", &self.violations),
        ];
        println!("{tally}");
        println!("submits                          {}", self.submits);
        println!("submits answered with 500        {}", self.broken);
        println!("reads answered with 500          {}", self.unread);
        println!("acknowledged tasks               {}", self.acknowledged);
        println!("tasks                            {}", self.tasks);
        println!("tasks of the studio              {}", self.of_studio);
        for (what, found) in zeros {
            println!("{what:<32} {}", found.len());
        }
        assert!(self.acknowledged > 0 && self.tasks >= self.acknowledged, "{self:?}");
        assert!(zeros.iter().all(|(_, found)| found.is_empty()), "{self:#?}");
    }
}

/// Every task of an account, page by page.
async fn all_tasks(server: SocketAddr, key: &str) -> HashMap<String, Value> {
    let mut tasks = HashMap::new();
    let mut path = format!("{TASKS}?limit=100");
    loop {
        let page = try_send(server, "GET", &path, key, "").await.expect("an answer").json();
        for task in page["data"]["items"].as_array().expect("items") {
            tasks.insert(task["task_id"].as_str().expect("a task_id").to_owned(), task.clone());
        }
        match page["data"]["next_cursor"].as_str() {
            Some(cursor) => path = format!("{TASKS}?limit=100&cursor={cursor}"),
            None => return tasks,
        }
    }
}
