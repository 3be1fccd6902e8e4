//! Every point before and after a durable effect, with an error, a delay, and on one side a panic: the ledger always balances, and
//! every acknowledged task ends as the interface says.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::json;
use tempfile::NamedTempFile;
use tintype::worker::Worker;
use tintype_config::{LEASE, ORPHAN_AGE};
use tintype_domain::endpoint::AddedBy;
use tintype_domain::identity::Identity;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{Account, EntryKind, FailureCause, Id, Surface};
use tintype_domain::person::Role;
use tintype_domain::request::GenerateRequest;
use tintype_engine::picture::Picture;
use tintype_store::{
    AccountChange, Attachment, Call, CallEnd, Credential, DeleteSessions, KeyChange, NewKey, NewSharedLink, NewUpload,
    Reclaim, Result, SignUp, Submission, Target,
};
use tintype_system::clock::Timestamp;
use tintype_system::fault::{Effect, Point};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::rigs::http::{Answer, GENERATE, TASKS, try_send};
use crate::rigs::service::Service;
use crate::rigs::wait::{until, until_some};
use crate::webhooks;

/// A fault at these effects ends the process, so tests need the real program.
pub const OF_A_PROCESS: [Effect; 2] = [Effect::Commit, Effect::Checkpoint];

/// A service with one injected fault, in which every durable effect happens at least once.
struct Scene {
    service: Service,
    account: Account,
    key: String,
    acknowledged: Vec<String>,
    /// Submits that got no answer: each may exist and be charged.
    unanswered: usize,
}

/// Runs a step that a fault may fail, in a Tokio task that may panic.
async fn attempt(act: impl Future + Send + 'static) {
    let act = async move { drop(act.await) };
    drop(tokio::spawn(act).await);
}

impl Scene {
    async fn begin(fault: &str) -> Self {
        let policy = NamedTempFile::new().expect("a file");
        std::fs::write(&policy, "[strikes]\nlimit = 100\nwindow = \"1h\"").expect("a file");
        let policy_path = policy.path().to_str().expect("text");
        let flags = ["--test-fault", fault, "--drain-timeout", "0s", "--retention", "30d", "--policy", policy_path];
        let service = Service::start_with(&flags).await;
        let secret = KeySecret::random();
        // Repeats a failed step once, as a person would: a fault happens once.
        for _ in 0..2 {
            let (store, key) = (service.shared.store.clone(), NewKey::new(&KeySecret::random()));
            attempt(async move { store.create_first_account("default", 10, key).await }).await;
            let store = service.shared.store.clone();
            attempt(async move { store.create_account("ada", 100).await }).await;
        }
        let account = service.shared.store.find_account("ada").await.expect("a store").expect("an account");
        for _ in 0..2 {
            let (store, key) = (service.shared.store.clone(), NewKey::new(&secret));
            attempt(async move { store.create_key(account.id, key).await }).await;
        }
        Self { service, account, key: secret.reveal().to_owned(), acknowledged: Vec::new(), unanswered: 0 }
    }

