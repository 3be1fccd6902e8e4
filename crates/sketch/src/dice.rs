//! Random numbers and noise that are identical on every machine.
//!
//! The last bits of `sin`, `exp` and `powf` differ between C libraries, so this module uses only operations that
//! IEEE 754 defines exactly. A seed therefore always gives the same picture.

/// A seeded random number generator (SplitMix64).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator from `seed` and a label, so that each part of a picture has its own sequence.
    pub fn new(seed: u64, label: &str) -> Self {
        Self(mix(seed ^ hash(label)))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number in `0.0..1.0`.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 16_777_216.0
    }

    /// A number in `low..high`.
    pub fn range(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * self.unit()
    }

    /// An index in `0..length`; 0 when `length` is 0.
    pub fn index(&mut self, length: usize) -> usize {
        ((self.unit() * length as f32) as usize).min(length.saturating_sub(1))
    }

    /// True with this probability.
    pub fn chance(&mut self, chance: f32) -> bool {
        self.unit() < chance
    }
}

/// A 64-bit hash of text (FNV-1a, then mixed), stable across versions and machines.
pub fn hash(text: &str) -> u64 {
    mix(text.bytes().fold(0xcbf2_9ce4_8422_2325, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)))
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// `x.floor()` without the call of the C library that processors before SSE 4.1 need.
#[inline]
pub fn floor(x: f32) -> f32 {
    // Beyond 2^23 all numbers are whole, and an `i32` might not hold them.
    if x.abs() >= 8_388_608.0 {
        return x;
    }
    let whole = x as i32 as f32;
    if whole > x { whole - 1.0 } else { whole }
}

/// Sine of `turns` full circles, approximated by parabolas to within 0.1 %.
pub fn wave(turns: f32) -> f32 {
    let t = turns - floor(turns);
    let (x, sign) = if t < 0.5 { (t * 2.0, 1.0) } else { (t * 2.0 - 1.0, -1.0) };
    let y = 4.0 * x * (1.0 - x);
    sign * (0.225 * (y * y - y) + y)
}

/// 0 below `low`, 1 above `high`, and an S-curve between.
pub fn smooth(low: f32, high: f32, x: f32) -> f32 {
    let t = ((x - low) / (high - low)).clamp(0.0, 1.0);
    t * t * (3.0 - 2.0 * t)
}

/// Tileable value noise from a lookup table.
#[derive(Debug)]
pub struct Noise {
    table: Box<[f32; SIDE * SIDE]>,
}

/// Cells in a row, a power of two.
const SIDE: usize = 256;

#[inline]
fn wrap(cell: i32) -> usize {
    cell as usize % SIDE
}

impl Noise {
    /// Fills the table with random numbers.
    pub fn new(mut dice: Dice) -> Self {
        let table: Box<[f32]> = (0..SIDE * SIDE).map(|_| dice.unit()).collect();
        Self { table: table.try_into().expect("a number for each cell") }
    }

    /// Value of the table at integer coordinates, which wrap around.
    pub fn cell(&self, x: i32, y: i32) -> f32 {
        self.table[wrap(y) * SIDE + wrap(x)]
    }

    /// Smooth noise in `0.0..1.0` with features one unit wide.
    #[inline]
    pub fn at(&self, x: f32, y: f32) -> f32 {
        let (left, top) = (floor(x), floor(y));
        let (fx, fy) = (x - left, y - top);
        let (sx, sy) = (fx * fx * (3.0 - 2.0 * fx), fy * fy * (3.0 - 2.0 * fy));
        let (x0, y0) = (wrap(left as i32), wrap(top as i32));
        let (x1, y1) = (wrap(x0 as i32 + 1), wrap(y0 as i32 + 1));
        let upper = self.table[y0 * SIDE + x0] * (1.0 - sx) + self.table[y0 * SIDE + x1] * sx;
        let lower = self.table[y1 * SIDE + x0] * (1.0 - sx) + self.table[y1 * SIDE + x1] * sx;
        upper * (1.0 - sy) + lower * sy
    }

    /// Octaves of [`Noise::at`] with halving scale and amplitude, in `0.0..1.0`.
    pub fn fractal(&self, x: f32, y: f32, octaves: u32) -> f32 {
        let (mut sum, mut weight, mut scale, mut total) = (0.0, 1.0, 1.0, 0.0);
        for octave in 0..octaves {
            // The offset keeps the lattices of the octaves from lining up.
            let offset = octave as f32 * 17.3;
            sum += self.at(x * scale + offset, y * scale + offset) * weight;
            total += weight;
            weight *= 0.5;
            scale *= 2.0;
        }
        sum / total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wave_follows_the_sine() {
        for step in 0..100 {
            let turns = step as f32 * 0.037 - 1.3;
            assert!((wave(turns) - (turns * std::f32::consts::TAU).sin()).abs() < 0.002);
        }
    }

    #[test]
    fn the_floor_is_that_of_the_library() {
        for x in [0.0, 0.5, -0.5, -1.0, 1.0, -1.5, 8_388_607.5, -8_388_607.5, 8_388_608.0, 1e9, -1e9, 3e38, 1e-40] {
            assert_eq!(floor(x), f32::floor(x), "{x}");
        }
    }

    #[test]
    fn noise_stays_between_its_bounds() {
        let noise = Noise::new(Dice::new(7, "test"));
        for (x, y) in [(0.0, 0.0), (-3.7, 1e9), (-1e9, -1e-9), (255.9, 256.1)] {
            assert!((0.0..=1.0).contains(&noise.fractal(x, y, 5)));
        }
    }
}
