//! The words of the API's answers and the form of a submit's task, for the OpenAPI document alone.

use serde::Serialize;
use utoipa::ToSchema;

use super::images::{CreatedTask, TaskBody};

/// The format of a result image.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ContentType)]
#[expect(dead_code, reason = "documents the only format")]
pub(super) enum ContentType {
    #[serde(rename = "image/png")]
    Png,
}

/// The neutral name of the generator and its model.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = ModelName)]
#[expect(dead_code, reason = "documents model::MODEL_NAME")]
pub(super) enum ModelWord {
    ImgModel,
}

/// The state of a task. It changes once, from `processing` to `completed` or `failed`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Status)]
#[expect(dead_code, reason = "documents the words of model::Status")]
pub(super) enum StatusWord {
    Processing,
    Completed,
    Failed,
}

/// `image-to-image` if the task has reference images, otherwise `text-to-image`.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = TaskType)]
#[expect(dead_code, reason = "documents the words of model::Task::type_name")]
pub(super) enum TypeWord {
    TextToImage,
    ImageToImage,
}

/// The state of a task that was just created.
// A separate set lets programs distinguish a created task from one that has ended.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = CreatedStatus)]
#[expect(dead_code, reason = "documents CreatedTask::status")]
pub(super) enum CreatedStatus {
    Processing,
}

/// The task of a submit: as it was created or, if it ended during the wait that `Prefer` asked for, with all of its fields.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = SubmittedTask)]
#[expect(dead_code, reason = "documents the two answers to a submit")]
pub(super) enum SubmittedTask<'a> {
    Created(CreatedTask),
    Ended(TaskBody<'a>),
}
