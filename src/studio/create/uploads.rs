//! Uploaded pictures, and thumbnails of all pictures.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::{FromRequest as _, Path, Query, Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use serde::Deserialize;

use crate::files::FileName;
use crate::service::thumbnails::{ThumbnailError, size};
use crate::service::uploads::{Refusal, UploadError, UploadInProgress};
use crate::studio::Studio;
use crate::studio::cards::{name_of, url};
use crate::studio::error::{HasOwnBody, PageError, PageResult};
use crate::studio::image_bodies::{ImageBody, Stopped, announced};
use crate::studio::page::{Cursor, Frame, done, file, html, last_of_page, secured};
use crate::studio::references::{self, Found};
use crate::studio::session::{Fields, Form, PROOF, PendingVisitor, Visitor};
use tintype_config::{MAX_BODY, MAX_UPLOAD, MAX_UPLOADS, UPLOAD_TIME_LIMIT};
use tintype_domain::model::{Id, Status, Surface};
use tintype_domain::multipart::{Multipart, Piece};
use tintype_domain::person::Role;
use tintype_domain::request::MAX_REFERENCES;
use tintype_domain::stored_reference::StoredReference;
use tintype_store::{TaskRecord, Upload};

const PAGE: u32 = 48;

impl From<UploadError> for PageError {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Refused(refusal) => refused(refusal),
            UploadError::Store(error) => error.into(),
            other => Self::caused_by(other),
        }
    }
}

impl From<ThumbnailError> for PageError {
    fn from(error: ThumbnailError) -> Self {
        Self::caused_by(error)
    }
}

fn refused(refusal: Refusal) -> PageError {
    let (status, text) = match refusal {
        Refusal::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "upload-too-large"),
        Refusal::TooMany => (StatusCode::UNPROCESSABLE_ENTITY, "upload-too-many"),
        Refusal::Busy => (StatusCode::TOO_MANY_REQUESTS, "upload-busy"),
        Refusal::TooManyRejected => (StatusCode::TOO_MANY_REQUESTS, "upload-too-many-rejected"),
        Refusal::NoCredits => (StatusCode::UNPROCESSABLE_ENTITY, "upload-no-credits"),
        Refusal::DiskFull => (StatusCode::SERVICE_UNAVAILABLE, "upload-disk-full"),
        Refusal::NotAPicture | Refusal::NoAlpha => (StatusCode::UNPROCESSABLE_ENTITY, "upload-not-a-picture"),
        Refusal::EmptyMask => (StatusCode::UNPROCESSABLE_ENTITY, "mask-empty"),
    };
    PageError::new(status, text)
}

impl From<Stopped> for PageError {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::TooSlow => Self::new(StatusCode::REQUEST_TIMEOUT, "error-request"),
            Stopped::EndedEarly => Self::bad_request(),
            Stopped::TooLarge => refused(Refusal::TooLarge),
        }
    }
}

fn arriving(studio: &Studio, body: Body, most: u64) -> ImageBody {
    ImageBody::new(body, studio.connections.body_idle, &studio.shared.clock, most)
}

#[derive(Debug, Deserialize)]
struct UploadQuery {
    /// The picture of the account that the upload is a painted mask for.
    mask_of: Option<String>,
}

