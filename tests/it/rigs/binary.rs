//! The real `tintype` program, started and stopped as an operator does it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};

use rustix::process::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tintype_config::CONFIG_FILE;

use crate::rigs::service::Backend;
use crate::rigs::wait::until;

pub const TINTYPE: &str = env!("CARGO_BIN_EXE_tintype");

/// Time limit of an administrative command.
const LONGEST_RUN_SECONDS: &str = "120";

/// Flags of a server whose pictures matter less than what becomes of them: the sketch engine draws a small one, and the
/// worker enlarges it.
pub const SMALL: [&str; 2] = ["--engine-sizes", "64x64"];

/// The program with no settings from outside.
pub fn tintype() -> Command {
    let mut command = Command::new(TINTYPE);
    command.env_clear();
    command
}

pub fn data() -> TempDir {
    TempDir::new().expect("a directory")
}

pub fn data_with(config: &str) -> TempDir {
    let data = data();
    std::fs::write(data.path().join("tintype.toml"), config).expect("a file");
    data
}

/// Runs an administrative command on a data directory, and ends it if it hangs.
pub fn run<I: AsRef<OsStr>>(data: &Path, arguments: impl IntoIterator<Item = I>) -> Output {
    let database = Backend::of_services().url(data).map(|url| ("TINTYPE_DATABASE".to_owned(), url));
    run_with(Path::new(TINTYPE), data, database, arguments)
}

/// Runs a command of this program with an environment, and ends it if it hangs.
pub fn run_with<I: AsRef<OsStr>>(
    program: &Path,
    data: &Path,
    variables: impl IntoIterator<Item = (String, String)>,
    arguments: impl IntoIterator<Item = I>,
) -> Output {
    // `timeout` comes from coreutils. It keeps a command that should refuse and does not from hanging the test.
    let mut command = Command::new("timeout");
    command.arg(LONGEST_RUN_SECONDS).arg(program).env_clear().envs(variables);
    command.args(arguments).arg("--data").arg(data).ran()
}

/// Runs an administrative command that succeeds, and returns the JSON that it printed.
#[track_caller]
pub fn json(data: &Path, arguments: &[&str]) -> Value {
    printed(&run(data, arguments.iter().chain(&["--json"])))
}

/// The JSON output of a command that succeeded.
#[track_caller]
pub fn printed(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    output.json()
}

/// Runs an administrative command that fails, and returns its error message.
#[track_caller]
pub fn refused(data: &Path, arguments: &[&str]) -> String {
    let output = run(data, arguments);
    assert!(!output.status.success(), "{arguments:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    output.errors()
}

pub trait Run {
    fn ran(&mut self) -> Output;
}

impl Run for Command {
    #[track_caller]
    fn ran(&mut self) -> Output {
        self.output().unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }
}

pub trait Ran {
    fn output(&self) -> &Output;

    #[track_caller]
    fn text(&self) -> String {
        String::from_utf8(self.output().stdout.clone()).unwrap_or_else(|error| panic!("{error}: {:?}", self.output()))
    }

    /// Its standard output as JSON.
    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.output().stdout).unwrap_or_else(|error| panic!("{error}: {:?}", self.output()))
    }

    #[track_caller]
    fn errors(&self) -> String {
        String::from_utf8(self.output().stderr.clone()).unwrap_or_else(|error| panic!("{error}: {:?}", self.output()))
    }

    /// Asserts that it succeeded, and returns its standard output.
    #[track_caller]
    fn succeeded(&self) -> String {
        assert!(self.output().status.success(), "{:?}", self.output());
        self.text()
    }

    /// Asserts that it failed, and returns its standard error.
    #[track_caller]
    fn failed(&self) -> String {
        assert!(!self.output().status.success(), "{:?}", self.output());
        self.errors()
    }

    /// Asserts that it ended with this exit status.
    #[track_caller]
    fn exited(&self, code: i32) -> &Output {
        assert_eq!(self.output().status.code(), Some(code), "{:?}", self.output());
        self.output()
    }

    /// What `doctor --json` says of one check.
    #[track_caller]
    fn check(&self, name: &str) -> Value {
        let checks = self.json();
        let found = checks.as_array().and_then(|checks| checks.iter().find(|check| check["check"] == name));
        found.unwrap_or_else(|| panic!("no {name}: {checks:#}")).clone()
    }
}

impl Ran for Output {
    fn output(&self) -> &Output {
        self
    }
}

/// A server that draws small sketches, unless its flags or the files in its data directory name an engine.
pub fn small_sketches(mut server: Command, data: &Path) -> Command {
    let names = ["--engine", "--model", "--config"];
    let names_engine = |flag: &OsStr| names.iter().any(|name| flag.to_string_lossy().starts_with(name));
    let has_files = data.join(CONFIG_FILE).exists() || data.join("models").exists();
    if !has_files && !server.get_args().any(names_engine) {
        server.args(SMALL);
    }
    server
}

pub struct Server {
    process: Child,
    stdout: BufReader<ChildStdout>,
    /// Its output until it was ready.
    pub said: String,
    pub address: SocketAddr,
}

