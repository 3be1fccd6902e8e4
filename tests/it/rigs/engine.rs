//! Engines as a service chooses and builds them.

use std::path::Path;
use std::sync::Arc;

use tintype_config::ServerSettings;
use tintype_engine::{Brief, CancellationToken, Engine, EngineError, Picture, Progress};
use tintype_engines::{EngineChoice, EngineContext};
use tintype_system::sandbox::Decoder;

use super::binary::TINTYPE;
use super::wait::until;

/// The engine that flags of `tintype serve` choose.
pub fn choose<'a>(flags: impl IntoIterator<Item = &'a str>) -> Result<EngineChoice, String> {
    choose_in(Path::new("."), flags)
}

/// The engine that flags of `tintype serve` choose with this data directory.
pub fn choose_in<'a>(data: &Path, flags: impl IntoIterator<Item = &'a str>) -> Result<EngineChoice, String> {
    let settings = ServerSettings::from_flags(flags).expect("valid flags");
    tintype_engines::choose(&settings.worker.engine, data)
}

pub fn build(choice: &EngineChoice) -> Arc<dyn Engine> {
    choice.build(EngineContext { decoder: Decoder::new(TINTYPE), ..EngineContext::default() }).expect("an engine")
}

pub fn engine<'a>(flags: impl IntoIterator<Item = &'a str>) -> Arc<dyn Engine> {
    build(&choose(flags).expect("an engine"))
}

pub async fn render(engine: &Arc<dyn Engine>, brief: Brief) -> Result<Vec<Picture>, EngineError> {
    engine.render(brief, Progress::default(), CancellationToken::new()).await
}

/// The outcome of a render that is cancelled as soon as a condition holds.
pub async fn cancel_once(
    engine: &Arc<dyn Engine>,
    brief: Brief,
    mut is_so: impl AsyncFnMut(&Progress) -> bool,
) -> Result<Vec<Picture>, EngineError> {
    let (progress, cancel) = (Progress::default(), CancellationToken::new());
    let cancelling = async {
        until(async || is_so(&progress).await).await;
        cancel.cancel();
    };
    tokio::join!(engine.render(brief, progress.clone(), cancel.clone()), cancelling).0
}
