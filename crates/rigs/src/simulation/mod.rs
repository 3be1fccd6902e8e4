//! A simulated month: accounts of very different activity, workers that die, a database that fails over and a bucket that
//! is slow for a while. Only time, people and engines are simulated. Every submit, claim, renewal, completion, failure
//! and sweep is a call of the real [`Store`] on a clock that is moved by hand, second by second.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tintype_domain::ledger::NotCharged;
use tintype_domain::model::{CREDITS_PER_IMAGE, FailureCause, Id, Surface, TaskRef};
use tintype_domain::request::GenerateRequest;
use tintype_store::{Lease, LeaseWrite, Reclaim, Result, Store, Submission};
use tintype_system::clock::{Clock, Timestamp};

mod crowd;
mod report;

use self::crowd::{Crowd, Dice};
pub use self::report::{ClassReport, Report};

/// Time after which an unfinished task is failed, as in `tintype-config`.
const TIME_LIMIT: Duration = Duration::from_secs(9 * 60);
/// Length of a lease, as in `tintype-config`.
const LEASE: Duration = Duration::from_secs(30);
/// Seconds between two heartbeats of a worker: a third of a lease.
const HEARTBEAT: u64 = 10;
/// Unfinished tasks that an account may have: the default of `--max-unfinished`.
const MAX_UNFINISHED: u32 = 100;
/// Credits of each account: more than it can spend.
const CREDITS: i64 = 100_000_000;
/// Calls at once, which share commits.
const AT_ONCE: usize = 32;

/// What is simulated.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The same seed gives the same run on SQLite.
    pub seed: u64,
    /// Accounts. A few of them create most tasks.
    pub accounts: usize,
    /// Workers, each with one slot.
    pub workers: usize,
    /// Tasks a second, on average, without the rush.
    pub rate: f64,
    /// How many seconds tasks are submitted for. The rush, the failover and the slow bucket are at fixed parts of it.
    pub seconds: u64,
    /// Mean seconds of a render.
    pub render: f64,
    /// Seconds after which an average worker dies or stalls.
    pub worker_life: f64,
    /// Tasks that the most active accounts submit at once.
    pub burst: u64,
}

impl Plan {
    /// A month of 50 million tasks. `seconds` of it are simulated at the real rate: 19.3 tasks per second keep 1,000
    /// workers busy for three quarters of the time.
    pub fn month(seconds: u64) -> Self {
        let rate = 50e6 / (30.0 * 86_400.0);
        let (render, worker_life) = (38.0, 86_400.0);
        Self { seed: 1, accounts: 10_000, workers: 1_000, rate, seconds, render, worker_life, burst: 90 }
    }

    /// The load of that month for each worker, with few enough workers for a test.
    pub fn short() -> Self {
        let (render, worker_life) = (38.0, 600.0);
        Self { seed: 1, accounts: 100, workers: 20, rate: 0.4, seconds: 900, render, worker_life, burst: 40 }
    }

    /// Twice the load, for a twelfth of the time.
    fn is_rush(&self, second: u64) -> bool {
        (self.seconds / 4..self.seconds / 3).contains(&second)
    }

    /// 20 seconds without a database.
    fn is_down(&self, second: u64) -> bool {
        (self.seconds / 2..self.seconds / 2 + 20).contains(&second)
    }

    /// Images take a minute longer to store.
    fn is_slow(&self, second: u64) -> bool {
        (self.seconds * 3 / 4..self.seconds * 5 / 6).contains(&second)
    }
}

/// A task that has not ended.
struct Open {
    account: usize,
    /// Whether a worker has claimed it before.
    claimed: bool,
}

#[derive(Debug, Clone, Copy)]
enum Worker {
    Idle,
    /// Renders, and has stored the result in the second `until`.
    Busy {
        lease: Lease,
        until: u64,
    },
    /// Has died, or hangs and will complete its old lease when it is back.
    Gone {
        lease: Option<Lease>,
        until: u64,
    },
}

struct Run<'a> {
    plan: &'a Plan,
    store: Arc<Store>,
    clock: Clock,
    start: Timestamp,
    dice: Dice,
    crowd: Crowd,
    accounts: Vec<Id>,
    workers: Vec<Worker>,
    open: HashMap<Id, Open>,
    completed: Vec<i64>,
    /// No lease is reclaimed before this second, as after a silence of the database.
    grace: u64,
    report: Report,
}

