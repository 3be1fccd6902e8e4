//! Metrics: promtool accepts them, they are there from the start, and the dashboard and the alerts cite no others.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tintype_store::{EngineState, QueueDepth};

use crate::rigs::binary::{Ran as _, Server};
use crate::rigs::debian;
use crate::rigs::http::{TASKS, send};
use crate::rigs::ports::Port;
use crate::rigs::service::{NOON, Service};
use crate::tidy::root;

pub fn exposed(service: &Service) -> String {
    let engine = EngineState { name: "sketch".into(), max_references: 4, masks: false, workers: 1, seen_at: NOON };
    service.shared.metrics.expose(&QueueDepth::default(), &[engine], NOON, Some(1 << 30))
}

/// The value of one series, `None` if it is not there.
pub fn value(text: &str, series: &str) -> Option<f64> {
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.map(|value| value.parse().expect("a number"))
}

/// Runs `promtool` of Debian's package prometheus.
fn promtool(arguments: &[&str], input: &str) -> Output {
    debian::needs("promtool", "prometheus");
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(root()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("promtool runs");
    process.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("promtool reads");
    process.wait_with_output().expect("promtool ends")
}

fn rules(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("a readable file")
}

fn names(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("tintype_") || word.starts_with("process_")).collect()
}

/// The queries of the dashboard, with its variables replaced as Grafana does.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&rules("deploy/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let queries = targets.map(|target| target["expr"].as_str().expect("an expression"));
    queries
        .map(|query| query.replace("$__rate_interval", "5m").replace("$job", ".*").replace("$instance", ".*"))
        .collect()
}

#[tokio::test]
async fn promtool_finds_no_fault_in_the_metrics() {
    let service = Service::start().await;
    service.caller("ada", 100).await.submit_prompt("a boat").await;
    service.work().await;
    let text = exposed(&service);
    let checked = promtool(&["check", "metrics"], &text);
    assert!(checked.status.success() && checked.stdout.is_empty() && checked.stderr.is_empty(), "{checked:?}\n{text}");
}

