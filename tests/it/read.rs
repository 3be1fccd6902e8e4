//! Reading one task.

use std::time::Duration;

use serde_json::{Value, json};
use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_store::Submission;

use crate::rigs::http::TASKS;
use crate::rigs::service::Service;

#[tokio::test]
async fn a_task_is_readable_the_moment_its_submit_is_answered() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    let created = caller.submit(json!({ "prompt": "a boat" })).await;
    let task = caller.task(created["task_id"].as_str().expect("a task_id")).await;
    let expected = json!({
        "id": created["id"],
        "task_id": created["task_id"],
        "status": "processing",
        "provider": "imgmodel",
        "model": "imgmodel",
        "type": "text-to-image",
        "media_url": null,
        "images": null,
        "error": null,
        "created_at": "2026-11-21T12:00:00.000Z",
        "updated_at": "2026-11-21T12:00:00.000Z",
    });
    assert_eq!(task, expected);
}

#[tokio::test]
async fn a_completed_task_lists_its_images_in_order() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let created = caller.submit(json!({ "prompt": "a boat", "n": 3, "aspect_ratio": "21:9" })).await;
    service.clock.advance(Duration::from_millis(1_234));
    service.work().await;
    let task = caller.task(created["task_id"].as_str().expect("a task_id")).await;
    assert_eq!(task["status"], "completed");
    assert_eq!(task["error"], Value::Null);
    assert_eq!(task["created_at"], "2026-11-21T12:00:00.000Z");
    assert_eq!(task["updated_at"], "2026-11-21T12:00:01.234Z");
    let images = task["images"].as_array().expect("images");
    assert_eq!(images.len(), 3);
    assert_eq!(task["media_url"], images[0]["url"]);
    let mut contents = Vec::new();
    for image in images {
        assert_eq!(image["content_type"], "image/png");
        assert_eq!(image.as_object().expect("an object").len(), 2);
        let file = service.fetch(image["url"].as_str().expect("a URL"), &[]).await;
        assert_eq!((file.status.as_u16(), file.header("content-type")), (200, "image/png"));
        contents.push(file.body);
    }
    assert!(contents[0] != contents[1] && contents[1] != contents[2], "the images are different pictures");
    assert_eq!(caller.credits().await, 4);
}

#[tokio::test]
async fn a_failed_task_shows_its_error_and_is_refunded() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    for (directive, about) in [("[[fail]]", "could not be generated"), ("[[policy]]", "content policy")] {
        let created = caller.submit(json!({ "prompt": format!("a boat {directive}"), "n": 4 })).await;
        assert_eq!(caller.credits().await, 2);
        service.work().await;
        let task = caller.task(created["task_id"].as_str().expect("a task_id")).await;
        assert_eq!(task["status"], "failed");
        assert_eq!((&task["media_url"], &task["images"]), (&Value::Null, &Value::Null));
        assert!(task["error"].as_str().expect("a message").contains(about), "{task}");
        assert_eq!(caller.credits().await, 10);
    }
    let history = service.shared.store.history(caller.account.id, None, 10).await.expect("a store");
    let kinds: Vec<_> = history.iter().map(|entry| (entry.kind.as_str(), entry.amount)).collect();
    assert_eq!(kinds, [("refund", 8), ("charge", -8), ("refund", 8), ("charge", -8), ("grant", 10)]);
}

#[tokio::test]
async fn a_task_of_another_account_and_a_missing_one_get_the_same_404() {
    let (service, ada) = Service::with_caller(&[], 10).await;
    let bob = service.caller("bob", 10).await;
    let of_bob = bob.submit_prompt("a boat").await;
    let request = GenerateRequest::new("a boat");
    let submission =
        service.shared.store.submit(ada.account.id, None, Surface::Web, request, 0).await.expect("a store");
    let Submission::Accepted(of_web) = submission else { panic!("{submission:?}") };
    let bare_id = of_bob.strip_prefix("imgmodel-").expect("a task_id");
    service.work().await;
    bob.task(&of_bob).await;
    let absent = [
        of_bob.clone(),
        of_web.task_id().to_string(),
        bare_id.to_owned(),
        "imgmodel-AAAAAAAAAAAAAAAAAAAAA".into(),
        "imgmodel-".into(),
        "imgmodel".into(),
        "IMGMODEL-AAAAAAAAAAAAAAAAAAAAA".into(),
        "imgmodel-AAAAAAAAAAAAAAAAAAAAAA".into(),
        "imgmodel-AAAAAAAAAA/AAAAAAAAAA".into(),
        "%ff%fe".into(),
        "imgmodel-%00AAAAAAAAAAAAAAAAAAAA".into(),
        "é".repeat(15),
        "x".repeat(4_000),
    ];
    let mut messages = Vec::new();
    for id in absent {
        let path = format!("{TASKS}/{}", id.replace('é', "%C3%A9"));
        let answer = ada.get(&path).await;
        if id.contains('/') {
            answer.assert_error(404, "NOT_FOUND");
            continue;
        }
        let headers: Vec<_> = answer.headers.keys().map(|name| name.as_str().to_owned()).collect();
        messages.push((answer.assert_error(404, "NOT_FOUND"), headers));
    }
    messages.dedup();
    assert_eq!(messages.len(), 1, "{messages:?}");
}

#[tokio::test]
async fn a_cached_task_is_shown_only_to_its_owner() {
    let (service, ada) = Service::with_caller(&[], 10).await;
    let bob = service.caller("bob", 10).await;
    let task_id = ada.submit_prompt("a boat").await;
    service.work().await;
    let first = ada.task(&task_id).await;
    assert_eq!(first["status"], "completed");
    assert_eq!(ada.task(&task_id).await, first);
    bob.poll(&task_id).await.assert_error(404, "NOT_FOUND");
}

#[tokio::test]
async fn answers_about_unfinished_tasks_have_a_poll_hint() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let task_id = caller.submit_prompt("a boat").await;
    let answer = caller.poll(&task_id).await;
    let seconds: f64 = answer.header("x-poll-after").parse().expect("seconds");
    assert!(seconds > 0.0 && seconds < 10.0);
    service.work().await;
    let answer = caller.poll(&task_id).await;
    assert!(!answer.headers.contains_key("x-poll-after"));
}