/// Takes one picture, or a painted mask: the body is the file. Everything about the person is checked before it is read.
pub async fn upload(State(studio): State<Arc<Studio>>, request: Request) -> PageResult {
    let (parts, body) = request.into_parts();
    let pending = PendingVisitor::of(&parts, &studio).await?;
    pending.check_csrf_token(parts.headers.get("x-proof").and_then(|proof| proof.to_str().ok()))?;
    pending.require(Role::Member)?;
    let receiving = receive(&studio, &pending, &parts, body);
    let received = tokio::time::timeout(UPLOAD_TIME_LIMIT, receiving).await;
    let visitor = pending.arrived().await?;
    visitor.require(Role::Member)?;
    let received = received.map_err(|_| PageError::new(StatusCode::REQUEST_TIMEOUT, "error-request"))?;
    let (status, answer) = match received {
        Ok(upload) => (StatusCode::OK, StoredReference::Upload(upload.id).to_string()),
        Err(error) if is_refusal(&error) => (error.status, visitor.texts.get(error.text)),
        Err(error) => return Err(error),
    };
    let mut response = secured(Response::new(Body::from(answer)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.extensions_mut().insert(HasOwnBody);
    Ok(response)
}

async fn receive(
    studio: &Arc<Studio>,
    pending: &PendingVisitor<'_>,
    parts: &Parts,
    body: Body,
) -> Result<Upload, PageError> {
    let Query(UploadQuery { mask_of }) = Query::try_from_uri(&parts.uri).map_err(|_| PageError::bad_request())?;
    let masked = match mask_of {
        Some(reference) => Some(masked(studio, pending.account_id(), &reference).await?),
        None => None,
    };
    let announced = announced(&parts.headers);
    let mut incoming = studio.uploads.begin(pending.upload(), pending.right(), announced).await?;
    // The upload itself is limited.
    let mut arriving = arriving(studio, body, u64::MAX);
    while let Some(bytes) = arriving.next().await? {
        incoming.write(bytes).await?;
    }
    Ok(match masked {
        Some(picture) => incoming.finish_mask((picture.width, picture.height)).await?,
        None => incoming.finish().await?,
    })
}

async fn masked(studio: &Studio, account: Id, reference: &str) -> Result<Found, PageError> {
    let reference = StoredReference::parse(reference).ok_or_else(PageError::bad_request)?;
    let found = references::find(&studio.shared.store, account, reference).await?;
    found.ok_or_else(|| PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "mask-unfit"))
}

/// Reads the form of the first page, which a browser without the script sends with its files. The files are stored and stand
/// among the references afterwards.
pub(in crate::studio) async fn form(
    studio: &Arc<Studio>,
    request: Request,
) -> Result<(Form, Option<&'static str>), PageError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let Some(reader) = Multipart::new(kind) else {
        return Ok((Form::from_request(request, studio).await?, None));
    };
    let (parts, body) = request.into_parts();
    let pending = PendingVisitor::of(&parts, studio).await?;
    pending.require(Role::Member)?;
    let most = MAX_UPLOAD * MAX_REFERENCES as u64 + 2 * MAX_BODY as u64;
    if announced(&parts.headers).is_some_and(|bytes| bytes > most) {
        return Err(PageError::from(UploadError::from(Refusal::TooLarge)));
    }
    let reading = Reading::new(studio, &pending).read(reader, arriving(studio, body, most));
    let read = tokio::time::timeout(UPLOAD_TIME_LIMIT, reading).await;
    let (fields, refusal) = read.map_err(|_| PageError::new(StatusCode::REQUEST_TIMEOUT, "error-request"))??;
    pending.check_csrf_token(fields.get(PROOF))?;
    let visitor = pending.arrived().await?;
    Ok((Form { visitor, fields, headers: parts.headers }, refusal))
}

/// A form with files that is being read.
struct Reading<'a> {
    studio: &'a Studio,
    pending: &'a PendingVisitor<'a>,
    fields: HashMap<String, String>,
    part: Part,
    /// Bytes in all fields, including their names.
    bytes: usize,
    uploads: Vec<Upload>,
}

enum Part {
    Field(String, Vec<u8>),
    /// A file, from its first byte on: a browser sends an empty one where no file was chosen.
    File(Option<Box<UploadInProgress>>),
}

impl<'a> Reading<'a> {
    fn new(studio: &'a Studio, pending: &'a PendingVisitor<'a>) -> Self {
        Self { studio, pending, fields: HashMap::new(), part: Part::File(None), bytes: 0, uploads: Vec::new() }
    }

