//! The first page: the prompt, and the latest pictures.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::{HeaderMap, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tracing::Instrument as _;

use self::masks::MaskFault;
use self::snippets::Snippets;
use super::cards::{Card, PicturePage, TaskDetails, card, latest};
use super::error::{PageError, PageResult};
use super::images::{bin, boards};
use super::live::{Mark, Marks};
use super::page::{Cursor, Frame, html, is_from_script, redirect, secured};
use super::references::{Chip, lines};
use super::session::{Fields, Form, Visitor};
use super::settings::{self, PresetOption, SettingField};
use super::{HOME, Studio, failures};
use crate::service::limits::RateLimit;
use tintype_domain::ledger::NotCharged;
use tintype_domain::model::{CREDITS_PER_IMAGE, Id, Surface};
use tintype_domain::person::Role;
use tintype_domain::preset::Chosen;
use tintype_domain::request::{AspectRatio, GenerateRequest, MAX_IMAGES};
use tintype_domain::stored_reference::StoredReference;
use tintype_engine::{RenderSettings, Setting};
use tintype_store::{Attachment, Board, Call, Cancellation, Origin, StoreError, Submission, TaskRecord};

mod masks;
pub(crate) mod presets;
pub(super) mod snippets;
pub(crate) mod uploads;

/// The ratios that most people use, with the names of the texts that say what for.
const USES: [(&str, &str); 4] =
    [("1:1", "shape-square"), ("9:16", "shape-story"), ("16:9", "shape-wide"), ("2:3", "shape-poster")];
/// The names of the texts with example prompts.
const EXAMPLES: [&str; 4] = ["example-1", "example-2", "example-3", "example-4"];

struct Shape {
    name: &'static str,
    /// The key of the text about its use, if it is one of the few shapes that most people use.
    usage: Option<&'static str>,
    /// Its size within a square of 24.
    width: u32,
    height: u32,
    chosen: bool,
}

#[derive(Template)]
#[template(path = "create.html")]
struct CreatePage<'a> {
    frame: Frame<'a>,
    cards: Vec<Card<'a>>,
    older: Option<Id>,
    shapes: Vec<Shape>,
    filled: FormValues,
    /// The message on why a form was refused.
    refusal: Option<String>,
    chips: Vec<Chip>,
    presets: Vec<PresetOption>,
    settings: Vec<SettingField>,
    boards: Vec<Board>,
    cost: i64,
    most: u8,
}

#[derive(Template)]
#[template(path = "cards.html")]
struct OlderCards<'a> {
    t: &'static super::Texts,
    cards: Vec<Card<'a>>,
    older: Option<Id>,
}

impl CreatePage<'_> {
    /// Whether the selected shape isn't one of the common ones.
    fn is_other_shape(&self) -> bool {
        self.shapes.iter().any(|shape| shape.chosen && shape.usage.is_none())
    }

    fn examples(&self) -> [String; 4] {
        EXAMPLES.map(|name| self.frame.t.get(name))
    }

    fn preset(&self) -> Option<&PresetOption> {
        self.presets.iter().find(|preset| preset.chosen)
    }

    fn paints(&self) -> bool {
        self.presets.iter().any(|preset| preset.paints)
    }

    /// The first reference, which the mask is for.
    fn masked(&self) -> &str {
        if self.filled.mask.is_empty() { "" } else { lines(&self.filled.references).next().unwrap_or_default() }
    }

    /// The pattern after which the script adds references.
    fn blank(&self) -> Chip {
        Chip::new("")
    }
}

/// The name of the text that says what an often used ratio is for.
fn usage(ratio: AspectRatio) -> Option<&'static str> {
    USES.iter().find(|(name, _)| *name == ratio.as_str()).map(|(_, text)| *text)
}

#[derive(Debug, Clone, Default)]
struct FormValues {
    prompt: String,
    shape: AspectRatio,
    n: u8,
    references: String,
    /// The painted mask of the first reference; empty for none.
    mask: String,
    /// The name of a preset; empty for the default one.
    preset: String,
    settings: RenderSettings,
    /// The board that the pictures go to; empty for none.
    board: String,
}

