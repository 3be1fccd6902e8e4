//! Tasks that their account cancels while they wait, or stops while a worker holds them.

use std::time::Duration;

use bytes::Bytes;
use tintype_domain::ledger::STOPS_WITHIN;
use tintype_domain::model::{FailureCause, Id, Status, Surface, Task, TaskFailure, TaskRef};
use tintype_store::{Cancellation, GalleryFilter, Lease, LeaseWrite, Origin, Result, Retry, StartLimit, TaskState};

use super::ends::{assert_final, assert_refunded, refunds};
use super::fixture::{Fixture, LEASE, MILLISECOND, UNLIMITED, accepted, images, one_file};

const CANCELLED: &str = "Cancelled.";

impl Fixture {
    /// Cancels a task of the studio.
    async fn cancel(&self, account: Id, task: Id) -> Result<Cancellation> {
        self.store.cancel(account, Surface::Web, task, None, CANCELLED).await
    }

    /// Submits a task of the studio for so many images, and claims it.
    async fn rendering(&self, account: Id, n: u8) -> Result<Lease> {
        let task = self.submit_request(account, Surface::Web, images(n)).await?;
        let lease = self.claim().await?;
        assert_eq!(lease.task_id, task.id);
        Ok(lease)
    }

    /// Stops a task for so many images while a worker holds it.
    async fn stop(&self, account: Id, n: u8) -> Result<Cancellation> {
        let lease = self.rendering(account, n).await?;
        self.cancel(account, lease.task_id).await
    }
}

fn done(task: &Task) -> Cancellation {
    Cancellation::Done(TaskRef { id: task.id, account_id: task.account_id, surface: task.surface })
}

case!(a_waiting_task_is_cancelled_and_refunded_once, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let task = fx.submit_request(ada, Surface::Web, images(2)).await?;
    // A task that waits for its second attempt waits like any other.
    let lease = fx.claim().await?;
    assert_eq!(fx.store.retry(lease, Duration::ZERO, "too late").await?, Retry::Queued);
    assert_eq!(fx.cancel(ada, task.id).await?, done(&task));
    assert_refunded(fx, task.id, FailureCause::Cancelled, CANCELLED).await?;
    assert_eq!(fx.credits(ada).await?, 10);
    assert_eq!(fx.cancel(ada, task.id).await?, Cancellation::NotFound);
    assert_final(fx, lease).await
});

case!(a_task_that_a_worker_holds_is_cancelled_and_its_result_discarded, async |fx| {
    let ada = fx.account("ada", 10).await?;
    let lease = fx.rendering(ada, 4).await?;
    let task = fx.task(lease.task_id).await?;
    fx.store.report_previews(vec![(lease, Bytes::from_static(b"a preview"))]).await?;
    assert!(fx.store.find_preview(ada, Surface::Web, task.id).await?.is_some());
    // Also after its lease has expired: the worker could still complete it until a sweep takes the lease away.
    fx.clock.advance(LEASE);
    assert_eq!(fx.cancel(ada, task.id).await?, done(&task));
    assert_eq!(fx.store.lost(vec![lease]).await?, [lease], "the worker hears of it");
    assert_eq!(fx.store.find_preview(ada, Surface::Web, task.id).await?, None);
    assert_eq!(fx.cancel(ada, task.id).await?, Cancellation::NotFound);
    assert_final(fx, lease).await?;
    assert_refunded(fx, task.id, FailureCause::Cancelled, CANCELLED).await?;
    assert_eq!((fx.credits(ada).await?, fx.count("queue"), fx.count("previews")), (10, 0, 0));
    let lease = fx.rendering(ada, 1).await?;
    assert_eq!(fx.store.complete(lease, one_file()).await?, LeaseWrite::Done);
    assert_eq!(fx.cancel(ada, lease.task_id).await?, Cancellation::NotFound);
    assert_eq!(fx.task(lease.task_id).await?.status, Status::Completed(one_file()));
    assert_eq!((fx.credits(ada).await?, refunds(fx, lease.task_id).await?), (8, 0));
    Ok(())
});

