//! The sweeper fails overdue tasks and those that no engine can do, reclaims lost leases, and removes orphaned files
//! and old tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::service::ServiceContext;
use crate::service::task_ages::ClockWatch;
use tintype_config::{
    DELIVERY_LIFE, ERASE_EVERY, FIRST_REMOVAL, ORPHAN_SWEEP_EVERY, REMOVE_EVERY, SWEEP_EVERY, SWEEP_SLACK,
    ServerSettings,
};
use tintype_domain::endpoint::MAX_WAITING;
use tintype_store::{CALL_LIFE, DeleteSessions, Reclaim, StoreError};
use tintype_system::locked::Locked as _;

mod clock_set_back;
mod files;
mod gallery;
mod unserved_tasks;
mod uploads;

use self::files::FileRule;
use self::unserved_tasks::Missing;

/// Name of the sweep that removes old tasks and their files; the other sweeps are named after their day.
const REMOVALS: &str = "removals";

/// Sweeps the database and the result files of this process's installation.
#[derive(Debug)]
pub struct Sweeper {
    shared: Arc<ServiceContext>,
    grace: Mutex<GracePeriod>,
    missing: Missing,
    dated_ahead: clock_set_back::Seen,
    /// How long a lease lasts without a heartbeat.
    lease: Duration,
    /// How often workers renew their leases.
    heartbeat: Duration,
    /// How long finished tasks are kept.
    retention: Option<Duration>,
    /// How long deleted tasks stay in the bin.
    in_bin: Duration,
    /// How long entries of the audit log are kept.
    audit_retention: Duration,
    /// How long failed tasks' prompts are kept, and how many bytes of them per account.
    failed_prompts: (Duration, u64),
    /// How long the files of removed tasks are kept.
    removed_files_grace: Duration,
}

/// The time from which the sweeper may reclaim leases. Workers that could not renew theirs have the length of one lease
/// to do so.
#[derive(Debug)]
struct GracePeriod {
    clock: ClockWatch,
    /// Time of the last answer of the database, by the monotonic clock.
    answered: Duration,
    /// The sweeper reclaims no lease before this time, by the monotonic clock.
    ends: Duration,
}

impl Sweeper {
    /// Creates a sweeper with the lease and the retention of these settings.
    pub fn new(shared: Arc<ServiceContext>, settings: &ServerSettings) -> Arc<Self> {
        let elapsed = shared.clock.elapsed();
        let lease = settings.worker.lease;
        let grace = GracePeriod {
            clock: ClockWatch::new(shared.store.now(), elapsed),
            answered: elapsed,
            ends: elapsed + lease,
        };
        Arc::new(Self {
            shared,
            grace: Mutex::new(grace),
            missing: Missing::default(),
            dated_ahead: clock_set_back::Seen::default(),
            lease,
            heartbeat: settings.worker.heartbeat(),
            retention: settings.retention.retention,
            in_bin: settings.retention.bin_retention,
            audit_retention: settings.retention.audit_retention,
            failed_prompts: (
                settings.retention.failed_prompt_retention,
                settings.retention.failed_prompt_space.as_u64(),
            ),
            removed_files_grace: settings.file_urls.removed_files_grace(),
        })
    }

