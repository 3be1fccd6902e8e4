//! The real stable-diffusion.cpp server. `tests/engines/sd-server/run` builds it and runs these tests.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process};
use tempfile::TempDir;
use tintype_engine::{Mask, Stage};
use tokio::time::Instant;

use super::*;
use crate::rigs::binary::{Killed, processes};

/// Side of a picture that the tiny model paints in about 15 s on two cores.
const SLOW: u32 = 512;
/// Side of a picture for which the server finds too little memory within [`LITTLE_MEMORY_KIB`], and says so.
const TOO_LARGE: u32 = 2_048;
/// Side of a picture that ends it.
const FAR_TOO_LARGE: u32 = 65_536;
const LITTLE_MEMORY_KIB: u32 = 1_600_000;

#[expect(clippy::disallowed_methods, reason = "how the tests run is no setting")]
fn folder() -> PathBuf {
    std::env::var_os("TEST_SD_SERVER").expect("run tests/engines/sd-server/run").into()
}

fn program() -> String {
    folder().join("sd-server").display().to_string()
}

/// The arguments of the server with its model. Without the text encoder the model loads, and every picture crashes it.
fn arguments(with_text_encoder: bool) -> Vec<String> {
    let file = |name: &str| folder().join("model").join(name).display().to_string();
    let mut arguments: Vec<String> = vec!["--diffusion-model".into(), file("model.safetensors")];
    arguments.extend(["--taesd".into(), file("autoencoder.safetensors")]);
    if with_text_encoder {
        arguments.extend(["--clip_l".into(), file("text-encoder.safetensors")]);
    }
    arguments.extend(["--steps", "4", "--cfg-scale", "1", "-t", "2"].map(str::to_owned));
    arguments
}

/// A server that runs by itself.
struct Attached {
    process: Killed,
    port: u16,
}

