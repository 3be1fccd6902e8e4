//! A server with the routes of ComfyUI that a render needs. The new one answers as ComfyUI 0.30.0 was seen to, the old one
//! as the source of 2024 says.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use futures::SinkExt as _;
use serde_json::{Value, json};
use tintype_engine::Picture;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::rigs::faulty_http::{Asked, Reply, answer, read};
use crate::rigs::wait::listen_again;

pub const STEPS: u32 = 4;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Age {
    /// Takes ids from clients, and cancels by id.
    #[default]
    New,
    /// Chooses ids itself, and interrupts whatever is running.
    Old,
}

#[derive(Debug, Clone, Default)]
pub enum Outcome {
    /// A picture of one colour, which the seed chooses.
    #[default]
    Painted,
    /// This file.
    Saves(Vec<u8>),
    SavesNothing,
    /// A picture, but none for a workflow that ran before.
    Cached,
    /// The error of a workflow that ran before, because somebody has removed a file that it names.
    Removed,
    /// An event such as `execution_error`, and its details.
    Ends(&'static str, Value),
    /// The server forgets it.
    Forgotten,
    /// It does not end by itself.
    Endless,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    Pending,
    Running,
    Ended,
    Cancelled,
}

#[derive(Debug)]
struct Run {
    id: String,
    client: String,
    graph: Value,
    status: Status,
}

#[derive(Default)]
struct State {
    age: Age,
    outcome: Outcome,
    faults: Vec<(&'static str, Reply)>,
    loses_submits: bool,
    leaves_nodes_out: bool,
    lacks: Option<&'static str>,
    asked: Vec<Asked>,
    runs: Vec<Run>,
    uploads: BTreeMap<String, Vec<u8>>,
    sockets: BTreeMap<String, mpsc::UnboundedSender<Message>>,
}

/// The server, until it is dropped.
pub struct FakeComfyUi {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    takes_submits: Arc<watch::Sender<bool>>,
    _stop: DropGuard,
}

impl FakeComfyUi {
    pub async fn start(age: Age) -> Self {
        Self::on("127.0.0.1:0".parse().expect("an address"), age).await
    }

    /// A server at this address, where one may have listened before.
    pub async fn on(address: SocketAddr, age: Age) -> Self {
        let listener = listen_again(address).await;
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State { age, ..State::default() }));
        let (takes_submits, stop) = (Arc::new(watch::Sender::new(true)), CancellationToken::new());
        let server = Self {
            address,
            state: state.clone(),
            takes_submits: takes_submits.clone(),
            _stop: stop.clone().drop_guard(),
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                let serving = serve(stream, state.clone(), takes_submits.subscribe());
                tokio::spawn(stop.clone().run_until_cancelled_owned(serving));
            }
        }));
        server
    }

    fn state<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.state.lock().unwrap())
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The reply to all requests whose method and path begin like this.
    pub fn reply(&self, route: &'static str, reply: Reply) {
        self.state(|state| state.faults.push((route, reply)));
    }

    /// Takes all faulty replies back.
    pub fn recover(&self) {
        self.state(|state| state.faults.clear());
    }

    /// The outcome of all runs from now on, and of those that have not ended.
    pub fn outcome(&self, outcome: Outcome) {
        self.state(|state| {
            state.outcome = outcome;
            state.work();
        });
    }

    /// Submits are queued from now on, and their answers get lost.
    pub fn lose_submits(&self) {
        self.state(|state| state.loses_submits = true);
    }

    /// Submits wait from now on, or are queued.
    pub fn take_submits(&self, take: bool) {
        self.takes_submits.send_replace(take);
    }

    pub fn leave_nodes_out(&self) {
        self.state(|state| state.leaves_nodes_out = true);
    }

    pub fn lack(&self, class: &'static str) {
        self.state(|state| state.lacks = Some(class));
    }

    /// Runs a workflow of somebody else, without an end.
    pub fn run_of_stranger(&self) {
        self.state(|state| {
            state.outcome = Outcome::Endless;
            state.queue("stranger".into(), "stranger".into(), Value::Null);
        });
    }

    /// Tells the client of the running workflow that so many steps are done.
    pub fn tell_steps(&self, done: u32) {
        self.tell_running(&json!({ "type": "progress", "data": { "value": done, "max": STEPS, "node": "3" } }));
    }

    /// Tells the client of the running workflow that it has ended, which it has not.
    pub fn tell_end(&self) {
        self.tell_running(&json!({ "type": "executing", "data": { "node": null } }));
    }

    fn tell_running(&self, event: &Value) {
        self.state(|state| {
            let running = state.runs.iter().find(|run| run.status == Status::Running).map(|run| run.client.clone());
            if let Some(client) = running {
                state.tell(&client, event);
            }
        });
    }

    /// Tells the client of the run that is running a preview of one colour, as a PNG.
    pub fn tell_preview(&self, colour: u8) {
        let picture = Picture::from_rgb(256, 128, vec![colour; 256 * 128 * 3]).expect("a picture");
        self.state(|state| {
            let running = state.runs.iter().find(|run| run.status == Status::Running).map(|run| run.client.clone());
            let socket = running.and_then(|client| state.sockets.get(&client).cloned()).expect("a client");
            let file = [&[0, 0, 0, 1, 0, 0, 0, 2], picture.to_png().as_slice()].concat();
            drop(socket.send(Message::binary(file)));
        });
    }

    pub fn close_sockets(&self) {
        self.state(|state| state.sockets.clear());
    }

    pub fn sockets(&self) -> usize {
        self.state(|state| state.sockets.len())
    }

    /// The graphs that were queued, without those of strangers.
    pub fn graphs(&self) -> Vec<Value> {
        let ours = |run: &&Run| run.client != "stranger";
        self.state(|state| state.runs.iter().filter(ours).map(|run| run.graph.clone()).collect())
    }

    /// Clients of the runs that have not ended.
    pub fn unfinished(&self) -> Vec<String> {
        let waits = |run: &&Run| matches!(run.status, Status::Pending | Status::Running);
        self.state(|state| state.runs.iter().filter(waits).map(|run| run.client.clone()).collect())
    }

    /// The requests so far whose method and path begin like this.
    pub fn asked(&self, route: &str) -> Vec<Asked> {
        let begins = |asked: &&Asked| format!("{} {}", asked.method, asked.path).starts_with(route);
        self.state(|state| state.asked.iter().filter(begins).cloned().collect())
    }

    pub fn uploads(&self) -> BTreeMap<String, Vec<u8>> {
        self.state(|state| state.uploads.clone())
    }
}

