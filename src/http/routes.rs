//! The route table. The router (with its 405 answers), authentication, the rate limits, the labels of metrics and the
//! test of the whole surface read it; the OpenAPI document uses its patterns.

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, MatchedPath, Request};
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::routing::{MethodFilter, MethodRouter, on};

use super::ops::Readiness;
use super::state::ApiState;
use super::{api, docs, files, mcp, openai, ops, pipeline};
use crate::metrics::Metrics;
use crate::service::Shared;
use crate::service::limits::RateLimit;
use crate::studio::{self, SECOND_FACTOR, Studio, account, create, images, sign_in};

/// The pattern that submits a task.
pub const GENERATE: &str = "/api/v1/images/generate";
/// The pattern that lists tasks.
pub const TASKS: &str = "/api/v1/images/task";
/// The pattern of one task.
pub const TASK: &str = "/api/v1/images/task/{id}";

/// The pattern of the caller's account.
pub const ACCOUNT: &str = "/api/v1/account";

/// The routes.
pub static ROUTES: [Route; 115] = [
    api(Method::POST, GENERATE, RateLimit::Submit, |method| on(method, api::images::generate)),
    api(Method::GET, TASKS, RateLimit::Read, |method| on(method, api::images::list)),
    api(Method::GET, TASK, RateLimit::Read, |method| on(method, api::images::find)),
    api(Method::GET, ACCOUNT, RateLimit::Read, |method| on(method, api::account::find)),
    openai(Method::POST, "/v1/images/generations", RateLimit::Submit, |method| on(method, openai::generations)),
    openai(Method::POST, "/v1/images/generations/async", RateLimit::Submit, |method| {
        on(method, openai::generations_async)
    }),
    openai(Method::POST, "/v1/images/edits", RateLimit::Submit, |method| on(method, openai::edits)),
    openai(Method::POST, "/v1/images/edits/async", RateLimit::Submit, |method| on(method, openai::edits_async)),
    openai(Method::GET, "/v1/images/tasks/{id}", RateLimit::Read, |method| on(method, openai::background::find)),
    openai(Method::GET, "/v1/models", RateLimit::Read, |method| on(method, openai::models::list)),
    openai(Method::GET, "/v1/models/{*id}", RateLimit::Read, |method| on(method, openai::models::find)),
    agents(Method::POST, "/mcp", |method| on(method, mcp::post)),
    agents(Method::POST, "/mcp/", |method| on(method, mcp::post)),
    open(RouteGroup::Files, "/files/{*name}", |method| on(method, files::serve)),
    open(RouteGroup::Docs, "/", |method| on(method, docs::page)),
    open(RouteGroup::Docs, "/favicon.ico", |method| on(method, docs::page)),
    open(RouteGroup::Docs, "/docs", |method| on(method, docs::with_slash)),
    open(RouteGroup::Docs, "/docs/", |method| on(method, docs::page)),
    open(RouteGroup::Docs, "/docs/{asset}", |method| on(method, docs::page)),
    open(RouteGroup::Docs, "/openapi.json", |method| on(method, docs::page)),
    open(RouteGroup::Docs, "/openapi-other.json", |method| on(method, docs::page)),
    page(Method::GET, "/studio", |method| on(method, create::create)),
    page(Method::GET, "/studio/older", |method| on(method, create::older)),
    page(Method::POST, "/studio/tasks", |method| on(method, create::submit)),
    page(Method::GET, "/studio/tasks/{id}", |method| on(method, create::picture)),
    page(Method::GET, "/studio/tasks/{id}/preview", |method| on(method, images::previews::preview)),
    page(Method::POST, "/studio/tasks/{id}/cancel", |method| on(method, create::cancel)),
    page(Method::GET, "/studio/tasks/{id}/pictures/{number}", |method| on(method, create::uploads::result_thumbnail)),
    page(Method::GET, "/studio/tasks/{id}/pictures/{number}/file", |method| on(method, images::downloads::picture)),
    page(Method::GET, "/studio/gallery", |method| on(method, images::gallery::gallery)),
    page(Method::GET, "/studio/gallery.zip", |method| on(method, images::downloads::zip)),
    page(Method::POST, "/studio/gallery.zip", |method| on(method, images::downloads::zip_chosen)),
    page(Method::POST, "/studio/gallery/{change}", |method| on(method, images::gallery::change)),
    page(Method::GET, "/studio/bin", |method| on(method, images::bin::bin)),
    page(Method::POST, "/studio/bin/{change}", |method| on(method, images::bin::change_bin)),
    page(Method::GET, "/studio/boards", |method| on(method, images::boards::boards)),
    page(Method::POST, "/studio/boards", |method| on(method, images::boards::create_board)),
    page(Method::GET, "/studio/boards/{id}/cover", |method| on(method, images::boards::cover)),
    page(Method::POST, "/studio/boards/{id}/{change}", |method| on(method, images::boards::change_board)),
    page(Method::GET, "/studio/links", |method| on(method, images::shared_links::links)),
    page(Method::POST, "/studio/links", |method| on(method, images::shared_links::share)),
    page(Method::POST, "/studio/links/{id}/revoke", |method| on(method, images::shared_links::revoke)),
    page(Method::GET, "/studio/compare", |method| on(method, images::compare::compare)),
    page(Method::GET, "/studio/uploads", |method| on(method, create::uploads::uploads)),
    page(Method::POST, "/studio/uploads", |method| on(method, create::uploads::upload)),
    page(Method::GET, "/studio/uploads/{id}", |method| on(method, create::uploads::upload_thumbnail)),
    page(Method::POST, "/studio/uploads/{id}/remove", |method| on(method, create::uploads::remove)),
    page(Method::GET, "/studio/presets/{name}/sample", |method| on(method, create::presets::sample)),
    page(Method::GET, "/studio/events", |method| on(method, studio::events::events)),
    page(Method::GET, "/studio/activity", |method| on(method, images::activity::activity)),
    page(Method::GET, "/studio/docs", |method| on(method, studio::docs::docs)),
    page(Method::GET, "/studio/keys", |method| on(method, account::keys::keys)),
    page(Method::POST, "/studio/keys", |method| on(method, account::keys::create)),
    page(Method::POST, "/studio/keys/{id}/{change}", |method| on(method, account::keys::change)),
    page(Method::GET, "/studio/webhooks", |method| on(method, account::webhooks::webhooks)),
    page(Method::POST, "/studio/webhooks", |method| on(method, account::webhooks::create)),
    page(Method::GET, "/studio/webhooks/{id}", |method| on(method, account::webhooks::webhook)),
    page(Method::POST, "/studio/webhooks/{id}/{change}", |method| on(method, account::webhooks::change)),
    page(Method::POST, "/studio/webhooks/{id}/deliveries/{delivery}/replay", |method| {
        on(method, account::webhooks::replay)
    }),
    page(Method::GET, "/studio/credits", |method| on(method, account::credits::credits)),
    page(Method::GET, "/studio/credits.csv", |method| on(method, account::credits::csv)),
    page(Method::GET, "/studio/usage", |method| on(method, account::usage::usage)),
    page(Method::GET, "/studio/usage.csv", |method| on(method, account::usage::usage_csv)),
    page(Method::GET, "/studio/sessions", |method| on(method, account::sessions::sessions)),
    page(Method::POST, "/studio/sessions/end", |method| on(method, account::sessions::end_others)),
    page(Method::POST, "/studio/sessions/{id}/end", |method| on(method, account::sessions::end)),
    page(Method::POST, "/studio/password", |method| on(method, account::sessions::set_password)),
    page(Method::GET, SECOND_FACTOR, |method| on(method, sign_in::second_factor::second_factor)),
    page(Method::POST, SECOND_FACTOR, |method| on(method, sign_in::second_factor::turn_on)),
    page(Method::POST, "/studio/second-factor/off", |method| on(method, sign_in::second_factor::turn_off)),
    page(Method::POST, "/studio/second-factor/codes", |method| on(method, sign_in::second_factor::new_recovery_codes)),
    page(Method::GET, "/studio/oidc/link", |method| on(method, sign_in::oidc::begin_oidc_link)),
    page(Method::POST, "/studio/oidc/link", |method| on(method, sign_in::oidc::link_identity)),
    page(Method::POST, "/studio/oidc/unlink", |method| on(method, sign_in::oidc::unlink_identity)),
    page(Method::GET, "/studio/secret", |method| on(method, account::secret::secret)),
    page(Method::POST, "/studio/secret", |method| on(method, account::secret::put_away)),
    page(Method::GET, "/studio/people", |method| on(method, account::people::people)),
    page(Method::POST, "/studio/people", |method| on(method, account::people::add)),
    page(Method::POST, "/studio/people/{id}/{change}", |method| on(method, account::people::change)),
    page(Method::POST, "/studio/invitations", |method| on(method, account::invitations::invite)),
    page(Method::POST, "/studio/invitations/{id}/revoke", |method| on(method, account::invitations::revoke)),
    page(Method::GET, "/studio/operator", |method| on(method, studio::operator::overview)),
    page(Method::POST, "/studio/operator/queue/{change}", |method| on(method, studio::operator::change_queue)),
    page(Method::GET, "/studio/operator/accounts", |method| on(method, studio::operator::accounts)),
    page(Method::GET, "/studio/operator/accounts/{id}", |method| on(method, studio::operator::account)),
    page(Method::POST, "/studio/operator/accounts/{id}/grant", |method| on(method, studio::operator::grant)),
    page(Method::POST, "/studio/operator/accounts/{id}/{change}", |method| {
        on(method, studio::operator::change_account)
    }),
    page(Method::POST, "/studio/operator/keys/{id}/{change}", |method| on(method, studio::operator::change_key)),
    page(Method::GET, "/studio/operator/people", |method| on(method, studio::operator::people)),
    page(Method::POST, "/studio/operator/people/{id}/{change}", |method| on(method, studio::operator::change_person)),
    page(Method::GET, "/studio/operator/strikes", |method| on(method, studio::operator::strikes)),
    page(Method::GET, "/studio/operator/audit", |method| on(method, studio::operator::audit)),
    page(Method::POST, "/studio/sign-out", |method| on(method, sign_in::sign_out)),
    page(Method::GET, "/studio/", |method| on(method, studio::not_found::page_not_found)),
    page(Method::GET, "/studio/{*path}", |method| on(method, studio::not_found::page_not_found)),
    page(Method::POST, "/studio/{*path}", |method| on(method, studio::not_found::form_not_found)),
    door(Method::GET, "/studio/sign-in", |method| on(method, sign_in::sign_in)),
    door(Method::POST, "/studio/sign-in", |method| on(method, sign_in::by_password)),
    door(Method::POST, "/studio/sign-in/code", |method| on(method, sign_in::second_factor::by_code)),
    door(Method::GET, "/studio/sign-in/{token}", |method| on(method, sign_in::link)),
    door(Method::POST, "/studio/sign-in/{token}", |method| on(method, sign_in::by_link)),
    door(Method::GET, "/studio/sign-up", |method| on(method, sign_in::sign_up::sign_up)),
    door(Method::POST, "/studio/sign-up", |method| on(method, sign_in::sign_up::submit)),
    door(Method::GET, "/studio/join/{token}", |method| on(method, account::invitations::invitation)),
    door(Method::POST, "/studio/join/{token}", |method| on(method, account::invitations::join)),
    door(Method::POST, "/studio/language", |method| on(method, studio::language::choose)),
    door(Method::GET, "/studio/shared/{token}", |method| on(method, images::shared_links::shared)),
    door(Method::GET, "/studio/shared/{token}/{task}/{number}", |method| on(method, images::shared_links::shared_file)),
    door(Method::GET, "/studio/shared/{token}/{task}/{number}/small", |method| {
        on(method, images::shared_links::shared_thumbnail)
    }),
    door(Method::GET, "/studio/oidc", |method| on(method, sign_in::oidc::begin_oidc)),
    door(Method::GET, "/studio/oidc/callback", |method| on(method, sign_in::oidc::oidc_callback)),
    door(Method::GET, "/studio/assets/{asset}", |method| on(method, docs::page)),
    open(RouteGroup::Ops, "/healthz", |method| on(method, ops::live)),
    open(RouteGroup::Ops, "/readyz", |method| on(method, ops::ready)),
    metrics("/metrics", |method| on(method, ops::expose_metrics)),
];

