//! The snippets of a picture's page, run as a person would who copies them.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;
use tintype_domain::model::{Id, Surface};

use super::Visitor;
use crate::rigs::binary::Ran as _;
use crate::rigs::debian;
use crate::rigs::service::Service;

/// Quotes of every kind, words of the templates, the end of the here-document, and characters that show nothing, turn the
/// text, or lie above U+FFFF.
const NASTY: &str = "it's \"quoted\" $(id) `id` $HOME ${x} \\ \\n %s {0} </script> <!-- \r\n\nJSON\n BASE REQUEST \t\u{7f}\u{85}\u{a0}\u{ad}\u{200b}\u{202e}\u{2066}\u{2028}\u{feff}\u{fe0f}\u{e0041}\u{e007f}\u{10fffd} 海 🚢 é !";

/// The snippets of a page, as its button copies them: the name of each language with its text.
fn snippets(page: &str) -> Vec<(String, String)> {
    let snippet = |part: &str| {
        let (name, rest) = part.split_once("</summary>").expect("a name");
        let (_, rest) = rest.split_once("data-copy=\"").expect("a text");
        let (text, _) = rest.split_once('"').expect("its end");
        let entities = [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">"), ("&#38;", "&")];
        let plain = entities.iter().fold(text.to_owned(), |text, (entity, plain)| text.replace(entity, plain));
        (name.to_owned(), plain)
    };
    page.split("<details class=\"snippet\"><summary>").skip(1).map(snippet).collect()
}

/// The program that reads a snippet from its standard input.
fn program(language: &str) -> Command {
    let mut command = match language {
        "curl" => {
            debian::needs("curl", "curl");
            Command::new("sh")
        }
        "Python" => Command::new("python3"),
        "JavaScript" => {
            debian::needs("node", "nodejs");
            Command::new("node")
        }
        other => panic!("{other} is not known"),
    };
    // Python reads a whole program from its standard input only if it is told so.
    if language == "Python" {
        command.arg("-");
    }
    command
}

/// Copies a snippet of the task's page, runs it until the task that it makes has ended, and returns that task's prompt, the
/// output, and the folder in which it ran.
async fn run(ada: &Visitor, id: Id, language: &str) -> (String, Output, TempDir) {
    let service = &ada.service;
    let snippets = snippets(&ada.page(&format!("/studio/tasks/{id}")).await);
    assert_eq!(snippets.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["curl", "Python", "JavaScript"]);
    let (_, snippet) = snippets.into_iter().find(|(name, _)| name == language).expect("a snippet");
    let caller = service.caller(&format!("{language} {id}"), 10).await;
    let mut command = program(language);
    let folder = TempDir::new().expect("a directory");
    command.current_dir(folder.path()).env("TINTYPE_KEY", &caller.key).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = command.stdin(Stdio::piped()).spawn().expect("it starts");
    let said = tokio::task::spawn_blocking(move || {
        running.stdin.take().expect("its input").write_all(snippet.as_bytes()).expect("it reads");
        running.wait_with_output().expect("its output")
    });
    let store = &service.shared.store;
    let task = loop {
        // Looked at first: a program that does not wait ends as soon as the task is there.
        let ended = said.is_finished();
        let tasks = store.list_tasks(caller.account.id, Surface::Api, None, 1).await.expect("a store");
        if let Some(task) = tasks.first() {
            break task.id;
        }
        assert!(!ended, "{language}: {:?}", said.await);
        tokio::task::yield_now().await;
    };
    service.work().await;
    let output = said.await.expect("no panic");
    let sent = store.inspect_task(task).await.expect("a store").expect("a task");
    (sent.request.prompt, output, folder)
}

/// The message in which a program ended.
#[track_caller]
fn failure(output: &Output) -> String {
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(1), true), "{output:?}");
    output.errors().trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_snippets_send_the_same_task() {
    let (_, ada) = Service::with_visitor(&[], 100).await;
    let id = ada.finished(NASTY).await;
    for language in ["curl", "Python", "JavaScript"] {
        let (prompt, output, folder) = run(&ada, id, language).await;
        assert!(output.status.success(), "{language}: {output:?}");
        assert_eq!(prompt, NASTY, "{language}");
        let said = output.text();
        let name = said.trim().strip_prefix("saved ").unwrap_or_else(|| panic!("{language}: {output:?}"));
        let saved = std::fs::read(folder.path().join(name)).expect("an image");
        assert!(saved.starts_with(b"\x89PNG"), "{language}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "{language} left something");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_snippets_end_an_error_in_a_message() {
    let (_, ada) = Service::with_visitor(&[], 100).await;
    let id = ada.finished("a boat [[fail]]").await;
    let page = ada.page(&format!("/studio/tasks/{id}")).await;
    for language in ["curl", "Python", "JavaScript"] {
        let (_, output, _folder) = run(&ada, id, language).await;
        let failed = failure(&output);
        assert!(failed.ends_with('.') && !failed.contains(['{', '\n']), "{language}: {failed}");
        let (_, snippet) = snippets(&page).into_iter().find(|(name, _)| name == language).expect("a snippet");
        let mut command = program(language);
        command.env_remove("TINTYPE_KEY").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = command.spawn().expect("it starts");
        let ended = tokio::task::spawn_blocking(move || {
            running.stdin.take().expect("its input").write_all(snippet.as_bytes()).expect("it reads");
            running.wait_with_output().expect("its output")
        });
        let refused = failure(&ended.await.expect("no panic"));
        assert!(refused.starts_with("A valid API key is required: "), "{language}: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_command_with_a_long_prompt_starts() {
    let (_, ada) = Service::with_visitor(&[], 100).await;
    // 150 kB when escaped; Linux takes at most 128 KiB in one argument of a program.
    let long = format!("a boat{}", "\u{200b}".repeat(25_000));
    let id = ada.finished(&long).await;
    let (prompt, output, _folder) = run(&ada, id, "curl").await;
    assert_eq!((prompt, output.status.success()), (long, true));
}
