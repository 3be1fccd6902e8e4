//! Outdoor settings, painted from the sky down to the ground.

use super::canvas::Canvas;
use super::colour::{Colour, hex};
use super::dice::{Dice, Noise};
use super::ground::{Plain, Ridge, Water};
use super::light::Light;
use super::scene::Scene;
use super::vocabulary::{Phenomenon, Setting};
use super::{shape, sky};

/// Kind of ground that subjects stand on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Ground {
    /// Grass, snow or sand of this colour, which hides feet.
    Soft(Colour),
    /// Hard ground, which shows feet and shadows.
    Hard,
    /// Water, which mirrors floating subjects.
    Water,
    /// No ground: subjects float in the air, in space or under water.
    Nothing,
}

/// The area of a setting in which subjects stand.
#[derive(Debug, Clone, Copy)]
pub struct Stage {
    /// Row of the horizon.
    pub horizon: f32,
    /// First and last row on which subjects may stand.
    pub standing: (f32, f32),
    pub ground: Ground,
    /// Scale of subjects.
    pub scale: f32,
}

/// Paints a setting.
pub struct SettingPainter<'a> {
    pub canvas: &'a mut Canvas,
    pub scene: &'a Scene,
    pub setting: Setting,
    pub light: &'a Light,
    pub noise: &'a Noise,
    pub dice: Dice,
}

