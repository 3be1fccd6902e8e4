//! Pages of the studio under axe-core, which knows the rules of WCAG, and the prompt in view while somebody scrolls.

use crate::rigs::binary::{json, run};
use crate::rigs::oidc::Provider;
use crate::rigs::packages::npm;

use super::browser::{Person, first};

const SIZES: [(u32, u32); 2] = [(390, 844), (1_280, 900)];

/// Findings of the page that is open: rule, how bad, and where. In the dark, by the rules that look at colours.
const FINDINGS: &str = "axe.run(document, {
    resultTypes: ['violations'],
    ...(matchMedia('(prefers-color-scheme: dark)').matches && { runOnly: ['color-contrast', 'link-in-text-block'] }),
}).then(({ violations }) => violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, impact, nodes }) => nodes.map(({ target, failureSummary }) =>
        `${id} (${impact}) at ${target.join(' ')}: ${failureSummary.replaceAll('\\n', ' ')}`)))";

/// Examines pages and collects findings.
struct Examiner {
    axe: String,
    found: Vec<String>,
}

impl Examiner {
    fn new() -> Self {
        let axe = npm().join("node_modules/axe-core/axe.min.js");
        Self { axe: std::fs::read_to_string(axe).expect("axe-core"), found: Vec::new() }
    }

    /// Examines the page that is open, in light and dark, on a phone and on a desk.
    fn examine(&mut self, person: &mut Person, page: &str) {
        // The last expression of the script would be an object that refers to itself.
        person.evaluate(&format!("{}; 0", self.axe));
        for dark in [false, true] {
            person.prefer_dark(dark);
            for (width, height) in SIZES {
                person.resize(width, height);
                let found = person.evaluate(FINDINGS);
                let look = if dark { "dark" } else { "light" };
                for finding in found.as_array().expect("a list") {
                    self.found.push(format!("{page}, {width}, {look}: {}", finding.as_str().expect("text")));
                }
            }
        }
        person.prefer_dark(false);
    }

    fn open(&mut self, person: &mut Person, path: &str) {
        person.open(path);
        self.examine(person, path);
    }

    #[track_caller]
    fn finish(self) {
        assert!(self.found.is_empty(), "{}", self.found.join("\n"));
    }
}

#[test]
fn pages_with_pictures_pass_axe() {
    let (mut person, mut examiner) = (Person::sign_in(&[]), Examiner::new());
    examiner.examine(&mut person, "nothing yet");
    person.finish("A lighthouse in a storm");
    person.create("A red fox in the snow [[fail]]");
    person.until(&first("failed"));
    person.create("A boat that takes its time [[hang]]");
    person.until("document.querySelector('.tile progress')");
    examiner.examine(&mut person, "three tasks");
    person.click("document.querySelector('.references summary')");
    person.click("document.querySelector('[data-state=completed] .more')");
    person.until("document.querySelector('[data-menu]:popover-open')");
    examiner.examine(&mut person, "menu and references open");
    person.press("Escape");
    person.click("document.querySelector('[data-state=completed] .open')");
    person.until("document.querySelector('.viewer .about dl')");
    examiner.examine(&mut person, "the viewer");
    person.open("/studio");
    let task = person.evaluate("document.querySelector('[data-state=completed]').id.slice('task-'.length)");
    let task = task.as_str().expect("an id");
    let picture = format!("result:{task}/1");
    let compare = &format!("/studio/compare?a={picture}");
    examiner.open(&mut person, &format!("/studio/tasks/{task}"));
    examiner.open(&mut person, &format!("/studio?from={task}"));
    examiner.open(&mut person, compare);
    examiner.open(&mut person, &format!("{compare}&b={picture}"));
    examiner.open(&mut person, "/studio/uploads");
    examiner.finish();
}

