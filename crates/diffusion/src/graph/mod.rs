//! Writes ONNX graphs in memory.
//!
//! All shapes of a graph are fixed when it is built, for one picture size. That keeps the blocks simple, lets the
//! runtime plan its memory, and compares every weight with the shape that the architecture demands, so that another
//! model's file is rejected, naming its first wrong tensor. Building takes milliseconds, because weights are only
//! referenced. Two graphs of a part can be merged into one for all sizes ([`template`]), so that its weights are loaded
//! once.

pub mod attention;
pub mod blocks;
mod linear;
pub mod rounding;
pub mod template;
mod winograd;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use rten_onnx::onnx::{
    AttributeProto, AttributeType, DataLocation, DataType, Dimension, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto, TypeProtoTensor,
    ValueInfoProto,
};

use crate::weights::float_formats::{self, SUPPORTED};
use crate::weights::{Floats, TensorEntry, Weights, piece_name};
use crate::{Error, Result};

/// The version of the ONNX operators.
const OPSET: i64 = 23;

/// The version of the ONNX format that came with these operators.
const IR_VERSION: i64 = 11;

/// Bytes of a weight converted at a time.
const CONVERTED_AT_A_TIME: usize = 1 << 16;

/// The name of a graph's external data that had to be converted.
pub const CONVERTED: &str = "converted.data";

/// The name of a graph's external data in a mapped file.
pub fn mapped_name(file: usize) -> String {
    format!("mapped.{file}.data")
}

/// A tensor in a graph that is being built.
#[derive(Debug, Clone)]
pub struct Node {
    name: String,
    shape: Vec<usize>,
}

impl Node {
    /// Its sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its four sizes, if it is a batch of feature maps: batch, channels, height, width.
    ///
    /// # Panics
    /// If it has another number of dimensions, which is a bug in the code that builds the graph.
    pub fn map(&self) -> [usize; 4] {
        self.shape.as_slice().try_into().expect("a batch of feature maps")
    }

    /// Its two sizes, if it is a matrix.
    ///
    /// # Panics
    /// If it has another number of dimensions, which is a bug in the code that builds the graph.
    pub fn matrix(&self) -> [usize; 2] {
        self.shape.as_slice().try_into().expect("a matrix")
    }
}

/// The value of an attribute of an operator.
#[derive(Debug, Clone, Copy)]
pub enum Attribute<'a> {
    /// A whole number.
    Int(i64),
    /// Several whole numbers.
    Ints(&'a [i64]),
    /// A floating-point number.
    Float(f32),
    /// A word.
    Text(&'a str),
}

/// A finished graph, and the bytes that its weights refer to.
#[derive(Clone)]
pub struct Graph {
    /// All except the lists and tables.
    proto: GraphProto,
    /// The integer lists that nodes read, such as shapes, by name.
    lists: Vec<(String, Vec<i64>)>,
    /// Floats that depend on the picture size.
    tables: Vec<Table>,
    floats: Floats,
    /// Whether a device may compute products of 32 bits with fewer (see [`Weights::with_short_products`]).
    pub short_products: bool,
    /// Bytes of all weights, as the graph reads them.
    pub weight_bytes: usize,
    /// How many numbers each operator's result has.
    counts: HashMap<String, usize>,
    /// The mapped files of weights, with the names that [`mapped_name`] gives.
    pub mapped: Vec<&'static [u8]>,
    /// How the graph uses tensors.
    pub uses: Uses,
    conversions: Vec<Conversion>,
    converted: usize,
}

/// How a graph uses the tensors of a file, by their full names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Uses {
    /// All tensors in use.
    pub all: BTreeSet<String>,
    /// Linear layers' matrices that can have 8 bits, and the row ranges that are separate layers.
    pub linear: BTreeMap<String, BTreeSet<(usize, usize)>>,
}

/// Floats that depend on the picture size, such as position angles.
#[derive(Debug, Clone, PartialEq)]
struct Table {
    name: String,
    shape: Vec<usize>,
    numbers: Vec<f32>,
}

/// A tensor's external data: its file, type, and bytes in the file.
type TensorLocation = (String, DataType, Range<usize>);

/// A tensor that the runtime cannot use as it is in the file.
#[derive(Debug, Clone)]
struct Conversion {
    from: &'static [u8],
    entry: TensorEntry,
    to: usize,
    floats: Floats,
}

