//! API keys: finding, changing and rotating them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use tintype_domain::budget::{Budget, Period};
use tintype_domain::key::{ApiKey, KeyHash, KeyState};
use tintype_domain::model::Id;
use tintype_store::{AccountChange, Addition, KeyChange, NewKey, Result, Store};

use super::fixture::{Fixture, HOUR, MILLISECOND, new_key};
use tintype_rigs::database::{Backend, NOON};

/// Creates an account with one key.
async fn only_key(fx: &Fixture, key: NewKey) -> Result<ApiKey> {
    let account = fx.account("ada", 0).await?;
    Ok(fx.store.create_key(account, key).await?.expect("the account exists"))
}

/// Changes a key, checks that a lookup returns the same key, and returns it.
async fn change(fx: &Fixture, id: Id, change: KeyChange) -> Result<ApiKey> {
    let changed = fx.store.change_key(id, change).await?.expect("the key exists");
    assert_eq!(fx.store.find_key(id).await?, Some(changed.clone()));
    Ok(changed)
}

/// A hash that no key has.
fn another_hash() -> KeyHash {
    new_key("").hash
}

case!(a_key_is_found_by_its_hash_and_by_its_id, async |fx| {
    let account_id = fx.account("ada", 0).await?;
    let expires_at = Some(NOON.saturating_add(HOUR));
    let budget = Some(Budget { credits: 500, period: Period::Week });
    let new = NewKey { submit_rate: Some(7), read_rate: Some(0), budget, expires_at, ..new_key("studio") };
    let made = fx.store.create_key(account_id, new.clone()).await?.expect("the account exists");
    let expected = ApiKey {
        id: made.id,
        first_id: made.id,
        account_id,
        made_by: None,
        name: "studio".into(),
        hint: new.hint,
        submit_rate: Some(7),
        read_rate: Some(0),
        budget,
        operator_budget: true,
        created_at: NOON,
        expires_at,
        disabled: false,
        account_disabled: false,
        revoked_at: None,
        leaked_at: None,
        last_used_at: None,
        suspension: None,
    };
    assert_eq!(made, expected);
    assert_eq!(fx.store.find_key(made.id).await?, Some(expected.clone()));
    assert_eq!(fx.store.find_key_by_hash(new.hash).await?, Some(expected));
    assert_eq!(fx.store.find_key_by_hash(another_hash()).await?, None);
    assert_eq!(fx.store.find_key(account_id).await?, None);
    Ok(())
});

case!(create_key_for_a_missing_account_creates_nothing, async |fx| {
    let missing = Fixture::new(fx.backend).account("eve", 0).await?;
    let key = new_key("");
    assert_eq!(fx.store.create_key(missing, key.clone()).await?, None);
    assert_eq!(fx.store.find_key_by_hash(key.hash).await?, None);
    Ok(())
});

case!(creating_a_key_with_a_hash_in_use_is_an_error, async |fx| {
    let key = new_key("first");
    only_key(fx, key.clone()).await?;
    let bob = fx.account("bob", 0).await?;
    let before = fx.state().await?;
    fx.store.create_key(bob, NewKey { name: "second".into(), ..key }).await.expect_err("the hash is taken");
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(list_keys_returns_one_account_or_all_oldest_first, async |fx| {
    let ada = fx.account("ada", 0).await?;
    let bob = fx.account("bob", 0).await?;
    for (account, name) in [(bob, "first"), (ada, "second"), (bob, "third")] {
        fx.store.create_key(account, new_key(name)).await?;
    }
    for (account, expected) in [(None, &["first", "second", "third"][..]), (Some(bob), &["first", "third"])] {
        let names: Vec<_> = fx.store.list_keys(account).await?.into_iter().map(|key| key.name).collect();
        assert_eq!(names, expected);
    }
    Ok(())
});

case!(a_disabled_key_can_be_enabled_again, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    assert_eq!(change(fx, key.id, KeyChange::Disable).await?.state(NOON), KeyState::Disabled);
    assert_eq!(change(fx, key.id, KeyChange::Disable).await?.state(NOON), KeyState::Disabled);
    assert_eq!(change(fx, key.id, KeyChange::Enable).await?, key);
    Ok(())
});

case!(a_revoked_key_stays_revoked, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    fx.clock.advance(HOUR);
    let revoked_at = Some(fx.clock.now());
    assert_eq!(change(fx, key.id, KeyChange::Revoke).await?.revoked_at, revoked_at);
    fx.clock.advance(HOUR);
    for later in [KeyChange::Enable, KeyChange::Disable, KeyChange::Enable, KeyChange::FlagLeaked, KeyChange::Revoke] {
        let changed = change(fx, key.id, later).await?;
        assert_eq!((changed.state(NOON), changed.revoked_at), (KeyState::Revoked, revoked_at), "{later:?}");
    }
    Ok(())
});

