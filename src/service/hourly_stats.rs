//! Statistics of recent hours' tasks. An hour whose tasks have all ended never changes, so it is read once.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tintype_store::{Hour, Result, Store};
use tintype_system::clock::Timestamp;
use tintype_system::locked::Locked as _;

const HOUR: Duration = Duration::from_secs(60 * 60);
/// Every task has ended this long after its creation, by a clock that was set a little as well.
const SETTLED: Duration = Duration::from_secs(15 * 60);

/// The hours that this process has read.
#[derive(Debug, Default)]
pub struct HourlyStats(Mutex<BTreeMap<i64, Hour>>);

impl HourlyStats {
    /// The last `count` hours until now, the oldest first, each with the time of its begin.
    pub async fn last(&self, store: &Store, count: u32) -> Result<Vec<(Timestamp, Hour)>> {
        let now = store.now();
        let length = i64::try_from(HOUR.as_millis()).unwrap_or(i64::MAX);
        let present = now.as_millis().div_euclid(length);
        let first = present - i64::from(count) + 1;
        let mut hours = Vec::new();
        for number in first..=present {
            let begin = Timestamp::from_millis(number * length);
            let known = self.0.locked().get(&number).cloned();
            let hour = match known {
                Some(hour) => hour,
                None => store.hour(begin).await?,
            };
            if begin.saturating_add(HOUR + SETTLED) < now {
                let mut read = self.0.locked();
                read.insert(number, hour.clone());
                *read = read.split_off(&first);
            }
            hours.push((begin, hour));
        }
        Ok(hours)
    }
}
