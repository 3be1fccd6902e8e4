//! Authentication, in this order: HTTPS in production, no key in the query, a valid key, its rate limit.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tracing::Instrument as _;

use super::error::ApiError;
use super::observe::RequestId;
use super::proxy;
use super::repeats::RetryHeaders;
use crate::http::ops::Readiness;
use crate::http::routes::{self, Access, Route, RouteGroup};
use crate::http::state::ApiState;
use crate::service::auth_throttle::FailureDelay;
use crate::service::limits::{Allowance, RateLimit, WINDOW};
use crate::studio::{self, RequestContext};
use tintype_domain::key::{ApiKey, KeyHash, KeySecret};
use tintype_domain::model::Id;
use tintype_domain::source::{Peer, Source};
use tintype_store::{KeyChange, Origin, Right};

/// Names of query parameters that count as a key, in any letter case.
const KEY_PARAMETERS: [&str; 8] =
    ["api_key", "apikey", "api-key", "key", "token", "access_token", "auth", "authorization"];

/// Most keys flagged for one request.
const MAX_FLAGGED: usize = 4;
/// Most requests that can flag keys at once. Others are skipped, because anyone can send them.
pub(in crate::http) const MAX_FLAGGING: usize = 16;

static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// The connection of a request, as the server saw it.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionInfo {
    /// The other end of the connection.
    pub peer: Peer,
    /// Whether this server terminated TLS.
    pub tls: bool,
    /// Whether the head of the request has a single interpretation.
    pub unambiguous: bool,
    /// Whether the connection exceeds the limits on connections.
    pub over_limit: bool,
}

/// The account and the key of an authenticated request, and what answers it.
#[derive(Debug, Clone)]
pub struct Caller {
    pub(in crate::http) api: Arc<ApiState>,
    pub(in crate::http) readiness: Readiness,
    pub(in crate::http) request_id: RequestId,
    /// The key's owner.
    pub account_id: Id,
    /// The key.
    pub key_id: Id,
    /// The key at the beginning of the line of rotated keys. Repeated calls are those with keys of one line.
    pub line: Id,
    /// Finds the key again.
    key_hash: KeyHash,
}

impl Caller {
    /// Checks the key again and returns it. A handler that has read a body must do so before a charge: bodies may take a
    /// minute, and the key may have been revoked meanwhile.
    pub(in crate::http) async fn recheck(&self) -> Result<Arc<ApiKey>, ApiError> {
        find_key(&self.api, self.key_hash).await
    }

    /// This caller's right to write.
    pub(in crate::http) fn right(&self) -> Right {
        Right::Key(self.key_hash)
    }

    pub(in crate::http) fn origin(&self) -> Origin {
        Some(self.key_id).into()
    }

    /// Counts a use of the key in addition to the guard's.
    pub(in crate::http) async fn count(&self, usage: RateLimit) -> Result<(), ApiError> {
        let key = self.recheck().await?;
        count(&self.api, &key, usage).await.map_or(Ok(()), |allowance| check(&self.api, (usage, allowance)))
    }
}

async fn count(api: &ApiState, key: &ApiKey, usage: RateLimit) -> Option<Allowance> {
    let counted = api.limits.count(key, usage).await;
    if counted.is_some_and(|allowance| allowance.fallback) {
        api.shared.metrics.rate_limit_fallbacks.inc();
    }
    counted
}

fn check(api: &ApiState, (usage, allowance): (RateLimit, Allowance)) -> Result<(), ApiError> {
    let Some(seconds) = allowance.retry_after else { return Ok(()) };
    api.shared.metrics.rate_limited.inc();
    let whose = if allowance.of_account { "account" } else { "key" };
    let message = format!("The rate limit of this {whose} is exceeded. Try again in {seconds} s.");
    Err(ApiError { limit: Some(Box::new((usage, allowance))), ..ApiError::rate_limited(message, seconds) })
}

