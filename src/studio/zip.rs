//! A download of chosen pictures as one ZIP file, which is written while it is sent. PNGs are stored as they are.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use axum::extract::Query;
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};
use futures::{SinkExt as _, channel::mpsc};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::error::PageError;
use super::gallery::first;
use super::page::secured;
use super::session::Visitor;
use crate::files::FileName;
use crate::service::Shared;
use tintype_domain::model::{Id, Status, Surface};

/// Most downloads of one account at a time. Each keeps a picture in memory.
const MAX_DOWNLOADS: usize = 4;

/// The downloads under way, by account.
#[derive(Debug, Clone, Default)]
pub(super) struct Downloads(Arc<Mutex<HashMap<Id, usize>>>);

/// A download under way, until it is dropped.
#[derive(Debug)]
struct Download {
    downloads: Downloads,
    account: Id,
}

impl Downloads {
    /// Counts one more download of an account; `None` if it has [`MAX_DOWNLOADS`].
    fn begin(&self, account: Id) -> Option<Download> {
        let mut running = self.running();
        let count = running.entry(account).or_default();
        (*count < MAX_DOWNLOADS).then(|| {
            *count += 1;
            Download { downloads: self.clone(), account }
        })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<Id, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let mut running = self.downloads.running();
        if let Some(count) = running.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.account);
            }
        }
    }
}

/// Collects what is written until it is sent.
#[derive(Debug, Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn take(&self) -> Bytes {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Sends the pictures one after the other. Nothing is read ahead of a slow reader but the next picture.
async fn write(shared: &Shared, pictures: Vec<(String, String)>, mut sender: mpsc::Sender<io::Result<Bytes>>) {
    let written = Written::default();
    let mut archive = ZipWriter::new_stream(written.clone());
    let sent = async {
        for (name, stored) in pictures {
            let Some(stored) = FileName::parse(&stored) else { continue };
            // A picture that was deleted meanwhile is left out.
            let Some(png) = shared.files.read(stored).await.map_err(io::Error::other)? else { continue };
            let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
            archive.start_file(name, options).map_err(io::Error::other)?;
            archive.write_all(&png)?;
            drop(png);
            sender.send(Ok(written.take())).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        archive.finish().map_err(io::Error::other)?;
        sender.send(Ok(written.take())).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    };
    let sent: io::Result<()> = sent.await;
    if let Err(error) = sent
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        tracing::error!(%error, "could not read a picture for a download, which ends early; see the file store");
        // The reader learns that the file is not whole.
        drop(sender.send(Err(error)).await);
    }
}

/// The pictures of chosen tasks.
pub async fn zip(visitor: Visitor, Query(query): Query<HashMap<String, String>>) -> Result<Response<Body>, PageError> {
    let account = visitor.session.person.account_id;
    let shared = visitor.studio.shared.clone();
    let Some(download) = visitor.studio.downloads.begin(account) else {
        return Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, "zip-busy"));
    };
    let mut pictures = Vec::new();
    let listed = query.get("tasks").into_iter().flat_map(|tasks| tasks.split_whitespace());
    let fields = query.keys().filter_map(|name| name.strip_prefix("task-"));
    for id in first(listed.chain(fields)) {
        let Some(record) = shared.store.find_record(account, Surface::Web, id).await? else { continue };
        let Status::Completed(names) = record.task.status else { continue };
        let day: String = record.task.id.timestamp().to_string().chars().take(10).collect();
        for (number, stored) in (1..).zip(names) {
            pictures.push((format!("{day}-{id}-{number}.png"), stored));
        }
    }
    if pictures.is_empty() {
        return Err(PageError::not_found());
    }
    let (sender, receiver) = mpsc::channel(0);
    tokio::spawn(async move {
        write(&shared, pictures, sender).await;
        drop(download);
    });
    let mut response = Response::new(Body::from_stream(receiver));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/zip"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment; filename=\"pictures.zip\""));
    Ok(secured(response))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_has_a_limited_number_of_downloads_under_way() {
        let downloads = Downloads::default();
        let [ada, eve] = ["FAAAAAAAAAAAAAAAAAAA0", "FAAAAAAAAAAAAAAAAAAA1"].map(|id| id.parse().expect("an id"));
        let mut running: Vec<_> = (0..MAX_DOWNLOADS).map(|_| downloads.begin(ada).expect("a place")).collect();
        assert!(downloads.begin(ada).is_none() && downloads.begin(eve).is_some());
        running.pop();
        let again = downloads.begin(ada).expect("the place of the one that ended");
        drop((running, again));
        assert!(downloads.running().is_empty());
    }
}
