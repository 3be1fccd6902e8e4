//! Faults of the child and of its model: each costs one attempt at most, and has a line for the operator.

use super::*;
use crate::rigs::binary::{Ran as _, refused};

/// The reason why an engine is not available, as soon as it holds `part`.
async fn until_down_because(rig: &Rig, part: &str) {
    until(async || matches!(rig.engine.probe().await, Err(EngineError::NotAvailable(text)) if text.contains(part)))
        .await;
}

async fn until_ready(rig: &Rig) {
    until(async || rig.engine.probe().await.is_ok()).await;
}

fn kill(model: &Path) {
    for id in processes(model) {
        kill_process(id, Signal::KILL).expect("a process");
    }
}

/// An order that takes long enough to be interrupted.
fn long_rig(model: &Path) -> Rig {
    Rig::new(model, &["--engine-steps", "1000"])
}

/// Waits until a render has done some steps.
async fn until_painting(progress: &Progress) {
    until(async || matches!(progress.latest(), Some(Stage::Step { done, .. }) if done > 2)).await;
}

#[tokio::test]
async fn a_child_that_is_killed_in_a_render_costs_the_attempt_and_comes_back() {
    let (_directory, model) = copy_of("sd15");
    let rig = long_rig(&model).started().await;
    let progress = Progress::default();
    let rendering = rig.engine.render(brief("a boat", &[1, 2]), progress.clone(), CancellationToken::new());
    let killing = async {
        until_painting(&progress).await;
        kill(&model);
    };
    let (outcome, ()) = tokio::join!(rendering, killing);
    let Err(EngineError::Temporary(why)) = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("signal: 9") && why.contains("memory"), "{why}");
    until_ready(&rig).await;
    assert_eq!(processes(&model).len(), 1);
}

#[tokio::test]
async fn a_child_that_is_killed_while_it_is_idle_or_loads_comes_back() {
    let (_directory, model) = copy_of("lcm");
    let rig = Rig::new(&model, &[]);
    until(async || !processes(&model).is_empty()).await;
    kill(&model);
    until_down_because(&rig, "signal: 9").await;
    until_ready(&rig).await;
    let first = processes(&model);
    kill(&model);
    until_down_because(&rig, "signal: 9").await;
    until_ready(&rig).await;
    assert_ne!(processes(&model), first);
    rig.render(brief("a boat", &[1])).await.expect("pictures");
}

#[tokio::test]
async fn a_cancelled_render_stops_between_steps_and_the_child_stays_warm() {
    let (_directory, model) = copy_of("sd15");
    let rig = long_rig(&model).started().await;
    let before = processes(&model);
    // The second one begins only after the child has stopped the first.
    for _ in 0..2 {
        let (progress, cancel) = (Progress::default(), CancellationToken::new());
        let rendering = rig.engine.render(brief("a boat", &[1]), progress.clone(), cancel.clone());
        let cancelling = async {
            until_painting(&progress).await;
            cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(rendering, cancelling);
        assert!(matches!(&outcome, Err(EngineError::Temporary(why)) if why.contains("cancelled")), "{outcome:?}");
        assert_eq!(processes(&model), before);
    }
    assert!(rig.engine.probe().await.is_ok());
}

#[tokio::test]
async fn a_child_that_does_not_stop_or_whose_render_is_abandoned_is_replaced() {
    let (_directory, model) = copy_of("sd15");
    let rig = long_rig(&model).started().await;
    let first = processes(&model);
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    let rendering = rig.engine.render(brief("a boat", &[1]), progress.clone(), cancel.clone());
    let stopping = async {
        until_painting(&progress).await;
        // It computes no further, and hears nothing.
        kill_process(first[0], Signal::STOP).expect("a process");
        let waiting = rig.render(brief("a barn", &[1]));
        cancel.cancel();
        waiting.await
    };
    let (outcome, other) = tokio::join!(rendering, stopping);
    assert!(matches!(&outcome, Err(EngineError::Temporary(why)) if why.contains("cancelled")), "{outcome:?}");
    assert!(matches!(&other, Err(EngineError::NotAvailable(_))), "the next task costs no attempt: {other:?}");
    until(async || !processes(&model).contains(&first[0])).await;
    until_ready(&rig).await;

    let second = processes(&model);
    let progress = Progress::default();
    let rendering = rig.engine.render(brief("a boat", &[1]), progress.clone(), CancellationToken::new());
    let stopping = async {
        until_painting(&progress).await;
        kill_process(second[0], Signal::STOP).expect("a process");
    };
    tokio::select! {
        outcome = rendering => panic!("{outcome:?}"),
        () = stopping => {}
    }
    until(async || !processes(&model).contains(&second[0])).await;
    until_ready(&rig).await;
}

#[tokio::test]
async fn a_model_that_is_damaged_is_named_and_used_once_it_is_mended() {
    let (_directory, model) = copy_of("sd15");
    let weights = model.join("unet/diffusion_pytorch_model.safetensors");
    let whole = fs::read(&weights).expect("weights");
    fs::write(&weights, &whole[..whole.len() - 1]).expect("written");
    let rig = Rig::new(&model, &[]);
    until_down_because(&rig, "diffusion_pytorch_model.safetensors").await;
    until_down_because(&rig, "give --model a folder").await;
    let outcome = rig.render(brief("a boat", &[1])).await;
    assert!(matches!(outcome, Err(EngineError::NotAvailable(_))), "it costs no attempt: {outcome:?}");
    fs::write(&weights, &whole).expect("written");
    until_ready(&rig).await;
    rig.render(brief("a boat", &[1])).await.expect("pictures");

    let missing = Rig::new(&model.join("nowhere"), &[]);
    until_down_because(&missing, "there is no model").await;
}

#[tokio::test]
async fn numbers_that_are_no_picture_end_the_task() {
    let (_directory, model) = copy_of("sd15");
    let weights = model.join("vae/diffusion_pytorch_model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    let rig = Rig::new(&model, &[]).started().await;
    // Behind the header everything becomes a number that is not finite. The mapping shows it at once.
    let header = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("eight"))).expect("small");
    bytes[header..].fill(0xff);
    fs::write(&weights, &bytes).expect("written");
    let outcome = rig.render(brief("a boat", &[1])).await;
    assert!(matches!(&outcome, Err(EngineError::Permanent(why)) if why.contains("not finite")), "{outcome:?}");
    assert!(rig.engine.probe().await.is_ok(), "the child goes on");
}

