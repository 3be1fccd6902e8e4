//! A task on a page: its words and its pictures.

use askama::Template;
use tintype_engine::{Setting, Stage};

use super::create::snippets::Snippets;
use super::error::PageError;
use super::failures;
use super::live::TaskProgress;
use super::page::Frame;
use super::references::{self, Chip};
use super::session::Visitor;
use super::settings;
use super::texts::Texts;
use crate::files::FilesError;
use crate::service::presets::Presets;
use crate::service::thumbnails;
use tintype_config::FileLinks;
use tintype_domain::model::{FailureCause, Id, Status, Surface, Task, TaskFailure};
use tintype_domain::person::Person;
use tintype_domain::preset::DEFAULT_PRESET;
use tintype_domain::request::{GenerateRequest, TaskSettings};
use tintype_domain::stored_reference::StoredReference;
use tintype_store::{Board, GalleryFilter, TaskRecord, Unfinished};

pub(super) struct Picture {
    pub(super) url: String,
    pub(super) thumbnail: String,
    /// The size of the thumbnail, in pixels.
    pub(super) width: u32,
    pub(super) height: u32,
    /// Its place in the task, from 1.
    pub(super) number: usize,
    pub(super) reference: String,
}

pub(super) struct Failure {
    /// The key of the text before `text`.
    pub(super) title: &'static str,
    /// Why it failed, and what happened to its credits.
    pub(super) text: String,
}

impl Failure {
    fn new(t: &Texts, failure: &TaskFailure, cost: i64) -> Self {
        let refunded = t.count("refunded", cost);
        if failure.cause == FailureCause::Cancelled {
            return Self { title: "cancelled", text: refunded };
        }
        let mut text = failures::failure(t, failure);
        if !text.ends_with(['.', '!', '?', '…']) {
            text.push('.');
        }
        // The words of an operator may say so themselves.
        if !text.contains("refunded") {
            text.push(' ');
            text.push_str(&refunded);
        }
        Self { title: "failed", text }
    }
}

/// A task as a page shows it.
#[derive(Template)]
#[template(path = "card.html")]
pub(super) struct Card<'a> {
    pub(super) t: &'static Texts,
    pub(super) task: Task,
    pub(super) request: GenerateRequest,
    pub(super) pictures: Vec<Picture>,
    pub(super) failure: Option<Failure>,
    /// The words for the state of an unfinished task.
    pub(super) state: String,
    /// The part of the work that is done, if it is known.
    pub(super) fraction: Option<f32>,
    /// The number of the latest preview, if there is one.
    pub(super) preview: Option<i64>,
    /// Seconds since an unfinished task was created.
    pub(super) elapsed: u64,
    /// Whether no worker holds the unfinished task.
    pub(super) waits: bool,
    /// Whether the person may make pictures.
    pub(super) can_create: bool,
    /// Whether the person can stop and delete other people's tasks.
    pub(super) is_owner: bool,
    pub(super) starred: bool,
    /// Whether the visitor is its author.
    pub(super) is_mine: bool,
    /// The name of its author, if it is someone else than the visitor; empty for someone who has left.
    pub(super) author: Option<String>,
    /// Whether the page has a form for chosen tasks.
    pub(super) selects: bool,
    pub(super) proof: &'a str,
    pub(super) presets: &'a Presets,
}

/// A task in a grid: its pictures, and little else. A page shows up to thousands, so everything else is on the task's
/// page, and in a single menu for all tiles.
#[derive(Template)]
#[template(path = "tile.html")]
pub(super) struct Tile<'a> {
    card: &'a Card<'a>,
}

impl Tile<'_> {
    /// Characters of the prompt that fit over its pictures, and into the kilobyte that a tile may have.
    fn most(&self) -> usize {
        if self.card.pictures.len() > 2 { 60 } else { 100 }
    }

    /// How the task's pictures share its tile: the style sheet has a layout for each number of pictures, next to or
    /// above each other.
    fn layout(&self) -> &'static str {
        let (width, height) = self.card.size();
        let number = match self.card.task.status {
            Status::Completed(_) => self.card.pictures.len(),
            // The place that its pictures will take.
            _ => usize::from(self.card.request.n),
        };
        match (number, width > height) {
            (0 | 1, _) => "",
            (2, false) => " n2",
            (2, true) => " n2 wide",
            (3, false) => " n3",
            (3, true) => " n3 wide",
            (_, _) => " n4",
        }
    }
}

