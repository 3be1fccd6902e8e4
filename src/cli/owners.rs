//! The accounts that own what commands list and show.

use std::collections::HashMap;
use std::sync::Arc;

use clap::Args;

use super::printing::JsonArgs;
use super::{Failure, find_account, open_store};
use tintype_config::DataSettings;
use tintype_domain::model::{Account, Id};
use tintype_store::Store;

/// A list of what accounts own.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// List only entries of this account
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    #[command(flatten)]
    pub(super) json: JsonArgs,
}

#[derive(Debug, Default)]
pub(super) struct Owners {
    /// Set if the list is about one account.
    pub(super) only: Option<Id>,
    names: HashMap<Id, String>,
}

impl ListArgs {
    pub(super) async fn open(&self, data: &DataSettings) -> Result<(Arc<Store>, Owners), Failure> {
        let store = open_store(data).await?;
        let owners = Owners::read(&store, self.account.as_deref()).await?;
        Ok((store, owners))
    }
}

impl Owners {
    pub(super) async fn read(store: &Store, only: Option<&str>) -> Result<Self, Failure> {
        let (only, accounts) = match only {
            Some(name) => {
                let account = find_account(store, name).await?;
                (Some(account.id), vec![account])
            }
            None => (None, store.list_accounts().await?),
        };
        let names = accounts.into_iter().map(|account| (account.id, account.name)).collect();
        Ok(Self { only, names })
    }

    /// All accounts, or none if they cannot be read: a damaged account must not hide what is shown next to its name.
    pub(super) async fn readable(store: &Store) -> Self {
        Self::read(store, None).await.unwrap_or_default()
    }

    /// An owner's name, or its id if it has none.
    pub(super) fn name_or_id(&self, id: Id) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    /// The name of an owner; empty for one that was added after the list was asked for.
    pub(super) fn name(&self, id: Id) -> &str {
        self.names.get(&id).map_or("", String::as_str)
    }
}

/// Opens the database and finds the account to create something for.
pub(super) async fn open_account(data: &DataSettings, name_or_id: &str) -> Result<(Arc<Store>, Account), Failure> {
    let store = open_store(data).await?;
    let account = find_account(&store, name_or_id).await?;
    Ok((store, account))
}

/// The only owner of a list, if it has one.
pub(super) async fn find_only(store: &Store, name_or_id: Option<&str>) -> Result<Option<Id>, Failure> {
    match name_or_id {
        Some(name) => Ok(Some(find_account(store, name).await?.id)),
        None => Ok(None),
    }
}

/// The name of an owner, or its id if its account cannot be read.
pub(super) async fn readable_name(store: &Store, id: Id) -> String {
    owner_name(store, id).await.ok().filter(|name| !name.is_empty()).unwrap_or_else(|| id.to_string())
}

pub(super) async fn owner_name(store: &Store, id: Id) -> Result<String, Failure> {
    let account = store.find_account(id.as_str()).await?;
    Ok(account.map(|account| account.name).unwrap_or_default())
}
