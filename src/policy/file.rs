//! Reads and validates the policy file.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::blocklist::{BlockList, MAX_DISTANCE};
use super::moderation::{Endpoint, Moderation, Settings};
use super::rules::{Matcher, Rule};
use super::{Rules, Subject};
use tintype_config::duration;
use tintype_store::StrikeRule;
use tintype_system::watched_files::SeenFile;

/// Largest policy file or block list, in bytes.
pub(super) const MAX_FILE: u64 = 16 * 1024 * 1024;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<RuleTable>,
    moderation: Option<ModerationTable>,
    blocklist: Option<BlockListTable>,
    strikes: Option<StrikesTable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    name: String,
    words: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModerationTable {
    url: String,
    key_file: Option<PathBuf>,
    #[serde(default = "default_model")]
    model: String,
    #[serde(default = "everything")]
    check: Vec<Subject>,
    #[serde(default)]
    categories: Vec<String>,
    unreachable: Unreachable,
    #[serde(default = "default_timeout", deserialize_with = "written_duration")]
    timeout: Duration,
}

/// Behaviour when the moderation endpoint is unavailable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unreachable {
    /// Fail closed: the attempt at the task fails.
    Closed,
    /// Fail open: the prompt or picture is accepted.
    Open,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockListTable {
    file: PathBuf,
    #[serde(default = "default_distance")]
    distance: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StrikesTable {
    limit: u32,
    #[serde(deserialize_with = "written_duration")]
    window: Duration,
}

fn default_model() -> String {
    "omni-moderation-latest".into()
}

fn everything() -> Vec<Subject> {
    vec![Subject::Prompt, Subject::References, Subject::Results]
}

fn default_timeout() -> Duration {
    Duration::from_secs(10)
}

fn default_distance() -> u32 {
    8
}

fn written_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    match duration(&text) {
        Ok(duration) if duration.is_zero() => Err(serde::de::Error::custom("must be more than 0s")),
        outcome => outcome.map_err(serde::de::Error::custom),
    }
}

/// The result of reading a policy, and all files that it was read from.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) rules: Result<Rules, String>,
    pub(super) files: Vec<SeenFile>,
}

/// Reads a policy and the files that it names. Relative paths in it start at its own directory.
pub(super) fn read(path: &Path) -> Read {
    let mut files = vec![SeenFile::now(path)];
    let rules = text(path).and_then(|text| parse(&text, path)).and_then(|file| rules(file, path, &mut files));
    Read { rules, files }
}

fn text(path: &Path) -> Result<String, String> {
    let unreadable = |error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(|error| unreadable(&error))?;
    let mut bytes = Vec::new();
    // The size in the metadata isn't a limit: it is 0 for pipes and devices, and files can grow.
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(unreadable(&format!("it is larger than {MAX_FILE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8"))?;
    // Editors on Windows write a byte order mark.
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

/// Parses the TOML. The words of the rules must not reach the log, so an error quotes only the line number.
fn parse(text: &str, path: &Path) -> Result<File, String> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        format!("{}, line {line}: {}", path.display(), error.message().lines().next().unwrap_or("not valid TOML"))
    })
}

fn rules(file: File, path: &Path, files: &mut Vec<SeenFile>) -> Result<Rules, String> {
    let beside = |name: &Path| path.parent().unwrap_or(Path::new("")).join(name);
    let invalid = |error: String| format!("{}: {error}", path.display());
    let moderation = match file.moderation {
        None => None,
        Some(table) => {
            let key = match &table.key_file {
                None => None,
                Some(name) => {
                    files.push(SeenFile::now(&beside(name)));
                    Some(text(&beside(name))?.trim().to_owned())
                }
            };
            Some(Moderation::new(settings(table, key).map_err(invalid)?).map_err(invalid)?)
        }
    };
    let blocklist = match file.blocklist {
        None => None,
        Some(table) if table.distance >= MAX_DISTANCE / 2 => {
            return Err(invalid(format!(
                "blocklist: a distance of {} blocks half of all pictures; choose a smaller one",
                table.distance
            )));
        }
        Some(table) => {
            let name = beside(&table.file);
            files.push(SeenFile::now(&name));
            let invalid = |error| format!("{}, {error}", name.display());
            Some(BlockList::parse(&text(&name)?, table.distance).map_err(invalid)?)
        }
    };
    let strikes = file.strikes.map(|table| StrikeRule { limit: table.limit, window: table.window });
    if strikes.is_some_and(|rule| rule.limit == 0) {
        return Err(invalid("strikes: the limit must be 1 or more".into()));
    }
    let rules: Vec<Rule> = file.rule.into_iter().map(|table| Rule { name: table.name, words: table.words }).collect();
    Ok(Rules { matcher: Matcher::new(&rules).map_err(invalid)?, moderation, blocklist, strikes })
}

fn settings(table: ModerationTable, key: Option<String>) -> Result<Settings, String> {
    Ok(Settings {
        endpoint: Endpoint::parse(&table.url)?,
        key,
        model: table.model,
        check: table.check,
        categories: table.categories,
        unreachable: table.unreachable,
        timeout: table.timeout,
    })
}
