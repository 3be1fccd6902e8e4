//! Attention and its parts in transformers: head norms and rotary positions.

use std::num::NonZero;
use std::thread::available_parallelism;

use super::Attribute::{Float, Int};
use super::blocks::Heads;
use super::{Builder, Node};
use crate::Result;

/// Memory for the scores of all heads computed at a time, in bytes, unless [`FEWEST_ROWS`] need more. On 16 cores, the
/// scores of a 1024x1024 picture need four times as much, and with four references thirty times.
const SCORES_BYTES: usize = 256 << 20;

/// From this size on, in bytes, glibc gets memory for scores from the kernel each time, which zeroes it page by page.
const LARGE_BYTES: usize = 32 << 20;

/// Memory for the scores of one piece when a head's scores are that large, in bytes. They stay in the cache.
const PIECE_BYTES: usize = 4 << 20;

/// Fewest rows of a piece. Its keys and values are packed again, which costs more than the cache saves at 128 rows.
const FEWEST_ROWS_OF_A_PIECE: usize = 256;

/// Fewest rows computed at a time. Below that, packing keys and values would dominate.
const FEWEST_ROWS: usize = 64;

/// The largest head size with rotary positions. Known models have 128. Tables for a larger head would need memory
/// before the first weight is compared.
pub const MOST_OF_A_HEAD: usize = 1024;

/// Which rows a row attends to.
#[derive(Debug, Clone, Copy)]
pub enum AttentionMask<'a> {
    /// All.
    All,
    /// Itself and earlier rows. The given numbers, one per row, are added to the scores.
    Causal(Option<&'a Node>),
}

/// Cosines and sines that rotate pairs of numbers (rotary position embedding).
#[derive(Debug, Clone)]
pub struct Rotation {
    cosines: Node,
    sines: Node,
    /// Whether a pair is two neighbours, rather than two numbers half a head apart.
    neighbours: bool,
}

