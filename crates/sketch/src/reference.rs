//! Analysis of reference pictures: their colours and their distribution of light and dark.

use super::canvas::Canvas;
use super::colour::{Colour, grey};
use super::dice::smooth;
use tintype_engine::picture::Picture;

/// Longest side of the thumbnail that is analysed.
const THUMBNAIL: usize = 128;
const COLOURS: usize = 6;

/// An analysed reference picture.
#[derive(Debug)]
pub struct Reference {
    thumbnail: Canvas,
    /// Main colours, darkest first.
    palette: Vec<Colour>,
    /// Centre of the most salient area, as fractions of width and height.
    pub focus: (f32, f32),
}

impl Reference {
    /// Analyses a decoded picture.
    pub fn study(picture: &Picture) -> Self {
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let factor = width.max(height).div_ceil(THUMBNAIL).max(1);
        let mut thumbnail = Canvas::new((width / factor).max(1), (height / factor).max(1), grey(0.0));
        let level = |byte: u8| f32::from(byte) / 255.0;
        for y in 0..thumbnail.height {
            for (x, pixel) in thumbnail.row_mut(y).iter_mut().enumerate() {
                // Four samples per block are enough for colours at this resolution.
                for (dx, dy) in [(1, 1), (3, 1), (1, 3), (3, 3)] {
                    let (sx, sy) = (x * factor + factor * dx / 4, y * factor + factor * dy / 4);
                    let start = (sy.min(height - 1) * width + sx.min(width - 1)) * 3;
                    if let Some(&[r, g, b]) = picture.as_rgb().get(start..start + 3) {
                        *pixel = *pixel + Colour { r: level(r), g: level(g), b: level(b) } * 0.25;
                    }
                }
            }
        }
        let palette = palette(&mut thumbnail);
        let focus = focus(&mut thumbnail);
        Self { thumbnail, palette, focus }
    }

    /// Interpolated colour at `u`, `v` (0 to 1) when the picture covers a frame of this aspect ratio.
    fn at(&self, u: f32, v: f32, aspect: f32) -> Colour {
        let (width, height) = (self.thumbnail.width as f32, self.thumbnail.height as f32);
        let own = width / height;
        let (x_share, y_share) = if own > aspect { (aspect / own, 1.0) } else { (1.0, own / aspect) };
        self.thumbnail.samples((0.5 + (v - 0.5) * y_share) * height)((0.5 + (u - 0.5) * x_share) * width)
    }

    fn nearest(&self, colour: Colour) -> Colour {
        self.palette.iter().copied().min_by(|a, b| a.distance(colour).total_cmp(&b.distance(colour))).unwrap_or(colour)
    }
}

/// Combines the references into an underpainting. Several references cover parts of it side by side.
pub fn underpaint(canvas: &mut Canvas, references: &[Reference], strength: f32) {
    let (width, height) = (canvas.width as f32, canvas.height as f32);
    let parts = references.len() as f32;
    for y in 0..canvas.height {
        let v = (y as f32 + 0.5) / height;
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let u = (x as f32 + 0.5) / width;
            let lane = u * parts - 0.5;
            let left = lane.floor().max(0.0) as usize;
            let right = (left + 1).min(references.len() - 1);
            let blend = smooth(0.3, 0.7, lane - left as f32);
            let mut lent = references[left].at(u, v, width / height);
            if right != left && blend > 0.0 {
                lent = lent.mix(references[right].at(u, v, width / height), blend);
            }
            *pixel = pixel.mix(lent, strength);
        }
    }
}

/// Shifts the colours of the scene towards the palettes of the references, hue and brightness separately.
pub fn recolour(canvas: &mut Canvas, references: &[Reference], strength: f32) {
    let Some(first) = references.first() else { return };
    // Nearest colours on a coarse lattice of the colour cube: one lookup per pixel instead of a search.
    const SIDE: usize = 17;
    let lattice: Vec<Colour> = (0..SIDE * SIDE * SIDE)
        .map(|index| {
            let level = |step: usize| step as f32 / (SIDE - 1) as f32;
            let colour =
                Colour { r: level(index / (SIDE * SIDE)), g: level(index / SIDE % SIDE), b: level(index % SIDE) };
            let near = references
                .iter()
                .map(|reference| reference.nearest(colour))
                .min_by(|a, b| a.distance(colour).total_cmp(&b.distance(colour)))
                .unwrap_or_else(|| first.nearest(colour));
            let lift = (colour.luma() - near.luma()) * 0.75;
            colour.mix(near.map(|c| c + lift).clamp(), strength)
        })
        .collect();
    for pixel in canvas.pixels_mut() {
        *pixel = interpolated(&lattice, SIDE, pixel.clamp());
    }
}

fn interpolated(lattice: &[Colour], side: usize, colour: Colour) -> Colour {
    let split = |level: f32| {
        let scaled = level * (side - 1) as f32;
        let low = (scaled as usize).min(side - 2);
        (low, scaled - low as f32)
    };
    let ((r, fr), (g, fg), (b, fb)) = (split(colour.r), split(colour.g), split(colour.b));
    let at = |r: usize, g: usize, b: usize| lattice[(r * side + g) * side + b];
    let edge = |r: usize, g: usize| at(r, g, b).mix(at(r, g, b + 1), fb);
    let face = |r: usize| edge(r, g).mix(edge(r, g + 1), fg);
    face(r).mix(face(r + 1), fr)
}

/// Main colours by k-means clustering with evenly spaced starting points.
fn palette(thumbnail: &mut Canvas) -> Vec<Colour> {
    let mut pixels = thumbnail.pixels_mut().to_vec();
    pixels.sort_by(|a, b| a.luma().total_cmp(&b.luma()));
    let mut means: Vec<Colour> =
        (0..COLOURS).map(|index| pixels[(pixels.len() - 1) * (2 * index + 1) / (2 * COLOURS)]).collect();
    for _ in 0..8 {
        let mut sums = [(grey(0.0), 0.0f32); COLOURS];
        for pixel in &pixels {
            let nearest = (0..COLOURS)
                .min_by(|&a, &b| means[a].distance(*pixel).total_cmp(&means[b].distance(*pixel)))
                .unwrap_or(0);
            sums[nearest] = (sums[nearest].0 + *pixel, sums[nearest].1 + 1.0);
        }
        for (mean, (sum, count)) in means.iter_mut().zip(sums) {
            if count > 0.0 {
                *mean = sum * (1.0 / count);
            }
        }
    }
    means.sort_by(|a, b| a.luma().total_cmp(&b.luma()));
    means
}

/// Centre of the pixels that differ from the average.
fn focus(thumbnail: &mut Canvas) -> (f32, f32) {
    let count = (thumbnail.width * thumbnail.height) as f32;
    let mean = thumbnail.pixels_mut().iter().fold(grey(0.0), |sum, pixel| sum + *pixel) * (1.0 / count);
    let (mut weight, mut across, mut down) = (1e-6, 0.5e-6, 0.5e-6);
    for y in 0..thumbnail.height {
        let v = (y as f32 + 0.5) / thumbnail.height as f32;
        for (x, pixel) in thumbnail.row(y).iter().enumerate() {
            let u = (x as f32 + 0.5) / thumbnail.width as f32;
            // Borders are salient by accident; subjects rarely touch them.
            let central = 1.0 - ((u - 0.5) * (u - 0.5) + (v - 0.5) * (v - 0.5)) * 1.6;
            let strength = pixel.distance(mean) * central.max(0.0);
            weight += strength;
            across += strength * u;
            down += strength * v;
        }
    }
    (across / weight, down / weight)
}
