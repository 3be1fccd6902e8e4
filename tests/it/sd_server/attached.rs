//! A server that runs already, attached by its URL.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tintype_config::LEASE;
use tintype_engine::{LoraSource, Mask, Stage};

use super::fake_server::{Behaviour, FakeSdServer, colour};
use super::*;
use crate::engines::lost_leases;
use crate::rigs::service::{Service, pass};

async fn service(server: &FakeSdServer) -> Service {
    Service::start_with(&["--engine", &server.engine(), "--engine-sizes", "64x64"]).await
}

#[tokio::test]
async fn a_task_is_rendered_with_a_seed_of_its_own_for_each_picture() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let service = service(&server).await;
    let caller = service.caller("ada", 100).await;
    let prompt = "a boat <lora:evil:1> <sd_cpp_extra_args>{\"seed\":1}</sd_cpp_extra_args> \"at\" sea";
    let task = caller.outcome_of(json!({ "prompt": prompt, "n": 4 })).await;
    assert_eq!(task["status"], "completed", "{task}");
    let bodies = server.bodies();
    assert_eq!((bodies.len(), server.most_unfinished()), (4, 2), "one is painted and one waits");
    for (body, image) in bodies.iter().zip(task["images"].as_array().expect("images")) {
        let seed = body["seed"].as_u64().expect("a seed");
        assert!(i64::try_from(seed).is_ok(), "{seed} would count as negative, which is random");
        assert_eq!(body["prompt"], "a boat     \"at\" sea");
        assert_eq!((&body["batch_count"], &body["embed_image_metadata"]), (&json!(1), &json!(false)));
        assert!(body.get("ref_images").is_none() && body.get("init_image").is_none());
        let file = service.fetch(image["url"].as_str().expect("a URL"), &[]).await;
        let picture = Picture::decode(&file.body).expect("a PNG");
        assert!(picture.as_rgb().iter().all(|channel| *channel == colour(seed)), "the order of the seeds");
    }
}

#[tokio::test]
async fn a_job_is_polled_without_haste() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let (_, engine) = engine(&["--engine", &server.engine()]);
    render(&engine, brief("a boat", &[1, 2])).await.expect("pictures");
    let polls = server.polls();
    // Each job needs one poll to begin and one to end.
    assert_eq!(polls.len(), 4);
    let pauses: Vec<_> = polls.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The driver pauses after an answer, and the server notes a poll before its answer.
    assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(20)), "{pauses:?}");
}

#[tokio::test]
async fn a_proxy_that_loses_some_polls_costs_nothing() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let (_, engine) = engine(&["--engine", &server.engine()]);
    for status in [502, 524] {
        server.lose_polls(3, status);
        let rendering = render(&engine, brief("a boat", &[1]));
        let passing = async {
            while server.lost_polls() > 0 {
                pass(Duration::from_millis(500)).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let (rendered, ()) = tokio::join!(rendering, passing);
        assert_eq!(rendered.expect("a picture").len(), 1, "{status}");
    }
}

#[tokio::test]
async fn references_are_shown_to_a_model_that_edits_and_painted_over_by_others() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let picture = |colour| Picture::from_rgb(SIDE, SIDE, vec![colour; (SIDE * SIDE * 3) as usize]).expect("a picture");
    let one = Brief { references: vec![picture(1)], ..brief("a boat", &[1]) };
    let two = Brief { references: vec![picture(1), picture(2)], ..brief("a boat", &[1]) };
    let (info, single) = engine(&["--engine", &server.engine()]);
    let (many_info, many) = engine(&["--engine", &server.engine(), "--engine-references", "2"]);
    assert_eq!((info.max_references, many_info.max_references), (1, 2));
    for (engine, model, brief, shown, painted_over) in [
        (&single, "v1-5.gguf", &one, None, true),
        (&single, "qwen-image-edit.gguf", &one, Some(1), false),
        (&many, "v1-5.gguf", &one, Some(1), false),
        (&many, "v1-5.gguf", &two, Some(2), false),
    ] {
        server.load(model);
        render(engine, brief.clone()).await.expect("pictures");
        let body = server.bodies().pop().expect("a job");
        assert_eq!(body["ref_images"].as_array().map(Vec::len), shown, "{model}");
        assert_eq!(body["init_image"].is_string(), painted_over, "{model}");
    }
}

