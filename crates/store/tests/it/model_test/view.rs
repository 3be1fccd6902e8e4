//! Compares everything that a store returns with the model.

use std::collections::BTreeMap;

use futures::future::{try_join, try_join_all, try_join3};
use tintype_domain::endpoint::Delivery;
use tintype_domain::model::{EntryKind, ExpiringGrant, Id, LedgerEntry, Surface, Task};
use tintype_store::{QueueDepth, Result, Store, TaskRecord, UsageBy, UsageFilter, UsageRow};
use tintype_system::clock::Timestamp;

use super::credits::{Entry, Event};
use super::laws::{Books, Shown};
use super::model::Model;
use tintype_rigs::database::NOON;

/// Compares the store with the model, reading lists in pages of `page` items. What doesn't depend on another answer is
/// read at the same time: else PostgreSQL would spend most of the run waiting for the next statement.
pub async fn compare(store: &Store, model: &Model, page: u32) -> Result<Shown> {
    let books = (0..model.accounts.len()).map(|account| books(store, model, account, page));
    let (tasks, books, _) = try_join3(
        tasks(store, model),
        try_join_all(books),
        try_join3(accounts(store, model), keys(store, model), totals(store, model)),
    )
    .await?;
    Ok(Shown { tasks, books })
}

async fn books(store: &Store, model: &Model, account: usize, page: u32) -> Result<Books> {
    let lists = [Surface::Api, Surface::Web].map(|surface| list(store, model, (account, surface), page));
    let read =
        try_join3(history(store, model, account, page), grants(store, model, account), events(store, model, account));
    let ((entries, grants, ()), _) = try_join(read, try_join_all(lists)).await?;
    Ok(Books { account: model.accounts[account].clone(), entries, grants })
}

async fn totals(store: &Store, model: &Model) -> Result<()> {
    usage(store, model).await?;
    assert_eq!(store.queue_depth().await?, depth(model));
    let audit = store.audit().await?;
    let counted = (model.accounts.len() as u64, model.tasks.len() as u64, model.entries.len() as u64);
    assert_eq!(((audit.accounts, audit.tasks, audit.entries), audit.drifts), (counted, Vec::new()));
    Ok(())
}

async fn accounts(store: &Store, model: &Model) -> Result<()> {
    for account in &model.accounts {
        assert_eq!(store.find_account(&account.name).await?.as_ref(), Some(account));
        assert_eq!(store.find_account(account.id.as_str()).await?.as_ref(), Some(account));
    }
    assert_eq!(store.find_account("nobody").await?, None);
    let mut by_name = model.accounts.clone();
    by_name.sort_by(|one, other| one.name.cmp(&other.name));
    assert_eq!(store.list_accounts().await?, by_name);
    Ok(())
}

async fn keys(store: &Store, model: &Model) -> Result<()> {
    let mut all: Vec<_> = model.keys.iter().map(|key| key.key.clone()).collect();
    for (index, key) in model.keys.iter().enumerate() {
        assert_eq!(store.find_allowance(key.key.id).await?, model.allowance(index, store.now()));
        assert_eq!(store.find_key(key.key.id).await?.as_ref(), Some(&key.key));
        assert_eq!(store.find_key_by_hash(key.hash).await?.as_ref(), Some(&key.key));
    }
    assert_eq!(store.find_key_by_hash([255; 32]).await?, None);
    all.sort_by_key(|key| key.id);
    assert_eq!(store.list_keys(None).await?, all);
    for account in model.accounts.iter().map(|account| account.id) {
        let of_account: Vec<_> = all.iter().filter(|key| key.account_id == account).cloned().collect();
        assert_eq!(store.list_keys(Some(account)).await?, of_account);
    }
    Ok(())
}

/// The ids of a list of tasks, newest first.
fn newest_first(model: &Model, belongs: impl Fn(usize) -> bool) -> Vec<Task> {
    let mut tasks: Vec<_> = (0..model.tasks.len()).filter(|index| belongs(*index)).collect();
    tasks.sort_by_key(|index| std::cmp::Reverse(model.tasks[*index].id));
    tasks.into_iter().map(|index| model.shown_task(index)).collect()
}

