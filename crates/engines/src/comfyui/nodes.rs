//! Finds the workflow nodes that get a prompt, a seed and so on, by following links from the outputs and from sampling
//! nodes.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::graph::{Graph, Link, read};

/// Kinds of values in the mapping's order, each with the consequence of its absence. Without the first two a workflow
/// is useless.
const KINDS: [(&str, &str); 12] = [
    ("prompt", "every picture would show the same"),
    ("seed", "the pictures of a task would be the same"),
    ("negative_prompt", NOT_SET),
    ("width", "every picture has the workflow's size, and is scaled and cropped"),
    ("height", "every picture has the workflow's size, and is scaled and cropped"),
    ("n", "the workflow has no batch size to set to 1"),
    ("steps", NOT_SET),
    ("guidance_scale", NOT_SET),
    ("strength", NOT_SET),
    ("image", "tasks with reference images need another engine"),
    ("mask", "tasks with a mask need another engine"),
    ("model", "--model has no effect"),
];
const NOT_SET: &str = "callers and presets cannot set it";
/// How many of the kinds a workflow must have.
const REQUIRED: usize = 2;

/// Inputs that hold a prompt.
const TEXTS: [&str; 11] =
    ["text", "prompt", "text_g", "text_l", "clip_l", "clip_g", "t5xxl", "llama", "user_prompt", "bert", "mt5xl"];
/// Inputs of a node that stands for a text or number, such as a primitive.
const VALUES: [&str; 6] = ["value", "text", "string", "prompt", "int", "number"];
/// Links from a conditioning to something else.
const BESIDE: [&str; 12] = [
    "model",
    "clip",
    "vae",
    "image",
    "pixels",
    "mask",
    "latent",
    "samples",
    "control_net",
    "style_model",
    "clip_vision_output",
    "clip_vision",
];
/// Nodes that also take the picture's size.
const WITH_SIZE: [&str; 3] = ["ModelSamplingFlux", "Flux2Scheduler", "CLIPTextEncodeSDXL"];
/// Most nodes between an input and its value.
const MAX_HOPS: usize = 64;

/// An entry of the file for `--engine-workflow-nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeInputs {
    /// The kind of value.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The inputs' name.
    pub key: String,
    /// The nodes with this input.
    pub node_ids: Vec<String>,
}

/// A kind of value that no node gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The kind of value.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Whether the workflow is useless without it.
    pub required: bool,
    /// The consequence.
    pub consequence: &'static str,
}

/// What was found in a workflow.
#[derive(Debug, Serialize)]
pub struct Found {
    /// The mapping.
    pub nodes: Vec<NodeInputs>,
    /// Kinds that were not found.
    pub missing: Vec<Missing>,
    /// Messages about choices that the operator may want to change.
    pub notes: Vec<String>,
}

type Input<'a> = (&'a str, &'a str);

/// The prompt that a conditioning is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Positive,
    Negative,
}

#[derive(Debug, Default)]
struct Conditioning<'a> {
    /// The prompt inputs of each encoding node, the nearest first.
    encoders: Vec<Vec<Input<'a>>>,
    guidances: Vec<Input<'a>>,
}

/// Where masks and pictures are loaded.
#[derive(Debug, Default)]
struct Masks<'a> {
    /// Nodes that load a mask.
    loaders: Vec<&'a str>,
    /// Nodes between these and the nodes that take masks.
    between: HashSet<&'a str>,
}

struct Finder<'a> {
    graph: &'a Graph,
    /// The nodes that the outputs depend on.
    live: Vec<&'a str>,
    found: Vec<(&'static str, Input<'a>)>,
    notes: Vec<String>,
}

/// Finds the nodes of the workflow in a file.
///
/// # Errors
/// A message for the operator: the file isn't a workflow in the API format.
pub fn find(path: &Path) -> Result<Found, String> {
    let name = path.display().to_string();
    Ok(of(&Graph::parse(&read(path, &name)?, &name)?))
}

