//! A server that the service runs itself, as a child process that it watches and kills.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tintype_engine::Stage;

use super::*;
use crate::rigs::binary::{Ran as _, Run as _, Server, processes, tintype};
use crate::rigs::http::{ended, submit};

/// The program, under a path of its own for each test.
struct Program {
    directory: TempDir,
    path: PathBuf,
}

impl Program {
    fn new() -> Self {
        static COMPILED: LazyLock<PathBuf> = LazyLock::new(|| {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sd-server-double");
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sd_server/program.rs");
            Command::new("rustc").args(["--edition", "2024", "-o"]).arg(&path).arg(source).ran().succeeded();
            path
        });
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let path = directory.path().join("sd-server");
        fs::hard_link(&*COMPILED, &path).expect("a link on the same disk");
        let picture = Picture::from_rgb(SIDE, SIDE, vec![7; (SIDE * SIDE * 3) as usize]).expect("a picture");
        fs::write(directory.path().join("picture"), BASE64_STANDARD.encode(picture.to_png())).expect("a file");
        Self { directory, path }
    }

    /// Flags of a service that runs it, with more arguments for the program.
    fn flags(&self, more: &str) -> Vec<String> {
        let arguments = format!("--picture {} {more}", self.directory.path().join("picture").display());
        let path = self.path.display().to_string();
        ["--engine", "sd-server", "--engine-sizes", "64x64", "--engine-program", &path, "--engine-args", &arguments]
            .map(str::to_owned)
            .into()
    }

    fn engine(&self, more: &str) -> Arc<dyn Engine> {
        let flags = self.flags(more);
        engine(&flags.iter().map(String::as_str).collect::<Vec<_>>()).1
    }

    fn processes(&self) -> Vec<Pid> {
        processes(|process| fs::read_link(process.join("exe")).is_ok_and(|program| program == self.path))
    }
}

async fn until_ready(engine: &Arc<dyn Engine>) {
    until(async || engine.probe().await.is_ok()).await;
}

/// The reason why an engine is not available, as soon as it holds `part`.
async fn until_down_because(engine: &Arc<dyn Engine>, part: &str) {
    until(async || matches!(engine.probe().await, Err(EngineError::NotAvailable(text)) if text.contains(part))).await;
}

#[tokio::test]
async fn a_child_is_started_warmed_up_and_renders_with_steps() {
    let program = Program::new();
    let engine = program.engine("");
    let early = render(&engine, brief("a boat", &[1])).await;
    assert!(matches!(&early, Err(EngineError::NotAvailable(text)) if text.contains("starting")), "{early:?}");
    until_ready(&engine).await;
    let progress = Progress::default();
    let pictures = engine.render(brief("a boat", &[1, 2]), progress.clone(), CancellationToken::new()).await;
    assert_eq!(pictures.expect("pictures").len(), 2);
    assert!(matches!(progress.latest(), Some(Stage::Step { of: 8, .. })), "{:?}", progress.latest());
    let devices = engine.devices().await;
    let process = program.processes()[0].as_raw_nonzero();
    assert!(devices.len() == 1 && devices[0].name.ends_with(&format!("sd-server, process {process}")), "{devices:?}");
    assert!(devices[0].used_memory.is_some_and(|bytes| bytes > 100_000), "{devices:?}");
    drop(engine);
    until(async || program.processes().is_empty()).await;
}

