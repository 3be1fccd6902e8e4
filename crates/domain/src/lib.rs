//! The types of the domain with their validation. No I/O.

pub mod address;
pub mod budget;
pub mod cursor;
pub mod data_urls;
pub mod endpoint;
pub mod event;
pub mod files_marker;
pub mod identity;
pub mod ignored_fields;
pub mod images_api;
pub mod images_api_fields;
pub mod images_api_request;
pub mod joining;
mod json;
pub mod key;
pub mod ledger;
pub mod model;
pub mod multipart;
pub mod names;
mod opaque;
pub mod passwords;
pub mod person;
pub mod preset;
pub mod provider;
pub mod reference_url;
pub mod request;
pub mod search;
pub mod second_factor;
pub mod signed_tokens;
pub mod source;
#[cfg(feature = "sql")]
mod sql;
pub mod stored_reference;
pub mod string_enum;
pub mod text;
pub mod timestamp;