/// Simulates `plan` on the database that `store` is, with its clock. `fail_over` makes the database crash, and returns
/// the store of the database that takes over.
///
/// # Errors
/// The store's errors: outside the failover, every call must succeed.
///
/// # Panics
/// If a task is lost, ends twice, or the credits are wrong.
pub async fn run(
    plan: &Plan,
    store: Arc<Store>,
    clock: Clock,
    fail_over: impl FnOnce(Arc<Store>) -> Arc<Store>,
) -> Result<Report> {
    let crowd = Crowd::new(plan);
    let accounts = open_accounts(crowd.accounts(), &store).await?;
    let mut run = Run {
        plan,
        store,
        start: clock.now(),
        clock,
        dice: Dice::new(plan.seed),
        report: Report::new(&crowd),
        completed: vec![0; crowd.accounts()],
        crowd,
        accounts,
        workers: vec![Worker::Idle; plan.workers],
        open: HashMap::new(),
        grace: 0,
    };
    let mut fail_over = Some(fail_over);
    let mut second = 0;
    while second < plan.seconds || !run.open.is_empty() {
        run.clock.set(run.start.saturating_add(Duration::from_secs(second)));
        if plan.is_down(second) {
            if let Some(fail_over) = fail_over.take() {
                run.store = fail_over(run.store);
                run.grace = plan.seconds / 2 + 20 + LEASE.as_secs();
            }
        } else {
            run.step(second).await?;
        }
        second += 1;
        assert!(second < plan.seconds + 2 * TIME_LIMIT.as_secs(), "{} tasks are stuck", run.open.len());
    }
    run.report.seconds = second;
    run.settle().await?;
    Ok(run.report)
}

async fn open_accounts(many: usize, store: &Store) -> Result<Vec<Id>> {
    let names: Vec<String> = (0..many).map(|number| format!("account {number}")).collect();
    let mut accounts = Vec::with_capacity(many);
    for names in names.chunks(AT_ONCE) {
        for created in join_all(names.iter().map(|name| store.create_account(name, CREDITS))).await {
            accounts.push(created?.expect("an empty database").id);
        }
    }
    Ok(accounts)
}

