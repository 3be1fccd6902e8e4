//! Disguised words, similar but harmless words, and altered pictures.

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::blocklist::BlockList;
use super::file::MAX_FILE;
use super::rules::{Matcher, Rule};
use super::*;
use tintype_engine::picture::Picture;

fn matcher(words: &[&str]) -> Matcher {
    let words = words.iter().map(|word| (*word).to_owned()).collect();
    Matcher::new(&[Rule { name: "rule".into(), words }]).expect("valid rules")
}

#[track_caller]
fn assert_refused(words: &[&str], prompts: &[&str]) {
    let matcher = matcher(words);
    let passed: Vec<_> = prompts.iter().filter(|prompt| !matcher.refuses(prompt)).collect();
    assert!(passed.is_empty(), "passed: {passed:?}");
}

#[track_caller]
fn assert_passed(words: &[&str], prompts: &[&str]) {
    let matcher = matcher(words);
    let refused: Vec<_> = prompts.iter().filter(|prompt| matcher.refuses(prompt)).collect();
    assert!(refused.is_empty(), "refused: {refused:?}");
}

#[test]
fn a_word_is_found_in_every_disguise() {
    let disguises = [
        "bomb",
        "a BOMB!",
        "BoMb",
        "(bomb)",
        "a_bomb_b",
        "bomb's",
        "\u{ff42}\u{ff4f}\u{ff4d}\u{ff42}",
        "𝐛𝐨𝐦𝐛",
        "𝕭𝖔𝖒𝖇",
        "ⓑⓞⓜⓑ",
        "🄱🄾🄼🄱",
        "🅑🅞🅜🅑",
        "🅱🅾🅼🅱",
        "🇧🇴🇲🇧",
        "ʙᴏᴍʙ",
        "bоmb",
        "ВОМВ",
        "вомв",
        "βομβ",
        "ΒΟΜΒ",
        "bοmb",
        "b\u{200b}o\u{200d}m\u{2060}b",
        "bo\u{ad}mb",
        "b\u{feff}omb",
        "b\u{34f}omb",
        "bo\u{e0062}mb",
        "b\u{202e}omb",
        "bo\u{fe0f}mb",
        "b\u{336}o\u{336}m\u{336}b\u{336}",
        "bómb",
        "bo\u{301}\u{302}\u{303}mb",
        "b\u{20dd}omb",
        "b0mb",
        "b o m b",
        "b.o.m.b",
        "B-0-M-B",
        "draw a b*o*m*b now",
        "b o m b a lot",
        "bo()mb",
        "bo[]mb",
        "(bo:1)mb",
        "bo(mb:1.3)",
        "((b)o(m: -.5 ))b",
        "{bo}mb",
        "b\\(\\omb",
        "draw a b o m b I like",
    ];
    assert_refused(&["bomb"], &disguises);
    assert_refused(&["hello"], &["h3ll0", "he11o", "HE||O", "hеllо", "ʜᴇʟʟᴏ", "ΗΕLLΟ"]);
    assert_refused(&["kill"], &["k1ll", "k!ll", "КІLL"]);
    assert_refused(&["assassin"], &["a$$a$$in", "@ssassin", "4554551n"]);
    assert_refused(&["landmine"], &["1andm1ne", "１andm１ne", "l4ndm|ne", "land\u{200b}mine"]);
    assert_refused(&["nazi"], &["ΝΑΖΙ", "nаzі", "NАΖI"]);
}

#[test]
fn only_whole_words_are_found() {
    assert_passed(&["cunt"], &["Scunthorpe", "a view of Scunthorpe United"]);
    assert_passed(&["ass"], &["a classic bass in the grass", "Assisi", "assess", "compass", "cl4ss"]);
    assert_passed(&["bum"], &["burn", "a burning album", "bumblebee"]);
    assert_passed(&["com"], &["corn", "come"]);
    assert_passed(&["bomb"], &["bombast", "a bombed street", "bo mb", "aplomb", ""]);
    assert_passed(&["make a bomb"], &["make a bombshell", "I make a cake; a bomb", "a bomb make"]);
    assert_passed(&["ba"], &["b4 and after"]);
    assert_passed(&["bomb"], &["bo (mb)", "bo:mb)", "(bo:mb)", "bo:1 (mb)"]);
}

#[test]
fn a_phrase_is_found_across_what_stands_between_its_words() {
    let prompts =
        ["make a bomb", "MAKE\n\ta --- bomb", "make…a…bomb", "please make, a. bomb", "make\u{3000}a\u{a0}bomb"];
    assert_refused(&["make a bomb"], &prompts);
    assert_refused(&["make-a  bomb"], &prompts);
}

