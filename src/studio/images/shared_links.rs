//! Shared links: their list for the people of an account, and what a link shows to everyone who has it. Its images are
//! served under the link, so they are gone with it.

use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::header::{self, HeaderValue};
use axum::http::{HeaderMap, Method, Response, StatusCode};
use serde::Deserialize;

use super::downloads::stream_file;
use crate::files::FileName;
use crate::service::limits::RateLimit;
use crate::service::thumbnails;
use crate::studio::Studio;
use crate::studio::cards::name_of;
use crate::studio::create::base;
use crate::studio::create::uploads::thumbnail;
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Frame, error_page, html, last_of_page, redirect};
use crate::studio::session::{Form, Visitor};
use crate::studio::texts::Texts;
use tintype_config::MAX_SHARED_LINKS;
use tintype_domain::model::{Id, Status};
use tintype_store::{Addition, GalleryFilter, NewSharedLink, SharedLink, Target, TaskRecord, TaskState};

const LINKS: &str = "/studio/links";
const PAGE: u32 = 48;
/// The choice of a link without an end.
const FOREVER: &str = "forever";

struct Listed {
    link: SharedLink,
    url: String,
    maker: String,
    /// Whether it shows someone else's private board. An owner can revoke it, but does not see what it shows.
    is_hidden: bool,
}

impl Listed {
    fn target(&self) -> String {
        match self.link.target {
            Target::Task(id) => format!("/studio/tasks/{id}"),
            Target::Board(id) => format!("/studio/gallery?board={id}"),
        }
    }
}

#[derive(Template)]
#[template(path = "links.html")]
struct LinksPage<'a> {
    frame: Frame<'a>,
    links: Vec<Listed>,
    /// The link that was just made.
    made: Option<String>,
    older: Option<Id>,
}

/// The page to show.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PageQuery {
    before: String,
    made: String,
}

/// The visitor's shared links; for an owner, all of the account's.
pub async fn links(visitor: Visitor, Query(query): Query<PageQuery>, headers: HeaderMap) -> PageResult {
    visitor.check_can_change()?;
    let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
    let mut found =
        store.list_shared_links(account, visitor.author_filter(), query.before.parse().ok(), PAGE + 1).await?;
    let older = last_of_page(&mut found, PAGE).map(|link| link.id);
    let people = store.list_people(Some(account)).await?;
    let (signer, base) = (visitor.studio.tickets().await?, base(&visitor, &headers));
    let links: Vec<Listed> = found
        .into_iter()
        .map(|link| Listed {
            url: format!("{base}/studio/shared/{}", signer.sign_link(link.id)),
            is_hidden: link.is_private && link.person_id != visitor.person_id(),
            maker: name_of(&people, link.person_id),
            link,
        })
        .collect();
    let made = links.iter().find(|listed| listed.link.id.as_str() == query.made).map(|listed| listed.url.clone());
    let frame = Frame::new("gallery", &visitor).await?;
    html(&LinksPage { frame, links, made, older })
}

/// Creates a link, and redirects to the list, which shows it.
pub async fn share(form: Form) -> PageResult {
    let Form { visitor, fields, .. } = form;
    visitor.check_can_change()?;
    let target = match (fields.text("task").parse(), fields.text("board").parse()) {
        (Ok(task), _) => Target::Task(task),
        (_, Ok(board)) => Target::Board(board),
        _ => return Err(PageError::bad_request()),
    };
    let store = visitor.store();
    let expires_at = match fields.text("days") {
        FOREVER => None,
        _ => Some(fields.end_of_link(store.now())?),
    };
    let new = NewSharedLink {
        account_id: visitor.account_id(),
        person_id: visitor.person_id(),
        target,
        with_prompts: fields.get("prompts").is_some(),
        expires_at,
    };
    match store.create_shared_link(new, MAX_SHARED_LINKS).await? {
        Addition::Created(id) => {
            tracing::info!(link = %id, ?target, account = %new.account_id, person = %new.person_id, "a shared link was created");
            Ok(redirect(&format!("{LINKS}?made={id}")))
        }
        Addition::NotPossible => Err(PageError::not_found()),
        Addition::TooMany => Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "share-full")),
    }
}

/// Revokes a link. A second click finds it revoked, and says no more.
pub async fn revoke(Path(id): Path<String>, form: Form) -> PageResult {
    let visitor = &form.visitor;
    visitor.check_can_change()?;
    let id: Id = id.parse()?;
    let account = visitor.account_id();
    if visitor.store().revoke_shared_link(account, id, visitor.author_filter()).await? {
        tracing::info!(link = %id, %account, person = %visitor.person_id(), "a shared link was revoked");
    }
    Ok(redirect(LINKS))
}

struct SharedPicture {
    file: String,
    /// The size of its thumbnail, in pixels.
    width: u32,
    height: u32,
    prompt: Option<String>,
}

