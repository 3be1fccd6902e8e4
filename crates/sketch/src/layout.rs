//! Layout of the subjects in a scene.

use super::colour::Tint;
use super::dice::Dice;
use super::glyph::{Glyph, Kind};
use super::scene::{Scene, Subject};
use super::setting::{Ground, Stage};
use super::sprite::Spot;
use super::vocabulary::{Pose, Relation};

const MAX_SPRITES: usize = 24;

/// A subject and its position.
#[derive(Debug, Clone)]
pub struct Placed {
    pub glyph: Glyph,
    pub tint: Option<Tint>,
    pub spot: Spot,
    /// Rides its anchor, so its legs are hidden.
    pub is_riding: bool,
    /// Stands on the ground or on water, not in the air or on another subject.
    pub is_grounded: bool,
    subject: usize,
    /// Painting order, from low to high.
    order: f32,
}

impl Placed {
    fn half_width(&self) -> f32 {
        self.spot.height * aspect(&self.glyph) * 0.5
    }
}

/// Approximate ratio of width to height of a glyph before it is rendered.
fn aspect(glyph: &Glyph) -> f32 {
    match glyph.kind {
        Kind::Person => 0.6,
        Kind::Vehicle => 1.3,
        _ => 1.0,
    }
}

/// The area of the picture.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    pub width: f32,
    pub height: f32,
    /// Focus of attention, as fractions of the width and, if known, of the height.
    pub focus: Option<(f32, Option<f32>)>,
}

/// Positions every subject; returns distant ones first.
pub fn arrange(scene: &Scene, stage: &Stage, frame: Frame, dice: &mut Dice) -> Vec<Placed> {
    let mut frame = frame;
    // The position of the main subject and the distance of the viewer dominate a composition.
    let anchor = [0.27, 0.38, 0.5, 0.62, 0.73][dice.index(5)];
    let zoom = [0.66, 0.82, 1.0, 1.2][dice.index(4)];
    frame.focus.get_or_insert((anchor, None));
    let sizes: Vec<f32> = sizes(scene, stage, frame).into_iter().map(|size| size * zoom).collect();
    let mut placed: Vec<Placed> = Vec::new();
    // Anchors come before the subjects that are positioned relative to them.
    let (free, bound): (Vec<_>, Vec<_>) =
        scene.subjects.iter().zip(sizes).enumerate().partition(|(_, (subject, _))| subject.relation.is_none());
    for (index, (subject, size)) in free.into_iter().chain(bound) {
        let anchor = subject.relation.and_then(|(relation, anchor)| {
            placed.iter().find(|placed| placed.subject == anchor).cloned().map(|placed| (relation, placed))
        });
        for member in 0..subject.count {
            if placed.len() >= MAX_SPRITES {
                break;
            }
            let placing = Placing { subject, index, size, member, stage, frame };
            let new = match &anchor {
                Some((relation, anchor)) => placing.beside(*relation, anchor, dice),
                None => placing.choose(&placed, dice),
            };
            placed.push(new);
        }
    }
    placed.sort_by(|a, b| a.order.total_cmp(&b.order));
    placed
}

/// Height of each subject in pixels.
fn sizes(scene: &Scene, stage: &Stage, frame: Frame) -> Vec<f32> {
    // Sizes are compressed, so that a cat beside a castle remains visible.
    let compressed = |subject: &Subject| {
        let natural = (subject.glyph.natural_size() * subject.size).max(0.05);
        natural.sqrt() * natural.sqrt().sqrt()
    };
    let unit = (frame.width * frame.height).sqrt();
    let largest = scene.subjects.iter().map(compressed).fold(0.3, f32::max);
    let area: f32 =
        scene.subjects.iter().map(|subject| compressed(subject) * compressed(subject) * f32::from(subject.count)).sum();
    let target = (0.37 + 0.1 * largest).clamp(0.4, 0.6) * stage.scale.sqrt();
    let per_unit = (target / largest).min(0.74 / area.max(0.01).sqrt()) * unit;
    let across: f32 = scene.subjects.iter().map(|s| compressed(s) * aspect(&s.glyph) * f32::from(s.count)).sum();
    let per_unit = per_unit.min(frame.width * 1.25 / across.max(0.01));
    let limit = (frame.height * 0.78).min(frame.width * 0.8);
    scene.subjects.iter().map(|subject| (compressed(subject) * per_unit).min(limit)).collect()
}

