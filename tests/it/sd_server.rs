//! stable-diffusion.cpp's server as an engine: attached by its URL, and run by the service itself.
//!
//! The servers here are doubles that answer as the real one was seen to; `tests/engines/sd-server/run` does the same
//! against the real one.

mod attached;
pub mod fake_server;
mod real;
mod supervised;

use std::sync::Arc;
use std::time::Duration;

use tintype_engine::{Brief, CancellationToken, Engine, EngineError, EngineInfo, Picture, Progress, RenderSettings};

use crate::rigs::engine::{build, cancel_once, choose, render};
use crate::rigs::wait::until;

/// Side of the pictures, in pixels.
const SIDE: u32 = 64;

fn engine(flags: &[&str]) -> (EngineInfo, Arc<dyn Engine>) {
    let choice = choose(flags.iter().copied()).expect("an engine");
    let engine = build(&choice);
    (choice.info, engine)
}

fn brief(prompt: &str, seeds: &[u64]) -> Brief {
    let (width, height, time_limit) = (SIDE, SIDE, Duration::from_secs(60));
    Brief { prompt: prompt.into(), width, height, seeds: seeds.to_vec(), time_limit, ..Brief::default() }
}
