//! The parts and settings that the handlers of the API share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::docs::openapi;
use super::pipeline::auth::MAX_FLAGGING;
use crate::service::ServiceContext;
use crate::service::auth_throttle::AuthThrottle;
use crate::service::encoder::Encoder;
use crate::service::key_cache::KeyCache;
use crate::service::limits::RateLimits;
use crate::service::links::Links;
use crate::service::people::SignUpTerms;
use crate::service::previews::Previews;
use crate::service::tasks::Tasks;
use crate::service::thumbnails::Thumbnails;
use crate::service::uploads::Uploads;
use crate::studio::{Studio, StudioParts, StudioSettings};
use tintype_config::{
    AllowedOrigins, ConnectionLimits, LimitSettings, ModelAliases, RedisServer, ServerSettings, SignUpSettings,
    TrustedProxy,
};
use tintype_outbound::identity_provider::{IdentityProvider, Registration};
use tintype_system::sandbox::Decoder;

/// The settings that the API consults.
#[derive(Debug, Clone)]
pub struct ApiSettings {
    /// The settings that the studio consults too.
    pub studio: StudioSettings,
    /// Whether responses tell browsers to use only HTTPS.
    pub production: bool,
    /// Peers whose `X-Forwarded-Proto` and `X-Forwarded-For` are trusted.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// Whether the log names the client of each request.
    pub log_clients: bool,
    /// Balancers of TCP connections, which name callers by the PROXY protocol and set no headers. If there are any, no other
    /// peer may connect by TCP.
    pub balancers: Vec<TrustedProxy>,
    /// Limits on connections.
    pub connections: ConnectionLimits,
    /// Limits on callers.
    pub limits: LimitSettings,
    /// The Redis that counts rate limits for all processes.
    pub redis: Option<RedisServer>,
    /// The host of the address that it listens on, or of its certificate from ACME.
    pub listening_host: Option<String>,
    /// Origins of web pages that may call the API.
    pub origins: Arc<AllowedOrigins>,
    /// Model names that map to an engine.
    pub model_aliases: Arc<ModelAliases>,
    /// The OpenID Connect provider for sign-in.
    pub provider: Option<Registration>,
    /// The program that decodes uploads.
    pub picture_decoder: PathBuf,
    /// How long finished tasks are kept; `None` for ever.
    pub retention: Option<Duration>,
}

impl ApiSettings {
    /// The settings of an API that callers reach at `listening_url` unless `--public-url` is set.
    ///
    /// # Errors
    /// A message for the operator when the password of Redis cannot be read, the allowed origins contradict each other,
    /// or the PROXY protocol has no balancer.
    pub fn new(settings: &ServerSettings, listening_url: &str) -> Result<Self, String> {
        let public_url = settings.public_url.as_deref().unwrap_or(listening_url);
        let of_network = |trusted: &&TrustedProxy| settings.proxy_protocol && **trusted != TrustedProxy::Socket;
        let (balancers, trusted_proxies): (Vec<_>, Vec<_>) = settings.trusted_proxy.iter().partition(of_network);
        if settings.proxy_protocol && balancers.is_empty() {
            return Err("--proxy-protocol needs --trusted-proxy with the addresses of the balancers".into());
        }
        let bin_retention = settings.retention.bin_retention;
        Ok(Self {
            studio: StudioSettings {
                require_https: settings.production || settings.serves_https(),
                public_host: settings.public_url.as_deref().and_then(host_of),
                reference_ports: settings.worker.reference_ports.clone(),
                file_links: settings.file_urls.links(&settings.files, public_url)?,
                in_bin: settings.retention.retention.map_or(bin_retention, |retention| retention.min(bin_retention)),
                sign_up: terms(settings.sign_up),
                second_factor: settings.second_factor.require_second_factor,
                webhooks: settings.webhooks.clone(),
            },
            production: settings.production,
            log_clients: settings.log_clients,
            trusted_proxies: trusted_proxies.into_iter().cloned().collect(),
            balancers: balancers.into_iter().cloned().collect(),
            connections: ConnectionLimits {
                max_connections: settings.limits.max_connections,
                max_per_address: settings.limits.max_connections_per_address,
                ..ConnectionLimits::DEFAULT
            },
            limits: settings.limits.clone(),
            redis: settings.redis.server()?,
            listening_host: host_of(listening_url),
            origins: Arc::new(settings.origins.allowed()?),
            model_aliases: Arc::new(settings.models.aliases()?),
            provider: registration(settings, public_url)?,
            picture_decoder: settings.worker.test_picture_decoder.clone(),
            retention: settings.retention.retention,
        })
    }
}

