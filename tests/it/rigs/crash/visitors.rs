//! People who use the studio while it crashes: they create tasks, stop some of them, and bring pictures.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use serde_json::{Value, json};
use tintype_domain::model::{Status, Surface};
use tintype_domain::person::{Role, Token};
use tintype_engine::picture::Picture;
use tintype_store::{NewSession, PersonAdded, Store};
use tintype_system::clock::Clock;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::ACCOUNTS;
use super::clients::{Manners, Order, Recorded};
use super::process_run::PUBLIC_URL;
use crate::rigs::http::{Answer, try_exchange};
use crate::rigs::installation::Installation;

/// A person who is signed in.
pub struct Visitor {
    pub account: usize,
    pub cookie: String,
}

/// A person for each account, with a session that lasts.
pub async fn sign_in(installation: &Installation) -> Vec<Visitor> {
    let store = installation.store(Clock::system()).await;
    let mut visitors = Vec::new();
    for (account, name) in ACCOUNTS.into_iter().enumerate() {
        let id = store.find_account(name).await.expect("a store").expect("an account").id;
        let PersonAdded::Done(person) = store.create_person(id, name, Role::Member).await.expect("a store") else {
            panic!("the name is free")
        };
        let token = Token::random();
        let expires_at = store.now().saturating_add(Duration::from_secs(24 * 60 * 60));
        let session = NewSession { hash: token.hash(), expires_at, agent: "a test".into() };
        store.begin_session(person.id, None, session).await.expect("a store").expect("a session");
        visitors.push(Visitor { account, cookie: format!("tintype={}", token.reveal()) });
    }
    visitors
}

impl Visitor {
    /// Creates tasks, stops some of them and uploads pictures, until it is stopped.
    pub(super) async fn run(
        self,
        servers: watch::Receiver<Vec<SocketAddr>>,
        manners: Manners,
        recorded: Arc<Recorded>,
        stop: CancellationToken,
    ) {
        let (mut references, mut latest) = (Vec::new(), None::<String>);
        while !stop.is_cancelled() {
            let address = servers.borrow().first().copied();
            if let Some(address) = address
                && let Some(proof) = self.proof(address).await
            {
                match (rand::random_range(0..4), latest.take()) {
                    (0, before) => {
                        references.extend(self.upload(address, &proof, &recorded).await);
                        latest = before;
                    }
                    (1, Some(task)) => self.cancel(address, &proof, &task, &recorded).await,
                    (_, before) => latest = self.submit(address, &proof, references.last(), &recorded).await.or(before),
                }
            }
            tokio::time::sleep(manners.rest * 4).await;
        }
    }

    async fn send(&self, address: SocketAddr, path: &str, headers: &[(&str, &str)], body: Bytes) -> Option<Answer> {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let mut request = Request::builder().method(method).uri(path).header("host", address.to_string());
        for (name, value) in [("cookie", self.cookie.as_str()), ("x-requested-with", "studio")].iter().chain(headers) {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body)).expect("a request");
        try_exchange(TcpStream::connect(address).await.ok()?, request).await.ok()
    }

    async fn proof(&self, address: SocketAddr) -> Option<String> {
        let page = self.send(address, "/studio/sessions", &[], Bytes::new()).await?;
        let page = String::from_utf8_lossy(&page.body).into_owned();
        Some(page.split("name=\"proof\" value=\"").nth(1)?.split('"').next()?.to_owned())
    }

    /// Uploads a picture and returns the reference to it.
    async fn upload(&self, address: SocketAddr, proof: &str, recorded: &Recorded) -> Option<String> {
        let png = Picture::from_rgb(8, 8, rand::random::<[u8; 3]>().repeat(64)).expect("a picture").to_png();
        let headers = [("x-proof", proof), ("content-type", "application/octet-stream")];
        let answer = self.send(address, "/studio/uploads", &headers, png.into()).await?;
        match answer.status.as_u16() {
            200 => return Some(String::from_utf8_lossy(&answer.body).into_owned()),
            422 | 500 => {}
            _ => recorded.violation(format!("{answer:?}")),
        }
        None
    }

    /// Cancels a task, whether it waits, is rendered or has ended.
    async fn cancel(&self, address: SocketAddr, proof: &str, task: &str, recorded: &Recorded) {
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        let (path, body) = (format!("/studio/tasks/{task}/cancel"), format!("proof={proof}"));
        let Some(answer) = self.send(address, &path, &headers, body.into()).await else { return };
        let is_processing = String::from_utf8_lossy(&answer.body).contains("data-state=\"processing\"");
        match answer.status.as_u16() {
            200 if !is_processing => {}
            // Beyond the share of the account, or an outcome that the server does not know.
            409 | 500 => {}
            _ => recorded.violation(format!("{answer:?}")),
        }
    }

    /// Returns the id of the task, if the answer says that it was accepted.
    async fn submit(
        &self,
        address: SocketAddr,
        proof: &str,
        reference: Option<&String>,
        recorded: &Recorded,
    ) -> Option<String> {
        let number = recorded.submits.fetch_add(1, Ordering::SeqCst);
        let prompt = format!("boat number {number} of the studio");
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs([("proof", proof), ("prompt", &prompt), ("shape", "1:1"), ("n", "1")])
            .append_pair("references", reference.map_or("", String::as_str))
            .finish();
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        // Without an answer the task may exist.
        let answer = self.send(address, "/studio/tasks", &headers, body.into()).await?;
        let page = String::from_utf8_lossy(&answer.body);
        match answer.status.as_u16() {
            200 => {
                let id = page.split("id=\"task-").nth(1).and_then(|rest| rest.split('"').next()).expect("a tile");
                let order = Order { account: self.account, n: 1 };
                recorded.acknowledged.lock().expect("no panic").insert(format!("imgmodel-{id}"), order);
                return Some(id.to_owned());
            }
            // An outcome that the server does not know is no refusal.
            422 if page.contains("not known") => {}
            422 => drop(recorded.refused.lock().expect("no panic").insert(prompt)),
            // The task may have been accepted before its tile could not be made.
            500 => {}
            _ => recorded.violation(format!("{answer:?}")),
        }
        None
    }
}

/// The tasks that an account has created in the studio, in the form of the API.
pub async fn tasks_of_studio(store: &Store, account: &str) -> HashMap<String, Value> {
    let account = store.find_account(account).await.expect("a store").expect("an account");
    let tasks = store.list_tasks(account.id, Surface::Web, None, u32::MAX).await.expect("a store");
    let shown = tasks.into_iter().map(|task| {
        let images = match &task.status {
            Status::Completed(names) => names
                .iter()
                .map(|name| json!({ "url": format!("{PUBLIC_URL}/files/{name}") }))
                .collect::<Vec<_>>()
                .into(),
            _ => Value::Null,
        };
        let id = task.task_id().to_string();
        (id.clone(), json!({ "task_id": id, "status": task.status.as_str(), "images": images }))
    });
    shown.collect()
}
