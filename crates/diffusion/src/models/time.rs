//! Sinusoidal embeddings, which models take instead of plain numbers.

/// Cosines, then sines, of a number times falling frequencies: `size` numbers in total, which must be even.
pub fn waves(number: f32, size: usize, frequency_shift: f64) -> Vec<f32> {
    let half = size / 2;
    let frequency = |at: usize| (-(10_000_f64.ln()) * at as f64 / (half as f64 - frequency_shift)).exp();
    let angles: Vec<_> = (0..half).map(|at| number * frequency(at) as f32).collect();
    angles.iter().map(|angle| angle.cos()).chain(angles.iter().map(|angle| angle.sin())).collect()
}
