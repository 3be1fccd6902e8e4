//! `tintype key`: API keys.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Value, json};

use super::owners::{AccountFilterArgs, owner_name};
use super::printing::{JsonArgs, print_line, show, show_once};
use super::{Failure, Outcome, find_account, or_dash, table, terminal, was_deleted};
use tintype_config::{lifetime, overlap, rate};
use tintype_domain::budget::{Allowance, Budget, InvalidBudget};
use tintype_domain::key::{ApiKey, KeySecret, KeyState, Suspension};
use tintype_domain::model::Id;
use tintype_domain::text;
use tintype_domain::timestamp::Timestamp;
use tintype_store::{KeyChange, NewKey, Store};
use tintype_system::output;

#[derive(Debug, Subcommand)]
pub(super) enum KeyCommand {
    /// Create a key and print it; it cannot be shown again
    Create(CreateArgs),
    /// List keys without their secrets
    List(AccountFilterArgs),
    /// Show one key without its secret
    Show(OneKeyArgs),
    /// Set or remove the budget that a key shares with its rotations
    Budget(BudgetArgs),
    /// Disable a key until it is enabled again
    Disable(OneKeyArgs),
    /// Enable a disabled or suspended key and clear its strikes
    Enable(OneKeyArgs),
    /// Lift the suspension of a key and clear its strikes; a disabled key stays disabled
    Lift(OneKeyArgs),
    /// Disable a key permanently
    Revoke(OneKeyArgs),
    /// Replace a key with a new one in the same state; both work during the overlap
    Rotate(RotateArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Name or id of the account
    #[arg(long, value_name = "NAME")]
    account: String,
    /// Label of the key, at most 100 characters
    #[arg(long, default_value = "", value_name = "LABEL", value_parser = text::key_label)]
    name: String,
    /// Submits per minute; 0 means unlimited [default: the server's limit]
    #[arg(long, value_name = "N", value_parser = rate)]
    submit_rate: Option<u32>,
    /// Reads per minute; 0 means unlimited [default: the server's limit]
    #[arg(long, value_name = "N", value_parser = rate)]
    read_rate: Option<u32>,
    /// Credits that the key may spend in a day, a week or a month in UTC, such as 500/day [default: no budget]
    #[arg(long, value_name = "N/PERIOD")]
    budget: Option<Budget>,
    /// Lifetime of the key, such as 90d [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = lifetime)]
    expires_in: Option<Duration>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneKeyArgs {
    /// Id of the key, as shown by `key list`
    #[arg(allow_hyphen_values = true, value_parser = key_id)]
    id: Id,
    #[command(flatten)]
    json: JsonArgs,
}

fn key_id(text: &str) -> Result<Id, &'static str> {
    text.parse().map_err(|_| "a key is named by its id, of 21 characters: `tintype key list` shows all keys")
}

#[derive(Debug, Args)]
pub(super) struct BudgetArgs {
    #[command(flatten)]
    key: OneKeyArgs,
    /// Credits for a day, a week or a month in UTC, such as 500/day, or none
    #[arg(value_name = "N/PERIOD|none", value_parser = budget_or_none)]
    // Written in full, because clap would take a plain Option for an argument that may be left out.
    budget: std::option::Option<Budget>,
}

fn budget_or_none(text: &str) -> Result<Option<Budget>, InvalidBudget> {
    if text == "none" { Ok(None) } else { text.parse().map(Some) }
}

#[derive(Debug, Args)]
pub(super) struct RotateArgs {
    #[command(flatten)]
    key: OneKeyArgs,
    /// Time for which the old key continues to work
    #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = overlap)]
    overlap: Duration,
}

/// A key without its secret, with the name of its account.
#[derive(Debug, Serialize)]
struct ShownKey<'a> {
    #[serde(flatten)]
    key: &'a ApiKey,
    account: String,
    state: KeyState,
    #[serde(flatten)]
    used: Option<Value>,
}

fn used_json(allowance: Allowance) -> Value {
    json!({ "spent": allowance.spent, "left": allowance.left(), "resets_at": allowance.resets_at })
}

fn new_json(key: &ApiKey, now: Timestamp) -> Value {
    json!({
        "id": key.id,
        "account_id": key.account_id,
        "name": key.name,
        "budget": key.budget,
        "expires_at": key.expires_at,
        "state": key.state(now),
    })
}

