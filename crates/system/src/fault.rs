//! Fault injection: `--test-fault` makes the process fail just before or just after a durable effect, so that tests can
//! show that nothing is lost or done twice there. Without the flag no fault occurs.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::output;
use tintype_domain::string_enum;

string_enum! {
    /// An operation whose result outlives the process.
    pub enum Effect: "effect" {
        /// An account is created.
        CreateAccount = "create-account",
        /// The first account and its key are created.
        CreateFirstAccount = "create-first-account",
        /// An account is enabled, disabled or deleted.
        ChangeAccount = "change-account",
        /// A key is added.
        CreateKey = "create-key",
        /// A key is enabled, disabled or revoked.
        ChangeKey = "change-key",
        /// A key is replaced by a new one.
        RotateKey = "rotate-key",
        /// The last uses of keys are recorded.
        TouchKeys = "touch-keys",
        /// A person is added, changed or removed.
        ChangePerson = "change-person",
        /// Someone opens an account in the studio.
        SignUp = "sign-up",
        /// The counts of sign-ups of earlier days are deleted.
        DeleteSignUps = "delete-sign-ups",
        /// A person gets or loses an identity at a provider.
        LinkIdentity = "link-identity",
        /// A sign-in link is created, or a session begins or continues.
        SignIn = "sign-in",
        /// Sessions end.
        SignOut = "sign-out",
        /// Old entries of the audit log are deleted.
        DeleteAuditEntries = "delete-audit-entries",
        /// An upload begins.
        BeginUpload = "begin-upload",
        /// An upload gets its file.
        FinishUpload = "finish-upload",
        /// Uploads are removed, or deleted with their files.
        RemoveUploads = "remove-uploads",
        /// A repeated call takes over the task of the attempt before.
        AttachCall = "attach-call",
        /// A call has delivered its answer, or its caller has hung up.
        EndCall = "end-call",
        /// Old calls are deleted.
        DeleteCalls = "delete-calls",
        /// Tasks get stars or places on boards, or lose them.
        MarkTasks = "mark-tasks",
        /// A board is made, renamed or removed.
        ChangeBoard = "change-board",
        /// A shared link is made, seen, revoked or deleted.
        ChangeSharedLink = "change-shared-link",
        /// Tasks are deleted by their owner, which hides them.
        DeleteTasks = "delete-tasks",
        /// Deleted tasks are restored.
        RestoreTasks = "restore-tasks",
        /// Deleted tasks are erased, or forgotten with their files.
        EraseTasks = "erase-tasks",
        /// Prompts are indexed for the search.
        IndexPrompts = "index-prompts",
        /// An endpoint is added, changed or removed.
        ChangeEndpoint = "change-endpoint",
        /// A delivery is written that tries an endpoint or repeats another delivery.
        AddDelivery = "add-delivery",
        /// Attempts at deliveries begin.
        ClaimDelivery = "claim-delivery",
        /// An attempt at a delivery ends.
        EndDelivery = "end-delivery",
        /// Old deliveries are deleted.
        TrimDeliveries = "trim-deliveries",
        /// Credits are granted.
        Grant = "grant",
        /// A task is charged and queued.
        Submit = "submit",
        /// Tasks are leased.
        Claim = "claim",
        /// Leases are renewed.
        Renew = "renew",
        /// Attempts' progress is saved.
        ReportProgress = "report-progress",
        /// A lease is given back without using up an attempt.
        Release = "release",
        /// A failed attempt is queued again.
        Retry = "retry",
        /// A task is completed.
        Complete = "complete",
        /// A task is failed and refunded by its worker.
        Fail = "fail",
        /// A task is refused and refunded, and its key gets a strike.
        Refuse = "refuse",
        /// A task is failed and refunded by the operator.
        FailUnleased = "fail-unleased",
        /// A waiting task is failed and refunded by its owner.
        Cancel = "cancel",
        /// Expired leases are reclaimed.
        Reclaim = "reclaim",
        /// Overdue tasks are failed and refunded.
        Expire = "expire",
        /// Tasks that no engine can do are failed and refunded.
        FailBeyond = "fail-beyond",
        /// Tasks whose engine isn't offered by any worker are failed and refunded.
        FailUnmatched = "fail-unmatched",
        /// Grants that have expired lapse.
        LapseGrants = "lapse-grants",
        /// Tasks past the retention are removed.
        RemoveTasks = "remove-tasks",
        /// A batch of writes is committed. Only the database driver can tell when.
        Commit = "commit",
        /// The write-ahead log is checkpointed into the database.
        Checkpoint = "checkpoint",
        /// A result file is written.
        WriteFile = "write-file",
        /// A result file is removed.
        RemoveFile = "remove-file",
    }
}

