//! The accounts that own what commands list and show.

use std::collections::HashMap;

use clap::Args;

use super::printing::JsonArgs;
use super::{Failure, find_account};
use tintype_domain::model::Id;
use tintype_store::Store;

/// A list of what accounts own.
#[derive(Debug, Args)]
pub(super) struct AccountFilterArgs {
    /// List only entries of this account
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    #[command(flatten)]
    pub(super) json: JsonArgs,
}

impl AccountFilterArgs {
    pub(super) async fn owners(&self, store: &Store) -> Result<Owners, Failure> {
        let Some(name) = &self.account else { return Ok(Owners::all(store).await) };
        let account = find_account(store, name).await?;
        Ok(Owners { only: Some(account.id), names: HashMap::from([(account.id, account.name)]) })
    }
}

#[derive(Debug)]
pub(super) struct Owners {
    /// Set if the list is about one account.
    pub(super) only: Option<Id>,
    names: HashMap<Id, String>,
}

impl Owners {
    /// All accounts, or none if they cannot be read: a damaged account must not hide what is shown next to its name.
    pub(super) async fn all(store: &Store) -> Self {
        let accounts = store.list_accounts().await.unwrap_or_default();
        Self { only: None, names: accounts.into_iter().map(|account| (account.id, account.name)).collect() }
    }

    /// An owner's name, or its id if it has none.
    pub(super) fn name(&self, id: Id) -> String {
        self.names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }
}

/// The name of an owner, or its id if its account cannot be read.
pub(super) async fn owner_name(store: &Store, id: Id) -> String {
    let account = store.find_account(id.as_str()).await.ok().flatten();
    account.map_or_else(|| id.to_string(), |account| account.name)
}
