//! A run's events from the server's websocket. Without them a render still works, but its steps aren't reported, and
//! its end is noticed a moment later.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{Stream, StreamExt as _};
use reqwest::header::{CONNECTION, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use reqwest::{Method, StatusCode, Upgraded};
use serde_json::Value;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message};

use crate::endpoint::Endpoint;

/// Previews come on the same socket.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;
/// Longest preview file, in bytes. Previews have 512 pixels per side by default.
const MAX_PREVIEW: usize = 2 * 1024 * 1024;
/// The message kind of a preview.
const PREVIEW: [u8; 4] = 1_u32.to_be_bytes();
/// Longest text that is parsed, in bytes. Parsed, it takes up many times as much.
const MAX_TEXT: usize = 64 * 1024;
/// Most bytes that can wait for a server that doesn't read.
const MAX_UNSENT: usize = 64 * 1024;
const OPEN_LIMIT: Duration = Duration::from_secs(2);

pub(super) struct Events<S = WebSocketStream<Upgraded>>(Option<S>);

#[derive(Debug, PartialEq, Eq)]
enum EventKind {
    /// This many of a node's steps are done, out of this many.
    Step(u32, u32),
    /// The run has ended, and its outcome is available.
    End,
    Other,
}

impl Events {
    /// Opens a client's socket. If that fails, there are no events.
    pub(super) async fn open(endpoint: &Endpoint, client: &str) -> Self {
        let socket = tokio::time::timeout(OPEN_LIMIT, open(endpoint, client)).await;
        let socket = socket.unwrap_or_else(|_| Err("no answer in time".into()));
        if let Err(cause) = &socket {
            tracing::debug!(server = endpoint.name(), cause, "the server reports no progress");
        }
        Self(socket.ok())
    }
}

impl<S: Stream<Item = tungstenite::Result<Message>> + Unpin> Events<S> {
    /// Waits for the run's end, and reports its steps and preview files meanwhile. Without events it waits forever.
    /// There are no events after the first end: the caller polls the run at each end, and a server could report ends as
    /// often as it likes.
    pub(super) async fn end(&mut self, on_step: impl Fn(u32, u32), on_preview: impl Fn(&[u8])) {
        while let Some(socket) = &mut self.0 {
            // One read can bring thousands of messages, which must not hold up the API of this process.
            tokio::task::consume_budget().await;
            match socket.next().await {
                Some(Ok(Message::Text(text))) => match event_kind(&text) {
                    EventKind::Step(done, of) => on_step(done, of),
                    EventKind::End => {
                        self.0 = None;
                        return;
                    }
                    EventKind::Other => {}
                },
                Some(Ok(Message::Binary(bytes))) => {
                    if let Some(file) = preview(&bytes) {
                        on_preview(file);
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => self.0 = None,
            }
        }
        std::future::pending().await
    }
}

async fn open(endpoint: &Endpoint, client: &str) -> Result<WebSocketStream<Upgraded>, String> {
    let request = endpoint.request(Method::GET, &format!("ws?clientId={client}")).map_err(|error| error.to_string())?;
    let nonce = BASE64_STANDARD.encode(rand::random::<[u8; 16]>());
    let request = request.header(CONNECTION, "Upgrade").header(UPGRADE, "websocket");
    let request = request.header(SEC_WEBSOCKET_VERSION, "13").header(SEC_WEBSOCKET_KEY, nonce);
    let response = request.send().await.map_err(|error| error.without_url().to_string())?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(format!("status {}", response.status().as_u16()));
    }
    let stream = response.upgrade().await.map_err(|error| error.without_url().to_string())?;
    // Answers to pings stay in the write buffer while the server doesn't read.
    let limits = WebSocketConfig::default()
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_UNSENT);
    Ok(WebSocketStream::from_raw_socket(stream, Role::Client, Some(limits)).await)
}

/// The JPEG or PNG in a binary message. It follows the message kind and the file type, four bytes each.
fn preview(message: &[u8]) -> Option<&[u8]> {
    let (kind, rest) = message.split_first_chunk::<4>()?;
    let (_, file) = rest.split_first_chunk::<4>()?;
    (*kind == PREVIEW && (1..=MAX_PREVIEW).contains(&file.len())).then_some(file)
}

fn event_kind(text: &str) -> EventKind {
    if text.len() > MAX_TEXT {
        return EventKind::Other;
    }
    let event: Value = serde_json::from_str(text).unwrap_or_default();
    let data = &event["data"];
    let number = |name: &str| u32::try_from(data[name].as_u64()?).ok();
    match (event["type"].as_str(), number("value"), number("max")) {
        (Some("progress"), Some(done), Some(of)) if (1..=of).contains(&done) => EventKind::Step(done, of),
        // Sent when the run is in the history, unlike `execution_success`.
        (Some("executing"), ..) if data["node"].is_null() => EventKind::End,
        _ => EventKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::{FutureExt as _, stream};

    use super::*;

    #[tokio::test]
    async fn a_flood_of_messages_lets_others_work() {
        let step = |done| format!(r#"{{"type":"progress","data":{{"value":{done},"max":1000}}}}"#);
        let end = r#"{"type":"executing","data":{"node":null}}"#.to_owned();
        let flood = (1..=1_000).map(step).chain([end]).map(|text| Ok(Message::text(text)));
        let (mut events, steps) = (Events(Some(stream::iter(flood))), Cell::new(0));
        let mut ending = Box::pin(events.end(|done, _| steps.set(done), |_| ()));
        assert!((&mut ending).now_or_never().is_none(), "all messages are there, and it pauses");
        let before = steps.get();
        assert!((1..1_000).contains(&before), "{before}");
        ending.await;
        assert_eq!(steps.get(), 1_000, "nothing is lost");
    }

    #[test]
    fn binary_messages_hold_previews() {
        let message = |kind: u32, file: &[u8]| [&kind.to_be_bytes(), &2_u32.to_be_bytes(), file].concat();
        assert_eq!(preview(&message(1, b"PNG")), Some(&b"PNG"[..]));
        for other in [message(3, b"text"), message(1, b""), message(1, &[0])[..7].to_vec(), Vec::new()] {
            assert_eq!(preview(&other), None, "{other:?}");
        }
        assert_eq!(preview(&message(1, &vec![0; MAX_PREVIEW + 1])), None);
    }

    #[test]
    fn events_tell_steps_and_the_end() {
        for (text, expected) in [
            (r#"{"type":"progress","data":{"value":3,"max":20,"node":"3"}}"#, EventKind::Step(3, 20)),
            (r#"{"type":"progress","data":{"value":21,"max":20}}"#, EventKind::Other),
            (r#"{"type":"progress","data":{"value":-1,"max":0.5}}"#, EventKind::Other),
            (r#"{"type":"executing","data":{"node":"3"}}"#, EventKind::Other),
            (r#"{"type":"executing","data":{"node":null,"prompt_id":"x"}}"#, EventKind::End),
            (r#"{"type":"execution_success","data":{}}"#, EventKind::Other),
            ("[1]", EventKind::Other),
            ("<html>", EventKind::Other),
        ] {
            assert_eq!(event_kind(text), expected, "{text}");
        }
    }
}
