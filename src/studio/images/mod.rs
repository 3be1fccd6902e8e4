//! The pages that show images and tasks: the gallery, its boards, downloads, shared links and the bin.

pub(crate) mod activity;
pub(crate) mod bin;
pub(crate) mod boards;
pub(crate) mod compare;
pub(crate) mod downloads;
pub(crate) mod gallery;
mod picture_files;
pub(crate) mod previews;
pub(crate) mod shared_links;
