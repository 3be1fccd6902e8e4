//! The waits between polls and before retries.

use std::time::Duration;

use reqwest::StatusCode;
use tokio::time::{Instant, sleep, timeout_at};

use super::{ClientError, Finished, Processing, STUCK_AFTER, Waiting};

/// Longest wait before the first poll. The server may suggest less.
const FIRST_POLL: Duration = Duration::from_secs(10);
/// Longest wait between polls. The server may suggest less.
const NEXT_POLL: Duration = Duration::from_secs(5);
/// Shortest wait, however short the server's suggestion is.
const SHORTEST_WAIT: Duration = Duration::from_millis(50);
/// Wait before the retry of a 404 on a task that was just created.
const NOT_YET_THERE: Duration = Duration::from_secs(1);
/// Waits after consecutive failures; the next failure is final.
const FAILURE_WAITS: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8)];
/// Longest wait after a 429 that does not say how long.
const LONGEST_THROTTLE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) enum Polled {
    Processing(Processing),
    Finished(Finished),
}

/// Calls `poll` for a task that was just created until the task is terminal, each time with the wait before its answer.
pub(super) async fn poll_until_finished(
    poll_after: Option<Duration>,
    mut poll: impl AsyncFnMut(Duration) -> Result<Polled, ClientError>,
    mut on_event: impl FnMut(Waiting<'_>),
) -> Result<Finished, ClientError> {
    let polling = async {
        let mut wait = suggested_or(poll_after, FIRST_POLL);
        let mut backoff = Backoff { not_found: 1, ..Backoff::default() };
        loop {
            wait = match poll(wait).await {
                Ok(Polled::Finished(finished)) => return Ok(finished),
                Ok(Polled::Processing(state)) => {
                    backoff = Backoff::default();
                    on_event(Waiting::Processing(state));
                    suggested_or(state.poll_after, NEXT_POLL)
                }
                Err(error) => {
                    let Some(wait) = backoff.wait_after(&error) else { return Err(error) };
                    on_event(Waiting::Retry(&error, wait));
                    sleep(wait).await;
                    Duration::ZERO
                }
            };
        }
    };
    timeout_at(Instant::now() + STUCK_AFTER, polling).await.unwrap_or(Err(ClientError::NotFinished))
}

/// Retries an idempotent call as long as a retry can help.
pub(super) async fn persist<T>(mut call: impl AsyncFnMut() -> Result<T, ClientError>) -> Result<T, ClientError> {
    let mut backoff = Backoff::default();
    loop {
        match call().await {
            Ok(value) => return Ok(value),
            Err(error) => sleep(backoff.wait_after(&error).ok_or(error)?).await,
        }
    }
}

fn suggested_or(suggested: Option<Duration>, longest: Duration) -> Duration {
    suggested.map_or(longest, |wait| wait.clamp(SHORTEST_WAIT, longest))
}

/// The errors since the last success.
#[derive(Debug, Default)]
struct Backoff {
    failures: usize,
    throttled: u32,
    /// How many more 404s are retried.
    not_found: u32,
}

impl Backoff {
    /// The wait before a retry; `None` when a retry cannot help.
    fn wait_after(&mut self, error: &ClientError) -> Option<Duration> {
        match error {
            ClientError::Refused(refusal) if refusal.status == StatusCode::TOO_MANY_REQUESTS => {
                let doubled = Duration::from_secs(1u64.checked_shl(self.throttled).unwrap_or(u64::MAX));
                self.throttled += 1;
                Some(refusal.retry_after.unwrap_or(doubled.min(LONGEST_THROTTLE)).max(SHORTEST_WAIT))
            }
            ClientError::Refused(refusal) if refusal.status == StatusCode::NOT_FOUND => {
                self.not_found = self.not_found.checked_sub(1)?;
                Some(NOT_YET_THERE)
            }
            ClientError::Refused(refusal) if !refusal.status.is_server_error() => None,
            ClientError::Refused(_)
            | ClientError::Unreachable(_)
            | ClientError::NothingThere
            | ClientError::NoAnswer(_) => {
                let wait = FAILURE_WAITS.get(self.failures).copied();
                self.failures += 1;
                wait
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Refusal;
    use super::*;

    type PollResult = Result<Polled, ClientError>;

    fn processing(poll_after: Option<f64>) -> PollResult {
        let poll_after = poll_after.map(Duration::from_secs_f64);
        Ok(Polled::Processing(Processing { poll_after, ..Processing::default() }))
    }

    fn done() -> PollResult {
        Ok(Polled::Finished(Finished::Failed("done".into())))
    }

    fn refused(status: u16, retry_after: Option<u64>) -> PollResult {
        Err(ClientError::Refused(Refusal {
            status: StatusCode::from_u16(status).unwrap(),
            from_api: true,
            message: format!("status {status}"),
            request_id: None,
            retry_after: retry_after.map(Duration::from_secs),
        }))
    }

    fn unreachable() -> PollResult {
        Err(ClientError::Unreachable("refused".into()))
    }

    /// Polls until `answers` end, then gets "processing" forever. Returns the seconds before each call, and the result.
    async fn play(hint: Option<f64>, answers: Vec<PollResult>) -> (Vec<f64>, Result<Finished, ClientError>) {
        let mut answers = answers.into_iter();
        let (mut last, mut waits) = (Instant::now(), Vec::new());
        let poll = async |wait| {
            sleep(wait).await;
            waits.push(last.elapsed().as_millis() as f64 / 1e3);
            last = Instant::now();
            answers.next().unwrap_or_else(|| processing(None))
        };
        let result = poll_until_finished(hint.map(Duration::from_secs_f64), poll, |_| ()).await;
        (waits, result)
    }

    #[tokio::test(start_paused = true)]
    async fn waits_ten_seconds_and_then_five() {
        let (waits, result) = play(None, vec![processing(None), processing(None), done()]).await;
        assert_eq!(waits, [10.0, 5.0, 5.0]);
        assert_eq!(result.unwrap(), Finished::Failed("done".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn follows_shorter_suggestions_within_reason() {
        let answers = vec![processing(Some(0.25)), processing(Some(0.0)), processing(Some(1e9)), done()];
        assert_eq!(play(Some(1.5), answers).await.0, [1.5, 0.25, 0.05, 5.0]);
        assert_eq!(play(Some(60.0), vec![done()]).await.0, [10.0]);
    }

    #[tokio::test(start_paused = true)]
    async fn gives_up_after_ten_minutes() {
        let start = Instant::now();
        let (waits, result) = play(None, Vec::new()).await;
        assert!(matches!(result, Err(ClientError::NotFinished)), "{result:?}");
        assert_eq!((waits.len(), start.elapsed().as_secs()), (119, 600));
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_retry_after_does_not_outlast_ten_minutes() {
        let start = Instant::now();
        let (waits, result) = play(None, vec![refused(429, Some(3_600))]).await;
        assert!(matches!(result, Err(ClientError::NotFinished)), "{result:?}");
        assert_eq!((waits.len(), start.elapsed().as_secs()), (1, 600));
    }

    #[tokio::test(start_paused = true)]
    async fn retries_the_first_404_only() {
        let (waits, result) = play(None, vec![refused(404, None), done()]).await;
        assert_eq!((waits, result.is_ok()), (vec![10.0, 1.0], true));
        let (waits, result) = play(None, vec![refused(404, None), refused(404, None), done()]).await;
        assert_eq!((waits, result.is_ok()), (vec![10.0, 1.0], false));
        let (waits, result) = play(None, vec![processing(None), refused(404, None), done()]).await;
        assert_eq!((waits, result.is_ok()), (vec![10.0, 5.0], false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_429_says_how_long_or_doubles_up_to_a_minute() {
        let mut answers: Vec<_> = (0..8).map(|_| refused(429, None)).collect();
        answers.extend([refused(429, Some(7)), refused(429, Some(0)), processing(None), refused(429, None), done()]);
        let expected = [10.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 7.0, 0.05, 5.0, 1.0];
        assert_eq!(play(None, answers).await.0, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn three_consecutive_failures_are_retried() {
        let (waits, result) = play(None, vec![refused(500, None), unreachable(), refused(502, None), done()]).await;
        assert_eq!((waits, result.is_ok()), (vec![10.0, 2.0, 4.0, 8.0], true));
        let (waits, result) = play(None, (0..4).map(|_| refused(500, None)).collect()).await;
        assert_eq!((waits, result.is_ok()), (vec![10.0, 2.0, 4.0, 8.0], false));
        let answers = vec![unreachable(), processing(None), unreachable(), done()];
        assert_eq!(play(None, answers).await.0, [10.0, 2.0, 5.0, 2.0]);
    }

    #[tokio::test(start_paused = true)]
    async fn final_errors_are_not_retried() {
        for answer in [refused(401, None), refused(400, None), Err(ClientError::NotThisApi)] {
            let (waits, result) = play(None, vec![answer, done()]).await;
            assert_eq!((waits, result.is_ok()), (vec![10.0], false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn downloads_are_retried_like_polls() {
        let (start, mut calls) = (Instant::now(), 0);
        let call = async || {
            calls += 1;
            if calls < 3 { Err(ClientError::NoAnswer("closed".into())) } else { Ok(calls) }
        };
        assert_eq!(persist(call).await.unwrap(), 3);
        assert_eq!(start.elapsed().as_secs(), 6);
    }
}