pub(super) fn of(graph: &Graph) -> Found {
    let mut finder = Finder { graph, live: live(graph), found: Vec::new(), notes: Vec::new() };
    finder.all();
    for id in &finder.live {
        let loose = graph.loose(id);
        finder.notes.extend(loose.map(|(key, to)| {
            format!("{key} of node {id} is linked to node {to}, which the workflow lacks, so ComfyUI refuses it")
        }));
    }
    let mut nodes: Vec<NodeInputs> = Vec::new();
    let order = |kind: &str| KINDS.iter().position(|(known, _)| *known == kind);
    finder.found.sort_by_key(|(kind, _)| order(kind));
    for (kind, (id, key)) in finder.found {
        match nodes.iter_mut().find(|entry| entry.kind == kind && entry.key == key) {
            Some(entry) if entry.node_ids.iter().any(|known| known == id) => {}
            Some(entry) => entry.node_ids.push(id.to_owned()),
            None => nodes.push(NodeInputs { kind, key: key.to_owned(), node_ids: vec![id.to_owned()] }),
        }
    }
    let lacks = |kind: &str| !nodes.iter().any(|entry| entry.kind == kind);
    let missing = KINDS.iter().enumerate().filter(|(_, (kind, _))| lacks(kind));
    let missing =
        missing.map(|(index, (kind, consequence))| Missing { kind, required: index < REQUIRED, consequence }).collect();
    Found { nodes, missing, notes: finder.notes }
}

/// The nodes that the outputs depend on. Other nodes in a workflow are never run.
fn live(graph: &Graph) -> Vec<&str> {
    let saves = |id: &&str| {
        let class = graph.class(id);
        (class.starts_with("Save") || class.starts_with("Preview")) && graph.links(id).next().is_some()
    };
    let mut ends: Vec<_> = graph.ids().filter(saves).collect();
    if ends.is_empty() {
        let used: HashSet<_> = graph.ids().flat_map(|id| graph.links(id)).map(|link| link.to).collect();
        ends = graph.ids().filter(|id| !used.contains(id)).collect();
    }
    graph.behind(ends, |_| false)
}

