//! What an open page shows of other people and other tabs, in a browser.

use crate::rigs::binary::{json, run};
use crate::rigs::browser::Browser;

use super::browser::{Person, first};
use super::shifts::{SHIFTS, WATCH};

/// A second person of the account, in a browser of its own, on a page.
fn colleague(person: &Person, path: &str) -> Browser {
    let (data, url) = (person.data.path(), person.server.url());
    json(data, &["person", "add", "bob", "--account", "default", "--role", "member"]);
    let link = json(data, &["person", "link", "bob", "--public-url", &url]);
    let mut browser = Browser::start();
    browser.open(link["url"].as_str().expect("a URL"));
    browser.follow("document.querySelector('form button')");
    browser.open(&format!("{url}{path}"));
    browser
}

#[test]
fn pictures_of_others_wait_behind_a_button_and_nothing_moves() {
    let mut person = Person::sign_in(&[]);
    person.finish("A lighthouse in a storm");
    let mut bob = colleague(&person, "/studio/gallery");
    bob.until("document.querySelectorAll('.grid .tile').length === 1");
    for number in 1..=5 {
        person.create(&format!("A boat, study {number}"));
        let prompt = "document.querySelector('.tile .prompt')?.textContent";
        person.until(&format!("{prompt}?.endsWith('study {number}') && {}", first("completed")));
    }
    bob.until("document.querySelector('[data-fresh]').textContent === '5 new'");
    assert_eq!(bob.evaluate("document.querySelectorAll('.grid .tile').length"), 1);
    bob.evaluate(WATCH);
    assert_eq!(bob.evaluate(SHIFTS), serde_json::json!([]));
    // It sees what does move.
    bob.evaluate("document.body.style.paddingTop = '100px'");
    assert_ne!(bob.evaluate(SHIFTS), serde_json::json!([]));
    bob.click("document.querySelector('[data-fresh]')");
    bob.until("document.querySelectorAll('.grid .tile').length === 6 && document.querySelector('[data-fresh]').hidden");
    assert_eq!(bob.evaluate("document.querySelector('.tile .prompt').textContent"), "A boat, study 5");
    // A member deletes no pictures of others, and is not offered to.
    bob.evaluate("document.querySelector('.tile [data-pick]').click()");
    bob.until("document.querySelector('#chosen [formaction$=star]').checkVisibility()");
    assert_eq!(bob.evaluate("document.querySelector('#chosen .danger').checkVisibility()"), false);
    bob.click("document.querySelector('[data-clear]')");
    // A task that is chosen without being loaded may be his.
    bob.evaluate("picked.set('not-loaded', 1); count()");
    assert_eq!(bob.evaluate("document.querySelector('#chosen .danger').checkVisibility()"), true);
    bob.click("document.querySelector('[data-clear]')");
    // What an owner deletes leaves the page of the other, and comes back with the undo. The viewer of the other shows it still,
    // so that no key meets another picture.
    person.open("/studio/gallery");
    bob.click("document.querySelector('.tile .open')");
    bob.until("document.querySelector('[data-about] .prompt')?.textContent === 'A boat, study 5'");
    person.click("document.querySelector('.tile .more')");
    person.click("document.querySelector('[data-menu]:popover-open [data-erase]')");
    bob.until("document.querySelectorAll('.grid .tile:not([hidden])').length === 5");
    let said = "document.querySelector('[data-viewer] [data-refusal]')";
    bob.until(&format!("{said}.checkVisibility() && {said}.textContent === 'This picture has just been deleted.'"));
    bob.press("s");
    bob.press("Delete");
    assert_eq!(bob.evaluate("document.querySelector('[data-about] .prompt').textContent"), "A boat, study 5");
    person.click("document.querySelector('.undo button')");
    bob.until("document.querySelectorAll('.grid .tile:not([hidden])').length === 6");
    bob.until(&format!("!{said}.checkVisibility() && document.querySelector('[data-about] .star')"));
    assert_eq!(bob.evaluate("document.querySelectorAll('.tile .star[aria-pressed=true]').length"), 0);
    bob.press("Escape");
    bob.until("!document.querySelector('.viewer').open && location.pathname === '/studio/gallery'");
    // A search shows what it finds alone.
    bob.open(&format!("{}/studio/gallery?q=lighthouse", person.server.url()));
    person.open("/studio");
    person.finish("A windmill at noon");
    assert_eq!(bob.evaluate("document.querySelector('[data-fresh]').hidden"), true);
    assert!(bob.errors.is_empty(), "{:#?}", bob.errors);
    drop(bob);
    person.leave();
}

