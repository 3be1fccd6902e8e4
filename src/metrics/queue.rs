//! The metrics of the queue and of the engines, which are the same in all processes of an installation.

use prometheus::{IntGauge, IntGaugeVec, Opts, Registry};

use super::{level, registered};
use tintype_store::{EngineState, QueueDepth, ReferenceLimits};
use tintype_system::clock::Timestamp;

/// The length of the queue, and the engines that take work.
#[derive(Debug)]
pub(super) struct QueueMetrics {
    waiting: IntGauge,
    leased: IntGauge,
    oldest_seconds: IntGauge,
    paused: IntGauge,
    without_engine: IntGauge,
    engine_available: IntGaugeVec,
}

impl QueueMetrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        let available = Opts::new(
            "tintype_engine_available",
            "1 while a worker of any process has this engine and it is available",
        );
        Self {
            waiting: gauge("tintype_queue_waiting", "Tasks waiting for a worker"),
            leased: gauge("tintype_queue_leased", "Tasks leased to a worker"),
            oldest_seconds: gauge("tintype_queue_oldest_seconds", "Age of the oldest unfinished task"),
            paused: gauge("tintype_queue_paused", "1 while `tintype queue pause` keeps workers from claiming"),
            without_engine: gauge(
                "tintype_queue_without_engine",
                "Waiting tasks that no worker can take now, because none has the engine or it is down",
            ),
            engine_available: registered(registry, IntGaugeVec::new(available, &["engine"])),
        }
    }

    pub(super) fn show(&self, depth: &QueueDepth, engines: &[EngineState], now: Timestamp) {
        self.waiting.set(level(depth.waiting));
        self.leased.set(level(depth.leased));
        self.oldest_seconds.set(depth.oldest.map_or(0, |oldest| level(now.since(oldest).as_secs())));
        self.paused.set(i64::from(depth.paused_at.is_some()));
        self.without_engine.set(level(depth.beyond(ReferenceLimits::of(engines).available)));
        // Without those that no longer belong to the installation.
        self.engine_available.reset();
        for engine in engines {
            self.engine_available.with_label_values(&[&engine.name]).set(i64::from(engine.workers > 0));
        }
    }
}
