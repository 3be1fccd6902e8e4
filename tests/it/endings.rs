//! A subscriber receives every ending that its process commits, once.

use std::time::Duration;

use futures::future::join_all;
use tintype::service::endings::{Ending, EndingKind, MAX_WAITING, RETRY_DELAY};
use tintype_config::{LEASE, TASK_TIME_LIMIT};
use tintype_domain::model::{FailureCause, Id, Surface, TaskFailure, TaskRef};
use tintype_domain::request::GenerateRequest;
use tintype_store::{LeaseWrite, MAX_LOST_LEASES, Reclaim, Submission};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::TryRecvError;

use crate::rigs::service::{Caller, Service};

async fn submit(caller: &Caller, surface: Surface, prompt: &str) -> Id {
    let request = GenerateRequest::new(prompt);
    let store = &caller.service.shared.store;
    match store.submit(caller.account.id, None, surface, request, 0).await.expect("a store") {
        Submission::Accepted(task) => task.id,
        refused => panic!("{refused:?}"),
    }
}

fn waiting(subscriber: &mut Receiver<Ending>) -> Vec<Ending> {
    let mut waiting = Vec::new();
    loop {
        match subscriber.try_recv() {
            Ok(ending) => waiting.push(ending),
            Err(error) => {
                assert_eq!(error, TryRecvError::Empty);
                return waiting;
            }
        }
    }
}

#[tokio::test]
async fn a_subscriber_receives_each_kind_of_ending_once() {
    let (service, ada) = Service::with_caller(&[], 100).await;
    let (store, endings) = (&service.shared.store, &service.shared.endings);
    let mut subscriber = endings.subscribe();
    for surface in [Surface::Api, Surface::Web] {
        let mut assert_received = |id, kind| {
            let task = TaskRef { id, account_id: ada.account.id, surface };
            assert_eq!(waiting(&mut subscriber), [Ending { task, kind }]);
        };
        for (prompt, kind) in [
            ("a boat", EndingKind::Completed),
            ("a boat [[fail]]", EndingKind::Failed),
            ("a boat [[policy]]", EndingKind::Failed),
            // The last of several attempts.
            ("a boat [[panic]]", EndingKind::Failed),
        ] {
            let task = submit(&ada, surface, prompt).await;
            service.work().await;
            assert_received(task, kind);
        }

        let lost = submit(&ada, surface, "a boat").await;
        for _ in 0..MAX_LOST_LEASES {
            assert_eq!(store.claim(1, LEASE).await.expect("a store").len(), 1);
            service.sweeper.sweep(Reclaim::All).await;
        }
        assert_received(lost, EndingKind::Failed);

        let overdue = submit(&ada, surface, "a boat").await;
        service.clock.advance(TASK_TIME_LIMIT);
        service.sweep().await;
        assert_received(overdue, EndingKind::Failed);

        let failed = submit(&ada, surface, "a boat").await;
        assert!(
            endings.fail_unleased(failed, FailureCause::Operator, "The operator ended it.").await.expect("a store")
        );
        assert_received(failed, EndingKind::Failed);
    }
}

#[tokio::test]
async fn a_subscriber_receives_nothing_for_a_write_that_ends_no_task() {
    let (service, ada) = Service::with_caller(&[], 100).await;
    let endings = &service.shared.endings;
    let task = submit(&ada, Surface::Api, "a boat").await;
    let mut subscriber = endings.subscribe();
    let mut claims = Vec::new();
    for _ in 1..MAX_LOST_LEASES {
        claims.extend(service.shared.store.claim(1, LEASE).await.expect("a store"));
        endings.retry(&claims[claims.len() - 1], RETRY_DELAY, "the engine panicked").await;
        service.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(waiting(&mut subscriber), [], "the task is queued again");
    service.work().await;
    assert_eq!(waiting(&mut subscriber).len(), 1);
    for claim in &claims {
        let completed = endings.complete(claim, &["late.png".into()], Duration::ZERO).await;
        assert_eq!(completed.expect("a store"), LeaseWrite::Lost);
        endings.fail(claim, &TaskFailure::new(FailureCause::Engine, "too late")).await;
        endings.retry(claim, RETRY_DELAY, "too late").await;
    }
    assert!(!endings.fail_unleased(task, FailureCause::Operator, "too late").await.expect("a store"));
    service.sweeper.sweep(Reclaim::All).await;
    assert_eq!(waiting(&mut subscriber), []);
}

#[tokio::test]
async fn a_slow_subscriber_loses_the_oldest_endings_and_receives_their_number() {
    let (service, ada) = Service::with_caller(&[], 10_000).await;
    let endings = &service.shared.endings;
    let (mut slow, mut ready) = (endings.subscribe(), endings.subscribe());
    let first = submit(&ada, Surface::Api, "a boat").await;
    service.work().await;
    assert_eq!(waiting(&mut ready).len(), 1);
    join_all((0..MAX_WAITING).map(|_| submit(&ada, Surface::Api, "a boat"))).await;
    service.clock.advance(TASK_TIME_LIMIT);
    service.sweep().await;
    assert_eq!(slow.try_recv(), Err(TryRecvError::Lagged(1)));
    let received = waiting(&mut slow);
    assert_eq!(received.len(), MAX_WAITING);
    assert!(received.iter().all(|ending| ending.task.id != first), "the oldest is lost");
    assert_eq!(waiting(&mut ready), received, "each subscriber receives every ending");
    assert_eq!(waiting(&mut endings.subscribe()), [], "a new subscriber receives no earlier ending");
}
