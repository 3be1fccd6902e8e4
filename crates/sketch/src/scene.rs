//! What a prompt asks to see.

use super::colour::Tint;
use super::dice::hash;
use super::drawing::Drawing;
use super::glyph::{Glyph, Kind};
use super::prompt::{Prompt, Term};
use super::vocabulary::{Hour, Meaning, Omen, Place, Pose, Relation, Style};

/// The most kinds of things in one picture.
const MAX_SUBJECTS: usize = 10;
/// The most things of one kind.
const MAX_COUNT: u8 = 12;

/// A thing, or several of a kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    pub glyph: Glyph,
    pub count: u8,
    pub tint: Option<Tint>,
    /// Size in relation to others of its kind.
    pub size: f32,
    pub pose: Option<Pose>,
    /// How it stands to an earlier subject.
    pub relation: Option<(Relation, usize)>,
}

/// A prompt, understood.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scene {
    pub subjects: Vec<Subject>,
    /// The place named, if any.
    pub named_place: Option<Place>,
    /// A second place that shows behind the first: the mountains of "a mountain lake".
    pub backdrop: Option<Place>,
    /// A colour given to the place: "a purple sky".
    pub place_tint: Option<Tint>,
    pub named_hour: Option<Hour>,
    pub omens: Vec<Omen>,
    pub style: Option<Style>,
    /// Colours that belong to nothing in particular.
    pub colours: Vec<Tint>,
    /// Identifies the words, for whatever they do not say.
    pub words: u64,
}

/// What has been read but waits for its noun.
#[derive(Debug, Default)]
struct Pending {
    tint: Option<Tint>,
    count: Option<u8>,
    size: Option<f32>,
    pose: Option<Pose>,
    relation: Option<Relation>,
}

