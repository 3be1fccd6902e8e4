//! The gallery: every studio task, searched and filtered. The filter is in the URL, so that links and the back button
//! lead to the same pictures.

use std::collections::HashSet;
use std::hash::Hash;
use std::str::FromStr;

use askama::Template;
use axum::Json;
use axum::extract::{Path, Query, RawQuery};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use serde::Deserialize;
use serde_json::json;

use super::boards;
use crate::studio::action::{GalleryAction, action};
use crate::studio::cards::{Card, cards};
use crate::studio::error::{PageError, PageResult};
use crate::studio::live::Mark;
use crate::studio::page::{DAY, Frame, day, done, html, is_from_script, query, redirect, secured};
use crate::studio::session::{Form, Visitor};
use crate::studio::texts::Texts;
use tintype_config::{MAX_BOARD_NAME, MAX_CHOSEN};
use tintype_domain::model::{Id, Status, Surface};
use tintype_domain::person::Person;
use tintype_domain::request::AspectRatio;
use tintype_store::{Board, GalleryFilter, GalleryPage as Found, TaskRecord, TaskState};
use tintype_system::clock::Timestamp;

const HOME: &str = "/studio/gallery";
/// The word for one's own tasks in a URL.
const MINE: &str = "me";
const PAGE: u32 = 48;
const IDS: u32 = 500;
/// Longest text to search for, in bytes; the rest does not count.
const MAX_TEXT: usize = 1_000;

/// The fields of the search. An empty or unreadable field filters nothing, so that no link is an error.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Search {
    q: String,
    state: String,
    kind: String,
    shape: String,
    starred: String,
    /// The id of the person whose tasks are shown, or `me`.
    person: String,
    board: String,
    from: String,
    until: String,
    before: String,
    /// Tasks that were just deleted, with spaces between them.
    deleted: String,
    /// `1` for the ids of the tasks alone, with the numbers of their pictures.
    ids: String,
}

impl Search {
    fn filter(&self, me: Id) -> GalleryFilter {
        let end = self.q.floor_char_boundary(MAX_TEXT);
        GalleryFilter {
            text: self.q[..end].to_owned(),
            state: self.state.parse().ok(),
            image_to_image: match self.kind.as_str() {
                "image" => Some(true),
                "text" => Some(false),
                _ => None,
            },
            aspect_ratio: AspectRatio::ALL.into_iter().find(|ratio| ratio.as_str() == self.shape),
            starred_by: (self.starred == "1").then_some(me),
            person: if self.person == MINE { Some(me) } else { self.person.parse().ok() },
            board: self.board.parse().ok(),
            from: Timestamp::of_day(&self.from),
            // The day itself counts.
            until: Timestamp::of_day(&self.until).map(|at| at.saturating_add(DAY)),
        }
    }

    fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let fields = [
            ("q", &self.q),
            ("state", &self.state),
            ("kind", &self.kind),
            ("shape", &self.shape),
            ("starred", &self.starred),
            ("person", &self.person),
            ("board", &self.board),
            ("from", &self.from),
            ("until", &self.until),
        ];
        fields.into_iter().map(|(name, value)| (name, value.as_str())).filter(|(_, value)| !value.is_empty())
    }

    /// The query of the page that begins before a task.
    fn older(&self, before: Id) -> String {
        query(self.fields().chain([("before", before.as_str())]))
    }

    fn active_filters(&self, t: &Texts, boards: &[Board], people: &[Person]) -> Vec<ActiveFilter> {
        let state = |value: &str| STATES.into_iter().find(|(state, _)| state.as_str() == value);
        let day = |value: &str| Timestamp::of_day(value).map(|at| day(t, at));
        let words = |name, value: &str| -> Option<String> {
            let (label, value) = match name {
                "state" => ("state", t.get(state(value)?.1)),
                "kind" => ("kind", t.get(if value == "image" { "kind-image" } else { "kind-text" })),
                "shape" => ("shape", value.into()),
                "starred" if value == "1" => return Some(t.get("starred")),
                "person" if value == MINE => ("created-by", t.get("mine")),
                "person" => {
                    let author = people.iter().find(|person| person.id.as_str() == value);
                    ("created-by", author.map_or(t.get("usage-former-person"), |author| author.name.as_str().into()))
                }
                "board" => ("board", boards.iter().find(|board| board.id.as_str() == value)?.name.as_str().into()),
                "from" => ("credits-from", day(value)?),
                "until" => ("credits-until", day(value)?),
                _ => return None,
            };
            Some(format!("{}: {value}", t.get(label)))
        };
        let without = |field| query(self.fields().filter(|(name, _)| *name != field));
        let on = |(name, value)| Some(ActiveFilter { words: words(name, value)?, without: without(name) });
        self.fields().filter_map(on).collect()
    }
}

