//! The scene that a prompt describes.

use super::colour::Tint;
use super::dice::hash;
use super::glyph::{Glyph, Kind};
use super::prompt::{Prompt, Term};
use super::vocabulary::{Hour, Meaning, Phenomenon, Pose, Relation, Setting, Style};

const MAX_SUBJECTS: usize = 10;
const MAX_COUNT: u8 = 12;

/// One or several things of a kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    pub glyph: Glyph,
    pub count: u8,
    pub tint: Option<Tint>,
    /// Size relative to the usual size of its kind.
    pub size: f32,
    pub pose: Option<Pose>,
    /// Relation to an earlier subject.
    pub relation: Option<(Relation, usize)>,
}

/// The interpretation of a prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scene {
    pub subjects: Vec<Subject>,
    /// The setting that the prompt names, if any.
    pub named_setting: Option<Setting>,
    /// A second setting behind the first: the mountains of "a mountain lake".
    pub backdrop: Option<Setting>,
    /// A colour of the setting: "a purple sky".
    pub setting_tint: Option<Tint>,
    pub named_hour: Option<Hour>,
    pub phenomena: Vec<Phenomenon>,
    pub style: Option<Style>,
    /// Colours that apply to nothing in particular.
    pub colours: Vec<Tint>,
    /// Hash of the words, which decides everything that they leave open.
    pub words: u64,
}

/// Modifiers that wait for their noun.
#[derive(Debug, Default)]
struct Pending {
    tint: Option<Tint>,
    count: Option<u8>,
    size: Option<f32>,
    pose: Option<Pose>,
    relation: Option<Relation>,
}

impl Scene {
    /// Interprets a prompt.
    pub fn read(text: &str) -> Self {
        let prompt = Prompt::read(text);
        let romance = prompt.language.is_romance();
        let mut scene = Self { words: hash(text.trim()), ..Self::default() };
        let mut pending = Pending::default();
        // The subject that an adjective after the noun refers to.
        let mut previous: Option<usize> = None;
        for (index, term) in prompt.terms.iter().enumerate() {
            let next = prompt.terms.get(index + 1);
            match *term {
                // Three copies of an emoji ask for three subjects.
                Term::Thing(glyph) if index > 0 && prompt.terms[index - 1] == Term::Thing(glyph) => {
                    if let Some(subject) = scene.subjects.iter_mut().find(|subject| subject.glyph == glyph) {
                        subject.count = (subject.count + 1).min(MAX_COUNT);
                    }
                }
                Term::Thing(glyph) => previous = scene.add(glyph, &mut pending),
                Term::Known(meaning) => scene.apply(meaning, &mut pending, &mut previous, next, romance),
                Term::Plural => pending.count = pending.count.filter(|count| *count > 1).or(Some(3)),
                Term::Unknown => previous = None,
                Term::Break => {
                    scene.settle(&mut pending);
                    previous = None;
                }
            }
        }
        scene.settle(&mut pending);
        scene.take_wing();
        scene
    }

