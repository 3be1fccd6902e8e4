//! The documents: the files, functions and tests that they cite exist, and their links lead somewhere.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rigs::binary::{Ran as _, Run as _, tintype};
use crate::tidy::{root, sources};

#[derive(Debug, PartialEq)]
enum Part {
    Prose(String),
    /// Between backticks.
    Code(String),
}

/// The documents that describe the repository as it is. `CHANGELOG.md` may name what is gone.
fn documents() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for folder in ["", "clients/python", "clients/typescript", "crates/client"] {
        add_documents(&root().join(folder), &mut found);
    }
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        add_documents(&folder, &mut found);
        let paths = std::fs::read_dir(&folder).expect("a readable folder").map(|entry| entry.expect("an entry").path());
        folders.extend(paths.filter(|path| path.is_dir()));
    }
    assert!(found.len() > 20, "{found:?}");
    found
}

fn add_documents(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "md") && !path.ends_with("CHANGELOG.md") {
            found.push((path.clone(), std::fs::read_to_string(path).expect("a readable document")));
        }
    }
}

/// The text with the lines of fenced blocks left empty.
fn without_fences(text: &str) -> String {
    let mut fenced = false;
    let lines = text.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if fenced || fence { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn parts(text: &str) -> Vec<Part> {
    let pieces = without_fences(text);
    let pieces = pieces.split('`').enumerate();
    pieces
        .map(|(index, piece)| if index % 2 == 0 { Part::Prose(piece.into()) } else { Part::Code(piece.into()) })
        .collect()
}

/// The words between backticks, one command's word by word.
fn code_words(text: &str) -> Vec<String> {
    let spans = parts(text).into_iter().filter_map(|part| if let Part::Code(code) = part { Some(code) } else { None });
    spans.flat_map(|code| code.split_whitespace().map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Whether a word means a file or a folder of this repository.
fn is_path(word: &str) -> bool {
    let first = word.split('/').next().expect("one piece");
    let in_a_folder = word.contains('/') && !["", ".", "..", "target"].contains(&first) && root().join(first).exists();
    in_a_folder || word.ends_with(".rs") || word.ends_with(".patch")
}

/// The names of headings as links use them.
fn anchors(document: &str) -> BTreeSet<String> {
    let without = without_fences(document);
    let headings = without.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| -> String {
        let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
        kept.map(|letter| if letter == ' ' { '-' } else { letter.to_ascii_lowercase() }).collect()
    };
    headings.map(slug).collect()
}

pub fn own_tests() -> Vec<String> {
    let listed = Command::new(std::env::current_exe().expect("this program")).arg("--list").output();
    let listed = listed.expect("this program runs once more").text();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// Every test outside this program, as its source names it.
fn other_tests() -> Vec<String> {
    let mut tests = Vec::new();
    for (path, text) in sources("src").into_iter().chain(sources("crates")) {
        let mut modules: Vec<_> =
            path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
        // Benchmarks hold no tests.
        let Some(source) = modules.iter().position(|name| name == "src" || name == "it") else { continue };
        modules.drain(..=source);
        // Each case of the suite of `Store` is a test of each database.
        for case in text.lines().filter_map(|line| line.strip_prefix("case!(")?.split(',').next()) {
            let case = format!("{}::{case}", modules.join("::"));
            tests.extend(["sqlite", "postgres"].map(|store| format!("{case}::{store}")));
        }
        modules.pop_if(|name| name == "mod" || name == "lib");
        if text.contains("mod tests {") {
            modules.push("tests".into());
        }
        let mut is_test = false;
        for line in text.lines().map(str::trim) {
            let name = line.split_once("fn ").and_then(|(_, rest)| rest.split('(').next());
            match name {
                Some(name) if is_test => tests.push(format!("{}::{name}", modules.join("::"))),
                _ => {
                    is_test = (is_test && line.starts_with("#["))
                        || line.starts_with("#[test]")
                        || line.starts_with("#[tokio::test")
                }
            }
        }
    }
    tests
}

/// The filters and names of tests in a document: `module::`, `module::name`, and the words after `--test it`.
fn cited_tests(document: &str) -> BTreeSet<String> {
    let is_name =
        |word: &str| word.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_');
    let mut cited = BTreeSet::new();
    for line in document.lines() {
        let words = line.split(|letter: char| letter.is_whitespace() || "`|,;()\"".contains(letter));
        for word in words {
            let word = word.trim_end_matches('.');
            let segments: Vec<_> = word.trim_end_matches("::").split("::").collect();
            if word.contains("::") && segments.iter().all(|segment| !segment.is_empty() && is_name(segment)) {
                cited.insert(segments.join("::"));
            }
        }
        if let Some((_, filters)) = line.split_once("--test it ") {
            let filters = filters.split(['`', '|']).next().expect("one piece").split_whitespace();
            cited.extend(
                filters
                    .filter(|word| word.starts_with(|letter: char| letter.is_ascii_lowercase()))
                    .map(|word| word.trim_end_matches("::").to_owned()),
            );
        }
    }
    cited
}

/// Whether whole segments of the name of a test are those that were cited.
fn is_cited(test: &str, cited: &str) -> bool {
    format!("::{test}::").contains(&format!("::{cited}::"))
}

#[test]
fn every_link_in_a_document_has_a_target() {
    let mut broken = Vec::new();
    for (path, text) in documents() {
        let folder = path.parent().expect("a folder");
        let without = without_fences(&text);
        for target in without.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
            let file = if file.is_empty() { path.clone() } else { folder.join(file) };
            let found = match anchor {
                None => file.exists(),
                Some(anchor) => std::fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(anchor)),
            };
            if !found {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_path_that_a_document_cites_exists() {
    let mut missing = Vec::new();
    for (path, text) in documents() {
        for word in code_words(&text) {
            let fixed: PathBuf =
                Path::new(&word).iter().take_while(|name| !name.to_string_lossy().contains('*')).collect();
            if is_path(&word) && !root().join(fixed).exists() {
                missing.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "cite the path from the root of the repository: {missing:#?}");
}

#[test]
fn a_function_that_a_document_cites_is_in_the_file_it_names() {
    let mut missing = Vec::new();
    for (path, text) in documents() {
        for window in parts(&text).windows(3) {
            let [Part::Code(name), Part::Prose(between), Part::Code(file)] = window else { continue };
            let source = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            let last = name.rsplit("::").next().expect("one piece");
            if between.trim() == "in" && file.ends_with(".rs") && !source.contains(last) {
                missing.push(format!("{}: {name} in {file}", path.display()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[test]
fn every_test_that_a_document_cites_exists() {
    let (own, others) = (own_tests(), other_tests());
    let mut missing = Vec::new();
    for (path, text) in documents() {
        let cited = cited_tests(&text).into_iter();
        let unknown = cited.filter(|cited| !own.iter().chain(&others).any(|test| is_cited(test, cited)));
        missing.extend(unknown.map(|cited| format!("{}: {cited}", path.display())));
        let modules = text.split("--lib ").skip(1).filter_map(|rest| rest.split(['`', ' ', '\n']).next());
        let empty =
            modules.filter(|module| !others.iter().any(|test| format!("::{test}").contains(&format!("::{module}::"))));
        missing.extend(empty.map(|module| format!("{}: --lib {module}", path.display())));
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The flags in a text without their hyphens, except those of every command.
fn flags(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
    let flags = words.filter_map(|word| word.strip_prefix("--"));
    let flags = flags.filter(|name| name.starts_with(|letter: char| letter.is_ascii_lowercase()));
    flags.filter(|name| !["help", "version"].contains(name)).map(str::to_owned).collect()
}

#[test]
fn the_page_of_settings_names_every_flag_of_a_server_and_no_other() {
    let mut defined = BTreeSet::new();
    for arguments in [&["serve", "--help"][..], &["--help"]] {
        let help = tintype().args(arguments).ran().text();
        defined.extend(help.lines().filter(|line| line.trim_start().starts_with('-')).flat_map(flags));
    }
    let page = std::fs::read_to_string(root().join("docs/operate/settings.md")).expect("a readable document");
    let named = flags(&page);
    let missing: Vec<_> = defined.difference(&named).collect();
    let unknown: Vec<_> = named.difference(&defined).collect();
    assert!(missing.is_empty() && unknown.is_empty(), "missing: {missing:?}, unknown: {unknown:?}");
}
