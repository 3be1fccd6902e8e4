//! Credits that expire.

use futures::future::try_join_all;
use tintype_domain::ledger::{NotCharged, REFUND_LIFE};
use tintype_domain::model::{EntryKind, ExpiringGrant, FailureCause, Id, Surface};
use tintype_store::{AccountChange, CreditChange, Result, Submission};

use super::fixture::{Fixture, HOUR, LEASE, MILLISECOND, UNLIMITED, accepted, images, one_file};
use tintype_rigs::database::NOON;

/// Grants credits that expire after some hours.
async fn grant(fx: &Fixture, account: Id, amount: i64, hours: u32) -> Result<()> {
    let expires_at = fx.clock.now().saturating_add(HOUR * hours);
    fx.store.grant(account, amount, None, Some(expires_at)).await?;
    Ok(())
}

async fn grants(fx: &Fixture, account: Id) -> Result<Vec<ExpiringGrant>> {
    let mut grants = fx.store.expiring_grants(account, 100).await?;
    grants.sort_by_key(|grant| (grant.expires_at, grant.entry_id));
    Ok(grants)
}

/// The rest of each grant, the soonest expiry first.
async fn left(fx: &Fixture, account: Id) -> Result<Vec<i64>> {
    Ok(grants(fx, account).await?.iter().map(|grant| grant.remaining).collect())
}

/// Kinds, amounts and balances of the newest entries, the newest first.
async fn newest(fx: &Fixture, account: Id, count: u32) -> Result<Vec<(EntryKind, i64, i64)>> {
    let entries = fx.store.history(account, None, count).await?;
    Ok(entries.into_iter().map(|entry| (entry.kind, entry.amount, entry.balance)).collect())
}

case!(credits_are_spent_soonest_expiring_first_and_lasting_ones_last, async |fx| {
    let ada = fx.account("ada", 3).await?;
    grant(fx, ada, 5, 3).await?;
    grant(fx, ada, 3, 1).await?;
    grant(fx, ada, 1, 2).await?;
    assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (12, vec![3, 1, 5]));
    fx.submit(ada).await?;
    assert_eq!(left(fx, ada).await?, [1, 1, 5]);
    fx.submit_request(ada, Surface::Web, images(2)).await?;
    assert_eq!(left(fx, ada).await?, [0, 0, 3]);
    fx.submit_request(ada, Surface::Api, images(3)).await?;
    assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (0, vec![0, 0, 0]));
    Ok(())
});

case!(a_grant_that_is_made_twice_at_once_after_the_same_one_is_made_once, async |fx| {
    let (ada, bob) = (fx.account("ada", 3).await?, fx.account("bob", 0).await?);
    let end = Some(fx.clock.now().saturating_add(HOUR));
    for (account, before) in [(ada, 3), (bob, 0)] {
        let seen = fx.store.history(account, None, 1).await?.first().map_or(0, |entry| entry.id);
        let outcomes = try_join_all([(); 4].map(|()| fx.store.grant_after(account, Some(seen), 5, None, end))).await?;
        let made = outcomes.iter().filter(|outcome| **outcome == CreditChange::Done(before + 5)).count();
        let repeated = outcomes.iter().filter(|outcome| **outcome == CreditChange::Repeated).count();
        assert_eq!((made, repeated, fx.credits(account).await?), (1, 3, before + 5), "{outcomes:?}");
        assert_eq!(left(fx, account).await?, [5]);
    }
    // A charge is no grant.
    let seen = fx.store.history(ada, None, 1).await?[0].id;
    fx.submit(ada).await?;
    assert_eq!(fx.store.grant_after(ada, Some(seen), 1, None, None).await?, CreditChange::Done(7));
    fx.store.change_account(bob, AccountChange::Delete).await?;
    assert_eq!(fx.store.grant_after(bob, Some(0), 1, None, None).await?, CreditChange::NoAccount);
    Ok(())
});

case!(a_grant_lapses_at_its_exact_millisecond_with_one_entry, async |fx| {
    let ada = fx.account("ada", 1).await?;
    grant(fx, ada, 5, 1).await?;
    fx.submit(ada).await?;
    fx.clock.set(NOON.saturating_add(HOUR).saturating_sub(MILLISECOND));
    assert_eq!(fx.store.expire_grants().await?, 0);
    fx.clock.advance(MILLISECOND);
    assert_eq!(fx.another_process().expire_grants().await?, 1);
    assert_eq!(fx.store.expire_grants().await?, 0);
    assert_eq!(newest(fx, ada, 2).await?, [(EntryKind::Expiry, -3, 1), (EntryKind::Charge, -2, 4)]);
    let entry = fx.store.history(ada, None, 1).await?.remove(0);
    assert_eq!((entry.task_id, entry.note, entry.created_at), (None, None, fx.clock.now()));
    let grant = grants(fx, ada).await?.remove(0);
    assert_eq!((grant.amount, grant.remaining, grant.lapsed), (5, 0, Some(3)));
    Ok(())
});

