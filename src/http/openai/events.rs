//! Answers as streams of events: comments that keep the connection alive, partial images, and one event for each picture.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use futures::FutureExt as _;
use serde_json::{Value, json};

use super::answer;
use super::{AnswerOptions, PendingCall};
use crate::http::answer_memory::{AnswerMemory, next_part};
use crate::http::fresh::event_stream;
use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::{ApiError, NoAnswer};
use crate::service::call_hold::CallHold;
use crate::service::encoder::{Encoded, in_base64};
use crate::service::previews::PreviewSubscription;
use tintype_domain::images_api_request::CallKind;
use tintype_domain::model::{CREDITS_PER_IMAGE, Task};
use tintype_store::CallEnd;

/// A comment, which clients pass over and proxies take for a sign of life. No empty line follows it: older clients for Go
/// would take that for the end of an event without data.
const HEARTBEAT: Bytes = Bytes::from_static(b": ping\n");

type Completed = Pin<Box<dyn Future<Output = Result<Arc<Task>, ApiError>> + Send>>;

/// A stream in the course of its answer.
struct Events {
    options: AnswerOptions,
    awaited: PendingCall,
    /// Ends with the last part of the answer.
    hold: Option<CallHold>,
    /// `None` once the task has ended.
    completed: Option<Completed>,
    previews: Option<PreviewSubscription>,
    partial_images: u8,
    /// The time of the pictures, in seconds since 1970.
    created_at: i64,
    files: VecDeque<String>,
    /// The rest of the event that is being sent.
    rest: Bytes,
}

/// Begins a stream, which takes the hold along. An error that is known by then is one of the call.
pub(super) async fn begin(
    options: AnswerOptions,
    awaited: PendingCall,
    hold: &mut Option<CallHold>,
) -> Result<Response, ApiError> {
    let waiting = awaited.clone();
    let mut completed: Completed = Box::pin(async move { waiting.completed().await });
    let ended = match futures::poll!(&mut completed) {
        Poll::Ready(ended) => Some(ended?),
        Poll::Pending => None,
    };
    if ended.is_some()
        && let Some(held) = hold
        && !held.is_held().await.unwrap_or(true)
    {
        // A later attempt has the task, and answers.
        return Ok(NoAnswer.into_response());
    }
    let account_id = awaited.caller.account_id;
    let is_running = ended.is_none();
    let partial_images = options.stream.filter(|most| *most > 0 && ended.is_none());
    let previews = partial_images.map(|most| awaited.caller.api.previews.subscribe(account_id, awaited.task_id, most));
    let mut events = Events {
        options,
        awaited,
        hold: hold.take(),
        completed: Some(completed).filter(|_| ended.is_none()),
        previews,
        partial_images: 0,
        created_at: 0,
        files: VecDeque::new(),
        // Some proxies pass the head on, with the task's id, only when a byte of the body arrives.
        rest: if is_running { HEARTBEAT } else { Bytes::new() },
    };
    if let Some(task) = ended {
        events.show(&task);
    }
    let stream = futures::stream::unfold(events, |mut events| async move { Some((events.next().await?, events)) });
    Ok(event_stream(Body::from_stream(stream)))
}

