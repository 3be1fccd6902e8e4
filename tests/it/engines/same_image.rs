//! The seed that a task shows makes its image again, on every engine that takes one.

use serde_json::json;
use tintype_domain::model::{Surface, TaskId};

use super::comfyui::Files;
use super::comfyui::fake_server::{Age, FakeComfyUi};
use super::diffusion::{Rig, model};
use crate::presets::{call, images_of};
use crate::rigs::images_api::{Dialect, ImagesServer};
use crate::rigs::service::Service;
use crate::sd_server::fake_server::{Behaviour, FakeSdServer};

/// Makes an image without a seed, reads the seed that it got, and makes the image again with it.
async fn assert_makes_it_again(service: &Service, work: impl AsyncFn()) {
    let caller = service.caller("ada", 100).await;
    let made = async |body| {
        let answer = call(&caller, body).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        assert!(!answer.headers.contains_key("x-ignored-fields"), "{answer:?}");
        work().await;
        let id = answer.json()["id"].as_str().expect("an id").to_owned();
        (images_of(&caller, &id).await, id)
    };
    let (first, id) = made(json!({ "prompt": "a boat" })).await;
    let TaskId(id) = id.parse().expect("an id");
    let record = service.shared.store.find_record(caller.account.id, Surface::Api, id).await.expect("a store");
    let seed = record.expect("a task").request.seeds(id).next();
    let (again, _) = made(json!({ "prompt": "a boat", "seed": seed })).await;
    assert!(again == first, "another image");
    let (other, _) = made(json!({ "prompt": "a boat", "seed": seed.map(|seed| seed ^ 1) })).await;
    assert!(other != first, "the seed changes nothing");
}

async fn assert_server_makes_it_again(flags: &[&str]) {
    let service = Service::start_with(flags).await;
    assert_makes_it_again(&service, async || service.work().await).await;
}

#[tokio::test]
async fn the_sketch_engine_and_servers_with_the_images_api_make_an_image_again() {
    assert_server_makes_it_again(&[]).await;
    for (dialect, profile) in
        [(Dialect::VllmOmni, "vllm-omni"), (Dialect::Sglang, "sglang"), (Dialect::LocalAi, "localai")]
    {
        let server = ImagesServer::start(dialect).await;
        let target = server.engine();
        assert_server_makes_it_again(&["--engine", &target, "--engine-profile", profile, "--model", "m"]).await;
    }
}

#[tokio::test]
async fn sd_server_makes_an_image_again() {
    let server = FakeSdServer::start(Behaviour::Working).await;
    assert_server_makes_it_again(&["--engine", &server.engine(), "--engine-sizes", "64x64"]).await;
}

#[tokio::test]
async fn comfyui_makes_an_image_again() {
    let (server, files) = (FakeComfyUi::start(Age::New).await, Files::new());
    let flags = files.flags(&server.url(), &[]);
    assert_server_makes_it_again(&flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn the_built_in_engine_makes_an_image_again() {
    let rig = Rig::new(&model("lcm"), &["--engine-sizes", "64x64"]).started().await;
    let service = Service::start().await;
    let worker = service.worker_with(std::sync::Arc::new(service.renderer_with(rig.info.clone(), rig.engine.clone())));
    let work = async || assert_eq!(worker.step().await.expect("a store"), 1);
    assert_makes_it_again(&service, work).await;
}
