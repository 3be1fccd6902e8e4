//! `tintype generate` against a real server, and against a scripted one for behaviour that a real server does not show
//! on demand.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rigs::binary::{self, Ran as _, Server, tintype};

mod connection;
mod terminal;

const TASK_ID: &str = "imgmodel-AAAAAAAAAAAAAAAAAAAAA";
const PNG: &[u8] = b"\x89PNG\r\n\x1a\nand so on";
/// A poll hint that keeps the tests short.
const SOON: &str = "x-poll-after: 0.05\r\n";

/// `tintype generate` with a directory of its own and no settings from outside.
struct Generate {
    out: TempDir,
    command: Command,
}

impl Generate {
    fn new(url: &str, key: &str) -> Self {
        let out = tempfile::tempdir().unwrap();
        let mut command = tintype();
        command.arg("generate").arg("--out").arg(out.path()).env("TINTYPE_URL", url);
        if !key.is_empty() {
            command.env("TINTYPE_KEY", key);
        }
        Self { out, command }
    }

    fn run<const N: usize>(mut self, arguments: [&str; N]) -> Ended {
        let output = self.command.args(arguments).output().unwrap();
        Ended::new(self.out, output)
    }
}

struct Ended {
    out: TempDir,
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    fn new(out: TempDir, output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { out, code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// Checks the exit code, and that standard error contains each of `words` and nothing that looks like a key.
    #[track_caller]
    fn check(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is not in {:?}", self.stderr);
        }
        assert!(!self.stderr.contains("tt_"), "{:?}", self.stderr);
        assert_eq!(self.stderr.lines().count(), usize::from(code != 0), "{:?}", self.stderr);
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {:?}", self.stdout))
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.out.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A real server with data of its own.
struct Host {
    server: Server,
    data: TempDir,
    key: String,
}

impl Host {
    fn start() -> Self {
        let (data, server, key) = Server::install(&[]);
        Self { server, data, key }
    }

    fn generate(&self) -> Generate {
        Generate::new(&self.server.url(), &self.key)
    }
}

/// A server that gives prepared answers, one per connection, and records the requests.
struct Script {
    url: String,
    requests: Receiver<String>,
}

impl Script {
    /// `answers` may need the URL of the server itself. The last is repeated; an empty one closes the connection.
    fn start(answers: impl FnOnce(&str) -> Vec<Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers = answers(&url);
        let (sender, requests) = channel();
        // The thread lives as long as the test process.
        thread::spawn(move || {
            let last = answers.last().cloned().unwrap_or_default();
            for answer in answers.into_iter().chain(std::iter::repeat(last)) {
                let Ok((mut stream, _)) = listener.accept() else { return };
                if sender.send(read_request(&mut stream)).is_err() {
                    return;
                }
                let _ = stream.write_all(&answer);
            }
        });
        Self { url, requests }
    }

    fn generate(&self) -> Generate {
        Generate::new(&self.url, "secret")
    }

    fn requests(&self) -> Vec<String> {
        self.requests.try_iter().collect()
    }
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let (mut request, mut length) = (String::new(), 0);
    while !request.ends_with("\r\n\r\n") && reader.read_line(&mut request).unwrap_or(0) > 0 {
        let line = request.lines().last().unwrap_or_default().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.take(length).read_to_string(&mut request).unwrap();
    request
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

fn accepted() -> Vec<u8> {
    let data = json!({"task_id": TASK_ID, "status": "processing", "images": []});
    answer("200 OK", SOON, json!({"success": true, "data": data}).to_string().as_bytes())
}

fn processing() -> Vec<u8> {
    let data = json!({"task_id": TASK_ID, "status": "processing", "images": null, "error": null});
    answer("200 OK", SOON, json!({"success": true, "data": data}).to_string().as_bytes())
}

fn completed(urls: &[String]) -> Vec<u8> {
    let images: Vec<_> = urls.iter().map(|url| json!({"url": url, "content_type": "image/png"})).collect();
    let data = json!({"task_id": TASK_ID, "status": "completed", "images": images, "error": null});
    answer("200 OK", "", json!({"success": true, "data": data}).to_string().as_bytes())
}

fn error(status: &str, headers: &str, message: &str) -> Vec<u8> {
    let body = json!({"error": {"code": "X", "message": message, "request_id": "r-1"}});
    answer(status, headers, body.to_string().as_bytes())
}

fn png() -> Vec<u8> {
    answer("200 OK", "Content-Type: image/png\r\n", PNG)
}

/// A server whose task has one image, which it answers with `file`.
fn one_image(file: Vec<u8>) -> Script {
    Script::start(|url| vec![accepted(), completed(&[format!("{url}/1.png")]), file])
}

#[track_caller]
fn assert_is_png(path: &Path) {
    let image = image::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!((image.width(), image.height()), (1280, 720));
}

#[test]
fn a_real_server_completes_a_task() {
    let host = Host::start();

    let ended = host.generate().run(["A red fox in the snow at dawn", "--aspect", "16:9"]);
    ended.check(0, &[]);
    let [path] = ended.stdout.lines().collect::<Vec<_>>()[..] else { panic!("{:?}", ended.stdout) };
    assert!(path.ends_with("-1.png") && path.contains("/imgmodel-"), "{path}");
    assert_is_png(Path::new(path));
    assert_eq!(ended.files().len(), 1);

    let ended = host.generate().run(["A lighthouse", "--aspect", "16:9", "-n", "2", "--json"]);
    ended.check(0, &[]);
    let shown = ended.json();
    let task_id = shown["task_id"].as_str().unwrap();
    assert_eq!((&shown["status"], &shown["error"]), (&json!("completed"), &Value::Null));
    assert_eq!(shown["images"].as_array().unwrap().len(), 2);
    for (position, path) in shown["files"].as_array().unwrap().iter().enumerate() {
        let path = Path::new(path.as_str().unwrap());
        assert_eq!(path, ended.out.path().join(format!("{task_id}-{}.png", position + 1)));
        assert_is_png(path);
    }
    assert_eq!(ended.files().len(), 2);
}

#[test]
fn a_real_server_fails_the_task() {
    let host = Host::start();
    let ended = host.generate().run(["A fox [[fail]]", "--json"]);
    ended.check(3, &["failed:", "refunded"]);
    let shown = ended.json();
    assert_eq!((&shown["status"], &shown["files"], &shown["images"]), (&json!("failed"), &json!([]), &json!([])));
    assert!(shown["error"].as_str().unwrap().contains("refunded"), "{shown}");
}

#[test]
fn a_real_server_refuses() {
    let host = Host::start();
    host.generate().run(["A fox", "--aspect", "16:10"]).check(2, &["aspect_ratio"]);
    host.generate().run(["A fox", "-n", "-1"]).check(2, &["the server says", "n must be"]);
    let ended = host.generate().run(["A fox", "--strength", "nan"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("'--strength <X>': must be a number"), "{}", ended.stderr);

    let ended = Generate::new(&host.server.url(), "wrong").run(["A fox", "--json"]);
    ended.check(4, &["rejected the key", "tintype key create --account"]);
    assert_eq!(ended.json()["task_id"], Value::Null);

    binary::json(host.data.path(), &["account", "create", "poor"]);
    let key = binary::json(host.data.path(), &["key", "create", "--account", "poor"]);
    let ended = Generate::new(&host.server.url(), key["key"].as_str().unwrap()).run(["A fox"]);
    ended.check(5, &["not enough credits", "costs 2 credits and the account has 0", "tintype credits grant"]);
    assert_eq!(ended.stdout, "");
}

#[test]
fn the_image_of_a_task_goes_to_standard_output() {
    let to_stdout = |script: &Script, arguments: &[&str]| {
        let mut command = tintype();
        let folder = tempfile::tempdir().unwrap();
        command.current_dir(&folder).args(arguments).args(["--out", "-", "--url", &script.url, "--key", "secret"]);
        let output = command.output().unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
        (output.status.code(), output.stdout, String::from_utf8(output.stderr).unwrap())
    };
    for arguments in [&["generate", "A fox"][..], &["get", TASK_ID]] {
        let script = Script::start(|url| {
            let task = [accepted(), completed(&[format!("{url}/1.png")]), png()];
            task.into_iter().skip(usize::from(arguments[0] == "get")).collect()
        });
        assert_eq!(to_stdout(&script, arguments), (Some(0), PNG.to_vec(), String::new()));
    }
    let two = Script::start(|url| vec![completed(&[format!("{url}/1.png"), format!("{url}/2.png")])]);
    for (arguments, code, reason) in [
        (&["generate", "A fox", "-n", "2"][..], 2, "a directory for several; nothing was submitted"),
        (&["generate", "A fox", "--json"], 2, "leave out --json"),
        (&["get", TASK_ID], 9, "--out - takes one image; the task is complete, its images are at http"),
    ] {
        let (ended, stdout, stderr) = to_stdout(&two, arguments);
        assert!(ended == Some(code) && !stdout.starts_with(PNG) && stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}

#[test]
fn an_unanswered_submit_is_not_repeated() {
    let broken_off = || answer("200 OK", "", b"{\"success\"").split_last().unwrap().1.to_vec();
    let gateway = || answer("502 Bad Gateway", "", b"<html>");
    for reply in [Vec::new(), broken_off(), gateway()] {
        let script = Script::start(|_| vec![reply]);
        let ended = script.generate().run(["A fox"]);
        ended.check(8, &["may exist and be charged", "curl", &format!("{}/api/v1/images/task", script.url)]);
        assert_eq!(script.requests().len(), 1);
    }
}

#[test]
fn a_refused_submit_is_not_repeated() {
    let script = Script::start(|_| vec![error("429 Too Many Requests", "Retry-After: 7\r\n", "Slow down.")]);
    script.generate().run(["A fox"]).check(6, &["Slow down.", "try again in 7 s"]);
    assert_eq!(script.requests().len(), 1);

    let script = Script::start(|_| vec![error("500 Internal Server Error", "", "Something \u{1b}[31mbroke.")]);
    script.generate().run(["A fox"]).check(1, &["no task was created: Something [31mbroke. (request id r-1)"]);
    assert_eq!(script.requests().len(), 1);

    let script = Script::start(|_| vec![answer("401 Unauthorized", "", b"<h1>401 Authorization Required</h1>")]);
    script.generate().run(["A fox"]).check(1, &["HTTP 401, and not from the Tintype API: look at the proxy"]);
}

#[test]
fn the_key_is_sent_only_to_the_api() {
    let elsewhere = Script::start(|_| vec![png()]);
    let script = Script::start(|_| vec![accepted(), completed(&[format!("{}/1.png", elsewhere.url)])]);
    script.generate().run(["A fox"]).check(0, &[]);
    let [submit, poll] = &script.requests()[..] else { panic!("two requests") };
    let [download] = &elsewhere.requests()[..] else { panic!("one request") };
    assert!(submit.starts_with("POST /api/v1/images/generate HTTP/1.1\r\n"), "{submit}");
    assert!(submit.contains("\r\nauthorization: Bearer secret\r\n") && submit.ends_with(r#"{"prompt":"A fox"}"#));
    assert!(poll.starts_with(&format!("GET /api/v1/images/task/{TASK_ID} HTTP/1.1\r\n")), "{poll}");
    assert!(poll.contains("\r\nauthorization: Bearer secret\r\n"));
    assert!(!download.contains("secret"), "{download}");
}

#[test]
fn a_redirect_does_not_get_the_key() {
    let elsewhere = Script::start(|_| vec![accepted()]);
    let location = format!("Location: {}/api/v1/images/generate\r\n", elsewhere.url);
    let script = Script::start(|_| vec![answer("307 Temporary Redirect", &location, b"")]);
    script.generate().run(["A fox"]).check(1, &["redirects to", &elsewhere.url]);
    assert!(elsewhere.requests().is_empty());
}

#[test]
fn plain_http_to_another_machine_needs_permission() {
    // 192.0.2.0/24 is reserved for documentation: no server answers there.
    let ended = Generate::new("http://192.0.2.1:9", "secret").run(["A fox"]);
    ended.check(2, &["plain HTTP", "192.0.2.1", "--insecure"]);
}

#[test]
fn a_key_is_needed() {
    Generate::new("http://127.0.0.1:9", "").run(["A fox"]).check(2, &["tintype key create", "TINTYPE_KEY"]);
    for key in [" ", "tt_x\u{200b}", "Bearer tt_x", "TINTYPE_KEY=tt_x"] {
        Generate::new("http://127.0.0.1:9", "").run(["A fox", "--key", key]).check(2, &["the key is empty or holds"]);
    }
}

#[test]
fn the_key_can_come_from_a_file_and_the_prompt_from_standard_input() {
    let script = one_image(png());
    let mut generate = Generate::new(&script.url, "");
    let key_file = tempfile::NamedTempFile::new().unwrap();
    fs::write(key_file.path(), "from-a-file\n").unwrap();
    generate.command.env("TINTYPE_KEY_FILE", key_file.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let reference = "https://example.com/a.png";
    let mut child = generate.command.args(["-", "--reference", reference, "--reference", reference]).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"A fox\nin snow\n").unwrap();
    assert!(child.wait_with_output().unwrap().status.success());
    let submit = &script.requests()[0];
    assert!(submit.contains("\r\nauthorization: Bearer from-a-file\r\n"), "{submit}");
    let body: Value = serde_json::from_str(submit.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body, json!({"prompt": "A fox\nin snow", "reference_images": [reference, reference]}));
}

#[test]
fn polling_and_downloading_outlast_a_429() {
    let busy = || error("429 Too Many Requests", "Retry-After: 0\r\n", "Slow down.");
    let script = Script::start(|url| {
        vec![accepted(), processing(), busy(), busy(), completed(&[format!("{url}/1.png")]), busy(), png()]
    });
    let ended = script.generate().run(["A fox"]);
    ended.check(0, &[]);
    assert_eq!(fs::read(ended.out.path().join(format!("{TASK_ID}-1.png"))).unwrap(), PNG);
    assert_eq!(script.requests().len(), 7);
}

#[test]
fn a_server_that_suggests_when_to_poll_is_asked_at_once_to_hold_its_answer_back() {
    let data = json!({"task_id": TASK_ID, "status": "processing", "images": []});
    let hint = "x-poll-after: 9.40\r\n";
    let accepted = answer("200 OK", hint, json!({"success": true, "data": data}).to_string().as_bytes());
    let script = Script::start(|url| vec![accepted, completed(&[format!("{url}/1.png")]), png()]);
    script.generate().run(["A fox"]).check(0, &[]);
    let requests = script.requests();
    assert!(requests.len() == 3 && requests[1].contains("prefer: wait=10\r\n"), "{requests:?}");
}

#[test]
fn a_key_revoked_during_the_wait_is_reported() {
    let script = Script::start(|_| vec![accepted(), error("401 Unauthorized", "", "No.")]);
    script.generate().run(["A fox"]).check(4, &["rejected the key", TASK_ID]);
}

#[test]
fn a_download_that_is_not_a_png_is_not_saved() {
    let files = [
        (answer("200 OK", "Content-Type: text/html\r\n", PNG), "not labelled image/png"),
        (answer("200 OK", "Content-Type: image/png\r\n", b"<html>"), "is not a PNG"),
        (answer("404 Not Found", "", b""), "404"),
    ];
    for (file, reason) in files {
        let script = one_image(file);
        let ended = script.generate().run(["A fox", "--json"]);
        let url = format!("{}/1.png", script.url);
        ended.check(9, &[reason, &url]);
        assert_eq!((&ended.json()["images"], &ended.json()["files"]), (&json!([url]), &json!([])));
        assert!(ended.files().is_empty());
    }
}

#[test]
fn an_image_that_fails_does_not_cost_the_others() {
    let script = Script::start(|url| {
        vec![
            accepted(),
            completed(&[format!("{url}/1.png"), format!("{url}/2.png")]),
            answer("410 Gone", "", b""),
            png(),
        ]
    });
    let ended = script.generate().run(["A fox"]);
    ended.check(9, &["image 1", "410"]);
    assert_eq!(ended.files(), [format!("{TASK_ID}-2.png")]);
    assert_eq!(ended.stdout.lines().count(), 1);
}

#[test]
fn existing_files_are_not_overwritten() {
    let script = one_image(png());
    let generate = script.generate();
    let path = generate.out.path().join(format!("{TASK_ID}-1.png"));
    fs::write(&path, "mine").unwrap();
    let ended = generate.run(["A fox"]);
    ended.check(9, &["cannot save", &script.url]);
    assert_eq!((fs::read(&path).unwrap(), ended.files().len()), (b"mine".to_vec(), 1));
}

#[test]
fn nothing_is_submitted_if_the_files_cannot_be_written() {
    let script = Script::start(|_| vec![accepted()]);
    let mut generate = script.generate();
    let file = generate.out.path().join("file");
    fs::write(&file, "").unwrap();
    generate.command = tintype();
    generate.command.args(["generate", "--url", &script.url, "--key", "secret", "--out"]).arg(file.join("below"));
    generate.run(["A fox"]).check(1, &["cannot save files", "nothing was submitted"]);
    assert!(script.requests().is_empty());
}

#[test]
fn a_hostile_task_id_names_no_file() {
    let data = json!({"task_id": "../../etc/passwd", "status": "processing", "images": []});
    let hostile = answer("200 OK", SOON, json!({"success": true, "data": data}).to_string().as_bytes());
    let script = Script::start(|_| vec![hostile]);
    script.generate().run(["A fox"]).check(8, &["not of this API"]);
}

#[test]
fn an_interrupted_wait_names_the_task() {
    for (signal, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let script = Script::start(|_| vec![accepted(), processing()]);
        let mut generate = script.generate();
        let command = generate.command.args(["A fox", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        // The second poll shows that the client understood the first.
        for _ in 0..3 {
            script.requests.recv().unwrap();
        }
        binary::signal(child.id(), signal);
        let ended = Ended::new(generate.out, child.wait_with_output().unwrap());
        ended.check(code, &["continues", &format!("tintype get {TASK_ID} --url {}", script.url)]);
        assert_eq!((&ended.json()["task_id"], &ended.json()["status"]), (&json!(TASK_ID), &json!("processing")));
    }
}

#[test]
fn a_wait_under_nohup_survives_the_end_of_the_terminal() {
    let script = Script::start(|_| vec![accepted(), processing()]);
    let Generate { command, out } = script.generate();
    let mut nohup = Command::new("nohup");
    nohup.arg(command.get_program()).args(command.get_args()).args(["A fox", "--json"]).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => nohup.env(name, value),
            None => nohup.env_remove(name),
        };
    }
    let child = nohup.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let signal = |name| binary::signal(child.id(), name);
    for _ in 0..3 {
        script.requests.recv().unwrap();
    }
    signal("HUP");
    for _ in 0..3 {
        script.requests.recv().unwrap();
    }
    signal("TERM");
    Ended::new(out, child.wait_with_output().unwrap()).check(143, &["continues"]);
}

#[test]
fn nothing_is_claimed_of_a_task_that_the_server_has_not_shown() {
    let host = Host::start();
    let (address, out) = (host.server.address.to_string(), tempfile::tempdir().unwrap());
    let unknown_key = "tt_0000000000000000000000000000000000000000";
    let mut get = tintype();
    get.args(["get", TASK_ID, "--json", "--url", &address, "--key", unknown_key, "--out"]).arg(out.path());
    let output = get.output().unwrap();
    let (said, report) = (output.errors(), output.json());
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("rejected the key") && !said.contains("accepted:"), "{said}");
    assert_eq!((&report["task_id"], &report["status"]), (&json!(TASK_ID), &Value::Null));
}

#[test]
fn a_task_is_fetched_later_and_again() {
    let host = Host::start();
    let generated = host.generate().run(["A lighthouse", "--aspect", "16:9", "-n", "2", "--json"]).json();
    let task_id = generated["task_id"].as_str().unwrap();
    let bare = task_id.strip_prefix("imgmodel-").unwrap();
    let out = tempfile::tempdir().unwrap();
    let address = host.server.address.to_string();
    // The second time an image is missing, and the other is there already. The address needs no scheme, and may be an
    // API's.
    for (id, missing, path) in [(task_id, "", ""), (bare, "-2.png", "/mcp"), (bare, "-1.png", "/api/v1/")] {
        drop(fs::remove_file(out.path().join(format!("{task_id}{missing}"))));
        let mut get = tintype();
        let url = format!("{address}{path}");
        get.args(["get", "--url", &url, "--key", &host.key, "--out"]).arg(out.path()).arg(id);
        let output = get.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.text().lines().count(), 2);
        for position in [1, 2] {
            assert_is_png(&out.path().join(format!("{task_id}-{position}.png")));
        }
    }
    let mut unknown = tintype();
    unknown.args(["get", TASK_ID, "--json", "--url", &address, "--key", &host.key, "--out"]).arg(out.path());
    let output = unknown.output().unwrap();
    let said = output.errors();
    assert!(output.status.code() == Some(1) && said.contains("has no task"), "{said}");
    let report = output.json();
    assert_eq!((&report["task_id"], &report["status"]), (&json!(TASK_ID), &Value::Null));
}

#[test]
fn a_reference_that_cannot_be_read_is_refused_before_anything_is_sent() {
    let script = Script::start(|_| vec![accepted()]);
    let said = ["./no-fox.png", "No such file", "Nothing was submitted"];
    script.generate().run(["A fox", "--reference", "./no-fox.png"]).check(2, &said);
    assert!(script.requests().is_empty());
}

#[test]
fn files_are_references() {
    let host = Host::start();
    let picture = image::DynamicImage::new_rgb8(30, 20);
    let path = host.data.path().join("fox.png");
    picture.save(&path).expect("a file");
    let path = path.to_str().expect("text");
    let arguments = ["A fox", "--reference", path, "--reference", path, "--aspect", "16:9", "-n", "2", "--json"];
    let ended = host.generate().run(arguments);
    ended.check(0, &[]);
    let made = image::open(ended.out.path().join(&ended.files()[0])).expect("a picture");
    assert_eq!((ended.files().len(), made.width(), made.height()), (2, 1280, 720));
    assert_eq!(ended.json()["status"], "completed");
    host.generate().run(["A fox", "--reference", path, "--aspect", "7:3"]).check(2, &["aspect_ratio must be one of"]);
    host.generate().run(["A fox", "--reference", path, "-n", "5"]).check(2, &["n must be an integer from 1 to 4"]);
    let text = host.data.path().join("fox.txt");
    fs::write(&text, "no picture").expect("a file");
    let text = text.to_str().expect("text");
    host.generate().run(["A fox", "--reference", text]).check(2, &["image[0]", "is not a PNG"]);
    binary::json(host.data.path(), &["account", "create", "poor"]);
    let poor = binary::json(host.data.path(), &["key", "create", "--account", "poor"]);
    let poor = poor["key"].as_str().expect("a key").to_owned();
    Generate::new(&host.server.url(), &poor).run(["A fox", "--reference", path]).check(5, &["not enough credits"]);
}

#[test]
fn ignored_settings_are_named() {
    let host = Host::start();
    let ended = host.generate().run(["A fox", "--steps", "10", "--negative-prompt", "blurry", "--seed", "1", "--json"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(ended.stderr, "The server ignored: negative_prompt, steps.\n");
    assert_eq!(ended.json()["ignored_fields"], json!(["negative_prompt", "steps"]));
    let ended = host.generate().run(["A fox", "--seed", "1", "--json"]);
    ended.check(0, &[]);
    assert!(ended.json().get("ignored_fields").is_none(), "{}", ended.stdout);
}

#[test]
fn a_server_without_presets_accepts_none() {
    let host = Host::start();
    for preset in ["nope", "imgmodel"] {
        let ended = host.generate().run(["A fox", "--preset", preset]);
        ended.check(2, &["has no presets: leave --preset out. Nothing was submitted"]);
    }
    assert_eq!(binary::json(host.data.path(), &["credits", "balance", "default"])["credits"], 1000);
}
