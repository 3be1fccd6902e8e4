//! The audit finds damage. Each test writes the damage directly to the SQLite file.

use rusqlite::Connection;
use tintype_domain::model::{FailureCause, Id, Surface, TaskId};
use tintype_store::{Drift, Result};

use super::fixture::{Fixture, images, one_file};
use tintype_rigs::database::Backend;

/// Two accounts with 10 credits; the first has a completed, a failed and a waiting task.
struct Books {
    fx: Fixture,
    ada: Id,
    bob: Id,
    completed: Id,
    failed: Id,
    waiting: Id,
}

impl Books {
    async fn open() -> Result<Self> {
        let fx = Fixture::new(Backend::Sqlite);
        let ada = fx.account("ada", 10).await?;
        let bob = fx.account("bob", 10).await?;
        let completed = fx.submit(ada).await?.id;
        fx.store.complete(fx.claim().await?, one_file()).await?;
        let failed = fx.submit_request(ada, Surface::Web, images(2)).await?.id;
        fx.store.fail(fx.claim().await?, FailureCause::Engine, "it sank").await?;
        let waiting = fx.submit(ada).await?.id;
        Ok(Self { fx, ada, bob, completed, failed, waiting })
    }

    /// Executes `sql` with constraints off on a ledger without drifts, and asserts what the audit finds then: one
    /// fault, of an account or of its task. In all three texts, names such as `$ada` stand for ids.
    async fn show(sql: &str, whose: &str, fault: &str) -> Result<()> {
        let books = Self::open().await?;
        assert_eq!(books.drifts().await?, []);
        let connection = Connection::open(books.fx.directory.path().join("tintype.db")).expect("the database");
        let unconstrained = "PRAGMA foreign_keys = OFF; PRAGMA ignore_check_constraints = ON";
        connection.execute_batch(unconstrained).expect("constraints are off");
        let sql = books.names().into_iter().fold(sql.to_owned(), |sql, (name, id)| sql.replace(name, id.as_str()));
        connection.execute_batch(&sql).expect("valid SQL");
        let found: Vec<_> = books.drifts().await?.into_iter().map(|drift| books.described(drift)).collect();
        assert_eq!(found, [(whose.into(), fault.into())]);
        Ok(())
    }

    async fn drifts(&self) -> Result<Vec<Drift>> {
        Ok(self.fx.store.audit().await?.drifts)
    }

