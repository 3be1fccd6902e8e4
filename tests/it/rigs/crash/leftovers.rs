//! The files that crashes leave behind, once all sweeps have run.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use tintype::files::Files;
use tintype::service::ServiceContext;
use tintype::service::sweeper::Sweeper;
use tintype_config::ServerSettings;
use tintype_store::Reclaim;
use tintype_system::clock::Clock;
use tintype_system::data_dir::backup_lock;

use crate::rigs::binary::names_in;
use crate::rigs::installation::Installation;

/// Longer than any file without an owner stays.
const LATER: Duration = Duration::from_secs(3 * 24 * 60 * 60);

/// The files that nothing names, three days after the last process of an installation on SQLite.
pub async fn after_all_sweeps(installation: &Installation) -> Vec<String> {
    let data = &installation.data;
    let clock = Clock::manual(Clock::system().now().saturating_add(LATER));
    let settings = ServerSettings::from_flags([]).expect("valid flags");
    let store = installation.store(clock.clone()).await;
    let files = Files::on_disk(&data.join("files")).expect("a store of files").guarded_by(backup_lock(data));
    let shared = ServiceContext::new(&settings, clock.clone(), store.clone(), files, vec![data.clone()]);
    let sweeper = Sweeper::new(shared, &settings);
    sweeper.sweep(Reclaim::All).await;
    // The first round removes uploads that nobody finished, and the second one their files, after a grace.
    for _ in 0..2 {
        sweeper.sweep_uploads().await;
        sweeper.sweep_orphans(usize::MAX).await;
        clock.advance(LATER);
    }
    let named = store.completed_tasks(None, u32::MAX).await.expect("a store");
    let named: HashSet<String> = named.into_iter().flat_map(|owner| owner.images).collect();
    let mut left = names_below(&data.join("files"));
    left.retain(|name| !named.contains(name));
    // Pictures that arrive lie in files without a name.
    left.extend(names_in(data).into_iter().filter(|name| name.starts_with("upload")));
    left
}

/// The files in the folders of the days.
fn names_below(root: &Path) -> Vec<String> {
    let days = names_in(root).into_iter().filter(|day| root.join(day).is_dir());
    days.flat_map(|day| names_in(&root.join(&day)).into_iter().map(move |name| format!("{day}/{name}"))).collect()
}
