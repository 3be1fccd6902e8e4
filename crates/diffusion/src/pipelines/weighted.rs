//! Emphasis in prompts, as introduced by AUTOMATIC1111's web UI and used in most prompts on the web: `(word)` weighs
//! 1.1, `[word]` 1 / 1.1, `(word:1.3)` 1.3, and nested brackets multiply. A backslash before a bracket makes it
//! literal.
//!
//! Each token's states are multiplied by its weight, then all states of a chunk are scaled back to their original mean.
//! Not supported: the keywords `BREAK` and `AND`, changes during a render (`[a:b:0.5]`), and looking for a comma at the
//! end of a chunk.

use std::ops::RangeInclusive;

/// The weight of a pair of brackets.
const STRONGER: f64 = 1.1;

/// Limits of a word's weight. Above the largest nothing recognisable is left; below the smallest a negative prompt
/// would paint what it names, which the content policy hasn't judged.
const WEIGHTS: RangeInclusive<f64> = 0.0..=10.0;

/// Characters with a special meaning.
const SIGNS: [char; 6] = ['\\', '(', ')', '[', ']', ':'];

/// Splits a prompt into parts with their weights. Neighbours have different weights.
pub(super) fn parts(prompt: &str) -> Vec<(String, f32)> {
    let mut parts: Vec<(String, f64)> = Vec::new();
    let (mut round, mut square) = (Vec::new(), Vec::new());
    let mut rest = prompt;
    while let Some(letter) = rest.chars().next() {
        let (taken, text) = match letter {
            '\\' => {
                let next = rest[1..].chars().next().filter(|next| SIGNS[..5].contains(next));
                let taken = 1 + next.map_or(0, char::len_utf8);
                (taken, &rest[1..taken])
            }
            '(' => {
                round.push(parts.len());
                (1, "")
            }
            '[' => {
                square.push(parts.len());
                (1, "")
            }
            ')' => (1, closed(&mut parts, &mut round, STRONGER).unwrap_or(")")),
            ']' => (1, closed(&mut parts, &mut square, 1.0 / STRONGER).unwrap_or("]")),
            ':' => match weight(rest).filter(|_| !round.is_empty()) {
                Some((weight, taken)) => (taken, closed(&mut parts, &mut round, weight).unwrap_or_default()),
                None => (1, ":"),
            },
            _ => {
                let taken = rest.find(SIGNS).unwrap_or(rest.len());
                (taken, &rest[..taken])
            }
        };
        if !text.is_empty() {
            parts.push((text.to_owned(), 1.0));
        }
        rest = &rest[taken..];
    }
    // Brackets that stay open reach to the end of the prompt.
    while closed(&mut parts, &mut round, STRONGER).is_some() {}
    while closed(&mut parts, &mut square, 1.0 / STRONGER).is_some() {}
    joined(parts)
}

fn bounded(weight: f64) -> f64 {
    weight.clamp(*WEIGHTS.start(), *WEIGHTS.end())
}

/// Multiplies the weights since the last open bracket. `None` if there is none.
fn closed(parts: &mut [(String, f64)], open: &mut Vec<usize>, factor: f64) -> Option<&'static str> {
    let from = open.pop()?;
    // Clamped at each step, so that no weight becomes infinite.
    parts[from..].iter_mut().for_each(|(_, weight)| *weight = bounded(*weight * factor));
    Some("")
}

/// The number in `:1.3)`, and the whole match's length.
fn weight(text: &str) -> Option<(f64, usize)> {
    let (number, _) = text[1..].split_once(')')?;
    let digits = number.trim();
    let is_number = digits.strip_prefix(['+', '-']).unwrap_or(digits).chars().all(|x| x.is_ascii_digit() || x == '.');
    let weight = digits.parse().ok().filter(|_| is_number)?;
    Some((bounded(weight), number.len() + 2))
}

