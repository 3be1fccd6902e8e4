//! Edits of OpenAI's Images API: pictures in forms and in JSON, their order, their uploads, and repeated calls.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use futures::TryStreamExt as _;
use serde_json::{Value, json};
use tintype_config::UPLOAD_ABANDONED;
use tintype_domain::model::{Id, Surface};
use tintype_engine::picture::Picture;
use tintype_system::clock::Timestamp;

use crate::rigs::http::Answer;
use crate::rigs::service::{Caller, Service};

pub mod hostile;

const EDITS: &str = "/v1/images/edits";
const HOUR: Duration = Duration::from_secs(60 * 60);

/// A part of a form: the parameters after `form-data`, and its bytes.
pub type Part<'a> = (&'a str, &'a [u8]);

/// A plain PNG.
pub fn png(width: u32, height: u32) -> Vec<u8> {
    let pixels = [120, 90, 60].repeat((width * height) as usize);
    Picture::from_rgb(width, height, pixels).expect("a picture").to_png()
}

pub fn data_url(picture: &[u8]) -> String {
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(picture))
}

pub fn form(boundary: &str, parts: &[Part<'_>]) -> Vec<u8> {
    let mut body = Vec::new();
    for (parameters, bytes) in parts {
        let header = format!("--{boundary}\r\nContent-Disposition: form-data; {parameters}\r\n\r\n");
        body.extend_from_slice(header.as_bytes());
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body
}

impl Caller {
    pub async fn edit(&self, headers: &[(&str, &str)], kind: &str, body: impl Into<Bytes>) -> Answer {
        self.call("POST", EDITS, &[&[("content-type", kind)], headers].concat(), body).await
    }

    /// Sends a form as a first attempt.
    pub async fn edit_form(&self, parts: &[Part<'_>]) -> Answer {
        self.edit(&[], "multipart/form-data; boundary=b-1", form("b-1", parts)).await
    }

    pub async fn edit_json(&self, body: &Value) -> Answer {
        self.edit(&[], "application/json", body.to_string()).await
    }

    async fn uploads(&self) -> u32 {
        self.service.shared.store.count_uploads(self.account.id).await.expect("a store")
    }

    /// The references of a task as it is stored: the widths of uploads, and URLs.
    pub async fn references(&self, task: &str) -> Vec<String> {
        let store = &self.service.shared.store;
        let id: Id = task.strip_prefix("imgmodel-").and_then(|id| id.parse().ok()).expect("a task_id");
        let record = store.find_record(self.account.id, Surface::Api, id).await.expect("a store").expect("a task");
        let mut widths = Vec::new();
        for reference in record.request.reference_images {
            let Some(upload) = reference.strip_prefix("upload:") else {
                widths.push(reference);
                continue;
            };
            let upload = upload.parse().expect("an id");
            let held = store.find_upload_even_removed(self.account.id, Surface::Api, upload).await.expect("a store");
            widths.push(held.expect("an upload").picture.width.to_string());
        }
        widths
    }
}

impl Service {
    async fn files(&self) -> usize {
        let mut files = 0;
        for day in self.shared.files.days().await.expect("a store of files") {
            let listed: Vec<_> =
                self.shared.files.written_before(day, Timestamp::MAX).try_concat().await.expect("a listing");
            files += listed.len();
        }
        files
    }
}

#[track_caller]
pub fn task_of(answer: &Answer) -> &str {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("x-tintype-task-id")
}

/// `code` and `param` of an error.
#[track_caller]
pub fn error(answer: &Answer, status: u16) -> (Value, Value) {
    assert_eq!(answer.status, status, "{answer:?}");
    let error = &answer.json()["error"];
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer:?}");
    (error["code"].clone(), error["param"].clone())
}

#[tokio::test]
async fn an_edit_is_a_task_with_its_pictures_in_their_order() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let (wide, narrow) = (png(30, 20), png(10, 20));
    let in_form = [
        ("name=\"prompt\"", b"a boat".as_slice()),
        ("name=\"image[]\"; filename=\"a; name=prompt.png\"", &wide),
        ("name=\"image[]\"; filename=\"b.png\"", &narrow),
        ("name=\"model\"", b""),
        ("name=\"n\"", b"2"),
        ("name=\"size\"", b"1536x1024"),
        ("name=\"response_format\"", b"b64_json"),
    ];
    let answer = service.worked(caller.edit_form(&in_form)).await;
    let body = answer.json();
    assert_eq!((body["data"].as_array().map(Vec::len), &body["size"]), (Some(2), &json!("1536x1024")), "{body}");
    let task = caller.task(task_of(&answer)).await;
    assert_eq!((&task["status"], &task["type"]), (&json!("completed"), &json!("image-to-image")));
    assert_eq!(caller.references(task_of(&answer)).await, ["30", "10"]);
    let in_json = json!({
        "prompt": "a boat", "images": [{ "image_url": data_url(&narrow) }, { "image_url": data_url(&wide) }], "n": 2,
    });
    let answer = service.worked(caller.edit_json(&in_json)).await;
    assert_eq!(caller.references(task_of(&answer)).await, ["10", "30"]);
    let twice = json!({ "prompt": "data:image/png;base64,AAAA", "image": [data_url(&wide), data_url(&wide)] });
    let answer = service.worked(caller.edit_json(&twice)).await;
    assert_eq!(caller.references(task_of(&answer)).await, ["30", "30"]);
    let one = [("name=prompt", b"a".as_slice()), ("name=image; filename=a.png", &wide)];
    assert_eq!(caller.references(task_of(&service.worked(caller.edit_form(&one)).await)).await, ["30"]);
    assert_eq!((caller.credits().await, caller.uploads().await), (88, 0));
}

#[tokio::test]
async fn a_picture_in_a_form_needs_no_name_of_a_file_if_its_type_is_that_of_a_picture() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let parts = [("name=prompt", b"a boat".as_slice()), ("name=image\r\nContent-Type: image/png", &png(30, 20))];
    assert_eq!(service.worked(caller.edit_form(&parts)).await.status, 200);
}

