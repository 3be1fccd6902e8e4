//! Full figures for emoji that show only a head, so that they can stand in a scene.

use std::fmt::Write;

use super::glyph::{Glyph, Kind};

/// The SVG of a whole figure.
#[derive(Debug)]
pub struct Figure {
    pub svg: String,
    /// Size in SVG units.
    pub size: (f32, f32),
    /// Whether the colour from the prompt was used for the clothes.
    pub is_dressed: bool,
}

/// The skin tones of emoji, from light to dark.
const SKIN: [&str; 5] = ["#F7DECE", "#F3D2A2", "#D5AB88", "#AF7E57", "#7C533E"];

/// The coat of an animal that has only a face emoji: fur, belly and kind of tail.
struct Coat {
    fur: &'static str,
    belly: &'static str,
    tail: Tail,
}

#[derive(PartialEq)]
enum Tail {
    None,
    Bushy,
    Tufted,
}

impl Figure {
    /// Builds the figure of a glyph. `tone` selects a person's skin; `dress` is the CSS colour of the clothes, if any.
    pub fn of(glyph: &Glyph, dress: &str, is_tinted: bool, tone: usize) -> Self {
        if let Some(coat) = coat(glyph.name) {
            return Self::sitting(glyph, &coat);
        }
        if glyph.kind == Kind::Person && !is_full_figure(glyph.name) {
            return Self::standing(&glyph.with_skin(tone), dress, is_tinted, SKIN[tone % SKIN.len()]);
        }
        let glyph = glyph.with_skin(tone);
        let height = 36.0 - glyph.water_drawn_below();
        Self { svg: document(36.0, height, glyph.elements), size: (36.0, height), is_dressed: false }
    }

    fn sitting(glyph: &Glyph, coat: &Coat) -> Self {
        let Coat { fur, belly, tail } = coat;
        let mut body = String::new();
        match tail {
            Tail::None => {}
            Tail::Bushy => {
                let _ = write!(
                    body,
                    r#"<path fill="{fur}" d="M27 47c6 1 13-3 13-11 0-4-2-7-4-9 0 5-3 8-7 10z"/><path fill="{belly}" d="M36 27c2 2 4 5 4 9l-5-1.500c1-2 1.500-4.500 1-7.500z"/>"#
                );
            }
            Tail::Tufted => {
                let _ = write!(
                    body,
                    r#"<path fill="none" stroke="{fur}" stroke-width="2" d="M28 46q10 1 10-10"/><ellipse cx="38" cy="34" rx="2" ry="3.200" fill="{belly}"/>"#
                );
            }
        }
        let _ = write!(
            body,
            r##"<ellipse cx="18" cy="37" rx="12" ry="13" fill="{fur}"/><ellipse cx="8.500" cy="46.500" rx="5" ry="4" fill="{fur}"/><ellipse cx="27.500" cy="46.500" rx="5" ry="4" fill="{fur}"/><path fill="#0000001f" d="M11.500 37h13v13h-13z"/><path fill="{fur}" d="M12 36h5.600v12q0 2.300-2.800 2.300T12 48zM18.400 36H24v12q0 2.300-2.800 2.300T18.400 48z"/><ellipse cx="18" cy="34" rx="6.800" ry="7.500" fill="{belly}"/><ellipse cx="18" cy="28" rx="9" ry="3.500" fill="#00000022"/><g transform="translate(1.800 0) scale(.9)">{}</g>"##,
            glyph.elements
        );
        Self { svg: document(41.0, 50.5, &body), size: (41.0, 50.5), is_dressed: false }
    }

