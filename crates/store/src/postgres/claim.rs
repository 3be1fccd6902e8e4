//! Claiming: round robin over accounts, oldest first within one.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use super::PostgresStore;
use crate::driver::{List, Parameter, Row, between_faults};
use crate::queue::claim;
use crate::tasks::REQUEST;
use crate::{Claim, LONGEST_DELAY, Result, StoreError};
use tintype_domain::model::Id;
use tintype_system::fault::Effect;
use tintype_system::locked::Locked as _;

/// Condition for a claimable task `q`. Below the horizon ($2) are only dead tuples. The collation matches the index
/// `queue_of_account`, which also contains the number of references.
const CLAIMABLE: &str = "q.task_id COLLATE \"POSIX\" >= $2 AND q.reference_count <= $7::bigint
    AND q.lease_until IS NULL AND (q.ready_at <= tintype_now($3) OR q.ready_at > tintype_now($3) + $9)";

/// A claim looks at up to this many waiting tasks for their accounts. If there are more, it looks at one account after
/// the other, because the next one with a waiting task is near.
const FEW: usize = 1024;
/// And at no more tasks than this part of the accounts, because an account costs about as much as this number of tasks.
const ACCOUNTS_PER_TASK: usize = 8;
/// With fewer accounts it does not look at tasks: all accounts together cost little.
const MANY_ACCOUNTS: usize = 512;

/// The account that the last claim with each engine and number of references ended with.
pub(super) type ServedLast = Mutex<HashMap<(String, u32), String>>;

/// Selects the oldest tasks of an account: those that name no engine, and those that name $8. Two ranges of the index
/// `queue_of_account`, so that tasks which name another engine cost nothing.
fn oldest_of(account: &str, limit: &str) -> (String, String) {
    let of_engine = |engine: &str| {
        format!(
            "SELECT q.task_id FROM queue q WHERE q.account_id = {account} AND q.engine = {engine} AND {CLAIMABLE}
            ORDER BY q.task_id COLLATE \"POSIX\" LIMIT {limit}"
        )
    };
    (of_engine("''"), of_engine("$8 AND $8 <> ''"))
}

/// Selects the accounts with a task to claim: those after $1, and those up to it.
fn waiting_accounts() -> [String; 2] {
    let (unnamed, named) = oldest_of("a.id", "1");
    let many = "(SELECT count(*) FROM few) >= (SELECT most FROM looks)";
    let walk = format!(
        "SELECT a.id AS account_id FROM accounts a, LATERAL (
            SELECT 1 FROM (({unnamed}) UNION ALL ({named})) found LIMIT 1) oldest
        WHERE {many} AND a.id <> ALL ($5) AND NOT EXISTS (SELECT 1 FROM queue_pause)"
    );
    let known = format!("SELECT DISTINCT account_id FROM few WHERE claimable AND NOT ({many})");
    let waiting = |place: &str, limit: &str| {
        format!(
            "SELECT account_id FROM (
                ({known} AND account_id {place} $1)
                UNION ALL ({walk} AND a.id {place} $1 ORDER BY a.id LIMIT {limit})) waiting
            ORDER BY account_id LIMIT {limit}"
        )
    };
    [waiting(">", "$4::bigint"), waiting("<=", "greatest($4::bigint - (SELECT count(*) FROM later), 0)")]
}

