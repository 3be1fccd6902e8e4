//! Headers that every page has, and its parts that do not depend on the page.

use std::borrow::Borrow;
use std::time::Duration;

use askama::Template;
use axum::body::Body;
use axum::http::header::{self, HeaderValue};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::response::{IntoResponse as _, Redirect};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Deserialize;

use super::error::{HasOwnBody, PageError, PageResult};
use super::session::{Fields, Form, Visitor};
use super::texts::Texts;
use tintype_domain::ledger::OPENING_NOTE;
use tintype_domain::model::{Id, LedgerEntry};
use tintype_system::clock::Timestamp;

/// Allows scripts, styles and requests of this server alone. Pictures may come from a bucket.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob: https:; \
                      connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The byte order mark at the start of each table to download. Without it, Excel on Windows assumes an old code page.
pub(super) const BYTE_ORDER_MARK: char = '\u{feff}';

pub(super) fn html(page: &impl Template) -> PageResult {
    let mut response = Response::new(Body::from(page.render()?));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    Ok(secured(response))
}

/// A page that answers a form, with an error status if `refusal` says why the form was rejected.
pub(super) fn form_page(page: &impl Template, refusal: Option<&'static str>) -> PageResult {
    if refusal.is_some() { error_page(StatusCode::UNPROCESSABLE_ENTITY, page) } else { html(page) }
}

/// A page with an error status that it explains itself.
pub(super) fn error_page(status: StatusCode, page: &impl Template) -> PageResult {
    let mut response = html(page)?;
    *response.status_mut() = status;
    response.extensions_mut().insert(HasOwnBody);
    Ok(response)
}

/// A redirect to another page.
pub(super) fn redirect(page: &str) -> Response<Body> {
    secured(Redirect::to(page).into_response())
}

/// A file that is not a page, such as a picture. Browsers run nothing in it.
pub(super) fn file(content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; sandbox"));
    secured(response)
}

/// A table to download. `disposition` contains its file name.
pub(super) fn csv(disposition: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = file("text/csv; charset=utf-8", body);
    response.headers_mut().insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(disposition));
    response
}

/// A position in a list: the last item of the page before.
#[derive(Debug, Deserialize)]
pub struct Cursor {
    before: Option<String>,
}

impl Cursor {
    /// The item before which the page begins.
    pub(super) fn before(&self) -> Result<Option<Id>, PageError> {
        self.before.as_deref().map(str::parse).transpose().map_err(|_| PageError::bad_request())
    }
}

/// A query with these fields, without the empty ones.
pub(super) fn query<'a, 'b>(fields: impl IntoIterator<Item = (&'a str, &'b str)>) -> String {
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish()
}

/// Truncates results to one page. The query asks for one item more; if it was found, returns the page's last item.
pub(super) fn last_of_page<T>(found: &mut Vec<T>, page: u32) -> Option<&T> {
    let more = found.len() > page as usize;
    found.truncate(page as usize);
    found.last().filter(|_| more)
}

/// A form as shown on its page: empty, or as it was sent, with the reason for its rejection.
#[derive(Debug, Default)]
pub(super) struct Draft {
    /// The name of the text that says why.
    pub(super) refusal: Option<&'static str>,
    pub(super) fields: Fields,
}

impl Draft {
    pub(super) fn refused(refusal: &'static str, fields: Fields) -> Self {
        Self { refusal: Some(refusal), fields }
    }
}

