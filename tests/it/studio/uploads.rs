//! Uploads over HTTP: each kind of sender and body, references by id, thumbnails, and the end of an upload.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use tintype_config::{MAX_BODY, MAX_UPLOAD, MAX_UPLOADS, ORPHAN_AGE, UPLOAD_LIFE};
use tintype_domain::model::{FailureCause, Id, Status, Surface};
use tintype_domain::person::Role;
use tintype_engine::picture::Picture;
use tintype_store::{Action, NewUpload, UploadedPicture};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Visitor, text};
use crate::rigs::http::{Answer, status_of};
use crate::rigs::service::Service;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// A PNG with a comment in it.
fn png() -> Bytes {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 1_600, 800);
    encoder.set_color(png::ColorType::Rgb);
    encoder.add_text_chunk("Comment".into(), "taken at home".into()).expect("a comment");
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(&[120, 90, 60].repeat(1_600 * 800)).expect("pixels");
    writer.finish().expect("a PNG");
    bytes.into()
}

/// A mask that is painted everywhere.
fn white() -> Bytes {
    Picture::from_rgb(64, 32, vec![255; 64 * 32 * 3]).expect("a picture").to_png().into()
}

impl Visitor {
    pub(super) async fn upload_with(&self, query: &str, body: impl Into<Bytes>, headers: &[(&str, &str)]) -> Answer {
        let mut all = vec![("cookie", self.cookie.as_str()), ("content-type", "application/octet-stream")];
        all.extend_from_slice(headers);
        self.service.call("POST", &format!("/studio/uploads{query}"), &all, body.into()).await
    }

    async fn upload(&self, body: impl Into<Bytes>) -> Answer {
        let proof = self.proof().await;
        self.upload_with("", body, &[("x-proof", &proof)]).await
    }

    async fn uploaded(&self) -> Id {
        let answer = self.upload(png()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        text(&answer).strip_prefix("upload:").and_then(|id| id.parse().ok()).expect("a reference")
    }

    /// Creates a task with references and returns its id.
    async fn refer(&self, references: &str) -> Id {
        self.create_with("a boat", &[("n", "2"), ("references", references)]).await
    }
}

impl Service {
    /// The files in the store, by their names.
    async fn stored(&self) -> Vec<String> {
        use futures::TryStreamExt as _;
        let mut all = Vec::new();
        for day in self.shared.files.days().await.expect("a store of files") {
            let listed = self.shared.files.written_before(day, tintype_system::clock::Timestamp::MAX);
            all.extend(listed.try_concat().await.expect("a listing"));
        }
        all
    }

    /// Sends the header of an upload that announces its length, and returns the status, which is 100 if the service asks
    /// for the body.
    async fn announce(&self, headers: &[(&str, &str)], bytes: u64) -> u16 {
        self.announced(headers, bytes).await.1
    }

