//! Creates an installation from a backup.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use tokio_util::sync::CancellationToken;

use super::{Contents, DATABASE, FILES, check_not_stopped};
use crate::backup::results;
use crate::files::Files;
use tintype_config::FileBackend;
use tintype_domain::text::counted;
use tintype_store::sqlite::{self, companions, restoring};
use tintype_store::{DeleteSessions, Store};
use tintype_system::clock::Clock;
use tintype_system::data_dir;

/// Location of the new installation.
#[derive(Debug)]
pub struct Target {
    /// The data directory.
    pub data: PathBuf,
    /// The database.
    pub database: PathBuf,
    /// The result files.
    pub files: FileBackend,
}

/// Copies a backup to an empty location. The database gets its final name last, after everything else has been copied
/// and audited; until then no server starts on it. With `despite_drifts`, drifts in the ledger or the files do not stop
/// the restore.
///
/// # Errors
/// A message for the operator; nothing has been restored then.
pub async fn restore(
    from: &Path,
    target: &Target,
    despite_drifts: bool,
    progress: &ProgressBar,
    stopped: &CancellationToken,
) -> Result<Contents, String> {
    if data_dir::is_locked(&target.data).unwrap_or(false) {
        return Err(format!("a server is running on {}: stop it, or restore elsewhere", target.data.display()));
    }
    target.check_free()?;
    let inspected = inspect(from, despite_drifts, progress, stopped).await;
    check_not_stopped(stopped).map_err(|error| format!("{error}; nothing was restored"))?;
    inspected?;
    data_dir::create(&target.data)?;
    let files = target.open_files().await?;
    let _lock = data_dir::lock(&target.data, &target.database, Duration::ZERO)?;
    target.check_free()?;
    match target.fill(from, &files, despite_drifts, progress, stopped).await {
        Ok(contents) => Ok(contents),
        Err(error) => match target.clear() {
            Ok(()) => Err(format!("{error}; nothing was restored")),
            Err(left) => Err(format!("{error}; nothing was restored, but {left}: {}", target.leftovers())),
        },
    }
}

/// Checks that a directory is a complete backup, without writing anything.
async fn inspect(
    from: &Path,
    despite_drifts: bool,
    progress: &ProgressBar,
    stopped: &CancellationToken,
) -> Result<(), String> {
    let database = from.join(DATABASE);
    let found = fs::metadata(&database).map(|metadata| metadata.is_file());
    if let Err(error) = found.as_ref()
        && error.kind() != ErrorKind::NotFound
    {
        return Err(format!("cannot read the backup {}: {error}", database.display()));
    }
    if !found.is_ok_and(|is_file| is_file) {
        return Err(format!("{} is not a backup: it contains no {DATABASE}", from.display()));
    }
    if let Some(open) = companions(&database).iter().find(|path| path.exists()) {
        return Err(format!(
            "{} is not a backup but the data of a server, because {} exists: copy it with `tintype backup`",
            from.display(),
            open.display()
        ));
    }
    let damaged = |error: &dyn std::fmt::Display| format!("the backup {} is damaged: {error}", from.display());
    let (snapshot, is_current) =
        sqlite::open_for_reading(&database).map_err(|error| format!("cannot restore {}: {error}", from.display()))?;
    progress.set_message("checking the database");
    snapshot.check_integrity().map_err(|error| damaged(&error))?;
    if !is_current {
        // The audit runs after the copy has been migrated to the current schema.
        return Ok(());
    }
    let audit = snapshot.audit().await.map_err(|error| damaged(&error))?;
    results::begin(progress, "checking the result files", audit.tasks);
    let files = results_in(&from.join(FILES))?;
    let check = results::check(files.as_ref(), &snapshot, progress, stopped).await.map_err(|error| damaged(&error))?;
    let contents = Contents::new(audit, check, 0, progress);
    refuse_drifts(&contents, despite_drifts).map_err(|error| damaged(&error))
}

/// Makes database and files share a marker, so that a server starts on them. If a bucket already has the marker of
/// another database, this database adopts that marker, and both use the bucket.
async fn mark(store: &Store, files: &Files) -> Result<(), String> {
    let known = store.files_marker().await.map_err(|error| error.to_string())?;
    match (known, files.marker().await.map_err(|error| error.to_string())?) {
        (_, Some(found)) => store.adopt_files(found).await.map_err(|error| error.to_string()),
        (Some(known), None) => files.create_marker(known).await.map(drop).map_err(|error| error.to_string()),
        // A backup of an earlier release has no marker; the first start creates one.
        (None, None) => Ok(()),
    }
}

fn results_in(directory: &Path) -> Result<Option<Files>, String> {
    directory.is_dir().then(|| Files::on_disk(directory)).transpose().map_err(|error| error.to_string())
}

