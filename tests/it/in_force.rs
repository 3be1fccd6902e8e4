//! While a server runs, commands use the settings that it started with, also those of its config file, which may have
//! changed since.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, TINTYPE, data_with, printed, tintype};
use crate::rigs::http::{TASKS, send};
use crate::rigs::wait::until;

/// A server that runs in a directory of its own, on `data` in there.
fn server_in(directory: &Path) -> Server {
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "off", "--data", "data"]).current_dir(directory);
    Server::spawn(command)
}

/// Runs a command from an empty directory, which stays empty.
fn run(data: &Path, arguments: &[&str]) -> Output {
    let elsewhere = TempDir::new().expect("a directory");
    let output = tintype().args(arguments).arg("--data").arg(data).current_dir(elsewhere.path()).ran();
    assert_eq!(fs::read_dir(elsewhere.path()).expect("a directory").count(), 0, "{arguments:?} left files behind");
    output
}

async fn status(server: &Server, key: &str) -> u16 {
    send(server.address, "GET", TASKS, key, "").await.status.as_u16()
}

/// Creates an account on the running server's database, and returns the id and the secret of its key.
async fn key_on(server: &Server, data: &Path, name: &str) -> (String, String) {
    run(data, &["account", "create", name]).succeeded();
    let created = printed(&run(data, &["key", "create", "--account", name, "--json"]));
    let text = |field: &str| created[field].as_str().unwrap_or_else(|| panic!("{field} in {created}")).to_owned();
    assert_eq!(status(server, &text("key")).await, 200, "{name} is in the server's database");
    (text("id"), text("key"))
}

#[tokio::test]
async fn relative_paths_in_the_config_file_start_where_the_server_runs() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    fs::create_dir(&data).expect("a directory");
    // Nothing listens on this port, so the engine only has to find its key.
    let engine = "[engine.ours]\nkind = \"openai\"\nurl = \"http://127.0.0.1:9/v1\"\nkey-file = \"engine.key\"\n";
    fs::write(directory.path().join("engine.key"), "k").expect("a file");
    let file = format!("database = \"sqlite:x.db\"\nfiles = \"file:pics\"\n{engine}");
    fs::write(data.join("tintype.toml"), file).expect("a file");
    let server = server_in(directory.path());
    key_on(&server, &data, "ada").await;
    let backup = directory.path().join("backup");
    run(&data, &["backup", backup.to_str().expect("UTF-8")]).succeeded();
    assert!(directory.path().join("pics").is_dir() && backup.exists());
    // Also a command that reads the file again, and one that takes the server's engines.
    for command in [&["engine", "check"][..], &["doctor"]] {
        let output = run(&data, command);
        let said = output.text() + &output.errors();
        assert!(said.contains("127.0.0.1:9") && !said.contains("engine.key"), "{command:?}: {said}");
    }
    server.stop();
}

#[tokio::test]
async fn commands_keep_to_the_database_of_the_server_when_its_file_names_another() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    let server = server_in(directory.path());
    let (id, key) = key_on(&server, &data, "ada").await;
    let other = directory.path().join("other.db");
    fs::write(data.join("tintype.toml"), format!("database = \"sqlite:{}\"\n", other.display())).expect("a file");
    run(&data, &["key", "revoke", &id]).succeeded();
    until(async || status(&server, &key).await == 401).await;
    key_on(&server, &data, "eve").await;
    assert!(!other.exists());
    // A file that the command itself names counts as its flags do.
    let file = data.join("tintype.toml").display().to_string();
    assert!(run(&data, &["account", "list", "--config", &file]).failed().contains("other.db"));
    server.stop();
    assert!(run(&data, &["account", "list"]).failed().contains("other.db"));
}

