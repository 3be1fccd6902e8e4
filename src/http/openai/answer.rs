//! Answers with pictures.

use axum::body::Body;
use axum::response::Response;
use serde::Serialize;
use serde_json::{Value, json};

use super::{AnswerOptions, PendingCall};
use crate::http::answer_memory::AnswerMemory;
use crate::http::fresh::{JSON, fresh};
use crate::http::pipeline::error::ApiError;
use crate::http::state::ApiState;
use crate::service::encoder::{EncodeError, Encoded};
use tintype_domain::images_api::ImageData;
use tintype_domain::model::{Status, Task};

/// No picture is transparent.
pub(super) const BACKGROUND: &str = "opaque";

/// A cost in credits, where OpenAI counts tokens.
pub(super) fn usage(credits: i64) -> Value {
    json!({
        "input_tokens": 0,
        "input_tokens_details": { "image_tokens": 0, "text_tokens": 0 },
        "output_tokens": credits,
        "total_tokens": credits,
    })
}

pub(super) fn json(body: &impl Serialize) -> Response {
    fresh(JSON, serde_json::to_vec(body).expect("our own types are always JSON"))
}

pub(super) fn names(task: &Task) -> &[String] {
    match &task.status {
        Status::Completed(names) => names,
        Status::Processing | Status::Failed(_) => &[],
    }
}

/// Waits for the task of a call, and answers with its pictures. The answer keeps its slot and its pictures until it has
/// been sent.
pub(super) async fn completed(options: &AnswerOptions, awaited: &PendingCall) -> Result<Response, ApiError> {
    let task = awaited.completed().await?;
    let (api, names) = (&awaited.caller.api, names(&task));
    let created = task.updated_at.as_millis().div_euclid(1_000);
    let answer = |data: Vec<ImageData<'_>>| {
        json!({
            "created": created,
            "data": data,
            "background": BACKGROUND,
            "output_format": options.format.as_str(),
            "size": options.size(),
            "usage": usage(options.cost),
        })
    };
    if options.as_urls {
        return Ok(json(&answer(urls(names, api).await?)));
    }
    let Encoded { pictures, mut room } =
        api.encoder.pictures(api.encoder.memory(), awaited.caller.account_id, options.format, names).await?;
    let empty = ImageData { b64_json: Some("".into()), url: None };
    let frame = serde_json::to_vec(&answer(vec![empty; pictures.len()])).expect("our own types are always JSON");
    let body = filled(&frame, &pictures);
    room.correct(body.len());
    let memory = AnswerMemory::default();
    memory.keep((room, awaited.slot.clone()));
    Ok(fresh(JSON, Body::new(memory.attach_to_body(body.into()))))
}

/// A text whose members `b64_json` are empty, with these pictures in their places. Base64 needs no escapes, and the bytes
/// are copied once, into as much memory as they need.
pub(super) fn filled(frame: &[u8], pictures: &[String]) -> Vec<u8> {
    const EMPTY: &[u8] = br#""b64_json":"""#;
    let mut body = Vec::with_capacity(frame.len() + pictures.iter().map(String::len).sum::<usize>());
    let mut rest = frame;
    for picture in pictures {
        let Some(at) = rest.windows(EMPTY.len()).position(|window| window == EMPTY) else { break };
        // The last quotation mark comes after the picture.
        let (before, after) = rest.split_at(at + EMPTY.len() - 1);
        body.extend_from_slice(before);
        body.extend_from_slice(picture.as_bytes());
        rest = after;
    }
    body.extend_from_slice(rest);
    body
}

pub(super) async fn urls(names: &[String], api: &ApiState) -> Result<Vec<ImageData<'static>>, ApiError> {
    let mut data = Vec::with_capacity(names.len());
    for name in names {
        data.push(ImageData { url: Some(api.links.url(name).await?.into()), b64_json: None });
    }
    Ok(data)
}

impl From<EncodeError> for ApiError {
    fn from(error: EncodeError) -> Self {
        match error {
            // A repeated call may find room.
            EncodeError::Crowded => Self::task_continues(),
            other => Self::caused_by(other),
        }
    }
}
