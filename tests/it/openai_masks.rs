//! Edits within a mask: what is transparent in the mask changes, and every other pixel stays as it was.

use serde_json::{Value, json};
use tintype_engine::Picture;
use tintype_store::WorkerReport;

use crate::openai_edits::{data_url, error, png, task_of};
use crate::rigs::http::Answer;
use crate::rigs::images_api::{Dialect, ImagesServer};
use crate::rigs::service::{Caller, Service};
use crate::sd_server::fake_server::{Behaviour, FakeSdServer};

/// A PNG of noise, whose every pixel differs from its neighbours.
pub fn noise(width: u32, height: u32) -> Vec<u8> {
    let bytes = (0..width * height * 3).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    Picture::from_rgb(width, height, bytes).expect("a picture").to_png()
}

/// A mask in which the left half is transparent.
pub fn left_half(width: u32, height: u32) -> Vec<u8> {
    mask(width, height, |x| if x < width / 2 { 0 } else { 255 })
}

fn mask(width: u32, height: u32, alpha: impl Fn(u32) -> u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = ::png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(::png::ColorType::Rgba);
    let mut writer = encoder.write_header().expect("a header");
    let pixels: Vec<u8> = (0..width * height).flat_map(|at| [1, 2, 3, alpha(at % width)]).collect();
    writer.write_image_data(&pixels).expect("pixels");
    writer.finish().expect("a PNG");
    bytes
}

async fn picture(caller: &Caller, answer: &Answer) -> Picture {
    picture_of(caller, task_of(answer)).await
}

pub async fn picture_of(caller: &Caller, task: &str) -> Picture {
    let task = caller.task(task).await;
    let file = caller.service.fetch(task["media_url"].as_str().expect("a URL"), &[]).await;
    Picture::decode(&file.body).expect("a PNG")
}

/// The pixels of the columns `from..to`.
fn columns(picture: &Picture, from: u32, to: u32) -> Vec<u8> {
    let row = picture.width() as usize * 3;
    let rows = picture.as_rgb().chunks_exact(row);
    rows.flat_map(|row| &row[from as usize * 3..to as usize * 3]).copied().collect()
}

/// Checks that the right half is that of the original, to the pixel, and that the left half is not.
pub fn assert_left_half_changed(result: &Picture, original: &[u8]) {
    let original = Picture::decode(original).expect("a PNG");
    let (width, half) = (original.width(), original.width() / 2);
    assert_eq!((result.width(), result.height()), (width, original.height()));
    assert!(columns(result, half, width) == columns(&original, half, width), "a pixel outside the mask changed");
    let (painted, before) = (columns(result, 0, half), columns(&original, 0, half));
    let changed = painted.iter().zip(&before).filter(|(one, other)| one != other).count();
    assert!(changed > before.len() / 2, "only {changed} of {} numbers changed", before.len());
}

/// Edits the left half of a picture through the whole service: that half changes, and the other one stays.
async fn assert_right_half_stays(caller: &Caller, width: u32, height: u32) {
    let (original, mask) = (noise(width, height), left_half(width, height));
    let parts = [
        ("name=prompt", b"a boat".as_slice()),
        ("name=image; filename=a.png", &original),
        ("name=mask; filename=m.png", &mask),
    ];
    let answer = caller.service.worked(caller.edit_form(&parts)).await;
    assert_left_half_changed(&picture(caller, &answer).await, &original);
}

#[tokio::test]
async fn every_pixel_outside_the_mask_stays_as_it_was() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    for (width, height) in [(1_024, 1_024), (1_280, 720)] {
        assert_right_half_stays(&caller, width, height).await;
    }
    let (original, mask) = (noise(1_024, 1_024), left_half(1_024, 1_024));
    for mask in [json!({ "image_url": data_url(&mask) }), json!(data_url(&mask))] {
        let body = json!({ "prompt": "a boat", "images": [{ "image_url": data_url(&original) }], "mask": mask });
        let answer = service.worked(caller.edit_json(&body)).await;
        assert_left_half_changed(&picture(&caller, &answer).await, &original);
    }
    assert_eq!(service.shared.store.count_uploads(caller.account.id).await.expect("a store"), 0);
}