string_enum! {
    /// When a fault occurs.
    enum Side: "side" {
        /// The effect has not begun.
        Before = "before",
        /// The effect is durable, but its caller does not know yet.
        After = "after",
    }
}

/// A point in the code where a fault can be injected, written like `before-submit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    side: Side,
    effect: Effect,
}

impl Point {
    /// Just before `effect`.
    pub const fn before(effect: Effect) -> Self {
        Self { side: Side::Before, effect }
    }

    /// Just after `effect`.
    pub const fn after(effect: Effect) -> Self {
        Self { side: Side::After, effect }
    }

    /// The points before and after every effect.
    pub fn all() -> impl Iterator<Item = Self> {
        Effect::ALL.into_iter().flat_map(|effect| [Self::before(effect), Self::after(effect)])
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.side, self.effect)
    }
}

string_enum! {
    /// Effect of a fault.
    enum Action: "action" {
        /// The operation reports an error.
        Error = "error",
        /// The thread panics.
        Panic = "panic",
        /// The operation takes [`DELAY`] longer.
        Delay = "delay",
        /// The process sends itself SIGKILL.
        Kill = "kill",
        /// The process sends itself SIGSTOP; a test resumes it with SIGCONT.
        Stop = "stop",
    }
}

/// Duration of [`Action::Delay`]: long enough for concurrent operations to overtake.
const DELAY: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct PlannedFault {
    point: Point,
    action: Action,
    /// The fault occurs when the point is reached for this time, counted from 1.
    occurrence: u64,
    times_reached: AtomicU64,
}

/// The faults to inject, each once; none by default. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct Faults(Option<Arc<Vec<PlannedFault>>>);

impl FromStr for Faults {
    type Err = String;

    /// Parses `POINT=ACTION[@OCCURRENCE]`, separated by commas; an empty string means no faults.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let plan = text.split(',').map(|fault| parse_fault(fault).ok_or_else(|| invalid(fault)));
        Ok(Self(Some(Arc::new(plan.collect::<Result<_, _>>()?))))
    }
}

fn parse_fault(text: &str) -> Option<PlannedFault> {
    let (point, rest) = text.split_once('=')?;
    let (action, occurrence) = rest.split_once('@').unwrap_or((rest, "1"));
    let point = Point::all().find(|known| known.to_string() == point)?;
    let (action, occurrence) = (action.parse().ok()?, occurrence.parse().ok()?);
    Some(PlannedFault { point, action, occurrence, times_reached: AtomicU64::new(0) })
}

fn invalid(text: &str) -> String {
    let points: Vec<String> = Point::all().map(|point| point.to_string()).collect();
    format!("{text:?} is not POINT=ACTION[@OCCURRENCE]; the points are {}", points.join(", "))
}

impl Faults {
    /// Whether every planned fault has occurred.
    pub fn all_happened(&self) -> bool {
        let mut plan = self.0.iter().flat_map(|plan| plan.iter());
        plan.all(|fault| fault.times_reached.load(Ordering::SeqCst) >= fault.occurrence)
    }

    /// Injects the fault planned for `point`, if any. For code that may block.
    pub fn pass_blocking(&self, point: Point) -> io::Result<()> {
        if self.inject(point)? {
            std::thread::sleep(DELAY);
        }
        Ok(())
    }

    /// Injects the fault planned for `point`, if any.
    pub async fn pass(&self, point: Point) -> io::Result<()> {
        if self.inject(point)? {
            tokio::time::sleep(DELAY).await;
        }
        Ok(())
    }

    /// Injects every fault except a delay; returns whether the caller must delay.
    fn inject(&self, point: Point) -> io::Result<bool> {
        let Some(plan) = &self.0 else { return Ok(false) };
        let here = plan.iter().filter(|fault| fault.point == point);
        let mut due = here.filter(|fault| fault.times_reached.fetch_add(1, Ordering::SeqCst) + 1 == fault.occurrence);
        let Some(fault) = due.next() else { return Ok(false) };
        tracing::warn!(%point, action = ?fault.action, "injecting a fault, as --test-fault asks");
        match fault.action {
            Action::Error => return Err(io::Error::other(format!("injected fault {point}"))),
            Action::Panic => panic!("injected fault {point}"),
            Action::Delay => return Ok(true),
            Action::Kill => signal_self(Signal::KILL),
            Action::Stop => signal_self(Signal::STOP),
        }
        Ok(false)
    }
}

fn signal_self(signal: Signal) {
    // The log line about the fault is still queued, and the process ends here.
    output::flush();
    if let Err(error) = kill_process(getpid(), signal) {
        tracing::error!(%error, ?signal, "an injected fault could not send a signal to this process");
    }
}
