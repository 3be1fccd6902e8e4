//! The OpenAPI document and a page to try it on. Everything is served from the binary.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::http::Response;
use axum::http::header::{self, HeaderValue};
use axum::response::{IntoResponse as _, Redirect};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi as _};

use super::pipeline::error::ApiError;

/// Allows scripts and requests of this server only. Swagger UI sets inline styles and has its icons in data URLs.
const PAGE_POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                           frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Bytes of a page that are written at once, which bounds the buffer for a slow reader.
const PIECE: usize = 16 * 1024;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tintype",
        description = "Turns prompts into images, asynchronously: submit a task, poll it until it is `completed` or \
                       `failed`, fetch the PNGs. Each image costs 2 credits; a failed task is refunded."
    ),
    paths(
        super::api::images::generate, super::api::images::find, super::api::images::list, super::api::account::find
    ),
    tags(
        (name = "images", description = "Tasks created through the API"),
        (name = "account", description = "The account that owns the key")
    ),
    modifiers(&Bearer)
)]
struct Api;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        openapi.components.get_or_insert_default().add_security_scheme("key", scheme);
    }
}

/// The OpenAPI 3.1 document of the public API, as JSON.
pub fn openapi_json() -> String {
    Api::openapi().to_pretty_json().expect("our own document is always JSON")
}

static SWAGGER: LazyLock<Arc<utoipa_swagger_ui::Config<'static>>> = LazyLock::new(|| {
    let config = utoipa_swagger_ui::Config::new(["/openapi.json"]).try_it_out_enabled(true).validator_url("none");
    Arc::new(config)
});

/// Built once, because anybody may request it without a limit.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| openapi_json().into());

pub(super) async fn openapi() -> Response<Body> {
    page("application/json", DOCUMENT.clone())
}

pub(super) async fn home() -> Response<Body> {
    Redirect::to("/docs/").into_response()
}

pub(super) async fn index() -> Result<Response<Body>, ApiError> {
    swagger("index.html")
}

pub(super) async fn asset(Path(asset): Path<String>) -> Result<Response<Body>, ApiError> {
    swagger(&asset)
}

fn swagger(asset: &str) -> Result<Response<Body>, ApiError> {
    match utoipa_swagger_ui::serve(asset, SWAGGER.clone()) {
        Ok(Some(file)) => {
            let body = match file.bytes {
                Cow::Borrowed(bytes) => Bytes::from_static(bytes),
                Cow::Owned(bytes) => bytes.into(),
            };
            Ok(page(&file.content_type, body))
        }
        Ok(None) => Err(ApiError::not_found()),
        Err(error) => Err(ApiError::caused_by(error.to_string())),
    }
}

fn page(content_type: &str, page: Bytes) -> Response<Body> {
    let pieces = (0..page.len()).step_by(PIECE).map(|start| page.slice(start..page.len().min(start + PIECE)));
    let pieces: Vec<_> = pieces.map(Ok::<_, Infallible>).collect();
    let mut response = Response::new(Body::from_stream(futures::stream::iter(pieces)));
    let headers = response.headers_mut();
    let content_type = HeaderValue::try_from(content_type);
    headers.insert(header::CONTENT_TYPE, content_type.unwrap_or(HeaderValue::from_static("application/octet-stream")));
    headers.insert(header::CONTENT_LENGTH, page.len().into());
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
