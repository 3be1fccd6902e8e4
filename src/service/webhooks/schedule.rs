//! The schedule of attempts, as Standard Webhooks 1.0 suggests it.

use std::time::Duration;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;

/// Seconds from the end of an attempt to the next one. The first attempt is made at once, and there are ten.
const WAITS: [u64; 9] = [5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR];
/// Most jitter, as a share of the wait, so that receivers that recover do not get everything at once.
const JITTER: f64 = 0.2;
/// Longest wait that a receiver may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * HOUR);

/// The wait after the attempt with this number, from 1; `None` after the last one. It is never shorter than the
/// receiver asks for. `chance` is a random number below 1.
pub(super) fn wait_after(attempt: u32, retry_after: Option<Duration>, chance: f64) -> Option<Duration> {
    let seconds = WAITS.get(usize::try_from(attempt).ok()?.checked_sub(1)?)?;
    let wait = Duration::from_secs(*seconds).mul_f64(1.0 + JITTER * chance);
    Some(wait.max(retry_after.unwrap_or_default()))
}

/// The wait that a receiver gets if it asks for this one.
pub(super) fn accepted(asked: Duration) -> Duration {
    asked.min(MAX_RETRY_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::webhooks::DISABLE_AFTER;
    use tintype_store::LONGEST_WAIT;

    #[test]
    fn ten_attempts_take_three_days() {
        let waits: Vec<_> = (1..=9).map(|attempt| wait_after(attempt, None, 0.0).expect("a wait").as_secs()).collect();
        assert_eq!(waits, [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400]);
        let all = Duration::from_secs(waits.iter().sum());
        let before_last = all - Duration::from_secs(86_400).mul_f64(1.0 + JITTER);
        assert!(all > DISABLE_AFTER && before_last < DISABLE_AFTER);
        assert_eq!(
            (wait_after(10, None, 0.0), wait_after(0, None, 0.0), wait_after(u32::MAX, None, 0.0)),
            (None, None, None)
        );
    }

    #[test]
    fn a_wait_is_up_to_a_fifth_longer() {
        let waits = |chance| [1, 9].map(|attempt| wait_after(attempt, None, chance).expect("a wait").as_millis());
        assert_eq!(waits(0.0), [5_000, 86_400_000]);
        assert_eq!(waits(0.5), [5_500, 95_040_000]);
        assert_eq!(waits(1.0), [6_000, 103_680_000]);
        assert!(wait_after(9, None, 1.0).expect("a wait") < LONGEST_WAIT);
    }

    #[test]
    fn a_receiver_may_ask_for_a_longer_wait_and_never_for_a_shorter_one() {
        let wait = |retry_after| wait_after(1, Some(Duration::from_secs(retry_after)), 0.0).expect("a wait").as_secs();
        assert_eq!((wait(120), wait(2)), (120, 5));
        assert_eq!(accepted(Duration::from_secs(99_999_999_999)), Duration::from_secs(86_400));
    }
}
