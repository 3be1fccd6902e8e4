//! From the engine's last byte to the completed task: how long each step takes, with a decoder that starts for the picture
//! and with one that waits for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tempfile::TempDir;
use tintype::traces::is_traced;
use tintype_engine::picture::Picture;
use tintype_system::sandbox::Decoder;
use tokio::runtime::Builder;
use tracing::span::{Attributes, Id};
use tracing::{Dispatch, Subscriber, dispatcher};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::engine::{Beside, Client, PROGRAM, SIDE, Server};
use crate::generator::{histogram, now};
use crate::report::{Aim, Report};
use crate::subjects::GENERATE;
use crate::{Options, Outcome};

/// The spans of a task's trace that follow the engine's answer, in order.
const STEPS: [&str; 4] = ["decode", "encode", "files", "completion"];
/// Time before and after a picture, in which the next decoder starts and all spans of the last picture end.
const PAUSE: Duration = Duration::from_millis(150);

/// The latest duration of each span, by name.
#[derive(Debug, Clone, Default)]
struct Spans(Arc<Mutex<BTreeMap<&'static str, Duration>>>);

impl Spans {
    fn take(&self) -> BTreeMap<&'static str, Duration> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, _: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(now());
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        if let Some(began) = span.extensions().get::<Instant>() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(span.name(), began.elapsed());
        }
    }
}

/// The times of one kind of decoder, in nanoseconds: of the whole way, of each step, and of everything outside them.
struct Times {
    whole: Histogram<u64>,
    steps: [Histogram<u64>; STEPS.len()],
    rest: Histogram<u64>,
}

impl Times {
    fn new() -> Self {
        Self { whole: histogram(), steps: STEPS.map(|_| histogram()), rest: histogram() }
    }

    fn add(&mut self, whole: Duration, spans: &BTreeMap<&'static str, Duration>) -> Outcome<()> {
        let mut rest = whole;
        for (name, times) in STEPS.iter().zip(&mut self.steps) {
            let took = *spans.get(name).ok_or_else(|| format!("the trace has no {name}"))?;
            times.record(took.as_nanos() as u64)?;
            rest = rest.saturating_sub(took);
        }
        self.rest.record(rest.as_nanos() as u64)?;
        self.whole.record(whole.as_nanos() as u64)?;
        Ok(())
    }
}

/// A picture of slow changes, and one with as much noise as a photograph, with the goals for their 99th percentiles.
fn pictures() -> Outcome<[(&'static str, Vec<u8>, f64); 2]> {
    let picture = |pixel: fn(u32) -> [u8; 3]| {
        Picture::from_rgb(SIDE, SIDE, (0..SIDE * SIDE).flat_map(pixel).collect()).map(|picture| picture.to_png())
    };
    let flat = picture(|at| [at % SIDE, at / SIDE, (at % SIDE + at / SIDE) / 2].map(|level| (level / 4) as u8));
    let photograph = picture(|at| {
        let noise = at.wrapping_mul(0x9e37_79b9) ^ (at.wrapping_mul(0x85eb_ca6b) >> 13);
        [0, 8, 16].map(|shift| ((at % SIDE) / 5 + ((noise >> shift) & 15)) as u8)
    });
    Ok([("flat picture", flat.ok_or("a picture")?, 15.0), ("photograph", photograph.ok_or("a picture")?, 35.0)])
}

/// Measures both decoders with both pictures.
pub fn measure(directory: &TempDir, options: &Options, report: &mut Report) -> Outcome<()> {
    let spans = Spans::default();
    let traced = Registry::default().with(spans.clone().with_filter(filter_fn(is_traced)));
    let dispatch = Dispatch::new(traced);
    // The threads of this runtime alone keep spans: they cost time.
    let keep_spans = move || std::mem::forget(dispatcher::set_default(&dispatch));
    let runtime = Builder::new_multi_thread().enable_all().on_thread_start(keep_spans).build()?;
    for (name, png, aim) in pictures()? {
        let [started, ready] = runtime.block_on(alternate(directory, name, &png, options, &spans))?;
        let size = png.len() as f64 / 1e6;
        for (label, quantile, aim) in [("p50", 0.5, None), ("p99", 0.99, Some(Aim::AtMost(aim)))] {
            let millis = |times: &Histogram<u64>| times.value_at_quantile(quantile) as f64 / 1e6;
            let mut line = |name: String, times: fn(&Times) -> &Histogram<u64>, aim| {
                let [started, ready] = [&started, &ready].map(|kind| millis(times(kind)));
                report.fact(format!("{name}, decoder started for it"), started, "ms", None);
                report.fact("  decoder ready", ready, "ms", aim);
                report.fact("  ratio", ready / started, "times", None);
            };
            line(format!("{name} of {size:.1} MB, {label}"), |times| &times.whole, aim);
            line(format!("  decode, {label}"), |times| &times.steps[0], None);
            for (at, step) in STEPS.iter().enumerate().skip(1) {
                report.fact(format!("  {step}, {label}"), millis(&ready.steps[at]), "ms", None);
            }
            report.fact(format!("  the rest, {label}"), millis(&ready.rest), "ms", None);
        }
    }
    Ok(())
}

/// One picture after another, in turns from two services with a decoder each.
async fn alternate(
    directory: &TempDir,
    name: &str,
    png: &[u8],
    options: &Options,
    spans: &Spans,
) -> Outcome<[Times; 2]> {
    let server = [Server::with(Duration::ZERO, png).await?];
    let mut kinds = Vec::new();
    for (kind, decoder) in [Decoder::new(PROGRAM), Decoder::new(PROGRAM).keeping_ready()].into_iter().enumerate() {
        let beside = Beside::decoding(directory, &format!("{name} {kind}"), &server, decoder).await?;
        let api = Client::connect(&beside.service.address.to_string()).await?;
        kinds.push((beside, api, Times::new()));
    }
    for turn in 0..=options.pictures {
        if turn % 50 == 0 {
            eprintln!("steps of a {name}, {turn} of {}", options.pictures);
        }
        for (beside, api, times) in &mut kinds {
            tokio::time::sleep(PAUSE).await;
            spans.take();
            let authorization = format!("Bearer {}", beside.caller.key);
            let task = api.post(GENERATE, &[("authorization", &authorization), ("prefer", "wait=60")]).await?;
            let had = now();
            let task: serde_json::Value = serde_json::from_slice(&task)?;
            if task["data"]["status"] != "completed" {
                return Err(format!("a task was not completed: {task}").into());
            }
            tokio::time::sleep(PAUSE).await;
            let whole = had - server[0].latest()?.1;
            // The first picture of a service starts its decoder in any case.
            if turn > 0 {
                times.add(whole, &spans.take())?;
            }
        }
    }
    let mut kinds = kinds.into_iter().map(|(_, _, times)| times);
    Ok([kinds.next().ok_or("a kind")?, kinds.next().ok_or("a kind")?])
}
