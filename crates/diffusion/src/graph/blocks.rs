//! The blocks that models are built from.
//!
//! Feature maps have the shape batch, channels, height, width. Tokens are the rows of a matrix, one picture after the
//! other.

use std::ops::Range;

use rten_onnx::onnx::DataType;

use super::Attribute::{Float, Int, Ints, Text};
use super::{Builder, Node, winograd};
use crate::{Error, Result};

/// The activation functions of the known architectures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x * sigmoid(x)
    Silu,
    /// x * sigmoid(1.702 x)
    QuickGelu,
    /// The exact GELU.
    Gelu,
    /// max(x, 0)
    Relu,
}

impl Activation {
    /// Parses an activation's name in a configuration; `None` if it is unknown.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "silu" | "swish" => Self::Silu,
            "quick_gelu" => Self::QuickGelu,
            "gelu" => Self::Gelu,
            "relu" => Self::Relu,
            _ => return None,
        })
    }
}

/// The sizes of an attention.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    /// The number of heads.
    pub count: usize,
    /// Numbers in each head.
    pub size: usize,
}

impl Heads {
    /// Splits `width` numbers into `count` heads.
    ///
    /// # Errors
    /// If the division leaves a remainder.
    pub fn split(width: usize, count: usize) -> Result<Self> {
        if !width.is_multiple_of(count) {
            return Err(Error::Model(format!("{width} channels cannot be split into {count} heads")));
        }
        Ok(Self { count, size: width / count })
    }
}

/// Rows that wide transformer layers work on at a time, unless a test asks for fewer. A 512x512 picture with its prompt
/// has 1,536 rows, which is one part; a 1024x1024 picture has 4,608, which is three.
pub const ROWS_AT_A_TIME: usize = 1_536;

/// Splits all rows into ranges of about the same length, each of at most `most` rows.
pub fn parts(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let length = rows.div_ceil(rows.div_ceil(most).max(1)).max(1);
    (0..rows).step_by(length).map(move |from| from..(from + length).min(rows))
}

