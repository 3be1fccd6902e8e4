//! The pages of a server in a real browser.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::rigs::binary::Server;
use crate::rigs::browser::Browser;
use crate::rigs::debian;
use crate::rigs::packages::run;

const KEY_FIELD: &str = "document.querySelector('#key')";

fn button(text: &str) -> String {
    format!("[...document.querySelectorAll('button')].find(button => button.textContent.includes('{text}'))")
}

/// Checks that the page asked this server only, and that nothing went wrong on it.
#[track_caller]
fn assert_quiet(browser: &Browser, server: &Server) {
    let elsewhere: Vec<_> = browser.requests.iter().filter(|url| !url.starts_with(&server.url())).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
    assert!(!browser.requests.is_empty());
    assert!(browser.errors.is_empty(), "{:#?}", browser.errors);
}

#[test]
fn the_home_page_leads_to_the_documentation_and_both_fit_a_telephone_and_follow_the_dark() {
    let (_data, server, _) = Server::install(&[]);
    let mut browser = Browser::start();
    browser.open(&server.url());
    assert_eq!(browser.evaluate("document.title"), "Tintype");
    let text = browser.evaluate("document.body.innerText");
    let address = format!("curl {}/api/v1/images/generate", server.url());
    assert!(text.as_str().expect("text").contains(&address), "{text}");
    assert!(text.as_str().expect("text").contains("tintype key create"), "{text}");
    browser.follow("document.querySelector('a.button')");
    browser.until("document.querySelector('#reference h1')?.textContent.includes('Tintype')");
    assert_eq!(browser.evaluate("location.pathname"), "/docs/");
    assert_eq!(browser.evaluate("document.querySelectorAll('.bar a[href=\"/studio\"]').length"), 1);
    fit_a_telephone_and_follow_the_dark(&mut browser, &server);
    assert_quiet(&browser, &server);
    server.stop();
}

fn fit_a_telephone_and_follow_the_dark(browser: &mut Browser, server: &Server) {
    browser.resize(375, 800);
    browser.prefer_dark(true);
    for path in ["/", "/docs/"] {
        browser.open(&format!("{}{path}", server.url()));
        browser.until("path => path, document.readyState === 'complete'");
        let width = browser.evaluate("document.documentElement.scrollWidth");
        assert!(width.as_u64().is_some_and(|width| width <= 375), "{path} is {width} pixels wide");
        let dark = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(part => part < 60)";
        assert_eq!(browser.evaluate(dark), true, "{path}");
    }
}

#[test]
fn a_pasted_key_generates_an_image_or_shows_an_error_and_is_stored_nowhere() {
    let (_data, server, key) = Server::install(&[]);
    let mut browser = Browser::start();
    browser.open(&format!("{}/docs/", server.url()));
    browser.paste(KEY_FIELD, &key);
    browser.click("document.querySelector('#try button')");
    let width = browser.until("document.querySelector('#result img')?.naturalWidth");
    assert_eq!(width, 1024);
    let stored = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href])";
    let stored = browser.evaluate(stored);
    assert!(!stored.as_str().expect("text").contains(&key), "{stored}");
    assert_quiet(&browser, &server);
    browser.open(&format!("{}/docs/", server.url()));
    assert_eq!(browser.evaluate("document.querySelector('#key').value"), "");
    browser.paste(KEY_FIELD, "tt_nonsense");
    browser.press("Enter");
    let said = browser.until("document.querySelector('#result p')?.textContent");
    assert!(said.as_str().expect("text").starts_with("UNAUTHORIZED: "), "{said}");
    server.stop();
}

#[test]
fn the_forms_of_the_reference_work_at_the_first_click() {
    let (_data, server, key) = Server::install(&[]);
    let mut browser = Browser::start();
    browser.open(&format!("{}/docs/#tag/images/POST/api/v1/images/generate", server.url()));
    browser.paste(KEY_FIELD, &key);
    browser.press("Tab");
    // The reference takes the key over a moment after the field has changed.
    browser.until(
        "[...document.querySelectorAll('input')].some(({ id, value }) => id !== 'key' && value.startsWith('tt_'))",
    );
    browser.click(&button("Test Request"));
    browser.click(&format!("[{}].find(button => button?.offsetParent)", button("Send")));
    let shown = browser.until("document.body.innerText.match(/imgmodel-[A-Za-z0-9_-]{21}/g)?.at(-1)");
    let status = browser.until("document.body.innerText.includes('200 OK')");
    assert_eq!(status, true, "{shown}");
    assert_quiet(&browser, &server);
    server.stop();
}

#[test]
fn a_key_that_comes_while_the_reference_loads_reaches_its_forms() {
    let (_data, server, key) = Server::install(&[]);
    let mut browser = Browser::start();
    browser.slow_down(500_000);
    browser.open(&format!("{}/docs/#tag/images/POST/api/v1/images/generate", server.url()));
    browser.slow_down(5_000);
    browser.paste(KEY_FIELD, &key);
    browser.press("Tab");
    browser.slow_down(u32::MAX);
    browser.until(
        "[...document.querySelectorAll('input')].some(({ id, value }) => id !== 'key' && value.startsWith('tt_'))",
    );
    server.stop();
}

#[test]
fn the_programs_of_the_quick_start_run_as_they_are() {
    debian::needs("curl", "curl");
    debian::needs("node", "nodejs");
    let (_data, server, key) = Server::install(&[]);
    let mut browser = Browser::start();
    browser.open(&format!("{}/docs/", server.url()));
    let absent = browser.evaluate("document.querySelector('#program').textContent");
    assert!(absent.as_str().expect("text").contains("$TINTYPE_KEY"), "{absent}");
    browser.paste(KEY_FIELD, &key);
    let prompt = "a boat's \"wake\" $(id) \\n é";
    browser.paste("document.querySelector('#prompt')", prompt);
    browser.click("document.querySelector('#tab-curl')");
    let folder = TempDir::new().expect("a directory");
    let mut programs = vec![];
    for (interpreter, flags) in
        [("sh", vec!["-c"]), ("python3", vec!["-c"]), ("node", vec!["--input-type=module", "-e"])]
    {
        let program = browser.evaluate("document.querySelector('#program').textContent");
        // Right of the last tab is nothing more.
        browser.press("ArrowRight");
        let Value::String(program) = program else { panic!("no program: {program}") };
        let mut command = Command::new(interpreter);
        command.args(flags).arg(program).current_dir(folder.path());
        programs.push(std::thread::spawn(move || run(&mut command)));
    }
    for program in programs {
        let said = program.join().expect("a program that ends well");
        let name = said.trim().strip_prefix("saved ").unwrap_or_else(|| panic!("nothing saved: {said}"));
        assert!(std::fs::read(folder.path().join(name)).expect("an image").starts_with(b"\x89PNG"), "{said}");
    }
    assert_quiet(&browser, &server);
    server.stop();
}
