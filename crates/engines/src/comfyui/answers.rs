//! Reads ComfyUI's answers. They contain whole workflows, so only the relevant parts are parsed: an answer's memory
//! stays a small multiple of its length, whatever a server sends.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tintype_engine::Device;

use super::api::Run;
use crate::endpoint::ServerMessage;

/// Most characters in a device name.
const MAX_NAME: usize = 100;
/// Error types that no prompt causes, and what the operator can do.
const OF_THE_OPERATOR: [(&str, &str); 6] = [
    ("missing_node_type", "install the nodes that the workflow needs"),
    ("value_not_in_list", "install the models that the workflow names"),
    ("prompt_no_outputs", "give a workflow that saves a picture"),
    // After an update, nodes can need inputs that an exported workflow lacks.
    ("required_input_missing", EXPORT_AGAIN),
    ("bad_linked_input", EXPORT_AGAIN),
    ("return_type_mismatch", EXPORT_AGAIN),
];
const EXPORT_AGAIN: &str = "export the workflow again, because the server's nodes have other inputs";

#[derive(Debug, Deserialize)]
pub(super) struct File {
    filename: String,
    #[serde(default)]
    subfolder: String,
    #[serde(rename = "type", default)]
    folder: String,
}

impl File {
    pub(super) fn query(&self) -> String {
        let parts = [("filename", &self.filename), ("subfolder", &self.subfolder), ("type", &self.folder)];
        url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parts).finish()
    }
}

/// The answer to `POST /prompt`.
#[derive(Deserialize)]
pub(super) struct Accepted<'a> {
    pub(super) prompt_id: String,
    #[serde(borrow, default)]
    node_errors: Option<&'a RawValue>,
}

impl Accepted<'_> {
    /// The first error of a node that the server skips.
    pub(super) fn left_out(&self) -> Option<ServerMessage> {
        first_node_error(self.node_errors?)
    }
}

/// The answer to `POST /upload/image`.
#[derive(Deserialize)]
pub(super) struct Uploaded {
    pub(super) name: String,
    #[serde(default)]
    pub(super) subfolder: String,
}

/// The answer to `GET /system_stats`.
#[derive(Deserialize)]
pub(super) struct Stats<'a> {
    #[serde(borrow, default)]
    system: Option<&'a RawValue>,
    #[serde(borrow, default)]
    devices: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct DeviceStats {
    name: String,
    #[serde(default)]
    vram_total: Option<u64>,
    #[serde(default)]
    vram_free: Option<u64>,
}

impl Stats<'_> {
    pub(super) fn are_of_comfyui(&self) -> bool {
        self.system.is_some_and(|system| system.get().starts_with('{'))
    }

    pub(super) fn devices(&self) -> Vec<Device> {
        let mut devices = Vec::new();
        each_value(self.devices, |device| {
            if let Ok(DeviceStats { name, vram_total, vram_free }) = serde_json::from_str(device.get()) {
                // It is shown on a terminal.
                let name = name.chars().filter(|char| !char.is_control()).take(MAX_NAME).collect();
                let (memory, free_memory) = (vram_total, vram_free);
                devices.push(Device { name, memory, free_memory, used_memory: None });
            }
        });
        devices
    }
}

/// The answer to `GET /api/jobs/ID`.
#[derive(Deserialize)]
pub(super) struct Job<'a> {
    #[serde(default)]
    status: Option<String>,
    #[serde(borrow, default)]
    outputs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    execution_error: Option<&'a RawValue>,
}

impl Job<'_> {
    pub(super) fn run(&self) -> Option<Run> {
        match self.status.as_deref()? {
            "pending" | "in_progress" => Some(Run::Unfinished),
            "completed" => Some(Run::Completed(file(self.outputs))),
            ended @ ("failed" | "cancelled") => Some(Run::Failed(error_words(self.execution_error, ended))),
            _ => None,
        }
    }
}

/// The answer to `GET /queue`.
#[derive(Deserialize)]
pub(super) struct Queue<'a> {
    #[serde(borrow, default)]
    pub(super) queue_running: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) queue_pending: Option<&'a RawValue>,
}

/// A run's server-side id in one of the queue's lists. `id` is that id, or the id of the client that submitted the run.
pub(super) fn entry_of(list: Option<&RawValue>, id: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Client {
        client_id: String,
    }
    let mut found = None;
    each_value(list, |entry| {
        // A number, the id, the graph, and its owner.
        let (mut position, mut of_server, mut is_ours) = (0, None, false);
        each_value(Some(entry), |part| {
            match position {
                1 => of_server = serde_json::from_str::<String>(part.get()).ok(),
                3 => is_ours = serde_json::from_str(part.get()).is_ok_and(|Client { client_id }| client_id == id),
                _ => {}
            }
            position += 1;
        });
        if found.is_none() {
            found = of_server.filter(|of_server| is_ours || of_server == id);
        }
    });
    found
}