    async fn announced(&self, headers: &[(&str, &str)], bytes: u64) -> (TcpStream, u16) {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        let mut head = format!(
            "POST /studio/uploads HTTP/1.1\r\nhost: {}\r\ncontent-length: {bytes}\r\nexpect: 100-continue\r\n",
            self.address
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await.expect("a connection");
        let status = status_of(&mut stream).await;
        (stream, status)
    }

    /// Begins an upload whose body the service waits for.
    async fn begin(&self, headers: &[(&str, &str)], bytes: u64) -> TcpStream {
        let (mut stream, status) = self.announced(headers, bytes).await;
        assert_eq!(status, 100);
        let mut rest = [0; "\u{20}Continue\r\n\r\n".len()];
        stream.read_exact(&mut rest).await.expect("an answer");
        stream
    }
}

#[tokio::test]
async fn an_upload_and_a_result_are_references_of_tasks() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let id = ada.uploaded().await;
    let [name] = &service.stored().await[..] else { panic!("one file") };
    let file = service.call("GET", &format!("/files/{name}"), &[], "").await;
    assert!(file.body.starts_with(b"\x89PNG") && !file.body.windows(4).any(|part| part == b"home"), "no metadata");
    let picture = Picture::decode(&file.body).expect("a picture");
    assert_eq!((picture.width(), picture.height()), (1_568, 784));
    let first = ada.refer(&format!("upload:{id}")).await;
    service.work().await;
    assert!(matches!(ada.status(first).await, Status::Completed(images) if images.len() == 2));
    let second = ada.refer(&format!("result:{first}/2\r\n upload:{id} ")).await;
    service.work().await;
    assert!(matches!(ada.status(second).await, Status::Completed(_)));
    let record = service.shared.store.find_record(ada.account, Surface::Web, second).await.expect("a store");
    let record = record.expect("a task");
    assert!(record.task.image_to_image);
    assert_eq!(record.request.reference_images, [format!("result:{first}/2"), format!("upload:{id}")]);
    let page = ada.page(&format!("/studio/tasks/{second}")).await;
    assert!(page.contains(&format!("src=\"/studio/uploads/{id}\"")), "{page}");
    assert!(page.contains(&format!("src=\"/studio/tasks/{first}/pictures/2\"")), "{page}");
    let compared = ada.page(&format!("/studio/compare?a=result:{first}/1&b=upload:{id}")).await;
    assert_eq!(compared.matches("src=\"/files/").count(), 2, "{compared}");
    let record = service.shared.store.find_record(ada.account, Surface::Web, first).await.expect("a store");
    assert!(
        compared.contains(&format!(">{}</span>", record.expect("a task").request.prompt)),
        "its prompt: {compared}"
    );
    let nothing = ada.get("/studio/compare").await;
    assert_eq!((nothing.status, nothing.header("location")), (StatusCode::SEE_OTHER, "/studio/gallery"));
    assert!(ada.page(&format!("/studio/compare?a=result:{first}/1")).await.contains("pictures/2"));
    let remixed = ada.page(&format!("/studio?from={second}&take=references")).await;
    assert!(
        remixed.contains(&format!("upload:{id}</textarea>")) && !remixed.contains("a boat</textarea>"),
        "{remixed}"
    );
}

#[tokio::test]
async fn thumbnails_are_made_once_and_go_to_the_account_alone() {
    let service = Service::start().await;
    let (ada, eve) = (service.visitor("ada", 100).await, service.visitor("eve", 10).await);
    let upload = ada.uploaded().await;
    let task = ada.create("a boat").await;
    assert_eq!(ada.get(&format!("/studio/tasks/{task}/pictures/1")).await.status, 404, "it waits");
    service.work().await;
    let before = service.stored().await.len();
    for path in [format!("/studio/uploads/{upload}"), format!("/studio/tasks/{task}/pictures/1")] {
        let [first, again] = [ada.get(&path).await, ada.get(&path).await];
        assert!(first.status == 200 && first.body.starts_with(b"RIFF"), "{first:?}");
        assert_eq!(first.header("content-type"), "image/webp");
        assert_eq!(first.header("cache-control"), "private, max-age=31536000, immutable");
        assert_eq!(first.body, again.body);
        let small = Picture::decode(&first.body).expect("a picture");
        assert_eq!(small.width().max(small.height()), 640);
        assert_eq!(eve.get(&path).await.status, 404);
        assert_eq!(service.call("GET", &path, &[], "").await.status, StatusCode::SEE_OTHER);
    }
    let all = service.stored().await;
    assert_eq!(all.len(), before + 2);
    let thumbnail = all.iter().find(|name| name.ends_with(".webp")).expect("a thumbnail");
    assert_eq!(service.call("GET", &format!("/files/{thumbnail}"), &[], "").await.status, 404, "not by its name");
    for number in ["0", "2", "-1", "99999999999999999999", "x"] {
        assert_eq!(ada.get(&format!("/studio/tasks/{task}/pictures/{number}")).await.status, 404, "{number}");
    }
    assert!(ada.page(&format!("/studio/tasks/{task}")).await.contains("width=\"640\" height=\"640\""));
}

type Headers<'a> = &'a [(&'a str, &'a str)];

#[tokio::test]
async fn a_sender_is_refused_before_a_byte_is_read() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let poor = service.visitor("poor", 1).await;
    let viewer = service.visitor_as("ada", "viewer", Role::Viewer).await;
    let proof = ada.proof().await;
    let (_, key) = service.new_key(ada.account, |_| {}).await;
    let authorization = format!("Bearer {key}");
    let cookie = ("cookie", ada.cookie.as_str());
    let (of_viewer, of_poor) = (viewer.proof().await, poor.proof().await);
    let cases: [(Headers<'_>, u64, u16); 9] = [
        (&[], 100, 303),
        (&[("authorization", &authorization)], 100, 303),
        (&[cookie], 100, 403),
        (&[cookie, ("x-proof", &of_viewer)], 100, 403),
        (&[cookie, ("x-proof", &proof), ("origin", "https://evil.example")], 100, 403),
        (&[("cookie", &viewer.cookie), ("x-proof", &of_viewer)], 100, 403),
        (&[("cookie", &poor.cookie), ("x-proof", &of_poor)], 100, 422),
        (&[cookie, ("x-proof", &proof)], MAX_UPLOAD + 1, 413),
        (&[cookie, ("x-proof", &proof)], 1 << 60, 413),
    ];
    for (headers, bytes, status) in cases {
        assert_eq!(service.announce(headers, bytes).await, status, "{headers:?}");
    }
    assert_eq!(service.announce(&[cookie, ("x-proof", &proof)], MAX_UPLOAD).await, 100, "a good one is read");
    assert!(service.stored().await.is_empty());
    let full = Service::start_with(&["--min-free-space", "8192PiB"]).await;
    let ada = full.visitor("ada", 100).await;
    let proof = ada.proof().await;
    assert_eq!(full.announce(&[("cookie", &ada.cookie), ("x-proof", &proof)], 100).await, 503);
}

#[tokio::test]
async fn slow_senders_do_not_keep_their_places() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let proof = ada.proof().await;
    let headers = [("cookie", ada.cookie.as_str()), ("x-proof", &proof)];
    let mut slow = Vec::new();
    for _ in 0..4 {
        slow.push(service.begin(&headers, MAX_UPLOAD).await);
    }
    assert_eq!(service.announce(&headers, MAX_UPLOAD).await, 429, "all places are taken");
    service.clock.advance(Duration::from_secs(16));
    for sender in &mut slow {
        sender.write_all(b"x").await.expect("a connection");
        assert_eq!(status_of(sender).await, 408);
    }
    let picture = png();
    let mut late = service.begin(&headers, picture.len() as u64).await;
    service.clock.advance(Duration::from_secs(15));
    late.write_all(&picture).await.expect("a connection");
    assert_eq!(status_of(&mut late).await, 200, "a pause is allowed");
}

