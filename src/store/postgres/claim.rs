//! Claiming: round robin over accounts, oldest first within one.
//!
//! Looking for the accounts that have something waiting passes over all rows that were claimed lately and are not
//! vacuumed yet: hardly any, unless somebody keeps an old snapshot open. So what a look found is used for ten times as
//! long as the look took, up to ten seconds, and taking tasks begins where the look found the oldest, or behind what
//! was taken since. Accounts that are passed over stay in what was found: it is their turn again when they are not.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio_postgres::Row;

use super::columns::{REQUEST, request, word};
use super::connection::{Database, Parameter};
use super::queue::millis;
use crate::domain::model::Id;
use crate::store::{Claim, Lease, Result};

/// Most accounts that one look finds, besides those that are passed over.
const MAX_ACCOUNTS: usize = 256;
/// Accounts that are asked at once at the least when it is not known whether they have more.
const MIN_ASKED: usize = 32;
/// A look is worth this many times the time it took...
const LOOK_WORTH: u32 = 10;
/// ...and at most this long: it may have been the database that stood still for a moment, and whoever comes new waits.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(10);

/// An account that had something waiting.
#[derive(Debug, Clone)]
struct Turn {
    account_id: Id,
    /// Its oldest waiting task, or one before that: what it has to claim begins here.
    oldest: Id,
    /// Whether it had less than it was asked for.
    exhausted: bool,
}

/// Whose turn it is with one process.
#[derive(Debug, Default)]
pub(super) struct Rota {
    /// The account served last.
    last: Option<Id>,
    /// The result of the last query for waiting accounts, by account.
    turns: Vec<Turn>,
    /// Whether those that had no more are asked once more.
    guessing: bool,
    /// When the last look ended...
    looked_at: Duration,
    /// ...and for how long after that there is no other.
    pause: Duration,
}

/// The accounts after $1 and then those up to it that have something waiting, at most $2 of each, with their oldest.
const LOOK: &str = "
    WITH RECURSIVE later AS (
        (SELECT account_id, task_id, 1::bigint AS place FROM queue
         WHERE lease_until IS NULL AND account_id > $1 ORDER BY account_id, task_id LIMIT 1)
        UNION ALL
        SELECT next.account_id, next.task_id, place + 1 FROM later, LATERAL (
            SELECT q.account_id, q.task_id FROM queue q
            WHERE q.lease_until IS NULL AND q.account_id > later.account_id
            ORDER BY q.account_id, q.task_id LIMIT 1) next
        WHERE place < $2::bigint
    ), earlier AS (
        (SELECT account_id, task_id, 1::bigint AS place FROM queue
         WHERE lease_until IS NULL AND account_id <= $1 ORDER BY account_id, task_id LIMIT 1)
        UNION ALL
        SELECT next.account_id, next.task_id, place + 1 FROM earlier, LATERAL (
            SELECT q.account_id, q.task_id FROM queue q
            WHERE q.lease_until IS NULL AND q.account_id > earlier.account_id AND q.account_id <= $1
            ORDER BY q.account_id, q.task_id LIMIT 1) next
        WHERE place < $2::bigint
    )
    SELECT account_id, task_id FROM later UNION ALL SELECT account_id, task_id FROM earlier ORDER BY account_id";

/// Leases up to $4 tasks of the accounts $1 in their order, from above $2: up to $3 of each, in laps. It skips tasks
/// that other workers are claiming.
const TAKE: &str = "
    WITH waiting AS (
        SELECT turn, mine.task_id
        FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS turns (account_id, oldest, turn), LATERAL (
            SELECT q.task_id FROM queue q
            WHERE q.account_id = turns.account_id AND q.task_id >= turns.oldest AND q.lease_until IS NULL
                AND q.ready_at <= tintype_now($5)
            ORDER BY q.task_id LIMIT $3 FOR UPDATE SKIP LOCKED) mine
    ), picked AS (
        SELECT task_id, turn, row_number() OVER (PARTITION BY turn ORDER BY task_id) AS lap FROM waiting
        ORDER BY lap, turn LIMIT $4
    ), leased AS (
        UPDATE queue q SET lease_epoch = q.lease_epoch + 1, lease_until = tintype_now($5) + $6, ready_at = 0
        FROM picked WHERE q.task_id = picked.task_id
        RETURNING q.task_id, q.account_id, q.lease_epoch, lap, turn
    )";

/// Claims up to `max` tasks of accounts that are not passed over.
pub(super) async fn claim(
    database: &Database,
    rota: &mut Rota,
    max: usize,
    lease: Duration,
    passed_over: &HashSet<Id>,
) -> Result<Vec<Claim>> {
    let mut claims = Vec::new();
    let mut looked = rota.look(database, passed_over).await?;
    while claims.len() < max {
        match rota.more(database, &mut looked, max - claims.len(), lease, passed_over).await {
            Ok(Some(more)) => claims.extend(more),
            Ok(None) => break,
            Err(error) if claims.is_empty() => return Err(error),
            // Tasks that are already claimed are returned, so that they are worked on.
            Err(error) => {
                tracing::warn!(%error, "could not claim more tasks");
                break;
            }
        }
    }
    Ok(claims)
}

