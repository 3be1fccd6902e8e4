//! `openai:URL` against a server written from the documents of each profile.

use std::time::Duration;

use serde_json::json;
use tintype_engine::{Brief, EngineError, Mask, Picture, RenderSettings};

use crate::rigs::engine::{cancel_once, choose, engine, render};
use crate::rigs::images_api::{Asked, Dialect, ImagesServer, Reply, painted};
use crate::rigs::service::Service;

pub fn brief(prompt: &str, seeds: &[u64], references: Vec<Picture>) -> Brief {
    let time_limit = Duration::from_secs(60);
    let (prompt, seeds) = (prompt.into(), seeds.to_vec());
    Brief { prompt, width: 64, height: 48, seeds, references, time_limit, ..Brief::default() }
}

fn flat(colour: [u8; 3]) -> Picture {
    Picture::from_rgb(40, 40, colour.repeat(1_600)).expect("a picture")
}

fn sizes_asked(server: &ImagesServer) -> Vec<String> {
    server.asked().iter().map(|asked| asked.json()["size"].as_str().expect("a size").to_owned()).collect()
}

#[tokio::test]
async fn a_task_is_rendered_by_a_server_of_each_profile_with_a_seed_for_each_picture() {
    for (dialect, profile) in
        [(Dialect::VllmOmni, "vllm-omni"), (Dialect::Sglang, "sglang"), (Dialect::LocalAi, "localai")]
    {
        let server = ImagesServer::start(dialect).await;
        let engine = server.engine();
        let flags = ["--engine", &engine, "--engine-profile", profile, "--engine-model", "m"];
        let (service, caller) = Service::with_caller(&flags, 10).await;
        let task = caller.outcome_of(json!({ "prompt": "a \"boat\"", "n": 3, "aspect_ratio": "16:9" })).await;
        assert_eq!(task["status"], "completed", "{profile}: {task}");
        let asked = server.asked();
        assert_eq!(asked.len(), 3, "{profile}: a call for each picture");
        let mut seeds: Vec<_> = asked.iter().map(|asked| asked.json()["seed"].as_u64().expect("a seed")).collect();
        seeds.dedup();
        assert_eq!(seeds.len(), 3, "{profile}: {seeds:?}");
        for asked in &asked {
            let mut body = asked.json();
            assert!(body["seed"].as_u64().is_some_and(|seed| seed < 1 << 31), "{body}");
            body["seed"] = 0.into();
            let expected = json!({
                "prompt": "a \"boat\"", "model": "m", "n": 1, "size": "1280x720", "response_format": "b64_json", "seed": 0
            });
            assert_eq!(body, expected, "{profile}");
            assert_eq!((asked.path.as_str(), asked.header("authorization")), ("/v1/images/generations", None));
        }
        for (image, seed) in task["images"].as_array().expect("images").iter().zip(seeds) {
            let file = service.fetch(image["url"].as_str().or(image.as_str()).expect("a URL"), &[]).await;
            assert_eq!(
                file.body,
                painted(1_280, 720, seed),
                "{profile}: the pictures stand in the order of their seeds"
            );
        }
    }
}

#[tokio::test]
async fn openai_gets_one_call_without_seed_or_response_format_in_a_size_that_its_model_knows() {
    let server = ImagesServer::with_key(Dialect::OpenAi, "sk-secret").await;
    let engine = server.engine();
    let flags = ["--engine", &engine, "--engine-profile", "openai", "--engine-key", "sk-secret"];
    let (service, caller) = Service::with_caller(&flags, 100).await;
    let task = caller.outcome_of(json!({ "prompt": "a boat", "n": 4, "aspect_ratio": "21:9" })).await;
    assert_eq!(task["status"], "completed", "{task}");
    let asked = server.asked();
    let bodies: Vec<_> = asked.iter().map(Asked::json).collect();
    assert_eq!(bodies, [json!({ "prompt": "a boat", "model": "gpt-image-1", "n": 4, "size": "1536x1024" })]);
    let file = service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await;
    assert_eq!(file.body[16..24], [1_568_u32.to_be_bytes(), 672_u32.to_be_bytes()].concat(), "the exact size");
}