/// A run's end in the answer to `GET /history/ID`, if there is one.
pub(super) fn run_in_history(history: &RawValue, id: &str) -> Option<Run> {
    #[derive(Deserialize)]
    struct HistoryEntry<'a> {
        #[serde(borrow, default)]
        outputs: Option<&'a RawValue>,
        #[serde(borrow, default)]
        status: Option<Status<'a>>,
    }
    #[derive(Deserialize)]
    struct Status<'a> {
        #[serde(default)]
        status_str: Option<String>,
        #[serde(borrow, default)]
        messages: Option<&'a RawValue>,
    }
    let entry: HistoryEntry<'_> = serde_json::from_str(member(history, id)?.get()).ok()?;
    let status = entry.status.filter(|status| status.status_str.as_deref() == Some("error"));
    let Some(Status { messages, .. }) = status else { return Some(Run::Completed(file(entry.outputs))) };
    let mut words = error_words(None, "failed");
    each_value(messages, |message| {
        let (mut name, mut details) = (String::new(), None);
        each_value(Some(message), |part| match serde_json::from_str(part.get()) {
            Ok(text) if name.is_empty() => name = text,
            _ => details = Some(part),
        });
        if matches!(name.as_str(), "execution_error" | "execution_interrupted") {
            words = error_words(details, &name);
        }
    });
    Some(Run::Failed(words))
}

/// An error's words: `{"error": {"type", "message", …}, "node_errors": {…}}`, in old versions `{"error": "…"}`.
pub(super) fn words(body: &[u8]) -> ServerMessage {
    #[derive(Default, Deserialize)]
    struct Body<'a> {
        #[serde(borrow, default)]
        error: Option<&'a RawValue>,
        #[serde(borrow, default)]
        node_errors: Option<&'a RawValue>,
    }
    let Body { error, node_errors } = serde_json::from_slice(body).unwrap_or_default();
    let of_node = node_errors.and_then(first_node_error).unwrap_or_default();
    let of_whole = error.map_or_else(ServerMessage::default, |error| match serde_json::from_str(error.get()) {
        Ok(message) => ServerMessage { message: Some(message), ..ServerMessage::default() },
        Err(_) => ServerMessage::from(ErrorEntry::read(error)),
    });
    let code = of_node.code.or(of_whole.code);
    let known = OF_THE_OPERATOR.iter().find(|(known, _)| code.as_deref() == Some(known));
    ServerMessage { code, message: of_node.message.or(of_whole.message), advice: known.map(|(_, advice)| *advice) }
}

#[derive(Default, Deserialize)]
struct ErrorEntry {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    details: Option<String>,
}

impl ErrorEntry {
    fn read(json: &RawValue) -> Self {
        serde_json::from_str(json.get()).unwrap_or_default()
    }
}

impl From<ErrorEntry> for ServerMessage {
    fn from(complaint: ErrorEntry) -> Self {
        Self { code: complaint.kind, message: complaint.message, advice: None }
    }
}

fn first_node_error(errors: &RawValue) -> Option<ServerMessage> {
    #[derive(Default, Deserialize)]
    struct Node<'a> {
        #[serde(default)]
        class_type: Option<String>,
        #[serde(borrow, default)]
        errors: Option<&'a RawValue>,
    }
    let node: Node<'_> = serde_json::from_str(first(Some(errors))?.get()).unwrap_or_default();
    let ErrorEntry { kind, message, details } = first(node.errors).map(ErrorEntry::read).unwrap_or_default();
    let parts: Vec<_> = [node.class_type, message, details].into_iter().flatten().collect();
    Some(ServerMessage { code: kind, message: Some(parts.join(": ")), advice: None })
}

fn error_words(details: Option<&RawValue>, otherwise: &str) -> ServerMessage {
    #[derive(Default, Deserialize)]
    struct Details {
        #[serde(default)]
        exception_type: Option<String>,
        #[serde(default)]
        exception_message: Option<String>,
    }
    let details = details.and_then(|details| serde_json::from_str(details.get()).ok());
    let Details { exception_type, exception_message } = details.unwrap_or_default();
    let code = exception_type.or_else(|| Some(otherwise.to_owned()));
    ServerMessage { code, message: exception_message, advice: None }
}

