//! Masks that people paint on the first reference: only what they painted changes.

use crate::service::presets::NoEngineForMask;
use crate::studio::references::{Found, find, lines};
use crate::studio::session::{Fields, Visitor};
use tintype_domain::stored_reference::StoredReference;
use tintype_store::StoreError;

/// Why a task with a mask is not created.
pub(super) enum MaskFault {
    /// It was painted on another picture.
    Unfit,
    /// It was deleted.
    Gone,
    /// The picture that it was painted on was deleted.
    NoReference,
    /// The chosen preset has no engine for it.
    NotTaken,
    /// The chosen preset takes no references at all.
    NoReferences,
    Store(StoreError),
}

impl From<StoreError> for MaskFault {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The name of the mask of a form, which fits its first reference, and the engine for a task with it; `None` if the form
/// has none. `engine` is the choice of the preset.
pub(super) async fn read(
    visitor: &Visitor,
    fields: &Fields,
    engine: Option<String>,
) -> Result<Option<(String, Option<String>)>, MaskFault> {
    let text = fields.text("mask").trim();
    if text.is_empty() {
        return Ok(None);
    }
    let references: Vec<&str> = lines(fields.text("references")).collect();
    let first = references.first().and_then(|first| StoredReference::parse(first)).ok_or(MaskFault::Unfit)?;
    let mask = StoredReference::parse(text).ok_or(MaskFault::Unfit)?;
    // A form that makes a task again has the references of that task, and does not say which one the mask is for.
    let masked = fields.text("mask_of");
    if !masked.is_empty() && masked != references[0] {
        return Err(MaskFault::Unfit);
    }
    let (store, account) = (&*visitor.studio.shared.store, visitor.account_id());
    let size = |found: Found| (found.width, found.height);
    let size_of_first = find(store, account, first).await?.map(size).ok_or(MaskFault::NoReference)?;
    let size_of_mask = find(store, account, mask).await?.map(size).ok_or(MaskFault::Gone)?;
    if size_of_mask != size_of_first {
        return Err(MaskFault::Unfit);
    }
    let engines = store.engines().await?;
    let presets = &visitor.studio.shared.presets;
    let most = presets.of_form(fields.text("preset")).and_then(|preset| preset.references);
    if most == Some(0) || !presets.takes_references(engine.as_deref(), &engines) {
        return Err(MaskFault::NoReferences);
    }
    match presets.engine_for_mask(engine, references.len(), &engines) {
        Ok(engine) => Ok(Some((mask.to_string(), engine))),
        Err(NoEngineForMask::NotTaken(_) | NoEngineForMask::TooManyReferences(_)) => Err(MaskFault::NotTaken),
    }
}
