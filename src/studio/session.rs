//! Signed-in people, and the forms that they send.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRef, FromRequest, FromRequestParts, Request};
use axum::http::header::{self, HeaderMap};
use axum::http::request::Parts;
use axum::http::{Response, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::cookies::SESSION;
use super::error::PageError;
use super::page::DAY;
use super::texts::Texts;
use super::{RequestContext, Studio};
use crate::service::limits::RateLimit;
use crate::service::people::LONGEST_SESSION;
use tintype_config::{MAX_BODY, RequiredFor};
use tintype_domain::model::{Account, Id, Surface};
use tintype_domain::person::{Person, Role, Session, Token, TokenHash};
use tintype_store::{Actor, NewUpload, Right, SessionRight, Store, Via};
use tintype_system::clock::Timestamp;

/// The field of a form that proves its origin.
pub(super) const PROOF: &str = "proof";

/// A signed-in person.
pub struct Visitor {
    pub(super) session: Session,
    /// The hash that identifies the session in the database.
    pub(super) token_hash: TokenHash,
    /// Whether the person acts as an operator.
    pub(super) operator: bool,
    /// The texts in the person's language.
    pub(super) texts: &'static Texts,
    /// The secret that forms of this session carry.
    pub(super) proof: String,
    pub(super) context: RequestContext,
    pub(super) studio: Arc<Studio>,
}

tintype_domain::opaque_debug!(Visitor);

impl Visitor {
    pub(super) fn account_id(&self) -> Id {
        self.session.person.account_id
    }

    pub(super) fn person_id(&self) -> Id {
        self.session.person.id
    }

    pub(super) fn name(&self) -> &str {
        &self.session.person.name
    }

    /// Whether the session is still valid. For answers that take long to send.
    pub(super) async fn has_session(&self) -> tintype_store::Result<bool> {
        Ok(!self.studio.shared.store.live_sessions(&[self.token_hash]).await?.is_empty())
    }

    /// The account whose tasks and credits the person uses.
    pub(super) async fn account(&self) -> tintype_store::Result<Option<Account>> {
        self.studio.shared.store.find_account(self.account_id().as_str()).await
    }

    /// Whether the person manages all accounts; `account` is the account of the person.
    pub(super) fn is_operator(&self, account: &Account) -> bool {
        account.admin && account.id == self.account_id() && self.is_owner()
    }

    /// This person's right to write, which this request was checked with.
    pub(super) fn right(&self) -> Right {
        let Person { role, suspension, .. } = &self.session.person;
        let (session, suspended) = (self.token_hash, suspension.is_some());
        Right::Session(SessionRight { session, role: *role, suspended, operator: self.operator })
    }

    /// The store for what this person changes: it records that, and writes only while the person's right holds.
    pub(super) fn store(&self) -> Arc<Store> {
        let person = &self.session.person;
        let store = self.studio.shared.store.acting(Actor {
            name: person.name.clone(),
            person_id: Some(person.id),
            via: Via::Studio,
            source: self.context.source.map(|source| source.to_string()),
        });
        store.with_right(self.right())
    }

    /// Rejects a person with a lesser role.
    pub(super) fn require(&self, role: Role) -> Result<(), PageError> {
        require(&self.session.person, role)
    }

    /// Rejects a viewer, for a change that creates nothing.
    pub(super) fn check_can_change(&self) -> Result<(), PageError> {
        if self.can_create() { Ok(()) } else { Err(PageError::forbidden("viewer-change-refused")) }
    }

    /// Rejects a person who is not an owner, or who is suspended by the content policy: keys and new people would be
    /// ways around a suspension.
    pub(super) fn check_can_manage(&self) -> Result<(), PageError> {
        self.require(Role::Owner)?;
        if self.session.person.suspension.is_none() { Ok(()) } else { Err(PageError::forbidden("suspended-owner")) }
    }

    /// Whether the person can create pictures.
    pub(super) fn can_create(&self) -> bool {
        self.session.person.role >= Role::Member
    }

    /// The only author whose tasks the person can delete and restore; `None` if there is no such limit.
    pub(super) fn author_filter(&self) -> Option<Id> {
        (!self.is_owner()).then_some(self.person_id())
    }

    /// Whether the person manages the account.
    pub(super) fn is_owner(&self) -> bool {
        self.session.person.role >= Role::Owner
    }
}

impl Visitor {
    /// The person of a request, with the rights of this moment. For handlers that have waited for something other than a body.
    pub(super) async fn of_now(parts: &Parts, studio: &Arc<Studio>) -> Result<Self, PageError> {
        Self::read(parts, studio, Need::Factor).await
    }

    /// The person of a request, with the rights of this moment. Every request is identified here, so none bypasses the
    /// second factor that the operator requires.
    async fn read(parts: &Parts, studio: &Arc<Studio>, need: Need) -> Result<Self, PageError> {
        let (context, studio) = (request_context(parts)?, studio.clone());
        let token = SESSION.read(&parts.headers, &context).and_then(Token::parse).ok_or_else(PageError::signed_out)?;
        let session = studio.people.session(&token).await?.ok_or_else(PageError::signed_out)?;
        if need == Need::Factor && lacks_factor(studio.settings.second_factor, &session) {
            return Err(PageError::without_factor());
        }
        let (token_hash, proof) = (token.hash(), proof_of(&token));
        Ok(Self { session, token_hash, operator: false, texts: Texts::of(&parts.headers), proof, context, studio })
    }

    async fn without_body(parts: &Parts, studio: &Arc<Studio>, need: Need) -> Result<Self, PageError> {
        if !parts.method.is_safe() {
            return Err(PageError::caused_by(EarlyVisitor));
        }
        let visitor = Self::read(parts, studio, need).await.map_err(|error| error.leading_to(parts))?;
        studio.count_person(&visitor.session.person, RateLimit::Page).await?;
        Ok(visitor)
    }
}

/// Rejects a person with a lesser role.
pub(super) fn require(person: &Person, role: Role) -> Result<(), PageError> {
    if person.role >= role {
        return Ok(());
    }
    Err(PageError::forbidden(if role == Role::Owner { "owner-refused" } else { "viewer-refused" }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// The second factor, if the operator requires one.
    Factor,
    /// Nothing: it sets up a second factor, or ends the session.
    Nothing,
}

/// Whether a person has to set up a second factor first. A provider at which someone has signed in is responsible for
/// it.
pub(super) fn lacks_factor(required: Option<RequiredFor>, session: &Session) -> bool {
    let Person { role, has_second_factor, .. } = session.person;
    let concerns = match required {
        None => false,
        Some(RequiredFor::Owners) => role == Role::Owner,
        Some(RequiredFor::Everyone) => true,
    };
    concerns && !has_second_factor && !session.by_provider
}

/// A [`Visitor`] or a [`Form`] of a person who may lack the second factor that the operator requires. Only the handlers
/// that set it up or end the session take it.
#[derive(Debug)]
pub struct WithoutSecondFactor<T>(pub(super) T);

/// The state of a router that has the studio in it.
pub trait HasStudio: Send + Sync {
    /// The studio.
    fn studio(&self) -> Arc<Studio>;
}

impl<S: Send + Sync> HasStudio for S
where
    Arc<Studio>: FromRef<S>,
{
    fn studio(&self) -> Arc<Studio> {
        FromRef::from_ref(self)
    }
}

/// For a request without a body. A handler of any other one takes a [`Form`] or reads the body as a [`PendingVisitor`].
impl<S: HasStudio> FromRequestParts<S> for Visitor {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        Self::without_body(parts, &state.studio(), Need::Factor).await
    }
}

impl<S: HasStudio> FromRequestParts<S> for WithoutSecondFactor<Visitor> {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        Visitor::without_body(parts, &state.studio(), Need::Nothing).await.map(Self)
    }
}

/// A request that needs no session: of someone who signs in or signs up, or has a link.
pub struct Guest {
    pub(super) studio: Arc<Studio>,
    pub(super) context: RequestContext,
    pub(super) parts: Parts,
}

tintype_domain::opaque_debug!(Guest);

impl Guest {
    pub(super) fn headers(&self) -> &HeaderMap {
        &self.parts.headers
    }

    /// The texts in the language of the browser.
    pub(super) fn texts(&self) -> &'static Texts {
        Texts::of(self.headers())
    }

    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }
}

