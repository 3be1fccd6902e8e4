//! Partitions of past months: the conditions for dropping them, and the data that stays.

use std::time::Duration;

use tintype::clock::Timestamp;
use tintype::domain::model::{EntryKind, Id, Surface};
use tintype::store::{Drift, Result, StoreError};

use super::fixture::{Fixture, MILLISECOND, UNLIMITED, images, one_file};
use crate::rigs::postgres::{cluster, schema};
use crate::rigs::service::{Backend, NOON};

const DAY: Duration = Duration::from_secs(86_400);
/// The first days of the three months after the fixture's: 2026-12-01, 2027-01-01, 2027-02-01.
const DECEMBER: Timestamp = Timestamp::from_millis(1_796_083_200_000);
const JANUARY: Timestamp = Timestamp::from_millis(1_798_761_600_000);
const FEBRUARY: Timestamp = Timestamp::from_millis(1_801_440_000_000);

/// A database with a completed and a failed task in each of three months, and the clock in the fourth month.
struct Year {
    fx: Fixture,
    account: Id,
    completed: Vec<Id>,
    failed: Vec<Id>,
}

impl Year {
    async fn begin() -> Result<Self> {
        let fx = Fixture::new(Backend::Postgres);
        let account = fx.account("ada", 100).await?;
        let (mut completed, mut failed) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            completed.push(fx.submit(account).await?.id);
            fx.store.complete(fx.claim().await?, one_file()).await?;
            failed.push(fx.submit(account).await?.id);
            fx.store.fail(fx.claim().await?, "it sank").await?;
            fx.clock.advance(DAY * 30);
        }
        Ok(Self { fx, account, completed, failed })
    }

    async fn remove(&self, cutoff: Timestamp) -> Result<usize> {
        let removed = self.fx.store.remove_tasks(cutoff).await?;
        self.fx.clock.advance(MILLISECOND);
        Ok(removed)
    }

    /// Drops the partitions of months that ended before `before`, without a minimum age of the removals.
    async fn drop_partitions(&self, before: Timestamp) -> Result<usize> {
        self.fx.store.drop_partitions(before, self.fx.clock.now()).await
    }

    fn schema(&self) -> String {
        schema(self.fx.directory.path())
    }

    /// Executes SQL directly; names such as `$ada` stand for ids.
    fn damage(&self, sql: &str) {
        let sql = sql.replace("$completed", self.completed[0].as_str()).replace("$failed", self.failed[0].as_str());
        cluster().execute(&format!(
            "SET search_path TO {}; {}",
            self.schema(),
            sql.replace("$ada", self.account.as_str())
        ));
    }

    async fn drifts(&self) -> Result<Vec<Drift>> {
        Ok(self.fx.store.audit().await?.drifts)
    }

    async fn faults(&self) -> Result<Vec<String>> {
        Ok(self.drifts().await?.into_iter().map(|drift| drift.fault).collect())
    }
}

#[test]
fn the_months_of_the_fixture_begin_at_midnight_utc() {
    for (begin, text) in [(DECEMBER, "2026-12-01"), (JANUARY, "2027-01-01"), (FEBRUARY, "2027-02-01")] {
        assert_eq!(Timestamp::of_day(text), Some(begin));
        assert_eq!(begin.to_string(), format!("{text}T00:00:00.000Z"));
    }
    assert_eq!(Timestamp::of_day("2026-13-01"), None);
}

