//! The content policy, which refuses prompts and pictures.
//!
//! The operator can change the policy file while the server runs. If the new file is invalid, the old rules remain in
//! force. Logs and metrics never contain the words of a prompt or of a rule.

mod blocklist;
mod file;
mod moderation;
mod normalise;
mod rules;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use serde::Deserialize;

use tintype_domain::model::Violation;
use tintype_domain::text::counted;
use tintype_engine::picture::Picture;
use tintype_store::StrikeRule;
use tintype_system::watched_files::{self, SeenFile, WatchedFiles};

use blocklist::BlockList;
pub use blocklist::picture_hash;
use file::Unreachable;
use moderation::{Moderation, NoAnswer};
use rules::Matcher;

/// Subject of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// The prompt.
    Prompt,
    /// The reference pictures.
    References,
    /// The rendered pictures.
    Results,
}

/// Verdict of the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Accepted.
    Passed,
    /// Accepted because the moderation endpoint was unavailable; contains the reason for the operator.
    Skipped(String),
    /// Refused.
    Refused(Violation),
    /// No verdict is possible now; contains the reason for the operator.
    Undetermined(String),
}

/// The rules of one policy file.
#[derive(Debug)]
pub struct Rules {
    matcher: Matcher,
    moderation: Option<Moderation>,
    blocklist: Option<BlockList>,
    /// The rule for suspending a key; `None` means never.
    pub strikes: Option<StrikeRule>,
}

impl Rules {
    /// Reads a policy file and the files that it names.
    ///
    /// # Errors
    /// A message for the operator that names the line.
    pub fn read(path: &Path) -> Result<Self, String> {
        file::read(path).rules
    }

    fn none() -> Self {
        let matcher = Matcher::new(&[]).expect("an empty list of rules is valid");
        Self { matcher, moderation: None, blocklist: None, strikes: None }
    }

    /// The names of the rules that refuse a prompt by its words.
    pub fn matches(&self, prompt: &str) -> Vec<&str> {
        self.matcher.matches(prompt)
    }

    /// Checks a prompt.
    pub async fn judge_prompt(self: &Arc<Self>, prompt: &str) -> Verdict {
        let (rules, words) = (self.clone(), prompt.to_owned());
        // Matching a long prompt takes milliseconds, too long for an async thread.
        match tokio::task::spawn_blocking(move || rules.matcher.refuses(&words)).await {
            Ok(false) => {}
            Ok(true) => return Verdict::Refused(Violation::Words),
            Err(_) => return Verdict::Undetermined("matching the rules panicked".into()),
        }
        match self.moderation.as_ref().filter(|moderation| moderation.checks(Subject::Prompt)) {
            Some(moderation) => verdict(moderation, moderation.refuses_prompt(prompt).await),
            None => Verdict::Passed,
        }
    }

    /// Whether rendered pictures are checked.
    pub fn judges_results(&self) -> bool {
        let moderates = |moderation: &Moderation| moderation.checks(Subject::Results);
        self.blocklist.is_some() || self.moderation.as_ref().is_some_and(moderates)
    }

    /// Checks reference pictures or rendered pictures.
    pub async fn judge_pictures(self: &Arc<Self>, subject: Subject, pictures: &[Picture]) -> Verdict {
        if self.blocklist.is_some() {
            let (rules, seen) = (self.clone(), pictures.to_vec());
            let blocked = move || {
                let is_blocked = |picture| rules.blocklist.as_ref().is_some_and(|list| list.blocks(picture));
                seen.iter().any(is_blocked)
            };
            match tokio::task::spawn_blocking(blocked).await {
                Ok(false) => {}
                Ok(true) => return Verdict::Refused(Violation::Blocklist),
                Err(_) => return Verdict::Undetermined("comparing with the block list panicked".into()),
            }
        }
        let Some(moderation) = self.moderation.as_ref().filter(|moderation| moderation.checks(subject)) else {
            return Verdict::Passed;
        };
        let asking = pictures.iter().map(|picture| moderation.refuses_picture(picture.clone()));
        let answers = futures::future::join_all(asking).await;
        let verdicts = answers.into_iter().map(|answer| verdict(moderation, answer));
        // One refused picture outweighs pictures without a verdict.
        verdicts.max_by_key(Verdict::weight).unwrap_or(Verdict::Passed)
    }
}

impl Verdict {
    fn weight(&self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Skipped(_) => 1,
            Self::Undetermined(_) => 2,
            Self::Refused(_) => 3,
        }
    }
}

fn verdict(moderation: &Moderation, answer: Result<bool, NoAnswer>) -> Verdict {
    match (answer, moderation.unreachable()) {
        (Ok(false), _) => Verdict::Passed,
        (Ok(true), _) => Verdict::Refused(Violation::Moderation),
        (Err(error), Unreachable::Open) => Verdict::Skipped(error.to_string()),
        (Err(error), Unreachable::Closed) => Verdict::Undetermined(error.to_string()),
    }
}

impl fmt::Display for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", counted(self.matcher.len() as u64, "rule", "rules"))?;
        if let Some(moderation) = &self.moderation {
            let missing = match moderation.unreachable() {
                Unreachable::Open => "open",
                Unreachable::Closed => "closed",
            };
            write!(f, ", moderation by {} (fails {missing})", moderation.host())?;
        }
        if let Some(list) = &self.blocklist {
            write!(f, ", {}", counted(list.len() as u64, "blocked picture", "blocked pictures"))?;
        }
        match self.strikes {
            Some(rule) => write!(f, ", a key is suspended after {rule}"),
            None => write!(f, ", no strikes"),
        }
    }
}

/// The policy in force.
#[derive(Debug)]
pub struct Policy {
    path: Option<PathBuf>,
    rules: RwLock<Arc<Rules>>,
    files: WatchedFiles,
}

impl Policy {
    /// Reads the policy file, if any. Without one only the engine refuses tasks.
    ///
    /// # Errors
    /// A message for the operator: the policy is invalid, so the server must not start.
    pub async fn open(path: Option<&Path>) -> Result<Arc<Self>, String> {
        let policy = Arc::new(Self {
            path: path.map(Path::to_owned),
            rules: RwLock::new(Arc::new(Rules::none())),
            files: WatchedFiles::default(),
        });
        policy.refresh().await.map(|_| policy)
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Describes the policy for the operator; `None` without a policy file.
    pub fn describe(&self) -> Option<String> {
        self.path.as_ref().map(|path| format!("{}: {}", path.display(), self.rules()))
    }

    /// Takes changed files into use, forever. A file that cannot be read or used leaves the old rules in force.
    pub async fn watch(self: Arc<Self>) {
        watched_files::follow("policy", || self.refresh()).await;
    }

    /// Reloads the files if any has changed; returns whether there are new rules. An invalid change, or one that cannot
    /// be read within 10 s, is reported once and leaves the rules unchanged.
    pub async fn refresh(self: &Arc<Self>) -> Result<bool, String> {
        let Some(path) = &self.path else { return Ok(false) };
        let (policy, named) = (self.clone(), path.clone());
        let read = move |seen: &mut Vec<SeenFile>| {
            let read = file::read(&named);
            *seen = read.files;
            let rules = Arc::new(read.rules?);
            *policy.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
            Ok(true)
        };
        self.files.refresh(path, read).await
    }
}