#[test]
fn a_model_whose_first_picture_is_not_finite_says_so_and_what_to_try() {
    let (_directory, model) = copy_of("sd15");
    let weights = model.join("vae/diffusion_pytorch_model.safetensors");
    let mut bytes = fs::read(&weights).expect("weights");
    let header = 8 + usize::try_from(u64::from_le_bytes(bytes[..8].try_into().expect("eight"))).expect("small");
    bytes[header..].fill(0xff);
    fs::write(&weights, &bytes).expect("written");
    let data = TempDir::new().expect("a directory");
    let path = model.to_str().expect("text");
    let said = run(data.path(), ["engine", "try", "diffusion", "a boat", "--model", path, "--timeout", "30s"]).failed();
    assert!(said.contains("not finite") && said.contains("--engine-precision"), "{said}");
}

#[tokio::test]
async fn a_child_that_reaches_its_memory_limit_ends_with_advice() {
    let (_directory, model) = copy_of("sd15");
    // A model that was trained with small pictures makes no large ones.
    let config = model.join("unet/config.json");
    let text = fs::read_to_string(&config).expect("a file");
    fs::write(&config, text.replace("\"sample_size\": 8", "\"sample_size\": 128")).expect("a file");
    let rig = Rig::new(&model, &["--engine-memory", "24MiB"]).started().await;
    // A picture of this size needs more, whatever the small one of the warm-up needs.
    let outcome = rig.render(Brief { width: 1_024, height: 1_024, ..brief("a boat", &[1]) }).await;
    assert!(
        matches!(&outcome, Err(EngineError::Temporary(why)) if why.contains("raise --engine-memory")),
        "{outcome:?}"
    );
    assert!(refused_memory(&model).contains("engine-memory"));
}

/// The complaint of the command line about a size that is none.
fn refused_memory(model: &Path) -> String {
    let data = TempDir::new().expect("a directory");
    let model = model.to_str().expect("text");
    refused(data.path(), &["engine", "list", "--engine", "diffusion", "--model", model, "--engine-memory", "much"])
}

#[tokio::test]
async fn a_brief_that_fits_into_no_time_is_refused_at_once() {
    let rig = Rig::new(&model("sd15"), &[]).started().await;
    let brief = Brief { time_limit: Duration::ZERO, ..brief("a boat", &[1]) };
    let outcome = rig.render(brief).await;
    assert!(matches!(&outcome, Err(EngineError::Permanent(why)) if why.contains("do not fit into 0 s")), "{outcome:?}");
}

#[tokio::test]
async fn a_prompt_that_always_kills_the_child_ends_after_three_attempts_with_a_refund() {
    let data = TempDir::new().expect("a directory");
    let (_directory, model) = copy_of("sd15");
    let log = data.path().join("log");
    let flags = flags(&model);
    let flags: Vec<_> = flags.iter().map(String::as_str).chain(["--engine-steps", "1000"]).collect();
    let server = Server::with_log(&data.path().join("data"), &log, &flags);
    let key = server.first_key().expect("a key");
    let task_id = submit(&server, &key, "a boat of gold").await;
    let steps = |answer: &crate::rigs::http::Answer| answer.headers.get("x-steps").is_some();
    let killing = async {
        loop {
            let task = send(server.address, "GET", &format!("{TASKS}/{task_id}"), &key, "").await;
            if steps(&task) {
                kill(&model);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let task = tokio::select! {
        task = ended(&server, &key, &task_id) => task,
        () = killing => unreachable!(),
    };
    assert_eq!(task["status"], "failed", "{task}");
    let message = task["error"].as_str().expect("a message");
    assert!(message.contains("refunded") && !message.contains("signal"), "{message}");
    let log = fs::read_to_string(&log).expect("a log");
    assert!(log.contains("signal: 9") && log.contains("started the engine process"), "{log}");
    assert!(log.contains("tintype render-diffusion") && !log.contains("/proc/self/exe"), "{log}");
    assert!(!log.contains("gold"), "a prompt is in the log: {log}");
}
