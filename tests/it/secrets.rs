//! Keys, prompts and passwords appear in no log, metric or file, for any request and at every log level.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::rigs::binary::{Ran as _, Run as _, Server, tintype};
use crate::rigs::faulty_http::{Double, Reply};
use crate::rigs::http::{Answer, GENERATE, TASKS, ended, exchange, send, submit};
use crate::rigs::ports::Port;

/// Occurs in every prompt and nowhere else.
const MARK: &str = "quagga-in-the-moonlight";
/// A word that the policy refuses.
const FORBIDDEN: &str = "thylacine";
/// Signs the URL of a reference.
const SIGNATURE: &str = "signature-5d41402a";
const PASSWORD: &str = "password-7c211433";
const MODERATION_KEY: &str = "moderation-key-9b7e";

fn holds(path: &Path, secret: &str) -> bool {
    let bytes = std::fs::read(path).expect("a file");
    // Optimised, unlike the tests: they search many megabytes of logs for each secret.
    memchr::memmem::find(&bytes, secret.as_bytes()).is_some()
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// A broken moderation endpoint that quotes the request in its answer.
async fn talkative_endpoint() -> Double {
    Double::start(|asked| {
        let quoted = format!("{:?} {}", asked.headers, String::from_utf8_lossy(&asked.body));
        Reply::Whole(500, Vec::new(), quoted.into_bytes())
    })
    .await
}

/// An installation, everything that it writes, and the secrets that it must not write.
struct Scene {
    directory: TempDir,
    keys: Vec<String>,
}

impl Scene {
    fn new(moderation: &Double) -> Self {
        let scene = Self { directory: TempDir::new().expect("a directory"), keys: Vec::new() };
        std::fs::create_dir(scene.path("logs")).expect("a folder");
        std::fs::create_dir(scene.path("etc")).expect("a folder");
        let policy = format!(
            "[[rule]]\nname = \"beasts\"\nwords = [\"{FORBIDDEN}\"]\n[strikes]\nlimit = 100\nwindow = \"1h\"\n\
             [moderation]\nurl = \"http://{}/v1/moderations\"\nkey_file = \"moderation-key\"\n\
             unreachable = \"open\"\n",
            moderation.address
        );
        let signed = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        for (name, text) in [
            ("etc/policy.toml", policy),
            ("etc/moderation-key", MODERATION_KEY.to_owned()),
            ("etc/cert.pem", signed.cert.pem()),
            ("etc/key.pem", signed.signing_key.serialize_pem()),
        ] {
            std::fs::write(scene.path(name), text).expect("a file");
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The program on this installation, with the most verbose log in a file of its own.
    fn tintype(&self, arguments: &[&str]) -> Command {
        let log = self.path("logs").join(format!("{}.log", files(&self.path("logs")).len()));
        let mut command = tintype();
        command.args(arguments).args(["--log", "trace", "--data"]).arg(self.path("data"));
        command.stderr(std::fs::File::create(log).expect("a file"));
        command
    }

    fn serve(&self, flags: &[&str]) -> Server {
        let fixed = ["serve", "--listen", "127.0.0.1:0", "--policy", &self.text("etc/policy.toml")];
        Server::spawn(self.tintype(&[&fixed, flags].concat()))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.tintype(arguments).ran()
    }

    /// Runs a command that makes a key.
    fn make_key(&mut self, arguments: &[&str]) -> Value {
        let made = self.run(&[arguments, &["--json"]].concat()).json();
        self.keys.push(made["key"].as_str().expect("a key").to_owned());
        made
    }

    /// Searches everything that was written for secrets.
    fn assert_kept(&self) {
        let logs = files(&self.path("logs"));
        assert!(logs.iter().any(|log| holds(log, "tintype")), "the search covers the logs");
        assert!(files(&self.path("data")).iter().any(|file| holds(file, MARK)), "the search covers the database");
        for key in &self.keys {
            // Operators see its first characters as its name.
            let hidden = &key[10..];
            for path in files(self.directory.path()) {
                assert!(!holds(&path, hidden), "{} holds a key", path.display());
            }
        }
        for log in &logs {
            for secret in [MARK, SIGNATURE, PASSWORD, MODERATION_KEY, &BASE64_STANDARD.encode(PASSWORD)] {
                assert!(!holds(log, secret), "{secret} is in {}", log.display());
            }
        }
        for picture in files(&self.path("data/files")) {
            assert!(!holds(&picture, MARK), "{} holds its prompt", picture.display());
        }
    }
}

/// Every end that a task can have.
async fn submit_all(server: &Server, key: &str) {
    for manner in ["", "[[fail]]", "[[policy]]", "[[panic]]", FORBIDDEN] {
        let task_id = submit(server, key, &format!("{MARK} {manner}")).await;
        ended(server, key, &task_id).await;
    }
    let url =
        format!("https://nowhere.test.example/{SIGNATURE}?{SIGNATURE}#{SIGNATURE}").replacen(SIGNATURE, "a.png", 1);
    let body = json!({ "prompt": MARK, "reference_images": [url] }).to_string();
    let answer = send(server.address, "POST", GENERATE, key, &body).await;
    let task_id = answer.json()["data"]["task_id"].as_str().expect("a task_id").to_owned();
    ended(server, key, &task_id).await;
}

fn assert_tells_nothing(answer: &Answer, key: &str) {
    let text = format!("{:?} {}", answer.headers, String::from_utf8_lossy(&answer.body));
    assert!(!text.contains(&key[10..]) && !text.contains(MARK) && !text.contains(PASSWORD), "{text}");
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
        ("POST", GENERATE.to_owned(), key, &format!(r#"{{"{MARK}": 1, "{MARK}x": 1, "prompt": 7}}"#)),
    ] {
        let answer = send(server.address, method, &path, key, body).await;
        assert!(answer.status.is_client_error(), "{answer:?}");
        assert_tells_nothing(&answer, key);
    }
}

/// Secrets in the wrong places of a header.
async fn fail_to_authenticate(server: &Server, key: &str) {
    let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("ada:{PASSWORD}")));
    for (name, value) in [
        ("authorization", basic),
        ("authorization", format!("Bearer {PASSWORD}")),
        ("authorization", format!("Token {key}")),
        ("x-api-key", key.to_owned()),
        ("cookie", format!("session={key}; password={PASSWORD}")),
        ("referer", format!("https://a.example/?token={key}")),
        ("user-agent", format!("{key} {PASSWORD}")),
    ] {
        let request = hyper::Request::post(GENERATE).header("host", "a.example").header(name, value);
        let stream = TcpStream::connect(server.address).await.expect("the server listens");
        let answer = exchange(stream, request.body(Full::new(Bytes::from(MARK))).expect("a request")).await;
        answer.assert_error(401, "UNAUTHORIZED");
        assert_tells_nothing(&answer, key);
    }
}

/// Bytes that are not HTTP, with and without TLS.
async fn babble(server: &Server, key: &str) {
    for said in [
        format!("{key} {MARK} {PASSWORD}\r\n\r\n"),
        format!("GET /{key}?{MARK} HTTP/9.9\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: {key}\r\nhost: {MARK}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nhost: a\r\n{key}\0: {PASSWORD}\r\n\r\n"),
        format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", key.repeat(2_000)),
        format!("GET {TASKS} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {key}\r\n\r\n"),
    ] {
        let mut stream = TcpStream::connect(server.address).await.expect("the server listens");
        stream.write_all(said.as_bytes()).await.expect("the server reads");
        stream.shutdown().await.expect("an open socket");
        let mut answer = Vec::new();
        // For a request that is too long, a reset may overtake the answer.
        drop(stream.read_to_end(&mut answer).await);
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.contains(&key[10..]) && !answer.contains(MARK) && !answer.contains(PASSWORD), "{answer}");
    }
}

// Commands block a thread while the endpoint answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_keys_nor_prompts_are_logged_or_measured_and_keys_are_not_stored() {
    let moderation = talkative_endpoint().await;
    let mut scene = Scene::new(&moderation);
    let free = Port::take();
    let server = scene.serve(&["--metrics-listen", &free.address.to_string()]);
    let key = server.first_key().expect("a key");
    scene.keys.push(key.clone());
    submit_all(&server, &key).await;
    assert!(!moderation.asked().is_empty(), "prompts went to the endpoint");
    misuse(&server, &key).await;
    fail_to_authenticate(&server, &key).await;
    babble(&server, &key).await;

    let made = scene.make_key(&["key", "create", "--account", "default"]);
    let id = made["id"].as_str().expect("an id").to_owned();
    scene.make_key(&["key", "rotate", &id]);
    let (policy, prompt) = (scene.text("etc/policy.toml"), format!("{MARK} {FORBIDDEN}"));
    scene.run(&["policy", "check", &policy, &prompt]);
    assert!(scene.run(&["backup", &scene.text("backup")]).status.success());
    assert!(holds(&scene.path("backup/tintype.db"), MARK));
    for arguments in [["key", "list"], ["task", "list"], ["credits", "audit"]] {
        scene.run(&arguments);
    }
    let metrics = send(free.address, "GET", "/metrics", "", "").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    assert!(scene.keys.iter().all(|key| !metrics.contains(&key[10..])) && !metrics.contains(MARK), "{metrics}");
    // Now the database still has its log beside it, and afterwards it is one file.
    scene.assert_kept();
    server.stop();
    scene.assert_kept();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_https_nor_the_client_leaks_keys_or_prompts() {
    let moderation = talkative_endpoint().await;
    let mut scene = Scene::new(&moderation);
    let (cert, key_file, out) = (scene.text("etc/cert.pem"), scene.text("etc/key.pem"), scene.text("pictures"));
    let server = scene.serve(&["--production", "--tls-cert", &cert, "--tls-key", &key_file]);
    let key = server.first_key().expect("a key");
    scene.keys.push(key.clone());
    let url = format!("https://{}", server.address);
    let closed = "https://127.0.0.1:1";
    let wrong = format!("{key}x");
    let reference = format!("https://nowhere.test.example/a.png?{SIGNATURE}");
    for (url, key, prompt, more, code) in [
        (url.as_str(), key.as_str(), MARK.to_owned(), &["--out", &out][..], 0),
        (&url, &key, format!("{MARK} [[fail]]"), &[], 3),
        (&url, &key, format!("{MARK} {FORBIDDEN}"), &["--json"], 3),
        (&url, &key, MARK.to_owned(), &["--reference", &reference], 3),
        (&url, &key, MARK.to_owned(), &["--aspect", MARK], 2),
        (&url, &wrong, MARK.to_owned(), &[], 4),
        (closed, &key, MARK.to_owned(), &[], 1),
    ] {
        let fixed = ["generate", &prompt, "--url", url, "--key", key, "--ca", &cert];
        let output = scene.run(&[&fixed[..], more].concat());
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    assert_eq!(files(&scene.path("pictures")).len(), 1);
    assert!(!moderation.asked().is_empty(), "prompts went to the endpoint");
    babble(&server, &key).await;
    scene.assert_kept();
    server.stop();
    scene.assert_kept();
}
