//! Images on a terminal.

use std::process::{Command, Stdio};

use serde_json::json;

use super::{Host, SOON, Script, TASK_ID, accepted, answer, completed, png};
use crate::rigs::binary::{Ran as _, TINTYPE};

/// Runs `tintype generate` on a terminal of this kind, and returns what it shows.
fn on_terminal(url: &str, key: &str, variable: &str, more: &str) -> String {
    let out = tempfile::tempdir().unwrap();
    let command = format!("{} generate fox --url {url} --out {} {more}", TINTYPE, out.path().display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]).stdin(Stdio::null());
    script.env_remove("TMUX").env_remove("TERM_PROGRAM").env("TERM", "xterm").env("TINTYPE_KEY", key);
    let (name, value) = variable.split_once('=').unwrap();
    script.env(name, value).output().unwrap().succeeded()
}

#[test]
fn terminals_that_can_show_images_do() {
    let host = Host::start();
    let (kitty, iterm) = ("\u{1b}_Ga=T,f=100", "\u{1b}]1337;File=inline=1;");
    for (variable, more, shown) in [
        ("TERM=xterm-kitty", "", [true, false]),
        ("TERM_PROGRAM=WezTerm", "", [false, true]),
        ("TERM=xterm", "", [false, false]),
        ("TERM=xterm-kitty", "--no-preview", [false, false]),
        ("TERM=xterm-kitty", "--json", [false, false]),
    ] {
        let said = on_terminal(&host.server.url(), &host.key, variable, more);
        assert_eq!([said.contains(kitty), said.contains(iterm)], shown, "{variable} {more}");
        // Base64 of the signature of every PNG.
        assert_eq!(said.contains("iVBORw0KGgo"), shown.contains(&true), "{variable} {more}");
    }
    let url = &host.server.url();
    let mut script = Command::new("script");
    let command = format!("{TINTYPE} generate fox --url {url} --out -");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]).stdin(Stdio::null());
    let said = script.env("TINTYPE_KEY", &host.key).output().unwrap().exited(2).text();
    assert!(said.contains("redirect it to a file"), "{said}");
}

#[test]
fn the_bar_shows_the_place_in_the_queue_and_then_the_steps_of_the_engine() {
    let unfinished = |headers: &str| {
        let data = json!({"task_id": TASK_ID, "status": "processing", "images": null, "error": null});
        let body = json!({"success": true, "data": data}).to_string();
        answer("200 OK", &format!("{SOON}{headers}"), body.as_bytes())
    };
    let script = Script::start(|url| {
        vec![
            accepted(),
            unfinished("x-queue-position: 3\r\n"),
            unfinished("x-queue-position: 0\r\nx-progress: 0.35\r\nx-steps: 7/20\r\nx-expected-wait: 9\r\n"),
            unfinished("x-queue-position: 0\r\nx-progress: 0.50\r\nx-expected-wait: 9\r\n"),
            completed(&[format!("{url}/1.png")]),
            png(),
        ]
    });
    let said = on_terminal(&script.url, "secret", "TERM=xterm", "");
    let places: Vec<_> = [", 3 in your queue", ", step 7 of 20", ", 50 % done"].map(|words| said.find(words)).to_vec();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?} in {said:?}");
}
