//! Several servers of one engine, and servers that come and go.

use std::time::Duration;

use futures::FutureExt as _;
use serde_json::json;
use tintype::worker::Worker;
use tintype_engine::{CancellationToken, Engine, EngineError};

use super::openai::brief;
use crate::rigs::binary::{Ran as _, refused, run};
use crate::rigs::engine::{engine, render};
use crate::rigs::images_api::{Dialect, ImagesServer, Reply};
use crate::rigs::ports::Port;
use crate::rigs::service::{Service, pass};
use crate::rigs::wait::until;

/// Waits until the worker has worked on a task.
async fn worked(worker: &std::sync::Arc<Worker>) {
    until(async || worker.step().await.expect("a store") > 0).await;
}

#[tokio::test]
async fn a_refused_connection_costs_no_attempt_and_the_task_is_rendered_when_the_server_is_up() {
    let port = Port::take();
    let address = port.address;
    let engine = format!("openai:http://{address}/v1");
    let (service, caller) = Service::with_caller(&["--engine", &engine, "--engine-profile", "sglang"], 10).await;
    let task_id = caller.submit_prompt("a boat").await;
    service.work().await;
    assert_eq!(super::lost_leases(&caller, &task_id).await, Some(0));
    let _server = ImagesServer::on(address, Dialect::Sglang, None).await;
    pass(Duration::from_secs(1)).await;
    worked(&service.worker).await;
    assert_eq!(caller.task(&task_id).await["status"], "completed");
}

/// Lets the worker take what is ready now. Returns the number of tasks.
async fn step(service: &Service) -> usize {
    service.worker.step().await.expect("a store")
}

/// A busy server that asks for 30 s.
pub fn busy_for_30_s() -> Reply {
    Reply::Whole(429, vec![("retry-after", "30".into())], b"{}".to_vec())
}

#[tokio::test]
async fn a_task_waits_as_long_as_a_busy_server_asks_for() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.reply([busy_for_30_s()]);
    let (service, caller) =
        Service::with_caller(&["--engine", &server.engine(), "--engine-profile", "sglang"], 10).await;
    let task_id = caller.submit_prompt("a boat").await;
    assert_eq!(step(&service).await, 1);
    service.clock.advance(Duration::from_secs(29));
    assert_eq!(step(&service).await, 0);
    assert_eq!(server.all().len(), 1, "nothing is sent, not even a probe");
    assert_eq!(super::lost_leases(&caller, &task_id).await, Some(0));
    service.clock.advance(Duration::from_secs(1));
    assert_eq!(step(&service).await, 1);
    assert_eq!(caller.task(&task_id).await["status"], "completed");
}

#[tokio::test]
async fn a_server_that_asks_several_tasks_to_wait_is_left_alone_for_that_time() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.reply([busy_for_30_s(), busy_for_30_s()]);
    let (service, caller) =
        Service::with_caller(&["--engine", &server.engine(), "--engine-profile", "sglang"], 10).await;
    let mut tasks = Vec::new();
    for prompt in ["a boat", "a fish", "a gull"] {
        tasks.push(caller.submit_prompt(prompt).await);
    }
    service.work().await;
    service.clock.advance(Duration::from_secs(30));
    pass(Duration::from_secs(15)).await;
    service.work().await;
    assert_eq!(server.all().len(), 2, "nothing is sent, not even a probe");
    pass(Duration::from_secs(15)).await;
    worked(&service.worker).await;
    service.work().await;
    for task in &tasks {
        assert_eq!(caller.task(task).await["status"], "completed");
    }
}

#[tokio::test]
async fn servers_that_all_ask_for_a_pause_are_left_alone_for_that_time() {
    let servers = [ImagesServer::start(Dialect::Sglang).await, ImagesServer::start(Dialect::Sglang).await];
    for server in &servers {
        server.always(busy_for_30_s());
    }
    let urls = servers.each_ref().map(ImagesServer::url).join(",");
    let engine = engine(["--engine", &format!("openai:{urls}"), "--engine-profile", "sglang"]);
    for seed in 0..5 {
        render(&engine, brief("a boat", &[seed], Vec::new())).await.expect_err("no picture");
    }
    assert_eq!(servers.each_ref().map(|server| server.all().len()), [2, 2], "two tasks are enough");
}

#[tokio::test]
async fn many_prompts_that_a_server_always_turns_away_delay_nobody() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.to_prompts_with("poison", Reply::json(503, &json!({ "detail": "loading" })));
    let (service, [ada, bob]) =
        Service::with_callers(&["--engine", &server.engine(), "--engine-profile", "sglang"], ["ada", "bob"], 100).await;
    for number in 0..20 {
        ada.submit_prompt(&format!("poison {number}")).await;
    }
    service.work().await;
    let boat = bob.submit_prompt("a boat").await;
    service.work().await;
    assert_eq!(bob.task(&boat).await["status"], "completed");
}

