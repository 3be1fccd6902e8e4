//! The canvas that all painters draw on.

use std::ops::Range;

use super::colour::{Colour, grey};
use super::dice::{Noise, floor};
use tintype_engine::picture::Picture;

/// A picture in progress, with floating-point colours.
#[derive(Debug, Clone)]
pub struct Canvas {
    pub width: usize,
    pub height: usize,
    pixels: Vec<Colour>,
}

impl Canvas {
    /// Creates a canvas of one colour.
    pub fn new(width: usize, height: usize, colour: Colour) -> Self {
        Self { width, height, pixels: vec![colour; width * height] }
    }

    /// Longer side in pixels: the unit for sizes that must not depend on the aspect ratio.
    pub fn span(&self) -> f32 {
        self.width.max(self.height) as f32
    }

    /// Geometric mean of both sides: the unit for the size of subjects.
    pub fn scale(&self) -> f32 {
        (self.width as f32 * self.height as f32).sqrt()
    }

    /// The pixels of one row.
    pub fn row(&self, y: usize) -> &[Colour] {
        &self.pixels[y * self.width..(y + 1) * self.width]
    }

    /// The pixels of one row, to paint on.
    pub fn row_mut(&mut self, y: usize) -> &mut [Colour] {
        &mut self.pixels[y * self.width..(y + 1) * self.width]
    }

    /// All pixels, row by row.
    pub fn pixels_mut(&mut self) -> &mut [Colour] {
        &mut self.pixels
    }

    /// Colour at a position, clamped to the canvas.
    #[inline]
    pub fn at(&self, x: i32, y: i32) -> Colour {
        let x = x.clamp(0, self.width as i32 - 1) as usize;
        let y = y.clamp(0, self.height as i32 - 1) as usize;
        self.pixels[y * self.width + x]
    }

    /// Mixes `colour` into one pixel; positions outside are ignored.
    #[inline]
    pub fn blend(&mut self, x: i32, y: i32, colour: Colour, alpha: f32) {
        if x >= 0 && y >= 0 && (x as usize) < self.width && (y as usize) < self.height {
            let pixel = &mut self.pixels[y as usize * self.width + x as usize];
            *pixel = pixel.mix(colour, alpha);
        }
    }

    /// Mixes `colour` into part of a row, with soft ends.
    pub fn span_at(&mut self, y: i32, from: f32, to: f32, colour: Colour, alpha: f32) {
        if y < 0 || y as usize >= self.height || to <= from {
            return;
        }
        let first = from.floor().max(0.0) as usize;
        let last = (to.ceil().max(0.0) as usize).min(self.width);
        if first >= last {
            return;
        }
        for (offset, pixel) in self.row_mut(y as usize)[first..last].iter_mut().enumerate() {
            let x = (first + offset) as f32;
            let cover = (x + 1.0 - from).min(1.0) * (to - x).min(1.0);
            *pixel = pixel.mix(colour, alpha * cover.clamp(0.0, 1.0));
        }
    }

    /// The columns and the rows within `radii` of a point. Outside of the canvas there are none.
    fn around(&self, centre: (f32, f32), radii: (f32, f32)) -> (Range<usize>, Range<usize>) {
        let clip = |middle: f32, radius: f32, limit: usize| {
            let end = ((middle + radius).ceil().max(0.0) as usize).min(limit);
            ((middle - radius).floor().max(0.0) as usize).min(end)..end
        };
        (clip(centre.0, radii.0, self.width), clip(centre.1, radii.1, self.height))
    }

    /// Fills an ellipse whose edge fades over `softness` times its radius.
    pub fn ellipse(&mut self, centre: (f32, f32), radii: (f32, f32), colour: Colour, alpha: f32, softness: f32) {
        let (rx, ry) = (radii.0.max(0.5), radii.1.max(0.5));
        let edge = softness.max(1.0 / rx.min(ry)).min(1.0);
        let (columns, rows) = self.around(centre, (rx, ry));
        for y in rows {
            let dy = (y as f32 + 0.5 - centre.1) / ry;
            for (x, pixel) in columns.clone().zip(&mut self.row_mut(y)[columns.clone()]) {
                let dx = (x as f32 + 0.5 - centre.0) / rx;
                let square = dx * dx + dy * dy;
                if square < 1.0 {
                    let cover = ((1.0 - square.sqrt()) / edge).min(1.0);
                    *pixel = pixel.mix(colour, alpha * cover);
                }
            }
        }
    }

