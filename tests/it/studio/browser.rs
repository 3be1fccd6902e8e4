//! The studio in a real browser.

use std::ops::{Deref, DerefMut};

use tempfile::TempDir;

use crate::rigs::binary::{Server, json, run};
use crate::rigs::browser::Browser;

pub(super) const PROMPT: &str = "document.querySelector('#prompt')";

/// Somebody in front of the studio of a running server.
pub(super) struct Person {
    pub(super) data: TempDir,
    pub(super) server: Server,
    pub(super) browser: Browser,
}

impl Deref for Person {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.browser
    }
}

impl DerefMut for Person {
    fn deref_mut(&mut self) -> &mut Browser {
        &mut self.browser
    }
}

impl Person {
    /// Signs in by a link, as the first start shows one.
    pub(super) fn sign_in(flags: &[&str]) -> Self {
        let data = TempDir::new().expect("a directory");
        let server = Server::start(data.path(), flags);
        let url = server.url();
        Self::sign_in_at(data, server, Browser::start(), &url)
    }

    pub(super) fn sign_in_at(data: TempDir, server: Server, mut browser: Browser, url: &str) -> Self {
        let link = json(data.path(), &["account", "link", "default", "--public-url", url]);
        browser.open(link["url"].as_str().expect("a URL"));
        browser.follow("document.querySelector('form button')");
        Self { data, server, browser }
    }

    /// Signs in by another link, after a session has ended.
    pub(super) fn signs_in_again(self) -> Self {
        let url = self.server.url();
        Self::sign_in_at(self.data, self.server, self.browser, &url)
    }

    pub(super) fn create(&mut self, prompt: &str) {
        self.paste(PROMPT, prompt);
        self.click("document.querySelector('.make')");
    }

    /// Creates a picture, and waits until the first tile shows it.
    pub(super) fn finish(&mut self, prompt: &str) {
        self.create(prompt);
        self.until(&first("completed"));
    }

    /// Chooses something in the menu of the first tile.
    pub(super) fn choose(&mut self, item: &str) {
        self.click("document.querySelector('.tile .more')");
        self.click(&format!("document.querySelector('[data-menu]:popover-open {item}')"));
    }

    pub(super) fn open(&mut self, path: &str) {
        let url = format!("{}{path}", self.server.url());
        self.browser.open(&url);
    }

    /// Checks that the pages asked this server alone and broke no rule of their policy.
    pub(super) fn leave(self) {
        let own = self.server.url();
        // A blob is a file in the memory of the browser; pictures of its own controls are data.
        let is_own =
            |url: &&String| url.starts_with("data:") || url.strip_prefix("blob:").unwrap_or(url).starts_with(&own);
        let elsewhere: Vec<_> = self.requests.iter().filter(|url| !is_own(url)).collect();
        assert!(elsewhere.is_empty(), "{elsewhere:?}");
        assert!(self.errors.is_empty(), "{:#?}", self.errors);
        self.server.stop();
    }
}

/// The first tile, in this state.
pub(super) fn first(state: &str) -> String {
    format!("document.querySelector('.tile')?.dataset.state === '{state}'")
}

#[test]
fn a_person_creates_a_picture_and_sees_it_appear() {
    let mut person = Person::sign_in(&[]);
    person.click("document.querySelector('input[value=\"16:9\"]')");
    person.click("document.querySelector('input[name=n][value=\"2\"]')");
    assert_eq!(person.evaluate("document.querySelector('[data-price]').textContent"), "4 credits");
    person.create("A sailing ship on a mountain lake, impressionist [[delay 1s]]");
    person.until("document.querySelector('.tile progress')");
    person.until(&first("completed"));
    person
        .until("[...document.querySelectorAll('.tile img')].filter(image => image.naturalWidth === 640).length === 2");
    assert_eq!(person.evaluate("document.querySelector('[data-credits]').textContent"), "996 credits");
    assert_eq!(person.evaluate("location.pathname"), "/studio");
    person.create("A red fox in the snow at dawn [[fail]]");
    person.until(&first("failed"));
    // Its credits are back, and a screen reader tells of it.
    person.until("document.querySelector('[data-credits]').textContent === '996 credits'");
    person.until("document.querySelector('[data-news]').textContent.startsWith('Failed: A red fox')");
    person.click("document.querySelectorAll('.tile')[1].querySelector('.open')");
    person.until("document.querySelector('.viewer .about dl')");
    // Whole, and not only its thumbnail.
    person.until("document.querySelector('.viewer [data-large]').naturalWidth > 640");
    // The viewer has the address of the picture's page.
    let address = person.evaluate("location.pathname");
    person.open(address.as_str().expect("a path"));
    person.until("document.querySelector('.details dl')");
    person.leave();
}

