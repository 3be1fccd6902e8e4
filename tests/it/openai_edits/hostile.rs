//! Edits that nobody should send.

use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tintype_config::{MAX_BODY, MAX_EDIT_BODY, MAX_UPLOAD, MAX_UPLOADS};
use tintype_domain::model::{Id, Surface};
use tintype_store::{NewUpload, Right};
use tintype_system::clock::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{EDITS, data_url, error, form, png};
use crate::rigs::http::{Answer, status_of};
use crate::rigs::service::{Caller, Service};

pub const FORM: &str = "multipart/form-data; boundary=b-1";

impl Caller {
    /// Begins an edit with these headers besides the key.
    pub async fn open(&self, headers: &str) -> TcpStream {
        let head = format!(
            "POST {EDITS} HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\n{headers}\r\n",
            self.service.address,
            self.authorization()
        );
        self.service.write(head).await
    }

    /// The status of an edit whose body comes in chunks: a beginning, and then this chunk for ever.
    async fn endless(&self, kind: &str, begin: &[u8], chunk: &[u8]) -> u16 {
        let mut stream = self.open(&format!("content-type: {kind}\r\ntransfer-encoding: chunked\r\n")).await;
        let framed = |bytes: &[u8]| [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        stream.write_all(&framed(begin)).await.expect("a connection");
        let (mut answers, mut sender) = stream.into_split();
        let chunk = framed(chunk);
        let sending = tokio::spawn(async move { while sender.write_all(&chunk).await.is_ok() {} });
        let status = status_of(&mut answers).await;
        drop(answers);
        sending.await.expect("it ends");
        status
    }
}

/// Nothing is left of the calls of this account.
async fn assert_nothing_left(caller: &Caller, credits: i64) {
    assert_eq!((caller.credits().await, caller.uploads().await, caller.service.files().await), (credits, 0, 0));
    let directory = std::fs::read_dir(caller.service.directory.path()).expect("a directory");
    let names: Vec<_> = directory.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("upload")), "{names:?}");
}

#[tokio::test]
async fn a_sender_is_refused_before_a_byte_is_read() {
    let service = Service::start_with(&["--submit-rate", "3"]).await;
    let (ada, poor) = (service.caller("ada", 100).await, service.caller("poor", 1).await);
    let announce = async |caller: &Caller, kind: &str, bytes: u64, more: &str| {
        let headers = format!("content-type: {kind}\r\ncontent-length: {bytes}\r\nexpect: 100-continue\r\n{more}");
        status_of(&mut caller.open(&headers).await).await
    };
    assert_eq!(announce(&poor, FORM, 100, "").await, 429);
    assert_eq!(announce(&poor, "application/json", 100, "").await, 429);
    assert_eq!(announce(&poor, FORM, 100, "x-stainless-retry-count: 1\r\n").await, 100, "it may be paid for");
    assert_eq!(announce(&ada, FORM, 5 * MAX_UPLOAD + 2_000_000, "").await, 413);
    assert_eq!(announce(&ada, "application/json", MAX_EDIT_BODY + 1, "").await, 413);
    assert_eq!(announce(&ada, FORM, 5 * MAX_UPLOAD, "").await, 100);
    assert_eq!(announce(&ada, FORM, 100, "").await, 429, "beyond the rate limit");
    let head = format!(
        "POST {EDITS} HTTP/1.1\r\nhost: {}\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n",
        service.address
    );
    let mut unknown = service.write(head).await;
    assert_eq!(status_of(&mut unknown).await, 401);
    let full = service.caller("full", 100).await;
    for _ in 0..MAX_UPLOADS {
        service
            .shared
            .store
            .begin_upload(NewUpload::of(full.account.id, Surface::Web), MAX_UPLOADS)
            .await
            .expect("a store");
    }
    assert_eq!(announce(&full, FORM, 100, "").await, 400);
}

