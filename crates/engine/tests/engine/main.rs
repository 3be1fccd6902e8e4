//! Tests of the interface of engines. The crate is optimised in tests, so it is compiled once only: it has none inside.

mod colours;
mod frames;
mod jpeg;
mod mask;
mod picture;
mod progress;
