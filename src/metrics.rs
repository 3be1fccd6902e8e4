//! The metrics of this process, in the OpenMetrics text format that Prometheus reads.

use std::fmt::Write as _;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Labels of the counter of requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// Pattern of the route, never the requested path.
    pub route: &'static str,
    /// HTTP status of the response.
    pub status: u16,
}

/// Labels of the histogram of request durations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// Pattern of the route.
    pub route: &'static str,
}

/// Labels of the counter of ended tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndLabels {
    /// `completed` or `failed`.
    pub status: &'static str,
}

/// Labels of the counter of refused tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusalLabels {
    /// Kind of the rule that refused the task, never its name or its words.
    pub kind: &'static str,
}

type RouteHistograms = Family<RouteLabels, Histogram, fn() -> Histogram>;

/// All metrics of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: RouteHistograms,
    ended: Family<EndLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    /// Prompts and pictures accepted because the moderation endpoint was unavailable.
    pub unmoderated: Counter,
    /// Keys suspended because of their strikes.
    pub suspended: Counter,
    /// Tasks accepted.
    pub submitted: Counter,
    /// Submits whose connection was closed without an answer.
    pub unanswered: Counter,
    /// Credits charged.
    pub credits_charged: Counter,
    /// Attempts that failed and were given up.
    pub attempts_lost: Counter,
    /// Tasks removed because they passed the retention.
    pub removed: Counter,
    /// Requests rejected by a rate limit.
    pub rate_limited: Counter,
    /// Requests whose rate limit this process counted on its own because Redis was unavailable.
    pub rate_limit_fallbacks: Counter,
    /// Renders in progress.
    pub renders: Gauge,
    /// Tasks that download their references, or have them and wait for a render slot.
    pub fetches: Gauge,
    render_seconds: Histogram,
    waiting: Gauge,
    leased: Gauge,
    oldest_seconds: Gauge,
    disk_free: Gauge,
}

impl Metrics {
    /// Creates all metrics at zero.
    pub fn new() -> Self {
        let latency: fn() -> Histogram = || Histogram::new([0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5]);
        let mut metrics = Self {
            registry: Registry::with_prefix("tintype"),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(latency),
            ended: Family::default(),
            refused: Family::default(),
            unmoderated: Counter::default(),
            suspended: Counter::default(),
            submitted: Counter::default(),
            unanswered: Counter::default(),
            credits_charged: Counter::default(),
            attempts_lost: Counter::default(),
            removed: Counter::default(),
            rate_limited: Counter::default(),
            rate_limit_fallbacks: Counter::default(),
            renders: Gauge::default(),
            fetches: Gauge::default(),
            render_seconds: Histogram::new([0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 180.0]),
            waiting: Gauge::default(),
            leased: Gauge::default(),
            oldest_seconds: Gauge::default(),
            disk_free: Gauge::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("http_requests", "Requests with a response", self.requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time from the end of the request header to the response",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register("tasks_submitted", "Tasks accepted", self.submitted.clone());
        registry.register(
            "submits_unanswered",
            "Submits with an unknown outcome, whose connections were closed without an answer",
            self.unanswered.clone(),
        );
        registry.register("tasks_ended", "Tasks that became terminal", self.ended.clone());
        registry.register("tasks_refused", "Tasks that the content policy refused", self.refused.clone());
        registry.register(
            "unmoderated",
            "Prompts and pictures accepted without moderation because its endpoint was unavailable",
            self.unmoderated.clone(),
        );
        registry.register("keys_suspended", "Keys suspended because of their strikes", self.suspended.clone());
        registry.register("credits_charged", "Credits charged", self.credits_charged.clone());
        registry.register("attempts_lost", "Attempts at tasks that failed", self.attempts_lost.clone());
        registry.register("tasks_removed", "Tasks removed because they passed the retention", self.removed.clone());
        registry.register("rate_limited", "Requests rejected by a rate limit", self.rate_limited.clone());
        let fallbacks = self.rate_limit_fallbacks.clone();
        registry.register(
            "rate_limit_fallbacks",
            "Requests counted by this process on its own because Redis was unavailable",
            fallbacks,
        );
        registry.register("renders", "Renders in progress", self.renders.clone());
        let fetches = self.fetches.clone();
        registry.register(
            "fetches",
            "Tasks that download their references, or have them and wait for a render slot",
            fetches,
        );
        registry.register_with_unit(
            "render_duration",
            "Time from the claim of a task to its stored files",
            Unit::Seconds,
            self.render_seconds.clone(),
        );
        registry.register("queue_waiting", "Tasks waiting for a worker", self.waiting.clone());
        registry.register("queue_leased", "Tasks leased to a worker", self.leased.clone());
        registry.register_with_unit(
            "queue_oldest",
            "Age of the oldest unfinished task",
            Unit::Seconds,
            self.oldest_seconds.clone(),
        );
        registry.register_with_unit(
            "disk_free",
            "Free space for the data; -1 if unknown",
            Unit::Bytes,
            self.disk_free.clone(),
        );
    }

    /// Counts one request and its duration.
    pub fn answered(&self, route: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&RequestLabels { route, status }).inc();
        self.request_seconds.get_or_create(&RouteLabels { route }).observe(took.as_secs_f64());
    }

    /// Counts one task that became terminal.
    pub fn task_ended(&self, status: &'static str) {
        self.ended.get_or_create(&EndLabels { status }).inc();
    }

    /// Counts one refused task.
    pub fn task_refused(&self, kind: &'static str) {
        self.refused.get_or_create(&RefusalLabels { kind }).inc();
    }

    /// Records the duration of one successful render.
    pub fn rendered(&self, took: Duration) {
        self.render_seconds.observe(took.as_secs_f64());
    }

    /// All metrics in OpenMetrics text, with the given queue depth and free space; unknown space is shown as -1 bytes.
    pub fn expose(&self, depth: &crate::store::QueueDepth, now: crate::clock::Timestamp, free: Option<u64>) -> String {
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.waiting.set(gauge(depth.waiting));
        self.leased.set(gauge(depth.leased));
        self.oldest_seconds.set(depth.oldest.map_or(0, |oldest| gauge(now.since(oldest).as_secs())));
        self.disk_free.set(free.map_or(-1, gauge));
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            let _ = write!(text, "# the metrics could not be encoded");
        }
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
