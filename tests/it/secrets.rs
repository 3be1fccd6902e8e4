//! Keys and prompts stay where they belong, whatever is asked for and however much is logged.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::binary::{self, Server, tintype};
use crate::process::{ended, send, submit};
use crate::support::{GENERATE, TASKS};

/// Stands in every prompt and nowhere else.
const MARK: &str = "quagga-in-the-moonlight";

fn holds(path: &Path, secret: &str) -> bool {
    let bytes = std::fs::read(path).expect("a file");
    bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
}

/// Every way to get something wrong, with a real key and a prompt in it.
async fn misuse(server: &Server, key: &str) {
    let body = json!({ "prompt": MARK }).to_string();
    for (method, path, key, body) in [
        ("POST", format!("{GENERATE}?api_key={key}"), key, body.as_str()),
        ("GET", format!("{TASKS}?cursor={MARK}"), key, ""),
        ("GET", format!("{TASKS}/{MARK}"), key, ""),
        ("GET", format!("/{MARK}/{key}"), key, ""),
        ("PUT", GENERATE.to_owned(), key, body.as_str()),
        ("POST", GENERATE.to_owned(), &format!("{key}x"), body.as_str()),
        ("POST", GENERATE.to_owned(), key, &body[..body.len() - 1]),
        ("POST", GENERATE.to_owned(), key, &format!(r#"{{"prompt": ["{MARK}"]}}"#)),
        ("POST", GENERATE.to_owned(), key, &format!(r#"{{"prompt": "{MARK}", "n": 9}}"#)),
    ] {
        let answer = send(server.address, method, &path, key, body).await;
        assert!(answer.status.is_client_error(), "{answer:?}");
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(!text.contains(key) && !text.contains(MARK), "{text}");
    }
}

#[tokio::test]
async fn neither_keys_nor_prompts_are_logged_or_measured_and_keys_are_not_stored() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    let log = directory.path().join("log");
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "trace", "--metrics-listen", &free.to_string()]);
    command.arg("--data").arg(&data).stderr(std::fs::File::create(&log).expect("a file"));
    let server = Server::spawn(command);
    let key = server.first_key().expect("a key");
    for manner in ["", "[[fail]]", "[[policy]]", "[[panic]]"] {
        let task_id = submit(&server, &key, &format!("{MARK} {manner}")).await;
        ended(&server, &key, &task_id).await;
    }
    let reference = json!({ "prompt": MARK, "reference_images": ["https://nowhere.test.example/a.png"] });
    let answer = send(server.address, "POST", GENERATE, &key, &reference.to_string()).await;
    let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
    ended(&server, &key, &task_id).await;
    misuse(&server, &key).await;
    let metrics = send(free, "GET", "/metrics", "", "").await;
    assert!(!String::from_utf8_lossy(&metrics.body).contains(MARK));
    let rotated = binary::json(&data, &["key", "create", "--account", "default"]);
    let second = rotated["key"].as_str().expect("a key").to_owned();
    server.stop();

    assert!(holds(&log, "tintype"), "the log is the one looked at");
    for secret in [key.as_str(), second.as_str()] {
        // Its first characters are its name to operators.
        let hidden = &secret[10..];
        assert!(!holds(&log, hidden), "a key is in the log");
        for entry in std::fs::read_dir(&data).expect("a directory") {
            let path = entry.expect("an entry").path();
            assert!(!path.is_file() || !holds(&path, hidden), "{} holds a key", path.display());
        }
    }
    assert!(!holds(&log, MARK), "a prompt is in the log");
}
