//! Gaussian noise identical to PyTorch's on a processor, so that a seed makes the same picture as in `diffusers`.

use std::f64::consts::TAU;

const SIZE: usize = 624;
const SHIFT: usize = 397;

/// A noise source. PyTorch uses a Mersenne Twister and makes its numbers normally distributed in blocks of 16.
#[derive(Debug, Clone)]
pub struct Noise {
    state: [u32; SIZE],
    next: usize,
}

impl Noise {
    /// Starts with a seed. PyTorch uses only the lower 32 bits. Here the upper bits are mixed in, so that seeds that
    /// differ only in them give different pictures, and smaller seeds match PyTorch.
    pub fn new(seed: u64) -> Self {
        let mut state = [0; SIZE];
        state[0] = seed as u32 ^ (seed >> 32) as u32;
        for at in 1..SIZE {
            let last: u32 = state[at - 1];
            state[at] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(at as u32);
        }
        Self { state, next: SIZE }
    }

    fn bits(&mut self) -> u32 {
        if self.next == SIZE {
            for at in 0..SIZE {
                let mixed = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % SIZE] & 0x7fff_ffff);
                let odd = if mixed & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[at] = self.state[(at + SHIFT) % SIZE] ^ (mixed >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut bits = self.state[self.next];
        self.next += 1;
        bits ^= bits >> 11;
        bits ^= (bits << 7) & 0x9d2c_5680;
        bits ^= (bits << 15) & 0xefc6_0000;
        bits ^ (bits >> 18)
    }

    /// From 0 to less than 1, in steps of 2^-24.
    fn uniform(&mut self) -> f32 {
        (self.bits() & 0x00ff_ffff) as f32 / 16_777_216.0
    }

    /// The next `count` numbers, at least 16: PyTorch draws fewer in a different way, which no picture needs.
    ///
    /// # Panics
    /// If `count` is less than 16.
    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        assert!(count >= 16, "no latent picture is that small");
        let mut numbers: Vec<f32> = (0..count).map(|_| self.uniform()).collect();
        let whole = count / 16 * 16;
        for block in numbers[..whole].chunks_exact_mut(16) {
            box_muller(block);
        }
        if whole < count {
            // The last block overlaps the previous one, but has its own numbers.
            let last = &mut numbers[count - 16..];
            last.fill_with(|| self.uniform());
            box_muller(last);
        }
        numbers
    }
}

fn box_muller(block: &mut [f32]) {
    for at in 0..8 {
        let (first, second) = (1.0 - f64::from(block[at]), f64::from(block[at + 8]));
        let radius = (-2.0 * first.ln()).sqrt();
        let angle = TAU * second;
        block[at] = (radius * angle.cos()) as f32;
        block[at + 8] = (radius * angle.sin()) as f32;
    }
}
