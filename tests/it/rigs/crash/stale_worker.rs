//! A worker that is stopped until its lease has expired, and then resumed.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tintype::files::Files;
use tintype_domain::model::FailureCause;
use tintype_engine::picture::Picture;
use tintype_store::sqlite;
use tintype_store::{LeaseWrite, Reclaim, Result, Store};
use tintype_system::clock::Clock;

use super::Tally;
use super::process_run::{LEASE, ProcessRun};

/// Limit of tasks taken over from a stopped worker.
const TAKEN: usize = 16;
/// Time limit for the resumed worker to notice that it lost its lease.
const PATIENCE: Duration = Duration::from_secs(20);

/// The store as another process opens it.
pub fn store_beside(data: &Path, clock: Clock) -> Store {
    sqlite::open(&data.join("tintype.db"), clock).expect("a database")
}

/// Takes over the tasks of a stopped worker, ends them, and resumes the worker.
pub async fn resume(run: &ProcessRun, tally: &mut Tally) {
    let later = Clock::system().now().saturating_add(2 * LEASE);
    let taken = take_over(&run.data, later).await;
    run.signal("CONT");
    tally.stale_workers += 1;
    match taken {
        Ok(taken) if taken > 0 => {
            tally.stale_writes_attempted += 1;
            run.wait_until(PATIENCE, |run| run.logged("lease lost").is_some()).await;
            tally.stale_writes_refused += u32::from(run.logged("lease lost").is_some());
        }
        // The worker may have been stopped within a transaction, whose lock no other process can take over.
        _ => {}
    }
}

async fn take_over(data: &Path, now: tintype_system::clock::Timestamp) -> Result<usize> {
    let store = store_beside(data, Clock::manual(now));
    let files = Files::on_disk(&data.join("files")).expect("a directory");
    store.reclaim(Reclaim::Expired, "It was lost too often.").await?;
    let claims = store.claim(TAKEN, LEASE).await?;
    let png = Picture::from_rgb(1, 1, vec![0; 3]).expect("a picture").to_png();
    for (index, claim) in claims.iter().enumerate() {
        let done = if index % 3 == 2 {
            store.fail(claim.lease, FailureCause::Engine, "Another worker failed it.").await?
        } else {
            let mut images = Vec::new();
            for image in 0..claim.request.n {
                images.push(
                    files.write(claim.lease.task_id, image.into(), Bytes::from(png.clone())).await.expect("a file"),
                );
            }
            store.complete(claim.lease, images).await?
        };
        assert_eq!(done, LeaseWrite::Done);
    }
    Ok(claims.len())
}
