//! Lookups for the sweeps of result files, the claims of sweeps, and the marker of the file store.

use std::time::Duration;

use tintype_domain::files_marker::FilesMarker;
use tintype_domain::model::{FailureCause, Id, Surface};
use tintype_store::{LONGEST_PAUSE, Result, TaskFiles};

use super::fixture::{Fixture, MILLISECOND, images, one_file};
use tintype_rigs::database::NOON;

const HOLD: Duration = Duration::from_secs(600);
const MONTH: Duration = Duration::from_secs(31 * 86_400);

/// The expected record of a task that changed now and has no files.
fn record(fx: &Fixture, id: Id) -> TaskFiles {
    TaskFiles { id, is_processing: false, images: Vec::new(), updated_at: fx.clock.now(), removed_at: None }
}

case!(task_files_returns_each_existing_task, async |fx| {
    assert_eq!(fx.store.task_files(&[]).await?, []);
    let ada = fx.account("ada", 100).await?;
    let removed = fx.submit(ada).await?.id;
    fx.store.complete(fx.claim().await?, one_file()).await?;
    let mut removed = TaskFiles { images: one_file(), ..record(fx, removed) };
    fx.clock.advance(MILLISECOND);
    removed.removed_at = Some(fx.clock.now());
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, 1);
    let failed = fx.submit(ada).await?.id;
    fx.clock.advance(MILLISECOND);
    fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
    let failed = record(fx, failed);
    fx.clock.advance(MONTH);
    let completed = fx.submit_request(ada, Surface::Web, images(2)).await?.id;
    let names = vec!["2026-11-21/a.png".to_owned(), "2026-11-21/b.png".to_owned()];
    fx.store.complete(fx.claim().await?, names.clone()).await?;
    let completed = TaskFiles { images: names, ..record(fx, completed) };
    let leased = fx.submit(ada).await?.id;
    let leased = TaskFiles { is_processing: true, ..record(fx, leased) };
    fx.claim().await?;
    let waiting = fx.submit(ada).await?.id;
    let waiting = TaskFiles { is_processing: true, ..record(fx, waiting) };
    let expected = [removed, failed, completed, leased, waiting];
    let mut asked = vec![Id::floor(NOON)];
    asked.extend(expected.iter().rev().map(|task| task.id));
    let mut found = fx.store.task_files(&asked).await?;
    found.sort_by_key(|task| task.id);
    assert_eq!(found, expected);
    assert_eq!(fx.store.task_files(&asked[..2]).await?, expected[4..], "no other task is returned");
    Ok(())
});

case!(a_sweep_is_claimed_by_one_process_at_a_time, async |fx| {
    let other = fx.another_process();
    let days = ["2026-11-21".to_owned(), "2026-11-20".to_owned()];
    assert_eq!(fx.store.claim_sweep(&[], HOLD).await?, None);
    assert_eq!(fx.store.claim_sweep(&days, HOLD).await?.as_ref(), Some(&days[0]), "the first due sweep of the list");
    fx.clock.advance(MILLISECOND);
    assert_eq!(other.claim_sweep(&days, HOLD).await?.as_ref(), Some(&days[1]));
    assert_eq!(fx.store.claim_sweep(&days, HOLD).await?, None);
    fx.clock.advance(HOLD - MILLISECOND * 2);
    assert_eq!(other.claim_sweep(&days, HOLD).await?, None);
    fx.clock.advance(MILLISECOND);
    assert_eq!(other.claim_sweep(&days, HOLD).await?.as_ref(), Some(&days[0]), "the claim was not renewed");
    assert_eq!(fx.store.claim_sweep(&days, HOLD).await?, None);
    Ok(())
});

case!(one_of_several_processes_takes_a_due_sweep, async |fx| {
    let processes = [fx.another_process(), fx.another_process(), fx.store.clone()];
    let day = ["2026-11-21".to_owned()];
    for _ in 0..20 {
        let taken = futures::future::try_join_all(processes.iter().map(|one| one.claim_sweep(&day, HOLD))).await?;
        assert_eq!(taken.iter().flatten().count(), 1, "{taken:?}");
        fx.clock.advance(HOLD);
    }
    Ok(())
});

case!(a_postponed_sweep_is_due_after_its_pause, async |fx| {
    let day = ["2026-11-21".to_owned()];
    let is_due = async || fx.store.claim_sweep(&day, Duration::ZERO).await.map(|taken| taken.is_some());
    for pause in [HOLD, HOLD / 2, LONGEST_PAUSE] {
        fx.another_process().postpone_sweep(&day[0], pause).await?;
        fx.clock.advance(pause - MILLISECOND);
        assert!(!is_due().await?, "{pause:?}");
        fx.clock.advance(MILLISECOND);
        assert!(is_due().await?, "{pause:?}");
        assert!(is_due().await?, "a claim without a hold ends at once");
    }
    Ok(())
});

case!(a_sweep_postponed_before_the_clock_was_set_back_is_due, async |fx| {
    let day = ["2026-11-21".to_owned()];
    let before = fx.clock.now();
    fx.clock.advance(MILLISECOND);
    fx.store.postpone_sweep(&day[0], LONGEST_PAUSE).await?;
    assert_eq!(fx.store.claim_sweep(&day, HOLD).await?, None);
    fx.clock.set(before);
    assert_eq!(fx.store.claim_sweep(&day, HOLD).await?.as_ref(), Some(&day[0]));
    assert_eq!(fx.store.claim_sweep(&day, HOLD).await?, None);
    Ok(())
});

case!(deleting_an_old_sweep_changes_no_other, async |fx| {
    let [gone, kept] = ["2026-11-20".to_owned(), "2026-11-21".to_owned()];
    fx.store.postpone_sweep(&gone, HOLD).await?;
    for _ in 0..3 {
        fx.store.postpone_sweep(&kept, LONGEST_PAUSE).await?;
        fx.clock.advance(LONGEST_PAUSE - MILLISECOND);
        assert_eq!(fx.store.claim_sweep(std::slice::from_ref(&kept), HOLD).await?, None);
    }
    let both = [gone, kept];
    assert_eq!(fx.store.claim_sweep(&both, HOLD).await?.as_ref(), Some(&both[0]), "a sweep without a row is due");
    assert_eq!(fx.store.claim_sweep(&both, HOLD).await?, None);
    Ok(())
});

case!(the_first_files_marker_stays_until_another_is_adopted, async |fx| {
    let (first, other, adopted) = (FilesMarker::random(), FilesMarker::random(), FilesMarker::random());
    assert_eq!(fx.store.files_marker().await?, None);
    assert_eq!(fx.store.claim_files(first).await?, first);
    assert_eq!(fx.another_process().claim_files(other).await?, first);
    assert_eq!(fx.store.files_marker().await?, Some(first));
    fx.store.adopt_files(adopted).await?;
    assert_eq!(fx.another_process().files_marker().await?, Some(adopted));
    Ok(())
});
