//! Downloads of pictures, which are named after their prompts: one, or chosen ones as a ZIP file, which is written
//! while it is sent.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display, Formatter};
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query};
use axum::http::header::{self, HeaderValue};
use axum::http::{Response, StatusCode};
use futures::channel::mpsc;
use futures::{SinkExt as _, StreamExt as _, stream};
use object_store::GetRange;
use serde::Deserialize;
use zip::CompressionMethod;
use zip::write::{PreparedZipFile, SimpleFileOptions, ZipWriter};

use super::gallery::first;
use super::picture_files::{PNG_HEADER, PictureFile};
use crate::files::FileName;
use crate::service::ServiceContext;
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{file, redirect, utc};
use crate::studio::session::{Form, Visitor};
use tintype_domain::model::{Id, Status, Surface};
use tintype_domain::timestamp::Timestamp;
use tintype_store::TaskRecord;
use tintype_system::locked::Locked as _;

/// Most downloads of one account at a time. Each keeps a picture in memory.
pub(in crate::studio) const MAX_DOWNLOADS: usize = 4;

/// Collects output until it is sent.
#[derive(Debug, Clone, Default)]
struct Unsent(Arc<Mutex<Vec<u8>>>);

impl Unsent {
    fn take(&self) -> Bytes {
        std::mem::take(&mut *self.0.locked()).into()
    }
}

impl Write for Unsent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.locked().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The table of the pictures in a ZIP file.
const TABLE: &str = "pictures.csv";

/// A picture to send. A prompt can be long, so none is kept until its turn comes.
struct Chosen {
    task: Id,
    /// Its place among the pictures of the task, from 0.
    index: usize,
    name: String,
}

impl Chosen {
    /// The picture; `None` if its task was deleted.
    async fn find(&self, shared: &ServiceContext, account: Id) -> io::Result<Option<PictureFile>> {
        let mut pictures = pictures_of(shared, account, self.task).await.map_err(io::Error::other)?;
        let is_there = self.index < pictures.len();
        Ok(is_there.then(|| pictures.swap_remove(self.index)))
    }
}

/// Sends the pictures one after the other, followed by a table of them, while the session lasts. Only the next picture
/// is read ahead of a slow reader.
async fn write(visitor: &Visitor, pictures: Vec<Chosen>, details: bool, mut sender: mpsc::Sender<io::Result<Bytes>>) {
    let (shared, account) = (&visitor.studio.shared, visitor.account_id());
    let mut listed = Vec::new();
    // PNGs hardly shrink, but streaming readers, such as those of macOS and Java, cannot read a stored entry whose
    // length comes after it.
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
    let fast = options.compression_level(Some(1));
    let written = Unsent::default();
    let mut archive = ZipWriter::new_stream(written.clone());
    let sent = async {
        for chosen in pictures {
            check_session(visitor).await?;
            // A picture that was deleted meanwhile is left out.
            let Some(picture) = chosen.find(shared, account).await? else { continue };
            let Some(png) = read(shared, &picture, details).await? else { continue };
            let (name, fast) = (chosen.name.clone(), dated(fast, picture.created_at));
            let packing = tokio::task::spawn_blocking(move || PreparedZipFile::from_data(name, fast, &png));
            let packed = packing.await.map_err(io::Error::other)?.map_err(io::Error::other)?;
            archive.add_prepared_file(packed).map_err(io::Error::other)?;
            listed.push(chosen);
            sender.send(Ok(written.take())).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        archive.start_file(TABLE, dated(options, shared.clock.now())).map_err(io::Error::other)?;
        archive.write_all(PictureFile::csv_header().as_bytes())?;
        for chosen in listed {
            check_session(visitor).await?;
            let Some(picture) = chosen.find(shared, account).await? else { continue };
            archive.write_all(picture.csv_line(&chosen.name).as_bytes())?;
            sender.send(Ok(written.take())).await.map_err(|_| io::ErrorKind::BrokenPipe)?;
        }
        archive.finish().map_err(io::Error::other)?;
        sender.send(Ok(written.take())).await.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    };
    let sent: io::Result<()> = sent.await;
    if let Err(error) = sent
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        match error.kind() {
            io::ErrorKind::PermissionDenied => tracing::info!("a download ended early, because its session has ended"),
            _ => {
                tracing::error!(%error, "could not read a picture for a download, which ends early; see the file store")
            }
        }
        // The reader learns that the file is not whole.
        drop(sender.send(Err(error)).await);
    }
}