impl<'a> Card<'a> {
    pub(super) fn tile(&self) -> Tile<'_> {
        Tile { card: self }
    }

    /// A task with its present state; `unfinished` are the unfinished tasks of its account.
    async fn new(visitor: &'a Visitor, record: TaskRecord, unfinished: &[Unfinished]) -> Result<Self, FilesError> {
        let TaskRecord { task, request, .. } = record;
        let (width, height) = thumbnails::size(request.aspect_ratio.size());
        let mut card = Self {
            t: visitor.texts,
            pictures: Vec::new(),
            failure: None,
            state: String::new(),
            fraction: None,
            preview: None,
            elapsed: 0,
            waits: false,
            can_create: visitor.can_create(),
            is_owner: visitor.is_owner(),
            starred: false,
            is_mine: false,
            author: None,
            selects: false,
            proof: &visitor.proof,
            presets: &visitor.studio.shared.presets,
            task,
            request,
        };
        match card.task.status.clone() {
            Status::Completed(names) => {
                for (number, name) in (1_u8..).zip(names.iter()) {
                    let url = url(visitor, name).await?;
                    let own = StoredReference::Result { task: card.task.id, number };
                    let (thumbnail, reference) = (references::thumbnail(own), own.to_string());
                    let number = usize::from(number);
                    card.pictures.push(Picture { url, thumbnail, width, height, number, reference });
                }
            }
            Status::Failed(failure) => card.failure = Some(Failure::new(visitor.texts, &failure, card.request.cost())),
            Status::Processing => card.describe(visitor, unfinished).await,
        }
        Ok(card)
    }

    async fn describe(&mut self, visitor: &Visitor, unfinished: &[Unfinished]) {
        let studio = &visitor.studio;
        let elapsed = studio.shared.store.now().as_millis() - self.task.created_at().as_millis();
        self.elapsed = u64::try_from(elapsed / 1_000).unwrap_or(0);
        let Some(unfinished) = unfinished.iter().find(|unfinished| unfinished.task_id == self.task.id) else {
            // It ends at this moment, or its place is unknown.
            self.state = self.t.get("working");
            return;
        };
        let progress = TaskProgress::of(&studio.tasks, unfinished).await;
        self.preview = progress.preview;
        self.waits = progress.waits;
        self.fraction = progress.stage.map(Stage::fraction);
        self.state = progress_text(self.t, &progress);
    }

    pub(super) fn references(&self) -> String {
        self.request.reference_images.join("\n")
    }

    /// The preset, the mask and the settings for a form that makes such pictures again, with new seeds.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let (preset, mut render) = settings::to_repeat(self.presets, &self.request.settings);
        render.seed = None;
        let preset = (!preset.is_empty()).then_some(("preset", preset));
        let mask = self.request.settings.mask.clone().map(|mask| ("mask", mask));
        let field = |setting: Setting| Some((setting.as_str(), settings::value_of(&render, setting)?));
        preset.into_iter().chain(mask).chain(Setting::ALL.into_iter().filter_map(field)).collect()
    }

    pub(super) fn rendered_with(&self) -> Vec<(String, String)> {
        let TaskSettings { preset, render, .. } = &self.request.settings;
        let named = |name: &String| match name.as_str() {
            DEFAULT_PRESET => self.t.get("preset-default"),
            name => name.to_owned(),
        };
        let preset = preset.as_ref().map(|name| (self.t.get("preset"), named(name)));
        // Its seeds stand beside them.
        let others = Setting::ALL.into_iter().filter(|setting| *setting != Setting::Seed);
        let text = |setting: Setting| self.t.of_word("setting", setting.as_str());
        let given = others.filter_map(|setting| Some((text(setting), settings::value_of(render, setting)?)));
        preset.into_iter().chain(given).collect()
    }

    /// Without pictures, only a chosen seed says anything.
    pub(super) fn seeds(&self) -> String {
        if self.failure.is_some() && self.request.settings.render.seed.is_none() {
            return String::new();
        }
        self.request.seeds(self.task.id).map(|seed| seed.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// The references, to look at.
    pub(super) fn chips(&self) -> Vec<Chip> {
        self.request.reference_images.iter().map(|reference| Chip::new(reference)).collect()
    }

    /// Whether the pictures are made from words alone or with references, for the reader.
    pub(super) fn kind(&self) -> &'static str {
        if self.task.image_to_image { "kind-image" } else { "kind-text" }
    }

    /// Whether its account cancelled it, which isn't a failure.
    fn is_cancelled(&self) -> bool {
        matches!(&self.task.status, Status::Failed(failure) if failure.cause == FailureCause::Cancelled)
    }

    pub(super) fn state_name(&self) -> &'static str {
        if self.is_cancelled() { "cancelled" } else { self.task.status.as_str() }
    }

    /// The name of the text of the button that ends the unfinished task, if the person may do that.
    pub(super) fn stop(&self) -> Option<&'static str> {
        let may = self.can_create && (self.is_owner || self.is_mine);
        may.then_some(if self.waits { "cancel" } else { "stop" })
    }

    pub(super) fn deletes(&self) -> bool {
        self.can_create && self.task.status.is_terminal() && (self.is_owner || self.is_mine)
    }

    /// The first letters of up to two words of its author's name, if that is someone else than the visitor.
    pub(super) fn initials(&self) -> Option<String> {
        self.author.as_deref().map(initials)
    }

    /// The name of its author, for the reader.
    pub(super) fn author_name(&self) -> String {
        author_name(self.t, self.author.as_deref().unwrap_or_default())
    }

    /// The size of its pictures, in pixels.
    pub(super) fn size(&self) -> (u32, u32) {
        self.request.aspect_ratio.size()
    }
}

