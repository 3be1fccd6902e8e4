//! Claims: the order of tasks, round robin over accounts, delays and epochs.

use std::time::Duration;

use futures::{FutureExt as _, try_join};
use tintype_domain::model::{EntryKind, FailureCause, Id, Status, Surface, TaskId, TaskRef};
use tintype_domain::request::GenerateRequest;
use tintype_store::{
    ANY_REFERENCES, EntryFilter, LONGEST_DELAY, Lease, LeaseWrite, QueueDepth, Reclaim, Result, Store, StoreError,
    UsageBy, UsageFilter, WaitingTask,
};
use tintype_system::clock::Clock;

use super::fixture::{Fixture, LEASE, MILLISECOND, UNLIMITED, accepted, failure, images, one_file};
use tintype_rigs::database::NOON;

/// Claims up to `max` tasks and returns their ids.
async fn claimed(fx: &Fixture, max: usize) -> Result<Vec<Id>> {
    Ok(fx.store.claim(max, LEASE).await?.iter().map(|claim| claim.lease.task_id).collect())
}

/// Claims up to `max` tasks of accounts that are not in `skipped`, and returns their ids.
async fn claimed_except(store: &Store, max: usize, skipped: &[Id]) -> Result<Vec<Id>> {
    let claims = store.claim_within(max, "", ANY_REFERENCES, LEASE, skipped).await?;
    assert!(claims.iter().all(|claim| !skipped.contains(&claim.account_id)), "{claims:?}");
    Ok(claims.iter().map(|claim| claim.lease.task_id).collect())
}

/// Three accounts in the order of their ids, with three, one and two tasks, submitted in turn.
async fn three_accounts(fx: &Fixture) -> Result<[Vec<Id>; 3]> {
    let accounts = [fx.account("ada", 100).await?, fx.account("bob", 100).await?, fx.account("cyd", 100).await?];
    let mut tasks = [Vec::new(), Vec::new(), Vec::new()];
    for turn in [0, 0, 2, 1, 0, 2] {
        tasks[turn].push(fx.submit(accounts[turn]).await?.id);
    }
    Ok(tasks)
}

case!(claims_take_accounts_round_robin_and_the_oldest_task_of_each, async |fx| {
    let [ada, bob, cyd] = three_accounts(fx).await?;
    assert_eq!(claimed(fx, 100).await?, [ada[0], bob[0], cyd[0], ada[1], cyd[1], ada[2]]);
    Ok(())
});

case!(a_claim_continues_the_round_robin_of_the_previous_claim, async |fx| {
    let [ada, bob, cyd] = three_accounts(fx).await?;
    for expected in [ada[0], bob[0], cyd[0], ada[1], cyd[1], ada[2]] {
        assert_eq!(claimed(fx, 1).await?, [expected]);
    }
    Ok(())
});

case!(a_task_postponed_before_the_clock_was_set_back_is_claimed, async |fx| {
    let hour = Duration::from_secs(60 * 60);
    let account = fx.account("ada", 100).await?;
    // Each with the delay that it was given and the one that counts.
    for (delay, longest) in [(LONGEST_DELAY, LONGEST_DELAY), (hour, LONGEST_DELAY), (LEASE, LEASE)] {
        let task = fx.submit(account).await?.id;
        fx.store.release(fx.claim().await?, delay).await?;
        assert_eq!(claimed(fx, 1).await?, [], "not before it is due");
        let right = fx.clock.now();
        fx.clock.set(right.saturating_sub(hour * 6));
        fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
        fx.clock.set(right);
        let task_again = fx.submit(account).await?.id;
        fx.store.retry(fx.claim().await?, delay, "it leaks").await?;
        fx.clock.advance(longest - MILLISECOND);
        assert_eq!(claimed(fx, 1).await?, [], "not before it is due");
        fx.clock.advance(MILLISECOND);
        assert_eq!(claimed(fx, 1).await?, [task_again], "{task}");
        assert_eq!(claimed(fx, 1).await?, []);
        fx.clock.advance(hour);
    }
    Ok(())
});

