//! Every route that changes something, while its caller loses the right to: the head of the request arrives before the loss,
//! and the body after it. New routes are covered without being named.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt as _;
use hyper::StatusCode;
use serde_json::json;
use tintype::http::routes::{Access, ROUTES, Route};
use tintype_config::KEY_CACHE_TTL;
use tintype_domain::endpoint::AddedBy;
use tintype_domain::model::{Id, Surface};
use tintype_domain::person::{Role, Token};
use tintype_store::{
    AccountChange, Addition, KeyChange, NewInvitation, NewSession, NewSharedLink, NewUpload, PersonChange, Target,
    UploadedPicture,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{COOKIE, Visitor};
use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::until;
use crate::webhooks;

/// Words that stand for `{change}` in patterns.
const CHANGES: [&str; 22] = [
    "publish",
    "disable",
    "enable",
    "rotate",
    "budget",
    "role",
    "link",
    "star",
    "restore",
    "reset-factor",
    "put",
    "rename",
    "test",
    "events",
    "pause",
    "resume",
    "lift",
    "unstar",
    "take",
    "revoke",
    "delete",
    "remove",
];

/// Words that stand for `{change}` in patterns of the bin. All words for all patterns would be more forms than one
/// person may have open.
const BIN_CHANGES: [&str; 4] = ["erase", "restore", "restore-all", "empty"];

/// A request whose head the server has accepted and whose body it waits for.
struct Begun {
    what: String,
    stream: TcpStream,
    /// The rest of the body; nothing if the answer came before the body was asked for.
    rest: Vec<u8>,
    answer: Vec<u8>,
}

impl Begun {
    /// Sends the head, and waits until the handler asks for the body; until an answer, if it asks for none.
    async fn begin(service: &Service, path: &str, headers: &[(&str, &str)], body: String) -> Self {
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\n{lines}expect: 100-continue\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(service.address).await.expect("the service listens");
        // Otherwise the last byte of the body waits until the others are acknowledged, which takes 40 ms.
        stream.set_nodelay(true).expect("a socket");
        stream.write_all(head.as_bytes()).await.expect("an open connection");
        let mut asked = vec![0; 25];
        stream.read_exact(&mut asked).await.expect("an answer");
        let what = path.to_owned();
        if !asked.starts_with(b"HTTP/1.1 100") {
            return Self { what, stream, rest: Vec::new(), answer: asked };
        }
        let (first, last) = body.as_bytes().split_at(body.len() - 1);
        stream.write_all(first).await.expect("an open connection");
        Self { what, stream, rest: last.to_vec(), answer: Vec::new() }
    }

    /// Sends the last byte; returns the status and the head of the answer.
    async fn end(mut self) -> (u16, String) {
        self.stream.write_all(&self.rest).await.expect("an open connection");
        self.stream.read_to_end(&mut self.answer).await.expect("an answer");
        let answer = String::from_utf8_lossy(&self.answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let head = answer.split("\r\n\r\n").next().unwrap_or_default().to_ascii_lowercase();
        (status.unwrap_or_else(|| panic!("{}: {answer}", self.what)), head)
    }
}

/// All rows of the database, a text for each.
fn rows(service: &Service) -> Vec<String> {
    let database = rusqlite::Connection::open(service.directory.path().join("tintype.db")).expect("a database");
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name";
    let mut tables = database.prepare(tables).expect("a schema");
    let tables: Vec<String> =
        tables.query_map([], |row| row.get(0)).expect("tables").collect::<Result<_, _>>().expect("names");
    let mut found = Vec::new();
    for table in tables {
        let mut all = database.prepare(&format!("SELECT * FROM {table}")).expect("a table");
        let columns = all.column_count();
        let mut rows = all.query([]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            let values = (0..columns).map(|column| format!("{:?}", row.get_ref(column).expect("a value")));
            found.push(format!("{table}: {}", values.collect::<Vec<_>>().join(", ")));
        }
    }
    found.sort();
    found
}

async fn upload_of(service: &Service, account_id: Id, person: Id) -> Id {
    let store = &service.shared.store;
    let new = NewUpload { person_id: Some(person), ..NewUpload::of(account_id, Surface::Web) };
    let upload = store.begin_upload(new, 10).await.expect("a store").expect("room");
    let picture = UploadedPicture { name: format!("{upload}.png"), width: 64, height: 48 };
    assert!(store.finish_upload(upload, picture).await.expect("a store"));
    upload
}

/// An owner of an admin account, with something of everything that forms change.
struct Scene {
    owner: Visitor,
    /// The ids that stand for `{id}` in the patterns that begin with a prefix.
    ids: BTreeMap<&'static str, String>,
    delivery: Id,
    fields: Vec<(String, String)>,
}

impl Scene {
    async fn of(service: &Service, name: &str) -> Self {
        let store = &service.shared.store;
        store.create_account_as(name, 1_000, true).await.expect("a store");
        let owner = service.visitor_as(name, name, Role::Owner).await;
        let colleague = service.person(name, &format!("{name}-colleague"), Role::Viewer).await;
        let (key, _) = service.new_key(owner.account, |_| {}).await;
        let other = format!("{name}-other");
        store.create_account(&other, 5).await.expect("a store");
        let other = store.find_account(&other).await.expect("a store").expect("an account").id;
        let added = webhooks::add(store, owner.account, "https://hooks.example/", AddedBy::Owner).await;
        let endpoint = added.expect("a store").0.id;
        let delivery = store.test_endpoint(endpoint).await.expect("a store").expect("a delivery");
        store.create_board(owner.account, None, "quayside", 10).await.expect("a store");
        let board = store.boards(owner.account, owner.person.id).await.expect("a store")[0].id;
        let end = store.now().saturating_add(Duration::from_secs(600));
        let session = NewSession { hash: Token::random().hash(), expires_at: end, agent: String::new() };
        let session =
            store.begin_session(owner.person.id, None, session).await.expect("a store").expect("a session").id;
        let task = owner.create("a boat").await;
        let expires_at = Some(store.now().saturating_add(Duration::from_secs(86_400)));
        let (account_id, person_id, target) = (owner.account, owner.person.id, Target::Board(board));
        let link = NewSharedLink { account_id, person_id, target, with_prompts: false, expires_at };
        let Addition::Created(link) = store.create_shared_link(link, 9).await.expect("a store") else {
            panic!("refused");
        };
        let hash = Token::random().hash();
        let new = NewInvitation { account_id, person_id, hash, role: Role::Member, places: 5, expires_at: end };
        let invitation = store.create_invitation(new, 9).await.expect("a store").expect("an invitation");
        let ids = [
            ("/studio/keys", key),
            ("/studio/operator/keys", key),
            ("/studio/people", colleague.id),
            ("/studio/operator/people", colleague.id),
            ("/studio/operator/accounts", other),
            ("/studio/webhooks", endpoint),
            ("/studio/boards", board),
            ("/studio/links", link),
            ("/studio/invitations", invitation),
            ("/studio/sessions", session),
            ("/studio/tasks", task),
            ("/studio/uploads", upload_of(service, account_id, colleague.id).await),
        ];
        let ids = ids.into_iter().map(|(prefix, id): (_, Id)| (prefix, id.to_string())).collect();
        let fields = [
            ("name", format!("{name}-new")),
            ("role", "member".into()),
            ("amount", "5".into()),
            ("note", "x".into()),
            ("newest", owner.newest(other.as_str()).await),
            ("days", "30".into()),
            ("places", "5".into()),
            ("present", String::new()),
            ("budget", "5".into()),
            ("new", "a ferry at dusk, and 7 gulls".into()),
            ("url", "https://new.example/hook".into()),
            ("prompt", "a pier".into()),
            ("shape", "1:1".into()),
            ("n", "1".into()),
            ("references", String::new()),
            ("board", board.to_string()),
            ("period", "day".into()),
            ("hours", "0".into()),
            ("task.completed", "on".into()),
            ("task.failed", "on".into()),
        ];
        let mut fields: Vec<(String, String)> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        fields.push((format!("task-{task}"), "on".into()));
        Self { owner, ids, delivery, fields }
    }

    /// The path of a route with the ids of the scene.
    fn path(&self, pattern: &str) -> String {
        let id = self.ids.iter().rfind(|(prefix, _)| pattern.starts_with(*prefix));
        let path = pattern.replace("{id}", id.map_or("FAAAAAAAAAAAAAAAAAAAA", |(_, id)| id.as_str()));
        let path =
            path.replace("{delivery}", self.delivery.as_str()).replace("{number}", "1").replace("{name}", "default");
        path.replace("{*path}", "no/such/form")
    }

    /// The paths of all forms: first those that leave something to change, last those that end this very session.
    fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for route in ROUTES.iter().filter(|route| route.access == Access::Session && !route.method.is_safe()) {
            let path = self.path(route.pattern);
            match path.contains("{change}") {
                true if path.starts_with("/studio/bin/") => {
                    paths.extend(BIN_CHANGES.iter().map(|change| path.replace("{change}", change)));
                }
                true => paths.extend(CHANGES.iter().map(|change| path.replace("{change}", change))),
                false => paths.push(path),
            }
        }
        let removes = |path: &str| ["/revoke", "/delete", "/remove"].iter().any(|last| path.ends_with(last));
        paths.sort_by_key(|path| (["/studio/password", "/studio/sign-out"].contains(&path.as_str()), removes(path)));
        paths
    }

    fn body(&self, proof: &str) -> String {
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        body.extend_pairs(&self.fields).append_pair("proof", proof);
        body.finish()
    }

    async fn begin(&self, paths: &[String], visitor: &Visitor) -> Vec<Begun> {
        let proof = visitor.proof().await;
        let headers = [
            ("cookie", visitor.cookie.as_str()),
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-proof", &proof),
        ];
        let mut begun = Vec::new();
        for path in paths {
            begun.push(Begun::begin(&visitor.service, path, &headers, self.body(&proof)).await);
        }
        begun
    }
}

/// The answer that a person who is not signed in gets to any form.
fn is_of_a_stranger(status: u16, head: &str) -> bool {
    status == StatusCode::SEE_OTHER.as_u16() && head.contains("\r\nlocation: /studio/sign-in\r\n")
}

#[tokio::test]
async fn a_form_that_ends_after_its_sender_was_locked_out_changes_nothing() {
    for loss in ["removed", "session", "password", "disabled"] {
        let service = Service::start_on_sqlite(&[]).await;
        let scene = Scene::of(&service, "ada").await;
        let (store, person) = (&service.shared.store, scene.owner.person.id);
        let begun = scene.begin(&scene.paths(), &scene.owner).await;
        let early: Vec<_> = begun.iter().filter(|form| form.rest.is_empty()).map(|form| &form.what).collect();
        assert!(begun.len() > 100 && early.is_empty(), "{early:?}");
        match loss {
            "removed" => drop(store.remove_person(person).await.expect("a store")),
            "session" => {
                for session in store.list_sessions(person).await.expect("a store") {
                    store.end_session(person, session.id).await.expect("a store");
                }
            }
            "password" => {
                drop(store.change_person(person, PersonChange::Password("$new".into())).await.expect("a store"))
            }
            _ => drop(store.change_account(scene.owner.account, AccountChange::Disable).await.expect("a store")),
        }
        let before = rows(&service);
        for form in begun {
            let path = form.what.clone();
            let (status, head) = form.end().await;
            assert!(is_of_a_stranger(status, &head), "{loss}: {path}: {head}");
        }
        assert_eq!(rows(&service), before, "{loss}");
    }
}

#[tokio::test]
async fn a_form_that_ends_after_its_sender_lost_rank_is_answered_as_one_sent_afterwards() {
    for loss in ["viewer", "member", "suspended"] {
        let service = Service::start_on_sqlite(&[]).await;
        let scene = Scene::of(&service, "ada").await;
        let (store, person) = (&service.shared.store, scene.owner.person.id);
        let suspend = |person: Id| {
            let database = rusqlite::Connection::open(service.directory.path().join("tintype.db")).expect("a database");
            let sql = "UPDATE people SET suspended_at = 1, suspended_for = 'test' WHERE id = ?1";
            database.execute(sql, [person.as_str()]).expect("a person");
        };
        let lose = async |person: Id| match loss.parse() {
            Ok(role) => drop(store.change_person(person, PersonChange::Role(role)).await.expect("a store")),
            Err(_) => suspend(person),
        };
        // An owner of another account, who lost it before, shows which forms are refused then.
        let model = Scene::of(&service, "eve").await;
        lose(model.owner.person.id).await;
        let mut refused = BTreeMap::new();
        for (path, same) in model.paths().into_iter().zip(scene.paths()).filter(|(path, _)| !is_own(path)) {
            let [form] = <[Begun; 1]>::try_from(model.begin(&[path], &model.owner).await).ok().expect("one");
            let (status, _) = form.end().await;
            if matches!(status, 403 | 404) {
                refused.insert(same, status);
            }
        }
        let least = if loss == "suspended" { 5 } else { 40 };
        assert!(refused.len() >= least, "{loss}: {refused:?}");
        let paths: Vec<String> = refused.keys().cloned().collect();
        let begun = scene.begin(&paths, &scene.owner).await;
        lose(person).await;
        let before = rows(&service);
        for form in begun {
            let path = form.what.clone();
            let (status, head) = form.end().await;
            assert_eq!(status, refused[&path], "{loss}: {path}: {head}");
        }
        assert_eq!(rows(&service), before, "{loss}");
    }
}

/// Whether a form concerns the sender alone, whatever the rights.
fn is_own(path: &str) -> bool {
    ["/studio/password", "/studio/sign-out", "/studio/oidc", "/studio/sessions"].iter().any(|own| path.starts_with(own))
}

#[tokio::test]
async fn the_same_forms_change_something_while_the_right_lasts() {
    let service = Service::start_on_sqlite(&[]).await;
    let scene = Scene::of(&service, "ada").await;
    let before = rows(&service);
    let mut done = 0;
    for path in scene.paths().into_iter().filter(|path| !path.contains("/oidc")) {
        let [form] =
            <[Begun; 1]>::try_from(scene.begin(std::slice::from_ref(&path), &scene.owner).await).ok().expect("one");
        let (status, head) = form.end().await;
        let ends = path == "/studio/sign-out";
        assert_eq!(is_of_a_stranger(status, &head), ends, "{path}: {head}");
        done += usize::from(matches!(status, 200 | 303));
        if path == "/studio/password" {
            break;
        }
    }
    assert!(done > 25, "{done}");
    assert_ne!(rows(&service), before);
}

#[tokio::test]
async fn nobody_sees_or_changes_anything_of_another_account() {
    let service = Service::start_on_sqlite(&[]).await;
    let scene = Scene::of(&service, "ada").await;
    let eve = service.visitor("eve", 10).await;
    let fields: Vec<_> = scene.fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let of_ada = |path: &str| scene.ids.values().any(|id| path.contains(id.as_str()));
    let names_tasks = |path: &str| ["/studio/gallery", "/studio/bin/"].iter().any(|begin| path.starts_with(begin));
    let (proof, before) = (eve.proof().await, rows(&service));
    for path in scene.paths().into_iter().filter(|path| of_ada(path) || names_tasks(path)) {
        let answer = eve.send_with(&path, &fields, &proof, &[]).await;
        assert!(matches!(answer.status.as_u16(), 303 | 403 | 404 | 409), "{path}: {answer:?}");
        // Revoking a link or an invitation that is not there is no error.
        let is_told = of_ada(&path) && !["links", "invitations"].iter().any(|kind| path.contains(kind));
        assert!(!is_told || answer.status != StatusCode::SEE_OTHER, "{path}: {answer:?}");
    }
    assert_eq!(rows(&service), before);
    let pages = ROUTES.iter().filter(|route| route.access == Access::Session && route.method.is_safe());
    for path in pages.map(|route| scene.path(route.pattern)).filter(|path| path != "/studio/events") {
        let answer = eve.get(&path).await;
        // The cover of a board that is not there, or shows nothing, is blank.
        let is_blank = path.ends_with("/cover") && answer.body.starts_with(b"<svg");
        assert!(!of_ada(&path) || is_blank || matches!(answer.status.as_u16(), 403 | 404), "{path}: {answer:?}");
        let shown = String::from_utf8_lossy(&answer.body);
        let secrets =
            scene.ids.values().map(String::as_str).chain(["a boat", "quayside", "hooks.example", "ada-colleague"]);
        let seen: Vec<_> = secrets.filter(|secret| !path.contains(secret) && shown.contains(secret)).collect();
        assert!(seen.is_empty(), "{path}: {seen:?}");
    }
}

/// The routes that a key opens and that change something.
fn of_keys() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(|route| route.access == Access::Key && !route.method.is_safe())
}

