//! Linear layers, in 32 or 8 bits, and embedding tables.
//!
//! In 8 bits, each row of activations is scaled so that its largest magnitude becomes 127, and shifted by 128, because
//! the kernels multiply unsigned by signed bytes; each column of weights has its own scale too. One scale for all rows
//! would leave most of them few steps: in transformers some tokens are a hundred times larger than others.

use std::ops::Range;

use rten_onnx::onnx::DataType;
use safetensors::Dtype;

use super::Attribute::Int;
use super::{Builder, Node, mapped_name};
use crate::Result;
use crate::weights::{piece_name, scale_name};

/// The byte that stands for zero in activations.
const ZERO: u8 = 128;

/// The largest magnitude of an activation in 8 bits.
const LARGEST: f32 = 127.0;

/// The smallest magnitude that a row is scaled by, so that a row of zeros stays zero.
const SMALLEST: f32 = 1e-30;

impl Builder<'_> {
    /// A linear layer over the rows of a matrix, in as many bits as its weight has in the file.
    pub fn linear(&mut self, x: &Node, name: &str, outputs: usize, bias: bool) -> Result<Node> {
        self.linear_part(x, name, outputs, 0..outputs, bias)
    }

    /// A layer that several linear layers were merged into. Each gets a separate result, which saves copying parts out
    /// of one.
    pub fn linears<const N: usize>(
        &mut self,
        x: &Node,
        name: &str,
        outputs: [usize; N],
        bias: bool,
    ) -> Result<[Node; N]> {
        let all = outputs.iter().sum();
        let mut to = 0;
        let mut results = Vec::new();
        for count in outputs {
            to += count;
            results.push(self.linear_part(x, name, all, to - count..to, bias)?);
        }
        Ok(results.try_into().expect("one result for each"))
    }

    /// A linear layer that always computes with 32 bits. That suits layers with a single row, such as the time
    /// embedding: they take no time, and all later layers depend on them. The weight stays as it is in the file, with
    /// one row per output.
    pub fn linear_wide(&mut self, x: &Node, name: &str, outputs: usize, bias: bool) -> Result<Node> {
        self.wide(x, name, outputs, 0..outputs, bias)
    }

    /// Some outputs of a linear layer that has `all`.
    pub fn linear_part(&mut self, x: &Node, name: &str, all: usize, outputs: Range<usize>, bias: bool) -> Result<Node> {
        let weight = format!("{}{name}.weight", self.prefix);
        let piece = piece_name(&weight, &outputs, all);
        if self.weights.get(&piece).is_some_and(|entry| entry.dtype == Dtype::I8) {
            let result = self.narrow(x, &piece, outputs.len())?;
            return Ok(if bias {
                let bias = self.rows_of(&format!("{name}.bias"), &[all], outputs)?;
                self.add(&result, &bias)
            } else {
                result
            });
        }
        self.graph.uses.linear.entry(weight).or_default().insert((outputs.start, outputs.end));
        self.wide(x, name, all, outputs, bias)
    }

    /// In 32 bits.
    fn wide(&mut self, x: &Node, name: &str, all: usize, outputs: Range<usize>, bias: bool) -> Result<Node> {
        let [rows, inputs] = x.matrix();
        let shape = [rows, outputs.len()];
        let weight = self.rows_of(&format!("{name}.weight"), &[all, inputs], outputs.clone())?;
        let bias = if bias { Some(self.rows_of(&format!("{name}.bias"), &[all], outputs)?) } else { None };
        let operands: Vec<_> = [Some(x), Some(&weight), bias.as_ref()].into_iter().flatten().collect();
        Ok(self.op("Gemm", &operands, &[("transB", Int(1))], &shape))
    }

    /// In 8 bits, without bias.
    fn narrow(&mut self, x: &Node, weight: &str, outputs: usize) -> Result<Node> {
        let [rows, inputs] = x.matrix();
        let shape = [rows, outputs];
        let entry = self.entry(weight, &[inputs, outputs])?;
        if !self.declared.contains(weight) {
            let place = (mapped_name(entry.file), DataType::INT8, entry.bytes.clone());
            self.declare(weight, &[inputs, outputs], place);
        }
        self.graph.uses.all.insert(weight.into());
        let scale = self.rows_of_whole(&scale_name(weight), &[outputs], 0..outputs)?;
        let weight = Node { name: weight.into(), shape: vec![inputs, outputs] };
        let [rounded, row_scale] = self.round(x);
        let zero = self.byte(DataType::UINT8, ZERO);
        let none = self.byte(DataType::INT8, 0);
        let sums = self.op("MatMulInteger", &[&rounded, &weight, &zero, &none], &[], &shape);
        // The runtime fuses these three operators.
        let sums = self.op("Cast", &[&sums], &[("to", Int(i64::from(DataType::FLOAT.0)))], &shape);
        let scaled = self.mul(&sums, &scale);
        Ok(self.mul(&scaled, &row_scale))
    }

    /// Rows in 8 bits, and each row's scale.
    fn round(&mut self, x: &Node) -> [Node; 2] {
        if let Some(found) = self.rounded.get(&x.name) {
            return found.clone();
        }
        let [rows, _] = x.matrix();
        let last = self.list(&[-1]);
        let size = self.op("Abs", &[x], &[], x.shape());
        let size = self.op("ReduceMax", &[&size, &last], &[("keepdims", Int(1))], &[rows, 1]);
        let least = self.constant(&[], vec![SMALLEST]);
        let size = self.op("Max", &[&size, &least], &[], &[rows, 1]);
        let scale = self.scale(&size, LARGEST.recip());
        let scaled = self.op("Div", &[x, &scale], &[], x.shape());
        let one = self.constant(&[], vec![1.0]);
        let zero = self.byte(DataType::UINT8, ZERO);
        let rounded = self.op("QuantizeLinear", &[&scaled, &one, &zero], &[], x.shape());
        let both = [rounded, scale];
        self.rounded.insert(x.name.clone(), both.clone());
        both
    }

    fn byte(&mut self, data_type: DataType, value: u8) -> Node {
        self.raw(data_type, &[], vec![value])
    }
}