#[tokio::test]
async fn the_model_decides_over_sizes_and_references_unless_the_operator_does() {
    let info = |flags: &[&str]| {
        let flags = [&["--engine", "openai:https://api.openai.com/v1"][..], flags].concat();
        choose(flags).expect("an engine").info
    };
    let nearest = |flags: &[&str]| info(flags).sizes.nearest(1_280, 720);
    assert_eq!((nearest(&[]), info(&[]).max_references), ((1_536, 1_024), 4));
    let dalle = ["--engine-model", "dall-e-3"];
    assert_eq!((nearest(&dalle), info(&dalle).max_references), ((1_792, 1_024), 0));
    assert_eq!(nearest(&["--engine-model", "gpt-image-2"]), (1_280, 720));
    let sizes = ["--engine-sizes", "512x512,768x512", "--engine-references", "1"];
    assert_eq!((nearest(&sizes), info(&sizes).max_references), ((768, 512), 1));
    assert_eq!(info(&["--engine-profile", "localai"]).max_references, 0, "it may ignore them without a word");
    assert!(info(&[]).description.contains("gpt-image-1 at openai:https://api.openai.com/v1"), "{:?}", info(&[]));
}

#[tokio::test]
async fn references_travel_in_the_form_that_the_profile_knows() {
    let references = || vec![flat([255, 0, 0]), flat([0, 0, 255])];
    let pngs: Vec<_> = references().iter().map(Picture::to_png).collect();
    for (dialect, profile, part) in [
        (Dialect::OpenAi, "openai", "image[]"),
        (Dialect::VllmOmni, "vllm-omni", "image"),
        (Dialect::Sglang, "sglang", "image[]"),
    ] {
        let server = ImagesServer::start(dialect).await;
        let url = server.engine();
        let engine = engine(["--engine", &url, "--engine-profile", profile, "--engine-model", "m"]);
        let brief = Brief { width: 1_024, height: 1_024, ..brief("a \r\n--boat; name=\"n\"", &[7], references()) };
        render(&engine, brief).await.expect("a picture");
        let asked = server.asked();
        let [asked] = &asked[..] else { panic!("{asked:?}") };
        assert_eq!(asked.path, "/v1/images/edits");
        assert_eq!(asked.fields()["prompt"], "a \r\n--boat; name=\"n\"", "{profile}: the prompt is one part");
        let files: Vec<_> = pngs.iter().map(|png| (part.to_owned(), png.clone())).collect();
        assert_eq!(asked.files(), files, "{profile}");
    }
    let server = ImagesServer::start(Dialect::LocalAi).await;
    let engine = engine(["--engine", &server.engine(), "--engine-model", "m"]);
    render(&engine, brief("a boat", &[7], references())).await.expect("a picture");
    let asked = server.asked();
    assert_eq!(asked[0].path, "/v1/images/generations");
    assert_eq!(asked[0].json()["ref_images"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn a_mask_is_transparent_and_white_where_the_picture_changes() {
    let grey = [255, 255, 255, 0, 0, 0].repeat(32 * 48);
    let mask = Mask::of(Picture::from_rgb(64, 48, grey).expect("a picture"));
    for (dialect, profile, part) in
        [(Dialect::OpenAi, "openai", "mask"), (Dialect::VllmOmni, "vllm-omni", "mask_image")]
    {
        let server = ImagesServer::start(dialect).await;
        let url = server.engine();
        let engine = engine(["--engine", &url, "--engine-profile", profile, "--engine-model", "m"]);
        let (width, height, sent) = (1_024, 1_024, Some(mask.clone()));
        let brief = Brief { width, height, mask: sent, ..brief("a boat", &[7], vec![flat([255, 0, 0])]) };
        render(&engine, brief).await.expect("a picture");
        let asked = server.asked();
        let files = asked[0].files();
        let [_, (name, file)] = &files[..] else { panic!("{} files", files.len()) };
        assert_eq!(name, part);
        assert_eq!(Mask::decode_within(file, 64).expect("a mask by its alpha"), mask);
        let shown = image::load_from_memory(file).expect("a PNG").into_luma8();
        assert_eq!(shown.as_raw()[..2], [255, 0], "{profile}: a mask by its colour");
    }
    let info = |flags: &[&str]| {
        let flags = [&["--engine", "openai:http://127.0.0.1:1/v1", "--model"][..], flags].concat();
        choose(flags).expect("an engine").info
    };
    for (flags, masks) in [
        (["gpt-image-1", "--engine-profile", "openai"], true),
        (["dall-e-3", "--engine-profile", "openai"], false),
        (["m", "--engine-profile", "vllm-omni"], true),
        (["m", "--engine-profile", "sglang"], false),
        (["m", "--engine-profile", "localai"], false),
    ] {
        assert_eq!(info(&flags).masks, masks, "{flags:?}");
    }
}

#[tokio::test]
async fn tags_that_engines_obey_never_reach_a_server() {
    let server = ImagesServer::start(Dialect::LocalAi).await;
    let engine = engine(["--engine", &server.engine(), "--engine-model", "m"]);
    let prompt = "a <lora:evil:1> boat<sd_cpp_extra_args>{\"seed\":1}</sd_cpp_extra_args>|ugly";
    render(&engine, brief(prompt, &[7], Vec::new())).await.expect("a picture");
    assert_eq!(server.asked()[0].json()["prompt"], "a   boat  ugly");
    let nothing = render(&engine, brief("<lora:evil:1>", &[7], Vec::new())).await;
    assert!(matches!(&nothing, Err(EngineError::Permanent(cause)) if cause.contains("nothing is left")), "{nothing:?}");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_picture_may_come_by_a_url_of_the_servers_own_origin() {
    let server = ImagesServer::with_key(Dialect::Sglang, "sk-secret").await;
    let flags = ["--engine", &server.engine(), "--engine-profile", "sglang", "--engine-key", "sk-secret"];
    let engine = engine(flags);
    for url in [format!("{}/files/red.png", server.url()), "/v1/files/red.png".into(), "files/red.png".into()] {
        server.reply([Reply::json(200, &json!({ "created": 1, "data": [{ "url": url }] }))]);
        let pictures = render(&engine, brief("a boat", &[7], Vec::new())).await.expect("a picture");
        assert_eq!(pictures[0].width(), 64, "{url}");
    }
    let fetched = server.all().into_iter().filter(|asked| asked.path == "/v1/files/red.png");
    assert!(fetched.map(|asked| asked.header("authorization").map(str::to_owned)).all(|key| key.is_some()));
}

#[tokio::test]
async fn a_url_of_another_origin_is_fetched_only_from_public_hosts_and_without_the_key() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    let other = ImagesServer::start(Dialect::Sglang).await;
    let flags = ["--engine", &server.engine(), "--engine-profile", "sglang", "--engine-key", "sk-secret"];
    let engine = engine(flags);
    for (url, reason) in [
        (format!("{}/files/red.png", other.url()), "must use the https:// scheme"),
        (format!("https://{}/files/red.png", other.address), "must"),
        ("https://169.254.169.254/latest/meta-data".into(), "must point to a public host"),
        ("https://localhost/red.png".into(), "must point to a public host"),
        ("file:///etc/passwd".into(), "must use the https:// scheme"),
    ] {
        server.reply([Reply::json(200, &json!({ "created": 1, "data": [{ "url": url }] }))]);
        let outcome = render(&engine, brief("a boat", &[7], Vec::new())).await;
        let is_refused = matches!(&outcome, Err(EngineError::Temporary(cause)) if cause.contains(reason));
        assert!(is_refused, "{url}: {outcome:?}");
    }
    assert!(other.all().is_empty(), "nothing was sent there");
}

#[tokio::test]
async fn a_cancelled_render_closes_its_connection() {
    let server = ImagesServer::start(Dialect::Sglang).await;
    server.reply([Reply::Silence]);
    let engine = engine(["--engine", &server.engine(), "--engine-profile", "sglang"]);
    let brief = brief("a boat", &[7], Vec::new());
    let outcome = cancel_once(&engine, brief, async |_| !server.asked().is_empty()).await;
    assert!(matches!(outcome, Err(EngineError::Temporary(_))), "{outcome:?}");
}

#[tokio::test]
async fn the_size_asked_for_is_one_that_the_operator_named() {
    let server = ImagesServer::start(Dialect::VllmOmni).await;
    let engine = server.engine();
    let flags = ["--engine", &engine, "--engine-profile", "vllm-omni", "--engine-sizes", "512x512,640x384"];
    let (service, caller) = Service::with_caller(&flags, 10).await;
    let task = caller.submit(json!({ "prompt": "a boat", "aspect_ratio": "16:9" })).await;
    service.work().await;
    assert_eq!(sizes_asked(&server), ["640x384"]);
    let task = caller.task(task["task_id"].as_str().expect("a task_id")).await;
    let file = service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await;
    assert_eq!(file.body[16..24], [1_280_u32.to_be_bytes(), 720_u32.to_be_bytes()].concat());
}

#[tokio::test]
async fn the_quality_of_a_preset_reaches_the_models_of_openai() {
    let settings = RenderSettings { quality: Some("low".into()), ..RenderSettings::default() };
    let server = ImagesServer::start(Dialect::OpenAi).await;
    let target = server.engine();
    let flags = [
        "--engine",
        &target,
        "--engine-profile",
        "openai",
        "--model",
        "gpt-image-1",
        "--engine-extra",
        r#"{"quality": "high"}"#,
    ];
    for references in [Vec::new(), vec![flat([1, 2, 3])]] {
        let (width, height) = (1_024, 1_024);
        let brief = Brief { settings: settings.clone(), width, height, ..brief("a boat", &[7], references) };
        render(&engine(flags), brief).await.expect("a picture");
    }
    let asked = server.asked();
    assert_eq!(
        asked[0].json()["quality"],
        "low",
        "a preset's choice comes before what the operator adds to every call"
    );
    assert!(String::from_utf8_lossy(&asked[1].body).contains("\"quality\"\r\n\r\nlow"));
}

#[tokio::test]
async fn settings_and_the_fields_of_the_operator_reach_servers_that_take_them() {
    let settings = RenderSettings {
        negative_prompt: Some("rain | fog".into()),
        steps: Some(9),
        guidance_scale: Some(6.5),
        loras: vec!["/loras/ink.safetensors:0.8".parse().expect("a LoRA")],
        // Only OpenAI's own models take one.
        quality: Some("low".into()),
        ..RenderSettings::default()
    };
    let extra = r#"{"quality": "high", "num_inference_steps": 40, "flow": {"shift": 3}}"#;
    for (dialect, profile, expected) in [
        (
            Dialect::VllmOmni,
            "vllm-omni",
            json!({
                "prompt": "a boat", "negative_prompt": "rain | fog", "num_inference_steps": 9, "guidance_scale": 6.5,
                "quality": "high", "flow": { "shift": 3 },
                "lora": { "name": "ink", "path": "/loras/ink.safetensors", "scale": 0.8 },
            }),
        ),
        (
            Dialect::LocalAi,
            "localai",
            json!({
                "prompt": "a boat|rain   fog", "step": 9, "quality": "high", "num_inference_steps": 40,
                "flow": { "shift": 3 },
            }),
        ),
    ] {
        let server = ImagesServer::start(dialect).await;
        let target = server.engine();
        let flags = ["--engine", &target, "--engine-profile", profile, "--model", "m", "--engine-extra", extra];
        let brief = Brief { settings: settings.clone(), ..brief("a boat", &[7], Vec::new()) };
        render(&engine(flags), brief).await.expect("a picture");
        let mut asked = server.asked()[0].json();
        for common in ["model", "n", "size", "response_format", "seed"] {
            asked.as_object_mut().expect("fields").remove(common).expect(common);
        }
        assert_eq!(asked, expected, "{profile}");
    }
    // An edit is a form, whose fields are texts.
    let server = ImagesServer::start(Dialect::VllmOmni).await;
    let target = server.engine();
    let flags = ["--engine", &target, "--engine-profile", "vllm-omni", "--model", "m", "--engine-extra", extra];
    let brief = Brief { settings, ..brief("a boat", &[7], vec![flat([1, 2, 3])]) };
    render(&engine(flags), brief).await.expect("a picture");
    let form = String::from_utf8_lossy(&server.asked()[0].body).into_owned();
    for field in [
        "\"quality\"\r\n\r\nhigh",
        "\"num_inference_steps\"\r\n\r\n9",
        "\"flow\"\r\n\r\n{\"shift\":3}",
        "\"lora\"\r\n\r\n{\"name\":\"ink\"",
    ] {
        assert!(form.contains(field), "{field}: {form}");
    }
}

#[test]
fn fields_that_a_task_sets_itself_are_not_the_operators() {
    for (target, extra) in [
        ("openai:http://127.0.0.1:1/v1", r#"{"prompt": "a"}"#),
        ("openai:http://127.0.0.1:1/v1", r#"{"seed": 1}"#),
        ("sd-server:http://127.0.0.1:1", r#"{"width": 1}"#),
        ("sd-server:http://127.0.0.1:1", r#"{"sample_params": 1}"#),
    ] {
        let flags = ["--engine", target, "--model", "m", "--engine-extra", extra];
        let fault = choose(flags).expect_err(extra);
        assert!(fault.starts_with("extra"), "{fault}");
    }
}

#[tokio::test]
async fn the_settings_of_a_preset_and_of_its_caller_reach_the_engine() {
    let server = ImagesServer::start(Dialect::VllmOmni).await;
    let target = server.engine();
    let preset = json!({
        "name": "draft", "description": "", "engine": null, "settings": { "steps": 9, "negative_prompt": "rain" },
        "callers": { "seed": { "start": 0.0, "end": 99.0 } }, "references": null,
    });
    let preset = preset.to_string();
    let flags = ["--engine", &target, "--engine-profile", "vllm-omni", "--model", "m", "--preset-table", &preset];
    let (service, caller) = Service::with_caller(&flags, 10).await;
    let body = json!({ "prompt": "a boat", "model": "draft", "n": 2, "seed": 7, "guidance_scale": 3 }).to_string();
    let answer = caller.post_json("/v1/images/generations/async", &[], body).await;
    assert_eq!((answer.status.as_u16(), answer.header("x-ignored-fields")), (202, "guidance_scale"), "{answer:?}");
    service.work().await;
    let mut asked: Vec<_> = server.asked().iter().map(Asked::json).collect();
    asked.sort_by_key(|asked| asked["seed"].as_u64());
    assert_eq!((&asked[0]["seed"], &asked[1]["seed"]), (&json!(7), &json!(8)));
    for asked in &asked {
        assert_eq!((&asked["num_inference_steps"], &asked["negative_prompt"]), (&json!(9), &json!("rain")), "{asked}");
        assert!(asked.get("guidance_scale").is_none(), "{asked}");
    }
}

#[tokio::test]
async fn guidance_below_1_renders_no_negative_prompt_past_the_policy() {
    for (guidance, negative) in [(0.0, None), (0.99, None), (1.0, Some("rain"))] {
        let server = ImagesServer::start(Dialect::VllmOmni).await;
        let target = server.engine();
        let preset = json!({
            "name": "default", "description": "", "engine": null,
            "settings": { "guidance_scale": guidance, "negative_prompt": "rain" }, "callers": {}, "references": null,
        });
        let preset = preset.to_string();
        let flags = ["--engine", &target, "--engine-profile", "vllm-omni", "--model", "m", "--preset-table", &preset];
        let service = Service::start_with(&flags).await;
        service.caller("ada", 10).await.submit_prompt("a boat").await;
        service.work().await;
        let asked = server.asked()[0].json();
        assert_eq!((asked["guidance_scale"].as_f64(), asked["negative_prompt"].as_str()), (Some(guidance), negative));
    }
}

#[tokio::test]
async fn a_server_for_a_data_centre_is_asked_for_its_health_and_for_the_model() {
    for (dialect, profile) in [(Dialect::VllmOmni, "vllm-omni"), (Dialect::Sglang, "sglang")] {
        let server = ImagesServer::start(dialect).await;
        let url = server.engine();
        let probe = async |model: &[&str]| {
            engine([&["--engine", &url, "--engine-profile", profile][..], model].concat()).probe().await
        };
        probe(&["--model", "m"]).await.expect("it is ready");
        probe(&[]).await.expect("its own model");
        let paths: Vec<_> = server.all().into_iter().map(|asked| asked.path).collect();
        assert_eq!(paths, ["/health", "/v1/models", "/health", "/v1/models"], "{profile}");
        let refusal = probe(&["--model", "org/other"]).await.expect_err("another model");
        let expected = "does not have the model org/other: give --model one of its names (m), or leave --model out";
        assert!(matches!(&refusal, EngineError::NotAvailable(cause) if cause.ends_with(expected)), "{refusal}");
        server.answer_health(Reply::json(404, &json!({ "detail": "Not Found" })));
        probe(&[]).await.expect("an older server has no such route");
        server.answer_health(Reply::Whole(503, Vec::new(), Vec::new()));
        let refusal = probe(&[]).await.expect_err("it is starting");
        let expected = format!("http://{}/health answered 503", server.address);
        assert!(matches!(&refusal, EngineError::NotAvailable(cause) if cause.starts_with(&expected)), "{refusal}");
    }
    // Other servers have no such route, and may take models that they do not list.
    let server = ImagesServer::start(Dialect::LocalAi).await;
    let flags = ["--engine", &server.engine(), "--engine-profile", "localai", "--model", "other"];
    engine(flags).probe().await.expect("it lists its models");
    assert_eq!(server.all().len(), 1);
}
