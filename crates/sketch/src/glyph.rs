//! Glyphs: the shape of a subject and its kind.

use std::collections::HashMap;
use std::sync::LazyLock;

use twemoji_assets::svg::SvgTwemojiAsset;

use super::vocabulary::named;

named! {
    /// Kind of a subject, which determines its size, its setting and how it stands.
    Kind {
        Animal,
        Bird,
        SeaAnimal,
        Bug,
        Plant,
        Tree,
        Food,
        Person,
        Building,
        Vehicle,
        Boat,
        Aircraft,
        Cosmic,
        Furniture,
        Wearable,
        Object,
    }
}

/// A drawable subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Glyph {
    /// The emoji, or a name for a subject without one.
    pub name: &'static str,
    /// SVG elements in a 36 x 36 coordinate space.
    pub elements: &'static str,
    /// Kind of the subject.
    pub kind: Kind,
}

impl Glyph {
    /// The glyph of an emoji, if there is one.
    pub fn of_emoji(emoji: &str) -> Option<Self> {
        let asset = SvgTwemojiAsset::from_emoji(emoji)
            // Asset names omit the variation selector, except within a joined sequence.
            .or_else(|| SvgTwemojiAsset::from_emoji(emoji.trim_end_matches('\u{fe0f}')))
            .or_else(|| SvgTwemojiAsset::from_emoji(&emoji.replace('\u{fe0f}', "")))?;
        let svg = asset.data.0;
        let elements = &svg[svg.find('>')? + 1..svg.rfind("</svg>")?];
        Some(Self { name: asset.emoji, elements, kind: kind_of(emoji) })
    }

    /// The glyph of a thing that is drawn here instead of taken from an emoji.
    pub fn of_drawing(name: &str) -> Option<Self> {
        DRAWINGS.iter().find(|drawing| drawing.name == name).copied()
    }

    /// This person with a natural skin tone (0 to 4) instead of the emoji's yellow.
    pub fn with_skin(self, tone: usize) -> Self {
        let mut characters = self.name.chars();
        let (Kind::Person, Some(first)) = (self.kind, characters.next()) else { return self };
        let modifier = ['\u{1f3fb}', '\u{1f3fc}', '\u{1f3fd}', '\u{1f3fe}', '\u{1f3ff}'][tone % 5];
        let toned = format!("{first}{modifier}{}", characters.as_str().trim_start_matches('\u{fe0f}'));
        match Self::of_emoji(&toned) {
            // The name stays unchanged, because figures and sizes are looked up by it.
            Some(Self { elements, .. }) => Self { elements, ..self },
            None => self,
        }
    }

    /// Height relative to a dog, compressed so that a mouse and a castle fit into one picture.
    pub fn natural_size(&self) -> f32 {
        match self.name {
            "🐘" | "🐋" | "🐳" | "🦕" | "🦖" | "🦒" | "🐉" | "submarine" => return 1.75,
            "🐎" | "🐄" | "🐂" | "🦬" | "🐫" | "🐪" | "🦌" | "🫎" | "🐻" | "🦏" | "🦛" | "🐅" | "🦁" | "🐼" | "🐻‍❄️"
            | "🦓" | "🦍" => return 1.3,
            "knight" => return 1.45,
            "🐁" | "🐀" | "🐹" | "🐸" | "🐌" | "🦔" | "🐿" | "🐿️" => return 0.55,
            "🐇" | "🐈" | "🐓" | "🪿" | "🐢" | "🐧" => return 0.8,
            "🦢" | "🦩" | "🦚" | "🦅" => return 1.0,
            "🌋" | "🏔" | "pyramid" => return 3.2,
            "🏰" | "🗼" | "🗽" | "lighthouse" => return 3.0,
            "🚲" | "🛴" | "🛵" => return 1.1,
            "🌍" | "🌎" | "🌏" => return 1.9,
            "🎃" | "🔥" => return 0.8,
            "⛄" | "☃" => return 1.3,
            "lantern" | "🎄" => return 2.1,
            "🎹" | "🛋️" | "🛋" | "🛏" => return 1.4,
            _ => {}
        }
        match self.kind {
            Kind::Animal => 1.0,
            Kind::Bird => 0.72,
            Kind::SeaAnimal => 0.95,
            Kind::Bug => 0.42,
            Kind::Plant => 0.7,
            Kind::Tree => 2.3,
            Kind::Food => 0.62,
            Kind::Person => 1.5,
            Kind::Building => 2.5,
            Kind::Vehicle => 1.5,
            Kind::Boat => 1.75,
            Kind::Aircraft => 1.6,
            Kind::Cosmic => 1.6,
            Kind::Furniture => 1.2,
            Kind::Wearable => 0.6,
            Kind::Object => 0.8,
        }
    }

