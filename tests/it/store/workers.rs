//! Reports of workers to other processes, on databases that several processes share.

use std::time::Duration;

use tintype::domain::model::Id;
use tintype::store::{Result, WORKER_SILENCE, WorkerReport};

use super::fixture::{Fixture, MILLISECOND};

const SECOND: Duration = Duration::from_secs(1);

fn id(number: u8) -> Id {
    format!("FAAAAAAAAAAAAAAAAAAA{number}").parse().expect("an id")
}

/// A worker with as many slots as its number, which has ended no attempt.
fn worker(number: u8) -> WorkerReport {
    WorkerReport { id: id(number), slots: number.into(), mean: None }
}

/// The workers other than the first; `None` on a database that only one process uses.
async fn others(fx: &Fixture) -> Result<Option<Vec<WorkerReport>>> {
    let others = fx.another_process().other_workers(id(1)).await?;
    if fx.store.is_shared() {
        return Ok(Some(others));
    }
    assert_eq!(others, []);
    Ok(None)
}

pub async fn other_workers_returns_the_last_report_of_each(fx: &Fixture) -> Result<()> {
    assert_eq!(others(fx).await?.unwrap_or_default(), []);
    for report in [worker(1), worker(3), worker(2)] {
        fx.store.report_worker(report).await?;
    }
    let quick = WorkerReport { slots: 5, mean: Some(Duration::from_millis(1_500)), ..worker(3) };
    let Some(found) = others(fx).await? else { return Ok(()) };
    assert_eq!(found, [worker(2), worker(3)]);
    fx.another_process().report_worker(quick).await?;
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2), quick]);
    // A mean of zero is rounded up to a millisecond.
    fx.store.report_worker(WorkerReport { mean: Some(Duration::ZERO), ..quick }).await?;
    let found = others(fx).await?.unwrap_or_default();
    assert_eq!(found, [worker(2), WorkerReport { mean: Some(MILLISECOND), ..quick }]);
    Ok(())
}

pub async fn other_workers_omits_withdrawn_and_silent_workers(fx: &Fixture) -> Result<()> {
    fx.store.report_worker(worker(2)).await?;
    fx.clock.advance(SECOND);
    fx.store.report_worker(worker(3)).await?;
    fx.store.report_worker(worker(4)).await?;
    fx.store.withdraw_worker(id(4)).await?;
    fx.store.withdraw_worker(id(4)).await?;
    let Some(found) = others(fx).await? else { return Ok(()) };
    assert_eq!(found, [worker(2), worker(3)]);
    fx.clock.advance(WORKER_SILENCE - SECOND - MILLISECOND);
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2), worker(3)]);
    fx.clock.advance(MILLISECOND);
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(3)]);
    fx.store.report_worker(worker(2)).await?;
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2), worker(3)], "the worker reported again");
    Ok(())
}

pub async fn other_workers_omits_a_report_from_before_the_clock_was_set_back(fx: &Fixture) -> Result<()> {
    let before = fx.clock.now();
    fx.clock.advance(WORKER_SILENCE * 60);
    fx.store.report_worker(worker(2)).await?;
    fx.clock.set(before);
    let Some(found) = others(fx).await? else { return Ok(()) };
    assert_eq!(found, []);
    fx.store.report_worker(worker(2)).await?;
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2)]);
    Ok(())
}
