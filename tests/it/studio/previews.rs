//! Previews and the time left: shown to the people of an account while their picture is made, and to nobody else.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tintype::service::wait_estimator::MIN_SAMPLES;
use tintype::worker::Worker;
use tintype_engine::Stage;

use super::*;
use crate::rigs::staged::{Staged, grey};

/// Renders one task; `meanwhile` runs once its preview is reported.
async fn render(engine: &Arc<Staged>, service: &Service, meanwhile: impl AsyncFnOnce(&Worker)) {
    let worker = engine.worker(service);
    let looking = async {
        engine.begun().await;
        engine.report(Stage::Step { done: 1, of: 2 });
        engine.show(grey(64, 32, 50));
        worker.report_progress().await;
        meanwhile(&worker).await;
        engine.end();
    };
    let (done, ()) = tokio::join!(worker.step(), looking);
    assert_eq!(done.expect("a store"), 1);
}

fn source(card: &str) -> Option<&str> {
    let image = card.split("class=\"preview\"").nth(1).expect("a place for a preview");
    image.split('>').next()?.split(" src=\"").nth(1)?.split('"').next()
}

#[tokio::test]
async fn a_preview_is_shown_to_its_account_until_the_picture_is_there() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    let id = ada.create("a boat").await;
    let (card, preview) = (format!("/studio/tasks/{id}"), format!("/studio/tasks/{id}/preview"));
    assert_eq!(source(&ada.page(&card).await), None);
    assert_eq!(ada.get(&preview).await.status, 404);
    let engine = Arc::new(Staged::default());
    let look = async |worker: &Worker| {
        let shown = ada.page(&card).await;
        let first = source(&shown).expect("a preview").to_owned();
        let answer = ada.get(&first).await;
        assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, "image/png"));
        assert_eq!(answer.header("cache-control"), "no-store");
        assert_eq!(answer.body, grey(64, 32, 50).to_png());
        // At most 128 pixels a side, and never an old one.
        engine.show(grey(512, 256, 90));
        worker.report_progress().await;
        assert_ne!(source(&ada.page(&card).await), Some(first.as_str()));
        assert_eq!(ada.get(&preview).await.body, grey(128, 64, 90).to_png());
        assert_eq!(eve.get(&preview).await.status, 404);
        assert_eq!(service.call("GET", &preview, &[], "").await.status, StatusCode::SEE_OTHER);
    };
    render(&engine, &service, look).await;
    assert_eq!(ada.get(&preview).await.status, 404);
    assert!(!ada.page(&card).await.contains("class=\"preview\""));
}

#[tokio::test]
async fn nothing_is_previewed_for_the_api_or_before_the_policy_has_judged_it() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let task_id = caller.submit_prompt("a boat").await;
    let id = task_id.strip_prefix("imgmodel-").expect("an id").to_owned();
    let visitor = service.visitor_as("ada", "ada", Role::Owner).await;
    let engine = Arc::new(Staged::default());
    let look = async |_: &Worker| {
        assert!(!engine.wants_previews());
        assert_eq!(visitor.get(&format!("/studio/tasks/{id}/preview")).await.status, 404);
    };
    render(&engine, &service, look).await;

    let folder = TempDir::new().expect("a directory");
    let policy = folder.path().join("policy.toml");
    std::fs::write(folder.path().join("blocked.txt"), "").expect("a file");
    std::fs::write(&policy, "[blocklist]\nfile = \"blocked.txt\"\n").expect("a file");
    let (service, ada) = Service::with_visitor(&["--policy", policy.to_str().expect("text")], 10).await;
    let id = ada.create("a boat").await;
    let engine = Arc::new(Staged::default());
    let look = async |_: &Worker| {
        assert!(!engine.wants_previews());
        assert_eq!(source(&ada.page(&format!("/studio/tasks/{id}")).await), None);
    };
    render(&engine, &service, look).await;
}

#[tokio::test]
async fn the_time_left_is_shown_once_it_can_be_told() {
    let second = Duration::from_secs(1);
    let service = Service::start_with(&["--renders", "1"]).await;
    (0..MIN_SAMPLES).for_each(|_| service.worker.throughput().observe(second * 10, 1));
    let ada = service.visitor("ada", 10).await;
    let card = format!("/studio/tasks/{}", ada.create("a boat").await);
    let engine = Arc::new(Staged::default());
    let worker = engine.worker(&service);
    let looking = async {
        engine.begun().await;
        let shows = async |words: &str| {
            worker.report_progress().await;
            ada.page(&card).await.contains(words)
        };
        assert!(!shows(" s left").await, "others took 10 s");
        service.clock.advance(second * 3);
        assert!(shows("about 7 s left").await, "it has no steps");
        service.clock.advance(second * 17);
        assert!(!shows(" s left").await, "it takes longer than others");
        engine.report(Stage::Step { done: 1, of: 2 });
        assert!(shows("about 20 s left").await, "half of it took 20 s");
        engine.end();
    };
    let (done, ()) = tokio::join!(worker.step(), looking);
    assert_eq!(done.expect("a store"), 1);
}