#[tokio::test]
async fn a_hostile_body_leaves_nothing() {
    let service = Service::start_changed(&[], |limits| limits.body_idle = Duration::from_millis(300)).await;
    let ada = service.visitor("ada", 100).await;
    let picture = png();
    let mut bomb = picture.to_vec();
    bomb[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x40, 0]);
    let checksum = crc32fast::hash(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&checksum.to_be_bytes());
    for (body, status) in [
        (Bytes::new(), 422),
        (Bytes::from_static(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), 422),
        (picture.slice(..picture.len() / 2), 422),
        (bomb.into(), 422),
    ] {
        let bytes = body.len();
        let refused = ada.upload(body).await;
        assert_eq!(refused.status, status, "{bytes} bytes: {refused:?}");
        assert_eq!(refused.header("content-type"), "text/plain; charset=utf-8");
    }
    let proof = ada.proof().await;
    let head = format!(
        "POST /studio/uploads HTTP/1.1\r\nhost: {}\r\ncookie: {}\r\nx-proof: {proof}\r\n",
        service.address, ada.cookie
    );
    // An announced length that never comes, and an endless body.
    let mut lying = service.write(format!("{head}content-length: 1000\r\n\r\n\x7fPNG")).await;
    assert_eq!(status_of(&mut lying).await, 408);
    let endless = service.write(format!("{head}transfer-encoding: chunked\r\n\r\n")).await;
    let (mut answers, mut sender) = endless.into_split();
    let sending = tokio::spawn(async move {
        let chunk = [b"10000\r\n".as_slice(), &[7; 0x1_0000], b"\r\n"].concat();
        while sender.write_all(&chunk).await.is_ok() {}
    });
    let mut line = [0; 12];
    answers.read_exact(&mut line).await.expect("an answer");
    assert_eq!(&line, b"HTTP/1.1 413");
    drop(answers);
    sending.await.expect("it ends");
    assert!(service.stored().await.is_empty());
    assert_eq!(service.shared.store.count_uploads(ada.account).await.expect("a store"), 0);
    let directory = std::fs::read_dir(service.directory.path()).expect("a directory");
    let names: Vec<_> = directory.map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("upload")), "{names:?}");
    ada.uploaded().await;
}

