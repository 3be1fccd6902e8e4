//! What a LoRA file adds to one tensor of a model.

use std::ops::Range;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use super::names::Algorithm;
use crate::weights::float_formats::{byte_size, scaled_f32};
use crate::weights::{TensorEntry, Weights};

/// Products from which a merge is worth several threads.
const MANY_PRODUCTS: usize = 1 << 22;

/// Numbers in a mapped file, or computed from some. They live as long as the process.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    pub bytes: &'static [u8],
    pub dtype: Dtype,
    /// What they are multiplied by.
    pub scale: Option<f32>,
}

impl Numbers {
    pub(super) fn of(weights: &Weights, entry: &TensorEntry) -> Self {
        Self { bytes: weights.bytes(entry), dtype: entry.dtype, scale: entry.scale }
    }

    pub(super) fn from_f32(numbers: &[f32]) -> Self {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        Self { bytes: bytes.leak(), dtype: Dtype::F32, scale: None }
    }

    fn size(&self) -> usize {
        byte_size(self.dtype).unwrap_or(1)
    }

    fn floats(&self, range: Range<usize>) -> Vec<f32> {
        let size = self.size();
        scaled_f32(&self.bytes[range.start * size..range.end * size], self.dtype, self.scale)
    }

    pub(super) fn all(&self) -> Vec<f32> {
        self.floats(0..self.bytes.len() / self.size())
    }

    /// This matrix with `columns` columns, transposed.
    pub(super) fn transposed(&self, columns: usize) -> Self {
        let (size, mut bytes) = (self.size(), Vec::with_capacity(self.bytes.len()));
        for column in 0..columns {
            for row in self.bytes.chunks_exact(columns * size) {
                bytes.extend_from_slice(&row[column * size..(column + 1) * size]);
            }
        }
        Self { bytes: bytes.leak(), ..*self }
    }
}

/// A matrix: whole, or as the product of two thin ones.
#[derive(Debug, Clone)]
pub(super) struct Factor {
    pub rows: usize,
    pub columns: usize,
    /// The whole matrix, or the first thin one, with one row per row of the product.
    pub up: Numbers,
    /// The rank, and the second thin matrix, with one column per column of the product.
    pub down: Option<(usize, Numbers)>,
}

impl Factor {
    pub(super) fn rank(&self) -> Option<usize> {
        self.down.as_ref().map(|(rank, _)| *rank)
    }

    pub(super) fn transposed(self) -> Self {
        let Self { rows, columns, up, down } = self;
        let (up, down) = match down {
            Some((rank, down)) => (down.transposed(columns), Some((rank, up.transposed(rank)))),
            None => (up.transposed(columns), None),
        };
        Self { rows: columns, columns: rows, up, down }
    }

    /// Some of its rows in 32 bits.
    fn widened(&self, rows: Range<usize>) -> WidenedFactor {
        let width = self.rank().unwrap_or(self.columns);
        let up = self.up.floats(rows.start * width..rows.end * width);
        WidenedFactor {
            first: rows.start,
            width,
            columns: self.columns,
            up,
            down: self.down.as_ref().map(|(_, down)| down.all()),
        }
    }
}

struct WidenedFactor {
    first: usize,
    width: usize,
    columns: usize,
    up: Vec<f32>,
    down: Option<Vec<f32>>,
}

impl WidenedFactor {
    /// Adds a row times `scale`.
    fn add(&self, row: usize, scale: f32, to: &mut [f32]) {
        let up = &self.up[(row - self.first) * self.width..][..self.width];
        let mut add = |factor: f32, numbers: &[f32]| to.iter_mut().zip(numbers).for_each(|(to, x)| *to += factor * x);
        match &self.down {
            Some(down) => up.iter().zip(down.chunks_exact(self.columns)).for_each(|(up, row)| add(up * scale, row)),
            None => add(scale, up),
        }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let mut numbers = vec![0.0; self.columns];
        self.add(row, 1.0, &mut numbers);
        numbers
    }
}

/// DoRA: the rows or the columns of the changed tensor get magnitudes of their own (arXiv 2402.09353).
#[derive(Debug, Clone)]
pub(super) struct Dora {
    /// The magnitudes.
    pub magnitudes: Vec<f32>,
    /// Whether there is one per row, as in PEFT and newer LyCORIS files. OneTrainer has one per input.
    pub is_by_row: bool,
    /// The tensor before any change.
    pub base: Numbers,
    /// What each column is multiplied by.
    pub column_factors: OnceLock<Vec<f32>>,
}