impl State {
    fn tell(&self, client: &str, event: &Value) {
        if let Some(socket) = self.sockets.get(client) {
            drop(socket.send(Message::text(event.to_string())));
        }
    }

    fn queue(&mut self, id: String, client: String, graph: Value) {
        self.runs.push(Run { id, client, graph, status: Status::Pending });
        self.work();
    }

    /// Works on the queue as far as the outcome allows.
    fn work(&mut self) {
        loop {
            let begun = self.runs.iter().position(|run| run.status == Status::Running);
            let next = begun.or_else(|| self.runs.iter().position(|run| run.status == Status::Pending));
            let Some(index) = next else { return };
            self.runs[index].status = Status::Running;
            let client = self.runs[index].client.clone();
            if matches!(self.outcome, Outcome::Endless) || client == "stranger" {
                return;
            }
            for step in 1..=STEPS {
                self.tell(
                    &client,
                    &json!({ "type": "progress", "data": { "value": step, "max": STEPS, "node": "3" } }),
                );
            }
            self.runs[index].status = Status::Ended;
            if matches!(self.outcome, Outcome::Forgotten) {
                self.runs[index].id = "forgotten".into();
            }
            self.tell(&client, &json!({ "type": "executing", "data": { "node": null } }));
        }
    }

    fn cancel(&mut self, id: &str) -> bool {
        let waits = |run: &&mut Run| run.id == id && matches!(run.status, Status::Pending | Status::Running);
        let found = self.runs.iter_mut().find(waits).map(|run| run.status = Status::Cancelled);
        self.work();
        found.is_some()
    }

    fn outputs(&self, id: &str) -> Value {
        let file = |name: String, folder: &str| json!({ "filename": name, "subfolder": "a b", "type": folder });
        match self.outcome {
            Outcome::Cached if self.ran_before(id) => json!({}),
            Outcome::SavesNothing => json!({ "9": { "text": ["nothing"] } }),
            _ => json!({
                "8": { "images": [file("preview.png".into(), "temp")] },
                "9": { "images": [file(format!("{id}.png"), "output")] },
            }),
        }
    }

    /// Whether another run before had the same graph.
    fn ran_before(&self, id: &str) -> bool {
        let Some(at) = self.runs.iter().position(|run| run.id == id) else { return false };
        self.runs[..at].iter().any(|run| run.graph == self.runs[at].graph)
    }

