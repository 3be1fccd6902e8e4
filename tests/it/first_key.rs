//! The first key: on a terminal or in a file, never in a journal, with commands that can be pasted.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, TINTYPE, json, tintype};
use crate::rigs::debian;
use crate::rigs::http::{TASKS, send};

fn run(script: &str, folder: &Path) -> String {
    let output = Command::new("sh").args(["-ec", script]).current_dir(folder).ran();
    assert!(output.status.success(), "{script}: {output:?}");
    output.text()
}

/// The indented lines between two lines of the output.
fn block<'a>(said: &'a str, after: &str, before: &str) -> &'a str {
    let rest = said.split_once(after).unwrap_or_else(|| panic!("{after:?} in {said}")).1;
    rest.split_once(before).unwrap_or_else(|| panic!("{before:?} in {said}")).0.trim()
}

#[tokio::test]
async fn without_a_terminal_the_key_is_in_a_file_for_its_owner_alone() {
    let data = TempDir::new().expect("a directory");
    let log = data.path().join("server.log");
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "trace", "--data"]).arg(data.path());
    command.stderr(std::fs::File::create(&log).expect("a file"));
    let server = Server::spawn(command);
    let file = data.path().join("first-key");
    let key = std::fs::read_to_string(&file).expect("a file");
    assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    assert_eq!(send(server.address, "GET", TASKS, key.trim(), "").await.status, 200);
    let logged = std::fs::read_to_string(&log).expect("a log");
    assert!(!server.said.contains(key.trim()) && !logged.contains(key.trim()));
    assert!(server.said.contains("delete the file"), "{}", server.said);
    let link = data.path().join("first-sign-in-link");
    assert_eq!(std::fs::metadata(&link).expect("a file").permissions().mode() & 0o777, 0o600);
    let link = std::fs::read_to_string(&link).expect("a file");
    let path = link.trim().strip_prefix(&server.url()).expect("a URL of this server");
    let token = path.strip_prefix("/studio/sign-in/").expect("a link");
    assert_eq!(send(server.address, "POST", path, "", "").await.status, 303);
    let logged = std::fs::read_to_string(&log).expect("a log");
    assert!(!server.said.contains(token) && !logged.contains(token));
    server.stop();
}

#[test]
fn the_commands_of_the_first_start_can_be_pasted() {
    debian::needs("curl", "curl");
    // The path needs quotes in a shell.
    let folder = TempDir::with_prefix("it's a ").expect("a directory");
    let server = Server::start(&folder.path().join("data"), &[]);
    let generate = block(&server.said, "in another terminal:\n", "\n\nor over HTTP");
    assert!(generate.contains(&format!(" {TINTYPE} generate --url {} ", server.url())), "{generate}");
    let saved = run(generate, folder.path());
    assert!(saved.ends_with(".png\n") && folder.path().join(saved.trim()).exists(), "{saved}");
    let submit = block(&server.said, "This submits a task:\n", "\n\nand this polls it");
    let poll = block(&server.said, "until the task is completed:\n", "\n\nTo make images in the browser");
    let answers = run(&format!("{submit}\n{poll}"), folder.path());
    assert_eq!(answers.matches("\"task_id\":\"imgmodel-").count(), 2, "{answers}");
    server.stop();
}

#[test]
fn the_commands_of_the_first_start_work_in_any_directory() {
    let (folder, elsewhere) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data", "./data"]);
    command.current_dir(folder.path());
    let server = Server::spawn(command);
    let place = format!(" --data {}", folder.path().canonicalize().expect("a directory").join("data").display());
    let again = server.said.lines().find_map(|line| line.strip_prefix("Another one: ")).expect("a command");
    assert!(again.contains(&place), "{again}");
    let link = run(again, elsewhere.path());
    assert!(link.contains(&format!("{}/studio/sign-in/", server.url())), "{link}");
    let pull = server.said.lines().find(|line| line.contains("model pull")).expect("a command");
    assert!(pull.ends_with(&place), "{pull}");
    server.stop();
}

/// A server on a terminal, and its output until a line that begins with `last`.
struct OnTerminal {
    script: std::process::Child,
    _output: std::io::BufReader<std::process::ChildStdout>,
    said: String,
}

impl OnTerminal {
    fn start(data: &Path, last: &str) -> Self {
        // `script` comes from bsdutils, which every Debian has. It gives the server a terminal.
        let serve = format!("{TINTYPE} serve --listen 127.0.0.1:0 --log off --data {}", data.display());
        let mut command = Command::new("script");
        command.args(["--quiet", "--return", "--command", &serve, "/dev/null"]);
        let mut script = command.stdout(std::process::Stdio::piped()).spawn().expect("script runs");
        let mut said = String::new();
        let mut output = std::io::BufReader::new(script.stdout.take().expect("a pipe"));
        while !said.lines().last().is_some_and(|line| line.starts_with(last)) {
            let read = std::io::BufRead::read_line(&mut output, &mut said).expect("a pipe");
            assert_ne!(read, 0, "{said}");
        }
        Self { script, _output: output, said }
    }

    fn stop(mut self, data: &Path) {
        let lock = std::fs::read_to_string(data.join("tintype.lock")).expect("the lock names the server");
        run(&format!("kill {}", lock.trim()), data);
        assert!(self.script.wait().expect("script ends").success());
    }
}

#[test]
fn a_later_start_on_a_terminal_says_how_to_get_in() {
    let data = TempDir::new().expect("a directory");
    Server::start(data.path(), &[]).stop();
    let server = OnTerminal::start(data.path(), "New key:");
    let lines = server.said.split_once("\r\nReady.\r\n\r\n").expect("it is ready").1.replace("\r\n", "\n");
    let place = data.path().display();
    let link = format!("Sign in: {TINTYPE} account link NAME --data {place}\n");
    assert_eq!(lines, format!("{link}New key: {TINTYPE} key create --account NAME --data {place}\n"));
    server.stop(data.path());
}

#[test]
fn a_terminal_shows_the_key_and_no_file_holds_it() {
    let folder = TempDir::new().expect("a directory");
    let data = folder.path().join("data");
    let server = OnTerminal::start(&data, "Ready.");
    let said = &server.said;
    assert!(said.contains("It will not be shown again:\r\n\r\n  tt_"), "{said}");
    assert!(said.contains("\r\n  TINTYPE_KEY=tt_") && said.contains("\r\n  key=tt_"), "{said}");
    assert!(said.contains("it works once:\r\n\r\n  http://127.0.0.1:") && said.contains("/studio/sign-in/"), "{said}");
    assert!(!data.join("first-key").exists() && !data.join("first-sign-in-link").exists());
    server.stop(&data);
    assert_eq!(json(&data, &["key", "list"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn a_key_file_of_an_earlier_installation_is_replaced() {
    let data = TempDir::new().expect("a directory");
    std::fs::write(data.path().join("first-key"), "tt_old").expect("a file");
    let server = Server::start(data.path(), &[]);
    assert!(server.first_key().expect("a key").len() > 30);
    server.stop();
    let names = std::fs::read_dir(data.path()).expect("a directory").map(|entry| entry.expect("an entry").file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("part")), "no temporary file is left");
}
