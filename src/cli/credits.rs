//! `tintype credits` grants and takes credits, shows balances and ledgers, and audits the ledger.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::account::{MAX_GRANT, OneAccountArgs};
use super::owners::Owners;
use super::printing::{JsonArgs, show_verdict};
use super::values::whole_number;
use super::{
    Failure, Outcome, complain, describe, existing_files, find_account, open_store, or_dash, progress, show, table,
    was_deleted,
};
use crate::backup::results::{self, Check};
use crate::files::Files;
use tintype_config::{DataSettings, lifetime};
use tintype_domain::model::LedgerEntry;
use tintype_domain::text::{self, counted};
use tintype_store::{Audit, CreditChange, Drift, Store};

const HISTORY_PAGE: u32 = 1_000;

#[derive(Debug, Subcommand)]
pub(super) enum CreditsCommand {
    /// Grant credits to an account
    Grant(GrantArgs),
    /// Take credits from an account, at most its balance
    Take(TakeArgs),
    /// Show the balance of an account
    Balance(OneAccountArgs),
    /// List the unspent expiring grants of an account, in spending order
    Grants(OneAccountArgs),
    /// Show the ledger of an account, newest entries first
    History(HistoryArgs),
    /// Recompute every balance from the ledger; exit with 1 on any drift
    Audit(AuditArgs),
}

#[derive(Debug, Args)]
pub(super) struct GrantArgs {
    /// Name or id of the account
    account: String,
    /// Credits to add
    #[arg(allow_negative_numbers = true, value_parser = whole_number::<i64>(1..=MAX_GRANT))]
    amount: i64,
    /// Note for the ledger, at most 500 characters
    #[arg(long, value_name = "TEXT", value_parser = text::ledger_note)]
    note: Option<String>,
    /// When unspent credits of this grant expire, such as 90d [default: never]
    #[arg(long, value_name = "DURATION", value_parser = lifetime)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct TakeArgs {
    /// Name or id of the account
    account: String,
    /// Credits to take
    #[arg(allow_negative_numbers = true, value_parser = whole_number::<i64>(1..=MAX_GRANT))]
    amount: i64,
    /// Reason for the ledger, at most 500 characters
    #[arg(long, value_name = "TEXT", value_parser = text::ledger_reason)]
    note: String,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct HistoryArgs {
    #[command(flatten)]
    account: OneAccountArgs,
    /// Number of entries to show [default: all]
    #[arg(long, value_name = "N", value_parser = whole_number::<usize>(0..=MAX_GRANT))]
    limit: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// Also check that every image of a completed task exists and starts and ends like a PNG. URL is file:PATH or
    /// s3://BUCKET/PREFIX [default: the files that `tintype serve` would use]
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    files: Option<String>,
    /// The files that `tintype serve` would use
    #[arg(long, env = "TINTYPE_FILES", hide = true)]
    served_files: Option<String>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Balance<'a> {
    account: &'a str,
    credits: i64,
}

pub(super) async fn run(command: CreditsCommand, data: &DataSettings) -> Outcome {
    let store = open_store(data).await?;
    if !matches!(command, CreditsCommand::Audit(_)) {
        // Perhaps no server is running, which would end grants.
        if let Err(error) = store.expire_grants().await {
            complain(&format!("tintype: expired grants could not be ended: {error}"));
        }
    }
    match command {
        CreditsCommand::Grant(args) => grant(args, &store).await,
        CreditsCommand::Take(args) => take(args, &store).await,
        CreditsCommand::Balance(args) => balance(args, &store).await,
        CreditsCommand::Grants(args) => grants(args, &store).await,
        CreditsCommand::History(args) => history(args, &store).await,
        CreditsCommand::Audit(args) => audit(args, &store, data).await,
    }
}

async fn grant(args: GrantArgs, store: &Store) -> Outcome {
    let account = find_account(store, &args.account).await?;
    let expires_at = args.expires_in.map(|life| store.now().saturating_add(life));
    let note = args.note.as_deref().filter(|note| !note.is_empty());
    let granted = store.grant(account.id, args.amount, note, expires_at).await?;
    let credits = granted.ok_or_else(|| was_deleted(&account))?;
    show(args.json, &Balance { account: &account.name, credits }, || {
        let until = expires_at.map(|end| format!(" until {end}")).unwrap_or_default();
        format!("Granted {}{until}; {} has {credits}.", counted(args.amount, "credit", "credits"), account.name)
    })
}

async fn take(args: TakeArgs, store: &Store) -> Outcome {
    let account = find_account(store, &args.account).await?;
    let name = &account.name;
    match store.take(account.id, args.amount, &args.note).await? {
        CreditChange::Done(credits) => show(args.json, &Balance { account: name, credits }, || {
            format!("Took {}; {name} has {credits} left.", counted(args.amount, "credit", "credits"))
        }),
        CreditChange::TooFew(available) => Err(Failure(format!(
            "{name} has only {}, so nothing was taken: take {available} or less",
            counted(available, "credit", "credits")
        ))),
        CreditChange::Repeated | CreditChange::NoAccount => Err(was_deleted(&account)),
    }
}

async fn balance(args: OneAccountArgs, store: &Store) -> Outcome {
    let account = find_account(store, &args.account).await?;
    let balance = Balance { account: &account.name, credits: account.credits };
    show(args.json, &balance, || format!("{} has {}.", account.name, counted(account.credits, "credit", "credits")))
}

async fn grants(args: OneAccountArgs, store: &Store) -> Outcome {
    let account = find_account(store, &args.account).await?;
    let mut grants = store.expiring_grants(account.id, u32::MAX).await?;
    grants.retain(|grant| grant.remaining > 0);
    show(args.json, &grants, || {
        let rows = grants.iter().map(|grant| {
            let (amount, left) = (grant.amount.to_string(), grant.remaining.to_string());
            [grant.expires_at.to_string(), amount, left, or_dash(grant.note.clone())]
        });
        table(["EXPIRES", "GRANTED", "LEFT", "NOTE"], rows)
    })
}

async fn history(args: HistoryArgs, store: &Store) -> Outcome {
    let account = find_account(store, &args.account.account).await?;
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
            let kind = kind(entry).to_owned();
            let amount = format!("{:+}", entry.amount);
            let about = entry.task_id.map(|id| id.to_string()).or_else(|| entry.note.clone());
            [entry.created_at.to_string(), kind, amount, entry.balance.to_string(), or_dash(about)]
        });
        table(["WHEN", "KIND", "AMOUNT", "BALANCE", "TASK OR NOTE"], rows)
    })
}