/// The options of a file of this time in UTC, which is all that a ZIP file can say without an extension. It cannot
/// name a time before 1980 or after 2107.
fn dated(options: SimpleFileOptions, at: Timestamp) -> SimpleFileOptions {
    let date = utc(at).and_then(|at| {
        let [month, day, hour, minute, second] =
            [at.month(), at.day(), at.hour(), at.minute(), at.second()].map(i8::unsigned_abs);
        zip::DateTime::from_date_and_time(at.year().try_into().ok()?, month, day, hour, minute, second).ok()
    });
    date.map_or(options, |date| options.last_modified_time(date))
}

/// An error once the session has ended.
async fn check_session(visitor: &Visitor) -> io::Result<()> {
    if visitor.has_session().await.map_err(io::Error::other)? {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// The bytes of a picture, with its `details` on request; `None` if it was deleted.
async fn read(shared: &ServiceContext, picture: &PictureFile, details: bool) -> io::Result<Option<Bytes>> {
    let Some(stored) = FileName::parse(&picture.stored) else { return Ok(None) };
    let Some(png) = shared.files.read(stored).await.map_err(io::Error::other)? else { return Ok(None) };
    if !details {
        return Ok(Some(png));
    }
    picture.with_details(&png).map(|png| Some(png.into())).map_err(io::Error::other)
}

async fn pictures_of(shared: &ServiceContext, account: Id, task: Id) -> tintype_store::Result<Vec<PictureFile>> {
    let found = shared.store.find_record(account, Surface::Web, task).await?;
    let of = |TaskRecord { task, request, .. }: &TaskRecord| match &task.status {
        Status::Completed(stored) => PictureFile::of(task, request, stored),
        _ => Vec::new(),
    };
    Ok(found.as_ref().map(of).unwrap_or_default())
}

/// A header that makes a browser keep a file under this name (RFC 6266).
fn attachment(name: &str) -> HeaderValue {
    let encoded: String = url::form_urlencoded::byte_serialize(name.as_bytes()).collect();
    HeaderValue::try_from(format!("attachment; filename*=UTF-8''{encoded}")).expect("an encoded name is ASCII")
}

/// Whether a download embeds details.
#[derive(Debug, Deserialize)]
pub struct DownloadQuery {
    details: Option<String>,
}

/// One picture of a task.
pub async fn picture(
    visitor: Visitor,
    Path((task, number)): Path<(String, String)>,
    Query(query): Query<DownloadQuery>,
) -> PageResult {
    let (account, shared) = (visitor.account_id(), &visitor.studio.shared);
    let (task, number): (Id, usize) = task.parse().ok().zip(number.parse().ok()).ok_or_else(PageError::not_found)?;
    let pictures = pictures_of(shared, account, task).await?;
    let picture = number.checked_sub(1).and_then(|index| pictures.get(index)).ok_or_else(PageError::not_found)?;
    let name = FileName::parse(&picture.stored).ok_or_else(PageError::not_found)?;
    let (mut head, mut from) = (Vec::new(), 0);
    if query.details.is_some() {
        from = PNG_HEADER;
        let header = shared.files.open(name, Some(GetRange::Bounded(0..from))).await?;
        let header = header.ok_or_else(PageError::not_found)?.bytes().await.map_err(PageError::caused_by)?;
        head = picture.with_details(&header)?;
    }
    let mut response = stream_file(shared, name, head, from).await?;
    response.headers_mut().insert(header::CONTENT_DISPOSITION, attachment(&picture.name));
    Ok(response)
}

/// A picture that the caller may see: these bytes, and then its file from an offset on.
pub(super) async fn stream_file(shared: &ServiceContext, name: FileName<'_>, head: Vec<u8>, from: u64) -> PageResult {
    let rest = shared.files.open(name, (from > 0).then_some(GetRange::Offset(from))).await?;
    let rest = rest.ok_or_else(PageError::not_found)?;
    let length = rest.meta.size - from + head.len() as u64;
    let head = stream::iter((!head.is_empty()).then(|| Ok(Bytes::from(head))));
    let mut response = file("image/png", Body::from_stream(head.chain(rest.into_stream())));
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    Ok(response)
}

/// All pictures of a task, or one of them by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Part {
    task: Id,
    number: Option<usize>,
}

impl FromStr for Part {
    type Err = ();

    /// `ID` or `ID/NUMBER`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (task, number) = text.split_once('/').map_or((text, None), |(task, number)| (task, Some(number)));
        let number = number.map(str::parse).transpose().map_err(drop)?;
        Ok(Self { task: task.parse().map_err(drop)?, number })
    }
}

