//! Weather in front of the scene: rain, snow, fog, leaves and fireflies.

use super::canvas::Canvas;
use super::colour::hex;
use super::dice::{Dice, Noise, smooth};
use super::light::Light;
use super::scene::Scene;
use super::setting::{Ground, Stage};
use super::vocabulary::{Phenomenon, Setting};

/// Paints the weather over a finished scene.
pub fn paint(
    canvas: &mut Canvas,
    scene: &Scene,
    setting: Setting,
    stage: &Stage,
    light: &Light,
    noise: &Noise,
    dice: &mut Dice,
) {
    if matches!(setting, Setting::Room | Setting::Table | Setting::Space | Setting::Moon | Setting::Underwater) {
        return;
    }
    if scene.has(Phenomenon::Fog) {
        fog(canvas, stage.horizon, light, noise);
    }
    if scene.has(Phenomenon::Rain) || scene.has(Phenomenon::Storm) {
        rain(canvas, stage, light, dice);
    }
    if scene.has(Phenomenon::Snow) {
        snow(canvas, scene.has(Phenomenon::Wind) || scene.has(Phenomenon::Storm), dice);
    }
    if scene.has(Phenomenon::Autumn) || (scene.has(Phenomenon::Wind) && !scene.has(Phenomenon::Snow)) {
        leaves(canvas, light, dice);
    }
    let is_wooded = matches!(setting, Setting::Forest | Setting::Jungle | Setting::Meadow | Setting::Garden);
    if is_wooded
        && light.is_dark
        && scene.phenomena.iter().all(|phenomenon| matches!(phenomenon, Phenomenon::Moon | Phenomenon::Stars))
    {
        fireflies(canvas, stage.horizon, dice);
    }
}

fn fog(canvas: &mut Canvas, horizon: f32, light: &Light, noise: &Noise) {
    let scale = 3.0 / canvas.scale();
    let height = canvas.height as f32;
    for y in 0..canvas.height {
        let away = (y as f32 - horizon).abs() / height;
        let band = 0.8 - smooth(0.0, 0.6, away) * 0.5;
        for x in 0..canvas.width {
            // Fog is soft, so two octaves stretched horizontally are enough.
            let drift = noise.fractal(x as f32 * scale * 0.6, y as f32 * scale * 2.0, 2);
            canvas.blend(x as i32, y as i32, light.haze, band * smooth(0.2, 0.8, drift) * 0.85);
        }
    }
}

fn rain(canvas: &mut Canvas, stage: &Stage, light: &Light, dice: &mut Dice) {
    let (width, height, unit) = (canvas.width as f32, canvas.height as f32, canvas.scale() / 1024.0);
    let colour = hex(0xe4eef8).mix(light.sky[1], 0.2);
    let slant = dice.range(-0.3, 0.3);
    for drop in 0..(width * height / 1_500.0) as usize {
        let near = if drop % 7 == 0 { 1.7 } else { 1.0 };
        let length = dice.range(18.0, 46.0) * unit * near;
        let at = (dice.range(-0.1, 1.1) * width, dice.range(-0.05, 1.0) * height);
        canvas.line(at, (at.0 + slant * length, at.1 + length), (0.6, 1.2 * near * unit), colour, 0.22 + 0.12 * near);
    }
    if stage.ground != Ground::Nothing {
        for _ in 0..90 {
            let t = dice.unit();
            let y = stage.horizon + (height - stage.horizon) * t;
            let radius = (2.0 + 9.0 * t) * unit;
            canvas.ellipse((dice.unit() * width, y), (radius, radius * 0.3), colour, 0.28, 0.6);
        }
    }
}

fn snow(canvas: &mut Canvas, is_windy: bool, dice: &mut Dice) {
    let (width, height, unit) = (canvas.width as f32, canvas.height as f32, canvas.scale() / 1024.0);
    for flake in 0..(width * height / 2_600.0) as usize {
        let near = dice.unit() * dice.unit();
        let radius = (1.0 + 4.2 * near + if flake % 60 == 0 { 5.0 } else { 0.0 }) * unit;
        let at = (dice.unit() * width, dice.unit() * height);
        if is_windy {
            let tail = radius * 7.0;
            canvas.line(at, (at.0 + tail, at.1 + tail * 0.3), (radius, radius * 0.4), hex(0xffffff), 0.6);
        } else {
            canvas.ellipse(at, (radius, radius), hex(0xffffff), 0.55 + 0.3 * near, 0.75);
        }
    }
}

fn leaves(canvas: &mut Canvas, light: &Light, dice: &mut Dice) {
    let (width, height, unit) = (canvas.width as f32, canvas.height as f32, canvas.scale());
    let palette = [hex(0xd8632a), hex(0xe8a534), hex(0xa8382b), hex(0xc98a35)];
    for _ in 0..46 {
        let at = (dice.unit() * width, dice.unit() * height);
        let size = unit * dice.range(0.005, 0.016);
        let tip = (at.0 + dice.range(-1.0, 1.0) * size * 1.6, at.1 + dice.range(-1.0, 1.0) * size);
        canvas.line(at, tip, (size, size * 0.2), light.lit(palette[dice.index(4)]), 0.95);
    }
}

fn fireflies(canvas: &mut Canvas, horizon: f32, dice: &mut Dice) {
    let (width, height, unit) = (canvas.width as f32, canvas.height as f32, canvas.scale());
    for _ in 0..34 {
        let at = (dice.unit() * width, horizon * 0.85 + (height - horizon * 0.85) * dice.unit());
        canvas.glow(at, unit * dice.range(0.01, 0.026), hex(0xfff08a), 0.85);
        canvas.ellipse(at, (unit * 0.0018, unit * 0.0018), hex(0xffffd0), 1.0, 0.5);
    }
}
