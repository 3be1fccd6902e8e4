//! Pictures as files: their names, the table beside them, and the prompt and settings inside.

use std::io::{Cursor, Read as _};
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use futures::StreamExt as _;
use hyper::{Request, StatusCode};
use serde_json::Value;
use tintype::http::router;
use tintype_domain::model::{Id, Status, Surface};
use tower_service::Service as _;
use zip::{CompressionMethod, ZipArchive};

use super::browser::Person;
use super::{Visitor, text};
use crate::rigs::binary::Ran as _;
use crate::rigs::debian;
use crate::rigs::http::Answer;
use crate::rigs::service::Service;
use crate::rigs::wait::until;

const PROMPT: &str = "=A \"red\" fox\nin the snow & more 🦊";
const FIRST: &str = "/pictures/1/file";

impl Visitor {
    /// A completed task with this many pictures.
    async fn completed(&self, prompt: &str, n: &str) -> Id {
        let task = self.create_with(prompt, &[("n", n)]).await;
        self.service.work().await;
        task
    }

    async fn stored(&self, task: Id) -> Vec<u8> {
        let record = self.service.shared.store.inspect_task(task).await.expect("a store").expect("a task");
        let Status::Completed(names) = record.task.status else { panic!("it ended otherwise") };
        let name = tintype::files::FileName::parse(&names[0]).expect("a name");
        self.service.shared.files.read(name).await.expect("a file").expect("a file").to_vec()
    }
}

/// What exiftool finds in a PNG.
fn exif(png: &[u8]) -> Value {
    debian::needs("exiftool", "libimage-exiftool-perl");
    let folder = tempfile::TempDir::new().expect("a directory");
    let path = folder.path().join("a.png");
    std::fs::write(&path, png).expect("a file");
    let output = std::process::Command::new("exiftool").args(["-json", "-all", "-validate"]).arg(path).output();
    let found = output.expect("exiftool runs").json();
    found[0].clone()
}

fn names(answer: &Answer) -> Vec<String> {
    let archive = ZipArchive::new(Cursor::new(&answer.body[..])).expect("an archive");
    archive.file_names().map(|name| name.expect("a name").into_owned()).collect()
}