impl Graph {
    /// The ONNX file for the size that the graph was built for.
    pub fn onnx(&self) -> Result<Vec<u8>> {
        let mut graph = self.proto.clone();
        let names = add_lists(&mut graph, self.lists.iter().map(|(name, values)| (name.as_str(), values.as_slice())));
        rename_inputs(&mut graph, &names);
        for table in &self.tables {
            let bytes = self.floats.bytes(&table.numbers);
            graph.initializer.push(held(&table.name, data_type(self.floats), &table.shape, bytes));
        }
        written(graph)
    }

    /// The most bytes of results that are alive at the same time, if operators run in order and a result is freed after
    /// its last reader. Memory that operators need internally is not counted.
    pub fn working_bytes(&self) -> usize {
        let nodes = &self.proto.node;
        // A reshaped result only shares its source's memory.
        let mut owners: HashMap<&str, &str> = HashMap::new();
        let (mut sizes, mut last) = (HashMap::<&str, usize>::new(), HashMap::<&str, usize>::new());
        for (at, node) in nodes.iter().enumerate() {
            for input in &node.input {
                last.insert(owners.get(input.as_str()).copied().unwrap_or(input), at);
            }
            let (Some(first), Some(output)) = (node.input.first(), node.output.first()) else { continue };
            let (own, wide) = (sizes.get(first.as_str()).copied(), size_of::<f32>());
            let to = node.attribute.iter().find(|attribute| attribute.name.as_deref() == Some("to"));
            let size = match (node.op_type.as_deref(), to.and_then(|to| to.i)) {
                (Some("Cast"), Some(to)) if to == i64::from(DataType::FLOAT.0) => wide,
                (Some("Cast"), _) => self.floats.size(),
                _ => own.unwrap_or(self.floats.size()),
            };
            sizes.insert(output, size);
            if matches!(node.op_type.as_deref(), Some("Reshape" | "Identity")) {
                owners.insert(output, owners.get(first.as_str()).copied().unwrap_or(first));
            }
        }
        let (mut alive, mut most, mut held) = (0, 0, HashMap::new());
        for (at, node) in nodes.iter().enumerate() {
            for output in node.output.iter().map(String::as_str).filter(|output| !owners.contains_key(output)) {
                let bytes = self.counts.get(output).map_or(0, |count| count * sizes.get(output).copied().unwrap_or(0));
                held.insert(output, bytes);
                alive += bytes;
            }
            most = most.max(alive);
            for input in &node.input {
                let owner = owners.get(input.as_str()).copied().unwrap_or(input);
                if last.get(owner) == Some(&at) {
                    alive -= held.remove(owner).unwrap_or(0);
                }
            }
        }
        most
    }

    /// The weights that have other types or odd addresses in the file, converted. The graph calls them [`CONVERTED`].
    pub fn converted(&self) -> Vec<u8> {
        let mut all = vec![0; self.converted];
        for Conversion { from, entry, to, floats } in &self.conversions {
            let mut to = *to;
            for bytes in from.chunks(CONVERTED_AT_A_TIME).map(|bytes| floats.bytes(&entry.floats(bytes))) {
                all[to..to + bytes.len()].copy_from_slice(&bytes);
                to += bytes.len();
            }
        }
        all
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { proto, weight_bytes, converted, .. } = self;
        write!(f, "Graph({} nodes, weights: {weight_bytes} bytes, {converted} converted)", proto.node.len())
    }
}

/// Builds one graph.
#[derive(Debug)]
pub struct Builder<'w> {
    weights: &'w Weights,
    prefix: &'w str,
    batch: usize,
    graph: Graph,
    declared: HashSet<String>,
    /// Rows in 8 bits and their scales, by the rows' name, so that layers that read the same rows share them.
    rounded: HashMap<String, [Node; 2]>,
    count: usize,
}

impl<'w> Builder<'w> {
    /// Begins a graph over the tensors of a file. Weights are then named without `prefix`.
    pub fn new(weights: &'w Weights, prefix: &'w str) -> Self {
        let graph = Graph {
            proto: GraphProto::default(),
            lists: Vec::new(),
            tables: Vec::new(),
            floats: weights.computes_in(),
            short_products: weights.short_products(),
            weight_bytes: 0,
            counts: HashMap::new(),
            mapped: weights.files().to_vec(),
            uses: Uses::default(),
            conversions: Vec::new(),
            converted: 0,
        };
        Self { weights, prefix, batch: 1, graph, declared: HashSet::new(), rounded: HashMap::new(), count: 0 }
    }