#[tokio::test]
async fn a_task_that_is_turned_away_while_nothing_else_is_rendered_loses_no_attempt() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.always(Reply::json(503, &json!({ "detail": "loading" })));
    let (service, caller) =
        Service::with_caller(&["--engine", &server.engine(), "--engine-profile", "sglang"], 10).await;
    let task_id = caller.submit_prompt("a boat").await;
    for _ in 0..6 {
        assert_eq!(step(&service).await, 1);
        service.clock.advance(Duration::from_secs(60));
    }
    assert_eq!(super::lost_leases(&caller, &task_id).await, Some(0));
    assert_eq!(server.asked().len(), 6);
    server.always(Reply::Documented);
    assert_eq!(step(&service).await, 1);
    assert_eq!(caller.task(&task_id).await["status"], "completed");
}

#[tokio::test]
async fn work_that_one_server_cannot_take_goes_to_another() {
    let (busy, idle) = (ImagesServer::start(Dialect::Sglang).await, ImagesServer::start(Dialect::Sglang).await);
    busy.always(Reply::json(503, &json!({ "detail": "loading" })));
    busy.fail_probes(true);
    let urls = format!("openai:{},{}", busy.url(), idle.url());
    let engine = engine(["--engine", &urls, "--engine-profile", "sglang"]);
    for seed in 0..4 {
        render(&engine, brief("a boat", &[seed], Vec::new())).await.expect("a picture");
    }
    assert_eq!((busy.asked().len(), idle.asked().len()), (1, 4), "the busy one is set aside");
    busy.always(Reply::Documented);
    busy.fail_probes(false);
    let back = async {
        while busy.asked().len() < 2 {
            pass(Duration::from_secs(2)).await;
            render(&engine, brief("a boat", &[9], Vec::new())).await.expect("a picture");
        }
    };
    tokio::time::timeout(Duration::from_secs(3_600), back).await.expect("it gets work after a probe");
}

/// Renders pictures of these briefs, one after the other, with up to three attempts. Returns how many failed.
async fn failures(engine: &std::sync::Arc<dyn Engine>, briefs: std::ops::Range<u64>) -> usize {
    let mut failed = 0;
    for seed in briefs {
        let most = failed + 2;
        while render(engine, brief("a boat", &[seed], Vec::new())).await.is_err() {
            failed += 1;
            assert!(failed <= most, "{seed} has failed");
        }
    }
    failed
}

#[tokio::test]
async fn a_server_that_always_fails_leaves_the_work_to_another_and_is_tried_now_and_then() {
    let black = tintype_engine::Picture::from_rgb(64, 64, vec![0; 64 * 64 * 3]).expect("a picture").to_png();
    for reply in [Reply::status(500), Reply::file(&black), Reply::HangUp] {
        let (broken, sound) = (ImagesServer::start(Dialect::Sglang).await, ImagesServer::start(Dialect::Sglang).await);
        broken.always(reply);
        let urls = format!("openai:{},{}", broken.url(), sound.url());
        let engine = engine(["--engine", &urls, "--engine-profile", "sglang"]);
        assert_eq!(failures(&engine, 0..20).await, 2);
        assert_eq!((broken.asked().len(), sound.asked().len()), (2, 20), "two different briefs are enough");
        pass(Duration::from_secs(5)).await;
        assert_eq!(failures(&engine, 20..30).await, 1, "one brief tries it again");
        broken.always(Reply::Documented);
        pass(Duration::from_secs(5)).await;
        assert_eq!(failures(&engine, 0..1).await, 0);
        assert_eq!(broken.asked().len(), 3, "what it failed at goes to the other");
        assert_eq!(failures(&engine, 30..40).await, 0);
        assert!(broken.asked().len() > 5, "it is back");
    }
}

#[tokio::test]
async fn prompts_that_fail_everywhere_are_held_against_no_server() {
    let servers = [ImagesServer::start(Dialect::Sglang).await, ImagesServer::start(Dialect::Sglang).await];
    for server in &servers {
        server.to_prompts_with("poison", Reply::status(500));
    }
    let urls = servers.each_ref().map(ImagesServer::url).join(",");
    let engine = engine(["--engine", &format!("openai:{urls}"), "--engine-profile", "sglang"]);
    for _ in 0..3 {
        for number in 0..4 {
            render(&engine, brief(&format!("poison {number}"), &[1], Vec::new())).await.expect_err("no picture");
        }
    }
    let asked = servers.each_ref().map(|server| server.asked().len());
    assert_eq!(failures(&engine, 0..10).await, 0);
    let asked_since = [0, 1].map(|index| servers[index].asked().len() - asked[index]);
    assert_eq!(asked_since, [5, 5]);
}

