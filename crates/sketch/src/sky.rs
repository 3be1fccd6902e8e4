//! Skies: gradient, sun, moon, stars, clouds, rainbows and northern lights.

use super::canvas::Canvas;
use super::colour::{Colour, grey, hex};
use super::dice::{Dice, Noise, smooth, wave};
use super::light::Light;
use super::scene::Scene;
use super::vocabulary::{Hour, Phenomenon, Style};

/// Paints the sky down to row `horizon` and a little below it.
pub fn paint(canvas: &mut Canvas, horizon: f32, scene: &Scene, light: &Light, noise: &Noise, dice: &mut Dice) {
    gradient(canvas, horizon, light, noise);
    let dull = scene.has(Phenomenon::Storm) || scene.has(Phenomenon::Rain) || scene.has(Phenomenon::Fog);
    let night = matches!(light.hour, Hour::Night) || scene.style == Some(Style::Neon);
    if (night || light.hour == Hour::Dusk || scene.has(Phenomenon::Stars)) && !dull {
        let amount = if scene.has(Phenomenon::Stars) {
            2.2
        } else if night {
            1.0
        } else {
            0.3
        };
        // Coarse brushes swallow small stars, so these styles get fewer and larger ones.
        let is_coarse =
            matches!(scene.style, Some(style) if !matches!(style, Style::Neon | Style::Sepia | Style::Noir));
        let size = if is_coarse { 3.6 } else { 1.0 };
        stars(canvas, horizon, amount / size, size, dice);
    }
    if scene.has(Phenomenon::Aurora) {
        aurora(canvas, horizon, noise, dice);
    }
    let place = (light.across * canvas.width as f32, horizon * (1.0 - light.height));
    if scene.has(Phenomenon::Moon) || (night && !scene.has(Phenomenon::Sun) && !dull) {
        moon(canvas, place, scene.has(Phenomenon::Moon), light, noise);
    } else if !dull && !night {
        sun(canvas, place, scene, light);
    }
    if scene.style != Some(Style::Flat) || scene.has(Phenomenon::Clouds) {
        clouds(canvas, horizon, scene, light, noise, dice);
    }
    if scene.has(Phenomenon::Rainbow) {
        rainbow(canvas, horizon, dice);
    }
    if scene.has(Phenomenon::Storm) {
        lightning(canvas, horizon, dice);
    }
}

fn gradient(canvas: &mut Canvas, horizon: f32, light: &Light, noise: &Noise) {
    let [top, middle, bottom] = light.sky;
    let width = canvas.width as f32;
    for y in 0..canvas.height {
        let t = (y as f32 / horizon.max(1.0)).min(1.0);
        let colour =
            if t < 0.55 { top.mix(middle, smooth(0.0, 0.55, t)) } else { middle.mix(bottom, smooth(0.55, 1.0, t)) };
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            // Brighter on the side of the light, with slight unevenness.
            let side = 1.0 - (x as f32 / width - light.across).abs() * 0.16;
            *pixel = colour * side;
        }
    }
    let step = canvas.span() / 5.0;
    for y in 0..canvas.height.min(horizon as usize) {
        let row_noise = (noise.at(3.3, y as f32 / step * 3.0) - 0.5) * 0.02;
        canvas.row_mut(y).iter_mut().for_each(|pixel| *pixel = *pixel * (1.0 + row_noise));
    }
}

fn stars(canvas: &mut Canvas, horizon: f32, amount: f32, size: f32, dice: &mut Dice) {
    let area = canvas.width as f32 * horizon;
    let count = (area / 3_200.0 * amount).min(1_400.0) as usize;
    let unit = canvas.scale() / 1024.0;
    for _ in 0..count {
        let (x, height) = (dice.unit() * canvas.width as f32, dice.unit());
        let y = height * horizon;
        let brightness = dice.unit() * dice.unit() * (1.0 - 0.75 * height);
        let hue = hex(0xcfe0ff).mix(hex(0xffe9c9), dice.unit());
        let radius = (0.7 + 1.5 * brightness) * unit * size;
        canvas.ellipse((x, y), (radius, radius), hue, 0.3 + 0.7 * brightness, 0.8);
        if brightness > 0.62 / size {
            canvas.glow((x, y), radius * 7.0, hue, 0.6);
        }
    }
}

