//! Floating-point numbers as files of weights hold them, widened to 32 bits.

use half::{bf16, f16};
use safetensors::Dtype;

/// The types that are read, for messages.
pub const SUPPORTED: &str = "F64, F32, F16, BF16, F8_E4M3 and F8_E5M2 are supported";

/// Bytes of a number; `None` for types that are not read.
pub fn byte_size(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F64 => Some(8),
        Dtype::F32 => Some(4),
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => Some(1),
        _ => None,
    }
}

/// Numbers in 32 bits. Of other types there are none.
pub fn to_f32(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    let halves = || bytes.as_chunks::<2>().0.iter().map(|half| u16::from_le_bytes(*half));
    match dtype {
        Dtype::F64 => bytes.as_chunks::<8>().0.iter().map(|number| f64::from_le_bytes(*number) as f32).collect(),
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect(),
        Dtype::BF16 => halves().map(|half| bf16::from_bits(half).to_f32()).collect(),
        Dtype::F16 => halves().map(|half| f16::from_bits(half).to_f32()).collect(),
        Dtype::F8_E4M3 => bytes.iter().map(|byte| e4m3(*byte)).collect(),
        // The upper half of 16 bits.
        Dtype::F8_E5M2 => bytes.iter().map(|byte| f16::from_bits(u16::from(*byte) << 8).to_f32()).collect(),
        _ => Vec::new(),
    }
}

/// Numbers in 32 bits, multiplied by the scale of their tensor.
pub fn scaled_f32(bytes: &[u8], dtype: Dtype, scale: Option<f32>) -> Vec<f32> {
    let mut numbers = to_f32(bytes, dtype);
    if let Some(scale) = scale {
        numbers.iter_mut().for_each(|number| *number *= scale);
    }
    numbers
}

/// A sign, four bits of the exponent and three of the number. Moved into those of 16 bits, whose exponent is larger by 8,
/// also numbers below the smallest exponent come out right. There are no infinities, and one pattern that is not a number.
fn e4m3(byte: u8) -> f32 {
    let [sign, rest] = [u16::from(byte & 0x80) << 8, u16::from(byte & 0x7f)];
    if rest == 0x7f { f32::NAN } else { f16::from_bits(sign | (rest << 7)).to_f32() * 256.0 }
}

/// The number of a tensor that has one. Programs also write whole numbers.
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