#[tokio::test]
async fn a_call_that_ends_after_its_key_was_lost_changes_nothing() {
    for loss in ["revoked", "disabled", "rotated", "account"] {
        let service = Service::start_on_sqlite(&[]).await;
        let caller: Caller = service.caller("ada", 100).await;
        let body = json!({
            "prompt": "a boat", "image": "data:image/png;base64,AAAA", "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": "generate_image", "arguments": { "prompt": "a boat" } },
        });
        let authorization = caller.authorization();
        let headers = [
            ("authorization", authorization.as_str()),
            ("content-type", "application/json"),
            ("accept", "application/json, text/event-stream"),
        ];
        let mut begun = Vec::new();
        for route in of_keys() {
            begun.push(Begun::begin(&service, route.pattern, &headers, body.to_string()).await);
        }
        assert!(begun.len() >= 6 && begun.iter().all(|call| !call.rest.is_empty()));
        let store = &service.shared.store;
        match loss {
            "revoked" => drop(store.change_key(caller.key_id, KeyChange::Revoke).await.expect("a store")),
            "disabled" => drop(store.change_key(caller.key_id, KeyChange::Disable).await.expect("a store")),
            "rotated" => {
                let hash = Token::random().hash();
                store.rotate_key(caller.key_id, hash, "hint", Duration::ZERO).await.expect("a store").expect("a key");
            }
            _ => drop(store.change_account(caller.account.id, AccountChange::Disable).await.expect("a store")),
        }
        service.clock.advance(KEY_CACHE_TTL + Duration::from_millis(1));
        let before = rows(&service);
        for call in begun {
            let path = call.what.clone();
            let (status, head) = call.end().await;
            assert_eq!(status, 401, "{loss}: {path}: {head}");
            assert!(!head.contains("ratelimit"), "{loss}: {path}: {head}");
        }
        assert_eq!(rows(&service), before, "{loss}");
        let tasks = store.list_tasks(caller.account.id, Surface::Api, None, 1).await.expect("a store");
        assert_eq!((tasks, COOKIE), (vec![], "tintype"));
    }
}

#[tokio::test]
async fn a_report_is_not_for_one_who_lost_the_right_while_waiting_for_it() {
    let (service, _ada) = Service::with_visitor(&[], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Owner).await;
    let (turns, places) = (service.shared.store.report_turns(), service.api.studio.reports());
    let held = turns.acquire_many(turns.available_permits() as u32).await.expect("turns");
    let mut reading = Box::pin(bob.get("/studio/usage"));
    until(async || (&mut reading).now_or_never().is_none() && places.used() == 1).await;
    service.shared.store.change_person(bob.person.id, PersonChange::Role(Role::Member)).await.expect("a store");
    drop(held);
    assert_eq!(reading.await.status, StatusCode::FORBIDDEN);
}
