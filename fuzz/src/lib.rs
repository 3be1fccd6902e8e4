//! Properties of the parsers that must hold for any input. Each function runs one parser, panics if a property is
//! violated, and returns whether the parser accepted the input.
//!
//! libFuzzer calls these functions from `fuzz_targets/`; the tests call them from `tests/it/fuzz.rs`.

mod body;
mod cursor;
mod frame;
mod head;
mod key;
mod model;
mod picture;
mod policy;
mod reference_url;

pub use body::body;
pub use cursor::cursor;
pub use frame::frame;
pub use head::head;
pub use key::key;
pub use model::model;
pub use picture::picture;
pub use policy::policy;
pub use reference_url::reference_url;
