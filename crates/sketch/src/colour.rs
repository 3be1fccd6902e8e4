//! Colours, and the colours that a prompt can name.

use std::ops::{Add, Mul};

use super::vocabulary::named;

/// Red, green and blue, nominally in `0.0..=1.0` and gamma-encoded as in the PNG.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Colour {
    pub r: f32,
    pub g: f32,
    pub b: f32,
}

/// Converts a colour from hexadecimal RGB.
pub const fn hex(rgb: u32) -> Colour {
    Colour {
        r: ((rgb >> 16) & 255) as f32 / 255.0,
        g: ((rgb >> 8) & 255) as f32 / 255.0,
        b: (rgb & 255) as f32 / 255.0,
    }
}

/// A shade of grey.
pub const fn grey(level: f32) -> Colour {
    Colour { r: level, g: level, b: level }
}

impl Colour {
    /// Interpolates towards `other` by `amount` in `0.0..=1.0`.
    #[inline]
    pub fn mix(self, other: Self, amount: f32) -> Self {
        self * (1.0 - amount) + other * amount
    }

    /// Component-wise product: a surface of this colour under that light.
    #[inline]
    pub fn under(self, light: Self) -> Self {
        Self { r: self.r * light.r, g: self.g * light.g, b: self.b * light.b }
    }

    /// Adds light without exceeding white.
    #[inline]
    pub fn screen(self, light: Self) -> Self {
        let one = |a: f32, b: f32| a + b * (1.0 - a).max(0.0);
        Self { r: one(self.r, light.r), g: one(self.g, light.g), b: one(self.b, light.b) }
    }

    /// Perceived brightness.
    #[inline]
    pub fn luma(self) -> f32 {
        self.r * 0.299 + self.g * 0.587 + self.b * 0.114
    }

    /// Multiplies the distance from grey by `amount`.
    #[inline]
    pub fn saturate(self, amount: f32) -> Self {
        grey(self.luma()).mix(self, amount)
    }

    /// Clamps every component to `0.0..=1.0`.
    #[inline]
    pub fn clamp(self) -> Self {
        self.map(|c| c.clamp(0.0, 1.0))
    }

    /// Applies `f` to each component.
    #[inline]
    pub fn map(self, f: impl Fn(f32) -> f32) -> Self {
        Self { r: f(self.r), g: f(self.g), b: f(self.b) }
    }

    /// Squared distance to `other`.
    pub fn distance(self, other: Self) -> f32 {
        let (r, g, b) = (self.r - other.r, self.g - other.g, self.b - other.b);
        r * r * 0.3 + g * g * 0.5 + b * b * 0.2
    }

    /// Converts from hue in turns, saturation and lightness.
    pub fn hsl(hue: f32, saturation: f32, lightness: f32) -> Self {
        let channel = |offset: f32| {
            let turn = (hue + offset) - (hue + offset).floor();
            let ramp = (2.0 - (turn * 6.0 - 3.0).abs() * 1.0).clamp(0.0, 1.0);
            // `ramp` is 1 opposite turn 0; shift so that turn 0 is this channel's peak.
            lightness + saturation * (0.5 - (lightness - 0.5).abs()) * (1.0 - 2.0 * ramp)
        };
        Self { r: channel(0.0), g: channel(2.0 / 3.0), b: channel(1.0 / 3.0) }
    }

    /// Hue in turns and saturation as chroma in `0.0..=1.0`.
    pub fn hue_and_chroma(self) -> (f32, f32) {
        let (max, min) = (self.r.max(self.g).max(self.b), self.r.min(self.g).min(self.b));
        let chroma = max - min;
        if chroma <= 1e-5 {
            return (0.0, 0.0);
        }
        let sixths = if max == self.r {
            (self.g - self.b) / chroma
        } else if max == self.g {
            (self.b - self.r) / chroma + 2.0
        } else {
            (self.r - self.g) / chroma + 4.0
        };
        let turns = sixths / 6.0;
        (turns - turns.floor(), chroma)
    }
}

impl Add for Colour {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self { r: self.r + other.r, g: self.g + other.g, b: self.b + other.b }
    }
}

impl Mul<f32> for Colour {
    type Output = Self;
    #[inline]
    fn mul(self, factor: f32) -> Self {
        Self { r: self.r * factor, g: self.g * factor, b: self.b * factor }
    }
}

named! {
    /// A colour that a prompt can name.
    Tint {
        Red,
        Orange,
        Yellow,
        Gold,
        Green,
        Teal,
        Blue,
        Purple,
        Pink,
        Brown,
        Black,
        Grey,
        White,
    }
}

impl Tint {
    /// The typical colour for this name.
    pub fn colour(self) -> Colour {
        match self {
            Self::Red => hex(0xd6_2a2a),
            Self::Orange => hex(0xf0_8122),
            Self::Yellow => hex(0xf7_cf2e),
            Self::Gold => hex(0xd9_a520),
            Self::Green => hex(0x3c_a04a),
            Self::Teal => hex(0x1f_a9a6),
            Self::Blue => hex(0x2b_62d9),
            Self::Purple => hex(0x7d_3fc4),
            Self::Pink => hex(0xf0_6fae),
            Self::Brown => hex(0x7c_4a26),
            Self::Black => hex(0x26_262b),
            Self::Grey => hex(0x8b_8f96),
            Self::White => hex(0xf4_f3ee),
        }
    }

    /// Whether this is black, grey or white, which change brightness instead of hue.
    pub fn is_neutral(self) -> bool {
        matches!(self, Self::Black | Self::Grey | Self::White)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hue_survives_a_round_trip() {
        for step in 0..12 {
            let hue = step as f32 / 12.0;
            let (back, chroma) = Colour::hsl(hue, 1.0, 0.5).hue_and_chroma();
            assert!((back - hue).abs() < 0.01, "{hue} came back as {back}");
            assert!((chroma - 1.0).abs() < 0.01);
        }
    }
}