impl Server {
    /// Starts `tintype serve` on a free port and waits until it listens. Without another engine it draws small
    /// sketches.
    pub fn start(data: &Path, flags: &[&str]) -> Self {
        let mut command = tintype();
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "warn", "--data"]).arg(data).args(flags);
        Self::spawn(small_sketches(command, data))
    }

    /// Starts with a log in a file.
    pub fn with_log(data: &Path, log: &Path, flags: &[&str]) -> Self {
        let mut command = tintype();
        command.args(["serve", "--listen", "127.0.0.1:0", "--log", "info", "--data"]).arg(data).args(flags);
        command.stderr(File::create(log).expect("a file"));
        Self::spawn(command)
    }

    /// Starts a new installation, and returns its data directory and its first key, too.
    pub fn install(flags: &[&str]) -> (TempDir, Self, String) {
        let data = TempDir::new().expect("a directory");
        let server = Self::start(data.path(), flags);
        let key = server.first_key().expect("a key");
        (data, server, key)
    }

    pub fn spawn(command: Command) -> Self {
        Self::attempt(command).unwrap_or_else(|said| panic!("the server ended: {said}"))
    }

    /// Starts a server that may fail to start, and then returns its output.
    pub fn attempt(mut command: Command) -> Result<Self, String> {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut server = Self { process, stdout, said: String::new(), address: ([0, 0, 0, 0], 0).into() };
        while !server.said.ends_with("\nReady.\n") {
            let start = server.said.len();
            let length = server.stdout.read_line(&mut server.said).expect("a pipe");
            if length == 0 {
                return Err(std::mem::take(&mut server.said));
            }
            let url = server.said[start..].trim().strip_prefix("API").map(str::trim);
            if let Some(url) = url.filter(|url| server.address.port() == 0 && url.starts_with("http")) {
                let host = url.split('/').nth(2).expect("a host");
                server.address = host.parse().expect("an address");
            }
        }
        Ok(server)
    }

    /// A path inside the mount namespace of this process.
    pub fn path(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.process.id()));
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }

    pub fn memory(&self) -> u64 {
        self.mebibytes("VmRSS:")
    }

    /// Resident memory in MiB without that of files, such as the program.
    pub fn heap(&self) -> u64 {
        self.mebibytes("RssAnon:")
    }

    fn mebibytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("a process");
        let kib = status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
        kib.map(|kib: u64| kib / 1024).expect("a number")
    }

    /// Runs the program in the mount namespace of this process, and returns its output.
    pub fn inside(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("nsenter");
        command.args([
            "--preserve-credentials",
            "--user",
            "--mount",
            "--target",
            &self.process.id().to_string(),
            TINTYPE,
        ]);
        command.args(arguments).ran().succeeded()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The key of a first start, from the file that its output names. The file is gone afterwards, as an operator
    /// leaves it.
    pub fn first_key(&self) -> Option<String> {
        let path = self.path(&self.first_key_file()?);
        let key = std::fs::read_to_string(&path).expect("the file of the first key");
        std::fs::remove_file(path).expect("the file of the first key");
        Some(key.trim().to_owned())
    }

    /// The file of the first key that the output of a first start names, as the server sees it.
    pub fn first_key_file(&self) -> Option<PathBuf> {
        let path = self.said.lines().map(str::trim).find(|line| line.ends_with("/first-key"))?;
        Some(PathBuf::from(path))
    }

    pub fn signal(&self, name: &str) {
        signal(self.process.id(), name);
    }

    /// Whether SIGSTOP has stopped all of its threads.
    pub fn is_stopped(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("a process");
        threads.flatten().all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("a child")
    }

    /// Waits for its end.
    pub async fn until_ended(&mut self) -> ExitStatus {
        until(async || self.ended().is_some()).await;
        self.process.wait().expect("a child")
    }

    pub fn wait(mut self) -> ExitStatus {
        self.process.wait().expect("a child")
    }

    /// Sends SIGTERM and checks that it exits with status 0.
    pub fn stop(self) {
        self.signal("TERM");
        assert_eq!(self.wait().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killing a process that has ended is an error to ignore.
        drop(self.process.kill());
        drop(self.process.wait());
        drop(self.stdout.read_to_string(&mut String::new()));
    }
}

/// A path as an argument of a command.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// The names in a folder, in order.
pub fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The processes whose folder in `/proc` fits.
pub fn processes(fits: impl Fn(&Path) -> bool) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let found = entries.filter(|entry| fits(&entry.path()));
    found.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)).collect()
}

pub fn signal(process: u32, name: &str) {
    // `kill` is built into the shell, so no package is needed.
    let kill = format!("kill -{name} {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
}

/// A process that is killed when this is dropped, also when the test fails.
pub struct Killed(pub Child);

impl Deref for Killed {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Killed {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // Killing a process that has ended is an error to ignore.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs a script in a mount namespace of its own.
pub fn in_mount_namespace(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script]);
    command
}

/// `tintype serve` with its data on a file system that `mount` mounts in a namespace of its own.
pub fn serve_on(data: &Path, mount: &str, flags: &str) -> Command {
    let data = data.display();
    in_mount_namespace(&format!("{mount}; exec {TINTYPE} serve --listen 127.0.0.1:0 --log error --data {data} {flags}"))
}
