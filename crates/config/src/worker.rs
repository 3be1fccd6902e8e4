//! The worker.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::engine::EngineSettings;
use super::engines::NamedEngine;
use super::timing::TASK_TIME_LIMIT;
use super::values::duration;

/// Heartbeats per lease: one can be late and another lost before the lease expires.
const HEARTBEATS: u32 = 3;

const ATTEMPT_LIMIT: Duration = Duration::from_secs(3 * 60);

/// How the worker handles tasks.
#[derive(Debug, Clone, Args)]
pub struct WorkerSettings {
    #[command(flatten)]
    /// The engine that renders the images.
    pub engine: EngineSettings,
    /// Tasks to render at the same time with each engine [default: the engine's own limit]
    #[arg(long, env = "TINTYPE_RENDERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub renders: Option<u16>,
    /// Time limit for one attempt at a task, from the download of its references to the finished images [default: 3m, and
    /// 8m with the diffusion engine, which chooses its image size accordingly]
    #[arg(long, env = "TINTYPE_RENDER_TIMEOUT", value_name = "DURATION", value_parser = render_timeout)]
    pub render_timeout: Option<Duration>,
    /// How long a worker may go without a heartbeat before its tasks are given to another
    #[arg(long, env = "TINTYPE_LEASE", default_value = "30s", value_name = "DURATION", value_parser = lease)]
    pub lease: Duration,
    /// How long running renders may take to finish after a stop signal
    #[arg(long, env = "TINTYPE_DRAIN_TIMEOUT", default_value = "25s", value_name = "DURATION", value_parser = duration)]
    pub drain_timeout: Duration,
    /// Ports allowed in reference image URLs
    #[arg(long, env = "TINTYPE_REFERENCE_PORTS", default_value = "443", value_name = "PORT", value_delimiter = ',')]
    pub reference_ports: Vec<u16>,
    /// For tests only: a host that may serve references although its address is not public
    #[arg(
        long,
        env = "TINTYPE_TEST_REFERENCE_HOST",
        value_name = "NAME=ADDR",
        hide = true,
        requires = "test_reference_ca"
    )]
    pub test_reference_host: Option<String>,
    /// For tests only: the certificate authority of that host, in PEM
    #[arg(long, env = "TINTYPE_TEST_REFERENCE_CA", value_name = "PATH", hide = true)]
    pub test_reference_ca: Option<PathBuf>,
    /// For tests only: the program that decodes references, for a server embedded in another program
    #[arg(
        long,
        env = "TINTYPE_TEST_PICTURE_DECODER",
        value_name = "PATH",
        hide = true,
        default_value = tintype_system::sandbox::OWN_PROGRAM
    )]
    pub test_picture_decoder: PathBuf,
}

impl WorkerSettings {
    /// The number of tasks that an engine with `engine_slots` renders at a time: as configured in its table, or else by
    /// `--renders`.
    pub fn render_slots(&self, engine: &NamedEngine, engine_slots: usize) -> usize {
        engine.slots.or(self.renders).map_or(engine_slots, usize::from).max(1)
    }

    /// Time limit for an attempt with an engine that asks for `wanted`.
    pub fn attempt_limit(&self, wanted: Option<Duration>) -> Duration {
        self.render_timeout.or(wanted).unwrap_or(ATTEMPT_LIMIT)
    }

    /// How often the worker renews its leases.
    pub fn heartbeat(&self) -> Duration {
        self.lease / HEARTBEATS
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        lease if (Duration::from_millis(300)..=TASK_TIME_LIMIT).contains(&lease) => Ok(lease),
        _ => Err("a lease must last between 300ms and 9m".into()),
    }
}

/// Parses an attempt's time limit. Beyond the task's time limit it would have no effect.
fn render_timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        limit if (Duration::from_secs(1)..=TASK_TIME_LIMIT).contains(&limit) => Ok(limit),
        _ => Err("an attempt may last between 1s and 9m".into()),
    }
}