case!(a_spent_grant_lapses_without_an_entry, async |fx| {
    let ada = fx.account("ada", 10).await?;
    grant(fx, ada, 2, 1).await?;
    fx.submit(ada).await?;
    fx.store.complete(fx.claim().await?, one_file()).await?;
    fx.clock.advance(HOUR);
    let entries = fx.count("ledger");
    assert_eq!((fx.store.expire_grants().await?, fx.count("ledger")), (1, entries));
    assert_eq!(grants(fx, ada).await?[0].lapsed, Some(0));
    Ok(())
});

case!(an_expired_grant_is_not_spent_even_before_it_lapses, async |fx| {
    let ada = fx.account("ada", 3).await?;
    grant(fx, ada, 5, 1).await?;
    fx.clock.set(NOON.saturating_add(HOUR));
    let submit = |n| fx.store.submit(ada, None, Surface::Api, images(n), UNLIMITED);
    assert_eq!(submit(2).await?, Submission::NotCharged(NotCharged::InsufficientCredits { available: 3 }));
    accepted(submit(1).await?);
    assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (6, vec![5]));
    assert_eq!(fx.store.take(ada, 2, "a mistake").await?, CreditChange::TooFew(1));
    assert_eq!(fx.store.expire_grants().await?, 1);
    assert_eq!(fx.credits(ada).await?, 1);
    Ok(())
});

case!(a_refund_goes_back_to_its_grants, async |fx| {
    let ada = fx.account("ada", 4).await?;
    grant(fx, ada, 3, 1).await?;
    grant(fx, ada, 3, 2).await?;
    for end in ["fail", "cancel", "fail_unleased", "expire", "refuse", "reclaim"] {
        let task = fx.submit_request(ada, Surface::Api, images(4)).await?;
        assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (2, vec![0, 0]), "{end}");
        match end {
            "fail" => drop(fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?),
            "cancel" => drop(fx.store.cancel(ada, Surface::Api, task.id, None, "it sank").await?),
            "fail_unleased" => drop(fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?),
            "expire" => drop(fx.store.expire(fx.clock.now(), "too late").await?),
            "refuse" => drop(fx.store.refuse(fx.claim().await?, "it sank", None).await?),
            _ => {
                for _ in 0..3 {
                    fx.store.claim(1, LEASE).await?;
                    fx.store.reclaim(tintype_store::Reclaim::All, "it sank").await?;
                }
            }
        }
        assert_eq!(fx.task(task.id).await?.status.as_str(), "failed", "{end}");
        assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (10, vec![3, 3]), "{end}");
    }
    Ok(())
});

case!(a_refund_after_its_grant_has_expired_can_be_spent_for_a_day, async |fx| {
    let ada = fx.account("ada", 1).await?;
    grant(fx, ada, 3, 1).await?;
    let task = fx.submit_request(ada, Surface::Api, images(2)).await?;
    fx.clock.set(NOON.saturating_add(HOUR));
    assert_eq!(fx.store.expire_grants().await?, 1);
    fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?;
    let end = fx.clock.now().saturating_add(REFUND_LIFE);
    let extended = grants(fx, ada).await?.remove(1);
    assert_eq!((extended.amount, extended.remaining, extended.expires_at), (3, 3, end));
    assert_eq!(fx.credits(ada).await?, 4);
    fx.clock.set(end.saturating_sub(MILLISECOND));
    let again = accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    assert_eq!(left(fx, ada).await?, [0, 1]);
    fx.clock.set(end);
    assert_eq!(fx.store.expire_grants().await?, 1);
    assert_eq!(newest(fx, ada, 1).await?, [(EntryKind::Expiry, -1, 1)]);
    fx.store.fail_unleased(again.id, FailureCause::Operator, "it sank").await?;
    assert_eq!((fx.credits(ada).await?, fx.store.expire_grants().await?), (3, 1), "a refund is not extended again");
    assert_eq!(newest(fx, ada, 2).await?, [(EntryKind::Expiry, -2, 1), (EntryKind::Refund, 2, 3)]);
    Ok(())
});

