//! Refusals by the content policy, and the strikes that they add to keys.

use std::time::Duration;

use tintype_domain::key::{ApiKey, KeyState};
use tintype_domain::model::{EntryKind, FailureCause, Id, Surface};
use tintype_store::{Actor, KeyChange, LeaseWrite, PersonChange, Refused, Result, StrikeRule, Via};

use super::fixture::{Fixture, HOUR, LEASE, UNLIMITED, accepted, failure, images, new_key};

const THREE_AN_HOUR: Option<StrikeRule> = Some(StrikeRule { limit: 3, window: HOUR });
const NOT_SUSPENDED: Option<Refused> = Some(Refused { suspended_key: None, suspended_person: None });

#[test]
fn a_rule_is_read_from_the_reason_that_it_gives() {
    let rule = |limit| StrikeRule { limit, window: HOUR };
    assert_eq!(rule(1).to_string(), "1 violation of the content policy within 1 hour");
    for limit in [1, 2, 5] {
        assert_eq!(StrikeRule::read(&rule(limit).to_string()), Some(rule(limit)));
    }
    let of_an_earlier_release = "1 violations of the content policy within 1 hour";
    assert_eq!(StrikeRule::read(of_an_earlier_release), Some(rule(1)));
    assert_eq!(StrikeRule::read("1 strike of the content policy within 1 hour"), None);
}

/// The outcome of a refusal that suspends a key.
fn suspended(key: Id) -> Option<Refused> {
    Some(Refused { suspended_key: Some(key), suspended_person: None })
}

/// Creates an account with credits and a key.
async fn owner(fx: &Fixture, name: &str) -> Result<(Id, Id)> {
    let account = fx.account(name, 100).await?;
    Ok((account, key(fx, account).await?))
}

async fn key(fx: &Fixture, account: Id) -> Result<Id> {
    Ok(fx.store.create_key(account, new_key("")).await?.expect("the account exists").id)
}

/// Submits a task with a key and refuses it.
async fn strike(fx: &Fixture, account: Id, key: Option<Id>, rule: Option<StrikeRule>) -> Result<Option<Refused>> {
    let surface = if key.is_some() { Surface::Api } else { Surface::Web };
    accepted(fx.store.submit(account, key, surface, images(1), UNLIMITED).await?);
    fx.store.refuse(fx.claim().await?, "refused", rule).await
}

async fn found(fx: &Fixture, key: Id) -> Result<ApiKey> {
    Ok(fx.store.find_key(key).await?.expect("the key exists"))
}

async fn state(fx: &Fixture, key: Id) -> Result<KeyState> {
    Ok(found(fx, key).await?.state(fx.clock.now()))
}

case!(a_refused_task_is_failed_and_refunded_once, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    let task = accepted(fx.store.submit(account, Some(key), Surface::Api, images(3), UNLIMITED).await?);
    let lease = fx.claim().await?;
    assert_eq!(fx.store.refuse(lease, "refused", THREE_AN_HOUR).await?, NOT_SUSPENDED);
    assert_eq!(fx.task(task.id).await?.status, failure(FailureCause::Policy, "refused"));
    assert_eq!(fx.credits(account).await?, 100);
    let before = fx.state().await?;
    assert_eq!(fx.store.refuse(lease, "again", THREE_AN_HOUR).await?, None);
    assert_eq!(fx.store.fail(lease, FailureCause::Engine, "again").await?, LeaseWrite::Lost);
    assert_eq!(fx.state().await?, before);
    let refunds = fx.store.history(account, None, 10).await?;
    assert_eq!(refunds.iter().filter(|entry| entry.kind == EntryKind::Refund).count(), 1);
    Ok(())
});

case!(a_refusal_under_a_lost_lease_adds_no_strike, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    accepted(fx.store.submit(account, Some(key), Surface::Api, images(1), UNLIMITED).await?);
    let lost = fx.claim().await?;
    fx.store.release(lost, Duration::ZERO).await?;
    for _ in 0..5 {
        assert_eq!(fx.store.refuse(lost, "refused", THREE_AN_HOUR).await?, None);
    }
    fx.store.complete(fx.claim().await?, vec!["boat.png".into()]).await?;
    for _ in 0..2 {
        assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    }
    assert_eq!(state(fx, key).await?, KeyState::Active);
    Ok(())
});