impl Display for Part {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.number {
            Some(number) => write!(f, "{}/{number}", self.task),
            None => self.task.fmt(f),
        }
    }
}

/// Leads to chosen pictures. The form is not sent by GET, because its URL would hold the form's secret.
pub async fn zip_chosen(form: Form) -> Response<Body> {
    let named = form.fields.names().filter_map(|name| name.strip_prefix("task-").or(name.strip_prefix("picture-")));
    let tasks: Vec<String> = first::<Part>(named).iter().map(Part::to_string).collect();
    let details = if form.fields.get("details").is_some() { "&details=1" } else { "" };
    redirect(&format!("/studio/gallery.zip?tasks={}{details}", tasks.join("+")))
}

/// Chosen pictures.
pub async fn zip(visitor: Visitor, Query(query): Query<HashMap<String, String>>) -> PageResult {
    let account = visitor.account_id();
    let shared = visitor.studio.shared.clone();
    let Ok(download) = visitor.studio.downloads.try_take(Some(account)) else {
        return Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, "zip-busy"));
    };
    let (mut pictures, mut of_one) = (Vec::new(), String::new());
    let parts: Vec<Part> = first(query.get("tasks").into_iter().flat_map(|tasks| tasks.split_whitespace()));
    for Part { task, number } in parts {
        for (index, picture) in pictures_of(&shared, account, task).await?.into_iter().enumerate() {
            if number.is_none_or(|number| number == index + 1) {
                of_one = picture.stem();
                pictures.push(Chosen { task, index, name: picture.name });
            }
        }
    }
    make_unique(&mut pictures);
    if pictures.is_empty() {
        return Err(PageError::new(StatusCode::NOT_FOUND, "zip-none"));
    }
    let details = query.contains_key("details");
    let is_one = pictures.iter().all(|picture| picture.task == pictures[0].task);
    let name = if is_one { format!("{of_one}.zip") } else { "pictures.zip".into() };
    let (sender, receiver) = mpsc::channel(0);
    tokio::spawn(async move {
        write(&visitor, pictures, details, sender).await;
        drop(download);
    });
    let mut response = file("application/zip", Body::from_stream(receiver));
    response.headers_mut().insert(header::CONTENT_DISPOSITION, attachment(&name));
    Ok(response)
}

/// Numbers names that several pictures have.
fn make_unique(pictures: &mut [Chosen]) {
    let mut taken = HashSet::new();
    for picture in pictures {
        let stem = picture.name.trim_end_matches(".png").to_owned();
        let mut names = std::iter::once(picture.name.clone()).chain((2..).map(|count| format!("{stem} ({count}).png")));
        picture.name = names.find(|name| taken.insert(name.clone())).expect("numbers do not end");
    }
}
