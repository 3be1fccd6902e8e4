//! Models that are added and removed while a server runs.

use std::fs;
use std::path::Path;

use bytes::Bytes;
use serde_json::json;

use super::data;
use crate::rigs::binary::{Ran as _, Server, json as printed_json, refused, run};
use crate::rigs::http::{ended, send};
use crate::tidy::root;

/// A server, and the key of its first account.
struct Rig {
    server: Server,
    key: String,
}

impl Rig {
    fn start(data: &Path, flags: &[&str]) -> Self {
        let server = Server::start(data, &[&["--submit-rate", "0", "--engine-sizes", "64x64"], flags].concat());
        let key = server.first_key().expect("a key");
        Self { server, key }
    }

    /// Submits a task, and returns its id.
    async fn submit(&self) -> String {
        let body = json!({ "prompt": "a boat", "seed": 7, "num_inference_steps": 2 }).to_string();
        let answer = send(self.server.address, "POST", "/v1/images/generations/async", &self.key, &body).await.json();
        answer["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// The image of a task, once it is there.
    async fn image(&self, task: &str) -> Bytes {
        let task = ended(&self.server, &self.key, task).await;
        let url = task["media_url"].as_str().unwrap_or_else(|| panic!("{task}"));
        let path = url.strip_prefix(&self.server.url()).expect("our URL");
        send(self.server.address, "GET", path, &self.key, "").await.body
    }

    /// An image of the engine that renders now.
    async fn made(&self) -> Bytes {
        self.image(&self.submit().await).await
    }
}

fn add(data: &Path, model: &str, name: &str) {
    let model = root().join("crates/diffusion/tests/parity").join(model);
    let added = printed_json(data, &["model", "add", model.to_str().expect("text"), "--name", name]);
    assert_eq!(added["usable"], true);
}

#[tokio::test]
async fn a_server_takes_up_an_added_model_and_lets_go_of_a_removed_one() {
    let data = data();
    let rig = Rig::start(data.path(), &[]);
    let sketch = rig.made().await;
    add(data.path(), "sd15", "tiny");
    let mut painted = rig.made().await;
    while painted == sketch {
        painted = rig.made().await;
    }
    // It keeps its model when another one comes that is first by name.
    add(data.path(), "lcm", "another");
    let later = [rig.made().await, rig.made().await];
    assert!(later.iter().all(|image| *image == painted));
    printed_json(data.path(), &["model", "remove", "another", "--yes"]);
    let removed = run(data.path(), ["model", "remove", "tiny", "--yes"]);
    assert!(removed.status.success(), "{removed:?}");
    let said = removed.errors();
    assert!(said.contains("waiting until the running server has finished its tasks with tiny"), "{said}");
    while rig.made().await != sketch {}
    assert!(printed_json(data.path(), &["model", "list"])["installed"].as_array().expect("a list").is_empty());
    assert_eq!(fs::read_dir(data.path().join("models")).expect("a folder").count(), 0, "nothing is left");
}

#[tokio::test]
async fn a_model_that_the_server_was_started_with_may_be_removed_and_added_again() {
    let data = data();
    add(data.path(), "sd15", "tiny");
    let rig = Rig::start(data.path(), &["--model", "tiny"]);
    let first = rig.made().await;
    let again = root().join("crates/diffusion/tests/parity/lcm");
    let said = refused(data.path(), &["model", "add", again.to_str().expect("text"), "--name", "tiny", "--hash"]);
    assert!(said.contains("there is a model tiny already"), "{said}");
    printed_json(data.path(), &["model", "remove", "tiny", "--yes"]);
    // A task that comes now waits for a model of this name, whichever it is.
    let task = rig.submit().await;
    add(data.path(), "lcm", "tiny");
    assert_ne!(rig.image(&task).await, first);
    let said = refused(data.path(), &["model", "remove", "big", "--yes"]);
    assert!(said.contains("no model \"big\" is installed"), "{said}");
}