#[tokio::test]
async fn nobody_uses_the_pictures_of_another_account_or_surface() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 100).await;
    let upload = ada.uploaded().await;
    let task = ada.finished("a boat").await;
    let of_api = service
        .shared
        .store
        .begin_upload(NewUpload::of(eve.account, Surface::Api), 10)
        .await
        .expect("a store")
        .expect("one");
    let references =
        [format!("upload:{upload}"), format!("result:{task}/1"), format!("upload:{of_api}"), format!("upload:{task}")];
    for reference in &references {
        let fields = [("prompt", "a boat"), ("shape", "1:1"), ("n", "1"), ("references", reference.as_str())];
        let refused = eve.send("/studio/tasks", &fields).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{reference}: {refused:?}");
        assert!(text(&refused).contains("Reference 1 no longer exists"), "{reference}");
        assert_eq!(eve.get(&format!("/studio/compare?a={reference}")).await.status, 404, "{reference}");
    }
    assert_eq!(eve.credits().await, 100);
    assert_eq!(eve.send(&format!("/studio/uploads/{upload}/remove"), &[]).await.status, 404);
    assert!(!eve.page("/studio/uploads").await.contains(upload.as_str()));
    assert!(ada.page("/studio/uploads").await.contains(upload.as_str()));
    // The API takes URLs alone.
    let (_, key) = service.new_key(ada.account, |_| {}).await;
    let headers = [("authorization", &*format!("Bearer {key}")), ("content-type", "application/json")];
    for reference in &references[..2] {
        let body = serde_json::json!({ "prompt": "a boat", "reference_images": [reference] }).to_string();
        let refused = service.call("POST", crate::rigs::http::GENERATE, &headers, body).await;
        refused.assert_error(400, "INVALID_REQUEST");
    }
    let viewer = service.visitor_as("ada", "viewer", Role::Viewer).await;
    assert_eq!(viewer.send(&format!("/studio/uploads/{upload}/remove"), &[]).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn an_account_has_a_limited_number_of_uploads_and_deletes_them() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let id = ada.uploaded().await;
    for _ in 1..MAX_UPLOADS {
        service
            .shared
            .store
            .begin_upload(NewUpload::of(ada.account, Surface::Web), MAX_UPLOADS)
            .await
            .expect("a store");
    }
    let refused = ada.upload(png()).await;
    assert!(refused.status == 422 && text(&refused).contains("Delete some"), "{refused:?}");
    let removed = ada.send(&format!("/studio/uploads/{id}/remove"), &[]).await;
    assert_eq!((removed.status, removed.header("location")), (StatusCode::SEE_OTHER, "/studio/uploads"));
    assert_eq!(ada.get(&format!("/studio/uploads/{id}")).await.status, 404);
    ada.uploaded().await;
}