/// One method of one URL pattern.
#[derive(Debug)]
pub struct Route {
    /// The path, with names in braces for the parts that vary.
    pub pattern: &'static str,
    /// The method. A route for GET answers HEAD as well.
    pub method: Method,
    /// The part of the service that the route belongs to.
    pub group: RouteGroup,
    /// The callers that may use it.
    pub access: Access,
    /// The rate limit that a call counts against.
    pub limit: Option<RateLimit>,
    /// The form of its errors.
    pub errors: ErrorShape,
    handler: Handler,
}

/// The parts of the service that have URLs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteGroup {
    /// The public API.
    Api,
    /// The API in OpenAI's dialect.
    OpenAi,
    /// The tools for agents.
    Mcp,
    /// The pages for people.
    Studio,
    /// Result files.
    Files,
    /// The OpenAPI document and its page.
    Docs,
    /// Health, for supervisors and balancers.
    Ops,
    /// Metrics, on a listener of their own.
    Metrics,
}

/// The callers that may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Callers with a valid key.
    Key,
    /// People who are signed in. Their handlers take a `Visitor` or a `Form`, which nobody else has.
    Session,
    /// Everyone.
    Anyone,
}

/// The form of the errors of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorShape {
    /// `{"error": {"code", "message", "request_id"}}`.
    Envelope,
    /// `{"error": {"message", "type", "param", "code"}}`.
    OpenAi,
    /// `{"jsonrpc", "id", "error": {"code", "message", "data"}}`.
    JsonRpc,
    /// A page.
    Page,
}

