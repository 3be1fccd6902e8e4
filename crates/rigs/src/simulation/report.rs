//! What a run found.

use std::fmt;
use std::time::Duration;

use super::crowd::Crowd;

/// The tasks of the accounts of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassReport {
    /// Its name.
    pub name: &'static str,
    /// Accounts in it.
    pub accounts: usize,
    /// Tasks that were accepted.
    pub submitted: u64,
    /// Submits that were refused because the account had too many unfinished tasks.
    pub refused: u64,
    /// Tasks that were completed.
    pub completed: u64,
    /// Tasks that failed and were refunded.
    pub failed: u64,
    /// Number of tasks that waited for this many seconds for their first claim.
    waits: Vec<u64>,
}

impl ClassReport {
    pub(super) fn count_end(&mut self, completed: bool) {
        match completed {
            true => self.completed += 1,
            false => self.failed += 1,
        }
    }

    /// Seconds that this part of the claimed tasks waited at most.
    pub fn wait(&self, part: f64) -> usize {
        let all: u64 = self.waits.iter().sum();
        let mut left = (all as f64 * part).ceil() as u64;
        let within = self.waits.iter().position(|many| {
            left = left.saturating_sub(*many);
            left == 0
        });
        within.unwrap_or(0)
    }
}

/// A whole run. Two runs of one plan on SQLite are equal.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Simulated seconds, until the last task had ended.
    pub seconds: u64,
    /// The classes, the least active first.
    pub classes: Vec<ClassReport>,
    /// Age of the oldest task at its end.
    pub oldest: Duration,
    /// Most unfinished tasks at once.
    pub backlog: usize,
    /// Workers that died or hung with a lease.
    pub deaths: u64,
    /// Tasks that were queued again.
    pub requeued: usize,
    /// Writes that were refused because the lease was lost.
    pub lost: u64,
    /// For each account, the sum of (wait + render) / render of its claimed tasks, and their number.
    slowdowns: Vec<(f64, u64)>,
}

impl Report {
    pub(super) fn new(crowd: &Crowd) -> Self {
        let class = |(name, accounts)| ClassReport {
            name,
            accounts,
            submitted: 0,
            refused: 0,
            completed: 0,
            failed: 0,
            waits: Vec::new(),
        };
        Self {
            seconds: 0,
            classes: crowd.classes().map(class).collect(),
            oldest: Duration::ZERO,
            backlog: 0,
            deaths: 0,
            requeued: 0,
            lost: 0,
            slowdowns: vec![(0.0, 0); crowd.accounts()],
        }
    }

    pub(super) fn class(&mut self, class: usize) -> &mut ClassReport {
        &mut self.classes[class]
    }

    pub(super) fn note_wait(&mut self, class: usize, account: usize, waited: u64, render: u64) {
        let (waits, second) = (&mut self.classes[class].waits, waited as usize);
        if waits.len() <= second {
            waits.resize(second + 1, 0);
        }
        waits[second] += 1;
        let render = render.max(1);
        let (sum, many) = &mut self.slowdowns[account];
        *sum += (waited + render) as f64 / render as f64;
        *many += 1;
    }

    /// Jain's index of the accounts' mean slowdowns: 1 if all are slowed alike, 1/n if one alone is.
    pub fn fairness(&self) -> f64 {
        let means: Vec<f64> =
            self.slowdowns.iter().filter(|(_, many)| *many > 0).map(|(sum, many)| sum / *many as f64).collect();
        let (sum, squares) = (means.iter().sum::<f64>(), means.iter().map(|mean| mean * mean).sum::<f64>());
        sum * sum / (means.len() as f64 * squares)
    }

    /// Tasks that were accepted.
    pub fn tasks(&self) -> u64 {
        self.classes.iter().map(|class| class.submitted).sum()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} tasks in {} simulated seconds", self.tasks(), self.seconds)?;
        writeln!(f, "| Accounts | Number | Tasks | Refused | Completed | Refunded | Wait p50 | p99 | Longest |")?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
        for class in &self.classes {
            let ClassReport { name, accounts, submitted, refused, completed, failed, .. } = class;
            let [half, most, longest] = [0.5, 0.99, 1.0].map(|part| class.wait(part));
            writeln!(
                f,
                "| {name} | {accounts} | {submitted} | {refused} | {completed} | {failed} | {half} s | {most} s | \
                 {longest} s |"
            )?;
        }
        writeln!(f, "Jain's index of the slowdowns: {:.3}", self.fairness())?;
        writeln!(f, "Oldest task at its end: {} s; most unfinished tasks: {}", self.oldest.as_secs(), self.backlog)?;
        let Self { deaths, requeued, lost, .. } = self;
        write!(f, "Dead or hung workers: {deaths}; tasks queued again: {requeued}; late writes refused: {lost}")
    }
}
