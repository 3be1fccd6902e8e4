//! The rules of credits: charges, refunds, grants and expiry. Nothing here reads or writes a database.
//!
//! A store locks the account, loads it, calls one of these functions and writes its result. Expiring credits are part
//! of the balance; each of their grants keeps count of its remaining credits.

use std::time::Duration;

use super::budget::Allowance;
use super::model::{CREDITS_PER_IMAGE, MAX_BALANCE};
use crate::timestamp::Timestamp;

/// How long refunded credits can be spent when their grant has expired meanwhile.
pub const REFUND_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// The time within which [`Stops`] counts.
pub const STOPS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// Credits that stopped tasks may return in that time, however few tasks were completed.
const ALWAYS_STOPPED: i64 = 40;
/// They may also return one credit for each time this many were spent on completed tasks.
const COMPLETED_FOR_ONE: i64 = 4;

/// The credits of an account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AccountCredits {
    /// All credits, expired ones included until they lapse.
    pub balance: i64,
    /// Tasks that have not ended.
    pub unfinished: u32,
    /// Grants that have not lapsed, soonest first.
    pub grants: Vec<Grant>,
    /// A balance below this one is low.
    pub low_balance: Option<i64>,
}

/// Credits that expire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The ledger entry that granted them.
    pub id: i64,
    /// Credits that are left.
    pub remaining: i64,
    /// When they expire.
    pub expires_at: Timestamp,
}

/// Credits of one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The ledger entry of the grant.
    pub grant: i64,
    /// Their number.
    pub credits: i64,
}

/// Credits that leave an account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debit {
    /// The balance afterwards.
    pub balance: i64,
    /// The credits that it takes from grants.
    pub parts: Vec<Part>,
    /// The threshold that the balance has fallen below, if it has.
    pub low: Option<i64>,
}

/// Tasks of an account that were stopped while a worker held them, within [`STOPS_WITHIN`]. They return all their
/// credits, though they have cost time of an engine and may have shown previews, so they are limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stops {
    /// Credits that they have returned.
    pub returned: i64,
}

/// Why a task is not charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCharged {
    /// The account has reached its limit of unfinished tasks.
    TooManyUnfinished,
    /// The budget of the key doesn't cover the cost.
    OverBudget {
        /// Credits that the key could spend.
        available: i64,
        /// Credits left of the budget.
        left: i64,
        /// When the budget resets.
        resets_at: Timestamp,
    },
    /// The account doesn't cover the cost.
    InsufficientCredits {
        /// Credits that it could spend.
        available: i64,
    },
}

/// The number of credits to grant or take is 0 or negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a number of credits must be positive")]
pub struct NotPositive;

/// A grant would make the balance so large that a later refund could overflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an account holds at most {MAX_BALANCE} credits")]
pub struct TooMany;

/// An account can't begin with such a balance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an account begins with 0 to {MAX_BALANCE} credits")]
pub struct BadOpening;

/// The note of the entry for the opening balance of an account.
pub const OPENING_NOTE: &str = "opening balance";

/// Checks the opening balance of an account.
pub fn check_opening(credits: i64) -> Result<(), BadOpening> {
    if (0..=MAX_BALANCE).contains(&credits) { Ok(()) } else { Err(BadOpening) }
}

/// A balance is so high that it can only be damaged: [`MAX_BALANCE`] leaves room for every refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the balance is damaged: it leaves no room for a refund")]
pub struct NoRoom;

/// Credits that a failed task returns to one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// The credits that the task took.
    pub part: Part,
    /// Whether the grant has not lapsed and expires later.
    pub is_live: bool,
    /// Whether the grant is itself the extension of a refund.
    pub is_extension: bool,
}

/// The effect of a refund on grants. The rest of it never expires.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refund {
    /// Credits that return to their grants.
    pub returned: Vec<Part>,
    /// Credits of expired grants, which become a grant that lasts for [`REFUND_LIFE`].
    pub extended: i64,
    /// Credits that were extended before, which become a grant that has expired already: no chain of failed tasks keeps
    /// credits for ever.
    pub expired: i64,
}

/// The end of one grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lapse {
    /// The grant, and the credits that were left of it.
    pub part: Part,
    /// The balance afterwards.
    pub balance: i64,
    /// The threshold that the balance has fallen below, if it has.
    pub low: Option<i64>,
}

/// Checks the number of credits to grant or take.
pub fn check_positive(amount: i64) -> Result<(), NotPositive> {
    if amount > 0 { Ok(()) } else { Err(NotPositive) }
}

