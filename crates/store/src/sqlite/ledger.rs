//! The sweep for grants that have expired.

use rusqlite::ToSql;

use super::SqliteStore;
use super::writer::{Writing, in_savepoint};
use crate::driver::{Transaction, on_sqlite, query};
use crate::{Result, ledger};
use tintype_domain::model::Id;
use tintype_system::fault::Effect;

/// Grants that lapse in one transaction, so that the writes of callers can run in between.
const SWEEP_BATCH: usize = 256;

/// Grants that a sweep has processed.
#[derive(Debug, Clone, Copy, Default)]
struct Swept {
    lapsed: usize,
    /// Grants that could not be ended, for example because their account is damaged.
    failed: usize,
}

/// Ends up to [`SWEEP_BATCH`] grants that have expired, after the first `skipped`.
fn lapse(writing: &mut Writing, skipped: usize) -> Result<Swept> {
    let now = writing.clock.now();
    let due = "SELECT account_id, entry_id, remaining, expires_at FROM expiring_grants
        WHERE lapsed IS NULL AND expires_at <= $1 ORDER BY expires_at, entry_id LIMIT $2 OFFSET $3";
    let parameters: [&dyn ToSql; 3] = [&now, &SWEEP_BATCH, &skipped];
    let mut swept = Swept::default();
    for row in query(&writing.connection, due, parameters)? {
        let (account_id, grant): (Id, _) = (row.get("account_id")?, ledger::grant(&row)?);
        let end = async |tx: &Transaction<'_>| ledger::end_grants(tx, account_id, vec![grant], now).await;
        match in_savepoint(writing, |writing| on_sqlite(writing, end)) {
            Ok(_) => swept.lapsed += 1,
            Err(error) if writing.connection.is_autocommit() => return Err(error),
            Err(error) => {
                swept.failed += 1;
                tracing::error!(
                    account = %account_id, grant = grant.id, %error,
                    "cannot end an expired grant; see `tintype credits audit`"
                );
            }
        }
    }
    Ok(swept)
}

impl SqliteStore {
    pub(crate) async fn lapse_all_grants(&self) -> Result<usize> {
        let mut all = Swept::default();
        loop {
            let some = self.write(Effect::LapseGrants, None, move |writing| lapse(writing, all.failed)).await?;
            all = Swept { lapsed: all.lapsed + some.lapsed, failed: all.failed + some.failed };
            if some.lapsed + some.failed < SWEEP_BATCH {
                return Ok(all.lapsed);
            }
        }
    }
}
