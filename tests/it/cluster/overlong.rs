//! An API that draws nothing knows by its workers what would only wait.

use hyper::StatusCode;

use super::node::{HANG, Part};
use super::{FOREVER, Site};
use crate::process::{ended, send, submit};
use crate::support::{Answer, GENERATE};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_refuses_what_its_workers_would_not_finish_in_time() {
    let site = Site::new().await;
    let api = site.start(Part::Api, 0, &["--max-unfinished", "0"]);
    let mut worker = site.start(Part::Worker, 0, &["--drain-timeout", "0s"]);
    let key = site.installation.account("ada", FOREVER);
    let first = submit(&api.server, &key, "a boat [[delay 5s]]").await;
    assert_eq!(ended(&api.server, &key, &first).await["status"], "completed");
    let until = async |wanted: StatusCode| -> Answer {
        loop {
            let answer = send(api.address(), "POST", GENERATE, &key, r#"{"prompt": "a boat [[delay 5s]]"}"#).await;
            if answer.status == wanted {
                return answer;
            }
        }
    };
    let refused =
        tokio::time::timeout(HANG, until(StatusCode::TOO_MANY_REQUESTS)).await.expect("the queue is overlong");
    refused.assert_error(429, "RATE_LIMITED");
    worker.stop().await;
    tokio::time::timeout(HANG, until(StatusCode::OK)).await.expect("nobody tells how long it will take");
}
