//! A workflow in ComfyUI's API format, and the node inputs that a brief fills in.
//!
//! The mapping has Open WebUI's format, so that people can reuse their files: a list of
//! `{"type": "prompt", "key": "text", "node_ids": ["6"]}`.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};
use tintype_engine::{RenderSettings, Setting};

use super::graph::{Graph, read};
use super::nodes::{self, NodeInputs};

/// Kinds of values in mappings. The empty kind is a fixed value.
const KINDS: [&str; 13] = [
    "",
    "model",
    "prompt",
    "negative_prompt",
    "image",
    "mask",
    "width",
    "height",
    "n",
    "steps",
    "seed",
    "guidance_scale",
    "strength",
];

#[derive(Debug)]
pub(super) struct Workflow {
    graph: Graph,
    mappings: Vec<Mapping>,
    /// Whether the mapping was found rather than given.
    is_found: bool,
}

#[derive(Debug)]
struct Mapping {
    kind: String,
    key: String,
    node_ids: Vec<String>,
    value: Value,
}

#[derive(Deserialize)]
struct NodeMapping {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    node_ids: Vec<Value>,
    #[serde(default)]
    value: Value,
}

#[derive(Debug)]
pub(super) struct Values<'a> {
    pub(super) prompt: &'a str,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) seed: u64,
    pub(super) settings: &'a RenderSettings,
    pub(super) model: Option<&'a str>,
    pub(super) references: &'a [String],
    pub(super) mask: Option<&'a str>,
}

impl From<NodeMapping> for Mapping {
    fn from(entry: NodeMapping) -> Self {
        let kind = entry.kind.unwrap_or_default();
        // The default name for its kind, as in Open WebUI.
        let usual = match kind.as_str() {
            "prompt" | "negative_prompt" => "text",
            "n" => "batch_size",
            "model" => "ckpt_name",
            "guidance_scale" => "cfg",
            "strength" => "denoise",
            // Both `LoadImage` and `LoadImageMask` use this name.
            "mask" => "image",
            kind => kind,
        };
        let key = entry.key.filter(|key| !key.is_empty()).unwrap_or_else(|| usual.to_owned());
        let id = |id: Value| id.as_str().map_or_else(|| id.to_string(), str::to_owned);
        Self { kind, key, node_ids: entry.node_ids.into_iter().map(id).collect(), value: entry.value }
    }
}

impl From<NodeInputs> for Mapping {
    fn from(NodeInputs { kind, key, node_ids }: NodeInputs) -> Self {
        Self { kind: kind.to_owned(), key, node_ids, value: Value::Null }
    }
}

impl Workflow {
    /// Reads a workflow file and its mapping. Without a mapping, the nodes are found automatically.
    pub(super) fn read(graph: &Path, mapping: Option<&Path>) -> Result<Self, String> {
        let read = |path: &Path, setting: &str| read(path, &format!("{setting} {}", path.display()));
        let mapping = mapping.map(|path| read(path, "--engine-workflow-nodes")).transpose()?;
        Self::parse(&read(graph, "--engine-workflow")?, mapping.as_deref())
    }

    fn parse(graph: &str, mapping: Option<&str>) -> Result<Self, String> {
        let graph = Graph::parse(graph, "--engine-workflow")?;
        let Some(mapping) = mapping else { return Self::find(graph) };
        let entries: Vec<NodeMapping> = serde_json::from_str(mapping).map_err(|error| {
            format!("--engine-workflow-nodes is not a list such as [{{\"type\":\"prompt\",\"key\":\"text\",\"node_ids\":[\"6\"]}}]: {error}")
        })?;
        let mappings = entries.into_iter().map(Mapping::from).collect();
        let workflow = Self { graph, mappings, is_found: false };
        workflow.check()?;
        Ok(workflow)
    }

    fn find(graph: Graph) -> Result<Self, String> {
        let found = nodes::of(&graph);
        if let Some(missing) = found.missing.iter().find(|missing| missing.required) {
            return Err(format!(
                "no node for {} was found in --engine-workflow: name it in --engine-workflow-nodes (see docs/operate/comfyui.md)",
                missing.kind
            ));
        }
        let mappings = found.nodes.into_iter().map(Mapping::from).collect();
        Ok(Self { graph, mappings, is_found: true })
    }

