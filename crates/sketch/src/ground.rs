//! Land and water: hills, mountains, plains and water surfaces.

use super::canvas::Canvas;
use super::colour::{Colour, hex};
use super::dice::{Noise, smooth, wave};
use super::light::Light;

/// A ridge of hills or mountains.
#[derive(Debug, Clone, Copy)]
pub struct Ridge {
    /// Row of its foot.
    pub foot: f32,
    /// Height above its foot, in pixels.
    pub rise: f32,
    /// Number of summits across the picture.
    pub summits: f32,
    /// Roughness from 0 (rolling) to 1 (jagged).
    pub jagged: f32,
    /// Offset into the noise.
    pub offset: f32,
    /// Colours of its crest and of its foot.
    pub colours: (Colour, Colour),
}

impl Ridge {
    /// Row of the crest at column `x`.
    pub fn crest(&self, x: f32, width: f32, noise: &Noise) -> f32 {
        let u = x / width * self.summits + self.offset;
        let rolling = noise.fractal(u, self.offset, 2);
        let sharp = 1.0 - (2.0 * noise.fractal(u, self.offset + 60.0, 5) - 1.0).abs() * 1.6;
        self.foot - self.rise * (rolling * (1.0 - self.jagged) + sharp * self.jagged).clamp(0.0, 1.0)
    }

    /// Row of the crest at every column.
    fn profile(&self, width: usize, noise: &Noise) -> Vec<f32> {
        (0..width).map(|x| self.crest(x as f32, width as f32, noise)).collect()
    }

    /// Paints the ridge in plain colours, down to the bottom of the picture.
    pub fn paint(&self, canvas: &mut Canvas, noise: &Noise) {
        let crest = self.profile(canvas.width, noise);
        let first = crest.iter().copied().fold(f32::MAX, f32::min).max(0.0) as usize;
        let texture = 26.0 / canvas.scale();
        for y in first..canvas.height {
            for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
                let below = y as f32 + 1.0 - crest[x];
                if below > 0.0 {
                    let t = (below / self.rise.max(1.0)).min(1.0);
                    // Rotated, because the lattice of the noise would be visible along rows and columns.
                    let (u, v) = (x as f32 * texture, y as f32 * texture);
                    let mottle = noise.fractal(u + v * 0.8, v * 2.0 - u * 0.5 + self.offset, 2) - 0.5;
                    let colour = self.colours.0.mix(self.colours.1, t) * (1.0 + mottle * 0.1);
                    *pixel = pixel.mix(colour, below.min(1.0));
                }
            }
        }
    }

    /// Paints the ridge as rock that is lit from one side, with snow above `snow_line` (0 to 1).
    pub fn paint_rock(&self, canvas: &mut Canvas, light: &Light, distance: f32, snow_line: f32, noise: &Noise) {
        let width = canvas.width;
        let crest = self.profile(width, noise);
        let first = crest.iter().copied().fold(f32::MAX, f32::min).max(0.0) as usize;
        let last = (self.foot.max(0.0) as usize + 1).min(canvas.height);
        let grain = 7.0 / self.rise.max(1.0);
        let snow = light.faded(light.lit(hex(0xf6f9ff)), distance);
        let snow_shade = light.faded(light.shaded(hex(0xcbd8f0)), distance);
        let rock = light.faded(light.lit(self.colours.0), distance);
        let rock_shade = light.faded(light.shaded(self.colours.1), distance);
        let side = if light.across < 0.5 { -1.0 } else { 1.0 };
        for y in first..last {
            for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
                let below = y as f32 + 1.0 - crest[x];
                if below <= 0.0 {
                    continue;
                }
                // Faces follow the slope of the crest above; noise breaks them up further down.
                let reach = 3 + (below * 0.35) as usize;
                let slope = (crest[(x + reach).min(width - 1)] - crest[x.saturating_sub(reach)]) / (2.0 * reach as f32);
                let (nx, ny) = (x as f32 * grain, y as f32 * grain * 0.6 + self.offset);
                let rough = noise.fractal(nx, ny, 3) - 0.5;
                let facing = smooth(-0.35, 0.35, rough * 1.6 - slope * side * 0.9);
                let height = (self.foot - y as f32) / self.rise.max(1.0);
                let white = smooth(snow_line - 0.04, snow_line + 0.05, height + rough * 0.35);
                let bare = rock_shade.mix(rock, facing);
                let colour = bare.mix(snow_shade.mix(snow, facing), white);
                let mist = smooth(0.55, 0.0, height) * 0.5 * light.thickness;
                *pixel = pixel.mix(colour.mix(light.haze, mist), below.min(1.0));
            }
        }
    }
}

/// A plane from the horizon to the viewer.
#[derive(Debug, Clone, Copy)]
pub struct Plain {
    pub horizon: f32,
    pub far: Colour,
    pub near: Colour,
    /// Strength of the patches on it.
    pub patches: f32,
    /// Horizontal stretch of the patches.
    pub stretch: f32,
}