impl Rota {
    /// Takes more, and looks who has some if it has not `looked`; `None` when there is no more.
    async fn more(
        &mut self,
        database: &Database,
        looked: &mut bool,
        max: usize,
        lease: Duration,
        passed_over: &HashSet<Id>,
    ) -> Result<Option<Vec<Claim>>> {
        if self.turns.iter().all(|turn| turn.exhausted || passed_over.contains(&turn.account_id)) {
            if *looked {
                return Ok(None);
            }
            // If it is too early for that, those that are known may have more by now.
            if !self.look(database, passed_over).await? {
                self.turns.iter_mut().for_each(|turn| turn.exhausted = false);
                self.guessing = true;
            }
            *looked = true;
        }
        self.take(database, max, lease, passed_over).await.map(Some)
    }

    /// Looks who has something waiting; `false` when it is too early for that.
    async fn look(&mut self, database: &Database, passed_over: &HashSet<Id>) -> Result<bool> {
        if !self.is_due(database.clock.elapsed()) {
            return Ok(false);
        }
        // The wait for a connection does not count toward the duration of the query.
        drop(database.client().await?);
        let begun = database.clock.elapsed();
        let most = (MAX_ACCOUNTS + passed_over.len()) as i64;
        let last = self.last.as_ref().map_or("", Id::as_str);
        let rows = database.read(LOOK, &[&last, &most]).await?;
        let turn = |row: &Row| {
            let (account_id, oldest) = (row.try_get("account_id")?, row.try_get("task_id")?);
            Ok(Turn { account_id, oldest, exhausted: false })
        };
        self.turns = readable(&rows, turn);
        self.guessing = false;
        self.looked(begun, database.clock.elapsed());
        Ok(true)
    }

    fn is_due(&self, now: Duration) -> bool {
        now.saturating_sub(self.looked_at) >= self.pause
    }

    fn looked(&mut self, begun: Duration, ended: Duration) {
        self.looked_at = ended;
        self.pause = (ended.saturating_sub(begun) * LOOK_WORTH).min(LOOK_AT_LEAST_EVERY);
    }

    /// Takes up to `max` tasks of the accounts whose turn it is, and notes which have no more.
    async fn take(
        &mut self,
        database: &Database,
        max: usize,
        lease: Duration,
        passed_over: &HashSet<Id>,
    ) -> Result<Vec<Claim>> {
        let after_last = self.turns.partition_point(|turn| Some(turn.account_id) <= self.last);
        let (early, late) = self.turns.split_at(after_last);
        let is_asked = |turn: &&Turn| !turn.exhausted && !passed_over.contains(&turn.account_id);
        let most_asked = if self.guessing { max.max(MIN_ASKED) } else { max };
        let in_turn = late.iter().chain(early).filter(is_asked).take(most_asked);
        let (accounts, oldest): (Vec<Id>, Vec<Id>) = in_turn.map(|turn| (turn.account_id, turn.oldest)).unzip();
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        let share = max.div_ceil(accounts.len());
        let sql = format!(
            "{TAKE} SELECT task_id, leased.account_id, surface, lease_epoch, {REQUEST}
             FROM leased JOIN tasks ON id = task_id ORDER BY lap, turn"
        );
        let given = database.given_time();
        let parameters: [Parameter<'_>; 6] =
            [&accounts, &oldest, &(share as i64), &(max as i64), &given, &millis(lease)];
        let rows = database.write(&sql, &parameters).await?;
        let mut taken: HashMap<Id, Vec<Id>> = HashMap::new();
        for (account_id, task_id) in rows.iter().filter_map(ids) {
            taken.entry(account_id).or_default().push(task_id);
            self.last = Some(account_id);
        }
        let all_taken = rows.len() < max;
        for turn in &mut self.turns {
            let of_account = taken.remove(&turn.account_id).unwrap_or_default();
            if all_taken && accounts.contains(&turn.account_id) {
                turn.exhausted = of_account.len() != share;
            }
            // The claimed rows are now dead rows: start after them.
            turn.oldest = of_account.into_iter().chain([turn.oldest]).max().unwrap_or(turn.oldest);
        }
        let claim = |row: &Row| {
            let lease = Lease { task_id: row.try_get("task_id")?, epoch: row.try_get("lease_epoch")? };
            let (account_id, surface) = (row.try_get("account_id")?, word(row, "surface")?);
            Ok(Claim { lease, account_id, surface, request: request(row)? })
        };
        // Whatever is left out here is leased as well, until its lease runs out.
        Ok(readable(&rows, claim))
    }
}

/// The account and the task of a row.
fn ids(row: &Row) -> Option<(Id, Id)> {
    Some((row.try_get("account_id").ok()?, row.try_get("task_id").ok()?))
}

/// Converts the rows of tasks. It skips a damaged row, so that the other tasks are worked on.
fn readable<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T>) -> Vec<T> {
    let one = |row| match read(row) {
        Ok(one) => Some(one),
        Err(error) => {
            tracing::error!(task = row.try_get::<_, &str>("task_id").ok(), %error, "cannot read a task");
            None
        }
    };
    rows.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_look_that_took_long_is_not_taken_often_but_before_anybody_waits_for_long() {
        let mut rota = Rota::default();
        let mut is_due = |took: Duration, after: Duration| {
            rota.looked(SECOND, SECOND + took);
            rota.is_due(SECOND + took + after)
        };
        let tenth = SECOND / 10;
        assert!(is_due(Duration::ZERO, Duration::ZERO));
        assert!(!is_due(tenth, SECOND - Duration::from_millis(1)));
        assert!(is_due(tenth, SECOND), "ten times as long as it took");
        assert!(!is_due(SECOND * 15, SECOND * 10 - Duration::from_millis(1)));
        assert!(is_due(SECOND * 15, SECOND * 10), "ten seconds at most");
    }
}
