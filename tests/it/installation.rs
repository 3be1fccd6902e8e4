//! Commands use the running server's settings, not those of their own environment.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, TINTYPE, printed, tintype};
use crate::rigs::pgbouncer::PgBouncer;
use crate::rigs::postgres::{Database, cluster};

const NOBODY: u32 = 65534;

/// A server whose database and public URL only its environment and its directory tell.
fn server(directory: &Path) -> Server {
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"]).current_dir(directory);
    command.env("TINTYPE_DATA", "data").env("TINTYPE_DATABASE", "sqlite:elsewhere.db");
    command.env("TINTYPE_PUBLIC_URL", "https://images.example.com");
    Server::spawn(command)
}

/// Runs a command with an environment that belongs to another installation.
fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = tintype();
    command.env("TINTYPE_PUBLIC_URL", "https://other.example.com").env("TINTYPE_DATABASE", "sqlite:other.db");
    command.current_dir("/").args(arguments).arg("--data").arg(directory.join("data")).ran()
}

/// Runs a command with no settings of its own.
fn run_on(data: &Path, arguments: &[&str]) -> Output {
    tintype().args(arguments).arg("--data").arg(data).ran()
}

fn in_use(directory: &Path) -> String {
    format!("sqlite:{}", directory.join("elsewhere.db").display())
}

fn link(output: &Output) -> String {
    printed(output)["url"].as_str().expect("a URL").to_owned()
}

#[test]
fn commands_use_the_settings_of_the_running_server() {
    let directory = TempDir::new().expect("a directory");
    let server = server(directory.path());
    let listed = run(directory.path(), &["account", "list", "--json"]);
    assert!(listed.errors().contains("TINTYPE_DATABASE is ignored: this command uses the running server's (process"));
    let accounts = printed(&listed);
    assert_eq!(accounts[0]["name"], "default", "{accounts}");
    let url = link(&run(directory.path(), &["account", "link", "default", "--json"]));
    assert!(url.starts_with("https://images.example.com/"), "{url}");
    // A flag is meant for this command.
    let here = ["account", "link", "default", "--public-url", "https://here.example.com", "--json"];
    let url = link(&run(directory.path(), &here));
    assert!(url.starts_with("https://here.example.com/"), "{url}");
    let keys = printed(&run(directory.path(), &["key", "list", "--json"]));
    let id = keys[0]["id"].as_str().expect("an id").to_owned();
    assert!(run(directory.path(), &["key", "revoke", &id]).status.success());
    let keys = printed(&run(directory.path(), &["key", "list", "--json", "--database", &in_use(directory.path())]));
    assert!(!keys[0]["revoked_at"].is_null(), "{keys}");
    let settings = run(directory.path(), &["doctor", "--json"]).check("settings");
    assert!(settings["detail"].as_str().expect("text").starts_with("the running server's (process "), "{settings}");
    // A mistake that has nothing to do with the settings does not mention them.
    let errors = run(directory.path(), &["account", "create"]).errors();
    assert!(errors.contains("<NAME>") && !errors.contains("the settings are"), "{errors}");
    server.stop();
    let missing = run(directory.path(), &["account", "list"]);
    assert!(missing.errors().contains("other.db"), "{missing:?}");
}

#[test]
fn a_database_in_a_flag_of_the_server_overrides_a_file_in_its_environment() {
    let directory = TempDir::new().expect("a directory");
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--database", "sqlite:elsewhere.db"]);
    command.current_dir(directory.path()).env("TINTYPE_DATA", "data").env("TINTYPE_DATABASE_FILE", "nowhere");
    let server = Server::spawn(command);
    let accounts = printed(&run(directory.path(), &["account", "list", "--json"]));
    assert_eq!(accounts[0]["name"], "default", "{accounts}");
    server.stop();
}

#[test]
fn health_and_links_use_the_address_of_the_running_server() {
    let directory = TempDir::new().expect("a directory");
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let mut command = tintype();
    command.args(["serve", "--log", "warn", "--data"]).arg(directory.path()).args(["--listen", &free.to_string()]);
    let server = Server::spawn(command);
    let url = link(&run_on(directory.path(), &["account", "link", "default", "--json"]));
    assert!(url.starts_with(&format!("http://{free}/")), "{url}");
    let mut health = tintype();
    health.args(["health", "--data"]).arg(directory.path()).ran().succeeded();
    server.stop();
}

