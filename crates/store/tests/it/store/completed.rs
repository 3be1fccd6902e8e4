//! Listing the results of all completed tasks.

use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_store::{CompletedTask, Result};

use super::fixture::{Fixture, MILLISECOND, images};

/// Submits a task and completes it with files of its own.
async fn complete(fx: &Fixture, account: Id, surface: Surface, n: u8) -> Result<CompletedTask> {
    let id = fx.submit_request(account, surface, images(n)).await?.id;
    let lease = fx.claim().await?;
    assert_eq!(lease.task_id, id, "no other task waits");
    let images: Vec<String> = (0..n).map(|index| format!("{id}-{index}.png")).collect();
    fx.store.complete(lease, images.clone()).await?;
    Ok(CompletedTask { id, account_id: account, images })
}

case!(completed_tasks_returns_every_account_and_surface_oldest_first, async |fx| {
    assert_eq!(fx.store.completed_tasks(None, 10).await?, []);
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100).await?);
    let first = complete(fx, bob, Surface::Api, 4).await?;
    let failed = fx.submit(ada).await?.id;
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    let second = complete(fx, ada, Surface::Web, 1).await?;
    let third = complete(fx, bob, Surface::Web, 2).await?;
    fx.submit(ada).await?;
    fx.claim().await?;
    let waiting = fx.submit(ada).await?.id;
    assert!(failed < second.id && third.id < waiting);
    assert_eq!(fx.store.completed_tasks(None, 10).await?, [first, second, third]);
    Ok(())
});

case!(pages_of_completed_tasks_have_no_gap_and_no_overlap, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let mut all = Vec::new();
    for number in 0..7 {
        all.push(complete(fx, ada, Surface::Api, 1).await?);
        if number % 2 == 0 {
            fx.submit(ada).await?;
            fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
        }
    }
    for limit in 1..=8 {
        let mut walked: Vec<CompletedTask> = Vec::new();
        loop {
            let page = fx.store.completed_tasks(walked.last().map(|task| task.id), limit).await?;
            assert!(page.len() <= limit as usize);
            if page.is_empty() {
                break;
            }
            walked.extend(page);
        }
        assert_eq!(walked, all, "pages of {limit}");
    }
    Ok(())
});

case!(a_page_of_completed_tasks_may_start_at_an_id_of_no_task, async |fx| {
    let ada = fx.account("ada", 100).await?;
    let older = complete(fx, ada, Surface::Api, 1).await?;
    fx.clock.advance(MILLISECOND);
    let between = Id::floor(fx.clock.now());
    let younger = complete(fx, ada, Surface::Api, 1).await?;
    assert!(older.id < between && between < younger.id);
    assert_eq!(fx.store.completed_tasks(Some(between), 10).await?, [younger]);
    Ok(())
});
