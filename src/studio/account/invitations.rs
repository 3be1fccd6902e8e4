//! Invitations: an owner creates a link that lets several people join the account.

use askama::Template;
use axum::extract::Path;
use axum::http::StatusCode;

use super::people::PEOPLE;
use super::secret::{self, Secret};
use crate::service::people::JoinOutcome;
use crate::studio::Studio;
use crate::studio::create::base;
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{error_page, form_page, html, redirect};
use crate::studio::session::{Form, Guest, GuestForm, Visitor, WithoutSecondFactor};
use crate::studio::sign_in::sign_up::new_person;
use crate::studio::sign_in::{agent, delay_failure, password_refusal, take_slot, without_path_in_referrer};
use crate::studio::texts::Texts;
use tintype_domain::model::Id;
use tintype_domain::person::{Role, Token};
use tintype_store::{Invitation, NewInvitation};

/// The path of an invitation, before its token.
const JOIN: &str = "/studio/join";
/// Most invitations of an account that have not expired.
const MAX_OPEN: u32 = 20;
/// Most people that one invitation lets in.
const MAX_PLACES: i64 = 100;

/// Makes an invitation, and shows its link, this once.
pub async fn invite(form: Form) -> PageResult {
    let Form { visitor, fields, headers } = form;
    visitor.check_can_manage()?;
    let role: Role = fields.text("role").parse().map_err(|_| PageError::bad_request())?;
    let places = fields.text("places").parse().ok().filter(|places| (1..=MAX_PLACES).contains(places));
    let places = places.ok_or_else(PageError::bad_request)?;
    let (store, token, person) = (visitor.store(), Token::random(), &visitor.session.person);
    let expires_at = fields.end_of_link(store.now())?;
    let (account_id, person_id, hash) = (person.account_id, person.id, token.hash());
    let new = NewInvitation { account_id, person_id, hash, role, places, expires_at };
    let Some(id) = store.create_invitation(new, MAX_OPEN).await? else {
        return Err(PageError::new(StatusCode::UNPROCESSABLE_ENTITY, "invite-full"));
    };
    tracing::info!(invitation = %id, account = %account_id, person = %person_id, %role, places, "people were invited");
    let link = format!("{}{JOIN}/{}", base(&visitor, &headers), token.reveal());
    let lead = visitor.texts.count("invite-link", places);
    secret::show(&visitor, &Secret { lead, texts: vec![link], copy: "copy-link".into(), back: PEOPLE.into() }).await
}

/// Revokes an invitation. A second click finds it revoked, and says no more.
pub async fn revoke(Path(id): Path<String>, form: Form) -> PageResult {
    let visitor = &form.visitor;
    visitor.check_can_manage()?;
    let id: Id = id.parse()?;
    let account = visitor.account_id();
    if visitor.store().revoke_invitation(account, id).await? {
        tracing::info!(invitation = %id, %account, person = %visitor.person_id(), "an invitation was revoked");
    }
    Ok(redirect(PEOPLE))
}

#[derive(Template)]
#[template(path = "join.html")]
struct JoinPage<'a> {
    t: &'a Texts,
    /// The page's path, to which the language choice returns.
    path: &'a str,
    account: &'a str,
    role: Role,
    name: &'a str,
    /// The key of the text that says why nobody has joined yet.
    notice: Option<&'static str>,
}

impl<'a> JoinPage<'a> {
    fn new(guest: &'a Guest, invitation: &'a Invitation) -> Self {
        Self {
            t: guest.texts(),
            path: guest.path(),
            account: &invitation.account,
            role: invitation.role,
            name: "",
            notice: None,
        }
    }
}

#[derive(Template)]
#[template(path = "join_signed_in.html")]
struct SignedInPage<'a> {
    t: &'a Texts,
    path: &'a str,
    account: &'a str,
    name: &'a str,
}

#[derive(Template)]
#[template(path = "join_gone.html")]
struct GonePage<'a> {
    t: &'a Texts,
    path: &'a str,
}

/// The answer to an invitation that does not work. It does not reveal whether it ever did, and waits like the answer to a
/// failed sign-in.
async fn gone(guest: &Guest) -> PageResult {
    delay_failure(&guest.studio, &guest.context).await?;
    let page = GonePage { t: guest.texts(), path: guest.path() };
    error_page(StatusCode::NOT_FOUND, &page).map(without_path_in_referrer)
}

/// The page for a person who is already signed in: joining would sign the browser in as someone else.
fn signed_in(visitor: &Visitor, invitation: &Invitation, path: &str) -> PageResult {
    let page = SignedInPage { t: visitor.texts, path, account: &invitation.account, name: visitor.name() };
    html(&page).map(without_path_in_referrer)
}

/// The invitation with a token, if it works.
async fn find(studio: &Studio, token: &str) -> Result<Option<(Token, Invitation)>, PageError> {
    let Some(token) = Token::parse(token) else { return Ok(None) };
    let found = studio.shared.store.find_invitation(token.hash()).await?;
    Ok(found.map(|invitation| (token, invitation)))
}

/// The page on which someone joins.
pub async fn invitation(
    Path(token): Path<String>,
    visitor: Result<WithoutSecondFactor<Visitor>, PageError>,
    guest: Guest,
) -> PageResult {
    let Some((_, invitation)) = find(&guest.studio, &token).await? else { return gone(&guest).await };
    if let Ok(WithoutSecondFactor(visitor)) = visitor {
        return signed_in(&visitor, &invitation, guest.path());
    }
    html(&JoinPage::new(&guest, &invitation)).map(without_path_in_referrer)
}

/// Adds someone to the account, and signs that person in. The answer says plainly that a name is taken, as at a sign-up,
/// after the delay of a failed sign-in.
pub async fn join(Path(token): Path<String>, GuestForm { guest, fields }: GuestForm) -> PageResult {
    let studio = &guest.studio;
    let Some((token, invitation)) = find(studio, &token).await? else { return gone(&guest).await };
    if let Ok(visitor) = Visitor::of_now(&guest.parts, studio).await {
        return signed_in(&visitor, &invitation, guest.path());
    }
    let refuse = |notice| {
        let page = JoinPage { name: fields.text("name"), notice: Some(notice), ..JoinPage::new(&guest, &invitation) };
        form_page(&page, Some(notice)).map(without_path_in_referrer)
    };
    let new = match new_person(&guest, &fields)? {
        Ok(new) => new,
        Err(notice) => return refuse(notice),
    };
    let slot = take_slot(&studio.sign_ups, &guest.context)?;
    let agent = agent(guest.headers());
    let outcome = studio.people.join_by_invitation(&invitation, token.hash(), new, agent).await?;
    drop(slot);
    match outcome {
        JoinOutcome::Done(signed_in) => {
            let person = &signed_in.session.person;
            tracing::info!(
                person = %person.id, account = %person.account_id, invitation = %invitation.id,
                "a person joined an account by an invitation"
            );
            Ok(without_path_in_referrer(guest.enter(&signed_in)))
        }
        JoinOutcome::Invalid(invalid) => refuse(password_refusal(invalid)),
        JoinOutcome::NameTaken => {
            delay_failure(studio, &guest.context).await?;
            refuse("sign-up-taken")
        }
        JoinOutcome::AccountFull => refuse("people-full"),
        JoinOutcome::InvitationGone | JoinOutcome::TooManyToday => gone(&guest).await,
    }
}
