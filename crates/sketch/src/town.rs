//! Built settings: streets and skylines.

use super::colour::hex;
use super::ground::Water;
use super::setting::{Ground, SettingPainter};
use super::shape;
use super::vocabulary::Phenomenon;

impl SettingPainter<'_> {
    pub(super) fn city(&mut self, horizon: f32) -> Ground {
        let (unit, width) = (self.canvas.scale(), self.width());
        let base = if self.light.is_dark { hex(0x2c3150) } else { hex(0x8a93a6) };
        for layer in 0..4 {
            let distance = 0.9 - layer as f32 * 0.28;
            let mut x = -unit * 0.04;
            while x < width + unit * 0.05 {
                let wide = unit * self.dice.range(0.05, 0.12) * (0.7 + 0.14 * layer as f32);
                let tall = unit * self.dice.range(0.14, 0.5) * (1.05 - 0.14 * layer as f32);
                let wall = base.mix([hex(0x9a7f78), hex(0x6f86a8), hex(0xb0a894)][self.dice.index(3)], 0.25);
                let colour = self.light.faded(self.light.lit(wall), distance);
                let foot = (x + wide * 0.5, horizon + unit * 0.01);
                shape::tower(self.canvas, foot, (wide, tall), colour, self.light, &mut self.dice);
                x += wide * self.dice.range(0.8, 1.25);
            }
            self.mist(horizon - unit * 0.05, unit * 0.16, 0.25 * self.light.thickness);
        }
        self.pavement(horizon);
        Ground::Hard
    }

    /// Paints a wet-looking street that mirrors the lights.
    fn pavement(&mut self, horizon: f32) {
        let asphalt = if self.light.is_dark { hex(0x23263a) } else { hex(0x777c86) };
        let lit = self.light.lit(asphalt);
        let wet = self.scene.has(Phenomenon::Rain) || self.light.is_dark;
        if wet {
            Water { shore: horizon, colour: lit, rough: 0.12 }.paint(self.canvas, self.light, self.noise);
            for y in horizon.max(0.0) as usize..self.canvas.height {
                self.canvas.row_mut(y).iter_mut().for_each(|pixel| *pixel = pixel.mix(lit, 0.4));
            }
        } else {
            self.plain(horizon, asphalt, 0.35, 2.0);
        }
    }

    pub(super) fn street(&mut self, horizon: f32) -> Ground {
        let (unit, width, height) = (self.canvas.scale(), self.width(), self.height());
        let green = self.foliage(0x6f_a04a);
        self.ridges(horizon, 2, 0.14, green.mix(hex(0x4f7f65), 0.5));
        let walls = [hex(0xf0d9b0), hex(0xe8b89a), hex(0xd9cfc0), hex(0xbfd0d8), hex(0xe9e2d0)];
        let lit = self.plain(horizon, green, 0.5, 2.0);
        let vanishing = (width * self.dice.range(0.4, 0.6), horizon);
        self.road(vanishing, height);
        for step in 0..6 {
            let t = step as f32 / 5.0;
            for side in [-1.0, 1.0] {
                let foot_y = horizon + unit * (0.015 + 0.13 * t * t);
                let reach = unit * (0.09 + 0.5 * t * t);
                let size = unit * (0.07 + 0.2 * t * t);
                let foot = (vanishing.0 + side * reach * 1.3, foot_y);
                let wall = self.light.faded(walls[self.dice.index(5)], 0.5 * (1.0 - t));
                if self.dice.chance(0.75) {
                    shape::house(self.canvas, foot, size, wall, self.light, &mut self.dice);
                } else {
                    let leaf = self.foliage(0x4c_8a3c);
                    shape::broadleaf(self.canvas, foot, size * 1.4, leaf, self.light, &mut self.dice);
                }
            }
        }
        self.grass(horizon + unit * 0.2, lit, 0);
        self.road(vanishing, height);
        Ground::Hard
    }

    fn road(&mut self, (x, horizon): (f32, f32), height: f32) {
        let tar = self.light.lit(if self.light.is_dark { hex(0x4a4d5e) } else { hex(0x80858c) });
        let line = self.light.lit(hex(0xf3ead0));
        let half = self.width().min(height * 1.3) * 0.36;
        for y in horizon as usize..self.canvas.height {
            let t = (y as f32 - horizon) / (height - horizon);
            let shade = 0.9 + 0.16 * t;
            self.canvas.span_at(y as i32, x - half * t, x + half * t, tar * shade, 1.0);
            self.canvas.span_at(y as i32, x - half * t * 0.96, x - half * t * 0.92, line, 0.7);
            self.canvas.span_at(y as i32, x + half * t * 0.92, x + half * t * 0.96, line, 0.7);
            let phase = 2.2 / (t + 0.1);
            if phase - phase.floor() < 0.5 {
                self.canvas.span_at(y as i32, x - half * t * 0.025, x + half * t * 0.025, line, 0.85);
            }
        }
    }
}
