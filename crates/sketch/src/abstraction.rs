//! Abstract pictures for prompts without a known word, with shapes and colours derived from the letters.

use super::canvas::Canvas;
use super::colour::{Colour, hex};
use super::dice::{Dice, Noise, smooth, wave};
use super::scene::Scene;

/// Paints an abstract composition: the words determine the palette, the seed determines the shapes.
pub fn paint(canvas: &mut Canvas, scene: &Scene, noise: &Noise, dice: &mut Dice) {
    let palette = palette(scene);
    let mut words = Dice::new(scene.words, "form");
    ground(canvas, &palette, noise, dice);
    match words.index(3) {
        0 => ribbons(canvas, &palette, dice),
        1 => orbs(canvas, &palette, dice),
        _ => hills(canvas, &palette, noise, dice),
    }
    for _ in 0..26 {
        let at = (dice.unit() * canvas.width as f32, dice.unit() * canvas.height as f32);
        let radius = canvas.scale() * dice.range(0.002, 0.008);
        canvas.ellipse(at, (radius, radius), palette[4], 0.8, 0.3);
    }
}

/// Five harmonious colours. The words determine the hues; named colours take precedence.
fn palette(scene: &Scene) -> [Colour; 5] {
    let mut words = Dice::new(scene.words, "palette");
    let hue = words.unit();
    let step = [0.08, 0.33, 0.5, 0.42][words.index(4)];
    let mut palette = [
        Colour::hsl(hue, 0.5, 0.2),
        Colour::hsl(hue + step * 0.5, 0.55, 0.42),
        Colour::hsl(hue + step, 0.7, 0.56),
        Colour::hsl(hue + step * 1.5, 0.65, 0.68),
        Colour::hsl(hue + 0.04, 0.6, 0.9),
    ];
    for (slot, tint) in [2, 1, 3].into_iter().zip(&scene.colours) {
        palette[slot] = tint.colour();
    }
    if let Some(tint) = scene.colours.first() {
        palette[0] = tint.colour() * 0.35;
        palette[4] = tint.colour().mix(hex(0xfffaf0), 0.8);
    }
    palette
}

fn ground(canvas: &mut Canvas, palette: &[Colour; 5], noise: &Noise, dice: &mut Dice) {
    let scale = 1.6 / canvas.scale();
    let offset = dice.range(0.0, 200.0);
    for y in 0..canvas.height {
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let (u, v) = (x as f32 * scale, y as f32 * scale);
            let bend = noise.fractal(u + offset, v, 2);
            let tone = noise.at(u * 0.8 + bend * 2.0, v * 0.8 + offset);
            *pixel = palette[0].mix(palette[1], smooth(0.15, 0.75, tone)).mix(palette[2], smooth(0.6, 1.0, bend) * 0.7);
        }
    }
}

fn ribbons(canvas: &mut Canvas, palette: &[Colour; 5], dice: &mut Dice) {
    for band in 0..9 {
        let (phase, rate) = (dice.unit(), dice.range(0.5, 1.5));
        let centre = dice.range(0.1, 0.9) * canvas.height as f32;
        let swing = canvas.height as f32 * dice.range(0.06, 0.22);
        let thick = canvas.scale() * dice.range(0.02, 0.09);
        let colour = palette[1 + band % 4];
        for x in 0..canvas.width {
            let u = x as f32 / canvas.width as f32;
            let middle = centre + wave(phase + u * rate) * swing;
            let half = thick * (0.6 + 0.4 * wave(phase * 2.0 + u * rate * 1.7));
            for y in (middle - half) as i32..(middle + half) as i32 {
                let t = (y as f32 - middle) / half;
                canvas.blend(x as i32, y, colour * (1.0 - 0.3 * t), 0.75 * (1.0 - t.abs() * t.abs()).max(0.0));
            }
        }
    }
}

fn orbs(canvas: &mut Canvas, palette: &[Colour; 5], dice: &mut Dice) {
    for ball in 0..14 {
        let at = (dice.unit() * canvas.width as f32, dice.unit() * canvas.height as f32);
        let radius = canvas.scale() * dice.range(0.03, 0.2);
        let colour = palette[1 + ball % 4];
        canvas.ellipse(
            (at.0 + radius * 0.12, at.1 + radius * 0.16),
            (radius * 1.1, radius * 1.1),
            palette[0],
            0.35,
            0.5,
        );
        for layer in 0..10 {
            let t = layer as f32 / 9.0;
            let centre = (at.0 - radius * 0.3 * t, at.1 - radius * 0.35 * t);
            let size = radius * (1.0 - 0.78 * t);
            canvas.ellipse(centre, (size, size), (colour * 0.7).mix(palette[4], t * 0.7), 0.5, 0.1 + 0.5 * t);
        }
    }
}

fn hills(canvas: &mut Canvas, palette: &[Colour; 5], noise: &Noise, dice: &mut Dice) {
    let sun = (dice.range(0.2, 0.8) * canvas.width as f32, dice.range(0.2, 0.45) * canvas.height as f32);
    let radius = canvas.scale() * dice.range(0.08, 0.16);
    canvas.glow(sun, radius * 3.5, palette[4], 0.5);
    canvas.ellipse(sun, (radius, radius), palette[4], 1.0, 0.03);
    for layer in 0..6 {
        let t = layer as f32 / 5.0;
        let colour = palette[3].mix(palette[1], t).mix(palette[0], t * t * 0.8);
        super::ground::Ridge {
            foot: canvas.height as f32 * (0.55 + 0.45 * t),
            rise: canvas.height as f32 * 0.22,
            summits: dice.range(1.0, 2.5),
            jagged: 0.1,
            offset: dice.range(0.0, 200.0),
            colours: (colour * 1.15, colour * 0.8),
        }
        .paint(canvas, noise);
    }
}