case!(a_refund_extends_only_the_part_that_was_not_extended_before, async |fx| {
    let ada = fx.account("ada", 0).await?;
    grant(fx, ada, 2, 1).await?;
    grant(fx, ada, 3, 24).await?;
    let first = fx.submit(ada).await?;
    fx.clock.set(NOON.saturating_add(HOUR));
    fx.store.fail_unleased(first.id, FailureCause::Operator, "it sank").await?;
    let both = fx.submit_request(ada, Surface::Api, images(2)).await?;
    assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (1, vec![0, 0, 1]));
    fx.clock.set(NOON.saturating_add(HOUR * 25));
    assert_eq!(fx.store.expire_grants().await?, 3);
    fx.store.fail_unleased(both.id, FailureCause::Operator, "it sank").await?;
    let end = fx.clock.now().saturating_add(REFUND_LIFE);
    assert_eq!(fx.credits(ada).await?, 4);
    let submit = |n| fx.store.submit(ada, None, Surface::Api, images(n), UNLIMITED);
    assert_eq!(submit(2).await?, Submission::NotCharged(NotCharged::InsufficientCredits { available: 3 }));
    assert!(fx.store.audit().await?.drifts.is_empty());
    assert_eq!(fx.store.expire_grants().await?, 1);
    assert_eq!(newest(fx, ada, 2).await?, [(EntryKind::Expiry, -1, 3), (EntryKind::Refund, 4, 4)]);
    let last = fx.store.expiring_grants(ada, 1).await?.remove(0);
    assert_eq!((last.amount, last.remaining, last.expires_at), (3, 3, end));
    Ok(())
});

case!(a_clock_that_was_set_back_extends_no_refund_again, async |fx| {
    let ada = fx.account("ada", 0).await?;
    grant(fx, ada, 2, 1).await?;
    let at = |hours: u32| NOON.saturating_add(HOUR * hours);
    for hours in [1, 25, 25] {
        let task = fx.submit(ada).await?;
        fx.clock.set(at(hours));
        fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?;
        if hours == 25 {
            // The credits expire now, and seem to be live before.
            fx.clock.set(at(25).saturating_sub(MILLISECOND * 2));
        }
    }
    fx.clock.set(at(25));
    assert_eq!((fx.credits(ada).await?, fx.store.expire_grants().await?), (2, 4));
    assert_eq!(newest(fx, ada, 2).await?, [(EntryKind::Expiry, -2, 0), (EntryKind::Refund, 2, 2)]);
    Ok(())
});

case!(a_damaged_account_delays_the_lapse_of_no_other, async |fx| {
    let (ada, bob) = (fx.account("ada", 1).await?, fx.account("bob", 1).await?);
    grant(fx, ada, 3, 1).await?;
    grant(fx, bob, 3, 2).await?;
    let set_balance = |balance: i64| {
        fx.execute(&format!("UPDATE ledger SET balance = {balance} WHERE account_id = '{ada}' AND amount = 3"));
    };
    set_balance(2);
    fx.clock.set(NOON.saturating_add(HOUR * 2));
    assert_eq!(fx.store.expire_grants().await?, 1);
    assert_eq!((fx.credits(bob).await?, left(fx, ada).await?), (1, vec![3]));
    set_balance(4);
    assert_eq!((fx.store.expire_grants().await?, fx.credits(ada).await?), (1, 1));
    Ok(())
});

case!(a_refund_to_an_expired_grant_that_has_not_lapsed_is_kept_apart, async |fx| {
    let ada = fx.account("ada", 0).await?;
    grant(fx, ada, 5, 1).await?;
    let task = fx.submit(ada).await?;
    fx.clock.set(NOON.saturating_add(HOUR));
    fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?;
    assert_eq!(left(fx, ada).await?, [3, 2]);
    assert_eq!(fx.store.expire_grants().await?, 1);
    assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (2, vec![0, 2]));
    accepted(fx.store.submit(ada, None, Surface::Api, images(1), UNLIMITED).await?);
    Ok(())
});

case!(what_a_completed_task_took_never_comes_back, async |fx| {
    let ada = fx.account("ada", 0).await?;
    grant(fx, ada, 4, 1).await?;
    fx.submit(ada).await?;
    let lease = fx.claim().await?;
    fx.store.complete(lease, one_file()).await?;
    fx.store.fail_unleased(lease.task_id, FailureCause::Operator, "it sank").await?;
    assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (2, vec![2]));
    Ok(())
});

case!(taken_credits_are_lasting_ones_first_and_then_those_that_expire_last, async |fx| {
    let ada = fx.account("ada", 2).await?;
    grant(fx, ada, 3, 1).await?;
    grant(fx, ada, 3, 2).await?;
    assert_eq!(fx.store.take(ada, 1, "a mistake").await?, CreditChange::Done(7));
    assert_eq!(left(fx, ada).await?, [3, 3]);
    assert_eq!(fx.store.take(ada, 3, "a mistake").await?, CreditChange::Done(4));
    assert_eq!(left(fx, ada).await?, [3, 1]);
    assert_eq!(fx.store.take(ada, 2, "a mistake").await?, CreditChange::Done(2));
    assert_eq!(left(fx, ada).await?, [2, 0]);
    Ok(())
});

