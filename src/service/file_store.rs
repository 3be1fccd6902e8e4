//! Whether the store of result files is the one that the database uses.
//!
//! Both know one random marker. An API and a worker with different local directories would otherwise complete tasks
//! whose URLs are 404.

use crate::domain::files_marker::FilesMarker;
use crate::files::{Creation, Files};
use crate::store::Store;

/// Makes sure, before anything is served, that `files` belongs to the database. A database that knows no marker, new or
/// of an earlier release, takes `files` for its own.
///
/// # Errors
/// A sentence for the operator.
pub async fn open(store: &dyn Store, files: &Files) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let known = match store.files_marker().await.map_err(|error| text(&error))? {
        Some(known) => known,
        None => {
            // The database comes second: a process that dies in between leaves a marker that the next start takes.
            let marker = find_or_create(files).await?;
            store.claim_files(marker).await.map_err(|error| text(&error))?
        }
    };
    compare(known, files).await
}

/// Whether `files` belongs to the database, without changing either; `None` as long as the database knows no marker.
///
/// # Errors
/// A sentence for the operator.
pub async fn check(store: &dyn Store, files: &Files) -> Result<Option<FilesMarker>, String> {
    let known = store.files_marker().await.map_err(|error| error.to_string())?;
    if let Some(known) = known {
        compare(known, files).await?;
    }
    Ok(known)
}

/// Makes `files` the store of the database. Its marker is new, so that a process which still uses another copy of the
/// files does not start again.
///
/// # Errors
/// A sentence for the operator. Repeating it is safe.
pub async fn adopt(store: &dyn Store, files: &Files) -> Result<FilesMarker, String> {
    let marker = FilesMarker::random();
    files.replace_marker(marker).await.map_err(|error| cannot_mark(files, &error))?;
    store.adopt_files(marker).await.map_err(|error| error.to_string())?;
    Ok(marker)
}

async fn find_or_create(files: &Files) -> Result<FilesMarker, String> {
    let find = async || files.marker().await.map_err(|error| cannot_mark(files, &error));
    if let Some(found) = find().await? {
        return Ok(found);
    }
    let new = FilesMarker::random();
    match files.create_marker(new).await.map_err(|error| cannot_mark(files, &error))? {
        Creation::Done => Ok(new),
        // Another process was quicker.
        Creation::Exists => find().await?.ok_or_else(|| cannot_mark(files, &"its marker was removed; start again")),
    }
}

async fn compare(known: FilesMarker, files: &Files) -> Result<(), String> {
    let fault = match files.marker().await {
        Ok(Some(found)) if found == known => return Ok(()),
        Ok(Some(found)) => format!("has the marker {found} of another one"),
        Ok(None) => "has no marker".into(),
        Err(error) => return Err(format!("cannot read the marker in {}: {error}", files.describe())),
    };
    Err(format!(
        "{} is not the store of result files that the database uses, whose marker is {known}: it {fault}. Point --files \
         at that store, the same one in every process. If the files were moved on purpose, run `tintype files adopt` \
         with --files at their new place",
        files.describe()
    ))
}

fn cannot_mark(files: &Files, error: &dyn std::fmt::Display) -> String {
    format!("cannot mark {} as the store of result files of this database: {error}", files.describe())
}