#[tokio::test]
async fn a_relay_whose_server_is_away_gets_no_more_work() {
    let relay = ImagesServer::start(Dialect::Sglang).await;
    let engine = engine(["--engine", &relay.engine(), "--engine-profile", "sglang"]);
    relay.always(Reply::HangUp);
    relay.fail_probes(true);
    let first = render(&engine, brief("a boat", &[1], Vec::new())).await;
    assert!(matches!(first, Err(EngineError::Temporary(_))), "it may have begun: {first:?}");
    let second = render(&engine, brief("a boat", &[2], Vec::new())).await;
    assert!(matches!(second, Err(EngineError::NotAvailable(_))), "{second:?}");
    assert_eq!(relay.asked().len(), 1);
}

#[tokio::test]
async fn the_pictures_of_a_task_are_spread_over_the_servers() {
    let servers = [
        ImagesServer::start(Dialect::Sglang).await,
        ImagesServer::start(Dialect::Sglang).await,
        ImagesServer::start(Dialect::Sglang).await,
    ];
    let urls = servers.each_ref().map(ImagesServer::url).join(",");
    let engine = engine(["--engine", &format!("openai:{urls}"), "--engine-profile", "sglang"]);
    let pictures = render(&engine, brief("a boat", &[1, 2, 3], Vec::new())).await.expect("pictures");
    let greens: Vec<_> = pictures.iter().map(|picture| picture.as_rgb()[1]).collect();
    assert_eq!(greens, [1, 2, 3], "in the order of the seeds");
    assert_eq!(servers.each_ref().map(|server| server.asked().len()), [1, 1, 1]);
}

#[tokio::test]
async fn no_server_gets_more_calls_at_a_time_than_it_takes() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.reply([Reply::Silence, Reply::Silence]);
    let engine = engine(["--engine", &server.engine(), "--engine-profile", "sglang"]);
    let cancel = CancellationToken::new();
    let waiting = |seed| {
        let (engine, cancel) = (engine.clone(), cancel.clone());
        tokio::spawn(
            async move { engine.render(brief("a boat", &[seed], Vec::new()), Default::default(), cancel).await },
        )
    };
    let first = [waiting(1), waiting(2)];
    until(async || server.asked().len() >= 2).await;
    let third = engine.render(brief("a boat", &[3], Vec::new()), Default::default(), CancellationToken::new());
    let mut third = std::pin::pin!(third);
    for _ in 0..100 {
        assert!((&mut third).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    assert_eq!(server.asked().len(), 2, "the third call waits");
    cancel.cancel();
    assert_eq!(third.await.expect("a picture").len(), 1);
    for first in first {
        assert!(first.await.expect("no panic").is_err());
    }
}

#[tokio::test]
async fn a_probe_says_why_no_server_takes_work() {
    for (server, flags, line) in [
        (
            ImagesServer::with_key(Dialect::Sglang, "sk-right").await,
            vec!["--engine-key", "sk-wrong"],
            "check --engine-key",
        ),
        (ImagesServer::start(Dialect::Sglang).await, vec![], "does its URL end in /v1?"),
        (ImagesServer::start(Dialect::Sglang).await, vec![], "does it speak OpenAI's API?"),
    ] {
        let url = match line {
            "does its URL end in /v1?" => format!("openai:http://{}", server.address),
            "does it speak OpenAI's API?" => format!("openai:http://{}/sdapi/v1", server.address),
            _ => server.engine(),
        };
        let engine = engine([&["--engine", url.as_str(), "--engine-profile", "sglang"][..], &flags].concat());
        let outcome = engine.probe().await;
        let is_clear = matches!(&outcome, Err(EngineError::NotAvailable(cause)) if cause.contains(line));
        assert!(is_clear, "{outcome:?}");
    }
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.fail_probes(true);
    assert!(engine(["--engine", &server.engine()]).probe().await.is_err());
    server.fail_probes(false);
    assert!(engine(["--engine", &server.engine()]).probe().await.is_ok());
}

#[tokio::test]
async fn doctor_probes_the_engine_and_renders_nothing_there() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    let data = tempfile::TempDir::new().expect("a directory");
    let (path, engine) = (data.path().to_owned(), server.engine());
    let doctor = move |engine: String| {
        let path = path.clone();
        tokio::task::spawn_blocking(move || run(&path, ["doctor", "--engine", &engine]))
    };
    let said = doctor(engine).await.expect("no panic").text();
    assert!(said.contains("ok    engine"), "{said}");
    assert_eq!((server.all().len(), server.asked().len()), (1, 0));
    drop(server);
    let output = doctor("openai:http://127.0.0.1:1/v1".into()).await.expect("no panic");
    let said = output.text();
    assert!(!output.status.success() && said.contains("FAIL  engine"), "{said}");
    let said = refused(data.path(), &["doctor", "--engine", "openai:ftp://a.example"]);
    assert!(said.contains("begins with ftp://"), "{said}");
}
