//! Indoor settings: a room with a window, and a table for still lifes.

use super::colour::{Colour, hex};
use super::dice::smooth;
use super::setting::{Ground, SettingPainter, Stage};

/// Wall colours that suit a wooden floor.
const WALLS: [Colour; 6] = [hex(0xd9c7a8), hex(0x9fb8b0), hex(0xc79a86), hex(0x8ea3c0), hex(0xd8b4a0), hex(0xa8b48a)];

impl SettingPainter<'_> {
    /// Paints a room with a wall, a wooden floor and a window.
    pub(super) fn room(mut self) -> Stage {
        let (width, height, unit) = (self.canvas.width as f32, self.canvas.height as f32, self.canvas.scale());
        let floor = height * self.dice.range(0.64, 0.72);
        let window = (width * self.dice.range(0.2, 0.8), floor * self.dice.range(0.36, 0.44));
        self.wall(floor, window);
        let size = (unit * self.dice.range(0.17, 0.22), unit * self.dice.range(0.19, 0.24));
        self.glazing(window, size);
        self.frame(window, floor);
        self.boards(floor);
        let skirting = self.light.lit(hex(0xefe6d8)) * 0.9;
        for y in (floor - unit * 0.022) as i32..floor as i32 {
            self.canvas.span_at(y, 0.0, width, skirting, 0.9);
        }
        self.rug(floor);
        self.patch_of_light(window.0, floor, size.0);
        let standing = (floor + (height - floor) * 0.25, height * 0.93);
        Stage { horizon: floor, standing, ground: Ground::Hard, scale: 1.1 }
    }

    fn wall(&mut self, floor: f32, window: (f32, f32)) {
        let paint = self
            .scene
            .setting_tint
            .or(self.scene.colours.first().copied())
            .map(|tint| tint.colour().mix(hex(0xd9c7a8), 0.35));
        let base = paint.unwrap_or(WALLS[self.dice.index(WALLS.len())]);
        let base = if self.light.is_dark { base.under(hex(0x9a7f8a)) } else { self.light.lit(base) };
        let unit = self.canvas.scale();
        let stripes = self.dice.chance(0.4);
        for y in 0..(floor.max(0.0) as usize).min(self.canvas.height) {
            for (x, pixel) in self.canvas.row_mut(y).iter_mut().enumerate() {
                let (dx, dy) = ((x as f32 - window.0) / unit, (y as f32 - window.1) / unit);
                let shade = 1.08 - (dx * dx + dy * dy).sqrt() * 0.36;
                let stripe = if stripes && (x as f32 / unit * 14.0) as i32 % 2 == 0 { 0.965 } else { 1.0 };
                let plaster = 1.0 + (self.noise.fractal(x as f32 * 0.02, y as f32 * 0.02, 3) - 0.5) * 0.07;
                *pixel = base * (shade * stripe * plaster);
            }
        }
    }

    /// Paints the window and its view of the sky and a hill.
    fn glazing(&mut self, (cx, cy): (f32, f32), (half_width, half_height): (f32, f32)) {
        let [top, middle, bottom] = self.light.sky;
        let frame = self.light.shaded(hex(0xf3ede2)).mix(hex(0xf3ede2), 0.5);
        let bar = half_width * 0.07;
        for y in (cy - half_height - bar) as i32..(cy + half_height + bar) as i32 {
            self.canvas.span_at(y, cx - half_width - bar, cx + half_width + bar, frame, 1.0);
        }
        let hill = self.light.faded(self.light.lit(hex(0x5f9048)), 0.4);
        for y in (cy - half_height) as i32..(cy + half_height) as i32 {
            let t = (y as f32 - cy + half_height) / (2.0 * half_height);
            let sky = top.mix(middle, smooth(0.0, 0.5, t)).mix(bottom, smooth(0.4, 0.9, t));
            for x in (cx - half_width) as i32..(cx + half_width) as i32 {
                let u = (x as f32 - cx) / half_width;
                let crest = 0.72 + (self.noise.at(u * 1.7 + 9.0, 4.0) - 0.5) * 0.3;
                let cloud = smooth(0.52, 0.75, self.noise.fractal(u * 2.2 + 30.0, t * 4.0, 4)) * 0.6;
                let view = if t > crest { hill } else { sky.mix(hex(0xffffff).mix(bottom, 0.4), cloud * 0.7) };
                self.canvas.blend(x, y, view, 1.0);
            }
        }
        if self.light.is_dark {
            let moon = (cx + half_width * 0.4, cy - half_height * 0.45);
            self.canvas.glow(moon, half_width * 0.6, hex(0xcfdcff), 0.6);
            self.canvas.ellipse(moon, (half_width * 0.13, half_width * 0.13), hex(0xf5f2e4), 1.0, 0.1);
        }
        for y in (cy - half_height) as i32..(cy + half_height) as i32 {
            self.canvas.span_at(y, cx - bar * 0.4, cx + bar * 0.4, frame, 1.0);
            if (y as f32 - cy).abs() < bar * 0.4 {
                self.canvas.span_at(y, cx - half_width, cx + half_width, frame, 1.0);
            }
        }
        for row in 0..(bar * 1.5) as i32 {
            let y = (cy + half_height + bar) as i32 + row;
            self.canvas.span_at(y, cx - half_width * 1.16, cx + half_width * 1.16, frame * 0.88, 1.0);
        }
    }

    /// Paints a framed picture on the wall, away from the window.
    fn frame(&mut self, window: (f32, f32), floor: f32) {
        let (width, unit) = (self.canvas.width as f32, self.canvas.scale());
        let x = if window.0 < width * 0.5 {
            width * self.dice.range(0.74, 0.88)
        } else {
            width * self.dice.range(0.12, 0.26)
        };
        let (half_width, half_height) = (unit * self.dice.range(0.05, 0.08), unit * self.dice.range(0.06, 0.09));
        let y = floor * 0.4;
        let hue = self.dice.unit();
        let wood = self.light.shaded(hex(0x6b4528));
        for row in -(half_height * 1.15) as i32..(half_height * 1.15) as i32 {
            self.canvas.span_at(y as i32 + row, x - half_width * 1.18, x + half_width * 1.18, wood, 1.0);
        }
        for row in -(half_height as i32)..half_height as i32 {
            let t = row as f32 / half_height;
            let wash = self.light.lit(Colour::hsl(hue + t * 0.08, 0.35, 0.62 - 0.16 * t));
            self.canvas.span_at(y as i32 + row, x - half_width, x + half_width, wash, 1.0);
        }
    }

    fn boards(&mut self, floor: f32) {
        let (width, height) = (self.canvas.width as f32, self.canvas.height as f32);
        let wood = if self.light.is_dark { hex(0x6a4a38).under(hex(0xb09aa0)) } else { self.light.lit(hex(0xb9834f)) };
        for y in floor.max(0.0) as usize..self.canvas.height {
            let t = (y as f32 - floor) / (height - floor);
            let spread = 0.55 + 0.75 * t;
            for (x, pixel) in self.canvas.row_mut(y).iter_mut().enumerate() {
                let lane = (x as f32 - width * 0.5) / width / spread * 11.0;
                let board = lane.floor();
                let edge = (lane - board).min(1.0 - (lane - board));
                let tone = self.noise.cell(board as i32, 3) * 0.22
                    + self.noise.at(lane * 9.0, board * 7.0 + 4.0 / (t + 0.2)) * 0.14;
                *pixel = wood * ((0.74 + tone + 0.12 * t) * smooth(0.0, 0.035, edge).max(0.68));
            }
        }
    }

    fn rug(&mut self, floor: f32) {
        let (width, height) = (self.canvas.width as f32, self.canvas.height as f32);
        let depth = height - floor;
        let hue = Colour::hsl(self.dice.unit(), 0.42, 0.42);
        let dye = if self.light.is_dark { hue.under(hex(0xa090a8)) } else { self.light.lit(hue) };
        let centre = (width * self.dice.range(0.42, 0.58), floor + depth * 0.6);
        let radii = (width.min(height * 1.3) * 0.38, depth * 0.34);
        for (scale, tone) in [(1.0, 0.8), (0.93, 1.25), (0.86, 1.0), (0.6, 1.18), (0.54, 1.0)] {
            self.canvas.ellipse(centre, (radii.0 * scale, radii.1 * scale), dye * tone, 0.95, 0.02);
        }
    }

    /// Paints the light that falls through the window onto the floor.
    fn patch_of_light(&mut self, window: f32, floor: f32, half_width: f32) {
        let height = self.canvas.height as f32;
        let slant = if self.light.across < 0.5 { 1.1 } else { -1.1 };
        let strength = if self.light.is_dark { 0.1 } else { 0.2 };
        for y in floor as usize..self.canvas.height {
            let t = (y as f32 - floor) / (height - floor);
            let fade = strength * smooth(0.02, 0.15, t) * (1.0 - smooth(0.6, 0.95, t));
            let centre = window + slant * t * half_width * 2.4;
            let half = half_width * (1.0 + 0.5 * t);
            let light = self.light.direct.mix(hex(0xffffff), 0.4);
            self.canvas.span_at(y as i32, centre - half, centre - half * 0.06, light, fade);
            self.canvas.span_at(y as i32, centre + half * 0.06, centre + half, light, fade);
        }
    }

    /// Paints a table top in front of a soft, dark backdrop.
    pub(super) fn table(mut self) -> Stage {
        let (width, height) = (self.canvas.width as f32, self.canvas.height as f32);
        let edge = height * self.dice.range(0.56, 0.64);
        let tint = self.scene.setting_tint.or(self.scene.colours.first().copied());
        let backdrop = tint.map_or_else(
            || [hex(0x6f7f78), hex(0x8a6f5f), hex(0x5f7488), hex(0x9a8a6a), hex(0x7a5f70)][self.dice.index(5)],
            |tint| tint.colour().mix(hex(0x6f6a64), 0.3),
        );
        let backdrop = if self.light.is_dark { backdrop * 0.5 } else { self.light.lit(backdrop) };
        let lamp = (self.light.across * width, height * 0.2);
        for y in 0..(edge as usize).min(self.canvas.height) {
            for (x, pixel) in self.canvas.row_mut(y).iter_mut().enumerate() {
                let (dx, dy) = ((x as f32 - lamp.0) / width, (y as f32 - lamp.1) / height);
                let mottle = self.noise.fractal(x as f32 / width * 4.0, y as f32 / height * 4.0 + 20.0, 4) - 0.5;
                *pixel = backdrop * (1.3 - (dx * dx + dy * dy).sqrt() * 1.05 + mottle * 0.22);
            }
        }
        let wood = [hex(0x9a6238), hex(0xb98a5a), hex(0x7a4a30)][self.dice.index(3)];
        let wood = if self.light.is_dark { wood * 0.55 } else { self.light.lit(wood) };
        for y in edge as usize..self.canvas.height {
            let t = (y as f32 - edge) / (height - edge);
            let plank = 1.0 / (t + 0.3) * 5.0;
            let seam = (plank - plank.floor()).min(1.0 - (plank - plank.floor()));
            for (x, pixel) in self.canvas.row_mut(y).iter_mut().enumerate() {
                let u = x as f32 / width;
                let grain = self.noise.at(u * 5.0 + plank.floor() * 31.0, plank * 11.0) * 0.5
                    + self.noise.at(u * 11.0 + plank.floor() * 17.0, plank * 40.0) * 0.5;
                let side = 1.1 - (u - self.light.across).abs() * 0.35;
                let tone = 0.72 + 0.34 * grain + 0.1 * t;
                *pixel = wood * (tone * side * smooth(0.0, 0.03, seam).max(0.72));
            }
        }
        let depth = height - edge;
        Stage { horizon: edge, standing: (edge + depth * 0.22, edge + depth * 0.78), ground: Ground::Hard, scale: 1.3 }
    }
}
