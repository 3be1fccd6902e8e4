//! What the owners of an account may do with its keys. The operator may do everything.

use crate::service::limits::RateLimits;
use tintype_domain::model::Id;
use tintype_store::{NewKey, Result, Store};

/// Most keys of one account that work or could work again. With that many, its owners cannot create another.
pub const MAX_KEYS: u32 = 100;

/// Why the owners of an account may not do something with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRefusal {
    /// Too many keys are suspended, revoked ones included, for the owners to create, rotate or enable one.
    TooManySuspended,
    /// A key of the account, even a revoked one, has a budget set by the operator, which another key would bypass.
    BudgetOfOperator,
    /// A rate above the server's.
    RateTooHigh,
}

/// An account's keys, as far as they determine what its owners can do.
#[derive(Debug)]
pub struct AccountKeys<'a> {
    limits: &'a RateLimits,
    suspended: usize,
    has_budget_of_operator: bool,
}

impl<'a> AccountKeys<'a> {
    /// The keys of this account now.
    pub async fn of(account_id: Id, store: &Store, limits: &'a RateLimits) -> Result<Self> {
        let keys = store.list_keys(Some(account_id)).await?;
        Ok(Self {
            limits,
            suspended: keys.iter().filter(|key| key.suspension.is_some()).count(),
            has_budget_of_operator: keys.iter().any(|key| key.operator_budget),
        })
    }

    /// Whether owners may enable a key, or rotate one: old and new then work together for a while.
    pub fn may_enable(&self) -> std::result::Result<(), KeyRefusal> {
        let is_over = self.limits.are_too_many_suspended(self.suspended);
        if is_over { Err(KeyRefusal::TooManySuspended) } else { Ok(()) }
    }

    /// Whether owners may make a key at all.
    pub fn may_add(&self) -> std::result::Result<(), KeyRefusal> {
        self.may_enable()?;
        if self.has_budget_of_operator { Err(KeyRefusal::BudgetOfOperator) } else { Ok(()) }
    }

    /// Whether owners may make this key.
    pub fn may_create(&self, new: &NewKey) -> std::result::Result<(), KeyRefusal> {
        if !self.limits.may_be_set(new.submit_rate, new.read_rate) {
            return Err(KeyRefusal::RateTooHigh);
        }
        self.may_add()
    }
}
