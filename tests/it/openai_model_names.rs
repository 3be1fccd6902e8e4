//! Names of models that stand for an engine: tasks of such a model wait for a worker with that engine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tintype::service::wait_estimator::MIN_SAMPLES;
use tintype::worker::Worker;

use crate::rigs::binary::{Ran as _, Run as _, Server, data_with, run, tintype};
use crate::rigs::service::{Caller, Service};

/// A service whose model `dall-e-3` stands for the engine `comfy`, and a worker with that engine beside the usual one.
async fn service() -> (Service, Arc<Worker>) {
    let service = Service::start_with(&["--model-alias", "dall-e-3=comfy,gpt-image-1=gone"]).await;
    let comfy = service.worker_named("comfy", Arc::new(service.renderer()));
    (service, comfy)
}

/// Submits a task that names a model, and returns its id.
async fn submit(caller: &Caller, model: &str) -> String {
    let body = json!({ "prompt": "a boat", "model": model }).to_string();
    let answer = caller.post_json("/v1/images/generations/async", &[], body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.json()["id"].as_str().expect("an id").to_owned()
}

async fn status(caller: &Caller, task_id: &str) -> Value {
    caller.poll(task_id).await.json()["data"]["status"].clone()
}

#[tokio::test]
async fn a_task_of_an_alias_waits_for_its_engine_and_every_other_name_for_any() {
    let (service, comfy) = service().await;
    let caller = service.caller("ada", 100).await;
    let (named, other) = (submit(&caller, "dall-e-3").await, submit(&caller, "dall-e-2").await);
    assert_eq!(service.worker.step().await.expect("a store"), 1);
    assert_eq!(
        (status(&caller, &named).await, status(&caller, &other).await),
        (json!("processing"), json!("completed"))
    );
    let another = submit(&caller, "").await;
    assert_eq!(comfy.step().await.expect("a store"), 2, "it makes the images of every model");
    assert_eq!(
        (status(&caller, &named).await, status(&caller, &another).await),
        (json!("completed"), json!("completed"))
    );
}

#[tokio::test]
async fn the_expected_wait_is_that_of_the_workers_with_the_engine() {
    let flags = ["--renders", "1", "--submit-rate", "0", "--model-alias", "dall-e-3=comfy"];
    let service = Service::start_with(&flags).await;
    let comfy = service.worker_named("comfy", Arc::new(service.renderer()));
    let caller = service.caller("ada", 100).await;
    let mut tasks = Vec::new();
    for model in ["dall-e-3", "", "dall-e-3", ""] {
        tasks.push(submit(&caller, model).await);
        service.clock.advance(Duration::from_millis(1));
    }
    // The queue is read again.
    service.clock.advance(Duration::from_secs(1));
    let waits = async || {
        let mut waits = Vec::new();
        for task in &tasks {
            let answer = caller.poll(task).await;
            let wait = answer.headers.get("x-expected-wait").map(|wait| wait.to_str().expect("text").to_owned());
            waits.push(wait.map(|wait| wait.parse::<u64>().expect("seconds")));
        }
        waits
    };
    // Two workers have a slot each. Nothing is known of those with the engine.
    (0..MIN_SAMPLES).for_each(|_| service.worker.throughput().observe(Duration::from_secs(10), 1));
    comfy.report().await;
    assert_eq!(waits().await, [None, Some(20), None, Some(30)]);
    (0..MIN_SAMPLES).for_each(|_| comfy.throughput().observe(Duration::from_secs(100), 1));
    let after = waits().await;
    assert_eq!([after[0], after[2]], [Some(200), Some(300)], "the one before each, or in the works, and its own");
    assert!(after[1].max(after[3]) < Some(100), "they need not wait for this engine: {after:?}");
}

#[tokio::test]
async fn the_names_are_in_the_list_of_models() {
    let (service, _) = service().await;
    let caller = service.caller("ada", 0).await;
    let models = caller.get("/v1/models").await.json();
    let ids: Vec<_> = models["data"].as_array().expect("models").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, [json!("imgmodel"), json!("dall-e-3"), json!("gpt-image-1")]);
    assert_eq!(caller.get("/v1/models/dall-e-3").await.json()["object"], "model");
    // Some clients send the slash of a name as it is.
    for path in ["/v1/models/black-forest-labs/flux", "/v1/models/black-forest-labs%2Fflux"] {
        assert_eq!(caller.get(path).await.json()["id"], "black-forest-labs/flux");
    }
}

#[tokio::test]
async fn a_task_waits_for_an_engine_of_the_installation_and_fails_without_one() {
    let (service, comfy) = service().await;
    let caller = service.caller("ada", 100).await;
    service.worker.register().await.expect("a store");
    comfy.register().await.expect("a store");
    let (waits, fails) = (submit(&caller, "dall-e-3").await, submit(&caller, "gpt-image-1").await);
    service.sweep().await;
    assert_eq!(status(&caller, &waits).await, "processing", "its worker takes no work now");
    let failed = caller.get(&format!("/v1/images/tasks/{fails}")).await.json();
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("task_failed")));
    assert!(failed["error"]["message"].as_str().is_some_and(|message| message.contains("refunded")), "{failed}");
    assert_eq!(caller.credits().await, 98);
    assert_eq!(comfy.step().await.expect("a store"), 1);
}

#[tokio::test]
async fn a_repeated_call_brings_the_pictures_of_its_engine() {
    let (service, comfy) = service().await;
    let caller = service.caller("ada", 2).await;
    let call = async |attempt: &str| {
        let body = json!({ "prompt": "a boat", "model": "dall-e-3" }).to_string();
        caller.generations(&[("x-stainless-retry-count", attempt)], body).await
    };
    tokio::select! {
        answer = call("0") => panic!("answered: {answer:?}"),
        () = service.waiting(1) => {}
    }
    service.waiting(0).await;
    let work = async {
        service.waiting(1).await;
        comfy.step().await.expect("a store")
    };
    let (answer, worked) = tokio::join!(call("1"), work);
    assert_eq!((answer.status.as_u16(), worked), (200, 1), "{answer:?}");
}

#[test]
fn a_server_does_not_start_with_an_alias_of_an_engine_that_it_does_not_have() {
    let engines = "[engine.pen]\nkind = \"sketch\"\n[engine.brush]\nkind = \"sketch\"\n";
    for (aliases, reason) in [
        ("\"dall-e-3\" = \"pencil\"", "there is no engine \"pencil\"; the engines of this server are"),
        ("imgmodel = \"pen\"", "the model of every engine"),
        ("a = [\"pen\"]", "model-alias.a takes a text"),
        ("a = \"\"", "needs the name of its engine"),
    ] {
        let data = data_with(&format!("[model-alias]\n{aliases}\n{engines}"));
        let said = run(data.path(), ["serve", "--listen", "127.0.0.1:0"]).failed();
        assert!(said.contains(reason), "{said}");
    }
    let data = data_with(&format!("[model-alias]\n\"dall-e-3\" = \"brush\"\n\"b.c\" = \"pen\"\n{engines}"));
    let server = Server::start(data.path(), &[]);
    let shown = tintype().args(["config", "show", "--json", "--data"]).arg(data.path()).ran();
    let shown: Vec<Value> = serde_json::from_slice(&shown.stdout).expect("JSON");
    let aliases = shown.iter().find(|setting| setting["name"] == "model-alias").expect("a setting");
    let mut values: Vec<_> = aliases["value"].as_array().expect("values").iter().map(Value::to_string).collect();
    values.sort();
    assert_eq!(values, ["\"b.c=pen\"", "\"dall-e-3=brush\""]);
    server.stop();
}
