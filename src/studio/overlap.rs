//! The time for which a key or a secret that was replaced still works.

use std::time::Duration;

use super::session::Fields;

const HOUR: Duration = Duration::from_secs(60 * 60);

/// One of the times that a form offers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Overlap {
    pub(super) hours: u32,
}

impl Overlap {
    const USUAL: Self = Self { hours: 24 };
    pub(super) const ALL: [Self; 4] = [Self { hours: 0 }, Self { hours: 1 }, Self::USUAL, Self { hours: 168 }];

    /// The choice in a form, or the usual time.
    pub(super) fn of(fields: &Fields) -> Self {
        let chosen = Self::ALL.into_iter().find(|overlap| overlap.hours.to_string() == fields.text("hours"));
        chosen.unwrap_or(Self::USUAL)
    }

    /// Whether a form suggests it.
    pub(super) fn is_usual(self) -> bool {
        self.hours == Self::USUAL.hours
    }

    pub(super) fn duration(self) -> Duration {
        HOUR * self.hours
    }
}