#[test]
fn the_gallery_passes_axe() {
    let (mut person, mut examiner) = (Person::sign_in(&[]), Examiner::new());
    examiner.open(&mut person, "/studio/gallery");
    person.open("/studio");
    for (prompt, state) in [("A lighthouse in a storm", "completed"), ("A red fox [[fail]]", "failed")] {
        person.create(prompt);
        person.until(&first(state));
    }
    person.open("/studio/gallery");
    person.click("document.querySelector('[data-pick]')");
    person.click("document.querySelector('.star')");
    person.until("document.querySelector('.star[aria-pressed=true]')");
    // Without the menus of the person and of the cards, which cover what is below them.
    person.evaluate("document.querySelectorAll('main details:not(.drop)').forEach(part => { part.open = true; })");
    examiner.examine(&mut person, "a chosen task, and every part open");
    person.open("/studio/gallery");
    person.choose("[data-erase]");
    person.until("document.querySelector('.undo')");
    examiner.examine(&mut person, "a deleted task");
    examiner.open(&mut person, "/studio/gallery?q=lighthouse&starred=1&state=completed");
    examiner.open(&mut person, "/studio/gallery?q=nothing");
    examiner.finish();
    person.leave();
}

#[test]
fn pages_of_accounts_and_operators_pass_axe() {
    let (mut person, mut examiner) = (Person::sign_in(&[]), Examiner::new());
    person.open("/studio/keys");
    person.paste("document.querySelector('input[name=name]')", "laptop");
    person.follow("document.querySelector('form.inline button')");
    examiner.examine(&mut person, "a new key");
    person.open("/studio/webhooks");
    person.paste("document.querySelector('input[name=url]')", "https://10.0.0.1/hooks");
    person.follow("document.querySelector('form.inline button')");
    examiner.examine(&mut person, "a new endpoint");
    let data = person.data.path();
    let endpoints = json(data, &["webhook", "list"]);
    let endpoint = endpoints[0]["id"].as_str().expect("an id");
    assert!(!run(data, ["webhook", "test", endpoint]).status.success(), "nobody is there");
    json(data, &["person", "add", "ada@example.com", "--account", "default", "--role", "viewer"]);
    let account = json(data, &["account", "create", "second", "--credits", "40"]);
    json(data, &["key", "create", "--account", "second", "--name", "spare"]);
    for path in [
        "/studio/activity",
        "/studio/docs",
        "/studio/keys",
        "/studio/webhooks",
        &format!("/studio/webhooks/{endpoint}"),
        "/studio/credits",
        "/studio/usage",
        "/studio/usage?by=day",
        "/studio/usage?by=day&days=365",
        "/studio/sessions",
        "/studio/people",
        "/studio/operator",
        "/studio/operator/accounts",
        "/studio/operator/people",
        &format!("/studio/operator/accounts/{}", account["id"].as_str().expect("an id")),
        "/studio/operator/strikes",
        "/studio/operator/audit",
        "/studio/nowhere",
        "/",
    ] {
        examiner.open(&mut person, path);
    }
    person.open("/studio");
    person.click("document.querySelector('.person summary')");
    person.follow("document.querySelector('.person button')");
    examiner.examine(&mut person, "sign in");
    examiner.open(&mut person, "/studio/sign-in/nonsense");
    examiner.finish();
    // The browser itself reports the status of the page that does not exist.
    person.errors.retain(|error| !error.contains("404"));
    person.leave();
}

#[test]
fn a_stranger_signs_up_on_a_phone_by_a_form_that_passes_axe() {
    let flags = ["--sign-up", "--sign-up-credits", "20"];
    let (mut person, mut examiner) = (Person::sign_in(&flags), Examiner::new());
    person.click("document.querySelector('.person summary')");
    person.follow("document.querySelector('.person button')");
    examiner.examine(&mut person, "sign in, with the way to sign up");
    person.follow("document.querySelector('a[href=\"/studio/sign-up\"]')");
    examiner.examine(&mut person, "sign up");
    person.resize(390, 844);
    let send = |person: &mut Person, name: &str| {
        person.evaluate("document.querySelector('#name').value = ''");
        person.paste("document.querySelector('#name')", name);
        person.paste("document.querySelector('#password')", "correct horse battery");
        person.follow("document.querySelector('form button')");
    };
    send(&mut person, "default");
    assert_eq!(person.evaluate("document.querySelector('[role=alert]').textContent.includes('another')"), true);
    examiner.examine(&mut person, "a name that is taken");
    person.resize(390, 844);
    send(&mut person, "ada@example.com");
    assert_eq!(person.evaluate("location.pathname"), "/studio");
    assert_eq!(person.evaluate("document.querySelector('[data-credits]').textContent"), "20 credits");
    person.finish("A lighthouse in a storm");
    examiner.finish();
    // The browser itself reports the status of the refused form.
    person.errors.retain(|error| !error.contains("422"));
    person.leave();
}

