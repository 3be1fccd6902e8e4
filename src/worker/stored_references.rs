//! References to pictures of the account of a task, which come from the files and never from a URL.

use super::render::{RenderError, bad_reference};
use crate::files::FileName;
use crate::service::ServiceContext;
use tintype_domain::model::{ReferenceProblem, Status};
use tintype_domain::stored_reference::StoredReference;
use tintype_engine::picture::Picture;
use tintype_store::{Claim, StoreError};
use tintype_system::sandbox::{DecodeError, Decoder};

#[derive(Debug, Clone, Copy)]
pub(super) enum TaskImage {
    /// The reference with this index, from 0.
    Reference(usize),
    /// The mask of the first reference.
    Mask,
}

impl TaskImage {
    fn field(self) -> String {
        match self {
            Self::Reference(index) => format!("reference_images[{index}]"),
            Self::Mask => "mask".to_owned(),
        }
    }

    /// The failure of the task if the picture was deleted.
    fn gone(self) -> RenderError {
        let (index, problem) = match self {
            Self::Reference(index) => (index, ReferenceProblem::Gone),
            Self::Mask => (0, ReferenceProblem::MaskGone),
        };
        bad_reference(index, problem, format!("{} does not exist any more.", self.field()))
    }
}

/// A picture of a task. It may have been removed since the task was accepted: its file stays for as long as the task is
/// unfinished.
pub(super) async fn picture(
    shared: &ServiceContext,
    decoder: &Decoder,
    claim: &Claim,
    image: TaskImage,
    reference: StoredReference,
) -> Result<Picture, RenderError> {
    let gone = || image.gone();
    let retry = |error: &dyn std::fmt::Display| RenderError::Retry(format!("{}: {error}", image.field()));
    let name = name(shared, claim, reference).await.map_err(|error| retry(&error))?.ok_or_else(gone)?;
    let name = FileName::parse(&name).ok_or_else(gone)?;
    let png = shared.files.read(name).await.map_err(|error| retry(&error))?.ok_or_else(gone)?;
    decoder.decode(&png).await.map_err(|error| match error {
        DecodeError::Picture(_) => {
            tracing::error!(name = name.as_str(), %error, "a stored picture is damaged: check the disk and restore it");
            gone()
        }
        _ => retry(&error),
    })
}

/// The name of the file, if the account of the task owns it on the same surface.
async fn name(
    shared: &ServiceContext,
    claim: &Claim,
    reference: StoredReference,
) -> Result<Option<String>, StoreError> {
    match reference {
        StoredReference::Upload(id) => {
            let upload = shared.store.find_upload_even_removed(claim.account_id, claim.surface, id).await?;
            Ok(upload.map(|upload| upload.picture.name))
        }
        StoredReference::Result { task, number } => {
            let found = shared.store.inspect_task(task).await?.map(|record| record.task);
            let own = found.filter(|task| task.account_id == claim.account_id && task.surface == claim.surface);
            Ok(match own.map(|task| task.status) {
                Some(Status::Completed(names)) => names.into_iter().nth(usize::from(number) - 1),
                _ => None,
            })
        }
    }
}
