//! Finished tasks in bulk, as they would be after years.

use tintype_domain::model::{Account, Id};
use tintype_store::Store;
use tokio_postgres::Client;

use crate::Outcome;

/// Accounts that the finished tasks belong to, evenly.
pub const ACCOUNTS: u32 = 100;
/// More than any of them can spend here.
const CREDITS: i64 = 1_000_000_000;
/// 2026-10-15.
const LONG_AGO: i64 = 1_792_022_400_000;

/// Accounts with `tasks` completed tasks, all paid for.
pub async fn fill(client: &Client, store: &Store, tasks: u32) -> Outcome<Vec<Account>> {
    let mut accounts = Vec::new();
    for number in 0..ACCOUNTS {
        let created = store.create_account(&format!("account {number}"), CREDITS).await?;
        accounts.push(created.ok_or("the database is not empty")?);
    }
    let ids: Vec<&str> = accounts.iter().map(|account| account.id.as_str()).collect();
    let floor = Id::floor(tintype_system::clock::Timestamp::from_millis(LONG_AGO));
    let start = &floor.as_str()[..14];
    let tasks = i32::try_from(tasks)?;
    client
        .execute(
            "INSERT INTO tasks (id, account_id, surface, image_to_image, status, updated_at, images, n, aspect_ratio,
                reference_images, prompt)
             SELECT $2 || lpad(k::text, 7, '0'), ($1::text[])[1 + k % $4], 'api', false, 'completed', $5,
                '[\"2026-10-15/' || $2 || lpad(k::text, 7, '0') || '-0-abcdefghijklmnopqrstuvwx.png\"]', 1, '1:1', '[]',
                'A red fox in the snow at dawn, number ' || k
             FROM generate_series(0, $3::int - 1) AS k",
            &[&ids, &start, &tasks, &i32::try_from(ACCOUNTS)?, &LONG_AGO],
        )
        .await?;
    client
        .execute(
            "INSERT INTO ledger (account_id, kind, amount, balance, created_at, task_id)
             SELECT ($1::text[])[1 + k % $4], 'charge', -2, $6::bigint - 2 * (k / $4 + 1), $5,
                $2 || lpad(k::text, 7, '0')
             FROM generate_series(0, $3::int - 1) AS k",
            &[&ids, &start, &tasks, &i32::try_from(ACCOUNTS)?, &LONG_AGO, &CREDITS],
        )
        .await?;
    client.batch_execute("VACUUM ANALYZE").await?;
    client.batch_execute("CHECKPOINT").await?;
    let audit = store.audit().await?;
    if !audit.drifts.is_empty() {
        return Err(format!("the books of the benchmark do not balance: {:?}", audit.drifts[0]).into());
    }
    Ok(accounts)
}
