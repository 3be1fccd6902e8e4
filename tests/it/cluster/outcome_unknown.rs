//! Submits whose outcome is unknown at the time limit, and callers who hang up: no answer is false, and no task is
//! charged after its caller hung up.

use serde_json::json;
use tintype_domain::model::{Status, Surface};
use tintype_system::clock::Clock;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::block_in_place;

use crate::rigs::binary::Server;
use crate::rigs::cluster::Site;
use crate::rigs::cluster::node::{HANG, Node, Part};
use crate::rigs::cluster::relay::{Cut, Passage, Relay};
use crate::rigs::http::{GENERATE, submit, try_send};
use crate::rigs::installation::Installation;
use crate::rigs::postgres::schema;
use crate::rigs::wait::until;

const CUT_OFF: &str = "a boat that is cut off";

/// Credits of an account and the states of its tasks, newest first.
async fn books(installation: &Installation, name: &str) -> (i64, Vec<Status>) {
    let store = installation.store(Clock::system()).await;
    let account = store.find_account(name).await.expect("a store").expect("an account");
    let tasks = store.list_tasks(account.id, Surface::Api, None, 10).await.expect("a store");
    (account.credits, tasks.into_iter().map(|task| task.status).collect())
}

/// Cuts an API off from the database over its second submit; that caller must get no answer.
async fn cut_off(site: &Site, number: usize, cut: Cut) -> (i64, Vec<Status>) {
    let relay = Relay::to(&site.postgres.directory);
    let by_relay = site.by_way_of(relay.directory.path());
    let name = format!("ada {number}");
    let (api, key) =
        block_in_place(|| (Node::start(Part::Api, number, &by_relay, &[]), site.installation.account(&name, "100")));
    submit(&api.server, &key, "a boat").await;
    relay.cut(CUT_OFF, cut);
    let body = json!({ "prompt": CUT_OFF }).to_string();
    let answer = try_send(api.address(), "POST", GENERATE, &key, &body).await;
    assert_eq!(relay.cuts_left(), 0);
    assert!(answer.is_none(), "{:?}", answer.map(|answer| answer.status));
    let said = "closing the connection without an answer";
    // It writes its log behind the answer.
    until(async || api.logged(said) == 1).await;
    relay.set(Passage::Open);
    // The same process accepts further submits.
    submit(&api.server, &key, "a boat").await;
    books(&site.installation, &name).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submit_whose_outcome_stays_unknown_gets_no_answer() {
    let site = Site::new().await;
    let (done, not_done) = tokio::join!(cut_off(&site, 0, Cut::AnswerAndAll), cut_off(&site, 1, Cut::CommitAndAll));
    assert_eq!(done, (94, vec![Status::Processing; 3]), "the task exists and is charged");
    assert_eq!(not_done, (96, vec![Status::Processing; 2]), "the commit never arrived");
    assert_eq!(site.installation.json(&["credits", "audit"])["drifts"], json!([]));
}

/// Sends a submit and keeps the connection.
async fn send(api: &Server, key: &str, prompt: &str) -> TcpStream {
    let body = json!({ "prompt": prompt }).to_string();
    let request = format!(
        "POST {GENERATE} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        api.address,
        body.len()
    );
    let mut stream = TcpStream::connect(api.address).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("it is open");
    stream
}

fn callers(api: &Server) -> usize {
    let port = format!(":{:04X}", api.address.port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    // The local port, in the state ESTABLISHED or CLOSE_WAIT.
    let of_caller = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1).is_some_and(|local| local.ends_with(&port)) && matches!(fields.get(3), Some(&("01" | "08")))
    };
    table.lines().filter(of_caller).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submit_that_has_not_started_when_its_caller_hangs_up_never_starts() {
    let site = Site::new().await;
    let schema = schema(&site.installation.data);
    let (api, key) = block_in_place(|| (site.start(Part::Api, 0, &[]), site.installation.account("ada", "100")));
    // Every connection of the pool is prepared and the first submit is done.
    submit(&api.server, &key, "a boat").await;
    let gate = site.postgres.session().await;
    gate.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.ledger IN SHARE MODE")).await.expect("a lock");
    let begun = send(&api.server, &key, "a boat that has begun").await;
    site.postgres.until_waiting(&schema).await;
    // The next one waits until that is done.
    let waiting = send(&api.server, &key, "a boat that waits").await;
    until(async || callers(&api.server) == 2).await;
    drop((begun, waiting));
    until(async || callers(&api.server) == 0).await;
    gate.batch_execute("ROLLBACK").await.expect("the session is open");
    tokio::time::timeout(HANG, submit(&api.server, &key, "a boat after them")).await.expect("an answer");
    assert_eq!(books(&site.installation, "ada").await, (94, vec![Status::Processing; 3]));
    assert_eq!(site.installation.json(&["credits", "audit"])["drifts"], json!([]));
}
