//! Progress of attempts: reported under a lease, read with the task, and gone with the lease.

use std::time::Duration;

use bytes::Bytes;
use tintype_domain::model::{FailureCause, Id, Surface, Task};
use tintype_engine::Stage;
use tintype_store::{AttemptProgress, Lease, LeaseWrite, Reclaim, Result, SoughtPreview};

use super::fixture::{Fixture, LEASE, one_file};

const SECOND: Duration = Duration::from_secs(1);

fn step(done: u32) -> AttemptProgress {
    AttemptProgress { running: SECOND * done, stage: Some(Stage::Step { done, of: 20 }) }
}

/// The progress that the owner of a task reads at another process.
async fn read(fx: &Fixture, task_id: Id) -> Result<Option<AttemptProgress>> {
    let Task { account_id, surface, .. } = fx.task(task_id).await?;
    let polled = fx.another_process().poll_task(account_id, surface, task_id).await?;
    Ok(polled.expect("the task exists").1)
}

async fn report(fx: &Fixture, lease: Lease, done: u32) -> Result<()> {
    fx.store.report_progress(vec![(lease, step(done))]).await
}

case!(the_owner_of_a_task_reads_the_latest_progress, async |fx| {
    let lease = fx.leased().await?;
    let before = fx.state().await?;
    assert_eq!(read(fx, lease.task_id).await?, None);
    for stage in [None, Some(Stage::Fraction(0.25)), Some(Stage::Step { done: 0, of: u32::MAX })] {
        let progress = AttemptProgress { running: SECOND * 10, stage };
        fx.store.report_progress(vec![(lease, progress)]).await?;
        assert_eq!(read(fx, lease.task_id).await?, Some(progress));
    }
    fx.clock.advance(SECOND * 5);
    let running = read(fx, lease.task_id).await?.map(|progress| progress.running);
    assert_eq!(running, Some(SECOND * 15), "the attempt goes on between reports");
    let Task { account_id, .. } = fx.task(lease.task_id).await?;
    assert_eq!(fx.store.poll_task(account_id, Surface::Web, lease.task_id).await?, None);
    assert_eq!(fx.state().await?, before, "nothing else has changed");
    Ok(())
});

case!(progress_is_reported_for_many_attempts_at_once, async |fx| {
    let ada = fx.account("ada", 10).await?;
    for _ in 0..3 {
        fx.submit(ada).await?;
    }
    let leases: Vec<Lease> = fx.store.claim(3, LEASE).await?.iter().map(|claim| claim.lease).collect();
    fx.store.release(leases[1], Duration::ZERO).await?;
    let fraction = AttemptProgress { running: SECOND, stage: Some(Stage::Fraction(0.5)) };
    fx.store.report_progress(vec![(leases[2], fraction), (leases[1], step(2)), (leases[0], step(1))]).await?;
    let expected = [Some(step(1)), None, Some(fraction)];
    for (lease, expected) in leases.iter().zip(expected) {
        assert_eq!(read(fx, lease.task_id).await?, expected);
    }
    Ok(())
});

case!(progress_under_a_lost_lease_is_not_written, async |fx| {
    let lost = fx.leased().await?;
    fx.store.release(lost, Duration::ZERO).await?;
    report(fx, lost, 1).await?;
    assert_eq!(read(fx, lost.task_id).await?, None, "the task waits");
    let current = fx.claim().await?;
    report(fx, lost, 1).await?;
    assert_eq!(read(fx, lost.task_id).await?, None, "the next worker has reported nothing");
    report(fx, current, 2).await?;
    report(fx, lost, 3).await?;
    assert_eq!(read(fx, lost.task_id).await?, Some(step(2)));
    fx.store.complete(current, one_file()).await?;
    report(fx, current, 4).await?;
    assert_eq!((read(fx, lost.task_id).await?, fx.count("progress")), (None, 1));
    fx.store.reclaim(Reclaim::Expired, "").await?;
    assert_eq!(fx.count("progress"), 0);
    Ok(())
});

case!(progress_ends_with_its_lease, async |fx| {
    let ada = fx.account("ada", 100).await?;
    for how in 0..8 {
        let task = fx.submit(ada).await?;
        let lease = fx.claim().await?;
        assert_eq!(lease.task_id, task.id);
        report(fx, lease, 7).await?;
        match how {
            0 => drop(fx.store.complete(lease, one_file()).await?),
            1 => drop(fx.store.fail(lease, FailureCause::Engine, "it sank").await?),
            2 => drop(fx.store.refuse(lease, "no", None).await?),
            3 => drop(fx.store.fail_unleased(lease.task_id, FailureCause::Operator, "it sank").await?),
            4 => drop(fx.store.expire(fx.clock.now(), "too late").await?),
            5 => drop(fx.store.retry(lease, Duration::ZERO, "again").await?),
            6 => drop(fx.store.reclaim(Reclaim::All, "the worker died").await?),
            _ => drop(fx.store.release(lease, Duration::ZERO).await?),
        }
        assert_eq!(read(fx, task.id).await?, None, "{how}");
        assert_eq!(fx.store.reclaim(Reclaim::Expired, "").await?.queued, 0);
        assert_eq!(fx.count("progress"), 0, "{how}");
        // Those that wait again must not be claimed in place of the next.
        fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?;
    }
    Ok(())
});

/// The preview that the owner of a task sees at another process, and its number.
async fn seen(fx: &Fixture, task_id: Id) -> Result<(Option<Bytes>, Option<i64>)> {
    let Task { account_id, surface, .. } = fx.task(task_id).await?;
    let store = fx.another_process();
    let unfinished = store.unfinished(&[account_id], surface).await?;
    let number = unfinished.iter().find(|task| task.task_id == task_id).and_then(|task| task.preview);
    Ok((store.find_preview(account_id, surface, task_id).await?, number))
}