    fn names(&self) -> [(&'static str, Id); 5] {
        let (ada, bob, completed, failed, waiting) = (self.ada, self.bob, self.completed, self.failed, self.waiting);
        [("$ada", ada), ("$bob", bob), ("$completed", completed), ("$failed", failed), ("$waiting", waiting)]
    }

    /// The account and task of a drift, and its description, with names instead of ids.
    fn described(&self, drift: Drift) -> (String, String) {
        let named =
            |text: String| self.names().into_iter().fold(text, |text, (name, id)| text.replace(id.as_str(), name));
        let whose = match drift.task_id {
            Some(TaskId(task)) => format!("{} {task}", drift.account_id),
            None => drift.account_id.to_string(),
        };
        (named(whose), named(drift.fault))
    }
}

/// One test for each damage, with the fault that the audit finds.
macro_rules! damages {
    ($($name:ident: $sql:literal => $whose:literal, $fault:literal,)+) => {
        $(
            #[tokio::test]
            async fn $name() -> Result<()> {
                Books::show($sql, $whose, $fault).await
            }
        )+
    };
}

damages! {
    a_changed_entry_is_found:
        "UPDATE ledger SET balance = 7 WHERE task_id = '$completed'"
        => "$ada $completed", "entry 3 says the balance was 7, but entries up to it add up to 8",
    a_missing_charge_is_found:
        "DELETE FROM ledger WHERE task_id = '$waiting'"
        => "$ada $waiting", "the task was never charged",
    a_wrong_charge_is_found:
        "UPDATE ledger SET amount = -1, balance = 7 WHERE task_id = '$waiting'"
        => "$ada $waiting", "charged 1 to $ada instead of 2",
    a_charge_to_another_account_is_found:
        "UPDATE ledger SET account_id = '$bob', balance = 8 WHERE task_id = '$waiting'"
        => "$ada $waiting", "charged 2 to $bob instead of 2",
    a_missing_refund_is_found:
        "UPDATE tasks SET status = 'failed', error = 'it sank' WHERE id = '$waiting';
         DELETE FROM queue"
        => "$ada $waiting", "the failed task was never refunded",
    a_wrong_refund_is_found:
        "DELETE FROM ledger WHERE task_id = '$waiting';
         UPDATE ledger SET amount = 5, balance = 9 WHERE task_id = '$failed' AND kind = 'refund';
         INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id) VALUES ('$ada', 'charge', -2, 7, 0, '$waiting')"
        => "$ada $failed", "refunded 5 to $ada instead of 4",
    a_refund_of_a_completed_task_is_found:
        "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id) VALUES ('$ada', 'refund', 2, 8, 0, '$completed')"
        => "$ada $completed", "was refunded although it is completed",
    a_refund_of_a_processing_task_is_found:
        "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id) VALUES ('$ada', 'refund', 2, 8, 0, '$waiting')"
        => "$ada $waiting", "was refunded although it is processing",
    a_refund_to_another_account_is_found:
        "DELETE FROM ledger WHERE task_id = '$waiting';
         UPDATE ledger SET account_id = '$bob', balance = 14 WHERE task_id = '$failed' AND kind = 'refund';
         INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id) VALUES ('$ada', 'charge', -2, 2, 0, '$waiting')"
        => "$ada $failed", "refunded 4 to $bob instead of 4",
    a_task_lost_from_the_queue_is_found:
        "DELETE FROM queue"
        => "$ada $waiting", "is processing, but not in the queue",
    a_charge_to_the_budget_of_another_key_is_found:
        "UPDATE queue SET key_id = '$bob'"
        => "$ada $waiting", "its charge does not name the key of its queue row",
    a_finished_task_in_the_queue_is_found:
        "INSERT INTO queue (task_id, account_id, ready_at) VALUES ('$completed', '$ada', 0)"
        => "$ada $completed", "is in the queue although it is completed",
    a_second_refund_is_found:
        "DROP INDEX ledger_once;
         INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
             SELECT account_id, kind, amount, balance - 2 + amount, created_at, task_id FROM ledger
             WHERE task_id = '$failed' AND kind = 'refund'"
        => "$ada $failed", "2 entries of kind refund",
    entries_of_a_missing_task_are_found:
        "DELETE FROM tasks WHERE id = '$completed'"
        => "$ada $completed", "entry 3 is for a task that does not exist",
    a_completed_task_without_images_is_found:
        "UPDATE tasks SET images = NULL WHERE id = '$completed'"
        => "$ada $completed", "is completed without images",
}

#[tokio::test]
async fn an_audit_counts_accounts_tasks_and_entries() -> Result<()> {
    let books = Books::open().await?;
    let audit = books.fx.store.audit().await?;
    assert_eq!((audit.accounts, audit.tasks, audit.entries), (2, 3, 6));
    Ok(())
}

#[tokio::test]
async fn database_constraints_refuse_writes_that_unbalance_the_ledger() -> Result<()> {
    let books = Books::open().await?;
    let connection = Connection::open(books.fx.directory.path().join("tintype.db")).expect("the database");
    for sql in [
        "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
         SELECT account_id, kind, amount, balance, created_at, task_id FROM ledger WHERE kind = 'refund'",
        "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
         SELECT account_id, kind, amount, balance, created_at, task_id FROM ledger WHERE kind = 'charge' LIMIT 1",
        "UPDATE ledger SET balance = -1",
        "UPDATE tasks SET status = 'completed', images = NULL, error = NULL WHERE status = 'failed'",
        "UPDATE ledger SET amount = -amount",
    ] {
        let error = connection.execute_batch(sql).expect_err(sql);
        assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::ConstraintViolation), "{sql}: {error}");
    }
    assert_eq!(books.drifts().await?, []);
    Ok(())
}

#[tokio::test]
async fn a_damaged_account_blocks_no_refund_of_another() -> Result<()> {
    let books = Books::open().await?;
    let of_bob = books.fx.submit(books.bob).await?;
    let connection = Connection::open(books.fx.directory.path().join("tintype.db")).expect("the database");
    let damage = "UPDATE ledger SET balance = 9223372036854775807 WHERE task_id = ?1";
    assert_eq!(connection.execute(damage, [books.waiting.as_str()]), Ok(1));
    assert_eq!(books.fx.store.expire(books.fx.clock.now(), "too late").await?.len(), 1);
    let task = books.fx.store.inspect_task(of_bob.id).await?.expect("the task exists").task;
    assert_eq!(task.status.as_str(), "failed");
    let of_ada = books.fx.store.inspect_task(books.waiting).await?.expect("the task exists").task;
    assert_eq!(of_ada.status.as_str(), "processing", "the operator has to repair the account first");
    Ok(())
}
