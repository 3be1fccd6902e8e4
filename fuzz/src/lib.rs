//! What must hold of the parsers, whatever bytes come in. Each function runs one of them and panics where a
//! promise is broken; it returns whether the bytes were accepted.
//!
//! libFuzzer calls them from `fuzz_targets/`, and the tests from `tests/it/fuzz.rs`.

mod body;
mod cursor;
mod head;
mod key;
mod picture;
mod policy;
mod reference_url;

pub use body::body;
pub use cursor::cursor;
pub use head::head;
pub use key::key;
pub use picture::picture;
pub use policy::policy;
pub use reference_url::reference_url;
