//! Limits on the index entries that PostgreSQL reads per query, also while an old snapshot keeps dead rows.

use tempfile::TempDir;
use tintype_domain::model::Surface;
use tintype_domain::request::GenerateRequest;
use tintype_store::Result;

use super::fixture::{Fixture, LEASE, MILLISECOND, images, one_file};
use tintype_rigs::database::Backend;
use tintype_rigs::postgres::{cluster, schema};

/// Number of index entries read so far in the schema, of the tables whose names are like `tables`. Closes the store and
/// opens another, because the server may count the reads of a session only when it ends.
pub async fn entries_read(fx: &mut Fixture, tables: &str) -> i64 {
    let schema = schema(fx.directory.path());
    let closed = Backend::Postgres.open(&TempDir::new().expect("a directory"), &fx.clock);
    drop(std::mem::replace(&mut fx.store, closed));
    let open = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'");
    cluster().until(&open, |sessions| sessions == 0).await;
    fx.store = fx.another_process();
    cluster().number(&format!(
        "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes
         WHERE schemaname = '{schema}' AND relname LIKE '{tables}'"
    ))
}

/// Updates the statistics of the planner, so that it knows that nearly all tasks belong to one account.
fn analyze(fx: &Fixture) {
    fx.execute("ANALYZE tasks");
}

#[tokio::test(flavor = "multi_thread")]
async fn recent_tasks_of_an_account_reads_few_index_entries() -> Result<()> {
    let mut fx = Fixture::new(Backend::Postgres);
    let (ada, bob) = (fx.account("ada", 100).await?, fx.account("bob", 100_000).await?);
    let mut of_ada = [fx.submit_request(ada, Surface::Web, images(1)).await?, fx.submit(ada).await?];
    of_ada.reverse();
    // With so many tasks of bob, the planner may prefer reading all tasks to the index of accounts.
    fx.copy_task(fx.submit(bob).await?.id, 20_000);
    analyze(&fx);
    let before = entries_read(&mut fx, "tasks%").await;
    for _ in 0..10 {
        assert_eq!(fx.store.recent_tasks(Some(ada), 20).await?, of_ada);
    }
    let each = (entries_read(&mut fx, "tasks%").await - before) / 10;
    assert!(each < 20, "{each} index entries are read to find two tasks");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_reads_few_index_entries_despite_an_old_snapshot() -> Result<()> {
    const MANY: usize = 5_000;
    let mut fx = Fixture::new(Backend::Postgres);
    let ada = fx.account("ada", 100_000).await?;
    let task = fx.submit(ada).await?;
    fx.store.complete(fx.claim().await?, one_file()).await?;
    fx.copy_task(task.id, MANY - 1);
    analyze(&fx);
    fx.clock.advance(MILLISECOND);
    let before = entries_read(&mut fx, "tasks%").await;
    let reader = cluster().session().await;
    let begin =
        format!("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {}.tasks", schema(fx.directory.path()));
    reader.batch_execute(&begin).await.expect("a snapshot");
    assert_eq!(fx.store.remove_tasks(fx.clock.now()).await?, MANY);
    let each = (entries_read(&mut fx, "tasks%").await - before) / MANY as i64;
    // Each of the five batches passes over the entries of those before it, which the snapshot keeps.
    assert!(each < 8, "{each} index entries are read for each task that is removed");
    reader.batch_execute("ROLLBACK").await.expect("nothing was changed");
    assert_eq!(fx.store.audit().await?.drifts, []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reads_few_index_entries_of_tasks_that_it_cannot_take() -> Result<()> {
    let mut fx = Fixture::new(Backend::Postgres);
    let account = fx.account("ada", 100_000).await?;
    let edit = GenerateRequest { reference_images: vec!["https://pictures.example/a.png".into()], ..images(1) };
    fx.copy_task(fx.submit_request(account, Surface::Api, edit).await?.id, 1_999);
    fx.execute("ANALYZE queue");
    let before = entries_read(&mut fx, "queue%").await;
    for _ in 0..10 {
        assert_eq!(fx.store.claim_within(1, "", 0, LEASE, &[]).await?, []);
    }
    let each = (entries_read(&mut fx, "queue%").await - before) / 10;
    assert!(each < 100, "{each} index entries are read to find no task");
    Ok(())
}

/// Makes so many accounts that have no task, and tells the planner.
fn add_accounts(fx: &Fixture, many: usize) {
    fx.execute(&format!(
        "INSERT INTO accounts (id, name)
         SELECT '-' || lpad(number::text, 20, '0'), 'idle ' || number FROM generate_series(1, {many}) number"
    ));
    fx.execute("ANALYZE accounts");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_reads_few_index_entries_however_many_accounts_have_no_task() -> Result<()> {
    let mut fx = Fixture::new(Backend::Postgres);
    let ada = fx.account("ada", 100).await?;
    add_accounts(&fx, 10_000);
    let before = entries_read(&mut fx, "%").await;
    for _ in 0..10 {
        assert_eq!(fx.store.claim(1, LEASE).await?, []);
    }
    for _ in 0..10 {
        let task = fx.submit(ada).await?;
        assert_eq!(fx.claim().await?.task_id, task.id);
    }
    let each = (entries_read(&mut fx, "%").await - before) / 20;
    assert!(each < 200, "{each} index entries are read for a claim");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_claims_while_the_queue_is_paused_however_many_accounts_there_are() -> Result<()> {
    let fx = Fixture::new(Backend::Postgres);
    let ada = fx.account("ada", 100).await?;
    let task = fx.submit(ada).await?;
    for accounts in [0, 10_000] {
        add_accounts(&fx, accounts);
        fx.store.pause_queue().await?;
        assert_eq!(fx.store.claim(1, LEASE).await?, []);
        fx.store.resume_queue().await?;
    }
    assert_eq!(fx.claim().await?.task_id, task.id);
    Ok(())
}
