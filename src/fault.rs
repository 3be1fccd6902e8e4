//! Faults on purpose: what a test lets happen before or after a durable effect, to show that nothing
//! is lost or doubled there. Nothing happens unless `--test-fault` says so.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

/// Names an effect once, for all that need to know it.
macro_rules! effects {
    ($($(#[$doc:meta])* $effect:ident = $name:literal,)+) => {
        /// Something that outlives the process once it is done.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Effect {
            $($(#[$doc])* $effect,)+
        }

        impl Effect {
            /// All there are.
            pub const ALL: &[Self] = &[$(Self::$effect,)+];

            fn as_str(self) -> &'static str {
                match self {
                    $(Self::$effect => $name,)+
                }
            }
        }
    };
}

effects! {
    /// An account is created.
    CreateAccount = "create-account",
    /// The first account and its key are created.
    CreateFirstAccount = "create-first-account",
    /// A key is added.
    CreateKey = "create-key",
    /// A key is switched.
    ChangeKey = "change-key",
    /// A key is followed by another.
    RotateKey = "rotate-key",
    /// The last uses of some keys are noted.
    TouchKeys = "touch-keys",
    /// Credits are granted.
    Grant = "grant",
    /// A task is charged and queued.
    Submit = "submit",
    /// Tasks are leased.
    Claim = "claim",
    /// Leases are renewed.
    Renew = "renew",
    /// A task is given back.
    Release = "release",
    /// An attempt is given up.
    Retry = "retry",
    /// A task is completed.
    Complete = "complete",
    /// A task is failed and refunded by its worker.
    Fail = "fail",
    /// A task is refused, refunded and held against its key.
    Refuse = "refuse",
    /// A task is failed and refunded by the operator.
    FailUnleased = "fail-unleased",
    /// Some lost leases are taken away.
    Rescue = "rescue",
    /// Some overdue tasks are failed and refunded.
    Expire = "expire",
    /// Some old tasks are removed.
    RemoveTasks = "remove-tasks",
    /// A whole month is forgotten.
    ForgetMonth = "forget-month",
    /// A batch of writes is committed; only the database driver knows when.
    Commit = "commit",
    /// A submit that was answered with an error and may exist is written down.
    NoteUnsettled = "note-unsettled",
    /// What was written down of such a submit is removed.
    ForgetUnsettled = "forget-unsettled",
    /// The write-ahead log is folded into the database.
    Checkpoint = "checkpoint",
    /// A result file is written.
    WriteFile = "write-file",
    /// A result file is removed.
    RemoveFile = "remove-file",
}

/// On which side of an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It has not begun.
    Before,
    /// It is done, and nobody knows yet.
    After,
}

/// A place where a fault can happen, written `before-submit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    moment: Moment,
    effect: Effect,
}

impl Point {
    /// Just before `effect`.
    pub const fn before(effect: Effect) -> Self {
        Self { moment: Moment::Before, effect }
    }

    /// Just after `effect`.
    pub const fn after(effect: Effect) -> Self {
        Self { moment: Moment::After, effect }
    }

    /// Both sides of every effect.
    pub fn all() -> impl Iterator<Item = Self> {
        Effect::ALL.iter().flat_map(|effect| [Self::before(*effect), Self::after(*effect)])
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let moment = match self.moment {
            Moment::Before => "before",
            Moment::After => "after",
        };
        write!(f, "{moment}-{}", self.effect.as_str())
    }
}

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// What was to be done there is reported as failed.
    Error,
    /// The thread panics.
    Panic,
    /// Time passes.
    Delay,
    /// The process gets SIGKILL.
    Kill,
    /// The process gets SIGSTOP, and goes on when somebody sends SIGCONT.
    Stop,
}

const ACTIONS: [(&str, Action); 5] = [
    ("error", Action::Error),
    ("panic", Action::Panic),
    ("delay", Action::Delay),
    ("kill", Action::Kill),
    ("stop", Action::Stop),
];

/// How long [`Action::Delay`] takes: long enough that whatever else can happen meanwhile does.
const DELAY: Duration = Duration::from_millis(50);

#[derive(Debug)]
struct Planned {
    point: Point,
    action: Action,
    /// Which time the point is reached.
    turn: u64,
    reached: AtomicU64,
}

/// The faults that are to happen, each once; none by default. Clones share what has happened.
#[derive(Debug, Clone, Default)]
pub struct Faults(Option<Arc<Vec<Planned>>>);

impl FromStr for Faults {
    type Err = String;

    /// Reads `POINT=ACTION[@TURN]`, several with commas; nothing is no fault.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let plan = text.split(',').map(|one| planned(one).ok_or_else(|| invalid(one)));
        Ok(Self(Some(Arc::new(plan.collect::<Result<_, _>>()?))))
    }
}

fn planned(text: &str) -> Option<Planned> {
    let (point, rest) = text.split_once('=')?;
    let (action, turn) = rest.split_once('@').unwrap_or((rest, "1"));
    let point = Point::all().find(|known| known.to_string() == point)?;
    let (_, action) = ACTIONS.into_iter().find(|(name, _)| *name == action)?;
    Some(Planned { point, action, turn: turn.parse().ok()?, reached: AtomicU64::new(0) })
}

fn invalid(text: &str) -> String {
    let points: Vec<String> = Point::all().map(|point| point.to_string()).collect();
    format!("{text:?} is not POINT=ACTION[@TURN] with a point of {}", points.join(", "))
}

impl Faults {
    /// Whether every planned fault has happened.
    pub fn all_happened(&self) -> bool {
        self.0.iter().flat_map(|plan| plan.iter()).all(|one| one.reached.load(Ordering::SeqCst) >= one.turn)
    }

    /// Passes a point, for code that may block.
    ///
    /// # Errors
    /// When an error is planned here.
    pub fn pass_blocking(&self, point: Point) -> io::Result<()> {
        if self.due(point)? {
            std::thread::sleep(DELAY);
        }
        Ok(())
    }

    /// Passes a point.
    ///
    /// # Errors
    /// When an error is planned here.
    pub async fn pass(&self, point: Point) -> io::Result<()> {
        if self.due(point)? {
            tokio::time::sleep(DELAY).await;
        }
        Ok(())
    }

    /// Lets happen what is planned, but for a delay, which the caller must make.
    fn due(&self, point: Point) -> io::Result<bool> {
        let Some(plan) = &self.0 else { return Ok(false) };
        let here = plan.iter().filter(|one| one.point == point);
        let mut due = here.filter(|one| one.reached.fetch_add(1, Ordering::SeqCst) + 1 == one.turn);
        let Some(one) = due.next() else { return Ok(false) };
        tracing::warn!(%point, action = ?one.action, "planned fault");
        match one.action {
            Action::Error => return Err(io::Error::other(format!("planned fault {point}"))),
            Action::Panic => panic!("planned fault {point}"),
            Action::Delay => return Ok(true),
            Action::Kill => signal_self(Signal::KILL),
            Action::Stop => signal_self(Signal::STOP),
        }
        Ok(false)
    }
}

fn signal_self(signal: Signal) {
    if let Err(error) = kill_process(getpid(), signal) {
        tracing::error!(%error, ?signal, "could not signal this process");
    }
}