/// Makes the service of a route for its method.
#[derive(Debug)]
enum Handler {
    Service(Serve),
    Metrics(fn(MethodFilter) -> MethodRouter<Arc<Shared>>),
}

type Serve = fn(MethodFilter) -> MethodRouter<ServiceState>;

/// The state of the listener for callers. A handler takes the part that it needs.
#[derive(Debug, Clone)]
struct ServiceState {
    api: Arc<ApiState>,
    readiness: Readiness,
}

impl FromRef<ServiceState> for Arc<ApiState> {
    fn from_ref(state: &ServiceState) -> Self {
        state.api.clone()
    }
}

impl FromRef<ServiceState> for Arc<Studio> {
    fn from_ref(state: &ServiceState) -> Self {
        state.api.studio.clone()
    }
}

impl FromRef<ServiceState> for Readiness {
    fn from_ref(state: &ServiceState) -> Self {
        state.readiness.clone()
    }
}

const fn api(method: Method, pattern: &'static str, limit: RateLimit, handler: Serve) -> Route {
    let (group, access, limit, errors) = (RouteGroup::Api, Access::Key, Some(limit), ErrorShape::Envelope);
    Route { pattern, method, group, access, limit, errors, handler: Handler::Service(handler) }
}

const fn openai(method: Method, pattern: &'static str, limit: RateLimit, handler: Serve) -> Route {
    let (group, access, limit, errors) = (RouteGroup::OpenAi, Access::Key, Some(limit), ErrorShape::OpenAi);
    Route { pattern, method, group, access, limit, errors, handler: Handler::Service(handler) }
}