impl Plain {
    /// Paints the plain down to the bottom of the picture, lit from the side of the light.
    pub fn paint(&self, canvas: &mut Canvas, light: &Light, noise: &Noise) {
        let (width, height) = (canvas.width as f32, canvas.height as f32);
        let depth = (height - self.horizon).max(1.0);
        for y in self.horizon.max(0.0) as usize..canvas.height {
            let t = ((y as f32 - self.horizon) / depth).clamp(0.0, 1.0);
            // Perspective: the distance of a row is inversely proportional to its drop below the horizon.
            let distance = 1.0 / (t + 0.06);
            let base = self.far.mix(self.near, smooth(0.0, 0.8, t));
            let scale = distance * 4.2 / width;
            let ny = distance * 5.0;
            for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
                let nx = (x as f32 - width * 0.5) * scale;
                let patch = noise.fractal(nx / self.stretch * 2.0 + 90.0, ny, 3) - 0.5;
                let fine = noise.at(nx * 9.0, ny * 7.0) - 0.5;
                let side = 1.06 - (x as f32 / width - light.across).abs() * 0.2;
                let shade = 1.0 + (patch * 0.55 + fine * 0.16 * t) * self.patches;
                *pixel = base * (shade * side);
            }
        }
    }
}

/// A water surface that mirrors the picture above it.
#[derive(Debug, Clone, Copy)]
pub struct Water {
    /// Row of the far shore.
    pub shore: f32,
    /// Colour of the water.
    pub colour: Colour,
    /// Roughness from 0 (mirror) to 1 (rough sea).
    pub rough: f32,
}

impl Water {
    /// Paints the water down to the bottom of the picture.
    pub fn paint(&self, canvas: &mut Canvas, light: &Light, noise: &Noise) {
        let (width, height) = (canvas.width as f32, canvas.height);
        let depth = (height as f32 - self.shore).max(1.0);
        let first = self.shore.max(0.0) as usize;
        if first >= height {
            return;
        }
        let above = canvas.clone();
        let swell = 1.0 + self.rough * 3.0;
        let glint = light.direct.under(light.sky[2]);
        let sun_x = light.across * width;
        for y in first..height {
            let t = (y as f32 - self.shore) / depth;
            let distance = 1.0 / (t + 0.07);
            let mirror = self.shore - (y as f32 - self.shore) * 0.92;
            let sway = (1.5 + t * 16.0) * swell * width / 1024.0;
            let deep = 0.3 + 0.34 * t + 0.22 * self.rough;
            let band = noise.at(7.0, distance * 9.0) - 0.5;
            for (x, pixel) in canvas.row_mut(y).iter_mut().enumerate() {
                let nx = (x as f32 - width * 0.5) * distance / width;
                let ripple = noise.at(nx * 9.0, distance * 16.0 + band) - 0.5;
                let fine = noise.at(nx * 34.0 + 50.0, distance * 40.0) - 0.5;
                let offset = ripple + fine * 0.35;
                let reflected = above.at((x as f32 + offset * sway * 2.0) as i32, (mirror + offset * sway) as i32);
                let mut colour = reflected.mix(self.colour, deep) * (1.0 + offset * (0.12 + 0.34 * self.rough));
                // Sun and moon reflect in a path of light towards the viewer.
                let off_path = (x as f32 - sun_x).abs() / (width * (0.025 + 0.11 * t));
                if off_path < 1.0 && ripple + fine * 0.9 > 0.12 {
                    colour = colour.screen(glint * ((1.0 - off_path) * 0.75));
                }
                *pixel = colour;
            }
        }
    }

    /// Paints a few breaking waves on the water.
    pub fn waves(&self, canvas: &mut Canvas, light: &Light, noise: &Noise) {
        let foam = light.lit(hex(0xf4f8fa));
        let depth = canvas.height as f32 - self.shore;
        let width = canvas.width as f32;
        for line in 1..14 {
            let t = line as f32 / 14.0;
            let base = self.shore + depth * t * t;
            let size = (1.0 + t * 9.0) * canvas.scale() / 1024.0 * (0.5 + self.rough);
            for x in 0..canvas.width {
                let u = x as f32 / width;
                let strength =
                    smooth(0.56, 0.7, noise.at(u * (14.0 - 9.0 * t) + line as f32 * 13.0, line as f32 * 3.7));
                if strength > 0.0 {
                    let crest = base + (wave(u * (6.0 - 3.0 * t) + t * 7.0) + noise.at(u * 30.0, line as f32)) * size;
                    let thick = size * 0.55 * strength;
                    for y in crest as i32..(crest + thick + 1.0) as i32 {
                        let fade = 1.0 - (y as f32 - crest) / (thick + 1.0);
                        canvas.blend(x as i32, y, foam, 0.6 * strength * fade.max(0.0));
                    }
                }
            }
        }
    }
}
