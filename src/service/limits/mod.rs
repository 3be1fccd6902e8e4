//! Rate limits per key and, in the studio, per person, by the generic cell rate algorithm (GCRA), with separate limits for
//! submits and reads. Redis counts for all processes together; without Redis each process counts on its own.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::Quota;

use super::limiters::Limiters;
use tintype_config::{LimitSettings, RedisServer};
use tintype_domain::key::ApiKey;
use tintype_domain::model::Id;
use tintype_domain::string_enum;
use tintype_system::clock::Clock;

mod shared;

use self::shared::SharedLimits;

/// The period that rates refer to.
pub const WINDOW: Duration = Duration::from_secs(60);
/// Webhooks that the owners of an account may send by hand in that time. Each is kept for a week, and costs nothing.
const WEBHOOKS: u32 = 30;
/// Reports that a person may ask for in that time. Each may read the whole ledger of the account.
pub const REPORTS: u32 = 30;
/// Forms that a person may send in that time, uploads among them. Each writes, and most are kept in the audit log for a year.
pub const FORMS: u32 = 240;
/// Pages, pictures and streams that a person may ask for in that time: a quick look through two thousand pictures.
pub const PAGES: u32 = 3_000;
/// Views of one shared link in that time. Each view is counted in the database.
pub const VIEWS: u32 = 600;
/// Views of all links of an account in that time.
pub const VIEWS_OF_ACCOUNT: u32 = 2_400;

string_enum! {
    /// The limit that a request counts against.
    pub enum RateLimit: "limit" {
        /// Creating a task.
        Submit = "submit",
        /// Everything else.
        Read = "read",
        /// Creating a task, with any key of the account.
        AccountSubmit = "account-submit",
        /// Everything else, with any key of the account.
        AccountRead = "account-read",
        /// A form that a person sends in the studio, uploads among them.
        Form = "form",
        /// A page, picture or stream that a person asks for in the studio.
        Page = "page",
        /// A report that a person asks for in the studio.
        Report = "report",
        /// A form of any person of the account.
        AccountForm = "account-form",
        /// A page, picture or stream for any person of the account.
        AccountPage = "account-page",
        /// A report for any person of the account.
        AccountReport = "account-report",
        /// A test of an endpoint, or a delivery that is sent again, by an owner of the account in the studio.
        Webhook = "webhook",
        /// A view of a shared link.
        View = "view",
        /// A view of any shared link of the account.
        AccountView = "account-view",
    }
}

impl RateLimit {
    /// This limit for all keys or people of the account together.
    pub fn of_account(self) -> Self {
        match self {
            Self::Submit | Self::AccountSubmit => Self::AccountSubmit,
            Self::Read | Self::AccountRead => Self::AccountRead,
            Self::Form => Self::AccountForm,
            Self::Page => Self::AccountPage,
            Self::Report => Self::AccountReport,
            _ => self,
        }
    }
}

/// State of a limit after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    /// Whether the limit is one of the account, and not of the key.
    pub of_account: bool,
    /// Requests per minute.
    pub limit: u32,
    /// Requests that would be allowed right now.
    pub remaining: u32,
    /// Whole seconds to wait before the request can be repeated, at least 1; `None` if it was allowed.
    pub retry_after: Option<u64>,
    /// Whether this process counted on its own because Redis was unavailable.
    pub fallback: bool,
}

impl Allowance {
    fn allowed(limit: u32, remaining: u32) -> Self {
        Self { of_account: false, limit, remaining, retry_after: None, fallback: false }
    }

    fn refused(limit: u32, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self { of_account: false, limit, remaining: 0, retry_after: Some(seconds.max(1)), fallback: false }
    }

    /// Whole seconds until the full limit is available again if no further request arrives.
    pub fn seconds_to_full(self) -> u64 {
        let used = u64::from(self.limit - self.remaining.min(self.limit));
        (used * WINDOW.as_secs()).div_ceil(u64::from(self.limit))
    }
}

/// An account's limit as a multiple of a person's, and of a key's unless a setting says otherwise.
pub const OF_ACCOUNT: u32 = 10;

/// The rate limits of all keys, accounts and people.
#[derive(Debug)]
pub struct RateLimits {
    submit_rate: u32,
    read_rate: u32,
    account_submit_rate: u32,
    account_read_rate: u32,
    max_suspended_keys: u32,
    shared: Option<SharedLimits>,
    local: Limiters<(Id, RateLimit)>,
}

impl RateLimits {
    /// Creates the limits with the server's defaults. `redis` counts them whenever it is reachable.
    ///
    /// # Errors
    /// A message for the operator: the settings are invalid. An unreachable Redis is not an error.
    pub async fn open(settings: &LimitSettings, redis: Option<&RedisServer>, clock: Clock) -> Result<Self, String> {
        let shared = match redis {
            Some(redis) => Some(SharedLimits::open(redis, clock.clone()).await?),
            None => None,
        };
        let (submit_rate, read_rate) = (settings.submit_rate, settings.read_rate);
        let of_account = |set: Option<u32>, of_key: u32| set.unwrap_or(of_key.saturating_mul(OF_ACCOUNT));
        Ok(Self {
            submit_rate,
            read_rate,
            account_submit_rate: of_account(settings.account_submit_rate, submit_rate),
            account_read_rate: of_account(settings.account_read_rate, read_rate),
            max_suspended_keys: settings.max_suspended_keys,
            shared,
            local: Limiters::new(clock),
        })
    }

