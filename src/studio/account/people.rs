//! The people of an account, for its owners.

use askama::Template;
use axum::extract::{Path, Query};
use axum::http::{HeaderMap, StatusCode};

use super::secret::{self, Secret};
use crate::service::auth_throttle::FailureDelay;
use crate::service::people::People;
use crate::studio::SIGN_IN;
use crate::studio::action::{PersonAction, action};
use crate::studio::cookies::referring_page;
use crate::studio::create::base;
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Draft, Frame, form_page, redirect};
use crate::studio::search::{PAGE, Search};
use crate::studio::session::{Fields, Form, Visitor};
use tintype_domain::model::Id;
use tintype_domain::names::{InvalidName, new_person_name};
use tintype_domain::person::{Person, Role};
use tintype_store::{FoundPerson, Invitation, PersonAdded, PersonChange};

pub(super) const PEOPLE: &str = "/studio/people";

/// People that can be found at a glance.
const FEW: usize = 10;

#[derive(Template)]
#[template(path = "people.html")]
struct PeoplePage<'a> {
    frame: Frame<'a>,
    people: Vec<FoundPerson>,
    /// What their names contain.
    q: String,
    /// The query of the next page.
    next: Option<String>,
    invitations: Vec<Invitation>,
    roles: [Role; 3],
    /// The form for another person.
    draft: Draft,
}

impl PeoplePage<'_> {
    fn is_self(&self, person: &Person) -> bool {
        person.id == self.frame.visitor.person_id()
    }

    fn is_long(&self) -> bool {
        self.people.len() > FEW || self.next.is_some() || !self.q.is_empty()
    }

    fn is_drafted(&self, role: &Role) -> bool {
        role.as_str() == self.draft.fields.get("role").unwrap_or(Role::Member.as_str())
    }

    fn is_usual(&self, role: &Role) -> bool {
        *role == Role::Member
    }
}

async fn page(visitor: &Visitor, search: &Search, draft: Draft) -> PageResult {
    let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
    let q = search.text();
    let mut people = store.find_people(Some(account), &q, &search.after, PAGE + 1).await?;
    let next = search.next(&mut people, |found| &found.person.name);
    let invitations = store.list_invitations(account).await?;
    let frame = Frame::new("people", visitor).await?;
    let page = PeoplePage { frame, people, q, next, invitations, roles: Role::ALL, draft };
    form_page(&page, page.draft.refusal)
}

/// The page.
pub async fn people(visitor: Visitor, Query(search): Query<Search>) -> PageResult {
    visitor.require(Role::Owner)?;
    page(&visitor, &search, Draft::default()).await
}

/// Adds a person, and shows a link that signs that person in, this once.
pub async fn add(form: Form) -> PageResult {
    let Form { visitor, fields, headers } = form;
    visitor.check_can_manage()?;
    let role: Role = fields.text("role").parse().map_err(|_| PageError::bad_request())?;
    let name = match new_person_name(fields.text("name")) {
        Ok(name) => visitor.studio.people.known_as(name).await?,
        Err(InvalidName::Text(_)) => return refused(&visitor, "people-invalid", fields).await,
        Err(InvalidName::LookAlike) => return refused(&visitor, "name-look-alike", fields).await,
    };
    let account = visitor.account_id();
    match visitor.store().create_person(account, &name, role).await? {
        PersonAdded::Done(person) => show_link(&visitor, &person, &headers).await,
        PersonAdded::NameTaken => {
            // Names are unique across all accounts, so attempts are limited.
            if let Some(source) = visitor.context.source
                && visitor.studio.auth_throttle.delay(source).await == FailureDelay::Exhausted
            {
                return Err(PageError::busy());
            }
            refused(&visitor, "people-taken", fields).await
        }
        _ => refused(&visitor, "people-full", fields).await,
    }
}

async fn refused(visitor: &Visitor, text: &'static str, fields: Fields) -> PageResult {
    page(visitor, &Search::default(), Draft::refused(text, fields)).await
}

async fn show_link(visitor: &Visitor, person: &Person, headers: &HeaderMap) -> PageResult {
    let made = People::new(visitor.store()).link(person).await?;
    let (token, _) = made.ok_or_else(PageError::not_found)?;
    let link = format!("{}{SIGN_IN}/{}", base(visitor, headers), token.reveal());
    let lead = visitor.texts.word("people-link", &person.name);
    secret::show(visitor, &Secret { lead, texts: vec![link], copy: "copy-link".into(), back: PEOPLE.into() }).await
}

/// Gives a person another role, makes a link, or removes the person. Nobody changes oneself, so that an account keeps an
/// owner.
pub async fn change(Path((id, word)): Path<(String, String)>, form: Form) -> PageResult {
    let Form { visitor, fields, headers } = form;
    visitor.require(Role::Owner)?;
    let id: Id = id.parse()?;
    let own = &visitor.session.person;
    let found = visitor.studio.shared.store.find_person(id.as_str()).await?.map(|found| found.person);
    let of_account = found.filter(|person| person.id == id && person.account_id == own.account_id);
    let person = of_account.ok_or_else(PageError::not_found)?;
    if person.id == own.id {
        return Err(PageError::new(StatusCode::CONFLICT, "people-own"));
    }
    let action = action(&word)?;
    if matches!(action, PersonAction::Link | PersonAction::Role) {
        visitor.check_can_manage()?;
    }
    match action {
        PersonAction::Link => return show_link(&visitor, &person, &headers).await,
        PersonAction::Role => {
            let role: Role = fields.text("role").parse().map_err(|_| PageError::bad_request())?;
            // A change that changes nothing writes nothing.
            if person.role != role {
                visitor.store().change_person(id, PersonChange::Role(role)).await?.ok_or_else(PageError::not_found)?;
            }
        }
        // A person who is removed and added again has no strikes.
        PersonAction::Remove if person.suspension.is_some() => {
            return Err(PageError::new(StatusCode::CONFLICT, "people-suspended"));
        }
        PersonAction::Remove => drop(visitor.store().remove_person(id).await?),
    }
    tracing::info!(person = %id, by = %own.id, ?action, "a person was changed in the studio");
    // A later page of the list, or the search, stays in view.
    let list =
        referring_page(&headers).filter(|page| page.strip_prefix(PEOPLE).is_some_and(|query| query.starts_with('?')));
    Ok(redirect(list.as_deref().unwrap_or(PEOPLE)))
}