    /// The setting: the named one, or one that suits the subjects.
    pub fn setting(&self) -> Setting {
        if let Some(setting) = self.named_setting {
            return setting;
        }
        if self.phenomena.contains(&Phenomenon::Snow) {
            return Setting::Snow;
        }
        let outdoors = self.phenomena.iter().any(|phenomenon| !matches!(phenomenon, Phenomenon::Autumn))
            || self.named_hour.is_some();
        // Subjects on the ground say more about the setting than flying ones.
        let is_aloft = |subject: &&Subject| subject.pose == Some(Pose::Flying) || subject.glyph.kind == Kind::Aircraft;
        let Some(hero) = self.subjects.iter().find(|subject| !is_aloft(subject)).or(self.subjects.first()) else {
            return if self.has(Phenomenon::Autumn) { Setting::Forest } else { Setting::Meadow };
        };
        if is_aloft(&hero) {
            return Setting::Sky;
        }
        match hero.glyph.name {
            "lighthouse" | "🦀" | "🐚" | "🏖" => return Setting::Beach,
            "🌋" | "🦅" | "🐐" => return Setting::Mountains,
            "pyramid" | "🐫" | "🐪" | "🌵" | "🦂" => return Setting::Desert,
            "🐧" | "🐻‍❄️" | "⛄" | "🎄" => return Setting::Snow,
            "🧑‍🚀" | "👽" | "🌟" => return Setting::Space,
            "🦆" | "🦢" | "🐸" => return Setting::Lake,
            "🌴" => return Setting::Beach,
            "🐒" | "🦜" | "🦍" | "🦧" | "🐅" => return Setting::Jungle,
            "🦊" | "🐻" | "🦌" | "🐺" | "🦉" | "🍄" | "🫎" | "🦝" => return Setting::Forest,
            "💐" => return Setting::Table,
            _ => {}
        }
        match hero.glyph.kind {
            Kind::SeaAnimal => Setting::Underwater,
            Kind::Boat => Setting::Sea,
            Kind::Aircraft => Setting::Sky,
            Kind::Cosmic => Setting::Space,
            Kind::Vehicle => Setting::Street,
            Kind::Food | Kind::Wearable | Kind::Object if !outdoors => Setting::Table,
            Kind::Furniture if !outdoors => Setting::Room,
            Kind::Plant | Kind::Bug => Setting::Garden,
            _ => Setting::Meadow,
        }
    }

    /// The time of day: the named one, or one that suits the scene.
    pub fn hour(&self) -> Hour {
        if let Some(hour) = self.named_hour {
            return hour;
        }
        let night = self
            .phenomena
            .iter()
            .any(|phenomenon| matches!(phenomenon, Phenomenon::Moon | Phenomenon::Stars | Phenomenon::Aurora));
        if night || self.style == Some(Style::Neon) { Hour::Night } else { Hour::Day }
    }

    /// Whether the prompt contains nothing to draw.
    pub fn is_abstract(&self) -> bool {
        self.subjects.is_empty()
            && self.named_setting.is_none()
            && self.named_hour.is_none()
            && self.phenomena.is_empty()
    }

    /// Whether the scene contains this phenomenon.
    pub fn has(&self, phenomenon: Phenomenon) -> bool {
        self.phenomena.contains(&phenomenon)
    }

    fn add(&mut self, glyph: Glyph, pending: &mut Pending) -> Option<usize> {
        let wanted = std::mem::take(pending);
        let same = self.subjects.iter().position(|subject| subject.glyph == glyph && subject.tint == wanted.tint);
        if same.is_some() {
            return same;
        }
        if self.subjects.len() >= MAX_SUBJECTS {
            return None;
        }
        let relation = wanted.relation.and_then(|relation| Some((relation, self.subjects.len().checked_sub(1)?)));
        self.subjects.push(Subject {
            glyph,
            count: wanted.count.unwrap_or(1).min(MAX_COUNT),
            tint: wanted.tint,
            size: wanted.size.unwrap_or(1.0),
            pose: wanted.pose,
            relation: None,
        });
        let added = self.subjects.len() - 1;
        if let Some((relation, earlier)) = relation {
            self.relate(earlier, relation, added);
        }
        (added < self.subjects.len()).then_some(added)
    }

