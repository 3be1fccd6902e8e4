//! A standby that is promoted after the primary was lost: a store that names both goes to the one that takes writes.

use tempfile::TempDir;
use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_store::Submission;
use tintype_store::postgres;
use tintype_system::clock::Clock;
use tintype_system::fault::Faults;

use crate::rigs::postgres::{Cluster, Durability, schema};

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_names_a_standby_follows_the_primary() {
    let directory = TempDir::new().unwrap();
    let primary = Cluster::start(Durability::Commits);
    // This creates the schema.
    primary.url(directory.path());
    let standby = primary.standby();
    // The standby is named first.
    let hosts = [&standby, &primary].map(|cluster| cluster.directory.display().to_string().replace('/', "%2F"));
    let schema = schema(directory.path());
    let url = format!("postgres://tintype@{}/postgres?options=-csearch_path%3D{schema}", hosts.join(","));
    let store = postgres::open(&url, None, Clock::system(), Faults::default()).await.expect("the primary");
    let Some(account) = store.create_account("ada", 100).await.expect("a store") else { panic!("a new name") };
    let submit = || {
        let request = GenerateRequest::new("a boat");
        store.submit(account.id, None, Surface::Api, request, 0)
    };
    assert!(matches!(submit().await, Ok(Submission::Accepted(_))));
    let written: String = primary.query("SELECT pg_current_wal_lsn()::text")[0].get(0);
    let replayed = format!("SELECT (pg_last_wal_replay_lsn() >= '{written}')::int::bigint");
    standby.until(&replayed, |replayed| replayed == 1).await;
    primary.crash();
    assert!(submit().await.is_err(), "nothing takes writes");
    standby.promote();
    assert!(matches!(submit().await, Ok(Submission::Accepted(_))));
    store.ping().await.expect("it takes writes");
    assert_eq!(store.list_tasks(account.id, Surface::Api, None, 10).await.expect("a store").len(), 2);
    assert_eq!(store.audit().await.expect("a store").drifts, []);
}
