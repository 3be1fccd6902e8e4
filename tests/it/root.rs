//! Root and the service user: root works on the data of another user as that user, and leaves nothing of its own.
//!
//! These tests need a second user, so they must run as root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::rigs::binary::{Ran as _, Run as _, Server, TINTYPE, json, printed, refused, run, text, tintype};
use crate::rigs::http::{ended, send, submit};
use crate::rigs::wait::until;

/// The user of the service: nobody, who has an entry in /etc/passwd everywhere.
const SERVICE: u32 = 65_534;

/// A data directory that belongs to the service user, in a directory that belongs to root.
struct Places {
    directory: TempDir,
}

impl Places {
    fn new() -> Self {
        assert!(rustix::process::geteuid().is_root(), "this test needs a second user: run the tests as root");
        let directory = TempDir::new().expect("a directory");
        open(directory.path());
        let places = Self { directory };
        give(&places.create("data"));
        places
    }

    /// Creates a directory of root that others may enter.
    fn create(&self, name: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        fs::create_dir(&path).expect("a directory");
        open(&path);
        path
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// `tintype serve` as the service user.
    fn serve(&self) -> Command {
        let mut command = tintype();
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(self.data());
        command.uid(SERVICE).gid(SERVICE);
        command
    }

    /// Fails if anything in the data directory belongs to another than the service user.
    fn assert_all_of_service(&self) {
        for path in tree(&self.data()) {
            let owner = fs::symlink_metadata(&path).expect("an entry").uid();
            assert_eq!(owner, SERVICE, "{}", path.display());
        }
    }
}

#[test]
fn a_setuid_program_that_another_user_started_is_no_server() {
    // Here, unlike in memory, such programs run as their owner.
    let directory = TempDir::new_in("/var/tmp").expect("a directory");
    open(directory.path());
    let [program, data, database] = ["program", "data", "false.db"].map(|name| directory.path().join(name));
    fs::create_dir(&data).expect("a directory");
    fs::copy("/bin/cat", &program).expect("a program");
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("permissions");
    let mut started = Command::new(&program)
        .arg0("tintype")
        .args(["-", "serve"])
        .env("TINTYPE_DATA", &data)
        .env("TINTYPE_DATABASE", format!("sqlite:{}", database.display()))
        .uid(SERVICE)
        .gid(SERVICE)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a process");
    let status = fs::read_to_string(format!("/proc/{}/status", started.id())).expect("a process");
    assert!(status.contains("Uid:\t65534\t0\t0\t0"), "{status}");
    json(&data, &["account", "create", "ada"]);
    started.kill().expect("a process");
    started.wait().expect("a process");
    assert_eq!([database.exists(), data.join("tintype.db").exists()], [false, true]);
}

/// Lets all users enter and read a directory.
fn open(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("permissions");
}

/// Gives a file or directory to the service user.
fn give(path: &Path) {
    chown(path, Some(SERVICE), Some(SERVICE)).expect("root may give files away");
}

fn tree(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    if fs::symlink_metadata(path).expect("an entry").is_dir() {
        for entry in fs::read_dir(path).expect("a directory") {
            found.extend(tree(&entry.expect("an entry").path()));
        }
    }
    found.sort();
    found
}

fn run_as_service(data: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(TINTYPE);
    command.env_clear().args(arguments).arg("--data").arg(data).uid(SERVICE).gid(SERVICE);
    command.ran()
}

/// The checks of a doctor that finds nothing wrong.
#[track_caller]
fn healthy(data: &Path) -> Value {
    json(data, &["doctor"])
}

#[tokio::test]
async fn what_root_does_to_the_data_of_a_service_belongs_to_the_service() {
    let places = Places::new();
    let data = places.data();
    json(&data, &["account", "create", "ada", "--credits", "10"]);
    let key = json(&data, &["key", "create", "--account", "ada"])["key"].as_str().expect("a key").to_owned();
    json(&data, &["credits", "grant", "ada", "10"]);
    let password = places.create("secrets").join("password");
    fs::write(&password, "a password that only root can read").expect("a file");
    fs::set_permissions(&password, Permissions::from_mode(0o600)).expect("root may close it");
    json(&data, &["person", "add", "grace", "--account", "ada", "--password-file", text(&password)]);
    json(&data, &["queue", "pause"]);
    json(&data, &["queue", "resume"]);
    healthy(&data);
    places.assert_all_of_service();

    // The service uses what root has made, and root works beside it.
    let server = Server::spawn(places.serve());
    let task_id = submit(&server, &key, "a boat").await;
    json(&data, &["task", "list"]);
    healthy(&data);
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    let backups = places.create("backups");
    let backup = backups.join("today");
    json(&data, &["backup", text(&backup)]);
    places.assert_all_of_service();
    server.stop();
    healthy(&data);
    places.assert_all_of_service();

    // A backup that only root can read is restored into data of the service.
    for path in tree(&backup) {
        chown(&path, Some(0), Some(0)).expect("root may take files");
    }
    fs::rename(&data, places.directory.path().join("old")).expect("a free name");
    give(&places.create("data"));
    json(&data, &["restore", text(&backup)]);
    places.assert_all_of_service();
    let server = Server::spawn(places.serve());
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    server.stop();
    assert_eq!(fs::metadata(&backups).expect("a directory").uid(), 0);
}

#[test]
fn a_container_names_the_user_of_the_host_that_should_own_its_data() {
    let places = Places::new();
    let data = places.create("of-the-host");
    chown(&data, Some(4_321), Some(4_321)).expect("root may give files away");
    // As docker with `userns-remap` and rootless podman run a container: only one user of the host is in it.
    for inside in ["0", "10001"] {
        let mut command = Command::new("unshare");
        command.args(["--user", &format!("--map-user={inside}"), "--", TINTYPE]);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(&data);
        let said = command.ran().failed();
        assert!(said.contains("does not have") && said.contains("give it to user 0,"), "{inside}: {said}");
        assert!(!said.contains("65534"), "{inside}: {said}");
    }
}

#[test]
fn a_backup_to_a_place_that_the_service_cannot_reach_says_so_and_leaves_nothing() {
    let places = Places::new();
    json(&places.data(), &["account", "create", "ada"]);
    let backups = places.create("backups");
    fs::set_permissions(&backups, Permissions::from_mode(0o700)).expect("permissions");
    let said = refused(&places.data(), &["backup", text(&backups.join("today"))]);
    assert!(said.contains("ermission denied") && said.contains("nobody") && said.contains("no backup"), "{said}");
    assert_eq!(tree(&backups), [backups]);
}

#[tokio::test]
async fn a_server_that_root_starts_runs_as_the_owner_of_the_data_on_any_port() {
    let places = Places::new();
    // Each test process has its own loopback address, so the low port is free.
    let address = format!("127.{}.{}.1:443", std::process::id() / 256 % 256, std::process::id() % 256);
    let mut command = tintype();
    command.args(["serve", "--listen", &address, "--log", "warn", "--data"]).arg(places.data());
    let server = Server::spawn(command);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat").await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    places.assert_all_of_service();
    server.stop();
    Server::spawn(places.serve()).stop();
}

#[test]
fn data_in_a_directory_that_only_root_can_enter_is_found() {
    let places = Places::new();
    // As systemd lays out the data of a unit with DynamicUser=yes.
    let private = places.create("private");
    fs::rename(places.data(), private.join("tintype")).expect("a free name");
    fs::set_permissions(&private, Permissions::from_mode(0o700)).expect("permissions");
    symlink("private/tintype", places.data()).expect("a free name");
    json(&places.data(), &["account", "create", "ada"]);
    healthy(&places.data());
    for path in tree(&private.join("tintype")) {
        assert_eq!(fs::metadata(&path).expect("an entry").uid(), SERVICE, "{}", path.display());
    }
}

#[test]
fn root_follows_no_link_of_another_user_to_data_that_is_not_theirs() {
    let places = Places::new();
    let secret = places.create("secret");
    json(&secret, &["account", "create", "ada"]);
    let link = places.data().join("link");
    symlink(&secret, &link).expect("a free name");
    lchown(&link, Some(SERVICE), Some(SERVICE)).expect("root may give links away");
    for command in [&["account", "create", "eve"][..], &["doctor"]] {
        let said = refused(&link, command);
        assert!(said.contains("symbolic link") && said.contains("nobody"), "{said}");
    }
    assert_eq!(json(&secret, &["account", "list"]).as_array().map(Vec::len), Some(1));
}

#[test]
fn root_reads_nothing_for_a_user_who_closes_a_directory_of_their_own() {
    let places = Places::new();
    let data = places.data();
    json(&data, &["account", "create", "ada"]);
    fs::set_permissions(&data, Permissions::from_mode(0o200)).expect("permissions");
    for command in [&["account", "list"][..], &["doctor"]] {
        let said = refused(&data, command);
        assert!(said.contains("ermission denied"), "{said}");
    }
}

#[tokio::test]
async fn the_doctor_changes_nothing() {
    let places = Places::new();
    let missing = places.directory.path().join("missing");
    assert_eq!(run(&missing, ["doctor"]).status.code(), Some(1));
    assert!(!missing.exists());
    let data = places.data();
    let look = || {
        let entries = tree(&data).into_iter().map(|path| {
            let metadata = fs::metadata(&path).expect("an entry");
            // The index of the log is memory that the connections share: a reader of SQLite notes its place in it.
            let index = path.extension().is_some_and(|extension| extension == "db-shm");
            let written = (!index).then(|| metadata.modified().expect("a time"));
            (path, written, metadata.len(), metadata.uid())
        });
        entries.collect::<Vec<_>>()
    };
    let untouched = |about: &str| {
        let before = look();
        // A stopped process does not say whether it is ready, so the doctor gets no port to ask it at.
        json(&data, &["doctor", "--listen", "127.0.0.1:0"]);
        assert_eq!(look(), before, "{about}");
    };
    untouched("an empty directory");
    Server::spawn(places.serve()).stop();
    untouched("a stopped service");
    let server = Server::spawn(places.serve());
    server.signal("STOP");
    // The kernel stops the threads of a process one after the other.
    until(async || server.is_stopped()).await;
    untouched("a service that runs");
    server.signal("CONT");
    server.stop();
}

#[test]
fn the_doctor_finds_what_root_left_in_the_data() {
    let places = Places::new();
    Server::spawn(places.serve()).stop();
    chown(places.data().join("files"), Some(0), Some(0)).expect("root may take files");
    let checks = run(&places.data(), ["doctor", "--json"]).json();
    let failed: Vec<_> = checks.as_array().expect("checks").iter().filter(|check| check["ok"] == false).collect();
    let detail = failed[0]["detail"].as_str().expect("text");
    assert!(detail.contains("files belongs to root") && detail.contains("chown -R nobody"), "{checks}");
}

#[test]
fn the_doctor_is_content_with_a_volume_of_root_that_the_group_of_the_service_shares() {
    let places = Places::new();
    Server::spawn(places.serve()).stop();
    // As `fsGroup` leaves the directory of a volume.
    chown(places.data(), Some(0), Some(SERVICE)).expect("root may take directories");
    fs::set_permissions(places.data(), Permissions::from_mode(0o2777)).expect("permissions");
    let found = run_as_service(&places.data(), &["doctor", "--json"]).check("data directory");
    assert_eq!(found["ok"], true, "{found}");
    // With PostgreSQL there is no lock that shows the user of the service.
    fs::remove_file(places.data().join("tintype.lock")).expect("the lock");
    let output = run_as_service(&places.data(), &["doctor"]);
    assert!(!output.text().contains("chown"), "{output:?}");
    Server::spawn(places.serve()).stop();
}

#[test]
fn a_command_without_permission_says_so() {
    let places = Places::new();
    let data = places.create("of-root");
    json(&data, &["account", "create", "ada"]);
    // A server of root whose data this user cannot learn.
    let mut other = tintype();
    other.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn"]);
    other.env("TINTYPE_DATA", places.create("of-another-server"));
    let other = Server::spawn(other);
    let denied = |about: &str| {
        for command in [&["account", "list"][..], &["serve", "--listen", "127.0.0.1:0"]] {
            let said = run_as_service(&data, command).exited(1).errors();
            assert!(said.contains("ermission denied") && said.contains("belongs to root"), "{about}: {said}");
        }
    };
    denied("a database of root");
    fs::set_permissions(&data, Permissions::from_mode(0o700)).expect("permissions");
    denied("a directory of root");
    let server = run_as_service(&data, &["doctor", "--json"]).check("server");
    assert!(server["detail"].as_str().is_some_and(|text| text.contains("unknown: this user")), "{server}");
    other.stop();
}

#[tokio::test]
async fn files_that_cannot_be_written_cost_no_attempt_and_turn_readyz_red() {
    let places = Places::new();
    let mut command = places.serve();
    let log = places.directory.path().join("log");
    command.stderr(fs::File::create(&log).expect("a file"));
    let server = Server::spawn(command);
    let key = server.first_key().expect("a key");
    let files = places.data().join("files");
    let until = async |status: u16| {
        let ready = async || send(server.address, "GET", "/readyz", "", "").await.status == status;
        until(ready).await;
    };
    chown(&files, Some(0), Some(0)).expect("root may take files");
    open(&files);
    until(503).await;
    let task_id = submit(&server, &key, "a boat").await;
    let said = fs::read_to_string(&log).expect("a log");
    assert!(said.contains("cannot be written") && said.contains(text(&files)), "{said}");
    give(&files);
    until(200).await;
    assert_eq!(ended(&server, &key, &task_id).await["status"], "completed");
    server.stop();
    let output = run_as_service(&places.data(), &["credits", "audit", "--files", "--json"]);
    printed(&output);
}

#[test]
fn commands_that_stay_root_trust_no_config_file_of_the_service_user() {
    let places = Places::new();
    let (file, program, ran) =
        (places.data().join("tintype.toml"), places.data().join("program"), places.data().join("ran"));
    fs::write(&program, format!("#!/bin/sh\nid -u > {}\n", ran.display())).expect("a program");
    open(&program);
    let settings = format!("engine = \"sd-server\"\nengine-program = {program:?}\nengine-args = \"-m model\"\n");
    fs::write(&file, settings).expect("a file");
    give(&file);
    for command in [&["engine", "check"][..], &["engine", "list"], &["generate", "a boat"], &["mcp"]] {
        let said = tintype().args(command).arg("--data").arg(places.data()).ran().failed();
        assert!(said.contains("belongs to user 65534"), "{command:?}: {said}");
    }
    assert!(!ran.exists(), "a program of the service user ran as root");
    let of_root = places.create("of-root");
    fs::rename(&file, of_root.join("tintype.toml")).expect("a free name");
    let said = tintype().args(["account", "list", "--data"]).arg(&of_root).ran().failed();
    assert!(said.contains("belongs to nobody, and the data to root"), "{said}");
    fs::rename(of_root.join("tintype.toml"), &file).expect("a free name");
    chown(&file, Some(0), Some(0)).expect("root may take files");
    let output = tintype().args(["engine", "list", "--data"]).arg(places.data()).ran();
    assert!(output.status.success(), "{}", output.errors());
}

#[test]
fn root_uses_the_config_file_of_the_service_user_only_to_become_that_user() {
    let places = Places::new();
    let file = places.data().join("tintype.toml");
    fs::write(&file, "").expect("a file");
    give(&file);
    for command in [&["config", "show"][..], &["health"], &["preset", "list"]] {
        let said = tintype().args(command).arg("--data").arg(places.data()).ran().errors();
        assert!(said.contains("running as nobody, who owns"), "{command:?}: {said}");
    }
    // Every command refuses the file, rejects its content or never reads it.
    fs::write(&file, "nonsense = 1").expect("a file");
    let pages = places.create("pages");
    tintype().arg("man").arg(&pages).ran().succeeded();
    let commands = tree(&pages).into_iter().filter_map(|page| {
        let page = page.file_name()?.to_str()?.strip_suffix(".1")?.strip_prefix("tintype-")?;
        Some(page.splitn(2, '-').map(str::to_owned).collect::<Vec<_>>())
    });
    let commands: Vec<_> = commands.collect();
    assert!(commands.len() > 50, "{commands:?}");
    for command in &commands {
        let is_group = commands.iter().any(|other| other.len() > command.len() && other.starts_with(command));
        if is_group || command[0] == "help" {
            continue;
        }
        let said = tintype().args(command).arg("--data").arg(places.data()).ran().errors();
        let [name, rest @ ..] = &command[..] else { panic!("{command:?}") };
        match name.as_str() {
            "engine" if rest == ["library"] => assert!(said.contains("line 1"), "{command:?}: {said}"),
            "engine" | "policy" | "generate" | "get" | "mcp" => {
                assert!(said.contains("belongs to user 65534"), "{command:?}: {said}");
            }
            "version" | "openapi" | "completions" => assert!(!said.contains("tintype.toml"), "{command:?}: {said}"),
            _ => assert!(said.contains("line 1"), "{command:?}: {said}"),
        }
    }
}
