//! Checks rights before writes.

use rusqlite::Connection;

use super::writer::Writing;
use super::{SqliteStore, accounts, people};
use crate::{Result, Right, StoreError};
use tintype_system::clock::Timestamp;

fn holds(connection: &Connection, right: &Right, now: Timestamp) -> rusqlite::Result<bool> {
    match right {
        Right::Key(hash) => Ok(accounts::find_key_by_hash(connection, hash)?.is_some_and(|key| key.is_valid(now))),
        Right::Session(right) => {
            let Some(session) = people::find_session(connection, &right.session, now)? else { return Ok(false) };
            let admin = connection
                .prepare_cached("SELECT admin FROM accounts WHERE id = ?1")?
                .query_row([session.person.account_id], |row| row.get(0))?;
            Ok(right.holds(&session.person, admin))
        }
    }
}

impl SqliteStore {
    /// Writes if the right by which this store acts still holds.
    pub(super) async fn write_by_right<T, F>(&self, right: Option<Right>, mut write: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Writing) -> Result<T> + Send + 'static,
    {
        let Some(right) = right else { return self.writer.run(write).await };
        let write = move |writing: &mut Writing| {
            let holds = holds(&writing.connection, &right, writing.clock.now())?;
            holds.then(|| write(writing)).transpose()
        };
        self.writer.run(write).await?.ok_or(StoreError::Revoked)
    }
}