case!(concurrent_submits_and_lapses_keep_grants_and_balance_together, async |fx| {
    let (ada, bob) = (fx.account("ada", 20).await?, fx.account("bob", 100).await?);
    for hours in 1..=5 {
        grant(fx, ada, 7, hours).await?;
    }
    fx.clock.set(NOON.saturating_add(HOUR * 2));
    let there = fx.another_process();
    let submits = (0..40_u8).map(|turn| {
        let (store, account) = (if turn % 2 == 0 { &fx.store } else { &there }, if turn % 5 == 0 { bob } else { ada });
        async move {
            if turn % 8 == 0 {
                store.expire_grants().await?;
            }
            store.submit(account, None, Surface::Api, images(turn % 3 + 1), UNLIMITED).await
        }
    });
    let answers = try_join_all(submits).await?;
    fx.store.expire_grants().await?;
    let waiting = fx.store.queue_depth().await?.waiting;
    let accepted = answers.iter().filter(|answer| matches!(answer, Submission::Accepted(_))).count();
    assert_eq!(waiting, accepted as u64);
    let balance = fx.credits(ada).await?;
    assert!(balance < 6, "{balance} left of the 41 that had not expired");
    assert_eq!(left(fx, ada).await?[..2], [0, 0]);
    fx.store.expire(fx.clock.now(), "too late").await?;
    assert_eq!((fx.credits(ada).await?, left(fx, ada).await?), (41, vec![0, 0, 7, 7, 7]));
    Ok(())
});

case!(a_grant_of_a_deleted_account_lapses, async |fx| {
    let ada = fx.account("ada", 0).await?;
    grant(fx, ada, 4, 1).await?;
    fx.store.change_account(ada, AccountChange::Delete).await?;
    fx.clock.advance(HOUR);
    assert_eq!(fx.store.expire_grants().await?, 1);
    assert_eq!(newest(fx, ada, 1).await?, [(EntryKind::Expiry, -4, 0)]);
    Ok(())
});

case!(the_audit_finds_damaged_grants, async |fx| {
    let ada = fx.account("ada", 0).await?;
    grant(fx, ada, 4, 1).await?;
    grant(fx, ada, 4, 2).await?;
    fx.submit(ada).await?;
    fx.clock.advance(HOUR);
    fx.store.expire_grants().await?;
    let [first, second] = grants(fx, ada).await?.try_into().expect("two grants");
    let (first, second) = (first.entry_id, second.entry_id);
    for (damage, repair, fault) in [
        (
            format!("UPDATE expiring_grants SET amount = 9, remaining = 9 WHERE entry_id = {second}"),
            format!("UPDATE expiring_grants SET amount = 4, remaining = 4 WHERE entry_id = {second}"),
            vec![
                format!("entry {second} brought less than the 9 of its grant"),
                "its grants have 9 left, but the balance is 4".to_owned(),
            ],
        ),
        (
            format!("UPDATE expiring_grants SET lapsed = 3 WHERE entry_id = {first}"),
            format!("UPDATE expiring_grants SET lapsed = 2 WHERE entry_id = {first}"),
            vec![
                format!("3 of the grant of entry {first} lapsed, but its entry says 2"),
                format!("of the 4 granted by entry {first}, 0 are left, 3 lapsed and unfinished tasks took 2"),
            ],
        ),
        (
            format!("UPDATE queue SET taken = '[[{first},3]]'"),
            format!("UPDATE queue SET taken = '[[{first},2]]'"),
            vec![
                "took 3 of grants, but costs 2".to_owned(),
                format!("of the 4 granted by entry {first}, 0 are left, 2 lapsed and unfinished tasks took 3"),
            ],
        ),
        (
            "UPDATE queue SET taken = '[[999,2]]'".to_owned(),
            format!("UPDATE queue SET taken = '[[{first},2]]'"),
            vec!["tasks took credits of a grant of entry 999, which does not exist".to_owned()],
        ),
        (
            "UPDATE ledger SET grant_id = 999 WHERE kind = 'expiry'".to_owned(),
            format!("UPDATE ledger SET grant_id = {first} WHERE kind = 'expiry'"),
            vec![format!("2 of the grant of entry {first} lapsed, but its entry says 0"), String::new()],
        ),
    ] {
        fx.execute(&damage);
        let drifts = fx.store.audit().await?.drifts;
        let said: Vec<_> = drifts.into_iter().map(|drift| drift.fault).collect();
        assert_eq!(said.len(), fault.len(), "{damage}: {said:?}");
        for (said, expected) in said.iter().zip(&fault) {
            assert!(said.contains(expected.as_str()), "{damage}: {said} is not {expected}");
        }
        fx.execute(&repair);
        assert_eq!(fx.store.audit().await?.drifts, []);
    }
    Ok(())
});