/// This server as it is registered at the OpenID Connect provider, if there is one.
fn registration(settings: &ServerSettings, public_url: &str) -> Result<Option<Registration>, String> {
    let Some(provider) = settings.oidc.provider()? else { return Ok(None) };
    let needs_https = settings.production || settings.serves_https();
    if needs_https && !public_url.starts_with("https://") {
        return Err("--oidc-issuer needs --public-url with https, to which the provider sends browsers back".into());
    }
    let redirect = format!("{public_url}/studio/oidc/callback");
    Ok(Some(Registration { provider, redirect, post_logout_redirect: format!("{public_url}/studio/sign-in") }))
}

fn terms(settings: SignUpSettings) -> Option<SignUpTerms> {
    let SignUpSettings { sign_up, sign_up_credits, sign_up_per_address } = settings;
    let per_address = if sign_up_per_address == 0 { u32::MAX } else { sign_up_per_address };
    sign_up.then_some(SignUpTerms { credits: sign_up_credits, per_address })
}

/// The host of a URL, with its port if it names one.
fn host_of(url: &str) -> Option<String> {
    url.split_once("://")?.1.split('/').next().map(str::to_owned)
}

/// The parts that the handlers of the API share.
#[derive(Debug)]
pub struct ApiState {
    /// Settings.
    pub settings: ApiSettings,
    /// Parts that the worker and the sweeper use too.
    pub shared: Arc<ServiceContext>,
    /// How long a task is assumed to take until some were measured.
    pub typical_duration: Duration,
    /// Submits, finds and lists tasks.
    pub tasks: Arc<Tasks>,
    /// URLs of result files.
    pub links: Arc<Links>,
    /// Keys, with a short cache.
    pub keys: Arc<KeyCache>,
    /// Rate limits.
    pub limits: Arc<RateLimits>,
    /// Failed authentications.
    pub auth_throttle: Arc<AuthThrottle>,
    /// Limits how many requests flag leaked keys at the same time.
    pub flagging: Arc<Semaphore>,
    /// Takes pictures that callers bring.
    pub uploads: Arc<Uploads>,
    /// Encodes the pictures of answers.
    pub encoder: Encoder,
    /// Looks for previews of pictures that are being made.
    pub previews: Arc<Previews>,
    /// The pages for people.
    pub studio: Arc<Studio>,
}

impl ApiState {
    /// Builds the parts of the API.
    pub async fn open(
        settings: ApiSettings,
        shared: Arc<ServiceContext>,
        typical_duration: Duration,
    ) -> Result<Arc<Self>, String> {
        let LimitSettings { max_unfinished, max_failed_tasks, .. } = settings.limits;
        let clock = &shared.clock;
        let tasks = Tasks::open(shared.clone(), max_unfinished, max_failed_tasks).await;
        let tasks = tasks.map_err(|error| error.to_string())?;
        let (tasks, auth_throttle) = (Arc::new(tasks), Arc::new(AuthThrottle::new(clock.clone())));
        let links = Arc::new(Links::open(settings.studio.file_links.clone(), shared.clone()).await?);
        let decoder = Decoder::new(&settings.picture_decoder);
        let uploads = Uploads::new(shared.clone(), decoder.clone());
        let limits = Arc::new(RateLimits::open(&settings.limits, settings.redis.as_ref(), clock.clone()).await?);
        let provider = settings.provider.clone().map(|registration| IdentityProvider::new(registration, clock.clone()));
        let parts = StudioParts {
            provider: provider.transpose()?,
            limits: limits.clone(),
            tasks: tasks.clone(),
            links: links.clone(),
            auth_throttle: auth_throttle.clone(),
            document: openapi(),
            uploads: uploads.clone(),
            thumbnails: Thumbnails::new(shared.clone(), decoder),
            connections: settings.connections,
        };
        Ok(Arc::new(Self {
            studio: Studio::new(shared.clone(), parts, settings.studio.clone()),
            uploads,
            encoder: Encoder::new(shared.clone()),
            previews: Previews::new(shared.clone()),
            keys: Arc::new(KeyCache::new(shared.store.clone(), clock.clone())),
            limits,
            tasks,
            links,
            auth_throttle,
            flagging: Arc::new(Semaphore::new(MAX_FLAGGING)),
            typical_duration,
            settings,
            shared,
        }))
    }
}