impl FormValues {
    /// The form as it was sent.
    fn of(fields: &Fields) -> Self {
        let text = |name| fields.text(name).to_owned();
        Self {
            prompt: text("prompt"),
            shape: fields.text("shape").parse().unwrap_or_default(),
            n: fields.text("n").parse().unwrap_or(0_u8).clamp(1, MAX_IMAGES),
            references: text("references"),
            mask: text("mask"),
            preset: text("preset"),
            settings: settings::read(fields).unwrap_or_default(),
            board: text("board"),
        }
    }
}

/// The first page. `from` fills in the form from an earlier task: completely, or only the part named by `take`; with
/// `seed` the images would be the same. `reference` adds a picture of the account, `prompt` sets the prompt, and
/// `board` selects a board.
#[derive(Debug, Deserialize)]
pub struct CreateQuery {
    prompt: Option<String>,
    from: Option<String>,
    take: Option<String>,
    seed: Option<String>,
    reference: Option<String>,
    board: Option<String>,
}

/// What the script shows of a task: its tile, which can be chosen in the gallery, or its details.
#[derive(Debug, Deserialize)]
pub struct PictureQuery {
    tile: Option<String>,
    gallery: Option<String>,
}

/// The first page.
pub async fn create(visitor: Visitor, Query(from): Query<CreateQuery>) -> PageResult {
    let mut filled = FormValues { n: 1, ..FormValues::default() };
    if let Some(id) = from.from.as_deref().and_then(|id| id.parse().ok())
        && let Some(record) = own(&visitor, id).await?
    {
        let GenerateRequest { prompt, aspect_ratio, n, reference_images, settings, .. } = record.request.clone();
        let takes = |part: &str| from.take.as_deref().is_none_or(|taken| taken == part);
        if takes("prompt") {
            filled.prompt = prompt;
        }
        if takes("shape") {
            filled.shape = aspect_ratio;
        }
        if takes("references") {
            filled.references = reference_images.join("\n");
            filled.mask = settings.mask.clone().unwrap_or_default();
        }
        if from.take.is_none() {
            filled.n = n;
            let presets = &visitor.studio.shared.presets;
            (filled.preset, filled.settings) = settings::to_repeat(presets, &settings);
            let takes_seed = presets.of_form(&filled.preset).is_some_and(|it| it.callers.contains_key(&Setting::Seed));
            let wants_same = from.seed.is_some() && takes_seed;
            filled.settings.seed = record.request.seeds(id).next().filter(|_| wants_same);
        }
    }
    if let Some(prompt) = from.prompt {
        filled.prompt = prompt;
    }
    if let Some(reference) = from.reference.as_deref().and_then(StoredReference::parse) {
        filled.references = reference.to_string();
        filled.mask.clear();
    }
    filled.board = from.board.unwrap_or_default();
    page(&visitor, filled, None).await
}

async fn page(visitor: &Visitor, filled: FormValues, refusal: Option<String>) -> PageResult {
    let (cards, older) = latest(visitor, None).await?;
    let is_suspended = visitor.session.person.suspension.is_some();
    let refusal = refusal.or_else(|| is_suspended.then(|| visitor.texts.get("suspended")));
    let shape = |ratio: AspectRatio| {
        let (width, height) = ratio.size();
        let longest = width.max(height);
        Shape {
            name: ratio.as_str(),
            usage: usage(ratio),
            width: 24 * width / longest,
            height: 24 * height / longest,
            chosen: ratio == filled.shape,
        }
    };
    let presets = &visitor.studio.shared.presets;
    // Viewers have no form.
    let (engines, boards) = match visitor.can_create() {
        true => (visitor.studio.shared.store.engines().await?, boards::seen(visitor).await?),
        false => Default::default(),
    };
    let page = CreatePage {
        frame: Frame::with_queue("create", visitor).await?,
        cards,
        older,
        shapes: AspectRatio::ALL.into_iter().map(shape).collect(),
        cost: CREDITS_PER_IMAGE,
        most: MAX_IMAGES,
        chips: lines(&filled.references).map(Chip::new).collect(),
        presets: settings::options(presets, &engines, &filled.preset),
        settings: settings::fields(presets, &filled.settings),
        boards,
        filled,
        refusal,
    };
    html(&page)
}

/// Older pictures, for the end of a page; without a cursor the newest ones, for a page that has missed some.
pub async fn older(visitor: Visitor, Query(cursor): Query<Cursor>) -> PageResult {
    let (cards, older) = latest(&visitor, cursor.before()?).await?;
    html(&OlderCards { t: visitor.texts, cards, older })
}

