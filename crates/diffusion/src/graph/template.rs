//! One graph for all picture sizes.
//!
//! A part's graphs for two sizes have the same operators and weights. Only integer lists (shapes, ends of slices) and
//! float tables (position angles) differ. [`Template::of`] merges both graphs into one that takes the differences as
//! inputs. [`Template::values`] then returns these inputs for the graph of any size, or nothing if that graph has other
//! operators. So what runs is exactly what the builder wrote for that size.

use std::collections::HashMap;

use rten_onnx::onnx::{DataType, Dimension, GraphProto, NodeProto, ValueInfoProto};
use sha2::{Digest, Sha256};

use super::{Attribute, Graph, Table, add_lists, attribute, rename_inputs, value_info, written};
use crate::Result;
use crate::weights::Floats;

/// Marks the inferred size in a shape.
const REST: i64 = -1;

/// The value of an input that depends on the size.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// 64-bit integers.
    Whole(Vec<i64>),
    /// Floats in rows, with their shape.
    Fractions(Vec<usize>, Vec<f32>),
}

/// Where a graph's list is in the template.
#[derive(Debug)]
enum Place {
    /// In the graph: the same for all sizes.
    Held(Vec<i64>),
    /// In the graph, with one size of the shape inferred: the other sizes are equal for all picture sizes.
    Rest(Vec<i64>, usize),
    /// The input with this number, which lists that are always equal share.
    Input(usize),
}

/// A graph for all sizes.
#[derive(Debug)]
pub struct Template {
    /// The ONNX file.
    pub onnx: Vec<u8>,
    operators: [u8; 32],
    places: Vec<Place>,
    tables: usize,
}

impl Template {
    /// The template from two graphs of a part, for sizes that have no number in common. `None` if their operators
    /// differ.
    pub fn of(one: &Graph, other: &Graph) -> Result<Option<Self>> {
        let operators = operators(one)?;
        if operators != self::operators(other)? || one.lists.len() != other.lists.len() {
            return Ok(None);
        }
        let mut graph = one.proto.clone();
        let shapes = shapes_read(&graph);
        let mut inputs: HashMap<[&[i64]; 2], usize> = HashMap::new();
        let (mut places, mut names, mut lengths) = (Vec::new(), HashMap::new(), Vec::new());
        for ((name, a), (_, b)) in one.lists.iter().zip(&other.lists) {
            if a.len() != b.len() {
                return Ok(None);
            }
            places.push(match differing(a, b).as_slice() {
                [] => Place::Held(a.clone()),
                [at] if shapes.contains(&name.as_str()) => {
                    let mut shape = a.clone();
                    shape[*at] = REST;
                    Place::Rest(shape, *at)
                }
                _ => {
                    let number = *inputs.entry([a, b]).or_insert_with(|| {
                        lengths.push(a.len());
                        lengths.len() - 1
                    });
                    names.insert(name.clone(), list_name(number));
                    Place::Input(number)
                }
            });
        }
        let held = one.lists.iter().zip(&places).filter_map(|((name, _), place)| match place {
            Place::Held(values) | Place::Rest(values, _) => Some((name.as_str(), values.as_slice())),
            Place::Input(_) => None,
        });
        names.extend(add_lists(&mut graph, held));
        rename_inputs(&mut graph, &names);
        free(&mut graph.input, &other.proto.input);
        free(&mut graph.output, &other.proto.output);
        for (number, length) in lengths.into_iter().enumerate() {
            graph.input.push(value_info(&list_name(number), DataType::INT64, &[length]));
        }
        add_tables(&mut graph, &one.tables, &other.tables, one.floats);
        Ok(Some(Self { onnx: written(graph)?, operators, places, tables: one.tables.len() }))
    }