pub(super) async fn run(command: KeyCommand, store: &Store) -> Outcome {
    match command {
        KeyCommand::Create(args) => create(args, store).await,
        KeyCommand::List(args) => list(args, store).await,
        KeyCommand::Show(args) => show_one(args, store).await,
        KeyCommand::Budget(BudgetArgs { key, budget }) => change(key, KeyChange::Budget(budget), store).await,
        KeyCommand::Disable(args) => change(args, KeyChange::Disable, store).await,
        KeyCommand::Enable(args) => change(args, KeyChange::Enable, store).await,
        KeyCommand::Lift(args) => change(args, KeyChange::Lift, store).await,
        KeyCommand::Revoke(args) => change(args, KeyChange::Revoke, store).await,
        KeyCommand::Rotate(args) => rotate(args, store).await,
    }
}

async fn create(args: CreateArgs, store: &Store) -> Outcome {
    let account = find_account(store, &args.account).await?;
    let secret = KeySecret::random();
    let new = NewKey {
        name: args.name,
        submit_rate: args.submit_rate,
        read_rate: args.read_rate,
        budget: args.budget,
        expires_at: args.expires_in.map(|life| store.now().saturating_add(life)),
        ..NewKey::new(&secret)
    };
    let key = store.create_key(account.id, new).await?.ok_or_else(|| was_deleted(&account))?;
    let mut shown = new_json(&key, store.now());
    shown["key"] = secret.reveal().into();
    let unprinted = "the new key could not be printed, so it was revoked";
    let printed = show_once(args.json, &shown, (secret.reveal(), &introduction(&key)), unprinted);
    if printed.is_err() {
        store.change_key(key.id, KeyChange::Revoke).await?;
    }
    printed
}

fn introduction(key: &ApiKey) -> String {
    let off = match (&key.suspension, key.disabled) {
        (Some(Suspension { reason, .. }), _) => Some(format!("suspended ({reason})")),
        (None, true) => Some("disabled".to_owned()),
        (None, false) => None,
    };
    let off = off.map_or_else(String::new, |off| {
        format!("\n\nIt is {off}, like the key that it replaces: `tintype key enable {}` enables it.", key.id)
    });
    let end = key.expires_at.map_or_else(String::new, |at| format!(", valid until {at}"));
    format!("This is key {}{end}. It will not be shown again: store it safely.{off}", key.id)
}

async fn list(args: AccountFilterArgs, store: &Store) -> Outcome {
    let owners = args.owners(store).await?;
    let keys = store.list_keys(owners.only).await?;
    let now = store.now();
    let shown = |key| ShownKey { key, account: owners.name(key.account_id), state: key.state(now), used: None };
    let shown: Vec<_> = keys.iter().map(shown).collect();
    show(args.json, &shown, || {
        let rows = shown.iter().map(|ShownKey { key, account, .. }| {
            [
                key.id.to_string(),
                key.hint.clone(),
                account.clone(),
                state(key, now),
                or_dash(key.budget),
                or_dash(key.expires_at),
                or_dash(key.last_used_at),
                key.name.clone(),
            ]
        });
        table(["ID", "KEY", "ACCOUNT", "STATE", "BUDGET", "EXPIRES", "LAST USED", "NAME"], rows)
    })
}

async fn show_one(args: OneKeyArgs, store: &Store) -> Outcome {
    let key = store.find_key(args.id).await?.ok_or_else(|| no_such_key(args.id))?;
    let account = owner_name(store, key.account_id).await;
    let (now, allowance) = (store.now(), store.find_allowance(key.id).await?);
    let used = allowance.map(used_json);
    let maker = match key.made_by {
        Some(id) => store.find_person(id.as_str()).await?.map_or("a former member".into(), |found| found.person.name),
        None => "the operator".into(),
    };
    show(args.json, &ShownKey { key: &key, account: account.clone(), state: key.state(now), used }, || {
        let rate = |rate: Option<u32>| match rate {
            None => "server default".to_owned(),
            Some(0) => "unlimited".to_owned(),
            Some(rate) if key.made_by.is_some() => format!("at most {rate}/min"),
            Some(rate) => format!("{rate}/min"),
        };
        let rows = [
            ("ID", key.id.to_string()),
            ("KEY", key.hint.clone()),
            ("NAME", key.name.clone()),
            ("ACCOUNT", format!("{account} ({})", key.account_id)),
            ("MADE BY", maker),
            ("STATE", state(&key, now)),
            ("SUBMITS", rate(key.submit_rate)),
            ("READS", rate(key.read_rate)),
            ("BUDGET", or_dash(allowance.map(budget_in_use))),
            ("CREATED", key.created_at.to_string()),
            ("EXPIRES", or_dash(key.expires_at)),
            ("LAST USED", or_dash(key.last_used_at)),
        ];
        rows.map(|(name, value)| format!("{name:<9}  {value}").trim_end().to_owned()).join("\n")
    })
}