/// Checks the key of a request whose route takes one. Except for MCP, a request without a route passes without a key,
/// to its 404 or 405.
pub(super) async fn guard(api: &Arc<ApiState>, readiness: &Readiness, mut request: Request, next: Next) -> Response {
    if let Some(query) = request.uri().query() {
        flag_leaked_keys(api, query);
    }
    if routes::group(&request) == Some(RouteGroup::Studio) {
        let context = request_context(api, &request);
        if let Err(error) = studio::check_https(&api.studio, &context) {
            let reason = proxy::over_plain_http(&api.settings.trusted_proxies, &request);
            return ApiError::from(error).with_cause(reason).into_response();
        }
        request.extensions_mut().insert(context);
        return next.run(request).await;
    }
    if !routes::takes_key(request.uri().path()) {
        return next.run(request).await;
    }
    let source = proxy::source(&api.settings.trusted_proxies, &request);
    let authenticated = match credentials(api, &request) {
        Ok(Some((secret, limit))) => {
            let key_hash = secret.hash();
            find_key(api, key_hash).await.map(|key| Some((key, key_hash, limit)))
        }
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    match authenticated {
        Ok(Some((key, key_hash, limit))) => {
            let (account_id, key_id, line) = (key.account_id, key.id, key.first_id);
            let (api, readiness, request_id) = (api.clone(), readiness.clone(), RequestId::of(&request));
            let caller = Caller { api, readiness, request_id, account_id, key_id, line, key_hash };
            within_limit(&key, caller, limit, request, next).await
        }
        Ok(None) => next.run(request).await,
        Err(error) if error.is_unauthorized() => refuse(api, source, error).await,
        Err(error) => error.into_response(),
    }
}

/// A studio request. Its handlers identify the person by a cookie.
fn request_context(api: &ApiState, request: &Request) -> RequestContext {
    let trusted = &api.settings.trusted_proxies;
    RequestContext {
        https: proxy::arrived_over_https(trusted, request),
        source: proxy::source(trusted, request),
        request_id: RequestId::of(request).to_string(),
    }
}

/// A request's key and its route's limit; `None` without a route. If a handler's route is missing from the table, it
/// rejects every request, because it takes a [`Caller`].
fn credentials(api: &Arc<ApiState>, request: &Request) -> Result<Option<(KeySecret, Option<RateLimit>)>, ApiError> {
    if api.settings.studio.require_https && !proxy::arrived_over_https(&api.settings.trusted_proxies, request) {
        return Err(ApiError::unauthorized().with_cause(proxy::over_plain_http(&api.settings.trusted_proxies, request)));
    }
    if request.uri().query().is_some_and(holds_key) {
        return Err(ApiError::unauthorized());
    }
    // Agents ask with any method whether they need a key.
    let of_agents = || routes::at(request).filter(|route| route.group == RouteGroup::Mcp);
    let Some(route) = Route::of(request).filter(|route| route.access == Access::Key).or_else(of_agents) else {
        return Ok(None);
    };
    let secret = bearer(request.headers()).ok_or_else(ApiError::unauthorized)?;
    // A call that may repeat one counts as a submit once it makes a task.
    let may_repeat = route.group == RouteGroup::OpenAi && RetryHeaders::is_claimed(request.headers());
    let limit = if may_repeat && route.limit == Some(RateLimit::Submit) { Some(RateLimit::Read) } else { route.limit };
    Ok(Some((secret, limit)))
}

/// Answers a failed authentication, with a delay that grows with the failures of the same source.
async fn refuse(api: &ApiState, source: Option<Source>, error: ApiError) -> Response {
    let delay = match source {
        Some(source) => api.auth_throttle.delay(source).await,
        None => FailureDelay::Waited,
    };
    let mut response = error.into_response();
    if delay == FailureDelay::Exhausted {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Whether a request for a path that takes a key has one in its query, which no answer may accept.
pub(super) fn has_key_in_query(request: &Request) -> bool {
    routes::takes_key(request.uri().path()) && request.uri().query().is_some_and(holds_key)
}

fn holds_key(query: &str) -> bool {
    url::form_urlencoded::parse(query.as_bytes()).any(|(name, value)| {
        KEY_PARAMETERS.iter().any(|known| name.eq_ignore_ascii_case(known))
            || KeySecret::find_shape(&name).is_some()
            || KeySecret::find_shape(&value).is_some()
    })
}

/// Flags the real keys in a query, whatever its path, so that their owners rotate them. In the background, because the
/// time of the answer must not show whether a key is real.
fn flag_leaked_keys(api: &Arc<ApiState>, query: &str) {
    let texts = url::form_urlencoded::parse(query.as_bytes()).flat_map(|(name, value)| [name, value]);
    let leaked = texts.filter_map(|text| KeySecret::find_shape(&text).and_then(KeySecret::parse));
    let leaked: Vec<_> = leaked.take(MAX_FLAGGED).collect();
    if leaked.is_empty() {
        return;
    }
    let Ok(permit) = api.flagging.clone().try_acquire_owned() else { return };
    let shared = api.shared.clone();
    let flag = async move {
        let _permit = permit;
        for secret in leaked {
            let Ok(Some(key)) = shared.store.find_key_by_hash(secret.hash()).await else { continue };
            if key.leaked_at.is_some() {
                continue;
            }
            match shared.store.change_key(key.id, KeyChange::FlagLeaked).await {
                Ok(_) => {
                    tracing::warn!(key = %key.id, "a key was sent in a query string: rotate it with `tintype key rotate`")
                }
                Err(error) => {
                    tracing::error!(key = %key.id, %error, "could not flag a key that was sent in a query string: rotate it with `tintype key rotate`")
                }
            }
        }
    };
    tokio::spawn(flag.in_current_span());
}

/// Lets a request with a valid key pass, within its rate limit.
async fn within_limit(
    key: &ApiKey,
    caller: Caller,
    limit: Option<RateLimit>,
    mut request: Request,
    next: Next,
) -> Response {
    let counted = match limit {
        Some(usage) => count(&caller.api, key, usage).await.map(|allowance| (usage, allowance)),
        None => None,
    };
    let mut response = match counted.map_or(Ok(()), |counted| check(&caller.api, counted)) {
        Err(error) => error.into_response(),
        Ok(()) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
    };
    // A 401 looks the same whatever caused it.
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().clear();
        return response;
    }
    let refused = response.extensions().get::<ApiError>().and_then(|error| error.limit.as_deref().copied());
    if let Some((usage, allowance)) = refused.or(counted) {
        add_limit_headers(response.headers_mut(), usage, allowance);
    }
    response
}

async fn find_key(api: &ApiState, key_hash: KeyHash) -> Result<Arc<ApiKey>, ApiError> {
    api.keys.find(key_hash).await?.ok_or_else(ApiError::unauthorized)
}

fn bearer(headers: &HeaderMap) -> Option<KeySecret> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (values.next()?.to_str().ok()?, values.next()) else { return None };
    let (scheme, token) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") { KeySecret::parse(token.trim()) } else { None }
}

/// Adds the headers that describe the state of a limit (draft-ietf-httpapi-ratelimit-headers).
fn add_limit_headers(headers: &mut HeaderMap, usage: RateLimit, allowance: Allowance) {
    let name = if allowance.of_account { usage.of_account().as_str() } else { usage.as_str() };
    let seconds = allowance.retry_after.unwrap_or_else(|| allowance.seconds_to_full());
    let policy = format!("\"{name}\";q={};w={}", allowance.limit, WINDOW.as_secs());
    let state = format!("\"{name}\";r={};t={seconds}", allowance.remaining);
    for (header, text) in [(&RATELIMIT_POLICY, policy), (&RATELIMIT, state)] {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(header.clone(), value);
        }
    }
}

impl<S: Sync> axum::extract::FromRequestParts<S> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        // Absent only if the route table lists the route without a key, which is a bug; then the request is refused.
        parts.extensions.get::<Self>().cloned().ok_or_else(ApiError::unauthorized)
    }
}