    /// Records "`first` RELATION `second`" on the subject that is positioned relative to the other.
    fn relate(&mut self, first: usize, relation: Relation, second: usize) {
        let (wearer, worn) = (self.subjects[first].glyph.kind, &self.subjects[second].glyph);
        if matches!(relation, Relation::In | Relation::Wearing) && worn.kind == Kind::Wearable {
            if wearer == Kind::Person && !worn.is_headgear() {
                // Clothes give their wearer a colour; they are not a subject of their own.
                self.subjects[first].tint = self.subjects[second].tint;
                self.subjects.truncate(second);
            } else {
                self.subjects[second].relation = Some((Relation::Wearing, first));
            }
            return;
        }
        if relation == Relation::Above {
            self.subjects[first].pose = Some(Pose::Flying);
            return;
        }
        let (placed, anchor) = match relation {
            // "A cat under a tree": the first is positioned relative to the second ...
            Relation::On | Relation::Riding | Relation::Under | Relation::In => (first, second),
            // ... "a cat with a hat": the second relative to the first.
            _ => (second, first),
        };
        // Relations must not form a cycle.
        if self.subjects[anchor].relation.is_none() {
            self.subjects[placed].relation = Some((relation, anchor));
        }
    }

    fn apply(
        &mut self,
        meaning: Meaning,
        pending: &mut Pending,
        previous: &mut Option<usize>,
        next: Option<&Term>,
        romance: bool,
    ) {
        match meaning {
            Meaning::Setting(setting) => {
                self.add_setting(setting, pending.tint);
                *pending = Pending { pose: pending.pose, ..Pending::default() };
                *previous = None;
            }
            Meaning::Hour(hour) => {
                self.named_hour = self.named_hour.or(Some(hour));
                *pending = Pending { tint: pending.tint, ..Pending::default() };
            }
            Meaning::Phenomenon(phenomenon) => {
                if !self.phenomena.contains(&phenomenon) {
                    self.phenomena.push(phenomenon);
                }
                // "A red moon" colours the sky; counts and relations do not apply to a phenomenon.
                self.setting_tint = self.setting_tint.or(pending.tint);
                *pending = Pending::default();
            }
            Meaning::Style(style) => self.style = self.style.or(Some(style)),
            Meaning::Tint(tint) => {
                let noun_follows = matches!(next, Some(Term::Thing(_) | Term::Plural));
                match previous.map(|index| &mut self.subjects[index].tint) {
                    Some(slot @ None) if romance && !noun_follows => *slot = Some(tint),
                    _ if pending.tint.is_none() => pending.tint = Some(tint),
                    _ => self.colours.push(tint),
                }
            }
            Meaning::Count(count) => {
                // "A" must not override "flock" in "a flock of birds", nor the reverse.
                pending.count = Some(pending.count.unwrap_or(0).max(count));
                *previous = None;
            }
            Meaning::Size(size) => match previous.map(|index| &mut self.subjects[index].size) {
                Some(slot) if romance && !matches!(next, Some(Term::Thing(_))) => *slot = size,
                _ => pending.size = Some(size),
            },
            Meaning::Pose(pose) => {
                // "Flying fish", "flying a kite": the verb refers to the noun after it.
                let noun_follows = matches!(next, Some(Term::Thing(_) | Term::Plural | Term::Known(Meaning::Count(_))));
                match self.subjects.last_mut() {
                    Some(last) if last.pose.is_none() && !noun_follows => last.pose = Some(pose),
                    _ => pending.pose = Some(pose),
                }
            }
            Meaning::Relation(relation) => {
                self.settle(pending);
                // "Sitting under", "riding on": the first preposition is the more specific one.
                pending.relation = pending.relation.or((!self.subjects.is_empty()).then_some(relation));
                *previous = None;
            }
            Meaning::Thing(_) | Meaning::Ignored | Meaning::Particle => {}
        }
    }

    /// Makes this the setting, or the backdrop if there is a setting already.
    fn add_setting(&mut self, setting: Setting, tint: Option<Tint>) {
        match self.named_setting {
            None => {
                self.named_setting = Some(setting);
                self.setting_tint = tint;
            }
            // Of two settings, subjects are in the one with water or a road.
            Some(far @ (Setting::Mountains | Setting::Forest | Setting::Sky | Setting::City))
                if matches!(
                    setting,
                    Setting::Lake | Setting::Sea | Setting::Beach | Setting::Street | Setting::Meadow
                ) =>
            {
                self.named_setting = Some(setting);
                self.backdrop = Some(far);
            }
            Some(_) => self.backdrop = self.backdrop.or(Some(setting)),
        }
    }