#[tokio::test]
async fn members_delete_their_own_uploads_and_owners_all_on_the_record() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let alone = ada.uploaded().await;
    let page = ada.page("/studio/uploads").await;
    assert!(page.contains(">Account uploads</h1>") && !page.contains("<abbr"), "{page}");
    let bob = service.visitor_as("ada", "bob van Berg", Role::Member).await;
    let eve = service.visitor_as("ada", "eve", Role::Member).await;
    let viewer = service.visitor_as("ada", "vic", Role::Viewer).await;
    let of_bob = bob.uploaded().await;
    let proof = bob.proof().await;
    let mask = bob.upload_with(&format!("?mask_of=upload:{of_bob}"), white(), &[("x-proof", &proof)]).await;
    let mask: Id = text(&mask).strip_prefix("upload:").and_then(|id| id.parse().ok()).expect("a mask");
    // One of an earlier release has no author.
    let store = &service.shared.store;
    let old = store.begin_upload(NewUpload::of(ada.account, Surface::Web), 10).await.expect("a store").expect("room");
    let picture = UploadedPicture { name: format!("{old}.png"), width: 64, height: 48 };
    assert!(store.finish_upload(old, picture).await.expect("a store"));
    let button = |id: Id| format!("formaction=\"/studio/uploads/{id}/remove\"");
    for (visitor, own) in
        [(&ada, &[alone, of_bob, mask, old][..]), (&bob, &[of_bob, mask][..]), (&eve, &[][..]), (&viewer, &[][..])]
    {
        let (page, name) = (visitor.page("/studio/uploads").await, &visitor.person.name);
        for id in [alone, of_bob, mask, old] {
            assert_eq!(page.contains(&button(id)), own.contains(&id), "{name}: {id}: {page}");
        }
        assert!(page.contains("title=\"bob van Berg\">BV</abbr>"), "{name}: {page}");
        assert!(page.contains(">Mask<") && !page.contains(&format!("reference=upload:{mask}")), "{name}: {page}");
    }
    let remove = async |visitor: &Visitor, id: Id| visitor.send(&format!("/studio/uploads/{id}/remove"), &[]).await;
    for id in [alone, of_bob, mask, old] {
        let refused = remove(&eve, id).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
        assert!(text(&refused).contains("Only owners can delete other people"), "{refused:?}");
        assert_eq!(remove(&viewer, id).await.status, StatusCode::FORBIDDEN);
    }
    assert_eq!(store.list_uploads(ada.account, Surface::Web, None, 10).await.expect("a store").len(), 4);
    assert_eq!(remove(&bob, mask).await.status, StatusCode::SEE_OTHER);
    for id in [alone, of_bob, old] {
        assert_eq!(remove(&ada, id).await.status, StatusCode::SEE_OTHER);
    }
    let log = store.audit_entries(Some(ada.account), None, 100).await.expect("a store");
    let removals = log.iter().filter(|entry| entry.audited.action == Action::RemoveUpload);
    let removals: Vec<_> =
        removals.map(|entry| (entry.actor.name.as_str(), entry.audited.subject.as_deref())).collect();
    assert_eq!(removals, [("ada", Some(of_bob.as_str()))]);
}

/// A form as a browser without the script sends it.
fn form(proof: &str, fields: &[(&str, &str)], files: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut part = |header: String, content: &[u8]| {
        body.extend_from_slice(format!("--b\r\nContent-Disposition: form-data; {header}\r\n\r\n").as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    };
    part("name=\"proof\"".into(), proof.as_bytes());
    for (name, value) in fields {
        part(format!("name=\"{name}\""), value.as_bytes());
    }
    for file in files {
        part("name=\"file\"; filename=\"a.png\"".into(), file);
    }
    body.extend_from_slice(b"--b--\r\n");
    body
}

#[tokio::test]
async fn a_browser_without_the_script_sends_files_with_the_form() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let (proof, picture) = (ada.proof().await, png());
    let fields = [("prompt", "a boat"), ("shape", "16:9"), ("n", "1"), ("references", "")];
    let send = async |body: Vec<u8>| {
        let headers = [("cookie", ada.cookie.as_str()), ("content-type", "multipart/form-data; boundary=b")];
        service.call("POST", "/studio/tasks", &headers, body).await
    };
    assert_eq!(send(form(&proof, &fields, &[picture.as_ref(), b""])).await.status, StatusCode::SEE_OTHER);
    let record =
        service.shared.store.list_records(ada.account, Surface::Web, None, 1).await.expect("a store").remove(0);
    assert_eq!(record.request.reference_images.len(), 1);
    assert!(record.request.reference_images[0].starts_with("upload:"));
    assert_eq!(send(form("wrong", &fields, &[picture.as_ref()])).await.status, StatusCode::FORBIDDEN);
    for (files, message) in
        [(&[b"no picture".as_slice()][..], "cannot be read"), (&[picture.as_ref(); 5][..], "at most four references")]
    {
        let refused = send(form(&proof, &fields, files)).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{refused:?}");
        assert!(text(&refused).contains(message) && text(&refused).contains(">a boat</textarea>"), "{message}");
    }
    let long = "a".repeat(MAX_BODY + 1);
    for body in [form(&proof, &[("prompt", &long)], &[]), b"--b\r\n\r\n\r\n--b--".to_vec(), b"--b".to_vec()] {
        assert_eq!(send(body).await.status, StatusCode::BAD_REQUEST);
    }
    let viewer = service.visitor_as("ada", "viewer", Role::Viewer).await;
    let headers = [("cookie", viewer.cookie.as_str()), ("content-type", "multipart/form-data; boundary=b")];
    let body = form(&viewer.proof().await, &fields, &[picture.as_ref()]);
    assert_eq!(service.call("POST", "/studio/tasks", &headers, body).await.status, StatusCode::FORBIDDEN);
    assert_eq!(service.shared.store.list_records(ada.account, Surface::Web, None, 9).await.expect("a store").len(), 1);
}