    /// Adds a halo of light that fades towards `radius`.
    pub fn glow(&mut self, centre: (f32, f32), radius: f32, colour: Colour, strength: f32) {
        if radius <= 0.0 {
            return;
        }
        let (columns, rows) = self.around(centre, (radius, radius));
        let inverse = 1.0 / (radius * radius);
        for y in rows {
            let dy = y as f32 + 0.5 - centre.1;
            for (x, pixel) in columns.clone().zip(&mut self.row_mut(y)[columns.clone()]) {
                let dx = x as f32 + 0.5 - centre.0;
                let square = (dx * dx + dy * dy) * inverse;
                if square < 1.0 {
                    let fall = 1.0 - square.sqrt();
                    let light = strength * fall * fall * (0.35 + 0.65 * fall);
                    *pixel = pixel.screen(colour * light);
                }
            }
        }
    }

    /// Draws a straight stroke that tapers from `from_width` to `to_width`.
    pub fn line(&mut self, from: (f32, f32), to: (f32, f32), widths: (f32, f32), colour: Colour, alpha: f32) {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let squared_length = (dx * dx + dy * dy).max(1e-6);
        let reach = widths.0.max(widths.1) * 0.5 + 1.0;
        let bounds = |a: f32, b: f32, limit: usize| {
            let first = (a.min(b) - reach).floor().clamp(0.0, limit as f32) as usize;
            let last = (a.max(b) + reach).ceil().clamp(0.0, limit as f32) as usize;
            (first, last)
        };
        let (left, right) = bounds(from.0, to.0, self.width);
        let (top, bottom) = bounds(from.1, to.1, self.height);
        for y in top..bottom {
            for x in left..right {
                let (px, py) = (x as f32 + 0.5 - from.0, y as f32 + 0.5 - from.1);
                let along = ((px * dx + py * dy) / squared_length).clamp(0.0, 1.0);
                let (ox, oy) = (px - dx * along, py - dy * along);
                let half = (widths.0 + (widths.1 - widths.0) * along) * 0.5;
                let cover = (half + 0.5 - (ox * ox + oy * oy).sqrt()).clamp(0.0, 1.0);
                if cover > 0.0 {
                    self.blend(x as i32, y as i32, colour, alpha * cover);
                }
            }
        }
    }

    /// A copy scaled down by `factor`; each pixel is the mean of those it replaces.
    pub fn shrunk(&self, factor: usize) -> Self {
        let (width, height) = (self.width.div_ceil(factor).max(1), self.height.div_ceil(factor).max(1));
        let mut small = Self::new(width, height, grey(0.0));
        for y in 0..height {
            let rows = y * factor..((y + 1) * factor).min(self.height);
            let share = 1.0 / rows.len() as f32;
            for source in rows {
                let source = &self.pixels[source * self.width..(source + 1) * self.width];
                for (target, block) in small.row_mut(y).iter_mut().zip(source.chunks(factor)) {
                    let sum = block.iter().fold(grey(0.0), |sum, pixel| sum + *pixel);
                    *target = *target + sum * (share / block.len() as f32);
                }
            }
        }
        small
    }

    /// Interpolated colours in the row `y`, by `x`, both in pixels of this canvas.
    #[inline]
    pub fn samples(&self, y: f32) -> impl Fn(f32) -> Colour {
        let y = y - 0.5;
        let top = floor(y);
        let fy = y - top;
        let row = |y: i32| self.row(y.clamp(0, self.height as i32 - 1) as usize);
        let (upper, lower) = (row(top as i32), row(top as i32 + 1));
        let last = self.width as i32 - 1;
        move |x| {
            let x = x - 0.5;
            let left = floor(x);
            let fx = x - left;
            let (x0, x1) = ((left as i32).clamp(0, last) as usize, (left as i32 + 1).clamp(0, last) as usize);
            upper[x0].mix(upper[x1], fx).mix(lower[x0].mix(lower[x1], fx), fy)
        }
    }

