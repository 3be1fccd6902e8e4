//! The endpoints of the account and the deliveries to them, for its owners.

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, Query};
use axum::http::{Response, StatusCode};

use super::overlap::Overlap;
use super::secret::{self, Secret};
use crate::service::limits::RateLimit;
use crate::service::webhooks::endpoints::{self, EndpointRefusal};
use crate::studio::action::{WebhookAction, action};
use crate::studio::error::{PageError, PageResult};
use crate::studio::page::{Cursor, Draft, Frame, form_page, last_of_page, redirect, text_with_time, time};
use crate::studio::session::{Fields, Form, Visitor};
use tintype_domain::endpoint::{AddedBy, Delivery, DisabledFor, Endpoint, EndpointState, SigningSecret, Trouble};
use tintype_domain::event::{EventType, Subscription};
use tintype_domain::model::Id;
use tintype_domain::person::Role;
use tintype_outbound::receivers::is_reachable;
use tintype_store::EndpointChange;

const WEBHOOKS: &str = "/studio/webhooks";
/// The names of the texts for a form with a wrong URL, or that chooses no event.
const BAD_URL: &str = "webhook-url-invalid";
const NO_EVENT: &str = "webhook-no-event";
const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "webhooks.html")]
struct WebhooksPage<'a> {
    frame: Frame<'a>,
    endpoints: Vec<Endpoint>,
    kinds: [EventType; 4],
    /// The form for another endpoint.
    draft: Draft,
}

#[derive(Template)]
#[template(path = "webhook.html")]
struct WebhookPage<'a> {
    frame: Frame<'a>,
    endpoint: Endpoint,
    deliveries: Vec<Delivery>,
    older: Option<Id>,
    kinds: [EventType; 4],
    /// The name of the text that says why its events were not changed.
    refusal: Option<&'static str>,
}

/// Whether the server has disabled an endpoint, or cannot reach it.
fn needs_care(endpoint: &Endpoint) -> bool {
    endpoint.state() == EndpointState::Failing
        || matches!(endpoint.disabled_for, Some(DisabledFor::Gone | DisabledFor::Failing))
}

fn is_enabled(endpoint: &Endpoint) -> bool {
    endpoint.state() != EndpointState::Disabled
}

fn state(frame: &Frame<'_>, endpoint: &Endpoint) -> String {
    let since = |text| endpoint.failing_since.map(|at| text_with_time(frame.t, text, at)).unwrap_or_default();
    match (endpoint.state(), endpoint.disabled_for) {
        (EndpointState::Active, _) => frame.t.get("endpoint-active"),
        (EndpointState::Failing, _) => since("endpoint-failing"),
        (EndpointState::Disabled, Some(DisabledFor::Gone)) => frame.t.get("endpoint-gone"),
        (EndpointState::Disabled, Some(DisabledFor::Failing)) => since("endpoint-dead"),
        (EndpointState::Disabled, _) => frame.t.get("endpoint-disabled"),
    }
}

impl WebhooksPage<'_> {
    fn any_needs_care(&self) -> bool {
        self.endpoints.iter().any(needs_care)
    }

    /// Whether this kind of event is selected in the form for another endpoint. In an empty form all are.
    fn is_drafted(&self, kind: &EventType) -> bool {
        self.draft.refusal.is_none() || self.draft.fields.get(kind.as_str()).is_some()
    }
}

impl WebhookPage<'_> {
    fn subscribes(&self, kind: &EventType) -> bool {
        self.endpoint.events.kinds().contains(kind)
    }

    fn outcome(&self, delivery: &Delivery) -> String {
        match (delivery.status, delivery.trouble) {
            (Some(status), _) => status.to_string(),
            (None, Some(Trouble::Timeout)) => self.frame.t.get("delivery-timeout"),
            (None, Some(Trouble::Unreachable)) => self.frame.t.get("delivery-unreachable"),
            (None, Some(Trouble::Address)) => self.frame.t.get("delivery-address"),
            (None, None) => String::new(),
        }
    }

    /// When the next attempt is made, as HTML.
    fn next(&self, delivery: &Delivery) -> String {
        delivery.next_at().map(time).unwrap_or_default()
    }
}

