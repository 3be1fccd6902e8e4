//! The steps of a case: everything that can happen to a store.
//!
//! A step names accounts, keys, tasks and leases by the order of their creation, modulo their number, so that it stays
//! meaningful when earlier steps are left out.

use std::time::Duration;

use tintype_domain::budget::Budget;
use tintype_domain::model::Surface;
use tintype_domain::request::{AspectRatio, GenerateRequest, TaskSettings};
use tintype_engine::RenderSettings;
use tintype_store::{KeyChange, Reclaim, StrikeRule};
use tintype_system::clock::Timestamp;

/// One step, by one of the processes.
#[derive(Debug, Clone)]
pub struct Step {
    /// The process that acts.
    pub by: usize,
    pub act: Act,
    /// The process that reads everything afterwards.
    pub reader: usize,
    /// The size of the pages that it reads.
    pub page: u32,
}

/// What happens. A grant expires after `life` milliseconds, if there is one. A crowd is the same submit many times at
/// once, beside a write that fails. A claim skips the accounts that it passes over. A restart ends the process, and
/// another one opens the database in its place.
#[derive(Debug, Clone)]
pub enum Act {
    CreateAccount { name: Name, credits: i64 },
    CreateFirstAccount { name: Name, credits: i64, key: KeyOrder },
    CreateKey { account: Option<usize>, key: KeyOrder },
    ChangeKey { key: Option<usize>, change: KeyChange },
    RotateKey { key: Option<usize>, secret: u8, overlap: Duration },
    TouchKeys { uses: Vec<(Option<usize>, Timestamp)> },
    Grant { account: Option<usize>, amount: i64, note: bool, life: Option<i64> },
    Take { account: Option<usize>, amount: i64 },
    Lapse,
    Submit { account: Option<usize>, surface: Surface, order: Order, max_unfinished: u32 },
    Crowd { account: usize, surface: Surface, order: Order, max_unfinished: u32, times: usize },
    Claim { max: usize, max_references: u32, lease: Duration, excluded: Vec<usize> },
    Renew { leases: Vec<Held>, lease: Duration },
    Release { lease: Held, delay: Duration },
    Retry { lease: Held, delay: Duration, error: u8 },
    Complete { lease: Held, images: u8 },
    Fail { lease: Held, error: u8 },
    Refuse { lease: Held, error: u8, rule: Option<StrikeRule> },
    FailUnleased { task: Option<usize>, error: u8 },
    Reclaim { which: Reclaim, error: u8 },
    Expire { cutoff: Timestamp, error: u8 },
    FailBeyond { max_references: u32, error: u8 },
    SetClock { to: Timestamp },
    Restart,
    Ping,
}

/// A lease that a claim returned.
#[derive(Debug, Clone, Copy)]
pub struct Held {
    pub index: usize,
    /// Added to its epoch: unless it is 0, no claim returned this lease.
    pub forged: i64,
}

/// The name of a new account.
#[derive(Debug, Clone, Copy)]
pub enum Name {
    Word(u8),
    /// The id of another account.
    IdOf(usize),
}

/// A key to be created.
#[derive(Debug, Clone, Copy)]
pub struct KeyOrder {
    pub secret: u8,
    pub submit_rate: Option<u32>,
    pub read_rate: Option<u32>,
    pub budget: Option<Budget>,
    pub expires_at: Option<Timestamp>,
}

/// The request of a task, and the key of its account.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub n: u8,
    pub prompt: u8,
    pub ratio: usize,
    pub references: u8,
    pub key: Option<usize>,
}

impl Order {
    pub fn request(self) -> GenerateRequest {
        let reference = |number| format!("https://pictures.example/{}-{number}.png", self.prompt);
        GenerateRequest {
            prompt: format!("boat \"{}\" in the fog; ünder ☂", self.prompt),
            aspect_ratio: AspectRatio::ALL[self.ratio % AspectRatio::ALL.len()],
            n: self.n,
            reference_images: (0..self.references).map(reference).collect(),
            settings: TaskSettings {
                render: RenderSettings { seed: (self.n == 2).then_some(7), ..RenderSettings::default() },
                ..TaskSettings::default()
            },
            request_id: None,
        }
    }
}

/// The error message of a failure.
pub fn message(error: u8) -> String {
    format!("It sank for reason {error}.")
}

/// The names of result files.
pub fn file_names(images: u8) -> Vec<String> {
    (0..images).map(|image| format!("2026-11-21/boat-{image}.png")).collect()
}