#[tokio::test]
async fn a_reference_is_never_painted_over_so_strongly_that_nothing_of_it_is_left() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let (_, engine) = engine(&["--engine", &server.engine()]);
    let picture = Picture::from_rgb(SIDE, SIDE, vec![1; (SIDE * SIDE * 3) as usize]).expect("a picture");
    let brief = Brief { references: vec![picture], ..brief("a boat", &[1]) };
    for (steps, strength) in [(20, 0.75), (4, 0.625), (2, 0.25)] {
        server.paint_in(steps);
        render(&engine, brief.clone()).await.expect("pictures");
        assert_eq!(server.bodies().pop().expect("a job")["strength"], strength, "{steps} steps");
    }
    server.paint_in(1);
    let refused = render(&engine, brief).await.map(|pictures| pictures.len());
    assert!(matches!(&refused, Err(EngineError::Permanent(text)) if text.contains("one step")), "{refused:?}");
}

#[tokio::test]
async fn loras_go_by_the_names_of_the_server() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let (info, engine) = engine(&["--engine", &server.engine()]);
    assert_eq!(info.loras, LoraSource::Server);
    let loras = ["ink.safetensors:0.8", "detail"].map(|text| text.parse().expect("a LoRA")).to_vec();
    let settings = RenderSettings { loras, ..RenderSettings::default() };
    render(&engine, Brief { settings, ..brief("a boat", &[1]) }).await.expect("pictures");
    let expected = json!([{ "path": "ink.safetensors", "multiplier": 0.8 }, { "path": "detail", "multiplier": 1.0 }]);
    assert_eq!(server.bodies().pop().expect("a job")["lora"], expected);
}

#[tokio::test]
async fn with_a_mask_any_model_paints_over_the_first_reference() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let picture = |colour| Picture::from_rgb(SIDE, SIDE, vec![colour; (SIDE * SIDE * 3) as usize]).expect("a picture");
    let (info, engine) = engine(&["--engine", &server.engine()]);
    assert!(info.masks);
    for model in ["v1-5.gguf", "qwen-image-edit.gguf"] {
        for (strength, expected) in [(None, 1.0), (Some(0.5), 0.5)] {
            server.load(model);
            let settings = RenderSettings { strength, ..RenderSettings::default() };
            let mask = Some(Mask::of(picture(255)));
            for more in [vec![], vec![picture(2)]] {
                let references = [vec![picture(1)], more.clone()].concat();
                let brief =
                    Brief { references, mask: mask.clone(), settings: settings.clone(), ..brief("a boat", &[1]) };
                render(&engine, brief).await.expect("pictures");
                let shown = &server.bodies().pop().expect("a job")["ref_images"];
                assert_eq!(shown.as_array().map_or(0, Vec::len), more.len(), "{model}");
            }
            let body = server.bodies().pop().expect("a job");
            assert!(body["init_image"].is_string(), "{model}");
            assert_eq!(body["strength"], expected, "{model}");
            let file = BASE64_STANDARD.decode(body["mask_image"].as_str().expect("a mask")).expect("base64");
            assert_eq!(Mask::decode_within(&file, SIDE).expect("a mask").picture(), &picture(255));
        }
    }
}

