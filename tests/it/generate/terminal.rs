//! Images on a terminal.

use std::process::{Command, Stdio};

use super::Host;
use crate::rigs::binary::TINTYPE;

/// Runs `tintype generate` on a terminal of this kind, and returns what it shows.
fn on_terminal(host: &Host, variable: &str, more: &str) -> String {
    let out = tempfile::tempdir().unwrap();
    let url = host.server.url();
    let command = format!("{} generate fox --url {url} --out {} {more}", TINTYPE, out.path().display());
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]).stdin(Stdio::null());
    script.env_remove("TMUX").env_remove("TERM_PROGRAM").env("TERM", "xterm").env("TINTYPE_KEY", &host.key);
    let (name, value) = variable.split_once('=').unwrap();
    let output = script.env(name, value).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
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
        let said = on_terminal(&host, variable, more);
        assert_eq!([said.contains(kitty), said.contains(iterm)], shown, "{variable} {more}");
        // Base64 of the signature of every PNG.
        assert_eq!(said.contains("iVBORw0KGgo"), shown.contains(&true), "{variable} {more}");
    }
}
