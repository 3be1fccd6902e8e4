//! `tintype engine nodes`, and workflows without a mapping.

use super::*;
use crate::rigs::binary::{Ran as _, json as printed, refused};
use crate::tidy::root;

/// ComfyUI's default workflow, with the ids that the double of the server expects.
fn workflow() -> Value {
    json!({
        "3": { "class_type": "KSampler", "inputs": {
            "seed": 1, "steps": 4, "cfg": 8, "denoise": 1, "sampler_name": "euler", "scheduler": "normal",
            "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0] } },
        "4": { "class_type": "CheckpointLoaderSimple", "inputs": { "ckpt_name": "a.safetensors" } },
        "5": { "class_type": "EmptyLatentImage", "inputs": { "width": 512, "height": 512, "batch_size": 4 } },
        "6": { "class_type": "CLIPTextEncode", "inputs": { "text": "nothing", "clip": ["4", 1] } },
        "7": { "class_type": "CLIPTextEncode", "inputs": { "text": "rain", "clip": ["4", 1] } },
        "8": { "class_type": "VAEDecode", "inputs": { "samples": ["3", 0], "vae": ["4", 2] } },
        "9": { "class_type": "SaveImage", "inputs": { "images": ["8", 0], "filename_prefix": "a" } },
    })
}

/// The path of a file with this workflow.
fn saved(folder: &TempDir, graph: &Value) -> String {
    let path = folder.path().join("workflow.json");
    std::fs::write(&path, graph.to_string()).expect("a file");
    path.display().to_string()
}

/// An engine with this workflow and without a mapping.
fn choose(url: &str, workflow: &str) -> Result<EngineChoice, String> {
    let target = format!("comfyui:{url}");
    super::choose(["--engine", &target, "--engine-workflow", workflow])
}

#[test]
fn the_command_prints_the_file_that_the_setting_takes_and_says_what_is_missing() {
    let folder = TempDir::new().expect("a directory");
    let file = saved(&folder, &workflow());
    let output = run(folder.path(), ["engine", "nodes", &file]);
    let said = output.errors();
    assert!(output.status.success(), "{said}");
    let expected = [
        "no node for strength (optional): callers and presets cannot set it",
        "no node for image (optional): tasks with reference images need another engine",
        "no node for mask (optional): tasks with a mask need another engine",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    let mapping = output.text();
    assert!(mapping.starts_with("[\n  {\"type\":\"prompt\",\"key\":\"text\",\"node_ids\":[\"6\"]},\n"), "{mapping}");
    let files = Files::of(&workflow(), &serde_json::from_str(&mapping).expect("JSON"));
    let (given, found) = (files.choose("http://127.0.0.1:1", &[]), choose("http://127.0.0.1:1", &file));
    let settings = given.expect("an engine").info.settings;
    assert_eq!(settings, found.expect("an engine").info.settings);
    assert_eq!(settings.len(), 4, "{settings:?}");

    let shown = printed(folder.path(), &["engine", "nodes", &file]);
    assert_eq!(shown["nodes"].to_string(), serde_json::from_str::<Value>(&mapping).expect("JSON").to_string());
    assert_eq!((&shown["missing"][0]["type"], &shown["missing"][0]["required"]), (&json!("strength"), &json!(false)));
    assert_eq!(shown["notes"], json!([]));
}

#[test]
fn a_mark_of_windows_is_passed_over_and_a_link_that_leads_nowhere_is_named() {
    let folder = TempDir::new().expect("a directory");
    let mut graph = workflow();
    graph["8"]["inputs"]["vae"] = json!(["10", 0]);
    let file = saved(&folder, &graph);
    std::fs::write(&file, format!("\u{feff}{graph}")).expect("a file");
    let shown = printed(folder.path(), &["engine", "nodes", &file]);
    let note = "vae of node 8 is linked to node 10, which the workflow lacks, so ComfyUI refuses it";
    assert_eq!(shown["notes"], json!([note]));
}

#[test]
fn a_workflow_without_a_prompt_and_a_file_that_is_none_are_refused() {
    let folder = TempDir::new().expect("a directory");
    let mut graph = workflow();
    graph["3"]["inputs"]["positive"] = json!(["4", 0]);
    let file = saved(&folder, &graph);
    let said = run(folder.path(), ["engine", "nodes", &file]).exited(1).errors();
    assert!(said.contains("no node for prompt (required): every picture would show the same"), "{said}");
    let refusal = choose("http://127.0.0.1:1", &file).expect_err("no prompt");
    assert!(refusal.contains("no node for prompt was found in --engine-workflow"), "{refusal}");

    graph["3"]["inputs"]["positive"] = json!(["6", 0]);
    graph["4"]["inputs"]["after"] = json!(["9", 0]);
    for (text, reason) in [
        (r#"{"nodes": [], "links": []}"#.to_owned(), "export it with \"Export (API)\""),
        (graph.to_string(), "lead back to it"),
        (r#"{"1": "\u001b[31m"}"#.to_owned(), "has no class_type"),
        (" ".repeat(4 * 1024 * 1024 + 1), "has more than 4194304 bytes"),
        ("no JSON".to_owned(), "is not a JSON object"),
    ] {
        std::fs::write(&file, text).expect("a file");
        let said = refused(folder.path(), &["engine", "nodes", &file]);
        assert!(said.contains(reason) && said.contains("workflow.json"), "{said}");
    }
    assert!(refused(folder.path(), &["engine", "nodes", "/dev/zero"]).contains("has more than"));
    assert!(refused(folder.path(), &["engine", "nodes", "missing.json"]).contains("cannot read missing.json"));
}

#[tokio::test]
async fn a_service_finds_the_nodes_of_a_workflow_without_a_mapping() {
    let (server, folder) = (FakeComfyUi::start(Age::New).await, TempDir::new().expect("a directory"));
    let (target, file) = (format!("comfyui:{}", server.url()), saved(&folder, &workflow()));
    let flags =
        ["--engine", &target, "--engine-workflow", &file, "--engine-sizes", "64x64", "--model", "b.safetensors"];
    let (_, caller) = Service::with_caller(&flags, 100).await;
    assert_eq!(caller.outcome("a boat").await["status"], "completed");
    let graph = &server.graphs()[0];
    assert_eq!(graph["6"]["inputs"], json!({ "text": "a boat", "clip": ["4", 1] }));
    assert_eq!(graph["7"]["inputs"]["text"], "rain");
    assert_eq!(graph["5"]["inputs"], json!({ "width": 64, "height": 64, "batch_size": 1 }));
    assert_eq!(graph["4"]["inputs"]["ckpt_name"], "b.safetensors");
    assert_ne!(graph["3"]["inputs"]["seed"], 1);
}

#[tokio::test]
async fn a_node_that_loads_a_picture_and_its_mask_gets_a_picture_with_a_transparent_part() {
    let (server, folder) = (FakeComfyUi::start(Age::New).await, TempDir::new().expect("a directory"));
    let mut graph = workflow();
    graph["10"] = json!({ "class_type": "LoadImage", "inputs": { "image": "default.png" } });
    graph["11"] = json!({ "class_type": "VAEEncodeForInpaint", "inputs": {
        "pixels": ["10", 0], "mask": ["10", 1], "vae": ["4", 2], "grow_mask_by": 6 } });
    graph["3"]["inputs"]["latent_image"] = json!(["11", 0]);
    let choice = choose(&server.url(), &saved(&folder, &graph)).expect("an engine");
    assert!(choice.info.masks && choice.info.max_references == 1);
    let engine = build(&choice);
    let grey = [255, 255, 255, 0, 0, 0].repeat(32 * 48);
    let mask = Mask::of(Picture::from_rgb(64, 48, grey).expect("a picture"));
    let references = vec![flat(7)];
    render(&engine, Brief { references, mask: Some(mask.clone()), ..brief(&[1]) }).await.expect("pictures");
    let uploads = server.uploads();
    let name = server.graphs()[0]["10"]["inputs"]["image"].as_str().expect("a name").to_owned();
    let file = &uploads[&name];
    assert_eq!(Mask::decode_within(file, 64).expect("a mask"), mask);
    assert_eq!(image::load_from_memory(file).expect("a PNG").into_rgb8().as_raw(), flat(7).as_rgb());
}

#[test]
fn the_workflows_of_this_release_need_no_mapping() {
    let folder = TempDir::new().expect("a directory");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(root().join("deploy/comfyui")).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let file = path.to_str().expect("text");
        let found = printed(folder.path(), &["engine", "nodes", file]);
        let kinds: Vec<_> = found["nodes"].as_array().expect("a list").iter().map(|entry| &entry["type"]).collect();
        for kind in ["prompt", "seed", "width", "height", "n", "steps", "guidance_scale", "model"] {
            assert!(kinds.contains(&&json!(kind)), "{name} lacks {kind}: {kinds:?}");
        }
        assert_eq!(found["notes"], json!([]), "{name}");
        choose("http://127.0.0.1:1", file).expect("an engine");
        names.push(name);
    }
    names.sort();
    assert_eq!(names, ["flux-schnell.json", "flux2-klein.json", "sdxl.json", "z-image-turbo.json"]);
}