#[tokio::test]
async fn every_way_to_give_no_usable_picture_is_one_kind_of_error_and_a_reason() {
    for (behaviour, kind, reason) in [
        (Behaviour::QueueFull, "not available", "answered 429"),
        (Behaviour::Refusing, "permanent", "answered 400"),
        (Behaviour::Broken, "temporary", "answered 500 (server_error)"),
        (Behaviour::Unclear, "temporary", "without a valid id"),
        (Behaviour::Html, "temporary", "answered 200"),
        (Behaviour::Failing, "temporary", "failed to render (generation_failed)"),
        (Behaviour::CancelledByOthers, "temporary", "failed to render (cancelled)"),
        (Behaviour::Forgetting, "temporary", "lost a job"),
        (Behaviour::Expired, "temporary", "lost a job"),
        (Behaviour::NoPictures, "temporary", "0 pictures instead of 1"),
        (Behaviour::TwoPictures, "temporary", "2 pictures instead of 1"),
        (Behaviour::NoBase64, "temporary", "not valid base64"),
        (Behaviour::NoPicture, "temporary", "not a PNG, JPEG or WebP"),
        (Behaviour::Small, "temporary", "only 1x1 pixels"),
        (Behaviour::Black, "temporary", "is black"),
    ] {
        let server = FakeSdServer::start(behaviour).await;
        let (_, engine) = engine(&["--engine", &server.engine()]);
        let error = render(&engine, brief("a secret boat", &[1]))
            .await
            .map(|pictures| pictures.len())
            .expect_err("no pictures");
        let (found, text) = match &error {
            EngineError::NotAvailable(text) | EngineError::TurnedAway { cause: text, .. } => ("not available", text),
            EngineError::Permanent(text) => ("permanent", text),
            EngineError::Temporary(text) => ("temporary", text),
            EngineError::Refused(text) => ("refused", text),
        };
        assert!(found == kind && text.contains(reason), "{behaviour:?}: {error:?}");
        assert!(!text.contains("secret") && !text.contains("about the prompt"), "{behaviour:?}: {text}");
    }
}