case!(a_claim_names_the_account_of_its_task, async |fx| {
    let [ada, bob] = [fx.account("ada", 10).await?, fx.account("bob", 10).await?];
    for (account, task) in [(bob, fx.submit(bob).await?), (ada, fx.submit(ada).await?)] {
        assert_eq!(task.account_id, account);
    }
    let owners: Vec<_> = fx.store.claim(10, LEASE).await?.iter().map(|claim| claim.account_id).collect();
    assert_eq!(owners, [ada, bob]);
    Ok(())
});

/// The id of an account that [`three_accounts`] made.
async fn id(fx: &Fixture, name: &str) -> Result<Id> {
    Ok(fx.store.find_account(name).await?.expect("the account exists").id)
}

case!(a_claim_skips_the_given_accounts, async |fx| {
    let [ada, bob, cyd] = three_accounts(fx).await?;
    let (id_of_ada, id_of_bob) = (id(fx, "ada").await?, id(fx, "bob").await?);
    let store = fx.store.as_ref();
    assert_eq!(claimed_except(store, 1, &[id_of_ada, id_of_bob]).await?, [cyd[0]]);
    assert_eq!(claimed_except(store, 100, &[id_of_bob, id_of_ada]).await?, [cyd[1]]);
    assert_eq!(claimed_except(store, 100, &[id_of_bob]).await?, ada);
    assert_eq!(claimed_except(store, 100, &[id_of_bob]).await?, []);
    assert_eq!(claimed(fx, 100).await?, bob);
    Ok(())
});

// Runs on a process with the stopped clock of the tests, and on one with a running clock.
case!(a_skipped_account_keeps_its_turn, async |fx| {
    let [ada, bob, cyd] = three_accounts(fx).await?;
    let skipped = [id(fx, "ada").await?];
    for store in [fx.another_process(), fx.process_with_clock(&Clock::system())] {
        let mut claims = Vec::new();
        for skipped in [&skipped[..], &skipped, &[], &[], &skipped, &[]] {
            claims.extend(
                store.claim_within(1, "", ANY_REFERENCES, LEASE, skipped).await?.iter().map(|claim| claim.lease),
            );
        }
        let tasks: Vec<_> = claims.iter().map(|lease| lease.task_id).collect();
        assert_eq!(
            tasks,
            [bob[0], cyd[0], ada[0], cyd[1], ada[1]],
            "the fifth claim returns nothing, because only ada has waiting tasks"
        );
        for lease in claims {
            store.release(lease, Duration::ZERO).await?;
        }
    }
    Ok(())
});

case!(a_claim_that_skips_every_waiting_account_takes_nothing, async |fx| {
    three_accounts(fx).await?;
    let all = [id(fx, "ada").await?, id(fx, "bob").await?, id(fx, "cyd").await?];
    for store in [fx.another_process(), fx.process_with_clock(&Clock::system())] {
        for _ in 0..3 {
            assert_eq!(claimed_except(store.as_ref(), 5, &all).await?, []);
        }
    }
    assert_eq!(claimed(fx, 100).await?.len(), 6);
    Ok(())
});

case!(a_claim_finds_an_account_behind_hundreds_of_skipped_ones, async |fx| {
    let mut accounts = Vec::new();
    for number in 0..300 {
        accounts.push(fx.account(&format!("account {number}"), 2).await?);
    }
    let last = fx.account("last", 4).await?;
    let submits = accounts.iter().chain([&last, &last]).map(|account| {
        let (store, account) = (fx.store.clone(), *account);
        async move { store.submit(account, None, Surface::Api, images(1), UNLIMITED).await }
    });
    for submission in futures::future::join_all(submits).await {
        accepted(submission?);
    }
    for store in [fx.another_process(), fx.process_with_clock(&Clock::system())] {
        let claims = store.claim_within(1, "", ANY_REFERENCES, LEASE, &accounts).await?;
        assert_eq!(claims.iter().map(|claim| claim.account_id).collect::<Vec<_>>(), [last]);
    }
    Ok(())
});

case!(an_account_with_many_tasks_does_not_delay_another, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let bob = fx.account("bob", 100).await?;
    for _ in 0..20 {
        fx.submit(ada).await?;
    }
    let latest = fx.submit(bob).await?;
    assert!(claimed(fx, 2).await?.contains(&latest.id));
    Ok(())
});