impl Attached {
    fn start(port: Option<u16>) -> Self {
        let free = || TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let port = port.unwrap_or_else(free);
        let mut command = Command::new(program());
        command.args(arguments(true)).args(["--lora-model-dir", "/dev/null", "--listen-port", &port.to_string()]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self { process: Killed(command.spawn().expect("the server starts")), port }
    }

    fn engine(&self, more: &[&str]) -> Arc<dyn Engine> {
        let url = format!("sd-server:http://127.0.0.1:{}", self.port);
        engine(&[&["--engine", url.as_str()], more].concat()).1
    }

    fn kill(&mut self) {
        self.process.kill().expect("a process");
        self.process.wait().expect("a process");
    }
}

/// An engine that runs `program` with these arguments.
fn supervised(program: &str, arguments: &[String]) -> Arc<dyn Engine> {
    engine(&["--engine", "sd-server", "--engine-program", program, "--engine-args", &arguments.join(" ")]).1
}

async fn until_ready(engine: &Arc<dyn Engine>, what: &str) {
    let start = Instant::now();
    until(async || engine.probe().await.is_ok()).await;
    println!("{what}: {:.1} s", start.elapsed().as_secs_f32());
}

fn with_side(side: u32, brief: Brief) -> Brief {
    Brief { width: side, height: side, ..brief }
}

fn reference(colour: u8) -> Picture {
    Picture::from_rgb(100, 80, vec![colour; 100 * 80 * 3]).expect("a picture")
}

#[tokio::test]
#[ignore = "tests/engines/sd-server/run builds the server that it needs"]
async fn the_seed_the_prompt_and_the_references_decide_the_picture() {
    let server = Attached::start(None);
    let (painting_over, showing) = (server.engine(&[]), server.engine(&["--engine-references", "2"]));
    until_ready(&showing, "an attached server was ready after").await;
    let start = Instant::now();
    let pictures = render(&showing, brief("a boat", &[5, 5, u64::MAX])).await.expect("pictures");
    println!("three pictures: {:.1} s", start.elapsed().as_secs_f32());
    assert!(pictures[0] == pictures[1] && pictures[0] != pictures[2]);
    let one = |brief: Brief| async { render(&showing, brief).await.expect("a picture").remove(0) };
    assert_ne!(one(brief("a boat on the sea at night", &[5])).await, pictures[0]);
    let with = |references: &[u8]| Brief {
        references: references.iter().map(|colour| reference(*colour)).collect(),
        ..brief("a boat", &[5])
    };
    let (shown, two) = (one(with(&[200])).await, one(with(&[200, 30])).await);
    assert!(shown != pictures[0] && two != shown && one(with(&[30, 200])).await != two);
    let painted_over = render(&painting_over, with(&[200])).await.expect("a picture").remove(0);
    assert!(painted_over != pictures[0] && painted_over != shown);
}

#[tokio::test]
#[ignore = "tests/engines/sd-server/run builds the server that it needs"]
async fn a_mask_decides_which_part_is_painted() {
    let server = Attached::start(None);
    let engine = server.engine(&[]);
    until_ready(&engine, "an attached server was ready after").await;
    // So many that the outer quarters are beyond what the autoencoder mixes.
    let side = 256;
    let half = side as usize * 3 / 2;
    let mask = |left: u8, right: u8| {
        let row = [vec![left; half], vec![right; half]].concat();
        Mask::of(Picture::from_rgb(side, side, row.repeat(side as usize)).expect("a picture"))
    };
    let painted = async |mask: Mask| {
        let original = Picture::from_rgb(side, side, vec![200; half * 2 * side as usize]).expect("a picture");
        let brief = Brief { references: vec![original], mask: Some(mask), ..with_side(side, brief("a boat", &[5])) };
        render(&engine, brief).await.expect("a picture").remove(0)
    };
    let (left, right, nothing) = (painted(mask(255, 0)).await, painted(mask(0, 255)).await, painted(mask(0, 0)).await);
    // What the mask keeps goes through the autoencoder, so it is compared with a picture of which everything was kept.
    let quarters = |picture: &Picture| {
        let rows: Vec<_> = picture.as_rgb().chunks_exact(half * 2).collect();
        let of = |from: usize| rows.iter().flat_map(|row| row[from..][..half / 2].to_vec()).collect::<Vec<u8>>();
        [of(0), of(half + half / 2)]
    };
    let changes = |picture: &Picture| {
        let pairs = quarters(picture).into_iter().zip(quarters(&nothing));
        let apart = pairs.map(|(one, other)| one.iter().zip(other).map(|(a, b)| u64::from(a.abs_diff(b))).sum::<u64>());
        apart.collect::<Vec<_>>()
    };
    let (of_left, of_right) = (changes(&left), changes(&right));
    assert!(of_left[0] > 10 * of_left[1], "the left half was to be painted: {of_left:?}");
    assert!(of_right[1] > 10 * of_right[0], "the right half was to be painted: {of_right:?}");
}

#[tokio::test]
#[ignore = "tests/engines/sd-server/run builds the server that it needs"]
async fn a_cancelled_render_occupies_an_attached_server_until_its_picture_is_done() {
    let server = Attached::start(None);
    let engine = server.engine(&[]);
    until_ready(&engine, "an attached server was ready after").await;
    let cancel = CancellationToken::new();
    let slow = with_side(SLOW, brief("a boat", &[1, 2]));
    let cancelling = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(engine.render(slow, Progress::default(), cancel.clone()), cancelling);
    assert!(outcome.is_err());
    let busy = engine.probe().await;
    assert!(matches!(&busy, Err(EngineError::NotAvailable(text)) if text.contains("is still rendering")), "{busy:?}");
    until_ready(&engine, "its cancelled picture was done after").await;
    render(&engine, brief("a boat", &[1])).await.expect("a picture");
}

#[tokio::test]
#[ignore = "tests/engines/sd-server/run builds the server that it needs"]
async fn an_attached_server_that_is_killed_and_started_again_costs_one_attempt() {
    let mut server = Attached::start(None);
    let engine = server.engine(&[]);
    until_ready(&engine, "an attached server was ready after").await;
    let slow = with_side(SLOW, brief("a boat", &[1]));
    let killing = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.kill();
    };
    let (outcome, ()) = tokio::join!(render(&engine, slow), killing);
    assert!(matches!(&outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
    let gone = render(&engine, brief("a boat", &[1])).await;
    assert!(matches!(&gone, Err(EngineError::NotAvailable(_))), "{gone:?}");
    let server = Attached::start(Some(server.port));
    until_ready(&engine, "the server was ready again after").await;
    render(&engine, brief("a boat", &[1])).await.expect("a picture");
    drop(server);
}

#[tokio::test]
#[ignore = "tests/engines/sd-server/run builds the server that it needs"]
async fn a_supervised_server_reports_steps_and_is_replaced_when_it_overruns_or_dies() {
    let engine = supervised(&program(), &arguments(true));
    until_ready(&engine, "a supervised server was ready after").await;
    let progress = Progress::default();
    let pictures = engine.render(brief("a boat", &[1, 2]), progress.clone(), CancellationToken::new()).await;
    assert_eq!(pictures.expect("pictures").len(), 2);
    assert!(matches!(progress.latest(), Some(Stage::Step { of: 8, .. })), "{:?}", progress.latest());
    let slow = with_side(SLOW, brief("a boat", &[1]));
    let outcome = cancel_once(&engine, slow.clone(), async |progress| progress.latest().is_some()).await;
    assert!(outcome.is_err());
    until(async || engine.probe().await.is_err()).await;
    until_ready(&engine, "a server that overran was replaced after").await;
    let progress = Progress::default();
    let killing = async {
        until(async || progress.latest().is_some()).await;
        let program = program();
        let found =
            processes(|process| std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == Path::new(&program)));
        kill_process(found[0], Signal::KILL).expect("a process");
    };
    let rendering = engine.render(slow, progress.clone(), CancellationToken::new());
    let (outcome, ()) = tokio::join!(rendering, killing);
    assert!(matches!(&outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
    until_ready(&engine, "a server that was killed was replaced after").await;
    render(&engine, brief("a boat", &[1])).await.expect("a picture");
}

#[tokio::test]
#[ignore = "tests/engines/sd-server/run builds the server that it needs"]
async fn a_picture_that_needs_too_much_memory_costs_an_attempt_and_the_server_comes_back() {
    let directory = TempDir::new().expect("a directory");
    let script = directory.path().join("sd-server");
    let text = format!("#!/bin/sh\nulimit -v {LITTLE_MEMORY_KIB}; exec {} \"$@\"\n", program());
    std::fs::write(&script, text).expect("a file");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a file");
    let engine = supervised(&script.display().to_string(), &arguments(true));
    until_ready(&engine, "a server with little memory was ready after").await;
    for side in [TOO_LARGE, FAR_TOO_LARGE] {
        let outcome = render(&engine, with_side(side, brief("a boat", &[1]))).await;
        assert!(matches!(&outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
        println!("out of memory at {side}: {outcome:?}");
    }
    let gone = |error: &EngineError| matches!(error, EngineError::NotAvailable(text) if text.contains("bad_alloc"));
    until(async || engine.probe().await.as_ref().is_err_and(gone)).await;
    until_ready(&engine, "a server without memory was replaced after").await;
    render(&engine, brief("a boat", &[1])).await.expect("a picture");
}

#[tokio::test]
#[ignore = "tests/engines/sd-server/run builds the server that it needs"]
async fn a_model_that_crashes_the_server_at_its_first_picture_is_never_ready() {
    let engine = supervised(&program(), &arguments(false));
    let crashed = |error: &EngineError| matches!(error, EngineError::NotAvailable(text) if text.contains("signal: 11"));
    until(async || engine.probe().await.as_ref().is_err_and(crashed)).await;
    println!("without a text encoder: {:?}", engine.probe().await);
}