pub async fn dropping_partitions_changes_nothing_that_callers_see(fx: &Fixture) -> Result<()> {
    let ada = fx.account("ada", 100).await?;
    let old = fx.submit(ada).await?.id;
    fx.store.complete(fx.claim().await?, one_file()).await?;
    fx.clock.advance(DAY * 60);
    let young = fx.submit(ada).await?.id;
    fx.store.fail(fx.claim().await?, "it sank").await?;
    fx.store.remove_tasks(DECEMBER).await?;
    fx.clock.advance(MILLISECOND);
    let before = fx.state().await?;
    let dropped = fx.store.drop_partitions(fx.clock.now(), fx.clock.now()).await?;
    // The partition of November, and that of December, which holds no task.
    assert_eq!(dropped, if fx.store.is_shared() { 2 } else { 0 });
    assert_eq!(fx.state().await?, before);
    assert_eq!(fx.store.find_task(ada, Surface::Api, old).await?, None);
    assert_eq!(fx.store.list_task_ids(ada, Surface::Api, Some(young), 10).await?, []);
    assert_eq!(fx.store.list_task_ids(ada, Surface::Api, Some(old), 10).await?, []);
    assert_eq!(fx.store.inspect_task(old).await?.is_none(), fx.store.is_shared());
    assert_eq!(fx.store.fail_unleased(old, "no").await?, None);
    fx.submit(ada).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_dropped_oldest_first_up_to_one_with_an_unremoved_task() -> Result<()> {
    let year = Year::begin().await?;
    assert_eq!(year.drop_partitions(FEBRUARY).await?, 0, "no task is removed");
    assert_eq!(year.remove(DECEMBER).await?, 2);
    assert_eq!(year.drop_partitions(DECEMBER.saturating_sub(MILLISECOND)).await?, 0, "November is not over");
    let history = year.fx.store.history(year.account, None, 100).await?;
    assert_eq!(year.drop_partitions(FEBRUARY).await?, 1);
    assert!(year.fx.store.inspect_task(year.completed[0]).await?.is_none());
    assert_eq!(year.fx.store.history(year.account, None, 100).await?, history);
    let audit = year.fx.store.audit().await?;
    assert_eq!((audit.tasks, audit.entries, audit.drifts), (4, 10, vec![]));
    // Marks the tasks of January as removed, while those of December are not.
    let schema = year.schema();
    cluster().execute(&format!("UPDATE {schema}.tasks SET removed_at = 1 WHERE id >= '{}'", year.completed[2]));
    assert_eq!(year.drop_partitions(FEBRUARY).await?, 0);
    assert_eq!(year.remove(FEBRUARY).await?, 2);
    assert_eq!(year.drop_partitions(Timestamp::MAX).await?, 2, "the partition of the current month stays");
    assert_eq!(year.drifts().await?, []);
    assert_eq!(year.fx.credits(year.account).await?, 94);
    year.fx.submit(year.account).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_with_an_unfinished_task_stays() -> Result<()> {
    let year = Year::begin().await?;
    let schema = year.schema();
    // No write leaves such a row; damage might.
    cluster().execute(&format!(
        "UPDATE {schema}.tasks SET status = 'processing', images = NULL WHERE id = '{}'",
        year.completed[0]
    ));
    assert_eq!(year.remove(FEBRUARY).await?, 5);
    assert_eq!(year.drop_partitions(FEBRUARY).await?, 0);
    assert!(year.fx.store.inspect_task(year.completed[0]).await?.is_some());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_whose_tasks_were_just_removed_stays() -> Result<()> {
    let year = Year::begin().await?;
    let removed_at = year.fx.clock.now();
    assert_eq!(year.remove(DECEMBER).await?, 2);
    assert_eq!(year.fx.store.drop_partitions(DECEMBER, removed_at).await?, 0);
    assert_eq!(year.fx.store.drop_partitions(DECEMBER, removed_at.saturating_add(MILLISECOND)).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partition_that_another_transaction_reads_is_dropped_later() -> Result<()> {
    let year = Year::begin().await?;
    year.remove(DECEMBER).await?;
    let reader = cluster().session().await;
    let read = format!("BEGIN; SELECT count(*) FROM {}.tasks", year.schema());
    reader.batch_execute(&read).await.expect("a snapshot");
    assert_eq!(year.drop_partitions(DECEMBER).await?, 0);
    year.fx.submit(year.account).await?;
    reader.batch_execute("COMMIT").await.expect("the session is open");
    assert_eq!(year.drop_partitions(DECEMBER).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_processes_drop_each_partition_once() -> Result<()> {
    let year = Year::begin().await?;
    year.remove(FEBRUARY).await?;
    let (now, others) = (year.fx.clock.now(), [year.fx.another_process(), year.fx.another_process()]);
    let dropped =
        futures::future::try_join_all(others.iter().map(|store| store.drop_partitions(FEBRUARY, now))).await?;
    // A process that finds the lock taken leaves the rest for a later sweep.
    let rest = year.drop_partitions(FEBRUARY).await?;
    assert_eq!(dropped.iter().sum::<usize>() + rest, 3);
    assert_eq!(year.drifts().await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_is_created_in_a_dropped_partition() -> Result<()> {
    let year = Year::begin().await?;
    let elsewhere = year.fx.another_process();
    let now = year.fx.clock.now();
    year.remove(DECEMBER).await?;
    assert_eq!(year.drop_partitions(DECEMBER).await?, 1);
    year.fx.clock.set(NOON);
    // One process knows that the partition was dropped, the other has cached that it exists.
    for store in [&year.fx.store, &elsewhere] {
        let submitted = store.submit(year.account, None, Surface::Api, images(1), UNLIMITED).await;
        let error = submitted.expect_err("the partition was dropped");
        assert!(matches!(error, StoreError::Other(_)), "{error:?}");
    }
    assert_eq!(year.fx.credits(year.account).await?, 94);
    year.fx.clock.set(now);
    year.fx.submit(year.account).await?;
    assert_eq!(year.drifts().await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_sums_the_charges_of_dropped_tasks() -> Result<()> {
    let year = Year::begin().await?;
    year.remove(DECEMBER).await?;
    year.drop_partitions(DECEMBER).await?;
    year.damage("UPDATE ledger SET amount = -1 WHERE task_id = '$completed'");
    let faults = year.faults().await?;
    assert!(faults[0].starts_with("entry 2 says the balance was 98"), "{faults:?}");
    let last = faults.last().map_or("", String::as_str);
    assert!(last.ends_with("says the balance was 94, but entries up to it add up to 95"), "{faults:?}");
    year.damage("UPDATE ledger SET amount = -2 WHERE task_id = '$completed'");
    assert_eq!(year.drifts().await?, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_compares_charges_and_refunds_of_dropped_tasks() -> Result<()> {
    let year = Year::begin().await?;
    year.remove(DECEMBER).await?;
    year.drop_partitions(DECEMBER).await?;
    let disagree = "the charge and the refund of the forgotten task do not agree";
    // Balances that add up, with a refund above the charge.
    year.damage(
        "UPDATE ledger SET amount = amount + 1 WHERE task_id = '$failed' AND kind = 'refund';
         UPDATE ledger SET balance = balance + 1 WHERE id >= (SELECT id FROM ledger WHERE task_id = '$failed' AND kind = 'refund')",
    );
    assert_eq!(year.faults().await?, [disagree]);
    year.damage("DELETE FROM ledger WHERE task_id = '$failed' AND kind = 'charge'");
    assert!(year.faults().await?.contains(&disagree.to_owned()), "a refund without a charge");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_reads_all_entries_of_many_dropped_tasks() -> Result<()> {
    const MANY: u64 = 35_000;
    let year = Year::begin().await?;
    year.remove(DECEMBER).await?;
    year.drop_partitions(DECEMBER).await?;
    // Every task failed, so that some batches of the audit end between a charge and its refund.
    year.damage(&format!(
        "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
         SELECT '$ada', kind, amount, 94 + least(amount, 0), 1, left('$completed', 14) || lpad(number::text, 7, '0')
         FROM generate_series(1, {MANY}) AS number, (VALUES ('charge', -2), ('refund', 2)) AS pair (kind, amount)
         ORDER BY number, kind"
    ));
    let audit = year.fx.store.audit().await?;
    assert_eq!((audit.tasks, audit.entries, audit.drifts), (4, 10 + 2 * MANY, vec![]));
    // Damages the refunds of tasks 1,000, 11,000, 21,000 and 31,000.
    year.damage("UPDATE ledger SET amount = 1 WHERE kind = 'refund' AND right(task_id, 4) = '1000'");
    let faults = year.faults().await?;
    assert_eq!(faults.iter().filter(|fault| fault.contains("do not agree")).count(), 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_finds_entries_of_a_task_missing_from_a_partition_that_was_not_dropped() -> Result<()> {
    let year = Year::begin().await?;
    year.remove(DECEMBER).await?;
    year.drop_partitions(DECEMBER).await?;
    cluster().execute(&format!("DELETE FROM {}.tasks WHERE id = '{}'", year.schema(), year.completed[1]));
    let history = year.fx.store.history(year.account, None, 100).await?;
    let of_task = |kind| {
        history.iter().find(|entry| entry.task_id.is_some_and(|id| id.0 == year.completed[1]) && entry.kind == kind)
    };
    let entry = of_task(EntryKind::Charge).expect("the task was charged").id;
    assert_eq!(year.faults().await?, [format!("entry {entry} is for a task that does not exist")]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_partition_is_dropped_during_an_audit() -> Result<()> {
    let year = Year::begin().await?;
    year.remove(DECEMBER).await?;
    // A lock on the ledger blocks the audit.
    let (holder, schema) = (cluster().session().await, year.schema());
    holder.batch_execute(&format!("BEGIN; LOCK TABLE {schema}.ledger")).await.expect("the lock is free");
    let (store, now) = (year.fx.store.clone(), year.fx.clock.now());
    let auditing = tokio::spawn(async move { store.audit().await });
    cluster().until_waiting(&schema).await;
    year.fx.store.drop_partitions(DECEMBER, now).await?;
    holder.batch_execute("ROLLBACK").await.expect("the session is open");
    assert_eq!(auditing.await.expect("no panic")?.drifts, []);
    assert_eq!(year.drop_partitions(DECEMBER).await?, 1);
    assert_eq!(year.drifts().await?, []);
    Ok(())
}