impl<S: HasStudio> FromRequest<S> for Guest {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        let (parts, _) = request.into_parts();
        Ok(Self { context: request_context(&parts)?, studio: state.studio(), parts })
    }
}

/// A form that needs no session, from a page of the studio. It has at most 8 KiB, because unauthenticated input waits in
/// memory.
#[derive(Debug)]
pub struct GuestForm {
    pub(super) guest: Guest,
    pub(super) fields: Fields,
}

impl<S: HasStudio> FromRequest<S> for GuestForm {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        let ((parts, body), studio) = (request.into_parts(), state.studio());
        check_origin(&studio, &parts)?;
        let context = request_context(&parts)?;
        let fields = Fields::read(8 * 1024, &studio, &parts, body).await?;
        Ok(Self { guest: Guest { studio, context, parts }, fields })
    }
}

/// A handler asks for the person of a request whose body hasn't arrived.
#[derive(Debug, thiserror::Error)]
#[error("a handler of a form takes a Visitor: use Form, whose rights are read when the form has arrived")]
struct EarlyVisitor;

/// A signed-in person whose request body is still arriving. The person's rights can end before the last byte, so this
/// only gives access to room for that body; [`PendingVisitor::arrived`] checks the rights again.
pub(super) struct PendingVisitor<'a> {
    early: Visitor,
    parts: &'a Parts,
    need: Need,
}

