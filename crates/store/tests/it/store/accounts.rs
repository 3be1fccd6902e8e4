//! Accounts, grants and the ledger.

use tintype_domain::key::KeyState;
use tintype_domain::model::{EntryKind, FailureCause, LedgerEntry, MAX_BALANCE, Surface, TaskId};
use tintype_store::{AccountChange, CreditChange, Result};

use super::fixture::{Fixture, MILLISECOND, UNLIMITED, images, new_key};
use tintype_rigs::database::NOON;

case!(a_new_account_holds_its_opening_grant, async |fx| {
    let Some(ada) = fx.store.create_account("ada", 10).await? else { panic!("the name is free") };
    assert_eq!((ada.name.as_str(), ada.credits), ("ada", 10));
    let entries = fx.store.history(ada.id, None, 100).await?;
    let [opening] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((opening.kind, opening.amount, opening.balance), (EntryKind::Grant, 10, 10));
    assert_eq!((opening.task_id, opening.created_at), (None, NOON));
    Ok(())
});

case!(an_account_without_credits_has_no_entries, async |fx| {
    let ada = fx.account("ada", 0).await?;
    assert_eq!(fx.credits(ada).await?, 0);
    assert_eq!(fx.store.history(ada, None, 100).await?, []);
    Ok(())
});