#[test]
fn again_and_remix_take_over_the_words() {
    let mut person = Person::sign_in(&[]);
    person.finish("A lighthouse in a storm");
    person.choose("[data-again]");
    person.until("document.querySelectorAll('.tile[data-state=completed]').length === 2");
    let urls = "[...document.querySelectorAll('.tile img')].map(image => image.src)";
    assert_eq!(person.evaluate(&format!("new Set({urls}).size")), 2);
    person.evaluate("document.querySelector('#prompt').value = 'Other words'");
    person.choose("[data-remix=shape]");
    person.until("document.activeElement.id === 'prompt'");
    assert_eq!(person.evaluate("document.querySelector('#prompt').value"), "Other words");
    person.choose("[data-remix=prompt]");
    person.until("document.querySelector('#prompt').value === 'A lighthouse in a storm'");
    person.leave();
}

#[test]
fn a_refusal_shows_beside_the_form_and_keeps_the_words() {
    let mut person = Person::sign_in(&[]);
    person.click("document.querySelector('.references summary')");
    person.paste("document.querySelector('#references')", "http://a.example/b.png");
    person.create("A boat");
    person.until("document.querySelector('[data-refusal]').textContent.includes('https')");
    assert_eq!(person.evaluate("document.querySelector('#prompt').value"), "A boat");
    assert_eq!(person.evaluate("document.querySelectorAll('.tile').length"), 0);
    // The browser itself reports the status of the refused form.
    person.errors.retain(|error| !error.contains("422"));
    person.leave();
}

#[test]
fn every_page_shows_its_content() {
    let mut person = Person::sign_in(&[]);
    person.open("/studio/activity");
    person.until("document.body.innerText.includes('No API tasks yet')");
    let (url, data) = (person.server.url(), person.data.path().to_owned());
    let key = person.server.first_key().expect("a first start");
    let out = tempfile::tempdir().expect("a directory");
    for (prompt, ends) in [("A paper boat", true), ("A kite in the wind [[fail]]", false), ("A windmill", true)] {
        let flags = ["generate", prompt, "--quiet", "--url", &url, "--key", &key, "--out"];
        let output = run(&data, flags.into_iter().map(std::ffi::OsStr::new).chain([out.path().as_os_str()]));
        assert_eq!(output.status.success(), ends, "{prompt}: {output:?}");
    }
    for name in ["harbour-design", "north-wind-press"] {
        json(&data, &["account", "create", name, "--credits", "250"]);
    }
    json(&data, &["credits", "grant", "harbour-design", "500", "--note", "Spring campaign"]);
    person.open("/studio");
    person.finish("A lighthouse in a storm");
    for (path, shown) in [
        ("/studio/activity", "A windmill"),
        ("/studio/docs", "Create a task"),
        ("/studio/keys", "first key"),
        ("/studio/credits", "Opening balance"),
        ("/studio/credits", "994 credits"),
        ("/studio/usage", "Usage"),
        ("/studio/sessions", "This browser"),
        ("/studio/people", "default"),
        ("/studio/operator", "sketch"),
        ("/studio/operator/accounts", "north-wind-press"),
        ("/studio/operator/strikes", "strikes"),
        ("/studio/operator/audit", "Spring campaign"),
    ] {
        person.open(path);
        let text = person.evaluate("document.body.innerText");
        assert!(text.as_str().expect("text").contains(shown), "{path}: {text}");
    }
    person.open("/studio/keys");
    person.paste("document.querySelector('input[name=name]')", "laptop");
    person.follow("document.querySelector('form.inline button')");
    person.until("document.querySelector('.secret')?.textContent.startsWith('tt_')");
    person.click("document.querySelector('.person summary')");
    person.follow("document.querySelector('.person button')");
    assert_eq!(person.evaluate("location.pathname"), "/studio/sign-in");
    person.leave();
}

#[test]
fn times_are_written_in_the_readers_own_kind_of_the_language() {
    let mut person = Person::sign_in(&[]);
    person.run_first("Object.defineProperty(navigator, 'languages', { value: ['fr', 'en-GB', 'en-US'] })");
    person.open("/studio/sessions");
    let written = |language: &str| {
        format!(
            "(() => {{
                const time = document.querySelector('main time');
                const format = new Intl.DateTimeFormat('{language}', {{ dateStyle: 'medium', timeStyle: 'short' }});
                return [time.textContent, format.format(new Date(time.dateTime))];
            }})()"
        )
    };
    let british = person.evaluate(&written("en-GB"));
    assert_eq!(british[0], british[1]);
    assert_ne!(british[0], person.evaluate(&written("en-US"))[1]);
    person.leave();
}
