//! The state of the service: the queue, the last day, engines and workers.

use std::collections::BTreeMap;
use std::time::Duration;

use askama::Template;
use axum::extract::Path;

use super::{Operator, ReversibleForm};
use crate::studio::Texts;
use crate::studio::action::{QueueAction, action};
use crate::studio::chart::{Chart, Measure, Step};
use crate::studio::error::PageResult;
use crate::studio::failures;
use crate::studio::page::{Frame, html, redirect, time};
use tintype_store::{EngineState, Hour, QueueDepth, WORKER_SILENCE, WorkerReport};
use tintype_system::clock::Timestamp;

const HOURS: u32 = 24;
/// Age from which the page shows the time of a report instead of its age.
const LONG_AGO: Duration = Duration::from_secs(100);
/// Most reasons of failures that are shown.
const MAX_REASONS: usize = 12;

#[derive(Template)]
#[template(path = "operator/overview.html")]
struct OverviewPage<'a> {
    frame: Frame<'a>,
    depth: QueueDepth,
    /// Since when the queue is paused.
    paused: Option<Timestamp>,
    /// Time since the oldest unfinished task was created.
    oldest: Option<String>,
    charts: Vec<Chart>,
    completed: u64,
    failures: u64,
    /// Why tasks failed, with their number, the most frequent first.
    reasons: Vec<(String, u64)>,
    /// The engines, each with the mean time of its workers for an image.
    engines: Vec<(EngineState, Option<String>)>,
    workers: Vec<Worker>,
    now: Timestamp,
}

impl OverviewPage<'_> {
    /// The time of a report, as HTML: how long ago it came, or its minute if that was long ago.
    fn ago(&self, at: &Timestamp) -> String {
        let age = self.now.since(*at);
        if age < LONG_AGO { self.frame.t.word("ago", &self.frame.t.seconds(age)) } else { time(at) }
    }
}

struct Worker {
    report: WorkerReport,
    seen_at: Timestamp,
    /// Mean time of an attempt, and for each of its images.
    mean: Option<String>,
    mean_of_image: Option<String>,
    state: &'static str,
}

impl Worker {
    fn new(t: &Texts, report: WorkerReport, seen_at: Timestamp, now: Timestamp) -> Self {
        let state = match (now.since(seen_at) < WORKER_SILENCE, report.is_available) {
            (true, true) => "worker-available",
            (true, false) => "worker-unavailable",
            (false, _) => "worker-silent",
        };
        let [mean, mean_of_image] = [report.mean, report.mean_of_image].map(|mean| mean.map(|mean| t.seconds(mean)));
        Self { report, seen_at, mean, mean_of_image, state }
    }
}

/// The page.
pub async fn overview(operator: Operator) -> PageResult {
    let visitor = &operator.0;
    let (t, store) = (visitor.texts, &visitor.studio.shared.store);
    let (depth, now) = (store.queue_depth().await?, store.now());
    let hours = visitor.studio.hours.last(store, HOURS).await?;
    let charts = charts(t, &hours);
    let mut reasons = BTreeMap::<String, u64>::new();
    for (failure, count) in hours.iter().flat_map(|(_, hour)| &hour.failed) {
        let reason = match failure {
            Some(failure) => failures::failure(t, failure),
            None => t.get("reason-other"),
        };
        *reasons.entry(reason).or_default() += count;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons.truncate(MAX_REASONS);
    let workers = store.workers().await?;
    let page = OverviewPage {
        frame: Frame::new("operator", visitor).await?,
        oldest: depth.oldest.map(|oldest| t.seconds(now.since(oldest))),
        paused: depth.paused_at,
        depth,
        charts,
        completed: hours.iter().map(|(_, hour)| hour.completed).sum(),
        failures: hours.iter().map(|(_, hour)| hour.failures()).sum(),
        reasons,
        engines: store.engines().await?.into_iter().map(|engine| with_pace(t, engine, &workers)).collect(),
        now,
        workers: workers.into_iter().map(|(report, seen_at)| Worker::new(t, report, seen_at, now)).collect(),
    };
    html(&page)
}

/// An engine with its workers' mean time per image; `None` if none of them has measured it.
fn with_pace(t: &Texts, engine: EngineState, workers: &[(WorkerReport, Timestamp)]) -> (EngineState, Option<String>) {
    let of_engine = workers.iter().filter(|(worker, _)| worker.engine == engine.name);
    let means: Vec<Duration> = of_engine.filter_map(|(worker, _)| worker.mean_of_image).collect();
    let count = u32::try_from(means.len()).unwrap_or(u32::MAX);
    let mean = (count > 0).then(|| t.seconds(means.iter().sum::<Duration>() / count));
    (engine, mean)
}

fn charts(t: &'static Texts, hours: &[(Timestamp, Hour)]) -> Vec<Chart> {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let millis = |mean: Option<Duration>| mean.map_or(0, |mean| i64::try_from(mean.as_millis()).unwrap_or(i64::MAX));
    let chart = |title, measure, value: &dyn Fn(&Hour) -> i64| {
        let series: Vec<_> = hours.iter().map(|(begin, hour)| (*begin, value(hour))).collect();
        Chart::new(t, title, (Step::Hour, measure), &series)
    };
    vec![
        chart("chart-completed", Measure::Count, &|hour| number(hour.completed)),
        chart("chart-failed", Measure::Count, &|hour| number(hour.failures())),
        chart("chart-waiting", Measure::Millis, &|hour| millis(hour.mean_wait())),
        chart("chart-rendering", Measure::Millis, &|hour| millis(hour.mean_render())),
        chart("chart-image", Measure::Millis, &|hour| millis(hour.mean_of_image())),
    ]
}

/// Pauses or resumes the queue.
pub async fn change_queue(Path(word): Path<String>, form: ReversibleForm) -> PageResult {
    let visitor = form.0.visitor;
    let store = visitor.store();
    let action = action(&word)?;
    match action {
        QueueAction::Pause => drop(store.pause_queue().await?),
        QueueAction::Resume => {
            store.resume_queue().await?;
            visitor.studio.shared.queued.send_replace(());
        }
    }
    tracing::info!(person = %visitor.person_id(), ?action, "the queue was changed in the studio");
    Ok(redirect("/studio/operator"))
}