async fn page(visitor: &Visitor, draft: Draft) -> PageResult {
    let store = &visitor.studio.shared.store;
    let endpoints = store.list_endpoints(Some(visitor.account_id())).await?;
    let frame = Frame::new("webhooks", visitor).await?;
    let page = WebhooksPage { frame, endpoints, kinds: EventType::SUBSCRIBABLE, draft };
    form_page(&page, page.draft.refusal)
}

/// The page of all endpoints.
pub async fn webhooks(visitor: Visitor) -> PageResult {
    visitor.require(Role::Owner)?;
    page(&visitor, Draft::default()).await
}

/// Adds an endpoint and shows its secret, this once.
pub async fn create(form: Form) -> PageResult {
    let Form { visitor, fields, .. } = form;
    visitor.check_can_manage()?;
    let account = visitor.account().await?.ok_or_else(PageError::not_found)?;
    let added_by = if visitor.is_operator(&account) { AddedBy::Operator } else { AddedBy::Owner };
    let Ok(url) = fields.text("url").trim().parse() else {
        return page(&visitor, Draft::refused(BAD_URL, fields)).await;
    };
    let Some(events) = chosen(&fields) else {
        return page(&visitor, Draft::refused(NO_EVENT, fields)).await;
    };
    let is_in_reach = is_reachable(&url, &visitor.studio.settings.webhooks.webhook_network);
    // On PostgreSQL another process may send the events.
    let may_be_sent = is_in_reach || visitor.store().is_shared();
    let refusal = match endpoints::add(&visitor.store(), account.id, url, events, added_by, may_be_sent).await? {
        Ok((endpoint, secret)) => {
            let person = visitor.person_id();
            tracing::info!(endpoint = %endpoint.id, %person, "an endpoint was added in the studio");
            let mut lead = visitor.texts.get("webhook-created");
            if added_by == AddedBy::Operator && !is_in_reach {
                lead = format!("{lead} {}", visitor.texts.get("webhook-out-of-reach"));
            }
            return show(&visitor, &secret, lead).await;
        }
        Err(EndpointRefusal::NoAccount) => return Err(PageError::not_found()),
        Err(EndpointRefusal::NotHttps) if added_by == AddedBy::Operator => "webhook-plain-http",
        Err(EndpointRefusal::NotHttps) => BAD_URL,
        Err(EndpointRefusal::TooMany) => "webhook-too-many",
    };
    page(&visitor, Draft::refused(refusal, fields)).await
}

/// Leads to the page that shows a signing secret, this once.
async fn show(visitor: &Visitor, signing: &SigningSecret, lead: String) -> PageResult {
    let texts = vec![signing.reveal().to_owned()];
    secret::show(visitor, &Secret { lead, texts, copy: "webhook-copy".into(), back: WEBHOOKS.into() }).await
}

/// The events that a form chooses; at least one.
fn chosen(fields: &Fields) -> Option<Subscription> {
    let chosen = EventType::SUBSCRIBABLE.into_iter().filter(|kind| fields.get(kind.as_str()).is_some());
    Subscription::to(&chosen.collect::<Vec<_>>())
}

/// The endpoint with this id, if it is one of the account.
async fn own(visitor: &Visitor, id: &str) -> Result<Endpoint, PageError> {
    let id: Id = id.parse()?;
    let found = visitor.studio.shared.store.find_endpoint(id).await?;
    found.filter(|endpoint| endpoint.account_id == visitor.account_id()).ok_or_else(PageError::not_found)
}

/// The page of one endpoint, with its deliveries.
pub async fn webhook(visitor: Visitor, Path(id): Path<String>, Query(cursor): Query<Cursor>) -> PageResult {
    visitor.require(Role::Owner)?;
    let endpoint = own(&visitor, &id).await?;
    endpoint_page(&visitor, endpoint, cursor.before()?, None).await
}

