//! `tintype account` creates and lists accounts, which own keys, credits and tasks.

use clap::{Args, Subcommand};

use super::{Failure, Outcome, open_or_create_store, open_store, show, table};
use crate::config::{DataSettings, DatabaseUrl};
use crate::data_dir;
use crate::domain::text::{self, counted};
use crate::store::AccountCreation;

/// Largest grant, in credits.
pub(super) const MAX_GRANT: i64 = 1_000_000_000_000;

#[derive(Debug, Subcommand)]
pub(super) enum AccountCommand {
    /// Create an account
    Create(CreateArgs),
    /// List all accounts
    List(ListArgs),
}

#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// Name of the account: unique, at most 100 characters
    #[arg(value_parser = text::account_name)]
    name: String,
    /// Credits to grant at once
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(i64).range(0..=MAX_GRANT))]
    credits: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: AccountCommand, data: &DataSettings) -> Outcome {
    match command {
        AccountCommand::Create(args) => create(args, data).await,
        AccountCommand::List(args) => list(args, data).await,
    }
}

async fn create(args: CreateArgs, data: &DataSettings) -> Outcome {
    if matches!(data.database()?, DatabaseUrl::Sqlite(_)) {
        data_dir::create(&data.data)?;
    }
    let store = open_or_create_store(data).await?;
    match store.create_account(&args.name, args.credits).await? {
        AccountCreation::Created(account) => show(args.json, &account, || {
            let credits = counted(account.credits, "credit", "credits");
            format!("Created account {} ({}) with {credits}.", account.name, account.id)
        }),
        AccountCreation::NameTaken => Err(Failure(format!("an account named {:?} already exists", args.name))),
    }
}

async fn list(args: ListArgs, data: &DataSettings) -> Outcome {
    let accounts = open_store(data).await?.list_accounts().await?;
    show(args.json, &accounts, || {
        let rows =
            accounts.iter().map(|account| [account.name.clone(), account.id.to_string(), account.credits.to_string()]);
        table(["NAME", "ID", "CREDITS"], rows)
    })
}
