//! Budgets of keys, and the use of credits.

use futures::future::{join, try_join_all};
use tintype_domain::budget::{Allowance, Budget, Period};
use tintype_domain::ledger::NotCharged::{InsufficientCredits, OverBudget, TooManyUnfinished};
use tintype_domain::model::{FailureCause, Id, Surface, Task};
use tintype_store::{DayUsage, KeyChange, NewKey, Result, Submission, UsageBy, UsageFilter, UsageRow};
use tintype_system::clock::Timestamp;

use super::fixture::{DAY, Fixture, MILLISECOND, UNLIMITED, accepted, images, new_key, one_file};

fn budget(text: &str) -> Option<Budget> {
    Some(text.parse().expect("a budget"))
}

/// Creates a key with a budget.
async fn limited(fx: &Fixture, account: Id, text: &str) -> Result<Id> {
    let key = NewKey { budget: budget(text), ..new_key(text) };
    Ok(fx.store.create_key(account, key).await?.expect("the account exists").id)
}

async fn submit(fx: &Fixture, account: Id, key: Id, n: u8) -> Result<Submission> {
    fx.store.submit(account, Some(key), Surface::Api, images(n), UNLIMITED).await
}

async fn task(fx: &Fixture, account: Id, key: Id, n: u8) -> Result<Task> {
    Ok(accepted(submit(fx, account, key, n).await?))
}

/// Credits spent and left of the budget of a key.
async fn used(fx: &Fixture, key: Id) -> Result<(i64, i64)> {
    let allowance = fx.store.find_allowance(key).await?.expect("a budget");
    Ok((allowance.spent, allowance.left()))
}

fn over(available: i64, left: i64, resets_at: &str) -> Submission {
    Submission::NotCharged(OverBudget { available, left, resets_at: Timestamp::of_day(resets_at).expect("a day") })
}

case!(a_key_spends_its_budget_and_no_more, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let key = limited(fx, ada, "7/day").await?;
    let free = fx.store.create_key(ada, new_key("free")).await?.expect("the account exists").id;
    task(fx, ada, key, 3).await?;
    let before = fx.state().await?;
    assert_eq!(submit(fx, ada, key, 1).await?, over(1, 1, "2026-11-22"));
    assert_eq!(fx.state().await?, before);
    let allowance = Allowance {
        budget: Budget { credits: 7, period: Period::Day },
        spent: 6,
        resets_at: Timestamp::of_day("2026-11-22").expect("a day"),
    };
    assert_eq!(fx.store.find_allowance(key).await?, Some(allowance));
    assert_eq!(fx.store.find_allowance(free).await?, None);
    task(fx, ada, free, 4).await?;
    accepted(fx.store.submit(ada, None, Surface::Web, images(4), UNLIMITED).await?);
    assert_eq!(used(fx, key).await?, (6, 1), "only its own tasks count");
    Ok(())
});

case!(a_refusal_names_the_smaller_of_balance_and_budget, async |fx| {
    let ada = fx.account("ada", 5).await?;
    let (small, large) = (limited(fx, ada, "6/week").await?, limited(fx, ada, "50/month").await?);
    assert_eq!(submit(fx, ada, small, 4).await?, over(5, 6, "2026-11-23"));
    assert_eq!(submit(fx, ada, large, 4).await?, Submission::NotCharged(InsufficientCredits { available: 5 }));
    let full = fx.store.submit(ada, Some(small), Surface::Api, images(1), UNLIMITED).await?;
    accepted(full);
    let refused = fx.store.submit(ada, Some(small), Surface::Api, images(4), 1).await?;
    assert_eq!(refused, Submission::NotCharged(TooManyUnfinished));
    Ok(())
});

case!(a_budget_starts_anew_at_the_exact_begin_of_a_period, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    for (text, resets_at) in [("4/day", "2026-11-22"), ("4/week", "2026-11-23"), ("4/month", "2026-12-01")] {
        let key = limited(fx, ada, text).await?;
        task(fx, ada, key, 2).await?;
        let end = Timestamp::of_day(resets_at).expect("a day");
        let process = tintype_system::clock::Clock::manual(end.saturating_sub(MILLISECOND));
        let elsewhere = fx.process_with_clock(&process);
        let submit = async || elsewhere.submit(ada, Some(key), Surface::Api, images(1), UNLIMITED).await;
        assert_eq!(submit().await?, over(0, 0, resets_at), "{text}");
        process.set(end);
        let first = accepted(submit().await?);
        assert_eq!(first.created_at(), end);
        accepted(submit().await?);
        assert!(matches!(submit().await?, Submission::NotCharged(OverBudget { left: 0, .. })), "{text}");
        assert_eq!(elsewhere.find_allowance(key).await?.expect("a budget").spent, 4);
        // A process whose clock is behind still counts to the period before.
        assert_eq!(used(fx, key).await?, (4, 0), "{text}");
    }
    Ok(())
});