#[test]
fn only_a_process_of_the_owner_counts_as_the_server() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    let mut create = tintype();
    create.args(["account", "create", "ada", "--data"]).arg(&data).ran().succeeded();
    // A shell under another name, whose script has the name of the command.
    std::fs::write(directory.path().join("serve"), "echo started; read line").expect("a file");
    for path in [directory.path(), &directory.path().join("serve")] {
        open(path);
    }
    let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c"];
    let mut impostor = Command::new("setpriv");
    impostor.args(as_nobody).arg("exec -a tintype sh serve --data \"$0\"").arg(&data);
    impostor.env("TINTYPE_PUBLIC_URL", "https://trap.example.com").current_dir(directory.path());
    let mut impostor = impostor.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setpriv runs");
    let mut line = String::new();
    BufReader::new(impostor.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert_eq!(line, "started\n");
    let url = || {
        let mut command = tintype();
        command.args(["account", "link", "ada", "--json", "--data"]).arg(&data);
        link(&command.ran())
    };
    assert!(!url().contains("trap.example.com"));
    // The owner of the data could change them anyway.
    for entry in std::fs::read_dir(&data).expect("a directory") {
        chown(entry.expect("an entry").path(), Some(NOBODY), Some(NOBODY)).expect("root may give files");
    }
    chown(&data, Some(NOBODY), Some(NOBODY)).expect("root may give files");
    assert!(url().starts_with("https://trap.example.com/"));
    drop(impostor.stdin.take());
    impostor.wait().expect("a child");
}

#[test]
fn a_command_that_cannot_read_the_settings_of_the_server_changes_nothing() {
    let directory = TempDir::new().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    open(directory.path());
    chown(&data, Some(NOBODY), Some(NOBODY)).expect("root may give files");
    let as_nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    // As under systemd: a process with a capability shows its environment to those who have it too.
    let mut serve = Command::new("setpriv");
    serve.args(as_nobody).args(["--inh-caps=+net_bind_service", "--ambient-caps=+net_bind_service"]);
    serve.arg(TINTYPE).args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(&data);
    serve.env("TINTYPE_DATABASE", format!("sqlite:{}", data.join("elsewhere.db").display()));
    let server = Server::spawn(serve);
    let run = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(as_nobody).arg(TINTYPE).args(arguments).arg("--data").arg(&data).ran()
    };
    let said = run(&["account", "create", "ada"]).failed();
    assert!(said.contains("as root") && said.contains("--database"), "{said}");
    assert!(!data.join("tintype.db").exists(), "a database of its own");
    let named = format!("sqlite:{}", data.join("elsewhere.db").display());
    let accounts = printed(&run(&["account", "list", "--json", "--database", &named]));
    assert_eq!(accounts[0]["name"], "default", "{accounts}");
    let doctor = run(&["doctor", "--json"]).json();
    assert!(doctor[0]["detail"].as_str().is_some_and(|said| said.contains("as root")), "{doctor:#}");
    server.stop();
}

fn open(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("root may");
}

#[test]
fn doctor_names_a_pooler_that_shares_sessions_and_the_remedy() {
    let (database, pooler) = (Database::create(""), PgBouncer::start(cluster(), &["pool_mode = transaction"]));
    let data = TempDir::new().expect("a directory");
    let output = run(data.path(), &["doctor", "--database", &pooler.url(database.name())]);
    let said = output.text() + &output.errors();
    assert!(!output.status.success() && said.contains("`pool_mode = session`"), "{said}");
}

#[test]
fn commands_take_sessions_that_a_pooler_has_not_reset() {
    let lines = ["pool_mode = session", "server_reset_query ="];
    let (database, pooler) = (Database::create(""), PgBouncer::start(cluster(), &lines));
    let data = TempDir::new().expect("a directory");
    // Each command names its statements alike, and gets the sessions of those before.
    for name in ["ada", "eve", "joe", "kim"] {
        let created = ["account", "create", name, "--json", "--database", &pooler.url(database.name())];
        assert_eq!(printed(&run(data.path(), &created))["name"], name);
    }
}