impl<'a> Finder<'a> {
    fn all(&mut self) {
        let graph = self.graph;
        let guided = |id: &&&'a str| {
            let given = |key: &str| graph.link(id, key).is_some();
            given("model") && ["positive", "conditioning", "cond1"].into_iter().any(given)
        };
        let all: Vec<_> = self.live.iter().filter(guided).copied().collect();
        if all.is_empty() {
            return self.whole_nodes();
        }
        // Others, for example, estimate depth.
        let guiders: Vec<_> = all.iter().filter(|id| self.is_prompted(id)).copied().collect();
        let guiders = if guiders.is_empty() { all } else { guiders };
        let samplers: Vec<_> = self.live.iter().filter(|id| self.samples(id, &guiders)).copied().collect();
        self.prompts(&guiders);
        self.models(&guiders);
        for sampler in &samplers {
            let noise = graph.link(sampler, "noise").map_or(*sampler, |link| link.to);
            self.number("seed", noise, &["seed", "noise_seed"]);
        }
        self.runs(&samplers);
        self.pictures();
    }

    /// Whether a node's positive conditioning comes from a text.
    fn is_prompted(&self, id: &str) -> bool {
        let mut links = self.graph.links(id).filter(|link| ["positive", "conditioning", "cond1"].contains(&link.key));
        links.any(|link| !self.conditioning(link, Side::Positive).encoders.is_empty())
    }

    /// Whether a node turns noise into a picture. It must have one of these guiders or be one.
    fn samples(&self, id: &str, guiders: &[&str]) -> bool {
        let given = |key: &str| self.graph.input(id, key).is_some();
        match self.graph.link(id, "guider") {
            Some(link) => guiders.contains(&link.to),
            None => guiders.contains(&id) && (given("seed") || given("noise_seed")),
        }
    }

    /// Notes the first of these inputs that is, or is linked to, a number.
    fn number(&mut self, kind: &'static str, id: &str, keys: &[&str]) {
        if let Some(input) = keys.iter().find_map(|key| self.origin(id, key, Value::is_number)) {
            self.found.push((kind, input));
        }
    }

    /// The input that holds this one's value: itself, or an input of a node that stands for a value.
    fn origin(&self, id: &str, key: &str, is_value: fn(&Value) -> bool) -> Option<Input<'a>> {
        let (mut id, mut key, mut value) = self.graph.input(id, key)?;
        for _ in 0..MAX_HOPS {
            if is_value(value) {
                return Some((id, key));
            }
            let to = self.graph.links(id).find(|link| link.key == key)?.to;
            let names = self.chosen(to).into_iter().chain(VALUES).chain([key]);
            let named: Vec<_> = names.filter_map(|name| self.graph.input(to, name)).collect();
            let literal = named.iter().find(|(_, _, value)| is_value(value));
            let joined = self.graph.inputs(to).count() > 1;
            (id, key, value) = match literal.or(named.first()).copied() {
                Some(next) => next,
                // A computed number cannot be set.
                None if joined && is_value(&Value::from(0)) => return None,
                None => self.graph.links(to).find_map(|link| self.graph.input(to, link.key))?,
            };
        }
        None
    }

    /// The input that a switch passes on, if its setting is fixed or comes from a primitive.
    fn chosen(&self, id: &str) -> Option<&'static str> {
        if self.graph.class(id) != "ComfySwitchNode" {
            return None;
        }
        let (at, key) = self.graph.link(id, "switch").map_or((id, "switch"), |link| (link.to, "value"));
        let (_, _, value) = self.graph.input(at, key)?;
        Some(if value.as_bool()? { "on_true" } else { "on_false" })
    }

    fn texts(&self, id: &str, side: Side) -> Vec<Input<'a>> {
        // Some loaders have both prompts.
        let own = if side == Side::Positive { "positive" } else { "negative" };
        let is_text = self.graph.input(id, own).is_some_and(|(_, _, value)| value.is_string());
        let keys = TEXTS.into_iter().chain(is_text.then_some(own));
        keys.filter_map(|key| self.origin(id, key, Value::is_string)).collect()
    }

    fn prompts(&mut self, guiders: &[&'a str]) {
        let (mut prompts, mut negatives, mut guidances) = (Vec::new(), Vec::new(), Vec::new());
        for guider in guiders {
            for link in self.graph.links(guider) {
                let side = match link.key {
                    "positive" | "conditioning" | "cond1" | "cond2" => Side::Positive,
                    "negative" => Side::Negative,
                    _ => continue,
                };
                let mut conditioning = self.conditioning(link, side);
                let more = conditioning.encoders.split_off(conditioning.encoders.len().min(1));
                if let (Some(first), [_, ..]) = (conditioning.encoders.first(), more.as_slice()) {
                    self.notes.push(one_of(side, first, &more));
                }
                let inputs = conditioning.encoders.into_iter().flatten();
                if side == Side::Positive {
                    prompts.extend(inputs)
                } else {
                    negatives.extend(inputs)
                }
                if side == Side::Positive {
                    guidances.append(&mut conditioning.guidances);
                }
            }
        }
        let before = negatives.len();
        negatives.retain(|input| !prompts.contains(input));
        if negatives.is_empty() && before > 0 {
            self.notes.push("the negative prompt comes from the node of the prompt, so it is left out".into());
        }
        self.found.extend(prompts.into_iter().map(|input| ("prompt", input)));
        self.found.extend(negatives.into_iter().map(|input| ("negative_prompt", input)));
        if guidances.is_empty() {
            guiders.iter().for_each(|guider| self.number("guidance_scale", guider, &["cfg"]));
        }
        self.found.extend(guidances.into_iter().map(|input| ("guidance_scale", input)));
    }

    /// Follows a conditioning to the nodes that encode its prompts.
    fn conditioning(&self, from: Link<'a>, side: Side) -> Conditioning<'a> {
        let (mut found, mut seen) = (Conditioning::default(), HashSet::new());
        let mut waiting = vec![from.to];
        while let Some(id) = waiting.pop() {
            // A zeroed conditioning has no prompt.
            if !seen.insert(id) || self.graph.class(id) == "ConditioningZeroOut" {
                continue;
            }
            found.guidances.extend(self.origin(id, "guidance", Value::is_number));
            let texts = self.texts(id, side);
            if !texts.is_empty() {
                found.encoders.push(texts);
                continue;
            }
            let links: Vec<_> = self.graph.links(id).filter(|link| !BESIDE.contains(&link.key)).collect();
            let own = if side == Side::Positive { "positive" } else { "negative" };
            let is_both = ["positive", "negative"].iter().all(|side| links.iter().any(|link| link.key == *side));
            let conditions = links.iter().any(|link| link.key.starts_with("cond"));
            let chosen = self.chosen(id);
            let leads_on = |link: &&Link<'_>| match (is_both, conditions, chosen) {
                (true, _, _) => link.key == own,
                (false, true, _) => link.key.starts_with("cond"),
                (false, false, chosen) => chosen.is_none_or(|chosen| link.key == chosen),
            };
            waiting.extend(links.iter().rev().filter(leads_on).map(|link| link.to));
        }
        found
    }

    /// The node that loads the first sampler's model.
    fn models(&mut self, guiders: &[&'a str]) {
        let mut loaders = Vec::new();
        for guider in guiders {
            let mut at = *guider;
            while let Some(link) = self.graph.link(at, "model").or_else(|| self.reroute(at)) {
                at = link.to;
            }
            let names = ["ckpt_name", "unet_name", "model_name"];
            loaders.extend(names.iter().find_map(|name| self.origin(at, name, Value::is_string)));
        }
        loaders.dedup();
        // Live nodes are listed from the outputs, so the first sampler comes last.
        if let Some(first) = loaders.last() {
            self.found.push(("model", *first));
            if let Some((other, _)) = loaders.iter().find(|loader| *loader != first) {
                self.notes.push(format!(
                    "the workflow loads several models: --model replaces that of node {}, and not that of node {other}",
                    first.0
                ));
            }
        }
    }

    /// The link that a switch passes on, or a node's only input, if it is a link.
    fn reroute(&self, id: &str) -> Option<Link<'a>> {
        if let Some(chosen) = self.chosen(id) {
            return self.graph.link(id, chosen);
        }
        let mut links = self.graph.links(id);
        links.next().filter(|_| self.graph.inputs(id).count() == 1)
    }

    /// The settings of samplers that start from noise or a picture, rather than from another sampler's result.
    fn runs(&mut self, samplers: &[&'a str]) {
        let (mut has_size, is_split) = (false, self.is_split(samplers));
        let known: HashSet<_> = samplers.iter().copied().collect();
        for sampler in samplers {
            let latents = ["latent_image", "latent", "samples", "image", "pixels"];
            let from = latents.into_iter().find_map(|key| self.graph.link(sampler, key)).map(|link| link.to);
            let behind = self.graph.behind(from.into_iter().collect(), |id| known.contains(id));
            if behind.iter().any(|id| known.contains(id)) {
                continue;
            }
            let chain = self.latent_chain(from);
            let source = chain.last().map_or("", |id| self.graph.class(id));
            let encodes = source.starts_with("VAEEncode") || source == "InpaintModelConditioning";
            has_size |= self.latents(if encodes { &behind } else { &chain });
            let sigmas = self.graph.link(sampler, "sigmas").map(|link| link.to);
            let schedules = self.graph.behind(sigmas.into_iter().collect(), |_| false);
            let has = |id: &&&str| self.graph.input(id, "steps").is_some();
            let schedule = schedules.iter().find(has).copied().unwrap_or(sampler);
            if is_split {
                self.notes.push("several samplers share the steps, so callers and presets cannot set them".into());
            } else {
                self.number("steps", schedule, &["steps"]);
            }
            // `VAEEncodeForInpaint` erases what is to be repainted, so sampling starts from noise.
            if encodes && source != "VAEEncodeForInpaint" {
                self.number("strength", schedule, &["denoise"]);
            }
        }
        let sized = |id: &&&str| WITH_SIZE.contains(&self.graph.class(id));
        let sized: Vec<_> = self.live.iter().filter(sized).copied().collect();
        for id in sized.into_iter().filter(|_| has_size) {
            for (kind, keys) in [("width", ["width", "target_width"]), ("height", ["height", "target_height"])] {
                keys.iter().for_each(|key| self.number(kind, id, &[key]));
            }
        }
    }

    /// The nodes from a latent to the one that creates it.
    fn latent_chain(&self, from: Option<&'a str>) -> Vec<&'a str> {
        let mut chain: Vec<_> = from.into_iter().collect();
        let keys = ["samples", "latent", "latent_image"];
        let next = |at: &str| keys.iter().find_map(|key| self.graph.link(at, key)).or_else(|| self.reroute(at));
        while let Some(link) = chain.last().and_then(|at| next(at)) {
            chain.push(link.to);
        }
        chain
    }

    /// The size of a sampler's starting latent. Returns whether one can be set.
    fn latents(&mut self, behind: &[&'a str]) -> bool {
        let before = self.found.len();
        for id in behind {
            let given = |key: &str| self.graph.input(id, key).is_some();
            let is_sized = given("batch_size") || self.graph.class(id) == "ImageScale";
            if is_sized && given("width") && given("height") {
                self.number("width", id, &["width"]);
                self.number("height", id, &["height"]);
            }
        }
        let has_size = self.found.len() > before;
        for id in behind {
            self.number("n", id, &["batch_size"]);
            if self.graph.class(id) == "RepeatLatentBatch" {
                self.number("n", id, &["amount"]);
            }
        }
        has_size
    }

    fn is_split(&self, samplers: &[&'a str]) -> bool {
        let value = |id: &str, key: &str| self.graph.input(id, key).and_then(|(_, _, value)| value.as_u64());
        samplers.iter().any(|id| {
            let ends_early = value(id, "end_at_step").zip(value(id, "steps")).is_some_and(|(end, steps)| end < steps);
            value(id, "start_at_step").is_some_and(|start| start > 0) || ends_early
        })
    }

    fn pictures(&mut self) {
        let masks = self.masks();
        let users = self.live.iter().filter(|id| !masks.between.contains(*id));
        let shown: HashSet<_> =
            users.flat_map(|id| self.graph.links(id)).filter(|link| link.output == 0).map(|link| link.to).collect();
        let is_reference = |id: &&&str| self.graph.class(id) == "LoadImage" && shown.contains(**id);
        let mut references: Vec<_> = self.live.iter().filter(is_reference).copied().collect();
        // A mask belongs to the first reference, so the node with both comes first.
        references.sort_by_key(|id| !masks.loaders.contains(id));
        self.found.extend(references.into_iter().map(|id| ("image", (id, "image"))));
        self.found.extend(masks.loaders.iter().map(|id| ("mask", (*id, "image"))));
    }

    fn masks(&self) -> Masks<'a> {
        let mut masks = Masks::default();
        let takes = |id: &&&str| {
            let class = self.graph.class(id);
            class.contains("Inpaint") || class == "SetLatentNoiseMask"
        };
        let mut waiting: Vec<_> = self.live.iter().filter(takes).filter_map(|id| self.graph.link(id, "mask")).collect();
        let mut seen = HashSet::new();
        while let Some(link) = waiting.pop() {
            match self.graph.class(link.to) {
                "LoadImage" | "LoadImageMask" => {
                    let is_new = !masks.loaders.contains(&link.to);
                    masks.loaders.extend(is_new.then_some(link.to));
                }
                class if seen.insert(link.to) => {
                    masks.between.insert(link.to);
                    // Such as `ImageToMask` and `ImageBlur`. Others find a mask in a picture, or make one for it.
                    let converts = ["ImageToMask", "ImageColorToMask"].contains(&class)
                        || class.starts_with("Image") && link.output == 0;
                    let leads_on =
                        |link: &Link<'_>| ["mask", "masks"].contains(&link.key) || converts && link.key == "image";
                    waiting.extend(self.graph.links(link.to).filter(leads_on));
                }
                _ => {}
            }
        }
        masks
    }

    /// All-in-one nodes: if there is no sampler, nodes with a prompt and a seed.
    fn whole_nodes(&mut self) {
        let live = self.live.clone();
        for id in live {
            let (prompts, seeds) = (self.texts(id, Side::Positive), ["seed", "noise_seed"]);
            let seed = seeds.iter().find_map(|key| self.origin(id, key, Value::is_number));
            let (Some(prompt), Some(seed)) = (prompts.first(), seed) else { continue };
            self.found.extend([("prompt", *prompt), ("seed", seed)]);
            let negative = self.origin(id, "negative_prompt", Value::is_string);
            self.found.extend(negative.map(|input| ("negative_prompt", input)));
            for (kind, keys) in [
                ("width", &["width"][..]),
                ("height", &["height"]),
                ("n", &["batch_size"]),
                ("steps", &["steps"]),
                ("guidance_scale", &["cfg", "guidance_scale", "guidance"]),
            ] {
                self.number(kind, id, keys);
            }
        }
        self.pictures();
    }
}

/// A note about a conditioning with several prompts.
fn one_of(side: Side, first: &[Input<'_>], more: &[Vec<Input<'_>>]) -> String {
    let id = |inputs: &[Input<'_>]| inputs.first().map_or("", |(id, _)| *id).to_owned();
    let more: Vec<_> = more.iter().map(|inputs| id(inputs)).collect();
    let name = if side == Side::Positive { "prompt" } else { "negative prompt" };
    format!("the {name} goes to node {}; node {} keeps its text", id(first), more.join(", "))
}

#[cfg(test)]
mod tests;
