//! Styles, applied to a finished scene.

use super::canvas::Canvas;
use super::colour::{Colour, grey, hex};
use super::dice::{Dice, Noise, floor, smooth};
use super::stroke::{self, Brush};
use super::vocabulary::Style;

/// Applies a style to the canvas, or a soft painterly finish if there is none.
pub fn apply(canvas: &mut Canvas, style: Option<Style>, noise: &Noise, dice: &mut Dice) {
    match style {
        None => finish(canvas),
        Some(Style::Watercolour) => watercolour(canvas, noise, dice),
        Some(Style::Oil) => oil(canvas, noise, dice),
        Some(Style::Neon) => neon(canvas),
        Some(Style::Pixel) => pixel(canvas),
        Some(Style::Sepia) => toned(canvas, noise, [hex(0x2a1a0e), hex(0xa8825a), hex(0xf6e7c8)], 0.9),
        Some(Style::Tintype) => tintype(canvas, noise, dice),
        Some(Style::Noir) => noir(canvas),
        Some(Style::Pencil) => pencil(canvas, noise),
        Some(Style::Comic) => comic(canvas),
        Some(Style::Pastel) => pastel(canvas, noise, dice),
        Some(Style::Flat) => flat(canvas),
        Some(Style::Glass) => glass(canvas, noise),
    }
}

/// Strength of the film grain of a style, in 8-bit steps.
pub fn grain(style: Option<Style>) -> f32 {
    match style {
        Some(Style::Pixel | Style::Flat | Style::Comic | Style::Glass | Style::Pencil) => 0.0,
        Some(Style::Sepia | Style::Tintype | Style::Noir) => 7.0,
        _ => 1.6,
    }
}

fn finish(canvas: &mut Canvas) {
    stroke::bloom(canvas, 0.72, 0.28);
    for pixel in canvas.pixels_mut() {
        // A gentle S-curve and richer colours.
        *pixel = pixel.clamp().map(|c| c + (c * c * (3.0 - 2.0 * c) - c) * 0.35).saturate(1.08);
    }
    stroke::vignette(canvas, hex(0x0c0a1c), 0.5);
}

fn watercolour(canvas: &mut Canvas, noise: &Noise, dice: &mut Dice) {
    let brush = Brush { width: 15.0, length: 1.6, coverage: 1.6, variety: 0.05, swirl: 0.6 };
    stroke::repaint(canvas, brush, noise, dice);
    let source = canvas.clone();
    let paper = hex(0xfbf7ec);
    let (width, height, scale) = (canvas.width as f32, canvas.height as f32, canvas.scale());
    let unit = scale / 1024.0;
    let margin = 0.034 * scale;
    for y in 0..canvas.height {
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let (fx, fy) = (x as f32, y as f32);
            let wobble = noise.at(fx * 0.03 / unit, fy * 0.03 / unit) - 0.5;
            let (sx, sy) = ((fx + wobble * 16.0 * unit) as i32, (fy + (0.5 - wobble) * 16.0 * unit) as i32);
            let colour = source.at(sx, sy);
            // Pigment gathers at the edge of a wash and thins out in its middle.
            let edge = stroke::steepness(&source, sx, sy, (3.0 * unit) as i32 + 1);
            let pool = noise.fractal(fx * 0.007 / unit, fy * 0.007 / unit, 3) - 0.5;
            let tooth = noise.at(fx * 0.42 / unit, fy * 0.42 / unit) - 0.5;
            let density = (0.76 + pool * 0.5 + tooth * 0.1 + edge * 0.5).clamp(0.2, 1.1);
            let wash = paper.under(grey(1.0).mix(colour.saturate(1.25).clamp(), density));
            let border = fx.min(width - fx).min(fy).min(height - fy) + (pool + wobble * 0.3) * margin * 1.2;
            *pixel = paper.mix(wash, smooth(margin * 0.35, margin * 0.75, border)) * (1.0 + tooth * 0.025);
        }
    }
}

fn oil(canvas: &mut Canvas, noise: &Noise, dice: &mut Dice) {
    for pixel in canvas.pixels_mut() {
        *pixel = pixel.clamp().saturate(1.3);
    }
    let broad = Brush { width: 24.0, length: 4.0, coverage: 1.5, variety: 0.12, swirl: 1.6 };
    let original = canvas.clone();
    stroke::repaint(canvas, broad, noise, dice);
    // Finer strokes over the broad ones restore detail.
    for (pixel, fine) in canvas.pixels_mut().iter_mut().zip(original.clone().pixels_mut()) {
        *pixel = pixel.mix(*fine, 0.45);
    }
    let fine = Brush { width: 9.5, length: 3.6, coverage: 2.0, variety: 0.12, swirl: 1.6 };
    stroke::repaint(canvas, fine, noise, dice);
    stroke::vignette(canvas, hex(0x1a1208), 0.4);
}