    /// Reads the whole form, or as far as a file that is refused, and says why it was.
    async fn read(
        mut self,
        mut reader: Multipart,
        mut arriving: ImageBody,
    ) -> Result<(Fields, Option<&'static str>), PageError> {
        loop {
            while let Some(piece) = reader.next_piece().map_err(|_| PageError::bad_request())? {
                let is_end = piece == Piece::End;
                match self.take(piece).await {
                    Err(error) if is_refusal(&error) => return Ok((self.into_fields(), Some(error.text))),
                    taken => taken?,
                }
                if is_end {
                    return Ok((self.into_fields(), None));
                }
            }
            let bytes = arriving.next().await?.ok_or_else(PageError::bad_request)?;
            reader.push(&bytes);
        }
    }

    async fn take(&mut self, piece: Piece) -> Result<(), PageError> {
        match (piece, &mut self.part) {
            (Piece::Data(data), Part::Field(_, value)) => {
                self.bytes += data.len();
                value.extend_from_slice(&data);
            }
            (Piece::Data(data), Part::File(Some(incoming))) => incoming.write(data).await?,
            (Piece::Data(data), Part::File(None)) => {
                self.pending.check_csrf_token(self.fields.get(PROOF).map(String::as_str))?;
                if self.uploads.len() >= MAX_REFERENCES {
                    return Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "upload-four"));
                }
                let (upload, right) = (self.pending.upload(), self.pending.right());
                let mut incoming = self.studio.uploads.begin(upload, right, None).await?;
                incoming.write(data).await?;
                self.part = Part::File(Some(Box::new(incoming)));
            }
            (Piece::Part { name, is_file }, _) => {
                self.bytes += name.len();
                self.finish_part().await?;
                self.part = if is_file { Part::File(None) } else { Part::Field(name, Vec::new()) };
            }
            (Piece::End, _) => self.finish_part().await?,
        }
        if self.bytes > MAX_BODY { Err(PageError::bad_request()) } else { Ok(()) }
    }

    async fn finish_part(&mut self) -> Result<(), PageError> {
        match std::mem::replace(&mut self.part, Part::File(None)) {
            Part::Field(name, value) => {
                let value = String::from_utf8(value).map_err(|_| PageError::bad_request())?;
                self.fields.insert(name, value);
            }
            Part::File(Some(incoming)) => self.uploads.push(incoming.finish().await?),
            Part::File(None) => {}
        }
        Ok(())
    }

    /// The fields, with the uploads among the references.
    fn into_fields(mut self) -> Fields {
        let references = self.fields.entry("references".into()).or_default();
        for upload in &self.uploads {
            if !references.is_empty() && !references.ends_with('\n') {
                references.push('\n');
            }
            references.push_str(&StoredReference::Upload(upload.id).to_string());
        }
        Fields::of(self.fields)
    }
}

/// Whether the person can do something about an error of an upload.
fn is_refusal(error: &PageError) -> bool {
    error.text.starts_with("upload-") || error.text.starts_with("mask-")
}

struct ListedUpload {
    id: Id,
    reference: String,
    url: String,
    width: u32,
    height: u32,
    is_mask: bool,
    /// Name of the person who uploaded it, if the account has several people and it is known: empty for a former
    /// member.
    author: Option<String>,
    deletes: bool,
}

#[derive(Template)]
#[template(path = "uploads.html")]
struct UploadsPage<'a> {
    frame: Frame<'a>,
    uploads: Vec<ListedUpload>,
    older: Option<Id>,
    most: i64,
}