impl<'a> PendingVisitor<'a> {
    /// The person behind a request from a page of the studio, who has not sent too many within a minute.
    pub(super) async fn of(parts: &'a Parts, studio: &Arc<Studio>) -> Result<Self, PageError> {
        Self::with(parts, studio, Need::Factor).await
    }

    async fn with(parts: &'a Parts, studio: &Arc<Studio>, need: Need) -> Result<Self, PageError> {
        check_origin(studio, parts)?;
        let early = Visitor::read(parts, studio, need).await.map_err(|error| error.with_unsent_form(parts))?;
        studio.count_person(&early.session.person, RateLimit::Form).await?;
        Ok(Self { early, parts, need })
    }

    /// The account whose share of room the body counts against.
    pub(super) fn account_id(&self) -> Id {
        self.early.account_id()
    }

    pub(super) fn upload(&self) -> NewUpload {
        NewUpload { person_id: Some(self.early.person_id()), ..NewUpload::of(self.account_id(), Surface::Web) }
    }

    /// The person's right to store what arrives.
    pub(super) fn right(&self) -> Right {
        self.early.right()
    }

    /// Rejects a body that could come to nothing, before it is read.
    pub(super) fn require(&self, role: Role) -> Result<(), PageError> {
        self.early.require(role)
    }

    /// Rejects a body without the secret of the session's forms.
    pub(super) fn check_csrf_token(&self, proof: Option<&str>) -> Result<(), PageError> {
        match proof {
            Some(proof) if same(proof, &self.early.proof) => Ok(()),
            None | Some("") => Err(PageError::forbidden("error-origin")),
            // One of another session: the browser says that the form is of this origin.
            Some(_) => Err(PageError::forbidden("error-old-form")),
        }
    }

    /// The person, once the whole body has arrived, with the rights of that moment.
    pub(super) async fn arrived(self) -> Result<Visitor, PageError> {
        let arrived = Visitor::read(self.parts, &self.early.studio, self.need).await;
        arrived.map_err(|error| error.with_unsent_form(self.parts))
    }
}

/// The request as `crate::http` saw it.
pub(super) fn request_context(parts: &Parts) -> Result<RequestContext, PageError> {
    // A route of another surface would lack it.
    parts.extensions.get::<RequestContext>().cloned().ok_or_else(PageError::not_found)
}

/// A form that a signed-in person sent from a page of the studio, with the person's rights when its last byte had arrived.
#[derive(Debug)]
pub struct Form {
    pub(super) visitor: Visitor,
    pub(super) fields: Fields,
    pub(super) headers: HeaderMap,
}

impl<S: HasStudio> FromRequest<S> for Form {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        Self::read(request, state.studio(), Need::Factor).await
    }
}

