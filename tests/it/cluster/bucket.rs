//! The bucket fails while workers render: finished pictures wait for it.
//!
//! In the suite the outage lasts until each lease has been renewed. For a minute, as in `docs/evidence/reliability.md`, run
//! `TINTYPE_OUTAGE_SECONDS=60 cargo test --locked --test it cluster::bucket -- --nocapture`

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use tintype_system::clock::Clock;

use crate::rigs::cluster::node::{Node, Part};
use crate::rigs::cluster::{FOREVER, Site};
use crate::rigs::crash::work_off;
use crate::rigs::http::{TASKS, send, submit};
use crate::rigs::postgres::schema;
use crate::rigs::wait::until;

/// The end of each lease, by its task and epoch.
fn ends(site: &Site) -> HashMap<(String, i64), i64> {
    let schema = schema(&site.installation.data);
    let sql = format!("SELECT task_id, lease_epoch, lease_until FROM {schema}.queue WHERE lease_until IS NOT NULL");
    site.postgres.query(&sql).iter().map(|row| ((row.get(0), row.get(1)), row.get(2))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_outage_costs_no_lease_and_no_attempt() {
    #[expect(clippy::disallowed_methods, reason = "how long to run is a setting of this test")]
    let seconds = std::env::var("TINTYPE_OUTAGE_SECONDS").map_or(0, |text| text.parse().expect("a number"));
    let site = Site::new().await;
    let api = site.start(Part::Api, 0, &[]);
    let workers: Vec<Node> = (0..2).map(|number| site.start(Part::Worker, number, &[])).collect();
    let key = site.installation.account("ada", FOREVER);
    let mut tasks = vec![submit(&api.server, &key, "a boat before the outage").await];
    work_off(&site.installation, &Clock::system()).await;
    site.s3.stop().await;
    // More than can be rendered at once.
    for _ in 0..8 {
        tasks.push(submit(&api.server, &key, "a boat during the outage").await);
    }
    for worker in &workers {
        until(async || worker.logged("could not write a result file") > 0).await;
    }
    until(async || site.leases().len() == 4).await;
    let held = ends(&site);
    let renewed = |(lease, end): (&(String, i64), &i64)| held.get(lease).is_some_and(|before| end > before);
    let all_renewed = async || ends(&site).iter().filter(|lease| renewed(*lease)).count() == 4;
    let outage = tokio::time::sleep(Duration::from_secs(seconds));
    tokio::join!(until(all_renewed), outage);
    assert_eq!(site.leases(), held.into_keys().collect(), "workers hold their rendered tasks and claim no others");
    site.s3.come_back().await;
    work_off(&site.installation, &Clock::system()).await;
    for task_id in &tasks {
        let task = send(api.address(), "GET", &format!("{TASKS}/{task_id}"), &key, "").await.json();
        assert_eq!(task["data"]["status"], "completed", "{task}");
    }
    for words in ["attempt failed", "lease lost", "reclaimed expired leases"] {
        assert!(workers.iter().chain([&api]).all(|node| node.logged(words) == 0), "{words}");
    }
    let audit = site.installation.json(&["credits", "audit", "--files"]);
    assert_eq!((&audit["files"], &audit["drifts"]), (&9.into(), &Value::Array(Vec::new())), "{audit}");
}
