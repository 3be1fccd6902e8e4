//! The forms of the studio in a real browser: keys, grants, sessions, and pages without scripts.

use crate::rigs::binary::json;
use crate::rigs::browser::Browser;

use super::browser::{PROMPT, Person, first};

impl Person {
    fn text(&mut self) -> String {
        self.evaluate("document.body.innerText").as_str().expect("text").to_owned()
    }

    /// Follows the first button or link with these words.
    fn follow_words(&mut self, words: &str) {
        let element = format!(
            "[...document.querySelectorAll('main button, main a')].find((found) => found.innerText.trim() === '{words}')"
        );
        self.follow(&element);
    }

    fn asks(words: &str) -> String {
        format!(
            "[...document.querySelectorAll('main .ask summary')].find((found) => found.innerText.trim() === '{words}')"
        )
    }

    /// Opens what asks first, and follows its button, which has the same words.
    fn press_surely(&mut self, words: &str) {
        let asks = Self::asks(words);
        self.click(&asks);
        self.follow(&format!("{asks}.parentElement.querySelector('button')"));
    }

    fn keys(&self) -> Vec<String> {
        let keys = json(self.data.path(), &["key", "list"]);
        let names = keys.as_array().expect("a list").iter();
        names.map(|key| key["name"].as_str().expect("a name").to_owned()).collect()
    }
}

#[test]
fn a_key_is_shown_once_rotated_disabled_and_revoked() {
    let mut person = Person::sign_in(&[]);
    person.open("/studio/keys");
    person.paste("document.querySelector('main input[name=name]')", "press");
    person.follow_words("Create key");
    let secret = "document.querySelector('.secret')?.textContent";
    let of_press = person.evaluate(secret);
    assert!(of_press.as_str().is_some_and(|key| key.starts_with("tt_")), "{of_press}");
    let keys = person.keys();
    person.open("/studio/secret");
    assert_eq!((person.evaluate(secret), person.keys()), (of_press.clone(), keys));
    person.follow_words("Done");
    assert_eq!(person.evaluate("location.pathname"), "/studio/keys");
    assert!(person.evaluate(secret).is_null());
    person.press_surely("Rotate");
    let rotated = person.evaluate(secret);
    assert!(rotated.as_str().is_some_and(|key| key.starts_with("tt_")) && rotated != of_press, "{rotated}");
    person.open("/studio/keys");
    person.follow_words("Disable");
    assert!(person.text().contains("Disabled"), "{}", person.text());
    // One click asks and changes nothing.
    person.click(&Person::asks("Revoke"));
    person.until("document.body.innerText.includes('This cannot be undone')");
    person.open("/studio/keys");
    assert!(!person.text().contains("Revoked"), "{}", person.text());
    person.press_surely("Revoke");
    assert!(person.text().contains("Revoked"), "{}", person.text());
    person.leave();
}

#[test]
fn an_operator_grants_credits_in_the_browser() {
    let mut person = Person::sign_in(&[]);
    json(person.data.path(), &["account", "create", "harbour-design", "--credits", "250"]);
    person.open("/studio/operator/accounts");
    person.follow_words("harbour-design");
    person.paste("document.querySelector('main input[name=amount]')", "500");
    person.paste("document.querySelector('main input[name=note]')", "Spring campaign");
    // Enter only opens the question.
    person.press("Enter");
    person.until("document.activeElement.matches('main form[action$=grant] details button')");
    assert_eq!(json(person.data.path(), &["credits", "balance", "harbour-design"])["credits"], 250);
    person.follow("document.querySelector('main form[action$=grant] button')");
    assert!(person.text().contains("Spring campaign"), "{}", person.text());
    assert_eq!(json(person.data.path(), &["credits", "balance", "harbour-design"])["credits"], 750);
    person.leave();
}

#[test]
fn a_session_of_another_browser_is_ended() {
    let mut person = Person::sign_in(&[]);
    let mut other = Browser::start();
    let link = json(person.data.path(), &["account", "link", "default", "--public-url", &person.server.url()]);
    other.open(link["url"].as_str().expect("a URL"));
    other.follow("document.querySelector('form button')");
    assert_eq!(other.evaluate("location.pathname"), "/studio");
    person.open("/studio/sessions");
    person.click("document.querySelector('td form summary')");
    person.follow("document.querySelector('td form button')");
    assert_eq!(person.evaluate("document.querySelectorAll('td form').length"), 0);
    other.open(&format!("{}/studio", person.server.url()));
    assert_eq!(other.evaluate("location.pathname"), "/studio/sign-in");
    person.open("/studio");
    assert_eq!(person.evaluate("location.pathname"), "/studio");
    person.leave();
}

#[test]
fn the_essentials_work_without_scripts() {
    let mut person = Person::sign_in(&[]);
    person.forbid_scripts();
    person.open("/studio");
    // The page before complains that its script may no longer run.
    person.errors.clear();
    person.paste(PROMPT, "A lighthouse in a storm");
    person.follow("document.querySelector('.make')");
    let until_shown = |person: &mut Person, shown: &str| {
        person.until_asked(shown, |browser| {
            let page = browser.evaluate("location.href");
            browser.open(page.as_str().expect("a URL"));
        });
    };
    until_shown(&mut person, &first("completed"));
    assert!(person.text().contains("998 credits"), "{}", person.text());
    person.follow("document.querySelector('.tile .open')");
    person.follow_words("Again");
    until_shown(&mut person, "document.querySelectorAll('.tile[data-state=completed]').length === 2");
    person.open("/studio/gallery");
    person.paste("document.querySelector('input[type=search]')", "lighthouse");
    person.follow_words("Search");
    // New prompts are indexed a moment later.
    until_shown(&mut person, "document.querySelectorAll('.tile').length === 2");
    person.paste("document.querySelector('input[type=search]')", "windmill");
    person.follow_words("Search");
    assert_eq!(person.evaluate("document.querySelectorAll('.tile').length"), 0);
    person.open("/studio/keys");
    person.press_surely("Revoke");
    assert!(person.text().contains("Revoked"), "{}", person.text());
    person.open("/studio/gallery");
    person.follow("document.querySelector('.tile .star')");
    person.open("/studio/gallery?starred=1");
    person.follow("document.querySelector('.tile .open')");
    person.follow("document.querySelector('.card button[formaction$=delete]')");
    person.open("/studio/gallery");
    assert_eq!(person.evaluate("document.querySelectorAll('.tile').length"), 1);
    person.leave();
}
