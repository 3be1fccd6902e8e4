//! Webhooks delivered to a receiver on this machine: how many a second, and how long after the end of a task.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tintype::service::ServiceContext;
use tintype::service::webhooks::Deliverer;
use tintype_domain::endpoint::{AddedBy, SigningSecret};
use tintype_domain::event::Subscription;
use tintype_outbound::receivers::{ReceiverOptions, Receivers};
use tintype_store::{Addition, NewEndpoint};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::fixture::{self, Caller};
use crate::generator::{histogram, now};
use crate::report::Report;
use crate::{Outcome, service};

const ACCOUNTS: usize = 20;
const LEASE: Duration = Duration::from_secs(30);
/// Endings that are told one after the other.
const PACED: usize = 500;
const PACE: Duration = Duration::from_millis(10);
/// Interval at which the benchmark checks whether all has arrived.
const CHECK_EVERY: Duration = Duration::from_millis(1);

/// The times at which events arrived, by the ids of their tasks.
type Arrivals = Arc<Mutex<HashMap<String, Instant>>>;

/// A receiver that answers at once.
async fn receiver(arrivals: Arrivals) -> Outcome<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(receive(stream, arrivals.clone()));
        }
    });
    Ok(address)
}

async fn receive(mut stream: TcpStream, arrivals: Arrivals) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    // The body is JSON that ends with its object within the object.
    while !bytes.ends_with(b"}}") {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(());
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let task = text.split("imgmodel-").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
    arrivals.lock().unwrap_or_else(PoisonError::into_inner).insert(task.to_owned(), now());
    stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await
}

async fn arrived(arrivals: &Arrivals, count: usize) {
    while arrivals.lock().unwrap_or_else(PoisonError::into_inner).len() < count {
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// Delivers `count` events that wait, and then some that are told one after the other.
pub async fn measure(directory: &TempDir, count: usize, report: &mut Report) -> Outcome<()> {
    let data = directory.path().join("webhooks");
    std::fs::create_dir(&data)?;
    let shared = service::shared(&data, &service::settings(&[])?)?;
    let callers = fixture::callers(&shared.store, "webhooks", ACCOUNTS).await?;
    let arrivals = Arrivals::default();
    let url = format!("http://{}/", receiver(arrivals.clone()).await?);
    for caller in &callers {
        let (events, added_by) = (Subscription::to_all(), AddedBy::Operator);
        let new = NewEndpoint { url: url.parse()?, events, added_by, secret: SigningSecret::random() };
        let added = shared.store.add_endpoint(caller.account_id, new, 1).await?;
        assert!(matches!(added, Addition::Created(_)), "{added:?}");
    }
    eprintln!("webhooks, {count} that wait");
    fixture::queue(&shared.store, &callers, count).await?;
    fixture::complete_all(&shared.store, 64).await?;
    let receivers = Receivers::new(ReceiverOptions::reaching(&["127.0.0.1/32".parse()?]))?;
    let stop = CancellationToken::new();
    let started = now();
    let running = tokio::spawn(Deliverer::new(shared.clone(), receivers).run(stop.clone()));
    arrived(&arrivals, count).await;
    report.fact("webhooks delivered", count as f64 / started.elapsed().as_secs_f64(), "events/s", None);
    let (p50, p99) = paced(&shared, &callers, &arrivals, count).await?;
    report.fact("end of a task to its webhook, p50", p50, "ms", None);
    report.fact("end of a task to its webhook, p99", p99, "ms", None);
    stop.cancel();
    running.await?;
    Ok(())
}

/// Ends tasks one after the other; returns the median and the 99th percentile of the time to the arrival, in milliseconds.
async fn paced(
    shared: &Arc<ServiceContext>,
    callers: &[Caller],
    arrivals: &Arrivals,
    before: usize,
) -> Outcome<(f64, f64)> {
    eprintln!("webhooks, one after the other");
    fixture::queue(&shared.store, callers, PACED).await?;
    let mut ended = Vec::new();
    for _ in 0..PACED {
        let claim = shared.store.claim(1, LEASE).await?.pop().ok_or("a task waits")?;
        let begun = now();
        shared.endings.complete(&claim, &["boat.png".to_owned()], Duration::ZERO).await?;
        ended.push((claim.lease.task_id.to_string(), begun));
        tokio::time::sleep(PACE).await;
    }
    arrived(arrivals, before + PACED).await;
    let arrivals = arrivals.lock().unwrap_or_else(PoisonError::into_inner);
    let mut times = histogram();
    for (task, begun) in &ended {
        times.record(arrivals[task].duration_since(*begun).as_micros() as u64)?;
    }
    let at = |quantile| times.value_at_quantile(quantile) as f64 / 1_000.0;
    Ok((at(0.5), at(0.99)))
}