impl AccountCredits {
    /// Credits for paying tasks, not counting expired grants.
    pub fn spendable(&self, now: Timestamp) -> i64 {
        let (_, expired) = self.expiring(now);
        self.balance - expired
    }

    /// Charges a task. `max_unfinished` 0 means no limit.
    ///
    /// # Errors
    /// The first rule that refuses it: unfinished tasks, the budget of the key, the balance.
    pub fn charge(
        &self,
        cost: i64,
        max_unfinished: u32,
        budget: Option<Allowance>,
        now: Timestamp,
    ) -> Result<Debit, NotCharged> {
        let available = self.spendable(now);
        if max_unfinished != 0 && self.unfinished >= max_unfinished {
            return Err(NotCharged::TooManyUnfinished);
        }
        if let Some(budget) = budget.filter(|budget| budget.left() < cost) {
            let (left, resets_at) = (budget.left(), budget.resets_at);
            return Err(NotCharged::OverBudget { available: available.min(left), left, resets_at });
        }
        if available < cost {
            return Err(NotCharged::InsufficientCredits { available });
        }
        // The soonest to expire first.
        Ok(self.debit(cost, draw(self.live(now), cost)))
    }

    /// Takes credits for the operator: first those that never expire, then those that expire last.
    ///
    /// # Errors
    /// The credits that could be taken, if they are fewer.
    pub fn take(&self, amount: i64, now: Timestamp) -> Result<Debit, i64> {
        let (live, expired) = self.expiring(now);
        let available = self.balance - expired;
        if available < amount {
            return Err(available);
        }
        Ok(self.debit(amount, draw(self.live(now).rev(), amount - (available - live))))
    }

    /// The balance after a grant.
    pub fn grant(&self, amount: i64) -> Result<i64, TooMany> {
        self.balance.checked_add(amount).filter(|balance| *balance <= MAX_BALANCE).ok_or(TooMany)
    }

    /// The balance after a refund.
    pub fn refund(&self, amount: i64) -> Result<i64, NoRoom> {
        self.balance.checked_add(amount).ok_or(NoRoom)
    }

    /// Ends the grants that have expired, the soonest first.
    pub fn lapse(&self, now: Timestamp) -> Vec<Lapse> {
        let mut left = self.clone();
        let expired = self.grants.iter().filter(|grant| grant.expires_at <= now);
        expired
            .map(|grant| {
                let part = Part { grant: grant.id, credits: grant.remaining };
                let Debit { balance, low, .. } = left.debit(grant.remaining, Vec::new());
                left.balance = balance;
                Lapse { part, balance, low }
            })
            .collect()
    }

    fn live(&self, now: Timestamp) -> impl DoubleEndedIterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| grant.expires_at > now)
    }

    /// Credits that expire later, and credits that have expired.
    fn expiring(&self, now: Timestamp) -> (i64, i64) {
        let (live, expired): (Vec<&Grant>, Vec<&Grant>) = self.grants.iter().partition(|grant| grant.expires_at > now);
        let sum = |grants: Vec<&Grant>| grants.iter().map(|grant| grant.remaining).sum();
        (sum(live), sum(expired))
    }

    fn debit(&self, amount: i64, parts: Vec<Part>) -> Debit {
        let balance = self.balance - amount;
        let low = self.low_balance.filter(|threshold| balance < *threshold && *threshold <= self.balance);
        Debit { balance, parts, low }
    }
}

impl Stops {
    /// Credits that completed tasks must have cost within [`STOPS_WITHIN`] before another task of this cost may be
    /// stopped; 0 if it may be stopped in any case.
    fn needs(self, cost: i64) -> i64 {
        let stopped = self.returned.saturating_add(cost);
        if stopped <= ALWAYS_STOPPED { 0 } else { stopped.saturating_mul(COMPLETED_FOR_ONE) }
    }

    /// Number of completed tasks to look at. This many always suffice; with 0 there is nothing to look at.
    pub fn most_to_read(self, cost: i64) -> i64 {
        self.needs(cost) / CREDITS_PER_IMAGE
    }

    /// Whether another task of this cost may be stopped, when completed tasks cost `completed` credits.
    pub fn allow(self, cost: i64, completed: i64) -> bool {
        completed >= self.needs(cost)
    }
}