    /// Blurs by about `radius` pixels with two box blurs in each direction.
    pub fn blur(&mut self, radius: usize) {
        for _ in 0..2 {
            self.blur_rows(radius);
            self.blur_columns(radius);
        }
    }

    fn blur_rows(&mut self, radius: usize) {
        let mut copy = Vec::with_capacity(self.width);
        let weight = 1.0 / (2 * radius + 1) as f32;
        for y in 0..self.height {
            let row = self.row_mut(y);
            copy.clear();
            copy.extend_from_slice(row);
            let last = copy.len() - 1;
            // The window before the first pixel, as if the first colour continued to the left.
            let mut sum = copy[0] * radius as f32;
            for x in 0..radius {
                sum = sum + copy[x.min(last)];
            }
            for (x, pixel) in row.iter_mut().enumerate() {
                sum = sum + copy[(x + radius).min(last)];
                *pixel = sum * weight;
                // The window's left edge starts one pixel before the row.
                sum = sum + copy[x.saturating_sub(radius)] * -1.0;
            }
        }
    }

    fn blur_columns(&mut self, radius: usize) {
        let copy = self.pixels.clone();
        let (width, last) = (self.width, self.height - 1);
        let row = |y: usize| &copy[y.min(last) * width..(y.min(last) + 1) * width];
        let weight = 1.0 / (2 * radius + 1) as f32;
        let mut sums: Vec<Colour> = row(0).iter().map(|pixel| *pixel * radius as f32).collect();
        for y in 0..radius {
            sums.iter_mut().zip(row(y)).for_each(|(sum, pixel)| *sum = *sum + *pixel);
        }
        for y in 0..self.height {
            let (entering, leaving) = (row(y + radius), row(y.saturating_sub(radius)));
            let target = &mut self.pixels[y * width..(y + 1) * width];
            for (((pixel, sum), new), old) in target.iter_mut().zip(&mut sums).zip(entering).zip(leaving) {
                *sum = *sum + *new;
                *pixel = *sum * weight;
                *sum = *sum + *old * -1.0;
            }
        }
    }

    /// Converts the canvas to the finished picture. `grain` is the strength of the film grain in 8-bit steps.
    pub fn into_picture(self, noise: &Noise, grain: f32) -> Picture {
        let mut bytes = Vec::with_capacity(self.pixels.len() * 3);
        for y in 0..self.height {
            for (x, pixel) in self.row(y).iter().enumerate() {
                // One value for all channels keeps the grain grey and the PNG small.
                let shift =
                    (noise.cell(x as i32 + (y as i32 / 256) * 91, y as i32 + (x as i32 / 256) * 57) - 0.5) * grain;
                let byte = |level: f32| (level * 255.0 + 0.5 + shift).clamp(0.0, 255.0) as u8;
                bytes.extend_from_slice(&[byte(pixel.r), byte(pixel.g), byte(pixel.b)]);
            }
        }
        Picture::from_rgb(self.width as u32, self.height as u32, bytes)
            .expect("three bytes were written for every pixel")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blurring_keeps_brightness() {
        let mut canvas = Canvas::new(23, 17, grey(0.25));
        canvas.blur(4);
        assert!(canvas.pixels_mut().iter().all(|pixel| (pixel.r - 0.25).abs() < 1e-4));
    }

    #[test]
    fn shrinking_keeps_the_mean() {
        let mut canvas = Canvas::new(10, 7, grey(0.0));
        canvas.row_mut(0).fill(grey(1.0));
        assert!((canvas.shrunk(16).at(0, 0).r - 1.0 / 7.0).abs() < 1e-5);
    }
}