/// Claims up to $4 tasks with up to $7 references that name no engine or $8, of accounts that are not in $5, for $6
/// milliseconds, beginning after the account $1. One that is postponed by more than $9 milliseconds was before the
/// clock was set back, and is claimed as well.
fn statement() -> String {
    let [later, earlier] = waiting_accounts();
    let share = "(SELECT ceil($4::bigint::numeric / greatest(count(*), 1))::bigint FROM turns)";
    let (unnamed, named) = oldest_of("turns.account_id", share);
    format!(
        "
    WITH
    looks AS MATERIALIZED (
        SELECT CASE WHEN reltuples >= {MANY_ACCOUNTS}
            THEN least(reltuples / {ACCOUNTS_PER_TASK}, {FEW}) ELSE 0 END::bigint AS most
        FROM pg_class WHERE oid = 'accounts'::regclass
    ),
    -- The waiting tasks, if they are few. Then the accounts to serve are known, and no other account is looked at: with
    -- ten thousand accounts, that would cost more than everything else. This passes over what workers hold.
    few AS MATERIALIZED (
        SELECT q.account_id,
            q.engine IN ('', $8) AND q.account_id <> ALL ($5) AND {CLAIMABLE} AS claimable
        FROM queue q WHERE q.task_id >= $2 AND q.lease_until IS NULL AND NOT EXISTS (SELECT 1 FROM queue_pause)
        ORDER BY q.task_id LIMIT (SELECT most FROM looks)
    ),
    -- The accounts with a task to claim, at most as many as tasks are wanted: first those after the account that was
    -- served last, then those from the beginning. If they are not known, an account costs two look-ups in the index,
    -- however many tasks wait.
    later AS MATERIALIZED ({later}),
    earlier AS MATERIALIZED ({earlier}),
    turns AS MATERIALIZED (
        SELECT account_id, row_number() OVER (ORDER BY account_id <= $1, account_id) AS turn
        FROM (SELECT * FROM later UNION ALL SELECT * FROM earlier) waiting
    ),
    -- Locks an equal share of each account, oldest first. It skips tasks that another worker is claiming.
    locked AS MATERIALIZED (
        SELECT turn, task.task_id FROM turns, LATERAL (
            SELECT * FROM ({unnamed} FOR UPDATE SKIP LOCKED) unnamed
            UNION ALL SELECT * FROM ({named} FOR UPDATE SKIP LOCKED) named
            ORDER BY task_id LIMIT {share}) task
    ),
    -- One task of each account, then a second one of each, and so on.
    picked AS MATERIALIZED (
        SELECT task_id, turn, row_number() OVER (PARTITION BY turn ORDER BY task_id) AS lap FROM locked
        ORDER BY lap, turn LIMIT $4
    ),
    -- Raises the epoch, the fencing token, so that no earlier worker can write.
    leased AS (
        UPDATE queue q SET lease_epoch = q.lease_epoch + 1, lease_until = tintype_now($3) + $6, ready_at = 0,
            claimed_at = tintype_now($3)
        WHERE q.task_id = ANY (ARRAY (SELECT task_id FROM picked))
        RETURNING q.task_id, q.account_id, q.lease_epoch, q.wants_previews
    )
    SELECT leased.task_id, leased.account_id, leased.lease_epoch, leased.wants_previews, t.surface, {REQUEST}
    FROM leased JOIN picked USING (task_id) JOIN tasks t ON t.id = leased.task_id
    WHERE t.id = ANY (ARRAY (SELECT task_id FROM picked)) ORDER BY lap, turn"
    )
}

impl PostgresStore {
    /// See [`crate::Store::claim_within`].
    pub(crate) async fn claim_tasks(
        &self,
        max: usize,
        engine: &str,
        max_references: u32,
        lease: Duration,
        excluded: &[Id],
    ) -> Result<Vec<Claim>> {
        let statement = statement();
        let turns = (engine.to_owned(), max_references);
        let claim = async {
            let mut claims = Vec::new();
            // Accounts with less than their share leave a rest to the others.
            while claims.len() < max {
                let most = max - claims.len();
                let served = self.served_last.locked().get(&turns).cloned().unwrap_or_default();
                let (horizon, given) = (self.database.horizon(), self.database.given_time());
                let (excluded, longest) = (List(excluded), LONGEST_DELAY);
                let parameters: [&dyn Parameter; 9] =
                    [&served, &horizon, &given, &most, &excluded, &lease, &max_references, &engine, &longest];
                let rows = match self.database.write(&statement, &parameters).await {
                    // Tasks that are already claimed are returned, so that they are worked on.
                    Err(failure) if !claims.is_empty() => {
                        tracing::warn!(error = %StoreError::from(failure), "could not claim more tasks");
                        break;
                    }
                    rows => rows?,
                };
                let Some(row) = rows.last() else { break };
                self.served_last.locked().insert(turns.clone(), row.get("account_id")?);
                claims.extend(rows.iter().filter_map(readable));
            }
            Ok(claims)
        };
        between_faults(&self.faults, Effect::Claim, claim).await
    }
}

/// The claim of a row. A damaged row is skipped, so that the other tasks are worked on; its lease runs out.
fn readable(row: &Row) -> Option<Claim> {
    let task = row.get::<String>("task_id").ok();
    claim(row).inspect_err(|error| tracing::error!(task, %error, "cannot read a task")).ok()
}