/// The tools for agents. A call of one that submits counts as a submit as well.
const fn agents(method: Method, pattern: &'static str, handler: Serve) -> Route {
    let (group, access, limit, errors) = (RouteGroup::Mcp, Access::Key, Some(RateLimit::Read), ErrorShape::JsonRpc);
    Route { pattern, method, group, access, limit, errors, handler: Handler::Service(handler) }
}

const fn open(group: RouteGroup, pattern: &'static str, handler: Serve) -> Route {
    let (method, access, limit, errors) = (Method::GET, Access::Anyone, None, ErrorShape::Envelope);
    Route { pattern, method, group, access, limit, errors, handler: Handler::Service(handler) }
}

const fn page(method: Method, pattern: &'static str, handler: Serve) -> Route {
    let (group, access, limit, errors) = (RouteGroup::Studio, Access::Session, None, ErrorShape::Page);
    Route { pattern, method, group, access, limit, errors, handler: Handler::Service(handler) }
}

/// A page of the studio for people who are not signed in yet.
const fn door(method: Method, pattern: &'static str, handler: Serve) -> Route {
    let (group, access, limit, errors) = (RouteGroup::Studio, Access::Anyone, None, ErrorShape::Page);
    Route { pattern, method, group, access, limit, errors, handler: Handler::Service(handler) }
}

const fn metrics(pattern: &'static str, handler: fn(MethodFilter) -> MethodRouter<Arc<Shared>>) -> Route {
    let (method, access, limit, errors) = (Method::GET, Access::Anyone, None, ErrorShape::Envelope);
    Route { pattern, method, group: RouteGroup::Metrics, access, limit, errors, handler: Handler::Metrics(handler) }
}

impl Route {
    pub(super) fn of(request: &Request) -> Option<&'static Self> {
        let pattern = matched_pattern(request)?;
        ROUTES.iter().find(|route| route.pattern == pattern && route.answers(request.method()))
    }

    /// The methods of the routes for the path of a request, as a list for a header; `None` without a route.
    pub(super) fn methods_at(request: &Request) -> Option<String> {
        let pattern = matched_pattern(request)?;
        let methods = ROUTES.iter().filter(|route| route.pattern == pattern).map(|route| match route.method {
            Method::GET => "GET, HEAD",
            ref method => method.as_str(),
        });
        Some(methods.collect::<Vec<_>>().join(", "))
    }

    fn answers(&self, method: &Method) -> bool {
        self.method == method || (self.method == Method::GET && method == Method::HEAD)
    }

    fn filter(&self) -> MethodFilter {
        MethodFilter::try_from(self.method.clone()).expect("the table holds standard methods")
    }

    fn count_from_zero(&self, metrics: &Metrics) {
        metrics.expect(self.label(), method_label(&self.method), statuses(self.group));
    }

    fn label(&self) -> &'static str {
        match self.group {
            RouteGroup::Docs => "/docs",
            RouteGroup::Files => "/files/{name}",
            RouteGroup::Api
            | RouteGroup::OpenAi
            | RouteGroup::Mcp
            | RouteGroup::Studio
            | RouteGroup::Ops
            | RouteGroup::Metrics => self.pattern,
        }
    }
}

