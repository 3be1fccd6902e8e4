//! The page that somebody leaves open all day, in a real browser: several tabs, a server that goes away, a network without
//! HTTPS, keys that are held down, and people who read from right to left or want nothing to move.

use crate::rigs::binary::{Server, json, tintype};
use crate::rigs::browser::Browser;

use super::browser::{PROMPT, Person, first};

const VALUE: &str = "document.querySelector('#prompt').value";
const COMPLETED: &str = "document.querySelectorAll('.tile[data-state=completed]').length";

impl Person {
    pub(super) fn completed(&mut self, count: usize) {
        self.until(&format!("{COMPLETED} === {count}"));
    }
}

#[test]
fn tabs_of_a_browser_share_one_stream_and_the_next_one_takes_it_over() {
    let mut person = Person::sign_in(&[]);
    let studio = format!("{}/studio", person.server.url());
    let first_tab = person.open_tab(&studio);
    person.until("document.readyState === 'complete' && document.querySelector('#prompt')");
    let shared = "navigator.locks.query().then(({ held, pending }) => held.length === 1 && pending.length === 1)";
    person.until_asked(shared, |_| std::thread::yield_now());
    let second_tab = person.turn_to(first_tab);
    person.finish("A lighthouse in a storm");
    let first_tab = person.turn_to(second_tab);
    person.until("document.querySelector('.tile')?.dataset.state === 'completed'");
    let second_tab = person.turn_to(first_tab);
    person.open("/studio/docs");
    person.turn_to(second_tab);
    person.create("A red fox in the snow");
    person.completed(2);
    person.leave();
}

#[test]
fn a_suspended_tab_keeps_the_stream_from_no_other() {
    let mut person = Person::sign_in(&[]);
    person.until("hasBegun");
    person.suspend();
    let page = format!("{}/studio", person.server.url());
    let suspended = person.open_tab(&page);
    person.until("document.readyState === 'complete' && document.querySelector('#prompt')");
    person.finish("A lighthouse in a storm");
    person.turn_to(suspended);
    person.resume();
    person.until(&first("completed"));
    person.leave();
}

#[test]
fn a_page_shows_what_it_has_missed_while_the_server_was_away() {
    let mut person = Person::sign_in(&[]);
    person.until("hasBegun");
    // The browser opens the stream again by itself. It finds the server again later than another one does.
    person.block(&["*/studio/events"]);
    person.server.signal("TERM");
    while person.server.ended().is_none() {
        std::thread::yield_now();
    }
    let mut command = tintype();
    let address = person.server.address.to_string();
    command.args(["serve", "--listen", &address, "--log", "warn", "--data"]).arg(person.data.path());
    person.server = Server::spawn(command);
    let mut other = Browser::start();
    let link = json(person.data.path(), &["account", "link", "default", "--public-url", &person.server.url()]);
    other.open(link["url"].as_str().expect("a URL"));
    other.follow("document.querySelector('form button')");
    other.paste(PROMPT, "A lighthouse in a storm");
    other.click("document.querySelector('.make')");
    other.until(&first("completed"));
    assert_eq!(person.evaluate("document.querySelectorAll('.tile').length"), 0);
    person.block(&[]);
    person.completed(1);
    person.create("A red fox in the snow");
    person.completed(2);
    // The browser itself reports the requests that it did not send.
    person.errors.clear();
    person.leave();
}

#[test]
fn a_page_without_https_is_live_and_copies() {
    let (data, server, _) = Server::install(&[]);
    // A name that is not that of the browser's own machine, as in a network at home.
    let url = format!("http://studio.test:{}", server.address.port());
    let browser = Browser::start_with(&["--host-resolver-rules=MAP studio.test 127.0.0.1"]);
    let mut person = Person::sign_in_at(data, server, browser, &url);
    assert_eq!(person.evaluate("[isSecureContext, location.host]"), serde_json::json!([false, &url[7..]]));
    person.finish("A lighthouse in a storm");
    person.evaluate("document.addEventListener('copy', () => { window.copied = document.activeElement.value; })");
    person.choose("[data-link]");
    person.until(&format!("window.copied?.startsWith('{url}/files/')"));
    let link = "document.querySelector('[data-link]')";
    person.until(&format!("{link}.textContent === 'Copied'"));
    person.click(link);
    person.until(&format!("{link}.textContent !== 'Copied'"));
    person.evaluate("document.querySelector('#prompt').value = ''");
    person.press("Escape");
    person.choose("[data-remix=prompt]");
    person.until(&format!("{VALUE} === 'A lighthouse in a storm'"));
    assert!(person.errors.is_empty(), "{:#?}", person.errors);
    person.server.stop();
}

