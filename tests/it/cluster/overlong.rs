//! An API without a worker knows from its workers which submits would not finish in time.

use futures::future::join_all;
use hyper::StatusCode;

use crate::rigs::cluster::node::Part;
use crate::rigs::cluster::{FOREVER, Site};
use crate::rigs::http::{Answer, GENERATE, ended, send, submit};
use crate::rigs::wait::until_some;

/// Concurrent submits: the test needs many, and each is committed durably.
const SUBMITS: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_refuses_tasks_that_its_workers_would_not_finish_in_time() {
    let site = Site::new().await;
    let api = site.start(Part::Api, 0, &["--max-unfinished", "0"]);
    let mut worker = site.start(Part::Worker, 0, &["--drain-timeout", "0s"]);
    let key = site.installation.account("ada", FOREVER);
    let first = submit(&api.server, &key, "a boat [[delay 5s]]").await;
    assert_eq!(ended(&api.server, &key, &first).await["status"], "completed");
    let until = async |wanted: StatusCode| -> Answer {
        until_some(async || {
            let submit = || send(api.address(), "POST", GENERATE, &key, r#"{"prompt": "a boat [[delay 5s]]"}"#);
            let answers = join_all((0..SUBMITS).map(|_| submit())).await;
            answers.into_iter().find(|answer| answer.status == wanted)
        })
        .await
    };
    until(StatusCode::TOO_MANY_REQUESTS).await.assert_error(429, "RATE_LIMITED");
    worker.stop().await;
    // Without a worker the wait cannot be estimated.
    until(StatusCode::OK).await;
}