    /// Whether the graph must have the same operators for every size (see [`Weights::any_size`]).
    pub fn any_size(&self) -> bool {
        self.weights.any_size()
    }

    /// Whether every convolution is left to the runtime (see [`Weights::with_direct_convolutions`]).
    fn is_direct(&self) -> bool {
        self.weights.direct_convolutions()
    }

    /// The rows that layers work on at a time: `most`, or all if the graph is for every size.
    pub fn rows_at_a_time(&self, most: usize) -> usize {
        if self.any_size() { usize::MAX } else { most }
    }

    /// Sets the batch size. Rows of different pictures don't attend to each other.
    #[must_use]
    pub fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    fn fresh(&mut self, shape: Vec<usize>) -> Node {
        self.count += 1;
        let name = format!("t{}", self.count);
        self.graph.counts.insert(name.clone(), shape.iter().product());
        Node { name, shape }
    }

    fn data_type(&self) -> DataType {
        data_type(self.weights.computes_in())
    }

    /// An input of 32-bit floats, whatever type the graph computes with.
    pub fn input(&mut self, name: &str, shape: &[usize]) -> Node {
        self.graph.proto.input.push(value_info(name, DataType::FLOAT, shape));
        let node = Node { name: name.into(), shape: shape.into() };
        match self.data_type() {
            DataType::FLOAT => node,
            other => self.cast(&node, other),
        }
    }

    /// An input of 32-bit integers.
    pub fn input_ids(&mut self, name: &str, shape: &[usize]) -> Node {
        self.graph.proto.input.push(value_info(name, DataType::INT32, shape));
        Node { name: name.into(), shape: shape.into() }
    }

    /// Makes a tensor readable under a name, as 32-bit floats.
    pub fn output(&mut self, name: &str, node: &Node) {
        let to = attribute("to", Attribute::Int(i64::from(DataType::FLOAT.0)));
        // Devices can lack the `Identity` operator.
        let (op, attributes) = match self.data_type() {
            DataType::FLOAT if !self.any_size() => ("Identity", Vec::new()),
            _ => ("Cast", vec![to]),
        };
        self.graph.proto.node.push(NodeProto {
            input: vec![node.name.clone()],
            output: vec![name.into()],
            op_type: Some(op.into()),
            attribute: attributes,
            ..NodeProto::default()
        });
        self.graph.proto.output.push(value_info(name, DataType::FLOAT, &node.shape));
    }

    /// Makes a block's result readable under a name, for tests. A graph for all sizes leaves it out, because a device
    /// would compute and keep all of these numbers at each step.
    pub fn output_of_block(&mut self, name: &str, node: &Node) {
        if !self.any_size() {
            self.output(name, node);
        }
    }

    /// The same numbers in another type.
    fn cast(&mut self, x: &Node, to: DataType) -> Node {
        self.op("Cast", &[x], &[("to", Attribute::Int(i64::from(to.0)))], x.shape())
    }

    /// Whether the file has a weight.
    pub fn has(&self, name: &str) -> bool {
        self.weights.get(&format!("{}{name}", self.prefix)).is_some()
    }

    /// A weight from the file.
    ///
    /// # Errors
    /// If the file lacks it, or it has another shape or a type that is not supported.
    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Node> {
        self.rows_of(name, shape, 0..shape.first().copied().unwrap_or(1))
    }

    /// A weight from the file that this graph reads once, as rows of `width` numbers. A `Reshape` would copy it.
    fn weight_as_matrix(&mut self, weight: &Node, width: usize) -> Node {
        let shape = [weight.shape.iter().product::<usize>() / width, width];
        let held = self.graph.proto.initializer.iter_mut().rev().find(|held| held.name.as_ref() == Some(&weight.name));
        held.expect("a weight that is declared").dims = dims(&shape);
        Node { name: weight.name.clone(), shape: shape.into() }
    }

