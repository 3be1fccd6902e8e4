//! The pictures that come with an edit. Their bytes lie in unlinked files until it is known that the edit makes a task: a
//! repeated call needs their digests alone.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use crate::http::pipeline::auth::Caller;
use crate::http::pipeline::error::ApiError;
use crate::service::uploads::{Refusal, TaskUploads, UploadBuffer, UploadError, UploadSlot};
use tintype_domain::data_urls::DataUrls;
use tintype_domain::images_api_request::{ImagesCall, SentPicture};
use tintype_domain::model::Id;
use tintype_domain::request::{AspectRatio, MAX_REFERENCES};
use tintype_domain::stored_reference::StoredReference;
use tintype_domain::text::hex;
use tintype_engine::Mask;

/// Most pictures of one call: its images and a mask.
pub(super) const MAX_PICTURES: usize = MAX_REFERENCES + 1;
/// `Retry-After` of a call while too many others arrive, in seconds.
const BUSY_RETRY_SECONDS: u64 = 2;
/// `Retry-After` for an account with too many rejected images, in seconds.
const REJECTED_RETRY_SECONDS: u64 = 3;

#[derive(Debug)]
pub(super) struct Pictures {
    /// The beginning of the marks among the fields.
    pub(super) mark: String,
    /// The slot that the call holds while its pictures arrive.
    slot: Option<UploadSlot>,
    buffers: Vec<UploadBuffer>,
    stored: Option<TaskUploads>,
    /// Uploads that the task can refer to.
    referred: Vec<Id>,
}

impl Pictures {
    /// No pictures so far.
    pub(super) fn none() -> Self {
        let mark = format!("{:032x}/", rand::random::<u128>());
        Self { mark, slot: None, buffers: Vec::new(), stored: None, referred: Vec::new() }
    }

    /// Takes the slot for all pictures of the call.
    pub(super) fn arrive(&mut self, caller: &Caller) -> Result<(), ApiError> {
        if self.slot.is_none() {
            let slot = caller.api.uploads.arrive(caller.account_id, caller.right());
            self.slot = Some(slot.map_err(|refusal| refused(refusal.into()))?);
        }
        Ok(())
    }

    /// Begins a picture and returns its mark.
    pub(super) fn begin(&mut self, caller: &Caller) -> Result<String, ApiError> {
        if self.buffers.len() >= MAX_PICTURES {
            return Err(ApiError::bad_image("A call has at most 4 images and a mask."));
        }
        self.arrive(caller)?;
        let Some(slot) = &self.slot else { return Err(ApiError::caused_by("a picture without an upload slot")) };
        self.buffers.push(slot.buffer().map_err(refused)?);
        Ok(DataUrls::name(&self.mark, self.buffers.len() - 1))
    }

    /// Adds bytes of the last picture.
    pub(super) async fn write(&mut self, bytes: Bytes) -> Result<(), ApiError> {
        match self.buffers.last_mut() {
            Some(buffer) => buffer.write(bytes).await.map_err(refused),
            None => Err(ApiError::caused_by("bytes of no picture")),
        }
    }

    /// The pictures, as the call's parser needs them.
    pub(super) fn sent(&self) -> Vec<SentPicture> {
        let sent = |(index, buffer)| SentPicture { mark: DataUrls::name(&self.mark, index), name: name(buffer) };
        self.buffers.iter().enumerate().map(sent).collect()
    }

    /// Stores the pictures of a call that will be submitted, once, and makes the uploads its images and its mask.
    /// The first image decides the size if the call leaves it to the service. Returns whether there were any.
    pub(super) async fn store(&mut self, call: &mut ImagesCall, caller: &Caller) -> Result<bool, ApiError> {
        let Some(slot) = self.slot.take() else { return Ok(false) };
        let request = &mut call.request;
        check_credits(request.cost(), caller).await?;
        check_room(caller).await?;
        let buffers: HashMap<String, UploadBuffer> =
            self.buffers.drain(..).map(|buffer| (name(&buffer), buffer)).collect();
        let (mut names, mut decoded) = (Vec::new(), Vec::new());
        let mut first = None;
        for (index, reference) in request.reference_images.iter().enumerate() {
            let Some(buffer) = buffers.get(reference).filter(|_| !names.contains(reference)) else { continue };
            names.push(reference.clone());
            let picture = buffer.decode().await.map_err(|error| of_image(error, index))?;
            if index == 0 {
                first = Some((picture.width(), picture.height()));
            }
            decoded.push(picture);
        }
        if let Some((width, height)) = first.filter(|_| call.auto_size) {
            request.aspect_ratio = AspectRatio::nearest(width, height);
        }
        if let Some(buffer) = request.settings.mask.as_ref().and_then(|mask| buffers.get(mask)) {
            let mask = buffer.decode_mask().await.map_err(of_mask)?;
            check_mask(&mask, first, request.aspect_ratio)?;
            decoded.push(mask.into_picture());
        }
        let mut stored = slot.store(decoded).await.map_err(refused)?;
        self.referred = stored.take_ids();
        self.stored = Some(stored);
        let of = |id: Id| StoredReference::Upload(id).to_string();
        if request.settings.mask.is_some() {
            request.settings.mask = self.referred.get(names.len()).copied().map(of);
        }
        let uploads: HashMap<_, _> = names.into_iter().zip(self.referred.iter().copied()).collect();
        for reference in &mut request.reference_images {
            if let Some(id) = uploads.get(reference) {
                *reference = of(*id);
            }
        }
        Ok(true)
    }