    /// Whether the subject is usually in the air.
    pub fn flies(&self) -> bool {
        matches!(self.kind, Kind::Aircraft | Kind::Cosmic)
            || matches!(self.name, "🦋" | "🐝" | "🦇" | "🎈" | "🪁" | "👻" | "🦅")
    }

    /// Whether the subject is worn on the head.
    pub fn is_headgear(&self) -> bool {
        matches!(self.name, "🎩" | "👒" | "🧢" | "🎓" | "⛑" | "🪖" | "👑")
    }

    /// Fraction of the glyph, from the bottom, that shows water under a boat.
    pub fn water_drawn_below(&self) -> f32 {
        if matches!(self.name, "⛵" | "🚢") { 6.0 } else { 0.0 }
    }
}

fn kind_of(emoji: &str) -> Kind {
    let plain: String = emoji.chars().filter(|c| !matches!(c, '\u{fe0f}' | '\u{1f3fb}'..='\u{1f3ff}')).collect();
    KINDS.get(plain.as_str()).copied().unwrap_or(Kind::Object)
}

/// The kinds of emoji without variation selectors and skin tones; those that are missing are objects.
static KINDS: LazyLock<HashMap<&'static str, Kind>> = LazyLock::new(|| {
    let lines = include_str!("kinds.txt").lines().filter_map(|line| line.split_once(": "));
    lines
        .flat_map(|(kind, emoji)| emoji.split(' ').map(move |emoji| (emoji, kind)))
        .filter_map(|(emoji, kind)| Some((emoji, kind_named(kind)?)))
        .collect()
});

fn kind_named(name: &str) -> Option<Kind> {
    Kind::named(&name.replace(' ', ""))
}

static DRAWINGS: LazyLock<Vec<Glyph>> = LazyLock::new(|| {
    let drawing = |line: &'static str| {
        let (about, elements) = line.split_once(": ")?;
        let (name, kind) = about.split_once(", ")?;
        Some(Glyph { name, elements, kind: kind_named(kind)? })
    };
    include_str!("drawings.txt").lines().filter(|line| !line.starts_with('#')).filter_map(drawing).collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variation_selector_does_not_hide_an_emoji() {
        for emoji in ["✈️", "☂️", "🕯️", "❤️", "🐻‍❄️", "🐦‍⬛", "🦊"] {
            assert!(Glyph::of_emoji(emoji).is_some(), "{emoji}");
        }
        assert!(Glyph::of_emoji("fox").is_none());
    }

    #[test]
    fn kinds_and_drawings_are_known() {
        let drawn = include_str!("drawings.txt").lines().filter(|line| !line.starts_with('#'));
        assert_eq!(DRAWINGS.len(), drawn.count());
        assert!(Glyph::of_drawing("gull").is_some());
        for line in include_str!("kinds.txt").lines().filter(|line| !line.starts_with('#')) {
            let kind = line.split_once(": ").map(|(kind, _)| kind_named(kind));
            assert!(matches!(kind, Some(Some(_))), "{line}");
        }
        for (emoji, kind) in [("👩🏽‍🚒", Kind::Person), ("🕊️", Kind::Bird), ("🛋️", Kind::Furniture), ("🔔", Kind::Object)]
        {
            assert_eq!(Glyph::of_emoji(emoji).map(|glyph| glyph.kind), Some(kind), "{emoji}");
        }
    }
}
