//! The body of an edit, in a form or in JSON. Its pictures go to the disk as they arrive, and the rest of it has the limit
//! of every body.

use std::mem;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use bytes::Bytes;

use super::pictures::{MAX_PICTURES, Pictures, check_credits, check_room};
use crate::http::api::body::is_json;
use crate::http::api::coding::{Coding, text};
use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::ApiError;
use crate::studio::image_bodies::{ImageBody, Stopped, announced};
use tintype_config::{MAX_BODY, MAX_EDIT_BODY, MAX_UPLOAD, UPLOAD_TIME_LIMIT};
use tintype_domain::data_urls::{DataUrls, Fault, Piece as JsonPiece};
use tintype_domain::images_api_fields::Fields;
use tintype_domain::images_api_request::{CallKind, ImagesCall};
use tintype_domain::model::CREDITS_PER_IMAGE;
use tintype_domain::multipart::{Multipart, Piece};
use tintype_domain::reference_url::MAX_URL_CHARS;
use tintype_domain::request::MAX_REFERENCES;

/// Most parts of a form. The API has less than twenty fields.
const MAX_PARTS: usize = 64;
/// Most bytes before the first part of a form, and after the last one.
const MAX_MARGIN: usize = 64 * 1024;
/// Most bytes in an image's URL, whose characters can have 4 bytes each.
const MAX_URL_BYTES: usize = 4 * MAX_URL_CHARS;
const MAX_FORM: u64 = MAX_UPLOAD * MAX_PICTURES as u64 + 2 * MAX_BODY as u64;

/// Reads an edit. Nothing of a new call is read before its sender is known to be able to pay; a call that `may_repeat` an
/// earlier one needs no credits.
pub(super) async fn read(
    request: Request,
    may_repeat: bool,
    caller: &Caller,
) -> Result<(ImagesCall, Pictures), ApiError> {
    let (parts, body) = request.into_parts();
    let form = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| Multipart::new(kind.to_str().ok()?));
    if form.is_none() && !is_json(&parts.headers) {
        return Err(ApiError::invalid_request(
            "The header Content-Type must be multipart/form-data with a boundary, or application/json.",
        ));
    }
    // Pictures hardly shrink, and go to the disk as they arrive.
    if Coding::of(&parts.headers)? != Coding::Plain {
        return Err(ApiError::unknown_coding());
    }
    let most = if form.is_some() { MAX_FORM } else { MAX_EDIT_BODY };
    if announced(&parts.headers).is_some_and(|bytes| bytes > most) {
        return Err(too_large());
    }
    if !may_repeat {
        check_credits(CREDITS_PER_IMAGE, caller).await?;
        if form.is_some() {
            check_room(caller).await?;
        }
    }
    let api = &caller.api;
    let arriving = ImageBody::new(body, api.settings.connections.body_idle, &api.shared.clock, most);
    let mut pictures = Pictures::none();
    let reading = async {
        match form {
            Some(form) => {
                pictures.arrive(caller)?;
                Form::new(caller, &mut pictures).read(form, arriving).await
            }
            None => read_json(arriving, caller, &mut pictures).await,
        }
    };
    let fields = tokio::time::timeout(UPLOAD_TIME_LIMIT, reading).await.unwrap_or_else(|_| Err(too_slow()))?;
    let call = ImagesCall::of_fields(CallKind::Edit, fields, &api.settings.studio.reference_ports, &pictures.sent())?;
    Ok((call, pictures))
}

fn too_large() -> ApiError {
    ApiError::too_large("The body is larger than 4 images and a mask of 20 MiB each and 512 KiB of other fields.", None)
}

fn no_image() -> ApiError {
    ApiError::bad_image("An image of a form must be a file, whose part has a filename, or an https:// URL.")
}

fn too_much_text() -> ApiError {
    ApiError::too_large("The body has more than 512 KiB besides its images.", None)
}

fn too_slow() -> ApiError {
    ApiError::of_status(StatusCode::REQUEST_TIMEOUT)
}

impl From<Stopped> for ApiError {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::TooSlow => too_slow(),
            Stopped::EndedEarly => Self::invalid_request("The body ended early."),
            Stopped::TooLarge => too_large(),
        }
    }
}

async fn read_json(mut arriving: ImageBody, caller: &Caller, pictures: &mut Pictures) -> Result<Fields, ApiError> {
    let mut reader = DataUrls::new(pictures.mark.clone(), MAX_BODY);
    let mut pieces = Vec::new();
    while let Some(bytes) = arriving.next().await? {
        reader.push(&bytes, &mut pieces).map_err(|fault| match fault {
            Fault::NotBase64 | Fault::NotUrl => ApiError::bad_image(format!("An image {fault}.")),
            Fault::TooLong => too_much_text(),
            Fault::TooDeep => {
                ApiError::invalid_request("The body is not a valid JSON object: it is nested too deeply.")
            }
        })?;
        for piece in pieces.drain(..) {
            match piece {
                JsonPiece::Picture => drop(pictures.begin(caller)?),
                JsonPiece::Data(data) => pictures.write(data.into()).await?,
            }
        }
    }
    Ok(Fields::of_json(&text(reader.into_json().into())?)?)
}

