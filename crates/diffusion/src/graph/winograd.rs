//! 3x3 convolutions with a quarter of the multiplications.
//!
//! Winograd's algorithm F(4x4, 3x3) computes tiles of 4x4 results from tiles of 6x6 pixels: it transforms the pixels
//! and the weights into 36 numbers each, multiplies them element by element, and transforms the 36 products into 16
//! results. The sum over channels in between is 36 matrix products. See Lavin and Gray, *Fast Algorithms for
//! Convolutional Neural Networks* (2015), the source of these matrices.

use super::Attribute::{Int, Ints};
use super::{Builder, Node};

/// Side of a square of results.
const RESULTS: usize = 4;
/// Side of a square of pixels.
const PIXELS: usize = 6;
/// Fewer channels than this gain nothing: the transforms take as long as they save.
const MIN_CHANNELS: usize = 64;
/// Fewer squares than this gain little: the weights are transformed on each run.
const MIN_SQUARES: usize = 64;
/// The most bytes of transformed weights for a layer that works on its map in parts. They stay in memory until the last
/// part.
const MAX_WEIGHT_BYTES: usize = 64 << 20;
/// Bytes of transformed weights at a time, which stay in the cache until used, and of transformed pixels, unless that
/// needs more than [`MAX_PARTS`] parts.
const BYTES_AT_A_TIME: usize = 16 << 20;
const MAX_PARTS: usize = 32;
const PRODUCTS: usize = PIXELS * PIXELS;

