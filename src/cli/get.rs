//! `tintype get`: waits for a task that was submitted before, and saves its images.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tintype_client::{Accepted, InvalidTaskId, Processing, TaskId};

use super::following::{self, EXIT_CODES, FollowArgs};

#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(super) struct GetArgs {
    /// The task_id, with or without the prefix imgmodel-
    #[arg(value_parser = task_id, allow_hyphen_values = true)]
    task_id: TaskId,
    #[command(flatten)]
    follow: FollowArgs,
}

fn task_id(text: &str) -> Result<TaskId, InvalidTaskId> {
    text.parse().or_else(|_| format!("imgmodel-{text}").parse())
}

pub(super) async fn run(args: GetArgs) -> ExitCode {
    let GetArgs { task_id, follow } = args;
    following::run(&follow, async |report| {
        let client = following::client(&follow.server)?;
        follow.prepare(1)?;
        // The task may have ended long ago.
        let state = Processing { poll_after: Some(Duration::ZERO), ..Processing::default() };
        let task = Accepted { task_id, state, ignored_fields: Vec::new() };
        following::follow(&client, task, &follow, report).await
    })
    .await
}
