//! Models that are added and removed while a server runs.

use std::fs;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use super::data;
use crate::rigs::binary::{Ran as _, Server, json, refused, run, tintype};
use crate::tidy::root;

/// A server, and the key of its first account.
struct Rig<'a> {
    data: &'a Path,
    server: Server,
    key: String,
}

impl<'a> Rig<'a> {
    fn start(data: &'a Path, flags: &[&str]) -> Self {
        let server = Server::start(data, flags);
        let key = server.first_key().expect("a key");
        Self { data, server, key }
    }

    fn generate(&self, out: &str) -> Child {
        let out = self.data.join(out);
        let mut command = tintype();
        command.args(["generate", "a boat", "--seed", "7", "--url", &self.server.url(), "--key", &self.key, "--out"]);
        command.arg(out).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }

    fn image(&self, out: &str, output: &Output) -> Vec<u8> {
        assert!(output.status.success(), "{output:?}");
        let file = fs::read_dir(self.data.join(out)).expect("a folder").next().expect("an image").expect("an image");
        fs::read(file.path()).expect("an image")
    }

    /// An image of the engine that renders now.
    fn made(&self) -> Vec<u8> {
        let output = self.generate("now").wait_with_output().expect("an end");
        let image = self.image("now", &output);
        fs::remove_dir_all(self.data.join("now")).expect("removed");
        image
    }
}

fn add(data: &Path, model: &str, name: &str) {
    let model = root().join("crates/diffusion/tests/parity").join(model);
    let added = json(data, &["model", "add", model.to_str().expect("text"), "--name", name]);
    assert_eq!(added["usable"], true);
}

#[test]
fn a_server_takes_up_an_added_model_and_lets_go_of_a_removed_one() {
    let data = data();
    let rig = Rig::start(data.path(), &[]);
    let sketch = rig.made();
    add(data.path(), "sd15", "tiny");
    let mut painted = rig.made();
    while painted == sketch {
        painted = rig.made();
    }
    // It keeps its model when another one comes that is first by name.
    add(data.path(), "lcm", "another");
    let later = [rig.made(), rig.made()];
    assert!(later.iter().all(|image| *image == painted));
    json(data.path(), &["model", "remove", "another", "--yes"]);
    let removed = run(data.path(), ["model", "remove", "tiny", "--yes"]);
    assert!(removed.status.success(), "{removed:?}");
    let said = removed.errors();
    assert!(said.contains("waiting until the running server has finished its tasks with tiny"), "{said}");
    while rig.made() != sketch {}
    assert!(json(data.path(), &["model", "list"])["installed"].as_array().expect("a list").is_empty());
    assert_eq!(fs::read_dir(data.path().join("models")).expect("a folder").count(), 0, "nothing is left");
}

#[test]
fn a_model_that_the_server_was_started_with_may_be_removed_and_added_again() {
    let data = data();
    add(data.path(), "sd15", "tiny");
    let rig = Rig::start(data.path(), &["--model", "tiny"]);
    let first = rig.made();
    let again = root().join("crates/diffusion/tests/parity/lcm");
    let said = refused(data.path(), &["model", "add", again.to_str().expect("text"), "--name", "tiny", "--hash"]);
    assert!(said.contains("there is a model tiny already"), "{said}");
    json(data.path(), &["model", "remove", "tiny", "--yes"]);
    // A task that comes now waits for a model of this name, whichever it is.
    let task = rig.generate("later");
    add(data.path(), "lcm", "tiny");
    let output = task.wait_with_output().expect("an end");
    assert_ne!(rig.image("later", &output), first);
    let said = refused(data.path(), &["model", "remove", "big", "--yes"]);
    assert!(said.contains("no model \"big\" is installed"), "{said}");
}
