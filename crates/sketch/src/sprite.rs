//! Rendering of a subject for its position in a scene, with colour, light and shadow.

use resvg::{tiny_skia, usvg};

use super::canvas::Canvas;
use super::colour::{Colour, Tint, grey, hex};
use super::dice::{Noise, smooth};
use super::figure::Figure;
use super::glyph::Glyph;
use super::light::Light;

/// Colours of clothes when the prompt names none.
const CLOTHES: [&str; 6] = ["#c0453a", "#3d6fa8", "#4f8a5b", "#8a5aa0", "#d08a3a", "#3f8a90"];

/// Position and size of a sprite on the canvas.
#[derive(Debug, Clone, Copy)]
pub struct Spot {
    /// Middle of the lower edge.
    pub foot: (f32, f32),
    pub height: f32,
    pub is_mirrored: bool,
    /// Distance from 0 (near) to 1 (horizon).
    pub distance: f32,
}

/// A rendered subject.
#[derive(Debug)]
pub struct Sprite {
    width: usize,
    height: usize,
    /// Colour and coverage of each pixel.
    pixels: Vec<(Colour, f32)>,
    /// Blurred coverage; its gradient approximates the surface normal near the edge.
    relief: Vec<f32>,
}

impl Sprite {
    /// Renders a glyph `height` pixels tall; `None` if it is too small to see. `look` varies the appearance of people
    /// where the prompt leaves it open.
    pub fn render(glyph: &Glyph, tint: Option<Tint>, height: f32, look: usize) -> Option<Self> {
        let dress = tint.map_or_else(|| CLOTHES[look % CLOTHES.len()].to_owned(), |tint| css(tint.colour()));
        let figure = Figure::of(glyph, &dress, tint.is_some(), look / CLOTHES.len());
        let tree = usvg::Tree::from_str(&figure.svg, &usvg::Options::default()).ok()?;
        let scale = (height / figure.size.1).max(0.1);
        let (width, height) = ((figure.size.0 * scale).ceil() as u32 + 2, (figure.size.1 * scale).ceil() as u32 + 2);
        let mut pixmap = tiny_skia::Pixmap::new(width, height)?;
        let transform = tiny_skia::Transform::from_row(scale, 0.0, 0.0, scale, 1.0, 1.0);
        resvg::render(&tree, transform, &mut pixmap.as_mut());
        let mut sprite = Self::trimmed(&pixmap)?;
        if let Some(tint) = tint.filter(|_| !figure.is_dressed) {
            sprite.dye(tint);
        }
        sprite.relief = sprite.blurred_coverage();
        Some(sprite)
    }

    /// Ratio of width to height.
    pub fn aspect(&self) -> f32 {
        self.width as f32 / self.height as f32
    }

    /// Crops empty margins, so that feet touch the ground.
    fn trimmed(pixmap: &tiny_skia::Pixmap) -> Option<Self> {
        let (width, height) = (pixmap.width() as usize, pixmap.height() as usize);
        let covered = |x: usize, y: usize| pixmap.pixels()[y * width + x].alpha() > 24;
        let top = (0..height).find(|&y| (0..width).any(|x| covered(x, y)))?;
        let bottom = (0..height).rev().find(|&y| (0..width).any(|x| covered(x, y)))?;
        let left = (0..width).find(|&x| (0..height).any(|y| covered(x, y)))?;
        let right = (0..width).rev().find(|&x| (0..height).any(|y| covered(x, y)))?;
        let mut pixels = Vec::with_capacity((right - left + 1) * (bottom - top + 1));
        for y in top..=bottom {
            for x in left..=right {
                let pixel = pixmap.pixels()[y * width + x].demultiply();
                let level = |channel: u8| f32::from(channel) / 255.0;
                let colour = Colour { r: level(pixel.red()), g: level(pixel.green()), b: level(pixel.blue()) };
                pixels.push((colour, level(pixel.alpha())));
            }
        }
        Some(Self { width: right - left + 1, height: bottom - top + 1, pixels, relief: Vec::new() })
    }

