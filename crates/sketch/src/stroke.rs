//! Brush strokes that repaint a picture.

use super::canvas::Canvas;
use super::colour::{Colour, grey};
use super::dice::{Dice, Noise, floor, wave};

/// Properties of a brush.
#[derive(Debug, Clone, Copy)]
pub struct Brush {
    /// Width of a stroke in thousandths of the picture.
    pub width: f32,
    /// Length of a stroke as a multiple of its width.
    pub length: f32,
    /// Density: strokes per area of one stroke.
    pub coverage: f32,
    /// Variation in colour between neighbouring strokes.
    pub variety: f32,
    /// Degree to which strokes swirl instead of following the shapes.
    pub swirl: f32,
}

/// Repaints `canvas` with strokes that follow its shapes.
pub fn repaint(canvas: &mut Canvas, brush: Brush, noise: &Noise, dice: &mut Dice) {
    let unit = canvas.scale() / 1000.0;
    let width = (brush.width * unit).max(1.5);
    let length = width * brush.length;
    let factor = (width * 0.5).max(1.0) as usize;
    let guide = canvas.shrunk(factor);
    let count = canvas.width as f32 * canvas.height as f32 / (width * length) * brush.coverage;
    for _ in 0..count as usize {
        let (x, y) = (dice.unit() * canvas.width as f32, dice.unit() * canvas.height as f32);
        let (gx, gy) = ((x / factor as f32) as i32, (y / factor as f32) as i32);
        let colour = guide.at(gx, gy);
        // Strokes follow edges, which are perpendicular to the gradient of the brightness.
        let across = guide.at(gx + 1, gy).luma() - guide.at(gx - 1, gy).luma();
        let down = guide.at(gx, gy + 1).luma() - guide.at(gx, gy - 1).luma();
        let drift = noise.fractal(x / canvas.scale() * 3.0, y / canvas.scale() * 3.0, 2);
        let turn = (drift - 0.5) * 2.2 * brush.swirl;
        let (mut dx, mut dy) = (wave(turn + 0.25) * 0.06 - down, wave(turn) * 0.06 + across);
        let norm = (dx * dx + dy * dy).sqrt().max(1e-4);
        (dx, dy) = (dx / norm, dy / norm);
        // Strokes are short along strong edges, to preserve shapes.
        let steep = (across * across + down * down).sqrt();
        let reach = length * (1.0 - (steep * 2.4).min(0.72)) * dice.range(0.7, 1.2);
        let shift = (dice.unit() - 0.5) * brush.variety;
        let varied = Colour { r: colour.r + shift * 0.8, g: colour.g + shift, b: colour.b + shift * 1.2 }.clamp();
        dab(canvas, (x, y), (dx, dy), (width * dice.range(0.7, 1.1), reach), varied, dice.unit());
    }
}

/// Paints one stroke: a bar with round ends and bristle marks.
fn dab(canvas: &mut Canvas, centre: (f32, f32), along: (f32, f32), size: (f32, f32), colour: Colour, phase: f32) {
    let (half_width, half_length) = (size.0 * 0.5, size.1 * 0.5);
    let reach_x = (along.0.abs() * half_length + along.1.abs() * half_width + 1.0) as i32;
    let reach_y = (along.1.abs() * half_length + along.0.abs() * half_width + 1.0) as i32;
    let (cx, cy) = (centre.0 as i32, centre.1 as i32);
    let ridges = 3.0 / size.0.max(1.0);
    for y in (cy - reach_y).max(0)..=(cy + reach_y).min(canvas.height as i32 - 1) {
        for x in (cx - reach_x).max(0)..=(cx + reach_x).min(canvas.width as i32 - 1) {
            let (px, py) = (x as f32 - centre.0, y as f32 - centre.1);
            let u = px * along.0 + py * along.1;
            let v = py * along.0 - px * along.1;
            let end = (u.abs() - half_length + half_width).max(0.0);
            let inside = half_width * half_width - end * end - v * v;
            if inside > 0.0 {
                let bristle = (v * ridges + phase) - floor(v * ridges + phase);
                let relief = 0.975 + 0.05 * bristle;
                canvas.blend(x, y, colour * relief, (inside / (half_width * half_width) * 3.0).min(0.92));
            }
        }
    }
}

/// Gradient of the brightness at a pixel.
pub fn steepness(canvas: &Canvas, x: i32, y: i32, reach: i32) -> f32 {
    let across = canvas.at(x + reach, y).distance(canvas.at(x - reach, y));
    let down = canvas.at(x, y + reach).distance(canvas.at(x, y - reach));
    (across + down).sqrt()
}

/// Darkens the corners.
pub fn vignette(canvas: &mut Canvas, towards: Colour, strength: f32) {
    let (width, height) = (canvas.width as f32, canvas.height as f32);
    for y in 0..canvas.height {
        let dy = (y as f32 + 0.5) / height * 2.0 - 1.0;
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let dx = (x as f32 + 0.5) / width * 2.0 - 1.0;
            let far = (dx * dx + dy * dy) * 0.5;
            *pixel = pixel.mix(towards, (far * far * strength).min(1.0));
        }
    }
}

/// Makes bright parts glow over their surroundings.
pub fn bloom(canvas: &mut Canvas, threshold: f32, strength: f32) {
    const FACTOR: usize = 8;
    let mut glow = canvas.shrunk(FACTOR);
    for pixel in glow.pixels_mut() {
        let excess =
            ((pixel.luma().max(pixel.r * 0.5 + pixel.b * 0.5) - threshold) / (1.0 - threshold)).clamp(0.0, 1.0);
        *pixel = pixel.mix(grey(0.0), 1.0 - excess);
    }
    glow.blur((glow.width.max(glow.height) / 36).max(1));
    for y in 0..canvas.height {
        let light = glow.samples((y as f32 + 0.5) / FACTOR as f32);
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            *pixel = pixel.screen(light((x as f32 + 0.5) / FACTOR as f32) * strength);
        }
    }
}
