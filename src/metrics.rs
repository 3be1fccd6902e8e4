//! Counters and gauges for Prometheus.

use std::fmt::Write as _;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Which requests a counter counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route's pattern, never the path asked for.
    pub route: &'static str,
    /// The HTTP status answered.
    pub status: u16,
}

/// Which route a histogram measures.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RouteLabels {
    /// The route's pattern.
    pub route: &'static str,
}

/// How tasks ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndLabels {
    /// `completed` or `failed`.
    pub status: &'static str,
}

/// What refused tasks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusalLabels {
    /// The kind of rule, never its name or its words.
    pub kind: &'static str,
}

type RouteHistograms = Family<RouteLabels, Histogram, fn() -> Histogram>;

/// Everything counted in this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_seconds: RouteHistograms,
    ended: Family<EndLabels, Counter>,
    refused: Family<RefusalLabels, Counter>,
    /// Prompts and pictures that passed because the moderation endpoint could not be asked.
    pub unmoderated: Counter,
    /// Keys suspended over strikes.
    pub suspended: Counter,
    /// Tasks accepted.
    pub submitted: Counter,
    /// Credits charged.
    pub credits_charged: Counter,
    /// Attempts that came to nothing and were given up.
    pub attempts_lost: Counter,
    /// Old tasks removed.
    pub removed: Counter,
    /// Requests refused by a rate limit.
    pub rate_limited: Counter,
    /// Requests whose rate limit this process counted alone, because Redis was away.
    pub rate_limit_fallbacks: Counter,
    /// Renders under way.
    pub renders: Gauge,
    /// Tasks whose references are being fetched, or wait for a slot with them.
    pub fetches: Gauge,
    render_seconds: Histogram,
    waiting: Gauge,
    leased: Gauge,
    oldest_seconds: Gauge,
    disk_free: Gauge,
}

impl Metrics {
    /// All counters at zero.
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
        registry.register("http_requests", "Requests answered", self.requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time from header to answer",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register("tasks_submitted", "Tasks accepted", self.submitted.clone());
        registry.register("tasks_ended", "Tasks that became terminal", self.ended.clone());
        registry.register("tasks_refused", "Tasks that the content policy refused", self.refused.clone());
        registry.register("unmoderated", "Prompts and pictures passed without moderation", self.unmoderated.clone());
        registry.register("keys_suspended", "Keys suspended over strikes", self.suspended.clone());
        registry.register("credits_charged", "Credits charged", self.credits_charged.clone());
        registry.register("attempts_lost", "Attempts at tasks that came to nothing", self.attempts_lost.clone());
        registry.register("tasks_removed", "Tasks removed for their age", self.removed.clone());
        registry.register("rate_limited", "Requests refused by a rate limit", self.rate_limited.clone());
        let fallbacks = self.rate_limit_fallbacks.clone();
        registry.register(
            "rate_limit_fallbacks",
            "Requests counted by this process alone, for want of Redis",
            fallbacks,
        );
        registry.register("renders", "Renders under way", self.renders.clone());
        let fetches = self.fetches.clone();
        registry.register("fetches", "Tasks that fetch references, or wait for a render slot with them", fetches);
        registry.register_with_unit(
            "render_duration",
            "Time from claim to stored files",
            Unit::Seconds,
            self.render_seconds.clone(),
        );
        registry.register("queue_waiting", "Tasks waiting for a worker", self.waiting.clone());
        registry.register("queue_leased", "Tasks held by a worker", self.leased.clone());
        registry.register_with_unit(
            "queue_oldest",
            "Age of the oldest unfinished task",
            Unit::Seconds,
            self.oldest_seconds.clone(),
        );
        registry.register_with_unit("disk_free", "Room left for the data", Unit::Bytes, self.disk_free.clone());
    }

    /// Counts one answered request.
    pub fn answered(&self, route: &'static str, status: u16, took: Duration) {
        self.requests.get_or_create(&RequestLabels { route, status }).inc();
        self.request_seconds.get_or_create(&RouteLabels { route }).observe(took.as_secs_f64());
    }

    /// Counts tasks that became terminal.
    pub fn tasks_ended(&self, status: &'static str, count: usize) {
        if count > 0 {
            self.ended.get_or_create(&EndLabels { status }).inc_by(count as u64);
        }
    }

    /// Counts one refused task.
    pub fn task_refused(&self, kind: &'static str) {
        self.refused.get_or_create(&RefusalLabels { kind }).inc();
    }

    /// Counts one successful render.
    pub fn rendered(&self, took: Duration) {
        self.render_seconds.observe(took.as_secs_f64());
    }

    /// The exposition in OpenMetrics text, with queue and disk as they are now; unknown room is -1 bytes.
    pub fn expose(&self, depth: &crate::store::QueueDepth, now: crate::clock::Timestamp, free: Option<u64>) -> String {
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.waiting.set(gauge(depth.waiting));
        self.leased.set(gauge(depth.leased));
        self.oldest_seconds.set(depth.oldest.map_or(0, |oldest| gauge(now.since(oldest).as_secs())));
        self.disk_free.set(free.map_or(-1, gauge));
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            let _ = write!(text, "# the registry could not be written");
        }
        text
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