case!(a_refund_returns_to_the_period_of_its_task, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let key = limited(fx, ada, "8/day").await?;
    let (first, second) = (task(fx, ada, key, 2).await?, task(fx, ada, key, 2).await?);
    fx.store.fail_unleased(first.id, FailureCause::Operator, "it sank").await?;
    assert_eq!(used(fx, key).await?, (4, 4));
    fx.clock.advance(DAY);
    task(fx, ada, key, 3).await?;
    fx.store.fail_unleased(second.id, FailureCause::Operator, "it sank").await?;
    assert_eq!(used(fx, key).await?, (6, 2), "yesterday's refund is of no use today");
    assert!(matches!(submit(fx, ada, key, 2).await?, Submission::NotCharged(OverBudget { left: 2, .. })));
    Ok(())
});

case!(a_budget_is_set_changed_and_ended, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let key = fx.store.create_key(ada, new_key("")).await?.expect("the account exists").id;
    task(fx, ada, key, 4).await?;
    let set = async |text: Option<&str>| {
        let budget = text.and_then(budget);
        let changed = fx.store.change_key(key, KeyChange::Budget(budget)).await?.expect("the key exists");
        assert_eq!(changed.budget, budget);
        assert_eq!(fx.store.find_key(key).await?, Some(changed));
        Ok::<_, tintype_store::StoreError>(())
    };
    set(Some("10/day")).await?;
    assert_eq!(used(fx, key).await?, (8, 2), "what was spent before counts");
    set(Some("6/month")).await?;
    assert_eq!(used(fx, key).await?, (8, 0), "a lowered budget has nothing left");
    assert_eq!(submit(fx, ada, key, 1).await?, over(0, 0, "2026-12-01"));
    set(None).await?;
    task(fx, ada, key, 4).await?;
    assert_eq!(fx.store.change_key(ada, KeyChange::Budget(None)).await?, None, "this is the id of an account");
    Ok(())
});

case!(a_rotated_key_shares_the_budget_of_the_key_before_it, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let first = limited(fx, ada, "10/day").await?;
    let other = limited(fx, ada, "10/day").await?;
    task(fx, ada, first, 2).await?;
    let rotate = async |key: Id| {
        let new = fx.store.rotate_key(key, new_key("").hash, "", DAY).await?.expect("the key is in force");
        Ok::<_, tintype_store::StoreError>(new.id)
    };
    let second = rotate(first).await?;
    let third = rotate(second).await?;
    task(fx, ada, third, 2).await?;
    for key in [first, second, third] {
        assert_eq!(used(fx, key).await?, (8, 2));
        assert!(matches!(submit(fx, ada, key, 2).await?, Submission::NotCharged(OverBudget { available: 2, .. })));
    }
    assert_eq!(used(fx, other).await?, (0, 10));
    fx.store.change_key(second, KeyChange::Budget(budget("12/day"))).await?;
    task(fx, ada, first, 2).await?;
    assert_eq!(used(fx, third).await?, (12, 0), "the old key and the new one have one budget");
    Ok(())
});

case!(concurrent_submits_never_exceed_a_budget, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let key = limited(fx, ada, "50/day").await?;
    let rotated = fx.store.rotate_key(key, new_key("").hash, "", DAY).await?.expect("the key is in force").id;
    let (here, there) = (fx.store.clone(), fx.another_process());
    let submits = |store: &std::sync::Arc<tintype_store::Store>, key| {
        let store = store.clone();
        try_join_all((0..20).map(move |turn| {
            let store = store.clone();
            async move { store.submit(ada, Some(key), Surface::Api, images(turn % 4 + 1), UNLIMITED).await }
        }))
    };
    let (one, other) = join(submits(&here, key), submits(&there, rotated)).await;
    let all = [one?, other?].concat();
    let (spent, left) = used(fx, key).await?;
    let charged: i64 = 1_000 - fx.credits(ada).await?;
    assert_eq!((spent, spent + left), (charged, 50));
    let refused =
        all.iter().filter(|submission| matches!(submission, Submission::NotCharged(OverBudget { .. }))).count();
    assert!(refused > 0 && spent > 42, "{spent} spent, {refused} refused");
    assert!(
        all.iter().all(|submission| matches!(
            submission,
            Submission::NotCharged(OverBudget { .. }) | Submission::Accepted(_)
        ))
    );
    Ok(())
});