    /// Some rows of a weight from the file.
    fn rows_of(&mut self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Node> {
        self.rows_of_whole(&format!("{}{name}", self.prefix), shape, rows)
    }

    /// Like [`Builder::rows_of`], by the full name.
    fn rows_of_whole(&mut self, name: &str, shape: &[usize], rows: Range<usize>) -> Result<Node> {
        let entry = self.entry(name, shape)?;
        let all = shape.first().copied().unwrap_or(1);
        let row = entry.bytes.len() / all.max(1);
        let from = entry.bytes.start;
        let some = TensorEntry { bytes: from + rows.start * row..from + rows.end * row, ..entry.clone() };
        let shape: Vec<_> =
            shape.iter().enumerate().map(|(axis, &size)| if axis == 0 { rows.len() } else { size }).collect();
        let piece = piece_name(name, &rows, all);
        if !self.declared.contains(&piece) {
            let place = self.place(name, &some)?;
            self.declare(&piece, &shape, place);
        }
        self.graph.uses.all.insert(name.into());
        Ok(Node { name: piece, shape })
    }

    /// A tensor from the file, by its full name.
    fn entry(&self, name: &str, shape: &[usize]) -> Result<&'w TensorEntry> {
        let wrong = |what: String| Error::Model(format!("{}: {what}", self.weights.path()));
        let entry = self.weights.get(name).ok_or_else(|| {
            wrong(format!("the tensor {name:?} is missing; the file is of another architecture, or not complete"))
        })?;
        if entry.shape != shape {
            let found = &entry.shape;
            return Err(wrong(format!(
                "the tensor {name:?} has the shape {found:?}, but the configuration asks for {shape:?}"
            )));
        }
        Ok(entry)
    }

    fn declare(&mut self, name: &str, shape: &[usize], (location, data_type, bytes): TensorLocation) {
        self.graph.weight_bytes += bytes.len();
        self.graph.proto.initializer.push(TensorProto {
            dims: dims(shape),
            data_type: Some(data_type),
            name: Some(name.into()),
            external_data: vec![
                pair("location", &location),
                pair("offset", &bytes.start.to_string()),
                pair("length", &bytes.len().to_string()),
            ],
            data_location: Some(DataLocation::EXTERNAL),
            ..TensorProto::default()
        });
        self.declared.insert(name.into());
    }

    /// Decides where the graph finds a weight. Floats of the type that the graph computes with stay in the file.
    /// Others, and weights at odd addresses, are converted when the graph is loaded.
    fn place(&mut self, name: &str, entry: &TensorEntry) -> Result<TensorLocation> {
        let Some(size) = float_formats::byte_size(entry.dtype) else {
            let (path, found) = (self.weights.path(), entry.dtype);
            return Err(Error::Model(format!("{path}: the tensor {name:?} has the type {found:?}; {SUPPORTED}")));
        };
        let bytes = self.weights.bytes(entry);
        let (data_type, floats) = (self.data_type(), self.weights.computes_in());
        if entry.dtype == floats.dtype() && entry.scale.is_none() && bytes.as_ptr().addr().is_multiple_of(size) {
            return Ok((mapped_name(entry.file), data_type, entry.bytes.clone()));
        }
        let begin = self.graph.converted;
        self.graph.converted += bytes.len() / size * floats.size();
        self.graph.conversions.push(Conversion { from: bytes, entry: entry.clone(), to: begin, floats });
        Ok((CONVERTED.into(), data_type, begin..self.graph.converted))
    }

    /// A floating-point tensor held in the graph itself.
    pub fn constant(&mut self, shape: &[usize], values: Vec<f32>) -> Node {
        self.raw(self.data_type(), shape, self.weights.computes_in().bytes(&values))
    }

    /// Floats like [`Builder::constant`], but dependent on the picture size.
    pub fn table(&mut self, shape: &[usize], numbers: Vec<f32>) -> Node {
        let node = self.fresh(shape.into());
        self.graph.tables.push(Table { name: node.name.clone(), shape: shape.into(), numbers });
        node
    }

    /// A list of integers, such as a shape.
    pub fn list(&mut self, values: &[i64]) -> Node {
        let node = self.fresh(vec![values.len()]);
        self.graph.lists.push((node.name.clone(), values.into()));
        node
    }

    /// A tensor held in the graph itself.
    fn raw(&mut self, data_type: DataType, shape: &[usize], bytes: Vec<u8>) -> Node {
        let node = self.fresh(shape.into());
        self.graph.proto.initializer.push(held(&node.name, data_type, shape, bytes));
        node
    }