/// The first letters of up to two words of a name, or of the part before the @ of an address, since people of one account
/// often share the other; a question mark without any.
pub(super) fn initials(name: &str) -> String {
    let person = name.split_once('@').map(|(person, _)| person).filter(|person| !person.is_empty());
    let name = person.unwrap_or(name);
    let words = name.split(|letter: char| !letter.is_alphanumeric()).filter_map(|word| word.chars().next());
    let initials: String = words.take(2).flat_map(char::to_uppercase).collect();
    if initials.is_empty() { "?".to_owned() } else { initials }
}

/// The name of an author, for the reader. Someone who has left has none.
pub(super) fn author_name(t: &Texts, name: &str) -> String {
    if name.is_empty() { t.get("usage-former-person") } else { name.to_owned() }
}

/// The name of one of these people; empty for someone who has left.
pub(super) fn name_of(people: &[Person], id: Id) -> String {
    people.iter().find(|person| person.id == id).map(|person| person.name.clone()).unwrap_or_default()
}

pub(super) fn progress_text(t: &Texts, progress: &TaskProgress) -> String {
    let mut words = match (progress.waits, progress.stage) {
        (true, _) if progress.position > 0 => t.count("waiting-place", progress.position),
        (true, _) => t.get("waiting"),
        (false, Some(Stage::Step { done, of })) => t.word("working-steps", &format!("{done}/{of}")),
        (false, _) => t.get("working"),
    };
    if let Some(left) = progress.left {
        words.push_str(", ");
        words.push_str(&t.count("left", left));
    }
    words
}

/// A picture's URL for a page. If this server itself serves the files, the URL has the page's origin, whatever the
/// server's name in the browser.
pub(super) async fn url(visitor: &Visitor, name: &str) -> Result<String, FilesError> {
    match &visitor.studio.settings.file_links {
        FileLinks::Names(_) => Ok(format!("/files/{name}")),
        _ => visitor.studio.links.url(name).await,
    }
}

pub(super) async fn cards(visitor: &Visitor, records: Vec<TaskRecord>) -> Result<Vec<Card<'_>>, PageError> {
    let is_unfinished = |record: &TaskRecord| !record.task.status.is_terminal();
    let unfinished = if records.iter().any(is_unfinished) {
        let account = visitor.account_id();
        // A page without the places of tasks is better than none.
        visitor.studio.shared.store.unfinished(&[account], Surface::Web).await.unwrap_or_default()
    } else {
        Vec::new()
    };
    let shown: Vec<Id> = records.iter().map(|record| record.task.id).collect();
    let starred = visitor.studio.shared.store.starred(visitor.person_id(), &shown).await?;
    let me = visitor.person_id();
    let is_others = |record: &TaskRecord| record.person_id.is_some_and(|author| author != me);
    let people = match records.iter().any(is_others) {
        true => visitor.studio.shared.store.list_people(Some(visitor.account_id())).await?,
        false => Vec::new(),
    };
    let mut cards = Vec::with_capacity(records.len());
    for record in records {
        let is_mine = record.person_id == Some(me);
        let author = record.person_id.filter(|_| !is_mine).map(|id| name_of(&people, id));
        let mut card = Card::new(visitor, record, &unfinished).await?;
        card.starred = starred.contains(&card.task.id);
        (card.is_mine, card.author) = (is_mine, author);
        cards.push(card);
    }
    Ok(cards)
}

const PAGE: u32 = 16;

/// The visitor's own latest tasks, or the account's for a viewer, who cannot create any.
pub(super) async fn latest(visitor: &Visitor, before: Option<Id>) -> Result<(Vec<Card<'_>>, Option<Id>), PageError> {
    latest_of(visitor, visitor.can_create().then_some(visitor.person_id()), before).await
}

/// The newest tasks of a person or of the account before one, and where the next page begins.
pub(super) async fn latest_of(
    visitor: &Visitor,
    person: Option<Id>,
    before: Option<Id>,
) -> Result<(Vec<Card<'_>>, Option<Id>), PageError> {
    let (store, account) = (&visitor.studio.shared.store, visitor.account_id());
    let filter = GalleryFilter { person, ..GalleryFilter::default() };
    let page = store.gallery(account, &filter, before, PAGE).await?;
    Ok((cards(visitor, page.records).await?, page.older))
}

pub(super) async fn card(visitor: &Visitor, record: TaskRecord) -> Result<Card<'_>, PageError> {
    cards(visitor, vec![record]).await?.pop().ok_or_else(PageError::not_found)
}

/// One task with its details.
#[derive(Template)]
#[template(path = "one.html")]
pub(super) struct TaskDetails<'a> {
    pub(super) t: &'static Texts,
    pub(super) card: Card<'a>,
    pub(super) snippets: Snippets,
    /// The boards that it can be put on.
    pub(super) boards: Vec<Board>,
    /// Whether it has references that programs cannot use: pictures of the account.
    pub(super) has_own: bool,
}

#[derive(Template)]
#[template(path = "picture.html")]
pub(super) struct PicturePage<'a> {
    pub(super) frame: Frame<'a>,
    pub(super) one: TaskDetails<'a>,
    /// The pictures before and after it in the gallery.
    pub(super) newer: Option<Id>,
    pub(super) older: Option<Id>,
}