    /// Removes the uploads: the task holds their files, or was refused.
    pub(super) async fn remove(self) {
        if let Some(stored) = &self.stored {
            stored.remove(self.referred).await;
        }
    }
}

/// Checks the balance, and the budget of the key.
pub(super) async fn check_credits(required: i64, caller: &Caller) -> Result<(), ApiError> {
    let api = &caller.api;
    let available = api.uploads.credits(caller.account_id).await?;
    if let Some(budget) = api.shared.store.find_allowance(caller.key_id).await?
        && budget.left() < required
    {
        let left = budget.left();
        return Err(ApiError::over_budget(required, available.min(left), left, budget.resets_at));
    }
    if available < required { Err(ApiError::insufficient_credits(required, available)) } else { Ok(()) }
}

/// Checks that the account may have one more upload.
pub(super) async fn check_room(caller: &Caller) -> Result<(), ApiError> {
    caller.api.uploads.check_room(caller.account_id).await.map_err(refused)
}

/// The name of a picture: no URL is one, and the same bytes have the same.
fn name(buffer: &UploadBuffer) -> String {
    format!("sha256:{}", hex(&buffer.digest()))
}

fn of_image(error: UploadError, index: usize) -> ApiError {
    match error {
        UploadError::Refused(Refusal::NotAPicture) => ApiError::bad_image(format!(
            "image[{index}] is not a PNG, JPEG or WebP image, is damaged, or has more than 8,192 pixels a side or 50 megapixels."
        )),
        other => refused(other),
    }
}

/// Checks that a mask leaves something to change once it is cropped to the ratio, and that it has the size of the first
/// image, if that came with the call.
fn check_mask(mask: &Mask, first: Option<(u32, u32)>, ratio: AspectRatio) -> Result<(), ApiError> {
    if mask.keeps_all() {
        return Err(ApiError::bad_mask(
            "mask is opaque everywhere, so nothing would change: make the part to change transparent.",
        ));
    }
    let (width, height) = mask.size();
    if let Some((own_width, own_height)) = first.filter(|first| *first != mask.size()) {
        return Err(ApiError::bad_mask(format!(
            "mask must have the size of the first image: scaled to at most 1,568 pixels a side, it has {width}x{height} pixels, and the image {own_width}x{own_height}."
        )));
    }
    let (wide, high) = ratio.size();
    if mask.clone().fit(wide, high).keeps_all() {
        return Err(ApiError::bad_mask(format!(
            "mask is transparent only where the image is cropped to {wide}x{high}, so nothing would change: send an image of this ratio, or another size."
        )));
    }
    Ok(())
}

fn of_mask(error: UploadError) -> ApiError {
    match error {
        UploadError::Refused(Refusal::NotAPicture) => ApiError::bad_mask(
            "mask is not a PNG or WebP image, is damaged, or has more than 8,192 pixels a side or 50 megapixels.",
        ),
        UploadError::Refused(Refusal::NoAlpha) => ApiError::bad_mask(
            "mask has no alpha channel: send a PNG that is transparent where the image should change.",
        ),
        other => refused(other),
    }
}

fn refused(error: UploadError) -> ApiError {
    match error {
        UploadError::Refused(Refusal::TooLarge) => ApiError::too_large("An image has more than 20 MiB.", Some("image")),
        UploadError::Refused(Refusal::TooMany) => ApiError::too_many_uploads(),
        UploadError::Refused(Refusal::Busy) => {
            ApiError::rate_limited("Too many images are being sent at the moment.", BUSY_RETRY_SECONDS)
        }
        UploadError::Store(error) => error.into(),
        UploadError::Refused(Refusal::TooManyRejected) => {
            ApiError::rate_limited("Too many images of this account were rejected.", REJECTED_RETRY_SECONDS)
        }
        other => ApiError::caused_by(Arc::new(other)),
    }
}