case!(a_leaked_key_stays_valid_and_keeps_the_time_of_its_first_leak, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    fx.clock.advance(HOUR);
    let leaked_at = Some(fx.clock.now());
    assert_eq!(change(fx, key.id, KeyChange::FlagLeaked).await?, ApiKey { leaked_at, ..key.clone() });
    fx.clock.advance(HOUR);
    assert_eq!(change(fx, key.id, KeyChange::FlagLeaked).await?, ApiKey { leaked_at, ..key.clone() });
    assert_eq!(change(fx, key.id, KeyChange::Enable).await?.leaked_at, leaked_at);
    Ok(())
});

case!(a_key_change_affects_no_other_key, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    let other = fx.store.create_key(key.account_id, new_key("")).await?.expect("the account exists");
    let all = [KeyChange::Disable, KeyChange::FlagLeaked, KeyChange::Revoke];
    for each in all {
        change(fx, key.id, each).await?;
    }
    assert_eq!(fx.store.find_key(other.id).await?, Some(other));
    for each in all {
        assert_eq!(fx.store.change_key(key.account_id, each).await?, None, "this is the id of an account");
    }
    Ok(())
});

case!(a_key_expires_at_its_exact_millisecond, async |fx| {
    let end = NOON.saturating_add(HOUR);
    let key = only_key(fx, NewKey { expires_at: Some(end), ..new_key("") }).await?;
    let found = fx.store.find_key(key.id).await?.expect("the key exists");
    assert!(found.is_valid(end.saturating_sub(MILLISECOND)));
    assert!(!found.is_valid(end));
    Ok(())
});

case!(the_last_use_of_a_key_is_recorded_and_never_moves_back, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    let other = fx.store.create_key(key.account_id, new_key("")).await?.expect("the account exists");
    let later = NOON.saturating_add(HOUR);
    for (uses, last) in [
        (vec![(key.id, NOON)], NOON),
        (vec![(key.id, later)], later),
        (vec![(key.id, NOON)], later),
        (vec![(key.id, later.saturating_sub(MILLISECOND)), (key.id, NOON)], later),
        (vec![], later),
    ] {
        fx.another_process().touch_keys(uses).await?;
        let last_used_at = Some(last);
        assert_eq!(fx.store.find_key(key.id).await?, Some(ApiKey { last_used_at, ..key.clone() }));
    }
    assert_eq!(fx.store.find_key(other.id).await?, Some(other), "no use of this key was recorded");
    Ok(())
});

case!(touch_keys_records_revoked_keys_and_ignores_unknown_keys, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    let revoked = change(fx, key.id, KeyChange::Revoke).await?;
    let missing = Fixture::new(fx.backend).account("eve", 0).await?;
    fx.store.touch_keys(vec![(missing, NOON), (key.account_id, NOON), (key.id, NOON)]).await?;
    assert_eq!(fx.store.list_keys(None).await?, [ApiKey { last_used_at: Some(NOON), ..revoked }]);
    Ok(())
});

