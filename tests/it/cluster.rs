//! Several API and worker processes on one PostgreSQL: nodes come and go, die, freeze and are cut off, the database
//! restarts, the bucket fails, and nothing is lost.
//!
//! The suite runs the harness for a short while. The long run, which prints the table of `docs/evidence/reliability.md`:
//! `TINTYPE_TROUBLES=300 cargo test --locked --test it cluster::troubles -- --nocapture`

mod bucket;
mod mixed;
mod outcome_unknown;
mod overlong;
mod rolling;
mod standby;
mod troubles;
mod unanswered;