#[tokio::test]
async fn a_form_may_number_its_pictures_in_any_common_way() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let pictures = [png(30, 20), png(40, 20), png(50, 20), png(60, 20)];
    let names = ["images[]", "image1", "image_2", "image[3]"].map(|name| format!("name={name}; filename=a.png"));
    let mut parts = vec![("name=prompt", b"a boat".as_slice())];
    parts.extend(names.iter().map(String::as_str).zip(pictures.iter().map(Vec::as_slice)));
    let answer = service.worked(caller.edit_form(&parts)).await;
    assert_eq!(caller.references(task_of(&answer)).await, ["30", "40", "50", "60"]);
    let odd = [("name=prompt", b"a boat".as_slice()), ("name=picture; filename=a.png", &pictures[0])];
    let answer = caller.edit_form(&odd).await;
    error(&answer, 400);
    assert!(String::from_utf8_lossy(&answer.body).contains(r#"not \"picture\""#), "{answer:?}");
}

#[tokio::test]
async fn a_reference_may_be_a_url_beside_a_picture() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let url = "https://example.com/a.png";
    let picture = png(30, 20);
    let parts = [
        ("name=prompt", b"a boat".as_slice()),
        ("name=image", url.as_bytes()),
        ("name=image; filename=a.png", &picture),
    ];
    let sent = async {
        let kind = "multipart/form-data; boundary=b-1";
        let answer = caller.edit(&[("prefer", "respond-async")], kind, form("b-1", &parts)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
        answer.header("x-tintype-task-id").to_owned()
    };
    assert_eq!(caller.references(&sent.await).await, [url, "30"]);
}

#[tokio::test]
async fn the_uploads_of_an_edit_are_hidden_at_once_and_held_by_its_task() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let picture = png(30, 20);
    let parts = [("name=prompt", b"a boat".as_slice()), ("name=image; filename=a.png", &picture)];
    tokio::select! {
        answer = caller.edit_form(&parts) => panic!("answered: {answer:?}"),
        () = service.waiting(1) => {}
    }
    service.waiting(0).await;
    assert_eq!((caller.uploads().await, service.files().await), (0, 1));
    service.clock.advance(Duration::from_secs(60));
    assert_eq!(service.sweeper.sweep_uploads().await, 0, "the task holds it");
    service.work().await;
    assert_eq!(service.files().await, 2);
    service.clock.advance(2 * HOUR);
    assert_eq!(service.sweeper.sweep_uploads().await, 1);
    assert_eq!(service.files().await, 1, "the result stays");
}