    pub(super) fn found(&self) -> Option<String> {
        let entry =
            |mapping: &Mapping| format!("{} {} of {}", mapping.kind, mapping.key, mapping.node_ids.join(" and "));
        self.is_found.then(|| self.mappings.iter().map(entry).collect::<Vec<_>>().join(", "))
    }

    fn check(&self) -> Result<(), String> {
        for mapping in &self.mappings {
            let kind = &mapping.kind;
            if !KINDS.contains(&kind.as_str()) {
                let known = KINDS[1..].join(", ");
                return Err(format!("--engine-workflow-nodes has the unknown type {kind:?}; there are {known}"));
            }
            if mapping.key.is_empty() {
                return Err("--engine-workflow-nodes has an entry with neither type nor key".into());
            }
            let lacking = |node: &&String| !self.graph.0.get(*node).is_some_and(|node| node["inputs"].is_object());
            if let Some(node) = mapping.node_ids.iter().find(lacking) {
                return Err(format!(
                    "--engine-workflow-nodes gives {} to node {node}, which the workflow lacks",
                    mapping.key
                ));
            }
        }
        for (kind, consequence) in
            [("prompt", "every picture would show the same"), ("seed", "the pictures of a task would be the same")]
        {
            if self.inputs_of(kind).next().is_none() {
                return Err(format!("--engine-workflow-nodes has no node for {kind}: {consequence}"));
            }
        }
        Ok(())
    }

    /// Nodes that get values of a kind, each with its input's name.
    fn inputs_of(&self, kind: &str) -> impl Iterator<Item = (&String, &String)> {
        let mappings = self.mappings.iter().filter(move |mapping| mapping.kind == kind);
        mappings.flat_map(|mapping| mapping.node_ids.iter().map(|node| (node, &mapping.key)))
    }

    pub(super) fn settings(&self) -> Vec<Setting> {
        Setting::ALL.into_iter().filter(|setting| self.inputs_of(setting.as_str()).next().is_some()).collect()
    }

    /// Most reference pictures that the workflow takes.
    pub(super) fn max_references(&self) -> usize {
        self.inputs_of("image").count()
    }

    pub(super) fn takes_masks(&self) -> bool {
        self.max_references() > 0 && self.inputs_of("mask").next().is_some()
    }

    /// Whether the first reference's node also loads the mask, from its file's transparency.
    pub(super) fn masks_its_reference(&self) -> bool {
        let first = self.inputs_of("image").next();
        first.is_some_and(|first| self.inputs_of("mask").any(|mask| mask == first))
    }

    pub(super) fn node_classes(&self) -> Vec<String> {
        let mut classes: Vec<_> = self.graph.ids().map(|id| self.graph.class(id).to_owned()).collect();
        classes.sort();
        classes.dedup();
        classes
    }

    /// Replaces the placeholders `"{{NAME}}"` in the workflow with values.
    ///
    /// # Errors
    /// A message for the operator: a placeholder has no value, or a value has no placeholder.
    pub(super) fn with(mut self, values: &Map<String, Value>) -> Result<Self, String> {
        let mut used = BTreeSet::new();
        for node in self.graph.0.values_mut() {
            let inputs = node.get_mut("inputs").and_then(Value::as_object_mut);
            for input in inputs.into_iter().flat_map(Map::values_mut) {
                let name =
                    input.as_str().and_then(|text| text.strip_prefix("{{")?.strip_suffix("}}")).map(str::to_owned);
                let Some(name) = name else { continue };
                let missing = || {
                    format!("--engine-workflow has the placeholder {{{{{name}}}}}: set {name} in [engine.NAME.extra]")
                };
                *input = values.get(&name).ok_or_else(missing)?.clone();
                used.insert(name);
            }
        }
        match values.keys().find(|name| !used.contains(*name)) {
            Some(name) => Err(format!("extra sets {name}, but --engine-workflow has no placeholder {{{{{name}}}}}")),
            None => Ok(self),
        }
    }