impl Builder<'_> {
    /// a + b, where `b` can be broadcast to the shape of `a`.
    pub fn add(&mut self, a: &Node, b: &Node) -> Node {
        self.op("Add", &[a, b], &[], a.shape())
    }

    /// a * b, where `b` can be broadcast to the shape of `a`.
    pub fn mul(&mut self, a: &Node, b: &Node) -> Node {
        self.op("Mul", &[a, b], &[], a.shape())
    }

    /// x * factor
    pub fn scale(&mut self, x: &Node, factor: f32) -> Node {
        let factor = self.constant(&[], vec![factor]);
        self.mul(x, &factor)
    }

    /// The same numbers in another shape.
    pub fn reshape(&mut self, x: &Node, shape: &[usize]) -> Node {
        debug_assert_eq!(x.shape().iter().product::<usize>(), shape.iter().product::<usize>());
        let sizes = self.list(&super::dims(shape));
        self.op("Reshape", &[x, &sizes], &[], shape)
    }

    /// Repeats numbers along axes of size 1.
    pub fn expand(&mut self, x: &Node, shape: &[usize]) -> Node {
        let sizes = self.list(&super::dims(shape));
        self.op("Expand", &[x, &sizes], &[], shape)
    }

    /// Reorders the dimensions.
    pub fn transpose(&mut self, x: &Node, order: &[usize]) -> Node {
        let shape: Vec<_> = order.iter().map(|&axis| x.shape()[axis]).collect();
        self.op("Transpose", &[x], &[("perm", Ints(&super::dims(order)))], &shape)
    }

    /// Applies an activation function.
    pub fn activation(&mut self, x: &Node, activation: Activation) -> Node {
        match activation {
            Activation::Silu => {
                let gate = self.op("Sigmoid", &[x], &[], x.shape());
                self.mul(x, &gate)
            }
            Activation::QuickGelu => {
                let scaled = self.scale(x, 1.702);
                let gate = self.op("Sigmoid", &[&scaled], &[], x.shape());
                self.mul(x, &gate)
            }
            Activation::Gelu => self.op("Gelu", &[x], &[], x.shape()),
            Activation::Relu => self.op("Relu", &[x], &[], x.shape()),
        }
    }

    /// A convolution with a square kernel, whose padding keeps the size when `stride` is 1.
    pub fn conv(&mut self, x: &Node, name: &str, outputs: usize, kernel: usize, stride: usize) -> Result<Node> {
        self.conv_with(x, name, outputs, kernel, stride, true)
    }

    /// Like [`Builder::conv`], with or without a bias.
    pub fn conv_with(
        &mut self,
        x: &Node,
        name: &str,
        outputs: usize,
        kernel: usize,
        stride: usize,
        bias: bool,
    ) -> Result<Node> {
        let pad = kernel / 2;
        self.conv_padded(x, name, outputs, [kernel, stride], [pad, pad, pad, pad], bias)
    }

    /// Halves height and width with a convolution, padded with a row of zeros below and a column of zeros to the right.
    pub fn halve(&mut self, x: &Node, name: &str, outputs: usize) -> Result<Node> {
        self.conv_padded(x, name, outputs, [3, 2], [0, 0, 1, 1], true)
    }

    /// A convolution with zeros above, left, below and right.
    fn conv_padded(
        &mut self,
        x: &Node,
        name: &str,
        outputs: usize,
        [kernel, stride]: [usize; 2],
        pads: [usize; 4],
        bias: bool,
    ) -> Result<Node> {
        let [batch, inputs, height, width] = x.map();
        // Devices have their own convolution kernels, and 16 bits are too few for the transforms.
        let is_direct = self.is_direct() || self.any_size() || self.data_type() != DataType::FLOAT;
        let in_squares = [kernel, stride] == [3, 1] && pads == [1; 4] && !is_direct && winograd::pays(x.map(), outputs);
        let (weight, shape) = (format!("{name}.weight"), [outputs, inputs, kernel, kernel]);
        let weights = if in_squares {
            let pieces = parts(outputs, winograd::outputs_at_a_time(inputs));
            pieces.map(|rows| self.rows_of(&weight, &shape, rows)).collect::<Result<Vec<_>>>()?
        } else {
            vec![self.weight(&weight, &shape)?]
        };
        let bias = if bias { Some(self.weight(&format!("{name}.bias"), &[outputs])?) } else { None };
        if in_squares {
            let weights: Vec<_> = weights.iter().map(|weight| self.weight_as_matrix(weight, kernel * kernel)).collect();
            let map = self.conv_in_squares(x, &weights, winograd::rows_at_a_time(x.map()));
            return Ok(match bias {
                None => map,
                Some(bias) => {
                    let bias = self.reshape(&bias, &[1, outputs, 1, 1]);
                    self.add(&map, &bias)
                }
            });
        }
        let operands: Vec<_> = [Some(x), weights.first(), bias.as_ref()].into_iter().flatten().collect();
        let [height, width] =
            [(height, 0), (width, 1)].map(|(size, axis)| (size + pads[axis] + pads[axis + 2] - kernel) / stride + 1);
        let [kernels, strides] = [kernel, stride].map(|size| [size as i64; 2]);
        let pads = pads.map(|pad| pad as i64);
        let attributes = [("kernel_shape", Ints(&kernels)), ("strides", Ints(&strides)), ("pads", Ints(&pads))];
        Ok(self.op("Conv", &operands, &attributes, &[batch, outputs, height, width]))
    }

    /// Normalises each of `groups` groups of channels over all positions.
    pub fn group_norm(&mut self, x: &Node, name: &str, groups: usize, epsilon: f64) -> Result<Node> {
        let [batch, channels, height, width] = x.map();
        if !channels.is_multiple_of(groups) {
            return Err(Error::Model(format!("{name}: {channels} channels cannot be split into {groups} groups")));
        }
        let weight = self.weight(&format!("{name}.weight"), &[channels])?;
        let bias = self.weight(&format!("{name}.bias"), &[channels])?;
        if self.any_size() {
            return Ok(self.group_norm_on_a_device(x, [&weight, &bias], groups, epsilon));
        }
        // ONNX has an operator for this since version 21 that rten lacks. Normalising one "channel" per group is the same.
        let grouped = self.reshape(x, &[batch, groups, channels / groups * height * width]);
        let one = self.constant(&[groups], vec![1.0; groups]);
        let zero = self.constant(&[groups], vec![0.0; groups]);
        let attributes = [("epsilon", Float(epsilon as f32))];
        let normal = self.op("InstanceNormalization", &[&grouped, &one, &zero], &attributes, grouped.shape());
        let normal = self.reshape(&normal, &[batch, channels, height, width]);
        let weight = self.reshape(&weight, &[1, channels, 1, 1]);
        let bias = self.reshape(&bias, &[1, channels, 1, 1]);
        let scaled = self.mul(&normal, &weight);
        Ok(self.add(&scaled, &bias))
    }

    /// Group norm from operators that CUDA supports for all types: its `InstanceNormalization` kernel implements an
    /// older version of the operator, and lacks bf16. Squares are summed in 32 bits, because 16 bits would overflow at
    /// 255 x 255.
    fn group_norm_on_a_device(&mut self, x: &Node, weights: [&Node; 2], groups: usize, epsilon: f64) -> Node {
        let [batch, channels, height, width] = x.map();
        let (each, own) = (channels / groups, self.data_type());
        let is_wide = own == DataType::FLOAT;
        let wide = |b: &mut Self, x: &Node| if is_wide { x.clone() } else { b.cast(x, DataType::FLOAT) };
        let x = wide(self, x);
        let [weight, bias] = weights.map(|weight| wide(self, weight));
        let grouped = self.reshape(&x, &[batch, groups, each * height * width]);
        let means = [batch, groups, 1];
        let last = self.list(&[2]);
        let mean = self.op("ReduceMean", &[&grouped, &last], &[("keepdims", Int(1))], &means);
        let around = self.op("Sub", &[&grouped, &mean], &[], grouped.shape());
        let squares = self.mul(&around, &around);
        let variance = self.op("ReduceMean", &[&squares, &last], &[("keepdims", Int(1))], &means);
        let epsilon = self.wide_number(epsilon as f32);
        let variance = self.add(&variance, &epsilon);
        let deviation = self.op("Sqrt", &[&variance], &[], &means);
        let deviation = self.reshape(&deviation, &[batch, groups, 1, 1]);
        // There are few factors per channel, so the feature map is read once for both.
        let weight = self.reshape(&weight, &[1, groups, each, 1]);
        let factors = self.op("Div", &[&weight, &deviation], &[], &[batch, groups, each, 1]);
        let around = self.reshape(&around, &[batch, groups, each, height * width]);
        let scaled = self.mul(&around, &factors);
        let bias = self.reshape(&bias, &[1, groups, each, 1]);
        let normal = self.add(&scaled, &bias);
        let normal = if is_wide { normal } else { self.cast(&normal, own) };
        self.reshape(&normal, &[batch, channels, height, width])
    }

    /// A 32-bit number, whatever type the graph computes with.
    fn wide_number(&mut self, number: f32) -> Node {
        self.raw(DataType::FLOAT, &[], number.to_le_bytes().to_vec())
    }

    /// Normalises each row of a matrix.
    pub fn layer_norm(&mut self, x: &Node, name: &str, epsilon: f64) -> Result<Node> {
        let [_, width] = x.matrix();
        let weight = self.weight(&format!("{name}.weight"), &[width])?;
        let bias = self.weight(&format!("{name}.bias"), &[width])?;
        let attributes = [("axis", Int(-1)), ("epsilon", Float(epsilon as f32))];
        Ok(self.op("LayerNormalization", &[x, &weight, &bias], &attributes, x.shape()))
    }

    /// Rows `from..to` along an axis.
    pub fn slice(&mut self, x: &Node, axis: usize, from: usize, to: usize) -> Node {
        let mut shape = x.shape().to_vec();
        shape[axis] = to - from;
        let from = self.list(&[from as i64]);
        let to = self.list(&[to as i64]);
        let axis = self.list(&[axis as i64]);
        self.op("Slice", &[x, &from, &to, &axis], &[], &shape)
    }

    /// The first rows of a matrix, and the others if there are any.
    ///
    /// Layers with many rows work on one part of them at a time, so that only one part's wide results are in memory:
    /// [`Builder::first`] takes a part from `x`, and [`Builder::last`] appends the result to the rest, which becomes
    /// the next `x`. So each part depends on the one before; otherwise the runtime would start with the first layer of
    /// all parts. After all parts, the rows are in their original order again.
    pub fn first(&mut self, x: &Node, rows: usize) -> (Node, Option<Node>) {
        let [all, _] = x.matrix();
        if rows == all {
            return (x.clone(), None);
        }
        (self.slice(x, 0, 0, rows), Some(self.slice(x, 0, rows, all)))
    }

    /// Appends rows to what [`Builder::first`] left.
    pub fn last(&mut self, rest: Option<&Node>, rows: &Node) -> Node {
        match rest {
            None => rows.clone(),
            Some(rest) => self.concat(&[rest, rows], 0),
        }
    }

    /// Concatenates feature maps along the channels.
    pub fn concat_channels(&mut self, a: &Node, b: &Node) -> Node {
        let ([batch, first, height, width], [_, second, ..]) = (a.map(), b.map());
        self.op("Concat", &[a, b], &[("axis", Int(1))], &[batch, first + second, height, width])
    }

    /// Enlarges feature maps by repeating pixels, to twice a side or one pixel less.
    pub fn enlarge(&mut self, x: &Node, height: usize, width: usize) -> Node {
        let [batch, channels, ..] = x.map();
        let shape = [batch, channels, height, width];
        if self.data_type() == DataType::BFLOAT16 {
            // Devices lack a `Resize` kernel for this type.
            return self.repeat_pixels(x, height, width);
        }
        let sizes = self.list(&super::dims(&shape));
        let names = vec![x.name.clone(), String::new(), String::new(), sizes.name];
        let attributes = [
            ("mode", Text("nearest")),
            ("nearest_mode", Text("floor")),
            ("coordinate_transformation_mode", Text("asymmetric")),
        ];
        self.op_with_names("Resize", names, &attributes, &shape)
    }

    /// [`Builder::enlarge`] without the `Resize` operator.
    pub fn repeat_pixels(&mut self, x: &Node, height: usize, width: usize) -> Node {
        let [batch, channels, rows, columns] = x.map();
        let pixels = self.reshape(x, &[batch, channels, rows, 1, columns, 1]);
        let squares = self.expand(&pixels, &[batch, channels, rows, 2, columns, 2]);
        let twice = self.reshape(&squares, &[batch, channels, rows * 2, columns * 2]);
        if !self.any_size() && twice.shape() == [batch, channels, height, width] {
            return twice;
        }
        let twice = self.slice(&twice, 2, 0, height);
        self.slice(&twice, 3, 0, width)
    }

    /// Feature maps as rows, one for each position of each picture.
    pub fn to_rows(&mut self, x: &Node) -> Node {
        let [batch, channels, height, width] = x.map();
        let flat = self.reshape(x, &[batch, channels, height * width]);
        let rows = self.transpose(&flat, &[0, 2, 1]);
        self.reshape(&rows, &[batch * height * width, channels])
    }

    /// Rows as feature maps of the given height and width.
    pub fn to_map(&mut self, x: &Node, height: usize, width: usize) -> Node {
        let [rows, channels] = x.matrix();
        let batch = rows / (height * width);
        let rows = self.reshape(x, &[batch, height * width, channels]);
        let flat = self.transpose(&rows, &[0, 2, 1]);
        self.reshape(&flat, &[batch, channels, height, width])
    }
}