case!(a_rotated_key_keeps_its_settings, async |fx| {
    let budget = Some(Budget { credits: 500, period: Period::Month });
    let new = NewKey { submit_rate: Some(7), read_rate: Some(0), budget, ..new_key("studio") };
    let old = only_key(fx, new).await?;
    let hash = another_hash();
    fx.store.touch_keys(vec![(old.id, NOON)]).await?;
    fx.clock.advance(MILLISECOND);
    let new = fx.store.rotate_key(old.id, hash, "tt_new…", HOUR).await?.expect("the key is in force");
    let expected = ApiKey { id: new.id, hint: "tt_new…".into(), created_at: fx.clock.now(), ..old.clone() };
    assert_eq!(new, expected);
    assert_ne!(new.id, old.id);
    assert_eq!(fx.store.find_key_by_hash(hash).await?, Some(expected));
    let end = Some(fx.clock.now().saturating_add(HOUR));
    assert_eq!(fx.store.find_key(old.id).await?, Some(ApiKey { expires_at: end, last_used_at: Some(NOON), ..old }));
    Ok(())
});

case!(rotating_a_disabled_key_gives_a_disabled_key, async |fx| {
    let old = only_key(fx, new_key("studio")).await?;
    change(fx, old.id, KeyChange::Disable).await?;
    let new = fx.store.rotate_key(old.id, another_hash(), "tt_new…", HOUR).await?.expect("the key is in force");
    assert!(new.disabled && !new.is_valid(fx.clock.now()), "{new:?}");
    assert!(change(fx, new.id, KeyChange::Enable).await?.is_valid(fx.clock.now()));
    Ok(())
});

case!(rotating_without_an_overlap_ends_the_old_key_at_once, async |fx| {
    let old = only_key(fx, new_key("")).await?;
    fx.store.rotate_key(old.id, another_hash(), "", Duration::ZERO).await?;
    let old = fx.store.find_key(old.id).await?.expect("the key exists");
    assert_eq!(old.state(fx.clock.now()), KeyState::Expired);
    Ok(())
});

case!(an_overlap_never_extends_an_earlier_expiry, async |fx| {
    let end = Some(NOON.saturating_add(HOUR));
    let old = only_key(fx, NewKey { expires_at: end, ..new_key("") }).await?;
    let new = fx.store.rotate_key(old.id, another_hash(), "", 2 * HOUR).await?.expect("the key is in force");
    assert_eq!(new.expires_at, end);
    assert_eq!(fx.store.find_key(old.id).await?.expect("the key exists").expires_at, end);
    Ok(())
});

case!(an_overlap_brings_a_later_expiry_forward, async |fx| {
    let end = Some(NOON.saturating_add(2 * HOUR));
    let old = only_key(fx, NewKey { expires_at: end, ..new_key("") }).await?;
    let new = fx.store.rotate_key(old.id, another_hash(), "", HOUR).await?.expect("the key is in force");
    assert_eq!(new.expires_at, end);
    let old = fx.store.find_key(old.id).await?.expect("the key exists");
    assert_eq!(old.expires_at, Some(NOON.saturating_add(HOUR)));
    Ok(())
});

case!(a_key_that_is_rotated_again_gives_a_key_with_the_expiry_that_was_set, async |fx| {
    for end in [None, Some(NOON.saturating_add(10 * HOUR))] {
        let fx = Fixture::new(fx.backend);
        let old = only_key(&fx, NewKey { expires_at: end, ..new_key("") }).await?;
        for secret in 1..4 {
            let new = fx.store.rotate_key(old.id, [secret; 32], "", HOUR).await?.expect("the key is in force");
            assert_eq!(new.expires_at, end);
        }
    }
    Ok(())
});