#[tokio::test]
async fn every_counter_is_there_before_the_first_request() {
    let service = Service::start().await;
    let text = exposed(&service);
    for series in [
        "tintype_tasks_submitted_total",
        "tintype_tasks_ended_total{status=\"completed\"}",
        "tintype_tasks_ended_total{status=\"failed\"}",
        "tintype_tasks_ended_total{status=\"cancelled\"}",
        "tintype_tasks_refused_total{kind=\"words\"}",
        "tintype_tasks_refused_total{kind=\"engine\"}",
        "tintype_http_requests_total{method=\"POST\",route=\"/api/v1/images/generate\",status=\"200\"}",
        "tintype_http_requests_total{method=\"POST\",route=\"/api/v1/images/generate\",status=\"402\"}",
        "tintype_http_requests_total{method=\"GET\",route=\"/api/v1/images/task/{id}\",status=\"500\"}",
        "tintype_http_requests_total{method=\"GET\",route=\"/files/{name}\",status=\"404\"}",
        "tintype_http_request_duration_seconds_count{method=\"GET\",route=\"/readyz\"}",
        "tintype_render_duration_seconds_count",
    ] {
        assert_eq!(value(&text, series), Some(0.0), "{series}: {text}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_method_and_invented_methods_as_one() {
    let service = Service::start().await;
    service.call("GET", "/healthz", &[], "").await;
    service.call("HEAD", "/healthz", &[], "").await;
    service.call("BREW", "/healthz", &[], "").await;
    service.call("STIR", "/healthz", &[], "").await;
    let text = exposed(&service);
    let counted = |method: &str, status: u16| {
        let labels = format!("{{method=\"{method}\",route=\"/healthz\",status=\"{status}\"}}");
        value(&text, &format!("tintype_http_requests_total{labels}"))
    };
    assert_eq!((counted("GET", 200), counted("HEAD", 200), counted("other", 405)), (Some(1.0), Some(1.0), Some(2.0)));
    assert!(!text.contains("BREW") && !text.contains("STIR"), "{text}");
    let measured = "tintype_http_request_duration_seconds_count{method=\"other\",route=\"/healthz\"}";
    assert_eq!(value(&text, measured), Some(2.0));
}

#[tokio::test]
async fn a_process_shows_its_build_and_the_resources_that_it_uses() {
    let data = TempDir::new().expect("a directory");
    let free = Port::take();
    let server = Server::start(data.path(), &["--metrics-listen", &free.address.to_string()]);
    let answer = send(free.address, "GET", "/metrics", "", "").await;
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let text = String::from_utf8(answer.body.to_vec()).expect("text");
    let build = format!("tintype_build_info{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
    assert_eq!(value(&text, &build), Some(1.0), "{text}");
    let shown = |name: &str| value(&text, name).unwrap_or_else(|| panic!("{name}: {text}"));
    let (memory, resident) = ((server.memory() << 20) as f64, shown("process_resident_memory_bytes"));
    assert!((memory / 2.0..memory * 2.0).contains(&resident), "{resident} and {memory}");
    assert!((5.0..1_000.0).contains(&shown("process_open_fds")), "{text}");
    assert!(shown("process_open_fds") < shown("process_max_fds"), "{text}");
    // 2020 and 2100: a number of milliseconds or of the seconds since the boot lies outside.
    assert!((1.57e9..4.1e9).contains(&shown("process_start_time_seconds")), "{text}");
    // A scrape of a metrics listener is itself counted from zero.
    let scrapes = "tintype_http_requests_total{method=\"GET\",route=\"/metrics\",status=\"200\"}";
    assert_eq!(value(&text, scrapes), Some(0.0), "{text}");
    let message = send(free.address, "GET", "/", "", "").await.assert_error(404, "NOT_FOUND");
    assert!(!message.contains("/docs/"), "{message}");
    let again = send(free.address, "GET", "/metrics", "", "").await;
    let again = String::from_utf8(again.body.to_vec()).expect("text");
    assert_eq!(value(&again, scrapes), Some(1.0), "{again}");
    let used = "process_cpu_seconds_total";
    assert!(0.0 < shown(used) && Some(shown(used)) < value(&again, used), "{text}{again}");
    send(server.address, "GET", TASKS, "", "").await.assert_error(401, "UNAUTHORIZED");
    server.stop();
}

#[tokio::test]
async fn the_dashboard_and_the_alerts_cite_metrics_that_the_server_exposes() {
    let service = Service::start().await;
    let text = exposed(&service);
    let there = names(&text);
    let (alerts, tests) = (rules("deploy/alerts.yml"), rules("deploy/alerts.test.yml"));
    let queries = queries();
    for cited in queries.iter().chain([&alerts, &tests]) {
        // A job may be named tintype-worker; the prefix alone names no metric.
        let unknown: Vec<_> = names(cited).into_iter().filter(|name| !there.contains(name)).collect();
        assert!(unknown.is_empty(), "{unknown:?} in {cited}");
    }
    let shown: BTreeSet<_> = queries.iter().flat_map(|query| names(query)).collect();
    assert!(shown.len() > 20, "{shown:?}");
}

#[test]
fn promtool_accepts_the_alerts_and_their_tests_pass() {
    for arguments in [["check", "rules", "deploy/alerts.yml"], ["test", "rules", "deploy/alerts.test.yml"]] {
        promtool(&arguments, "").succeeded();
    }
    let (alerts, tests) = (rules("deploy/alerts.yml"), rules("deploy/alerts.test.yml"));
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "no test makes {alert} fire");
    }
}

#[test]
fn promtool_accepts_the_queries_of_the_dashboard() {
    let rules = queries()
        .into_iter()
        .enumerate()
        .map(|(index, query)| serde_json::json!({ "record": format!("query:{index}"), "expr": query }));
    let file = serde_json::json!({ "groups": [{ "name": "dashboard", "rules": rules.collect::<Vec<_>>() }] });
    // JSON is YAML too.
    let folder = TempDir::new().expect("a directory");
    let path = folder.path().join("rules.yml");
    std::fs::write(&path, file.to_string()).expect("written");
    promtool(&["check", "rules", path.to_str().expect("UTF-8")], "").succeeded();
}

#[test]
fn the_panels_of_the_dashboard_do_not_overlap() {
    let dashboard: Value = serde_json::from_str(&rules("deploy/grafana.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_i64()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has an id of its own");
    let cells: Vec<_> = panels
        .iter()
        .flat_map(|panel| {
            let number = |name: &str| panel["gridPos"][name].as_i64().expect("a number");
            let (left, top, width, height) = (number("x"), number("y"), number("w"), number("h"));
            assert!(left + width <= 24, "{panel}");
            (top..top + height).flat_map(move |y| (left..left + width).map(move |x| (x, y)))
        })
        .collect();
    assert_eq!(cells.iter().collect::<BTreeSet<_>>().len(), cells.len(), "a cell of the grid belongs to one panel");
}