/// Joins neighbours with equal weights, so that the tokenizer sees whole words.
fn joined(parts: Vec<(String, f64)>) -> Vec<(String, f32)> {
    let mut all: Vec<(String, f32)> = Vec::new();
    for (text, weight) in parts {
        let weight = weight as f32;
        match all.last_mut() {
            Some((before, same)) if same.to_bits() == weight.to_bits() => before.push_str(&text),
            _ => all.push((text, weight)),
        }
    }
    all
}

/// Multiplies the states of each token by its weight, and restores their mean.
pub(super) fn weigh(states: &mut [f32], weights: &[f32]) {
    if weights.iter().all(|weight| (weight - 1.0).abs() < f32::EPSILON) {
        return;
    }
    let mean = |states: &[f32]| states.iter().copied().map(f64::from).sum::<f64>() / states.len() as f64;
    let before = mean(states);
    for (row, weight) in states.chunks_exact_mut(states.len() / weights.len()).zip(weights) {
        row.iter_mut().for_each(|x| *x *= weight);
    }
    let factor = (before / mean(states)) as f32;
    if factor.is_finite() {
        states.iter_mut().for_each(|x| *x *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_weigh_their_words() {
        let (up, down) = (1.1_f32, (1.0 / 1.1_f64) as f32);
        let cases: [(&str, &[(&str, f32)]); 18] = [
            ("", &[]),
            ("a fox", &[("a fox", 1.0)]),
            ("a (red) fox", &[("a ", 1.0), ("red", up), (" fox", 1.0)]),
            ("a [red] fox", &[("a ", 1.0), ("red", down), (" fox", 1.0)]),
            ("(red:1.3), (blue: +.5 )", &[("red", 1.3), (", ", 1.0), ("blue", 0.5)]),
            ("((a) b:2)", &[("a", 2.2), (" b", 2.0)]),
            ("[[a]]", &[("a", (1.0 / 1.21_f64) as f32)]),
            (r"a \(b\) \[c\] \\ \d", &[(r"a (b) [c] \ d", 1.0)]),
            (r"(a \(b\):1.5)", &[("a (b)", 1.5)]),
            ("a) b] c:1.2) d", &[("a) b] c:1.2) d", 1.0)]),
            ("a (b [c", &[("a ", 1.0), ("b ", up), ("c", 1.0)]),
            ("(a:b:1.2)", &[("a:b", 1.2)]),
            ("(a:1.2.3)", &[("a:1.2.3", up)]),
            ("(a:inf) (b:1e3)", &[("a:inf", up), (" ", 1.0), ("b:1e3", up)]),
            ("(a:99)(b:-99)", &[("a", 10.0), ("b", 0.0)]),
            ("a: b, 16:9", &[("a: b, 16:9", 1.0)]),
            ("(日本:1.2)語", &[("日本", 1.2), ("語", 1.0)]),
            ("()(:2)[]", &[]),
        ];
        for (prompt, expected) in cases {
            let found = parts(prompt);
            let close = |(found, expected): (&(String, f32), &(&str, f32))| {
                found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6
            };
            let same = found.len() == expected.len() && found.iter().zip(expected).all(close);
            assert!(same, "{prompt}: {found:?}");
        }
        let deep = format!("{}a{}", "(".repeat(4_000), ")".repeat(2_000));
        assert_eq!(parts(&deep), [("a".to_owned(), 10.0)]);
        let endless = format!("((a:{}):0)", "9".repeat(310));
        assert_eq!(parts(&endless), [("a".to_owned(), 0.0)], "infinity times zero is no number");
    }

    #[test]
    fn the_mean_stays() {
        let mut states = [1.0, 2.0, 3.0, 4.0];
        weigh(&mut states, &[1.0, 3.0]);
        let found: f32 = states.iter().sum();
        assert!((found - 10.0).abs() < 1e-5 && (states[3] / states[0] - 12.0).abs() < 1e-4, "{states:?}");
        let mut states = [1.0, -1.0];
        weigh(&mut states, &[2.0, 2.0]);
        assert_eq!(states, [2.0, -2.0], "no mean to restore");
    }
}
