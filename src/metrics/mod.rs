//! The metrics of this process, in the text format of Prometheus.

mod process;
mod queue;

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder,
};

use process::ProcessMetrics;
use queue::QueueMetrics;
use tintype_domain::model::Violation;
use tintype_store::{EngineState, QueueDepth};
use tintype_system::clock::Timestamp;

/// The type of the text that [`Metrics::expose`] returns.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Bounds of the histogram of request durations.
const REQUEST_SECONDS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5];
/// Bounds of the histogram of render durations.
const RENDER_SECONDS: [f64; 10] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 180.0];

/// All metrics of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    process: ProcessMetrics,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    ended: IntCounterVec,
    refused: IntCounterVec,
    webhooks: IntCounterVec,
    webhooks_waiting: IntGauge,
    /// Prompts and pictures accepted because the moderation endpoint was unavailable.
    pub unmoderated: IntCounter,
    /// Keys suspended because of their strikes.
    pub suspended: IntCounter,
    /// People suspended because of their strikes.
    pub suspended_people: IntCounter,
    /// Tasks accepted.
    pub submitted: IntCounter,
    /// Submits whose connection was closed without an answer.
    pub unanswered: IntCounter,
    /// Credits charged.
    pub credits_charged: IntCounter,
    /// Attempts that failed and were given up.
    pub attempts_lost: IntCounter,
    /// Tasks removed because they passed the retention.
    pub removed: IntCounter,
    /// Requests rejected by a rate limit.
    pub rate_limited: IntCounter,
    /// Requests whose rate limit this process counted on its own because Redis was unavailable.
    pub rate_limit_fallbacks: IntCounter,
    /// Renders in progress.
    pub renders: IntGauge,
    /// Tasks that download their references, or have them and wait for a render slot.
    pub fetches: IntGauge,
    render_seconds: Histogram,
    queue: QueueMetrics,
    disk_free: IntGauge,
}

impl Metrics {
    /// Creates all metrics at zero, for a process that started at this time.
    pub fn new(started: Timestamp) -> Self {
        let registry = Registry::new();
        let counter = |name, help| registered(&registry, IntCounter::new(name, help));
        let counters = |name, help, labels: &[&str]| {
            let counters = IntCounterVec::new(Opts::new(name, help), labels);
            registered(&registry, counters)
        };
        let gauge = |name, help| registered(&registry, IntGauge::new(name, help));
        let request_seconds = HistogramOpts::new(
            "tintype_http_request_duration_seconds",
            "Time from the end of the request header to the response",
        )
        .buckets(REQUEST_SECONDS.to_vec());
        let render_seconds =
            HistogramOpts::new("tintype_render_duration_seconds", "Time from the claim of a task to its stored files")
                .buckets(RENDER_SECONDS.to_vec());
        let build = Opts::new("tintype_build_info", "Version of this program; always 1")
            .const_label("version", env!("CARGO_PKG_VERSION"));
        registered(&registry, IntGauge::with_opts(build)).set(1);
        let metrics = Self {
            process: ProcessMetrics::new(&registry, started),
            requests: counters(
                "tintype_http_requests_total",
                "Requests with a response",
                &["route", "method", "status"],
            ),
            request_seconds: registered(&registry, HistogramVec::new(request_seconds, &["route", "method"])),
            ended: counters("tintype_tasks_ended_total", "Tasks that became terminal", &["status"]),
            refused: counters("tintype_tasks_refused_total", "Tasks that the content policy refused", &["kind"]),
            webhooks: counters("tintype_webhook_attempts_total", "Attempts to deliver a webhook", &["outcome"]),
            webhooks_waiting: gauge("tintype_webhooks_waiting", "Webhooks that wait for an attempt or its end"),
            unmoderated: counter(
                "tintype_unmoderated_total",
                "Prompts and pictures accepted without moderation because its endpoint was unavailable",
            ),
            suspended: counter("tintype_keys_suspended_total", "Keys suspended because of their strikes"),
            suspended_people: counter(
                "tintype_people_suspended_total",
                "People suspended from creating tasks in the studio because of their strikes",
            ),
            submitted: counter("tintype_tasks_submitted_total", "Tasks accepted"),
            unanswered: counter(
                "tintype_submits_unanswered_total",
                "Submits with an unknown outcome, whose connections were closed without an answer",
            ),
            credits_charged: counter("tintype_credits_charged_total", "Credits charged"),
            attempts_lost: counter("tintype_attempts_lost_total", "Attempts at tasks that failed"),
            removed: counter("tintype_tasks_removed_total", "Tasks removed because they passed the retention"),
            rate_limited: counter("tintype_rate_limited_total", "Requests rejected by a rate limit"),
            rate_limit_fallbacks: counter(
                "tintype_rate_limit_fallbacks_total",
                "Requests counted by this process on its own because Redis was unavailable",
            ),
            renders: gauge("tintype_renders", "Renders in progress"),
            fetches: gauge(
                "tintype_fetches",
                "Tasks that download their references, or have them and wait for a render slot",
            ),
            render_seconds: registered(&registry, Histogram::with_opts(render_seconds)),
            queue: QueueMetrics::new(&registry),
            disk_free: gauge("tintype_disk_free_bytes", "Free space for the data; -1 if unknown"),
            registry,
        };
        // A counter that appears with its first count hides that count from `rate` and `increase`.
        metrics.count_from_zero();
        metrics
    }