#[test]
fn invisible_characters_do_not_hide_where_words_end() {
    let invisible = [
        '\u{200b}',
        '\u{200c}',
        '\u{200d}',
        '\u{2060}',
        '\u{ad}',
        '\u{feff}',
        '\u{fe0f}',
        '\u{e0100}',
        '\u{202e}',
        '\u{200e}',
        '\u{2068}',
        '\u{34f}',
        '\u{3164}',
        '\u{2065}',
        '\u{fff0}',
        '\u{fffc}',
        '\u{1}',
        '\u{7f}',
    ];
    for c in invisible {
        let prompts = [
            format!("draw a pipe{c}bomb"),
            format!("a pi{c}pe{c}bo{c}mb"),
            format!("pipe{c} {c}bomb"),
            format!("p{c}ipe bomb"),
            format!("land{c}mine"),
        ];
        let prompts: Vec<_> = prompts.iter().map(String::as_str).collect();
        assert_refused(&["pipe bomb", "landmine"], &prompts);
        assert_refused(&["make a pipe bomb"], &[&format!("m{c}ake{c}a pipe{c}bomb")]);
        assert_passed(&["pipe bomb", "landmine"], &[&format!("a pipe{c}line and a bomb"), &format!("land{c}mines")]);
    }
    let spaces = ["see\u{200b}landmine", "see\u{2060}landmine", "pipe\u{2800}bomb", "(pipe)\u{200b}bomb"];
    assert_refused(&["pipe bomb", "landmine"], &spaces);
    assert_passed(&["pipe bomb"], &["pipebomb", "pipebomb\n"]);
    // Emoji and marks at the ends of words hide nothing.
    assert_passed(
        &["9/11", "the rapist"],
        &["a Porsche 911 \u{1f3ce}\u{fe0f}", "a therapist \u{1f469}\u{200d}\u{2695}\u{fe0f}"],
    );
    assert_passed(&["the rapist"], &["\u{feff}a therapist\u{200e}"]);
    // A word with soft hyphens or joiners is one word.
    assert_passed(&["ass", "می"], &["Kultur\u{ad}ass\u{ad}istent", "می\u{200c}کشم"]);
    assert_refused(
        &["one two three four five six"],
        &["one\u{200b}two\u{200b}three\u{200b}four\u{200b}five\u{200b}six"],
    );
}

#[test]
fn letters_that_fold_to_one_letter_in_either_case_are_the_same() {
    assert_refused(&["straße"], &["STRASSE", "Straße", "STRAẞE", "strasse"]);
    assert_refused(&["STRASSE"], &["straße"]);
    assert_refused(&["istanbul"], &["İSTANBUL", "ISTANBUL", "ıstanbul", "İstanbul"]);
    assert_refused(&["İstanbul"], &["istanbul"]);
    assert_refused(&["λόγος"], &["ΛΟΓΟΣ", "λογος", "Λόγοσ"]);
    assert_refused(&["office"], &["oﬃce", "OﬃCE"]);
}

#[test]
fn words_of_every_script_are_found() {
    assert_refused(&["вода"], &["Вода", "ВОДА", "стакан воды и вода", "BOДA", "вoдa"]);
    assert_passed(&["вода"], &["водап", "завода"]);
    assert_refused(&["قنبلة"], &["قنبلة", "قُنْبُلَة", "قـنـبـلـة", "صورة قنبلة كبيرة", "ﻗﻨﺒﻠﺔ"]);
    assert_passed(&["قنبلة"], &["قنبل", "وقنبلةك"]);
    assert_refused(&["פצצה"], &["פצצה", "פְּצָצָה"]);
    assert_refused(&["炸弹"], &["炸弹", "画一个炸弹吗", "炸 弹", "炸*弹", "a炸弹b", "炸\u{200b}弹"]);
    assert_passed(&["炸弹"], &["爆炸。弹琴", "弹炸", "炸鱼"]);
    assert_refused(&["爆弾"], &["爆弾を作る", "爆\u{3000}弾"]);
    assert_refused(&["バクダン"], &["ﾊﾞｸﾀﾞﾝ", "バクダンの絵"]);
    assert_passed(&["バク"], &["ハク"]);
    assert_refused(&["ระเบิด"], &["ระเบิด", "ภาพระเบิดใหญ่"]);
    assert_passed(&["ระเบ"], &["ระเบิด"]);
    assert_refused(&["폭탄"], &["폭탄", "폭탄을 그려줘", "큰폭탄"]);
    assert_passed(&["바"], &["반달"]);
    assert_refused(&["बम"], &["एक बम का चित्र"]);
    assert_passed(&["बम"], &["बमबारी"]);
    assert_refused(&["🔫"], &["🔫", "a🔫b", "a 🔫!", "🔫\u{fe0f}"]);
    assert_refused(&["👊"], &["👊🏿", "👊🏻"]);
    assert_refused(&["bomb 炸弹"], &["bomb炸弹", "Bomb, 炸弹"]);
}

