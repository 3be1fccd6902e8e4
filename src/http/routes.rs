//! The route table. The router (with its 405 answers), authentication, the rate limits, the labels of metrics and the
//! test of the whole surface read it; the OpenAPI document uses its patterns.

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{FromRef, MatchedPath, Request, State};
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use futures::future::BoxFuture;

use super::ops::Readiness;
use super::state::ApiState;
use super::{api, docs, files, mcp, openai, ops, pipeline};
use crate::metrics::Metrics;
use crate::service::ServiceContext;
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
pub static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    vec![
        api(Method::POST, GENERATE, RateLimit::Submit, to(api::images::generate)),
        api(Method::GET, TASKS, RateLimit::Read, to(api::images::list)),
        api(Method::GET, TASK, RateLimit::Read, to(api::images::find)),
        api(Method::GET, ACCOUNT, RateLimit::Read, to(api::account::find)),
        openai(Method::POST, "/v1/images/generations", RateLimit::Submit, to(openai::generations)),
        openai(Method::POST, "/v1/images/generations/async", RateLimit::Submit, to(openai::generations_async)),
        openai(Method::POST, "/v1/images/edits", RateLimit::Submit, to(openai::edits)),
        openai(Method::POST, "/v1/images/edits/async", RateLimit::Submit, to(openai::edits_async)),
        openai(Method::GET, "/v1/images/tasks/{id}", RateLimit::Read, to(openai::background::find)),
        openai(Method::GET, "/v1/models", RateLimit::Read, to(openai::models::list)),
        openai(Method::GET, "/v1/models/{*id}", RateLimit::Read, to(openai::models::find)),
        agents(Method::POST, "/mcp", to(mcp::post)),
        agents(Method::POST, "/mcp/", to(mcp::post)),
        open(RouteGroup::Files, "/files/{*name}", to(files::serve)),
        open(RouteGroup::Docs, "/", to(docs::page)),
        open(RouteGroup::Docs, "/favicon.ico", to(docs::page)),
        open(RouteGroup::Docs, "/docs", to(docs::with_slash)),
        open(RouteGroup::Docs, "/docs/", to(docs::page)),
        open(RouteGroup::Docs, "/docs/{asset}", to(docs::page)),
        open(RouteGroup::Docs, "/openapi.json", to(docs::page)),
        open(RouteGroup::Docs, "/openapi-other.json", to(docs::page)),
        page(Method::GET, "/studio", to(create::create)),
        page(Method::GET, "/studio/older", to(create::older)),
        page(Method::POST, "/studio/tasks", to(create::submit)),
        page(Method::GET, "/studio/tasks/{id}", to(create::picture)),
        page(Method::GET, "/studio/tasks/{id}/preview", to(images::previews::preview)),
        page(Method::POST, "/studio/tasks/{id}/cancel", to(create::cancel)),
        page(Method::GET, "/studio/tasks/{id}/pictures/{number}", to(create::uploads::result_thumbnail)),
        page(Method::GET, "/studio/tasks/{id}/pictures/{number}/file", to(images::downloads::picture)),
        page(Method::GET, "/studio/gallery", to(images::gallery::gallery)),
        page(Method::GET, "/studio/gallery.zip", to(images::downloads::zip)),
        page(Method::POST, "/studio/gallery.zip", to(images::downloads::zip_chosen)),
        page(Method::POST, "/studio/gallery/{change}", to(images::gallery::change)),
        page(Method::GET, "/studio/bin", to(images::bin::bin)),
        page(Method::POST, "/studio/bin/{change}", to(images::bin::change_bin)),
        page(Method::GET, "/studio/boards", to(images::boards::boards)),
        page(Method::POST, "/studio/boards", to(images::boards::create_board)),
        page(Method::GET, "/studio/boards/{id}/cover", to(images::boards::cover)),
        page(Method::POST, "/studio/boards/{id}/{change}", to(images::boards::change_board)),
        page(Method::GET, "/studio/links", to(images::shared_links::links)),
        page(Method::POST, "/studio/links", to(images::shared_links::share)),
        page(Method::POST, "/studio/links/{id}/revoke", to(images::shared_links::revoke)),
        page(Method::GET, "/studio/compare", to(images::compare::compare)),
        page(Method::GET, "/studio/uploads", to(create::uploads::uploads)),
        page(Method::POST, "/studio/uploads", to(create::uploads::upload)),
        page(Method::GET, "/studio/uploads/{id}", to(create::uploads::upload_thumbnail)),
        page(Method::POST, "/studio/uploads/{id}/remove", to(create::uploads::remove)),
        page(Method::GET, "/studio/presets/{name}/sample", to(create::presets::sample)),
        page(Method::GET, "/studio/events", to(studio::events::events)),
        page(Method::GET, "/studio/activity", to(images::activity::activity)),
        page(Method::GET, "/studio/docs", to(studio::docs::docs)),
        page(Method::GET, "/studio/keys", to(account::keys::keys)),
        page(Method::POST, "/studio/keys", to(account::keys::create)),
        page(Method::POST, "/studio/keys/{id}/{change}", to(account::keys::change)),
        page(Method::GET, "/studio/webhooks", to(account::webhooks::webhooks)),
        page(Method::POST, "/studio/webhooks", to(account::webhooks::create)),
        page(Method::GET, "/studio/webhooks/{id}", to(account::webhooks::webhook)),
        page(Method::POST, "/studio/webhooks/{id}/{change}", to(account::webhooks::change)),
        page(Method::POST, "/studio/webhooks/{id}/deliveries/{delivery}/replay", to(account::webhooks::replay)),
        page(Method::GET, "/studio/credits", to(account::credits::credits)),
        page(Method::GET, "/studio/credits.csv", to(account::credits::csv)),
        page(Method::GET, "/studio/usage", to(account::usage::usage)),
        page(Method::GET, "/studio/usage.csv", to(account::usage::usage_csv)),
        page(Method::GET, "/studio/sessions", to(account::sessions::sessions)),
        page(Method::POST, "/studio/sessions/end", to(account::sessions::end_others)),
        page(Method::POST, "/studio/sessions/{id}/end", to(account::sessions::end)),
        page(Method::POST, "/studio/password", to(account::sessions::set_password)),
        page(Method::GET, SECOND_FACTOR, to(sign_in::second_factor::second_factor)),
        page(Method::POST, SECOND_FACTOR, to(sign_in::second_factor::turn_on)),
        page(Method::POST, "/studio/second-factor/off", to(sign_in::second_factor::turn_off)),
        page(Method::POST, "/studio/second-factor/codes", to(sign_in::second_factor::new_recovery_codes)),
        page(Method::GET, "/studio/oidc/link", to(sign_in::oidc::begin_oidc_link)),
        page(Method::POST, "/studio/oidc/link", to(sign_in::oidc::link_identity)),
        page(Method::POST, "/studio/oidc/unlink", to(sign_in::oidc::unlink_identity)),
        page(Method::GET, "/studio/secret", to(account::secret::secret)),
        page(Method::POST, "/studio/secret", to(account::secret::put_away)),
        page(Method::GET, "/studio/people", to(account::people::people)),
        page(Method::POST, "/studio/people", to(account::people::add)),
        page(Method::POST, "/studio/people/{id}/{change}", to(account::people::change)),
        page(Method::POST, "/studio/invitations", to(account::invitations::invite)),
        page(Method::POST, "/studio/invitations/{id}/revoke", to(account::invitations::revoke)),
        page(Method::GET, "/studio/operator", to(studio::operator::overview)),
        page(Method::POST, "/studio/operator/queue/{change}", to(studio::operator::change_queue)),
        page(Method::GET, "/studio/operator/accounts", to(studio::operator::accounts)),
        page(Method::GET, "/studio/operator/accounts/{id}", to(studio::operator::account)),
        page(Method::POST, "/studio/operator/accounts/{id}/grant", to(studio::operator::grant)),
        page(Method::POST, "/studio/operator/accounts/{id}/{change}", to(studio::operator::change_account)),
        page(Method::POST, "/studio/operator/keys/{id}/{change}", to(studio::operator::change_key)),
        page(Method::GET, "/studio/operator/people", to(studio::operator::people)),
        page(Method::POST, "/studio/operator/people/{id}/{change}", to(studio::operator::change_person)),
        page(Method::GET, "/studio/operator/strikes", to(studio::operator::strikes)),
        page(Method::GET, "/studio/operator/audit", to(studio::operator::audit)),
        page(Method::POST, "/studio/sign-out", to(sign_in::sign_out)),
        page(Method::GET, "/studio/", to(studio::not_found::page_not_found)),
        page(Method::GET, "/studio/{*path}", to(studio::not_found::page_not_found)),
        page(Method::POST, "/studio/{*path}", to(studio::not_found::form_not_found)),
        public_page(Method::GET, "/studio/sign-in", to(sign_in::sign_in)),
        public_page(Method::POST, "/studio/sign-in", to(sign_in::by_password)),
        public_page(Method::POST, "/studio/sign-in/code", to(sign_in::second_factor::by_code)),
        public_page(Method::GET, "/studio/sign-in/{token}", to(sign_in::link)),
        public_page(Method::POST, "/studio/sign-in/{token}", to(sign_in::by_link)),
        public_page(Method::GET, "/studio/sign-up", to(sign_in::sign_up::sign_up)),
        public_page(Method::POST, "/studio/sign-up", to(sign_in::sign_up::submit)),
        public_page(Method::GET, "/studio/join/{token}", to(account::invitations::invitation)),
        public_page(Method::POST, "/studio/join/{token}", to(account::invitations::join)),
        public_page(Method::POST, "/studio/language", to(studio::language::choose)),
        public_page(Method::GET, "/studio/shared/{token}", to(images::shared_links::shared)),
        public_page(Method::GET, "/studio/shared/{token}/{task}/{number}", to(images::shared_links::shared_file)),
        public_page(
            Method::GET,
            "/studio/shared/{token}/{task}/{number}/small",
            to(images::shared_links::shared_thumbnail),
        ),
        public_page(Method::GET, "/studio/oidc", to(sign_in::oidc::begin_oidc)),
        public_page(Method::GET, "/studio/oidc/callback", to(sign_in::oidc::oidc_callback)),
        public_page(Method::GET, "/studio/assets/{asset}", to(docs::page)),
        open(RouteGroup::Ops, "/healthz", to(ops::live)),
        open(RouteGroup::Ops, "/readyz", to(ops::ready)),
        metrics("/metrics"),
    ]
});

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
    /// `None` for a route of the listener for metrics.
    handler: Option<RouteHandler>,
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
    /// Metrics, on a separate listener.
    Metrics,
}

