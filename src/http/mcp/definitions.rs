//! The tools as agents see them.

use std::sync::{Arc, LazyLock};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::service::tasks::{DEFAULT_PAGE, MAX_PAGE};
use tintype_domain::preset::Preset;
use tintype_domain::request::AspectRatio;
use tintype_engine::MAX_SEED;

pub(super) const GENERATE: &str = "generate_image";
pub(super) const GET: &str = "get_task";
pub(super) const LIST: &str = "list_tasks";
pub(super) const CREDITS: &str = "get_credits";

/// Longest wait of a tool in seconds.
pub(super) const MAX_WAIT: u64 = 60;
/// The default wait after a submit: clients abandon a tool after 60 seconds.
pub(super) const USUAL_WAIT: u64 = 50;

/// Advice for an agent that sees the tools for the first time.
pub(super) const INSTRUCTIONS: &str = "Makes images from prompts. generate_image costs credits, waits for the images \
    and returns them. If it returns a task that is still processing, call get_task with its task_id until it has ended; \
    do not call generate_image again, which would charge another task. A failed task costs nothing.";

/// All tools. Each property names its type and no format: Gemini refuses a tool with a choice that has no type, and several
/// programs one with the format `uri`.
pub(super) static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
    let ratios: Vec<_> = AspectRatio::ALL.iter().map(|ratio| ratio.as_str()).collect();
    let wait = |usual: u64| {
        json!({
            "type": "integer", "minimum": 0, "maximum": MAX_WAIT, "default": usual,
            "description": "Seconds to wait for the end of the task",
        })
    };
    let images = json!({
        "type": "string", "enum": ["jpeg", "png", "none"], "default": "jpeg",
        "description": "The form in which finished images are part of the answer; their URLs always are. Many \
            programs reject answers with PNG, which take several megabytes",
    });
    let task_id = json!({ "type": "string", "description": "The task_id, such as imgmodel-FP78JSYBAxivrBQ7kA432" });
    vec![
        tool(
            GENERATE,
            "Generate images",
            "Creates 1 to 4 images from a prompt. Costs 2 credits per image, refunded if the task fails. Waits for the \
             images and returns them with their URLs. If a call gets no answer, call list_tasks before you repeat it: \
             the task may exist, and a new one costs again.",
            ToolAnnotations::new().read_only(false).destructive(false).idempotent(false).open_world(false),
            &json!({
                "type": "object", "required": ["prompt"],
                "properties": {
                    "prompt": { "type": "string", "description": "Description of the images" },
                    "aspect_ratio": { "type": "string", "enum": ratios, "default": "1:1" },
                    "n": { "type": "integer", "minimum": 1, "maximum": 4, "default": 1, "description": "Number of images" },
                    "reference_images": {
                        "type": "array", "items": { "type": "string" }, "maxItems": 4,
                        "description": "https URLs of images to work from",
                    },
                    "seed": {
                        "type": "integer", "minimum": 0, "maximum": MAX_SEED,
                        "description": "The same seed gives the same image. Leave it out for a new one",
                    },
                    "negative_prompt": {
                        "type": "string", "description": "What the images should not show, if the model supports it",
                    },
                    "steps": { "type": "integer", "minimum": 1, "description": "Usually best left out" },
                    "guidance_scale": {
                        "type": "number", "minimum": 0,
                        "description": "How strongly the images follow the prompt. Usually best left out",
                    },
                    "strength": {
                        "type": "number", "minimum": 0, "maximum": 1,
                        "description": "How far the images may be from a reference image, if the model supports it",
                    },
                    "wait_seconds": wait(USUAL_WAIT),
                    "images": images,
                },
            }),
        ),
        tool(
            GET,
            "Get a task",
            "Returns a task of this key's account, with its images if it has completed. With wait_seconds it waits for \
             its end.",
            reading(),
            &json!({
                "type": "object", "required": ["task_id"],
                "properties": { "task_id": task_id, "wait_seconds": wait(0), "images": images },
            }),
        ),
        tool(
            LIST,
            "List tasks",
            "Lists the tasks that were created with the keys of this account, newest first, without their images.",
            reading(),
            &json!({
                "type": "object",
                "properties": {
                    "limit": { "type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": DEFAULT_PAGE },
                    "cursor": { "type": "string", "description": "The next_cursor of the page before" },
                },
            }),
        ),
        tool(
            CREDITS,
            "Get credits",
            "Returns the balance of this key's account in credits.",
            reading(),
            &json!({ "type": "object", "properties": {} }),
        ),
    ]
});

/// The tool that creates a task, with a choice of presets.
pub(super) fn offering(generate: &Tool, presets: &[Preset]) -> Tool {
    let described = presets.iter().map(|preset| match preset.description.as_str() {
        "" => preset.name.clone(),
        description => format!("{}: {description}", preset.name),
    });
    let names: Vec<&str> = presets.iter().map(|preset| preset.name.as_str()).collect();
    let described = described.collect::<Vec<_>>().join("; ");
    let mut schema = (*generate.input_schema).clone();
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        let description = format!("How the images are made. {described}");
        let choice = json!({ "type": "string", "enum": names, "description": description });
        properties.insert("preset".into(), choice);
    }
    let mut offering = generate.clone();
    offering.input_schema = Arc::new(schema);
    offering
}

fn reading() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).open_world(false)
}

fn tool(
    name: &'static str,
    title: &'static str,
    description: &'static str,
    annotations: ToolAnnotations,
    schema: &Value,
) -> Tool {
    let schema: JsonObject = schema.as_object().cloned().unwrap_or_default();
    Tool::new(name, description, Arc::new(schema)).with_title(title).with_annotations(annotations)
}