#[test]
fn somebody_joins_by_an_invitation_on_pages_that_pass_axe() {
    let (mut person, mut examiner) = (Person::sign_in(&[]), Examiner::new());
    person.open("/studio/people");
    person.follow("document.querySelector('form[action=\"/studio/invitations\"] button')");
    let link = person.evaluate("document.querySelector('.secret').textContent");
    let link = link.as_str().expect("a link").to_owned();
    examiner.open(&mut person, "/studio/people");
    person.browser.open(&link);
    examiner.examine(&mut person, "an invitation, for somebody who is signed in");
    person.follow("document.querySelector('a[href=\"/studio\"]')");
    person.click("document.querySelector('.person summary')");
    person.follow("document.querySelector('[data-sign-out] button')");
    person.browser.open(&link);
    examiner.examine(&mut person, "an invitation");
    person.resize(390, 844);
    person.paste("document.querySelector('#name')", "ada@example.com");
    person.paste("document.querySelector('#password')", "correct horse battery");
    person.follow("document.querySelector('form button')");
    assert_eq!(person.evaluate("location.pathname"), "/studio");
    let summary = "document.querySelector('.person summary').textContent";
    assert_eq!(person.evaluate(summary), "ada@example.com");
    examiner.open(&mut person, "/studio/join/nonsense");
    examiner.finish();
    // The browser itself reports the status of the invitation that does not exist.
    person.errors.retain(|error| !error.contains("404"));
    person.leave();
}

#[test]
fn a_person_links_an_identity_in_the_browser_and_signs_in_with_it() {
    let provider = Provider::start("ada");
    let flags = provider.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (mut person, mut examiner) = (Person::sign_in(&flags), Examiner::new());
    examiner.open(&mut person, "/studio/sessions");
    person.follow("document.querySelector('a[href=\"/studio/oidc/link\"]')");
    person.until("document.querySelector('input[name=ticket]')");
    examiner.examine(&mut person, "an identity to confirm");
    person.resize(390, 844);
    person.follow("document.querySelector('main form button')");
    assert_eq!(person.evaluate("location.pathname"), "/studio/sessions");
    examiner.examine(&mut person, "sessions, with an identity");
    person.resize(390, 844);
    person.click("document.querySelector('.person summary')");
    person.follow("document.querySelector('.person button')");
    examiner.examine(&mut person, "sign in, with a provider");
    person.follow("document.querySelector('a[href=\"/studio/oidc\"]')");
    person.until("document.querySelector('#prompt')");
    assert_eq!(person.evaluate("location.pathname"), "/studio");
    examiner.finish();
    // The browser was at the provider, too.
    person.requests.retain(|url| !url.starts_with(&provider.issuer));
    person.leave();
}

#[test]
fn the_prompt_stays_in_view_on_every_screen() {
    let mut person = Person::sign_in(&[]);
    for number in 1..=4 {
        person.create(&format!("Boat number {number}"));
        person.until(&format!("document.querySelectorAll('[data-state=completed] img').length === {number}"));
    }
    for (width, height) in [(390, 844), (844, 390), (1_280, 900), (2_560, 1_440)] {
        person.resize(width, height);
        person.evaluate("scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })");
        let covered = person.evaluate(
            "(() => {
                const box = document.querySelector('#prompt').getBoundingClientRect();
                const button = document.querySelector('.make').getBoundingClientRect();
                const seen = (box, selector) => document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)
                    ?.closest(selector);
                const maker = document.querySelector('.maker').getBoundingClientRect();
                return { prompt: !!seen(box, '#prompt'), make: !!seen(button, '.make'),
                    part: maker.height / innerHeight, wide: document.documentElement.scrollWidth - innerWidth };
            })()",
        );
        assert_eq!((&covered["prompt"], &covered["make"]), (&true.into(), &true.into()), "{width}: {covered}");
        assert!(covered["part"].as_f64().is_some_and(|part| part < 0.5), "{width}: {covered}");
        assert!(covered["wide"].as_i64().is_some_and(|pixels| pixels <= 0), "{width}: {covered}");
    }
    person.leave();
}