/// The statuses that a route is known to answer with: their counters exist before the first such answer.
const fn statuses(group: RouteGroup) -> &'static [u16] {
    match group {
        RouteGroup::Api => &[200, 400, 401, 402, 404, 429, 500],
        RouteGroup::OpenAi => &[200, 400, 401, 404, 429, 500, 503],
        RouteGroup::Mcp => &[200, 400, 401, 429, 500],
        RouteGroup::Studio => &[200, 303, 403, 404, 500],
        RouteGroup::Files => &[200, 404, 500],
        RouteGroup::Docs | RouteGroup::Metrics => &[200, 500],
        RouteGroup::Ops => &[200, 503],
    }
}

pub(super) fn error_shape(request: &Request) -> ErrorShape {
    let without_route = || if speaks_openai(request) { ErrorShape::OpenAi } else { ErrorShape::Envelope };
    at(request).map_or_else(without_route, |route| route.errors)
}

/// Whether a request is in OpenAI's dialect, even if its path has no route.
pub(super) fn speaks_openai(request: &Request) -> bool {
    first_segment(request.uri().path()) == Some("v1")
}

/// The part of the service that a request is for, if its path has a route.
pub(super) fn group(request: &Request) -> Option<RouteGroup> {
    at(request).map(|route| route.group)
}

/// The label of a request in metrics and the log. It never contains the requested path, which may contain a key.
pub(super) fn label(request: &Request) -> &'static str {
    at(request).map_or("none", Route::label)
}

/// The label of a method in metrics. Callers may invent methods, and each label costs memory.
pub(super) fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Whether callers send keys to this path, perhaps by mistake: some route that takes a key has the same first segment.
pub(super) fn takes_key(path: &str) -> bool {
    let segment = first_segment(path);
    ROUTES.iter().any(|route| route.access == Access::Key && first_segment(route.pattern) == segment)
}

/// The pattern of a route for keys that differs from `path` only in slashes and in what comes before the first noun.
pub(super) fn similar(path: &str) -> Option<&'static str> {
    let meant = nouns(path);
    let fits = |pattern| {
        let nouns = nouns(pattern);
        (nouns.len() == meant.len() || (pattern.contains("{*") && nouns.len() < meant.len()))
            && nouns.iter().zip(&meant).all(|(noun, meant)| noun == meant || noun.starts_with('{'))
    };
    ROUTES.iter().filter(|route| route.access == Access::Key).map(|route| route.pattern).find(|pattern| fits(pattern))
}

/// The segments of a path without empty ones and without the prefixes of the APIs.
fn nouns(path: &str) -> Vec<&str> {
    path.split('/').filter(|segment| !matches!(*segment, "" | "api" | "v1")).collect()
}

fn first_segment(path: &str) -> Option<&str> {
    path.split('/').nth(1)
}

pub(super) fn at(request: &Request) -> Option<&'static Route> {
    let pattern = matched_pattern(request)?;
    ROUTES.iter().find(|route| route.pattern == pattern)
}

fn matched_pattern(request: &Request) -> Option<&str> {
    request.extensions().get::<MatchedPath>().map(MatchedPath::as_str)
}

/// The router of the listener for callers.
pub fn router(api: Arc<ApiState>, readiness: Readiness) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, route| match route.handler {
        Handler::Service(handler) => {
            route.count_from_zero(&api.shared.metrics);
            router.route(route.pattern, handler(route.filter()))
        }
        Handler::Metrics(_) => router,
    });
    // One layer for all steps, because each layer costs every request several allocations.
    routes
        .fallback(pipeline::observe::no_route)
        .layer(from_fn_with_state((api.clone(), readiness.clone()), pipeline::run))
        .with_state(ServiceState { api, readiness })
}

/// The router of the listener for metrics.
pub fn metrics_router(shared: Arc<Shared>) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, route| match route.handler {
        Handler::Metrics(handler) => {
            route.count_from_zero(&shared.metrics);
            router.route(route.pattern, handler(route.filter()))
        }
        Handler::Service(_) => router,
    });
    routes
        .fallback(pipeline::observe::no_route)
        .layer(from_fn_with_state(shared.clone(), pipeline::run_metrics))
        .with_state(shared)
}