fn neon(canvas: &mut Canvas) {
    let source = canvas.clone();
    let reach = (canvas.scale() / 700.0).max(1.0) as i32;
    let height = canvas.height as f32;
    for y in 0..canvas.height {
        let t = y as f32 / height;
        let tube = hex(0x21e6ff).mix(hex(0xff2fb4), smooth(0.2, 0.8, t));
        for x in 0..canvas.width {
            let base = source.at(x as i32, y as i32).clamp();
            let luma = base.luma();
            let dark =
                hex(0x12062e).mix(hex(0x8a2fd0), luma).mix(base.saturate(1.7).clamp(), 0.6) * (0.62 + 0.5 * luma);
            let edge = smooth(0.05, 0.26, stroke::steepness(&source, x as i32, y as i32, reach));
            let own = base.saturate(2.2).clamp();
            let line = tube.mix(own, 0.35) * edge;
            canvas.row_mut(y)[x] = dark.screen(line.clamp());
        }
    }
    stroke::bloom(canvas, 0.32, 0.85);
    stroke::vignette(canvas, hex(0x05010f), 0.7);
}

fn pixel(canvas: &mut Canvas) {
    let block = (canvas.scale() / 128.0).round().max(2.0) as usize;
    let small = canvas.shrunk(block);
    const BAYER: [[f32; 4]; 4] =
        [[0.0, 8.0, 2.0, 10.0], [12.0, 4.0, 14.0, 6.0], [3.0, 11.0, 1.0, 9.0], [15.0, 7.0, 13.0, 5.0]];
    const LEVELS: f32 = 6.0;
    for y in 0..canvas.height {
        for x in 0..canvas.width {
            let (bx, by) = (x / block, y / block);
            let colour = small.at(bx as i32, by as i32).saturate(1.25).clamp();
            let threshold = BAYER[by % 4][bx % 4] / 16.0;
            canvas.row_mut(y)[x] =
                colour.map(|c| floor(c * (LEVELS - 1.0) + 0.36 + threshold * 0.28).min(LEVELS - 1.0) / (LEVELS - 1.0));
        }
    }
}

/// Brightens a dark picture by `exposure` without clipping the highlights.
fn exposed(luma: f32, exposure: f32) -> f32 {
    luma * (1.0 + exposure) / (1.0 + exposure * luma)
}

/// Exposure that brings the mean brightness of a picture to a normal level.
fn exposure(canvas: &mut Canvas) -> f32 {
    let count = canvas.pixels_mut().len() as f32;
    let mean = (canvas.pixels_mut().iter().map(|pixel| pixel.clamp().luma()).sum::<f32>() / count).clamp(0.02, 1.0);
    const NORMAL: f32 = 0.4;
    ((NORMAL - mean) / (mean * (1.0 - NORMAL))).clamp(0.0, 6.0)
}

/// Turns the picture into a monochrome print with three tones, from dark to light.
fn toned(canvas: &mut Canvas, noise: &Noise, [dark, middle, bright]: [Colour; 3], contrast: f32) {
    stroke::bloom(canvas, 0.7, 0.3);
    let exposure = exposure(canvas);
    let unit = canvas.scale() / 1024.0;
    for y in 0..canvas.height {
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let luma = exposed(pixel.clamp().luma(), exposure);
            let curved = luma + (luma * luma * (3.0 - 2.0 * luma) - luma) * contrast;
            let stain = (noise.fractal(x as f32 * 0.006 / unit, y as f32 * 0.006 / unit, 3) - 0.5) * 0.1;
            let level = (curved + stain).clamp(0.0, 1.0);
            *pixel = if level < 0.5 { dark.mix(middle, level * 2.0) } else { middle.mix(bright, level * 2.0 - 1.0) };
        }
    }
    stroke::vignette(canvas, dark, 0.85);
}