impl Events {
    /// The next piece of the stream; `None` at its end. An error breaks the connection off.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        while self.rest.is_empty() {
            if self.completed.is_some() {
                match self.wait().await {
                    Ok(None) => {}
                    Ok(Some(heartbeat)) => return Some(Ok(heartbeat)),
                    Err(superseded) => return Some(Err(superseded)),
                }
            } else {
                let name = self.files.pop_front()?;
                if let Err(error) = self.picture(name).await {
                    self.fail(error).await;
                }
            }
        }
        let part = next_part(&mut self.rest);
        let is_last = self.rest.is_empty() && self.files.is_empty() && self.completed.is_none();
        if is_last && let Some(hold) = self.hold.take() {
            hold.deliver_last();
        }
        Some(Ok(part))
    }

    /// Waits for the end of the task, a partial image, or the time of a heartbeat, which it returns. An error if a later
    /// attempt at the call has taken the task over.
    async fn wait(&mut self) -> io::Result<Option<Bytes>> {
        let Some(completed) = &mut self.completed else { return Ok(None) };
        let ended = tokio::select! {
            ended = completed => ended,
            png = shown(&mut self.previews) => {
                if let Err(error) = self.partial_image(png).await {
                    (self.completed, self.previews) = (None, None);
                    self.fail(error).await;
                }
                return Ok(None);
            }
            () = tokio::time::sleep(self.awaited.caller.api.settings.connections.heartbeat) => return Ok(Some(HEARTBEAT)),
        };
        (self.completed, self.previews) = (None, None);
        if let Some(hold) = &self.hold
            && !hold.is_held().await.unwrap_or(true)
        {
            return Err(io::Error::other("a later attempt at the call has its task"));
        }
        match ended {
            Ok(task) => self.show(&task),
            Err(error) => self.fail(error).await,
        }
        Ok(None)
    }

    fn show(&mut self, task: &Task) {
        self.created_at = task.updated_at.as_millis().div_euclid(1_000);
        self.files = answer::names(task).to_vec().into();
    }

    async fn picture(&mut self, name: String) -> Result<(), ApiError> {
        self.awaited.caller.recheck().await?;
        let Caller { api, account_id, .. } = &self.awaited.caller;
        let Encoded { pictures, mut room } =
            api.encoder.pictures(api.encoder.memory(), *account_id, self.options.format, &[name]).await?;
        let event = self.event(&pictures, self.created_at, None);
        room.correct(event.len());
        let memory = AnswerMemory::default();
        memory.keep(room);
        self.rest = memory.attach_to(event.into());
        Ok(())
    }

    /// Sends a preview. One that cannot be encoded is left out. Fails if the key is no longer valid.
    async fn partial_image(&mut self, png: Bytes) -> Result<(), ApiError> {
        let Caller { api, account_id, .. } = &self.awaited.caller;
        match self.awaited.caller.recheck().await {
            Ok(_) => {}
            Err(error) if error.is_unauthorized() => return Err(error),
            // The pictures may come once the database is back.
            Err(_) => return Ok(()),
        }
        // Finished pictures come first.
        let Some(_slot) = api.encoder.slots().take(*account_id, 1).now_or_never() else { return Ok(()) };
        let format = self.options.format;
        // Encoding takes too long for an async thread.
        let encoded = tokio::task::spawn_blocking(move || in_base64(format, &png)).await;
        let Ok(Ok(image)) = encoded else { return Ok(()) };
        let now = self.awaited.caller.api.shared.store.now().as_millis().div_euclid(1_000);
        let index = self.partial_images;
        self.partial_images += 1;
        self.rest = self.event(&[image], now, Some(index)).into();
        Ok(())
    }

    fn event(&self, pictures: &[String], created_at: i64, partial_image_index: Option<u8>) -> Vec<u8> {
        let name = match (self.options.kind, partial_image_index) {
            (CallKind::Generation, None) => "image_generation.completed",
            (CallKind::Generation, Some(_)) => "image_generation.partial_image",
            (CallKind::Edit, None) => "image_edit.completed",
            (CallKind::Edit, Some(_)) => "image_edit.partial_image",
        };
        // The size is that of the finished picture.
        let mut event = json!({
            "type": name,
            "b64_json": "",
            "created_at": created_at,
            "size": self.options.size(),
            "quality": "auto",
            "background": answer::BACKGROUND,
            "output_format": self.options.format.as_str(),
        });
        match partial_image_index {
            Some(index) => event["partial_image_index"] = index.into(),
            None => event["usage"] = answer::usage(CREDITS_PER_IMAGE),
        }
        answer::filled(&framed(name, &event), pictures)
    }

    /// Ends the stream with an error. Unless a repeated call would fail as well, it finds the task.
    async fn fail(&mut self, error: ApiError) {
        let task = self.awaited.task_id;
        if let Some(cause) = error.cause() {
            tracing::error!(%task, cause = %cause, "an event stream ended with an error");
        }
        if !error.is_final()
            && let Some(hold) = self.hold.take()
        {
            hold.end_before_answer(CallEnd::HungUp).await;
        }
        self.files.clear();
        let error = error.after_the_charge().object();
        self.rest = framed("error", &json!({ "type": "error", "error": error })).into();
    }
}

/// The next partial image.
async fn shown(previews: &mut Option<PreviewSubscription>) -> Bytes {
    match previews {
        Some(previews) => previews.shown().await,
        None => std::future::pending().await,
    }
}

fn framed(name: &str, data: &Value) -> Vec<u8> {
    let mut event = format!("event: {name}\ndata: ").into_bytes();
    serde_json::to_writer(&mut event, data).expect("our own types are always JSON");
    event.extend_from_slice(b"\n\n");
    event
}
