//! Sends spans in batches over OTLP (HTTP with protobuf).
//!
//! A batch that the collector does not take is lost: traces are worth less than the memory for a collector that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::Message as _;
use reqwest::Client;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::task::JoinHandle;

use super::messages::{ExportTraceServiceRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans, Span, Value};
use tintype_outbound::{Proxies, client_builder, describe};

const BATCH: usize = 512;
/// A batch waits this long for more spans.
const GATHER: Duration = Duration::from_secs(1);
const SEND_LIMIT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read.
const MAX_ANSWER: usize = 64 * 1024;
/// The last spans get this long at a stop.
const FINISH_LIMIT: Duration = Duration::from_secs(2);

/// Sends spans once it has started.
#[derive(Debug)]
pub struct Exporter {
    url: String,
    headers: HeaderMap,
    open: Sender<Span>,
    spans: Receiver<Span>,
    lost: Arc<AtomicU64>,
}

impl Exporter {
    /// An exporter of these spans to the collector at this base URL. The spans end when `open` is dropped.
    pub(super) fn new(
        url: &str,
        headers: HeaderMap,
        open: Sender<Span>,
        spans: Receiver<Span>,
        lost: Arc<AtomicU64>,
    ) -> Self {
        Self { url: format!("{url}/v1/traces"), headers, open, spans, lost }
    }

    /// Starts to send spans.
    pub fn start(self, runtime: &Handle) -> Result<Sending, String> {
        let Self { url, headers, open, spans, lost } = self;
        let client = client_builder(None, Proxies::FromEnvironment).map_err(|error| error.to_string())?;
        let client = client.timeout(SEND_LIMIT).build().map_err(|error| describe(&error))?;
        let collector = Collector { client, url, headers, resource: resource(), lost: lost.clone(), is_down: false };
        Ok(Sending { open, lost, task: runtime.spawn(collector.send_all(spans)) })
    }
}

/// An exporter that has started.
#[derive(Debug)]
pub struct Sending {
    open: Sender<Span>,
    lost: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Sending {
    /// Sends the spans that are left, within 2 s.
    pub async fn finish(self) {
        drop(self.open);
        let all_sent = tokio::time::timeout(FINISH_LIMIT, self.task).await.is_ok();
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 || !all_sent {
            tracing::warn!(lost, all_sent, "the trace collector did not accept all spans of this process");
        }
    }
}

struct Collector {
    client: Client,
    url: String,
    headers: HeaderMap,
    resource: Resource,
    lost: Arc<AtomicU64>,
    is_down: bool,
}

impl Collector {
    /// Sends spans until there can be no more.
    async fn send_all(mut self, mut spans: Receiver<Span>) {
        let mut batch = Vec::with_capacity(BATCH);
        while spans.recv_many(&mut batch, BATCH).await > 0 {
            let fill = async {
                let mut room = BATCH - batch.len();
                while room > 0 && spans.recv_many(&mut batch, room).await > 0 {
                    room = BATCH - batch.len();
                }
            };
            // A batch need not be full.
            drop(tokio::time::timeout(GATHER, fill).await);
            self.send(std::mem::take(&mut batch)).await;
        }
    }

    async fn send(&mut self, spans: Vec<Span>) {
        let count = spans.len();
        let scope = Scope { name: "tintype".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource_spans = vec![ResourceSpans { resource: Some(self.resource.clone()), scope_spans }];
        let body = ExportTraceServiceRequest { resource_spans }.encode_to_vec();
        let failure = match self.post(body).await {
            Ok(()) => None,
            Err(cause) => {
                self.lost.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
                Some(cause)
            }
        };
        let was_down = std::mem::replace(&mut self.is_down, failure.is_some());
        match failure {
            Some(cause) if !was_down => tracing::warn!(
                url = self.url,
                cause,
                "the trace collector rejects spans, which are lost until it accepts them: check --otlp and the collector"
            ),
            None if was_down => {
                let lost = self.lost.load(Ordering::Relaxed);
                tracing::info!(url = self.url, lost, "the trace collector accepts spans again");
            }
            _ => {}
        }
    }

    async fn post(&self, body: Vec<u8>) -> Result<(), String> {
        let request = self.client.post(&self.url).headers(self.headers.clone());
        let request = request.header(CONTENT_TYPE, "application/x-protobuf").body(body);
        let mut response = request.send().await.map_err(|error| {
            let cause = describe(&error.without_url());
            let advice =
                if cause.contains("invalid HTTP version") { ": if it speaks gRPC, give its port for HTTP" } else { "" };
            format!("{cause}{advice}")
        })?;
        let status = response.status();
        // The body is read, so that the connection serves the next batch, unless it is longer than an answer can be.
        let mut read = 0;
        while let (true, Ok(Some(chunk))) = (read < MAX_ANSWER, response.chunk().await) {
            read += chunk.len();
        }
        if status.is_success() { Ok(()) } else { Err(format!("it answered {status}")) }
    }
}

fn resource() -> Resource {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let attributes = vec![
        KeyValue::new("service.name", Value::StringValue("tintype".to_owned())),
        KeyValue::new("service.version", Value::StringValue(env!("CARGO_PKG_VERSION").to_owned())),
        KeyValue::new("host.name", Value::StringValue(host)),
        KeyValue::new("process.pid", Value::IntValue(std::process::id().into())),
    ];
    Resource { attributes }
}
