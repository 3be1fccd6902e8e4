//! The renewal of leases.
//!
//! Statements name rows by an array of ids where a join would say the same: a plan that is made while a table is empty
//! may join by reading all of its index, and the server keeps the plan when the table is full.

use std::collections::HashSet;
use std::time::Duration;

use tokio_postgres::Row;

use super::PostgresStore;
use crate::driver::millis;
use crate::{Lease, Result};
use tintype_domain::model::Id;
use tintype_system::fault::Effect;

/// A transaction that has locked a row of the queue is about to end its task or to take its lease away, and may have to
/// wait for an account. A renewal does not wait for it: it leaves such a lease unchanged and reports it as lost only if
/// the row says so.
const RENEW: &str = "
    WITH held AS (
        SELECT * FROM unnest($1::text[], $2::bigint[]) AS held (task_id, lease_epoch)
    ),
    found AS MATERIALIZED (
        SELECT q.task_id FROM held JOIN queue q USING (task_id, lease_epoch)
        WHERE q.task_id = ANY ($1) AND q.lease_until IS NOT NULL
        FOR UPDATE OF q SKIP LOCKED
    ),
    renewed AS (
        UPDATE queue q SET lease_until = tintype_now($3) + $4
        WHERE q.task_id = ANY (ARRAY (SELECT task_id FROM found))
    )
    -- The leases that had been lost.
    SELECT task_id, lease_epoch FROM held WHERE NOT EXISTS (
        SELECT 1 FROM queue q
        WHERE q.task_id = held.task_id AND q.lease_epoch = held.lease_epoch AND q.lease_until IS NOT NULL)";

impl PostgresStore {
    pub(crate) async fn renew_leases(&self, leases: Vec<Lease>, lease: Duration) -> Result<Vec<Lease>> {
        let renew = async {
            let (ids, epochs): (Vec<Id>, Vec<i64>) = leases.iter().map(|lease| (lease.task_id, lease.epoch)).unzip();
            let given = self.database.given_time();
            let rows = self.database.write(RENEW, &[&ids, &epochs, &given, &millis(lease)]).await?;
            let lease = |row: &Row| Ok(Lease { task_id: row.try_get("task_id")?, epoch: row.try_get("lease_epoch")? });
            let lost = rows.iter().map(lease).collect::<Result<HashSet<Lease>>>()?;
            Ok(leases.iter().filter(|lease| lost.contains(lease)).copied().collect())
        };
        self.write(Effect::Renew, renew).await
    }
}
