//! The light of a scene: the colours of the sky and the effect of light on surfaces.

use super::colour::{Colour, grey, hex};
use super::dice::Dice;
use super::scene::Scene;
use super::vocabulary::{Hour, Phenomenon, Setting, Style};

/// The light of a whole picture.
#[derive(Debug, Clone)]
pub struct Light {
    /// Colours of the sky overhead, half-way and at the horizon.
    pub sky: [Colour; 3],
    /// Factor for surfaces in direct light.
    pub direct: Colour,
    /// Factor for surfaces in shade.
    pub shade: Colour,
    /// Colour into which distant surfaces fade.
    pub haze: Colour,
    /// Density of the haze, 0 to 1.
    pub thickness: f32,
    /// Horizontal position of sun or moon, 0 to 1.
    pub across: f32,
    /// Height of sun or moon above the horizon, 0 to 1.
    pub height: f32,
    /// Whether lamps are lit.
    pub is_dark: bool,
    /// Time of day.
    pub hour: Hour,
}

/// Sky overhead, half-way and at the horizon; direct light; shade; haze.
type Mood = [Colour; 6];

const DAWN: Mood = [hex(0x6a8cc8), hex(0xf2b9b4), hex(0xffe3b3), hex(0xfff0dc), hex(0xb3a3bf), hex(0xf3d0c0)];
const DAY: Mood = [hex(0x2f7fd0), hex(0x74b4e8), hex(0xd6ecf7), hex(0xfffdf4), hex(0xb9c6da), hex(0xc6dded)];
const SUMMER: Mood = [hex(0x1f6fc4), hex(0x5aa9e6), hex(0xf3f0d9), hex(0xfffaea), hex(0xb4c0d4), hex(0xd3e2e6)];
const AFTERNOON: Mood = [hex(0x4a86c0), hex(0x9cc0d8), hex(0xfbe6b4), hex(0xfff0cf), hex(0xb5aec4), hex(0xeadfc0)];
const MISTY: Mood = [hex(0x8fb0cc), hex(0xc2d5e0), hex(0xf3efe2), hex(0xfffbf0), hex(0xbfc8d8), hex(0xe3e8e8)];
const SUNSET: Mood = [hex(0x3a3f86), hex(0xd8617c), hex(0xffb95e), hex(0xffd2a0), hex(0x84709c), hex(0xee9f78)];
const EMBER: Mood = [hex(0x54305f), hex(0xe2563f), hex(0xffcf6b), hex(0xffca8e), hex(0x8a6786), hex(0xf0955c)];
const DUSK: Mood = [hex(0x1b2350), hex(0x58498c), hex(0xe0949a), hex(0xb9a9d6), hex(0x5a5688), hex(0x8a6f9c)];
const NIGHT: Mood = [hex(0x060b22), hex(0x12224e), hex(0x33507f), hex(0xa3b6e2), hex(0x46568a), hex(0x223660)];

impl Light {
    /// The light of a scene, with random variation.
    pub fn of(scene: &Scene, setting: Setting, dice: &mut Dice) -> Self {
        let hour = scene.hour();
        let mood = match hour {
            Hour::Dawn => DAWN,
            Hour::Day if scene.named_hour.is_some() => [DAY, SUMMER][dice.index(2)],
            Hour::Day => [DAY, SUMMER, AFTERNOON, MISTY][dice.index(4)],
            Hour::Sunset if dice.chance(0.5) => EMBER,
            Hour::Sunset => SUNSET,
            Hour::Dusk => DUSK,
            Hour::Night => NIGHT,
        };
        let side = if dice.chance(0.5) { 0.14 } else { 0.62 };
        let mut light = Self {
            sky: [mood[0], mood[1], mood[2]],
            direct: mood[3],
            shade: mood[4],
            haze: mood[5],
            thickness: if hour == Hour::Dawn { 0.75 } else { 0.5 },
            across: side + dice.range(0.0, 0.24),
            height: match hour {
                Hour::Dawn => dice.range(0.16, 0.3),
                Hour::Sunset => dice.range(0.08, 0.22),
                Hour::Dusk => dice.range(0.3, 0.5),
                Hour::Day | Hour::Night => dice.range(0.62, 0.85),
            },
            is_dark: matches!(hour, Hour::Night | Hour::Dusk),
            hour,
        };
        light.weather(scene, setting);
        light.stain(scene);
        light
    }

    /// Direction of the light, from -1 (far left) to 1 (far right).
    pub fn direction(&self) -> f32 {
        (self.across - 0.5) * 2.0
    }

    /// Colour of a distant surface, at `distance` from 0 (near) to 1 (horizon).
    pub fn faded(&self, colour: Colour, distance: f32) -> Colour {
        colour.mix(self.haze, (distance * (0.35 + self.thickness)).clamp(0.0, 0.96))
    }

    /// Colour of a surface in direct light.
    pub fn lit(&self, colour: Colour) -> Colour {
        colour.under(self.direct)
    }

    /// Colour of a surface in shade.
    pub fn shaded(&self, colour: Colour) -> Colour {
        colour.under(self.shade)
    }

    fn overcast(&mut self, grey_of_sky: Colour, amount: f32) {
        let brightness = if self.is_dark { 0.3 } else { 1.0 };
        let veil = grey_of_sky * brightness;
        for (band, lift) in self.sky.iter_mut().zip([0.72, 0.9, 1.12]) {
            *band = band.mix((veil * lift).clamp(), amount);
        }
        self.haze = self.haze.mix(veil, amount);
        self.direct = self.direct.mix(self.direct.saturate(0.4) * 0.88, amount);
        self.shade = self.shade.mix(self.direct * 0.8, amount * 0.5);
    }

    fn weather(&mut self, scene: &Scene, setting: Setting) {
        if scene.has(Phenomenon::Storm) {
            self.overcast(hex(0x4d5866), 0.86);
            self.direct = self.direct * 0.85;
        } else if scene.has(Phenomenon::Rain) {
            self.overcast(hex(0x8794a0), 0.72);
            self.thickness += 0.15;
        } else if scene.has(Phenomenon::Fog) {
            self.overcast(hex(0xccd3d6), 0.8);
            self.thickness = 1.15;
        } else if scene.has(Phenomenon::Snow) || setting == Setting::Snow {
            self.overcast(hex(0xc3d0de), 0.45);
            self.thickness += 0.1;
        } else if scene.has(Phenomenon::Clouds) {
            self.overcast(hex(0xb9c4cf), 0.25);
        }
    }

    /// Tints the light with colours that have no noun, and with the palette of the style.
    fn stain(&mut self, scene: &Scene) {
        if scene.style == Some(Style::Neon) {
            self.sky = [hex(0x0a0524), hex(0x3a0d63), hex(0xd6247f)];
            self.haze = hex(0xa52a9c);
            self.direct = hex(0xe9b6ff);
            self.shade = hex(0x5440a8);
            self.is_dark = true;
        }
        let Some(tint) = scene.setting_tint.or(scene.colours.first().copied()) else { return };
        let colour = tint.colour();
        let strength = if scene.setting_tint.is_some() { 0.62 } else { 0.4 };
        for band in &mut self.sky {
            // The tint keeps the brightness of each band, so that night stays dark.
            let toned = colour * (0.35 + 0.9 * band.luma() / colour.luma().max(0.2));
            *band = band.mix(toned.clamp(), strength);
        }
        self.haze = self.haze.mix((colour * (0.5 + 0.5 * self.haze.luma())).clamp(), strength * 0.7);
        self.direct = self.direct.mix(self.direct.under(colour.mix(grey(1.0), 0.6)), strength);
    }
}
