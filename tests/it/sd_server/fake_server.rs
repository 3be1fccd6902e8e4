//! A server with the native API of sd-server, as the real one answers.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tintype_engine::Picture;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::SIDE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Paints one picture after another: each poll of a job that waits or is being rendered takes it one state further.
    Working,
    /// Begins to paint and never ends.
    Painting,
    QueueFull,
    /// Its queue takes one job.
    OneAtATime,
    Refusing,
    Broken,
    Unclear,
    Failing,
    CancelledByOthers,
    Forgetting,
    Expired,
    NoPictures,
    TwoPictures,
    NoBase64,
    NoPicture,
    Html,
    Small,
    Black,
    OtherRatio,
    Enlarging,
    Videos,
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Queued,
    Generating,
    Completed,
    Cancelled,
}

#[derive(Debug)]
struct Job {
    body: Value,
    status: Status,
}

#[derive(Debug)]
struct Inner {
    behaviour: Behaviour,
    model: &'static str,
    steps: u32,
    jobs: Vec<Job>,
    queue: VecDeque<usize>,
    most_unfinished: usize,
    /// Submits that arrived, and whether they are answered.
    submits: usize,
    takes_submits: watch::Sender<bool>,
    polls: Vec<Instant>,
    /// Polls that a proxy is about to lose, and its status.
    lost_polls: (usize, u16),
}

/// The server. It stops when it is dropped.
#[derive(Clone)]
pub struct FakeSdServer {
    pub address: SocketAddr,
    inner: Arc<Mutex<Inner>>,
    _serving: Arc<AbortOnDropHandle<()>>,
}

type Shared = State<Arc<Mutex<Inner>>>;

impl FakeSdServer {
    pub async fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (jobs, queue) = (Vec::new(), VecDeque::new());
        let inner = Arc::new(Mutex::new(Inner {
            behaviour,
            model: "v1-5.gguf",
            steps: 20,
            jobs,
            queue,
            most_unfinished: 0,
            submits: 0,
            takes_submits: watch::Sender::new(true),
            polls: Vec::new(),
            lost_polls: (0, 502),
        }));
        let routes = Router::new()
            .route("/sdcpp/v1/capabilities", get(capabilities))
            .route("/sdcpp/v1/img_gen", post(submit))
            .route("/sdcpp/v1/jobs/{id}", get(job))
            .route("/sdcpp/v1/jobs/{id}/cancel", post(cancel))
            .with_state(inner.clone());
        let serving = tokio::spawn(async move {
            // Each connection ends with its answer, so that none outlives the server.
            axum::serve(listener, routes).await.expect("it serves");
        });
        Self { address, inner, _serving: Arc::new(AbortOnDropHandle::new(serving)) }
    }

    /// The value of `--engine`.
    pub fn engine(&self) -> String {
        format!("sd-server:http://{}", self.address)
    }

    pub fn be(&self, behaviour: Behaviour) {
        self.inner.lock().unwrap().behaviour = behaviour;
    }

    pub fn load(&self, model: &'static str) {
        self.inner.lock().unwrap().model = model;
    }

    pub fn paint_in(&self, steps: u32) {
        self.inner.lock().unwrap().steps = steps;
    }

    /// Submits wait from now on, or are queued.
    pub fn take_submits(&self, take: bool) {
        self.inner.lock().unwrap().takes_submits.send_replace(take);
    }

    pub fn submits(&self) -> usize {
        self.inner.lock().unwrap().submits
    }

    pub fn bodies(&self) -> Vec<Value> {
        self.inner.lock().unwrap().jobs.iter().map(|job| job.body.clone()).collect()
    }

    /// How many jobs were unfinished at the same time.
    pub fn most_unfinished(&self) -> usize {
        self.inner.lock().unwrap().most_unfinished
    }

    /// A proxy answers so many polls with this status.
    pub fn lose_polls(&self, polls: usize, status: u16) {
        self.inner.lock().unwrap().lost_polls = (polls, status);
    }

    pub fn lost_polls(&self) -> usize {
        self.inner.lock().unwrap().lost_polls.0
    }

    /// The times at which it was asked about a job.
    pub fn polls(&self) -> Vec<Instant> {
        self.inner.lock().unwrap().polls.clone()
    }

    /// How many jobs are being painted, and how many were cancelled.
    pub fn painted_and_cancelled(&self) -> (usize, usize) {
        let inner = self.inner.lock().unwrap();
        let count = |status| inner.jobs.iter().filter(|job| job.status == status).count();
        (count(Status::Generating), count(Status::Cancelled))
    }
}

impl Inner {
    fn unfinished(&self) -> usize {
        self.jobs.iter().filter(|job| matches!(job.status, Status::Queued | Status::Generating)).count()
    }

    /// Takes the job at the head of the queue one state further.
    fn work(&mut self) {
        let Some(&head) = self.queue.front() else { return };
        let job = &mut self.jobs[head];
        match job.status {
            Status::Queued => job.status = Status::Generating,
            Status::Generating if self.behaviour == Behaviour::Painting => {}
            _ => {
                if job.status == Status::Generating {
                    job.status = Status::Completed;
                }
                self.queue.pop_front();
            }
        }
    }
}

async fn capabilities(State(inner): Shared) -> Response {
    let inner = inner.lock().unwrap();
    match inner.behaviour {
        Behaviour::Html => "<html>Welcome</html>".into_response(),
        Behaviour::Unknown => StatusCode::NOT_FOUND.into_response(),
        behaviour => {
            let modes = if behaviour == Behaviour::Videos { ["vid_gen"] } else { ["img_gen"] };
            let model = json!({ "name": inner.model, "stem": inner.model, "path": inner.model });
            let defaults = json!({ "strength": 0.75, "sample_params": { "sample_steps": inner.steps, "eta": null } });
            json!({ "model": model, "supported_modes": modes, "defaults": defaults, "features": { "ref_images": true } })
                .to_string()
                .into_response()
        }
    }
}

