//! The progress bar of a task that is not finished: by elapsed over expected time, then by the steps of its engine.

use std::cell::Cell;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tintype_client::{Accepted, Processing, TaskId, Waiting};

const TICK: Duration = Duration::from_millis(100);
const LENGTH: u64 = 1_000;
/// The fraction of the rest that passing time alone can fill: if a task takes longer than expected, the bar stops short
/// of its end.
const FILLED_BY_TIME: f64 = 0.95;

pub(super) struct WaitingBar {
    bar: ProgressBar,
    task_id: TaskId,
    known: Cell<Option<Estimate>>,
}

/// The state of a task as it was known at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    /// Time since the bar was started.
    at: Duration,
    done: f64,
    /// How much time was expected to remain; `None` if unknown.
    left: Option<Duration>,
}

impl Estimate {
    /// `None` if the server reports nothing.
    fn of(state: Processing, at: Duration) -> Option<Self> {
        let left = state.expected_wait;
        let done = match (state.progress, left) {
            (Some(part), _) => part,
            (None, Some(left)) => at.as_secs_f64() / (at + left).as_secs_f64().max(f64::MIN_POSITIVE),
            (None, None) => return None,
        };
        Some(Self { at, done, left })
    }

    /// The part that is probably done at a later time.
    fn done_at(self, now: Duration) -> f64 {
        let since = now.saturating_sub(self.at).as_secs_f64();
        let of_rest = self.left.map_or(0.0, |left| since / left.as_secs_f64().max(f64::MIN_POSITIVE));
        self.done + (1.0 - self.done) * of_rest.min(FILLED_BY_TIME)
    }
}

impl WaitingBar {
    pub(super) fn new(target: ProgressDrawTarget, task: &Accepted) -> Self {
        let bar = ProgressBar::with_draw_target(Some(LENGTH), target);
        let waiting = Self { bar, task_id: task.task_id.clone(), known: Cell::new(None) };
        // Before anything was measured, a server only suggests when to poll.
        let expected_wait = task.state.expected_wait.or(task.state.poll_after).filter(|wait| !wait.is_zero());
        waiting.show(Processing { expected_wait, ..task.state });
        waiting
    }

    pub(super) fn show_event(&self, event: Waiting<'_>) {
        match event {
            Waiting::Processing(state) => self.show(state),
            Waiting::Retry(error, wait) => {
                let (task_id, seconds) = (&self.task_id, wait.as_secs_f64());
                self.bar.println(format!("{task_id}: {error}; retrying in {seconds:.0} s"));
            }
        }
    }

    fn show(&self, state: Processing) {
        // A poll without news changes nothing.
        let known = Estimate::of(state, self.bar.elapsed()).or(self.known.get());
        let template = if known.is_some() { "{msg} {bar:24} {elapsed}" } else { "{spinner} {msg} {elapsed}" };
        self.bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
        self.bar.set_message(format!("{}{}", self.task_id, stage(state)));
        self.known.set(known);
    }

    /// Moves the bar with the time, forever.
    pub(super) async fn advance(&self) {
        loop {
            match self.known.get() {
                Some(estimate) => {
                    let done = estimate.done_at(self.bar.elapsed());
                    self.bar.set_position((done * LENGTH as f64) as u64);
                }
                None => self.bar.tick(),
            }
            tokio::time::sleep(TICK).await;
        }
    }
}

impl Drop for WaitingBar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The words about a task that is waiting or being worked on.
fn stage(state: Processing) -> String {
    match (state.steps, state.progress, state.queue_position) {
        (Some((done, of)), _, _) => format!(", step {done} of {of}"),
        (None, Some(part), _) => format!(", {:.0} % done", part * 100.0),
        (None, None, Some(position @ 1..)) => format!(", {position} in your queue"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_bar_follows_the_time_and_then_the_steps() {
        let unknown = Processing::default();
        assert_eq!(Estimate::of(unknown, SECOND), None);
        let by_time = Estimate::of(Processing { expected_wait: Some(SECOND * 10), ..unknown }, Duration::ZERO);
        let by_time = by_time.expect("an estimate");
        assert_eq!([0, 5, 60].map(|seconds| by_time.done_at(SECOND * seconds)), [0.0, 0.5, 0.95]);
        // Half of the time has passed.
        let later = Estimate::of(Processing { expected_wait: Some(SECOND * 5), ..unknown }, SECOND * 5);
        assert_eq!(later.expect("an estimate").done_at(SECOND * 5), 0.5);
        let steps = Processing { progress: Some(0.25), expected_wait: Some(SECOND * 8), ..unknown };
        let by_steps = Estimate::of(steps, SECOND * 5).expect("an estimate");
        assert_eq!([5, 9].map(|seconds| by_steps.done_at(SECOND * seconds)), [0.25, 0.625]);
        let only_steps = Estimate::of(Processing { expected_wait: None, ..steps }, SECOND * 5).expect("an estimate");
        assert_eq!(only_steps.done_at(SECOND * 60), 0.25);
    }

    #[test]
    fn the_words_say_the_best_that_is_known() {
        let mut state = Processing { queue_position: Some(3), ..Processing::default() };
        assert_eq!(stage(state), ", 3 in your queue");
        state.queue_position = Some(0);
        assert_eq!(stage(state), "");
        state.progress = Some(0.35);
        assert_eq!(stage(state), ", 35 % done");
        state.steps = Some((7, 20));
        assert_eq!(stage(state), ", step 7 of 20");
    }
}
