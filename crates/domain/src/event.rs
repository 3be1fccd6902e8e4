//! Events of an account, which its endpoints get.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use serde_json::{Value, json};

use crate::key::ApiKey;
use crate::model::{Id, Status, Task};
use crate::string_enum;
use crate::string_enum::UnknownWord;
use crate::timestamp::Timestamp;

string_enum! {
    /// The type of an event.
    pub enum EventType: "event" {
        /// A task of the API was completed.
        TaskCompleted = "task.completed",
        /// A task of the API failed.
        TaskFailed = "task.failed",
        /// The credits of the account have run low.
        CreditsLow = "credits.low",
        /// The content policy suspended a key.
        KeySuspended = "key.suspended",
        /// Someone tests an endpoint. Sent to that endpoint only, whatever it subscribes to.
        Test = "webhook.test",
    }
}

impl EventType {
    /// The types that an endpoint subscribes to.
    pub const SUBSCRIBABLE: [Self; 4] = [Self::TaskCompleted, Self::TaskFailed, Self::CreditsLow, Self::KeySuspended];

    /// Whether the event is the end of a task. Its id is then the id of the task.
    pub fn ends_task(self) -> bool {
        matches!(self, Self::TaskCompleted | Self::TaskFailed)
    }
}

/// The types that an endpoint subscribes to, at least one, each once and in the order of [`EventType::SUBSCRIBABLE`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Subscription(Vec<EventType>);

impl Subscription {
    /// To these types; `None` if the list is empty or a type cannot be subscribed to.
    pub fn to(kinds: &[EventType]) -> Option<Self> {
        let sorted = EventType::SUBSCRIBABLE.into_iter().filter(|kind| kinds.contains(kind)).collect::<Vec<_>>();
        let all_known = kinds.iter().all(|kind| sorted.contains(kind));
        (all_known && !sorted.is_empty()).then_some(Self(sorted))
    }

    /// To every type.
    pub fn to_all() -> Self {
        Self(EventType::SUBSCRIBABLE.into())
    }

    /// The types.
    pub fn kinds(&self) -> &[EventType] {
        &self.0
    }
}

impl fmt::Display for Subscription {
    /// The names, with a space between two.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.0.iter().map(|kind| kind.as_str()).collect();
        f.write_str(&names.join(" "))
    }
}

impl FromStr for Subscription {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, UnknownWord> {
        let kinds = text.split_ascii_whitespace().map(str::parse).collect::<Result<Vec<_>, _>>()?;
        Self::to(&kinds).ok_or_else(|| UnknownWord { what: "subscription", text: text.to_owned() })
    }
}

/// An event as endpoints get it.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Its id, the same for every endpoint and attempt. If a task ended, it is the id of the task.
    pub id: Id,
    /// Its type.
    pub kind: EventType,
    /// Its time.
    pub happened_at: Timestamp,
    /// More about it, without secrets and prompts.
    pub data: Value,
}

/// The id of an event as receivers see it, in the header `webhook-id`.
pub fn webhook_id(id: Id) -> String {
    format!("evt_{id}")
}

impl Event {
    /// The body of a request.
    pub fn body(&self) -> String {
        json!({ "type": self.kind, "timestamp": self.happened_at, "data": self.data }).to_string()
    }
}

/// The data of the end of a task: it says which task and how it ended. Images and prompt are left to the API.
pub fn of_task(task: &Task) -> Value {
    let error = match &task.status {
        Status::Failed(failure) => Some(&failure.message),
        Status::Completed(_) | Status::Processing => None,
    };
    json!({
        "task_id": task.task_id(),
        "status": task.status.as_str(),
        "error": error,
        "created_at": task.created_at(),
        "updated_at": task.updated_at,
    })
}

/// The data of the suspension of a key.
pub fn of_suspended_key(key: &ApiKey) -> Value {
    json!({
        "key_id": key.id,
        "name": key.name,
        "reason": key.suspension.as_ref().map(|suspension| &suspension.reason),
        "suspended_at": key.suspension.as_ref().map(|suspension| suspension.at),
    })
}

/// The data of a balance that has fallen below the threshold of its account.
pub fn of_low_credits(credits: i64, threshold: i64) -> Value {
    json!({ "credits": credits, "threshold": threshold })
}

/// The data of a test.
pub fn of_test(endpoint: Id) -> Value {
    json!({ "endpoint_id": endpoint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_are_read_as_they_were_written() {
        let all = Subscription::to_all();
        assert_eq!(all.to_string().parse::<Subscription>().expect("a subscription"), all);
        let two = Subscription::to(&[EventType::CreditsLow, EventType::TaskFailed, EventType::TaskFailed]);
        assert_eq!(two.expect("two types").to_string(), "task.failed credits.low");
        assert_eq!(Subscription::to(&[]), None);
        assert_eq!(Subscription::to(&[EventType::Test, EventType::TaskFailed]), None);
    }
}
