//! stable-diffusion.cpp's server as an engine: attached by its URL, and run by the service itself.
//!
//! The servers here are doubles that answer as the real one was seen to; `tests/engines/sd-server/run` does the same
//! against the real one.

mod attached;
pub mod fake_server;
mod real;
mod supervised;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tintype_config::EngineSettings;
use tintype_engine::{Brief, CancellationToken, Engine, EngineError, EngineInfo, Picture, Progress, RenderSettings};
use tintype_engines::EngineContext;
use tintype_system::sandbox::Decoder;

use crate::rigs::binary::TINTYPE;
use crate::rigs::wait::until;

/// Side of the pictures, in pixels.
const SIDE: u32 = 64;

#[derive(Parser)]
struct Settings {
    #[command(flatten)]
    engine: EngineSettings,
}

fn engine(flags: &[&str]) -> (EngineInfo, Arc<dyn Engine>) {
    let settings = Settings::parse_from(["test"].iter().chain(flags));
    let choice = tintype_engines::choose(&settings.engine, Path::new(".")).expect("an engine");
    let context = EngineContext { decoder: Decoder::new(TINTYPE), ..EngineContext::default() };
    let engine = choice.build(context).expect("an engine");
    (choice.info, engine)
}

fn brief(prompt: &str, seeds: &[u64]) -> Brief {
    let (width, height, time_limit) = (SIDE, SIDE, Duration::from_secs(60));
    Brief { prompt: prompt.into(), width, height, seeds: seeds.to_vec(), time_limit, ..Brief::default() }
}

async fn render(engine: &Arc<dyn Engine>, brief: Brief) -> Result<Vec<Picture>, EngineError> {
    engine.render(brief, Progress::default(), CancellationToken::new()).await
}
