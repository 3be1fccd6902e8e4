//! Traces of API requests and tasks, for the collector that `--otlp` names.
//!
//! A span of a trace is a span of the log, with its fields as attributes: routes, statuses, ids and counts, never a
//! key, a prompt or a URL. Log events aren't part of a trace. Three fields are more than attributes:
//!
//! - `request_id`: determines the ids of a request's span, and is stored with a task. So a worker in another process
//!   puts its spans under the request's span, and nothing else has to be stored.
//! - `lasted_micros`: the span began that long before it was made.
//! - `error`: whether the span failed.

mod exporter;
mod messages;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use reqwest::header::HeaderMap;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{WeakSender, channel};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

pub use self::exporter::{Exporter, Sending};
use self::messages::{ERROR, INTERNAL, KeyValue, SERVER, Span, Status, Value};
use tintype_system::clock::Clock;

/// The target of spans that are in the log only.
pub const UNTRACED: &str = "tintype::untraced";

const REQUEST: &str = "request";
/// Finished spans that wait to be sent, about 1 KiB each. Beyond that they are lost.
const QUEUE: usize = 4_096;

/// A layer for the log that makes traces of its spans, and the exporter that sends them with these headers to the
/// collector at this base URL once it has started.
pub fn traces(url: &str, headers: HeaderMap) -> (Tracing, Exporter) {
    let (open, spans) = channel(QUEUE);
    let lost = Arc::new(AtomicU64::new(0));
    let layer = Tracing { finished: open.downgrade(), lost: lost.clone(), clock: Clock::system() };
    (layer, Exporter::new(url, headers, open, spans, lost))
}

/// Whether a span of the log is one of a trace.
pub fn is_traced(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && metadata.target().starts_with("tintype") && metadata.target() != UNTRACED
}

/// A layer that queues each span when it has ended. It never waits.
#[derive(Debug)]
pub struct Tracing {
    finished: WeakSender<Span>,
    lost: Arc<AtomicU64>,
    clock: Clock,
}

struct Open {
    span: Span,
    /// When it was made. It cannot end earlier, also if the wall clock is set back.
    made: Duration,
    lasted: Duration,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Tracing {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent = span.parent().and_then(|parent| parent.extensions().get::<Open>().map(|open| Ids::of(&open.span)));
        let request = fields.request_id.as_deref().and_then(Ids::of_request);
        let is_request = span.name() == REQUEST;
        let (ids, parent) = match (parent, request) {
            (Some(parent), _) => (parent.child(), Some(parent)),
            (None, Some(request)) if is_request => (request, None),
            (None, Some(request)) => (request.child(), Some(request)),
            (None, None) => (Ids::random(), None),
        };
        let began = self.clock.since_epoch().saturating_sub(fields.lasted);
        let open = Open {
            span: Span {
                trace_id: ids.trace.to_vec(),
                span_id: ids.span.to_vec(),
                parent_span_id: parent.map(|parent| parent.span.to_vec()).unwrap_or_default(),
                name: span.name().to_owned(),
                kind: if is_request { SERVER } else { INTERNAL },
                start_time_unix_nano: nanos(began),
                status: fields.status(),
                attributes: fields.attributes,
                ..Span::default()
            },
            made: self.clock.elapsed(),
            lasted: fields.lasted,
        };
        span.extensions_mut().insert(open);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(Open { span, .. }) = span.extensions_mut().get_mut() {
            let mut fields = Fields::default();
            values.record(&mut fields);
            span.status = fields.status().or(span.status.take());
            span.attributes.extend(fields.attributes);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let open = context.span(&id).and_then(|span| span.extensions_mut().remove::<Open>());
        // Without a sender the exporter has ended.
        let (Some(Open { mut span, made, lasted }), Some(finished)) = (open, self.finished.upgrade()) else { return };
        let took = self.clock.elapsed().saturating_sub(made) + lasted;
        span.end_time_unix_nano = span.start_time_unix_nano.saturating_add(nanos(took));
        if let Err(TrySendError::Full(_)) = finished.try_send(span) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Ids {
    trace: [u8; 16],
    span: [u8; 8],
}

impl Ids {
    fn random() -> Self {
        Self { trace: rand::random(), span: rand::random() }
    }

    /// A request span's ids, from the random bytes of the request id. They are never all zero, which would mean none.
    fn of_request(request_id: &str) -> Option<Self> {
        let random: [u8; 15] = BASE64_URL_SAFE_NO_PAD.decode(request_id).ok()?.try_into().ok()?;
        let (mut trace, mut span) = ([1; 16], [1; 8]);
        trace[..15].copy_from_slice(&random);
        span[..7].copy_from_slice(&random[8..]);
        Some(Self { trace, span })
    }

    fn of(span: &Span) -> Self {
        let trace = span.trace_id.as_slice().try_into().unwrap_or_default();
        Self { trace, span: span.span_id.as_slice().try_into().unwrap_or_default() }
    }

    fn child(self) -> Self {
        Self { span: rand::random(), ..self }
    }
}

#[derive(Default)]
struct Fields {
    attributes: Vec<KeyValue>,
    request_id: Option<String>,
    lasted: Duration,
    error: bool,
}

impl Fields {
    fn status(&self) -> Option<Status> {
        self.error.then_some(Status { code: ERROR })
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "request_id" {
            self.request_id = Some(value.to_owned());
        }
        self.attributes.push(KeyValue::new(field.name(), Value::StringValue(value.to_owned())));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "lasted_micros" => self.lasted = Duration::from_micros(value),
            name => {
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                self.attributes.push(KeyValue::new(name, Value::IntValue(value)));
            }
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "error" => self.error = value,
            _ => self.record_debug(field, &value),
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