#[test]
fn stars_and_boards_follow_another_tab() {
    let mut person = Person::sign_in(&[]);
    person.finish("A lighthouse in a storm");
    let (data, url) = (person.data.path().to_owned(), person.server.url());
    let link = json(&data, &["account", "link", "default", "--public-url", &url]);
    let mut other = Browser::start();
    other.open(link["url"].as_str().expect("a URL"));
    other.follow("document.querySelector('form button')");
    other.open(&format!("{url}/studio/gallery"));
    other.until("document.querySelector('.grid .tile')");
    person.open("/studio/gallery");
    person.evaluate("document.querySelector('.tile .star').click()");
    other.until("document.querySelector('.tile .star').getAttribute('aria-pressed') === 'true'");
    person.evaluate("document.querySelector('.boards').open = true");
    person.evaluate("document.querySelector('.boards input[name=name]').value = 'Lighthouses'");
    person.follow("document.querySelector('.boards form button')");
    other.until("document.querySelector('.side nav').textContent.includes('Lighthouses')");
    // Both lists count what is put on a board, and what is deleted from it.
    let counts = |number: &str| format!("document.querySelector('[data-board] small')?.textContent === '{number}'");
    other.open(&format!("{url}/studio/gallery"));
    other.evaluate("document.querySelector('.tile [data-pick]').click()");
    other.click("document.querySelector('#chosen [formaction=\"/studio/gallery/put\"]')");
    other.until(&counts("1"));
    person.until(&counts("1"));
    other.until("!document.querySelector('#chosen').classList.contains('some')");
    other.evaluate("document.querySelector('.tile .open').focus()");
    other.press("Delete");
    other.until(&counts("0"));
    person.until(&counts("0"));
    assert!(other.errors.is_empty(), "{:#?}", other.errors);
    drop(other);
    person.leave();
}

#[test]
fn a_page_says_when_the_queue_is_paused_and_when_the_server_is_away() {
    let mut person = Person::sign_in(&[]);
    let shown = |name: &str| format!("document.querySelector('[data-{name}]').checkVisibility()");
    assert_eq!(person.evaluate(&shown("paused")), false);
    assert!(run(person.data.path(), ["queue", "pause"]).status.success());
    person.until(&shown("paused"));
    person.open("/studio/gallery");
    assert_eq!(person.evaluate(&shown("paused")), true);
    assert!(run(person.data.path(), ["queue", "resume"]).status.success());
    person.until(&format!("!{}", shown("paused")));
    person.server.stop();
    person.browser.until(&shown("away"));
}

#[test]
fn the_title_counts_and_the_browser_tells_what_is_done_while_nobody_looks() {
    let mut person = Person::sign_in(&[]);
    // Browsers of tests cannot be asked for a permission, nor put into the background.
    person.evaluate(
        "window.told = [];
        window.Notification = class {
            static permission = 'default';
            static async requestPermission() { return Notification.permission = 'granted'; }
            constructor(words, { tag }) { told.push([words, tag]); }
        };
        document.querySelector('[data-notices]').hidden = false;
        window.isAway = false;
        Object.defineProperty(document, 'hidden', { get: () => isAway, configurable: true });",
    );
    let create = |person: &mut Person, prompt: &str| {
        person.create(prompt);
        let shown = "document.querySelector('.tile .prompt')?.textContent";
        person.until(&format!("{shown} === '{prompt}' && {}", first("completed")));
    };
    create(&mut person, "A boat that is watched");
    person.click("document.querySelector('.person summary')");
    person.click("document.querySelector('[data-notices] input')");
    person.until("Notification.permission === 'granted' && document.querySelector('[data-notices] input').checked");
    person.evaluate("isAway = true");
    create(&mut person, "A boat at dawn");
    create(&mut person, "A boat at dusk");
    person.until("document.title.startsWith('(2) ') && told.length === 2");
    let told = person.evaluate("told[1][0]");
    assert!(told.as_str().expect("words").contains("A boat at dusk"), "{told}");
    person.evaluate("isAway = false; document.dispatchEvent(new Event('visibilitychange'))");
    assert_eq!(person.evaluate("document.title.startsWith('(')"), false);
    person.leave();
}