    /// Adds an operator with one result of the given shape.
    pub fn op(&mut self, op: &str, inputs: &[&Node], attributes: &[(&str, Attribute<'_>)], shape: &[usize]) -> Node {
        self.op_with_names(op, inputs.iter().map(|node| node.name.clone()).collect(), attributes, shape)
    }

    /// Like [`Builder::op`]; an empty name omits that input.
    fn op_with_names(
        &mut self,
        op: &str,
        input: Vec<String>,
        attributes: &[(&str, Attribute<'_>)],
        shape: &[usize],
    ) -> Node {
        let node = self.fresh(shape.into());
        self.graph.proto.node.push(NodeProto {
            name: Some(format!("{op}.{}", node.name)),
            input,
            output: vec![node.name.clone()],
            op_type: Some(op.into()),
            attribute: attributes.iter().map(|(name, value)| attribute(name, *value)).collect(),
            ..NodeProto::default()
        });
        node
    }

    /// Finishes the graph.
    ///
    /// # Errors
    /// If the file has a tensor with the graph's prefix that the graph doesn't use and `ignored` doesn't accept: it
    /// then has another architecture, and the pictures would be wrong.
    pub fn finish(self, ignored: impl Fn(&str) -> bool) -> Result<Graph> {
        let prefix = self.prefix;
        let mut unknown: Vec<_> = self.weights.names().filter(|name| !self.graph.uses.all.contains(*name)).collect();
        unknown.retain(|name| name.strip_prefix(prefix).is_some_and(|name| !ignored(name)));
        unknown.sort_unstable();
        if let Some(first) = unknown.first() {
            let (path, count) = (self.weights.path(), unknown.len());
            return Err(Error::Model(format!(
                "{path}: {count} tensors belong to another architecture, {first:?} is the first"
            )));
        }
        Ok(self.graph)
    }
}

fn data_type(floats: Floats) -> DataType {
    match floats {
        Floats::F32 => DataType::FLOAT,
        Floats::F16 => DataType::FLOAT16,
        Floats::Bf16 => DataType::BFLOAT16,
    }
}

fn held(name: &str, data_type: DataType, shape: &[usize], bytes: Vec<u8>) -> TensorProto {
    TensorProto {
        dims: dims(shape),
        data_type: Some(data_type),
        raw_data: Some(RefCell::new(bytes)),
        name: Some(name.into()),
        ..TensorProto::default()
    }
}

/// Adds lists to a graph, equal ones once. Returns new names for the duplicates.
fn add_lists<'a>(graph: &mut GraphProto, lists: impl Iterator<Item = (&'a str, &'a [i64])>) -> HashMap<String, String> {
    let (mut known, mut names) = (HashMap::<&[i64], &str>::new(), HashMap::new());
    for (name, values) in lists {
        if let Some(twin) = known.get(values) {
            names.insert(name.to_owned(), (*twin).to_owned());
            continue;
        }
        known.insert(values, name);
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        graph.initializer.push(held(name, DataType::INT64, &[values.len()], bytes));
    }
    names
}

fn rename_inputs(graph: &mut GraphProto, names: &HashMap<String, String>) {
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        if let Some(name) = names.get(input) {
            input.clone_from(name);
        }
    }
}

fn written(graph: GraphProto) -> Result<Vec<u8>> {
    let opset = OperatorSetIdProto { domain: Some(String::new()), version: Some(OPSET) };
    let model = ModelProto {
        ir_version: Some(IR_VERSION),
        producer_name: Some("tintype".into()),
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    model.write_buf().map_err(|error| Error::Run(format!("cannot write the graph: {error}")))
}

fn dims(shape: &[usize]) -> Vec<i64> {
    // Each size is at most 2^20 by the configuration, or was read from a weights file of that length.
    shape.iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect()
}

fn pair(key: &str, value: &str) -> StringStringEntryProto {
    StringStringEntryProto { key: Some(key.into()), value: Some(value.into()) }
}

fn value_info(name: &str, data_type: DataType, shape: &[usize]) -> ValueInfoProto {
    let dimension = |size| Dimension { dim_value: Some(size), dim_param: None };
    let shape = TensorShapeProto { dim: dims(shape).into_iter().map(dimension).collect() };
    let tensor = TypeProtoTensor { elem_type: Some(data_type), shape: Some(shape) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { tensor_type: Some(tensor), sequence: None }) }
}

fn attribute(name: &str, value: Attribute<'_>) -> AttributeProto {
    let mut attribute = AttributeProto { name: Some(name.into()), ..AttributeProto::default() };
    attribute.r#type = Some(match value {
        Attribute::Int(value) => {
            attribute.i = Some(value);
            AttributeType::INT
        }
        Attribute::Ints(values) => {
            attribute.ints = values.into();
            AttributeType::INTS
        }
        Attribute::Float(value) => {
            attribute.f = Some(value);
            AttributeType::FLOAT
        }
        Attribute::Text(value) => {
            attribute.s = Some(value.into());
            AttributeType::STRING
        }
    });
    attribute
}