case!(only_its_account_and_its_author_cancel_a_task_and_only_on_its_surface, async |fx| {
    let (ada, eve) = (fx.account("ada", 10).await?, fx.account("eve", 10).await?);
    let (ann, bob) = (fx.person(ada, "ann").await?.id, fx.person(ada, "bob").await?.id);
    let of_api = fx.submit(ada).await?.id;
    let origin = Origin { person_id: Some(ann), ..Origin::default() };
    let submit = fx.store.submit_before(StartLimit::none(), ada, origin, Surface::Web, images(1), UNLIMITED);
    let task = accepted(submit.await?);
    for is_leased in [false, true] {
        if is_leased {
            assert_eq!(fx.store.claim(2, LEASE).await?.len(), 2);
        }
        let before = fx.state().await?;
        for (account, surface, id, author) in [
            (eve, Surface::Web, task.id, None),
            (ada, Surface::Api, task.id, None),
            (ada, Surface::Web, of_api, None),
            (ada, Surface::Web, of_api, Some(ann)),
            (ada, Surface::Web, task.id, Some(bob)),
            (ada, Surface::Web, ada, None),
        ] {
            let refused = fx.store.cancel(account, surface, id, author, CANCELLED).await?;
            assert_eq!(refused, Cancellation::NotFound, "{is_leased}");
        }
        assert_eq!(fx.state().await?, before);
    }
    assert_eq!(fx.store.cancel(ada, Surface::Web, task.id, Some(ann), CANCELLED).await?, done(&task));
    Ok(())
});

case!(stopped_tasks_return_40_credits_or_a_quarter_of_what_was_completed, async |fx| {
    let (ada, eve) = (fx.account("ada", 1_000).await?, fx.account("eve", 100).await?);
    // What ends otherwise does not count.
    for _ in 0..3 {
        let waits = fx.submit_request(ada, Surface::Web, images(4)).await?;
        assert_eq!(fx.cancel(ada, waits.id).await?, done(&waits));
        let lease = fx.rendering(ada, 4).await?;
        fx.store.fail(lease, FailureCause::Engine, "it sank").await?;
    }
    let begin = fx.clock.now();
    for _ in 0..5 {
        assert!(matches!(fx.stop(ada, 4).await?, Cancellation::Done(_)));
    }
    let lease = fx.rendering(ada, 4).await?;
    let before = fx.state().await?;
    for _ in 0..2 {
        assert_eq!(fx.cancel(ada, lease.task_id).await?, Cancellation::OverShare);
    }
    assert_eq!(fx.state().await?, before, "it renders on");
    assert!(matches!(fx.stop(eve, 4).await?, Cancellation::Done(_)), "others have a share of their own");
    // While it waits it costs nothing.
    fx.store.release(lease, Duration::ZERO).await?;
    assert!(matches!(fx.cancel(ada, lease.task_id).await?, Cancellation::Done(_)));
    // 192 credits of completed tasks, of both surfaces and from the bin, allow 48 of stopped ones.
    let mut completed = Vec::new();
    for number in 0..24 {
        assert_eq!(fx.stop(ada, 4).await?, Cancellation::OverShare, "{number}");
        for task in fx.store.list_tasks(ada, Surface::Web, None, 1).await? {
            fx.store.fail_unleased(task.id, FailureCause::Operator, "it sank").await?;
        }
        let surface = if number % 2 == 0 { Surface::Api } else { Surface::Web };
        let task = fx.submit_request(ada, surface, images(4)).await?;
        fx.store.complete(fx.claim().await?, one_file()).await?;
        completed.push(task.id);
    }
    assert_eq!(fx.store.delete_tasks(ada, &completed, None).await?.len(), 12);
    assert!(matches!(fx.stop(ada, 4).await?, Cancellation::Done(_)));
    let last = fx.clock.now();
    assert_eq!(fx.stop(ada, 4).await?, Cancellation::OverShare);
    // A day later none of it counts.
    fx.clock.set(begin.saturating_add(STOPS_WITHIN).saturating_sub(MILLISECOND));
    assert_eq!(fx.stop(ada, 4).await?, Cancellation::OverShare);
    fx.clock.set(last.saturating_add(STOPS_WITHIN));
    for _ in 0..5 {
        assert!(matches!(fx.stop(ada, 4).await?, Cancellation::Done(_)));
    }
    assert_eq!(fx.stop(ada, 1).await?, Cancellation::OverShare);
    Ok(())
});