    async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        let authorization = format!("Bearer {}", self.key);
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        self.service.call(method, path, &headers, body.to_owned()).await
    }

    async fn submit(&mut self, prompt: &str) {
        self.submit_with(prompt, 0).await;
    }

    async fn submit_with(&mut self, prompt: &str, references: usize) {
        let references = vec!["https://pictures.example.com/a.png"; references];
        let body = json!({ "prompt": prompt, "reference_images": references }).to_string();
        let Some(answer) = try_send(self.service.address, "POST", GENERATE, &self.key, &body).await else {
            self.unanswered += 1;
            return;
        };
        match answer.status {
            StatusCode::OK => {
                self.acknowledged.push(answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned());
            }
            _ => {
                answer.assert_error(500, "INTERNAL_ERROR");
            }
        }
    }

    /// Administrative commands beside the running service.
    async fn administer(&self) {
        let (key, _) = self.service.new_key(self.account.id, |_| {}).await;
        let (store, account) = (self.service.shared.store.clone(), self.account.id);
        attempt(async move { store.change_key(key, KeyChange::FlagLeaked).await }).await;
        let (store, secret) = (self.service.shared.store.clone(), KeySecret::random());
        attempt(async move { store.rotate_key(key, secret.hash(), &secret.hint(), Duration::ZERO).await }).await;
        let store = self.service.shared.store.clone();
        attempt(async move { store.grant(account, 10, None, None).await }).await;
        let (store, sweeper) = (self.service.shared.store.clone(), self.service.sweeper.clone());
        attempt(async move { store.grant(account, 10, None, Some(store.now())).await }).await;
        attempt(async move { sweeper.expire_grants().await }).await;
        let store = self.service.shared.store.clone();
        attempt(async move { store.change_account(account, AccountChange::Enable).await }).await;
        let store = self.service.shared.store.clone();
        // Of another account than that whose tasks are counted.
        attempt(async move {
            let Some(first) = store.find_account("default").await? else { return Ok(()) };
            let request = GenerateRequest::new("a boat");
            if let Submission::Accepted(task) = store.submit(first.id, None, Surface::Web, request, 0).await? {
                store.cancel(first.id, Surface::Web, task.id, None, "Cancelled.").await?;
            }
            Result::Ok(())
        })
        .await;
        let store = self.service.shared.store.clone();
        attempt(async move { store.create_person(account, "grace", Role::Owner).await }).await;
        let store = self.service.shared.store.clone();
        attempt(async move { store.create_link(account, [7; 32], Timestamp::MAX).await }).await;
        let store = self.service.shared.store.clone();
        attempt(async move { store.delete_sessions(DeleteSessions::Expired).await }).await;
        let new = SignUp {
            name: "eve".into(),
            credential: Credential::Password(String::new()),
            credits: 5,
            source: "192.0.2.7".into(),
            limit: 3,
        };
        let store = self.service.shared.store.clone();
        attempt(async move { store.sign_up(new).await }).await;
        let (store, identity) = (self.service.shared.store.clone(), Identity::new("https://id.example.com", "eve"));
        attempt(async move {
            let (Some(identity), Some(eve)) = (identity, store.find_person("eve").await?) else { return Ok(()) };
            store.link_identity(eve.person.id, &identity).await?;
            Result::Ok(())
        })
        .await;
        self.upload().await;
        self.call_again().await;
        self.arrange().await;
        self.tell().await;
    }

    /// An endpoint that nobody reaches, which is told of the tasks that follow, and tried.
    async fn tell(&self) {
        let (store, account) = (self.service.shared.store.clone(), self.account.id);
        attempt(async move { webhooks::add(&store, account, "https://10.0.0.1/", AddedBy::Owner).await }).await;
        for endpoint in self.service.shared.store.list_endpoints(None).await.expect("a store") {
            let store = self.service.shared.store.clone();
            attempt(async move { store.test_endpoint(endpoint.id).await }).await;
        }
        let deliverer = self.service.deliverer.clone();
        attempt(async move { deliverer.step().await }).await;
        let sweeper = self.service.sweeper.clone();
        attempt(async move { sweeper.delete_expired().await }).await;
    }

    /// A call of OpenAI's dialect that is repeated, and delivers nothing.
    async fn call_again(&self) {
        let (store, key_id) = (self.service.shared.store.clone(), self.account.id);
        let call = Call { digest: [7; 32], attempt: 1, counted: true, holder: 1, ..Call::default() };
        attempt(async move {
            if let Attachment::Task(id) = store.attach_call(key_id, call).await? {
                store.end_call(id, call.holder, CallEnd::HungUp).await?;
            }
            Result::Ok(())
        })
        .await;
        let store = self.service.shared.store.clone();
        attempt(async move { store.end_call(key_id, 1, CallEnd::HungUp).await }).await;
    }

    /// Indexes, marks, deletes and restores a task of the studio, and deletes it again.
    async fn arrange(&self) {
        let sweeper = self.service.sweeper.clone();
        attempt(async move { sweeper.index_prompts().await }).await;
        let store = self.service.shared.store.clone();
        let Some(first) = store.find_account("default").await.expect("a store").map(|account| account.id) else {
            return;
        };
        let tasks = store.list_task_ids(first, Surface::Web, None, 10).await.expect("a store");
        let people = store.list_people(Some(first)).await.expect("a store");
        let person = people.first().map_or(first, |person| person.id);
        attempt(async move { store.create_board(first, None, "boats", 10).await }).await;
        let (store, starred) = (self.service.shared.store.clone(), tasks.clone());
        attempt(async move { store.star_tasks(first, person, &starred, true).await }).await;
        let store = self.service.shared.store.clone();
        let target = tasks.first().map_or(Target::Board(first), |task| Target::Task(*task));
        let (end, account_id) = (Some(store.now()), first);
        let link = NewSharedLink { account_id, person_id: person, target, with_prompts: false, expires_at: end };
        attempt(async move { store.create_shared_link(link, 10).await }).await;
        let sweeper = self.service.sweeper.clone();
        attempt(async move { sweeper.delete_expired().await }).await;
        for _ in 0..2 {
            let (store, deleted) = (self.service.shared.store.clone(), tasks.clone());
            attempt(async move { store.delete_tasks(first, &deleted, None).await }).await;
            let (store, restored) = (self.service.shared.store.clone(), tasks.clone());
            attempt(async move { store.restore_tasks(first, &restored, None).await }).await;
        }
        let store = self.service.shared.store.clone();
        attempt(async move { store.delete_tasks(first, &tasks, None).await }).await;
    }

    /// An upload, and another one whose row is all that is left of it.
    async fn upload(&self) {
        let (store, account) = (self.service.shared.store.clone(), self.account.id);
        attempt(async move { store.begin_upload(NewUpload::of(account, Surface::Web), 10).await }).await;
        let picture = Picture::from_rgb(2, 2, vec![200; 12]).expect("a picture").to_png();
        let (uploads, key) = (self.service.api.uploads.clone(), KeySecret::parse(&self.key).expect("a key").hash());
        attempt(async move {
            let mut incoming =
                uploads.begin(NewUpload::of(account, Surface::Web), tintype_store::Right::Key(key), None).await?;
            incoming.write(picture.into()).await?;
            incoming.finish().await.map(drop)
        })
        .await;
    }

    /// Steps the worker through everything that it can do by itself.
    async fn work(&self) {
        for _ in 0..8 {
            let worker = self.service.worker.clone();
            attempt(async move { worker.step().await }).await;
            self.service.clock.advance(Duration::from_secs(1));
        }
    }

    /// Runs a worker until its heartbeat, and aborts it; then runs another and stops it.
    async fn lose_workers(&self) {
        let worker = self.service.worker_with(Arc::new(self.service.renderer()));
        let stepping = worker.clone();
        let step = tokio::spawn(async move { stepping.step().await });
        if self.renders(&step).await {
            let beating = worker.clone();
            attempt(async move { beating.renew().await }).await;
            self.report_progress(&worker).await;
        }
        step.abort();
        drop(step.await);
        // The abort interrupts its render.
        until(async || self.service.shared.metrics.renders.get() == 0).await;
        self.service.clock.advance(LEASE);
        // The fault fails at most one of the two sweeps.
        self.sweep().await;
        self.sweep().await;
        // While a worker runs, the clock stands still, so tasks must not wait for a retry.
        self.service.clock.advance(Duration::from_secs(1));
        let stop = CancellationToken::new();
        let running = tokio::spawn(worker.run(stop.clone()));
        self.renders(&running).await;
        stop.cancel();
        drop(running.await);
    }

    /// Has the worker report the render that it has under way. A render counts as running from its preparation on, but has
    /// progress only once the engine has it.
    async fn report_progress(&self, worker: &Arc<Worker>) {
        until(async || {
            let worker = worker.clone();
            // The fault fails or panics once.
            let report = async || tokio::spawn(async move { worker.report_progress().await }).await;
            self.service.shared.metrics.renders.get() == 0 || report().await.is_ok_and(|reported| reported > 0)
        })
        .await;
    }

    /// Waits until the worker renders, unless it has ended or there is nothing to render.
    async fn renders<T>(&self, worker: &JoinHandle<T>) -> bool {
        let shared = &self.service.shared;
        until_some(async || {
            if shared.metrics.renders.get() > 0 {
                return Some(true);
            }
            let depth = shared.store.queue_depth().await.expect("a store");
            (worker.is_finished() || depth.leased + depth.waiting == 0).then_some(false)
        })
        .await
    }

    async fn sweep(&self) {
        let sweeper = self.service.sweeper.clone();
        attempt(async move { sweeper.sweep(Reclaim::Expired).await }).await;
        let (beyond, unmatched) = (self.service.shared.clone(), self.service.shared.clone());
        attempt(async move { beyond.endings.fail_over_reference_limit(0).await }).await;
        attempt(async move { unmatched.endings.fail_without_engine(&[]).await }).await;
        let keys = self.service.api.keys.clone();
        attempt(async move { keys.record_uses().await }).await;
    }

    /// The file of a failed attempt, old enough to be removed.
    async fn leave_an_orphan(&self) {
        let Some(task_id) = self.acknowledged.first() else { return };
        let task_id: Id = task_id.strip_prefix("imgmodel-").and_then(|id| id.parse().ok()).expect("an id");
        let files = &self.service.shared.files;
        let name = files.write(task_id, 0, Bytes::from_static(b"left behind")).await.expect("a file");
        let path = self.service.directory.path().join("files").join(name);
        std::fs::File::open(path).and_then(|file| file.set_modified(UNIX_EPOCH)).expect("an old file");
        let sweeper = self.service.sweeper.clone();
        attempt(async move { sweeper.sweep_orphans(usize::MAX).await }).await;
    }

    /// Moves the clock until every task is removed; the ledger keeps their cost.
    async fn outlive_the_retention(&self) {
        for _ in 0..3 {
            self.service.clock.advance(Duration::from_secs(31 * 24 * 60 * 60));
            let sweeper = self.service.sweeper.clone();
            attempt(async move { sweeper.remove_old().await }).await;
            let sweeper = self.service.sweeper.clone();
            attempt(async move { sweeper.sweep_uploads().await }).await;
            let sweeper = self.service.sweeper.clone();
            attempt(async move { sweeper.sweep_deleted().await }).await;
            let sweeper = self.service.sweeper.clone();
            attempt(async move { sweeper.sweep_orphans(usize::MAX).await }).await;
        }
    }

    /// The promises that must hold after the fault.
    async fn check_books(&self, fault: &str) {
        let service = &self.service;
        let mut charged = HashSet::new();
        let mut balance = 0;
        for entry in service.shared.store.history(self.account.id, None, u32::MAX).await.expect("a store") {
            balance += entry.amount;
            if let (EntryKind::Charge, Some(task_id)) = (entry.kind, entry.task_id) {
                assert!(charged.insert(task_id.to_string()), "{fault}: charged twice");
            }
        }
        let unacknowledged = charged.len().checked_sub(self.acknowledged.len());
        assert!(self.acknowledged.iter().all(|task_id| charged.contains(task_id)), "{fault}: accepted, not charged");
        assert!(
            unacknowledged.is_some_and(|tasks| tasks <= self.unanswered),
            "{fault}: only what was accepted, or got no answer, is charged"
        );
        let account = service.shared.store.find_account("ada").await.expect("a store").expect("an account");
        assert_eq!(account.credits, balance, "{fault}");
        assert_eq!(service.shared.store.audit().await.expect("a store").drifts, [], "{fault}");
    }

    /// Every task has ended, and its images are served.
    async fn check_tasks(&self, fault: &str) {
        for task_id in &self.acknowledged {
            let task = self.call("GET", &format!("{TASKS}/{task_id}"), "").await.json()["data"].clone();
            assert_ne!(task["status"], "processing", "{fault}: {task}");
            for image in task["images"].as_array().into_iter().flatten() {
                let file = self.service.fetch(image["url"].as_str().expect("a URL"), &[]).await;
                assert!(file.status == StatusCode::OK && file.body.starts_with(b"\x89PNG"), "{fault}: {file:?}");
            }
        }
    }

    /// Nothing is left of the tasks but their ledger entries.
    async fn check_removed(&self, fault: &str) {
        for task_id in &self.acknowledged {
            self.call("GET", &format!("{TASKS}/{task_id}"), "").await.assert_error(404, "NOT_FOUND");
        }
        let files = self.service.directory.path().join("files");
        for day in std::fs::read_dir(files).expect("a directory") {
            let left = std::fs::read_dir(day.expect("an entry").path()).expect("a directory").count();
            assert_eq!(left, 0, "{fault}");
        }
        self.check_books(fault).await;
    }
}