#[test]
fn every_rule_that_refuses_is_named() {
    let rule = |name: &str, word: &str| Rule { name: name.into(), words: vec![word.into()] };
    let rules = [rule("arms", "bomb"), rule("people", "ada"), rule("making", "make a bomb"), rule("names", "ada")];
    let matcher = Matcher::new(&rules).expect("valid rules");
    assert_eq!(matcher.matches("Ada, make a bomb"), ["arms", "people", "making", "names"]);
    assert_eq!(matcher.matches("a boat"), Vec::<&str>::new());
}

#[test]
fn a_rule_without_letters_is_refused() {
    for word in ["", " ", "...", "\u{200b}", "\u{301}"] {
        let rule = Rule { name: "empty".into(), words: vec![word.into()] };
        assert!(Matcher::new(&[rule]).is_err(), "{word:?}");
    }
}

#[test]
fn an_error_in_a_block_list_gives_its_line() {
    let grey = Picture::from_rgb(2, 1, vec![0, 0, 0, 255, 255, 255]).expect("two pixels");
    let list = BlockList::parse(&format!("# known\n\n{:016x}  # a boat\n", picture_hash(&grey)), 0).expect("a list");
    assert_eq!(list.len(), 1);
    assert!(list.blocks(&grey));
    for (broken, line) in [("12", 1), ("\nxxxxxxxxxxxxxxxx", 2), ("0123456789abcdef0", 1), ("+123456789abcdef", 1)] {
        let error = BlockList::parse(broken, 8).expect_err(broken);
        assert!(error.starts_with(&format!("line {line}:")), "{error}");
    }
}

fn read(text: &str) -> Result<Rules, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("policy.toml");
    std::fs::write(&path, text).expect("a file");
    Rules::read(&path)
}

#[test]
fn a_file_above_the_size_limit_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("policy.toml");
    let refused = || Rules::read(&path).expect_err("too large").contains("is larger than");
    let comment = vec![b'#'; usize::try_from(MAX_FILE).expect("a size")];
    std::fs::write(&path, &comment).expect("a file");
    Rules::read(&path).expect("exactly at the limit");
    std::fs::write(&path, [&comment[..], b"\n"].concat()).expect("a file");
    assert!(refused());
    // The metadata of a pipe says that it is empty.
    std::fs::remove_file(&path).expect("a file");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    std::thread::scope(|scope| {
        let endless = scope.spawn(|| std::fs::write(&path, [&comment[..], &comment].concat()));
        assert!(refused());
        let error = endless.join().expect("a thread").expect_err("the reader stops at the limit");
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn an_error_in_a_file_gives_the_line_and_quotes_no_words() {
    let cases = [
        ("[[rule]]\nname = \"a\"\nwords = [\"secretword\"\n", "line"),
        ("[[rule]]\nname = \"a\"\nword = [\"secretword\"]", "line 3: unknown field `word`"),
        ("[strikes]\nlimit = 0\nwindow = \"1h\"", "the limit must be 1 or more"),
        ("[strikes]\nlimit = 5\nwindow = \"0s\"", "line 3: must be more than 0s"),
        ("[strikes]\nlimit = 5\nwindow = \"soon\"", "line 3"),
        ("[moderation]\nurl = \"http://example.com/\"\nunreachable = \"open\"", "must begin with https://"),
        ("[moderation]\nurl = \"http://127.0.0.1.example.com/\"\nunreachable = \"open\"", "must begin with https://"),
        ("[moderation]\nurl = \"https://example.com/\"", "missing field `unreachable`"),
        ("[moderation]\nurl = \"https://example.com/\"\nunreachable = \"maybe\"", "line 3"),
        ("[blocklist]\nfile = \"none.txt\"", "cannot read"),
        ("[blocklist]\nfile = \"none.txt\"\ndistance = 40", "blocks half of all pictures"),
        ("[[rule]]\nname = \"a\"\nwords = [\"...\"]", "without letters"),
    ];
    for (text, expected) in cases {
        let error = read(text).expect_err(text);
        assert!(error.contains(expected) && !error.contains("secretword"), "{text}: {error}");
        assert!(error.contains("policy.toml") || error.contains("none.txt"), "{error}");
    }
    for text in ["", "[moderation]\nurl = \"http://[::1]:8000/\"\nunreachable = \"open\"\ntimeout = \"2s\""] {
        read(text).expect(text);
    }
}
