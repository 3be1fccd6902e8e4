//! Receivers that are told of every end of a task while the service crashes.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use tintype_domain::model::{Surface, TaskId};
use tintype_system::clock::Clock;

use super::{ACCOUNTS, PATIENCE};
use crate::rigs::installation::Installation;
use crate::rigs::receiver::Receiver;

/// A receiver for each account.
pub struct WebhookCheck(Vec<Receiver>);

impl WebhookCheck {
    /// Adds an endpoint to each account.
    pub async fn start(installation: &Installation) -> Self {
        let mut receivers = Vec::new();
        for account in ACCOUNTS {
            let receiver = Receiver::start().await;
            installation.json(&["webhook", "add", "--account", account, &receiver.url()]);
            receivers.push(receiver);
        }
        Self(receivers)
    }

    /// Waits until everything is delivered, and returns what is wrong: tasks of which nobody was told as they ended, or of
    /// which somebody was told who should not have been.
    pub async fn wrongs(&self, installation: &Installation, clock: &Clock) -> Vec<String> {
        let store = installation.store(Clock::system()).await;
        let deadline = clock.elapsed() + PATIENCE;
        while store.waiting_deliveries().await.expect("a store") > 0 && clock.elapsed() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut wrongs = Vec::new();
        for (account, receiver) in ACCOUNTS.into_iter().zip(&self.0) {
            let mut told: HashMap<String, Vec<(String, Value)>> = HashMap::new();
            for asked in receiver.asked() {
                let (id, event) = (asked.header("webhook-id").expect("an id").to_owned(), asked.json());
                let task = event["data"]["task_id"].as_str().expect("a task_id").to_owned();
                told.entry(task).or_default().push((id, event));
            }
            let account = store.find_account(account).await.expect("a store").expect("an account").id;
            for task in store.list_tasks(account, Surface::Api, None, u32::MAX).await.expect("a store") {
                let events = told.remove(&TaskId(task.id).to_string()).unwrap_or_default();
                let fits = |(id, event): &(String, Value)| {
                    *id == format!("evt_{}", task.id) && event["data"]["status"] == task.status.as_str()
                };
                if events.is_empty() || !events.iter().all(fits) {
                    wrongs.push(format!("{}: {events:?}", task.id));
                }
            }
            wrongs.extend(told.keys().map(|task| format!("{task} is no task of the API of this account")));
        }
        wrongs
    }
}