impl SettingPainter<'_> {
    /// Paints the setting and returns its stage.
    pub fn paint(mut self) -> Stage {
        match self.setting {
            Setting::Room => return self.room(),
            Setting::Table => return self.table(),
            Setting::Space => return self.space(),
            Setting::Moon => return self.moon(),
            Setting::Underwater => return self.underwater(),
            _ => {}
        }
        let height = self.canvas.height as f32;
        let horizon = height
            * match self.setting {
                Setting::Sky => 0.92,
                Setting::City => self.dice.range(0.66, 0.76),
                Setting::Forest | Setting::Jungle => self.dice.range(0.56, 0.66),
                Setting::Sea | Setting::Beach => self.dice.range(0.42, 0.58),
                _ => self.dice.range(0.4, 0.64),
            };
        let mut sky_dice = self.dice.clone();
        sky::paint(self.canvas, horizon, self.scene, self.light, self.noise, &mut sky_dice);
        let ground = match self.setting {
            Setting::Forest | Setting::Jungle => self.forest(horizon),
            Setting::Mountains => self.mountains(horizon),
            Setting::Sea => self.sea(horizon),
            Setting::Beach => self.beach(horizon),
            Setting::Lake => self.lake(horizon),
            Setting::Desert => self.desert(horizon),
            Setting::City => self.city(horizon),
            Setting::Street => self.street(horizon),
            Setting::Snow => self.snow(horizon),
            Setting::Sky => self.above_the_clouds(horizon),
            _ => self.meadow(horizon),
        };
        let depth = height - horizon;
        let standing = match self.setting {
            Setting::Sky => (height * 0.3, height * 0.72),
            Setting::Beach => (horizon + depth * 0.5, horizon + depth * 0.9),
            Setting::City => (horizon + depth * 0.45, horizon + depth * 0.9),
            _ => (horizon + depth * 0.2, horizon + depth * 0.88),
        };
        Stage { horizon, standing, ground, scale: 1.0 }
    }

    pub(super) fn width(&self) -> f32 {
        self.canvas.width as f32
    }

    pub(super) fn height(&self) -> f32 {
        self.canvas.height as f32
    }

    /// Colour of grass and leaves: green, autumnal or snow-covered.
    pub(super) fn foliage(&mut self, green: u32) -> Colour {
        if self.scene.has(Phenomenon::Autumn) {
            return [hex(0xc8632a), hex(0xd9952f), hex(0xa8432b), hex(0xb9832f)][self.dice.index(4)];
        }
        let colour = hex(green);
        match self.scene.setting_tint {
            Some(tint) if self.scene.named_setting.is_some() => colour.mix(tint.colour(), 0.55),
            _ => colour,
        }
    }

    pub(super) fn ridges(&mut self, horizon: f32, count: usize, rise: f32, near: Colour) {
        for layer in 0..count {
            let distance = 1.0 - (layer as f32 + 0.3) / count as f32;
            let colour = self.light.faded(self.light.lit(near) * 0.92, distance);
            Ridge {
                foot: horizon + 2.0,
                rise: rise * self.canvas.height as f32 * (0.45 + 0.75 * distance),
                summits: self.dice.range(1.2, 2.6),
                jagged: 0.1 + 0.25 * distance,
                offset: self.dice.range(0.0, 200.0),
                colours: (colour, colour.mix(self.light.haze, 0.3 * self.light.thickness)),
            }
            .paint(self.canvas, self.noise);
        }
    }

    pub(super) fn plain(&mut self, horizon: f32, near: Colour, patches: f32, stretch: f32) -> Colour {
        let lit = self.light.lit(near);
        Plain { horizon, far: self.light.faded(lit, 0.75), near: lit, patches, stretch }.paint(
            self.canvas,
            self.light,
            self.noise,
        );
        lit
    }

    /// Scatters `count` positions over the ground, distant ones first, each with a scale by depth.
    fn scatter(&mut self, count: usize, horizon: f32, near: f32) -> Vec<((f32, f32), f32)> {
        let mut feet: Vec<_> = (0..count)
            .map(|_| {
                let depth = self.dice.unit() * self.dice.unit();
                let y = horizon + (near - horizon) * depth;
                ((self.dice.range(-0.05, 1.05) * self.width(), y), 0.12 + 0.88 * depth)
            })
            .collect();
        feet.sort_by(|a, b| a.0.1.total_cmp(&b.0.1));
        feet
    }

    pub(super) fn grass(&mut self, horizon: f32, colour: Colour, flowers: usize) {
        let (height, unit) = (self.height(), self.canvas.scale());
        for (foot, size) in self.scatter(90, horizon + 6.0, height * 1.02) {
            shape::tuft(self.canvas, foot, unit * 0.034 * size, colour * 0.92, &mut self.dice);
        }
        let petals = [hex(0xf25c6e), hex(0xffd24a), hex(0xffffff), hex(0xb07cf0), hex(0xff9ac2), hex(0x6aa8ff)];
        let (first, second) = (petals[self.dice.index(6)], petals[self.dice.index(6)]);
        for (foot, size) in self.scatter(flowers, horizon + 8.0, height * 1.04) {
            let petal = if self.dice.chance(0.6) { first } else { second };
            shape::flower(self.canvas, foot, unit * 0.06 * size, petal, self.light, &mut self.dice);
        }
    }

    fn meadow(&mut self, horizon: f32) -> Ground {
        let green = self.foliage(0x6f_a544);
        self.ridges(horizon, 3, 0.16, green.mix(hex(0x4f7f55), 0.5));
        let lit = self.plain(horizon, green, 0.7, 2.2);
        let unit = self.canvas.scale();
        for _ in 0..self.dice.index(6) + 3 {
            let foot = (self.dice.unit() * self.width(), horizon + unit * self.dice.range(0.004, 0.03));
            let leaf = self.foliage(0x4c_8a3c);
            let far = self.light.faded(leaf, 0.35);
            let size = unit * self.dice.range(0.06, 0.13);
            shape::broadleaf(self.canvas, foot, size, far, self.light, &mut self.dice);
        }
        let flowers = if self.setting == Setting::Garden { 120 } else { 26 };
        if self.setting == Setting::Garden {
            for side in [self.dice.range(-0.02, 0.14), self.dice.range(0.86, 1.02)] {
                let leaf = self.foliage(0x4f_9440);
                let foot = (side * self.width(), horizon + unit * 0.07);
                shape::broadleaf(self.canvas, foot, unit * 0.42, leaf, self.light, &mut self.dice);
            }
        }
        self.grass(horizon, lit, flowers);
        Ground::Soft(lit)
    }

    fn forest(&mut self, horizon: f32) -> Ground {
        let jungle = self.setting == Setting::Jungle;
        let snowy = self.scene.has(Phenomenon::Snow);
        let needles = if jungle { 0x2f_8a44 } else { 0x2f_6a45 };
        let (unit, width) = (self.canvas.scale(), self.width());
        let broad = jungle || self.scene.has(Phenomenon::Autumn) || self.dice.chance(0.4);
        let (stature, spacing) = (self.dice.range(0.75, 1.35), self.dice.range(0.8, 1.7));
        for layer in 0..4 {
            let distance = 0.95 - layer as f32 * 0.26;
            let size = unit * (0.2 + 0.13 * layer as f32) * stature;
            let foot = horizon + unit * 0.012 * layer as f32;
            let mut x = -size * 0.2;
            while x < width + size * 0.2 {
                let leaf = self.foliage(needles).mix(hex(0xe8f0f6), if snowy { 0.4 } else { 0.0 });
                let colour = self.light.faded(leaf, distance);
                let position = (x, foot + self.dice.range(0.0, unit * 0.012));
                let tall = size * self.dice.range(0.75, 1.2);
                if broad {
                    shape::broadleaf(self.canvas, position, tall, colour, self.light, &mut self.dice);
                } else {
                    shape::conifer(self.canvas, position, tall, colour, self.light, &mut self.dice);
                }
                x += size * spacing * self.dice.range(0.22, 0.46);
            }
            self.mist(foot, unit * 0.09, 0.3 * self.light.thickness);
            let shrubs = self.foliage(needles).mix(hex(0xe8f0f6), if snowy { 0.5 } else { 0.0 });
            let shrubs = self.light.shaded(self.light.faded(shrubs, distance * 0.9));
            Ridge {
                foot: foot + unit * 0.02,
                rise: unit * (0.03 + 0.012 * layer as f32),
                summits: 16.0,
                jagged: 0.5,
                offset: self.dice.range(0.0, 200.0),
                colours: (shrubs, shrubs * 0.8),
            }
            .paint(self.canvas, self.noise);
        }
        let floor = if snowy { hex(0xe6eef6) } else { self.foliage(0x5b_7a3a).mix(hex(0x6b5a3a), 0.35) };
        let lit = self.plain(horizon + unit * 0.03, floor, 1.0, 1.6);
        if !snowy {
            self.grass(horizon + unit * 0.03, lit.mix(self.light.lit(hex(0x4f8a3a)), 0.5), 8);
        }
        let bark = self.light.shaded(hex(0x4a382c)).mix(self.light.haze, 0.08);
        let edges = [self.dice.range(-0.02, 0.08), self.dice.range(0.92, 1.02), self.dice.range(0.1, 0.2)];
        let (first, last) = [(0, 1), (1, 2), (0, 2), (1, 3), (0, 3)][self.dice.index(5)];
        for side in &edges[first..last] {
            let foot = (side * width, horizon + unit * self.dice.range(0.2, 0.34));
            shape::trunk(self.canvas, foot, unit * self.dice.range(0.07, 0.12), bark, self.light);
        }
        Ground::Soft(lit)
    }

    /// Paints a soft band of haze around a row.
    pub(super) fn mist(&mut self, row: f32, reach: f32, strength: f32) {
        let haze = self.light.haze;
        for y in (row - reach).max(0.0) as usize..((row + reach).max(0.0) as usize).min(self.canvas.height) {
            let fade = 1.0 - ((y as f32 - row) / reach).abs();
            let alpha = strength * fade * fade;
            self.canvas.row_mut(y).iter_mut().for_each(|pixel| *pixel = pixel.mix(haze, alpha));
        }
    }

    fn mountains(&mut self, horizon: f32) -> Ground {
        self.peaks(horizon, 0.46);
        let green = self.foliage(0x5d_9048);
        let unit = self.canvas.scale();
        let snowy = self.scene.has(Phenomenon::Snow);
        let green = if snowy { hex(0xdfe8f2) } else { green };
        self.ridges(horizon + unit * 0.02, 2, 0.09, green.mix(hex(0x3a5f4a), 0.5));
        self.tree_line(horizon + unit * 0.02, 0.085, 0.45);
        let lit = self.plain(horizon + unit * 0.02, green, 0.8, 2.0);
        if !snowy {
            self.grass(horizon + unit * 0.03, lit, 22);
        }
        for (foot, size) in self.scatter(6, horizon + unit * 0.06, self.height()) {
            shape::rock(self.canvas, foot, unit * 0.12 * size, hex(0x8d8a86), self.light, &mut self.dice);
        }
        Ground::Soft(lit)
    }

    fn peaks(&mut self, horizon: f32, rise: f32) {
        for (distance, rise, line) in [(0.72, rise, 0.5), (0.4, rise * 0.66, 0.62)] {
            Ridge {
                foot: horizon + 2.0,
                rise: self.height() * rise * self.dice.range(0.9, 1.15),
                summits: self.dice.range(1.6, 2.8),
                jagged: 0.82,
                offset: self.dice.range(0.0, 200.0),
                colours: (hex(0x8b8794), hex(0x5f6478)),
            }
            .paint_rock(self.canvas, self.light, distance, line, self.noise);
        }
    }

    fn tree_line(&mut self, foot: f32, size: f32, distance: f32) {
        let unit = self.canvas.scale();
        let mut x = 0.0;
        while x < self.width() {
            if self.noise.at(x / unit * 5.0, foot * 0.01) > 0.42 {
                let leaf = self.foliage(0x2f_5f45);
                let colour = self.light.faded(leaf, distance);
                let tall = unit * size * self.dice.range(0.5, 1.1);
                shape::conifer(self.canvas, (x, foot + unit * 0.006), tall, colour, self.light, &mut self.dice);
            }
            x += unit * size * self.dice.range(0.18, 0.4);
        }
    }

    fn sea(&mut self, horizon: f32) -> Ground {
        if self.scene.backdrop == Some(Setting::Mountains) {
            self.peaks(horizon, 0.3);
        } else if self.dice.chance(0.5) {
            self.ridges(horizon, 1, 0.07, hex(0x5f7f8f));
        }
        let rough = if self.scene.has(Phenomenon::Storm) || self.scene.has(Phenomenon::Wind) { 1.0 } else { 0.42 };
        let water = Water { shore: horizon, colour: self.water_colour(0x1f_6a96), rough };
        water.paint(self.canvas, self.light, self.noise);
        water.waves(self.canvas, self.light, self.noise);
        Ground::Water
    }

    fn water_colour(&self, blue: u32) -> Colour {
        let own = match self.scene.setting_tint {
            Some(tint) if self.scene.named_setting.is_some() => hex(blue).mix(tint.colour(), 0.6),
            _ => hex(blue),
        };
        own.under(self.light.direct.mix(self.light.shade, 0.5)).mix(self.light.sky[1], 0.25)
    }

    fn beach(&mut self, horizon: f32) -> Ground {
        if self.dice.chance(0.6) {
            self.ridges(horizon, 1, 0.08, hex(0x4f7f6a));
        }
        let water = Water { shore: horizon, colour: self.water_colour(0x1f_93a8), rough: 0.3 };
        water.paint(self.canvas, self.light, self.noise);
        water.waves(self.canvas, self.light, self.noise);
        let depth = self.height() - horizon;
        let sand = Ridge {
            foot: horizon + depth * 0.46,
            rise: depth * 0.14,
            summits: 0.9,
            jagged: 0.0,
            offset: self.dice.range(0.0, 200.0),
            colours: (self.light.lit(hex(0xd9bd88)), self.light.lit(hex(0xf0dcae))),
        };
        let foam = Ridge {
            foot: sand.foot - depth * 0.025,
            colours: (self.light.lit(hex(0xf6fafa)), self.light.lit(hex(0xe9f2f2))),
            ..sand
        };
        foam.paint(self.canvas, self.noise);
        sand.paint(self.canvas, self.noise);
        Ground::Soft(self.light.lit(hex(0xeed9aa)))
    }

    fn lake(&mut self, horizon: f32) -> Ground {
        let unit = self.canvas.scale();
        if self.scene.backdrop == Some(Setting::Mountains) || self.dice.chance(0.5) {
            self.peaks(horizon, 0.34);
        } else {
            let green = self.foliage(0x4f_7f55);
            self.ridges(horizon, 3, 0.2, green);
        }
        self.tree_line(horizon, 0.13, 0.3);
        self.mist(horizon, unit * 0.05, 0.3 * self.light.thickness);
        Water { shore: horizon + 1.0, colour: self.water_colour(0x2a_6078), rough: 0.08 }.paint(
            self.canvas,
            self.light,
            self.noise,
        );
        self.mist(horizon, unit * 0.02, 0.3);
        let reed = self.light.shaded(self.light.lit(hex(0x5f7a3a)));
        for side in [0.0, 1.0] {
            for _ in 0..14 {
                let x = (side + self.dice.range(-0.02, 0.16) * (1.0 - 2.0 * side)) * self.width();
                shape::tuft(
                    self.canvas,
                    (x, self.height() * 1.01),
                    unit * self.dice.range(0.08, 0.2),
                    reed,
                    &mut self.dice,
                );
            }
        }
        Ground::Water
    }

    fn desert(&mut self, horizon: f32) -> Ground {
        let sand = match self.scene.setting_tint {
            Some(tint) => hex(0xe0a55c).mix(tint.colour(), 0.4),
            None => hex(0xe0a55c),
        };
        let depth = self.height() - horizon;
        self.ridges(horizon, 2, 0.1, sand.mix(hex(0xb0705a), 0.5));
        let mut lit = sand;
        for layer in 0..5 {
            let t = layer as f32 / 4.0;
            let distance = 0.7 * (1.0 - t);
            lit = self.light.faded(self.light.lit(sand), distance);
            let dim = self.light.faded(self.light.shaded(sand * 0.86), distance);
            Ridge {
                foot: horizon + depth * (0.06 + 0.9 * t * t),
                rise: depth * (0.1 + 0.2 * t),
                summits: 2.6 - 1.5 * t,
                jagged: 0.0,
                offset: self.dice.range(0.0, 200.0),
                colours: if layer % 2 == 0 { (lit * 1.06, dim) } else { (dim, lit) },
            }
            .paint(self.canvas, self.noise);
        }
        Ground::Soft(lit)
    }

    fn snow(&mut self, horizon: f32) -> Ground {
        let unit = self.canvas.scale();
        if self.dice.chance(0.6) {
            self.peaks(horizon, 0.28);
        } else {
            self.ridges(horizon, 2, 0.12, hex(0xb9c8d9));
        }
        if self.scene.named_setting != Some(Setting::Snow) {
            self.tree_line(horizon, 0.17, 0.5);
            self.tree_line(horizon + unit * 0.012, 0.2, 0.25);
        }
        let depth = self.height() - horizon;
        let mut lit = hex(0xf2f6fc);
        for layer in 0..4 {
            let t = layer as f32 / 3.0;
            lit = self.light.faded(self.light.lit(hex(0xf2f6fc)), 0.35 * (1.0 - t));
            let dim = self.light.faded(self.light.shaded(hex(0xe3ecfa)), 0.3 * (1.0 - t));
            Ridge {
                foot: horizon + depth * (0.1 + 0.75 * t),
                rise: depth * (0.12 + 0.14 * t),
                summits: 2.4 - 1.2 * t,
                jagged: 0.0,
                offset: self.dice.range(0.0, 200.0),
                colours: (lit * 1.03, dim.mix(lit, 0.5)),
            }
            .paint(self.canvas, self.noise);
            for _ in 0..2 {
                let foot = (self.dice.unit() * self.width(), horizon + depth * (0.06 + 0.5 * t));
                let needles = self.light.faded(hex(0x3f6a5a).mix(hex(0xe8f0f8), 0.35), 0.4 * (1.0 - t));
                if self.scene.named_setting != Some(Setting::Snow) && t < 0.7 {
                    let tall = unit * self.dice.range(0.12, 0.24) * (0.6 + t);
                    shape::conifer(self.canvas, foot, tall, needles, self.light, &mut self.dice);
                }
            }
        }
        Ground::Soft(lit)
    }

    fn above_the_clouds(&mut self, _horizon: f32) -> Ground {
        let (height, unit) = (self.height(), self.canvas.scale());
        for layer in 0..4 {
            let t = layer as f32 / 3.0;
            let bright = self.light.sky[2].mix(self.light.lit(hex(0xffffff)), 0.55);
            let dim = self.light.sky[1].mix(bright, 0.35);
            let row = height * (0.8 + 0.17 * t);
            let mut x = 0.0;
            while x < self.width() + unit * 0.1 {
                let radius = unit * self.dice.range(0.05, 0.12) * (0.7 + 0.6 * t);
                let y = row + self.dice.range(-0.3, 0.4) * radius;
                self.canvas.ellipse((x, y + radius * 0.5), (radius * 1.7, radius), dim, 0.7, 0.7);
                self.canvas.ellipse((x, y), (radius * 1.5, radius * 0.8), bright, 0.8, 0.8);
                x += radius * self.dice.range(0.7, 1.2);
            }
        }
        Ground::Nothing
    }
}
