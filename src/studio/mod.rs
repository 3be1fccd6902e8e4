//! The studio: pages for people. It shows the tasks of the surface `web`; tasks of the API have a separate, read-only page.
//!
//! A handler takes a `session::Visitor`, which exists for a signed-in person alone; one that changes anything takes a
//! `session::Form`, which also proves that the form came from a page of the studio. `crate::http` routes to the handlers,
//! and says of each request where it came from ([`RequestContext`]).

pub(crate) mod account;
mod action;
mod cards;
mod chart;
mod cookies;
pub(crate) mod create;
pub(crate) mod docs;
mod error;
pub(crate) mod events;
mod failures;
pub(crate) mod image_bodies;
pub(crate) mod images;
pub(crate) mod language;
mod live;
pub(crate) mod not_found;
pub(crate) mod operator;
mod page;
mod references;
mod search;
mod session;
mod settings;
pub(crate) mod sign_in;
mod texts;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use self::session::Visitor;
use crate::service::ServiceContext;
use crate::service::auth_throttle::AuthThrottle;
use crate::service::hourly_stats::HourlyStats;
use crate::service::limits::{RateLimit, RateLimits};
use crate::service::links::Links;
use crate::service::people::{
    MAX_HASHES_OF_ONE, MAX_HASHES_QUEUED, MAX_SIGN_UPS_OF_ONE, MAX_SIGN_UPS_QUEUED, People, SignUpTerms,
};
use crate::service::shares::FairShares;
use crate::service::sign_in_attempts::SignInAttempts;
use crate::service::tasks::Tasks;
use crate::service::thumbnails::Thumbnails;
use crate::service::uploads::Uploads;
use crate::service::usage::UsageCache;
use tintype_config::{ConnectionLimits, FileLinks, RequiredFor, WebhookSettings};
use tintype_domain::model::Id;
use tintype_domain::person::{Person, Role};
use tintype_domain::signed_tokens::TokenSigner;
use tintype_domain::source::Source;
use tintype_outbound::identity_provider::IdentityProvider;

pub use self::create::snippets::TEMPLATES as SNIPPETS;
pub use self::error::{HasOwnBody, PageError, write_error};
pub use self::live::MAX_WATCHERS_OF_PERSON;
pub use self::session::check_https;
pub use self::texts::Texts;

/// The first page.
pub const HOME: &str = "/studio";
/// The page on which people set up a second factor.
pub const SECOND_FACTOR: &str = "/studio/second-factor";
/// The page on which people sign in.
pub const SIGN_IN: &str = "/studio/sign-in";
/// The form that ends a session.
const SIGN_OUT: &str = "/studio/sign-out";

/// A request as `crate::http` saw it.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// Whether it came over HTTPS.
    pub https: bool,
    /// Its source, for limits.
    pub source: Option<Source>,
    /// Its id, which the person can quote to support.
    pub request_id: String,
}

/// The parts and settings of the studio.
#[derive(Debug)]
pub struct Studio {
    shared: Arc<ServiceContext>,
    tasks: Arc<Tasks>,
    limits: Arc<RateLimits>,
    links: Arc<Links>,
    people: People,
    auth_throttle: Arc<AuthThrottle>,
    sign_in_attempts: SignInAttempts,
    /// Places for password hashes, for sign-ups, and for downloads and reports of an account.
    hashes: FairShares<Source>,
    sign_ups: FairShares<Source>,
    downloads: FairShares,
    reports: FairShares,
    codes: SignInAttempts,
    provider: Option<IdentityProvider>,
    exchanges: sign_in::oidc::Exchanges,
    reference: docs::Reference,
    uploads: Arc<Uploads>,
    thumbnails: Thumbnails,
    samples: create::presets::Samples,
    live: live::Live,
    hours: HourlyStats,
    usage: UsageCache,
    connections: ConnectionLimits,
    settings: StudioSettings,
}

/// The settings that the studio consults.
#[derive(Debug, Clone)]
pub struct StudioSettings {
    /// Whether cookies need HTTPS.
    pub require_https: bool,
    /// The host at which people reach the studio, if a proxy may name another one.
    pub public_host: Option<String>,
    /// Ports allowed in reference image URLs.
    pub reference_ports: Vec<u16>,
    /// The URLs of result files.
    pub file_links: FileLinks,
    /// How long deleted tasks stay in the bin.
    pub in_bin: Duration,
    /// The terms of open sign-up; `None` where only the operator opens accounts.
    pub sign_up: Option<SignUpTerms>,
    /// The people who must have a second factor.
    pub second_factor: Option<RequiredFor>,
    /// Networks that the operator's webhooks may reach.
    pub webhooks: WebhookSettings,
}

