//! Floating-point numbers in the formats of weights files, widened to 32 bits.

use safetensors::Dtype;

/// The supported types, for messages.
pub const SUPPORTED: &str = "F64, F32, F16, BF16, F8_E4M3 and F8_E5M2 are supported";

/// Bytes per number; `None` for unsupported types.
pub fn byte_size(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => Some(1),
        _ => None,
    }
}

/// The numbers in 32 bits. Empty for unsupported types.
pub fn to_f32(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
    match dtype {
        Dtype::F64 => bytes.as_chunks::<8>().0.iter().map(|number| f64::from_le_bytes(*number) as f32).collect(),
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect(),
        Dtype::BF16 => halves().map(|half| f32::from_bits(u32::from(half) << 16)).collect(),
        Dtype::F16 => halves().map(from_f16).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|byte| e4m3(*byte)).collect(),
        // An F8_E5M2 is the upper half of an F16.
        Dtype::F8_E5M2 => bytes.iter().map(|byte| from_f16(u16::from(*byte) << 8)).collect(),
        _ => Vec::new(),
    }
}

/// The numbers in 32 bits, multiplied by their tensor's scale.
pub fn scaled_f32(bytes: &[u8], dtype: Dtype, scale: Option<f32>) -> Vec<f32> {
    let mut numbers = to_f32(bytes, dtype);
    if let Some(scale) = scale {
        numbers.iter_mut().for_each(|number| *number *= scale);
    }
    numbers
}

/// Converts an F8_E4M3: a sign, four exponent bits and three mantissa bits. Moved into the bits of an F16, whose
/// exponent bias is larger by 8, subnormals come out right too. There are no infinities, and one pattern is NaN.
fn e4m3(byte: u8) -> f32 {
    let [sign, rest] = [u16::from(byte & 0x80) << 8, u16::from(byte & 0x7f)];
    if rest == 0x7f { f32::NAN } else { from_f16(sign | (rest << 7)) * 256.0 }
}

/// Converts an F16 (IEEE): a sign, five exponent bits and ten mantissa bits.
fn from_f16(half: u16) -> f32 {
    let [sign, rest] = [u32::from(half & 0x8000) << 16, u32::from(half & 0x7fff)];
    let magnitude = match rest {
        // Subnormal. In units of its last bit, it is an integer.
        ..0x0400 => (rest as f32 * f32::EPSILON / 2.0).to_bits(),
        // The F32 exponent bias is larger by 112. Infinity and NaN need 224.
        0x0400..0x7c00 => (rest << 13) + (112 << 23),
        _ => (rest << 13) + (224 << 23),
    };
    f32::from_bits(sign | magnitude)
}

/// Converts to F16, rounding to nearest, ties to even.
pub(super) fn to_f16(number: f32) -> u16 {
    let bits = number.to_bits();
    let [sign, rest] = [(bits >> 16) & 0x8000, bits & 0x7fff_ffff];
    let magnitude = match rest {
        // The last bits of 0.5 and of F16 subnormals have the same value, so adding 0.5 rounds.
        ..0x3880_0000 => (f32::from_bits(rest) + 0.5).to_bits() - 0.5_f32.to_bits(),
        0x3880_0000..0x4780_0000 => (rest + 0x0fff + ((rest >> 13) & 1) - (112 << 23)) >> 13,
        0x4780_0000..=0x7f80_0000 => 0x7c00,
        _ => 0x7e00,
    };
    (sign | magnitude) as u16
}

/// Converts to BF16, the upper half of an F32, rounding to nearest, ties to even.
pub(super) fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = if number.is_nan() { bits | 0x0040_0000 } else { bits + 0x7fff + ((bits >> 16) & 1) };
    (rounded >> 16) as u16
}

/// The number in a tensor with a single one. Programs also write integers.
pub fn single_number(bytes: &[u8], dtype: Dtype) -> Option<f64> {
    Some(match dtype {
        Dtype::F64 => f64::from_le_bytes(bytes.try_into().ok()?),
        Dtype::I64 => i64::from_le_bytes(bytes.try_into().ok()?) as f64,
        Dtype::U64 => u64::from_le_bytes(bytes.try_into().ok()?) as f64,
        Dtype::I32 => i32::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::U32 => u32::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I16 => i16::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::U16 => u16::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::I8 => i8::from_le_bytes(bytes.try_into().ok()?).into(),
        Dtype::U8 => u8::from_le_bytes(bytes.try_into().ok()?).into(),
        _ => match to_f32(bytes, dtype)[..] {
            [number] => number.into(),
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn halves_are_those_of_another_implementation() {
        for half in 0..=u16::MAX {
            let (wide, expected) = (from_f16(half), f16::from_bits(half).to_f32());
            assert!(wide.to_bits() == expected.to_bits() || (wide.is_nan() && expected.is_nan()), "{half:x}");
            for x in [wide, f32::from_bits(u32::from(half) << 16)] {
                // Halfway to the next F16, and next to halfway.
                for bits in [0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001] {
                    let x = f32::from_bits(x.to_bits() ^ bits);
                    let expected = [f16::from_f32(x).to_bits(), bf16::from_f32(x).to_bits()];
                    assert!(x.is_nan() || [to_f16(x), to_bf16(x)] == expected, "{x:e}");
                    assert!(
                        !x.is_nan() || (f16::from_bits(to_f16(x)).is_nan() && bf16::from_bits(to_bf16(x)).is_nan())
                    );
                }
            }
        }
    }
}