    fn standing(glyph: &Glyph, dress: &str, is_tinted: bool, skin: &str) -> Self {
        let is_bust = is_bust(glyph.name);
        let skirt = matches!(glyph.name, "👩" | "👧" | "👸" | "👵" | "🧙" | "🧝" | "🤶" | "🧕" | "👰");
        let suit = if glyph.name.contains("🚀") { "#E1E8ED" } else { dress };
        let legs = if glyph.name.contains("🚀") { "#CCD6DD" } else { "#3b4a63" };
        let mut body = String::new();
        if skirt {
            let _ = write!(
                body,
                r##"<path fill="{skin}" d="M15 52h2.500v9H15zM18.500 52H21v9h-2.500z"/><path fill="#5a4338" d="M13.800 60h4v2.500h-4zM18.300 60h4v2.500h-4z"/><path fill="{skin}" d="M8.500 28q2-2 3 0l-2.500 15H6.500zM27.500 28q-2-2-3 0L27 43h2.500z"/><path fill="{suit}" d="M12 24h12l2.500 10L29 54q-11 3-22 0l2.500-20z"/><path fill="#0000001e" d="M19 24h5l2.500 10L29 54q-4 1.200-8 1.400z"/>"##
            );
        } else {
            let _ = write!(
                body,
                r##"<path fill="{legs}" d="M11.500 42h6L17 61h-5zM18.500 42h6L24 61h-5z"/><path fill="#2f2a2a" d="M10.500 59.500h6.700v3h-6.700zM18.800 59.500h6.700v3h-6.700z"/><path fill="{suit}" d="M10 25q8-3 16 0l3.500 16-3 .8-2-7 .5 10H11l.5-10-2 7-3-.8z"/><circle cx="8" cy="42.500" r="1.900" fill="{skin}"/><circle cx="28" cy="42.500" r="1.900" fill="{skin}"/><path fill="#0000001c" d="M19 24h4l3 1 3.500 16-3 .8-2-7 .5 10h-6z"/>"##
            );
        }
        let (scale, x) = if is_bust { (0.86, 2.5) } else { (0.7, 5.4) };
        let _ = write!(body, r#"<g transform="translate({x} 0) scale({scale})">{}</g>"#, glyph.elements);
        Self { svg: document(36.0, 63.0, &body), size: (36.0, 63.0), is_dressed: is_tinted }
    }
}

fn document(width: f32, height: f32, elements: &str) -> String {
    format!(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">{elements}</svg>"#)
}

fn is_full_figure(name: &str) -> bool {
    const FULL: &str = "🚶🏃💃🕺🏇🚴🚵🧘🏄🧜🧞🧎🧍🏂⛷🏌🏊🤽🚣🧗🤸⛹🏋🤾🤹🛀🛌🤺🕴🧟🧛👯🤼";
    name.chars().next().is_some_and(|first| FULL.contains(first)) && !name.starts_with("🧛")
}

/// People whose emoji show head and shoulders.
fn is_bust(name: &str) -> bool {
    name.contains('\u{200d}')
        || matches!(
            name,
            "🥷" | "🧙"
                | "🧚"
                | "🧛"
                | "🧝"
                | "🦸"
                | "🦹"
                | "👮"
                | "💂"
                | "🕵"
                | "🎅"
                | "🤶"
                | "👷"
                | "🤵"
                | "👰"
                | "🧑‍🎄"
        )
}

fn coat(name: &str) -> Option<Coat> {
    let (fur, belly, tail) = match name {
        "🦊" => ("#F4900C", "#FFE8C8", Tail::Bushy),
        "🐻" => ("#C1694F", "#D99E82", Tail::None),
        "🐻‍❄" | "🐻‍❄️" => ("#CCD6DD", "#E1E8ED", Tail::None),
        "🐼" => ("#3B4045", "#F1F3F4", Tail::None),
        "🦁" => ("#FFCB4C", "#8A3A22", Tail::Tufted),
        "🐺" => ("#66757F", "#CCD6DD", Tail::Bushy),
        "🐨" => ("#99AAB5", "#CCD6DD", Tail::None),
        "🐸" => ("#77B255", "#A6D388", Tail::None),
        "🐹" => ("#FFCC4D", "#FFF3D6", Tail::None),
        "🦝" => ("#66757F", "#AAB8C2", Tail::Bushy),
        "🦌" => ("#C1694F", "#E3B48F", Tail::None),
        "🫎" => ("#A0583F", "#8A4B36", Tail::None),
        "🦍" => ("#292F33", "#66757F", Tail::None),
        "🐗" => ("#A0472D", "#662113", Tail::Tufted),
        "🤖" => ("#3B88C3", "#8899A6", Tail::None),
        "👽" => ("#AAB8C2", "#CCD6DD", Tail::None),
        _ => return None,
    };
    Some(Coat { fur, belly, tail })
}
