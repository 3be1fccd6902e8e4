//! `Store` against a model of it in plain collections, driven by random steps.
//!
//! The model follows the documentation of the trait, not any driver. The model and the database take every step; their
//! answers must agree, and then everything that the database returns. A failing case is shrunk, and its seed is saved
//! in `model_test/proptest-regressions.txt`: commit it. `PROPTEST_CASES=5000` makes a long run.
//!
//! The model has no rules of credits of its own. It asks `domain::ledger`, as the drivers do, so it proves that they
//! load what the ledger needs and write what the ledger decides. The property tests of the ledger prove its laws.
//! `laws` asserts the most important ones on what the database shows, so that a wrong ledger is noticed here, too.
//!
//! It is called so that it comes first in the alphabet: it takes longest, and tests begin in the order of their names.
//!
//! Read `act` (the steps), `machine` (how a step is taken), `credits` (where the ledger is asked), and `view` and
//! `laws` (what is compared). The rest of the model is in `model`, `tasks`, `leases`, `keys` and `accounts`; `real`
//! calls the store, `process` has clocks, ids and turns, and `choice` chooses the next step.

use tintype_rigs::database::Backend;

mod accounts;
mod act;
mod choice;
mod credits;
mod keys;
mod laws;
mod leases;
mod machine;
mod model;
mod outcome;
mod process;
mod real;
mod tasks;
mod view;

/// The model against one backend.
macro_rules! model {
    ($name:ident, $backend:expr) => {
        mod $name {
            use proptest_state_machine::prop_state_machine;

            use super::machine::{self, Machine};
            use super::*;

            /// The backend as a type, which the state machine requires.
            #[derive(Debug)]
            pub struct Driver;

            impl machine::Driver for Driver {
                const BACKEND: Backend = $backend;
            }

            prop_state_machine! {
                #![proptest_config(machine::config())]
                #[test]
                fn the_store_behaves_like_its_model(sequential machine::STEPS => Machine<Driver>);
            }
        }
    };
}

model!(sqlite, Backend::Sqlite);
model!(postgres, Backend::Postgres);