async fn own(visitor: &Visitor, id: Id) -> Result<Option<TaskRecord>, StoreError> {
    visitor.studio.shared.store.find_record(visitor.account_id(), Surface::Web, id).await
}

/// One task: a page, or its tile or its details for the script.
pub async fn picture(
    visitor: Visitor,
    Path(id): Path<String>,
    Query(shown): Query<PictureQuery>,
    headers: HeaderMap,
) -> PageResult {
    let id = id.parse()?;
    let Some(record) = own(&visitor, id).await? else {
        let is_in_bin = bin::holds(&visitor, id).await?;
        return Err(if is_in_bin { PageError::in_bin() } else { PageError::not_found() });
    };
    let mut card = card(&visitor, record).await?;
    if is_from_script(&headers) && shown.tile.is_some() {
        card.selects = shown.gallery.is_some() && visitor.can_create();
        return fragment(&visitor, &card.tile()).await;
    }
    let mut request = card.request.clone();
    request.reference_images.retain(|reference| StoredReference::parse(reference).is_none());
    let has_own = request.reference_images.len() < card.request.reference_images.len();
    let snippets = Snippets::new(&base(&visitor, &headers), &request);
    let one = TaskDetails { t: visitor.texts, card, snippets, boards: boards::seen(&visitor).await?, has_own };
    if is_from_script(&headers) {
        return fragment(&visitor, &one).await;
    }
    let account = visitor.account_id();
    let [newer, older] = visitor.studio.shared.store.neighbours(account, id).await?;
    html(&PicturePage { frame: Frame::with_queue("picture", &visitor).await?, one, newer, older })
}

/// The address of this server, as programs and other browsers reach it.
pub(super) fn base(visitor: &Visitor, headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let host = visitor.studio.settings.public_host.as_deref().unwrap_or(host);
    format!("{}://{host}", if visitor.context.https { "https" } else { "http" })
}