/// What is added to a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// Strength of the LoRA file.
    pub(super) weight: f32,
    /// The factor that the product is multiplied by.
    pub(super) scale: f32,
    pub(super) algorithm: Algorithm,
    /// One factor, or two to multiply.
    pub(super) factors: Vec<Factor>,
    /// The product's first row that belongs to the tensor.
    pub(super) first: usize,
    /// The tensor's number of rows, if the second half of the product comes first.
    pub(super) swapped: Option<usize>,
    pub(super) dora: Option<Dora>,
}

impl Change {
    fn product_row(&self, row: usize) -> usize {
        self.first + self.swapped.map_or(row, |all| (row + all / 2) % all)
    }

    fn widened(&self, rows: Range<usize>) -> Vec<WidenedFactor> {
        if self.swapped.is_some() {
            return self.factors.iter().map(|factor| factor.widened(0..factor.rows)).collect();
        }
        let rows = self.product_row(rows.start)..self.product_row(rows.end);
        if let (Algorithm::Lokr, [one, other]) = (self.algorithm, &self.factors[..]) {
            let [first, last] = [rows.start, rows.end - 1];
            let of_one = first / other.rows..last / other.rows + 1;
            let of_other = if of_one.len() == 1 { first % other.rows..last % other.rows + 1 } else { 0..other.rows };
            return vec![one.widened(of_one), other.widened(of_other)];
        }
        self.factors.iter().map(|factor| factor.widened(rows.clone())).collect()
    }

    /// Adds a row of the scaled product times `by`.
    fn add_row(&self, widened: &[WidenedFactor], row: usize, by: f32, to: &mut [f32]) {
        let (row, by) = (self.product_row(row), by * self.scale);
        match (self.algorithm, widened) {
            (Algorithm::Loha, [one, other]) => {
                let (one, other) = (one.row(row), other.row(row));
                to.iter_mut().zip(one.iter().zip(other)).for_each(|(to, (one, other))| *to += by * one * other);
            }
            (Algorithm::Lokr, [one, other]) => {
                let rows = self.factors[1].rows;
                let (one, other) = (one.row(row / rows), other.row(row % rows));
                for (to, one) in to.chunks_exact_mut(other.len()).zip(one) {
                    to.iter_mut().zip(&other).for_each(|(to, other)| *to += by * one * other);
                }
            }
            _ => widened.iter().for_each(|widened| widened.add(row, by, to)),
        }
    }

    /// A row of the tensor before and after this change alone, without the new magnitudes.
    fn before_and_after(&self, dora: &Dora, widened: &[WidenedFactor], row: usize, width: usize) -> [Vec<f32>; 2] {
        let base = dora.base.floats(row * width..(row + 1) * width);
        let mut sum = base.clone();
        self.add_row(widened, row, 1.0, &mut sum);
        [base, sum]
    }