fn tintype(canvas: &mut Canvas, noise: &Noise, dice: &mut Dice) {
    toned(canvas, noise, [hex(0x14110f), hex(0x77706a), hex(0xdcd6cc)], 1.3);
    let (width, height, unit) = (canvas.width as f32, canvas.height as f32, canvas.scale() / 1024.0);
    // Poured collodion leaves a ragged, dark border on the plate; handling leaves scratches.
    for y in 0..canvas.height {
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let (fx, fy) = (x as f32, y as f32);
            let border = fx.min(width - fx).min(fy).min(height - fy) / unit;
            let ragged = noise.fractal(fx * 0.012 / unit, fy * 0.012 / unit, 4) * 90.0;
            *pixel = pixel.mix(hex(0x12100e), 1.0 - smooth(ragged - 14.0, ragged + 22.0, border));
        }
    }
    for _ in 0..46 {
        let at = (dice.unit() * width, dice.unit() * height);
        let to = (at.0 + dice.range(-30.0, 30.0) * unit, at.1 + dice.range(-90.0, 90.0) * unit);
        let tone = if dice.chance(0.6) { hex(0xece5d8) } else { hex(0x14110f) };
        canvas.line(at, to, (1.1 * unit, 0.5), tone, 0.3);
        let speck = dice.range(0.8, 3.0) * unit;
        canvas.ellipse((dice.unit() * width, dice.unit() * height), (speck, speck), tone, 0.5, 0.5);
    }
}

fn noir(canvas: &mut Canvas) {
    stroke::bloom(canvas, 0.7, 0.25);
    let exposure = exposure(canvas) * 0.6;
    for pixel in canvas.pixels_mut() {
        let luma = exposed(pixel.clamp().luma(), exposure);
        let curve = luma * luma * (3.0 - 2.0 * luma);
        *pixel = grey((curve * 1.2 - 0.05).clamp(0.015, 0.97));
    }
    stroke::vignette(canvas, grey(0.0), 1.1);
}

fn pencil(canvas: &mut Canvas, noise: &Noise) {
    let exposure = exposure(canvas) * 1.3;
    for pixel in canvas.pixels_mut() {
        *pixel = grey(exposed(pixel.clamp().luma(), exposure));
    }
    // Only broad light and shade matter here, so a quarter of the resolution is enough.
    let mut soft = canvas.shrunk(4);
    soft.blur((canvas.scale() / 440.0).max(1.0) as usize);
    let source = canvas.clone();
    let unit = canvas.scale() / 1024.0;
    let paper = hex(0xf7f3ea);
    let lead = hex(0x2f2e33);
    for y in 0..canvas.height {
        let softened = soft.samples((y as f32 + 0.5) / 4.0);
        for x in 0..canvas.width {
            let luma = source.at(x as i32, y as i32).r;
            // Dividing by the blurred picture leaves only the lines.
            let dodge = (luma + 0.03) / (softened((x as f32 + 0.5) / 4.0).luma() + 0.03);
            let edge = stroke::steepness(&source, x as i32, y as i32, 1 + unit as i32);
            let line = ((0.94 - dodge).max(0.0) * 2.4 + smooth(0.1, 0.32, edge) * 0.85).min(1.0);
            let (fx, fy) = (x as f32 / unit, y as f32 / unit);
            let tooth = noise.at(fx * 0.3, fy * 0.3);
            let mut tone = line * (0.55 + 0.45 * tooth);
            for (level, slope, pitch) in [(0.6, 1.0, 10.0), (0.42, -0.8, 11.0), (0.25, 0.25, 9.0)] {
                let phase = (fx * slope + fy + noise.at(fx * 0.03, fy * 0.03) * 9.0) / pitch;
                let hatch = smooth(0.62, 0.85, ((phase - floor(phase)) * 2.0 - 1.0).abs());
                tone += hatch * smooth(level, level - 0.18, luma) * 0.42;
            }
            // Graphite shows about a dozen tones, which also keep the PNG small.
            let tone = floor(tone.min(0.94) * 12.0 + 0.5) / 12.0;
            canvas.row_mut(y)[x] = paper.mix(lead, tone);
        }
    }
}

