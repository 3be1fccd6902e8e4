//! The nouns of the interface and the rules that hold for each alone. Nothing here does I/O.

pub mod address;
pub mod cursor;
pub mod key;
pub mod model;
pub mod reference_url;
pub mod request;
pub mod source;