case!(the_last_strike_suspends_the_key_and_records_the_reason, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    for _ in 0..2 {
        assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
        assert_eq!(state(fx, key).await?, KeyState::Active);
    }
    assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, suspended(key));
    assert_eq!(state(fx, key).await?, KeyState::Suspended);
    let suspension = found(fx, key).await?.suspension.expect("a suspension");
    assert_eq!(suspension.at, fx.clock.now());
    assert_eq!(suspension.reason, "3 violations of the content policy within 1 hour");
    fx.clock.advance(LEASE);
    assert_eq!(
        strike(fx, account, Some(key), THREE_AN_HOUR).await?,
        NOT_SUSPENDED,
        "a suspended key is not suspended again"
    );
    assert_eq!(found(fx, key).await?.suspension, Some(suspension));
    fx.clock.advance(HOUR * 24 * 365);
    assert_eq!(state(fx, key).await?, KeyState::Suspended, "a suspension does not expire");
    Ok(())
});

case!(a_strike_expires_at_the_exact_end_of_its_window, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    let late = self::key(fx, account).await?;
    for key in [key, late] {
        for _ in 0..2 {
            strike(fx, account, Some(key), THREE_AN_HOUR).await?;
        }
    }
    fx.clock.advance(HOUR - Duration::from_millis(1));
    assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, suspended(key));
    fx.clock.advance(Duration::from_millis(1));
    assert_eq!(strike(fx, account, Some(late), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    Ok(())
});

case!(strikes_of_one_key_do_not_count_for_another, async |fx| {
    let (ada, first) = owner(fx, "ada").await?;
    let second = key(fx, ada).await?;
    let (bob, of_bob) = owner(fx, "bob").await?;
    for _ in 0..2 {
        for (account, key) in [(ada, first), (ada, second), (bob, of_bob)] {
            assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
        }
    }
    assert_eq!(strike(fx, ada, Some(first), THREE_AN_HOUR).await?, suspended(first));
    assert_eq!(state(fx, second).await?, KeyState::Active);
    assert_eq!(state(fx, of_bob).await?, KeyState::Active);
    Ok(())
});

case!(enabling_a_suspended_key_deletes_its_strikes, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    let before = found(fx, key).await?;
    for _ in 0..3 {
        strike(fx, account, Some(key), THREE_AN_HOUR).await?;
    }
    assert_eq!(fx.store.change_key(key, KeyChange::Enable).await?, Some(before));
    for _ in 0..2 {
        assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    }
    assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, suspended(key));
    Ok(())
});

case!(a_key_that_its_owner_enables_keeps_its_strikes_and_its_suspension, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    for _ in 0..2 {
        assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
        fx.store.change_key(key, KeyChange::Disable).await?;
        fx.store.change_key(key, KeyChange::EnableByOwner).await?;
        assert_eq!(state(fx, key).await?, KeyState::Active);
    }
    assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, suspended(key));
    fx.store.change_key(key, KeyChange::EnableByOwner).await?;
    assert_eq!(state(fx, key).await?, KeyState::Suspended);
    Ok(())
});

case!(a_refusal_without_a_rule_or_a_key_adds_no_strike, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    for _ in 0..5 {
        assert_eq!(strike(fx, account, Some(key), None).await?, NOT_SUSPENDED);
        assert_eq!(strike(fx, account, None, THREE_AN_HOUR).await?, NOT_SUSPENDED);
    }
    assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    assert_eq!(state(fx, key).await?, KeyState::Active);
    Ok(())
});

case!(a_failed_task_adds_no_strike, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    for _ in 0..5 {
        accepted(fx.store.submit(account, Some(key), Surface::Api, images(1), UNLIMITED).await?);
        fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    }
    for _ in 0..2 {
        assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    }
    Ok(())
});

/// Rotates a key with an overlap of an hour.
async fn rotated(fx: &Fixture, key: Id) -> Result<ApiKey> {
    Ok(fx.store.rotate_key(key, new_key("").hash, "", HOUR).await?.expect("the key is in force"))
}

case!(rotating_a_suspended_key_gives_a_suspended_key, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    for _ in 0..3 {
        strike(fx, account, Some(key), THREE_AN_HOUR).await?;
    }
    fx.clock.advance(LEASE);
    let new = rotated(fx, key).await?;
    assert_eq!(new.state(fx.clock.now()), KeyState::Suspended);
    let old = found(fx, key).await?;
    assert_eq!((&new.suspension, old.state(fx.clock.now())), (&old.suspension, KeyState::Suspended));
    assert_eq!(found(fx, new.id).await?, new);
    fx.store.change_key(new.id, KeyChange::Enable).await?;
    assert_eq!((state(fx, new.id).await?, state(fx, key).await?), (KeyState::Active, KeyState::Suspended));
    for _ in 0..2 {
        assert_eq!(
            strike(fx, account, Some(new.id), THREE_AN_HOUR).await?,
            NOT_SUSPENDED,
            "enabling a key deletes its strikes"
        );
    }
    Ok(())
});

