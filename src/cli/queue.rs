//! `tintype queue` stops and resumes the claims of all workers, and shows the queue.

use clap::Subcommand;
use serde_json::json;

use super::printing::JsonArgs;
use super::{Outcome, show};
use tintype_store::{QueueDepth, Store, WaitingForEngine};
use tintype_system::clock::Timestamp;

pub(super) const TASKS_EXPIRE: &str = "a task that is not finished 9 minutes after its submit fails and is refunded";

#[derive(Debug, Subcommand)]
pub(super) enum QueueCommand {
    /// Stop all workers from claiming tasks, for maintenance
    #[command(after_help = "\
Within a second, no worker claims another task; running tasks are finished. Submits are still \
accepted and wait, but a task that is not finished 9 minutes after its submit fails and is refunded. The pause is kept \
in the database: it survives restarts, backups and migrations, until `tintype queue resume`.")]
    Pause(JsonArgs),
    /// Claim tasks again
    Resume(JsonArgs),
    /// Show how many tasks are waiting and running, and whether the queue is paused
    Show(JsonArgs),
}

pub(super) async fn run(command: QueueCommand, store: &Store) -> Outcome {
    match command {
        QueueCommand::Pause(args) => {
            let since = store.pause_queue().await?;
            print(store, args, |_| {
                format!(
                    "Paused since {since}: no worker claims a task. Submits are accepted, but {TASKS_EXPIRE}. \
                     `tintype queue resume` ends the pause."
                )
            })
            .await
        }
        QueueCommand::Resume(args) => {
            let message = match store.resume_queue().await? {
                Some(since) => format!("Resumed; it was paused since {since}."),
                None => "The queue was not paused.".into(),
            };
            print(store, args, |_| message).await
        }
        QueueCommand::Show(args) => {
            print(store, args, |paused_at| match paused_at {
                Some(since) => format!("Paused since {since}: {TASKS_EXPIRE}. `tintype queue resume` ends the pause."),
                None => "Not paused.".into(),
            })
            .await
        }
    }
}

/// Prints the state of the queue, after a message for people on whether it is paused.
async fn print(store: &Store, json: JsonArgs, message: impl FnOnce(Option<Timestamp>) -> String) -> Outcome {
    let QueueDepth { waiting, leased, oldest, paused_at, .. } = store.queue_depth().await?;
    let for_engines = store.waiting_for_engines().await?;
    let queue = json!({
        "paused_at": paused_at,
        "waiting": waiting,
        "leased": leased,
        "oldest_submitted_at": oldest,
        "waiting_for_engines": for_engines,
    });
    show(json, &queue, || {
        let since = oldest.map(|at| format!("; the oldest was submitted at {at}")).unwrap_or_default();
        let mut text = format!("{}\n{waiting} waiting, {leased} running{since}", message(paused_at));
        for WaitingForEngine { engine, tasks, .. } in &for_engines {
            text.push_str(&format!("\n{tasks} waiting for the engine {engine}"));
        }
        text
    })
}