#[tokio::test]
async fn a_repeated_edit_brings_the_pictures_of_the_first_without_credits() {
    let (service, caller) = Service::with_caller(&[], 2).await;
    let (wide, narrow) = (png(30, 20), png(10, 20));
    let body = |boundary: &str, first: &[u8], second: &[u8]| {
        let parts = [
            ("name=prompt", b"a boat".as_slice()),
            ("name=\"image[]\"; filename=a.png", first),
            ("name=\"image[]\"; filename=b.png", second),
        ];
        form(boundary, &parts)
    };
    tokio::select! {
        answer = caller.edit(&[], "multipart/form-data; boundary=b-1", body("b-1", &wide, &narrow)) =>
            panic!("answered: {answer:?}"),
        () = service.waiting(1) => {}
    }
    service.waiting(0).await;
    assert_eq!((caller.credits().await, service.files().await), (0, 2));
    let repeat =
        |body: Vec<u8>| caller.edit(&[("x-stainless-retry-count", "1")], "multipart/form-data; boundary=other", body);
    let swapped = repeat(body("other", &narrow, &wide)).await;
    assert_eq!(error(&swapped, 429).0, "insufficient_quota", "the order is part of the call");
    let answer = service.worked(repeat(body("other", &wide, &narrow))).await;
    assert_eq!(caller.task(task_of(&answer)).await["status"], "completed");
    assert_eq!((caller.credits().await, caller.uploads().await), (0, 0));
    assert_eq!(service.files().await, 3, "nothing was stored again");
}

#[tokio::test]
async fn an_idempotency_key_stands_for_the_bytes_of_the_pictures() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let named = [("idempotency-key", "order 66")];
    let call = |picture: Vec<u8>| {
        let body = json!({ "prompt": "a boat", "image": data_url(&picture) }).to_string();
        caller.edit(&named, "application/json", body)
    };
    let first = service.worked(call(png(30, 20))).await;
    let again = call(png(30, 20)).await;
    assert_eq!(task_of(&first), task_of(&again));
    assert_eq!(error(&call(png(20, 30)).await, 422).0, "idempotency_key_reused");
    assert_eq!((caller.credits().await, caller.uploads().await), (98, 0));
}

#[tokio::test]
async fn calls_with_four_pictures_each_do_not_block_each_other() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let picture = png(30, 20);
    let image = ("name=\"image[]\"; filename=a.png", picture.as_slice());
    let parts = [("name=prompt", b"a boat".as_slice()), image, image, image, image];
    let kind = "multipart/form-data; boundary=b-1";
    let call = || caller.edit(&[("prefer", "respond-async")], kind, form("b-1", &parts));
    let answers = tokio::join!(call(), call(), call(), call());
    for answer in [answers.0, answers.1, answers.2, answers.3] {
        assert_eq!(answer.status, 202, "{answer:?}");
    }
    assert_eq!((caller.credits().await, caller.uploads().await), (92, 0));
}

#[tokio::test]
async fn an_edit_that_breaks_off_after_its_uploads_leaves_them_to_the_sweep() {
    let service = Service::start_on_disk(&["--test-fault", "before-finish-upload=error"]).await;
    let caller = service.caller("ada", 100).await;
    let picture = png(30, 20);
    let parts = [("name=prompt", b"a boat".as_slice()), ("name=image; filename=a.png", &picture)];
    error(&caller.edit_form(&parts).await, 500);
    assert_eq!((caller.credits().await, caller.uploads().await), (100, 1), "begun and never finished");
    service.clock.advance(UPLOAD_ABANDONED + HOUR);
    service.sweeper.sweep_uploads().await;
    assert_eq!(caller.uploads().await, 0);
}
