//! Reports of workers to other processes, on databases that several processes share, and the engines that they name.

use std::time::Duration;

use tintype_domain::model::Id;
use tintype_store::{ENGINE_SILENCE, EngineState, Result, WORKER_SILENCE, WorkerReport};

use super::fixture::{Fixture, MILLISECOND};

const SECOND: Duration = Duration::from_secs(1);

fn id(number: u8) -> Id {
    format!("FAAAAAAAAAAAAAAAAAAA{number}").parse().expect("an id")
}

/// A worker with as many slots as its number, which has ended no attempt. The engine is its own.
fn worker(number: u8) -> WorkerReport {
    WorkerReport {
        id: id(number),
        engine: format!("engine-{number}"),
        max_references: 4,
        masks: false,
        slots: number.into(),
        mean: None,
        mean_of_image: None,
        is_available: true,
    }
}

/// The report of a worker whose engine is down.
fn down(number: u8) -> WorkerReport {
    WorkerReport { is_available: false, ..worker(number) }
}

/// The workers other than the first; `None` on a database that only one process uses.
async fn others(fx: &Fixture) -> Result<Option<Vec<WorkerReport>>> {
    let others = fx.another_process().other_workers(&[id(1)]).await?;
    if fx.store.is_shared() {
        return Ok(Some(others));
    }
    assert_eq!(others, []);
    Ok(None)
}

/// Name, most references and workers of each engine, as the process that reports sees them.
async fn engines(fx: &Fixture) -> Result<Vec<(String, u32, u64)>> {
    let line = |engine: EngineState| (engine.name, engine.max_references, engine.workers);
    Ok(fx.store.engines().await?.into_iter().map(line).collect())
}

fn engine(number: u8, workers: u64) -> (String, u32, u64) {
    (format!("engine-{number}"), 4, workers)
}

case!(an_engine_is_remembered_for_a_day_after_its_last_report, async |fx| {
    assert_eq!(engines(fx).await?, []);
    fx.store.report_worker(down(2)).await?;
    assert_eq!(engines(fx).await?, [engine(2, 0)], "it is known before it first takes work");
    fx.store.report_worker(worker(2)).await?;
    let same = WorkerReport { engine: "engine-2".into(), max_references: 1, ..worker(3) };
    fx.store.report_worker(same).await?;
    fx.store.report_worker(WorkerReport { max_references: 0, ..down(1) }).await?;
    assert_eq!(engines(fx).await?, [("engine-1".into(), 0, 0), engine(2, 2)]);
    let seen_at = fx.store.engines().await?.pop().map(|engine| engine.seen_at);
    assert_eq!(seen_at, Some(fx.clock.now()));
    // The workers of a database for one process end with it.
    if !fx.store.is_shared() {
        return Ok(());
    }
    fx.clock.advance(WORKER_SILENCE);
    assert_eq!(engines(fx).await?, [("engine-1".into(), 0, 0), engine(2, 0)]);
    fx.clock.advance(ENGINE_SILENCE - WORKER_SILENCE - MILLISECOND);
    assert_eq!(engines(fx).await?.len(), 2);
    fx.clock.advance(MILLISECOND);
    assert_eq!(engines(fx).await?, []);
    Ok(())
});

case!(a_report_replaces_those_of_silent_workers_with_the_same_engine, async |fx| {
    if !fx.store.is_shared() {
        return Ok(());
    }
    fx.store.report_worker(down(2)).await?;
    // A process with the same engine, and other settings, takes the place of the one that has ended.
    let restarted = WorkerReport { engine: "engine-2".into(), max_references: 1, ..worker(3) };
    fx.clock.advance(WORKER_SILENCE - MILLISECOND);
    fx.store.report_worker(restarted.clone()).await?;
    assert_eq!(engines(fx).await?, [engine(2, 1)], "the other one may only be down");
    fx.clock.advance(MILLISECOND);
    fx.store.report_worker(worker(4)).await?;
    assert_eq!(engines(fx).await?, [engine(2, 1), engine(4, 1)], "another engine replaces nothing");
    fx.store.report_worker(restarted).await?;
    assert_eq!(engines(fx).await?, [("engine-2".into(), 1, 1), engine(4, 1)]);
    Ok(())
});

case!(other_workers_returns_the_last_report_of_each, async |fx| {
    assert_eq!(others(fx).await?.unwrap_or_default(), []);
    for report in [worker(1), worker(3), worker(2)] {
        fx.store.report_worker(report).await?;
    }
    let quick = WorkerReport { slots: 5, mean: Some(Duration::from_millis(1_500)), ..worker(3) };
    let quick = WorkerReport { mean_of_image: Some(Duration::from_millis(500)), ..quick };
    let Some(found) = others(fx).await? else { return Ok(()) };
    assert_eq!(found, [worker(2), worker(3)]);
    fx.another_process().report_worker(quick.clone()).await?;
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2), quick.clone()]);
    // A mean of zero is rounded up to a millisecond.
    fx.store.report_worker(WorkerReport { mean: Some(Duration::ZERO), ..quick.clone() }).await?;
    let found = others(fx).await?.unwrap_or_default();
    assert_eq!(found, [worker(2), WorkerReport { mean: Some(MILLISECOND), ..quick }]);
    Ok(())
});

case!(other_workers_omits_workers_without_an_engine_and_silent_ones, async |fx| {
    fx.store.report_worker(worker(2)).await?;
    fx.clock.advance(SECOND);
    fx.store.report_worker(worker(3)).await?;
    fx.store.report_worker(worker(4)).await?;
    fx.store.report_worker(down(4)).await?;
    let Some(found) = others(fx).await? else { return Ok(()) };
    assert_eq!(found, [worker(2), worker(3)]);
    fx.clock.advance(WORKER_SILENCE - SECOND - MILLISECOND);
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2), worker(3)]);
    fx.clock.advance(MILLISECOND);
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(3)]);
    fx.store.report_worker(worker(2)).await?;
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2), worker(3)], "the worker reported again");
    Ok(())
});

case!(other_workers_omits_a_report_from_before_the_clock_was_set_back, async |fx| {
    let before = fx.clock.now();
    fx.clock.advance(WORKER_SILENCE * 60);
    fx.store.report_worker(worker(2)).await?;
    fx.clock.set(before);
    let Some(found) = others(fx).await? else { return Ok(()) };
    assert_eq!(found, []);
    fx.store.report_worker(worker(2)).await?;
    assert_eq!(others(fx).await?.unwrap_or_default(), [worker(2)]);
    Ok(())
});
