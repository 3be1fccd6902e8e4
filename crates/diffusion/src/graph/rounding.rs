//! Measures the cost of fewer bits on a 32-bit processor, with graphs that round their numbers as a device would.

use std::collections::HashSet;

use rten_onnx::onnx::{DataType, NodeProto};

use super::{Attribute, Graph, attribute, data_type};
use crate::weights::Floats;

/// Operators that multiply and add, which TF32 is for.
const PRODUCTS: [&str; 4] = ["Conv", "Gemm", "MatMul", "Attention"];

/// Which numbers are rounded, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// The operands of products, to 10 bits (TF32). Numbers must be within the 16-bit range, which TF32 doesn't
    /// require.
    Products,
    /// Weights and operators' results, to a type.
    All(Floats),
}

impl Graph {
    /// The same 32-bit graph, but rounding its numbers. It is slower, so only for measurements.
    #[must_use]
    pub fn rounded(mut self, rounding: Rounding) -> Self {
        let to = data_type(if let Rounding::All(floats) = rounding { floats } else { Floats::F16 });
        let weights = self.proto.initializer.iter().filter(|tensor| tensor.data_type == Some(DataType::FLOAT));
        let weights: HashSet<String> = weights.filter_map(|tensor| tensor.name.clone()).collect();
        let lists: HashSet<&str> = self.lists.iter().map(|(name, _)| name.as_str()).collect();
        let mut nodes = Vec::new();
        for (number, mut node) in std::mem::take(&mut self.proto.node).into_iter().enumerate() {
            let is_product = node.op_type.as_deref().is_some_and(|op| PRODUCTS.contains(&op));
            for (at, input) in node.input.iter_mut().enumerate() {
                let rounds = match rounding {
                    // A bias isn't an operand.
                    Rounding::Products => {
                        is_product && at < if node.op_type.as_deref() == Some("Attention") { 3 } else { 2 }
                    }
                    Rounding::All(_) => weights.contains(input),
                };
                if rounds && !input.is_empty() && !lists.contains(input.as_str()) {
                    let short = format!("{input}.{number}.{at}");
                    nodes.extend(round(input, &short, to));
                    *input = short;
                }
            }
            if rounding == Rounding::Products || node.output.len() != 1 {
                nodes.push(node);
                continue;
            }
            let name = node.output[0].clone();
            let wide = format!("{name}.wide");
            node.output[0].clone_from(&wide);
            nodes.push(node);
            nodes.extend(round(&wide, &name, to));
        }
        self.proto.node = nodes;
        self
    }
}

/// Rounds a 32-bit tensor.
fn round(from: &str, into: &str, to: DataType) -> [NodeProto; 2] {
    let cast = |from: &str, into: &str, to: DataType| NodeProto {
        input: vec![from.into()],
        output: vec![into.into()],
        op_type: Some("Cast".into()),
        attribute: vec![attribute("to", Attribute::Int(i64::from(to.0)))],
        ..NodeProto::default()
    };
    let short = format!("{into}.short");
    [cast(from, &short, to), cast(&short, into, DataType::FLOAT)]
}
