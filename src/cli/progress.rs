//! Progress of long-running commands, shown on a terminal.

use std::cell::Cell;
use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::complain;
use tintype_engines::models::ProgressSink;

use tintype_engine::{Progress, Stage};
use tintype_system::locked::Locked as _;

/// Creates a spinner on standard error if that is a terminal; [`crate::backup::results::begin`] turns it into a bar.
pub(super) fn bar(visible: bool) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is valid");
    let bar = ProgressBar::with_draw_target(Some(0), draw_target(visible)).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Standard error shows progress only when it is a terminal.
pub(super) fn draw_target(visible: bool) -> ProgressDrawTarget {
    if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

/// How often a render's progress is checked.
const TICK: Duration = Duration::from_millis(100);

/// Shows the stages of a render: a bar on a terminal, otherwise a line for each stage.
pub(super) struct Stages {
    bar: ProgressBar,
    lines: bool,
    latest: Cell<Option<Stage>>,
}

impl Stages {
    pub(super) fn new(visible: bool) -> Self {
        let lines = visible && !io::stderr().is_terminal();
        Self { bar: bar(visible), lines, latest: Cell::new(None) }
    }

    pub(super) fn begin(&self, part: &str) {
        self.latest.set(None);
        self.say(part.to_owned());
    }

    /// Waits for the end of a render, and shows its stages until then.
    pub(super) async fn follow<T>(&self, progress: &Progress, render: impl Future<Output = T>) -> T {
        let mut render = pin!(render);
        let mut ticks = tokio::time::interval(TICK);
        let rendered = loop {
            tokio::select! {
                rendered = &mut render => break rendered,
                _ = ticks.tick() => self.show(progress.latest()),
            }
        };
        self.show(progress.latest());
        rendered
    }

    fn show(&self, stage: Option<Stage>) {
        if let Some(stage) = stage.filter(|stage| self.latest.replace(Some(*stage)) != Some(*stage)) {
            self.say(stage.to_string());
        }
    }

    fn say(&self, line: String) {
        if self.lines {
            complain(&line);
        }
        self.bar.set_message(line);
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Shows how bytes come on: a bar on a terminal, otherwise a line for every tenth.
pub(super) struct Transfer {
    bar: ProgressBar,
    lines: bool,
    state: Mutex<ProgressState>,
}

/// Bytes in total, bytes done, and tenths already shown.
#[derive(Debug, Clone, Copy, Default)]
struct ProgressState {
    total: u64,
    done: u64,
    tenths: u64,
}

impl Transfer {
    pub(super) fn new(visible: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        let template = "{bar:30} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
        let style = ProgressStyle::with_template(template).expect("the template is valid");
        let bar = ProgressBar::with_draw_target(None, draw_target(visible)).with_style(style);
        Self { bar, lines: visible && !terminal, state: Mutex::default() }
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl ProgressSink for Transfer {
    fn begin(&self, total: u64, done: u64) {
        *self.state.locked() = ProgressState { total, done, tenths: 0 };
        self.bar.reset();
        self.bar.set_length(total);
        // Without this, the bytes of an earlier start would count as fast ones of this.
        self.bar.set_position(done);
        self.bar.reset_eta();
    }

    fn advance(&self, bytes: i64) {
        let mut state = self.state.locked();
        let ProgressState { total, done, tenths } = *state;
        let done = done.saturating_add_signed(bytes);
        let now = (u128::from(done) * 10).checked_div(u128::from(total)).map_or(0, |tenths| tenths.min(10) as u64);
        if self.lines && now > tenths {
            complain(&format!("{} of {}", BinaryBytes(done), BinaryBytes(total)));
        }
        *state = ProgressState { total, done, tenths: tenths.max(now) };
        self.bar.set_position(done);
    }

    fn report(&self, line: &str) {
        if self.lines {
            complain(line);
        } else {
            self.bar.println(line);
        }
    }
}
