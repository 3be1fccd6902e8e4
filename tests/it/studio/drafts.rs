//! The form of Create as a person left it, in a browser.

use super::browser::{PROMPT, Person, first};

const HELD: &str =
    "[document.querySelector('#prompt').value, document.querySelector('input[name=shape]:checked').value,
    document.querySelector('input[name=n]:checked').value, document.querySelector('input[name=seed]').value,
    document.querySelector('#references').value, document.querySelector('[data-price]').textContent].join(' | ')";
const WORDS: &str = "document.querySelector('#prompt').value";

#[test]
fn a_lost_answer_is_told_and_the_same_form_is_charged_once() {
    let mut person = Person::sign_in(&[]);
    person.evaluate(
        "(() => {
            const send = window.fetch;
            let isLost = false;
            window.fetch = async (url, options) => {
                const answer = await send(url, options);
                if (options?.method !== 'POST' || isLost) return answer;
                isLost = true;
                throw new TypeError('lost');
            };
        })()",
    );
    let said = "document.querySelector('.maker [data-refusal]').textContent";
    person.create("A ferry at dusk");
    person.until(&format!("{said}.includes('Nothing is charged twice')"));
    person.click("document.querySelector('.make')");
    person.until(&format!("{said} === '' && {}", first("completed")));
    let credits = "document.querySelector('[data-credits]').textContent";
    assert_eq!(person.evaluate(credits), "998 credits");
    // What is wanted again is another task.
    person.click("document.querySelector('.make')");
    person.until("document.querySelectorAll('.tile[data-state=completed]').length === 2");
    assert_eq!(person.evaluate(credits), "996 credits");
    person.evaluate(
        "Object.defineProperty(navigator, 'onLine', { value: false }),
        window.fetch = () => Promise.reject(new TypeError('lost'))",
    );
    person.click("document.querySelector('.make')");
    person.until(&format!("{said}.includes('You are offline')"));
    assert_eq!(person.evaluate(WORDS), "A ferry at dusk");
    person.leave();
}

#[test]
fn a_draft_survives_other_pages_and_a_lost_session_but_not_a_sign_out() {
    let mut person = Person::sign_in(&[]);
    person.paste(PROMPT, "A ferry at dusk");
    person.click("document.querySelector('input[name=shape][value=\"16:9\"]')");
    person.click("document.querySelector('input[name=n][value=\"3\"]')");
    person.evaluate("document.querySelector('details.tuning').open = true");
    person.paste("document.querySelector('input[name=seed]')", "7");
    person.evaluate("document.querySelector('details.references').open = true");
    person.paste("document.querySelector('#references')", "https://example.com/a.png");
    let draft = "A ferry at dusk | 16:9 | 3 | 7 | https://example.com/a.png | 6 credits";
    assert_eq!(person.evaluate(HELD), draft);
    for path in ["/studio", "/studio/gallery", "/studio"] {
        person.open(path);
    }
    assert_eq!(person.evaluate(HELD), draft);
    // A link such as that of a remix brings words of its own.
    person.open("/studio?take=prompt");
    assert_ne!(person.evaluate(HELD), draft);
    // The session ends, and the person signs in again.
    person.browser.open("about:blank");
    person.forget_cookies();
    person.open("/studio");
    person.until("location.pathname === '/studio/sign-in'");
    let mut person = person.signs_in_again();
    assert_eq!(person.evaluate(HELD), draft);
    person.evaluate("document.querySelector('details.person').open = true");
    person.follow("document.querySelector('[data-sign-out] button')");
    let mut person = person.signs_in_again();
    assert_eq!(person.evaluate(WORDS), "");
    person.leave();
}

#[test]
fn a_browser_that_keeps_nothing_for_pages_creates_pictures() {
    for refusal in [
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('a setting', 'SecurityError'); } })",
        "Object.defineProperty(window, 'localStorage', { value: null })",
        "Storage.prototype.setItem = () => { throw new DOMException('a full disk', 'QuotaExceededError'); }",
    ] {
        let mut person = Person::sign_in(&[]);
        person.run_first(refusal);
        person.open("/studio");
        for count in 1..=2 {
            person.create("A ferry at dusk");
            person.completed(count);
        }
        person.leave();
    }
}

#[test]
fn each_tab_keeps_its_own_draft_and_a_new_tab_begins_with_the_latest() {
    let mut person = Person::sign_in(&[]);
    person.paste(PROMPT, "A ferry at dusk");
    let first_tab = person.open_tab("about:blank");
    person.open("/studio");
    assert_eq!(person.evaluate(WORDS), "A ferry at dusk");
    person.paste(PROMPT, "A kite on the beach");
    let second_tab = person.turn_to(first_tab);
    person.open("/studio");
    assert_eq!(person.evaluate(WORDS), "A ferry at dusk");
    // What was sent and removed stays away, although the other tab has words.
    person.click("document.querySelector('.make')");
    person.until(&first("completed"));
    person.paste(PROMPT, "");
    person.open("/studio");
    assert_eq!(person.evaluate(WORDS), "");
    let first_tab = person.turn_to(second_tab);
    person.open("/studio");
    assert_eq!(person.evaluate(WORDS), "A kite on the beach");
    // A sign-out in one tab takes the drafts of all.
    let forgotten = "Object.keys(sessionStorage).every((key) => !key.startsWith('tintype-'))";
    assert_eq!(person.evaluate(forgotten), false);
    person.evaluate("document.querySelector('details.person').open = true");
    person.follow("document.querySelector('[data-sign-out] button')");
    assert_eq!(person.evaluate(forgotten), true);
    person.turn_to(first_tab);
    person.until_asked(forgotten, |_| std::thread::yield_now());
    person.leave();
}