#[tokio::test]
async fn a_hostile_form_leaves_nothing() {
    let service = Service::start_changed(&[], |limits| limits.body_idle = Duration::from_millis(300)).await;
    let caller = service.caller("ada", 100).await;
    let picture = png(30, 20);
    let prompt = ("name=prompt", b"a boat".as_slice());
    let image = ("name=image; filename=a.png", picture.as_slice());
    let many = vec![("name=prompt", b"".as_slice()); 5_000];
    let cut = form("b-1", &[prompt, image]);
    let long = vec![b'a'; MAX_BODY + 1];
    let cases: [(Vec<u8>, u16, Value); 19] = [
        (form("b-1", &many), 400, Value::Null),
        (form("b-2", &[prompt, image]), 400, Value::Null),
        (cut[..cut.len() - 10].to_vec(), 400, Value::Null),
        (Vec::new(), 400, Value::Null),
        ([vec![b'p'; 2_000_000], cut.clone()].concat(), 400, Value::Null),
        ([cut.clone(), vec![b'e'; 2_000_000]].concat(), 400, Value::Null),
        (form("b-1", &[("name=prompt", &long), image]), 413, Value::Null),
        (form("b-1", &[prompt, prompt, image]), 400, Value::Null),
        (form("b-1", &[prompt, image, image, image, image, image]), 400, json!("image")),
        (form("b-1", &[prompt, ("name=image; filename=a.png", b"")]), 400, json!("image")),
        (form("b-1", &[prompt, ("name=image; filename=a.png", &picture[..60])]), 400, json!("image")),
        (form("b-1", &[prompt, ("name=image", b"upload:FAAAAAAAAAAAAAAAAAAAA")]), 400, json!("image")),
        (form("b-1", &[prompt, ("name=image", &picture)]), 400, json!("image")),
        (form("b-1", &[prompt, ("name=image", &long)]), 400, json!("image")),
        (form("b-1", &[prompt, image, ("name=mask", &picture)]), 400, json!("mask")),
        (form("b-1", &[prompt, image, ("name=mask; filename=m.png", &picture)]), 400, json!("mask")),
        (form("b-1", &[prompt, image, ("name=mask; filename=m.png", &png(7, 3))]), 400, json!("mask")),
        (form("b-1", &[prompt, image, ("name=other; filename=m.png", &picture)]), 400, Value::Null),
        (form("b-1", &[("filename=\"a; name=image\"; name=\"prompt\"", &picture), image]), 400, Value::Null),
    ];
    for (index, (body, status, param)) in cases.into_iter().enumerate() {
        let answer = caller.edit(&[], FORM, body).await;
        assert_eq!(error(&answer, status).1, param, "case {index}: {answer:?}");
    }
    for kind in ["text/plain", "multipart/form-data", "multipart/form-data; boundary=", "multipart/mixed; boundary=b-1"]
    {
        error(&caller.edit(&[], kind, form("b-1", &[prompt, image])).await, 400);
    }
    // A length that never comes.
    let mut lying = caller.open(&format!("content-type: {FORM}\r\ncontent-length: 100000\r\n")).await;
    lying.write_all(&cut).await.expect("a connection");
    assert_eq!(status_of(&mut lying).await, 408);
    assert_nothing_left(&caller, 100).await;
}