async fn live_through(fault: &str) {
    let mut scene = Scene::begin(fault).await;
    scene.administer().await;
    for prompt in ["a boat", "a boat [[fail]]", "a boat [[policy]]", "a boat [[panic]]"] {
        scene.submit(prompt).await;
    }
    scene.work().await;
    scene.submit("a boat [[hang]]").await;
    scene.lose_workers().await;
    if let Some(hanging) = scene.acknowledged.last().and_then(|id| id.strip_prefix("imgmodel-")) {
        let (store, id): (_, Id) = (scene.service.shared.store.clone(), hanging.parse().expect("an id"));
        attempt(async move { store.fail_unleased(id, FailureCause::Operator, "The operator ended it.").await }).await;
    }
    scene.submit_with("a boat that no engine can paint", 1).await;
    scene.sweep().await;
    scene.submit("a late boat").await;
    scene.service.clock.advance(Duration::from_secs(10 * 60));
    for _ in 0..2 {
        scene.sweep().await;
    }
    scene.service.clock.advance(2 * ORPHAN_AGE);
    scene.leave_an_orphan().await;
    scene.check_books(fault).await;
    scene.check_tasks(fault).await;
    scene.outlive_the_retention().await;
    assert!(scene.service.faults.all_happened(), "{fault}: the point was never reached");
    scene.check_removed(fault).await;
}

/// The faults of an action at every point but those of a process.
fn faults(action: &str) -> Vec<String> {
    let points = Point::all().filter(|point| OF_A_PROCESS.iter().all(|effect| !is_of(*point, *effect)));
    points.map(|point| format!("{point}={action}")).collect()
}

pub fn is_of(point: Point, effect: Effect) -> bool {
    point == Point::before(effect) || point == Point::after(effect)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_at_any_point_loses_nothing() {
    for fault in faults("error") {
        live_through(&fault).await;
    }
}

/// A run panics before each effect or after each, so that several runs try both. `TINTYPE_FAULTS=all` does both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_at_any_point_loses_nothing() {
    #[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
    let all = std::env::var("TINTYPE_FAULTS").is_ok_and(|which| which == "all");
    let side = ["before-", "after-"][rand::random_range(0..2_usize)];
    for fault in faults("panic").into_iter().filter(|fault| all || fault.starts_with(side)) {
        live_through(&fault).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delays_at_all_points_lose_nothing() {
    live_through(&faults("delay").join(",")).await;
}