/// The callers that may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Callers with a valid key.
    Key,
    /// Signed-in people. Their handlers take a `Visitor` or a `Form`, which only they have.
    Session,
    /// Everyone.
    Anyone,
}

/// The handler of a route. All have one type, so that the compiler makes the parts of the router once and not for each.
struct RouteHandler(Box<dyn Fn(Request, ServiceState) -> BoxFuture<'static, Response> + Send + Sync>);

tintype_domain::opaque_debug!(RouteHandler);

fn to<T, H>(handler: H) -> RouteHandler
where
    H: Handler<T, ServiceState, Future = BoxFuture<'static, Response>>,
{
    RouteHandler(Box::new(move |request, state| handler.clone().call(request, state)))
}

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

fn api(method: Method, pattern: &'static str, limit: RateLimit, handler: RouteHandler) -> Route {
    let (group, access, limit) = (RouteGroup::Api, Access::Key, Some(limit));
    Route { pattern, method, group, access, limit, handler: Some(handler) }
}

fn openai(method: Method, pattern: &'static str, limit: RateLimit, handler: RouteHandler) -> Route {
    Route { group: RouteGroup::OpenAi, ..api(method, pattern, limit, handler) }
}

/// The tools for agents. A call of one that submits counts as a submit as well.
fn agents(method: Method, pattern: &'static str, handler: RouteHandler) -> Route {
    Route { group: RouteGroup::Mcp, ..api(method, pattern, RateLimit::Read, handler) }
}

fn open(group: RouteGroup, pattern: &'static str, handler: RouteHandler) -> Route {
    Route { group, ..public_page(Method::GET, pattern, handler) }
}

fn page(method: Method, pattern: &'static str, handler: RouteHandler) -> Route {
    Route { access: Access::Session, ..public_page(method, pattern, handler) }
}

/// A route of the studio that needs no session.
fn public_page(method: Method, pattern: &'static str, handler: RouteHandler) -> Route {
    let (group, access, limit) = (RouteGroup::Studio, Access::Anyone, None);
    Route { pattern, method, group, access, limit, handler: Some(handler) }
}

fn metrics(pattern: &'static str) -> Route {
    let (method, group, access, limit) = (Method::GET, RouteGroup::Metrics, Access::Anyone, None);
    Route { pattern, method, group, access, limit, handler: None }
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
    let served = ROUTES.iter().filter_map(|route| Some((route, route.handler.as_ref()?)));
    let routes = served.fold(Router::new(), |router, (route, RouteHandler(handler))| {
        route.count_from_zero(&api.shared.metrics);
        let serve = async |State(state): State<ServiceState>, request| handler(request, state).await;
        router.route(route.pattern, on(route.filter(), serve))
    });
    // One layer for all steps, because each layer costs every request several allocations.
    routes
        .fallback(pipeline::observe::no_route)
        .method_not_allowed_fallback(pipeline::observe::wrong_method)
        .layer(from_fn_with_state((api.clone(), readiness.clone()), pipeline::run))
        .with_state(ServiceState { api, readiness })
}

/// The router of the listener for metrics.
pub fn metrics_router(shared: Arc<ServiceContext>) -> Router {
    let served = ROUTES.iter().filter(|route| route.group == RouteGroup::Metrics);
    let routes = served.fold(Router::new(), |router, route| {
        route.count_from_zero(&shared.metrics);
        router.route(route.pattern, on(route.filter(), ops::expose_metrics))
    });
    routes
        .fallback(async || pipeline::error::ApiError::not_found())
        .layer(from_fn_with_state(shared.clone(), pipeline::run_metrics))
        .with_state(shared)
}