/// The first file in the folder `output`, or else the first temporary file. Nodes have other outputs too, and pictures
/// that aren't in files.
fn file(outputs: Option<&RawValue>) -> Option<File> {
    #[derive(Deserialize)]
    struct Output<'a> {
        #[serde(borrow, default)]
        images: Option<&'a RawValue>,
    }
    let mut found: Option<File> = None;
    each_value(outputs, |output| {
        let images = serde_json::from_str(output.get()).ok().and_then(|Output { images }| images);
        each_value(images, |image| {
            if found.as_ref().is_some_and(|found| found.folder == "output") {
                return;
            }
            if let Ok(file) = serde_json::from_str::<File>(image.get())
                && (found.is_none() || file.folder == "output")
            {
                found = Some(file);
            }
        });
    });
    found
}

fn first(json: Option<&RawValue>) -> Option<&RawValue> {
    let mut first = None;
    each_value(json, |value| {
        first.get_or_insert(value);
    });
    first
}

pub(super) fn member<'a>(object: &'a RawValue, key: &str) -> Option<&'a RawValue> {
    let mut found = None;
    each(Some(object), |its_key, value| {
        if its_key == Some(key) {
            found = Some(value);
        }
    });
    found
}

/// Visits the values of a list or object in order, unparsed. Anything else has none.
fn each_value<'a>(json: Option<&'a RawValue>, mut visit: impl FnMut(&'a RawValue)) {
    each(json, |_, value| visit(value));
}

fn each<'a>(json: Option<&'a RawValue>, visit: impl FnMut(Option<&str>, &'a RawValue)) {
    if let Some(json) = json {
        // A string or number has no values.
        let _ = serde_json::Deserializer::from_str(json.get()).deserialize_any(Each(visit));
    }
}

struct Each<F>(F);

impl<'a, F: FnMut(Option<&str>, &'a RawValue)> Visitor<'a> for Each<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list or an object")
    }

    fn visit_seq<A: SeqAccess<'a>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(value) = list.next_element()? {
            (self.0)(None, value);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'a>>(mut self, mut object: A) -> Result<(), A::Error> {
        while let Some((key, value)) = object.next_entry::<String, _>()? {
            (self.0)(Some(&key), value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(json: &str) -> &RawValue {
        serde_json::from_str(json).expect("JSON")
    }

    #[test]
    fn the_first_saved_file_counts_whatever_else_nodes_put_out() {
        for (outputs, expected) in [
            (r#"{"1": {"images": [{"filename": "a", "type": "temp"}, {"filename": "b", "type": "output"}]}}"#, "b"),
            (r#"{"1": {"images": [{"filename": "a"}]}, "2": {"images": [{"filename": "b"}]}}"#, "a"),
            (r#"{"1": {"images": [{"source": "websocket"}, 7, null]}, "2": {"images": [{"filename": "b"}]}}"#, "b"),
            (r#"{"1": {"images": "none"}, "2": {"text": ["x"]}, "3": 5, "4": {"images": [{"filename": "b"}]}}"#, "b"),
        ] {
            assert_eq!(file(Some(raw(outputs))).expect(outputs).filename, expected);
        }
        for outputs in ["{}", "[]", "null", "\"x\"", r#"{"1": {"images": []}}"#] {
            assert!(file(Some(raw(outputs))).is_none(), "{outputs}");
        }
    }

    #[test]
    fn a_run_is_found_in_the_queue_by_its_id_or_by_its_client() {
        let list = r#"[[1, "other", {}, {"client_id": "x"}, []], 5, [], [2, "old", {}, {"client_id": "us"}, ["9"]]]"#;
        for (id, expected) in [("us", Some("old")), ("old", Some("old")), ("x", Some("other")), ("y", None)] {
            assert_eq!(entry_of(Some(raw(list)), id).as_deref(), expected, "{id}");
        }
    }

    #[test]
    fn a_run_in_the_history_has_ended_with_the_last_error_that_is_told() {
        let failed = r#"{"id": {"status": {"status_str": "error", "messages": [["execution_start", {}],
            ["execution_error", {"exception_type": "OutOfMemory", "exception_message": "x"}], ["x"], 5]}}}"#;
        let run = run_in_history(raw(failed), "id");
        assert!(matches!(&run, Some(Run::Failed(words)) if words.code.as_deref() == Some("OutOfMemory")), "{run:?}");
        assert!(run_in_history(raw(failed), "other").is_none());
        assert!(matches!(run_in_history(raw(r#"{"id": {}}"#), "id"), Some(Run::Completed(None))));
    }
}
