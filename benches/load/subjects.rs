//! The measured requests, each compared with bare handlers.

use std::time::Duration;

use bytes::Bytes;
use hdrhistogram::Histogram;
use tempfile::TempDir;
use tintype_domain::model::{CREDITS_PER_IMAGE, Id, TaskId};
use tintype_store::Store;

use crate::fixture::{self, CREDITS, Caller, PROMPT};
use crate::generator::{Load, Window, histogram};
use crate::report::HttpRow;
use crate::service::{self, Service, ceiling};
use crate::{Options, Outcome, Part, median};

pub const GENERATE: &str = "/api/v1/images/generate";
pub const TASKS: &str = "/api/v1/images/task";
/// Tasks of the account whose list is requested.
const LISTED_TASKS: usize = 1_000;
const CLAIM_BATCH: usize = 512;
/// Number of accounts in the measurement with many accounts.
const SUBMITTERS: usize = 100;

/// One kind of request to measure.
struct Subject {
    name: &'static str,
    aim: f64,
    load: Load,
    /// The load for a bare handler with the same response.
    same_bytes: Load,
    /// The accounts charged for the requests, if any.
    payers: Vec<Caller>,
}

/// Accumulated results over all rounds.
#[derive(Default)]
struct Series {
    rates: Vec<f64>,
    cpu_micros: Vec<f64>,
    latencies: Option<Histogram<u64>>,
    total: u64,
}

impl Series {
    fn add(&mut self, name: &str, window: &Window) -> Outcome<()> {
        if window.errors > 0 {
            return Err(
                format!("{name}: {} of {} responses had a status other than 200", window.errors, window.total).into()
            );
        }
        self.rates.push(window.rate());
        self.cpu_micros.push(window.cpu_micros());
        self.latencies.get_or_insert_with(histogram).add(&window.latencies)?;
        self.total += window.total;
        Ok(())
    }

    fn row(&mut self, name: &str) -> HttpRow {
        let quantile = |quantile| self.latencies.as_ref().map_or(0, |all| all.value_at_quantile(quantile)) as f64 / 1e3;
        HttpRow {
            name: name.to_owned(),
            requests_per_second: median(&mut self.rates),
            p50_micros: quantile(0.5),
            p99_micros: quantile(0.99),
            cpu_micros: median(&mut self.cpu_micros),
            ratio: None,
            ratio_same_bytes: None,
            aim: None,
        }
    }
}

/// Measures every kind of request; the first row is the bare handler.
pub fn measure(runtime: &tokio::runtime::Runtime, directory: &TempDir, options: &Options) -> Outcome<Vec<HttpRow>> {
    let data = directory.path().join("http");
    std::fs::create_dir(&data)?;
    let settings = service::settings(&["--renders", "1"])?;
    let service = runtime.block_on(Service::start(&data, &settings))?;
    let (bare, subjects) = runtime.block_on(subjects(&service, options))?;
    let mut ceiling = Series::default();
    let mut all: Vec<_> = subjects.iter().map(|_| (Series::default(), Vec::new(), Vec::new())).collect();
    for round in 1..=options.rounds {
        for (subject, (series, ratios, same_bytes_ratios)) in subjects.iter().zip(&mut all) {
            eprintln!("round {round} of {}: {}", options.rounds, subject.name);
            let run = |load: &Load| load.run(options.connections, Duration::from_secs_f64(options.window()));
            // One after the other, so that other activity on the machine affects all three alike.
            let bare_window = run(&bare)?;
            let window = run(&subject.load)?;
            let same_bytes = run(&subject.same_bytes)?;
            ratios.push(window.rate() / bare_window.rate());
            same_bytes_ratios.push(window.rate() / same_bytes.rate());
            ceiling.add("bare handler", &bare_window)?;
            series.add(subject.name, &window)?;
        }
    }
    let mut rows = vec![ceiling.row("bare handler (upper bound)")];
    for (subject, (mut series, mut ratios, mut same_bytes_ratios)) in subjects.iter().zip(all) {
        runtime.block_on(check_charges(&service.shared.store, &subject.payers, series.total))?;
        rows.push(HttpRow {
            ratio: Some(median(&mut ratios)),
            ratio_same_bytes: Some(median(&mut same_bytes_ratios)),
            aim: Some(subject.aim),
            ..series.row(subject.name)
        });
    }
    Ok(rows)
}

/// The load for the bare handler with the response to a poll, and the subjects to compare with it.
async fn subjects(service: &Service, options: &Options) -> Outcome<(Load, Vec<Subject>)> {
    let store = &*service.shared.store;
    let reader = fixture::caller(store, "reader").await?;
    let completed = fixture::queue(store, std::slice::from_ref(&reader), LISTED_TASKS).await?;
    fixture::complete_all(store, CLAIM_BATCH).await?;
    let busy = fixture::caller(store, "busy").await?;
    let processing = fixture::queue(store, std::slice::from_ref(&busy), 1).await?;
    let one = fixture::callers(store, "one", 1).await?;
    let many = fixture::callers(store, "many", SUBMITTERS).await?;
    let poll = |caller: &Caller, id: &[Id]| vec![get(&format!("{TASKS}/{}", TaskId(id[0])), &caller.key)];
    let body = format!(r#"{{"prompt":"{PROMPT}","aspect_ratio":"16:9","n":1}}"#);
    let submit = |callers: &[Caller]| callers.iter().map(|caller| post(&caller.key, &body)).collect();
    let address = service.address;
    let bare = ceiling(&Load { address, requests: poll(&reader, &completed) }).await?;
    let candidates = [
        (Part::Poll, "poll, completed", 0.7, poll(&reader, &completed), vec![]),
        (Part::Poll, "poll, processing", 0.7, poll(&busy, &processing), vec![]),
        (Part::List, "list 20", 0.4, vec![get(&format!("{TASKS}?limit=20"), &reader.key)], vec![]),
        (Part::Submit, "submit, 1 account", 0.35, submit(&one), one),
        (Part::Submit, "submit, 100 accounts", 0.35, submit(&many), many),
    ];
    let mut subjects = Vec::new();
    for (part, name, aim, requests, payers) in candidates {
        if options.wants(part) {
            let load = Load { address, requests };
            subjects.push(Subject { name, aim, same_bytes: ceiling(&load).await?, load, payers });
        }
    }
    Ok((bare, subjects))
}

/// Builds a GET request.
pub fn get(target: &str, key: &str) -> Bytes {
    Bytes::from(format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"))
}

/// Builds a submit with this body.
pub fn post(key: &str, body: &str) -> Bytes {
    Bytes::from(format!(
        "POST {GENERATE} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
}

/// Checks that every acknowledged submit was charged, and nothing else.
async fn check_charges(store: &Store, payers: &[Caller], answers: u64) -> Outcome<()> {
    if payers.is_empty() {
        return Ok(());
    }
    let mut spent = 0;
    for payer in payers {
        let account = store.find_account(&payer.name).await?.ok_or("an account is gone")?;
        spent += CREDITS - account.credits;
    }
    // `ceiling` sent one more submit to learn the response.
    let owed = CREDITS_PER_IMAGE * (i64::try_from(answers)? + 1);
    if spent == owed { Ok(()) } else { Err(format!("{answers} submits cost {spent} credits instead of {owed}").into()) }
}
