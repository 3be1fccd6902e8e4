//! The cookies of the studio.

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Response, Uri};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use super::{HOME, RequestContext, SIGN_OUT};
use crate::service::people::LONGEST_SESSION;

/// Holds the token of a session.
pub(super) const SESSION: Cookie = Cookie { name: "__Host-tintype", path: "/" };
/// Holds an authentication request to the OpenID Connect provider.
pub(super) const AUTHENTICATION: Cookie = Cookie { name: "__Host-tintype-oidc", path: "/" };
/// Holds a secret until its person has seen it.
pub(super) const SECRET: Cookie = Cookie { name: "__Host-tintype-secret", path: "/" };
/// Holds the page requested before the sign-in; after [`UNSENT`], the page with a form that had no effect.
pub(super) const RETURN_TO: Cookie = Cookie { name: "__Host-tintype-wanted", path: "/" };
/// Holds the ID token of the OpenID Connect provider until the person signs out.
pub(super) const ID_TOKEN: Cookie = Cookie { name: "__Secure-tintype-id-token", path: SIGN_OUT };
/// Holds the chosen language. It decides nothing that matters, so it needs no TLS.
pub(super) const LANGUAGE: &str = "tintype-language";

/// Marks the page with a form that came without a session. No page begins with it, encoded or not.
const UNSENT: char = '.';
/// How long that page is remembered.
const RETURN_SECONDS: u64 = 60 * 60;
/// Longest address that is kept, in bytes.
const MAX_ADDRESS: usize = 2_000;
/// Longest ID token that is kept, in bytes.
const MAX_ID_TOKEN: usize = 2_000;
const YEAR_SECONDS: u64 = 365 * 24 * 60 * 60;

/// A cookie that only this server reads. Its prefix makes browsers accept it only over HTTPS, and `__Host-` for this
/// host alone; where the studio is served without TLS, it has none.
pub(super) struct Cookie {
    name: &'static str,
    path: &'static str,
}

impl Cookie {
    fn name(&self, context: &RequestContext) -> &'static str {
        let without_prefix = || self.name.trim_start_matches("__Host-").trim_start_matches("__Secure-");
        if context.https { self.name } else { without_prefix() }
    }

    pub(super) fn read<'a>(&self, headers: &'a HeaderMap, context: &RequestContext) -> Option<&'a str> {
        value(headers, self.name(context))
    }

    /// Sets it for some seconds.
    pub(super) fn set(
        &self,
        response: Response<Body>,
        context: &RequestContext,
        value: &str,
        seconds: u64,
    ) -> Response<Body> {
        let secure = if context.https { "; Secure" } else { "" };
        // Lax, because browsers return from the provider's site.
        let (name, path) = (self.name(context), self.path);
        let line = format!("{name}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}");
        with_line(response, line)
    }

    pub(super) fn remove(&self, response: Response<Body>, context: &RequestContext) -> Response<Body> {
        self.set(response, context, "", 0)
    }
}

fn with_line(mut response: Response<Body>, line: String) -> Response<Body> {
    if let Ok(mut line) = HeaderValue::try_from(line) {
        line.set_sensitive(true);
        response.headers_mut().append(header::SET_COOKIE, line);
    }
    response
}

/// The value of a cookie by its name. Cookies of other applications on the domain may hold any bytes.
pub(super) fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let mut found = lines.filter_map(|pair| str::from_utf8(pair).ok()?.trim().split_once('='));
    found.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// Remembers the ID token of a session, unless it is so long that proxies might reject the headers: nginx takes 4 KiB.
pub(super) fn with_id_token(response: Response<Body>, context: &RequestContext, id_token: &str) -> Response<Body> {
    match id_token.len() {
        0..=MAX_ID_TOKEN => ID_TOKEN.set(response, context, id_token, LONGEST_SESSION.as_secs()),
        _ => ID_TOKEN.remove(response, context),
    }
}

pub(super) fn with_language(response: Response<Body>, language: &str) -> Response<Body> {
    with_line(response, format!("{LANGUAGE}={language}; Path=/; Max-Age={YEAR_SECONDS}; HttpOnly; SameSite=Lax"))
}

/// Remembers the page requested before the sign-in, or one with a form that had no effect, because the session has ended.
pub(super) fn remember_page(
    response: Response<Body>,
    context: &RequestContext,
    page: &str,
    has_unsent_form: bool,
) -> Response<Body> {
    let mark = if has_unsent_form { UNSENT.to_string() } else { String::new() };
    RETURN_TO.set(response, context, &(mark + &BASE64_URL_SAFE_NO_PAD.encode(page)), RETURN_SECONDS)
}

pub(super) fn has_unsent_form(headers: &HeaderMap, context: &RequestContext) -> bool {
    RETURN_TO.read(headers, context).is_some_and(|page| page.starts_with(UNSENT))
}

pub(super) fn page_after_sign_in(headers: &HeaderMap, context: &RequestContext) -> Option<String> {
    let page = RETURN_TO.read(headers, context)?.trim_start_matches(UNSENT);
    let page = BASE64_URL_SAFE_NO_PAD.decode(page).ok()?;
    studio_page(&String::from_utf8(page).ok()?)
}

/// The page of the studio from which a request comes, if its browser names it.
pub(super) fn referring_page(headers: &HeaderMap) -> Option<String> {
    studio_page(headers.get(header::REFERER)?.to_str().ok()?)
}

/// The path and query of an address if it is a page of the studio of this server.
pub(super) fn studio_page(address: &str) -> Option<String> {
    if address.len() > MAX_ADDRESS {
        return None;
    }
    let uri: Uri = address.parse().ok()?;
    let is_of_studio = uri.path() == HOME || uri.path().starts_with("/studio/");
    uri.path_and_query().filter(|_| is_of_studio).map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_studio_are_led_to() {
        for (address, page) in [
            ("/studio", Some("/studio")),
            ("/studio?from=x", Some("/studio?from=x")),
            ("/studio/gallery?q=%22a%22;b", Some("/studio/gallery?q=%22a%22;b")),
            ("https://elsewhere.example/studio/keys", Some("/studio/keys")),
            ("//elsewhere.example/", None),
            ("https://elsewhere.example", None),
            ("/studios", None),
            ("/api/v1/images", None),
            ("\\\\elsewhere.example\\studio", None),
            ("/studio/\r\nset-cookie: a=b", None),
            ("javascript:alert(1)", None),
            ("", None),
        ] {
            assert_eq!(studio_page(address).as_deref(), page, "{address}");
        }
        assert_eq!(studio_page(&format!("/studio/{}", "x".repeat(MAX_ADDRESS))), None);
    }
}
