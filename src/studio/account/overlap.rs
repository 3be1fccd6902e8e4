//! How long a replaced key or secret still works.

use std::time::Duration;

use crate::studio::session::Fields;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// One of the times that a form offers.
#[derive(Debug, Clone, Copy)]
pub(in crate::studio) struct Overlap {
    pub(in crate::studio) hours: u32,
}

impl Overlap {
    const USUAL: Self = Self { hours: 24 };
    pub(in crate::studio) const ALL: [Self; 4] =
        [Self { hours: 0 }, Self { hours: 1 }, Self::USUAL, Self { hours: 168 }];

    /// The choice in a form, or the usual time.
    pub(in crate::studio) fn of(fields: &Fields) -> Self {
        let chosen = Self::ALL.into_iter().find(|overlap| overlap.hours.to_string() == fields.text("hours"));
        chosen.unwrap_or(Self::USUAL)
    }

    pub(in crate::studio) fn is_usual(self) -> bool {
        self.hours == Self::USUAL.hours
    }

    pub(in crate::studio) fn duration(self) -> Duration {
        HOUR * self.hours
    }
}