/// The query without its empty fields, which a form sends, too; `None` if it has none.
fn shortened(given: &str) -> Option<String> {
    let fields: Vec<_> = url::form_urlencoded::parse(given.as_bytes()).collect();
    let is_long = fields.iter().any(|(_, value)| value.is_empty());
    is_long.then(|| query(fields.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))))
}

const STATES: [(TaskState, &str); 4] = [
    (TaskState::Completed, "gallery-completed"),
    (TaskState::Processing, "gallery-processing"),
    (TaskState::Failed, "failed"),
    (TaskState::Cancelled, "cancelled"),
];

struct ActiveFilter {
    /// What it filters, for the reader.
    words: String,
    /// The query of the page without it.
    without: String,
}

#[derive(Template)]
#[template(path = "gallery.html")]
struct GalleryPage<'a> {
    frame: Frame<'a>,
    search: Search,
    filters: Vec<ActiveFilter>,
    boards: Vec<Board>,
    /// The people of the account, if there are several.
    people: Vec<Person>,
    /// The board that is shown.
    board: Option<Board>,
    /// Whether the wanted board is gone, or someone else's.
    is_gone: bool,
    deleted: Vec<Id>,
    cards: Vec<Card<'a>>,
    older: Option<String>,
}

impl GalleryPage<'_> {
    fn states(&self) -> [(TaskState, &'static str); 4] {
        STATES
    }

    fn shapes(&self) -> impl Iterator<Item = &'static str> + use<> {
        AspectRatio::ALL.into_iter().map(AspectRatio::as_str)
    }

    fn most(&self) -> usize {
        MAX_BOARD_NAME
    }

    fn most_chosen(&self) -> usize {
        MAX_CHOSEN
    }

    /// Whether a board is shown that has no picture, and nothing else is searched.
    fn is_empty_board(&self) -> bool {
        self.board.is_some() && self.filters.len() == 1 && self.search.q.is_empty()
    }

    fn is_new(&self) -> bool {
        let Search { q, before, board, starred, person, .. } = &self.search;
        let whole = self.filters.is_empty() && [q, before, board, starred, person].into_iter().all(String::is_empty);
        whole && self.cards.is_empty() && self.older.is_none()
    }
}

#[derive(Template)]
#[template(path = "gallery_cards.html")]
struct MoreCards<'a> {
    t: &'static Texts,
    cards: Vec<Card<'a>>,
    older: Option<String>,
}

/// The page, or more cards for the script.
pub async fn gallery(
    visitor: Visitor,
    Query(search): Query<Search>,
    RawQuery(given): RawQuery,
    headers: HeaderMap,
) -> PageResult {
    if let Some(short) = given.as_deref().and_then(shortened) {
        return Ok(redirect(&format!("{HOME}?{short}")));
    }
    let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
    let filter = search.filter(visitor.person_id());
    let size = if search.ids == "1" { IDS } else { PAGE };
    let is_seen = match filter.board {
        Some(board) => store.sees_board(account, visitor.person_id(), board).await?,
        None => true,
    };
    let page = match is_seen {
        true => store.gallery(account, &filter, search.before.parse().ok(), size).await?,
        // It was removed, or is someone else's.
        false => Found::default(),
    };
    let older = page.older.map(|last| search.older(last));
    if search.ids == "1" {
        let pictures = |status: &Status| if let Status::Completed(names) = status { names.len() } else { 1 };
        let of = |TaskRecord { task, .. }: &TaskRecord| (task.id, pictures(&task.status));
        let ids: Vec<(Id, usize)> = page.records.iter().map(of).collect();
        return Ok(secured(Json(json!({ "ids": ids, "older": older })).into_response()));
    }
    let mut cards = cards(&visitor, page.records).await?;
    for card in &mut cards {
        card.selects = visitor.can_create();
    }
    if is_from_script(&headers) {
        return html(&MoreCards { t: visitor.texts, cards, older });
    }
    let boards = boards::seen(&visitor).await?;
    let mut people = store.list_people(Some(account)).await?;
    let filters = search.active_filters(visitor.texts, &boards, &people);
    if people.len() < 2 {
        people.clear();
    }
    let page = GalleryPage {
        frame: Frame::with_queue("gallery", &visitor).await?,
        board: boards.iter().find(|board| Some(board.id) == filter.board).cloned(),
        is_gone: !is_seen,
        deleted: ids(&search.deleted),
        filters,
        search,
        boards,
        people,
        cards,
        older,
    };
    html(&page)
}

