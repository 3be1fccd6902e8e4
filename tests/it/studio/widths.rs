//! No page is wider than its screen, no table wider than its box, no title of a failure higher than its place, and no
//! words of one lie under its buttons, in either language, with every part of it open. No field of a touchscreen has
//! text so small that a browser zooms into it.

use crate::rigs::binary::{json, run};

use super::browser::{Person, first};

/// A phone, a tablet at the width from which tables have columns, a small laptop, and a desk.
const WIDTHS: [u32; 4] = [390, 901, 1_024, 1_280];

/// Opens every part of the page, and names what does not fit.
const WIDE: &str = "(() => {
    document.querySelectorAll('main details').forEach((part) => { part.open = true; });
    const wide = [...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth > box.clientWidth);
    const page = document.documentElement.scrollWidth > innerWidth ? ['the page'] : [];
    const high = [...document.querySelectorAll('.tile.failed > strong')]
        .filter((title) => title.scrollHeight > title.clientHeight);
    const covered = [...document.querySelectorAll('.tile.failed > :is(.open, .soft)')].filter((part) => {
        const buttons = part.parentElement.querySelector('.more').getBoundingClientRect();
        const own = part.getBoundingClientRect();
        return own.left < buttons.right && own.bottom > buttons.top;
    });
    const rows = new Set([...document.querySelectorAll('main > .tabs a')].map((tab) => tab.offsetTop)).size;
    const tabs = innerWidth < 720 && rows > 1 ? ['tabs'] : [];
    return [
        ...wide.map((box) => box.getAttribute('aria-label')), ...page, ...tabs,
        ...[...high, ...covered].map((title) => title.textContent),
    ];
})()";

/// Names the fields whose text is smaller than 16 pixels.
const SMALL: &str = "[...document.querySelectorAll('input, textarea, select')]
    .filter((field) => parseFloat(getComputedStyle(field).fontSize) < 16).map((field) => field.name)";

/// Fills an account with rows of all kinds, and names its pages.
fn fill(person: &mut Person) -> Vec<String> {
    let data = person.data.path();
    let long = "A key with quite a long label for the nightly batch of the catalogue";
    let key = |name: &str, more: &[&str]| {
        json(data, &[&["key", "create", "--account", "default", "--name", name], more].concat())
    };
    key(long, &["--submit-rate", "30", "--read-rate", "0", "--budget", "4000/month", "--expires-in", "90d"]);
    let leaked = key("leaked", &[]);
    let name = "Gesellschaft für außergewöhnlich lange Kontonamen und Bildgestaltung mbH & Co. KG";
    let account = json(data, &["account", "create", name, "--credits", "1000000"]);
    for owner in ["default", name] {
        let note = "Autumn trial of the catalogue, agreed on the phone";
        json(data, &["credits", "grant", owner, "6370", "--expires-in", "30d", "--note", note]);
    }
    json(
        data,
        &["person", "add", "a.very.long.name@an-organisation.example", "--account", "default", "--role", "viewer"],
    );
    let url = "https://10.0.0.1/hooks/tintype/a-rather-long-path/for/events";
    let endpoint = json(data, &["webhook", "add", "--account", "default", url]);
    let endpoint = endpoint["id"].as_str().expect("an id").to_owned();
    assert!(!run(data, ["webhook", "test", &endpoint]).status.success(), "nobody is there");
    let leaking = format!("/api/v1/images/task?task_id=x&api_key={}", leaked["key"].as_str().expect("a key"));
    person.open(&leaking);
    person.open("/studio");
    // The browser itself reports the status of that call.
    person.errors.retain(|error| !error.contains("status of 401"));
    // A prompt without a space, like a URL or tags with commas alone.
    person.finish(&"lighthouse,".repeat(200));
    let compared = person.evaluate("document.querySelector('.grid > .tile').id.slice('task-'.length)");
    let compared = format!("/studio/compare?a=result:{}/1", compared.as_str().expect("an id"));
    person.create("A red fox in the snow [[fail]]");
    person.until(&first("failed"));
    person.open("/studio/people");
    person.follow("document.querySelector('form[action=\"/studio/invitations\"] button')");
    let account = account["id"].as_str().expect("an id");
    let of_account = format!("/studio/operator/accounts/{account}");
    let pages =
        ["activity", "docs", "keys", "webhooks", "credits", "usage", "usage?by=day&days=365", "sessions", "people"];
    let of_operator = ["operator", "operator/accounts", "operator/people", "operator/strikes", "operator/audit"];
    let mut paths: Vec<_> = pages.iter().chain(&of_operator).map(|page| format!("/studio/{page}")).collect();
    paths.extend([
        format!("/studio/webhooks/{endpoint}"),
        of_account,
        "/studio/gallery".into(),
        "/studio/uploads".into(),
        compared,
    ]);
    paths
}