#[tokio::test]
async fn a_download_has_the_name_of_its_prompt_and_the_bytes_of_the_picture() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let task = ada.completed(PROMPT, "1").await;
    let file = ada.get(&format!("/studio/tasks/{task}{FIRST}")).await;
    assert_eq!((file.status, file.header("content-type")), (StatusCode::OK, "image/png"));
    let name = "attachment; filename*=UTF-8''a-red-fox-in-the-snow-more-%F0%9F%A6%8A.png";
    assert_eq!(file.header("content-disposition"), name);
    assert_eq!(file.body, ada.stored(task).await);
    for path in [FIRST.replace('1', "2"), FIRST.replace('1', "0"), FIRST.replace('1', "x")] {
        assert_eq!(ada.get(&format!("/studio/tasks/{task}{path}")).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    let eve = service.visitor("eve", 100).await;
    assert_eq!(eve.get(&format!("/studio/tasks/{task}{FIRST}")).await.status, StatusCode::NOT_FOUND);
    ada.send("/studio/gallery/delete", &[(&format!("task-{task}"), "1")]).await;
    assert_eq!(ada.get(&format!("/studio/tasks/{task}{FIRST}")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_download_brings_its_prompt_and_its_mark_on_request() {
    let (_, ada) = Service::with_visitor(&[], 100).await;
    let task = ada.completed(PROMPT, "1").await;
    let file = ada.get(&format!("/studio/tasks/{task}{FIRST}?details=1")).await;
    let found = exif(&file.body);
    assert_eq!(found["Validate"], "OK", "{found}");
    assert_eq!(found["Description"], PROMPT, "{found}");
    let source = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia";
    assert_eq!(found["DigitalSourceType"], source, "{found}");
    assert_eq!(found["CreatorTool"], "Tintype", "{found}");
    let read = |png: &[u8]| image::load_from_memory(png).expect("a PNG").to_rgb8();
    assert!(read(&file.body) == read(&ada.stored(task).await), "the pixels changed");
    assert!(exif(&ada.stored(task).await)["Description"].is_null());
}

#[tokio::test]
async fn a_zip_names_its_pictures_and_lists_them() {
    let (service, ada) = Service::with_visitor(&[], 100).await;
    let tasks =
        [ada.completed("A fox", "1").await, ada.completed("a fox!", "1").await, ada.completed("Owls", "2").await];
    let of_eve = service.visitor("eve", 100).await.completed("A secret", "1").await;
    let names_of: Vec<String> = tasks.iter().chain([&of_eve]).map(|task| format!("task-{task}")).collect();
    let fields: Vec<(&str, &str)> = names_of.iter().map(|name| (name.as_str(), "1")).collect();
    let chosen = ada.send("/studio/gallery.zip", &fields).await;
    assert_eq!(chosen.status, StatusCode::SEE_OTHER);
    assert!(!chosen.header("location").contains("proof"), "the URL has the form's secret: {chosen:?}");
    let zip = ada.get(chosen.header("location")).await;
    assert_eq!(zip.header("content-disposition"), "attachment; filename*=UTF-8''pictures.zip");
    let mut found = names(&zip);
    found.sort();
    assert_eq!(found, ["a-fox (2).png", "a-fox.png", "owls-1.png", "owls-2.png", "pictures.csv"]);
    let mut archive = ZipArchive::new(Cursor::new(&zip.body[..])).expect("an archive");
    // The time of the submit in UTC; a ZIP file counts in steps of two seconds.
    let created = ada.service.clock.now().to_string();
    let dated = archive.by_name("a-fox.png").expect("a picture").last_modified().expect("a date").to_string();
    assert_eq!(dated[..16], created[..16].replace('T', " "), "{dated}, {created}");
    // Readers of streams, such as Java's, take no file that is only stored and whose length comes behind it.
    let mut is_deflated = |index| archive.by_index(index).expect("a file").compression() == CompressionMethod::Deflated;
    assert!((0..5).all(&mut is_deflated));
    let mut table = String::new();
    archive.by_name("pictures.csv").expect("a table").read_to_string(&mut table).expect("text");
    let lines: Vec<_> = table.split("\r\n").collect();
    assert_eq!(lines.len(), 6, "{table}");
    // Excel on Windows needs the byte order mark.
    let head = "\u{feff}file,created_at,shape,preset,seed,";
    assert!(lines[0].starts_with(head) && lines[0].ends_with(",prompt"), "{table}");
    assert!(table.contains("\"owls-2.png\"") && !table.contains("secret"), "{table}");
    let failed = ada.send("/studio/tasks", &[("prompt", "a boat [[fail]]"), ("shape", "1:1"), ("n", "1")]).await;
    assert_eq!(failed.status, StatusCode::SEE_OTHER);
    service.work().await;
    let failed =
        service.shared.store.list_tasks(ada.account, Surface::Web, None, 1).await.expect("a store").remove(0).id;
    assert_eq!(ada.get(&format!("/studio/gallery.zip?tasks={failed}")).await.status, StatusCode::NOT_FOUND);
    let [whole, alone] = [format!("task-{}", tasks[0]), format!("picture-{}/2", tasks[2])];
    let some = ada.send("/studio/gallery.zip", &[(&whole, "1"), (&alone, "1"), ("picture-x/y", "1")]).await;
    let mut found = names(&ada.get(some.header("location")).await);
    found.sort();
    assert_eq!(found, ["a-fox.png", "owls-2.png", "pictures.csv"]);
    let repeated = ada.get(&format!("/studio/gallery.zip?tasks={0}+{0}", tasks[0])).await;
    assert_eq!(names(&repeated), ["a-fox.png", "pictures.csv"]);
    let one = ada.get(&format!("/studio/gallery.zip?tasks={}&details=1", tasks[2])).await;
    assert_eq!(one.header("content-disposition"), "attachment; filename*=UTF-8''owls.zip");
    let mut archive = ZipArchive::new(Cursor::new(&one.body[..])).expect("an archive");
    let mut png = Vec::new();
    archive.by_name("owls-1.png").expect("a picture").read_to_end(&mut png).expect("bytes");
    assert_eq!(exif(&png)["Description"], "Owls");
}

impl Visitor {
    /// The body of a page, which is made only as far as somebody reads it.
    async fn read(&self, path: &str) -> BodyDataStream {
        let host = self.service.address.to_string();
        let request = Request::get(path).header("host", host).header("cookie", &self.cookie).body(Body::empty());
        let mut router = router(self.service.api.clone(), self.service.readiness.clone());
        let answer = router.call(request.expect("a request")).await.expect("an answer");
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_body().into_data_stream()
    }
}

#[tokio::test]
async fn downloads_end_with_the_session() {
    let (service, ada) = Service::with_visitor(&["--submit-rate", "0"], 1_200).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(ada.completed("Owls", "1").await.to_string());
    }
    for entry in 0..1_000 {
        service.shared.store.grant(ada.account, 1, Some(&entry.to_string()), None).await.expect("a store");
    }
    let mut zip = ada.read(&format!("/studio/gallery.zip?tasks={}", tasks.join("+"))).await;
    let mut csv = ada.read("/studio/credits.csv").await;
    zip.next().await.expect("a picture").expect("bytes");
    csv.next().await.expect("a head").expect("text");
    csv.next().await.expect("some entries").expect("text");
    let store = &service.shared.store;
    let session = store.list_sessions(ada.person.id).await.expect("a store").remove(0);
    store.end_session(ada.person.id, session.id).await.expect("a store");
    // One picture was read before.
    let pictures: Vec<_> = zip.collect().await;
    assert!(pictures.len() <= 3 && pictures.last().is_some_and(Result::is_err), "{}", pictures.len());
    assert!(csv.next().await.expect("an error").is_err());
}

#[tokio::test]
async fn an_account_has_four_downloads_at_a_time() {
    let (_, [ada, bob]) = Service::with_visitors(&["--submit-rate", "0"], ["ada", "bob"], 100).await;
    let zip = async |of: &Visitor| format!("/studio/gallery.zip?tasks={}", of.completed("Owls", "1").await);
    let (of_ada, of_bob) = (zip(&ada).await, zip(&bob).await);
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(ada.read(&of_ada).await);
    }
    assert_eq!(ada.get(&of_ada).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(bob.get(&of_bob).await.status, StatusCode::OK);
    // Its writer ends once it notices that nobody reads.
    drop(open.pop());
    until(async || ada.get(&of_ada).await.status == StatusCode::OK).await;
}

#[tokio::test]
async fn downloads_of_the_ledger_are_among_them() {
    let (_, [ada, bob]) = Service::with_visitors(&[], ["ada", "bob"], 100).await;
    const LEDGER: &str = "/studio/credits.csv";
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(ada.read(LEDGER).await);
    }
    assert_eq!(ada.get(LEDGER).await.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(bob.get(LEDGER).await.status, StatusCode::OK);
    drop(open.pop());
    assert_eq!(ada.get(LEDGER).await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_ledger_is_downloaded_whole() {
    let (service, ada) = Service::with_visitor(&[], 5).await;
    for entry in 0..2_000 {
        service.shared.store.grant(ada.account, 1, Some(&format!("grant {entry}")), None).await.expect("a store");
    }
    let csv = ada.page("/studio/credits.csv").await;
    let lines: Vec<_> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + 2_000 + 1);
    assert!(lines[1].contains("\"grant 1999\"") && lines[1_001].contains("\"grant 999\""), "{}", lines[1_001]);
    // A filter finds what stands behind a thousand others.
    service.clock.advance(Duration::from_secs(24 * 60 * 60));
    for entry in 0..1_001 {
        service.shared.store.grant(ada.account, 1, Some(&format!("later {entry}")), None).await.expect("a store");
    }
    let earlier = ada.page("/studio/credits.csv?until=2026-11-21").await;
    assert!(earlier.lines().eq(lines), "{}", earlier.lines().count());
}

#[tokio::test]
async fn a_table_of_pictures_has_no_formulas() {
    let (_, ada) = Service::with_visitor(&[], 100).await;
    let task = ada.completed(PROMPT, "1").await;
    let zip = ada.get(&format!("/studio/gallery.zip?tasks={task}")).await;
    let mut archive = ZipArchive::new(Cursor::new(&zip.body[..])).expect("an archive");
    let mut table = String::new();
    archive.by_name("pictures.csv").expect("a table").read_to_string(&mut table).expect("text");
    assert!(table.contains(",\"'=A \"\"red\"\" fox\nin the snow & more 🦊\"\r\n"), "{table}");
    assert!(text(&ada.get("/studio/gallery").await).contains(&format!("/studio/tasks/{task}{FIRST}")));
}

#[test]
fn a_downloaded_picture_that_is_dropped_on_the_prompt_fills_in_the_form() {
    let mut person = Person::sign_in(&[]);
    person.create("A lighthouse in a storm 🌊");
    person.until("document.querySelector('.tile[data-state=completed] .get')");
    let drop = |wanted: &str, typed: &str| {
        format!(
            "(async () => {{
                const url = document.querySelector('.tile .get').href;
                const blob = await (await fetch(url + '{wanted}')).blob();
                const transfer = new DataTransfer();
                transfer.items.add(new File([blob], 'a.png', {{ type: 'image/png' }}));
                document.querySelector('#prompt').value = '{typed}';
                document.querySelector('#prompt').dispatchEvent(
                    new DragEvent('drop', {{ dataTransfer: transfer, bubbles: true, cancelable: true }}));
            }})()"
        )
    };
    // Words that it replaces come back.
    person.evaluate(&drop("?details=1", "A harbour"));
    person.click("document.querySelector('.toast button')");
    person.until("document.querySelector('#prompt').value === 'A harbour' && !document.querySelector('.toast')");
    person.evaluate(&drop("?details=1", ""));
    person.until("document.querySelector('#prompt').value === 'A lighthouse in a storm 🌊'");
    assert_eq!(person.evaluate("document.querySelectorAll('.chip').length"), 0);
    // Any other picture is a reference.
    person.evaluate(&drop("", ""));
    person.until("document.querySelectorAll('.chip').length === 1");
    assert_eq!(person.evaluate("document.querySelector('#prompt').value"), "");
    person.leave();
}
