//! What the owners of an account may do with its keys. The operator may do everything.

use crate::service::limits::RateLimits;
use tintype_domain::budget::{Budget, Period};
use tintype_domain::key::KeyState;
use tintype_domain::model::Id;
use tintype_store::{NewKey, Result, Store};

/// Most keys of one account that work or could, for its owners to make another one.
const MAX_KEYS: usize = 100;

/// Why the owners of an account may not do something with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRefusal {
    /// So many keys are suspended, revoked ones included, that the owners can make none work.
    TooManySuspended,
    /// The account has as many keys as its owners can make.
    TooMany,
    /// A key of the account, even if it is revoked, has a budget of the operator, which another key would avoid.
    BudgetOfOperator,
    /// A rate above the server's.
    RateTooHigh,
}

/// The keys of an account, so far as they decide what its owners may do.
#[derive(Debug)]
pub struct AccountKeys<'a> {
    limits: &'a RateLimits,
    suspended: usize,
    alive: usize,
    has_budget_of_operator: bool,
}

impl<'a> AccountKeys<'a> {
    /// The keys of this account now.
    ///
    /// # Errors
    /// [`tintype_store::StoreError`].
    pub async fn of(account_id: Id, store: &dyn Store, limits: &'a RateLimits) -> Result<Self> {
        let (keys, now) = (store.list_keys(Some(account_id)).await?, store.now());
        let alive = keys.iter().filter(|key| !matches!(key.state(now), KeyState::Revoked | KeyState::Expired));
        Ok(Self {
            limits,
            suspended: keys.iter().filter(|key| key.suspension.is_some()).count(),
            alive: alive.count(),
            has_budget_of_operator: keys.iter().any(|key| key.operator_budget),
        })
    }

    /// Whether owners may enable a key.
    ///
    /// # Errors
    /// The reason why not.
    pub fn may_enable(&self) -> std::result::Result<(), KeyRefusal> {
        let is_over = self.limits.are_too_many_suspended(self.suspended);
        if is_over { Err(KeyRefusal::TooManySuspended) } else { Ok(()) }
    }

    /// Whether owners may replace a key, beside which the new one works for a while.
    ///
    /// # Errors
    /// The reason why not.
    pub fn may_rotate(&self) -> std::result::Result<(), KeyRefusal> {
        self.may_enable()?;
        if self.alive >= MAX_KEYS { Err(KeyRefusal::TooMany) } else { Ok(()) }
    }

    /// Whether owners may make this key.
    ///
    /// # Errors
    /// The reason why not.
    pub fn may_create(&self, new: &NewKey) -> std::result::Result<(), KeyRefusal> {
        if !self.limits.may_be_set(new.submit_rate, new.read_rate) {
            return Err(KeyRefusal::RateTooHigh);
        }
        self.may_rotate()?;
        if self.has_budget_of_operator { Err(KeyRefusal::BudgetOfOperator) } else { Ok(()) }
    }
}

/// Whether owners may replace the budget of a key: the new one allows no more than the present one in any time.
pub fn may_set_budget(new: Option<Budget>, present: Option<Budget>) -> bool {
    let Some(present) = present else { return true };
    let length = |budget: Budget| Period::ALL.iter().position(|period| *period == budget.period);
    new.is_some_and(|new| new.credits <= present.credits && length(new) >= length(present))
}
