//! The state of an unfinished task, from the headers of a response.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName};

use super::{ClientError, seconds};

/// Suggested seconds until the next poll, with a fraction.
static POLL_AFTER: HeaderName = HeaderName::from_static("x-poll-after");
/// Estimated seconds until the task ends.
static EXPECTED_WAIT: HeaderName = HeaderName::from_static("x-expected-wait");
static QUEUE_POSITION: HeaderName = HeaderName::from_static("x-queue-position");
static PROGRESS: HeaderName = HeaderName::from_static("x-progress");
/// Steps done and total steps.
static STEPS: HeaderName = HeaderName::from_static("x-steps");

/// The fields of a submit that the server does not know, or that its engine or preset does not take.
static IGNORED_FIELDS: HeaderName = HeaderName::from_static("x-ignored-fields");

/// An unfinished task, as far as the server reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Processing {
    /// Suggested wait before the next poll.
    pub poll_after: Option<Duration>,
    /// Estimated time until the task ends.
    pub expected_wait: Option<Duration>,
    /// Its place in the queue; 0 while a worker has it.
    pub queue_position: Option<u64>,
    /// The part of the work that is done, from 0 to 1.
    pub progress: Option<f64>,
    /// Steps done and total steps.
    pub steps: Option<(u32, u32)>,
}

impl Processing {
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let text = |name: &HeaderName| headers.get(name)?.to_str().ok();
        let steps = |text: &str| {
            let (done, all) = text.split_once('/')?;
            Some((done.parse().ok()?, all.parse().ok()?))
        };
        Self {
            poll_after: seconds(headers, &POLL_AFTER),
            expected_wait: seconds(headers, &EXPECTED_WAIT),
            queue_position: text(&QUEUE_POSITION).and_then(|text| text.parse().ok()),
            progress: text(&PROGRESS).and_then(|text| text.parse().ok()).filter(|part| (0.0..=1.0).contains(part)),
            steps: text(&STEPS).and_then(steps),
        }
    }
}

/// The names of the fields of a submit that the server ignored.
pub(super) fn ignored_fields(headers: &HeaderMap) -> Vec<String> {
    let list = headers.get(&IGNORED_FIELDS).and_then(|list| list.to_str().ok()).unwrap_or_default();
    list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// An event during the wait for a task.
#[derive(Debug)]
pub enum Waiting<'a> {
    /// A poll found the task unfinished.
    Processing(Processing),
    /// A call failed, and is tried again after this time.
    Retry(&'a ClientError, Duration),
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn headers_that_no_server_of_ours_sends_are_passed_over() {
        let read = |lines: &[(&HeaderName, &'static str)]| {
            let lines = lines.iter().map(|(name, value)| ((*name).clone(), HeaderValue::from_static(value)));
            Processing::read(&lines.collect())
        };
        let state = read(&[(&PROGRESS, "0.35"), (&STEPS, "7/20"), (&QUEUE_POSITION, "0"), (&EXPECTED_WAIT, "12")]);
        assert_eq!((state.progress, state.steps, state.queue_position), (Some(0.35), Some((7, 20)), Some(0)));
        assert_eq!(state.expected_wait, Some(Duration::from_secs(12)));
        for (progress, steps) in [("2", "7"), ("-1", "7/"), ("NaN", "a/b"), ("", "-1/20")] {
            let state =
                read(&[(&PROGRESS, progress), (&STEPS, steps), (&QUEUE_POSITION, "-1"), (&EXPECTED_WAIT, "-1")]);
            assert_eq!(state, Processing::default(), "{progress} {steps}");
        }
    }
}
