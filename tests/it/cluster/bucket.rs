//! The bucket fails while workers draw: what was drawn waits for it.
//!
//! The suite lets it fail for some seconds; a minute, as in `docs/reliability.md`, with
//! `TINTYPE_OUTAGE_SECONDS=60 cargo test --locked --test it cluster::bucket -- --nocapture`

use std::time::Duration;

use serde_json::Value;
use tintype::clock::Clock;

use super::node::{Node, Part, eventually};
use super::{FOREVER, Site};
use crate::crash::work_off;
use crate::process::{send, submit};
use crate::support::TASKS;

const OUTAGE_SECONDS: u64 = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_fails_for_a_while_costs_nothing_but_time() {
    #[expect(clippy::disallowed_methods, reason = "how long to run is a setting of this test")]
    let seconds =
        std::env::var("TINTYPE_OUTAGE_SECONDS").map_or(OUTAGE_SECONDS, |text| text.parse().expect("a number"));
    let mut site = Site::new().await;
    let api = site.start(Part::Api, 0, &[]);
    let workers: Vec<Node> = (0..2).map(|number| site.start(Part::Worker, number, &[])).collect();
    let key = site.installation.account("ada", FOREVER);
    let mut tasks = vec![submit(&api.server, &key, "a boat before the outage").await];
    work_off(&site.installation, &Clock::system()).await;
    site.s3.stop().await;
    // More than can be drawn at once.
    for _ in 0..8 {
        tasks.push(submit(&api.server, &key, "a boat during the outage").await);
    }
    for worker in &workers {
        eventually("a worker meets the outage", || worker.logged("could not write a result file") > 0).await;
    }
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(site.leases().len(), 4, "what is drawn is held, and nothing else is begun");
    site.s3.come_back().await;
    work_off(&site.installation, &Clock::system()).await;
    for task_id in &tasks {
        let task = send(api.address(), "GET", &format!("{TASKS}/{task_id}"), &key, "").await.json();
        assert_eq!(task["data"]["status"], "completed", "{task}");
    }
    for words in ["attempt lost", "lost leases taken away"] {
        assert!(workers.iter().chain([&api]).all(|node| node.logged(words) == 0), "{words}");
    }
    let audit = site.installation.json(&["credits", "audit", "--files"]);
    assert_eq!((&audit["files"], &audit["drifts"]), (&9.into(), &Value::Array(Vec::new())), "{audit}");
}
