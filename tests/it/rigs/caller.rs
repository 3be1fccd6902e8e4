//! A caller of a service that runs in the test process.

use std::fmt::Display;

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};
use tintype_domain::model::{Account, Id};

use super::http::{Answer, GENERATE, GENERATIONS, TASKS};
use super::service::Service;

pub struct Caller {
    pub service: Service,
    pub account: Account,
    pub key_id: Id,
    pub key: String,
}

impl Caller {
    /// This caller at another process.
    pub fn at(&self, service: &Service) -> Self {
        Self { service: service.clone(), account: self.account.clone(), key_id: self.key_id, key: self.key.clone() }
    }

    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.key)
    }

    /// Sends a request with the key and these headers.
    pub async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let authorization = self.authorization();
        self.service.call(method, path, &[&[("authorization", authorization.as_str())], headers].concat(), body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    /// Posts JSON to a path with these headers besides the usual ones.
    pub async fn post_json(&self, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.call("POST", path, &[&[("content-type", "application/json")], headers].concat(), body).await
    }

    /// Asks OpenAI's dialect for images.
    pub async fn generations(&self, headers: &[(&str, &str)], body: impl Display) -> Answer {
        self.post_json(GENERATIONS, headers, body.to_string()).await
    }

    pub async fn post(&self, body: impl Into<Bytes>) -> Answer {
        self.post_with(&[], body).await
    }

    /// Submits exactly these bytes with these headers besides the usual ones.
    pub async fn post_with(&self, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.post_json(GENERATE, headers, body).await
    }

    /// Submits and returns the reduced task.
    pub async fn submit(&self, body: Value) -> Value {
        let answer = self.post(body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.json()["data"].clone()
    }

    /// Submits a prompt and returns its task_id.
    pub async fn submit_prompt(&self, prompt: &str) -> String {
        let task = self.submit(json!({ "prompt": prompt })).await;
        task["task_id"].as_str().expect("a task_id").to_owned()
    }

    /// The task of a prompt after the worker has worked.
    pub async fn outcome(&self, prompt: &str) -> Value {
        self.outcome_of(json!({ "prompt": prompt })).await
    }

    /// The task that this body submits, after the worker has worked.
    pub async fn outcome_of(&self, body: Value) -> Value {
        let task = self.submit(body).await;
        self.service.work().await;
        self.task(task["task_id"].as_str().expect("a task_id")).await
    }

    pub async fn submit_many(&self, count: usize, prompt: &str) {
        for _ in 0..count {
            self.submit_prompt(prompt).await;
        }
    }

    pub async fn poll(&self, task_id: &str) -> Answer {
        self.get(&format!("{TASKS}/{task_id}")).await
    }

    /// The task that a poll returns.
    pub async fn task(&self, task_id: &str) -> Value {
        let answer = self.poll(task_id).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        answer.json()["data"].clone()
    }

    pub async fn credits(&self) -> i64 {
        let account = self.service.shared.store.find_account(&self.account.name).await.expect("a store");
        account.expect("the account exists").credits
    }
}