    /// Sweeps until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut parts = JoinSet::new();
        parts.spawn(self.clone().sweep_orphans_forever());
        parts.spawn(self.clone().remove_forever());
        parts.spawn(self.clone().erase_forever());
        loop {
            tokio::select! {
                () = tokio::time::sleep(SWEEP_EVERY) => self.step().await,
                () = stop.cancelled() => return,
                // A part ends only by a panic. The server must then stop, so that the panic is noticed.
                _ = parts.join_next() => return,
            }
        }
    }

    /// Sweeps once in a running server. After a start, a silence of the database or a step of its clock, the sweeper
    /// reclaims no lease for the length of one lease, because the workers had no time to renew their leases.
    pub async fn step(&self) {
        let stepped = self.grace.locked().clock.stepped(self.shared.store.now(), self.shared.clock.elapsed());
        if stepped.is_some() {
            tracing::warn!(
                "the clock was set ahead, so no lease is reclaimed for the length of one lease; check the time synchronisation"
            );
            self.start_grace();
        }
        let expired = self.expire().await;
        let answered = self.shared.clock.elapsed();
        // This sweep may have waited for the database for as long as the workers did.
        let silence = answered.saturating_sub(self.grace.locked().answered);
        if expired.is_err() || silence > SWEEP_EVERY * 2 + self.heartbeat {
            self.start_grace();
        }
        if expired.is_ok() {
            self.grace.locked().answered = answered;
        }
        let may_reclaim = answered >= self.grace.locked().ends;
        if may_reclaim && self.reclaim(Reclaim::Expired).await.is_err() {
            self.start_grace();
        }
        // Afterwards, because nothing may wait for the database between a look at the clock and the reclaim.
        self.match_engines().await;
        self.expire_grants().await;
        self.index_prompts().await;
    }

    fn start_grace(&self) {
        self.grace.locked().ends = self.shared.clock.elapsed() + self.lease;
    }

    /// Fails overdue tasks and those that no engine can do, and reclaims `which` leases without a grace period. Logs an
    /// error and leaves it to the next sweep.
    pub async fn sweep(&self, which: Reclaim) {
        if self.expire().await.is_ok() {
            self.match_engines().await;
            drop(self.reclaim(which).await);
        }
    }

    async fn expire(&self) -> Result<(), StoreError> {
        self.shared.endings.expire(self.shared.ages.overdue()).await.inspect_err(failed)?;
        self.expire_dated_ahead().await;
        Ok(())
    }

    /// Ends the grants that have expired. Logs an error and leaves it to the next sweep.
    pub async fn expire_grants(&self) {
        report(self.shared.store.expire_grants().await, |grants| tracing::info!(grants, "expired grants ended"));
    }

    async fn reclaim(&self, which: Reclaim) -> Result<(), StoreError> {
        if self.shared.endings.reclaim(which).await.inspect_err(failed)? > 0 {
            self.shared.queued.send_replace(());
        }
        Ok(())
    }

    /// The first sweep runs an hour after the start, so that the operator can notice a start with the wrong database.
    async fn sweep_orphans_forever(self: Arc<Self>) {
        loop {
            tokio::time::sleep(ORPHAN_SWEEP_EVERY).await;
            self.delete_expired().await;
            self.erase_failed_prompts().await;
            match self.sweep_uploads().await {
                0 => {}
                removed => tracing::info!(files = removed, "files of removed uploads deleted"),
            }
            match self.sweep_orphans_in_turn().await {
                0 => {}
                removed => tracing::info!(removed, "removed result files that belong to no completed task"),
            }
        }
    }

    async fn erase_forever(self: Arc<Self>) {
        loop {
            tokio::time::sleep(ERASE_EVERY).await;
            match self.sweep_deleted().await {
                0 => {}
                gone => tracing::info!(tasks = gone, "files of deleted tasks removed"),
            }
        }
    }

    /// Deletes what has expired or reached its maximum age: sign-in links, invitations and sessions; shared links;
    /// earlier days' sign-up counts, with their addresses; audit log entries; calls in OpenAI's dialect; and webhook
    /// deliveries. Also abandons an endpoint's oldest deliveries if it has too many. Logs an error and leaves the rest
    /// to the next sweep.
    pub async fn delete_expired(&self) {
        let store = &self.shared.store;
        let before = |life| store.now().saturating_sub(life);
        report(store.delete_sessions(DeleteSessions::Expired).await, |deleted| {
            tracing::debug!(deleted, "expired sign-in links, invitations and sessions deleted")
        });
        report(store.delete_expired_links().await, |deleted| tracing::debug!(deleted, "expired shared links deleted"));
        report(store.delete_sign_ups().await, |deleted| {
            tracing::debug!(deleted, "counts of sign-ups of earlier days deleted")
        });
        report(store.delete_audit_entries(before(self.audit_retention)).await, |deleted| {
            tracing::info!(deleted, "old entries of the audit log deleted")
        });
        report(store.delete_calls(before(CALL_LIFE)).await, |deleted| tracing::debug!(deleted, "old calls deleted"));
        report(store.trim_deliveries(before(DELIVERY_LIFE), MAX_WAITING).await, |trimmed| {
            tracing::debug!(trimmed, "old webhook deliveries deleted or discarded")
        });
    }

    /// The first removal runs some minutes after the start. After a step of the clock no task is removed for an hour,
    /// because the clock may be wrong and be set back.
    async fn remove_forever(self: Arc<Self>) {
        if self.retention.is_none() {
            return std::future::pending().await;
        }
        let mut watch = ClockWatch::new(self.shared.store.now(), self.shared.clock.elapsed());
        let mut pause = FIRST_REMOVAL;
        loop {
            tokio::time::sleep(pause).await;
            pause = REMOVE_EVERY;
            if watch.stepped(self.shared.store.now(), self.shared.clock.elapsed()).is_some() {
                tracing::warn!(
                    "the clock was set ahead, so no task is removed for an hour; check the time synchronisation"
                );
            } else {
                self.remove_old_in_turn().await;
            }
        }
    }

    /// Removes old tasks like [`Sweeper::remove_old`], once an hour for all processes of this database. Every process stops
    /// showing them.
    pub async fn remove_old_in_turn(&self) {
        let Some(retention) = self.retention else { return };
        self.shared.removed_before.advance(self.shared.store.now().saturating_sub(retention));
        if self.claim_sweep(&[REMOVALS.to_owned()]).await.is_some() {
            self.renewing_claim(REMOVALS, self.remove_old()).await;
            self.postpone_sweep(REMOVALS, REMOVE_EVERY - SWEEP_SLACK).await;
        }
    }

    /// Removes tasks that ended longer ago than the retention, if there is one; then files of tasks that were removed some
    /// time ago, because a URL must work for some time after a caller has read it. Logs an error and leaves it to the next
    /// sweep.
    pub async fn remove_old(&self) {
        let Some(retention) = self.retention else { return };
        let cutoff = self.shared.store.now().saturating_sub(retention);
        self.shared.removed_before.advance(cutoff);
        report(self.shared.store.remove_tasks(cutoff).await, |removed| {
            tracing::info!(tasks = removed, "old tasks removed");
            self.shared.metrics.removed.inc_by(removed as u64);
        });
        let Some(days) = self.days_of_files().await else { return };
        // A file is in the day on which its task was created, which is never after the task ended.
        let latest = cutoff.to_string();
        let days = days.into_iter().filter(|day| *day.as_str() <= latest[..day.len()]);
        let swept = self.sweep_files(days, FileRule::REMOVED).await;
        if swept.removed > 0 {
            tracing::info!(files = swept.removed, "result files of removed tasks deleted");
        }
    }
}

/// Logs the number of things that a sweep has changed, unless it is 0, or why it has failed.
fn report<N: Default + PartialEq>(swept: Result<N, StoreError>, log: impl FnOnce(N)) {
    match swept {
        Ok(none) if none == N::default() => {}
        Ok(some) => log(some),
        Err(error) => failed(&error),
    }
}

fn failed(error: &StoreError) {
    tracing::error!(%error, "a sweep failed; the next sweep tries again");
}