#[derive(Template)]
#[template(path = "shared.html")]
struct SharedPage {
    t: &'static Texts,
    /// The name of the board, or the prompt.
    title: Option<String>,
    pictures: Vec<SharedPicture>,
    /// The path of the next page.
    older: Option<String>,
}

impl SharedPage {
    /// The key of the heading for a link without its own title.
    fn untitled(&self) -> &'static str {
        if self.pictures.len() > 1 { "shared-pictures" } else { "shared-picture" }
    }
}

#[derive(Template)]
#[template(path = "shared_gone.html")]
struct GonePage {
    t: &'static Texts,
}

/// The answer to a link that does not work. It does not reveal whether the link ever did.
fn gone(headers: &HeaderMap) -> PageResult {
    error_page(StatusCode::NOT_FOUND, &GonePage { t: Texts::of(headers) })
}

/// What a link shows is in no search engine, and its address in no other site's log.
fn public(mut response: Response<Body>) -> Response<Body> {
    let fixed = [
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("x-robots-tag"), "noindex"),
    ];
    for (name, value) in fixed {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

fn pictures_of(record: TaskRecord, link: &SharedLink, path: &str) -> Vec<SharedPicture> {
    let Status::Completed(names) = record.task.status else { return Vec::new() };
    let (width, height) = thumbnails::size(record.request.aspect_ratio.size());
    let prompt = link.with_prompts.then_some(record.request.prompt);
    let file = |number| format!("{path}/{}/{number}", record.task.id);
    (1..=names.len())
        .map(|number| SharedPicture { file: file(number), width, height, prompt: prompt.clone() })
        .collect()
}

/// The page of a link.
pub async fn shared(
    State(studio): State<Arc<Studio>>,
    Path(token): Path<String>,
    Query(query): Query<PageQuery>,
    method: Method,
    headers: HeaderMap,
) -> PageResult {
    let store = &studio.shared.store;
    let link = match studio.tickets().await?.verify_link(&token) {
        Some(id) => store.find_shared_link(id).await?,
        None => None,
    };
    let Some(link) = link else { return gone(&headers) };
    studio.count(link.id, RateLimit::View).await?;
    studio.count(link.account_id, RateLimit::AccountView).await?;
    let (path, before) = (format!("/studio/shared/{token}"), query.before.parse().ok());
    let (records, older) = match link.target {
        Target::Task(task) => (store.find_shared_task(link.id, task).await?.into_iter().collect(), None),
        Target::Board(board) => {
            let state = Some(TaskState::Completed);
            let filter = GalleryFilter { board: Some(board), state, ..GalleryFilter::default() };
            let page = store.gallery(link.account_id, &filter, before, PAGE).await?;
            (page.records, page.older.map(|last| format!("{path}?before={last}")))
        }
    };
    // A program that asks for the header alone has seen nothing, and who reads on is counted already.
    if method == Method::GET
        && before.is_none()
        && let Err(error) = store.count_view(link.id).await
    {
        tracing::warn!(link = %link.id, %error, "could not count a view of a shared link; the page is shown all the same");
    }
    let title = match link.target {
        Target::Task(_) if !link.with_prompts => None,
        _ => Some(link.title.clone()),
    };
    let pictures = records.into_iter().flat_map(|record| pictures_of(record, &link, &path)).collect();
    html(&SharedPage { t: Texts::of(&headers), title, pictures, older }).map(public)
}

/// The account and the file name of a picture that a link shows.
async fn find(studio: &Studio, token: &str, task: &str, number: &str) -> Result<(Id, String), PageError> {
    let found =
        studio.tickets().await?.verify_link(token).zip(task.parse::<Id>().ok()).zip(number.parse::<usize>().ok());
    let ((link, task), number) = found.ok_or_else(PageError::not_found)?;
    let record = studio.shared.store.find_shared_task(link, task).await?.ok_or_else(PageError::not_found)?;
    let Status::Completed(names) = record.task.status else { return Err(PageError::not_found()) };
    let name = number.checked_sub(1).and_then(|index| names.get(index).cloned()).ok_or_else(PageError::not_found)?;
    Ok((record.task.account_id, name))
}

/// A picture that a link shows.
pub async fn shared_file(
    State(studio): State<Arc<Studio>>,
    Path((token, task, number)): Path<(String, String, String)>,
) -> PageResult {
    let (_, stored) = find(&studio, &token, &task, &number).await?;
    let name = FileName::parse(&stored).ok_or_else(PageError::not_found)?;
    Ok(public(stream_file(&studio.shared, name, Vec::new(), 0).await?))
}

/// The thumbnail of a picture that a link shows.
pub async fn shared_thumbnail(
    State(studio): State<Arc<Studio>>,
    Path((token, task, number)): Path<(String, String, String)>,
) -> PageResult {
    let (account, stored) = find(&studio, &token, &task, &number).await?;
    Ok(public(thumbnail(&studio, account, &stored).await?))
}