/// The parts of the service that the studio uses.
#[derive(Debug)]
pub struct StudioParts {
    /// Submits, finds and lists tasks.
    pub tasks: Arc<Tasks>,
    /// Rate limits.
    pub limits: Arc<RateLimits>,
    /// URLs of result files.
    pub links: Arc<Links>,
    /// Failed sign-ins.
    pub auth_throttle: Arc<AuthThrottle>,
    /// The OpenID Connect provider at which people may sign in.
    pub provider: Option<IdentityProvider>,
    /// The OpenAPI document of the API.
    pub document: serde_json::Value,
    /// Takes uploads.
    pub uploads: Arc<Uploads>,
    /// Makes thumbnails.
    pub thumbnails: Thumbnails,
    /// Limits on connections.
    pub connections: ConnectionLimits,
}

impl Studio {
    /// Builds the studio.
    pub fn new(shared: Arc<ServiceContext>, parts: StudioParts, settings: StudioSettings) -> Arc<Self> {
        let StudioParts { tasks, limits, links, auth_throttle, provider, document, uploads, thumbnails, connections } =
            parts;
        Arc::new(Self {
            live: live::Live::new(shared.clone(), tasks.clone()),
            tasks,
            limits,
            links,
            people: People::new(shared.store.clone()),
            auth_throttle,
            sign_in_attempts: SignInAttempts::new(shared.clock.clone()),
            hashes: FairShares::limited(MAX_HASHES_OF_ONE, MAX_HASHES_QUEUED),
            sign_ups: FairShares::limited(MAX_SIGN_UPS_OF_ONE, MAX_SIGN_UPS_QUEUED),
            codes: SignInAttempts::of_codes(shared.clock.clone()),
            provider,
            exchanges: sign_in::oidc::Exchanges::new(shared.clock.clone()),
            reference: docs::Reference::read(&document),
            uploads,
            thumbnails,
            samples: create::presets::Samples::default(),
            hours: HourlyStats::default(),
            usage: UsageCache::default(),
            downloads: FairShares::limited(images::downloads::MAX_DOWNLOADS, usize::MAX),
            reports: FairShares::limited(1, usize::MAX),
            connections,
            settings,
            shared,
        })
    }

    /// The maker of thumbnails.
    pub fn thumbnails(&self) -> &Thumbnails {
        &self.thumbnails
    }

    /// The places for reports.
    pub fn reports(&self) -> &FairShares {
        &self.reports
    }

    /// The tickets of this moment.
    async fn tickets(&self) -> tintype_store::Result<TokenSigner> {
        Ok(TokenSigner::new(&self.shared.store.cursor_secret().await?, self.shared.store.now()))
    }

    /// Counts a request, and rejects it beyond the limit.
    async fn count(&self, id: Id, limit: RateLimit) -> Result<(), PageError> {
        let counted = self.limits.count_one(id, limit).await;
        let Some(seconds) = counted.and_then(|counted| counted.retry_after) else { return Ok(()) };
        self.shared.metrics.rate_limited.inc();
        Err(PageError::too_often(seconds))
    }

    /// Counts a request of a person, and rejects it beyond the limit of the person or the account.
    async fn count_person(&self, person: &Person, limit: RateLimit) -> Result<(), PageError> {
        self.count(person.id, limit).await?;
        self.count(person.account_id, limit.of_account()).await
    }

    /// Reads a report for people with this role. An account has one at a time. It is read to its end even if the person
    /// disconnects, so that connecting again cannot start more.
    async fn report<T: Send + 'static>(
        &self,
        visitor: &Visitor,
        role: Role,
        read: impl Future<Output = tintype_store::Result<T>> + Send + 'static,
    ) -> Result<T, PageError> {
        visitor.require(role)?;
        let person = &visitor.session.person;
        let place = self.reports.try_take(Some(person.account_id)).map_err(|_| PageError::too_often(1))?;
        self.count_person(person, RateLimit::Report).await?;
        let read = tokio::spawn(async move {
            let _place = place;
            read.await
        });
        let report = read.await.map_err(PageError::caused_by)??;
        // Its turn may have come long after the request.
        let session = self.shared.store.find_session(visitor.token_hash).await?.ok_or_else(PageError::signed_out)?;
        session::require(&session.person, role)?;
        Ok(report)
    }

    /// Sends open pages what changes, until `stop`, which also ends their streams.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.live.run(stop).await;
    }
}
