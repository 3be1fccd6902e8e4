//! The crates that the program is built and tested with: their licences, sources and versions, offline. `deny.toml` has the
//! rules, in the format of cargo-deny, which checks the advisories before a release.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde::Deserialize;

use crate::rigs::binary::{Ran as _, Run as _};
use crate::tidy::root;

#[derive(Deserialize)]
struct Rules {
    licenses: Licences,
    advisories: Advisories,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licences {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Advisories {
    ignore: Vec<Excuse>,
}

#[derive(Deserialize)]
struct Excuse {
    id: String,
    /// Begins with the name of the crate.
    reason: String,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<String>,
    skip: Vec<Skip>,
}

#[derive(Deserialize)]
struct Skip {
    #[serde(rename = "crate")]
    name_and_version: String,
    reason: String,
}

impl Rules {
    fn read() -> Self {
        let text = std::fs::read_to_string(root().join("deny.toml")).expect("deny.toml");
        toml::from_str(&text).expect("rules")
    }
}

/// A line of `cargo tree`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    licence: String,
    /// Nothing for a package of crates.io.
    source: Option<String>,
}

/// The packages that Cargo compiles for the program, its tests and benchmarks on 64-bit Linux.
fn packages() -> BTreeSet<Package> {
    let target = "x86_64-unknown-linux-gnu";
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--workspace", "--all-features", "--target", target])
        .args(["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}|{l}"])
        .current_dir(root())
        .ran();
    let text = output.text();
    assert!(output.status.success(), "{}", output.errors());
    text.lines().filter(|line| !line.is_empty()).map(package).collect()
}

fn package(line: &str) -> Package {
    let (package, licence) = line.split_once('|').expect("a package and its licence");
    let mut words = package.split(' ');
    let (name, version) = (words.next().expect("a name"), words.next().expect("a version"));
    let source = words.find(|word| *word != "(proc-macro)" && *word != "(*)");
    Package {
        name: name.into(),
        version: version.trim_start_matches('v').into(),
        licence: licence.trim_end_matches(" (*)").into(),
        source: source.map(|source| source.trim_matches(['(', ')']).into()),
    }
}

/// Whether a licence expression of SPDX, or of the older style with slashes, is fulfilled by these licences.
fn fulfilled(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = text.split_whitespace().peekable();
    let fulfilled = any(&mut words, allowed);
    assert_eq!(words.next(), None, "{expression}");
    fulfilled
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut fulfilled = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        fulfilled |= all(words, allowed);
    }
    fulfilled
}

fn all(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut fulfilled = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        fulfilled &= one(words, allowed);
    }
    fulfilled
}

fn one(words: &mut Words<'_>, allowed: &BTreeSet<String>) -> bool {
    let word = words.next().unwrap_or_default();
    if word == "(" {
        let fulfilled = any(words, allowed);
        assert_eq!(words.next(), Some(")"), "a closing parenthesis");
        return fulfilled;
    }
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(&format!("{word} WITH {exception}")),
        None => allowed.contains(word),
    }
}

#[test]
fn every_licence_is_allowed_and_no_other() {
    let (packages, allowed) = (packages(), Rules::read().licenses.allow);
    assert!(packages.len() > 400, "{}", packages.len());
    for package in &packages {
        assert!(fulfilled(&package.licence, &allowed), "{package:?}");
    }
    for licence in &allowed {
        let mut others = allowed.clone();
        others.remove(licence);
        let needed = packages.iter().any(|package| !fulfilled(&package.licence, &others));
        assert!(needed, "no crate needs {licence}: remove it from deny.toml");
    }
}

#[test]
fn expressions_are_read_like_those_of_spdx() {
    let allowed = BTreeSet::from(["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"].map(String::from));
    for expression in ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "MIT AND ISC", "(GPL-3.0 OR MIT) AND ISC"] {
        assert!(fulfilled(expression, &allowed), "{expression}");
    }
    assert!(fulfilled("Apache-2.0 WITH LLVM-exception", &allowed));
    for expression in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND GPL-3.0", "Apache-2.0"] {
        assert!(!fulfilled(expression, &allowed), "{expression}");
    }
}

#[test]
fn every_crate_is_ours_or_of_the_registry_and_none_is_banned() {
    let banned = Rules::read().bans.deny;
    for package in packages() {
        let ours = package.source.as_deref().is_none_or(|source| std::path::Path::new(source).starts_with(root()));
        assert!(ours, "{package:?}");
        assert!(!banned.contains(&package.name), "{package:?}");
    }
}

/// Whether `version` begins with the numbers of `beginning`.
fn begins(version: &str, beginning: &str) -> bool {
    version.strip_prefix(beginning).is_some_and(|rest| rest.starts_with('.'))
}

#[test]
fn every_second_version_of_a_crate_has_a_reason() {
    let mut skips = BTreeMap::<String, Vec<String>>::new();
    for Skip { name_and_version, reason } in Rules::read().bans.skip {
        assert!(!reason.is_empty(), "{name_and_version}");
        let (name, version) = name_and_version.split_once(':').expect("a name and a version");
        skips.entry(name.into()).or_default().push(version.into());
    }
    let mut versions = BTreeMap::<String, BTreeSet<String>>::new();
    for package in packages() {
        versions.entry(package.name).or_default().insert(package.version);
    }
    let mut wrong = Vec::new();
    for (name, versions) in &versions {
        let skipped = skips.remove(name).unwrap_or_default();
        let rest = versions.iter().filter(|version| !skipped.iter().any(|skip| begins(version, skip)));
        if rest.count() > 1 {
            wrong.push(format!("{name} has the versions {versions:?}: use one, or add the others to deny.toml"));
        }
        for skip in skipped {
            if versions.len() == 1 || !versions.iter().any(|version| begins(version, &skip)) {
                wrong.push(format!("{name} no longer has {skip} beside another version: remove it from deny.toml"));
            }
        }
    }
    wrong.extend(skips.keys().map(|name| format!("no crate uses {name}: remove it from deny.toml")));
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_excused_advisory_is_of_a_crate_that_is_used() {
    let packages = packages();
    for Excuse { id, reason } in Rules::read().advisories.ignore {
        let (name, reason) = reason.split_once(": ").expect("the name of a crate and a reason");
        assert!(!reason.is_empty(), "{id}");
        assert!(packages.iter().any(|package| package.name == name), "{id}: no crate uses {name}");
    }
}
