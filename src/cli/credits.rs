//! `tintype credits`: what accounts can spend, and where it went.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::account::MAX_GRANT;
use super::{Outcome, find_account, open_store, or_dash, show, table};
use crate::config::DataSettings;
use crate::model::LedgerEntry;

/// Ledger entries fetched at a time.
const HISTORY_PAGE: u32 = 1_000;

#[derive(Debug, Subcommand)]
pub(super) enum CreditsCommand {
    /// Give an account credits
    Grant(GrantArgs),
    /// Show how many credits an account has
    Balance(AccountArgs),
    /// Show an account's ledger, newest first
    History(HistoryArgs),
    /// Recompute every balance from the ledger; exits with 1 on any drift
    Audit(AuditArgs),
}

#[derive(Debug, Args)]
pub(super) struct AccountArgs {
    /// Name or id of the account
    account: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct GrantArgs {
    /// Name or id of the account
    account: String,
    /// Credits to add
    #[arg(value_parser = clap::value_parser!(i64).range(1..=MAX_GRANT))]
    amount: i64,
    /// Words for the ledger
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    account: AccountArgs,
    /// Most entries to show [default: all]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An account's name and what it can spend.
#[derive(Debug, Serialize)]
struct Balance<'a> {
    account: &'a str,
    credits: i64,
}

pub(super) async fn run(command: CreditsCommand, data: &DataSettings) -> Outcome {
    match command {
        CreditsCommand::Grant(args) => grant(args, data).await,
        CreditsCommand::Balance(args) => balance(args, data).await,
        CreditsCommand::History(args) => history(args, data).await,
        CreditsCommand::Audit(args) => audit(args, data).await,
    }
}

async fn grant(args: GrantArgs, data: &DataSettings) -> Outcome {
    let store = open_store(data)?;
    let account = find_account(&*store, &args.account).await?;
    let credits = store.grant(account.id, args.amount, args.note.as_deref()).await?.ok_or("the account is gone")?;
    show(args.json, &Balance { account: &account.name, credits }, || {
        format!("Granted {} credits; {} has {credits}.", args.amount, account.name)
    })
}

async fn balance(args: AccountArgs, data: &DataSettings) -> Outcome {
    let store = open_store(data)?;
    let account = find_account(&*store, &args.account).await?;
    let balance = Balance { account: &account.name, credits: account.credits };
    show(args.json, &balance, || format!("{} has {} credits.", account.name, account.credits))
}

async fn history(args: HistoryArgs, data: &DataSettings) -> Outcome {
    let store = open_store(data)?;
    let account = find_account(&*store, &args.account.account).await?;
    let limit = args.limit.unwrap_or(usize::MAX);
    let mut entries = Vec::new();
    while entries.len() < limit {
        let page = store.history(account.id, entries.last().map(|entry: &LedgerEntry| entry.id), HISTORY_PAGE).await?;
        let last_page = page.len() < HISTORY_PAGE as usize;
        entries.extend(page);
        if last_page {
            break;
        }
    }
    entries.truncate(limit);
    show(args.account.json, &entries, || {
        let rows = entries.iter().map(|entry| {
            let kind = entry.kind.as_str().to_owned();
            let amount = format!("{:+}", entry.amount);
            let about = entry.task_id.map(|id| id.to_string()).or_else(|| entry.note.clone());
            [entry.created_at.to_string(), kind, amount, entry.balance.to_string(), or_dash(about)]
        });
        table(["WHEN", "KIND", "AMOUNT", "BALANCE", "TASK OR NOTE"], rows)
    })
}

async fn audit(args: AuditArgs, data: &DataSettings) -> Outcome {
    let audit = open_store(data)?.audit().await?;
    show(args.json, &audit, || {
        let mut lines: Vec<String> = audit
            .drifts
            .iter()
            .map(|drift| format!("account {}, task {}: {}", drift.account_id, or_dash(drift.task_id), drift.fault))
            .collect();
        let verdict = if audit.drifts.is_empty() {
            "all balances agree".to_owned()
        } else {
            format!("{} drifts", audit.drifts.len())
        };
        lines.push(format!(
            "{} accounts, {} tasks, {} ledger entries: {verdict}.",
            audit.accounts, audit.tasks, audit.entries
        ));
        lines.join("\n")
    })?;
    Ok(if audit.drifts.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
