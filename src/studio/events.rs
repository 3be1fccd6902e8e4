//! The stream of changes for an open page, as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::Response;
use axum::http::header::{self, HeaderValue};
use serde_json::json;
use tintype_engine::Stage;
use tokio::sync::broadcast::error::RecvError;

use super::Studio;
use super::cards::progress_text;
use super::error::{PageError, PageResult};
use super::live::{Change, Live, Watcher};
use super::page::secured;
use super::session::Visitor;
use super::texts::Texts;

/// Interval at which a quiet stream sends a comment, so that no proxy takes it for dead.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Streams the changes of the account's tasks until the session or the process ends.
pub async fn events(State(studio): State<Arc<Studio>>, visitor: Visitor) -> PageResult {
    let Visitor { session, token_hash, texts, .. } = visitor;
    let Some(watcher) = Live::watch(&studio, token_hash, &session.person) else {
        return Err(PageError::busy());
    };
    let first = [&b"retry: 2000\n\n"[..], &begin(&studio)].concat().into();
    let state = (studio, watcher, Some(first));
    let stream = futures::stream::unfold(state, move |(studio, mut watcher, first)| async move {
        let piece = match first {
            Some(first) => first,
            None => next(&studio, &mut watcher, texts).await?,
        };
        Some((Ok::<_, Infallible>(piece), (studio, watcher, None)))
    });
    let mut response = Response::new(Body::from_stream(stream));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Else proxies would hold events back: nginx until its buffer is full, others to compress them.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, no-transform"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(secured(response))
}

fn begin(studio: &Studio) -> Bytes {
    format!("event: begin\ndata: {}\n\n", json!({ "paused": studio.live.is_paused() })).into()
}

async fn next(studio: &Studio, watcher: &mut Watcher, t: &Texts) -> Option<Bytes> {
    tokio::select! {
        change = watcher.changes.recv() => match change {
            Ok(change) if watcher.receives(&change) => Some(event(change, t)),
            // A comment.
            Ok(_) => Some(Bytes::from_static(b": \n\n")),
            // The page fetches its tasks again.
            Err(RecvError::Lagged(_)) => Some(begin(studio)),
            Err(RecvError::Closed) => None,
        },
        () = studio.live.closed() => None,
        () = watcher.ended.cancelled() => None,
        () = tokio::time::sleep(HEARTBEAT) => Some(Bytes::from_static(b": \n\n")),
    }
}

fn event(change: Change, t: &Texts) -> Bytes {
    let (name, data) = match change {
        Change::State(id) => ("task", json!({ "id": id })),
        Change::Progress(id, standing) => {
            let (words, fraction) = (progress_text(t, &standing), standing.stage.map(Stage::fraction));
            ("progress", json!({ "id": id, "words": words, "fraction": fraction, "preview": standing.preview }))
        }
        Change::Marks(marks) => ("marks", json!(*marks)),
        Change::Queue { paused } => ("queue", json!({ "paused": paused })),
    };
    format!("event: {name}\ndata: {data}\n\n").into()
}