/// As large as any.
fn png(seed: u8) -> Bytes {
    vec![seed; 50_000].into()
}

case!(the_owner_of_a_task_sees_the_latest_preview, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let eve = fx.account("eve", 10).await?;
    fx.submit(ada).await?;
    fx.submit(ada).await?;
    let leases: Vec<Lease> = fx.store.claim(2, LEASE).await?.iter().map(|claim| claim.lease).collect();
    let [first, second] = [leases[0].task_id, leases[1].task_id];
    assert_eq!(seen(fx, first).await?, (None, None));
    fx.store.report_previews(vec![(leases[1], png(1)), (leases[0], png(2))]).await?;
    fx.store.report_previews(vec![(leases[0], png(3))]).await?;
    assert_eq!(seen(fx, first).await?, (Some(png(3)), Some(2)));
    assert_eq!(seen(fx, second).await?, (Some(png(1)), Some(1)));
    for (account, surface) in [(eve, Surface::Api), (ada, Surface::Web)] {
        assert_eq!(fx.store.find_preview(account, surface, first).await?, None);
    }
    Ok(())
});

case!(a_preview_ends_with_its_lease, async |fx| {
    let lost = fx.leased().await?;
    let show = async |lease: Lease, seed: u8| fx.store.report_previews(vec![(lease, png(seed))]).await;
    show(lost, 1).await?;
    fx.store.reclaim(Reclaim::Expired, "").await?;
    assert_eq!(seen(fx, lost.task_id).await?, (Some(png(1)), Some(1)), "a sweep leaves it");
    fx.store.release(lost, Duration::ZERO).await?;
    assert_eq!(seen(fx, lost.task_id).await?, (None, None), "the task waits");
    let current = fx.claim().await?;
    show(lost, 2).await?;
    assert_eq!(seen(fx, lost.task_id).await?, (None, None), "the next worker has shown nothing");
    show(current, 3).await?;
    show(lost, 4).await?;
    assert_eq!(seen(fx, lost.task_id).await?, (Some(png(3)), Some(2)));
    fx.store.complete(current, one_file()).await?;
    show(current, 5).await?;
    assert_eq!((seen(fx, lost.task_id).await?, fx.count("previews")), ((None, None), 1));
    fx.store.reclaim(Reclaim::Expired, "").await?;
    assert_eq!(fx.count("previews"), 0);
    Ok(())
});

/// The places and numbers of the previews that were found.
async fn found(fx: &Fixture, surface: Surface, sought: &[SoughtPreview]) -> Result<Vec<(usize, i64)>> {
    let mut found = fx.another_process().find_previews(surface, sought).await?;
    found.sort_unstable_by_key(|preview| preview.place);
    Ok(found.iter().map(|preview| (preview.place, preview.number)).collect())
}

case!(a_preview_is_found_by_its_owner_once_it_is_due_and_not_yet_seen, async |fx| {
    let (ada, eve) = (fx.account("ada", 10).await?, fx.account("eve", 10).await?);
    fx.submit(ada).await?;
    fx.submit(ada).await?;
    let leases: Vec<Lease> = fx.store.claim(2, LEASE).await?.iter().map(|claim| claim.lease).collect();
    let sought = |account_id: Id, lease: Lease, shown: i64, from: f64| SoughtPreview {
        account_id,
        task_id: lease.task_id,
        shown,
        from,
    };
    let all = [
        sought(ada, leases[0], 0, 0.5),
        sought(ada, leases[0], 1, 0.5),
        sought(ada, leases[0], 0, 0.25),
        sought(ada, leases[1], 0, 0.75),
        sought(eve, leases[0], 0, 0.0),
    ];
    assert_eq!(found(fx, Surface::Api, &all).await?, []);
    fx.store.report_previews(vec![(leases[0], png(1)), (leases[1], png(2))]).await?;
    report(fx, leases[0], 8).await?;
    assert_eq!(found(fx, Surface::Api, &all).await?, [(2, 1), (3, 1)], "one attempt does not say how far it is");
    report(fx, leases[0], 10).await?;
    assert_eq!(found(fx, Surface::Api, &all).await?, [(0, 1), (2, 1), (3, 1)]);
    assert_eq!(found(fx, Surface::Web, &all).await?, []);
    let previews = fx.store.find_previews(Surface::Api, &all[..1]).await?;
    assert_eq!(previews[0].png, png(1));
    fx.store.release(leases[0], Duration::ZERO).await?;
    assert_eq!(found(fx, Surface::Api, &all).await?, [(3, 1)]);
    Ok(())
});

case!(a_sweep_leaves_the_progress_of_running_attempts, async |fx| {
    let lease = fx.leased().await?;
    report(fx, lease, 7).await?;
    fx.store.reclaim(Reclaim::Expired, "").await?;
    assert_eq!(read(fx, lease.task_id).await?, Some(step(7)));
    fx.clock.advance(LEASE);
    fx.store.reclaim(Reclaim::Expired, "").await?;
    assert_eq!((read(fx, lease.task_id).await?, fx.count("progress")), (None, 0), "the lease has expired");
    let current = fx.claim().await?;
    assert_eq!(read(fx, lease.task_id).await?, None, "a new attempt begins anew");
    assert_eq!(fx.store.complete(current, one_file()).await?, LeaseWrite::Done);
    Ok(())
});