impl Builder<'_> {
    /// Attends from the rows of `query` to the rows of `key` and `value`. These have `shared` heads, each for the same
    /// number of query heads. Each core works on one head at a time, so that only a few heads' scores are in memory.
    pub fn attend(
        &mut self,
        [query, key, value]: [&Node; 3],
        heads: Heads,
        shared: usize,
        mask: AttentionMask<'_>,
    ) -> Node {
        let ([all, width], [all_seen, others]) = (query.matrix(), key.matrix());
        debug_assert_eq!((width, others), (heads.count * heads.size, shared * heads.size));
        let batch = self.batch;
        let [rows, seen] = [all / batch, all_seen / batch];
        let query = self.reshape(query, &[batch, rows, width]);
        let key = self.reshape(key, &[batch, seen, others]);
        let value = self.reshape(value, &[batch, seen, others]);
        if let AttentionMask::Causal(scores) = mask {
            let attributes =
                [("q_num_heads", Int(heads.count as i64)), ("kv_num_heads", Int(shared as i64)), ("is_causal", Int(1))];
            // ONNX Runtime does not repeat a mask for each row by itself.
            let scores = scores.map(|scores| self.expand(scores, &[batch, 1, rows, seen]));
            let operands = [Some(&query), Some(&key), Some(&value), scores.as_ref()];
            let operands: Vec<_> = operands.into_iter().flatten().collect();
            let mixed = self.op("Attention", &operands, &attributes, query.shape());
            return self.reshape(&mixed, &[all, width]);
        }
        let mut parts = Vec::new();
        let most = self.rows_at_a_time(rows_at_a_time(heads.count, seen)).min(rows);
        for from in (0..rows).step_by(most) {
            let to = (from + most).min(rows);
            let part = if to - from == rows { query.clone() } else { self.slice(&query, 1, from, to) };
            parts.push(self.attend_in_pieces([&part, &key, &value], heads, shared));
        }
        let mixed = self.concat(&parts.iter().collect::<Vec<_>>(), 1);
        self.reshape(&mixed, &[all, width])
    }

    /// Attention to all rows. Each head's rows are cut into pieces, which become heads of their own with the same keys
    /// and values. Each core works on one piece at a time.
    fn attend_in_pieces(&mut self, [query, key, value]: [&Node; 3], heads: Heads, shared: usize) -> Node {
        let ([batch, rows, width], [_, seen, _]) = (sizes(query), sizes(key));
        let is_large = rows * seen * size_of::<f32>() >= LARGE_BYTES && !self.any_size();
        let pieces = if is_large { rows.div_ceil(rows_of_a_piece(seen)) } else { 1 };
        if pieces == 1 {
            let counts = [("q_num_heads", Int(heads.count as i64)), ("kv_num_heads", Int(shared as i64))];
            return self.op("Attention", &[query, key, value], &counts, query.shape());
        }
        let [key, value] = [key, value].map(|x| {
            let x = self.reshape(x, &[batch, seen, shared, heads.size]);
            self.transpose(&x, &[0, 2, 1, 3])
        });
        // Pieces have equal lengths, so the remaining rows attend separately.
        let (each, mut done) = (rows / pieces, Vec::new());
        for (from, count, each) in [(0, pieces, each), (pieces * each, 1, rows - pieces * each)] {
            if each == 0 {
                continue;
            }
            let to = from + count * each;
            let some = if to - from == rows { query.clone() } else { self.slice(query, 1, from, to) };
            let some = self.reshape(&some, &[batch, count, each, heads.count, heads.size]);
            let some = self.transpose(&some, &[0, 3, 1, 2, 4]);
            let some = self.reshape(&some, &[batch, heads.count * count, each, heads.size]);
            let mixed = self.op("Attention", &[&some, &key, &value], &[], some.shape());
            let mixed = self.reshape(&mixed, &[batch, heads.count, count, each, heads.size]);
            let mixed = self.transpose(&mixed, &[0, 2, 3, 1, 4]);
            done.push(self.reshape(&mixed, &[batch, to - from, width]));
        }
        self.concat(&done.iter().collect::<Vec<_>>(), 1)
    }

    /// Divides each row, or each head of each row, by its root mean square.
    pub fn rms_norm(&mut self, x: &Node, name: &str, epsilon: f64) -> Result<Node> {
        self.scaled_norm(x, name, None, epsilon)
    }

    /// Like [`Builder::rms_norm`], then multiplies by a row of numbers.
    pub fn scaled_norm(&mut self, x: &Node, name: &str, scale: Option<&Node>, epsilon: f64) -> Result<Node> {
        let width = x.shape()[x.shape().len() - 1];
        let mut weight = self.weight(&format!("{name}.weight"), &[width])?;
        if let Some(scale) = scale {
            let scale = self.reshape(scale, &[width]);
            weight = self.mul(&weight, &scale);
        }
        let attributes = [("axis", Int(-1)), ("epsilon", Float(epsilon as f32))];
        Ok(self.op("RMSNormalization", &[x, &weight], &attributes, x.shape()))
    }

    /// [`Builder::rms_norm`] of each head by itself.
    pub fn head_norm(&mut self, x: &Node, name: &str, size: usize, epsilon: f64) -> Result<Node> {
        let [rows, width] = x.matrix();
        let heads = self.reshape(x, &[rows, width / size, size]);
        let normal = self.rms_norm(&heads, name, epsilon)?;
        Ok(self.reshape(&normal, &[rows, width]))
    }

    /// Tables for [`Builder::rotate`]: one angle for each row and each pair of numbers in a head, row after row.
    pub fn rotation(&mut self, angles: &[f64], rows: usize, neighbours: bool) -> Rotation {
        let shape = [1, rows, angles.len() / rows];
        let cosines = self.table(&shape, angles.iter().map(|angle| angle.cos() as f32).collect());
        let sines = self.table(&shape, angles.iter().map(|angle| angle.sin() as f32).collect());
        Rotation { cosines, sines, neighbours }
    }

    /// Rotates each head of each row by the angles of the row.
    pub fn rotate(&mut self, x: &Node, rotation: &Rotation, size: usize) -> Node {
        let [rows, width] = x.matrix();
        let flat = self.reshape(x, &[1, rows, width]);
        let attributes =
            [("num_heads", Int((width / size) as i64)), ("interleaved", Int(i64::from(rotation.neighbours)))];
        let Rotation { cosines, sines, .. } = rotation;
        let turned = self.op("RotaryEmbedding", &[&flat, cosines, sines], &attributes, flat.shape());
        self.reshape(&turned, &[rows, width])
    }

    /// Concatenates tensors along an axis.
    pub fn concat(&mut self, parts: &[&Node], axis: usize) -> Node {
        if let [one] = parts {
            return (*one).clone();
        }
        let mut shape = parts[0].shape().to_vec();
        shape[axis] = parts.iter().map(|part| part.shape()[axis]).sum();
        self.op("Concat", parts, &[("axis", Int(axis as i64))], &shape)
    }

    /// Splits a matrix into parts with the given numbers of columns.
    pub fn split(&mut self, x: &Node, widths: &[usize]) -> Vec<Node> {
        let mut from = 0;
        let cut = |width: &usize| {
            from += width;
            self.slice(x, 1, from - width, from)
        };
        widths.iter().map(cut).collect()
    }

    /// Normalises each row to mean 0 and variance 1, then multiplies it by `scale` + 1 and adds `shift`.
    pub fn modulate(&mut self, x: &Node, scale: &Node, shift: Option<&Node>, epsilon: f64) -> Node {
        let [_, width] = x.matrix();
        let one = self.constant(&[], vec![1.0]);
        let scale = self.add(scale, &one);
        let scale = self.reshape(&scale, &[width]);
        let shift = shift.map(|shift| self.reshape(shift, &[width]));
        let operands: Vec<_> = [Some(x), Some(&scale), shift.as_ref()].into_iter().flatten().collect();
        let attributes = [("axis", Int(-1)), ("epsilon", Float(epsilon as f32))];
        self.op("LayerNormalization", &operands, &attributes, x.shape())
    }
}