case!(a_claim_takes_at_most_the_given_number_of_tasks, async |fx| {
    let ada = fx.account("ada", 100).await?;
    for _ in 0..5 {
        fx.submit(ada).await?;
    }
    for (max, expected) in [(0, 0), (1, 1), (3, 3), (3, 1), (3, 0)] {
        assert_eq!(claimed(fx, max).await?.len(), expected);
    }
    Ok(())
});

case!(a_leased_task_is_not_claimed_again, async |fx| {
    fx.leased().await?;
    assert_eq!(claimed(fx, 10).await?, []);
    fx.clock.advance(2 * LEASE);
    assert_eq!(claimed(fx, 10).await?, [], "only a reclaim takes a lease away");
    assert!(fx.another_process().claim(10, LEASE).await?.is_empty());
    Ok(())
});

case!(tasks_of_both_surfaces_are_claimed, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let web = fx.submit_request(ada, Surface::Web, images(1)).await?.id;
    let api = fx.submit(ada).await?.id;
    assert_eq!(claimed(fx, 10).await?, [web, api]);
    Ok(())
});

case!(a_released_task_is_claimed_again_at_once, async |fx| {
    let lease = fx.leased().await?;
    fx.store.release(lease, Duration::ZERO).await?;
    assert_eq!(claimed(fx, 10).await?, [lease.task_id]);
    Ok(())
});

case!(a_requeued_task_is_claimable_by_a_process_whose_clock_is_behind, async |fx| {
    let lease = fx.leased().await?;
    let behind = fx.process_with_clock(&Clock::manual(NOON.saturating_sub(LEASE)));
    let claimed = async || behind.claim(1, LEASE).await.map(|claims| claims.first().map(|claim| claim.lease));
    fx.store.retry(lease, Duration::ZERO, "no answer").await?;
    let lease = claimed().await?.expect("claimable after a retry");
    fx.store.release(lease, Duration::ZERO).await?;
    claimed().await?.expect("claimable after a release");
    fx.store.reclaim(Reclaim::All, "the worker died").await?;
    claimed().await?.expect("claimable after a reclaim");
    Ok(())
});

case!(a_released_delayed_task_is_claimable_by_a_process_whose_clock_is_behind, async |fx| {
    let lease = fx.leased().await?;
    fx.store.retry(lease, LEASE, "no answer").await?;
    fx.clock.advance(LEASE);
    fx.store.release(fx.claim().await?, Duration::ZERO).await?;
    let behind = fx.process_with_clock(&Clock::manual(NOON));
    assert_eq!(behind.claim(1, LEASE).await?.len(), 1);
    Ok(())
});

case!(a_delayed_task_is_claimable_at_its_exact_millisecond, async |fx| {
    let lease = fx.leased().await?;
    let delay = Duration::from_secs(10);
    fx.store.retry(lease, delay, "no answer").await?;
    fx.clock.advance(delay - MILLISECOND);
    assert_eq!(claimed(fx, 10).await?, []);
    fx.clock.advance(MILLISECOND);
    assert_eq!(claimed(fx, 10).await?, [lease.task_id]);
    Ok(())
});

case!(a_delayed_task_does_not_delay_younger_tasks, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let older = fx.submit(ada).await?.id;
    let younger = fx.submit(ada).await?.id;
    let lease = fx.claim().await?;
    assert_eq!(lease.task_id, older);
    fx.store.retry(lease, MILLISECOND, "no answer").await?;
    assert_eq!(claimed(fx, 10).await?, [younger]);
    fx.clock.advance(MILLISECOND);
    assert_eq!(claimed(fx, 10).await?, [older]);
    Ok(())
});

case!(a_finished_task_is_never_claimed, async |fx| {
    let ada = fx.account("ada", 100).await?;
    for _ in 0..3 {
        fx.submit(ada).await?;
    }
    fx.store.complete(fx.claim().await?, one_file()).await?;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    fx.store.fail_unleased(fx.store.recent_tasks(None, 1).await?[0].id, FailureCause::Operator, "it sank").await?;
    fx.clock.advance(2 * LEASE);
    assert_eq!(claimed(fx, 10).await?, []);
    Ok(())
});