/// Charges and queues a task, on the rules of the API.
pub async fn submit(State(studio): State<Arc<Studio>>, request: Request) -> PageResult {
    let (Form { visitor, fields, headers }, refused) = uploads::form(&studio, request).await?;
    let arrived = studio.shared.clock.elapsed();
    visitor.require(Role::Member)?;
    let call = call_of(&fields);
    // Before anything that may refuse the form: the task is charged already. Its answer may have been lost before the
    // task came to its board.
    if let Some(task) = made_before(&visitor, call).await? {
        return created(&visitor, task, fields.text("board").parse().ok(), &headers).await;
    }
    let mut filled = FormValues::of(&fields);
    let barred = submit_refusal(&visitor).await?;
    let (wait, read) = match (barred, refused) {
        (Some(barred), _) => (barred.wait, Err(barred.message)),
        (None, Some(text)) => (None, Err(visitor.texts.get(text))),
        (None, None) => (None, read(&visitor, &fields, &mut filled).await?),
    };
    let refusal = match read {
        Err(message) => message,
        Ok(FormRequest { request, engine, board }) => {
            let (account, cost) = (visitor.account_id(), request.cost());
            let origin = Origin { person_id: Some(visitor.person_id()), call, engine, ..Origin::default() };
            match studio.tasks.submit(visitor.right(), account, origin, Surface::Web, request, arrived).await {
                Ok(Submission::Accepted(task)) => return created(&visitor, task.id, board, &headers).await,
                // Another copy of the form came first.
                Ok(Submission::Repeated) => match made_before(&visitor, call).await? {
                    Some(task) => return created(&visitor, task, board, &headers).await,
                    None => visitor.texts.get("unknown-outcome"),
                },
                Ok(refused) => refusal_of(&visitor, &refused, cost),
                Err(StoreError::Unknown(cause)) => {
                    tracing::error!(%cause, "it is unknown whether a task of the studio was accepted");
                    visitor.texts.get("unknown-outcome")
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    refuse(&visitor, &headers, filled, refusal, wait).await
}

/// The call of a form that the script has named, so that the same fields with the same name make one task.
fn call_of(fields: &Fields) -> Option<Call> {
    fields.get("once").filter(|name| !name.is_empty())?;
    let fields: BTreeMap<_, _> = fields.names().map(|name| (name, fields.text(name))).collect();
    let fields = serde_json::to_vec(&fields).expect("texts are always JSON");
    let digest = Sha256::new().chain_update(b"tintype form ").chain_update(fields).finalize().into();
    Some(Call { digest, idempotency: Some(digest), ..Call::default() })
}

/// Puts a charged task on its board, and answers.
async fn created(visitor: &Visitor, task: Id, board: Option<Id>, headers: &HeaderMap) -> PageResult {
    if let Some(board) = board {
        put(visitor, task, board).await;
    }
    visitor.studio.live.changed(visitor.account_id());
    accepted(visitor, task, headers).await
}

async fn made_before(visitor: &Visitor, call: Option<Call>) -> Result<Option<Id>, StoreError> {
    let Some(call) = call else { return Ok(None) };
    let found = visitor.studio.tasks.attach(visitor.right(), visitor.person_id(), call).await?;
    Ok(if let Attachment::Task(id) = found { Some(id) } else { None })
}

struct FormRequest {
    request: GenerateRequest,
    /// The engine that the task needs; `None` for any.
    engine: Option<String>,
    board: Option<Id>,
}

/// Reads a form, or says why it is refused. A mask that does not fit any more leaves `filled`, so that the same form can be
/// sent without it.
async fn read(
    visitor: &Visitor,
    fields: &Fields,
    filled: &mut FormValues,
) -> Result<Result<FormRequest, String>, PageError> {
    let (studio, t) = (&visitor.studio, visitor.texts);
    let body = json!({
        "prompt": fields.text("prompt"),
        "aspect_ratio": fields.text("shape"),
        "n": fields.text("n").parse().unwrap_or(0_u8),
        "reference_images": lines(fields.text("references")).collect::<Vec<_>>(),
    });
    // The parser of the API, so that both surfaces have the same rules.
    let parsed = GenerateRequest::parse_of_person(body.to_string().as_bytes(), &studio.settings.reference_ports)
        .map_err(|invalid| failures::refusal(t, &invalid))
        .and_then(|request| Ok((request, settings::choose(visitor, fields)?)));
    let (request, Chosen { mut engine, mut settings, .. }) = match parsed {
        Ok(parsed) => parsed,
        Err(message) => return Ok(Err(message)),
    };
    match masks::read(visitor, fields, engine.clone()).await {
        Ok(None) => {}
        Ok(Some((mask, its_engine))) => (settings.mask, engine) = (Some(mask), its_engine),
        Err(MaskFault::Store(error)) => return Err(error.into()),
        Err(fault) => {
            filled.mask.clear();
            return Ok(Err(match fault {
                MaskFault::Gone => t.get("mask-gone"),
                MaskFault::NoReference => t.count("no-reference", 1_u32),
                MaskFault::NotTaken => t.get("mask-not-taken"),
                MaskFault::NoReferences => t.get("references-not-taken"),
                MaskFault::Unfit | MaskFault::Store(_) => t.get("mask-unfit"),
            }));
        }
    }
    let person = &visitor.session.person;
    let board = fields.get("board").filter(|board| !board.is_empty()).map(|board| board.parse().ok());
    if let Some(board) = board {
        let is_seen = match board {
            Some(board) => studio.shared.store.sees_board(person.account_id, person.id, board).await?,
            None => false,
        };
        if !is_seen {
            return Ok(Err(t.get("board-gone")));
        }
    }
    let request_id = Some(visitor.context.request_id.clone());
    Ok(Ok(FormRequest { request: GenerateRequest { request_id, settings, ..request }, engine, board: board.flatten() }))
}

/// Puts a new task on a board, even if the caller hangs up. The task is already charged, so it isn't an error if the
/// board has been removed meanwhile.
async fn put(visitor: &Visitor, task: Id, board: Id) {
    let (studio, store) = (visitor.studio.clone(), visitor.store());
    let (account, person) = (visitor.account_id(), visitor.person_id());
    let putting = async move {
        match store.put_on_board(account, person, board, &[task], true).await {
            Ok(true) => studio.live.announce(account, Marks { what: Mark::Boards, person, tasks: Vec::new() }),
            Ok(false) => tracing::info!(%task, %board, "a board was removed before a new task came to it"),
            Err(error) => {
                tracing::warn!(%task, %board, %error, "could not put a new task on its board: add it in the gallery");
            }
        }
    };
    drop(tokio::spawn(putting.in_current_span()).await);
}

/// The page with the form as it was filled in and a message; the message alone for the script. After `wait` seconds the
/// person can send the form again.
async fn refuse(
    visitor: &Visitor,
    headers: &HeaderMap,
    filled: FormValues,
    refusal: String,
    wait: Option<u64>,
) -> PageResult {
    let mut response = if is_from_script(headers) {
        secured(Response::new(Body::from(refusal)))
    } else {
        page(visitor, filled, Some(refusal)).await?
    };
    *response.status_mut() = StatusCode::UNPROCESSABLE_ENTITY;
    if let Some(seconds) = wait {
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(super::error::HasOwnBody);
    Ok(response)
}

struct SubmitRefusal {
    message: String,
    /// Seconds until the rate limit lets the person create one.
    wait: Option<u64>,
}

/// Whether the person is suspended, or creates too many tasks per minute. Counts one task.
async fn submit_refusal(visitor: &Visitor) -> Result<Option<SubmitRefusal>, PageError> {
    let (studio, t) = (&visitor.studio, visitor.texts);
    // The session was read before the body, which may have taken a minute.
    let found = studio.shared.store.find_person(visitor.person_id().as_str()).await?;
    let person = found.ok_or_else(PageError::signed_out)?.person;
    if person.suspension.is_some() {
        return Ok(Some(SubmitRefusal { message: t.get("suspended"), wait: None }));
    }
    let Some(counted) = studio.limits.count_one(person.id, RateLimit::Submit).await else { return Ok(None) };
    let metrics = &studio.shared.metrics;
    if counted.fallback {
        metrics.rate_limit_fallbacks.inc();
    }
    let Some(seconds) = counted.retry_after else { return Ok(None) };
    metrics.rate_limited.inc();
    Ok(Some(SubmitRefusal { message: t.count("too-fast", seconds), wait: Some(seconds) }))
}

fn refusal_of(visitor: &Visitor, refused: &Submission, cost: i64) -> String {
    let t = visitor.texts;
    match refused {
        Submission::NotCharged(NotCharged::TooManyUnfinished) => t.get("too-many"),
        Submission::NotCharged(NotCharged::InsufficientCredits { .. } | NotCharged::OverBudget { .. }) => {
            t.word("no-credits", &cost.to_string())
        }
        Submission::TooManyFailed { wait } => t.count("too-many-failed", wait.as_secs() + 1),
        Submission::Overloaded { excess } => t.count("overloaded", excess.as_secs().max(1)),
        Submission::NoReference { index } => t.count("no-reference", *index as u64 + 1),
        Submission::NotStarted | Submission::Repeated | Submission::Accepted(_) => t.get("error-internal"),
    }
}

/// A new task's tile for the script, and the balance; otherwise redirects to the page.
async fn accepted(visitor: &Visitor, id: Id, headers: &HeaderMap) -> PageResult {
    if !is_from_script(headers) {
        return Ok(redirect(HOME));
    }
    let record = own(visitor, id).await?.ok_or_else(PageError::not_found)?;
    fragment(visitor, &card(visitor, record).await?.tile()).await
}

/// A part of a page for the script, and the balance, which the end of a task may have changed.
async fn fragment(visitor: &Visitor, part: &impl Template) -> PageResult {
    let mut response = html(part)?;
    let credits = visitor.account().await?.map_or(0, |account| account.credits);
    let words = visitor.texts.count("credits", credits);
    if let Ok(value) = HeaderValue::try_from(words) {
        response.headers_mut().insert("x-credits", value);
    }
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("x-requested-with"));
    Ok(response)
}

/// Cancels a task that waits or is rendered, and refunds it.
pub async fn cancel(State(studio): State<Arc<Studio>>, Path(id): Path<String>, form: Form) -> PageResult {
    let visitor = &form.visitor;
    visitor.check_can_change()?;
    let id: Id = id.parse()?;
    let (account, author) = (visitor.account_id(), visitor.author_filter());
    let outcome = studio.shared.endings.cancel(visitor.right(), account, Surface::Web, id, author).await?;
    if outcome == Cancellation::OverShare {
        return Err(PageError::new(StatusCode::CONFLICT, "stop-over-share"));
    }
    let record = own(visitor, id).await?.ok_or_else(PageError::not_found)?;
    // One that has ended meanwhile is shown as it ended.
    if !record.task.status.is_terminal() {
        return Err(PageError::forbidden("stop-refused"));
    }
    if is_from_script(&form.headers) {
        return fragment(visitor, &card(visitor, record).await?.tile()).await;
    }
    Ok(redirect(HOME))
}
