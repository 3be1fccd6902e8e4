//! Elements of landscapes: trees, grass, flowers, rocks and houses, each in a few strokes.

use super::canvas::Canvas;
use super::colour::{Colour, grey, hex};
use super::dice::Dice;
use super::light::Light;

/// Paints a conifer: ragged tiers that widen downwards.
pub fn conifer(canvas: &mut Canvas, foot: (f32, f32), height: f32, colour: Colour, light: &Light, dice: &mut Dice) {
    let width = height * dice.range(0.36, 0.46);
    let tiers = dice.range(6.0, 9.0);
    let trunk = colour * 0.55;
    canvas.line(foot, (foot.0, foot.1 - height * 0.3), (height * 0.05, height * 0.04), trunk, 1.0);
    let bright = colour.under(light.direct) * 1.12;
    let dark = colour.under(light.shade) * 0.85;
    let crown = height * 0.9;
    let (top, jitter) = (foot.1 - height, width * 0.05);
    let left_lit = light.across < 0.5;
    for row in 0..crown as i32 {
        let t = row as f32 / crown;
        let tier = t * tiers;
        let notch = 1.0 - 0.36 * (1.0 - (tier - tier.floor()));
        let half = width * 0.5 * t * notch + 0.6;
        let y = top as i32 + row;
        let (left, right) = (foot.0 - half - dice.unit() * jitter, foot.0 + half + dice.unit() * jitter);
        let middle = foot.0 + half * if left_lit { 0.12 } else { -0.12 };
        let (a, b) = if left_lit { (bright, dark) } else { (dark, bright) };
        let shadow = 0.82 + 0.18 * (tier - tier.floor());
        canvas.span_at(y, left, middle + 1.0, a * shadow, 1.0);
        canvas.span_at(y, middle, right, b * shadow, 1.0);
    }
}

/// Paints a broad-leaved tree: a trunk below masses of leaves that are lit from above.
pub fn broadleaf(canvas: &mut Canvas, foot: (f32, f32), height: f32, colour: Colour, light: &Light, dice: &mut Dice) {
    let bark = light.shaded(hex(0x5a4232)).mix(colour, 0.2);
    let lean = dice.range(-0.05, 0.05) * height;
    let crotch = (foot.0 + lean, foot.1 - height * 0.5);
    canvas.line(foot, crotch, (height * 0.09, height * 0.05), bark, 1.0);
    for side in [-1.0, 1.0] {
        let tip = (crotch.0 + side * height * 0.16, crotch.1 - height * 0.16);
        canvas.line((crotch.0, crotch.1 + height * 0.08), tip, (height * 0.04, height * 0.02), bark, 1.0);
    }
    let dark = light.shaded(colour) * 0.8;
    let bright = light.lit(colour) * 1.12;
    let towards = light.direction().clamp(-1.0, 1.0);
    // The masses get smaller and brighter from bottom to top.
    for layer in 0..4 {
        let t = layer as f32 / 3.0;
        for _ in 0..9 {
            let angle = dice.range(-1.0, 1.0);
            let centre = (
                foot.0 + lean + angle * height * (0.27 - 0.07 * t) + towards * t * height * 0.06,
                foot.1 - height * (0.52 + 0.2 * t + dice.range(0.0, 0.16) * (1.0 - angle.abs())),
            );
            let radius = height * dice.range(0.09, 0.15) * (1.0 - 0.4 * t);
            canvas.ellipse(centre, (radius * 1.15, radius), dark.mix(bright, t * dice.range(0.7, 1.0)), 0.95, 0.12);
        }
    }
}

/// Paints a bare trunk that extends beyond the top of the picture.
pub fn trunk(canvas: &mut Canvas, foot: (f32, f32), width: f32, colour: Colour, light: &Light) {
    let left_lit = light.across < 0.5;
    for y in 0..foot.1.min(canvas.height as f32) as i32 {
        let flare = 1.0 + 0.5 / (1.0 + (foot.1 - y as f32) / width.max(1.0) * 1.6);
        let half = width * 0.5 * flare;
        let (a, b) = if left_lit { (1.12, 0.72) } else { (0.72, 1.12) };
        canvas.span_at(y, foot.0 - half, foot.0 - half * 0.25, colour * a, 1.0);
        canvas.span_at(y, foot.0 - half * 0.25 - 1.0, foot.0 + half * 0.3, colour * 0.92, 1.0);
        canvas.span_at(y, foot.0 + half * 0.3 - 1.0, foot.0 + half, colour * b, 1.0);
    }
}

/// Paints a tuft of grass.
pub fn tuft(canvas: &mut Canvas, foot: (f32, f32), height: f32, colour: Colour, dice: &mut Dice) {
    for _ in 0..6 {
        let x = foot.0 + dice.range(-0.45, 0.45) * height;
        let tip = (x + dice.range(-0.45, 0.45) * height, foot.1 - height * dice.range(0.5, 1.0));
        let shade = colour * dice.range(0.75, 1.2);
        canvas.line((x, foot.1), tip, ((height * 0.1).max(1.2), 0.4), shade, 0.95);
    }
}