case!(every_claim_raises_the_lease_epoch, async |fx| {
    let mut held = fx.leased().await?;
    for turn in 0..6 {
        match turn % 3 {
            0 | 1 => drop(fx.store.release(held, Duration::ZERO).await?),
            _ => drop(fx.store.retry(held, Duration::ZERO, "no answer").await?),
        }
        let Lease { task_id, epoch } = fx.another_process().claim(1, LEASE).await?[0].lease;
        assert_eq!(task_id, held.task_id);
        assert!(epoch > held.epoch, "epoch {epoch} follows {}", held.epoch);
        held = Lease { task_id, epoch };
    }
    Ok(())
});

case!(a_reclaim_does_not_reset_the_lease_epoch, async |fx| {
    let first = fx.leased().await?;
    fx.store.reclaim(Reclaim::All, "the worker died").await?;
    let second = fx.claim().await?;
    assert!(second.epoch > first.epoch);
    fx.clock.advance(LEASE);
    fx.store.reclaim(Reclaim::Expired, "the worker died").await?;
    let third = fx.claim().await?;
    assert!(third.epoch > second.epoch);
    Ok(())
});

case!(queue_depth_counts_waiting_and_leased_tasks, async |fx| {
    assert_eq!(fx.store.queue_depth().await?, QueueDepth::default());
    let ada = fx.account("ada", 100).await?;
    let first = fx.submit(ada).await?.created_at();
    let second = fx.submit(ada).await?.created_at();
    let depth = |waiting, leased, oldest| QueueDepth { waiting, leased, oldest, ..QueueDepth::default() };
    assert_eq!(fx.store.queue_depth().await?, depth(2, 0, Some(first)));
    let lease = fx.claim().await?;
    assert_eq!(fx.store.queue_depth().await?, depth(1, 1, Some(first)));
    fx.store.retry(lease, LEASE, "no answer").await?;
    assert_eq!(fx.store.queue_depth().await?, depth(2, 0, Some(first)));
    fx.store.fail_unleased(lease.task_id, FailureCause::Operator, "it sank").await?;
    assert_eq!(fx.store.queue_depth().await?, depth(1, 0, Some(second)));
    fx.store.complete(fx.claim().await?, one_file()).await?;
    assert_eq!(fx.store.queue_depth().await?, QueueDepth::default());
    Ok(())
});

case!(waiting_tasks_returns_the_oldest_in_order, async |fx| {
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let mut ids = Vec::new();
    for account in [bob, ada, bob, ada] {
        ids.push((fx.submit(account).await?.id, account));
    }
    let task = |&(id, account_id): &(Id, Id)| WaitingTask {
        task: TaskRef { id, account_id, surface: Surface::Api },
        engine: None,
    };
    let waiting = |ids: &[(Id, Id)]| ids.iter().map(task).collect::<Vec<_>>();
    assert_eq!(fx.store.waiting_tasks(3).await?, waiting(&ids[..3]));
    let lease = fx.claim().await?;
    ids.retain(|(id, _)| *id != lease.task_id);
    assert_eq!(fx.store.waiting_tasks(10).await?, waiting(&ids));
    Ok(())
});

case!(nothing_but_reports_waits_for_reports, async |fx| {
    let ada = fx.account("ada", 100).await?;
    fx.submit(ada).await?;
    let turns = fx.store.report_turns();
    let all = turns.available_permits();
    assert!((1..=2).contains(&all), "most connections are left to others");
    let held = turns.acquire_many(all as u32).await.expect("turns");
    let of_ada = UsageFilter { account_id: Some(ada), ..UsageFilter::default() };
    let mut usage = Box::pin(fx.store.usage_by(UsageBy::Key, of_ada));
    let charges = EntryFilter { kind: Some(EntryKind::Charge), ..EntryFilter::default() };
    let mut entries = Box::pin(fx.store.entries(ada, charges, None, 9));
    assert!((&mut usage).now_or_never().is_none() && (&mut entries).now_or_never().is_none());
    assert_eq!(fx.store.waiting_tasks(9).await?.len(), 1);
    assert_eq!(fx.store.history(ada, None, 9).await?.len(), 2);
    drop(held);
    assert_eq!(turns.available_permits(), all.saturating_sub(2), "both waited for their turn");
    let (usage, entries) = try_join!(usage, entries)?;
    assert_eq!((usage.len(), entries.len()), (1, 1));
    assert_eq!(turns.available_permits(), all);
    Ok(())
});