fn sun(canvas: &mut Canvas, (x, y): (f32, f32), scene: &Scene, light: &Light) {
    let scale = canvas.scale();
    let low = 1.0 - light.height;
    let radius = scale * if scene.has(Phenomenon::Sun) { 0.065 } else { 0.03 + 0.035 * low };
    let warm = hex(0xfff3c8).mix(hex(0xffb057), (low - 0.3).max(0.0));
    canvas.glow((x, y), radius * 14.0, warm, 0.4);
    canvas.glow((x, y), radius * 4.5, warm, 0.75);
    canvas.ellipse((x, y), (radius, radius), hex(0xfffbe6).mix(warm, low * 0.5), 1.0, 0.06);
}

fn moon(canvas: &mut Canvas, (x, y): (f32, f32), is_asked_for: bool, light: &Light, noise: &Noise) {
    let radius = canvas.scale() * if is_asked_for { 0.085 } else { 0.045 };
    let y = y.max(radius * 1.3);
    let glow = hex(0xbcd0ff).mix(light.sky[1], 0.2);
    canvas.glow((x, y), radius * 6.5, glow, 0.45);
    canvas.glow((x, y), radius * 2.1, hex(0xeaf0ff), 0.5);
    canvas.ellipse((x, y), (radius, radius), hex(0xf5f2e4), 1.0, 0.04);
    let detail = 3.2 / radius;
    for py in (y - radius) as i32..=(y + radius) as i32 {
        for px in (x - radius) as i32..=(x + radius) as i32 {
            let (dx, dy) = ((px as f32 - x) / radius, (py as f32 - y) / radius);
            let square = dx * dx + dy * dy;
            if square < 0.96 {
                let sea = smooth(0.48, 0.68, noise.fractal(px as f32 * detail + 40.0, py as f32 * detail, 3));
                let limb = square * square * 0.22;
                canvas.blend(px, py, hex(0xa9acb4), sea * 0.55 + limb);
            }
        }
    }
}

fn clouds(canvas: &mut Canvas, horizon: f32, scene: &Scene, light: &Light, noise: &Noise, dice: &mut Dice) {
    let cover = if scene.has(Phenomenon::Storm) {
        0.95
    } else if scene.has(Phenomenon::Clouds) {
        0.74
    } else if scene.has(Phenomenon::Rain) || scene.has(Phenomenon::Snow) {
        0.8
    } else if scene.has(Phenomenon::Stars) || scene.has(Phenomenon::Sun) || scene.has(Phenomenon::Aurora) {
        0.2
    } else {
        dice.range(0.3, 0.6)
    };
    let stretch = if scene.has(Phenomenon::Wind) { 0.28 } else { dice.range(0.42, 0.62) };
    let offset = (dice.range(0.0, 200.0), dice.range(0.0, 200.0));
    let grain = dice.range(3.2, 5.2) / canvas.scale();
    let threshold = 0.72 - cover * 0.42;
    const STEP: usize = 4;
    let rows = (horizon as usize / STEP + 2).min(canvas.height.div_ceil(STEP));
    let columns = canvas.width / STEP + 2;
    let mut small = Canvas::new(columns, rows.max(1), grey(0.0));
    let towards = light.direction() * 0.22;
    for y in 0..small.height {
        let depth = (y * STEP) as f32 / horizon;
        // Clouds get flatter and denser towards the horizon.
        let squeeze = 1.0 + depth * depth * 2.4;
        let ny = (y * STEP) as f32 * grain * squeeze / stretch * 0.62 + offset.1;
        for (x, pixel) in small.row_mut(y).iter_mut().enumerate() {
            let nx = ((x * STEP) as f32 - canvas.width as f32 * 0.5) * grain * (0.7 + 0.5 * depth) + offset.0;
            let density = noise.fractal(nx, ny, 5);
            let cover = smooth(threshold, threshold + 0.2, density);
            if cover > 0.0 {
                let lit = noise.fractal(nx + towards, ny - 0.24, 4);
                *pixel = Colour { r: cover, g: (0.5 + (density - lit) * 3.2).clamp(0.0, 1.0), b: 0.0 };
            }
        }
    }
    let bright = cloud_light(scene, light);
    let dim = light.sky[0].mix(light.haze, 0.55) * if scene.has(Phenomenon::Storm) { 0.62 } else { 0.96 };
    let strength = if light.is_dark { 0.55 } else { 0.9 };
    for y in 0..(horizon as usize).min(canvas.height) {
        let fade = strength * (1.0 - smooth(0.82, 1.0, y as f32 / horizon) * 0.7);
        let clouds = small.samples(y as f32 / STEP as f32 + 0.5);
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let cloud = clouds(x as f32 / STEP as f32 + 0.5);
            if cloud.r > 0.004 {
                *pixel = pixel.mix(dim.mix(bright, cloud.g), cloud.r * fade);
            }
        }
    }
}