    fn count_from_zero(&self) {
        for status in ["completed", "failed", "cancelled"] {
            self.ended.with_label_values(&[status]);
        }
        for outcome in ["delivered", "failed"] {
            self.webhooks.with_label_values(&[outcome]);
        }
        for kind in Violation::ALL {
            self.refused.with_label_values(&[kind.as_str()]);
        }
    }

    /// Shows the counters of a route at zero before its first request with one of these statuses.
    pub fn expect(&self, route: &str, method: &str, statuses: &[u16]) {
        for status in statuses {
            self.requests.with_label_values(&[route, method, &status.to_string()]);
        }
        self.request_seconds.with_label_values(&[route, method]);
    }

    /// Counts one request and its duration. The labels are the pattern of the route, never the requested path, and the
    /// name of a standard method.
    pub fn answered(&self, route: &'static str, method: &'static str, status: u16, took: Duration) {
        self.requests.with_label_values(&[route, method, &status.to_string()]).inc();
        self.request_seconds.with_label_values(&[route, method]).observe(took.as_secs_f64());
    }

    /// Counts one task that became terminal, as `completed`, `failed` or `cancelled`.
    pub fn task_ended(&self, status: &'static str) {
        self.ended.with_label_values(&[status]).inc();
    }

    /// Counts one attempt to deliver a webhook, as `delivered` or `failed`.
    pub fn webhook_attempted(&self, outcome: &'static str) {
        self.webhooks.with_label_values(&[outcome]).inc();
    }

    /// Counts one refused task, by the kind of the rule that refused it, never by its name or its words.
    pub fn task_refused(&self, kind: &'static str) {
        self.refused.with_label_values(&[kind]).inc();
    }

    /// Records the duration of one successful render.
    pub fn rendered(&self, took: Duration) {
        self.render_seconds.observe(took.as_secs_f64());
    }

    /// Sets the number of webhooks that wait.
    pub fn show_waiting_webhooks(&self, waiting: u64) {
        self.webhooks_waiting.set(level(waiting));
    }

    /// All metrics in the text format of Prometheus, with the given queue depth, engines and free space; unknown space is
    /// shown as -1 bytes.
    pub fn expose(&self, depth: &QueueDepth, engines: &[EngineState], now: Timestamp, free: Option<u64>) -> String {
        self.queue.show(depth, engines, now);
        self.disk_free.set(free.map_or(-1, level));
        self.process.read();
        let encoded = TextEncoder::new().encode_to_string(&self.registry.gather());
        encoded.unwrap_or_else(|error| format!("# the metrics could not be encoded: {error}\n"))
    }
}

fn level(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Registers a metric with a fixed name and fixed labels.
fn registered<M: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<M>) -> M {
    let metric = metric.expect("a valid name");
    registry.register(Box::new(metric.clone())).expect("a name of its own");
    metric
}
