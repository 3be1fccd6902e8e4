//! Finding the row of an account, however many dead versions of it there are.
//!
//! Each charge and each end of a task leaves a dead version of its account's row, and while somebody keeps an old
//! snapshot none of them goes. An index by id leads to all of them, and one after the other is looked at. So now and
//! then a version gets a higher turn; a look-up begins at the highest, and passes over what has died since that turn
//! began.

/// Part of every update of the row `a`: about every thirtieth version begins a turn. That costs an entry in the index,
/// of which the versions between two turns are mostly free.
pub(super) const TURNED: &str = "turn = a.turn + (random() < 0.03)::int";

/// Says that the row `a` of an update is the one that [`locked`] found. The version that the statement sees is at
/// least of the turn that it saw, and so are all that come after it.
pub(super) const IS_LOCKED: &str = "a.id = locked.account_id AND a.turn >= locked.seen";

/// The account whose id is the expression `id`, to follow the columns of a `SELECT`.
pub(super) fn newest(id: &str) -> String {
    format!("FROM accounts WHERE accounts.id = {id} ORDER BY turn DESC LIMIT 1")
}

/// A `locked` for `WITH`: the accounts of `wanted`, each with its `balance` and `unfinished`, locked in the order of
/// `wanted`, which must be that of their ids. It has the columns of `wanted` too, the first being `account_id`.
pub(super) fn locked(wanted: &str) -> String {
    let newest = newest("wanted.account_id");
    format!(
        "locked AS (
            SELECT wanted.*, seen.turn AS seen, latest.balance, latest.unfinished
            FROM {wanted} AS wanted,
                LATERAL (SELECT turn {newest}) seen,
                LATERAL (SELECT balance, unfinished {newest} FOR NO KEY UPDATE) latest
        )"
    )
}