fn cloud_light(scene: &Scene, light: &Light) -> Colour {
    let base = match light.hour {
        Hour::Dawn => hex(0xffe4d2),
        Hour::Day => hex(0xffffff),
        Hour::Sunset => hex(0xffc08a),
        Hour::Dusk => hex(0xc99bb8),
        Hour::Night => hex(0x5a6e9e),
    };
    let base = if scene.has(Phenomenon::Storm) { base * 0.62 } else { base };
    let base = if scene.style == Some(Style::Neon) { hex(0xb03aa8) } else { base };
    base.mix(light.sky[2], 0.3)
}

fn rainbow(canvas: &mut Canvas, horizon: f32, dice: &mut Dice) {
    let width = canvas.width as f32;
    let centre = (width * dice.range(0.35, 0.65), horizon * 1.08);
    let outer = (width * 0.47).min(horizon * 0.98);
    let band = outer * 0.17;
    for y in 0..(horizon as usize).min(canvas.height) {
        let dy = y as f32 - centre.1;
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let dx = x as f32 - centre.0;
            let t = (outer - (dx * dx + dy * dy).sqrt()) / band;
            if (0.0..1.0).contains(&t) {
                let colour = Colour::hsl(t * 0.78, 0.95, 0.56);
                let edge = smooth(0.0, 0.12, t) * (1.0 - smooth(0.86, 1.0, t));
                *pixel = pixel.mix(colour, 0.62 * edge);
            }
        }
    }
}

fn aurora(canvas: &mut Canvas, horizon: f32, noise: &Noise, dice: &mut Dice) {
    for curtain in 0..3 {
        let start = dice.range(0.0, 100.0);
        let base = horizon * dice.range(0.5, 0.8);
        let tall = horizon * dice.range(0.35, 0.6);
        let low = hex(0x3dffa0);
        let high = if curtain == 1 { hex(0xb04dff) } else { hex(0x2fb8ff) };
        for x in 0..canvas.width {
            let u = x as f32 / canvas.width as f32;
            let foot = base - (wave(u * 0.9 + start) * 0.5 + noise.at(u * 3.0 + start, 5.0)) * horizon * 0.22;
            let ray = 0.35 + 0.65 * noise.at(u * 38.0 + start, 9.0);
            let strength = ray * smooth(0.2, 0.7, noise.at(u * 4.0 + start, 20.0)) * 0.6;
            let top = foot - tall * (0.5 + 0.5 * noise.at(u * 18.0 + start, 2.0));
            let first = top.max(0.0) as usize;
            for y in first..(foot.max(0.0) as usize).min(canvas.height) {
                let t = (y as f32 - top) / (foot - top).max(1.0);
                let fall = t * t * (1.0 - smooth(0.9, 1.0, t));
                let pixel = &mut canvas.row_mut(y)[x];
                *pixel = pixel.screen(high.mix(low, t) * (strength * fall));
            }
        }
    }
}

fn lightning(canvas: &mut Canvas, horizon: f32, dice: &mut Dice) {
    let unit = canvas.scale() / 1024.0;
    let start = dice.range(0.15, 0.85) * canvas.width as f32;
    canvas.glow((start, horizon * 0.4), canvas.scale() * 0.55, hex(0xcfd8ff), 0.4);
    let mut branches = vec![((start, 0.0), 3.6 * unit)];
    while let Some(((mut x, mut y), width)) = branches.pop() {
        while y < horizon * 0.98 {
            let next = (x + dice.range(-34.0, 34.0) * unit, y + dice.range(16.0, 48.0) * unit);
            canvas.glow(((x + next.0) / 2.0, (y + next.1) / 2.0), 30.0 * unit, hex(0x9db4ff), 0.35);
            canvas.line((x, y), next, (width, width), hex(0xf6f8ff), 1.0);
            (x, y) = next;
            if width > 2.0 * unit && dice.chance(0.12) && branches.len() < 6 {
                branches.push(((x, y), width * 0.5));
            }
            if width < 2.0 * unit && dice.chance(0.12) {
                break;
            }
        }
    }
}
