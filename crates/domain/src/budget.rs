//! Budgets of keys: the credits that a key may spend in a day, a week or a month.

use std::fmt;
use std::str::FromStr;

use jiff::ToSpan as _;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::{Serialize, Serializer};

use crate::string_enum;
use crate::timestamp::Timestamp;

/// The largest budget in credits, as large as a grant.
pub const MAX_BUDGET: i64 = 1_000_000_000_000;

string_enum! {
    /// How often a budget resets, in UTC.
    pub enum Period: "period" {
        /// From midnight to midnight.
        Day = "day",
        /// From Monday to Monday.
        Week = "week",
        /// From the first day of a month to the first day of the next.
        Month = "month",
    }
}

impl Period {
    /// The start of the period that contains `at`, and the start of the next one.
    pub fn around(self, at: Timestamp) -> (Timestamp, Timestamp) {
        let bounds = || {
            let day = jiff::Timestamp::from_millisecond(at.as_millis()).ok()?.to_zoned_datetime(TimeZone::UTC).date();
            let (first, length) = match self {
                Self::Day => (day, 1.day()),
                Self::Week => {
                    (day.checked_sub(i64::from(day.weekday().to_monday_zero_offset()).days()).ok()?, 7.days())
                }
                Self::Month => (day.first_of_month(), 1.month()),
            };
            Some((midnight(first)?, midnight(first.checked_add(length).ok()?)?))
        };
        // Beyond the years that a calendar has.
        bounds().unwrap_or((Timestamp::MIN, Timestamp::MAX))
    }
}

fn midnight(day: Date) -> Option<Timestamp> {
    let midnight = day.to_zoned_datetime(TimeZone::UTC).ok()?.timestamp();
    Some(Timestamp::from_millis(midnight.as_millisecond()))
}

/// The text is not a budget.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a budget is a number of credits from 1 to {MAX_BUDGET} for a day, a week or a month, such as 500/day")]
pub struct InvalidBudget;

/// The credits that a key may spend in each period. Displayed and read as `500/day`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// From 1 to [`MAX_BUDGET`].
    pub credits: i64,
    /// How often it resets.
    pub period: Period,
}

impl Budget {
    /// Whether an owner may replace the budget of a key: the new one allows no more than the present one in any time.
    pub fn may_replace(present: Option<Self>, new: Option<Self>) -> bool {
        let Some(present) = present else { return true };
        let length = |budget: Self| Period::ALL.iter().position(|period| *period == budget.period);
        new.is_some_and(|new| new.credits <= present.credits && length(new) >= length(present))
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.credits, self.period)
    }
}

impl FromStr for Budget {
    type Err = InvalidBudget;

    fn from_str(text: &str) -> Result<Self, InvalidBudget> {
        let (credits, period) = text.trim().split_once('/').ok_or(InvalidBudget)?;
        let credits: i64 = credits.parse().map_err(|_| InvalidBudget)?;
        if !(1..=MAX_BUDGET).contains(&credits) {
            return Err(InvalidBudget);
        }
        Ok(Self { credits, period: period.parse().map_err(|_| InvalidBudget)? })
    }
}

impl Serialize for Budget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How much of a budget is used in the current period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// The budget.
    pub budget: Budget,
    /// Credits spent on tasks of this period that were not refunded.
    pub spent: i64,
    /// The start of the next period.
    pub resets_at: Timestamp,
}

impl Allowance {
    /// Credits left. A budget that was lowered may be overspent, and then has none left.
    pub fn left(&self) -> i64 {
        (self.budget.credits - self.spent).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Timestamp {
        Timestamp::from_millis(time.parse::<jiff::Timestamp>().expect("a time").as_millisecond())
    }

    #[test]
    fn periods_begin_at_midnight_on_mondays_and_on_the_first_of_a_month_in_utc() {
        for (period, time, begin, end) in [
            (Period::Day, "2026-11-24T12:00:00Z", "2026-11-24T00:00:00Z", "2026-11-25T00:00:00Z"),
            (Period::Day, "2026-11-24T00:00:00Z", "2026-11-24T00:00:00Z", "2026-11-25T00:00:00Z"),
            (Period::Day, "2026-11-23T23:59:59.999Z", "2026-11-23T00:00:00Z", "2026-11-24T00:00:00Z"),
            (Period::Week, "2026-11-24T12:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            (Period::Week, "2026-11-22T23:59:59.999Z", "2026-11-16T00:00:00Z", "2026-11-23T00:00:00Z"),
            (Period::Week, "2027-01-01T00:00:00Z", "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"),
            (Period::Month, "2026-12-31T23:59:59.999Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            (Period::Month, "2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ] {
            assert_eq!(period.around(at(time)), (at(begin), at(end)), "{period} {time}");
        }
        assert_eq!(Period::Month.around(Timestamp::MAX), (Timestamp::MIN, Timestamp::MAX));
    }

    #[test]
    fn a_budget_is_read_as_it_is_shown_and_nothing_else() {
        for text in ["1/day", "500/week", "1000000000000/month"] {
            assert_eq!(text.parse::<Budget>().expect("a budget").to_string(), text);
        }
        for text in ["", "500", "0/day", "-1/day", "5/year", "5/", "/day", "5.5/day", "1000000000001/day", "5 / day"] {
            assert_eq!(text.parse::<Budget>(), Err(InvalidBudget), "{text:?}");
        }
    }
}