    /// The end of a run in the history: its status, and the event that ended it.
    fn end(&self, run: &Run) -> (&'static str, &'static str, Value) {
        match &self.outcome {
            _ if run.status == Status::Cancelled => ("error", "execution_interrupted", json!({ "node_id": "3" })),
            Outcome::Ends(name, details) => ("error", name, details.clone()),
            _ => ("success", "execution_success", json!({})),
        }
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>, mut takes_submits: watch::Receiver<bool>) {
    let Some(asked) = read(&mut stream).await else { return };
    let route = format!("{} {}", asked.method, asked.path);
    let fault = {
        let mut state = state.lock().unwrap();
        state.asked.push(asked.clone());
        state.faults.iter().find(|(begin, _)| route.starts_with(begin)).map(|(_, reply)| reply.clone())
    };
    if let Some(client) = route.strip_prefix("GET /ws?clientId=").filter(|_| fault.is_none()) {
        return tell(stream, &state, client.to_owned()).await;
    }
    if asked.method == "POST" && asked.path == "/prompt" {
        takes_submits.wait_for(|take| *take).await.expect("the server lives");
    }
    let reply = fault.unwrap_or_else(|| documented(&mut state.lock().unwrap(), &asked));
    answer(stream, reply).await;
}

async fn tell(mut stream: TcpStream, state: &Mutex<State>, client: String) {
    let head = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("a client");
    let mut socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
    let (sender, mut events) = mpsc::unbounded_channel();
    sender.send(Message::text(json!({ "type": "status", "data": {} }).to_string())).expect("a receiver");
    // The first bytes of a preview.
    sender.send(Message::binary(vec![0, 0, 0, 1, 0, 0, 0, 1])).expect("a receiver");
    state.lock().unwrap().sockets.insert(client, sender);
    while let Some(event) = events.recv().await {
        if socket.send(event).await.is_err() {
            return;
        }
    }
}

fn text(status: u16, body: &str) -> Reply {
    Reply::Whole(status, vec![("content-type", "text/plain; charset=utf-8".into())], body.into())
}

fn documented(state: &mut State, asked: &Asked) -> Reply {
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match (asked.method.as_str(), segments.as_slice()) {
        ("GET", ["system_stats"]) => {
            let device = json!({ "name": "cuda:0 A GPU\u{1b}[31m", "type": "cuda", "index": 0,
                "vram_total": 24_u64 << 30, "vram_free": 21_u64 << 30 });
            Reply::json(200, &json!({ "system": { "comfyui_version": "0.30.0" }, "devices": [device] }))
        }
        ("GET", ["object_info", class]) if state.lacks == Some(class) => Reply::json(200, &json!({})),
        ("GET", ["object_info", class]) => Reply::json(200, &json!({ *class: { "name": class } })),
        ("POST", ["upload", "image"]) => upload(state, asked),
        ("POST", ["prompt"]) => submit(state, &asked.json()),
        ("GET", ["history", id]) => history(state, id),
        ("GET", ["queue"]) => {
            let list = |status: Status| {
                let entries = state.runs.iter().filter(|run| run.status == status);
                entries.map(|run| json!([0, run.id, run.graph, { "client_id": run.client }, ["9"]])).collect::<Vec<_>>()
            };
            let (running, pending) = (list(Status::Running), list(Status::Pending));
            Reply::json(200, &json!({ "queue_running": running, "queue_pending": pending }))
        }
        ("POST", ["queue"]) => {
            let id = asked.json()["delete"][0].as_str().expect("an id").to_owned();
            if state.runs.iter().any(|run| run.id == id && run.status == Status::Pending) {
                state.cancel(&id);
            }
            text(200, "")
        }
        ("POST", ["interrupt"]) => {
            let id = asked.json()["prompt_id"].as_str().expect("never without an id").to_owned();
            let running = state.runs.iter().find(|run| run.status == Status::Running).map(|run| run.id.clone());
            if let Some(running) = running.filter(|running| state.age == Age::Old || *running == id) {
                state.cancel(&running);
            }
            text(200, "")
        }
        ("GET", ["api", "jobs", id]) if state.age == Age::New => job(state, id),
        ("POST", ["api", "jobs", id, "cancel"]) if state.age == Age::New => {
            let cancelled = state.cancel(id);
            Reply::json(200, &json!({ "cancelled": cancelled }))
        }
        ("POST", ["api", ..]) => text(405, "405: Method Not Allowed"),
        ("GET", ["view"]) => view(state, query),
        _ => text(404, "404: Not Found"),
    }
}

fn upload(state: &mut State, asked: &Asked) -> Reply {
    assert_eq!(asked.fields(), json!({ "type": "input" }), "nothing is overwritten");
    let (_, file_name, content) = asked.parts().into_iter().find(|(name, ..)| name == "image").expect("a file");
    let file_name = file_name.expect("a file name");
    let stem = file_name.strip_suffix(".png").expect("a PNG").to_owned();
    let mut name = file_name;
    for number in 1.. {
        match state.uploads.get(&name) {
            Some(known) if state.age == Age::Old || *known != content => name = format!("{stem} ({number}).png"),
            _ => break,
        }
    }
    state.uploads.insert(name.clone(), content);
    Reply::json(200, &json!({ "name": name, "subfolder": "", "type": "input" }))
}

fn submit(state: &mut State, body: &Value) -> Reply {
    let id = match state.age {
        Age::New => body["prompt_id"].as_str().expect("an id").to_owned(),
        Age::Old => format!("00000000-0000-4000-8000-{:012}", state.runs.len()),
    };
    let client = body["client_id"].as_str().expect("a client").to_owned();
    state.queue(id.clone(), client, body["prompt"].clone());
    if state.loses_submits {
        return Reply::HangUp;
    }
    let node = json!({ "class_type": "CLIPTextEncode", "dependent_outputs": ["9"],
        "errors": [{ "type": "value_not_in_list", "message": "Value not in list", "details": "a boat of secrets" }] });
    let errors = if state.leaves_nodes_out { json!({ "6": node }) } else { json!({}) };
    Reply::json(200, &json!({ "prompt_id": id, "number": 0, "node_errors": errors }))
}

fn history(state: &State, id: &str) -> Reply {
    let ended = |run: &&Run| run.id == id && run.status == Status::Ended;
    let Some(run) = state.runs.iter().find(ended) else { return Reply::json(200, &json!({})) };
    let (status, name, details) = state.end(run);
    let messages = json!([["execution_start", {}], [name, details]]);
    let status = json!({ "status_str": status, "completed": status == "success", "messages": messages });
    Reply::json(200, &json!({ id: { "prompt": [], "outputs": state.outputs(id), "status": status } }))
}

fn job(state: &State, id: &str) -> Reply {
    let Some(run) = state.runs.iter().find(|run| run.id == id) else {
        return Reply::json(404, &json!({ "error": "Job not found" }));
    };
    let job = |status: &str| json!({ "id": id, "status": status, "outputs_count": 0 });
    match (&run.status, state.end(run)) {
        (Status::Pending, _) => Reply::json(200, &job("pending")),
        (Status::Running, _) => Reply::json(200, &job("in_progress")),
        (_, ("success", ..)) => {
            let mut job = job("completed");
            job["outputs"] = state.outputs(id);
            Reply::json(200, &job)
        }
        (_, (_, "execution_interrupted", _)) => Reply::json(200, &job("cancelled")),
        (_, (_, _, details)) => {
            let mut job = job("failed");
            job["execution_error"] = details;
            Reply::json(200, &job)
        }
    }
}

fn view(state: &State, query: &str) -> Reply {
    let query: BTreeMap<_, _> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    assert_eq!((query["subfolder"].as_str(), query["type"].as_str()), ("a b", "output"));
    let id = query["filename"].strip_suffix(".png").expect("a PNG");
    if matches!(state.outcome, Outcome::Removed) && state.ran_before(id) {
        return text(404, "");
    }
    let graph = &state.runs.iter().find(|run| run.id == id).expect("a run").graph;
    let side = |name: &str| graph["5"]["inputs"][name].as_u64().expect("a side") as u32;
    let (width, height) = (side("width"), side("height"));
    let file = match &state.outcome {
        Outcome::Saves(file) => file.clone(),
        _ => {
            let pixels = vec![colour(graph); (width * height * 3) as usize];
            Picture::from_rgb(width, height, pixels).expect("a picture").to_png()
        }
    };
    Reply::Whole(200, vec![("content-type", "image/png".into())], file)
}

pub fn colour(graph: &Value) -> u8 {
    100 + (graph["3"]["inputs"]["seed"].as_u64().expect("a seed") % 100) as u8
}