#[tokio::test]
async fn a_config_file_that_a_running_server_ignores_keeps_no_command_from_its_work() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    let server = server_in(directory.path());
    let path = data.join("tintype.toml");
    for (name, mode, file) in [
        ("ada", 0o600, "[preset.x]\nsteps = \"many\"\n"),
        ("eve", 0o600, "lisen = \"127.0.0.1:9\"\n"),
        ("joe", 0o600, "nonsense"),
        ("kim", 0o644, "database = \"postgres://ada:pass-71c2@127.0.0.1/images\"\n"),
    ] {
        fs::write(&path, file).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a file");
        let (id, key) = key_on(&server, &data, name).await;
        let backup = directory.path().join(name).display().to_string();
        for command in
            [&["health"][..], &["credits", "grant", name, "5"], &["backup", &backup], &["key", "revoke", &id]]
        {
            let output = run(&data, command);
            assert!(output.status.success(), "{file}: {command:?}: {output:?}");
            let errors = output.errors();
            assert!(errors.contains("tintype.toml, line 1: ") || errors.contains("tintype.toml, line 2: "), "{errors}");
            assert!(errors.contains("ignoring the file") && !errors.contains("pass-71c2"), "{errors}");
        }
        until(async || status(&server, &key).await == 401).await;
        let settings = run(&data, &["doctor", "--json"]).check("settings");
        assert_eq!(settings["ok"], false, "{settings}");
        // These are about the file.
        for command in [&["preset", "list"][..], &["engine", "check"]] {
            assert_eq!(run(&data, command).status.code(), Some(2), "{command:?}");
        }
    }
    server.stop();
    assert_eq!(run(&data, &["account", "list"]).status.code(), Some(2));
}

#[test]
fn commands_reach_a_server_on_the_port_that_the_system_chose() {
    let (data, server, _) = Server::install(&[]);
    run(data.path(), &["health"]).succeeded();
    let link = printed(&run(data.path(), &["account", "link", "default", "--json"]));
    assert!(link["url"].as_str().is_some_and(|url| url.starts_with(&server.url())), "{link}");
    server.stop();
}

#[test]
fn nobody_else_can_open_what_a_server_shows() {
    let data = data_with("engine-key = \"pass-71c2\"\n");
    fs::set_permissions(data.path().join("tintype.toml"), fs::Permissions::from_mode(0o600)).expect("a file");
    let server = Server::start(data.path(), &[]);
    let id = fs::read_to_string(data.path().join("tintype.lock")).expect("the lock names the server");
    let opened = fs::read_dir(format!("/proc/{}/fd", id.trim())).expect("a process").flatten().map(|file| file.path());
    let shown: Vec<_> = opened
        .filter(|path| fs::read_link(path).is_ok_and(|target| target.to_string_lossy().contains("tintype-settings")))
        .collect();
    let [shown] = &shown[..] else { panic!("{shown:?}") };
    assert!(fs::read_to_string(shown).expect("a file").contains("pass-71c2"));
    assert_eq!(fs::metadata(shown).expect("a file").permissions().mode() & 0o777, 0o600);
    server.stop();
}

#[test]
fn beside_settings_of_units_that_it_cannot_read_a_command_creates_no_database() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    fs::create_dir(&data).expect("a directory");
    for path in [directory.path(), &data] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("a directory");
    }
    let script = |command: &str| {
        let file = "mount -t tmpfs none /etc && touch /etc/tintype.env && chmod 0 /etc/tintype.env";
        let user = "setpriv --reuid=65534 --regid=65534 --clear-groups";
        format!("{file} && exec {user} {TINTYPE} {command} --data {}", data.display())
    };
    let run = |command: &str| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-ec", &script(command)]).env_clear().env("PATH", "/usr/bin:/bin").ran()
    };
    let said = run("account create ada").failed();
    assert!(said.contains("/etc/tintype.env") && said.contains("--database"), "{said}");
    assert_eq!(fs::read_dir(&data).expect("a directory").count(), 0);
    let named = format!("account create ada --database sqlite:{}", data.join("tintype.db").display());
    run(&named).succeeded();
    run("account create eve").succeeded();
}
