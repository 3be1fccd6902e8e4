//! The words of the content policy.

use std::io::Write as _;
use std::sync::OnceLock;

use tintype::policy::Rules;

/// Rules with phrases, with letters that resemble others, and with every kind of script.
const FILE: &str = r#"
[[rule]]
name = "english"
words = ["bomb", "make a bomb", "ass", "kill", "l1mb0", "rn"]

[[rule]]
name = "other spaced scripts"
words = ["вода", "straße", "istanbul", "λόγος", "قنبلة", "פצצה", "बम"]

[[rule]]
name = "scripts without spaces"
words = ["炸弹", "爆弾", "バクダン", "ระเบิด", "폭탄", "💣"]
"#;

/// Characters that are not displayed.
const INVISIBLE: [char; 8] =
    ['\u{200b}', '\u{200d}', '\u{2060}', '\u{feff}', '\u{ad}', '\u{34f}', '\u{e0062}', '\u{202e}'];

/// Invisible characters hide no word of a prompt that had none, though some may part two words. The case of ASCII letters
/// does not change the verdict, and a refused prompt is also refused between other messages. Accepted inputs are prompts
/// that no rule refuses.
pub fn policy(data: &[u8]) -> bool {
    static RULES: OnceLock<Rules> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(FILE.as_bytes()).expect("a file");
        Rules::read(file.path()).expect("a policy")
    });
    let prompt = String::from_utf8_lossy(data);
    let found = rules.matches(&prompt);

    let hides = |c: char| !c.is_alphanumeric() && !rules.matches(&format!("bo{c}mb")).is_empty();
    let visible: String = prompt.chars().filter(|c| !hides(*c)).collect();
    let between = |(at, c): (usize, char)| [INVISIBLE[at % INVISIBLE.len()], c];
    let stretched: String = visible.chars().enumerate().flat_map(between).collect();
    let found_stretched = rules.matches(&stretched);
    let all_found = rules.matches(&visible).iter().all(|rule| found_stretched.contains(rule));
    assert!(all_found, "{visible:?} with invisible characters");
    for cased in [prompt.to_ascii_lowercase(), prompt.to_ascii_uppercase()] {
        assert_eq!(rules.matches(&cased), found, "{prompt:?} as {cased:?}");
    }
    let amid = format!("The boat\n{prompt}\nthe house");
    let found_amid = rules.matches(&amid);
    assert!(found.iter().all(|rule| found_amid.contains(rule)), "{prompt:?} is {found:?}, and {amid:?} {found_amid:?}");
    found.is_empty()
}