case!(known_and_later_tasks_are_listed_until_they_end, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let first = fx.submit(ada).await?.id;
    fx.clock.advance(LEASE);
    let from = fx.clock.now();
    let [second, third] = [fx.submit(ada).await?.id, fx.submit(ada).await?.id];
    let unfinished = async |known: &[Id], limit| {
        let mut found = fx.store.unfinished_from(from, known, limit).await?;
        found.sort();
        Ok::<_, StoreError>(found)
    };
    assert_eq!(unfinished(&[], 9).await?, [second, third]);
    assert_eq!(unfinished(&[first, second], 1).await?, [first, second]);
    // A worker holds the first.
    let lease = fx.claim().await?;
    assert_eq!(unfinished(&[first], 9).await?, [first, second, third]);
    fx.store.complete(lease, one_file()).await?;
    assert_eq!(unfinished(&[first], 9).await?, [second, third]);
    Ok(())
});

case!(no_process_claims_from_a_paused_queue, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let id = fx.submit(ada).await?.id;
    let held = fx.claim().await?;
    fx.submit(ada).await?;
    let other = fx.another_process();
    assert_eq!(fx.store.queue_paused_at().await?, None);
    let since = fx.store.pause_queue().await?;
    fx.clock.advance(LEASE / 2);
    assert_eq!(other.pause_queue().await?, since);
    assert_eq!((other.queue_paused_at().await?, other.queue_depth().await?.paused_at), (Some(since), Some(since)));
    for store in [&fx.store, &other] {
        assert_eq!(store.claim(10, LEASE).await?.len(), 0);
    }
    // Leased tasks go on.
    assert_eq!(fx.store.renew(vec![held], LEASE).await?, []);
    assert_eq!(fx.store.complete(held, one_file()).await?, LeaseWrite::Done);
    assert_eq!(other.resume_queue().await?, Some(since));
    assert_eq!(fx.store.resume_queue().await?, None);
    let claims = fx.store.claim(10, LEASE).await?;
    assert!(claims.len() == 1 && claims[0].lease.task_id != id);
    Ok(())
});

/// Submits a task with so many references.
async fn submit_with(fx: &Fixture, account: Id, references: usize) -> Result<Id> {
    let reference_images = vec!["https://pictures.example/a.png".into(); references];
    let request = GenerateRequest { reference_images, ..images(1) };
    Ok(fx.submit_request(account, Surface::Api, request).await?.id)
}

/// Claims up to `max` tasks with up to `max_references` references and returns their ids.
async fn claimed_with(fx: &Fixture, max: usize, max_references: u32) -> Result<Vec<Id>> {
    let claims = fx.store.claim_within(max, "", max_references, LEASE, &[]).await?;
    Ok(claims.iter().map(|claim| claim.lease.task_id).collect())
}

case!(a_claim_takes_only_tasks_with_as_few_references_as_it_says, async |fx| {
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let edit = submit_with(fx, ada, 4).await?;
    let (text, pair) = (submit_with(fx, ada, 0).await?, submit_with(fx, bob, 2).await?);
    let depth = fx.store.queue_depth().await?;
    assert_eq!((depth.waiting, depth.needing), (3, [2, 2, 1, 1]));
    assert_eq!([Some(4), Some(3), Some(0), None].map(|most| depth.beyond(most)), [0, 1, 2, 3]);
    assert_eq!(claimed_with(fx, 10, 0).await?, [text], "older tasks that it cannot take do not stand in its way");
    assert_eq!(claimed_with(fx, 10, 1).await?, []);
    assert_eq!(claimed_with(fx, 10, 3).await?, [pair]);
    assert_eq!(claimed_with(fx, 10, 4).await?, [edit]);
    // A task keeps its number of references through a lost lease.
    fx.clock.advance(LEASE);
    fx.store.reclaim(Reclaim::Expired, "the worker died").await?;
    assert_eq!(claimed_with(fx, 10, 0).await?, [text]);
    assert_eq!(claimed_with(fx, 10, ANY_REFERENCES).await?, [edit, pair]);
    Ok(())
});

