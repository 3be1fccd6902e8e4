//! Messages of the Model Context Protocol, sent to the server over its streamable HTTP transport (revision 2026-07-28).

use std::pin::pin;

use futures::{StreamExt as _, stream};
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode};
use sse_stream::SseStream;

use super::{Client, ClientError, MAX_ANSWER_BYTES, read, refused, success};

/// Longest message of a server: four pictures of a few megabytes.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

static PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
static METHOD: HeaderName = HeaderName::from_static("mcp-method");
static NAME: HeaderName = HeaderName::from_static("mcp-name");

/// The headers that repeat parts of a message, so that proxies need not read it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Labels<'a> {
    /// The revision of the protocol that client and server agreed on.
    pub protocol_version: Option<&'a str>,
    /// The method of a request.
    pub method: Option<&'a str>,
    /// The name of the tool that a request calls.
    pub name: Option<&'a str>,
}

impl Labels<'_> {
    fn headers(&self) -> HeaderMap {
        let labels = [(&PROTOCOL_VERSION, self.protocol_version), (&METHOD, self.method), (&NAME, self.name)];
        let labels = labels.into_iter().filter_map(|(name, value)| Some((name, HeaderValue::try_from(value?).ok()?)));
        labels.map(|(name, value)| (name.clone(), value)).collect()
    }
}

impl Client {
    /// Sends a message of JSON-RPC to the server's tools, and calls `on_message` with each message of the answer, in JSON
    /// without line breaks; a notification has no answer.
    ///
    /// # Errors
    /// [`ClientError`]. Unless it is an error of [`Client::submit`], a tool may already have been called.
    pub async fn send_message(
        &self,
        message: String,
        labels: Labels<'_>,
        mut on_message: impl FnMut(&str),
    ) -> Result<(), ClientError> {
        let request = self.messages.post(&self.messages_url).headers(labels.headers()).body(message);
        let request = request
            .header(header::AUTHORIZATION, self.authorization.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream");
        let response = request.send().await?;
        if response.status() == StatusCode::ACCEPTED {
            return Ok(());
        }
        let kind = response.headers().get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes).to_vec();
        if kind.starts_with(b"text/event-stream") {
            return events(success(response).await?, on_message).await;
        }
        // Protocol errors come with their own status, and are answers.
        if response.status().is_client_error() && kind.starts_with(b"application/json") {
            let status = response.status();
            let answer = read(response, MAX_ANSWER_BYTES, |_, _| ()).await?.ok_or(ClientError::NotThisApi)?;
            let parsed: serde_json::Value = serde_json::from_slice(&answer).map_err(|_| ClientError::NotThisApi)?;
            // An error without an id answers no message: it refuses the request.
            if parsed["id"].is_null() {
                return Err(refused(status, &answer, None));
            }
            on_message(&one_line(&answer)?);
            return Ok(());
        }
        let answer = read(success(response).await?, MAX_MESSAGE_BYTES, |_, _| ()).await?;
        on_message(&one_line(&answer.ok_or_else(too_long)?)?);
        Ok(())
    }
}

/// Reads the messages of an answer that is a stream of events.
async fn events(response: Response, mut on_message: impl FnMut(&str)) -> Result<(), ClientError> {
    let chunks = stream::try_unfold((response, 0_usize), |(mut response, read)| async move {
        let Some(chunk) = response.chunk().await? else { return Ok(None) };
        let read = read + chunk.len();
        // Without an end, the stream would fill the memory.
        if read > MAX_MESSAGE_BYTES {
            return Err(too_long());
        }
        Ok(Some((chunk, (response, read))))
    });
    let mut events = pin!(SseStream::from_bytes_stream(chunks));
    while let Some(event) = events.next().await {
        let event = event.map_err(fault)?;
        let data = event.data.unwrap_or_default();
        if !data.is_empty() {
            on_message(&one_line(data.as_bytes())?);
        }
    }
    Ok(())
}

fn too_long() -> ClientError {
    ClientError::NoAnswer("it is longer than 64 MiB".into())
}

fn fault(error: sse_stream::Error) -> ClientError {
    match error {
        sse_stream::Error::Body(error) => match error.downcast() {
            Ok(error) => *error,
            Err(error) => ClientError::NoAnswer(error.to_string()),
        },
        error => ClientError::NoAnswer(error.to_string()),
    }
}

/// A JSON message on one line, as the transport over standard input and output needs it.
fn one_line(message: &[u8]) -> Result<String, ClientError> {
    let message: Box<serde_json::value::RawValue> =
        serde_json::from_slice(message).map_err(|_| ClientError::NotThisApi)?;
    // Line breaks in JSON stand between its parts, never in a string.
    Ok(message.get().replace(['\n', '\r'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_one_line_and_is_json() {
        assert_eq!(one_line(b"{\n\"a\":\r\n \"b\\n\"}").expect("JSON"), "{ \"a\":   \"b\\n\"}");
        assert!(one_line(b"{} {}").is_err() && one_line(b"<html>").is_err());
    }

    #[test]
    fn a_label_that_no_header_can_hold_is_left_out() {
        let labels = Labels { protocol_version: Some("2026-07-28"), method: Some("tools/call"), name: Some("a\nb") };
        let headers = labels.headers();
        assert_eq!(headers.len(), 2);
        assert_eq!(headers[&METHOD], "tools/call");
    }
}
