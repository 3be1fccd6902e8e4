//! Result files over HTTP.

use tintype_domain::model::TaskId;

use crate::rigs::http::Answer;
use crate::rigs::service::{Caller, Service};

async fn result_url(caller: &Caller) -> String {
    caller.outcome("a boat").await["media_url"].as_str().expect("a URL").to_owned()
}

fn assert_file_headers(answer: &Answer) {
    assert_eq!(answer.header("content-type"), "image/png");
    assert_eq!(answer.header("cache-control"), "public, max-age=31536000, immutable");
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
    assert_eq!(answer.header("accept-ranges"), "bytes");
    assert!(answer.header("content-security-policy").contains("default-src 'none'"));
    assert!(answer.header("etag").starts_with('"'));
}

#[tokio::test]
async fn files_are_served_whole_immutable_and_without_a_key() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let url = result_url(&caller).await;
    let file = service.fetch(&url, &[]).await;
    assert_eq!(file.status, 200);
    assert_file_headers(&file);
    assert_eq!(file.header("content-length"), file.body.len().to_string());
    let path = url.strip_prefix(&format!("http://{}", service.address)).expect("our URL");
    let head = service.call("HEAD", path, &[], "").await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), file.body.len().to_string());
    let etag = file.header("etag").to_owned();
    for tags in [etag.clone(), format!("W/{etag}"), format!("\"x\", {etag}"), "*".into()] {
        let unchanged = service.fetch(&url, &[("if-none-match", &tags)]).await;
        assert_eq!((unchanged.status.as_u16(), unchanged.body.len()), (304, 0), "{tags}");
        assert_eq!(unchanged.header("etag"), etag);
        let unchanged = service.call("HEAD", path, &[("if-none-match", &tags)], "").await;
        assert_eq!(unchanged.status, 304, "{tags}");
        assert_eq!(unchanged.header("content-length"), file.body.len().to_string(), "{tags}");
    }
    // Ranges are for GET alone.
    for range in ["bytes=0-7".to_owned(), format!("bytes={}-", file.body.len())] {
        let head = service.call("HEAD", path, &[("range", &range)], "").await;
        assert_eq!(
            (head.status.as_u16(), head.header("content-length")),
            (200, &*file.body.len().to_string()),
            "{range}"
        );
    }
    assert_eq!(service.fetch(&url, &[("if-none-match", "\"x\"")]).await.status, 200);
    for (tags, status) in [(etag.as_str(), 200), ("*", 200), (&format!("W/{etag}"), 412), ("\"x\"", 412)] {
        // The condition comes before a range that cannot be met.
        let range = if status == 412 { "bytes=99999999-" } else { "bytes=0-" };
        let answer = service.fetch(&url, &[("if-match", tags), ("range", range)]).await;
        assert_eq!(answer.status, if status == 200 { 206 } else { status }, "{tags}");
        assert_eq!(service.call("HEAD", path, &[("if-match", tags)], "").await.status, status, "{tags}");
    }
}

#[tokio::test]
async fn ranges_are_honoured() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let url = result_url(&caller).await;
    let whole = service.fetch(&url, &[]).await;
    let size = whole.body.len();
    for (range, expected) in [
        ("bytes=0-7".to_owned(), 0..8),
        ("bytes=8-".to_owned(), 8..size),
        ("bytes=-5".to_owned(), size - 5..size),
        (format!("bytes=-{}", size * 2), 0..size),
        (format!("bytes=10-{}", size * 2), 10..size),
        (format!("bytes={}-{}", size - 1, size - 1), size - 1..size),
    ] {
        let part = service.fetch(&url, &[("range", &range)]).await;
        assert_eq!(part.status, 206, "{range}");
        assert_file_headers(&part);
        assert_eq!(part.header("content-range"), format!("bytes {}-{}/{size}", expected.start, expected.end - 1));
        assert_eq!(part.body, whole.body[expected], "{range}");
    }
    for range in [format!("bytes={size}-"), "bytes=-0".into(), format!("bytes={}-{}", size + 5, size + 9)] {
        let refused = service.fetch(&url, &[("range", &range)]).await;
        refused.assert_error(416, "INVALID_REQUEST");
        assert_eq!(refused.header("content-range"), format!("bytes */{size}"));
    }
    for range in ["bytes=5-2", "bytes=a-b", "bytes=", "bytes=-", "items=0-5", "bytes=0-1,4-5", "0-5"] {
        assert_eq!(service.fetch(&url, &[("range", range)]).await.status, 200, "{range}");
    }
    let etag = whole.header("etag").to_owned();
    let with = async |validator: &str| {
        service.fetch(&url, &[("range", "bytes=0-7"), ("if-range", validator)]).await.status.as_u16()
    };
    assert_eq!((with(&etag).await, with("\"x\"").await), (206, 200));
}

#[tokio::test]
async fn what_is_no_png_is_not_passed_on() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let url = result_url(&caller).await;
    let png = service.fetch(&url, &[]).await;
    let name = url.rsplit("/files/").next().expect("a name");
    let stored = service.directory.path().join("files").join(name);
    for page in ["<!doctype html><title>Sign in</title>", "<Error><Code>SlowDown</Code></Error>", "\u{89}PNG", "oh"] {
        std::fs::write(&stored, page).expect("another file");
        for headers in [&[][..], &[("range", "bytes=0-")], &[("range", "bytes=0-0")], &[("if-none-match", "\"x\"")]] {
            let answer = service.fetch(&url, headers).await;
            answer.assert_error(502, "INTERNAL_ERROR");
            assert_eq!(answer.header("cache-control"), "no-store", "{page} {headers:?}");
            assert_eq!(answer.header("content-type"), "application/json", "{page} {headers:?}");
            assert!(answer.headers.get("etag").is_none(), "{page} {headers:?}");
        }
    }
    std::fs::write(&stored, "").expect("another file");
    service.fetch(&url, &[]).await.assert_error(502, "INTERNAL_ERROR");
    std::fs::write(&stored, &png.body).expect("the file");
    for (range, expected) in [("bytes=0-0", 0..1), ("bytes=0-8", 0..9), ("bytes=1-4", 1..5)] {
        let part = service.fetch(&url, &[("range", range)]).await;
        assert_eq!((part.status.as_u16(), &part.body[..]), (206, &png.body[expected]), "{range}");
    }
}

#[tokio::test]
async fn file_names_cannot_be_guessed_from_a_task_id() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let url = result_url(&caller).await;
    let name = url.rsplit("/files/").next().expect("a name");
    let (day, file) = name.split_once('/').expect("a day");
    assert_eq!(day, "2026-11-21");
    let random = file.strip_suffix(".png").and_then(|file| file.get(24..)).expect("a random part");
    assert!(random.len() * 6 >= 128, "{random}");
    let stranger = name.replace(random, &"A".repeat(random.len()));
    service.fetch(&url.replace(name, &stranger), &[]).await.assert_error(404, "NOT_FOUND");
    let task_id: TaskId = format!("imgmodel-{}", &file[..21]).parse().expect("the task's id");
    assert_eq!(caller.task(&task_id.to_string()).await["status"], "completed");
}

#[tokio::test]
async fn another_host_can_serve_the_files() {
    let service = Service::start_on_disk(&["--file-url", "https://cdn.example.com/"]).await;
    let caller = service.caller("ada", 10).await;
    let url = result_url(&caller).await;
    let path = url.strip_prefix("https://cdn.example.com").expect("the CDN's URL");
    assert!(path.starts_with("/files/"));
    assert_eq!(service.call("GET", path, &[], "").await.status, 200, "which passes the path through");
}
