//! The engines of this release. Only this module resolves `--engine`.

use std::sync::Arc;

use tintype_engine::{Engine, EngineInfo};
use tintype_sketch::Sketch;

/// An engine that was chosen by its name and is not built yet.
#[derive(Debug)]
pub struct EngineChoice {
    /// The description of the engine.
    pub info: EngineInfo,
    build: fn() -> Arc<dyn Engine>,
}

impl EngineChoice {
    /// Builds the engine, in a process that renders.
    pub fn build(&self) -> Arc<dyn Engine> {
        (self.build)()
    }
}

/// The engine that `--engine` names.
///
/// # Errors
/// A sentence for the operator when there is no such engine.
pub fn choose(name: &str) -> Result<EngineChoice, String> {
    match name {
        "sketch" => Ok(EngineChoice { info: Sketch::info(), build: || Arc::new(Sketch::new()) }),
        _ => Err(format!("there is no engine {name:?}; this release has: sketch")),
    }
}