    /// The graph for one picture. Nodes for missing references or a missing mask keep the file named in the workflow.
    pub(super) fn fill(&self, values: &Values<'_>) -> Value {
        let mut graph = self.graph.0.clone();
        let mut set = |node: &str, key: &str, value: Value| {
            if let Some(inputs) = graph.get_mut(node).and_then(|node| node["inputs"].as_object_mut()) {
                inputs.insert(key.to_owned(), value);
            }
        };
        for mapping in &self.mappings {
            let value = match (mapping.kind.as_str(), values.model) {
                ("prompt", _) => values.prompt.into(),
                ("width", _) => values.width.into(),
                ("height", _) => values.height.into(),
                // Each picture is a separate run with its own seed.
                ("n", _) => 1.into(),
                ("seed", _) => values.seed.into(),
                ("model", Some(model)) => model.into(),
                ("negative_prompt" | "steps" | "guidance_scale" | "strength", _) => {
                    match setting(&mapping.kind, values.settings) {
                        Some(value) => value,
                        None => continue,
                    }
                }
                ("", _) => mapping.value.clone(),
                // The workflow's own value stays.
                _ => continue,
            };
            for node in &mapping.node_ids {
                set(node, &mapping.key, value.clone());
            }
        }
        for ((node, key), name) in self.inputs_of("image").zip(values.references) {
            set(node, key, name.as_str().into());
        }
        let is_reference = |mask: &(&String, &String)| self.inputs_of("image").any(|image| image == *mask);
        let masks = self.inputs_of("mask").filter(|mask| !is_reference(mask));
        for ((node, key), name) in masks.zip(values.mask.iter().cycle()) {
            set(node, key, (*name).into());
        }
        Value::Object(graph)
    }
}