impl<S: HasStudio> FromRequest<S> for WithoutSecondFactor<Form> {
    type Rejection = PageError;

    async fn from_request(request: Request, state: &S) -> Result<Self, PageError> {
        Form::read(request, state.studio(), Need::Nothing).await.map(Self)
    }
}

impl Form {
    async fn read(request: Request, studio: Arc<Studio>, need: Need) -> Result<Self, PageError> {
        let (parts, body) = request.into_parts();
        let pending = PendingVisitor::with(&parts, &studio, need).await?;
        let fields = Fields::read(MAX_BODY, &studio, &parts, body).await?;
        pending.check_csrf_token(fields.get(PROOF))?;
        let visitor = pending.arrived().await?;
        Ok(Self { visitor, fields, headers: parts.headers })
    }
}

#[derive(Debug, Default)]
pub(super) struct Fields(HashMap<String, String>);

impl Fields {
    /// Reads a form of at most `most` bytes; of a repeated field the last one counts.
    async fn read(most: usize, studio: &Studio, parts: &Parts, body: Body) -> Result<Self, PageError> {
        let form = "application/x-www-form-urlencoded";
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(form) {
            return Err(PageError::bad_request());
        }
        let body = tokio::time::timeout(studio.connections.body_total, axum::body::to_bytes(body, most)).await;
        let body = body.ok().and_then(Result::ok).ok_or_else(PageError::bad_request)?;
        Ok(Self(url::form_urlencoded::parse(&body).into_owned().collect()))
    }

    /// Fields that were read elsewhere.
    pub(super) fn of(fields: HashMap<String, String>) -> Self {
        Self(fields)
    }

    /// A field that was sent, even if it is empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The names of the fields, in any order.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The end that the field `days` chooses for a link: in 1, 7 or 30 days.
    pub(super) fn end_of_link(&self, now: Timestamp) -> Result<Timestamp, PageError> {
        let days = [1, 7, 30].into_iter().find(|days: &u32| days.to_string() == self.text("days"));
        Ok(now.saturating_add(DAY * days.ok_or_else(PageError::bad_request)?))
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }
}

/// Rejects a form that another site made the browser send. Over HTTPS browsers say whether it did. Over HTTP they only
/// name the form's origin, which is the request's host or, behind a proxy that uses another name, the host in
/// `--public-url`. What they say counts first: they send the origin `null` if a proxy adds
/// `Referrer-Policy: no-referrer`.
pub(super) fn check_origin(studio: &Studio, parts: &Parts) -> Result<(), PageError> {
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let refused = || PageError::forbidden("error-origin");
    if let Some(site) = header("sec-fetch-site") {
        return if site == "same-origin" { Ok(()) } else { Err(refused()) };
    }
    let Some(origin) = header("origin") else { return Ok(()) };
    let Some((_, host)) = origin.split_once("://") else { return Err(refused()) };
    let mut own = [header("host"), studio.settings.public_host.as_deref()].into_iter().flatten();
    if own.any(|own| own.eq_ignore_ascii_case(host)) { Ok(()) } else { Err(refused()) }
}

/// The secret of a session's forms follows from its cookie, so that nothing is stored for it.
fn proof_of(token: &Token) -> String {
    let digest = Sha256::new().chain_update(b"tintype form ").chain_update(token.reveal()).finalize();
    BASE64_URL_SAFE_NO_PAD.encode(digest)
}

/// Compares two texts in constant time.
pub(super) fn same(one: &str, other: &str) -> bool {
    let differences = one.bytes().zip(other.bytes()).fold(0, |found, (a, b)| found | (a ^ b));
    one.len() == other.len() && differences == 0
}

/// The cookie of a session. The database knows when the session ends, which moves with its use.
pub(super) fn with_session(response: Response<Body>, context: &RequestContext, token: &Token) -> Response<Body> {
    SESSION.set(response, context, token.reveal(), LONGEST_SESSION.as_secs())
}

/// Rejects a request without TLS where cookies need it.
pub fn check_https(studio: &Studio, context: &RequestContext) -> Result<(), PageError> {
    if studio.settings.require_https && !context.https {
        return Err(PageError::new(StatusCode::FORBIDDEN, "error-https"));
    }
    Ok(())
}
