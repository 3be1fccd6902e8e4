//! Paints one picture from start to finish.

use super::canvas::Canvas;
use super::colour::grey;
use super::dice::{Dice, Noise};
use super::layout::{self, Frame};
use super::light::Light;
use super::reference::{self, Reference};
use super::scene::Scene;
use super::setting::{Ground, SettingPainter, Stage};
use super::sprite::Sprite;
use super::stroke::{self, Brush};
use super::vocabulary::Style;
use super::{abstraction, shape, style, weather};
use tintype_engine::picture::Picture;

/// Strength at which a reference shows through, for a prompt that names no setting and for one that does.
const UNDERPAINT: (f32, f32) = (0.86, 0.5);

/// The state that all pictures of one task share.
#[derive(Debug)]
pub struct Painting {
    pub scene: Scene,
    pub references: Vec<Reference>,
    pub width: u32,
    pub height: u32,
}

impl Painting {
    /// Paints the picture for one seed.
    pub fn paint(&self, seed: u64) -> Picture {
        let seed = seed ^ self.scene.words;
        let noise = Noise::new(Dice::new(seed, "noise"));
        let mut canvas = Canvas::new(self.width.max(1) as usize, self.height.max(1) as usize, grey(0.5));
        if self.scene.is_abstract() {
            abstraction::paint(&mut canvas, &self.scene, &noise, &mut Dice::new(seed, "abstraction"));
            self.lend(&mut canvas, &noise, seed);
        } else {
            self.compose(&mut canvas, &noise, seed);
        }
        style::apply(&mut canvas, self.scene.style, &noise, &mut Dice::new(seed, "style"));
        canvas.into_picture(&noise, style::grain(self.scene.style))
    }

    fn compose(&self, canvas: &mut Canvas, noise: &Noise, seed: u64) {
        let scene = &self.scene;
        let setting = scene.setting();
        let light = Light::of(scene, setting, &mut Dice::new(seed, "light"));
        let painter = SettingPainter { canvas, scene, setting, light: &light, noise, dice: Dice::new(seed, "setting") };
        let stage = painter.paint();
        self.lend(canvas, noise, seed);
        self.people(canvas, &stage, &light, noise, seed);
        weather::paint(canvas, scene, setting, &stage, &light, noise, &mut Dice::new(seed, "weather"));
        // A monochrome style chooses its own colours.
        if !matches!(scene.style, Some(Style::Sepia | Style::Tintype | Style::Noir)) {
            reference::recolour(canvas, &self.references, 0.62);
        }
    }

    /// Blends the references into the picture painted so far.
    fn lend(&self, canvas: &mut Canvas, noise: &Noise, seed: u64) {
        if !self.references.is_empty() {
            let (without_setting, with_setting) = UNDERPAINT;
            let strength = if self.scene.named_setting.is_some() { with_setting } else { without_setting };
            reference::recolour(canvas, &self.references, 0.7);
            reference::underpaint(canvas, &self.references, strength);
            // Brush strokes turn the blurred photograph into a painting.
            let brush = Brush { width: 26.0, length: 2.6, coverage: 1.5, variety: 0.05, swirl: 0.7 };
            stroke::repaint(canvas, brush, noise, &mut Dice::new(seed, "lend"));
        }
    }

    fn people(&self, canvas: &mut Canvas, stage: &Stage, light: &Light, noise: &Noise, seed: u64) {
        let focus = self.references.first().map(|reference| (reference.focus.0, Some(reference.focus.1)));
        let frame = Frame { width: canvas.width as f32, height: canvas.height as f32, focus };
        let mut dice = Dice::new(seed, "tufts");
        for placed in layout::arrange(&self.scene, stage, frame, &mut Dice::new(seed, "layout")) {
            let mut spot = placed.spot;
            let Some(mut sprite) = Sprite::render(&placed.glyph, placed.tint, spot.height, dice.index(30)) else {
                continue;
            };
            if placed.is_riding {
                sprite = sprite.seated();
            }
            match stage.ground {
                _ if !placed.is_grounded => {}
                Ground::Water => {
                    // Boats and swimmers sit a little way in the water.
                    sprite.reflection(canvas, spot, light, noise);
                }
                Ground::Soft(_) | Ground::Hard => sprite.shadow(canvas, spot, light),
                Ground::Nothing => {}
            }
            if placed.is_grounded && matches!(stage.ground, Ground::Soft(_)) {
                spot.foot.1 += spot.height * 0.02;
            }
            sprite.paint(canvas, spot, light, noise);
            if placed.is_riding {
                sprite.leg(canvas, spot, light);
            }
            if let (true, Ground::Soft(colour)) = (placed.is_grounded, stage.ground) {
                let half = spot.height * sprite.aspect() * 0.5;
                // Grass is green; snow and sand rise in soft mounds around the feet.
                let is_grass = colour.g > colour.r && colour.g > colour.b * 1.15;
                for _ in 0..12 {
                    let x = spot.foot.0 + dice.range(-1.0, 1.0) * half;
                    let y = spot.foot.1 + dice.range(0.0, 0.025) * spot.height;
                    let colour = light.faded(colour, spot.distance * 0.6);
                    if is_grass {
                        shape::tuft(canvas, (x, y), spot.height * 0.085, colour * 0.9, &mut dice);
                    } else {
                        canvas.ellipse(
                            (x, y + spot.height * 0.012),
                            (half * 0.28, spot.height * 0.022),
                            colour,
                            0.7,
                            0.8,
                        );
                    }
                }
            }
        }
    }
}
