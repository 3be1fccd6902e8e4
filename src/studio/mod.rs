//! The studio: pages for people. It shows what people create here, on the surface `web`; tasks of the API only on a page of
//! their own, read only.
//!
//! A handler takes a `session::Visitor`, which exists for a signed-in person alone; one that changes anything takes a
//! `session::Form`, which also proves that the form came from a page of the studio. `crate::http` routes to the handlers,
//! and says of each request where it came from ([`RequestContext`]).

mod action;
mod activity;
mod bin;
mod boards;
mod cards;
mod chart;
mod compare;
mod confirmation;
mod cookies;
mod create;
mod credits;
mod docs;
mod downloads;
mod error;
mod events;
mod failures;
mod gallery;
pub(crate) mod image_bodies;
mod invitations;
mod joining;
mod keys;
mod language;
mod live;
mod masks;
mod not_found;
mod oidc;
mod operator;
mod overlap;
mod page;
mod people;
mod picture_files;
mod presets;
mod previews;
mod references;
mod search;
mod second_factor;
mod secret;
mod session;
mod sessions;
mod settings;
mod shared_links;
mod sign_in;
mod sign_up;
mod snippets;
mod texts;
mod uploads;
mod usage;
mod webhooks;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::service::Shared;
use crate::service::admission::Admission;
use crate::service::failures::Failures;
use crate::service::hourly_stats::HourlyStats;
use crate::service::limits::RateLimits;
use crate::service::links::Links;
use crate::service::people::{
    MAX_HASHES_OF_ONE, MAX_HASHES_QUEUED, MAX_SIGN_UPS_OF_ONE, MAX_SIGN_UPS_QUEUED, People, SignUpTerms,
};
use crate::service::sign_in_attempts::SignInAttempts;
use crate::service::tasks::Tasks;
use crate::service::thumbnails::Thumbnails;
use crate::service::uploads::Uploads;
use crate::service::usage::UsageCache;
use tintype_config::{ConnectionLimits, FileLinks, RequiredFor};
use tintype_domain::model::Id;
use tintype_domain::signed_tokens::TokenSigner;
use tintype_domain::source::Source;
use tintype_outbound::identity_provider::IdentityProvider;

pub use self::error::{PageError, Written, write_error};
pub use self::live::MAX_WATCHERS_OF_PERSON;
pub use self::session::check_https;
pub use self::snippets::TEMPLATES as SNIPPETS;
pub use self::texts::Texts;

/// The handlers, which `crate::http` puts into its table of routes.
pub mod handlers {
    pub use super::activity::activity;
    pub use super::bin::{bin, change_bin};
    pub use super::boards::{boards, change_board, cover, create_board};
    pub use super::compare::compare;
    pub use super::create::{cancel, create, older, picture, submit};
    pub use super::credits::{credits, csv};
    pub use super::docs::docs;
    pub use super::downloads::{picture as download, zip, zip_chosen};
    pub use super::events::events;
    pub use super::gallery::{change as change_chosen, gallery};
    pub use super::invitations::{invitation, invite, join, revoke as revoke_invitation};
    pub use super::keys::{change as change_key, create as create_key, keys};
    pub use super::language::choose as choose_language;
    pub use super::not_found::{form_not_found, page_not_found};
    pub use super::oidc::{begin_oidc, begin_oidc_link, link_identity, oidc_callback, unlink_identity};
    pub use super::operator::{
        account as operator_account, accounts as operator_accounts, audit as operator_audit,
        change_account as operator_change_account, change_key as operator_change_key,
        change_person as operator_change_person, change_queue as operator_change_queue, grant as operator_grant,
        overview as operator_overview, people as operator_people, strikes as operator_strikes,
    };
    pub use super::people::{add as add_person, change as change_person, people};
    pub use super::presets::sample as preset_sample;
    pub use super::previews::preview;
    pub use super::second_factor::{
        by_code, new_recovery_codes, second_factor, turn_off as turn_off_factor, turn_on as turn_on_factor,
    };
    pub use super::secret::{put_away as put_secret_away, secret};
    pub use super::sessions::{end as end_session, end_others as end_other_sessions, sessions, set_password};
    pub use super::shared_links::{links, revoke as revoke_link, share, shared, shared_file, shared_thumbnail};
    pub use super::sign_in::{by_link, by_password, link, sign_in, sign_out};
    pub use super::sign_up::{sign_up, submit as submit_sign_up};
    pub use super::uploads::{remove as remove_upload, result_thumbnail, upload, upload_thumbnail, uploads};
    pub use super::usage::{usage, usage_csv};
    pub use super::webhooks::{
        change as change_webhook, create as create_webhook, replay as replay_delivery, webhook, webhooks,
    };
}

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
    shared: Arc<Shared>,
    tasks: Arc<Tasks>,
    limits: Arc<RateLimits>,
    links: Arc<Links>,
    people: People,
    failures: Arc<Failures>,
    sign_in_attempts: SignInAttempts,
    /// Places for password hashes, for sign-ups, and for downloads of an account.
    hashes: Admission<Source>,
    sign_ups: Admission<Source>,
    downloads: Admission<Id>,
    codes: SignInAttempts,
    provider: Option<IdentityProvider>,
    exchanges: oidc::Exchanges,
    reference: docs::Reference,
    uploads: Arc<Uploads>,
    thumbnails: Thumbnails,
    samples: presets::Samples,
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
    pub failures: Arc<Failures>,
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
    pub fn new(shared: Arc<Shared>, parts: StudioParts, settings: StudioSettings) -> Arc<Self> {
        let StudioParts { tasks, limits, links, failures, provider, document, uploads, thumbnails, connections } =
            parts;
        Arc::new(Self {
            live: live::Live::new(shared.clone(), tasks.clone()),
            tasks,
            limits,
            links,
            people: People::new(shared.store.clone()),
            failures,
            sign_in_attempts: SignInAttempts::new(shared.clock.clone()),
            hashes: Admission::new(MAX_HASHES_OF_ONE, MAX_HASHES_QUEUED),
            sign_ups: Admission::new(MAX_SIGN_UPS_OF_ONE, MAX_SIGN_UPS_QUEUED),
            codes: SignInAttempts::of_codes(shared.clock.clone()),
            provider,
            exchanges: oidc::Exchanges::new(shared.clock.clone()),
            reference: docs::Reference::read(&document),
            uploads,
            thumbnails,
            samples: presets::Samples::default(),
            hours: HourlyStats::default(),
            usage: UsageCache::default(),
            downloads: Admission::new(downloads::MAX_DOWNLOADS, usize::MAX),
            connections,
            settings,
            shared,
        })
    }

    /// What makes thumbnails.
    pub fn thumbnails(&self) -> &Thumbnails {
        &self.thumbnails
    }

    /// The tickets of this moment.
    async fn tickets(&self) -> tintype_store::Result<TokenSigner> {
        Ok(TokenSigner::new(&self.shared.store.cursor_secret().await?, self.shared.store.now()))
    }

    /// Tells open pages what changes, until `stop`, which also ends their streams.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.live.run(stop).await;
    }
}