enum Part {
    Field(String, Vec<u8>),
    /// An image as text, which is its URL.
    Url(Vec<u8>),
    /// An image as a file, and whether any of it came.
    Image(bool),
    /// A mask, and whether any of it came.
    Mask(bool),
}

struct Form<'a> {
    caller: &'a Caller,
    pictures: &'a mut Pictures,
    part: Option<Part>,
    fields: Vec<(String, String)>,
    images: Vec<String>,
    parts: usize,
    /// Bytes in all fields, including their names.
    bytes: usize,
}

impl<'a> Form<'a> {
    fn new(caller: &'a Caller, pictures: &'a mut Pictures) -> Self {
        Self { caller, pictures, part: None, fields: Vec::new(), images: Vec::new(), parts: 0, bytes: 0 }
    }

    async fn read(mut self, mut reader: Multipart, mut arriving: ImageBody) -> Result<Fields, ApiError> {
        let mut received = 0;
        'parts: loop {
            while let Some(piece) = reader.next_piece().map_err(|_| malformed())? {
                match piece {
                    Piece::Part { name, is_file } => self.begin(name, is_file)?,
                    Piece::Data(data) => self.data(data).await?,
                    Piece::End => break 'parts,
                }
            }
            if self.parts == 0 && received > MAX_MARGIN {
                return Err(malformed());
            }
            let bytes = arriving.next().await?.ok_or_else(malformed)?;
            received += bytes.len();
            reader.push(&bytes);
        }
        self.end_part()?;
        let mut after = 0;
        while let Some(bytes) = arriving.next().await? {
            after += bytes.len();
            if after > MAX_MARGIN {
                return Err(malformed());
            }
        }
        Ok(Fields::of_form(self.fields, self.images)?)
    }

    fn begin(&mut self, name: String, is_file: bool) -> Result<(), ApiError> {
        self.end_part()?;
        self.parts += 1;
        self.bytes += name.len();
        if self.parts > MAX_PARTS {
            return Err(ApiError::invalid_request(format!("The form has more than {MAX_PARTS} parts.")));
        }
        self.part = Some(match (is_image(&name), is_file) {
            (true, true) => Part::Image(false),
            (true, false) => Part::Url(Vec::new()),
            (false, true) if ["mask", "mask[]"].contains(&&*name) => Part::Mask(false),
            (false, true) => {
                let name: String = name.chars().take(40).collect();
                let message = format!("A file in a form must be named image, image[] or mask, and not {name:?}.");
                return Err(ApiError::invalid_request(message));
            }
            (false, false) => Part::Field(name, Vec::new()),
        });
        self.within_limit()
    }

    async fn data(&mut self, data: Bytes) -> Result<(), ApiError> {
        match &mut self.part {
            Some(Part::Field(_, text) | Part::Url(text)) => {
                self.bytes += data.len();
                text.extend_from_slice(&data);
                match &self.part {
                    Some(Part::Url(url)) if url.len() > MAX_URL_BYTES => Err(no_image()),
                    _ => self.within_limit(),
                }
            }
            Some(Part::Image(begun)) => {
                if !mem::replace(begun, true) {
                    if self.images.len() >= MAX_REFERENCES {
                        return Err(too_many_images());
                    }
                    self.images.push(self.pictures.begin(self.caller)?);
                }
                self.pictures.write(data).await
            }
            Some(Part::Mask(begun)) => {
                if !mem::replace(begun, true) {
                    self.fields.push(("mask".into(), self.pictures.begin(self.caller)?));
                }
                self.pictures.write(data).await
            }
            None => Ok(()),
        }
    }

    fn within_limit(&self) -> Result<(), ApiError> {
        if self.bytes > MAX_BODY { Err(too_much_text()) } else { Ok(()) }
    }

    fn end_part(&mut self) -> Result<(), ApiError> {
        match self.part.take() {
            Some(Part::Field(name, value)) => {
                let no_text = |_| match name.as_str() {
                    "mask" => ApiError::bad_mask("A mask must be a file, whose part has a filename."),
                    _ => ApiError::invalid_request("A field is not in UTF-8."),
                };
                let value = String::from_utf8(value).map_err(no_text)?;
                self.fields.push((name, value));
            }
            Some(Part::Url(url)) if url.is_empty() => {}
            Some(Part::Url(url)) => {
                if self.images.len() >= MAX_REFERENCES {
                    return Err(too_many_images());
                }
                self.images.push(String::from_utf8(url).map_err(|_| no_image())?);
            }
            Some(Part::Image(false)) => return Err(ApiError::bad_image("An image is empty.")),
            // A browser sends an empty file where none was chosen.
            Some(Part::Image(true) | Part::Mask(_)) | None => {}
        }
        Ok(())
    }
}

/// Whether a part is one of the images: `image`, `images`, `image[]`, `image[0]`, `image1` or `image_1`.
fn is_image(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("image") else { return false };
    let rest = rest.strip_prefix(['s', '_']).unwrap_or(rest);
    let index = rest.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(rest);
    index.bytes().all(|byte| byte.is_ascii_digit())
}

fn too_many_images() -> ApiError {
    ApiError::bad_image("image must have 1 to 4 entries.")
}

fn malformed() -> ApiError {
    ApiError::invalid_request("The form is malformed or ended early.")
}
