//! Every process is replaced, one after the other, without a failed request.
//!
//! Several rounds: `TINTYPE_ROUNDS=5 cargo test --locked --test it cluster::rolling -- --nocapture`

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tintype_system::clock::Clock;
use tokio_util::sync::CancellationToken;

use crate::rigs::cluster::balancer::{Balancer, Met};
use crate::rigs::cluster::node::{Node, Part};
use crate::rigs::cluster::{FOREVER, Site};
use crate::rigs::crash::work_off;
use crate::rigs::http::{TASKS, send};

const APIS: usize = 3;
const WORKERS: usize = 2;
const CALLERS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_fails_no_request_and_loses_no_lease() {
    #[expect(clippy::disallowed_methods, reason = "how long to run is a setting of this test")]
    let rounds: u32 = std::env::var("TINTYPE_ROUNDS").map_or(1, |rounds| rounds.parse().expect("a number"));
    let site = Site::new().await;
    // Several times as long as the balancer takes to notice.
    let flags = ["--shutdown-delay", "5s", "--max-unfinished", "0"];
    let mut apis: Vec<Node> = (0..APIS).map(|number| site.start(Part::Api, number, &flags)).collect();
    let mut workers: Vec<Node> = (0..WORKERS).map(|number| site.start(Part::Worker, number, &flags)).collect();
    let key = site.installation.account("ada", FOREVER);
    let balancer = Balancer::start(apis.iter().map(Node::address).collect());
    balancer.until_ready(APIS).await;
    let (met, stop) = (Arc::<Met>::default(), CancellationToken::new());
    let callers = balancer.callers(&vec![key.clone(); CALLERS], &met, &stop);
    for _ in 0..rounds {
        for api in &mut apis {
            let old = api.address();
            api.stop().await;
            api.restart(None);
            balancer.replace(old, api.address());
            balancer.until_ready(APIS).await;
        }
        for worker in &mut workers {
            worker.stop().await;
            worker.restart(None);
        }
    }
    stop.cancel();
    callers.join_all().await;
    work_off(&site.installation, &Clock::system()).await;
    let tasks = met.tasks.lock().expect("no panic").clone();
    println!("requests                         {}", met.requests.load(Ordering::SeqCst));
    println!("failed                           {}", met.failed.lock().expect("no panic").len());
    println!("tasks                            {}", tasks.len());
    assert_eq!(*met.failed.lock().expect("no panic"), Vec::<String>::new());
    assert!(!tasks.is_empty());
    for task_id in &tasks {
        let task = send(apis[0].address(), "GET", &format!("{TASKS}/{task_id}"), &key, "").await.json();
        assert_eq!(task["data"]["status"], "completed", "{task}");
    }
    for words in ["reclaimed expired leases", "lease lost", "attempt failed"] {
        let said: Vec<_> =
            apis.iter().chain(&workers).flat_map(Node::lines).filter(|line| line.contains(words)).collect();
        assert_eq!(said, Vec::<String>::new());
    }
}
