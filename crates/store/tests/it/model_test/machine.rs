//! The model and the real store, side by side.

use std::marker::PhantomData;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};
use tokio::runtime::{Builder, Runtime};

use super::act::Step;
use super::choice::{self, Taste};
use super::laws::Shown;
use super::model::Model;
use super::outcome::Outcome;
use super::real::Real;
use super::view;
use tintype_rigs::database::Backend;

/// Steps in a case.
pub const STEPS: std::ops::RangeInclusive<usize> = 40..=60;
/// Cases in a run, unless `PROPTEST_CASES` is set.
const CASES: u32 = 24;
/// The file with the seeds of failures: an absolute path, because the working directory may differ.
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/model_test/proptest-regressions.txt");

/// The backend of the state machine.
pub trait Driver: std::fmt::Debug {
    const BACKEND: Backend;
}

#[expect(clippy::disallowed_methods, reason = "the length of a run is no setting of the product")]
pub fn config() -> Config {
    Config {
        cases: std::env::var("PROPTEST_CASES").map_or(CASES, |cases| cases.parse().expect("a number of cases")),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(SEEDS))),
        max_shrink_iters: 5_000,
        max_shrink_time: 60_000,
        ..Config::default()
    }
}

impl ReferenceStateMachine for Model {
    type State = Self;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Self> {
        Taste::any().prop_map(Self::new).boxed()
    }

    fn transitions(model: &Self) -> BoxedStrategy<Step> {
        choice::step(model)
    }

    fn apply(mut model: Self, step: &Step) -> Self {
        model.take(step, Outcome::Quiet);
        model
    }
}

/// A case under way.
pub struct Case {
    runtime: Runtime,
    real: Real,
    /// Takes its ids from the real store, while the model that chose the steps has invented them.
    model: Model,
    /// What the store showed after the step before.
    shown: Shown,
}

#[derive(Debug)]
pub struct Machine<D>(PhantomData<D>);

impl<D: Driver> StateMachineTest for Machine<D> {
    type SystemUnderTest = Case;
    type Reference = Model;

    fn init_test(initial: &Model) -> Case {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        // Drivers may need a runtime.
        let real = runtime.block_on(async { Real::new(D::BACKEND, initial) });
        Case { runtime, real, model: initial.clone(), shown: Shown::default() }
    }

    fn apply(mut case: Case, _: &Model, step: Step) -> Case {
        case.runtime.block_on(async {
            let said = case.real.take(&case.model, &step).await;
            let due = case.model.take(&step, said.clone());
            assert_eq!(said, due, "{step:?}");
            let reader = case.real.store(step.reader).as_ref();
            let shown = view::compare(reader, &case.model, step.page).await.expect("no store error");
            shown.assert_sound();
            shown.assert_follows(&case.shown, case.model.now());
            case.shown = shown;
        });
        case
    }
}