#[tokio::test]
async fn a_picture_with_transparent_parts_may_be_its_own_mask() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let both = left_half(1_024, 1_024);
    let parts = [
        ("name=prompt", b"a boat".as_slice()),
        ("name=image; filename=a.png", &both),
        ("name=mask; filename=a.png", &both),
    ];
    let answer = service.worked(caller.edit_form(&parts)).await;
    assert_left_half_changed(&picture(&caller, &answer).await, &both);
}

#[tokio::test]
async fn a_mask_that_cannot_be_used_is_refused_before_the_charge() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let image = png(64, 48);
    let of = |mask: Vec<u8>| json!({ "image_url": data_url(&mask) });
    let small = left_half(32, 24);
    for (mask, words) in [
        (of(png(64, 48)), "no alpha channel"),
        (of(mask(64, 48, |_| 255)), "opaque everywhere"),
        (of(small), "it has 32x24 pixels, and the image 64x48"),
        (of(left_half(48, 64)), "it has 48x64 pixels, and the image 64x48"),
        (of(b"no picture".to_vec()), "damaged"),
        (of(left_half(64, 48)[..80].to_vec()), "damaged"),
        (json!({ "image_url": "https://example.com/mask.png" }), "must come with the call"),
        (json!({ "file_id": "file-1" }), "must come with the call"),
        (json!("upload:FAAAAAAAAAAAAAAAAAAAA"), "must come with the call"),
        (json!([{ "image_url": data_url(&left_half(64, 48)) }]), "must come with the call"),
        (json!(7), "must come with the call"),
    ] {
        let answer = caller.edit_json(&json!({ "prompt": "a boat", "image": data_url(&image), "mask": mask })).await;
        assert_eq!(error(&answer, 400).1, "mask", "{words}");
        let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains(words), "{words}: {message}");
    }
    let twice = [
        ("name=prompt", b"a boat".as_slice()),
        ("name=image; filename=a.png", &image),
        ("name=mask; filename=m.png", &image),
        ("name=mask; filename=m.png", &image),
    ];
    assert_eq!(error(&caller.edit_form(&twice).await, 400).1, Value::Null);
    let body = json!({ "prompt": "a boat", "mask": of(left_half(64, 48)) }).to_string();
    assert_eq!(error(&caller.generations(&[], body).await, 400).1, "mask");
    assert_eq!(caller.credits().await, 100);
    assert_eq!(service.shared.store.count_uploads(caller.account.id).await.expect("a store"), 0);
}

#[tokio::test]
async fn a_mask_of_what_is_cropped_away_is_refused_before_the_charge() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let send = async |(width, height): (u32, u32), edge: u32, size: &str| {
        let (image, mask) = (data_url(&png(width, height)), mask(width, height, |x| if x < edge { 0 } else { 255 }));
        let body = json!({ "prompt": "a boat", "image": image, "mask": data_url(&mask), "size": size });
        caller.edit(&[("prefer", "respond-async")], "application/json", body.to_string()).await
    };
    for (size, edge, wanted) in [((600, 200), 30, "auto"), ((300, 200), 40, "1024x1024")] {
        let refused = send(size, edge, wanted).await;
        assert_eq!(error(&refused, 400).1, "mask");
        let message = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
        assert!(message.contains("cropped to"), "{message}");
    }
    assert_eq!(caller.credits().await, 100);
    assert_eq!(send((300, 200), 80, "1024x1024").await.status, 202, "a part of it stays");
}