    /// Recolours the subject, except eyes, outlines and highlights.
    fn dye(&mut self, tint: Tint) {
        let solid = self.pixels.iter().filter(|(_, alpha)| *alpha > 0.5);
        let (sum, count) = solid.fold((0.0, 0.0), |(sum, count), (colour, _)| (sum + colour.luma(), count + 1.0));
        let mean = (sum / f32::max(count, 1.0)).max(0.15);
        let target = tint.colour();
        for (colour, _) in &mut self.pixels {
            let luma = colour.luma();
            let (_, chroma) = colour.hue_and_chroma();
            // An area much brighter than the rest is a belly, a window or a tooth.
            let is_detail = if luma < 0.25 && chroma < 0.2 {
                1.0
            } else {
                smooth(mean + 0.2, mean + 0.36, luma).max(smooth(0.93, 0.98, luma))
            };
            let keeps = if tint.is_neutral() { 0.35 * is_detail } else { 0.08 + 0.9 * is_detail };
            let relief = (luma / mean - 1.0) * if tint.is_neutral() { 0.32 } else { 0.5 };
            let dyed =
                if relief > 0.0 { target.mix(grey(1.0), (relief * 0.6).min(0.6)) } else { target * (1.0 + relief) };
            *colour = dyed.mix(*colour, keeps);
        }
    }

    fn blurred_coverage(&self) -> Vec<f32> {
        let radius = (self.height / 14).max(2) as isize;
        let mut current: Vec<f32> = self.pixels.iter().map(|(_, alpha)| *alpha).collect();
        let (width, height) = (self.width as isize, self.height as isize);
        for _ in 0..2 {
            for (count, length, step, line) in [(height, width, 1, width), (width, height, width, 1)] {
                let mut blurred = current.clone();
                for index in 0..count {
                    let start = index * line;
                    let read = |position: isize| {
                        if (0..length).contains(&position) { current[(start + position * step) as usize] } else { 0.0 }
                    };
                    let mut sum: f32 = (-radius..=radius).map(read).sum();
                    for position in 0..length {
                        blurred[(start + position * step) as usize] = sum / (2 * radius + 1) as f32;
                        sum += read(position + radius + 1) - read(position - radius);
                    }
                }
                current = blurred;
            }
        }
        current
    }

    /// Keeps only the upper part, for a rider.
    pub fn seated(mut self) -> Self {
        if self.height as f32 > self.width as f32 * 1.25 {
            self.height = self.height * 2 / 3;
            self.pixels.truncate(self.width * self.height);
            self.relief.truncate(self.width * self.height);
        }
        self
    }

    /// Paints the near leg of a rider over the mount's flank.
    pub fn leg(&self, canvas: &mut Canvas, spot: Spot, light: &Light) {
        let Some(&(cloth, _)) = self.pixels.get(self.width * (self.height - 2) + self.width / 2) else { return };
        let (unit, hip) = (self.height as f32, (spot.foot.0, spot.foot.1 - self.height as f32 * 0.05));
        let side = if spot.is_mirrored { -1.0 } else { 1.0 };
        let knee = (hip.0 + side * unit * 0.16, hip.1 + unit * 0.2);
        let heel = (hip.0 + side * unit * 0.08, hip.1 + unit * 0.45);
        let colour = cloth.under(light.direct.mix(light.shade, 0.3)) * 0.9;
        canvas.line(hip, knee, (unit * 0.19, unit * 0.14), colour, 1.0);
        canvas.line(knee, heel, (unit * 0.14, unit * 0.1), colour * 0.94, 1.0);
        canvas.line(heel, (heel.0 + side * unit * 0.09, heel.1), (unit * 0.1, unit * 0.07), hex(0x3a2f2c), 1.0);
    }

    fn relief_at(&self, x: isize, y: isize) -> f32 {
        if (0..self.width as isize).contains(&x) && (0..self.height as isize).contains(&y) {
            self.relief[y as usize * self.width + x as usize]
        } else {
            0.0
        }
    }

