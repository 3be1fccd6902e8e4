//! `tintype version`, like `--version`.

use serde_json::json;

use super::printing::JsonArgs;
use super::{Outcome, show};

pub(super) fn run(args: &JsonArgs) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    show(*args, &json!({ "version": version }), || format!("tintype {version}"))
}
