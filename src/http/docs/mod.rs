//! Pages for people: the home page, the API reference with a quick start, and the studio's style sheet and script.
//! Everything is served from the binary, and pages load nothing from other hosts.

use std::convert::Infallible;
use std::sync::OnceLock;

use axum::body::{Body, Bytes};
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Response, StatusCode, Uri};
use axum::response::{IntoResponse as _, Redirect};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use flate2::Compression;
use sha2::{Digest as _, Sha256};

pub(super) use self::document::openapi;
pub use self::document::openapi_json;
use super::compression::{ACCEPT_ENCODING, GZIP, accepts_gzip, pack};
use super::files::matches_etag;
use super::pipeline::error::ApiError;
use crate::studio::SNIPPETS;

pub(super) mod document;
mod submitted;

/// Allows scripts, pictures and requests of this server only. The reference sets inline styles, and has pictures in its
/// style sheet.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
                           img-src 'self' data: blob:; connect-src 'self'; frame-ancestors 'none'; \
                           base-uri 'none'; form-action 'none'";

/// Bytes of a page that are written at once, which bounds the buffer for a slow reader.
const PIECE: usize = 16 * 1024;

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// The style sheet of the studio, a file for each noun.
const STUDIO_STYLE: [&str; 5] = [
    include_str!("../../studio/pages/studio.css"),
    include_str!("../../studio/pages/pictures.css"),
    include_str!("../../studio/pages/gallery.css"),
    include_str!("../../studio/pages/tiles.css"),
    include_str!("../../studio/pages/viewer.css"),
];
/// The script of pages with pictures, loaded after the script of all pages.
const PICTURES_SCRIPT: [&str; 8] = [
    include_str!("../../studio/pages/live.js"),
    include_str!("../../studio/pages/looking.js"),
    include_str!("../../studio/pages/gallery.js"),
    include_str!("../../studio/pages/choosing.js"),
    include_str!("../../studio/pages/news.js"),
    include_str!("../../studio/pages/menu.js"),
    include_str!("../../studio/pages/viewer.js"),
    include_str!("../../studio/pages/place.js"),
];
/// The script of the page that creates pictures, loaded after both.
const CREATE_SCRIPT: [&str; 4] = [
    include_str!("../../studio/pages/references.js"),
    include_str!("../../studio/pages/masks.js"),
    include_str!("../../studio/pages/prompts.js"),
    include_str!("../../studio/pages/drafts.js"),
];

static PAGES: [(&str, Page); 15] = [
    ("/", Page::new(HTML, || include_str!("pages/home.html").into())),
    ("/docs/", Page::new(HTML, || include_str!("pages/reference.html").into())),
    ("/docs/page.css", Page::new(STYLE, || include_str!("pages/page.css").into())),
    ("/docs/page.js", Page::new(SCRIPT, || include_str!("pages/page.js").into())),
    ("/docs/quick-start.js", Page::new(SCRIPT, quick_start)),
    ("/docs/scalar.js", Page::new(SCRIPT, scalar)),
    ("/docs/icon.svg", Page::new(PICTURE, || include_str!("pages/icon.svg").into())),
    ("/favicon.ico", Page::new(PICTURE, || include_str!("pages/icon.svg").into())),
    ("/studio/assets/studio.css", Page::new(STYLE, || STUDIO_STYLE.concat().into())),
    ("/studio/assets/early.js", Page::new(SCRIPT, || minified(&[include_str!("../../studio/pages/early.js")]))),
    ("/studio/assets/studio.js", Page::new(SCRIPT, || minified(&[include_str!("../../studio/pages/studio.js")]))),
    ("/studio/assets/pictures.js", Page::new(SCRIPT, || minified(&PICTURES_SCRIPT))),
    ("/studio/assets/create.js", Page::new(SCRIPT, || minified(&CREATE_SCRIPT))),
    ("/openapi.json", Page::new("application/json", || openapi_json().into())),
    ("/openapi-other.json", Page::new("application/json", || other_openapi_json().into())),
];

struct Page {
    content_type: &'static str,
    make: fn() -> Bytes,
    /// Made once, because anyone may request it without a limit.
    made: OnceLock<Made>,
}

struct Made {
    plain: Representation,
    /// For browsers that accept it.
    gzip: Representation,
}

struct Representation {
    body: Bytes,
    /// Changes with the body.
    etag: HeaderValue,
}

/// The OpenAPI document of the other surfaces: OpenAI's dialect, the tools for agents, result files and health. It is
/// written by hand, because their handlers read and write shapes of others; a test compares it with the routes.
pub fn other_openapi_json() -> String {
    include_str!("other.json").replacen("\"VERSION\"", concat!("\"", env!("CARGO_PKG_VERSION"), "\""), 1)
}

/// The program that shows the reference.
fn scalar() -> Bytes {
    scalar_api_reference::get_asset("scalar.js").expect("the crate embeds this file").into()
}

/// The script of the quick start, after the programs that it shows.
fn quick_start() -> Bytes {
    let [curl, python, javascript] = SNIPPETS;
    let templates = serde_json::json!({ "curl": curl, "python": python, "javascript": javascript });
    format!("\"use strict\";\nconst templates = {templates};\n{}", include_str!("pages/quick-start.js")).into()
}

/// A script without comments and indentation, which are a third of it. No string in it spans lines.
fn minified(parts: &[&str]) -> Bytes {
    let lines = parts.iter().flat_map(|part| part.lines()).map(str::trim);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    code.flat_map(|line| [line, "\n"]).collect::<String>().into()
}

impl Page {
    const fn new(content_type: &'static str, make: fn() -> Bytes) -> Self {
        Self { content_type, make, made: OnceLock::new() }
    }

    fn made(&self) -> &Made {
        self.made.get_or_init(|| {
            let body = (self.make)();
            let hash = BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(&body)[..12]);
            let etag =
                |suffix| HeaderValue::try_from(format!("\"{hash}{suffix}\"")).expect("the letters of Base64 are plain");
            let gzip = Representation { body: pack(&body, Compression::best()), etag: etag("-gzip") };
            Made { plain: Representation { body, etag: etag("") }, gzip }
        })
    }

    /// The page, or 304 for a browser that has it.
    fn answer(&self, request: &HeaderMap) -> Response<Body> {
        let gzip = accepts_gzip(request);
        let Representation { body, etag } = if gzip { &self.made().gzip } else { &self.made().plain };
        let mut response = Response::new(Body::empty());
        if matches_etag(request, &header::IF_NONE_MATCH, etag.to_str().unwrap_or_default()) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            let pieces = (0..body.len()).step_by(PIECE).map(|start| body.slice(start..body.len().min(start + PIECE)));
            let pieces: Vec<_> = pieces.map(Ok::<_, Infallible>).collect();
            *response.body_mut() = Body::from_stream(futures::stream::iter(pieces));
            response.headers_mut().insert(header::CONTENT_LENGTH, body.len().into());
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        headers.insert(header::ETAG, etag.clone());
        headers.insert(header::VARY, ACCEPT_ENCODING);
        if gzip {
            headers.insert(header::CONTENT_ENCODING, GZIP);
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        response
    }
}

pub(super) async fn page(path: Uri, request: HeaderMap) -> Result<Response<Body>, ApiError> {
    let found = PAGES.iter().find(|(known, _)| *known == path.path());
    found.map(|(_, page)| page.answer(&request)).ok_or_else(ApiError::not_found)
}

/// Relative links of the reference need the slash.
pub(super) async fn with_slash() -> Response<Body> {
    Redirect::to("/docs/").into_response()
}