/// Takes up to this many credits from grants, in order.
fn draw<'a>(grants: impl Iterator<Item = &'a Grant>, amount: i64) -> Vec<Part> {
    let mut missing = amount.max(0);
    let parts = grants.map(|grant| {
        let credits = grant.remaining.min(missing);
        missing -= credits;
        Part { grant: grant.id, credits }
    });
    parts.filter(|part| part.credits > 0).collect()
}

/// Returns what a failed task took from grants.
pub fn return_to_grants(taken: &[Returned]) -> Refund {
    let mut refund = Refund::default();
    for Returned { part, is_live, is_extension } in taken {
        if *is_live {
            refund.returned.push(*part);
        } else if *is_extension {
            refund.expired += part.credits;
        } else {
            refund.extended += part.credits;
        }
    }
    refund
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budget::{Budget, Period};

    const NOW: Timestamp = Timestamp::from_millis(1_000);

    prop_compose! {
        fn grants()(all in prop::collection::vec((0..40_i64, 0..2_000_i64), 0..6)) -> Vec<Grant> {
            let mut all: Vec<_> = all.into_iter().enumerate().map(|(id, (remaining, at))| Grant {
                id: i64::try_from(id).expect("few"), remaining, expires_at: Timestamp::from_millis(at),
            }).collect();
            all.sort_by_key(|grant| (grant.expires_at, grant.id));
            all
        }
    }

    prop_compose! {
        fn credits()(
            grants in grants(),
            lasting in 0..60_i64,
            unfinished in 0..4_u32,
            low_balance in prop::option::of(1..80_i64),
        ) -> AccountCredits {
            let balance = lasting + grants.iter().map(|grant| grant.remaining).sum::<i64>();
            AccountCredits { balance, unfinished, grants, low_balance }
        }
    }

    fn sum(parts: &[Part]) -> i64 {
        parts.iter().map(|part| part.credits).sum()
    }

    /// The credits after a debit.
    fn after(credits: &AccountCredits, debit: &Debit) -> AccountCredits {
        let mut left = AccountCredits { balance: debit.balance, ..credits.clone() };
        for part in &debit.parts {
            let grant = left.grants.iter_mut().find(|grant| grant.id == part.grant).expect("a grant of the account");
            grant.remaining -= part.credits;
            assert!(grant.remaining >= 0 && grant.expires_at > NOW && part.credits > 0);
        }
        left
    }

    /// Credits that never expire.
    fn lasting(credits: &AccountCredits) -> i64 {
        credits.balance - credits.grants.iter().map(|grant| grant.remaining).sum::<i64>()
    }

    proptest! {
        #[test]
        fn a_charge_spends_what_expires_first_and_nothing_that_has_expired(credits in credits(), cost in 2..9_i64) {
            match credits.charge(cost, 0, None, NOW) {
                Err(refusal) => {
                    let available = credits.spendable(NOW);
                    prop_assert_eq!(refusal, NotCharged::InsufficientCredits { available });
                    prop_assert!(available < cost);
                }
                Ok(debit) => {
                    let left = after(&credits, &debit);
                    prop_assert_eq!(left.balance, credits.balance - cost);
                    prop_assert_eq!(left.spendable(NOW), credits.spendable(NOW) - cost);
                    prop_assert!(lasting(&left) >= 0);
                    // Credits that last are spent only when nothing else is left.
                    let live: i64 = left.live(NOW).map(|grant| grant.remaining).sum();
                    prop_assert!(live == 0 || sum(&debit.parts) == cost);
                    let touched: Vec<_> = debit.parts.iter().map(|part| part.grant).collect();
                    let in_order: Vec<_> = credits.live(NOW).filter(|grant| grant.remaining > 0).map(|grant| grant.id).collect();
                    prop_assert!(in_order.starts_with(&touched));
                }
            }
        }

        #[test]
        fn the_operator_takes_what_lasts_first_and_then_what_expires_last(credits in credits(), amount in 1..200_i64) {
            match credits.take(amount, NOW) {
                Err(available) => prop_assert!(available == credits.spendable(NOW) && available < amount),
                Ok(debit) => {
                    let left = after(&credits, &debit);
                    prop_assert_eq!(left.balance, credits.balance - amount);
                    prop_assert_eq!(sum(&debit.parts), (amount - lasting(&credits)).max(0));
                    prop_assert!(lasting(&left) >= 0 && (debit.parts.is_empty() || lasting(&left) == 0));
                }
            }
        }

        #[test]
        fn a_balance_is_low_once_on_its_way_down(credits in credits(), cost in 2..9_i64) {
            if let (Ok(debit), Some(threshold)) = (credits.charge(cost, 0, None, NOW), credits.low_balance) {
                prop_assert_eq!(debit.low.is_some(), credits.balance >= threshold && debit.balance < threshold);
                let left = after(&credits, &debit);
                if let (Some(_), Ok(next)) = (debit.low, left.charge(cost, 0, None, NOW)) {
                    prop_assert_eq!(next.low, None);
                }
            }
        }

        #[test]
        fn a_lapse_ends_every_expired_grant_and_leaves_the_rest(credits in credits()) {
            let lapses = credits.lapse(NOW);
            let expired: Vec<_> = credits.grants.iter().filter(|grant| grant.expires_at <= NOW).collect();
            prop_assert_eq!(lapses.len(), expired.len());
            let ended: i64 = lapses.iter().map(|lapse| lapse.part.credits).sum();
            prop_assert_eq!(credits.balance - ended, credits.spendable(NOW));
            prop_assert_eq!(lapses.last().map_or(credits.balance, |lapse| lapse.balance), credits.spendable(NOW));
            prop_assert!(lapses.iter().filter(|lapse| lapse.low.is_some()).count() <= 1);
        }

        #[test]
        fn a_refund_returns_every_credit_that_was_taken(
            taken in prop::collection::vec((1..9_i64, any::<bool>(), any::<bool>()), 0..5),
        ) {
            let taken: Vec<_> = taken.into_iter().enumerate().map(|(grant, (credits, is_live, is_extension))| {
                Returned { part: Part { grant: i64::try_from(grant).expect("few"), credits }, is_live, is_extension }
            }).collect();
            let refund = return_to_grants(&taken);
            let all: i64 = taken.iter().map(|returned| returned.part.credits).sum();
            prop_assert_eq!(sum(&refund.returned) + refund.extended + refund.expired, all);
            let again: i64 = taken.iter().filter(|one| !one.is_live && one.is_extension).map(|one| one.part.credits).sum();
            prop_assert_eq!(refund.expired, again);
        }

        #[test]
        fn stopped_tasks_return_40_credits_or_a_quarter_of_what_was_completed(
            tasks in prop::collection::vec((1..=4_i64, any::<bool>()), 0..400),
        ) {
            let (mut stops, mut completed) = (Stops::default(), Vec::new());
            for (images, stop) in tasks {
                let cost = images * CREDITS_PER_IMAGE;
                if !stop {
                    completed.push(cost);
                    continue;
                }
                let all: i64 = completed.iter().sum();
                let allowed = stops.allow(cost, all);
                prop_assert_eq!(allowed, stops.returned + cost <= 40.max(all / 4));
                // Reading as many of them as the rule says is enough.
                let most = usize::try_from(stops.most_to_read(cost)).expect("few");
                let read: i64 = completed.iter().rev().take(most).sum();
                prop_assert_eq!(allowed, stops.allow(cost, read));
                stops.returned += if allowed { cost } else { 0 };
            }
        }
    }

    #[test]
    fn the_first_rule_that_refuses_names_the_reason() {
        let credits = AccountCredits { balance: 3, unfinished: 2, ..AccountCredits::default() };
        let budget = Budget { credits: 5, period: Period::Day };
        let spent = |spent| Some(Allowance { budget, spent, resets_at: NOW });
        assert_eq!(credits.charge(4, 2, spent(5), NOW), Err(NotCharged::TooManyUnfinished));
        let over = NotCharged::OverBudget { available: 1, left: 1, resets_at: NOW };
        assert_eq!(credits.charge(4, 0, spent(4), NOW), Err(over));
        assert_eq!(credits.charge(4, 3, spent(1), NOW), Err(NotCharged::InsufficientCredits { available: 3 }));
        assert_eq!(credits.charge(2, 3, spent(3), NOW).map(|debit| debit.balance), Ok(1));
    }

    #[test]
    fn a_grant_is_positive_and_leaves_room_for_refunds() {
        assert_eq!([0, -3, i64::MIN].map(check_positive), [Err(NotPositive); 3]);
        assert_eq!(check_positive(1), Ok(()));
        let credits = AccountCredits { balance: MAX_BALANCE - 5, ..AccountCredits::default() };
        assert_eq!([6, i64::MAX].map(|amount| credits.grant(amount)), [Err(TooMany); 2]);
        assert_eq!(credits.grant(5), Ok(MAX_BALANCE));
    }
}