case!(keys_of_one_batch_have_budgets_of_their_own, async |fx| {
    let ada = fx.account("ada", 1_000).await?;
    let keys = [limited(fx, ada, "4/day").await?, limited(fx, ada, "6/month").await?];
    let submits = (0..30).map(|turn| {
        let key = [Some(keys[0]), Some(keys[1]), None][turn % 3];
        fx.store.submit(ada, key, Surface::Api, images(1), UNLIMITED)
    });
    let answers = try_join_all(submits).await?;
    let accepted = |rest: usize| {
        let of_key = answers.iter().skip(rest).step_by(3);
        of_key.filter(|answer| matches!(answer, Submission::Accepted(_))).count()
    };
    assert_eq!([accepted(0), accepted(1), accepted(2)], [2, 3, 10]);
    assert_eq!(fx.credits(ada).await?, 970);
    Ok(())
});

case!(usage_adds_up_to_the_ledger, async |fx| {
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let key = limited(fx, ada, "50/day").await?;
    task(fx, ada, key, 3).await?;
    fx.store.complete(fx.claim().await?, one_file()).await?;
    let late = task(fx, ada, key, 2).await?;
    fx.submit_request(ada, Surface::Web, images(1)).await?;
    fx.submit(bob).await?;
    let midnight = Timestamp::of_day("2026-11-22").expect("a day");
    fx.clock.set(midnight);
    fx.store.fail_unleased(late.id, FailureCause::Operator, "it sank").await?;
    let row = UsageRow {
        day: None,
        account_id: None,
        key_id: None,
        person_id: None,
        surface: None,
        tasks: 0,
        charged: 0,
        refunded: 0,
    };
    let everything = UsageFilter::default();
    let (day, next) = (Timestamp::of_day("2026-11-21"), Some(midnight));
    assert_eq!(
        fx.store.usage_by(UsageBy::Day, everything).await?,
        [UsageRow { day, tasks: 4, charged: 14, ..row }, UsageRow { day: next, refunded: 4, ..row },]
    );
    let of_ada = UsageRow { account_id: Some(ada), ..row };
    assert_eq!(
        fx.store.usage_by(UsageBy::Account, everything).await?,
        [
            UsageRow { tasks: 3, charged: 12, refunded: 4, ..of_ada },
            UsageRow { account_id: Some(bob), tasks: 1, charged: 2, ..row },
        ]
    );
    let only_ada = UsageFilter { account_id: Some(ada), ..everything };
    let rows = fx.store.usage_by(UsageBy::Key, only_ada).await?;
    assert_eq!(
        rows,
        [
            UsageRow { key_id: Some(key), tasks: 2, charged: 10, refunded: 4, ..of_ada },
            UsageRow { surface: Some(Surface::Web), tasks: 1, charged: 2, ..of_ada },
        ]
    );
    assert_eq!((rows[0].images(), rows[0].credits()), (5, 6));
    let today = UsageFilter { from: Some(midnight), until: Some(midnight.saturating_add(DAY)), ..everything };
    assert_eq!(fx.store.usage_by(UsageBy::Account, today).await?, [UsageRow { refunded: 4, ..of_ada }]);
    let until = UsageFilter { until: Some(midnight), ..only_ada };
    assert_eq!(fx.store.usage_by(UsageBy::Account, until).await?, [UsageRow { tasks: 3, charged: 12, ..of_ada }]);
    Ok(())
});

// An account that has paused for months is not counted again and again.
case!(the_use_of_old_days_is_counted_once, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let day = Timestamp::of_day("2026-11-21").expect("a day");
    fx.submit_request(ada, Surface::Web, images(3)).await?;
    fx.clock.advance(DAY * 200);
    let used = fx.store.usage(ada, 0).await?;
    let newest = fx.store.history(ada, None, 1).await?.remove(0).id;
    assert_eq!(used, [DayUsage { day, used: 6, last: newest }]);
    assert_eq!(fx.store.usage(ada, newest).await?, []);
    Ok(())
});
