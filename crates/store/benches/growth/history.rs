//! Finished tasks in bulk, as they would be after years, in SQL that both databases understand.

use tintype_domain::model::Id;
use tintype_system::clock::Timestamp;

use crate::Outcome;
use crate::database::Database;

/// Accounts that the finished tasks belong to, evenly.
pub const ACCOUNTS: u64 = 10_000;
/// More than any of them spends.
const CREDITS: u64 = 1_000_000_000;
/// 2026-10-15.
const LONG_AGO: i64 = 1_792_022_400_000;
/// Tasks that one statement writes.
const BATCH: u64 = 500_000;

/// The id of the account or task with this number.
pub fn id(number: u64) -> Id {
    format!("{}{number:08}", start()).parse().expect("digits are in the alphabet of ids")
}

fn start() -> String {
    Id::floor(Timestamp::from_millis(LONG_AGO)).as_str()[..13].to_owned()
}

/// Fills an empty database with accounts and with `tasks` completed tasks, all paid for.
pub fn fill(database: &Database<'_>, tasks: u64) -> Outcome<()> {
    let start = start();
    let named = |number: &str| format!("'{start}' || substr(cast(100000000 + {number} AS text), 2, 8)");
    let series = |from: u64, end: u64| {
        format!("WITH RECURSIVE s (k) AS (SELECT {from} UNION ALL SELECT k + 1 FROM s WHERE k + 1 < {end})")
    };
    let (account, owner, task) = (named("k"), named(&format!("(k % {ACCOUNTS})")), named("k"));
    // The first schema of SQLite has a column for it.
    let (balance, zero) = if database.cluster.is_none() { (", balance", ", 0") } else { ("", "") };
    database.execute(&format!(
        "{all} INSERT INTO accounts (id, name{balance}) SELECT {account}, 'account ' || k{zero} FROM s;
         {all} INSERT INTO ledger (account_id, kind, amount, balance, created_at)
         SELECT {account}, 'grant', {CREDITS}, {CREDITS}, {LONG_AGO} FROM s;",
        all = series(0, ACCOUNTS)
    ))?;
    for from in (0..tasks).step_by(usize::try_from(BATCH)?) {
        let some = series(from, tasks.min(from + BATCH));
        database.execute(&format!(
            "{some} INSERT INTO tasks (id, account_id, surface, image_to_image, status, updated_at, images, n,
                aspect_ratio, reference_images, prompt)
             SELECT {task}, {owner}, 'api', false, 'completed', {LONG_AGO},
                '[\"2026-10-15/' || {task} || '-0-abcdefghijklmnopqrstuvwx.png\"]', 1, '1:1', '[]',
                'A red fox in the snow at dawn, number ' || k FROM s;
             {some} INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
             SELECT {owner}, 'charge', -2, {CREDITS} - 2 * (k / {ACCOUNTS} + 1), {LONG_AGO}, {task} FROM s;"
        ))?;
    }
    database.settle()
}
