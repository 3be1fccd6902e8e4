//! Checks and copies result files in a bucket, many at the same time.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use object_store::{GetRange, GetResult};
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use super::directory::create;
use super::{END, ResultFile, judge, not_copied};
use crate::files::{FileName, Files, SIGNATURE};

const CONCURRENCY: usize = 16;

/// Applies `work` to every file concurrently; returns the results in order.
pub(super) async fn concurrently<T>(
    results: Vec<ResultFile>,
    work: impl AsyncFn(&ResultFile) -> Result<T, String>,
) -> Result<Vec<(ResultFile, T)>, String> {
    let work = &work;
    let works = results.into_iter().map(|file| async move { work(&file).await.map(|outcome| (file, outcome)) });
    stream::iter(works).buffered(CONCURRENCY).try_collect().await
}

/// Returns the size of a PNG, or its fault.
pub(super) async fn examine(files: &Files, file: &ResultFile) -> Result<u64, String> {
    let name = file.name()?;
    let missing = || "is missing".to_owned();
    let unreadable = |error: &dyn std::fmt::Display| format!("cannot be read: {error}");
    let size = files.size(name).await.map_err(|error| unreadable(&error))?.ok_or_else(missing)?;
    if size < (SIGNATURE.len() + END.len()) as u64 {
        return judge(size, &[], &[]);
    }
    let part = async |range| {
        let part = files.open(name, Some(range)).await.map_err(|error| unreadable(&error))?.ok_or_else(missing)?;
        part.bytes().await.map_err(|error| unreadable(&error))
    };
    let signature = part(GetRange::Bounded(0..SIGNATURE.len() as u64)).await?;
    let end = part(GetRange::Bounded(size - END.len() as u64..size)).await?;
    judge(size, &signature, &end)
}

/// Copies a file durably into the directory `to`. The caller must sync the returned directory.
pub(super) async fn download(files: &Files, file: &ResultFile, to: &Path) -> Result<Option<PathBuf>, String> {
    let Some((name, found)) = open(files, file).await else { return Ok(None) };
    let path = to.join(name.as_str());
    let unwritable = |error: std::io::Error| format!("cannot write {}: {error}", path.display());
    let day = path.parent().map(Path::to_owned);
    let Some(target) = create(&path).map_err(unwritable)? else { return Ok(day) };
    let mut target = File::from_std(target);
    let mut body = found.into_stream();
    loop {
        match body.try_next().await {
            Ok(Some(bytes)) => target.write_all(&bytes).await.map_err(unwritable)?,
            Ok(None) => break,
            Err(error) => {
                not_copied(file, &error.to_string());
                std::fs::remove_file(&path).map_err(unwritable)?;
                return Ok(None);
            }
        }
    }
    target.sync_all().await.map_err(unwritable)?;
    Ok(day)
}

/// Copies a file into a bucket. An existing file of that name is the same file, because names are unique.
pub(super) async fn upload(files: &Files, file: &ResultFile, to: &Files) -> Result<Option<PathBuf>, String> {
    let Some((name, found)) = open(files, file).await else { return Ok(None) };
    let bytes: Bytes = match found.bytes().await {
        Ok(bytes) => bytes,
        Err(error) => {
            not_copied(file, &error.to_string());
            return Ok(None);
        }
    };
    let created = to.create(name, bytes).await;
    created.map(|_| None).map_err(|error| format!("cannot write {} to {}: {error}", name.as_str(), to.describe()))
}

/// Opens a file to copy; logs a warning if that fails.
async fn open<'a>(files: &Files, file: &'a ResultFile) -> Option<(FileName<'a>, GetResult)> {
    let found = match file.name() {
        Ok(name) => match files.open(name, None).await {
            Ok(Some(found)) => return Some((name, found)),
            Ok(None) => "is missing".to_owned(),
            Err(error) => error.to_string(),
        },
        Err(fault) => fault,
    };
    not_copied(file, &found);
    None
}