    /// Draws a generic bird with spread wings when it flies or is part of a flock.
    fn take_wing(&mut self) {
        let Some(gull) = Glyph::of_drawing("gull") else { return };
        for subject in &mut self.subjects {
            if subject.glyph.name == "🐦" && (subject.pose == Some(Pose::Flying) || subject.count > 3) {
                subject.glyph = gull;
                subject.pose = Some(Pose::Flying);
            }
        }
    }

    /// Ends a phrase. A colour without a noun may be a fruit or a flower; otherwise it colours the whole picture.
    fn settle(&mut self, pending: &mut Pending) {
        let Pending { tint, count, size, relation, .. } = std::mem::take(pending);
        let Some(tint) = tint else { return };
        let noun = match tint {
            Tint::Orange if count.is_some() => Glyph::of_emoji("🍊"),
            Tint::Pink if count.is_some() => Glyph::of_emoji("🌹"),
            _ => None,
        };
        match noun {
            Some(glyph) => {
                let mut pending = Pending { count, size, relation, ..Pending::default() };
                self.add(glyph, &mut pending);
            }
            None => self.colours.push(tint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        Scene::read(text).subjects.iter().map(|subject| subject.glyph.name).collect()
    }

    #[test]
    fn a_fox_in_the_snow_is_a_fox_in_every_language() {
        for text in [
            "a red fox in the snow",
            "ein roter Fuchs im Schnee",
            "un renard roux dans la neige",
            "un zorro rojo en la nieve",
            "una volpe rossa nella neve",
            "uma raposa vermelha na neve",
            "рыжая лиса в снегу",
            "雪地里的红色狐狸",
            "雪の中の赤いキツネ",
        ] {
            let scene = Scene::read(text);
            assert_eq!(names(text), ["🦊"], "{text}");
            assert_eq!(scene.setting(), Setting::Snow, "{text}");
        }
    }

    #[test]
    fn colours_and_counts_stay_with_their_nouns() {
        let scene = Scene::read("three white cats and a blue car under a big tree at night");
        let read: Vec<_> = scene.subjects.iter().map(|s| (s.glyph.name, s.count, s.tint)).collect();
        assert_eq!(read, [("🐈", 3, Some(Tint::White)), ("🚗", 1, Some(Tint::Blue)), ("🌳", 1, None)]);
        assert_eq!(scene.hour(), Hour::Night);
        assert_eq!(scene.subjects[1].relation, Some((Relation::Under, 2)));
    }

    #[test]
    fn orange_is_a_colour_before_a_noun_and_a_fruit_otherwise() {
        assert_eq!(Scene::read("an orange cat").subjects[0].tint, Some(Tint::Orange));
        assert_eq!(names("an orange on a table"), ["🍊"]);
    }

    #[test]
    fn the_longest_name_wins() {
        assert_eq!(names("a polar bear"), ["🐻‍❄️"]);
        assert_eq!(names("a hot air balloon over the sea"), ["balloon"]);
        assert!(names("the can is on, ok, and light in it").is_empty());
    }

    #[test]
    fn an_emoji_in_the_prompt_is_drawn() {
        assert_eq!(names("🦄✈️ and ☕"), ["🦄", "✈", "☕"]);
    }

    #[test]
    fn a_scene_is_read_from_any_prompt() {
        let mut long = "cat dog [[ \u{200d}🏳️‍🌈 \u{0}é𝔘 ".repeat(1_000);
        long.push('\u{fe0f}');
        assert!(Scene::read(&long).subjects.len() <= MAX_SUBJECTS);
        assert!(Scene::read("").is_abstract());
        assert!(Scene::read(&"森".repeat(10_000)).named_setting.is_some());
    }
}
