//! Boards, on which people collect pictures: their page, their covers, and the forms that change them. A board is its maker's
//! alone or the whole team's.

use askama::Template;
use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect};

use crate::studio::action::{BoardAction, action};
use crate::studio::error::{PageError, PageResult};
use crate::studio::live::Mark;
use crate::studio::page::{Frame, done, html, secured};
use crate::studio::references;
use crate::studio::session::{Form, Visitor};
use tintype_config::{MAX_BOARD_NAME, MAX_BOARDS};
use tintype_domain::model::Id;
use tintype_domain::stored_reference::StoredReference;
use tintype_store::{Board, BoardWrite, GalleryFilter, MOST_COUNTED, TaskState};

const BOARDS: &str = "/studio/boards";
const EMPTY: &str = r#"<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>"#;

pub(in crate::studio) async fn seen(visitor: &Visitor) -> tintype_store::Result<Vec<Board>> {
    let person = &visitor.session.person;
    visitor.studio.shared.store.boards(person.account_id, person.id).await
}

pub(in crate::studio) fn count(board: &Board) -> String {
    board.images.map_or_else(|| format!("{MOST_COUNTED}+"), |count| count.to_string())
}

#[derive(Template)]
#[template(path = "boards.html")]
struct BoardsPage<'a> {
    frame: Frame<'a>,
    boards: Vec<Board>,
    /// Most characters of a name.
    most: usize,
    /// Whether the account has several people.
    has_team: bool,
}

/// The page.
pub async fn boards(visitor: Visitor) -> PageResult {
    let people = visitor.studio.shared.store.list_people(Some(visitor.account_id())).await?;
    let (boards, frame) = (seen(&visitor).await?, Frame::new("boards", &visitor).await?);
    html(&BoardsPage { frame, boards, most: MAX_BOARD_NAME, has_team: people.len() > 1 })
}

/// Leads to the thumbnail of the newest picture on a board. A board without one, or that the visitor doesn't see, has an empty
/// cover.
pub async fn cover(visitor: Visitor, Path(id): Path<String>) -> PageResult {
    let id: Id = id.parse()?;
    let filter = GalleryFilter { board: Some(id), state: Some(TaskState::Completed), ..GalleryFilter::default() };
    let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
    let newest = match store.sees_board(account, visitor.person_id(), id).await? {
        true => store.gallery(account, &filter, None, 1).await?.records.pop(),
        false => None,
    };
    let newest = newest.map(|record| StoredReference::Result { task: record.task.id, number: 1 });
    let response = match newest {
        Some(picture) => Redirect::to(&references::thumbnail(picture)).into_response(),
        None => ([(header::CONTENT_TYPE, "image/svg+xml")], EMPTY).into_response(),
    };
    Ok(secured(response))
}

fn name(form: &Form) -> Result<&str, PageError> {
    let name = form.fields.text("name").trim();
    // Shared pages show it to the public, and its character order must not mislead.
    let is_odd = |char: char| {
        char.is_control() || matches!(char, '\u{200b}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    };
    let fits = !name.is_empty() && name.chars().count() <= MAX_BOARD_NAME && !name.chars().any(is_odd);
    if fits { Ok(name) } else { Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "board-name")) }
}

fn respond(form: &Form, outcome: BoardWrite) -> PageResult {
    match outcome {
        BoardWrite::Done(id) => {
            form.visitor.announce(Mark::Boards, Vec::new());
            Ok(done(form, &format!("/studio/gallery?board={id}")))
        }
        BoardWrite::NameTaken => Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "board-taken")),
        BoardWrite::Full => Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "board-not-possible")),
        BoardWrite::NotFound => Err(PageError::not_found()),
    }
}

/// Makes a board.
pub async fn create_board(form: Form) -> PageResult {
    form.visitor.check_can_change()?;
    let person = &form.visitor.session.person;
    let owner = form.fields.get("private").map(|_| person.id);
    let made = form.visitor.store().create_board(person.account_id, owner, name(&form)?, MAX_BOARDS).await?;
    respond(&form, made)
}

/// Renames or removes a board, or shows a private one to the team.
pub async fn change_board(Path((id, word)): Path<(String, String)>, form: Form) -> PageResult {
    form.visitor.check_can_change()?;
    let id: Id = id.parse()?;
    let (store, person) = (form.visitor.store(), &form.visitor.session.person);
    match action(&word)? {
        BoardAction::Rename => {
            respond(&form, store.rename_board(person.account_id, person.id, id, name(&form)?).await?)
        }
        BoardAction::Publish => {
            respond(&form, store.publish_board(person.account_id, person.id, id, MAX_BOARDS).await?)
        }
        BoardAction::Remove if store.remove_board(person.account_id, person.id, id).await? => {
            form.visitor.announce(Mark::Boards, Vec::new());
            Ok(done(&form, BOARDS))
        }
        BoardAction::Remove => Err(PageError::not_found()),
    }
}