fn refusal(status: u16, body: &'static str) -> Response {
    (StatusCode::from_u16(status).expect("a status"), body).into_response()
}

async fn submit(State(inner): Shared, body: Bytes) -> Response {
    let mut takes_submits = {
        let mut inner = inner.lock().unwrap();
        inner.submits += 1;
        inner.takes_submits.subscribe()
    };
    takes_submits.wait_for(|take| *take).await.expect("the server lives");
    let mut inner = inner.lock().unwrap();
    match inner.behaviour {
        Behaviour::OneAtATime if inner.unfinished() == 0 => {}
        Behaviour::QueueFull | Behaviour::OneAtATime => return refusal(429, r#"{"error":"job queue is full"}"#),
        Behaviour::Refusing => return refusal(400, r#"{"error":"invalid generation parameters"}"#),
        Behaviour::Videos => return refusal(400, r#"{"error":"loaded model does not support img_gen"}"#),
        Behaviour::Broken => return refusal(500, r#"{"error":"server_error","message":"type must be string"}"#),
        Behaviour::Unclear => return refusal(202, r#"{"id":"../../elsewhere"}"#),
        Behaviour::Html => return "<html>Welcome</html>".into_response(),
        _ => {}
    }
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let number = inner.jobs.len();
    inner.jobs.push(Job { body, status: Status::Queued });
    inner.queue.push_back(number);
    inner.most_unfinished = inner.most_unfinished.max(inner.unfinished());
    let id = format!("job_6b0320c7_{number:08x}");
    let answer = json!({ "id": id, "kind": "img_gen", "status": "queued", "created": 1, "poll_url": format!("/sdcpp/v1/jobs/{id}") });
    (StatusCode::ACCEPTED, answer.to_string()).into_response()
}

fn number(id: &str) -> usize {
    usize::from_str_radix(id.rsplit_once('_').expect("an id").1, 16).expect("a number")
}

async fn job(State(inner): Shared, Path(id): Path<String>) -> Response {
    let mut inner = inner.lock().unwrap();
    inner.polls.push(Instant::now());
    let (lost, status) = inner.lost_polls;
    if lost > 0 {
        inner.lost_polls.0 -= 1;
        return refusal(status, "<html>Bad Gateway</html>");
    }
    match inner.behaviour {
        Behaviour::Forgetting => return refusal(404, r#"{"error":"job not found"}"#),
        Behaviour::Expired => return refusal(410, r#"{"error":"job expired"}"#),
        _ => inner.work(),
    }
    describe(&inner, &id).to_string().into_response()
}

fn describe(inner: &Inner, id: &str) -> Value {
    let (behaviour, job) = (inner.behaviour, &inner.jobs[number(id)]);
    let error = |code: &str| json!({ "code": code, "message": "about the prompt" });
    let (status, result, error) = match (job.status, behaviour) {
        (Status::Generating | Status::Completed, Behaviour::Failing) => {
            ("failed", Value::Null, error("generation_failed"))
        }
        (_, Behaviour::CancelledByOthers) | (Status::Cancelled, _) => ("cancelled", Value::Null, error("cancelled")),
        (Status::Queued, _) => ("queued", Value::Null, Value::Null),
        (Status::Generating, _) => ("generating", Value::Null, Value::Null),
        (Status::Completed, _) => {
            ("completed", json!({ "output_format": "png", "images": images(behaviour, &job.body) }), Value::Null)
        }
    };
    json!({ "id": id, "kind": "img_gen", "status": status, "created": 1, "queue_position": 0, "result": result, "error": error })
}

fn images(behaviour: Behaviour, body: &Value) -> Vec<Value> {
    let (width, height) = match behaviour {
        Behaviour::Small => (1, 1),
        Behaviour::OtherRatio => (SIDE, 4 * SIDE),
        Behaviour::Enlarging => (2 * SIDE, 2 * SIDE),
        _ => (body["width"].as_u64().expect("a width") as u32, body["height"].as_u64().expect("a height") as u32),
    };
    let colour = if behaviour == Behaviour::Black { 0 } else { colour(body["seed"].as_u64().expect("a seed")) };
    let picture = Picture::from_rgb(width, height, vec![colour; (width * height * 3) as usize]).expect("a picture");
    let file = match behaviour {
        Behaviour::NoPicture => BASE64_STANDARD.encode("no picture"),
        Behaviour::NoBase64 => "???".into(),
        _ => BASE64_STANDARD.encode(picture.to_png()),
    };
    let count = match behaviour {
        Behaviour::NoPictures => 0,
        Behaviour::TwoPictures => 2,
        _ => 1,
    };
    (0..count).map(|index| json!({ "index": index, "b64_json": file })).collect()
}

pub fn colour(seed: u64) -> u8 {
    100 + (seed % 100) as u8
}

async fn cancel(State(inner): Shared, Path(id): Path<String>) -> Response {
    let mut inner = inner.lock().unwrap();
    let number = number(&id);
    if inner.jobs[number].status == Status::Queued {
        inner.jobs[number].status = Status::Cancelled;
        inner.queue.retain(|waiting| *waiting != number);
    }
    if inner.behaviour != Behaviour::Painting {
        inner.work();
    }
    match inner.jobs[number].status {
        Status::Generating => refusal(409, r#"{"error":"job is currently generating and cannot be interrupted yet"}"#),
        // The real server answers so for a job that is done, too.
        _ => describe(&inner, &id).to_string().into_response(),
    }
}