    /// The factors that give a tensor's columns their magnitudes.
    fn column_factors<'d>(&self, dora: &'d Dora, width: usize) -> &'d [f32] {
        dora.column_factors.get_or_init(|| {
            let rows = dora.base.bytes.len() / dora.base.size() / width;
            let (widened, kernel) = (self.widened(0..rows), width / dora.magnitudes.len());
            let mut squares = vec![0.0_f64; dora.magnitudes.len()];
            for row in 0..rows {
                let [_, sum] = self.before_and_after(dora, &widened, row, width);
                for (square, numbers) in squares.iter_mut().zip(sum.chunks_exact(kernel)) {
                    *square += numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
                }
            }
            let magnitudes = dora.magnitudes.iter().zip(squares);
            magnitudes.flat_map(|(magnitude, square)| vec![norm_ratio(*magnitude, square); kernel]).collect()
        })
    }

    /// Adds the change to a row of the tensor.
    fn add(&self, widened: &[WidenedFactor], row: usize, to: &mut [f32]) {
        let Some(dora) = &self.dora else { return self.add_row(widened, row, self.weight, to) };
        let [base, mut sum] = self.before_and_after(dora, widened, row, to.len());
        if dora.is_by_row {
            let square = sum.iter().map(|x| f64::from(*x).powi(2)).sum();
            let factor = norm_ratio(dora.magnitudes[self.product_row(row)], square);
            sum.iter_mut().for_each(|x| *x *= factor);
        } else {
            sum.iter_mut().zip(self.column_factors(dora, to.len())).for_each(|(x, factor)| *x *= factor);
        }
        to.iter_mut().zip(sum.iter().zip(base)).for_each(|(to, (sum, base))| *to += self.weight * (sum - base));
    }

    /// Adds the change to some rows of the tensor.
    pub(crate) fn add_to(&self, rows: Range<usize>, numbers: &mut [f32]) {
        let count = rows.len().max(1);
        let width = numbers.len() / count;
        if width == 0 {
            return;
        }
        let widened = self.widened(rows.clone());
        let products = numbers.len() * self.factors.iter().filter_map(Factor::rank).sum::<usize>();
        let threads = if products < MANY_PRODUCTS { 1 } else { available_parallelism().map_or(1, usize::from) };
        let each = count.div_ceil(threads);
        let add = |(part, numbers): (usize, &mut [f32])| {
            let rows = rows.start + part * each..;
            rows.zip(numbers.chunks_exact_mut(width)).for_each(|(row, numbers)| self.add(&widened, row, numbers));
        };
        let parts = numbers.chunks_mut(each * width).enumerate();
        if threads == 1 {
            parts.for_each(add);
        } else {
            let add = &add;
            std::thread::scope(|scope| parts.for_each(|part| drop(scope.spawn(move || add(part)))));
        }
    }

    /// Adds everything about the change to a digest.
    pub(super) fn digest(&self, digest: &mut Sha256) {
        let Self { weight, scale, algorithm, factors, first, swapped, dora } = self;
        let dora = dora.as_ref().map(|dora| (&dora.magnitudes, dora.is_by_row));
        digest.update(format!("{weight:?} {scale:?} {algorithm:?} {first} {swapped:?} {dora:?} {}\n", factors.len()));
        for Factor { rows, columns, up, down } in factors {
            digest.update(format!("{rows} {columns} {:?}\n", down.as_ref().map(|(rank, _)| rank)));
            let down = down.as_ref().map(|(_, down)| down);
            for Numbers { bytes, dtype, scale } in [Some(up), down].into_iter().flatten() {
                digest.update(format!("{dtype:?} {scale:?} {}\n", bytes.len()));
                digest.update(bytes);
            }
        }
    }
}

/// The factor that gives numbers with this sum of squares a magnitude.
fn norm_ratio(magnitude: f32, square: f64) -> f32 {
    (f64::from(magnitude) / (square.sqrt() + f64::from(f32::EPSILON))) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_transposed_matrix_is_the_transposed_change() {
        let numbers = |count: u8| Numbers::from_f32(&(1..=count).map(f32::from).collect::<Vec<_>>());
        // Six outputs and four inputs as a product of rank 2; and smaller, two outputs and two inputs.
        let thin = Factor { rows: 6, columns: 4, up: numbers(12), down: Some((2, numbers(8))) };
        let whole = Factor { rows: 6, columns: 4, up: numbers(24), down: None };
        let [small, other] = [2, 3].map(|rows| Factor { rows, columns: 2, up: numbers(rows as u8 * 2), down: None });
        for (algorithm, factors) in [
            (Algorithm::Lora, vec![thin.clone()]),
            (Algorithm::Loha, vec![thin, whole]),
            (Algorithm::Lokr, vec![small, other]),
        ] {
            let change =
                |factors| Change { weight: 1.0, scale: 0.5, algorithm, factors, first: 0, swapped: None, dora: None };
            let (mut usual, mut transposed) = ([0.0; 24], [0.0; 24]);
            change(factors.clone()).add_to(0..6, &mut usual);
            for (begin, end) in (0..6).flat_map(|begin| (begin + 1..=6).map(move |end| (begin, end))) {
                let mut some = vec![0.0; (end - begin) * 4];
                change(factors.clone()).add_to(begin..end, &mut some);
                assert_eq!(some, usual[begin * 4..end * 4], "{algorithm:?}: rows {begin} to {end}");
            }
            change(factors.into_iter().map(Factor::transposed).collect()).add_to(0..4, &mut transposed);
            for (row, column) in (0..6).flat_map(|row| (0..4).map(move |column| (row, column))) {
                let (one, other) = (usual[row * 4 + column], transposed[column * 6 + row]);
                assert!((one - other).abs() < 1e-4 && one > 0.0, "{algorithm:?}: {one} {other}");
            }
        }
    }
}