#[tokio::test]
async fn an_endless_body_ends_at_its_limit() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let chunk = vec![b'A'; 0x1_0000];
    let begin =
        |disposition: &str| format!("--b-1\r\nContent-Disposition: form-data; {disposition}\r\n\r\n").into_bytes();
    for (kind, begin, status) in [
        (FORM, begin("name=image; filename=a.png"), 413),
        (FORM, begin("name=prompt"), 413),
        (FORM, begin("name=mask; filename=a.png"), 413),
        (FORM, b"preamble".to_vec(), 400),
        (FORM, b"--b-1\r\nContent-Disposition: ".to_vec(), 400),
        ("application/json", br#"{"image": "data:image/png;base64,"#.to_vec(), 413),
        ("application/json", br#"{"image": "https://example.com/"#.to_vec(), 400),
        ("application/json", br#"{"image": "data:image/png"#.to_vec(), 400),
    ] {
        let shown = String::from_utf8_lossy(&begin).into_owned();
        assert_eq!(caller.endless(kind, &begin, &chunk).await, status, "{shown}");
    }
    assert_nothing_left(&caller, 100).await;
}

#[tokio::test]
async fn a_data_url_of_a_hundred_megabytes_is_an_error_that_names_it() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let url = format!("data:image/png;base64,{}", "A".repeat(30 << 20));
    let answer = caller.edit_json(&json!({ "prompt": "a boat", "images": [{ "image_url": url }] })).await;
    assert_eq!(error(&answer, 413).1, "image");
    assert!(answer.json()["error"]["message"].as_str().is_some_and(|message| message.contains("20 MiB")));
    let announced = format!("content-type: application/json\r\ncontent-length: {}\r\n", 134 << 20);
    assert_eq!(status_of(&mut caller.open(&announced).await).await, 413);
    assert_nothing_left(&caller, 100).await;
}

#[tokio::test]
async fn a_wrong_edit_in_json_names_its_field() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let good = data_url(&png(30, 20));
    for (body, param) in [
        (json!({ "prompt": "a" }), json!("image")),
        (json!({ "prompt": "a", "image": "data:image/png,hello" }), json!("image")),
        (json!({ "prompt": "a", "image": "data:image/png;base64,AAAA" }), json!("image")),
        (json!({ "prompt": "a", "image": [&good, &good, &good, &good, &good] }), json!("image")),
        (json!({ "prompt": "a", "images": [{ "image_url": "upload:FAAAAAAAAAAAAAAAAAAAA" }] }), json!("images")),
        (json!({ "prompt": "a", "images": [{ "image_url": "result:FAAAAAAAAAAAAAAAAAAAA/1" }] }), json!("images")),
        (json!({ "prompt": "a", "images": [{ "image_url": "http://example.com/a.png" }] }), json!("images")),
        (json!({ "prompt": "a", "images": [{ "file_id": "a" }] }), json!("images")),
        (json!({ "prompt": "a", "image": &good, "mask": { "image_url": &good } }), json!("mask")),
        (json!({ "prompt": "a", "image": &good, "mask": { "image_url": data_url(&png(7, 3)) } }), json!("mask")),
        (json!({ "image": &good }), json!("prompt")),
        (json!({ "prompt": "a", "image": &good, "n": 5 }), json!("n")),
    ] {
        assert_eq!(error(&caller.edit_json(&body).await, 400).1, param, "{body}");
    }
    let answer: Answer =
        caller.edit(&[], "application/json", r#"{"prompt": "a", "image": "data:image/png;base64,AA"#).await;
    error(&answer, 400);
    assert_nothing_left(&caller, 100).await;
}

#[tokio::test]
async fn a_caller_who_hangs_up_in_the_middle_leaves_nothing_and_no_place() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "0"], 100).await;
    let begin = b"--b-1\r\nContent-Disposition: form-data; name=image; filename=a.png\r\n\r\nhalf a picture";
    let announced = format!("content-type: {FORM}\r\ncontent-length: 100000\r\n");
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = caller.open(&format!("{announced}expect: 100-continue\r\n")).await;
        assert_eq!(status_of(&mut stream).await, 100);
        stream.write_all(begin).await.expect("a connection");
        open.push(stream);
    }
    assert_eq!(status_of(&mut caller.open(&announced).await).await, StatusCode::TOO_MANY_REQUESTS.as_u16());
    drop(open);
    let picture = png(30, 20);
    let parts = [("name=prompt", b"a boat".as_slice()), ("name=image; filename=a.png", &picture)];
    // A place is free as soon as the service has seen that a caller is gone.
    let answer = loop {
        let sent = caller.edit(&[("prefer", "respond-async")], FORM, form("b-1", &parts)).await;
        if sent.status != StatusCode::TOO_MANY_REQUESTS {
            break sent;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(answer.status, 202, "{answer:?}");
    service.work().await;
    assert_eq!((caller.credits().await, caller.uploads().await, service.files().await), (98, 0, 2));
    let named = [("idempotency-key", "a"), ("prefer", "wait=1")];
    let other = caller.edit(&named, FORM, form("b-1", &parts));
    assert_eq!(service.worked(other).await.status, 200);
}

#[tokio::test]
async fn slow_callers_do_not_keep_their_places() {
    let (service, caller) = Service::with_caller(&["--submit-rate", "0"], 100).await;
    let announced = format!("content-type: {FORM}\r\ncontent-length: 100000\r\n");
    let mut slow = Vec::new();
    for _ in 0..4 {
        let mut stream = caller.open(&format!("{announced}expect: 100-continue\r\n")).await;
        assert_eq!(status_of(&mut stream).await, 100);
        stream.read_exact(&mut [0; "\u{20}Continue\r\n\r\n".len()]).await.expect("an answer");
        slow.push(stream);
    }
    assert_eq!(status_of(&mut caller.open(&announced).await).await, StatusCode::TOO_MANY_REQUESTS.as_u16());
    service.clock.advance(Duration::from_secs(16));
    for stream in &mut slow {
        stream.write_all(b"x").await.expect("a connection");
        assert_eq!(status_of(stream).await, 408);
    }
    assert_nothing_left(&caller, 100).await;
}

#[tokio::test]
async fn accounts_that_take_all_places_they_can_leave_places_for_others() {
    let service = Service::start().await;
    let uploads = &service.api.uploads;
    let greedy = |number: i64| {
        let account = Id::floor(Timestamp::from_millis(number));
        std::iter::from_fn(|| uploads.arrive(account, Right::Key([0; 32])).ok()).collect::<Vec<_>>()
    };
    let held: Vec<_> = (0..4).map(greedy).collect();
    assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4, 2]);
    let bob = service.caller("bob", 2).await;
    let nonsense = bob.edit_json(&json!({ "prompt": "a boat", "image": data_url(b"nonsense") })).await;
    assert_eq!(nonsense.status, 400, "{nonsense:?}");
}
