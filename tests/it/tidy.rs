//! House rules that a machine can check.

use std::path::{Path, PathBuf};

const MAX_FILE_LINES: usize = 800;
const MAX_FUNCTION_LINES: usize = 70;

/// The layers of the binary, top to bottom. A module uses only modules of the layers below its own. Cargo enforces the
/// same for crates.
const LAYERS: &[&[&str]] = &[
    &["main"],
    &["cli"],
    &["server"],
    &["http", "worker"],
    &["studio"],
    &["service", "backup"],
    &["policy", "files", "metrics", "traces"],
];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust sources in a folder, each with its path from the root.
pub fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a readable source");
                found.push((path.strip_prefix(root()).expect("inside").to_owned(), text));
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {folder}");
    found
}

pub fn all_sources() -> Vec<(PathBuf, String)> {
    ["src", "crates", "tests", "benches", "fuzz/src"].into_iter().flat_map(sources).collect()
}

/// The module of the crate's root that a file of `src` belongs to.
fn module(path: &Path) -> String {
    let first = path.components().nth(1).expect("a file in src");
    Path::new(first.as_os_str()).file_stem().expect("a name").to_string_lossy().into_owned()
}

#[test]
fn files_stay_short() {
    let long: Vec<_> = all_sources()
        .into_iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(_, lines)| *lines > MAX_FILE_LINES)
        .collect();
    assert!(long.is_empty(), "split these by noun: {long:?}");
}

#[test]
fn functions_stay_short() {
    let mut long = Vec::new();
    for (path, text) in all_sources() {
        let mut open: Vec<(usize, usize, String)> = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            if ["}", "});"].contains(&line.trim_start())
                && let Some((start, _, name)) = open.pop_if(|(_, at, _)| *at == indent)
                && number - start >= MAX_FUNCTION_LINES
            {
                long.push(format!("{}: {name} has {} lines", path.display(), number - start + 1));
            }
            let begins = line.split_once("fn ").is_some_and(|(before, after)| {
                before
                    .trim()
                    .split(' ')
                    .all(|word| ["", "pub", "pub(crate)", "pub(super)", "async", "const"].contains(&word))
                    && after.contains('(')
            });
            let begins = begins || line.starts_with("case!(");
            if begins && !line.trim_end().ends_with(['}', ';']) {
                open.push((number, indent, line.trim().to_owned()));
            }
        }
    }
    assert!(long.is_empty(), "split these: {long:#?}");
}

#[test]
fn no_module_is_called_utils() {
    for (path, _) in all_sources() {
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(
            !["util", "utils", "helper", "helpers", "common", "misc"].contains(&stem.as_str()),
            "{}",
            path.display()
        );
    }
}

#[test]
fn dependencies_point_one_way() {
    let layer = |module: &str| {
        let found = LAYERS.iter().position(|layer| layer.contains(&module));
        found.unwrap_or_else(|| panic!("{module} has no place in LAYERS"))
    };
    for (path, text) in sources("src") {
        let own = module(&path);
        if own == "lib" || own == "main" {
            continue;
        }
        let code: String = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for used in code.split("crate::").skip(1) {
            let used: String = used.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            assert!(used == own || layer(&used) > layer(&own), "{}: {own} must not use {used}", path.display());
        }
    }
}

#[test]
fn each_concern_has_one_home() {
    // Clippy checks reads of the clock and of the environment (clippy.toml), and Cargo whatever else a crate uses.
    let homes: &[(&[&str], &[&str])] = &[
        (&["SELECT ", "INSERT INTO"], &["crates/store", "crates/rigs"]),
        (&["axum::", "hyper::"], &["src/http", "src/server", "src/studio"]),
        // These macros panic when the reader is gone; the functions in crates/system/src/output.rs do not.
        (&["print!", "println!"], &["crates/rigs"]),
        (&["Client::builder(", "ClientBuilder::new("], &["crates/outbound", "crates/client"]),
    ];
    let program = |path: &Path| path.components().any(|part| part.as_os_str() == "src");
    for (path, text) in all_sources().into_iter().filter(|(path, _)| program(path) && !path.starts_with("fuzz")) {
        for (marks, allowed) in homes {
            let found = marks.iter().find(|mark| text.contains(**mark));
            assert!(
                found.is_none() || allowed.iter().any(|home| path.starts_with(home)),
                "{}: {found:?} belongs in {allowed:?}",
                path.display()
            );
        }
    }
}
