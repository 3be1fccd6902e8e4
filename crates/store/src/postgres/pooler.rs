//! Rejects poolers that give each transaction another server session, before anything is written.
//!
//! Prepared statements, session settings, LISTEN and session advisory locks all fail there, some of them silently.
//! Poolers are recognised by their behaviour, because none reports its configuration.

use std::time::Duration;

use deadpool_postgres::Client;
use tokio_postgres::SimpleQueryMessage;

use super::connection::Database;
use super::schema::unusable;
use crate::failure::DbResult;
use crate::{OpenError, StoreError};

/// Time limit for both sessions' answers. A pooler may have only one connection, and make the second client wait.
const LIMIT: Duration = Duration::from_secs(10);

/// PostgreSQL 14, as it numbers itself.
const OLDEST: u32 = 140_000;

/// The mark of a session, and the process of the server behind it.
type Seen = (Option<String>, Option<String>);

/// Fails unless two connections have a session each, and keep it. Uses the simple protocol, which every pooler
/// forwards.
pub(super) async fn refuse(database: &Database) -> Result<(), OpenError> {
    let (one, two) = database.bare_pair().await.map_err(|error| unusable(database, error.into()))?;
    let can_serve = async {
        refuse_old(&one).await?;
        have_sessions(&one, &two).await
    };
    match database.within(LIMIT, can_serve).await {
        Some(Ok(true)) => Ok(()),
        Some(Ok(false)) => Err(OpenError::Unusable(pooled(database))),
        Some(Err(failure)) => Err(unusable(database, failure)),
        None => {
            let error = format!("two sessions at the same time got no answer within {} s", LIMIT.as_secs());
            Err(unusable(database, StoreError::other(error).into()))
        }
    }
}

fn pooled(database: &Database) -> String {
    format!(
        "the {} is behind a pooler that gives each transaction another session: set `pool_mode = session` for it in \
         PgBouncer, or let --database name the server itself (Neon: the host without `-pooler`; Supabase: port 5432)",
        database.name()
    )
}

/// Checks connections that are in use, in case a pooler was put before them. An unknown outcome is not a failure.
pub(super) async fn check(database: &Database) -> Result<(), StoreError> {
    let (one, two) = (database.reader().await?, database.reader().await?);
    match database.within(LIMIT, have_sessions(&one, &two)).await {
        Some(Ok(true)) => Ok(()),
        Some(Ok(false)) => Err(StoreError::other(pooled(database))),
        Some(Err(_)) | None => {
            // A statement may still run there.
            drop((Client::take(one), Client::take(two)));
            Ok(())
        }
    }
}

/// Fails on servers before PostgreSQL 14, and on servers that claim to be such a version, like CockroachDB.
async fn refuse_old(client: &Client) -> DbResult<()> {
    let (number, name) = row(client, "SELECT current_setting('server_version_num'), version()").await?;
    if number.and_then(|number| number.parse().ok()).is_some_and(|number: u32| number < OLDEST) {
        let error = format!("Tintype needs PostgreSQL 14 or later; this server is {}", name.unwrap_or_default());
        return Err(StoreError::other(error).into());
    }
    Ok(())
}

/// Whether each connection keeps its session.
async fn have_sessions(one: &Client, two: &Client) -> DbResult<bool> {
    // In this order, poolers that take the newest free session, the oldest one, or the only one all show themselves.
    let (first, second) = (mark(one).await?, mark(two).await?);
    let (second_again, first_again) = (look(two).await?, look(one).await?);
    Ok(first == first_again && second == second_again && first.1 != second.1)
}

/// Marks the session. The setting means nothing to the server, and so none to the next client of a shared session.
async fn mark(client: &Client) -> DbResult<Seen> {
    let mark: u64 = rand::random();
    client.simple_query(&format!("SET tintype.session = '{mark:x}'")).await.map_err(StoreError::from)?;
    let (_, process) = look(client).await?;
    Ok((Some(format!("{mark:x}")), process))
}

async fn look(client: &Client) -> DbResult<Seen> {
    row(client, "SELECT current_setting('tintype.session', true), pg_backend_pid()").await
}

/// The two columns of the row that `sql` selects.
async fn row(client: &Client, sql: &str) -> DbResult<(Option<String>, Option<String>)> {
    let answer = client.simple_query(sql).await.map_err(StoreError::from)?;
    let row = answer.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let field = |index| row.and_then(|row| row.try_get(index).ok().flatten()).map(str::to_owned);
    Ok((field(0), field(1)))
}
