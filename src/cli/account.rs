//! `tintype account` creates, lists, disables and deletes accounts, which own keys, credits and tasks.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::person::{ShownLinkArgs, show_link_of_account};
use super::printing::{JsonArgs, quoted};
use super::values::whole_number;
use super::{Failure, Outcome, find_account, open_or_create_store, open_store, show, table, was_deleted};
use tintype_config::{DataSettings, DatabaseUrl};
use tintype_domain::model::{Account, Surface};
use tintype_domain::names::{self, new_account_name};
use tintype_domain::text::counted;
use tintype_store::{AccountChange, Store};
use tintype_system::data_dir;
use tintype_system::output;

/// A task that ended now ended before this much later.
const MILLISECOND: Duration = Duration::from_millis(1);
/// Largest grant, in credits.
pub(super) const MAX_GRANT: i64 = 1_000_000_000_000;

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Create an account
    Create(CreateArgs),
    /// List all accounts
    List(JsonArgs),
    /// Print a one-time sign-in link for an account's owner
    Link(LinkArgs),
    /// Set the balance below which an account's webhooks get one `credits.low` event
    LowBalance(LowBalanceArgs),
    /// Disable an account until it is enabled again: its keys stop working, its webhooks wait, its unfinished tasks
    /// continue
    Disable(OneAccountArgs),
    /// Enable a disabled account
    Enable(OneAccountArgs),
    /// Delete an account for good: revoke its keys, and remove its tasks with their prompts and images. Its ledger
    /// and its name are kept
    Delete(DeleteArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Name of the account: unique, at most 100 characters
    #[arg(value_parser = new_account_name)]
    name: String,
    /// Credits to grant at once
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = whole_number::<i64>(0..=MAX_GRANT))]
    credits: i64,
    /// Let the owners of this account manage all accounts in the studio, as those of the first account always can
    #[arg(long)]
    admin: bool,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct LinkArgs {
    /// Name or id of the account
    account: String,
    #[command(flatten)]
    shown: ShownLinkArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneAccountArgs {
    /// Name or id of the account
    pub(super) account: String,
    #[command(flatten)]
    pub(super) json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct LowBalanceArgs {
    #[command(flatten)]
    account: OneAccountArgs,
    /// Credits, or none
    #[arg(value_name = "N|none", allow_negative_numbers = true, value_parser = threshold)]
    // Written in full, because clap would take a plain Option for an argument that may be left out.
    threshold: std::option::Option<i64>,
}

fn threshold(text: &str) -> Result<Option<i64>, String> {
    let credits = text.parse().ok().filter(|credits| (1..=MAX_GRANT).contains(credits));
    if credits.is_none() && text != "none" {
        return Err(format!("{text:?} is neither a number of credits from 1 to {MAX_GRANT} nor \"none\""));
    }
    Ok(credits)
}

#[derive(Debug, Args)]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    account: OneAccountArgs,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(command: AccountCommand, data: &DataSettings) -> Outcome {
    match command {
        AccountCommand::Create(args) => create(args, data).await,
        AccountCommand::List(args) => list(args, data).await,
        AccountCommand::Link(args) => {
            let store = open_store(data).await?;
            let account = existing(&store, &args.account).await?;
            show_link_of_account(&store, &account, args.shown).await
        }
        AccountCommand::LowBalance(LowBalanceArgs { account, threshold }) => {
            change(account, AccountChange::LowBalance(threshold), data).await
        }
        AccountCommand::Disable(args) => change(args, AccountChange::Disable, data).await,
        AccountCommand::Enable(args) => change(args, AccountChange::Enable, data).await,
        AccountCommand::Delete(args) => delete(args, data).await,
    }
}

async fn create(args: CreateArgs, data: &DataSettings) -> Outcome {
    if matches!(data.database()?, DatabaseUrl::Sqlite(_)) {
        data_dir::create(&data.data)?;
    }
    let store = open_or_create_store(data).await?;
    if let Some(skeleton) = names::confusable_skeleton(&args.name) {
        let known = store.list_accounts().await?;
        if let Some(known) =
            known.iter().find(|known| known.name != args.name && names::is_confusable(&known.name, &skeleton))
        {
            return Err(Failure(format!("this name looks like the account {:?}", known.name)));
        }
    }
    let Some(account) = store.create_account_as(&args.name, args.credits, args.admin).await? else {
        return Err(Failure(format!("an account named {:?} already exists", args.name)));
    };
    show(args.json, &account, || {
        let credits = counted(account.credits, "credit", "credits");
        let rank = if account.admin { " It is an admin account." } else { "" };
        let name = quoted(&account.name);
        format!(
            "Created account {} ({}) with {credits}.{rank}\n\
             Sign in: tintype account link {name}\nNew key: tintype key create --account {name}",
            account.name, account.id
        )
    })
}

/// An account with its state.
#[derive(Debug, Serialize)]
struct ShownAccount<'a> {
    #[serde(flatten)]
    account: &'a Account,
    admin: bool,
    state: &'static str,
}

