//! The pauses between the tries at one reference. Together they take a few seconds, within its time limit.

use std::time::Duration;

use reqwest::StatusCode;

const MAX_TRIES: u32 = 4;
/// Longest pause that a server may ask for. One that asks for more gets no further try.
const MAX_ASKED: Duration = Duration::from_secs(5);

/// Whether a later try may have another outcome: the server is busy, or a proxy does not reach it.
pub(super) fn passes(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 425 | 429 | 502..=504 | 520..=524)
}

/// The pause after the try of this number, from 1, if another one follows. It is at least as long as the server asks for, and
/// up to twice as long as `first` times a power of two; `chance` is a random number below 1.
pub(super) fn pause_after(tries: u32, first: Duration, asked: Option<Duration>, chance: f64) -> Option<Duration> {
    let asked = asked.unwrap_or_default();
    let pause = first.saturating_mul(2_u32.saturating_pow(tries - 1)).mul_f64(1.0 + chance);
    (tries < MAX_TRIES && asked <= MAX_ASKED).then(|| pause.max(asked))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_tries_take_a_few_seconds() {
        let first = Duration::from_millis(300);
        let pause = |tries, asked: Option<u64>, chance| {
            pause_after(tries, first, asked.map(Duration::from_secs), chance).map(|pause| pause.as_millis())
        };
        assert_eq!([1, 2, 3, 4].map(|tries| pause(tries, None, 0.0)), [Some(300), Some(600), Some(1_200), None]);
        assert_eq!([1, 2, 3, 4].map(|tries| pause(tries, None, 0.5)), [Some(450), Some(900), Some(1_800), None]);
        assert_eq!([0, 2, 5, 6].map(|asked| pause(1, Some(asked), 0.0)), [Some(300), Some(2_000), Some(5_000), None]);
    }
}
