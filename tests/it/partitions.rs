//! On PostgreSQL the partition of a month is dropped when all its tasks were removed.

use std::time::Duration;

use serde_json::json;
use tintype::config::{MONTH_AGE, REMOVED_FILES_GRACE};
use tintype::domain::model::Id;

use crate::retention::{ended, listed, poll};
use crate::rigs::binary::TINTYPE;
use crate::rigs::installation::Installation;
use crate::rigs::postgres::{cluster, schema};
use crate::rigs::service::{Backend, NOON, Service, files};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A service that keeps tasks for 30 days.
async fn keeping_a_month() -> Service {
    Service::start_on_postgres(&["--retention", "30d", "--submit-rate", "0"]).await
}

/// Whether the partition of this month exists.
fn is_there(service: &Service, month: &str) -> bool {
    let sql = format!(
        "SELECT count(*) FROM pg_tables WHERE schemaname = '{}' AND tablename = 'tasks_{month}'",
        schema(service.directory.path())
    );
    cluster().number(&sql) == 1
}

/// Removes old tasks, then their files, then the partition if it is empty.
async fn remove_old(service: &Service) {
    service.sweeper.remove_old().await;
    service.clock.advance(REMOVED_FILES_GRACE + SECOND);
    service.sweeper.remove_old().await;
}

#[tokio::test]
async fn a_partition_is_dropped_once_its_tasks_and_their_files_are_removed() {
    let service = keeping_a_month().await;
    let caller = service.caller("ada", 100).await;
    let completed = ended(&caller, "a boat").await;
    let failed = ended(&caller, "a boat [[fail]]").await;
    service.clock.advance(DAY * 20);
    let december = ended(&caller, "a boat").await;
    service.clock.advance(DAY * 31);
    let young = ended(&caller, "a boat").await;
    let cursor = listed(&caller, "?limit=3").await.1.expect("one more");
    let history = async || service.shared.store.history(caller.account.id, None, 100).await.expect("a store");
    let before = history().await;

    service.sweeper.remove_old().await;
    service.clock.advance(REMOVED_FILES_GRACE);
    service.sweeper.remove_old().await;
    assert_eq!(files(&service).len(), 3);
    assert!(is_there(&service, "2026_11"), "files stay for callers who read the URL before the removal");
    service.clock.advance(SECOND);
    service.sweeper.remove_old().await;
    assert_eq!(files(&service).len(), 1);
    assert!(!is_there(&service, "2026_11"));
    assert!(is_there(&service, "2026_12"), "a task of this month may still be kept");

    assert_eq!(listed(&caller, "").await, (vec![young.clone()], None));
    assert_eq!(listed(&caller, &format!("?cursor={cursor}")).await, (vec![], None));
    for task_id in [&completed, &failed, &december] {
        poll(&caller, task_id).await.assert_error(404, "NOT_FOUND");
    }
    assert_eq!((caller.credits().await, history().await), (94, before));
    let audit = service.shared.store.audit().await.expect("a store");
    assert_eq!((audit.tasks, audit.drifts), (2, vec![]));
    let (data, variables) = (service.directory.path().to_owned(), Vec::new());
    let database = Backend::Postgres.url(&data);
    let operator = Installation { program: TINTYPE.into(), data, database, variables };
    assert_eq!(operator.json(&["credits", "history", "ada"])[2]["task_id"], failed);
    assert_eq!(operator.json(&["credits", "audit"])["drifts"], json!([]));
    let refused = operator.run(&["task", "show", &completed]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("there is no task"), "{said}");

    service.clock.advance(DAY * 60);
    remove_old(&service).await;
    assert!(!is_there(&service, "2026_12") && !is_there(&service, "2027_01"));
    ended(&caller, "a boat").await;
    assert_eq!(service.shared.store.audit().await.expect("a store").drifts, []);
}

#[tokio::test]
async fn a_partition_with_a_file_left_stays_and_so_do_later_partitions() {
    let service = keeping_a_month().await;
    let caller = service.caller("ada", 100).await;
    ended(&caller, "a boat").await;
    let unknown = service.shared.files.write(Id::floor(NOON), 0, "a picture".into()).await.expect("a file");
    service.clock.advance(DAY * 100);
    for _ in 0..2 {
        remove_old(&service).await;
    }
    assert_eq!(files(&service), [unknown.as_str()], "the task of this file does not exist");
    assert!(is_there(&service, "2026_11") && is_there(&service, "2026_12"));
    service.shared.files.remove(&unknown).await.expect("a file");
    std::fs::write(service.directory.path().join("files").join(&unknown[..10]).join("notes.txt"), "a note")
        .expect("no file of a task");
    remove_old(&service).await;
    assert!(!is_there(&service, "2026_11") && !is_there(&service, "2026_12"));
}

#[tokio::test]
async fn a_partition_stays_while_a_task_older_than_the_removal_is_unfinished() {
    let service = keeping_a_month().await;
    let caller = service.caller("ada", 100).await;
    ended(&caller, "a boat [[fail]]").await;
    service.clock.advance(DAY * 100);
    caller.submit_prompt("a boat").await;
    service.clock.advance(SECOND);
    remove_old(&service).await;
    assert!(is_there(&service, "2026_11"), "it was submitted before that");
    service.work().await;
    remove_old(&service).await;
    assert!(!is_there(&service, "2026_11"));
}

#[tokio::test]
async fn a_partition_stays_for_a_day_after_the_end_of_its_month() {
    let service = Service::start_on_postgres(&["--retention", "1h", "--submit-rate", "0"]).await;
    let caller = service.caller("ada", 100).await;
    service.clock.advance(DAY * 9);
    ended(&caller, "a boat").await;
    // Noon of the last day of November, and some seconds.
    service.clock.advance(DAY / 2 + MONTH_AGE - REMOVED_FILES_GRACE - SECOND * 60);
    remove_old(&service).await;
    assert_eq!(files(&service), Vec::<String>::new());
    assert!(is_there(&service, "2026_11"));
    service.clock.advance(SECOND * 60);
    service.sweeper.remove_old().await;
    assert!(!is_there(&service, "2026_11"));
}