    /// The inputs that turn the template into the given graph. `None` if none can.
    pub fn values(&self, graph: &Graph) -> Result<Option<Vec<(String, Value)>>> {
        if graph.lists.len() != self.places.len() || operators(graph)? != self.operators {
            return Ok(None);
        }
        let mut values: HashMap<usize, &Vec<i64>> = HashMap::new();
        for ((_, list), place) in graph.lists.iter().zip(&self.places) {
            let same = match place {
                Place::Held(held) => held == list,
                Place::Rest(shape, at) => shape.len() == list.len() && differing(shape, list).iter().all(|d| d == at),
                Place::Input(number) => *values.entry(*number).or_insert(list) == list,
            };
            if !same {
                return Ok(None);
            }
        }
        let lists = values.into_iter().map(|(number, list)| (list_name(number), Value::Whole(list.clone())));
        debug_assert_eq!(graph.tables.len(), self.tables);
        let tables = graph.tables.iter();
        let tables = tables.map(|t| (table_name(&t.name), Value::Fractions(t.shape.clone(), t.numbers.clone())));
        Ok(Some(lists.chain(tables).collect()))
    }
}

fn list_name(number: usize) -> String {
    format!("size.{number}")
}

fn table_name(name: &str) -> String {
    format!("table.{name}")
}

/// The positions where two lists of the same length differ.
fn differing(a: &[i64], b: &[i64]) -> Vec<usize> {
    (0..a.len()).filter(|at| a[*at] != b[*at]).collect()
}

/// A digest of all that must not differ: operators with their order and attributes, weights, and constants.
fn operators(graph: &Graph) -> Result<[u8; 32]> {
    let mut proto = graph.proto.clone();
    for value in proto.input.iter_mut().chain(&mut proto.output) {
        value.r#type = None;
    }
    let mut digest = Sha256::new();
    digest.update(written(proto)?);
    for name in graph.lists.iter().map(|(name, _)| name).chain(graph.tables.iter().map(|table| &table.name)) {
        digest.update(name.as_bytes());
        digest.update([0]);
    }
    Ok(digest.finalize().into())
}

/// The names of lists that are shapes for [`super::Builder::reshape`], where a size can be inferred.
fn shapes_read(graph: &GraphProto) -> std::collections::HashSet<&str> {
    let reshapes = graph.node.iter().filter(|node| node.op_type.as_deref() == Some("Reshape"));
    reshapes.filter_map(|node| node.input.get(1).map(String::as_str)).collect()
}

/// Leaves open the sizes of inputs or outputs that differ. Equal ones share a name.
fn free(values: &mut [ValueInfoProto], others: &[ValueInfoProto]) {
    for (value, other) in values.iter_mut().zip(others) {
        for (one, other) in sizes(value).into_iter().zip(sizes(&mut other.clone())) {
            if let (Some(a), Some(b)) = (one.dim_value, other.dim_value)
                && a != b
            {
                *one = Dimension { dim_value: None, dim_param: Some(format!("n{a}_{b}")) };
            }
        }
    }
}

fn sizes(value: &mut ValueInfoProto) -> Vec<&mut Dimension> {
    let tensor = value.r#type.as_mut().and_then(|kind| kind.tensor_type.as_mut());
    tensor.and_then(|tensor| tensor.shape.as_mut()).map_or_else(Vec::new, |shape| shape.dim.iter_mut().collect())
}

/// Turns tables into 32-bit inputs, whatever type the graph computes with.
fn add_tables(graph: &mut GraphProto, tables: &[Table], others: &[Table], floats: Floats) {
    let mut casts = Vec::new();
    let mut names = HashMap::new();
    for (table, other) in tables.iter().zip(others) {
        let name = table_name(&table.name);
        let mut value = [value_info(&name, DataType::FLOAT, &table.shape)];
        free(&mut value, &[value_info(&name, DataType::FLOAT, &other.shape)]);
        graph.input.extend(value);
        if floats == Floats::F32 {
            names.insert(table.name.clone(), name);
            continue;
        }
        casts.push(NodeProto {
            input: vec![name],
            output: vec![table.name.clone()],
            op_type: Some("Cast".into()),
            attribute: vec![attribute("to", Attribute::Int(i64::from(super::data_type(floats).0)))],
            ..NodeProto::default()
        });
    }
    rename_inputs(graph, &names);
    // Operators must follow those whose results they read.
    graph.node.splice(0..0, casts);
}