#[tokio::test]
async fn an_unfinished_task_holds_its_upload_and_then_nothing_is_left_of_it() {
    for service in [Service::start_on_disk(&[]).await, Service::start_on_s3(&[]).await] {
        let ada = service.visitor("ada", 100).await;
        let remove = async |id: Id| {
            let removed = ada.send(&format!("/studio/uploads/{id}/remove"), &[]).await;
            assert_eq!(removed.status, StatusCode::SEE_OTHER);
            service.clock.advance(Duration::from_secs(1));
        };
        let store = &service.shared.store;
        let [first, second] = [ada.uploaded().await, ada.uploaded().await];
        assert_eq!(ada.get(&format!("/studio/uploads/{first}")).await.status, 200);
        let task = ada.refer(&format!("upload:{first}")).await;
        remove(first).await;
        service.work().await;
        assert!(matches!(ada.status(task).await, Status::Completed(_)), "{:?}", ada.status(task).await);
        let waiting = ada.refer(&format!("upload:{second}")).await;
        remove(second).await;
        service.clock.advance(2 * HOUR);
        assert_eq!(service.sweeper.sweep_uploads().await, 1, "a task needs the second one");
        assert!(!service.stored().await.iter().any(|name| name.contains(first.as_str())), "nor is its thumbnail left");
        assert_eq!(store.find_upload_even_removed(ada.account, Surface::Web, first).await.expect("a store"), None);
        assert!(store.find_upload_even_removed(ada.account, Surface::Web, second).await.expect("a store").is_some());
        store.fail_unleased(waiting, FailureCause::Operator, "The operator ended it.").await.expect("a store");
        assert_eq!(service.sweeper.sweep_uploads().await, 1);
        let old = ada.uploaded().await;
        service.clock.advance(UPLOAD_LIFE + HOUR);
        service.sweeper.sweep_uploads().await;
        assert_eq!(store.count_uploads(ada.account).await.expect("a store"), 0);
        service.clock.advance(2 * HOUR);
        assert_eq!(service.sweeper.sweep_uploads().await, 1);
        assert!(!service.stored().await.iter().any(|name| name.contains(old.as_str())));
    }
}

#[tokio::test]
async fn a_crash_between_file_and_row_leaves_no_file_for_ever() {
    let service = Service::start_on_disk(&["--test-fault", "before-finish-upload=error"]).await;
    let ada = service.visitor("ada", 100).await;
    assert_eq!(ada.upload(png()).await.status, 500);
    let [left] = &service.stored().await[..] else { panic!("a file that no row names") };
    let file = std::fs::File::open(service.directory.path().join("files").join(left));
    file.and_then(|file| file.set_modified(std::time::UNIX_EPOCH)).expect("an old file");
    service.clock.advance(2 * ORPHAN_AGE);
    service.sweeper.sweep_uploads().await;
    service.clock.advance(2 * HOUR);
    assert_eq!(service.sweeper.sweep_orphans(usize::MAX).await, 1);
    assert_eq!(service.stored().await, Vec::<String>::new());
    assert_eq!(service.shared.store.count_uploads(ada.account).await.expect("a store"), 0);
}