/// An entry's kind, for display: credits taken by an operator are a grant with a negative amount.
fn kind(entry: &LedgerEntry) -> &'static str {
    if entry.is_taken() { "taken" } else { entry.kind.as_str() }
}

async fn audit(args: AuditArgs, store: &Store, data: &DataSettings) -> Outcome {
    let books = store.audit().await?;
    let check = match &args.files {
        None => None,
        Some(url) => {
            let url = if url.is_empty() { args.served_files.as_deref() } else { Some(url.as_str()) };
            Some(check_files(store, url, books.tasks, !args.json, data).await?)
        }
    };
    let findings = Findings::new(books, check);
    let owners = Owners::all(store).await;
    show_verdict(findings.drifts.is_empty(), args.json, &findings, || findings.text(&owners))
}

async fn check_files(
    store: &Store,
    url: Option<&str>,
    tasks: u64,
    visible: bool,
    data: &DataSettings,
) -> Result<Check, Failure> {
    let files = existing_files(data, url).await?;
    let _kept = files.as_ref().map(Files::keep_all).transpose()?;
    let bar = progress::bar(visible);
    results::begin(&bar, "checking the result files", tasks);
    let check = results::check(files.as_ref(), store, &bar, &CancellationToken::new()).await;
    bar.finish_and_clear();
    check.map_err(|error| {
        let backend = data.file_backend(url).map(|backend| backend.to_string()).unwrap_or_default();
        Failure(format!("cannot check the result files in {backend}: {error}"))
    })
}

#[derive(Debug, Serialize)]
struct Findings {
    accounts: u64,
    tasks: u64,
    entries: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    drifts: Vec<Drift>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drifts_left_out: Option<u64>,
}

impl Findings {
    fn new(books: Audit, check: Option<Check>) -> Self {
        let mut drifts = books.drifts;
        let (mut files, mut drifts_left_out) = (None, None);
        if let Some(check) = check {
            drifts.extend(check.drifts);
            (files, drifts_left_out) = (Some(check.files), Some(check.drifts_left_out));
        }
        Self { accounts: books.accounts, tasks: books.tasks, entries: books.entries, files, drifts, drifts_left_out }
    }

    fn text(&self, owners: &Owners) -> String {
        let line = |drift: &Drift| describe(drift, &owners.name(drift.account_id));
        let mut lines: Vec<String> = self.drifts.iter().map(line).collect();
        let (files, sound) = match self.files {
            Some(files) => (
                format!(", {}", counted(files, "result file", "result files")),
                "all balances match and all files exist",
            ),
            None => (String::new(), "all balances match"),
        };
        let verdict = match self.drifts.len() as u64 + self.drifts_left_out.unwrap_or(0) {
            0 => sound.to_owned(),
            drifts => counted(drifts, "drift", "drifts"),
        };
        lines.push(format!(
            "{}, {}, {}{files}: {verdict}.",
            counted(self.accounts, "account", "accounts"),
            counted(self.tasks, "task", "tasks"),
            counted(self.entries, "ledger entry", "ledger entries"),
        ));
        lines.join("\n")
    }
}