async fn tasks(store: &Store, model: &Model) -> Result<Vec<TaskRecord>> {
    let records = try_join_all((0..model.tasks.len()).map(|index| task(store, model, index))).await?;
    assert!(store.inspect_task(Id::floor(NOON)).await?.is_none());
    assert_eq!(store.recent_tasks(None, u32::MAX).await?, newest_first(model, |_| true));
    for (index, account) in model.accounts.iter().enumerate() {
        let recent = newest_first(model, |task| model.tasks[task].account == index);
        assert_eq!(store.recent_tasks(Some(account.id), 3).await?, recent[..recent.len().min(3)]);
    }
    Ok(records)
}

async fn task(store: &Store, model: &Model, index: usize) -> Result<TaskRecord> {
    let expected = &model.tasks[index];
    let record = store.inspect_task(expected.id).await?.expect("an accepted task");
    let task = model.shown_task(index);
    let lost_leases = Some(expected.lost_leases).filter(|_| !expected.status.is_terminal());
    assert_eq!((&record.task, &record.request), (&task, &expected.request));
    assert_eq!((record.lost_leases, record.removed_at), (lost_leases, None));
    let other = if task.surface == Surface::Api { Surface::Web } else { Surface::Api };
    assert_eq!(store.find_task(task.account_id, task.surface, task.id).await?.as_ref(), Some(&task));
    assert_eq!(store.find_task(task.account_id, other, task.id).await?, None);
    let stranger = model.accounts[(expected.account + 1) % model.accounts.len()].id;
    if stranger != task.account_id {
        assert_eq!(store.find_task(stranger, task.surface, task.id).await?, None);
    }
    Ok(record)
}

/// Reads a list to its end; then starts at a task that may not be in the list.
async fn list(store: &Store, model: &Model, (account, surface): (usize, Surface), page: u32) -> Result<()> {
    let id = model.accounts[account].id;
    let expected =
        newest_first(model, |task| (model.tasks[task].account, model.tasks[task].surface) == (account, surface));
    let mut pages = expected.chunks(page as usize);
    let mut before = None;
    loop {
        let found = store.list_tasks(id, surface, before, page).await?;
        let ids: Vec<_> = found.iter().map(|task| task.id).collect();
        assert_eq!(found, pages.next().unwrap_or_default(), "before {before:?}");
        assert_eq!(store.list_task_ids(id, surface, before, page).await?, ids);
        before = ids.last().copied();
        if ids.len() < page as usize {
            break;
        }
    }
    let cursors = [Some(Id::floor(Timestamp::from_millis(0))), model.tasks.get(model.steps % 40).map(|task| task.id)];
    for before in cursors.into_iter().flatten() {
        let older = expected.iter().filter(|task| task.id < before).take(page as usize);
        assert!(store.list_tasks(id, surface, Some(before), page).await?.iter().eq(older), "before {before}");
    }
    Ok(())
}

async fn grants(store: &Store, model: &Model, account: usize) -> Result<Vec<ExpiringGrant>> {
    let mut expected: Vec<_> = model.grants.iter().filter(|grant| grant.account == account).collect();
    expected.sort_by_key(|grant| (grant.remaining == 0, grant.expires_at, grant.entry));
    let found = store.expiring_grants(model.accounts[account].id, u32::MAX).await?;
    let said = found.iter().map(|grant| (grant.expires_at, grant.amount, grant.remaining, grant.lapsed, &grant.note));
    let due = expected.iter().map(|grant| (grant.expires_at, grant.amount, grant.remaining, grant.lapsed, &grant.note));
    assert_eq!(said.collect::<Vec<_>>(), due.collect::<Vec<_>>());
    Ok(found)
}

/// The events of an account, which its endpoint has in the order of the ids that two processes gave them.
async fn events(store: &Store, model: &Model, account: usize) -> Result<()> {
    let of_account = model.events.iter().filter(|event| event.account == account);
    let task_id = |event: &Event| event.task.map(|task| model.tasks[task].id);
    let mut due: Vec<_> = of_account.map(|event| (event.kind.as_str(), task_id(event), event.at)).collect();
    let mut said = Vec::new();
    for endpoint in store.list_endpoints(Some(model.accounts[account].id)).await? {
        let found = store.list_deliveries(endpoint.id, None, u32::MAX).await?;
        said.extend(found.into_iter().map(|Delivery { kind, event_id, next_attempt_at, .. }| {
            (kind.as_str(), Some(event_id).filter(|_| kind.ends_task()), next_attempt_at.expect("no attempt was made"))
        }));
    }
    said.sort();
    due.sort();
    assert_eq!(said, due);
    Ok(())
}

