//! The streams of open pages.

use std::collections::VecDeque;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::rigs::wait::Background;

struct Stream {
    connection: TcpStream,
    unread: VecDeque<u8>,
}

impl Visitor {
    /// Opens a page and reads the begin of its stream.
    async fn open(&self) -> Stream {
        let address = self.service.address;
        let connection = TcpStream::connect(address).await.expect("it listens");
        let mut stream = Stream { connection, unread: VecDeque::new() };
        let cookie = &self.cookie;
        let head = format!("GET /studio/events HTTP/1.1\r\nhost: {address}\r\ncookie: {cookie}\r\n\r\n");
        stream.connection.write_all(head.as_bytes()).await.expect("a connection");
        stream.reads("event: begin").await;
        stream
    }
}

impl Stream {
    /// Reads on until it has read these words, and returns what came before them.
    async fn reads(&mut self, words: &str) -> String {
        loop {
            let unread = String::from_utf8_lossy(self.unread.make_contiguous());
            if let Some(at) = unread.find(words) {
                let before = unread[..at].to_owned();
                self.unread.drain(..at + words.len());
                return before;
            }
            let mut bytes = [0; 1_024];
            let count = self.connection.read(&mut bytes).await.expect("a connection");
            assert!(count > 0, "no {words}: {unread}");
            self.unread.extend(&bytes[..count]);
        }
    }
}

#[tokio::test]
async fn a_stream_ends_with_its_session_and_others_go_on() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let mut of_ada = [ada.open().await, ada.open().await];
    let (mut of_eve, mut of_bob) = (eve.open().await, bob.open().await);
    let store = &service.shared.store;
    let session = store.list_sessions(ada.person.id).await.expect("a store").pop().expect("a session");
    store.end_session(ada.person.id, session.id).await.expect("a store");
    store.change_account(eve.account, AccountChange::Disable).await.expect("a store");
    let running = Background::of(|stop| service.api.studio.clone().run(stop));
    // The last chunk.
    for stream in &mut of_ada {
        stream.reads("\r\n0\r\n\r\n").await;
    }
    of_eve.reads("\r\n0\r\n\r\n").await;
    let task = bob.create("a boat").await;
    of_bob.reads(&format!("event: task\ndata: {{\"id\":\"{task}\"}}")).await;
    running.stop.cancel();
    of_bob.reads("\r\n0\r\n\r\n").await;
    running.end().await;
}

#[tokio::test]
async fn a_session_has_eight_streams_at_most() {
    let (service, ada) = Service::with_visitor(&[], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(ada.open().await);
    }
    assert_eq!(ada.get("/studio/events").await.status, StatusCode::TOO_MANY_REQUESTS);
    bob.open().await;
}

#[tokio::test]
async fn a_page_hears_how_its_task_moves_up_in_the_queue() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    let running = Background::of(|stop| service.api.studio.clone().run(stop));
    // Those of another account do not count.
    eve.create("a hut").await;
    let before = ada.create("a hut").await;
    service.clock.advance(std::time::Duration::from_secs(2));
    let task = ada.create("a boat").await;
    service.clock.advance(std::time::Duration::from_secs(2));
    assert!(ada.page("/studio").await.contains("Waiting, number 2 in your queue"));
    let mut stream = ada.open().await;
    stream.reads(&format!("event: task\ndata: {{\"id\":\"{task}\"}}")).await;
    assert_eq!(ada.send(&format!("/studio/tasks/{before}/cancel"), &[]).await.status, StatusCode::SEE_OTHER);
    service.clock.advance(std::time::Duration::from_secs(2));
    stream.reads("event: progress").await;
    stream.reads("Waiting, number 1 in your queue").await;
    running.end().await;
}

#[tokio::test]
async fn pages_hear_what_is_done_at_other_processes() {
    let service = Service::start_on_postgres(&[]).await;
    let ada = service.visitor("ada", 10).await;
    let task = ada.create("a boat").await;
    let elsewhere = service.join_apart().await;
    // The first wait ends when the process begins to listen.
    service.shared.store.tasks_elsewhere().await;
    let running = Background::of(|stop| service.api.studio.clone().run(stop));
    let mut stream = ada.open().await;
    let (cookie, person) = (ada.cookie.clone(), ada.person.clone());
    let there = Visitor { service: elsewhere.clone(), account: ada.account, person, cookie };
    let mark = format!("task-{task}");
    assert_eq!(there.send("/studio/gallery/star", &[(&mark, "1")]).await.status, StatusCode::SEE_OTHER);
    let starred = format!("{{\"what\":\"starred\",\"person\":\"{}\",\"tasks\":[\"{task}\"]}}", ada.person.id);
    stream.reads(&starred).await;
    running.end().await;
}

#[tokio::test]
async fn pages_hear_what_the_people_of_their_account_do_with_pictures_and_boards() {
    let (service, [ada, eve]) = Service::with_visitors(&[], ["ada", "eve"], 10).await;
    let bob = service.visitor_as("ada", "bob", Role::Member).await;
    let task = bob.finished("a boat").await;
    let (mut of_ada, mut of_eve) = (ada.open().await, eve.open().await);
    let by_bob = |what: &str, tasks: &str| {
        format!("event: marks\ndata: {{\"what\":\"{what}\",\"person\":\"{}\",\"tasks\":[{tasks}]}}", bob.person.id)
    };
    let (named, mark) = (format!("\"{task}\""), format!("task-{task}"));
    let fields = [(mark.as_str(), "1")];
    // Stars are each person's own.
    let mut of_bob = bob.open().await;
    for (path, what) in [("/studio/gallery/star", "starred"), ("/studio/gallery/unstar", "unstarred")] {
        assert_eq!(bob.send(path, &fields).await.status, StatusCode::SEE_OTHER, "{path}");
        of_bob.reads(&by_bob(what, &named)).await;
    }
    for (path, what) in [
        ("/studio/gallery/delete", "deleted"),
        ("/studio/gallery/restore", "restored"),
        ("/studio/gallery/delete", "deleted"),
        ("/studio/bin/restore", "restored"),
    ] {
        assert_eq!(bob.send(path, &fields).await.status, StatusCode::SEE_OTHER, "{path}");
        let before = of_ada.reads(&by_bob(what, &named)).await;
        assert!(!before.contains("starred"), "{before}");
    }
    let board = bob.send("/studio/boards", &[("name", "boats")]).await;
    of_ada.reads(&by_bob("boards", "")).await;
    let board = board.header("location").rsplit('=').next().expect("a board").to_owned();
    bob.send("/studio/gallery/put", &[(mark.as_str(), "1"), ("board", &board)]).await;
    of_ada.reads(&by_bob("boards", "")).await;
    bob.send(&format!("/studio/boards/{board}/remove"), &[]).await;
    of_ada.reads(&by_bob("boards", "")).await;
    // A refused form tells nothing, and nobody of another account hears anything.
    assert_eq!(eve.send("/studio/gallery/delete", &fields).await.status, StatusCode::SEE_OTHER);
    eve.send("/studio/boards", &[("name", "huts")]).await;
    of_eve.reads(&format!("data: {{\"what\":\"deleted\",\"person\":\"{}\",\"tasks\":[]}}", eve.person.id)).await;
    of_eve.reads(&format!("data: {{\"what\":\"boards\",\"person\":\"{}\",\"tasks\":[]}}", eve.person.id)).await;
    let unread = String::from_utf8_lossy(of_eve.unread.make_contiguous()).into_owned();
    assert!(!unread.contains(bob.person.id.as_str()), "{unread}");
}