/// Ids separated by spaces; only the first [`MAX_CHOSEN`] count.
fn ids(text: &str) -> Vec<Id> {
    first(text.split_whitespace())
}

/// The first [`MAX_CHOSEN`] of these ids, each once.
pub(super) fn first<'a, T: FromStr + Copy + Eq + Hash>(ids: impl Iterator<Item = &'a str>) -> Vec<T> {
    let mut seen = HashSet::new();
    ids.filter_map(|id| id.parse().ok()).filter(|id| seen.insert(*id)).take(MAX_CHOSEN).collect()
}

/// The tasks that a form names, in a field each.
pub(super) fn chosen(form: &Form) -> Vec<Id> {
    first(form.fields.names().filter_map(|name| name.strip_prefix("task-")))
}

/// Gives stars to chosen tasks, takes them away, deletes or restores them, or puts them on a board.
pub async fn change(Path(word): Path<String>, form: Form) -> PageResult {
    form.visitor.check_can_change()?;
    let (store, account) = (form.visitor.store(), form.visitor.account_id());
    let (tasks, me) = (chosen(&form), form.visitor.person_id());
    match action(&word)? {
        change @ (GalleryAction::Star | GalleryAction::Unstar) => {
            let starred = change == GalleryAction::Star;
            store.star_tasks(account, me, &tasks, starred).await?;
            form.visitor.announce(if starred { Mark::Starred } else { Mark::Unstarred }, tasks);
        }
        change @ (GalleryAction::Put | GalleryAction::Take) => {
            let board: Id = form.fields.text("board").parse().map_err(|_| PageError::bad_request())?;
            if !store.put_on_board(account, me, board, &tasks, change == GalleryAction::Put).await? {
                return Err(PageError::new(StatusCode::NOT_FOUND, "board-gone"));
            }
            form.visitor.announce(Mark::Boards, Vec::new());
            return Ok(done(&form, &format!("{HOME}?board={board}")));
        }
        GalleryAction::Delete => {
            let author = form.visitor.author_filter();
            if author.is_some() {
                // All or nothing, so that no page shows less than there is.
                for task in &tasks {
                    let found = store.find_record(account, Surface::Web, *task).await?;
                    if found.is_some_and(|record| record.person_id != author) {
                        return Err(PageError::forbidden("delete-refused"));
                    }
                }
            }
            let deleted = store.delete_tasks(account, &tasks, author).await?;
            tracing::info!(tasks = deleted.len(), %account, person = %form.visitor.person_id(), "tasks moved to the bin");
            form.visitor.announce(Mark::Deleted, deleted.clone());
            let deleted: Vec<String> = deleted.iter().map(Id::to_string).collect();
            return Ok(done(&form, &format!("{HOME}?deleted={}", deleted.join("+"))));
        }
        GalleryAction::Restore => {
            let back = store.restore_tasks(account, &tasks, form.visitor.author_filter()).await?;
            form.visitor.announce(Mark::Restored, back.clone());
            for task in tasks.iter().filter(|task| !back.contains(task)) {
                // A second click finds it there already.
                if store.find_record(account, Surface::Web, *task).await?.is_none() {
                    return Err(PageError::new(StatusCode::CONFLICT, "undo-late"));
                }
            }
        }
    }
    Ok(done(&form, HOME))
}