case!(of_two_stops_at_once_only_as_many_as_fit_take_place, async |fx| {
    for round in 0..8 {
        let ada = fx.account(&format!("ada{round}"), 100).await?;
        for n in [4, 4, 4, 4, 2] {
            assert!(matches!(fx.stop(ada, n).await?, Cancellation::Done(_)));
        }
        let (one, other) = (fx.rendering(ada, 2).await?.task_id, fx.rendering(ada, 2).await?.task_id);
        let (first, second) = (fx.another_process(), fx.another_process());
        let (one, other) = tokio::join!(
            first.cancel(ada, Surface::Web, one, None, CANCELLED),
            second.cancel(ada, Surface::Web, other, None, CANCELLED),
        );
        let refused = [one?, other?].into_iter().filter(|outcome| *outcome == Cancellation::OverShare).count();
        assert_eq!((refused, fx.credits(ada).await?), (1, 96));
    }
    Ok(())
});

case!(a_cancelled_task_ends_once_whatever_happens_at_the_same_time, async |fx| {
    let ada = fx.account("ada", 100).await?;
    for round in 0..24 {
        fx.clock.advance(STOPS_WITHIN);
        let task = fx.submit_request(ada, Surface::Web, images(1)).await?;
        let (one, other) = (fx.another_process(), fx.another_process());
        let lease = if round % 4 == 0 { None } else { Some(fx.claim().await?) };
        let cancelling = one.cancel(ada, Surface::Web, task.id, None, CANCELLED);
        let meanwhile = async {
            Ok(match (round % 4, lease) {
                (1, Some(lease)) => other.complete(lease, one_file()).await? == LeaseWrite::Done,
                (2, Some(lease)) => other.fail(lease, FailureCause::Engine, "it sank").await? == LeaseWrite::Done,
                (3, _) => other.cancel(ada, Surface::Web, task.id, None, CANCELLED).await? == done(&task),
                _ => other.claim(1, LEASE).await.map(|_| false)?,
            })
        };
        let (cancelled, otherwise): (_, Result<bool>) = tokio::join!(cancelling, meanwhile);
        let cancelled = cancelled? == done(&task);
        assert_ne!(cancelled, otherwise?, "{round}");
        let is_completed = matches!(fx.task(task.id).await?.status, Status::Completed(_));
        assert_eq!(refunds(fx, task.id).await?, usize::from(!is_completed), "{round}");
        assert!(!is_completed || round % 4 == 1);
        assert_eq!(fx.count("queue"), 0, "{round}");
    }
    Ok(())
});

case!(a_cancelled_task_counts_as_no_failure, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let begin = fx.clock.now();
    let waits = fx.submit_request(ada, Surface::Web, images(1)).await?;
    fx.cancel(ada, waits.id).await?;
    let stopped = fx.rendering(ada, 1).await?.task_id;
    fx.cancel(ada, stopped).await?;
    let failed = fx.rendering(ada, 1).await?;
    fx.store.fail(failed, FailureCause::Engine, "it sank").await?;
    fx.clock.advance(MILLISECOND);
    let now = fx.clock.now();
    for (nth, is_there) in [(1, true), (2, false)] {
        assert_eq!(fx.store.failed_at(ada, begin, now, nth).await?.is_some(), is_there, "{nth}");
    }
    let failure = TaskFailure::new(FailureCause::Engine, "it sank");
    assert_eq!(fx.store.hour(begin).await?.failed.into_iter().collect::<Vec<_>>(), [(Some(failure), 1)]);
    for (state, expected) in
        [(TaskState::Failed, vec![failed.task_id]), (TaskState::Cancelled, vec![stopped, waits.id])]
    {
        let filter = GalleryFilter { state: Some(state), ..GalleryFilter::default() };
        let page = fx.store.gallery(ada, &filter, None, 9).await?;
        assert_eq!(page.records.iter().map(|record| record.task.id).collect::<Vec<_>>(), expected, "{state:?}");
    }
    Ok(())
});
