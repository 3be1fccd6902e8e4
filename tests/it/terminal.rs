//! Prompts and names reach an operator's terminal without what it would act on.

use serde_json::json;
use tintype_store::sqlite;
use tintype_system::clock::Clock;

use crate::rigs::binary::{Ran as _, Server, json, printed, run};
use crate::rigs::http::submit_body;

const ACTING: [char; 3] = ['\u{9b}', '\u{202e}', '\u{200b}'];

#[tokio::test]
async fn no_command_prints_a_character_that_a_terminal_acts_on() {
    let (data, server, key) = Server::install(&[]);
    let prompt = "a boat\u{9b}31m \u{202e}tfarc\u{200b} [[fail]]";
    let task = submit_body(&server, &key, &json!({ "prompt": prompt })).await;
    let name = "ada\u{202e}gpj";
    // No command makes such a name now.
    let store = sqlite::open(&data.path().join("tintype.db"), Clock::system()).expect("a store");
    store.create_account(name, 5).await.expect("a store");
    json(data.path(), &["key", "create", "--account", "default", "--name", "ship\u{202e}\u{200b}s"]);
    json(data.path(), &["credits", "grant", "default", "5", "--note", "gift\u{202e}"]);
    let commands: [&[&str]; 8] = [
        &["task", "show", &task],
        &["task", "list"],
        &["account", "list"],
        &["key", "list"],
        &["person", "list"],
        &["credits", "history", "default"],
        &["usage", "--by", "key"],
        &["credits", "grant", name, "1"],
    ];
    for command in commands {
        let json: Vec<&str> = command.iter().copied().chain(["--json"]).collect();
        for arguments in [command, &json] {
            let output = run(data.path(), arguments);
            assert!(output.status.success(), "{arguments:?}: {output:?}");
            let all = [output.stdout.as_slice(), &output.stderr].concat();
            let text = String::from_utf8(all).expect("text");
            assert!(!text.contains(ACTING), "{arguments:?}: {text:?}");
        }
    }
    let shown = printed(&run(data.path(), ["task", "show", &task, "--json"]));
    assert_eq!(shown["request"]["prompt"], prompt, "JSON keeps its meaning");
    let listed = run(data.path(), ["account", "list"]).text();
    assert!(listed.contains("ada\\u{202e}gpj"), "{listed}");
    let refused = run(data.path(), ["credits", "balance", "no\u{202e}body"]);
    assert!(!refused.status.success() && !refused.errors().contains(ACTING), "{refused:?}");
    server.stop();
}
