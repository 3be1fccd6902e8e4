//! A disk that fills up: submits that could not be finished are refused, and the service recovers by itself.

use serde_json::json;
use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, TINTYPE, in_mount_namespace, serve_on};
use crate::rigs::http::{GENERATE, TASKS, ended, send, submit};
use crate::rigs::service::Service;
use crate::rigs::wait::until;

/// The file that fills the disk.
const BALLAST: &str = "ballast";

async fn wait_for_readiness(server: &Server, status: u16) {
    until(async || send(server.address, "GET", "/readyz", "", "").await.status == status).await;
}

#[tokio::test]
async fn below_the_floor_of_free_space_submits_are_refused_until_space_is_freed() {
    let data = TempDir::new().expect("a directory");
    let mount = format!("mount -t tmpfs -o size=64m tmpfs {}", data.path().display());
    let server = Server::spawn(serve_on(data.path(), &mount, "--min-free-space 16MiB"));
    let key = server.first_key().expect("a key");
    wait_for_readiness(&server, 200).await;
    let before = submit(&server, &key, "a boat").await;
    let task = ended(&server, &key, &before).await;

    let ballast = server.path(data.path()).join(BALLAST);
    std::fs::write(&ballast, vec![1; 56 * 1024 * 1024]).expect("room for it");
    wait_for_readiness(&server, 503).await;
    let refused = send(server.address, "POST", GENERATE, &key, r#"{"prompt": "a boat"}"#).await;
    refused.assert_error(500, "INTERNAL_ERROR");
    // Reading goes on, and nothing was charged.
    assert_eq!(ended(&server, &key, &before).await, task);
    let listed = send(server.address, "GET", TASKS, &key, "").await.json();
    assert_eq!(listed["data"]["items"].as_array().map(Vec::len), Some(1));
    let image = task["media_url"].as_str().and_then(|url| url.strip_prefix(&server.url())).expect("our URL");
    assert_eq!(send(server.address, "GET", image, "", "").await.status, 200);

    std::fs::remove_file(&ballast).expect("it was written");
    wait_for_readiness(&server, 200).await;
    let after = submit(&server, &key, "a second boat").await;
    assert_eq!(ended(&server, &key, &after).await["status"], "completed");
    let balance =
        server.inside(&["credits", "balance", "default", "--json", "--data", &data.path().display().to_string()]);
    assert!(balance.contains("996"), "{balance}");
    server.stop();
}

#[test]
fn a_start_on_a_full_or_read_only_disk_says_so() {
    let data = TempDir::new().expect("a directory");
    let path = data.path().display();
    let list = format!("{TINTYPE} account list --data {path}");
    let script = format!(
        "mount -t tmpfs -o size=4m tmpfs {path}; {TINTYPE} account create ada --data {path}; \
         mount -o remount,ro {path}; {list} 2>&1 && exit 1; mount -o remount,rw {path}; \
         dd if=/dev/zero of={path}/{BALLAST} bs=4k 2>&1 || true; {list} 2>&1 && exit 1; rm {path}/{BALLAST}; {list}"
    );
    let said = in_mount_namespace(&script).ran().succeeded();
    assert!(said.contains(": its disk is full: make room"), "{said}");
    assert!(said.contains(": its file system is read-only"), "{said}");
}

#[tokio::test]
async fn a_limit_on_the_size_of_files_does_not_end_the_server() {
    let data = TempDir::new().expect("a directory");
    // In 512 bytes: the database has room, and a picture has not.
    let server = Server::spawn(serve_on(data.path(), "ulimit -f 2000", ""));
    let key = server.first_key().expect("a key");
    let task = submit(&server, &key, "a boat").await;
    wait_for_readiness(&server, 503).await;
    let found = send(server.address, "GET", &format!("{TASKS}/{task}"), &key, "").await.json();
    assert_eq!(found["data"]["status"], "processing");
    server.stop();
}

#[tokio::test]
async fn accepted_tasks_are_finished_below_the_floor() {
    let (service, caller) = Service::with_caller(&["--min-free-space", "1EiB"], 10).await;
    caller.post(json!({ "prompt": "a boat" }).to_string()).await.assert_error(500, "INTERNAL_ERROR");
    assert_eq!(caller.credits().await, 10);
    let account = caller.account.id;
    let request =
        tintype_domain::request::GenerateRequest::parse(br#"{"prompt": "a boat"}"#, &[443]).expect("a request");
    let submitted = service
        .shared
        .store
        .submit(account, None, tintype_domain::model::Surface::Api, request, 0)
        .await
        .expect("a store");
    let tintype_store::Submission::Accepted(task) = submitted else { panic!("{submitted:?}") };
    service.work().await;
    assert_eq!(caller.task(&format!("imgmodel-{}", task.id)).await["status"], "completed");
}
