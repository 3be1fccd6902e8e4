//! What every database keeps and refuses: the conformance suite of `Store`, and a model beside it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails best where it stands")]

mod model_test;
mod simulation;
mod store;