impl Scene {
    /// Understands as much of a prompt as the engine can.
    pub fn read(text: &str) -> Self {
        let prompt = Prompt::read(text);
        let romance = prompt.language.is_romance();
        let mut scene = Self { words: hash(text.trim()), ..Self::default() };
        let mut pending = Pending::default();
        // The subject an adjective after the noun would belong to.
        let mut previous: Option<usize> = None;
        for (index, term) in prompt.terms.iter().enumerate() {
            let next = prompt.terms.get(index + 1);
            match *term {
                // An emoji typed thrice is wanted thrice.
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

    /// Where the scene is set: the place named, or one where its things are at home.
    pub fn place(&self) -> Place {
        if let Some(place) = self.named_place {
            return place;
        }
        if self.omens.contains(&Omen::Snow) {
            return Place::Snow;
        }
        let outdoors = self.omens.iter().any(|omen| !matches!(omen, Omen::Autumn)) || self.named_hour.is_some();
        // What stands on the ground says more about the place than what flies over it.
        let is_aloft = |subject: &&Subject| subject.pose == Some(Pose::Flying) || subject.glyph.kind == Kind::Aircraft;
        let Some(hero) = self.subjects.iter().find(|subject| !is_aloft(subject)).or(self.subjects.first()) else {
            return if self.has(Omen::Autumn) { Place::Forest } else { Place::Meadow };
        };
        if is_aloft(&hero) {
            return Place::Sky;
        }
        match hero.glyph.name {
            "lighthouse" | "🦀" | "🐚" | "🏖" => return Place::Beach,
            "🌋" | "🦅" | "🐐" => return Place::Mountains,
            "pyramid" | "🐫" | "🐪" | "🌵" | "🦂" => return Place::Desert,
            "🐧" | "🐻‍❄️" | "⛄" | "🎄" => return Place::Snow,
            "🧑‍🚀" | "👽" | "🌟" => return Place::Space,
            "🦆" | "🦢" | "🐸" => return Place::Lake,
            "🌴" => return Place::Beach,
            "🐒" | "🦜" | "🦍" | "🦧" | "🐅" => return Place::Jungle,
            "🦊" | "🐻" | "🦌" | "🐺" | "🦉" | "🍄" | "🫎" | "🦝" => return Place::Forest,
            "💐" => return Place::Table,
            _ => {}
        }
        match hero.glyph.kind {
            Kind::SeaAnimal => Place::Underwater,
            Kind::Boat => Place::Sea,
            Kind::Aircraft => Place::Sky,
            Kind::Cosmic => Place::Space,
            Kind::Vehicle => Place::Street,
            Kind::Food | Kind::Wearable | Kind::Object if !outdoors => Place::Table,
            Kind::Furniture if !outdoors => Place::Room,
            Kind::Plant | Kind::Bug => Place::Garden,
            _ => Place::Meadow,
        }
    }

    /// The time of day: the one named, or the one that fits.
    pub fn hour(&self) -> Hour {
        if let Some(hour) = self.named_hour {
            return hour;
        }
        let night = self.omens.iter().any(|omen| matches!(omen, Omen::Moon | Omen::Stars | Omen::Aurora));
        if night || self.style == Some(Style::Neon) { Hour::Night } else { Hour::Day }
    }

    /// True when the prompt gave nothing to draw.
    pub fn is_abstract(&self) -> bool {
        self.subjects.is_empty() && self.named_place.is_none() && self.named_hour.is_none() && self.omens.is_empty()
    }

    /// True when the air or the sky holds this.
    pub fn has(&self, omen: Omen) -> bool {
        self.omens.contains(&omen)
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

    /// Notes "`first` RELATION `second`" on the subject that is placed by the other.
    fn relate(&mut self, first: usize, relation: Relation, second: usize) {
        let (wearer, worn) = (self.subjects[first].glyph.kind, &self.subjects[second].glyph);
        if matches!(relation, Relation::In | Relation::Wearing) && worn.kind == Kind::Wearable {
            if wearer == Kind::Person && !worn.is_headgear() {
                // Clothes are a colour of their wearer, not a thing beside her.
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
            // A cat under a tree, a rider on a horse: the first is placed by the second ...
            Relation::On | Relation::Riding | Relation::Under | Relation::In => (first, second),
            // ... a cat with a hat: the other way round.
            _ => (second, first),
        };
        // A chain must not bite its tail.
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
            Meaning::Place(place) => {
                self.go_to(place, pending.tint);
                *pending = Pending { pose: pending.pose, ..Pending::default() };
                *previous = None;
            }
            Meaning::Hour(hour) => {
                self.named_hour = self.named_hour.or(Some(hour));
                *pending = Pending { tint: pending.tint, ..Pending::default() };
            }
            Meaning::Omen(omen) => {
                if !self.omens.contains(&omen) {
                    self.omens.push(omen);
                }
                // "a red moon" colours the sky; a count or relation has nothing to hold on to.
                self.place_tint = self.place_tint.or(pending.tint);
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
                // "a" must not overrule "flock" in "a flock of birds", nor the other way round.
                pending.count = Some(pending.count.unwrap_or(0).max(count));
                *previous = None;
            }
            Meaning::Size(size) => match previous.map(|index| &mut self.subjects[index].size) {
                Some(slot) if romance && !matches!(next, Some(Term::Thing(_))) => *slot = size,
                _ => pending.size = Some(size),
            },
            Meaning::Pose(pose) => {
                // "flying fish", "flying a kite": said of what follows.
                let noun_follows = matches!(next, Some(Term::Thing(_) | Term::Plural | Term::Known(Meaning::Count(_))));
                match self.subjects.last_mut() {
                    Some(last) if last.pose.is_none() && !noun_follows => last.pose = Some(pose),
                    _ => pending.pose = Some(pose),
                }
            }
            Meaning::Relation(relation) => {
                self.settle(pending);
                // "sitting under", "riding on": the first preposition says more.
                pending.relation = pending.relation.or((!self.subjects.is_empty()).then_some(relation));
                *previous = None;
            }
            Meaning::Drawing(_) | Meaning::Emoji(_) | Meaning::Ignored | Meaning::Particle => {}
        }
    }

    /// Sets the scene at a place, or shows the place behind the one that is set.
    fn go_to(&mut self, place: Place, tint: Option<Tint>) {
        match self.named_place {
            None => {
                self.named_place = Some(place);
                self.place_tint = tint;
            }
            // Of two places the one with water or a road is where things are.
            Some(far @ (Place::Mountains | Place::Forest | Place::Sky | Place::City))
                if matches!(place, Place::Lake | Place::Sea | Place::Beach | Place::Street | Place::Meadow) =>
            {
                self.named_place = Some(place);
                self.backdrop = Some(far);
            }
            Some(_) => self.backdrop = self.backdrop.or(Some(place)),
        }
    }

    /// A bird of no particular kind on the wing, or in a flock, is drawn with its wings spread.
    fn take_wing(&mut self) {
        for subject in &mut self.subjects {
            if subject.glyph.name == "🐦" && (subject.pose == Some(Pose::Flying) || subject.count > 3) {
                subject.glyph = Glyph::of_drawing(Drawing::Gull);
                subject.pose = Some(Pose::Flying);
            }
        }
    }

    /// Ends a phrase: a colour no noun took up is the fruit, the flower, or the mood of the picture.
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
    fn a_fox_in_the_snow_is_no_snowman() {
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
            assert_eq!(scene.place(), Place::Snow, "{text}");
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
    fn emoji_are_drawn_as_themselves() {
        assert_eq!(names("🦄✈️ and ☕"), ["🦄", "✈", "☕"]);
    }

    #[test]
    fn no_prompt_is_too_strange() {
        let mut long = "cat dog [[ \u{200d}🏳️‍🌈 \u{0}é𝔘 ".repeat(1_000);
        long.push('\u{fe0f}');
        assert!(Scene::read(&long).subjects.len() <= MAX_SUBJECTS);
        assert!(Scene::read("").is_abstract());
        assert!(Scene::read(&"森".repeat(10_000)).named_place.is_some());
    }
}
