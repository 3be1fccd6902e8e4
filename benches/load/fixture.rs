//! Accounts, keys and tasks for the measurements, created through the store as a server creates them.

use std::time::Duration;

use futures::future::try_join_all;
use tintype_domain::key::KeySecret;
use tintype_domain::model::{Id, Surface};
use tintype_domain::request::GenerateRequest;
use tintype_store::{Claim, LeaseWrite, NewKey, Store, Submission};

use crate::Outcome;

/// Initial credits of every account.
pub const CREDITS: i64 = 1_000_000_000_000;
/// A prompt of typical length.
pub const PROMPT: &str = "A red fox in the snow at dawn, soft light through birches, detailed oil painting";
/// Concurrent submits.
const IN_FLIGHT: usize = 512;
const LEASE: Duration = Duration::from_secs(30);

/// An account and its key.
#[derive(Debug, Clone)]
pub struct Caller {
    pub name: String,
    pub account_id: Id,
    pub key: String,
}

/// Creates an account with credits and an unlimited key.
pub async fn caller(store: &Store, name: &str) -> Outcome<Caller> {
    caller_with(store, name, Some(0)).await
}

/// Creates an account with credits and a key with the limits of the server.
pub async fn limited_caller(store: &Store, name: &str) -> Outcome<Caller> {
    caller_with(store, name, None).await
}

async fn caller_with(store: &Store, name: &str, rate: Option<u32>) -> Outcome<Caller> {
    let Some(account) = store.create_account(name, CREDITS).await? else {
        return Err(format!("the account {name} exists").into());
    };
    let secret = KeySecret::random();
    let key = NewKey {
        hash: secret.hash(),
        hint: secret.hint(),
        name: String::new(),
        submit_rate: rate,
        read_rate: rate,
        budget: None,
        expires_at: None,
    };
    store.create_key(account.id, key).await?.ok_or("the account is gone")?;
    Ok(Caller { name: account.name, account_id: account.id, key: secret.reveal().to_owned() })
}

/// Creates `count` accounts, each with credits and a key.
pub async fn callers(store: &Store, name: &str, count: usize) -> Outcome<Vec<Caller>> {
    let names: Vec<_> = (0..count).map(|index| format!("{name}-{index}")).collect();
    try_join_all(names.iter().map(|name| caller(store, name))).await
}

/// Queues `count` tasks, round robin over the callers; returns their ids.
pub async fn queue(store: &Store, callers: &[Caller], count: usize) -> Outcome<Vec<Id>> {
    let mut ids = Vec::with_capacity(count);
    while ids.len() < count {
        let some = ids.len()..count.min(ids.len() + IN_FLIGHT);
        let submits = some.map(|index| async move {
            let request = GenerateRequest::new(PROMPT);
            match store.submit(callers[index % callers.len()].account_id, None, Surface::Api, request, 0).await? {
                Submission::Accepted(task) => Ok::<_, Box<dyn std::error::Error>>(task.id),
                refused => Err(format!("a submit was refused: {refused:?}").into()),
            }
        });
        ids.extend(try_join_all(submits).await?);
    }
    Ok(ids)
}

/// Claims and completes tasks in batches, without files, until the queue is empty; returns their number.
pub async fn complete_all(store: &Store, batch: usize) -> Outcome<usize> {
    let mut count = 0;
    loop {
        let claims = store.claim(batch, LEASE).await?;
        if claims.is_empty() {
            return Ok(count);
        }
        count += claims.len();
        try_join_all(claims.into_iter().map(|claim| complete(store, claim))).await?;
    }
}

async fn complete(store: &Store, claim: Claim) -> Outcome<()> {
    let task_id = claim.lease.task_id;
    let day = task_id.timestamp().to_string();
    let name = format!("{}/{task_id}-0-{}.png", &day[..10], "A".repeat(24));
    match store.complete(claim.lease, vec![name]).await? {
        LeaseWrite::Done => Ok(()),
        LeaseWrite::Lost => Err("a lease was lost".into()),
    }
}