impl Run<'_> {
    async fn step(&mut self, second: u64) -> Result<()> {
        self.end_attempts(second).await?;
        self.renew(second).await?;
        self.strike_workers(second);
        if second < self.plan.seconds {
            self.submit(second).await?;
        }
        self.claim(second).await?;
        self.sweep(second).await?;
        self.look().await
    }

    /// Workers whose renders have ended complete or fail their tasks; workers that hung try to.
    async fn end_attempts(&mut self, second: u64) -> Result<()> {
        let mut ends = Vec::new();
        for worker in &mut self.workers {
            match *worker {
                Worker::Busy { lease, until } if until <= second => ends.push(lease),
                Worker::Gone { lease, until } if until <= second => ends.extend(lease),
                _ => continue,
            }
            *worker = Worker::Idle;
        }
        let fails: Vec<bool> = ends.iter().map(|_| self.dice.chance(0.005)).collect();
        let writes = ends.iter().zip(&fails).map(|(lease, fails)| {
            let store = self.store.clone();
            async move {
                match fails {
                    true => store.fail(*lease, FailureCause::Engine, "the engine failed").await,
                    false => store.complete(*lease, vec![format!("2026-11-21/{}-0.png", lease.task_id)]).await,
                }
            }
        });
        let written = join_all(writes).await;
        for ((lease, fails), write) in ends.into_iter().zip(fails).zip(written) {
            match write? {
                LeaseWrite::Done => self.end(lease.task_id, !fails),
                LeaseWrite::Lost => self.report.lost += 1,
            }
        }
        Ok(())
    }

    /// A task has ended; it must not have ended before.
    fn end(&mut self, task: Id, completed: bool) {
        let Open { account, .. } = self.open.remove(&task).unwrap_or_else(|| panic!("{task} ended twice"));
        let age = self.clock.now().since(task.timestamp());
        self.report.oldest = self.report.oldest.max(age);
        self.completed[account] += i64::from(completed);
        self.report.class(self.crowd.class(account)).count_end(completed);
    }

    async fn renew(&mut self, second: u64) -> Result<()> {
        let beats = (0..self.workers.len()).filter(|worker| *worker as u64 % HEARTBEAT == second % HEARTBEAT);
        let held = beats.filter_map(|worker| match self.workers[worker] {
            Worker::Busy { lease, .. } => Some(self.store.renew(vec![lease], LEASE)),
            _ => None,
        });
        let lost: Vec<_> = join_all(held).await.into_iter().collect::<Result<_>>()?;
        for lost in lost.into_iter().flatten() {
            self.report.lost += 1;
            for worker in &mut self.workers {
                if matches!(worker, Worker::Busy { lease, .. } if *lease == lost) {
                    *worker = Worker::Idle;
                }
            }
        }
        Ok(())
    }

    /// Some workers die with their leases, and some hang for longer than their leases.
    fn strike_workers(&mut self, second: u64) {
        let chance = 1.0 / self.plan.worker_life;
        for worker in &mut self.workers {
            if self.dice.chance(chance)
                && let Worker::Busy { lease, .. } = *worker
            {
                self.report.deaths += 1;
                let lease = self.dice.chance(0.5).then_some(lease);
                *worker = Worker::Gone { lease, until: second + 30 + self.dice.below(90) };
            }
        }
    }

    async fn submit(&mut self, second: u64) -> Result<()> {
        let arrivals = self.crowd.arrivals(self.plan.is_rush(second), &mut self.dice);
        let request = || GenerateRequest::new("A red fox in the snow at dawn");
        let submits = arrivals
            .iter()
            .map(|account| self.store.submit(self.accounts[*account], None, Surface::Api, request(), MAX_UNFINISHED));
        let answers = join_all(submits).await;
        for (account, answer) in arrivals.into_iter().zip(answers) {
            let class = self.report.class(self.crowd.class(account));
            match answer? {
                Submission::Accepted(task) => {
                    class.submitted += 1;
                    self.open.insert(task.id, Open { account, claimed: false });
                }
                Submission::NotCharged(NotCharged::TooManyUnfinished) => class.refused += 1,
                refused => panic!("{refused:?}"),
            }
        }
        self.report.backlog = self.report.backlog.max(self.open.len());
        Ok(())
    }

    /// Idle workers ask until one finds nothing.
    async fn claim(&mut self, second: u64) -> Result<()> {
        let idle: Vec<usize> =
            (0..self.workers.len()).filter(|worker| matches!(self.workers[*worker], Worker::Idle)).collect();
        for idle in idle.chunks(AT_ONCE) {
            let claims = join_all(idle.iter().map(|_| self.store.claim(1, LEASE))).await;
            let mut found = 0;
            for (worker, claims) in idle.iter().zip(claims) {
                for claim in claims? {
                    found += 1;
                    let slow = if self.plan.is_slow(second) { 60 } else { 0 };
                    let render = self.dice.render(self.plan.render);
                    self.workers[*worker] = Worker::Busy { lease: claim.lease, until: second + render + slow };
                    self.note_claim(claim.lease.task_id, render);
                }
            }
            if found < idle.len() {
                break;
            }
        }
        Ok(())
    }

    fn note_claim(&mut self, task: Id, render: u64) {
        let waited = self.clock.now().since(task.timestamp()).as_secs();
        let open = self.open.get_mut(&task).unwrap_or_else(|| panic!("{task} was claimed after its end"));
        if !std::mem::replace(&mut open.claimed, true) {
            self.report.note_wait(self.crowd.class(open.account), open.account, waited, render);
        }
    }

    /// The sweeps of every second, in the order of the service.
    async fn sweep(&mut self, second: u64) -> Result<()> {
        let overdue = self.store.expire(self.clock.now().saturating_sub(TIME_LIMIT), "too late").await?;
        self.end_all(overdue);
        if second >= self.grace {
            let reclaimed = self.store.reclaim(Reclaim::Expired, "the worker died").await?;
            self.report.requeued += reclaimed.queued;
            self.end_all(reclaimed.failed);
        }
        self.store.expire_grants().await?;
        Ok(())
    }

    fn end_all(&mut self, ended: Vec<TaskRef>) {
        for ended in ended {
            self.end(ended.id, false);
        }
    }

    /// A caller polls a task, and one lists its own.
    async fn look(&mut self) -> Result<()> {
        let account = self.dice.below(self.accounts.len() as u64) as usize;
        let page = self.store.list_tasks(self.accounts[account], Surface::Api, None, 20).await?;
        if let Some(task) = page.first() {
            let found = self.store.find_task(self.accounts[account], Surface::Api, task.id).await?;
            assert_eq!(found.as_ref(), Some(task));
        }
        Ok(())
    }

    /// Compares the books with what happened.
    async fn settle(&mut self) -> Result<()> {
        let depth = self.store.queue_depth().await?;
        assert_eq!((depth.waiting, depth.leased), (0, 0));
        for account in self.store.list_accounts().await? {
            let number = self.accounts.iter().position(|id| *id == account.id).expect("an account of the run");
            assert_eq!(account.credits, CREDITS - CREDITS_PER_IMAGE * self.completed[number], "{}", account.name);
        }
        assert_eq!(self.store.audit().await?.drifts, []);
        Ok(())
    }
}
