//! Every way in which ComfyUI misbehaves: the operator's line, the caller's message, the attempts and the refund.

use std::process::Stdio;

use futures::future::join_all;

use super::*;
use crate::engines::openai_faults::{Meaning, enormous, html};
use crate::rigs::binary::tintype;
use crate::rigs::images_api::painted;
use crate::rigs::service::pass;

#[derive(Debug, Clone)]
enum Fault {
    /// This reply to requests whose method and path begin so.
    At(&'static str, Reply),
    Run(Outcome),
    LeavesNodesOut,
}

impl Fault {
    fn befall(self, server: &FakeComfyUi) {
        match self {
            Self::At(route, reply) => server.reply(route, reply),
            Self::Run(outcome) => server.outcome(outcome),
            Self::LeavesNodesOut => server.leave_nodes_out(),
        }
    }
}

fn submit(reply: Reply) -> Fault {
    Fault::At("POST /prompt", reply)
}

fn saves(file: &[u8]) -> Fault {
    Fault::Run(Outcome::Saves(file.to_vec()))
}

fn whole(status: u16, header: (&'static str, &str)) -> Reply {
    Reply::Whole(status, vec![(header.0, header.1.into())], Vec::new())
}

/// Faults before a run is queued.
fn of_submits() -> Vec<(Fault, Meaning, &'static str)> {
    use Meaning::{NotAvailable, Permanent, Temporary};
    let node = json!({ "6": { "class_type": "CLIPTextEncode", "errors": [
        { "type": "value_not_in_list", "message": "a boat of secrets", "details": "text" }] } });
    let error = json!({ "type": "prompt_outputs_failed_validation", "message": "a boat of secrets" });
    let missing =
        json!({ "error": { "type": "missing_node_type", "message": "a boat of secrets" }, "node_errors": {} });
    // github.com/Comfy-Org/ComfyUI/issues/11833.
    let updated = json!({ "error": error, "node_errors": { "200": { "class_type": "ImageScaleToTotalPixels", "errors": [
        { "type": "required_input_missing", "message": "Required input is missing", "details": "resolution_steps" }] } } });
    let uploads = |reply| Fault::At("POST /upload/image", reply);
    vec![
        (
            submit(Reply::json(400, &json!({ "error": error, "node_errors": node }))),
            NotAvailable,
            "400 (value_not_in_list): install the models",
        ),
        (submit(Reply::json(400, &missing)), NotAvailable, "400 (missing_node_type): install the nodes"),
        (submit(Reply::json(400, &updated)), NotAvailable, "400 (required_input_missing): export the workflow again"),
        (submit(Reply::json(400, &json!({ "error": "a boat of secrets" }))), Permanent, "answered 400"),
        (Fault::LeavesNodesOut, NotAvailable, "does not run the whole workflow (value_not_in_list)"),
        (submit(Reply::json(503, &json!({}))), NotAvailable, "answered 503"),
        (submit(Reply::json(429, &json!({}))), NotAvailable, "answered 429"),
        (submit(Reply::json(401, &json!({}))), NotAvailable, "check --engine-key"),
        (submit(whole(307, ("location", "http://10.0.0.1/"))), NotAvailable, "redirect"),
        (submit(whole(302, ("location", "/login"))), NotAvailable, "redirect"),
        (submit(html(500)), Temporary, "answered 500"),
        (submit(html(200)), Temporary, "answered 200 with text/html instead of JSON"),
        (submit(Reply::Whole(200, Vec::new(), Vec::new())), Temporary, "answered 200 with bytes"),
        (submit(Reply::json(200, &json!({ "error": "a boat of secrets" }))), Temporary, "without a valid id"),
        (submit(Reply::json(200, &json!({ "prompt_id": "../../x" }))), Temporary, "without a valid id"),
        (submit(Reply::HangUp), Temporary, "http"),
        (submit(Reply::Truncated(b"{\"prompt_id\": ".to_vec())), Temporary, "http"),
        (submit(Reply::Endless), Temporary, "answered with more than"),
        (uploads(html(500)), Temporary, "answered 500"),
        (uploads(html(413)), Permanent, "answered 413"),
        (uploads(Reply::json(200, &json!({ "subfolder": "x" }))), Temporary, "did not name a file"),
    ]
}

fn of_runs() -> Vec<(Fault, Meaning, &'static str)> {
    use Meaning::Temporary;
    let picture = painted(64, 64, 1);
    let failed = json!({ "exception_type": "torch.OutOfMemoryError", "exception_message": "a boat of secrets" });
    let polls = |reply| Fault::At("GET /api/jobs", reply);
    let files = |reply| Fault::At("GET /view", reply);
    let black = Picture::from_rgb(64, 64, vec![0; 64 * 64 * 3]).expect("a picture").to_png();
    let tiny = Picture::from_rgb(1, 1, vec![9; 3]).expect("a picture").to_png();
    vec![
        (Fault::Run(Outcome::Ends("execution_error", failed)), Temporary, "failed to render (torch.OutOfMemoryError)"),
        (Fault::Run(Outcome::Ends("execution_interrupted", json!({}))), Temporary, "failed to render (cancelled)"),
        (Fault::Run(Outcome::SavesNothing), Temporary, "saved no picture"),
        (Fault::Run(Outcome::Forgotten), Temporary, "lost a run"),
        (polls(html(200)), Temporary, "answered 200 with text/html"),
        (polls(html(503)), Temporary, "answered 503"),
        (polls(Reply::json(200, &json!({ "status": "a boat of secrets" }))), Temporary, "unknown state"),
        (files(html(404)), Temporary, "saved no picture"),
        (files(html(403)), Temporary, "answered 403"),
        (files(whole(302, ("location", "http://10.0.0.1/"))), Temporary, "redirect"),
        (files(Reply::Endless), Temporary, "answered with more than"),
        (files(Reply::Truncated(picture.clone())), Temporary, "http"),
        (saves(b"<html>a boat of secrets</html>"), Temporary, "not a PNG, JPEG or WebP"),
        (saves(b"GIF89a"), Temporary, "not a PNG, JPEG or WebP"),
        (saves(b""), Temporary, "not a PNG, JPEG or WebP"),
        (saves(&picture[..picture.len() / 2]), Temporary, "damaged"),
        (saves(&tiny), Temporary, "only 1x1 pixels"),
        (saves(&enormous()), Temporary, "too many pixels"),
        (saves(&black), Temporary, "is black"),
    ]
}

#[tokio::test]
async fn each_fault_of_a_server_has_a_line_for_the_operator_without_the_prompt() {
    let files = Files::new();
    let trials = of_submits().into_iter().chain(of_runs()).map(async |(fault, meaning, line)| {
        let server = FakeComfyUi::start(Age::New).await;
        fault.clone().befall(&server);
        let engine = files.engine(&server.url(), &[]);
        let brief = Brief { references: vec![flat(1)], ..brief(&[7]) };
        let error = render(&engine, brief).await.expect_err("a fault");
        assert_eq!(Meaning::of(&error), meaning, "{fault:?}: {error}");
        let shown = error.to_string();
        assert!(shown.contains(line) && !shown.contains("secrets"), "{fault:?}: {shown}");
        until(async || server.unfinished().is_empty()).await;
    });
    join_all(trials).await;
}

#[tokio::test]
async fn each_meaning_of_a_fault_ends_its_task_with_a_plain_message_and_a_refund_or_leaves_it_waiting() {
    let failed = Outcome::Ends("execution_error", json!({ "exception_message": "a boat of secrets" }));
    for (fault, meaning) in [
        (submit(Reply::json(400, &json!({}))), Meaning::Permanent),
        (Fault::LeavesNodesOut, Meaning::NotAvailable),
        (Fault::Run(failed), Meaning::Temporary),
        (submit(html(500)), Meaning::Temporary),
        (submit(Reply::json(503, &json!({}))), Meaning::NotAvailable),
        (submit(whole(307, ("location", "http://10.0.0.1/"))), Meaning::NotAvailable),
    ] {
        let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
        fault.clone().befall(&server);
        let service = files.service(&server.url(), &["--engine-sizes", "64x64"]).await;
        let caller = service.caller("ada", 10).await;
        let task_id = caller.submit_prompt("a boat of secrets").await;
        service.work().await;
        let asked = meaning.assert_outcome(&caller, &task_id, &fault).await;
        assert_eq!(
            server.asked("POST /prompt").len(),
            asked.unwrap_or(3),
            "{fault:?}: those that wait, after 2 s and 4 s"
        );
    }
}

#[tokio::test]
async fn a_server_that_hangs_or_drips_costs_an_attempt_when_the_time_limit_has_passed() {
    for (route, reply) in [
        ("POST /prompt", Reply::Silence),
        ("POST /prompt", Reply::Drip),
        ("GET /api/jobs", Reply::Silence),
        ("GET /view", Reply::Drip),
    ] {
        let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
        server.reply(route, reply.clone());
        let limits = ["--engine-sizes", "64x64", "--render-timeout", "20s"];
        let service = files.service(&server.url(), &limits).await;
        let caller = service.caller("ada", 10).await;
        let task_id = caller.submit_prompt("a boat of secrets").await;
        for _ in 0..3 {
            let before = server.asked(route).len();
            let passing = async {
                until(async || server.asked(route).len() > before).await;
                pass(Duration::from_secs(20)).await;
            };
            let (stepped, ()) = tokio::join!(service.worker.step(), passing);
            assert_eq!(stepped.expect("a store"), 1, "{route} {reply:?}");
            service.clock.advance(Duration::from_secs(5));
        }
        Meaning::Temporary.assert_outcome(&caller, &task_id, &reply).await;
        until(async || server.unfinished().is_empty()).await;
    }
}

#[tokio::test]
async fn a_server_that_tells_the_end_of_a_run_again_and_again_is_polled_once_a_second() {
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    server.outcome(Outcome::Endless);
    let engine = files.engine(&server.url(), &[]);
    let lying = async {
        until(async || server.sockets() == 1 && server.unfinished().len() == 1).await;
        for polls in 1..=4 {
            until(async || {
                server.tell_end();
                server.asked("GET /api/jobs").len() >= polls
            })
            .await;
            pass(Duration::from_secs(1)).await;
        }
        server.outcome(Outcome::Painted);
    };
    let (outcome, ()) = tokio::join!(render(&engine, brief(&[1])), lying);
    assert_eq!(outcome.expect("a picture").len(), 1);
    let polls: Vec<_> = server.asked("GET /api/jobs").iter().map(|asked| asked.at).collect();
    // The driver pauses after an answer, and the server notes a poll before its answer.
    assert!(polls.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(1)), "{polls:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_about_a_run_takes_little_more_memory_than_it_has_bytes() {
    const LONGEST: usize = 16 << 20;
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    // Each element of this list would take 32 bytes if it were kept.
    let listed = "0,".repeat((LONGEST - 100) / 2);
    let body = format!("{{\"status\":\"in_progress\",\"workflow\":[{listed}0]}}").into_bytes();
    server.reply("GET /api/jobs", Reply::Whole(200, vec![("content-type", "application/json".into())], body));
    let flags = files.flags(&server.url(), &[]);
    let mut trying = tintype();
    trying.args(["engine", "try", &flags[1], "a boat"]).args(&flags[2..]);
    trying.arg("--data").arg(files.0.path()).arg("--out").arg(files.0.path().join("boat.png"));
    let mut trying = trying.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    // The first two answers were parsed.
    until(async || server.asked("GET /api/jobs").len() == 3).await;
    let most = peak_memory(trying.id());
    trying.kill().expect("it runs");
    trying.wait().expect("it ends");
    assert!(most < 8 * LONGEST as u64, "{} MiB", most >> 20);
}

/// Most memory that a process has had, in bytes.
fn peak_memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().strip_suffix(" kB").expect("a unit").parse::<u64>().expect("a number") * 1024
}