    /// Host and port of the Redis server, if one is configured.
    pub fn redis(&self) -> Option<&str> {
        self.shared.as_ref().map(SharedLimits::name)
    }

    /// Whether Redis counts now.
    pub fn are_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(SharedLimits::is_up)
    }

    /// Requests per minute that a key may send; `None` if it is not limited.
    pub fn of(&self, key: &ApiKey, usage: RateLimit) -> Option<u32> {
        let own = match usage {
            RateLimit::Submit => key.submit_rate,
            RateLimit::Read => key.read_rate,
            _ => None,
        };
        let most = self.per_minute(usage);
        // Owners cannot go beyond the server's limits, even if these were higher when they made the key.
        let limit = match own {
            Some(rate) if key.made_by.is_some() && most > 0 => rate.min(most),
            own => own.unwrap_or(most),
        };
        Some(limit).filter(|limit| *limit > 0)
    }

    /// Requests per minute, unless a key has a limit of its own; 0 means no limit.
    fn per_minute(&self, usage: RateLimit) -> u32 {
        match usage {
            RateLimit::Submit => self.submit_rate,
            RateLimit::Read => self.read_rate,
            RateLimit::AccountSubmit => self.account_submit_rate,
            RateLimit::AccountRead => self.account_read_rate,
            RateLimit::Form => FORMS,
            RateLimit::Page => PAGES,
            RateLimit::Report => REPORTS,
            RateLimit::AccountForm => FORMS * OF_ACCOUNT,
            RateLimit::AccountPage => PAGES * OF_ACCOUNT,
            RateLimit::AccountReport => REPORTS * OF_ACCOUNT,
            RateLimit::Webhook => WEBHOOKS,
            RateLimit::View => VIEWS,
            RateLimit::AccountView => VIEWS_OF_ACCOUNT,
        }
    }

    /// Whether an account's owner can give a key these limits: none above the server's.
    pub fn may_be_set(&self, submit_rate: Option<u32>, read_rate: Option<u32>) -> bool {
        let within = |rate: Option<u32>, most: u32| most == 0 || rate.is_none_or(|rate| (1..=most).contains(&rate));
        within(submit_rate, self.submit_rate) && within(read_rate, self.read_rate)
    }

    /// Whether an account with this many suspended keys is past the limit at which its owners cannot make keys work.
    pub fn are_too_many_suspended(&self, keys: usize) -> bool {
        self.max_suspended_keys > 0 && keys >= self.max_suspended_keys as usize
    }

    /// Counts one request against the limit of the key, which it shares with its predecessors in rotations, and then against
    /// the limit of its account. Returns the limit that refuses it, or else the key's; `None` if the key is not limited.
    pub async fn count(&self, key: &ApiKey, usage: RateLimit) -> Option<Allowance> {
        let of_key = match self.of(key, usage) {
            Some(limit) => self.count_under(key.first_id, usage, limit).await,
            None => None,
        };
        // Only the operator can give a key no limit at all.
        let own = if usage == RateLimit::Submit { key.submit_rate } else { key.read_rate };
        if own == Some(0) {
            return None;
        }
        let shared = usage.of_account();
        let Some(limit) = self.of(key, shared).filter(|_| of_key.is_none_or(|counted| counted.retry_after.is_none()))
        else {
            return of_key;
        };
        let of_account = self.count_under(key.account_id, shared, limit).await;
        match of_account.filter(|counted| counted.retry_after.is_some()) {
            Some(refused) => Some(Allowance { of_account: true, ..refused }),
            None => of_key,
        }
    }

    /// Counts one request of a person, link or account against a limit; `None` if there is no limit.
    pub async fn count_one(&self, id: Id, usage: RateLimit) -> Option<Allowance> {
        self.count_under(id, usage, self.per_minute(usage)).await
    }

    async fn count_under(&self, id: Id, usage: RateLimit, limit: u32) -> Option<Allowance> {
        let quota = Quota::per_minute(NonZeroU32::new(limit)?);
        let Some(shared) = &self.shared else { return Some(self.count_locally(id, usage, quota)) };
        Some(match shared.count(id, usage, quota).await {
            Some(count) if count.wait.is_zero() => Allowance::allowed(limit, count.remaining),
            Some(count) => Allowance::refused(limit, count.wait),
            None => Allowance { fallback: true, ..self.count_locally(id, usage, quota) },
        })
    }

    fn count_locally(&self, id: Id, usage: RateLimit, quota: Quota) -> Allowance {
        let limit = quota.burst_size().get();
        match self.local.of(&(id, usage), quota).count() {
            Ok(remaining) => Allowance::allowed(limit, remaining),
            Err(wait) => Allowance::refused(limit, wait),
        }
    }
}

/// Tests a Redis server; returns its address and response time as text.
pub async fn probe(redis: &RedisServer) -> Result<String, String> {
    shared::probe(redis).await
}
