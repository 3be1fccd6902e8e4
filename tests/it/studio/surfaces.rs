//! The studio and the API see nothing of each other's tasks: every route of one is asked for a task of the other.

use serde_json::json;
use tintype::http::routes::{Access, RouteGroup};
use tintype_store::GalleryFilter;

use super::*;

const OF_WEB: &str = "a pelican of the web";
const OF_API: &str = "a heron of the API";

/// A task on each surface of one account.
struct Both {
    visitor: Visitor,
    authorization: String,
    of_web: Id,
    of_api: Id,
}

impl Both {
    async fn new(service: &Service) -> Self {
        let visitor = service.visitor("ada", 100).await;
        let (_, key) = service.new_key(visitor.account, |_| {}).await;
        let authorization = format!("Bearer {key}");
        let of_web = visitor.create(OF_WEB).await;
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        let submitted = service.call("POST", GENERATE, &headers, json!({ "prompt": OF_API }).to_string()).await.json();
        let of_api = submitted["data"]["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
        Self { visitor, authorization, of_web, of_api }
    }

    /// All that the store knows of the task of a surface, apart from its progress.
    async fn known(&self, surface: Surface, id: Id) -> String {
        let store = &self.visitor.service.shared.store;
        let record = store.find_record(self.visitor.account, surface, id).await.expect("a store").expect("a task");
        let starred = store.starred(self.visitor.person.id, &[id]).await.expect("a store");
        format!("{:?} {:?} {:?}", record.task.status, record.request.prompt, starred)
    }
}

/// Whether an answer tells of a task: by its prompt or its id, unless the request named the id.
fn tells(answer: &Answer, prompt: &str, id: Option<Id>) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    text.contains(prompt) || id.is_some_and(|id| text.contains(id.as_str()))
}

#[tokio::test]
async fn no_route_of_the_api_tells_of_a_task_of_the_studio() {
    let service = Service::start().await;
    let both = Both::new(&service).await;
    for state in ["waiting", "ended"] {
        let before = both.known(Surface::Web, both.of_web).await;
        for route in ROUTES.iter().filter(|route| route.access == Access::Key) {
            let task_id = format!("imgmodel-{}", both.of_web);
            // Each place in which a call can name a task: the path, a query, the body, and the arguments of a tool.
            let by_path = route.pattern.replace("{id}", &task_id);
            let bodies = match route.pattern {
                "/mcp" => ["get_task", "list_tasks"]
                    .map(|tool| {
                        let arguments = if tool == "get_task" { json!({ "task_id": task_id }) } else { json!({}) };
                        let params = json!({ "name": tool, "arguments": arguments });
                        json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params })
                    })
                    .to_vec(),
                _ => vec![
                    json!({ "prompt": "", "task_id": task_id, "reference_images": [format!("result:{}/1", both.of_web)] }),
                ],
            };
            for body in bodies {
                for query in ["", &format!("?cursor={}", both.of_web), &format!("?task_id={task_id}&before={task_id}")]
                {
                    let headers = [
                        ("authorization", both.authorization.as_str()),
                        ("content-type", "application/json"),
                        ("accept", "application/json, text/event-stream"),
                    ];
                    let url = format!("{by_path}{query}");
                    let body = if route.method == "GET" { String::new() } else { body.to_string() };
                    let answer = service.call(route.method.as_str(), &url, &headers, body).await;
                    assert!(!tells(&answer, OF_WEB, None), "{state}, {url}: {answer:?}");
                    let named = url.contains(both.of_web.as_str()) || route.pattern == "/mcp";
                    assert!(named || !tells(&answer, OF_WEB, Some(both.of_web)), "{state}, {url}: {answer:?}");
                    // Every name is one of the model.
                    if route.pattern.contains("{id}") && !route.pattern.contains("/models/") {
                        assert_eq!(answer.status, 404, "{state}, {url}: {answer:?}");
                    }
                }
            }
        }
        assert_eq!(both.known(Surface::Web, both.of_web).await, before, "{state}");
        service.work().await;
    }
}

#[tokio::test]
async fn no_route_of_the_studio_tells_of_a_task_of_the_api_but_one_page_that_changes_nothing() {
    let service = Service::start().await;
    let both = Both::new(&service).await;
    let (ada, id) = (&both.visitor, both.of_api);
    let board = ada.send("/studio/boards", &[("name", "birds")]).await;
    let board = board.header("location").rsplit('=').next().expect("a board").to_owned();
    let reference = format!("result:{id}/1");
    for state in ["waiting", "ended"] {
        service.sweeper.index_prompts().await;
        let before = both.known(Surface::Api, id).await;
        let pages = ROUTES.iter().filter(|route| route.group == RouteGroup::Studio && route.access == Access::Session);
        // The stream does not end; signing out ends the session.
        let pages = pages.filter(|route| !["/studio/events", "/studio/sign-out"].contains(&route.pattern));
        for route in pages {
            let changes = ["cancel", "star", "put", "take", "delete", "restore", "remove", "pause", "resume"];
            for change in if route.pattern.contains("{change}") { &changes[..] } else { &changes[..1] } {
                let by_path = route.pattern.replace("{id}", id.as_str()).replace("{number}", "1");
                let by_path = by_path.replace("{change}", change).replace("{*path}", id.as_str());
                let query = format!(
                    "from={id}&a={reference}&b={reference}&tasks={id}&task-{id}=1&deleted={id}&q=heron&reference={reference}"
                );
                let answer = if route.method == "GET" {
                    ada.get(&format!("{by_path}?{query}")).await
                } else {
                    let task = format!("task-{id}");
                    let fields = [
                        (task.as_str(), "1"),
                        ("board", board.as_str()),
                        ("references", reference.as_str()),
                        ("prompt", "a boat"),
                        ("shape", "1:1"),
                        ("n", "1"),
                        ("name", ""),
                        ("role", "nobody"),
                    ];
                    ada.send(&by_path, &fields).await
                };
                let shows = tells(&answer, OF_API, None);
                assert_eq!(shows, route.pattern == "/studio/activity", "{state}, {by_path}: {answer:?}");
                assert!(!shows || !tells(&answer, OF_WEB, None), "{state}, {by_path}: {answer:?}");
                assert!(!answer.status.is_server_error(), "{state}, {by_path}: {answer:?}");
                if route.pattern.contains("/tasks/{id}")
                    || (route.method == "GET" && ["/studio/compare", "/studio/gallery.zip"].contains(&route.pattern))
                {
                    assert_eq!(answer.status, 404, "{state}, {by_path}: {answer:?}");
                }
            }
        }
        assert_eq!(both.known(Surface::Api, id).await, before, "{state}");
        let store = &service.shared.store;
        let filter = GalleryFilter { board: board.parse().ok(), ..GalleryFilter::default() };
        assert!(store.gallery(ada.account, &filter, None, 10).await.expect("a store").records.is_empty(), "{state}");
        assert_eq!(store.list_records(ada.account, Surface::Web, None, 10).await.expect("a store").len(), 1, "{state}");
        service.work().await;
    }
    let page = ada.page("/studio/activity").await;
    assert!(page.contains(">Picture 1</a>") && !page.contains(">Picture 2</a>"), "{page}");
}
