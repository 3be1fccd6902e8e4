//! `Store` against a model of it in plain collections, driven by random steps.
//!
//! The model is written from the words of the trait, not from any driver. Every step is taken by the
//! model and by the database; their answers must agree, and then everything that the database shows. A
//! case that fails is made as short as it will go, and its seed is kept in
//! `store_model/proptest-regressions.txt`: commit it. `PROPTEST_CASES=5000` makes a long run.

use crate::rigs::service::Backend;

mod accounts;
mod act;
mod choice;
mod entries;
mod keys;
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

            /// The backend as a type, which the state machine wants.
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
