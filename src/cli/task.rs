//! `tintype task` lists, shows and fails tasks of both surfaces.

use std::sync::Arc;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::owners::{self, owner_name};
use super::printing::JsonArgs;
use super::values::whole_number;
use super::{Failure, Outcome, show, table};
use crate::metrics::Metrics;
use crate::service::endings::{Endings, STOPPED};
use tintype_domain::model::{FailureCause, Id, Status, Task, TaskId};
use tintype_domain::text;
use tintype_store::{Store, TaskRecord};
use tintype_system::clock::Clock;

#[derive(Debug, Subcommand)]
pub(super) enum TaskCommand {
    /// List tasks, newest first
    List(ListArgs),
    /// Show a task and its request
    Show(OneTaskArgs),
    /// Fail a processing task and refund it
    Fail(FailArgs),
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    #[command(flatten)]
    list: owners::AccountFilterArgs,
    /// Number of tasks to show
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = whole_number::<u32>(0..=i64::from(u32::MAX)))]
    limit: u32,
}

#[derive(Debug, Args)]
pub(super) struct OneTaskArgs {
    /// The task_id, with or without the prefix imgmodel-
    #[arg(value_parser = task_id, allow_hyphen_values = true)]
    id: Id,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct FailArgs {
    #[command(flatten)]
    task: OneTaskArgs,
    /// Error message shown to the owner of the task, at most 500 characters
    #[arg(long, default_value = STOPPED, value_name = "TEXT", value_parser = text::failure_reason)]
    reason: String,
}

fn task_id(text: &str) -> Result<Id, tintype_domain::model::InvalidId> {
    text.parse().map(|TaskId(id)| id).or_else(|_| text.parse())
}

fn task_json(task: &Task, account: &str) -> Value {
    let (files, failure) = match &task.status {
        Status::Processing => (&[][..], None),
        Status::Completed(files) => (&files[..], None),
        Status::Failed(failure) => (&[][..], Some(failure)),
    };
    json!({
        "task_id": task.task_id(),
        "account_id": task.account_id,
        "account": account,
        "surface": task.surface,
        "status": task.status.as_str(),
        "files": files,
        // Such as `policy` or `reference:0:too-large`.
        "cause": failure.map(|failure| failure.cause.to_string()),
        "error": failure.map(|failure| &failure.message),
        "created_at": task.created_at(),
        "updated_at": task.updated_at,
    })
}

pub(super) async fn run(command: TaskCommand, store: &Arc<Store>) -> Outcome {
    match command {
        TaskCommand::List(args) => list(args, store).await,
        TaskCommand::Show(args) => show_one(args, store).await,
        TaskCommand::Fail(args) => fail(args, store).await,
    }
}

async fn list(args: ListArgs, store: &Store) -> Outcome {
    let owners = args.list.owners(store).await?;
    let tasks = store.recent_tasks(owners.only, args.limit).await?;
    let account = |task: &Task| owners.name(task.account_id);
    let listed: Value = tasks.iter().map(|task| task_json(task, &account(task))).collect();
    show(args.list.json, &listed, || {
        let rows = tasks.iter().map(|task| {
            let error = match &task.status {
                Status::Failed(failure) => failure.message.clone(),
                Status::Processing | Status::Completed(_) => String::new(),
            };
            [
                task.task_id().to_string(),
                task.status.as_str().to_owned(),
                task.surface.as_str().to_owned(),
                account(task),
                task.created_at().to_string(),
                error,
            ]
        });
        table(["TASK", "STATUS", "SURFACE", "ACCOUNT", "CREATED", "ERROR"], rows)
    })
}

async fn show_one(args: OneTaskArgs, store: &Store) -> Outcome {
    let record = store.inspect_task(args.id).await?.ok_or_else(|| no_such_task(args.id))?;
    let TaskRecord { task, request, person_id, lost_leases, removed_at } = record;
    let mut shown = task_json(&task, &owner_name(store, task.account_id).await);
    shown["request"] = serde_json::to_value(&request)?;
    shown["seeds"] = request.seeds(args.id).collect();
    shown["person_id"] = json!(person_id);
    shown["request_id"] = json!(request.request_id);
    shown["lost_leases"] = json!(lost_leases);
    shown["removed_at"] = json!(removed_at);
    // JSON is the most readable layout for nested values.
    show(JsonArgs { json: true }, &shown, String::new)
}

async fn fail(args: FailArgs, store: &Arc<Store>) -> Outcome {
    let id = args.task.id;
    let failed = Endings::new(store.clone(), Arc::new(Metrics::new(Clock::system().now())))
        .fail_unleased(id, FailureCause::Operator, &args.reason)
        .await?;
    let record = store.inspect_task(id).await?.ok_or_else(|| no_such_task(id))?;
    if !failed {
        return Err(Failure(format!("task {} is already {}", TaskId(id), record.task.status.as_str())));
    }
    let account = owner_name(store, record.task.account_id).await;
    let shown = task_json(&record.task, &account);
    show(args.task.json, &shown, || format!("Task {} was failed and refunded.", TaskId(id)))
}

fn no_such_task(id: Id) -> Failure {
    Failure(format!("there is no task {}", TaskId(id)))
}