/// Paints a flower on a stem.
pub fn flower(canvas: &mut Canvas, foot: (f32, f32), height: f32, colour: Colour, light: &Light, dice: &mut Dice) {
    let head = (foot.0 + dice.range(-0.2, 0.2) * height, foot.1 - height);
    let stem = light.shaded(hex(0x4c8a3a));
    canvas.line(foot, head, ((height * 0.08).max(1.0), (height * 0.05).max(0.8)), stem, 0.9);
    let petal = (height * 0.17).max(1.2);
    for (dx, dy) in [(0.0, -1.0), (0.95, -0.3), (0.6, 0.8), (-0.6, 0.8), (-0.95, -0.3)] {
        let centre = (head.0 + dx * petal * 0.9, head.1 + dy * petal * 0.9);
        canvas.ellipse(centre, (petal, petal), light.lit(colour) * (1.0 - 0.15 * dy), 1.0, 0.2);
    }
    canvas.ellipse(head, (petal * 0.7, petal * 0.7), light.lit(hex(0xf4c542)), 1.0, 0.2);
}

/// Paints a boulder with a lit and a shaded side.
pub fn rock(canvas: &mut Canvas, foot: (f32, f32), width: f32, colour: Colour, light: &Light, dice: &mut Dice) {
    let height = width * dice.range(0.42, 0.62);
    let skew = dice.range(-0.2, 0.2) * width;
    let side = light.direction().signum();
    for row in 0..height as i32 {
        let t = 1.0 - row as f32 / height;
        let half = width * 0.5 * (1.0 - t * t * t).max(0.0).sqrt();
        let centre = foot.0 + skew * t;
        let y = foot.1 as i32 - (t * height) as i32;
        let edge = centre + side * half * (0.1 - 0.5 * (1.0 - t));
        let lit = light.lit(colour) * (0.86 + 0.24 * t);
        let dim = light.shaded(colour) * (0.62 + 0.3 * t);
        let (a, b) = if side < 0.0 { (lit, dim) } else { (dim, lit) };
        canvas.span_at(y, centre - half, edge, a, 1.0);
        canvas.span_at(y, edge - 1.0, centre + half, b, 1.0);
    }
}

/// Paints a tall building with rows of windows, some of them lit.
pub fn tower(canvas: &mut Canvas, foot: (f32, f32), size: (f32, f32), colour: Colour, light: &Light, dice: &mut Dice) {
    let (width, height) = size;
    let (left, right, top) = (foot.0 - width * 0.5, foot.0 + width * 0.5, foot.1 - height);
    let split = left + width * if light.across < 0.5 { 0.68 } else { 0.32 };
    let (a, b) = if light.across < 0.5 { (1.06, 0.78) } else { (0.78, 1.06) };
    for y in top.max(0.0) as i32..foot.1 as i32 {
        let fade = 1.0 - 0.12 * (y as f32 - top) / height;
        canvas.span_at(y, left, split + 1.0, colour * (a * fade), 1.0);
        canvas.span_at(y, split, right, colour * (b * fade), 1.0);
    }
    if dice.chance(0.3) {
        canvas.line((foot.0, top), (foot.0, top - height * 0.16), (width * 0.06, 1.0), colour * 0.8, 1.0);
    }
    let cell = (width / dice.range(4.0, 7.0)).max(canvas.scale() * 0.008);
    let lamp = [hex(0xffd98a), hex(0xfff0c0), hex(0xffb766), hex(0xa8d8ff)][dice.index(4)];
    let share = if light.is_dark { 0.5 } else { 0.12 };
    let pane = if light.is_dark { colour * 0.7 } else { colour.mix(light.sky[1], 0.45) * 0.9 };
    let mut y = top + cell;
    while y < foot.1 - cell * 0.5 {
        let mut x = left + cell * 0.7;
        while x < right - cell * 0.8 {
            let glass = if dice.chance(share) { lamp } else { pane };
            for row in y as i32..(y + cell * 0.52) as i32 {
                canvas.span_at(row, x, x + cell * 0.45, glass, 0.9);
            }
            x += cell;
        }
        y += cell * 1.05;
    }
}

/// Paints a gabled house.
pub fn house(canvas: &mut Canvas, foot: (f32, f32), width: f32, wall: Colour, light: &Light, dice: &mut Dice) {
    let (body, roof) = (width * dice.range(0.55, 0.8), width * dice.range(0.4, 0.55));
    let top = foot.1 - body;
    let wall_lit = light.lit(wall);
    for y in top as i32..foot.1 as i32 {
        canvas.span_at(y, foot.0 - width * 0.5, foot.0 + width * 0.5, wall_lit, 1.0);
    }
    let tile = light.lit([hex(0x9c4a3a), hex(0x6b4a44), hex(0x7a5240), hex(0x50586a)][dice.index(4)]);
    for row in 0..roof as i32 {
        let half = width * 0.58 * row as f32 / roof;
        canvas.span_at(
            (top - roof) as i32 + row,
            foot.0 - half,
            foot.0 + half,
            tile * (0.85 + 0.2 * row as f32 / roof),
            1.0,
        );
    }
    let pane = if light.is_dark { hex(0xffd488) } else { light.sky[1].mix(grey(0.25), 0.35) };
    for (column, level) in [(-0.26, 0.5), (0.26, 0.5)] {
        let (x, y) = (foot.0 + column * width, foot.1 - body * level);
        for row in (y - width * 0.11) as i32..(y + width * 0.11) as i32 {
            canvas.span_at(row, x - width * 0.09, x + width * 0.09, pane, 1.0);
        }
        if light.is_dark {
            canvas.glow((x, y), width * 0.5, hex(0xffb95e), 0.35);
        }
    }
    for row in (foot.1 - body * 0.45) as i32..foot.1 as i32 {
        canvas.span_at(row, foot.0 - width * 0.07, foot.0 + width * 0.07, light.shaded(hex(0x5a3a28)), 1.0);
    }
}