case!(a_rotated_key_keeps_its_strikes, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    for _ in 0..2 {
        assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
        fx.clock.advance(HOUR / 4);
    }
    let new = rotated(fx, key).await?;
    assert_eq!(new.state(fx.clock.now()), KeyState::Active);
    assert_eq!(strike(fx, account, Some(new.id), THREE_AN_HOUR).await?, suspended(new.id));
    Ok(())
});

case!(strikes_of_an_old_key_count_with_those_of_the_new_one, async |fx| {
    let (account, old) = owner(fx, "ada").await?;
    let mut keys = vec![old];
    for strikes in 1..3 {
        assert_eq!(strike(fx, account, Some(old), THREE_AN_HOUR).await?, NOT_SUSPENDED, "{strikes}");
        keys.push(rotated(fx, keys[keys.len() - 1]).await?.id);
    }
    let listed = fx.store.struck_keys(10).await?;
    assert_eq!(
        listed.iter().map(|struck| struck.strikes).collect::<Vec<_>>(),
        [2; 3],
        "of the line, for each of its keys"
    );
    // Each key of the line has used up what all of them had together.
    for key in keys.iter().rev() {
        assert_eq!(strike(fx, account, Some(*key), THREE_AN_HOUR).await?, suspended(*key));
    }
    fx.store.change_key(keys[1], KeyChange::Lift).await?;
    assert_eq!(strike(fx, account, Some(keys[1]), THREE_AN_HOUR).await?, NOT_SUSPENDED, "the line begins anew");
    Ok(())
});

case!(strikes_keep_their_age_across_rotations, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    strike(fx, account, Some(key), THREE_AN_HOUR).await?;
    fx.clock.advance(HOUR / 2);
    strike(fx, account, Some(key), THREE_AN_HOUR).await?;
    let new = rotated(fx, rotated(fx, key).await?.id).await?.id;
    fx.clock.advance(HOUR / 2);
    assert_eq!(strike(fx, account, Some(new), THREE_AN_HOUR).await?, NOT_SUSPENDED, "the first strike has expired");
    assert_eq!(strike(fx, account, Some(new), THREE_AN_HOUR).await?, suspended(new));
    Ok(())
});

case!(a_failed_rotation_leaves_the_strikes_on_the_old_key, async |fx| {
    let (account, key) = owner(fx, "ada").await?;
    for _ in 0..2 {
        strike(fx, account, Some(key), THREE_AN_HOUR).await?;
    }
    let taken = new_key("");
    fx.store.create_key(account, taken.clone()).await?;
    fx.store.rotate_key(key, taken.hash, "", HOUR).await.expect_err("the hash is taken");
    assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, suspended(key));
    Ok(())
});

case!(strikes_of_a_key_count_for_the_person_who_made_it_and_follow_its_rotation, async |fx| {
    let account = fx.account("ada", 100).await?;
    let ada = fx.owner_of(account, "ada").await?;
    let actor = Actor { name: "ada".into(), person_id: Some(ada.id), via: Via::Studio, source: None };
    let by_ada = fx.store.acting(actor);
    let first = by_ada.create_key(account, new_key("")).await?.expect("the account exists").id;
    let second = by_ada.create_key(account, new_key("")).await?.expect("the account exists").id;
    let rotated = fx.store.rotate_key(first, [7; 32], "tt_new…", Duration::ZERO).await?.expect("it exists").id;
    let of_nobody = key(fx, account).await?;
    for key in [of_nobody, rotated, of_nobody, second] {
        assert_eq!(strike(fx, account, Some(key), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    }
    let expected = Some(Refused { suspended_key: None, suspended_person: Some(ada.id) });
    assert_eq!(strike(fx, account, Some(second), THREE_AN_HOUR).await?, expected);
    // The strikes of a key that is lifted are lifted from its maker.
    fx.store.change_person(ada.id, PersonChange::Lift).await?;
    for _ in 0..2 {
        fx.store.change_key(second, KeyChange::Lift).await?;
        assert_eq!(strike(fx, account, Some(second), THREE_AN_HOUR).await?, NOT_SUSPENDED);
        assert_eq!(strike(fx, account, Some(second), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    }
    let expected = Some(Refused { suspended_key: Some(second), suspended_person: Some(ada.id) });
    assert_eq!(strike(fx, account, Some(second), THREE_AN_HOUR).await?, expected);
    fx.store.remove_person(ada.id).await?;
    assert_eq!(strike(fx, account, Some(rotated), THREE_AN_HOUR).await?, NOT_SUSPENDED);
    Ok(())
});