fn comic(canvas: &mut Canvas) {
    let source = canvas.clone();
    let unit = canvas.scale() / 1024.0;
    let pitch = (10.0 * unit).max(4.0);
    let levels = 4.0;
    for y in 0..canvas.height {
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let bold = pixel.clamp().saturate(1.75).clamp();
            let stepped = bold.map(|c| floor(c * levels + 0.5) / levels);
            // Dots in a lattice at 45 degrees, larger where the picture is darker.
            let (u, v) = ((x as f32 + y as f32) / pitch, (x as f32 - y as f32) / pitch);
            let (du, dv) = (u - floor(u) - 0.5, v - floor(v) - 0.5);
            let radius = (0.58 - bold.luma() * 0.52).max(0.0);
            let dot = smooth(radius + 0.06, radius - 0.06, (du * du + dv * dv).sqrt());
            *pixel = stepped.mix(stepped * 0.7, dot);
        }
    }
    let reach = (unit * 1.6).max(1.0) as i32;
    for y in 0..canvas.height {
        for x in 0..canvas.width {
            let edge = smooth(0.17, 0.3, stroke::steepness(&source, x as i32, y as i32, reach));
            canvas.blend(x as i32, y as i32, hex(0x17131f), edge * 0.95);
        }
    }
}

fn pastel(canvas: &mut Canvas, noise: &Noise, dice: &mut Dice) {
    let chalk = Brush { width: 9.0, length: 3.4, coverage: 1.3, variety: 0.05, swirl: 0.5 };
    stroke::repaint(canvas, chalk, noise, dice);
    stroke::bloom(canvas, 0.6, 0.35);
    let unit = canvas.scale() / 1024.0;
    for y in 0..canvas.height {
        for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
            let tooth = noise.at(x as f32 * 0.5 / unit, y as f32 * 0.5 / unit) - 0.5;
            let light = pixel.clamp().map(|c| 0.44 + 0.54 * c);
            *pixel = light.saturate(1.1).mix(hex(0xffeef2), 0.12) * (1.0 + tooth * 0.06);
        }
    }
}

fn flat(canvas: &mut Canvas) {
    canvas.blur((canvas.scale() / 420.0).max(1.0) as usize);
    let levels = 7.0;
    for pixel in canvas.pixels_mut() {
        let (hue, chroma) = pixel.clamp().saturate(1.35).hue_and_chroma();
        let luma = ((pixel.luma().clamp(0.0, 1.0) * levels).floor().min(levels - 1.0) + 0.4) / levels;
        let hue = ((hue * 20.0).floor() + 0.5) / 20.0;
        let chroma = (((chroma * 5.0).floor() + 0.5) / 5.0).min(0.85);
        *pixel = Colour::hsl(hue, 1.0, 0.5).mix(grey(0.5), 1.0 - chroma);
        // Restore the quantised brightness, so that bands stay even.
        let lift = luma - pixel.luma();
        *pixel = pixel.map(|c| c + lift).clamp();
    }
}

fn glass(canvas: &mut Canvas, noise: &Noise) {
    let cell = (canvas.scale() / 38.0).max(6.0);
    let source = canvas.shrunk((cell / 3.0).max(1.0) as usize);
    let factor = (cell / 3.0).max(1.0).floor();
    let seed = |cx: i32, cy: i32| {
        let (jx, jy) = (noise.cell(cx, cy), noise.cell(cx + 101, cy + 57));
        ((cx as f32 + 0.1 + 0.8 * jx) * cell, (cy as f32 + 0.1 + 0.8 * jy) * cell)
    };
    let lead = (cell * 0.055).max(1.2);
    for y in 0..canvas.height {
        for x in 0..canvas.width {
            let (fx, fy) = (x as f32, y as f32);
            let (cx, cy) = ((fx / cell) as i32, (fy / cell) as i32);
            let (mut nearest, mut second, mut own) = (f32::MAX, f32::MAX, (0.0, 0.0));
            for (dx, dy) in (-1..=1).flat_map(|dx| (-1..=1).map(move |dy| (dx, dy))) {
                let at = seed(cx + dx, cy + dy);
                let distance = (at.0 - fx) * (at.0 - fx) + (at.1 - fy) * (at.1 - fy);
                if distance < nearest {
                    (second, nearest, own) = (nearest, distance, at);
                } else if distance < second {
                    second = distance;
                }
            }
            let pane = source.at((own.0 / factor) as i32, (own.1 / factor) as i32).clamp().saturate(1.7).clamp();
            let gap = second.sqrt() - nearest.sqrt();
            let shine =
                0.9 + 0.22 * smooth(0.0, cell * 0.7, gap) + (noise.cell(own.0 as i32, own.1 as i32) - 0.5) * 0.14;
            canvas.row_mut(y)[x] = hex(0x14131a).mix(pane * shine, smooth(lead, lead * 2.0, gap));
        }
    }
    stroke::bloom(canvas, 0.6, 0.3);
}
