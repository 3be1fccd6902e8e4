//! Settings without a sky: space, the Moon and the deep sea.

use super::colour::{Colour, hex};
use super::dice::{smooth, wave};
use super::setting::{Ground, SettingPainter, Stage};
use super::shape;

impl SettingPainter<'_> {
    /// Paints nebulae, stars and one or two planets.
    pub(super) fn space(mut self) -> Stage {
        self.heavens();
        let (width, height, unit) = (self.canvas.width as f32, self.canvas.height as f32, self.canvas.scale());
        if self.scene.subjects.is_empty() || self.dice.chance(0.7) {
            let centre = (width * self.dice.range(0.05, 0.95), height * self.dice.range(0.9, 1.15));
            let hue =
                self.scene.setting_tint.map_or_else(|| Colour::hsl(self.dice.unit(), 0.5, 0.5), |tint| tint.colour());
            let radius = unit * self.dice.range(0.35, 0.6);
            self.planet(centre, radius, hue);
        }
        let centre = (width * self.dice.range(0.1, 0.9), height * self.dice.range(0.1, 0.4));
        let (radius, hue) = (unit * self.dice.range(0.03, 0.07), Colour::hsl(self.dice.unit(), 0.45, 0.6));
        self.planet(centre, radius, hue);
        Stage { horizon: height, standing: (height * 0.5, height * 0.72), ground: Ground::Nothing, scale: 1.15 }
    }

    /// Paints stars above grey dust and craters.
    pub(super) fn moon(mut self) -> Stage {
        self.heavens();
        let (width, height, unit) = (self.canvas.width as f32, self.canvas.height as f32, self.canvas.scale());
        let centre = (width * self.dice.range(0.15, 0.85), height * self.dice.range(0.15, 0.26));
        self.planet(centre, unit * 0.085, hex(0x3f86d6));
        let horizon = height * self.dice.range(0.58, 0.68);
        let dust = self.scene.setting_tint.map_or(hex(0xa7a8ac), |tint| tint.colour());
        let (sunlit, dark) = (dust, dust * 0.45);
        for y in 0..self.canvas.height {
            for x in 0..self.canvas.width {
                let edge = horizon - (self.noise.fractal(x as f32 / width * 3.0, 7.0, 4) - 0.5) * unit * 0.12;
                let below = y as f32 - edge;
                if below > 0.0 {
                    let t = below / (height - horizon);
                    let distance = 1.0 / (t + 0.08);
                    let u = (x as f32 - width * 0.5) * distance / width * 3.0;
                    let rough = self.noise.fractal(u * 3.0, distance * 4.0, 4) - 0.5;
                    let level = (0.62 + rough * 0.55 + 0.2 * t).clamp(0.0, 1.0);
                    self.canvas.blend(x as i32, y as i32, dark.mix(sunlit, level), below.min(1.0));
                }
            }
        }
        for _ in 0..9 {
            let t = self.dice.unit();
            let foot = (self.dice.unit() * width, horizon + unit * 0.05 + (height - horizon) * t * 0.9);
            let radius = unit * (0.012 + 0.06 * t) * self.dice.range(0.6, 1.3);
            self.canvas.ellipse(foot, (radius, radius * 0.3), dust * 1.15, 0.8, 0.2);
            self.canvas.ellipse(
                (foot.0, foot.1 + radius * 0.04),
                (radius * 0.86, radius * 0.24),
                dust * 0.42,
                0.9,
                0.3,
            );
        }
        let depth = height - horizon;
        let standing = (horizon + depth * 0.3, horizon + depth * 0.85);
        Stage { horizon, standing, ground: Ground::Hard, scale: 1.0 }
    }

    fn heavens(&mut self) {
        let (width, height) = (self.canvas.width as f32, self.canvas.height as f32);
        let hue = self.dice.unit();
        let tint = self.scene.setting_tint.or(self.scene.colours.first().copied());
        let first = tint.map_or_else(|| Colour::hsl(0.55 + hue * 0.35, 0.75, 0.42), |tint| tint.colour() * 0.85);
        let second = Colour::hsl(0.8 + hue * 0.4, 0.8, 0.5);
        let scale = 2.6 / self.canvas.scale();
        let offset = self.dice.range(0.0, 100.0);
        let tilt = self.dice.range(-0.5, 0.5);
        // The clouds of a nebula are soft, so a quarter of the resolution loses nothing.
        let mut small =
            super::canvas::Canvas::new(self.canvas.width / 4 + 2, self.canvas.height / 4 + 2, hex(0x05060f));
        for y in 0..small.height {
            for (x, pixel) in small.row_mut(y).iter_mut().enumerate() {
                let (px, py) = (x as f32 * 4.0, y as f32 * 4.0);
                let bend = self.noise.fractal(px * scale + offset, py * scale, 4);
                let cloud = self.noise.fractal(px * scale * 1.5 + bend * 2.4, py * scale * 1.5 + offset, 5);
                let band = 1.0 - ((py - height * 0.5) / height + tilt * (px - width * 0.5) / width).abs() * 1.5;
                let strength = smooth(0.4, 0.85, cloud * 0.8 + band * 0.28);
                let hot = smooth(0.62, 0.86, cloud);
                *pixel = hex(0x05060f).mix(first, strength * 0.75).mix(second, hot * 0.6 * strength);
            }
        }
        for y in 0..self.canvas.height {
            let nebula = small.samples(y as f32 / 4.0 + 0.5);
            for (x, pixel) in self.canvas.row_mut(y).iter_mut().enumerate() {
                *pixel = nebula(x as f32 / 4.0 + 0.5);
            }
        }
        let unit = self.canvas.scale() / 1024.0;
        for _ in 0..(420.0 * width * height / 1_048_576.0) as usize + 60 {
            let at = (self.dice.unit() * width, self.dice.unit() * height);
            let brightness = self.dice.unit() * self.dice.unit();
            let radius = (0.7 + 1.7 * brightness) * unit;
            self.canvas.ellipse(
                at,
                (radius, radius),
                hex(0xdde8ff).mix(hex(0xffe2c0), self.dice.unit()),
                0.35 + 0.65 * brightness,
                0.8,
            );
            if brightness > 0.66 {
                self.canvas.glow(at, radius * 8.0, hex(0xcfdcff), 0.6);
            }
        }
    }

    /// Paints a banded sphere that is lit from the upper left or right.
    fn planet(&mut self, (cx, cy): (f32, f32), radius: f32, hue: Colour) {
        let side = self.light.direction().signum();
        self.canvas.glow((cx, cy), radius * 1.25, hue.mix(hex(0xffffff), 0.3), 0.5);
        let offset = self.dice.range(0.0, 100.0);
        let (top, bottom) = ((cy - radius) as i32, (cy + radius) as i32);
        for y in top.max(0)..bottom.min(self.canvas.height as i32) {
            for x in ((cx - radius) as i32).max(0)..((cx + radius) as i32 + 1).min(self.canvas.width as i32) {
                let (dx, dy) = ((x as f32 + 0.5 - cx) / radius, (y as f32 + 0.5 - cy) / radius);
                let square = dx * dx + dy * dy;
                if square < 1.0 {
                    let depth = (1.0 - square).sqrt();
                    let band = self.noise.fractal(dx * 1.2 + offset, dy * 6.0 + offset, 3);
                    let facing = (dx * side * 0.55 - dy * 0.6 + depth * 0.58).clamp(0.0, 1.0);
                    let colour = hue.mix(hex(0xf3e6d0), smooth(0.35, 0.7, band) * 0.6) * (0.06 + facing * 1.05);
                    self.canvas.blend(x, y, colour, ((1.0 - square.sqrt()) * radius).min(1.0));
                }
            }
        }
    }

    /// Paints blue water, rays of light, sand, seaweed and bubbles.
    pub(super) fn underwater(mut self) -> Stage {
        let (width, height, unit) = (self.canvas.width as f32, self.canvas.height as f32, self.canvas.scale());
        let night = if self.light.is_dark { 0.45 } else { 1.0 };
        let tint =
            |colour: Colour| self.scene.setting_tint.map_or(colour, |tint| colour.mix(tint.colour(), 0.5)) * night;
        let (top, middle, bottom) = (tint(hex(0x6fd6e8)), tint(hex(0x1f86b8)), tint(hex(0x0b3a66)));
        for y in 0..self.canvas.height {
            let t = y as f32 / height;
            let colour = top.mix(middle, smooth(0.0, 0.5, t)).mix(bottom, smooth(0.4, 1.0, t));
            self.canvas.row_mut(y).fill(colour);
        }
        self.rays(top);
        let sand = tint(hex(0xd9c79a)).mix(middle, 0.35);
        for layer in 0..3 {
            let t = layer as f32 / 2.0;
            let colour = sand.mix(middle, 0.75 * (1.0 - t));
            super::ground::Ridge {
                foot: height * (0.84 + 0.1 * t),
                rise: unit * (0.16 - 0.05 * t),
                summits: self.dice.range(1.2, 2.2),
                jagged: 0.12,
                offset: self.dice.range(0.0, 200.0),
                colours: (colour, colour * 0.75),
            }
            .paint(self.canvas, self.noise);
            for _ in 0..4 + layer * 2 {
                let foot = (self.dice.unit() * width, height * (0.84 + 0.12 * t));
                let size = unit * self.dice.range(0.08, 0.18) * (0.7 + 0.5 * t);
                self.reef(foot, size, middle, 0.6 * (1.0 - t));
            }
        }
        for _ in 0..34 {
            let at = (self.dice.unit() * width, self.dice.unit() * height);
            let radius = unit * self.dice.range(0.002, 0.009);
            self.canvas.ellipse(at, (radius, radius), hex(0xd6f4ff), 0.28, 0.25);
            self.canvas.ellipse(
                (at.0 - radius * 0.3, at.1 - radius * 0.3),
                (radius * 0.3, radius * 0.3),
                hex(0xffffff),
                0.7,
                0.5,
            );
        }
        Stage { horizon: height * 0.2, standing: (height * 0.45, height * 0.8), ground: Ground::Nothing, scale: 1.0 }
    }

    fn rays(&mut self, colour: Colour) {
        let (width, height) = (self.canvas.width as f32, self.canvas.height as f32);
        let slant = (self.light.across - 0.5) * 0.5;
        let source = self.light.across * width;
        for y in 0..self.canvas.height {
            let t = y as f32 / height;
            let fade = (1.0 - t) * (1.0 - t) * 0.42;
            for (x, pixel) in self.canvas.row_mut(y).iter_mut().enumerate() {
                let spread = (x as f32 - source) / width / (0.7 + t) + slant * t;
                let ray = smooth(
                    0.5,
                    0.85,
                    self.noise.at(spread * 13.0 + 40.0, 3.0) * 0.7 + self.noise.at(spread * 37.0, 9.0) * 0.3,
                );
                *pixel = pixel.screen(colour * (ray * fade));
            }
        }
    }

    fn reef(&mut self, foot: (f32, f32), size: f32, water: Colour, haze: f32) {
        let palette = [hex(0x2f8f5a), hex(0xe2556f), hex(0xf08a4a), hex(0x8a5ac0), hex(0x3aa890), hex(0xe8b84a)];
        let colour = palette[self.dice.index(6)].mix(water, 0.25 + haze);
        if self.dice.chance(0.55) {
            for strand in -2..=2 {
                let sway = self.dice.range(0.0, 1.0);
                let mut at = (foot.0 + strand as f32 * size * 0.09, foot.1);
                for step in 0..8 {
                    let next =
                        (at.0 + wave(sway + step as f32 * 0.16) * size * 0.06, at.1 - size * self.dice.range(0.1, 0.2));
                    let thick = size * 0.055 * (1.0 - step as f32 / 9.0);
                    self.canvas.line(at, next, (thick + 1.0, thick + 0.5), colour * (0.8 + 0.05 * step as f32), 0.95);
                    at = next;
                }
            }
        } else if self.dice.chance(0.5) {
            for _ in 0..9 {
                let tip = (foot.0 + self.dice.range(-0.5, 0.5) * size, foot.1 - size * self.dice.range(0.35, 0.9));
                self.canvas.line(foot, tip, (size * 0.1, size * 0.05), colour * self.dice.range(0.8, 1.15), 1.0);
                self.canvas.ellipse(tip, (size * 0.06, size * 0.06), colour * 1.2, 1.0, 0.3);
            }
        } else {
            let (light, stone) = (self.light, hex(0x6f7f8a).mix(water, 0.35 + haze));
            shape::rock(self.canvas, foot, size * 1.4, stone, light, &mut self.dice);
        }
    }
}