#[tokio::test]
async fn a_picture_of_another_size_or_ratio_is_scaled_and_cropped() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    let service = service(&server).await;
    let caller = service.caller("ada", 100).await;
    for behaviour in [Behaviour::Enlarging, Behaviour::OtherRatio] {
        server.be(behaviour);
        let task = caller.outcome("a boat").await;
        assert_eq!(task["status"], "completed", "{behaviour:?}: {task}");
        let file = service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await;
        let picture = Picture::decode(&file.body).expect("a PNG");
        assert_eq!((picture.width(), picture.height()), (1024, 1024), "{behaviour:?}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_work_is_found_by_a_probe_with_what_to_do() {
    for (behaviour, reason) in [
        (Behaviour::Videos, "no mode img_gen"),
        (Behaviour::Unknown, "no route /sdcpp/v1/capabilities"),
        (Behaviour::Html, "give the base URL"),
    ] {
        let server = FakeSdServer::start(behaviour).await;
        let (_, engine) = engine(&["--engine", &server.engine()]);
        let error = engine.probe().await.expect_err("not available");
        assert!(matches!(&error, EngineError::NotAvailable(text) if text.contains(reason)), "{behaviour:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_full_queue_costs_no_attempt_and_a_lost_job_costs_one() {
    let server = FakeSdServer::start(Behaviour::QueueFull).await;
    let service = service(&server).await;
    let caller = service.caller("ada", 100).await;
    let task_id = caller.submit_prompt("a boat").await;
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    assert_eq!(lost_leases(&caller, &task_id).await, Some(0));
    server.be(Behaviour::Forgetting);
    assert_eq!(service.worker.step().await.expect("a store"), 0, "the task waits");
    service.clock.advance(Duration::from_secs(2));
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    assert_eq!(lost_leases(&caller, &task_id).await, Some(1));
    server.be(Behaviour::Working);
    service.clock.advance(LEASE);
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    assert_eq!(caller.task(&task_id).await["status"], "completed");
    assert_eq!(caller.credits().await, 98);
}

#[tokio::test]
async fn a_server_that_dies_during_a_render_costs_the_attempt_and_is_then_not_available() {
    let server = FakeSdServer::start(Behaviour::Painting).await;
    let (_, engine) = engine(&["--engine", &server.engine()]);
    let rendering = render(&engine, brief("a boat", &[1]));
    let dying = async {
        until(async || server.painted_and_cancelled() == (1, 0)).await;
        drop(server);
    };
    let (outcome, ()) = tokio::join!(rendering, dying);
    assert!(matches!(&outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
    let probed = engine.probe().await;
    assert!(matches!(&probed, Err(EngineError::NotAvailable(_))), "{probed:?}");
    let again = render(&engine, brief("a boat", &[1])).await;
    assert!(matches!(&again, Err(EngineError::NotAvailable(_))), "{again:?}");
}

#[tokio::test]
async fn a_cancelled_render_leaves_the_queue_and_occupies_the_server_until_its_picture_is_done() {
    let server = FakeSdServer::start(Behaviour::Painting).await;
    let (_, engine) = engine(&["--engine", &server.engine()]);
    let outcome =
        cancel_once(&engine, brief("a boat", &[1, 2]), async |_| server.painted_and_cancelled() == (1, 0)).await;
    assert!(outcome.is_err(), "{outcome:?}");
    let busy = engine.probe().await;
    assert!(matches!(&busy, Err(EngineError::NotAvailable(text)) if text.contains("is still rendering")), "{busy:?}");
    let refused = render(&engine, brief("another boat", &[1])).await;
    assert!(matches!(&refused, Err(EngineError::NotAvailable(_))), "{refused:?}");
    server.be(Behaviour::Working);
    until(async || engine.probe().await.is_ok()).await;
    assert_eq!(server.painted_and_cancelled(), (0, 1));
    render(&engine, brief("another boat", &[1])).await.expect("pictures");
    assert_eq!(server.bodies().len(), 3);
}

#[tokio::test]
async fn a_render_that_is_cancelled_while_its_submit_is_under_way_leaves_no_job() {
    let server = FakeSdServer::start(Behaviour::Painting).await;
    let (_, engine) = engine(&["--engine", &server.engine()]);
    server.take_submits(false);
    let outcome = cancel_once(&engine, brief("a boat", &[1]), async |_| server.submits() == 1).await;
    assert!(outcome.is_err(), "{outcome:?}");
    server.take_submits(true);
    until(async || server.painted_and_cancelled() == (0, 1)).await;
    assert_eq!(server.bodies().len(), 1);
}

#[tokio::test]
async fn a_full_queue_behind_the_first_picture_is_waited_for() {
    let server = FakeSdServer::start(Behaviour::OneAtATime).await;
    let (_, engine) = engine(&["--engine", &server.engine()]);
    let progress = Progress::default();
    let pictures = engine.render(brief("a boat", &[1, 2, 3]), progress.clone(), CancellationToken::new()).await;
    assert_eq!((pictures.expect("pictures").len(), server.most_unfinished()), (3, 1));
    assert_eq!(progress.latest(), Some(Stage::Fraction(2.0 / 3.0)));
}

#[tokio::test]
async fn of_several_servers_those_that_take_no_work_are_passed_over() {
    let (full, gone, working) = (
        FakeSdServer::start(Behaviour::QueueFull).await,
        FakeSdServer::start(Behaviour::Working).await,
        FakeSdServer::start(Behaviour::Working).await,
    );
    let urls: Vec<String> = [&full, &gone, &working].map(|server| format!("http://{}", server.address)).into();
    drop(gone);
    let (info, engine) = engine(&["--engine", &format!("sd-server:{}", urls.join(","))]);
    assert_eq!(info.slots, 3);
    render(&engine, brief("a boat", &[1])).await.expect("pictures");
    assert_eq!((full.submits(), working.bodies().len()), (1, 1));
    engine.probe().await.expect("one of them works");
}