const PIXEL_TRANSFORM: [[f32; 6]; 6] = [
    [4.0, 0.0, -5.0, 0.0, 1.0, 0.0],
    [0.0, -4.0, -4.0, 1.0, 1.0, 0.0],
    [0.0, 4.0, -4.0, -1.0, 1.0, 0.0],
    [0.0, -2.0, -1.0, 2.0, 1.0, 0.0],
    [0.0, 2.0, -1.0, -2.0, 1.0, 0.0],
    [0.0, 4.0, 0.0, -5.0, 0.0, 1.0],
];
const WEIGHT_TRANSFORM: [[f32; 3]; 6] = [
    [1.0 / 4.0, 0.0, 0.0],
    [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
    [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
    [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
    [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
    [0.0, 0.0, 1.0],
];
const RESULT_TRANSFORM: [[f32; 6]; 4] = [
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
    [0.0, 1.0, -1.0, 2.0, -2.0, 0.0],
    [0.0, 1.0, 1.0, 4.0, 4.0, 0.0],
    [0.0, 1.0, -1.0, 8.0, -8.0, 1.0],
];

/// Transforms both dimensions at once: rows of squares times a square written as one row.
fn of_squares<const N: usize>(rows: &[[f32; N]]) -> Vec<f32> {
    let pairs = rows.iter().flat_map(|y| rows.iter().map(move |x| (y, x)));
    pairs.flat_map(|(y, x)| y.iter().flat_map(move |y| x.iter().map(move |x| y * x))).collect()
}

/// Whether a 3x3 convolution from `inputs` to `outputs` channels is faster this way.
pub(super) fn pays([batch, inputs, height, width]: [usize; 4], outputs: usize) -> bool {
    let is_whole = height.is_multiple_of(RESULTS) && width.is_multiple_of(RESULTS);
    let squares = batch * (height / RESULTS) * (width / RESULTS);
    let is_one_part = rows_at_a_time([batch, inputs, height, width]) >= height / RESULTS;
    let fits = is_one_part || outputs * inputs * PRODUCTS * size_of::<f32>() <= MAX_WEIGHT_BYTES;
    is_whole && inputs.min(outputs) >= MIN_CHANNELS && fits && squares >= MIN_SQUARES
}

/// Outputs whose weights are transformed together.
pub(super) fn outputs_at_a_time(inputs: usize) -> usize {
    (BYTES_AT_A_TIME / (inputs * PRODUCTS * size_of::<f32>())).max(1)
}

/// Rows of squares to work on at a time. Each part adds operators to the graph, so their number is limited.
pub(super) fn rows_at_a_time([batch, inputs, height, width]: [usize; 4]) -> usize {
    let row = batch * inputs * PRODUCTS * (width / RESULTS) * size_of::<f32>();
    (BYTES_AT_A_TIME / row.max(1)).max(height / RESULTS / MAX_PARTS)
}

impl Builder<'_> {
    /// A 3x3 convolution without bias, padded to keep the size. The matrices in `weights` have a row of 9 for each pair
    /// of an output and an input.
    ///
    /// It works on one weight matrix at a time, and on at most `rows_at_a_time` rows of squares, so that only their
    /// transforms are in memory.
    pub(super) fn conv_in_squares(&mut self, x: &Node, weights: &[Node], rows_at_a_time: usize) -> Node {
        let [batch, inputs, height, width] = x.map();
        let columns = width / RESULTS;
        let table = self.constant(&[PRODUCTS, 9], of_squares(&WEIGHT_TRANSFORM));
        let pixel_transform = self.constant(&[PRODUCTS, 1, PIXELS, PIXELS], of_squares(&PIXEL_TRANSFORM));
        let result_transform = self.constant(&[RESULTS * RESULTS, PRODUCTS], of_squares(&RESULT_TRANSFORM));
        let mut transformed: Vec<Node> = Vec::new();
        let mut done: Vec<Node> = Vec::new();
        for rows in super::blocks::parts(height / RESULTS, rows_at_a_time.max(1)) {
            let (above, below) = (usize::from(rows.start > 0), usize::from(rows.end * RESULTS < height));
            let (from, to) = (rows.start * RESULTS - above, rows.end * RESULTS + below);
            let part = if to - from == height { x.clone() } else { self.slice(x, 2, from, to) };
            // Each channel becomes a picture of its own. Rows wait for the rows before them.
            let before = done.last();
            let transform = before.map_or_else(|| pixel_transform.clone(), |done| self.after(&pixel_transform, done));
            let part = self.reshape(&part, &[batch * inputs, 1, to - from, width]);
            let pads = [1 - above as i64, 1, 1 - below as i64, 1];
            let (kernel, strides) = ([PIXELS as i64; 2], [RESULTS as i64; 2]);
            let attributes = [("kernel_shape", Ints(&kernel)), ("strides", Ints(&strides)), ("pads", Ints(&pads))];
            let shape = [batch * inputs, PRODUCTS, rows.len(), columns];
            let squares = self.op("Conv", &[&part, &transform], &attributes, &shape);
            let count = rows.len() * columns;
            let squares = self.reshape(&squares, &[batch, inputs, PRODUCTS, count]);
            let squares = self.transpose(&squares, &[0, 2, 1, 3]);
            let mut pieces: Vec<Node> = Vec::new();
            for (at, weight) in weights.iter().enumerate() {
                let outputs = weight.matrix()[0] / inputs;
                if at == transformed.len() {
                    // Otherwise the runtime would transform all of a model's weights when loading it, and keep them.
                    let table = self.after(&table, pieces.last().unwrap_or(&squares));
                    let shape = [PRODUCTS, outputs * inputs];
                    let weight = self.op("Gemm", &[&table, weight], &[("transB", Int(1))], &shape);
                    transformed.push(self.reshape(&weight, &[PRODUCTS, outputs, inputs]));
                }
                let weight = transformed[at].clone();
                let products = self.op("MatMul", &[&weight, &squares], &[], &[batch, PRODUCTS, outputs, count]);
                let products = self.reshape(&products, &[batch, PRODUCTS, outputs * count]);
                let shape = [batch, RESULTS * RESULTS, outputs * count];
                let results = self.op("MatMul", &[&result_transform, &products], &[], &shape);
                let results = self.reshape(&results, &[batch, RESULTS, RESULTS, outputs, rows.len(), columns]);
                let results = self.transpose(&results, &[0, 3, 4, 1, 5, 2]);
                pieces.push(self.reshape(&results, &[batch, outputs, rows.len() * RESULTS, width]));
            }
            done.push(self.concat(&pieces.iter().collect::<Vec<_>>(), 1));
        }
        self.concat(&done.iter().collect::<Vec<_>>(), 2)
    }

    /// The same constant, but not before `node` is computed. Runtimes start with everything that they can compute.
    fn after(&mut self, constant: &Node, node: &Node) -> Node {
        let axes: Vec<i64> = (0..node.shape().len()).map(|axis| axis as i64).collect();
        let [from, to, axes] = [&vec![0; axes.len()], &vec![1; axes.len()], &axes].map(|list| self.list(list));
        let first = self.op("Slice", &[node, &from, &to, &axes], &[], &vec![1; node.shape().len()]);
        let first = self.reshape(&first, &[1]);
        let nothing = self.scale(&first, 0.0);
        self.add(constant, &nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;
    use crate::noise::Noise;
    use crate::runtime::{Input, Runtime};
    use crate::weights::{Floats, Weights};

    const MAP: [usize; 4] = [2, 5, 20, 12];
    const OUTPUTS: usize = 7;

    /// One result, summed pixel by pixel.
    fn expected(map: &[f32], weight: &[f32], [picture, output, y, x]: [usize; 4]) -> f64 {
        let [_, inputs, height, width] = MAP;
        let mut sum = 0.0;
        for (input, dy, dx) in (0..inputs).flat_map(|i| (0..9).map(move |at| (i, at / 3, at % 3))) {
            let (y, x) = ((y + dy).wrapping_sub(1), (x + dx).wrapping_sub(1));
            if y < height && x < width {
                let pixel = map[((picture * inputs + input) * height + y) * width + x];
                sum += f64::from(pixel) * f64::from(weight[((output * inputs + input) * 3 + dy) * 3 + dx]);
            }
        }
        sum
    }

    #[test]
    fn squares_give_what_pixels_give_wherever_rows_and_weights_are_divided() {
        let [batch, inputs, height, width] = MAP;
        let mut noise = Noise::new(1);
        let (map, weight) = (noise.normal(MAP.iter().product()), noise.normal(OUTPUTS * inputs * 9));
        let places = (0..batch * OUTPUTS * height * width).map(|at| {
            let (row, x) = (at / width, at % width);
            [row / height / OUTPUTS, row / height % OUTPUTS, row % height, x]
        });
        let expected: Vec<_> = places.map(|place| expected(&map, &weight, place)).collect();
        for (rows_at_a_time, first) in [(1, 3), (2, OUTPUTS), (4, 6), (5, 3)] {
            let weights = Weights::default();
            let mut b = Builder::new(&weights, "");
            let shape = [OUTPUTS * inputs, 9];
            let (x, w) = (b.input("map", &MAP), b.input("weight", &shape));
            let pieces = [0..first, first..OUTPUTS].map(|some| b.slice(&w, 0, some.start * inputs, some.end * inputs));
            let pieces: Vec<_> = pieces.into_iter().filter(|piece| piece.matrix()[0] > 0).collect();
            let result = b.conv_in_squares(&x, &pieces, rows_at_a_time);
            assert_eq!(result.shape(), [batch, OUTPUTS, height, width]);
            b.output("result", &result);
            let session = Runtime::Rten.load(b.finish(|_| true).expect("a graph")).expect("a session");
            let values = [("map", Input::Floats(&MAP, &map)), ("weight", Input::Floats(&shape, &weight))];
            let [found] = session.run(&values, ["result"]).expect("numbers");
            assert_eq!(found.len(), expected.len());
            let apart = found.iter().zip(&expected).map(|(found, expected)| (f64::from(*found) - expected).abs());
            let apart = apart.fold(0.0, f64::max);
            // Sums of 45 products, each of about 1.
            assert!(apart < 1e-4, "{rows_at_a_time} rows and {first} outputs at a time: off by {apart}");
        }
    }

    /// A weights file for one convolution, with random numbers.
    fn file(channels: usize) -> Weights {
        let count = channels * channels * 9;
        let numbers: Vec<u8> = Noise::new(2).normal(count + channels).iter().flat_map(|x| x.to_le_bytes()).collect();
        let (weight, bias) = (format!("[0,{}]", count * 4), format!("[{},{}]", count * 4, numbers.len()));
        let mut header = format!(
            r#"{{"conv.weight":{{"dtype":"F32","shape":[{channels},{channels},3,3],"data_offsets":{weight}}},
            "conv.bias":{{"dtype":"F32","shape":[{channels}],"data_offsets":{bias}}}}}"#
        );
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &numbers].concat();
        Weights::parse("conv.safetensors".into(), file.leak()).expect("weights")
    }

    /// The graph of a convolution, and its operator that reads the weights.
    fn convolution(weights: &Weights, map: [usize; 4]) -> (Graph, String) {
        let mut b = Builder::new(weights, "");
        let x = b.input("map", &map);
        let result = b.conv(&x, "conv", map[1], 3, 1).expect("weights that fit");
        assert_eq!(result.shape(), map);
        b.output("result", &result);
        let graph = b.finish(|_| false).expect("a graph");
        let reader = graph.proto.node.iter().find(|node| node.input.iter().any(|input| input == "conv.weight"));
        let operator = reader.and_then(|node| node.op_type.as_ref()).expect("an operator").to_string();
        (graph, operator)
    }

    #[test]
    fn large_maps_of_many_channels_are_worked_on_in_squares_and_others_are_not() {
        let weights = file(MIN_CHANNELS);
        let direct = weights.clone().with_direct_convolutions();
        for (side, expected) in [(64, "Gemm"), (32, "Gemm"), (62, "Conv"), (16, "Conv")] {
            let map = [1, MIN_CHANNELS, side, side];
            let numbers = Noise::new(3).normal(map.iter().product());
            let [(found, operator), (direct, of_runtime)] = [&weights, &direct].map(|weights| {
                let (graph, operator) = convolution(weights, map);
                let session = Runtime::Rten.load(graph).expect("a session");
                let [result] = session.run(&[("map", Input::Floats(&map, &numbers))], ["result"]).expect("numbers");
                (result, operator)
            });
            assert_eq!([operator.as_str(), &of_runtime], [expected, "Conv"], "a side of {side}");
            // Sums of 576 products, so of about 24.
            let apart = found.iter().zip(&direct).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(apart < 1e-3, "a side of {side}: off by {apart}");
        }
        for others in [weights.clone().for_any_size(true), weights.computing_in(Floats::F16)] {
            assert_eq!(convolution(&others, [1, MIN_CHANNELS, 64, 64]).1, "Conv", "{others:?}");
        }
    }
}