/// Adds the headers of all studio answers. Only this server gets the referrer; its own forms are recognised by their
/// origin.
pub(super) fn secured(mut response: Response<Body>) -> Response<Body> {
    let fixed = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
    ];
    for (name, value) in fixed {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Whether the script of a page sent the request and will put the answer into the page.
pub(super) fn is_from_script(headers: &HeaderMap) -> bool {
    headers.get("x-requested-with").is_some_and(|value| value == "studio")
}

/// Leads a browser without the script to a page; the script stays where it is.
pub(super) fn done(form: &Form, page: &str) -> Response<Body> {
    if is_from_script(&form.headers) {
        return secured(StatusCode::NO_CONTENT.into_response());
    }
    redirect(page)
}

/// The minute of a time, in UTC. Templates pass some values by reference, here and below.
pub(super) fn minute(at: impl Borrow<Timestamp>) -> String {
    at.borrow().to_string().chars().take(16).map(|char| if char == 'T' { ' ' } else { char }).collect()
}

/// A time to the minute in UTC, which the script of the page shows in the time zone of its reader.
pub(super) fn time(at: impl Borrow<Timestamp>) -> String {
    local(at.borrow(), &minute(at.borrow()))
}

/// A text with a time in it, as HTML: the script shows the time in the time zone of its reader.
pub(super) fn text_with_time(t: &Texts, text: &str, at: impl Borrow<Timestamp>) -> String {
    // The texts are ours and contain no markup.
    t.word(text, &time(at))
}

/// A time to the millisecond in UTC, as the log has it, which the script shows in the time zone of its reader.
pub(super) fn exact_time(at: impl Borrow<Timestamp>) -> String {
    local(at.borrow(), &at.borrow().to_string().replace('T', " ").replace('Z', ""))
}

/// A day in UTC, in the reader's language.
pub(super) fn day(t: &Texts, at: Timestamp) -> String {
    day_of_month(t, at).map_or_else(|| at.day(), |day| format!("{day} {}", &at.day()[..4]))
}

/// A day in UTC as HTML: the script writes it as the reader's country does.
pub(super) fn local_day(t: &Texts, at: Timestamp) -> String {
    format!("<span data-day=\"{}\">{}</span>", at.day(), day(t, at))
}

/// A day in UTC without its year; `None` beyond the years of the calendar.
pub(super) fn day_of_month(t: &Texts, at: Timestamp) -> Option<String> {
    let utc = utc(at)?;
    Some(t.count_of("axis-day", i64::from(utc.day()), &month(t, utc)?))
}

pub(super) fn month(t: &Texts, utc: DateTime) -> Option<String> {
    t.get("months").split(' ').nth(usize::try_from(utc.month() - 1).ok()?).map(str::to_owned)
}

/// A time on the calendar in UTC.
pub(super) fn utc(at: Timestamp) -> Option<DateTime> {
    Some(jiff::Timestamp::from_millisecond(at.as_millis()).ok()?.to_zoned_datetime(TimeZone::UTC).datetime())
}

fn local(at: &Timestamp, in_utc: &str) -> String {
    format!("<time datetime=\"{at}\" data-local>{in_utc} UTC</time>")
}

/// The note of a ledger entry, for the reader. The note of the opening balance is translated.
pub(super) fn note(texts: &Texts, note: &str) -> String {
    if note == OPENING_NOTE { texts.get("credits-opening") } else { note.to_owned() }
}

/// The text for an entry: the credits that an operator took are a grant with a negative amount.
pub(super) fn entry_text(t: &Texts, entry: &LedgerEntry) -> String {
    if entry.is_taken() { t.get("credits-taken") } else { t.of_word("credits", entry.kind) }
}

/// The top of every page for signed-in people. As a separate template it is compiled once, rather than into every page.
#[derive(Debug, Template)]
#[template(path = "bar.html")]
pub(super) struct Bar<'a> {
    frame: &'a Frame<'a>,
}

/// The tabs of the pages of an account or of the operator.
#[derive(Debug, Template)]
#[template(path = "tabs.html")]
pub(super) struct Tabs<'a> {
    frame: &'a Frame<'a>,
}

#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// The name of the page in the menu.
    pub(super) here: &'static str,
    pub(super) t: &'static Texts,
    pub(super) visitor: &'a Visitor,
    pub(super) credits: i64,
    /// Whether the person manages all accounts.
    pub(super) is_operator: bool,
    /// Whether the queue is paused, on pages with pictures.
    pub(super) paused: bool,
}

impl<'a> Frame<'a> {
    pub(super) async fn new(here: &'static str, visitor: &'a Visitor) -> tintype_store::Result<Self> {
        let account = visitor.account().await?;
        let is_operator = account.as_ref().is_some_and(|account| visitor.is_operator(account));
        let credits = account.map_or(0, |account| account.credits);
        Ok(Self { here, t: visitor.texts, visitor, credits, is_operator, paused: false })
    }

    /// The frame of a page with pictures, which says so while the queue is paused.
    pub(super) async fn with_queue(here: &'static str, visitor: &'a Visitor) -> tintype_store::Result<Self> {
        let paused = visitor.studio.shared.store.queue_paused_at().await?.is_some();
        Ok(Self { paused, ..Self::new(here, visitor).await? })
    }

    pub(super) fn bar(&self) -> Bar<'_> {
        Bar { frame: self }
    }

    pub(super) fn tabs(&self) -> Tabs<'_> {
        Tabs { frame: self }
    }

    /// Whether the page is one of the account's, which show tabs.
    pub(super) fn is_of_account(&self) -> bool {
        ["credits", "usage", "people", "keys", "webhooks", "activity", "docs", "sessions"].contains(&self.here)
    }

    /// Whether the page is one of the operator's, which show tabs too.
    pub(super) fn is_of_operator(&self) -> bool {
        self.here.starts_with("operator")
    }

    /// `aria-current` of a link of the menu.
    pub(super) fn current(&self, page: &str) -> &'static str {
        if self.here == page { "page" } else { "false" }
    }
}
