//! A receiver of webhooks, which writes down what it is sent and answers as it is told.

use std::ops::Deref;

use http::{HeaderMap, HeaderName, HeaderValue};
use standardwebhooks::{Webhook, WebhookError};

use super::faulty_http::Double;
pub use super::faulty_http::{Asked, Reply};

/// The receiver, until it is dropped.
#[derive(Clone)]
pub struct Receiver(Double);

/// A secret in the URL of each endpoint here.
pub const TOKEN: &str = "token-5f4dcc3b";

impl Deref for Receiver {
    type Target = Double;

    fn deref(&self) -> &Double {
        &self.0
    }
}

impl Receiver {
    /// Answers 204 unless it is told otherwise.
    pub async fn start() -> Self {
        Self(Double::start(|_| Reply::status(204)).await)
    }

    pub fn url(&self) -> String {
        format!("http://{}/hooks?token={TOKEN}", self.address)
    }

    /// The bodies so far, as JSON.
    pub fn bodies(&self) -> Vec<serde_json::Value> {
        self.asked().iter().map(Asked::json).collect()
    }
}

/// Verifies a request with the official library, which also looks at the time.
pub fn verify(asked: &Asked, secret: &str) -> Result<(), WebhookError> {
    let mut headers = HeaderMap::new();
    for (name, value) in &asked.headers {
        headers.insert(HeaderName::try_from(name).expect("a name"), HeaderValue::try_from(value).expect("a value"));
    }
    Webhook::new(secret)?.verify(&asked.body, &headers)
}