case!(a_revoked_or_unknown_key_is_not_rotated, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    change(fx, key.id, KeyChange::Revoke).await?;
    let before = fx.state().await?;
    assert_eq!(fx.store.rotate_key(key.id, another_hash(), "", HOUR).await?, None);
    assert_eq!(fx.store.rotate_key(key.account_id, another_hash(), "", HOUR).await?, None);
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(rotating_a_key_to_a_hash_in_use_is_an_error_and_changes_nothing, async |fx| {
    let key = new_key("");
    let old = only_key(fx, key.clone()).await?;
    let before = fx.state().await?;
    fx.store.rotate_key(old.id, key.hash, "", HOUR).await.expect_err("the hash is taken");
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(a_deleted_account_is_given_no_key, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    fx.store.change_account(key.account_id, AccountChange::Delete).await?;
    let before = fx.state().await?;
    assert_eq!(fx.store.create_key(key.account_id, new_key("")).await?, None);
    assert_eq!(fx.store.rotate_key(key.id, another_hash(), "", HOUR).await?, None);
    // As an operation of an earlier release may have left it.
    fx.execute(&format!("UPDATE api_keys SET revoked_at = NULL WHERE id = '{}'", key.id));
    let found = fx.store.rotate_key_within(key.id, another_hash(), "", HOUR, Some(9)).await?;
    assert_eq!(found, Addition::NotPossible);
    fx.execute(&format!("UPDATE api_keys SET revoked_at = {} WHERE id = '{}'", NOON.as_millis(), key.id));
    assert_eq!(fx.state().await?, before);
    Ok(())
});

case!(revoked_and_expired_keys_make_room_for_others, async |fx| {
    let first = only_key(fx, NewKey { expires_at: Some(NOON.saturating_add(HOUR)), ..new_key("") }).await?;
    let add = async || fx.store.create_key_within(first.account_id, new_key(""), Some(2)).await;
    let second = add().await?.created().expect("a second one");
    assert_eq!(add().await?, Addition::TooMany);
    let rotated = fx.store.rotate_key_within(second.id, another_hash(), "", HOUR, Some(2)).await?;
    assert_eq!(rotated, Addition::TooMany);
    assert_eq!(fx.store.find_key(second.id).await?, Some(second.clone()), "nothing has changed");
    change(fx, second.id, KeyChange::Revoke).await?;
    let third = add().await?.created().expect("one is revoked");
    assert_eq!(add().await?, Addition::TooMany);
    fx.clock.advance(HOUR);
    add().await?.created().expect("one has expired");
    assert_eq!(add().await?, Addition::TooMany);
    // The operator may go on.
    fx.store.create_key(first.account_id, new_key("")).await?.expect("no limit");
    fx.store.rotate_key(third.id, another_hash(), "", HOUR).await?.expect("no limit");
    Ok(())
});

/// The stores of two processes, or the only one.
fn processes(fx: &Fixture) -> Vec<Arc<Store>> {
    match fx.backend {
        Backend::Sqlite => vec![fx.store.clone()],
        Backend::Postgres => vec![fx.store.clone(), fx.another_process()],
    }
}

case!(keys_that_are_made_and_rotated_at_once_keep_to_the_limit, async |fx| {
    let key = only_key(fx, new_key("")).await?;
    let stores = processes(fx);
    let additions = (0..24).map(|turn| {
        let (store, key) = (stores[turn % stores.len()].clone(), key.clone());
        let add = async move {
            match turn % 3 {
                0 => store.create_key_within(key.account_id, new_key(""), Some(5)).await,
                _ => store.rotate_key_within(key.id, another_hash(), "", HOUR, Some(5)).await,
            }
        };
        async { tokio::spawn(add).await.expect("no panic") }
    });
    let made = try_join_all(additions).await?;
    assert_eq!(made.iter().filter(|made| matches!(made, Addition::Created(_))).count(), 4);
    assert_eq!(made.iter().filter(|made| **made == Addition::TooMany).count(), 20);
    assert_eq!(fx.store.list_keys(Some(key.account_id)).await?.len(), 5);
    Ok(())
});