fn sizes(x: &Node) -> [usize; 3] {
    x.shape().try_into().expect("a batch of matrices")
}

/// The most rows of a head in one piece.
fn rows_of_a_piece(seen: usize) -> usize {
    (PIECE_BYTES / size_of::<f32>() / seen).max(FEWEST_ROWS_OF_A_PIECE)
}

/// The runtime works on as many heads at a time as there are cores.
fn rows_at_a_time(heads: usize, seen: usize) -> usize {
    let cores = available_parallelism().map_or(1, NonZero::get);
    (SCORES_BYTES / size_of::<f32>() / seen / heads.min(cores)).max(FEWEST_ROWS)
}

/// The angles of positions on several axes: half as many as each axis' size, each the position times a falling power of
/// `theta`.
pub fn angles<const N: usize>(positions: impl Iterator<Item = [usize; N]>, sizes: [usize; N], theta: f64) -> Vec<f64> {
    let frequency = |size: usize, at: usize| theta.powf(-((2 * at) as f64) / size as f64);
    let frequencies = sizes.map(|size| (0..size / 2).map(|at| frequency(size, at)).collect::<Vec<_>>());
    let mut angles = Vec::new();
    for position in positions {
        for (frequencies, position) in frequencies.iter().zip(position) {
            angles.extend(frequencies.iter().map(|frequency| position as f64 * frequency));
        }
    }
    angles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Noise;
    use crate::runtime::{Input, Runtime};
    use crate::weights::Weights;

    /// More rows than are computed at a time.
    const ROWS: usize = 8_200;
    /// Two query heads for one head of keys and values.
    const HEADS: Heads = Heads { count: 2, size: 4 };

    /// The mean of the values, weighted by how well their keys match the row's query.
    fn expected(numbers: &[Vec<f32>; 3], row: usize, head: usize) -> Vec<f64> {
        let [query, key, value] = numbers.each_ref().map(|all| all.chunks(HEADS.size).collect::<Vec<_>>());
        let query = query[row * HEADS.count + head];
        let fit = |key: &&[f32]| query.iter().zip(*key).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        let weights: Vec<_> = key.iter().map(|key| (fit(key) / (HEADS.size as f64).sqrt()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mean = |at: usize| weights.iter().zip(&value).map(|(weight, value)| weight * f64::from(value[at])).sum();
        (0..HEADS.size).map(mean).map(|all: f64| all / sum).collect()
    }

    #[test]
    fn rows_beyond_those_that_are_worked_on_at_a_time_attend_alike() {
        let (most, piece) = (rows_at_a_time(HEADS.count, ROWS), rows_of_a_piece(ROWS));
        assert!(most < ROWS && piece < most && !most.is_multiple_of(piece), "parts of {most} rows, pieces of {piece}");
        let weights = Weights::default();
        let mut b = Builder::new(&weights, "");
        let shapes = [HEADS.count, 1, 1].map(|heads| [ROWS, heads * HEADS.size]);
        let names = ["query", "key", "value"];
        let [query, key, value] = [0, 1, 2].map(|at| b.input(names[at], &shapes[at]));
        let mixed = b.attend([&query, &key, &value], HEADS, 1, AttentionMask::All);
        b.output("mixed", &mixed);
        let session = Runtime::Rten.load(b.finish(|_| true).expect("a graph")).expect("a session");
        let mut noise = Noise::new(1);
        let numbers = shapes.map(|shape| noise.normal(shape.iter().product()));
        let inputs = [0, 1, 2].map(|at| (names[at], Input::Floats(&shapes[at], &numbers[at])));
        let [mixed] = session.run(&inputs, ["mixed"]).expect("numbers");
        assert_eq!(mixed.len(), ROWS * HEADS.count * HEADS.size);
        for (row, head) in [0, piece, most - 1, most, ROWS - 1].into_iter().flat_map(|row| [(row, 0), (row, 1)]) {
            let found = &mixed[(row * HEADS.count + head) * HEADS.size..][..HEADS.size];
            let apart = found.iter().zip(expected(&numbers, row, head)).map(|(a, b)| (f64::from(*a) - b).abs());
            assert!(apart.fold(0.0, f64::max) < 1e-4, "row {row} of head {head}: {found:?}");
        }
    }
}
