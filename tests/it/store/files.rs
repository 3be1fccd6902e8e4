//! What the sweeps of result files ask of the books.

use std::time::Duration;

use tintype::model::{Id, Surface};
use tintype::store::{Result, TaskFiles};

use super::fixture::{Fixture, MILLISECOND, drawn, images};
use crate::support::NOON;

const MONTH: Duration = Duration::from_secs(31 * 86_400);

/// What is told of a task that was touched at this moment and has no files.
fn told(fx: &Fixture, id: Id) -> TaskFiles {
    TaskFiles { id, is_processing: false, images: Vec::new(), updated_at: fx.clock.now(), removed_at: None }
}

pub async fn what_decides_about_files_is_told_of_each_task_that_there_is(fx: &Fixture) -> Result<()> {
    assert_eq!(fx.store.task_files(&[]).await?, []);
    let ada = fx.account("ada", 100).await?;
    let removed = fx.submit(ada).await?.id;
    fx.store.complete(fx.claim().await?, drawn()).await?;
    let mut removed = TaskFiles { images: drawn(), ..told(fx, removed) };
    fx.clock.advance(MILLISECOND);
    removed.removed_at = Some(fx.clock.now());
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 1);
    let failed = fx.submit(ada).await?.id;
    fx.clock.advance(MILLISECOND);
    fx.store.fail(fx.claim().await?, "it sank").await?;
    let failed = told(fx, failed);
    fx.clock.advance(MONTH);
    let completed = fx.submit_request(ada, Surface::Web, images(2)).await?.id;
    let names = vec!["2026-11-21/a.png".to_owned(), "2026-11-21/b.png".to_owned()];
    fx.store.complete(fx.claim().await?, names.clone()).await?;
    let completed = TaskFiles { images: names, ..told(fx, completed) };
    let leased = fx.submit(ada).await?.id;
    let leased = TaskFiles { is_processing: true, ..told(fx, leased) };
    fx.claim().await?;
    let waiting = fx.submit(ada).await?.id;
    let waiting = TaskFiles { is_processing: true, ..told(fx, waiting) };
    let expected = [removed, failed, completed, leased, waiting];
    let mut asked = vec![Id::floor(NOON)];
    asked.extend(expected.iter().rev().map(|task| task.id));
    let mut found = fx.store.task_files(&asked).await?;
    found.sort_by_key(|task| task.id);
    assert_eq!(found, expected);
    assert_eq!(fx.store.task_files(&asked[..2]).await?, expected[4..], "and of no other");
    Ok(())
}