#[test]
fn everything_fits_its_screen() {
    let mut person = Person::sign_in(&[]);
    no_table_is_wider_than_its_box(&mut person);
    no_field_on_a_touchscreen_makes_a_browser_zoom(&mut person);
    the_bar_has_room_for_a_long_name_and_for_all_pages(&mut person);
    person.leave();
}

fn no_table_is_wider_than_its_box(person: &mut Person) {
    let mut wide = Vec::new();
    let paths = fill(person);
    for language in ["en", "de"] {
        person.speak(language);
        for path in &paths {
            person.open(path);
            for width in WIDTHS {
                person.resize(width, 900);
                let found = person.evaluate(WIDE);
                if found.as_array().is_none_or(|found| !found.is_empty()) {
                    wide.push(format!("{path}, {language}, {width}: {found}"));
                }
            }
        }
    }
    assert!(wide.is_empty(), "{}", wide.join("\n"));
}

fn no_field_on_a_touchscreen_makes_a_browser_zoom(person: &mut Person) {
    person.resize(390, 844);
    person.open("/studio/keys");
    assert_ne!(person.evaluate(SMALL), serde_json::json!([]), "a mouse has smaller fields");
    person.touch(true);
    for path in ["", "/gallery", "/keys", "/people", "/credits", "/webhooks", "/boards", "/operator/accounts"] {
        person.open(&format!("/studio{path}"));
        assert_eq!(person.evaluate(SMALL), serde_json::json!([]), "{path}");
    }
    person.touch(false);
}

fn the_bar_has_room_for_a_long_name_and_for_all_pages(person: &mut Person) {
    const TOO_WIDE: &str = "(() => {
        const nav = document.querySelector('.bar nav');
        return nav.scrollWidth - nav.clientWidth;
    })()";
    for language in ["de", "en"] {
        person.speak(language);
        person.resize(360, 800);
        person.open("/studio/operator");
        assert_eq!(person.evaluate(TOO_WIDE), 0, "an operator has one page more, {language}");
    }
    let (data, url) = (person.data.path(), person.server.url());
    let name = "the.longest.name@an-organisation.example";
    json(data, &["account", "create", "ada", "--credits", "1000"]);
    json(data, &["person", "add", name, "--account", "ada", "--role", "owner"]);
    let link = json(data, &["person", "link", name, "--public-url", &url]);
    person.forget_cookies();
    person.browser.open(link["url"].as_str().expect("a URL"));
    person.follow("document.querySelector('form button')");
    for (language, width) in [("de", 360), ("de", 820), ("en", 360), ("en", 820), ("en", 1_280)] {
        person.speak(language);
        person.resize(width, 800);
        person.open("/studio/keys");
        let found = person.evaluate(
            "(() => {
                const middle = (name) => {
                    const { top, bottom } = document.querySelector(name).getBoundingClientRect();
                    return (top + bottom) / 2;
                };
                return Math.abs(middle('.brand') - middle('.person')) < 4;
            })()",
        );
        assert_eq!((found, person.evaluate(TOO_WIDE)), (true.into(), 0.into()), "{language}, {width}");
        // Where the name has no room, the menu has it.
        person.click("document.querySelector('.person summary')");
        assert_eq!(person.evaluate("document.querySelector('.person p').innerText"), name);
    }
}