#[tokio::test]
async fn a_prompt_that_crashes_the_child_costs_an_attempt_and_the_child_is_started_again() {
    let program = Program::new();
    let engine = program.engine("");
    until_ready(&engine).await;
    let outcome = render(&engine, brief("crash", &[1])).await;
    assert!(matches!(&outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
    until_down_because(&engine, "GGML_ASSERT(false) failed").await;
    until_ready(&engine).await;
    render(&engine, brief("a boat", &[1])).await.expect("pictures");
}

#[tokio::test]
async fn a_child_that_renders_for_too_long_is_killed_and_replaced() {
    let program = Program::new();
    let engine = program.engine("");
    until_ready(&engine).await;
    let first = program.processes();
    let outcome = cancel_once(&engine, brief("hang", &[1, 2]), async |progress| progress.latest().is_some()).await;
    assert!(outcome.is_err(), "{outcome:?}");
    until(async || !program.processes().iter().any(|process| first.contains(process))).await;
    until_ready(&engine).await;
    assert_eq!((first.len(), program.processes().len()), (1, 1));
    render(&engine, brief("a boat", &[1])).await.expect("pictures");
}

#[tokio::test]
async fn a_child_that_is_killed_while_it_is_idle_is_started_again() {
    let program = Program::new();
    let engine = program.engine("");
    until_ready(&engine).await;
    let first = program.processes();
    kill_process(first[0], Signal::KILL).expect("a process");
    until_down_because(&engine, "signal: 9").await;
    until_ready(&engine).await;
    assert_ne!(program.processes(), first);
}

#[tokio::test]
async fn a_child_that_cannot_start_is_not_available_and_says_why() {
    let program = Program::new();
    until_down_because(&program.engine("--end --words 'no such model: x.gguf'"), "no such model: x.gguf").await;
    let missing = program.directory.path().join("missing").display().to_string();
    let (_, engine) = engine(&["--engine", "sd-server", "--engine-program", &missing, "--engine-args", "--model x"]);
    until_down_because(&engine, "No such file").await;
    // A script counts as a program, and what it starts ends with it.
    let script = program.directory.path().join("script");
    fs::write(&script, format!("#!/bin/sh\n{} \"$@\" & wait\n", program.path.display())).expect("a file");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a file");
    let mut flags = program.flags("");
    flags.extend(["--engine-program".into(), script.display().to_string()]);
    flags.drain(4..6);
    let (_, engine) = super::engine(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    until_ready(&engine).await;
    drop(engine);
    until(async || program.processes().is_empty()).await;
}

#[tokio::test]
async fn one_child_runs_on_each_device() {
    let program = Program::new();
    let mut flags = program.flags("");
    flags.extend(["--engine-devices".into(), "0,1".into()]);
    let (info, engine) = engine(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(info.slots, 2);
    let device = |process: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", process.as_raw_nonzero())).expect("a process");
        let environment = String::from_utf8(environment).expect("text");
        environment.split('\0').find_map(|line| line.strip_prefix("CUDA_VISIBLE_DEVICES=")).map(str::to_owned)
    };
    // A process that is just beginning has no environment yet.
    until(async || {
        let mut devices: Vec<_> = program.processes().iter().map(device).collect();
        devices.sort();
        devices == [Some("0".into()), Some("1".into())]
    })
    .await;
    drop(engine);
}

#[test]
fn arguments_that_would_print_prompts_or_open_a_port_are_refused() {
    for (arguments, reason) in [
        ("", "with at least a model"),
        ("--model 'x", "quote without an end"),
        ("--model x -v", "print the prompts"),
        ("--model x --listen-ip=0.0.0.0", "listens on a free port"),
    ] {
        let refusal = choose(["--engine", "sd-server", "--engine-args", arguments]).expect_err(arguments);
        assert!(refusal.contains(reason), "{arguments}: {refusal}");
    }
}

#[tokio::test]
async fn a_service_that_is_killed_takes_its_child_along_and_logs_no_prompt() {
    let program = Program::new();
    let log = program.directory.path().join("log");
    let mut command = tintype();
    command.args(["serve", "--listen", "127.0.0.1:0", "--log", "debug", "--data"]);
    command.arg(program.directory.path().join("data")).args(program.flags(""));
    // The child ends if it sees it.
    command.env("TINTYPE_SECRET_KEY", "secret");
    command.stderr(fs::File::create(&log).expect("a file"));
    let server = Server::spawn(command);
    let key = server.first_key().expect("a key");
    for (prompt, status) in [("a boat of gold", "completed"), ("crash of gold", "failed")] {
        let task_id = submit(&server, &key, prompt).await;
        assert_eq!(ended(&server, &key, &task_id).await["status"], status);
    }
    until(async || program.processes().len() == 1).await;
    let api = submit(&server, &key, "a boat afterwards").await;
    assert_eq!(ended(&server, &key, &api).await["status"], "completed");
    server.signal("KILL");
    until(async || program.processes().is_empty()).await;
    let log = fs::read_to_string(&log).expect("a log");
    assert!(log.contains("GGML_ASSERT(false) failed") && log.contains("started the engine process"), "{log}");
    assert!(!log.contains("gold"), "a prompt is in the log: {log}");
}
