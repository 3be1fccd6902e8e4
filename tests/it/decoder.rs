//! Pictures are decoded in a child process; a child that misbehaves is contained.

use std::io::{Cursor, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use image::{ImageFormat, Rgb, RgbImage};
use serde_json::json;
use tempfile::TempDir;
use tintype_engine::picture::{Picture, PictureError};
use tintype_system::sandbox::{COMMAND, CPU_SECONDS, Confinement, DecodeError, Decoder, MEMORY_BYTES};

use crate::openai_edits::{data_url, png};
use crate::rigs::binary::{TINTYPE, signal};
use crate::rigs::service::{Service, pass};
use crate::rigs::wait::{until, until_some};

mod bombs;
mod files;

const RED: [u8; 3] = [255, 0, 0];
const BLUE: [u8; 3] = [0, 0, 255];

async fn decode(bytes: &[u8]) -> Result<Picture, DecodeError> {
    Decoder::new(TINTYPE).decode(bytes).await
}

/// A picture with a left half in red and a right half in blue.
fn two_halves(format: ImageFormat, width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_fn(width, height, |x, _| Rgb(if x < width / 2 { RED } else { BLUE }))
        .write_to(&mut bytes, format)
        .unwrap();
    bytes.into_inner()
}

/// Asserts the colour of a pixel as far as lossy formats keep it.
#[track_caller]
fn assert_near(picture: &Picture, x: u32, y: u32, expected: [u8; 3]) {
    let at = (y * picture.width() + x) as usize * 3;
    let found = &picture.as_rgb()[at..at + 3];
    assert!(found.iter().zip(expected).all(|(a, b)| a.abs_diff(b) < 40), "{found:?} at {x},{y}, not {expected:?}");
}

/// A decoder whose process is a shell script. A shell writes the script: a file that this process had open for writing
/// cannot be executed while another test's child inherits the descriptor.
fn script(directory: &TempDir, body: &str) -> Decoder {
    let path = directory.path().join("decoder");
    let mut shell = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    shell.stdin.take().unwrap().write_all(format!("#!/bin/sh\n{body}\n").as_bytes()).unwrap();
    assert!(shell.wait().unwrap().success());
    Decoder::new(path)
}

/// The value of a line of a file in `/proc`, with single blanks.
fn proc_line(path: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn the_process_is_confined_before_it_reads() {
    let mut child = Command::new(TINTYPE)
        .args([COMMAND, "64"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let proc = Path::new("/proc").join(child.id().to_string());
    // The filter is installed last; the process then waits for its input.
    until(async || {
        assert!(child.try_wait().unwrap().is_none(), "it ended");
        proc_line(&proc.join("status"), "Seccomp:").as_deref() == Some("2")
    })
    .await;
    assert_eq!(proc_line(&proc.join("status"), "NoNewPrivs:").unwrap(), "1");
    assert_eq!(proc_line(&proc.join("status"), "Threads:").unwrap(), "1");
    for (limit, expected) in [
        ("Max address space", format!("{MEMORY_BYTES} {MEMORY_BYTES} bytes")),
        ("Max cpu time", format!("{CPU_SECONDS} {} seconds", CPU_SECONDS + 1)),
        ("Max file size", "0 0 bytes".into()),
        ("Max open files", "3 3 files".into()),
        ("Max processes", "0 0 processes".into()),
        ("Max core file size", "0 0 bytes".into()),
    ] {
        assert_eq!(proc_line(&proc.join("limits"), limit).unwrap(), expected, "{limit}");
    }
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success(), "an empty file is an answer too");
}

#[tokio::test]
async fn this_machine_supports_full_confinement() {
    assert_eq!(Decoder::new(TINTYPE).probe().await.unwrap(), Confinement::Full);
}

#[tokio::test]
async fn the_decoder_inherits_no_environment_variables() {
    let directory = TempDir::new().unwrap();
    let seen = directory.path().join("environment");
    let decoder = script(&directory, &format!("tr '\\0' '\\n' < /proc/$$/environ > {}; pwd >> {0}", seen.display()));
    assert!(matches!(decoder.decode(b"").await, Err(DecodeError::Garbled)));
    assert_eq!(std::fs::read_to_string(seen).unwrap(), "/\n");
}

#[tokio::test]
async fn a_process_that_crashes_costs_one_picture() {
    let directory = TempDir::new().unwrap();
    for body in ["exit 1", "kill -SEGV $$", "cat > /dev/null; kill -ABRT $$"] {
        let error = script(&directory, body).decode(&vec![0; 1 << 20]).await.unwrap_err();
        assert!(matches!(error, DecodeError::Crashed(_)), "{body}: {error}");
    }
    assert!(decode(&two_halves(ImageFormat::Png, 8, 4)).await.is_ok());
}

#[tokio::test]
async fn an_answer_of_a_decoder_must_have_the_size_that_it_announces() {
    let directory = TempDir::new().unwrap();
    let header = |width: u32, height: u32| {
        let bytes = [width.to_be_bytes(), height.to_be_bytes()].concat();
        let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
        format!("printf '\\000\\001{octal}'; ")
    };
    let bytes = |count: u32| format!("head -c {count} /dev/zero");
    let good = script(&directory, &(header(2, 1) + &bytes(6))).decode(b"").await.unwrap();
    assert_eq!((good.width(), good.height()), (2, 1));
    for body in [
        String::new(),
        "printf '\\000\\001\\000'".into(),
        "printf '\\011\\001\\000\\000\\000\\001\\000\\000\\000\\001abc'".into(),
        header(0, 0),
        header(2, 1) + &bytes(5),
        header(2, 1) + &bytes(7),
        header(1569, 1) + &bytes(3 * 1569),
        header(u32::MAX, u32::MAX) + &bytes(3),
        header(1 << 31, 1 << 31),
        header(1568, 1568) + "cat /dev/zero",
        "yes".into(),
    ] {
        let error = script(&directory, &body).decode(b"").await.unwrap_err();
        assert!(matches!(error, DecodeError::Garbled), "{body}: {error}");
    }
}

#[tokio::test]
async fn a_process_that_hangs_is_killed() {
    let directory = TempDir::new().unwrap();
    let pid = directory.path().join("pid");
    let decoder = script(&directory, &format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", pid.display()));
    let start = |decoder: Decoder| tokio::spawn(async move { decoder.decode(b"").await.map(drop) });
    let hanging = async || {
        until(async || pid.exists()).await;
        let hanging = std::fs::read_to_string(&pid).unwrap();
        std::fs::remove_file(&pid).unwrap();
        Path::new("/proc").join(hanging.trim())
    };
    let limit = Duration::from_secs(100);
    let waiting = start(decoder.clone().with_time_limit(limit));
    let process = hanging().await;
    pass(limit).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, DecodeError::TimeLimit(_)), "{error}");
    assert!(!process.exists(), "killed and reaped");

    // The process also ends with the task that waits for it.
    let waiting = start(decoder);
    let process = hanging().await;
    waiting.abort();
    until(async || proc_line(&process.join("status"), "State:").is_none_or(|state| state.starts_with('Z'))).await;
}

/// The words of a file that the scripts of a test write, once there are so many.
async fn words(file: &Path, count: usize) -> Vec<String> {
    until_some(async || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let words: Vec<String> = text.split_whitespace().map(Into::into).collect();
        (words.len() >= count).then_some(words)
    })
    .await
}

/// Whether a process runs, or waits to be reaped.
fn runs(pid: &str) -> bool {
    let state = proc_line(&Path::new("/proc").join(pid).join("status"), "State:");
    state.is_some_and(|state| !state.starts_with('Z'))
}

#[tokio::test]
async fn the_next_result_finds_a_process_that_waits_and_each_serves_one() {
    let directory = TempDir::new().unwrap();
    let [started, served] = ["started", "served"].map(|name| directory.path().join(name));
    let body = format!(
        "echo $$ >> {}; cat > /dev/null; echo $$ >> {}; printf '\\000\\001\\000\\000\\000\\001\\000\\000\\000\\001abc'",
        started.display(),
        served.display()
    );
    let decoder = script(&directory, &body).keeping_ready();
    decoder.decode_result(b"").await.unwrap();
    let pids = words(&started, 2).await;
    assert_eq!(words(&served, 1).await, pids[..1]);
    decoder.decode_result(b"").await.unwrap();
    assert_eq!(words(&served, 2).await, pids);
    // One takes its place.
    let waiting = words(&started, 3).await.remove(2);

    // A process that the machine kills while it waits costs no picture.
    signal(waiting.parse().expect("a process"), "KILL");
    until(async || !runs(&waiting)).await;
    decoder.decode_result(b"").await.unwrap();
    let pids = words(&started, 5).await;
    // References and masks start their own.
    assert!(decoder.decode(b"").await.is_ok());
    assert_eq!(words(&started, 6).await.len(), 6);
    drop(decoder);
    until(async || !pids.iter().any(|pid| runs(pid))).await;
}

#[tokio::test]
async fn results_do_not_wait_for_the_pictures_of_callers() {
    let (slow, quick) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let started = slow.path().join("started");
    let hanging = script(&slow, &format!("echo $$ >> {}; exec sleep 600", started.display()));
    let all: Vec<_> =
        (0..3).map(|_| hanging.clone()).map(|one| tokio::spawn(async move { one.decode(b"").await })).collect();
    words(&started, 2).await;
    let answer = "cat > /dev/null; printf '\\000\\001\\000\\000\\000\\001\\000\\000\\000\\001abc'";
    script(&quick, answer).decode_result(b"").await.unwrap();
    all.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn a_decoder_that_cannot_be_started_is_not_the_fault_of_the_picture() {
    let error = Decoder::new("/nonexistent").decode(b"").await.unwrap_err();
    assert!(matches!(error, DecodeError::NotStarted(_)), "{error}");
}

#[tokio::test]
async fn a_decoder_that_is_killed_is_not_the_fault_of_the_picture() {
    let directory = TempDir::new().unwrap();
    let error = script(&directory, "kill -9 $$").decode(b"").await.unwrap_err();
    assert!(matches!(error, DecodeError::Killed), "{error}");
    let program = directory.path().join("decoder").display().to_string();
    let (_, caller) = Service::with_caller(&["--test-picture-decoder", &program], 10).await;
    let body = json!({ "prompt": "a boat", "images": [{ "image_url": data_url(&png(8, 8)) }] });
    let answer = caller.edit_json(&body).await;
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!(caller.credits().await, 10);
}

#[tokio::test]
async fn memory_and_processor_time_are_limited() {
    let directory = TempDir::new().unwrap();
    // Limits below its own, which it must not raise.
    let picture = bombs::flat_png(8_192, 6_144);
    assert!(decode(&picture).await.is_ok(), "within the ordinary limits");
    let poor = script(&directory, &format!("ulimit -v 180000; exec {TINTYPE} \"$@\""));
    let error = poor.decode(&picture).await.unwrap_err();
    assert!(matches!(error, DecodeError::Crashed(_)), "{error}");
    assert!(poor.decode(&two_halves(ImageFormat::Png, 8, 4)).await.is_ok(), "enough for a small one");

    let hurried = script(&directory, &format!("ulimit -t 0; exec {TINTYPE} \"$@\""));
    let error = hurried.decode(&picture).await.unwrap_err();
    assert!(matches!(error, DecodeError::Killed), "the hard limit: {error}");
}

/// These are refusals of the file and no crashes of the decoder.
#[track_caller]
fn assert_refused(outcome: Result<Picture, DecodeError>, what: &str) {
    match outcome {
        Err(DecodeError::Picture(PictureError::UnknownFormat | PictureError::Damaged(_))) => {}
        other => panic!("{what}: {:?}", other.map(|picture| (picture.width(), picture.height()))),
    }
}