#[test]
fn prompts_come_back_by_the_arrow_keys_to_their_person_alone() {
    let mut person = Person::sign_in(&[]);
    for (prompt, count) in [("A lighthouse in a storm", 1), ("A red fox in the snow", 2)] {
        person.create(prompt);
        person.completed(count);
    }
    person.paste(PROMPT, "A half-written");
    person.evaluate("document.querySelector('#prompt').setSelectionRange(0, 0)");
    for (key, shown) in [
        ("ArrowUp", "A red fox in the snow"),
        ("ArrowUp", "A lighthouse in a storm"),
        ("ArrowUp", "A lighthouse in a storm"),
        ("ArrowDown", "A red fox in the snow"),
        ("ArrowDown", "A half-written"),
    ] {
        person.press(key);
        assert_eq!(person.evaluate(VALUE), shown, "{key}");
    }
    // Those of somebody else go when the page opens, and the own ones when the person leaves.
    person.evaluate("localStorage.setItem('tintype-prompts-of-somebody', '[\"A secret\"]')");
    person.open("/studio");
    assert_eq!(person.evaluate("Object.keys(localStorage).length"), 2, "prompts, and the draft");
    person.click("document.querySelector('.person summary')");
    person.follow("document.querySelector('.person button')");
    assert_eq!(person.evaluate("Object.keys(localStorage).length"), 0);
    person.leave();
}

#[test]
fn a_key_of_an_input_method_creates_no_task() {
    let mut person = Person::sign_in(&[]);
    person.paste(PROMPT, "ねこ");
    // As Safari sends the Enter that confirms a word: after the composition, with the code of such keys.
    let confirm = "document.querySelector('#prompt').dispatchEvent(
        new KeyboardEvent('keydown', { key: 'Enter', keyCode: 229, bubbles: true, cancelable: true }))";
    assert_eq!(person.evaluate(confirm), true, "the page leaves the key to the input method");
    person.press("Enter");
    person.completed(1);
    person.leave();
}

#[test]
fn a_key_that_is_held_down_creates_one_task() {
    let mut person = Person::sign_in(&[]);
    person.paste(PROMPT, "A lighthouse in a storm");
    person.hold("Enter", 5);
    person.completed(1);
    person.click(PROMPT);
    person.press("Enter");
    person.completed(2);
    let tasks = json(person.data.path(), &["credits", "balance", "default"]);
    assert_eq!(tasks["credits"], 996);
    person.leave();
}

#[test]
fn the_page_of_a_picture_deletes_with_undo_and_says_why_it_refuses() {
    let mut person = Person::sign_in(&[]);
    person.finish("A lighthouse in a storm");
    let address = person.evaluate("document.querySelector('.tile .open').pathname");
    person.open(address.as_str().expect("a path"));
    person.click("document.querySelector('.card button[formaction$=delete]')");
    person.until("document.querySelector('.undo') && document.querySelector('.card').hidden");
    person.click("document.querySelector('.undo button')");
    person.until("!document.querySelector('.undo') && !document.querySelector('.card').hidden");
    json(person.data.path(), &["credits", "take", "default", "998", "--note", "spent elsewhere"]);
    person.click("document.querySelector('.card [data-make] button')");
    person.until("document.querySelector('[data-refusal]').textContent.includes('costs 2 credits')");
    // The browser itself reports the status of the refused form.
    person.errors.retain(|error| !error.contains("422"));
    person.leave();
}

#[test]
fn a_picture_made_again_in_the_gallery_appears_there() {
    let mut person = Person::sign_in(&[]);
    person.click("document.querySelector('input[name=n][value=\"2\"]')");
    person.finish("A lighthouse in a storm");
    person.open("/studio/gallery");
    person.choose("[data-again]");
    person.completed(2);
    assert_eq!(person.evaluate("document.querySelectorAll('[data-pick]').length"), 2);
    person.click("document.querySelector('.tile [data-pick]')");
    person.until("document.querySelector('[data-chosen-count]').textContent.startsWith('2')");
    // Each of several pictures is downloaded and linked on its own.
    let address = person.evaluate("document.querySelector('.tile .open').pathname");
    person.open(address.as_str().expect("a path"));
    let links = "new Set([...document.querySelectorAll('.card .tools [download]')].map((link) => link.href)).size";
    assert_eq!(person.evaluate(links), 2);
    person.leave();
}

#[test]
fn nothing_moves_for_people_who_want_that_and_pages_read_from_right_to_left_fit() {
    let mut person = Person::sign_in(&["--drain-timeout", "1s"]);
    person.finish("A lighthouse in a storm");
    person.create("A boat that takes its time [[hang]]");
    person.until("document.querySelector('.tile progress')");
    let moving = "document.getAnimations().filter((animation) => animation.animationName === 'breathe').length";
    assert_eq!(person.evaluate(moving), 1);
    person.prefer_no_motion();
    assert_eq!(person.evaluate(moving), 0);
    let task = person.evaluate("document.querySelector('[data-state=completed]').id.slice('task-'.length)");
    let picture = format!("/studio/tasks/{}", task.as_str().expect("an id"));
    let pages = ["", "/gallery", "/activity", "/docs", "/keys", "/credits", "/sessions", "/people", "/uploads"];
    let pages = pages.map(|page| format!("/studio{page}")).into_iter().chain([picture, "/studio/operator".into()]);
    for page in pages {
        person.open(&page);
        person.evaluate("document.dir = 'rtl'");
        for (width, height) in [(390, 844), (1_280, 900), (2_560, 1_440)] {
            person.resize(width, height);
            // The page begins at the right, and nothing is beyond its left end.
            let seen = person.evaluate(
                "({ wide: document.documentElement.scrollWidth - innerWidth,
                    brand: document.querySelector('.brand').getBoundingClientRect().x > innerWidth / 2 })",
            );
            assert_eq!(seen, serde_json::json!({ "wide": 0, "brand": true }), "{page} at {width}");
        }
        person.resize(1_280, 900);
    }
    person.leave();
}
