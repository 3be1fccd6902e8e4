//! Finding the current version of an account's row beside any number of dead ones.
//!
//! Every charge and every ending of a task leaves a dead tuple of the account's row, and vacuum removes none while a
//! reader keeps an old snapshot. An index on the id leads to all of them. So about every thirtieth version of the row
//! has a higher `turn`, and a look-up by `(id, turn DESC)` passes over the dead tuples of one turn only.

use super::batch::Locked;

/// Part of every `UPDATE accounts a`: now and then begins a turn. That costs an index entry; the versions between two
/// turns are mostly heap-only tuples.
pub(super) const TURNED: &str = "turn = a.turn + (random() < 0.03)::int";

/// Part of every `UPDATE accounts a`: finds the row that [`locked`] has locked, whose versions have at least the turn
/// that the statement's snapshot shows.
pub(super) const IS_LOCKED: &str = "a.id = locked.account_id AND a.turn >= locked.seen";

/// To follow the columns of a `SELECT`: the account whose id is the expression `id`.
pub(super) fn newest(id: &str) -> String {
    format!("FROM accounts WHERE accounts.id = {id} ORDER BY turn DESC LIMIT 1")
}

/// The CTE `locked`: the rows of `wanted`, which begin with an `account_id` and are in its order, each with the `balance`
/// and `unfinished` of its account, which is locked. The order keeps transactions from waiting in a circle.
pub(super) fn locked(wanted: &str, locked: Locked) -> String {
    let (newest, clause) = (newest("wanted.account_id"), locked.clause());
    format!(
        "locked AS (
            SELECT wanted.*, seen.turn AS seen, latest.balance, latest.unfinished
            FROM {wanted} AS wanted,
                LATERAL (SELECT turn {newest}) seen,
                LATERAL (SELECT balance, unfinished {newest} FOR NO KEY UPDATE {clause}) latest
        )"
    )
}