#[tokio::test]
async fn a_mask_finds_an_engine_that_takes_it_with_all_images() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    // The last is of an earlier release, with an engine that this process has.
    let engines = [("narrow", true, 1), ("plain", false, 4), ("wide", true, 2), ("sketch", false, 4)];
    for (number, (engine, masks, max_references)) in engines.into_iter().enumerate() {
        let id = format!("FAAAAAAAAAAAAAAAAAAA{number}").parse().expect("an id");
        let usual = service.worker.throughput().report(true);
        let report = WorkerReport { engine: engine.into(), max_references, masks, id, ..usual };
        service.shared.store.report_worker(report).await.expect("a store");
    }
    let image = json!({ "image_url": data_url(&png(64, 48)) });
    let mask = data_url(&left_half(64, 48));
    let send = async |images: usize| {
        let body = json!({ "prompt": "a boat", "images": vec![image.clone(); images], "mask": &mask });
        caller.edit(&[("prefer", "respond-async")], "application/json", body.to_string()).await
    };
    for (images, engine) in [(1, "narrow"), (2, "wide")] {
        assert_eq!(send(images).await.status, 202);
        let waiting = service.shared.store.waiting_tasks(9).await.expect("a store");
        assert_eq!(waiting.last().expect("a task").engine.as_deref(), Some(engine), "{images} images");
    }
    let refused = send(3).await;
    assert_eq!(error(&refused, 400).1, "mask");
    let message = refused.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains("more than 2 images"), "{message}");
}

#[tokio::test]
async fn a_form_with_an_empty_mask_has_none() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let image = png(64, 48);
    let parts = [
        ("name=prompt", b"a boat".as_slice()),
        ("name=image; filename=a.png", &image),
        ("name=mask; filename=\"\"", b""),
    ];
    task_of(&service.worked(caller.edit_form(&parts)).await);
}

#[tokio::test]
async fn a_repeated_call_with_another_mask_is_another_call() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let image = data_url(&png(64, 48));
    let send = async |mask: Vec<u8>| {
        let body = json!({ "prompt": "a boat", "image": &image, "mask": { "image_url": data_url(&mask) } });
        let headers = [("idempotency-key", "one"), ("prefer", "respond-async")];
        caller.edit(&headers, "application/json", body.to_string()).await
    };
    let first = send(left_half(64, 48)).await;
    assert_eq!(first.status, 202, "{first:?}");
    let again = send(left_half(64, 48)).await;
    assert_eq!(again.header("x-tintype-task-id"), first.header("x-tintype-task-id"));
    let other = send(mask(64, 48, |x| if x < 9 { 0 } else { 255 })).await;
    assert!(other.status.is_client_error() && other.status != 400, "{other:?}");
    assert_eq!(caller.credits().await, 98, "charged once");
}

#[tokio::test]
async fn an_engine_without_masks_is_named_before_the_charge() {
    let (server, image) = (ImagesServer::start(Dialect::Sglang).await, png(64, 48));
    let url = server.engine();
    let preset = json!({
        "name": "default", "description": "", "engine": "openai", "settings": {}, "callers": {}, "references": null,
    });
    let preset = preset.to_string();
    let flags = ["--engine", &url, "--engine-profile", "sglang", "--model", "m", "--preset-table", &preset];
    let (_, caller) = Service::with_caller(&flags, 100).await;
    let mask = json!({ "image_url": data_url(&left_half(64, 48)) });
    let answer = caller.edit_json(&json!({ "prompt": "a boat", "image": data_url(&image), "mask": mask })).await;
    assert_eq!(error(&answer, 400).1, "mask");
    let message = answer.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains("not supported by the engine"), "{message}");
    assert_eq!((caller.credits().await, server.asked().len()), (100, 0));
}

/// [`assert_right_half_stays`] with an engine of these flags.
async fn assert_keeps_pixels(flags: &[&str]) {
    let (_, caller) = Service::with_caller(flags, 100).await;
    assert_right_half_stays(&caller, 1_280, 720).await;
}

#[tokio::test]
async fn engines_that_paint_the_whole_picture_anew_change_no_pixel_outside_the_mask() {
    let images = ImagesServer::start(Dialect::OpenAi).await;
    // It renders 1536x1024, which has another ratio than the image.
    assert_keeps_pixels(&["--engine", &images.engine(), "--engine-profile", "openai"]).await;
    let images = ImagesServer::start(Dialect::VllmOmni).await;
    assert_keeps_pixels(&["--engine", &images.engine(), "--engine-profile", "vllm-omni", "--model", "m"]).await;
    let sd_server = FakeSdServer::start(Behaviour::Working).await;
    assert_keeps_pixels(&["--engine", &sd_server.engine(), "--engine-sizes", "64x64"]).await;
}
