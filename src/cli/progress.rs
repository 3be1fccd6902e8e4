//! Progress of long-running commands, shown on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Creates a spinner on standard error if that is a terminal; [`crate::backup::results::begin`] turns it into a bar.
pub(super) fn bar(visible: bool) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("the template is valid");
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(0), target).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