// With turns in common, one engine would always meet ada and the other always bob.
case!(claims_with_different_limits_of_references_take_turns_of_their_own, async |fx| {
    let accounts = [fx.account("ada", 100).await?, fx.account("bob", 100).await?];
    for account in accounts {
        for references in [0, 0, 1, 1] {
            submit_with(fx, account, references).await?;
        }
    }
    let mut served = [Vec::new(), Vec::new()];
    for _ in 0..2 {
        for (limit, served) in served.iter_mut().enumerate() {
            for claim in fx.store.claim_within(1, "", limit as u32, LEASE, &[]).await? {
                served.push(claim.account_id);
            }
        }
    }
    assert_eq!(served.map(|served| served == accounts), [true, true]);
    Ok(())
});

case!(fail_beyond_fails_the_waiting_tasks_with_more_references_and_no_other, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let leased = submit_with(fx, ada, 4).await?;
    assert_eq!(claimed(fx, 1).await?, [leased]);
    let text = submit_with(fx, ada, 0).await?;
    let (one, two) = (submit_with(fx, ada, 1).await?, submit_with(fx, ada, 2).await?);
    let ended = fx.ended(two).await?;
    assert_eq!(fx.store.fail_over_reference_limit(1, "Too many.").await?, [ended]);
    assert_eq!(fx.store.fail_over_reference_limit(1, "Too many.").await?, []);
    let failed = failure(FailureCause::TooManyReferences(1), "Too many.");
    assert_eq!((fx.task(two).await?.status, fx.credits(ada).await?), (failed, 94));
    for kept in [leased, text, one] {
        assert_eq!(fx.task(kept).await?.status, Status::Processing);
    }
    let ended = fx.ended(one).await?;
    assert_eq!(fx.store.fail_over_reference_limit(0, "Too many.").await?, [ended]);
    assert_eq!(claimed(fx, 10).await?, [text]);
    Ok(())
});

// A claim that takes few references passes over the tasks with more by the index: its cost does not grow with their rows.
case!(a_claim_passes_over_very_many_tasks_that_it_cannot_take, async |fx| {
    const IMPOSSIBLE: usize = 2_000;
    let (ada, bob) = (fx.account("ada", 10_000).await?, fx.account("bob", 10).await?);
    fx.copy_task(submit_with(fx, ada, 1).await?, IMPOSSIBLE - 1);
    let possible = [submit_with(fx, ada, 0).await?, submit_with(fx, bob, 0).await?];
    assert_eq!(claimed_with(fx, 10, 0).await?, possible);
    assert_eq!(claimed_with(fx, 10, 0).await?, []);
    let depth = fx.store.queue_depth().await?;
    assert_eq!((depth.waiting, depth.leased), (IMPOSSIBLE as u64, 2), "the others wait unchanged");
    Ok(())
});

case!(the_audit_finds_a_wrong_number_of_references_in_the_queue, async |fx| {
    let account = fx.account("ada", 100).await?;
    let (text, edit) = (submit_with(fx, account, 0).await?, submit_with(fx, account, 2).await?);
    assert_eq!(fx.store.audit().await?.drifts, []);
    for (task, (counted, images), right) in [(text, (1, "image"), 0), (edit, (0, "images"), 2)] {
        let count = |count| format!("UPDATE queue SET reference_count = {count} WHERE task_id = '{task}'");
        fx.execute(&count(counted));
        let drifts = fx.store.audit().await?.drifts;
        let faults: Vec<_> = drifts.iter().map(|drift| (drift.task_id, drift.fault.as_str())).collect();
        let fault = format!("is queued as a task with {counted} reference {images} but has {right}");
        assert_eq!(faults, [(Some(TaskId(task)), fault.as_str())]);
        fx.execute(&count(right));
    }
    Ok(())
});