/// A setting's value, if the task has one. Otherwise the workflow's own value stays.
fn setting(kind: &str, settings: &RenderSettings) -> Option<Value> {
    match kind {
        "negative_prompt" => settings.negative_prompt.as_deref().map(Value::from),
        "steps" => settings.steps.map(Value::from),
        "guidance_scale" => settings.guidance_scale.map(Value::from),
        _ => settings.strength.map(Value::from),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const GRAPH: &str = r#"{"3": {"class_type": "KSampler", "inputs": {"seed": 1, "model": ["4", 0]}},
        "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "a.safetensors"}},
        "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "", "clip": ["4", 1]}},
        "10": {"class_type": "LoadImage", "inputs": {"image": "default.png"}}}"#;
    const MAPPING: &str = r#"[{"type": "prompt", "key": "text", "node_ids": ["6"]},
        {"type": "seed", "key": "", "node_ids": [3]}, {"type": "image", "key": "image", "node_ids": ["10"]},
        {"type": "steps", "key": "steps", "node_ids": ["3"]}, {"type": "model", "node_ids": ["4"]},
        {"key": "cfg", "node_ids": ["3"], "value": 7}]"#;

    fn values(settings: &RenderSettings) -> Values<'_> {
        Values {
            prompt: "say \"hello\"",
            width: 64,
            height: 64,
            seed: 7,
            settings,
            model: None,
            references: &[],
            mask: None,
        }
    }

    #[test]
    fn a_brief_fills_in_the_inputs_that_the_mapping_names_and_no_others() {
        let workflow = Workflow::parse(GRAPH, Some(MAPPING)).expect("a workflow");
        assert_eq!(workflow.max_references(), 1);
        assert_eq!(workflow.node_classes(), ["CLIPTextEncode", "CheckpointLoaderSimple", "KSampler", "LoadImage"]);
        assert_eq!(workflow.settings(), [Setting::Seed, Setting::Steps]);
        let usual = RenderSettings::default();
        let graph = workflow.fill(&values(&usual));
        assert_eq!(graph["6"]["inputs"], json!({ "text": "say \"hello\"", "clip": ["4", 1] }));
        assert_eq!(graph["3"]["inputs"], json!({ "seed": 7, "model": ["4", 0], "cfg": 7 }));
        assert_eq!(graph["4"]["inputs"]["ckpt_name"], "a.safetensors");
        assert_eq!(graph["10"]["inputs"]["image"], "default.png");
        let references = ["mine.png".to_owned(), "left over.png".to_owned()];
        let graph = workflow.fill(&Values { model: Some("b.safetensors"), references: &references, ..values(&usual) });
        assert_eq!(graph["4"]["inputs"]["ckpt_name"], "b.safetensors");
        assert_eq!(graph["10"]["inputs"]["image"], "mine.png");
        let asked = RenderSettings { steps: Some(9), strength: Some(0.5), ..RenderSettings::default() };
        let graph = workflow.fill(&values(&asked));
        assert_eq!(graph["3"]["inputs"], json!({ "seed": 7, "model": ["4", 0], "cfg": 7, "steps": 9 }));
    }

    #[test]
    fn places_of_the_workflow_get_the_values_of_the_operator() {
        let graph =
            GRAPH.replace("\"a.safetensors\"", "\"{{checkpoint}}\"").replace("\"seed\": 1", "\"steps\": \"{{steps}}\"");
        let workflow = || Workflow::parse(&graph, Some(MAPPING)).expect("a workflow");
        let values = |json: Value| json.as_object().expect("an object").clone();
        let filled = workflow().with(&values(json!({ "checkpoint": "b.safetensors", "steps": 9 }))).expect("filled");
        let filled = filled.fill(&self::values(&RenderSettings::default()));
        assert_eq!(filled["4"]["inputs"]["ckpt_name"], "b.safetensors");
        assert_eq!(filled["3"]["inputs"]["steps"], 9);
        let bare = r#"{"1": {"class_type": "Note"}, "#.to_owned() + &GRAPH[1..];
        let bare =
            Workflow::parse(&bare, Some(MAPPING)).expect("a workflow").with(&Map::new()).expect("nothing to fill in");
        assert_eq!(bare.graph.0["1"], json!({ "class_type": "Note" }));
        let fault = workflow().with(&values(json!({ "steps": 9 }))).expect_err("no value");
        assert!(fault.contains("set checkpoint in [engine.NAME.extra]"), "{fault}");
        let fault = Workflow::parse(GRAPH, Some(MAPPING)).expect("a workflow").with(&values(json!({ "cfg": 1 })));
        assert!(fault.expect_err("no placeholder").contains("has no placeholder {{cfg}}"));
    }

    #[test]
    fn a_workflow_without_a_mapping_gets_the_nodes_that_are_found() {
        let graph = GRAPH.replace("\"seed\": 1,", "\"seed\": 1, \"positive\": [\"6\", 0],");
        let workflow = Workflow::parse(&graph, None).expect("a workflow");
        let nodes = workflow.found().expect("a message");
        assert_eq!(nodes, "prompt text of 6, seed seed of 3, model ckpt_name of 4");
        assert_eq!(workflow.fill(&values(&RenderSettings::default()))["6"]["inputs"]["text"], "say \"hello\"");
        assert_eq!(Workflow::parse(&graph, Some(MAPPING)).expect("a workflow").found(), None);
        let refusal = Workflow::parse(GRAPH, None).expect_err("no prompt");
        assert!(refusal.contains("no node for prompt was found"), "{refusal}");
    }

    #[test]
    fn a_node_with_a_picture_and_its_mask_gets_one_file() {
        let mapping = MAPPING.replace("[{", r#"[{"type": "mask", "node_ids": ["10"]}, {"#);
        let workflow = Workflow::parse(GRAPH, Some(&mapping)).expect("a workflow");
        assert!(workflow.takes_masks() && workflow.masks_its_reference());
        let (usual, references) = (RenderSettings::default(), ["both.png".to_owned()]);
        let filled = workflow.fill(&Values { references: &references, mask: Some("mask.png"), ..values(&usual) });
        assert_eq!(filled["10"]["inputs"]["image"], "both.png");
        assert!(!Workflow::parse(GRAPH, Some(MAPPING)).expect("a workflow").masks_its_reference());
    }

    #[test]
    fn files_that_do_not_fit_together_are_refused_with_the_reason() {
        for (graph, mapping, reason) in [
            ("[]", MAPPING, "not a JSON object"),
            (r#"{"nodes": [], "links": []}"#, MAPPING, "Export (API)"),
            (r#"{"last_node_id": 9}"#, MAPPING, "Export (API)"),
            (GRAPH, "{}", "not a list"),
            (GRAPH, r#"[{"type": "colour", "node_ids": ["3"]}]"#, "unknown type \"colour\""),
            (GRAPH, r#"[{"type": "seed", "node_ids": ["99"]}]"#, "node 99"),
            (GRAPH, r#"[{"node_ids": ["3"], "value": 1}]"#, "neither type nor key"),
            (GRAPH, r#"[{"type": "seed", "node_ids": ["3"]}]"#, "no node for prompt"),
            (GRAPH, r#"[{"type": "prompt", "node_ids": ["6"]}]"#, "no node for seed"),
        ] {
            let refusal = Workflow::parse(graph, Some(mapping)).expect_err(reason);
            assert!(refusal.contains(reason), "{refusal}");
        }
    }
}
