//! The conformance suite of `Store`: each driver passes every case.
//!
//! A case gets an empty database, whose ledger is audited when it returns. `case!` turns it into one test for each
//! backend.

/// A case, as the tests `NAME::sqlite` and `NAME::postgres`.
macro_rules! case {
    ($name:ident, async |$fixture:ident| $body:block) => {
        async fn $name($fixture: &Fixture) -> Result<()> $body

        mod $name {
            use tintype_rigs::database::Backend;

            use crate::store::fixture::check;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                check(Backend::Sqlite, super::$name).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                check(Backend::Postgres, super::$name).await;
            }
        }
    };
}

mod account_walk;
mod accounts;
mod audit_log;
mod budgets;
mod calls;
mod cancellations;
mod claims;
mod completed;
mod damage;
mod deliveries;
mod drift;
mod endpoints;
mod ends;
mod engines;
mod failed_prompts;
mod files;
mod fixture;
mod gallery;
mod grants;
mod identities;
mod invitations;
mod keys;
mod leases;
mod low_credits;
mod people;
mod postgres_locks;
mod postgres_plans;
mod postgres_pooler;
mod postgres_reads;
mod postgres_schema;
mod postgres_server;
mod postgres_tls;
mod processes;
mod progress;
mod removals;
mod rights;
mod schema;
mod second_factor;
mod shared_links;
mod sign_ups;
mod sqlite_file;
mod strikes;
mod submits;
mod uploads;
mod workers;