impl<'a> From<&'a Account> for ShownAccount<'a> {
    fn from(account: &'a Account) -> Self {
        Self { account, admin: account.admin, state: state(account) }
    }
}

async fn list(args: JsonArgs, data: &DataSettings) -> Outcome {
    let accounts = open_store(data).await?.list_accounts().await?;
    show(args, &accounts.iter().map(ShownAccount::from).collect::<Vec<_>>(), || {
        let rows = accounts.iter().map(|account| {
            let rank = if account.admin { "admin" } else { "-" };
            let credits = account.credits.to_string();
            [account.name.clone(), account.id.to_string(), credits, state(account).to_owned(), rank.to_owned()]
        });
        table(["NAME", "ID", "CREDITS", "STATE", "RANK"], rows)
    })
}

fn state(account: &Account) -> &'static str {
    match (account.deleted_at, account.disabled_at) {
        (Some(_), _) => "deleted",
        (None, Some(_)) => "disabled",
        (None, None) => "active",
    }
}

async fn change(args: OneAccountArgs, change: AccountChange, data: &DataSettings) -> Outcome {
    let store = open_store(data).await?;
    let account = existing(&store, &args.account).await?;
    let changed = store.change_account(account.id, change).await?;
    let account = changed.ok_or_else(|| was_deleted(&account))?;
    let name = &account.name;
    let hint = admin_hint(&store, &account).await;
    show(args.json, &ShownAccount::from(&account), || match (change, account.low_balance) {
        (AccountChange::LowBalance(_), Some(threshold)) => {
            let threshold = counted(threshold, "credit", "credits");
            format!("Webhooks of {name} fire when its balance drops below {threshold}.")
        }
        (AccountChange::LowBalance(_), None) => format!("Low-balance webhooks for {name} are off."),
        _ => format!("Account {name} is {}.{hint}", state(&account)),
    })
}

/// Finds an account that is not deleted.
async fn existing(store: &Store, name_or_id: &str) -> Result<Account, Failure> {
    let account = find_account(store, name_or_id).await?;
    if account.deleted_at.is_some() { Err(was_deleted(&account)) } else { Ok(account) }
}

/// Every step can be repeated after an interruption.
async fn delete(args: DeleteArgs, data: &DataSettings) -> Outcome {
    let store = open_store(data).await?;
    let OneAccountArgs { account, json } = args.account;
    let account = find_account(&store, &account).await?;
    let name = &account.name;
    if account.deleted_at.is_none() {
        if !args.yes && !confirmed(name, json)? {
            return Err(Failure(format!("{name} was not deleted: type its name to confirm, or pass --yes")));
        }
        // Without valid keys the account soon gets no new tasks.
        store.change_account(account.id, AccountChange::Disable).await?;
    }
    let deleted = store.change_account(account.id, AccountChange::Delete).await?;
    let deleted = deleted.ok_or_else(|| was_deleted(&account))?;
    if deleted.deleted_at.is_none() {
        let web = store.count_unfinished(account.id, Surface::Web).await?;
        let unfinished = store.count_unfinished(account.id, Surface::Api).await? + web;
        return Err(Failure(format!(
            "{name} has {}: it is disabled and not deleted; wait until they have ended and repeat this command",
            counted(unfinished, "unfinished task", "unfinished tasks")
        )));
    }
    let removed = store.remove_tasks_of(account.id, store.now().saturating_add(MILLISECOND)).await?;
    let hint = admin_hint(&store, &deleted).await;
    show(json, &ShownAccount::from(&deleted), || {
        let tasks = counted(removed as u64, "task", "tasks");
        format!(
            "Deleted account {name} and {tasks}. The server removes their images within a week; the ledger stays.{hint}"
        )
    })
}

/// What follows if this account, after a change, leaves nobody who can operate the studio.
async fn admin_hint(store: &Store, changed: &Account) -> &'static str {
    let is_off = |account: &Account| account.disabled_at.is_some() || account.deleted_at.is_some();
    match store.list_accounts().await {
        Ok(all) if changed.admin && is_off(changed) && !all.iter().any(|other| other.admin && !is_off(other)) => {
            "\nNo admin account is left. New one: tintype account create NAME --admin"
        }
        _ => "",
    }
}

/// Whether standard input has the name of the account. Asks for it on the terminal, but not a program, which reads
/// `json`.
fn confirmed(name: &str, JsonArgs { json }: JsonArgs) -> Result<bool, Failure> {
    if json && io::stdin().is_terminal() {
        return Ok(false);
    }
    output::ask(&format!(
        "This revokes all keys of {name} and erases its prompts and images for good. Type its name to continue: "
    ));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(answer.trim() == name)
}