/// The figures of usage are the sums of the ledger, however they are grouped.
async fn usage(store: &Store, model: &Model) -> Result<()> {
    type Figures = (u64, i64, i64);
    let mut expected: [BTreeMap<String, Figures>; 3] = Default::default();
    for entry in &model.entries {
        let Some(task) = entry.task.map(|task| &model.tasks[task]) else { continue };
        let key = task.key.map_or_else(|| task.surface.as_str().to_owned(), |key| model.keys[key].key.id.to_string());
        let account = model.accounts[entry.account].id;
        let rows = [account.to_string(), format!("{account} {key}"), entry.at.day()];
        for (rows, row) in expected.iter_mut().zip(rows) {
            let (tasks, charged, refunded) = rows.entry(row).or_default();
            match entry.kind {
                EntryKind::Charge => (*tasks, *charged) = (*tasks + 1, *charged - entry.amount),
                _ => *refunded += entry.amount,
            }
        }
    }
    for (by, expected) in [UsageBy::Account, UsageBy::Key, UsageBy::Day].into_iter().zip(expected) {
        let rows = store.usage_by(by, UsageFilter::default()).await?;
        let row = |row: UsageRow| {
            let key = row.key_id.map(|id| id.to_string()).or(row.surface.map(|surface| surface.as_str().to_owned()));
            let account = row.account_id.map(|id| id.to_string());
            let parts = [account, key, row.day.map(Timestamp::day)].into_iter().flatten();
            (parts.collect::<Vec<_>>().join(" "), (row.tasks, row.charged, row.refunded))
        };
        assert_eq!(rows.into_iter().map(row).collect::<BTreeMap<_, _>>(), expected, "{by:?}");
    }
    Ok(())
}

/// An entry without the values that the store may choose; entries sort by step and task.
type Line = (usize, Option<Id>, EntryKind, i64, Option<String>, Timestamp);

async fn history(store: &Store, model: &Model, account: usize, page: u32) -> Result<Vec<LedgerEntry>> {
    let id = model.accounts[account].id;
    let expected: Vec<&Entry> = model.entries.iter().filter(|entry| entry.account == account).collect();
    let mut found: Vec<LedgerEntry> = Vec::new();
    // The last page may be full, so one more page is read.
    for _ in 0..=expected.len() / page as usize {
        let before = found.last().map(|entry| entry.id);
        found.extend(store.history(id, before, page).await?);
    }
    assert!(found.is_sorted_by(|later, earlier| later.id > earlier.id), "newest first: {found:?}");
    found.reverse();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    let (mut said, mut due): (Vec<Line>, Vec<Line>) = (Vec::new(), Vec::new());
    for (entry, model_entry) in found.iter().zip(expected) {
        let (said_id, due_id) = (entry.task_id.map(|id| id.0), model_entry.task.map(|task| model.tasks[task].id));
        let Entry { step, kind, amount, note, at, .. } = model_entry.clone();
        said.push((step, said_id, entry.kind, entry.amount, entry.note.clone(), entry.created_at));
        due.push((step, due_id, kind, amount, note, at));
    }
    let order = |line: &Line| (line.0, line.1);
    said.sort_by_key(order);
    due.sort_by_key(order);
    assert_eq!(said, due);
    Ok(found)
}

fn depth(model: &Model) -> QueueDepth {
    let unfinished = || model.tasks.iter().filter(|task| !task.status.is_terminal());
    let leased = unfinished().filter(|task| task.lease_until.is_some()).count() as u64;
    let oldest = unfinished().map(|task| task.id.timestamp()).min();
    let waits = || unfinished().filter(|task| task.lease_until.is_none());
    let needing =
        [1, 2, 3, 4].map(|least| waits().filter(|task| task.request.reference_images.len() >= least).count() as u64);
    QueueDepth { waiting: waits().count() as u64, needing, leased, oldest, paused_at: None }
}