/// The uploads of the account.
pub async fn uploads(visitor: Visitor, Query(cursor): Query<Cursor>) -> PageResult {
    let before = cursor.before()?;
    let (studio, account) = (&visitor.studio, visitor.account_id());
    let mut found = studio.shared.store.list_uploads(account, Surface::Web, before, PAGE + 1).await?;
    let older = last_of_page(&mut found, PAGE).map(|upload| upload.id);
    let people = studio.shared.store.list_people(Some(account)).await?;
    let several = people.len() > 1;
    let mut uploads = Vec::with_capacity(found.len());
    for Upload { id, picture, person_id, is_mask, .. } in found {
        let (width, height) = size((picture.width, picture.height));
        let url = url(&visitor, &picture.name).await?;
        let reference = StoredReference::Upload(id).to_string();
        let author = person_id.filter(|_| several).map(|id| name_of(&people, id));
        let deletes = visitor.can_create() && visitor.author_filter().is_none_or(|own| person_id == Some(own));
        uploads.push(ListedUpload { id, reference, url, width, height, is_mask, author, deletes });
    }
    let frame = Frame::new("uploads", &visitor).await?;
    html(&UploadsPage { frame, uploads, older, most: i64::from(MAX_UPLOADS) })
}

/// Removes an upload: a member's own, anyone's for an owner.
pub async fn remove(Path(id): Path<String>, form: Form) -> PageResult {
    form.visitor.check_can_change()?;
    let id: Id = id.parse()?;
    let (account, author) = (form.visitor.account_id(), form.visitor.author_filter());
    let store = form.visitor.store();
    if !store.remove_upload(account, Surface::Web, id, author).await? {
        return Err(match store.find_upload(account, Surface::Web, id).await? {
            Some(_) => PageError::forbidden("upload-refused"),
            None => PageError::not_found(),
        });
    }
    tracing::info!(upload = %id, %account, person = %form.visitor.person_id(), "upload removed");
    Ok(done(&form, "/studio/uploads"))
}

/// The thumbnail of an upload.
pub async fn upload_thumbnail(visitor: Visitor, Path(id): Path<String>) -> PageResult {
    let id: Id = id.parse()?;
    let account = visitor.account_id();
    let found = visitor.studio.shared.store.find_upload(account, Surface::Web, id).await?;
    thumbnail(&visitor.studio, account, &found.ok_or_else(PageError::not_found)?.picture.name).await
}

/// The thumbnail of a picture of a task.
pub async fn result_thumbnail(visitor: Visitor, Path((id, number)): Path<(String, String)>) -> PageResult {
    let id: Id = id.parse()?;
    let number: usize = number.parse().map_err(|_| PageError::not_found())?;
    let account = visitor.account_id();
    let record = visitor.studio.shared.store.inspect_task(id).await?;
    // Pictures in the bin are shown there.
    let is_seen = |record: &TaskRecord| match record.removed_at {
        None => true,
        // What was erased has no prompt.
        Some(_) if record.request.prompt.is_empty() => false,
        Some(_) => {
            visitor.can_create() && visitor.author_filter().is_none_or(|author| record.person_id == Some(author))
        }
    };
    let own = record.filter(|found| found.task.account_id == account && found.task.surface == Surface::Web);
    let Some(Status::Completed(names)) = own.filter(is_seen).map(|record| record.task.status) else {
        return Err(PageError::not_found());
    };
    let name = number.checked_sub(1).and_then(|index| names.get(index)).ok_or_else(PageError::not_found)?;
    thumbnail(&visitor.studio, account, name).await
}

/// The thumbnail of a picture of an account, which the caller may see. It never changes, and belongs into no cache but the
/// browser's.
pub(in crate::studio) async fn thumbnail(studio: &Studio, account: Id, name: &str) -> PageResult {
    let name = FileName::parse(name).ok_or_else(PageError::not_found)?;
    let webp = studio.thumbnails.of(account, name).await?.ok_or_else(PageError::not_found)?;
    let mut response = file("image/webp", webp);
    let forever = HeaderValue::from_static("private, max-age=31536000, immutable");
    response.headers_mut().insert(header::CACHE_CONTROL, forever);
    Ok(response)
}