    /// Paints the sprite in the light of the scene.
    pub fn paint(&self, canvas: &mut Canvas, spot: Spot, light: &Light, noise: &Noise) {
        let origin = ((spot.foot.0 - self.width as f32 * 0.5) as i32, (spot.foot.1 - self.height as f32) as i32);
        let reach = (self.height / 40).max(1) as isize;
        let towards = light.direction().clamp(-0.9, 0.9);
        let up = 0.75;
        let rim = light.sky[2].mix(light.direct, 0.5);
        let grain = 40.0 / canvas.scale();
        let ambient = light.shade.mix(light.direct, 0.45);
        for y in 0..self.height {
            let low = y as f32 / self.height as f32;
            for x in 0..self.width {
                let source = if spot.is_mirrored { self.width - 1 - x } else { x };
                let (own, alpha) = self.pixels[y * self.width + source];
                if alpha <= 0.0 {
                    continue;
                }
                let flip = if spot.is_mirrored { -1.0 } else { 1.0 };
                let (sx, sy) = (source as isize, y as isize);
                let dx = (self.relief_at(sx - reach, sy) - self.relief_at(sx + reach, sy)) * flip;
                let dy = self.relief_at(sx, sy - reach) - self.relief_at(sx, sy + reach);
                // The outward normal is the negative gradient of the coverage.
                let facing = (dx * towards - dy * up) * 2.6;
                let level = (0.5 + facing - 0.22 * (low - 0.4)).clamp(0.0, 1.0);
                let (px, py) = (origin.0 + x as i32, origin.1 + y as i32);
                let dab = 0.98 + 0.04 * noise.fractal(px as f32 * grain, py as f32 * grain, 2);
                let mut colour = own.under(ambient.mix(light.direct, smooth(0.25, 0.8, level))) * dab;
                colour = colour * (0.8 + 0.26 * level);
                let edge = 1.0 - smooth(0.35, 0.75, self.relief[y * self.width + source]);
                colour = colour.mix(rim, edge * smooth(0.62, 1.0, level) * 0.5);
                canvas.blend(px, py, light.faded(colour, spot.distance * 0.62), alpha);
            }
        }
    }

    /// Paints the shadow of the sprite on the ground.
    pub fn shadow(&self, canvas: &mut Canvas, spot: Spot, light: &Light) {
        let (half, foot) = (self.width as f32 * 0.5, spot.foot);
        let dark = hex(0x10142a).mix(light.haze, 0.12 + 0.4 * spot.distance);
        let strength = if light.is_dark { 0.34 } else { 0.42 };
        canvas.ellipse((foot.0, foot.1), (half * 0.92, half * 0.17), dark, strength * 0.9, 1.0);
        // The silhouette is projected away from the light, and longer when the light is low.
        let length = 0.22 + 0.4 * (1.0 - light.height).max(0.0);
        let lean = -light.direction().clamp(-1.0, 1.0) * 1.1;
        let flat = (self.height as f32 * length * 0.62) as i32;
        for row in 0..flat {
            let t = row as f32 / flat.max(1) as f32;
            let source = ((1.0 - t) * (self.height - 1) as f32) as isize;
            let shift = lean * t * self.height as f32 * length;
            let fade = strength * 0.8 * (1.0 - t) * (1.0 - t * 0.5);
            for x in 0..self.width {
                let column = if spot.is_mirrored { self.width - 1 - x } else { x };
                let cover = smooth(0.2, 0.8, self.relief_at(column as isize, source));
                if cover > 0.02 {
                    let px = foot.0 - half + x as f32 + shift;
                    canvas.blend(px as i32, foot.1 as i32 - row, dark, cover * fade);
                }
            }
        }
    }

    /// Paints the reflection below the sprite, broken by ripples.
    pub fn reflection(&self, canvas: &mut Canvas, spot: Spot, light: &Light, noise: &Noise) {
        let left = spot.foot.0 - self.width as f32 * 0.5;
        let unit = canvas.scale() / 1024.0;
        for y in 0..self.height * 3 / 4 {
            let t = y as f32 / self.height as f32;
            let row = spot.foot.1 as i32 + y as i32;
            let ripple = noise.at(3.0 + t * 2.0, row as f32 * 0.11 / unit) - 0.5;
            let sway = ripple * (3.0 + 26.0 * t) * unit;
            for x in 0..self.width {
                let column = if spot.is_mirrored { self.width - 1 - x } else { x };
                let (own, alpha) = self.pixels[(self.height - 1 - y) * self.width + column];
                if alpha > 0.0 {
                    let colour = own.under(light.shade.mix(light.direct, 0.4)).mix(light.haze, 0.15);
                    canvas.blend((left + x as f32 + sway) as i32, row, colour, alpha * 0.5 * (1.0 - t));
                }
            }
        }
    }
}

fn css(colour: Colour) -> String {
    let byte = |level: f32| (level.clamp(0.0, 1.0) * 255.0) as u8;
    format!("#{:02x}{:02x}{:02x}", byte(colour.r), byte(colour.g), byte(colour.b))
}
