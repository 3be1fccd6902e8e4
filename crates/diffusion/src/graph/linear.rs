//! Linear layers, in 32 or in 8 bits, and tables of embeddings.
//!
//! In 8 bits, a row of activations is scaled so that its largest magnitude becomes 127, and shifted by 128, because the
//! kernels multiply unsigned by signed bytes; a column of weights has its own scale too. One scale for all rows would leave
//! few steps to most of them: in transformers some tokens are a hundred times larger than others.

use rten_onnx::onnx::DataType;
use safetensors::Dtype;

use super::Attribute::Int;
use super::{Builder, Node, mapped_name};
use crate::Result;
use crate::weights::scale_name;

/// The byte that stands for zero in activations.
const ZERO: u8 = 128;

/// The largest magnitude of an activation in 8 bits.
const LARGEST: f32 = 127.0;

/// The smallest magnitude that a row is scaled by, so that a row of zeros stays one.
const SMALLEST: f32 = 1e-30;

impl Builder<'_> {
    /// A linear layer over the rows of a matrix, in as many bits as its weight has in the file.
    ///
    /// # Errors
    /// If the weights do not fit.
    pub fn linear(&mut self, x: &Node, name: &str, outputs: usize, bias: bool) -> Result<Node> {
        let weight = format!("{}{name}.weight", self.prefix);
        if self.weights.get(&weight).is_some_and(|entry| entry.dtype == Dtype::I8) {
            return self.linear_of_bytes(x, &weight, name, outputs, bias);
        }
        let result = self.linear_wide(x, name, outputs, bias)?;
        self.uses.linear.insert(weight);
        Ok(result)
    }

    /// A linear layer that always computes with 32 bits. That suits layers of a single row, such as the embedding of the
    /// time: they take no time, and all that follows depends on them. The weight stays as it is in the file, with one row
    /// for each output.
    ///
    /// # Errors
    /// If the weights do not fit.
    pub fn linear_wide(&mut self, x: &Node, name: &str, outputs: usize, bias: bool) -> Result<Node> {
        let [rows, inputs] = x.matrix();
        let weight = self.weight(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = if bias { Some(self.weight(&format!("{name}.bias"), &[outputs])?) } else { None };
        let operands: Vec<_> = [Some(x), Some(&weight), bias.as_ref()].into_iter().flatten().collect();
        Ok(self.op("Gemm", &operands, &[("transB", Int(1))], &[rows, outputs]))
    }

    fn linear_of_bytes(&mut self, x: &Node, weight: &str, name: &str, outputs: usize, bias: bool) -> Result<Node> {
        let [rows, inputs] = x.matrix();
        let shape = [rows, outputs];
        let bias = if bias { Some(self.weight(&format!("{name}.bias"), &[outputs])?) } else { None };
        let entry = self.entry(weight, &[inputs, outputs])?;
        if !self.uses.all.contains(weight) {
            let place = (mapped_name(entry.file), DataType::INT8, entry.bytes.clone());
            self.declare(weight, &[inputs, outputs], place);
        }
        let scale = self.whole_weight(scale_name(weight), &[outputs])?;
        let weight = Node { name: weight.into(), shape: vec![inputs, outputs] };
        let [rounded, row_scale] = self.round(x);
        let zero = self.byte(DataType::UINT8, ZERO);
        let none = self.byte(DataType::INT8, 0);
        let sums = self.op("MatMulInteger", &[&rounded, &weight, &zero, &none], &[], &shape);
        // The runtime makes one operator of these three.
        let sums = self.op("Cast", &[&sums], &[("to", Int(i64::from(DataType::FLOAT.0)))], &shape);
        let scaled = self.mul(&sums, &scale);
        let scaled = self.mul(&scaled, &row_scale);
        Ok(match bias {
            Some(bias) => self.add(&scaled, &bias),
            None => scaled,
        })
    }

    /// Rows in 8 bits, and the scale of each.
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

    /// A single byte.
    fn byte(&mut self, data_type: DataType, value: u8) -> Node {
        self.raw(data_type, &[], vec![value])
    }
}
