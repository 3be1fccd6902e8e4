//! `tintype engine nodes` finds the nodes of a workflow in ComfyUI.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::cli::complain;
use crate::cli::printing::{JsonArgs, print_line};
use crate::cli::{Failure, Outcome, show, terminal};
use tintype_engines::comfyui::nodes::{Found, Missing, NodeInputs, find};

#[derive(Debug, Args)]
#[command(after_help = "\
Standard output is a file for --engine-workflow-nodes, in the form of Open WebUI. Without such a file, the service \
finds the same nodes itself. Standard error names what the workflow lacks. Exits with 1 if it lacks a node for the prompt or \
the seed.")]
pub(in crate::cli) struct NodesArgs {
    /// Workflow in ComfyUI's API format, as "Export (API)" saves it
    #[arg(value_name = "FILE")]
    workflow: PathBuf,
    /// Print JSON: the nodes, what is missing, and notes
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &NodesArgs) -> Outcome {
    let found = find(&args.workflow).map_err(Failure)?;
    if args.json {
        show(JsonArgs { json: true }, &found, String::new)?;
    } else {
        print_line(&terminal::visible_json(&mapping(&found)?));
        for line in found.missing.iter().map(missing).chain(found.notes.iter().cloned()) {
            complain(&terminal::visible(&line));
        }
    }
    Ok(if found.missing.iter().any(|missing| missing.required) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The file of the mapping, with a line for each entry.
fn mapping(found: &Found) -> Result<String, Failure> {
    let line = |entry: &NodeInputs| serde_json::to_string(entry).map(|entry| format!("  {entry}"));
    let lines: Vec<_> = found.nodes.iter().map(line).collect::<Result<_, _>>()?;
    Ok(format!("[\n{}\n]", lines.join(",\n")))
}

fn missing(Missing { kind, required, consequence }: &Missing) -> String {
    let weight = if *required { "required" } else { "optional" };
    format!("no node for {kind} ({weight}): {consequence}")
}