case!(creating_an_account_with_a_taken_name_changes_nothing, async |fx| {
    fx.account("ada", 10).await?;
    let before = fx.state().await?;
    assert_eq!(fx.store.create_account("ada", 99).await?, None);
    assert_eq!(fx.another_process().create_account("ada", 99).await?, None);
    for credits in [-1, MAX_BALANCE + 1] {
        fx.store.create_account("ada", credits).await.expect_err("no account begins so, whatever its name");
    }
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(a_negative_opening_balance_is_an_error_and_creates_no_account, async |fx| {
    fx.store.create_account("ada", -1).await.expect_err("a balance is never below zero");
    assert_eq!(fx.store.find_account("ada").await?, None);
    Ok(())
});

case!(an_account_is_found_by_name_and_by_id, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let bob = fx.account("bob", 20).await?;
    for (handle, id) in [("ada", ada), (ada.as_str(), ada), ("bob", bob), (bob.as_str(), bob)] {
        assert_eq!(fx.store.find_account(handle).await?.map(|account| account.id), Some(id), "{handle}");
    }
    assert_eq!(fx.store.find_account("eve").await?, None);
    assert_eq!(fx.store.find_account("").await?, None);
    Ok(())
});

case!(the_id_of_an_account_is_refused_as_a_name, async |fx| {
    let ada = fx.account("ada", 10).await?;
    assert_eq!(fx.store.create_account(ada.as_str(), 20).await?, None);
    assert_eq!(fx.store.find_account(ada.as_str()).await?.map(|found| found.credits), Some(10));
    Ok(())
});

case!(accounts_are_listed_by_name, async |fx| {
    for name in ["cyd", "ada", "bob"] {
        fx.account(name, 0).await?;
    }
    let names: Vec<_> = fx.store.list_accounts().await?.into_iter().map(|account| account.name).collect();
    assert_eq!(names, ["ada", "bob", "cyd"]);
    Ok(())
});

case!(create_first_account_creates_account_credits_and_key, async |fx| {
    let key = new_key("studio");
    let first = fx.store.create_first_account("ada", 10, key.clone()).await?.expect("the database is empty");
    assert_eq!((first.name.as_str(), first.credits), ("ada", 10));
    assert_eq!(fx.store.find_account("ada").await?, Some(first.clone()));
    let found = fx.store.find_key_by_hash(key.hash).await?.expect("the key came with the account");
    assert_eq!((found.account_id, found.name.as_str()), (first.id, "studio"));
    Ok(())
});

case!(create_first_account_changes_nothing_if_an_account_exists, async |fx| {
    fx.account("ada", 0).await?;
    let before = fx.state().await?;
    for name in ["ada", "bob"] {
        assert_eq!(fx.store.create_first_account(name, 10, new_key("")).await?, None);
    }
    assert_eq!(fx.another_process().create_first_account("eve", 10, new_key("")).await?, None);
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(a_grant_adds_to_the_balance_and_stores_its_note, async |fx| {
    let ada = fx.account("ada", 10).await?;
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.store.grant(ada, 5, Some("invoice 7"), None).await?, Some(15));
    assert_eq!(fx.store.grant(ada, 1, None, None).await?, Some(16));
    assert_eq!(fx.credits(ada).await?, 16);
    let entries = fx.store.history(ada, None, 2).await?;
    let [second, first] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((first.amount, first.balance, first.note.as_deref()), (5, 15, Some("invoice 7")));
    assert_eq!(first.created_at, NOON.saturating_add(MILLISECOND));
    assert_eq!((second.amount, second.balance, second.note.as_deref()), (1, 16, None));
    Ok(())
});

case!(credits_are_taken_down_to_none_and_never_further, async |fx| {
    let ada = fx.account("ada", 10).await?;
    assert_eq!(fx.store.take(ada, 4, "a mistake").await?, CreditChange::Done(6));
    let before = fx.state().await?;
    assert_eq!(fx.store.take(ada, 7, "too many").await?, CreditChange::TooFew(6));
    for amount in [0, -1, i64::MIN] {
        fx.store.take(ada, amount, "nonsense").await.expect_err("no such amount");
    }
    let missing = Fixture::new(fx.backend).account("eve", 0).await?;
    assert_eq!(fx.store.take(missing, 1, "nobody").await?, CreditChange::NoAccount);
    assert_eq!(fx.state().await?, before);
    assert_eq!(fx.store.take(ada, 6, "the rest").await?, CreditChange::Done(0));
    let entries = fx.store.history(ada, None, 2).await?;
    let facts: Vec<_> = entries.iter().map(|entry| (entry.kind, entry.amount, entry.balance)).collect();
    assert_eq!(facts, [(EntryKind::Grant, -6, 0), (EntryKind::Grant, -4, 6)]);
    assert_eq!(entries[1].note.as_deref(), Some("a mistake"));
    Ok(())
});

case!(a_disabled_account_has_no_valid_key_and_a_deleted_one_never_again, async |fx| {
    let (ada, bob) = (fx.account("ada", 10).await?, fx.account("bob", 10).await?);
    let key = fx.store.create_key(ada, new_key("ada's")).await?.expect("the account exists");
    let other = fx.store.create_key(bob, new_key("bob's")).await?.expect("the account exists");
    let state = async |id| fx.store.find_key(id).await.map(|key| key.expect("a key").state(fx.store.now()));
    let at = Some(fx.store.now());
    let disabled = fx.store.change_account(ada, AccountChange::Disable).await?.expect("the account exists");
    assert_eq!((disabled.disabled_at, disabled.deleted_at), (at, None));
    fx.clock.advance(MILLISECOND);
    let again = fx.store.change_account(ada, AccountChange::Disable).await?;
    assert_eq!(again, Some(disabled), "the time of the first change stays");
    assert_eq!((state(key.id).await?, state(other.id).await?), (KeyState::Disabled, KeyState::Active));
    assert!(fx.store.list_keys(Some(ada)).await?[0].account_disabled);
    let enabled = fx.store.change_account(ada, AccountChange::Enable).await?.expect("the account exists");
    assert_eq!((enabled.disabled_at, state(key.id).await?), (None, KeyState::Active));
    let deleted = fx.store.change_account(ada, AccountChange::Delete).await?.expect("the account exists");
    assert!(deleted.deleted_at.is_some() && deleted.disabled_at.is_some() && deleted.credits == 10, "{deleted:?}");
    for change in [AccountChange::Enable, AccountChange::Disable, AccountChange::Delete] {
        assert_eq!(fx.store.change_account(ada, change).await?, Some(deleted.clone()), "{change:?}");
    }
    assert_eq!((state(key.id).await?, state(other.id).await?), (KeyState::Revoked, KeyState::Active));
    assert_eq!(fx.store.history(ada, None, 100).await?.len(), 1);
    let missing = Fixture::new(fx.backend).account("eve", 0).await?;
    assert_eq!(fx.store.change_account(missing, AccountChange::Disable).await?, None);
    Ok(())
});

case!(an_account_with_unfinished_tasks_is_not_deleted_and_a_deleted_one_takes_no_submit, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let key = fx.store.create_key(ada, new_key("ada's")).await?.expect("the account exists");
    fx.submit(ada).await?;
    let before = fx.state().await?;
    let kept = fx.another_process().change_account(ada, AccountChange::Delete).await?.expect("the account exists");
    assert_eq!((kept.disabled_at, kept.deleted_at), (None, None));
    assert_eq!(fx.state().await?, before, "the key {} is valid", key.name);
    let lease = fx.claim().await?;
    fx.store.fail(lease, FailureCause::Engine, "failed").await?;
    let deleted = fx.store.change_account(ada, AccountChange::Delete).await?.expect("the account exists");
    assert!(deleted.deleted_at.is_some() && deleted.credits == 10, "{deleted:?}");
    let before = fx.state().await?;
    for max_unfinished in [UNLIMITED, 1] {
        let refused = fx.store.submit(ada, None, Surface::Api, images(1), max_unfinished).await;
        refused.expect_err("the account is deleted");
    }
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(the_tasks_of_one_account_are_removed_and_no_others, async |fx| {
    let (ada, bob) = (fx.account("ada", 10).await?, fx.account("bob", 10).await?);
    let (ended, unfinished, other) = (
        fx.submit_request(ada, Surface::Api, images(1)).await?,
        fx.submit_request(ada, Surface::Web, images(1)).await?,
        fx.submit_request(bob, Surface::Api, images(1)).await?,
    );
    for task in [&ended, &other] {
        assert!(fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?.is_some());
    }
    fx.clock.advance(MILLISECOND);
    let cutoff = fx.store.now().saturating_add(MILLISECOND);
    assert_eq!(fx.store.remove_tasks_of(ada, cutoff).await?, 1);
    let removed = async |id| fx.store.inspect_task(id).await.map(|record| record.expect("a task").removed_at.is_some());
    assert!(removed(ended.id).await? && !removed(unfinished.id).await? && !removed(other.id).await?);
    assert_eq!(fx.store.remove_tasks_of(ada, cutoff).await?, 0);
    Ok(())
});

case!(a_grant_to_a_missing_account_changes_nothing, async |fx| {
    let missing = Fixture::new(fx.backend).account("eve", 0).await?;
    let before = fx.state().await?;
    for amount in [5, i64::MAX] {
        assert_eq!(fx.store.grant(missing, amount, None, None).await?, None);
    }
    assert_eq!(fx.state().await?, before);
    assert_eq!(fx.store.history(missing, None, 100).await?, []);
    Ok(())
});

case!(a_grant_outside_the_allowed_range_is_an_error_and_changes_nothing, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let before = fx.state().await?;
    for amount in [-3, 0, MAX_BALANCE - 9, i64::MAX, i64::MIN] {
        fx.store.grant(ada, amount, None, None).await.expect_err("no such grant");
        assert_eq!(fx.state().await?, before, "{amount}");
    }
    Ok(())
});

case!(a_refund_fits_into_an_account_with_the_maximum_balance, async |fx| {
    let ada = fx.account("ada", 8).await?;
    let task = fx.submit_request(ada, Surface::Api, images(4)).await?;
    assert_eq!(fx.store.grant(ada, MAX_BALANCE, None, None).await?, Some(MAX_BALANCE));
    fx.store.grant(ada, 1, None, None).await.expect_err("no such grant");
    assert!(fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?.is_some());
    assert_eq!(fx.credits(ada).await?, MAX_BALANCE + 8);
    Ok(())
});

/// An entry without its id and time.
fn line(entry: &LedgerEntry) -> (EntryKind, i64, i64, Option<TaskId>) {
    (entry.kind, entry.amount, entry.balance, entry.task_id)
}

case!(history_lists_entries_newest_first_with_the_balance_after_each, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let boat = fx.submit_request(ada, Surface::Api, images(2)).await?.id;
    let lease = fx.claim().await?;
    fx.store.fail(lease, FailureCause::Engine, "it sank").await?;
    fx.store.grant(ada, 5, None, None).await?;
    let fox = fx.submit_request(ada, Surface::Web, images(1)).await?.id;
    let entries = fx.store.history(ada, None, 100).await?;
    let expected = [
        (EntryKind::Charge, -2, 13, Some(TaskId(fox))),
        (EntryKind::Grant, 5, 15, None),
        (EntryKind::Refund, 4, 10, Some(TaskId(boat))),
        (EntryKind::Charge, -4, 6, Some(TaskId(boat))),
        (EntryKind::Grant, 10, 10, None),
    ];
    assert_eq!(entries.iter().map(line).collect::<Vec<_>>(), expected);
    assert!(entries.is_sorted_by(|newer, older| newer.id > older.id), "{entries:?}");
    assert!(entries.is_sorted_by(|newer, older| newer.created_at >= older.created_at), "{entries:?}");
    Ok(())
});

case!(pages_of_history_have_no_gap_and_no_overlap, async |fx| {
    let ada = fx.account("ada", 1).await?;
    let bob = fx.account("bob", 1).await?;
    for amount in 2..=7 {
        fx.store.grant(ada, amount, None, None).await?;
        fx.store.grant(bob, amount, None, None).await?;
    }
    let mut amounts = Vec::new();
    let mut before = None;
    for expected_len in [3, 3, 1, 0] {
        let page = fx.store.history(ada, before, 3).await?;
        assert_eq!(page.len(), expected_len);
        before = page.last().map(|entry| entry.id).or(before);
        amounts.extend(page.iter().map(|entry| entry.amount));
    }
    assert_eq!(amounts, [7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(fx.store.history(ada, None, 0).await?, []);
    Ok(())
});
