//! A workflow in ComfyUI's API format: nodes whose inputs can link to other nodes' outputs.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};

/// Largest file, in bytes.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
const MAX_NODES: usize = 2_000;

/// A workflow's nodes by id. Links have no cycles.
#[derive(Debug, Clone)]
pub(super) struct Graph(pub(super) Map<String, Value>);

/// A node's input that is linked to another node's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Link<'a> {
    pub(super) key: &'a str,
    /// The other node's id.
    pub(super) to: &'a str,
    pub(super) output: u64,
}

/// Reads a workflow or mapping file, without the byte order mark that editors of Windows begin it with. Errors call it
/// `name`.
pub(super) fn read(path: &Path, name: &str) -> Result<String, String> {
    let mut text = String::new();
    let mut file = File::open(path).map_err(|error| format!("cannot read {name}: {error}"))?.take(MAX_FILE_BYTES + 1);
    file.read_to_string(&mut text).map_err(|error| format!("cannot read {name}: {error}"))?;
    if file.limit() == 0 {
        return Err(format!("{name} has more than {MAX_FILE_BYTES} bytes, the most that are read"));
    }
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

/// The node and the output that a value links to.
fn linked(value: &Value) -> Option<(&str, u64)> {
    let [to, output] = value.as_array()?.as_slice() else { return None };
    Some((to.as_str()?, output.as_u64()?))
}

impl Graph {
    /// Parses a workflow. Errors call it `name`.
    pub(super) fn parse(text: &str, name: &str) -> Result<Self, String> {
        let nodes: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| format!("{name} is not a JSON object: {error}"))?;
        if nodes.get("nodes").is_some_and(Value::is_array) {
            return Err(format!("{name} is in the format of ComfyUI's editor: export it with \"Export (API)\""));
        }
        if nodes.len() > MAX_NODES {
            return Err(format!("{name} has {} nodes: at most {MAX_NODES} are read", nodes.len()));
        }
        if let Some((id, _)) = nodes.iter().find(|(_, node)| !node["class_type"].is_string()) {
            return Err(format!("{name}: node {id:?} has no class_type: export it with \"Export (API)\""));
        }
        let graph = Self(nodes);
        match graph.circle() {
            Some(id) => Err(format!("{name}: the links of node {id:?} lead back to it, so ComfyUI cannot run it")),
            None => Ok(graph),
        }
    }

    /// The nodes' ids, in file order.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn class(&self, id: &str) -> &str {
        self.0.get(id).and_then(|node| node["class_type"].as_str()).unwrap_or_default()
    }

    pub(super) fn inputs(&self, id: &str) -> impl Iterator<Item = (&str, &Value)> {
        let inputs = self.0.get(id).and_then(|node| node["inputs"].as_object());
        inputs.into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    /// The node's id and the input's name as in the file, and the value.
    pub(super) fn input(&self, id: &str, key: &str) -> Option<(&str, &str, &Value)> {
        let (id, node) = self.0.get_key_value(id)?;
        let (key, value) = node["inputs"].as_object()?.get_key_value(key)?;
        Some((id, key, value))
    }

    /// A node's links, in the order of its inputs.
    pub(super) fn links(&self, id: &str) -> impl Iterator<Item = Link<'_>> {
        self.inputs(id).filter_map(|(key, value)| {
            let (to, output) = linked(value)?;
            let (to, _) = self.0.get_key_value(to)?;
            Some(Link { key, to, output })
        })
    }

    /// A node's inputs that are linked to a node that the workflow lacks, and the ids of these.
    pub(super) fn loose(&self, id: &str) -> impl Iterator<Item = (&str, &str)> {
        let links = self.inputs(id).filter_map(|(key, value)| Some((key, linked(value)?.0)));
        links.filter(|(_, to)| !self.0.contains_key(*to))
    }

    pub(super) fn link(&self, id: &str, key: &str) -> Option<Link<'_>> {
        self.links(id).find(|link| link.key == key)
    }

    /// These nodes and all nodes that they depend on, each before its dependencies. Doesn't go beyond nodes for which
    /// `ends` is true.
    pub(super) fn behind<'a>(&'a self, from: Vec<&'a str>, ends: impl Fn(&str) -> bool) -> Vec<&'a str> {
        let (mut seen, mut order) = (HashSet::new(), Vec::new());
        let mut waiting: Vec<_> = from.into_iter().rev().collect();
        while let Some(id) = waiting.pop() {
            if !seen.insert(id) {
                continue;
            }
            order.push(id);
            if !ends(id) {
                let links: Vec<_> = self.links(id).map(|link| link.to).collect();
                waiting.extend(links.into_iter().rev());
            }
        }
        order
    }

    /// A node on a cycle of links.
    fn circle(&self) -> Option<&str> {
        let mut users: HashMap<&str, Vec<&str>> = HashMap::new();
        let mut open: HashMap<&str, usize> = HashMap::new();
        for id in self.ids() {
            for link in self.links(id) {
                users.entry(link.to).or_default().push(id);
                *open.entry(id).or_default() += 1;
            }
        }
        let mut ready: Vec<_> = self.ids().filter(|id| !open.contains_key(id)).collect();
        while let Some(id) = ready.pop() {
            for user in users.get(id).into_iter().flatten() {
                let left = open.get_mut(user)?;
                *left -= 1;
                if *left == 0 {
                    open.remove(user);
                    ready.push(user);
                }
            }
        }
        // Remaining nodes are on a cycle or depend on one, so following their links leads to it.
        let mut at = self.ids().find(|id| open.contains_key(id))?;
        let mut seen = HashSet::new();
        while seen.insert(at) {
            at = self.links(at).map(|link| link.to).find(|to| open.contains_key(to))?;
        }
        Some(at)
    }
}