struct Placing<'a> {
    subject: &'a Subject,
    index: usize,
    size: f32,
    member: u8,
    stage: &'a Stage,
    frame: Frame,
}

impl Placing<'_> {
    fn is_aloft(&self) -> bool {
        self.subject.pose == Some(Pose::Flying)
            || (self.subject.glyph.flies() && self.subject.relation.is_none())
            || (self.subject.glyph.kind == Kind::Bird && self.subject.count > 3)
            || self.stage.ground == Ground::Nothing
    }

    /// Tries several positions and takes the least crowded one.
    fn choose(&self, others: &[Placed], dice: &mut Dice) -> Placed {
        let mut best: Option<(f32, Placed)> = None;
        for _ in 0..28 {
            let candidate = if self.is_aloft() { self.aloft(dice) } else { self.grounded(dice) };
            let cost = self.cost(&candidate, others) + dice.unit() * 0.12;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, candidate));
            }
        }
        match best {
            Some((_, placed)) => placed,
            None => self.grounded(dice),
        }
    }

    fn cost(&self, candidate: &Placed, others: &[Placed]) -> f32 {
        let (x, foot) = candidate.spot.foot;
        let (half, height) = (candidate.half_width(), candidate.spot.height);
        let outside = (half - x).max(0.0) + (x + half - self.frame.width).max(0.0) + (height - foot).max(0.0);
        let crowding: f32 = others
            .iter()
            .map(|other| {
                let (ox, ofoot) = other.spot.foot;
                let across = (half + other.half_width() - (x - ox).abs()).max(0.0);
                let down = (foot.min(ofoot) - (foot - height).max(ofoot - other.spot.height)).max(0.0);
                across * down / (half * height).max(1.0)
            })
            .sum();
        // A single subject stands near a third of the width, or at the focus of the reference.
        let pull = if self.index == 0 && self.member == 0 {
            let centre = (foot - height * 0.5) / self.frame.height;
            let across = |fx: f32| (x / self.frame.width - fx).abs();
            match self.frame.focus {
                Some((fx, Some(fy))) => 3.0 * (across(fx) + (centre - fy).abs()),
                Some((fx, None)) => 2.4 * across(fx),
                None => 0.0,
            }
        } else {
            0.0
        };
        crowding * 1.6 + outside / half.max(1.0) * 5.0 + pull
    }

    fn placed(&self, foot: (f32, f32), height: f32, distance: f32, is_grounded: bool, dice: &mut Dice) -> Placed {
        // Glyphs with text or a fixed side must not be mirrored; animals may face either way.
        let may_turn = matches!(
            self.subject.glyph.kind,
            Kind::Animal | Kind::Bird | Kind::SeaAnimal | Kind::Vehicle | Kind::Boat | Kind::Bug | Kind::Tree
        ) && !self.subject.glyph.name.starts_with('🏎');
        Placed {
            glyph: self.subject.glyph,
            tint: self.subject.tint,
            spot: Spot { foot, height, is_mirrored: may_turn && dice.chance(0.5), distance },
            is_riding: false,
            is_grounded,
            subject: self.index,
            order: foot.1 + self.member as f32 * 0.001,
        }
    }

    fn grounded(&self, dice: &mut Dice) -> Placed {
        let (far, near) = self.stage.standing;
        let is_scenery = matches!(self.subject.glyph.kind, Kind::Building | Kind::Tree) && self.index > 0;
        let depth = if is_scenery {
            dice.range(0.0, 0.35)
        } else if self.subject.count == 1 {
            dice.range(0.45, 0.95)
        } else {
            dice.range(0.1, 1.0)
        };
        let y = far + (near - far) * depth;
        let scale = if self.subject.count > 1 { 0.66 + 0.4 * depth } else { 0.82 + 0.2 * depth };
        let x = dice.range(0.08, 0.92) * self.frame.width;
        let height = self.size * scale;
        // A subject must not be taller than the space above its feet.
        let y = y.max((height * 1.04).min(self.frame.height * 0.97));
        self.placed((x, y), height, (1.0 - depth) * 0.45, true, dice)
    }

    fn aloft(&self, dice: &mut Dice) -> Placed {
        let nothing = self.stage.ground == Ground::Nothing;
        let depth = if self.subject.count == 1 { dice.range(0.7, 1.0) } else { dice.range(0.2, 1.0) };
        let scale = if self.subject.count > 1 { 0.45 + 0.6 * depth } else { 0.85 + 0.2 * depth };
        let height = self.size * scale * if nothing { 1.0 } else { 0.8 };
        let (top, bottom) = if nothing {
            (self.frame.height * 0.1, self.frame.height * 0.86)
        } else {
            (self.frame.height * 0.05, (self.stage.horizon * 0.92).max(height * 1.1))
        };
        let x = dice.range(0.08, 0.92) * self.frame.width;
        let y = (top + height + (bottom - top - height).max(0.0) * dice.unit()).min(self.frame.height * 0.96);
        let mut placed = self.placed((x, y), height, (1.0 - depth) * 0.5, false, dice);
        // Flying subjects are behind grounded ones, whatever their row.
        placed.order = if nothing { depth * self.frame.height } else { depth - 10.0 };
        placed
    }

    fn beside(&self, relation: Relation, anchor: &Placed, dice: &mut Dice) -> Placed {
        let (x, foot) = anchor.spot.foot;
        let (tall, half) = (anchor.spot.height, anchor.half_width());
        let spread = (f32::from(self.member) - f32::from(self.subject.count - 1) * 0.5) * self.size * 0.9;
        let side = if dice.chance(0.5) { -1.0 } else { 1.0 };
        let own_half = self.size * aspect(&self.subject.glyph) * 0.5;
        let (x, y, height, is_grounded, later) = match relation {
            Relation::Riding => (x + spread, foot - tall * 0.52, self.size.min(tall * 0.95), false, 1.0),
            Relation::On => (x + spread, foot - tall * 0.84, self.size.min(tall * 0.75), false, 1.0),
            Relation::In => (x + spread, foot - tall * 0.22, self.size.min(tall * 0.7), false, -1.0),
            Relation::Wearing => (x, foot - tall * 0.86, tall * 0.42, false, 1.0),
            Relation::Under if anchor.is_grounded => (
                x + spread + side * half * 0.25,
                (foot + tall * 0.05).min(self.frame.height * 0.97),
                self.size.min(tall * 0.55),
                true,
                1.0,
            ),
            Relation::Under => {
                let y = self.stage.standing.1.min(self.frame.height * 0.95);
                (x + spread, y, self.size, self.stage.ground != Ground::Nothing, 1.0)
            }
            Relation::Behind => {
                (x + side * half * 0.7 + spread, foot - tall * 0.06, self.size, anchor.is_grounded, -1.0)
            }
            Relation::Beside | Relation::Above => (
                x + side * (half + own_half) * 0.95 + spread,
                foot + dice.range(-0.04, 0.05) * tall,
                self.size,
                anchor.is_grounded,
                1.0,
            ),
        };
        let x = x.clamp(own_half * 0.8, (self.frame.width - own_half * 0.8).max(own_half * 0.8));
        let mut placed = self.placed((x, y), height, anchor.spot.distance, is_grounded, dice);
        placed.is_riding = relation == Relation::Riding;
        placed.order = anchor.order + later * (0.5 + 0.01 * f32::from(self.member));
        placed
    }
}
