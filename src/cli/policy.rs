//! `tintype policy` tests a content policy before a server uses it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;

use super::printing::{JsonArgs, show_verdict};
use super::{Failure, Outcome, show};
use crate::policy::{Rules, picture_hash};
use tintype_engine::picture::Picture;

#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// Check a policy file and, optionally, a prompt against its words; exit with 1 if a rule refuses the prompt
    Check(CheckArgs),
    /// Print the hashes of images in the format of the block list
    Hash(HashArgs),
}

#[derive(Debug, Args)]
pub(super) struct CheckArgs {
    /// Policy file
    file: PathBuf,
    /// Prompt to check, without using the moderation endpoint
    prompt: Option<String>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Args)]
pub(super) struct HashArgs {
    /// PNG, JPEG or WebP files
    #[arg(required = true, value_name = "IMAGE")]
    pictures: Vec<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
}

#[derive(Debug, Serialize)]
struct Checked<'a> {
    policy: String,
    /// Names of the rules that refuse the prompt; `null` without a prompt.
    matches: Option<Vec<&'a str>>,
}

#[derive(Debug, Serialize)]
struct Hashed {
    hash: String,
    file: PathBuf,
}

pub(super) fn run(command: PolicyCommand) -> Outcome {
    match command {
        PolicyCommand::Check(args) => check(&args),
        PolicyCommand::Hash(args) => hash(args),
    }
}

fn check(args: &CheckArgs) -> Outcome {
    let rules = Rules::read(&args.file).map_err(Failure)?;
    let matches = args.prompt.as_deref().map(|prompt| rules.matches(prompt));
    let is_allowed = matches.as_ref().is_none_or(Vec::is_empty);
    let checked = Checked { policy: rules.to_string(), matches };
    show_verdict(is_allowed, args.json, &checked, || match checked.matches.as_deref() {
        None => format!("The policy is valid: {}.", checked.policy),
        Some([]) => "No rule refuses this prompt.".into(),
        Some(names) => {
            let rules = if names.len() == 1 { "the rule" } else { "the rules" };
            format!("Refused by {rules} {}.", names.join(", "))
        }
    })
}

fn hash(args: HashArgs) -> Outcome {
    let mut hashed = Vec::new();
    for file in args.pictures {
        let failed = |error: &dyn std::fmt::Display| Failure(format!("{}: {error}", file.display()));
        let bytes = std::fs::read(&file).map_err(|error| failed(&error))?;
        let picture = Picture::decode(&bytes).map_err(|error| failed(&error))?;
        hashed.push(Hashed { hash: format!("{:016x}", picture_hash(&picture)), file });
    }
    show(args.json, &hashed, || {
        let lines = hashed.iter().map(|Hashed { hash, file }| format!("{hash}  # {}", file.display()));
        lines.collect::<Vec<_>>().join("\n")
    })
}