/// A budget, and its use.
fn budget_in_use(allowance: Allowance) -> String {
    let Allowance { budget, spent, resets_at } = allowance;
    format!("{budget}: {spent} spent, {} left until {resets_at}", allowance.left())
}

fn state(key: &ApiKey, now: Timestamp) -> String {
    let state = key.state(now);
    let of_account = if key.account_disabled && key.revoked_at.is_none() { " (its account is disabled)" } else { "" };
    let advice = if key.leaked_at.is_some() { " (seen in a URL: rotate this)" } else { "" };
    let reason = match &key.suspension {
        Some(Suspension { at, reason }) => format!(" ({reason}; suspended at {at})"),
        None => String::new(),
    };
    format!("{state}{of_account}{reason}{advice}")
}

async fn change(args: OneKeyArgs, change: KeyChange, store: &Store) -> Outcome {
    let key = store.change_key(args.id, change).await?.ok_or_else(|| no_such_key(args.id))?;
    let now = store.now();
    if change == KeyChange::Enable && key.state(now) == KeyState::Revoked {
        return Err(Failure(format!("key {} is revoked, which cannot be undone: create a new key", key.id)));
    }
    let account = owner_name(store, key.account_id).await;
    let allowance = match change {
        KeyChange::Budget(_) => store.find_allowance(key.id).await?,
        _ => None,
    };
    let used = allowance.map(used_json);
    show(args.json, &ShownKey { key: &key, account: account.clone(), state: key.state(now), used }, || {
        let name = format!("Key {} ({}) of {account}", key.id, key.hint);
        match (change, allowance) {
            (KeyChange::Budget(_), Some(allowance)) => format!("{name} has the budget {}.", budget_in_use(allowance)),
            (KeyChange::Budget(_), None) => format!("{name} has no budget."),
            _ => format!("{name} is {}.", state(&key, now)),
        }
    })
}

async fn rotate(args: RotateArgs, store: &Store) -> Outcome {
    let OneKeyArgs { id, json: JsonArgs { json } } = args.key;
    let revoked = || Failure(format!("key {id} is revoked: create a new key"));
    match store.find_key(id).await? {
        None => return Err(no_such_key(id)),
        Some(key) if key.revoked_at.is_some() => return Err(revoked()),
        Some(key) if key.state(store.now()) == KeyState::Expired => {
            return Err(Failure(format!("key {id} has expired, and so would the new one: create a new key")));
        }
        Some(_) => {}
    }
    let secret = KeySecret::random();
    // A rotation ends the old key and cannot be undone, so the new one must be printed first.
    let start = if json { format!("{{\n  \"key\": \"{}\",", secret.reveal()) } else { secret.reveal().to_owned() };
    output::print_secret(&start)
        .map_err(|error| Failure(format!("the new key could not be printed, so nothing was rotated: {error}")))?;
    let unused = |why: &dyn Display| Failure(format!("{why}; the key that was printed does not work"));
    let key =
        store.rotate_key(id, secret.hash(), &secret.hint(), args.overlap).await.map_err(|error| unused(&error))?;
    let key = key.ok_or_else(|| unused(&revoked().0))?;
    // The new key is printed already, so nothing may fail from here on.
    let old_end = store.find_key(id).await.ok().flatten().and_then(|old| old.expires_at);
    let mut shown = new_json(&key, store.now());
    shown["replaces"] = json!(id);
    shown["old_key_expires_at"] = json!(old_end);
    let rest = serde_json::to_string_pretty(&shown)?;
    let rest = rest.strip_prefix("{\n").unwrap_or(&rest);
    let text = || {
        let end = old_end.map_or_else(String::new, |at| format!("\nThe old key {id} expires at {at}."));
        format!("\n{}{end}", introduction(&key))
    };
    print_line(&if json { terminal::visible_json(rest) } else { text() });
    Ok(ExitCode::SUCCESS)
}

fn no_such_key(id: Id) -> Failure {
    Failure(format!("there is no key {id}: `tintype key list` shows all keys"))
}
