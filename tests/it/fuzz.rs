//! The targets of `fuzz/`, on the seeds there and on small deterministic mutations of them.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

#[path = "../../fuzz/src/lib.rs"]
mod targets;

/// One test per target, with its number of mutated seeds.
macro_rules! targets {
    ($($target:ident: $changed:literal,)+) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),+];

        $(
            #[test]
            fn $target() {
                hold(stringify!($target), targets::$target, $changed);
            }
        )+
    };
}

targets! {
    body: 20_000,
    cursor: 20_000,
    frame: 20_000,
    head: 20_000,
    key: 20_000,
    model: 8_000,
    picture: 2_000,
    policy: 5_000,
    reference_url: 15_000,
}

/// Shows the input that broke a promise.
struct Shown<'a>(&'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the bytes: \"{}\"", self.0.escape_ascii());
        }
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(name)
}

/// The names in a folder, sorted, without extensions.
fn names(folder: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn hold(target: &str, holds: fn(&[u8]) -> bool, changed: usize) {
    let run = |bytes: &[u8]| {
        let _shown = Shown(bytes);
        holds(bytes)
    };
    let seeds = names(&folder("corpus").join(target));
    let seeds: Vec<_> = seeds.into_iter().map(|path| std::fs::read(path).expect("a seed")).collect();
    let verdicts: HashSet<_> = seeds.iter().map(|seed| run(seed)).collect();
    assert_eq!(verdicts.len(), 2, "some seeds are accepted and some are not");
    let mut rng = StdRng::seed_from_u64(0);
    for _ in 0..changed {
        run(&change(&seeds, &mut rng));
    }
}

/// A seed after a few mutations.
fn change(seeds: &[Vec<u8>], rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = seeds[rng.random_range(0..seeds.len())].clone();
    for _ in 0..rng.random_range(1..=4) {
        let part = part(&bytes, rng);
        match rng.random_range(0..6) {
            0 => bytes[part].iter_mut().take(1).for_each(|byte| *byte ^= 1 << rng.random_range(0..8)),
            1 => bytes[part].iter_mut().take(1).for_each(|byte| *byte = rng.random()),
            2 => drop(bytes.drain(part)),
            3 => {
                let repeated = bytes[part.clone()].to_vec();
                drop(bytes.splice(part.start..part.start, repeated));
            }
            4 => bytes[part].reverse(),
            _ => {
                let other = &seeds[rng.random_range(0..seeds.len())];
                let other = other[self::part(other, rng)].to_vec();
                drop(bytes.splice(part, other));
            }
        }
    }
    bytes
}

/// A random range of some bytes, short ones as likely as long ones.
fn part(bytes: &[u8], rng: &mut StdRng) -> Range<usize> {
    let start = rng.random_range(0..=bytes.len());
    let longest = (bytes.len() - start).min(1 << rng.random_range(0..10));
    start..start + rng.random_range(0..=longest)
}

#[test]
fn every_target_has_seeds_and_a_fuzzer() {
    let all: BTreeSet<_> = TARGETS.iter().map(|target| (*target).to_owned()).collect();
    for folder in [folder("corpus"), folder("fuzz_targets")] {
        let stems =
            names(&folder).into_iter().map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned());
        assert_eq!(stems.collect::<BTreeSet<_>>(), all, "{}", folder.display());
    }
}