fn refuse_drifts(contents: &Contents, despite_drifts: bool) -> Result<(), String> {
    let Some(first) = contents.drifts.first().filter(|_| !despite_drifts) else { return Ok(()) };
    let task = first.task_id.map(|id| format!(", task {id}")).unwrap_or_default();
    let count = contents.drifts.len() as u64 + contents.drifts_left_out;
    Err(format!(
        "{}, the first in account {}{task}: {}; use --despite-drifts to restore it anyway",
        counted(count, "drift", "drifts"),
        first.account_id,
        first.fault
    ))
}

impl Target {
    fn check_free(&self) -> Result<(), String> {
        if self.database.exists() {
            return Err(format!(
                "there is a database at {} already: move it away, or restore elsewhere with --data",
                self.database.display()
            ));
        }
        if restoring(&self.database).exists() {
            return Err(format!("a restore to {} did not finish: {}", self.database.display(), self.leftovers()));
        }
        if let Some(stale) = companions(&self.database).iter().find(|path| path.exists()) {
            return Err(format!("{} belongs to another database: move it away", stale.display()));
        }
        let inside = self.inside_files().map_err(|error| format!("cannot use {}: {error}", self.files))?;
        if inside.is_empty() {
            return Ok(());
        }
        Err(format!("there are files in {} already: move them away, or restore elsewhere with --files", self.files))
    }

    /// Opens the destination of the result files; creates the directory.
    async fn open_files(&self) -> Result<Files, String> {
        if let FileBackend::Directory(directory) = &self.files {
            data_dir::create(directory)?;
        }
        let files = Files::on_backend(&self.files).map_err(|error| error.to_string())?;
        files.check_access().await.map(|()| files)
    }

    /// Lists the directory of result files, except `lost+found`. A bucket may contain anything: file names are unique,
    /// and a restore overwrites nothing there.
    fn inside_files(&self) -> io::Result<Vec<PathBuf>> {
        let FileBackend::Directory(directory) = &self.files else { return Ok(Vec::new()) };
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let paths: io::Result<Vec<PathBuf>> = entries.map(|entry| Ok(entry?.path())).collect();
        Ok(paths?.into_iter().filter(|path| !path.ends_with("lost+found")).collect())
    }

    async fn fill(
        &self,
        from: &Path,
        files: &Files,
        despite_drifts: bool,
        progress: &ProgressBar,
        stopped: &CancellationToken,
    ) -> Result<Contents, String> {
        let staged = restoring(&self.database);
        let text = |error: &dyn std::fmt::Display| error.to_string();
        progress.set_message("copying the database");
        results::copy_whole(&from.join(DATABASE), &staged)?;
        results::sync_directory(data_dir::directory_of(&staged))?;
        check_not_stopped(stopped)?;
        let store = sqlite::open(&staged, Clock::system()).map_err(|error| text(&error))?;
        store.check_integrity().map_err(|error| text(&error))?;
        store.delete_sessions(DeleteSessions::All).await.map_err(|error| text(&error))?;
        let audit = store.audit().await.map_err(|error| text(&error))?;
        results::begin(progress, "copying result files", audit.tasks);
        results::copy(results_in(&from.join(FILES))?.as_ref(), files, &store, progress, stopped).await?;
        results::begin(progress, "checking the copy", audit.tasks);
        let check = results::check(Some(files), &store, progress, stopped).await?;
        mark(&store, files).await?;
        // Closing the database checkpoints its log.
        drop(store);
        let unwritable = |error: io::Error| format!("cannot write {}: {error}", self.database.display());
        let database = fs::File::open(&staged).map_err(unwritable)?;
        database.sync_all().map_err(unwritable)?;
        let bytes = database.metadata().map_err(unwritable)?.len();
        let contents = Contents::new(audit, check, bytes, progress);
        refuse_drifts(&contents, despite_drifts)?;
        if let Some(log) = companions(&staged).iter().find(|path| path.exists()) {
            return Err(format!("the database could not be closed: {} still exists", log.display()));
        }
        fs::rename(&staged, &self.database).map_err(unwritable)?;
        results::sync_directory(data_dir::directory_of(&self.database))?;
        Ok(contents)
    }

    /// Removes everything that a failed restore has written.
    fn clear(&self) -> Result<(), String> {
        for path in self.inside_files().unwrap_or_default() {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(|error| format!("{} could not be removed ({error})", path.display()))?;
        }
        let staged = restoring(&self.database);
        for path in companions(&staged).into_iter().chain([staged]) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(format!("{} could not be removed ({error})", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Advice after an interrupted restore. Files that it put into a bucket are reused by the next one.
    fn leftovers(&self) -> String {
        let staged = restoring(&self.database);
        match &self.files {
            FileBackend::Directory(files) => {
                format!("remove {}* and the contents of {}, then restore again", staged.display(), files.display())
            }
            FileBackend::Bucket(_) => format!("remove {}*, then restore again", staged.display()),
        }
    }
}