async fn endpoint_page(
    visitor: &Visitor,
    endpoint: Endpoint,
    before: Option<Id>,
    refusal: Option<&'static str>,
) -> PageResult {
    let mut deliveries = visitor.studio.shared.store.list_deliveries(endpoint.id, before, PAGE + 1).await?;
    let older = last_of_page(&mut deliveries, PAGE).map(|delivery| delivery.id);
    let frame = Frame::new("webhooks", visitor).await?;
    let page = WebhookPage { frame, endpoint, deliveries, older, kinds: EventType::SUBSCRIBABLE, refusal };
    form_page(&page, refusal)
}

/// Counts a webhook that the person sends by hand, and refuses too many.
async fn count(visitor: &Visitor) -> Result<(), PageError> {
    visitor.studio.count(visitor.account_id(), RateLimit::Webhook).await
}

/// Disables, enables, rotates, tests or removes an endpoint, or subscribes it to other events.
pub async fn change(Path((id, word)): Path<(String, String)>, form: Form) -> PageResult {
    let Form { visitor, fields, .. } = form;
    visitor.require(Role::Owner)?;
    let (endpoint, action) = (own(&visitor, &id).await?, action(&word)?);
    if !matches!(action, WebhookAction::Disable | WebhookAction::Remove) {
        visitor.check_can_manage()?;
    }
    if action != WebhookAction::Test {
        let account = visitor.account().await?;
        let is_operator = account.is_some_and(|account| visitor.is_operator(&account));
        if !endpoints::may_change(&endpoint, is_operator) {
            return Err(PageError::forbidden("webhook-of-operator"));
        }
    }
    let (store, person) = (visitor.store(), visitor.person_id());
    let change = match action {
        WebhookAction::Test => {
            count(&visitor).await?;
            let disabled = || PageError::new(StatusCode::CONFLICT, "webhook-disabled");
            store.test_endpoint(endpoint.id).await?.ok_or_else(disabled)?;
            return Ok(to(&endpoint));
        }
        WebhookAction::Remove => {
            store.remove_endpoint(endpoint.id).await?;
            tracing::info!(endpoint = %endpoint.id, %person, "an endpoint was removed in the studio");
            return Ok(redirect(WEBHOOKS));
        }
        WebhookAction::Rotate => {
            let secret = SigningSecret::random();
            let overlap = Overlap::of(&fields);
            let rotate = EndpointChange::Rotate { secret: secret.clone(), overlap: overlap.duration() };
            store.change_endpoint(endpoint.id, rotate).await?.ok_or_else(PageError::not_found)?;
            tracing::info!(endpoint = %endpoint.id, %person, "the secret of an endpoint was rotated in the studio");
            let lead = visitor.texts.count("webhook-rotated", overlap.hours);
            return show(&visitor, &secret, lead).await;
        }
        WebhookAction::Events => match chosen(&fields) {
            Some(events) => EndpointChange::Subscribe(events),
            None => return endpoint_page(&visitor, endpoint, None, Some(NO_EVENT)).await,
        },
        WebhookAction::Enable => EndpointChange::Enable,
        WebhookAction::Disable => EndpointChange::Disable,
    };
    let shows_it = matches!(change, EndpointChange::Subscribe(_));
    if endpoints::changes(&endpoint, &change) {
        tracing::info!(endpoint = %endpoint.id, ?change, %person, "an endpoint was changed in the studio");
        store.change_endpoint(endpoint.id, change).await?;
    }
    Ok(if shows_it { to(&endpoint) } else { redirect(WEBHOOKS) })
}

fn to(endpoint: &Endpoint) -> Response<Body> {
    redirect(&format!("{WEBHOOKS}/{}", endpoint.id))
}

/// Sends a delivery again.
pub async fn replay(Path((id, delivery)): Path<(String, String)>, form: Form) -> PageResult {
    let visitor = form.visitor;
    visitor.check_can_manage()?;
    let endpoint = own(&visitor, &id).await?;
    let delivery: Id = delivery.parse()?;
    let found = visitor.studio.shared.store.find_delivery(delivery).await?;
    found.filter(|found| found.endpoint_id == endpoint.id).ok_or_else(PageError::not_found)?;
    count(&visitor).await?;
    let replayed = visitor.store().replay_delivery(delivery).await?;
    replayed.ok_or_else(|| PageError::new(StatusCode::CONFLICT, "webhook-disabled"))?;
    Ok(to(&endpoint))
}
