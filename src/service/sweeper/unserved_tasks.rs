//! Tasks that no engine can do, and tasks whose engine no worker currently has.

use std::sync::Mutex;
use std::time::Duration;

use super::{Sweeper, failed};
use crate::service::ServiceContext;
use tintype_domain::request::MAX_REFERENCES;
use tintype_store::{ReferenceLimits, StoreError};
use tintype_system::locked::Locked as _;

/// Tasks wait this long for an engine before the log says so, because starting workers need a moment.
const PATIENCE: Duration = Duration::from_secs(10);

/// Since when tasks have waited for an engine that no worker has.
#[derive(Debug, Default)]
pub(super) struct Missing(Mutex<MissingSince>);

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum MissingSince {
    #[default]
    Nothing,
    /// Since this time, by the monotonic clock.
    Since(Duration),
    Logged,
}

impl Sweeper {
    /// Fails the waiting tasks that no engine of this installation can do, and logs when tasks wait for an engine that no
    /// worker has now. Logs an error and leaves it to the next sweep.
    pub(super) async fn match_engines(&self) {
        drop(self.try_to_match_engines().await.inspect_err(failed));
    }

    async fn try_to_match_engines(&self) -> Result<(), StoreError> {
        let ServiceContext { store, endings, .. } = &*self.shared;
        // In this order, so that the engine of a task that has just come is known.
        let waiting = store.waiting_for_engines().await?;
        let engines = store.engines().await?;
        let limits = ReferenceLimits::of(&engines);
        if let Some(most) = limits.configured.filter(|most| (*most as usize) < MAX_REFERENCES) {
            endings.fail_over_reference_limit(most).await?;
        }
        if !engines.is_empty() && waiting.iter().any(|waiting| waiting.is_unmatched(&engines)) {
            let known: Vec<_> = engines.iter().map(|engine| (engine.name.clone(), engine.max_references)).collect();
            endings.fail_without_engine(&known).await?;
        }
        let of_any = match limits.available {
            Some(_) if limits.available == limits.configured => 0,
            available => store.queue_depth().await?.beyond(available),
        };
        let mut missing: Vec<_> =
            if of_any > 0 { limits.missing(&engines).map(|engine| engine.name.clone()).collect() } else { Vec::new() };
        let mut tasks = of_any;
        // Without any worker, these are among the others.
        for waiting in waiting.iter().filter(|waiting| limits.available.is_some() && waiting.lacks_worker(&engines)) {
            tasks += waiting.tasks;
            missing.push(waiting.engine.clone());
        }
        missing.sort_unstable();
        missing.dedup();
        self.note_missing(tasks, &missing.join(", "));
        Ok(())
    }

    /// Logs once when tasks begin to wait for an engine, and once when they no longer do.
    fn note_missing(&self, tasks: u64, engines: &str) {
        let elapsed = self.shared.clock.elapsed();
        let mut state = self.missing.0.locked();
        *state = match *state {
            MissingSince::Logged if tasks == 0 => {
                tracing::info!("an engine that tasks were waiting for is available again");
                MissingSince::Nothing
            }
            _ if tasks == 0 => MissingSince::Nothing,
            MissingSince::Nothing => MissingSince::Since(elapsed),
            MissingSince::Since(since) if elapsed.saturating_sub(since) >= PATIENCE => {
                tracing::error!(
                    tasks,
                    engines,
                    "tasks are waiting for an engine that no worker has: start the engine or its worker, or run `tintype doctor`"
                );
                MissingSince::Logged
            }
            unchanged => unchanged,
        };
    }
}
