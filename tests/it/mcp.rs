//! The Model Context Protocol: tools for agents, over HTTP and over standard input and output.

use std::io::Write as _;
use std::process::{Command, Stdio};

use hyper::StatusCode;
use serde_json::{Value, json};
use tintype::service::waiters::MAX_SLOTS_OF_ACCOUNT;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::rigs::binary::{Ran as _, Server, TINTYPE, tintype};
use crate::rigs::faulty_http::{self, Reply};
use crate::rigs::http::Answer;
use crate::rigs::packages::{javascript, python, run};
use crate::rigs::service::{Caller, Service};
use crate::rigs::wait::until;
use crate::tidy::root;

impl Caller {
    /// Sends a message to the tools, as a client that keeps nothing does.
    pub async fn message(&self, message: &Value, headers: &[(&str, &str)]) -> Answer {
        let headers = [&[("accept", "application/json, text/event-stream")], headers].concat();
        self.post_json("/mcp", &headers, message.to_string()).await
    }

    /// Calls a tool; returns its result.
    pub async fn tool(&self, name: &str, arguments: &Value) -> Value {
        let params = json!({ "name": name, "arguments": arguments });
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        self.result(&message).await
    }

    /// Sends a message; returns the result in the answer.
    pub async fn result(&self, message: &Value) -> Value {
        let answer = self.message(message, &[]).await;
        assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, "text/event-stream"), "{answer:?}");
        let text = String::from_utf8_lossy(&answer.body);
        let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().expect("an event");
        serde_json::from_str::<Value>(data).expect("JSON")["result"].take()
    }
}

/// The task in a tool's result. Agents such as Codex and Claude Code show structured content in place of the images and of
/// the advice, so there is none.
pub fn task_in(result: &Value) -> Value {
    assert!(result["structuredContent"].is_null(), "{result}");
    let text = result["content"][0]["text"].as_str().expect("a text");
    serde_json::from_str(text).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_uses_the_tools_over_http_and_over_standard_input_and_output() {
    let service = Service::start().await;
    let (caller, poor) = (service.caller("ada", 100).await, service.caller("eve", 0).await);
    let (mut program, _folder) = javascript("mcp_calls.mjs", &["mcp_agent.mjs"]);
    program.args([&format!("http://{}", service.address), &caller.key, &poor.key, TINTYPE]);
    let said = tokio::task::spawn_blocking(move || run(&mut program));
    service.work_for(&said).await;
    let said: Value = serde_json::from_str(&said.await.expect("no panic")).expect("JSON");
    let mut credits = 100;
    for (seen, version) in said["seen"].as_array().expect("a list").iter().zip(["2025", "2026"].into_iter().cycle()) {
        credits -= 4;
        assert!(seen["version"].as_str().is_some_and(|seen| seen.starts_with(version)), "{seen}");
        assert_eq!(seen["tools"], json!(["generate_image", "get_task", "list_tasks", "get_credits"]));
        assert_eq!(seen["made"], json!(["text", "image/jpeg ffd8ff", "image/jpeg ffd8ff"]));
        assert_eq!(seen["task"], json!(["completed", 2, null]));
        assert_eq!(seen["again"], json!(["text", "image/png 89504e", "image/png 89504e"]));
        assert_eq!((&seen["listed"], &seen["credits"]), (&json!(true), &json!(credits)), "{seen}");
        assert_eq!(seen["refused"], json!([true, "INVALID_REQUEST: n must be an integer from 1 to 4."]));
        assert_eq!(seen["wait"], json!([true, "wait_seconds must be an integer from 0 to 60."]));
        assert_eq!(seen["unknown"], json!([true, "NOT_FOUND: There is no such task."]));
        assert_eq!(seen["foreign"], "NOT_FOUND: There is no such task.");
        assert_eq!(seen["poor"], "INSUFFICIENT_CREDITS: This task costs 2 credits and the account has 0.");
        assert_eq!(seen["tool"], -32602);
    }
    for refusal in said["wrong"].as_array().expect("a list") {
        assert!(refusal.as_str().is_some_and(|refusal| refusal.contains("A valid API key is required")), "{refusal}");
    }
    assert_eq!(caller.credits().await, credits);
}

/// Gemini refuses all tools of a server if one choice has no type (gemini-cli, issue 4400), and OpenAI each such tool.
#[tokio::test]
async fn every_property_of_every_tool_has_a_type() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    let listed = caller.result(&json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" })).await;
    let mut seen = 0;
    for tool in listed["tools"].as_array().expect("tools") {
        for (name, property) in tool["inputSchema"]["properties"].as_object().expect("properties") {
            // gemini-cli#2237, oh-my-pi#206: a format other than `date-time` is refused, with all tools.
            let is_plain = property["type"].is_string() && !property.to_string().contains("\"format\"");
            assert!(is_plain, "{name} of {tool}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{listed}");
}

#[tokio::test]
async fn params_of_another_kind_are_invalid_and_only_other_methods_unknown() {
    let (_, caller) = Service::with_caller(&[], 10).await;
    for (method, params, code) in [
        ("tools/call", json!({ "name": "generate_image", "arguments": [] }), -32602),
        ("tools/call", json!({ "arguments": {} }), -32602),
        ("tools/draw", json!({}), -32601),
    ] {
        let message = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let answer = caller.message(&message, &[]).await;
        assert!(String::from_utf8_lossy(&answer.body).contains(&format!("\"code\":{code}")), "{method}: {answer:?}");
    }
    let listed = caller.tool("list_tasks", &json!({ "limit": 2.0 })).await;
    assert_eq!(listed["structuredContent"]["items"], json!([]), "{listed}");
    let refused = caller.tool("generate_image", &json!({ "prompt": "a boat", "preset": "fast" })).await;
    assert_eq!(refused["content"][0]["text"], "There is no preset \"fast\". This server has none.");
}

#[test]
fn the_official_client_of_python_takes_four_large_images() {
    let (_data, server, key) = Server::install(&[]);
    let mut program = Command::new(python().join("python"));
    program.arg("-B").arg(root().join("tests/it/clients/mcp_calls.py")).args([&server.url(), &key, TINTYPE]);
    let said: Value = serde_json::from_str(&run(&mut program)).expect("JSON");
    let calls = said["calls"].as_array().expect("a list");
    for (seen, version) in calls.iter().zip(["2025", "2026"].into_iter().cycle()) {
        assert!(seen["version"].as_str().is_some_and(|seen| seen.starts_with(version)), "{seen}");
        assert_eq!((&seen["tools"], &seen["images"]), (&json!(4), &json!(vec!["ffd8ff"; 4])), "{seen}");
        assert!(seen["bytes"].as_u64().is_some_and(|bytes| bytes < 1 << 20), "{seen}");
        assert_eq!(seen["same"], true);
        assert_eq!(seen["refused"], json!([true, "INVALID_REQUEST: n must be an integer from 1 to 4."]));
    }
    assert_eq!(calls.len(), 4, "{said}");
    let refusal = said["refusal"].as_str().expect("text");
    assert!(refusal.contains("A valid API key is required"), "{refusal}");
    server.stop();
}

#[tokio::test]
async fn images_that_are_encoded_for_a_call_count_as_reads() {
    let (service, caller) = Service::with_caller(&["--read-rate", "6"], 10).await;
    // Each call is a read, and so is each image: 1, then 1 and 3.
    let made = caller.tool("generate_image", &json!({ "prompt": "a boat", "n": 3, "wait_seconds": 0 })).await;
    let id = &task_in(&made)["task_id"];
    service.work().await;
    let shown = caller.tool("get_task", &json!({ "task_id": id })).await;
    assert_eq!(shown["content"].as_array().map(Vec::len), Some(4), "{shown}");
    let refused = caller.tool("get_task", &json!({ "task_id": id })).await;
    assert_eq!((refused["isError"].as_bool(), &task_in(&refused)["status"]), (Some(false), &json!("completed")));
    let message = refused["content"][1]["text"].as_str().expect("text");
    assert!(message.contains("they are at their URLs. RATE_LIMITED: "), "{refused}");
}

#[tokio::test]
async fn no_session_is_kept_that_another_key_could_use() {
    let service = Service::start().await;
    let (ada, eve) = (service.caller("ada", 10).await, service.caller("eve", 7).await);
    let client = json!({ "name": "agent", "version": "1" });
    let params = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let answer = ada.message(&hello, &[]).await;
    assert_eq!((answer.status, answer.headers.contains_key("mcp-session-id")), (StatusCode::OK, false), "{answer:?}");
    // The key of the message counts, whatever session it names.
    let call = json!({ "name": "get_credits", "arguments": {} });
    let call = json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call });
    let answer = eve.message(&call, &[("mcp-session-id", "a-session-of-ada")]).await;
    assert!(String::from_utf8_lossy(&answer.body).contains("\"credits\":7"), "{answer:?}");
}

/// The output of `tintype mcp` for one call, when the server answers with these events.
async fn carried(events: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let program = tokio::task::spawn_blocking(move || {
        let call = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": { "name": "generate_image" } });
        let mut program = tintype();
        program.arg("mcp").envs([("TINTYPE_URL", url.as_str()), ("TINTYPE_KEY", "tt_any")]);
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        writeln!(program.stdin.take().expect("a pipe"), "{call}").expect("it reads");
        program.wait_with_output().expect("it ends").text()
    });
    let (mut stream, _) = listener.accept().await.expect("a connection");
    faulty_http::read(&mut stream).await.expect("a request");
    let kind = ("content-type", "text/event-stream".to_owned());
    faulty_http::answer(stream, Reply::Whole(200, vec![kind], events.into_bytes())).await;
    program.await.expect("no panic")
}

#[test]
fn a_response_of_the_agent_gets_no_answer() {
    let mut program = tintype();
    program.arg("mcp").envs([("TINTYPE_URL", "http://127.0.0.1:1"), ("TINTYPE_KEY", "tt_any")]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let responses = r#"{"jsonrpc":"2.0","id":7,"result":{}}
{"jsonrpc":"2.0","id":8,"error":{"code":-32601,"message":"no"}}"#;
    writeln!(program.stdin.take().expect("a pipe"), "{responses}").expect("it reads");
    assert_eq!(program.wait_with_output().expect("it ends").text(), "");
}

#[tokio::test]
async fn an_answer_that_is_cut_short_or_too_long_is_an_error_for_the_agent() {
    let report = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1}}"#;
    let said = carried(format!("data: {report}\n\n")).await;
    let (first, last) = said.trim().split_once('\n').expect("two messages");
    assert_eq!(first, report);
    assert!(last.contains("\"id\":7") && last.contains("a task may exist: call list_tasks"), "{last}");
    let said = carried(format!(":{}\n\n", "x".repeat(1 << 20)).repeat(65)).await;
    assert!(said.contains("\"id\":7") && said.contains("it is longer than 64 MiB; a task may exist"), "{said}");
    let answer = r#"{"jsonrpc":"2.0","id":7,"result":{}}"#;
    assert_eq!(carried(format!("data: {answer}\n\n")).await.trim(), answer);
}

#[tokio::test]
async fn a_call_that_waits_reports_how_far_its_task_is() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let params = json!({
        "name": "generate_image", "arguments": { "prompt": "a boat" }, "_meta": { "progressToken": "mine" },
    });
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let mut stream = TcpStream::connect(service.address).await.expect("it listens");
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
         accept: application/json, text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{message}",
        service.address,
        caller.authorization(),
        message.len()
    );
    stream.write_all(head.as_bytes()).await.expect("a connection");
    let mut said = String::new();
    while !said.contains("place 1 in your queue") {
        let mut bytes = [0; 4_096];
        let read = stream.read(&mut bytes).await.expect("an answer");
        assert!(read > 0, "{said}");
        said.push_str(&String::from_utf8_lossy(&bytes[..read]));
    }
    assert!(said.contains("notifications/progress") && said.contains("\"progressToken\":\"mine\""), "{said}");
    assert!(!said.contains("\"result\""), "{said}");
    service.work().await;
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.expect("an answer");
    assert!(rest.contains("\"result\"") && rest.contains("image/jpeg"), "{} bytes", rest.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_official_client_cancels_leaves_a_task_that_goes_on() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    let (mut program, _folder) = javascript("mcp_cancels.mjs", &["mcp_agent.mjs"]);
    program.args([&format!("http://{}", service.address), &caller.key, &caller.key, TINTYPE]);
    let said = tokio::task::spawn_blocking(move || run(&mut program)).await.expect("no panic");
    service.waiting(0).await;
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let mut tasks: Vec<_> = said.as_array().expect("a list").iter().map(|seen| seen["task"].clone()).collect();
    for seen in said.as_array().expect("a list") {
        assert_eq!((&seen["cancelled"], &seen["status"]), (&json!(true), &json!("processing")), "{said}");
    }
    service.work().await;
    for task in &tasks {
        assert_eq!(caller.task(task.as_str().expect("an id")).await["status"], "completed");
    }
    tasks.dedup();
    assert_eq!((tasks.len(), caller.credits().await), (4, 92), "each call made one task");
}

#[tokio::test]
async fn a_client_that_hangs_up_during_a_call_finds_its_task_in_the_list_and_by_the_same_call() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let boat = json!({ "prompt": "a boat" });
    tokio::select! {
        made = caller.tool("generate_image", &boat) => panic!("answered: {made}"),
        () = service.waiting(1) => {}
    }
    service.waiting(0).await;
    service.work().await;
    let listed = caller.tool("list_tasks", &json!({})).await;
    let [task] = &listed["structuredContent"]["items"].as_array().expect("tasks")[..] else { panic!("{listed}") };
    assert_eq!(task["status"], "completed");
    let shown = caller.tool("get_task", &json!({ "task_id": task["task_id"] })).await;
    assert_eq!((&shown["content"][1]["type"], caller.credits().await), (&json!("image"), 8), "{shown}");

    // Clients repeat a call that brought no answer. What they ask for once more after an answer is another task.
    let again = caller.tool("generate_image", &boat).await;
    assert_eq!(
        (&task_in(&again)["task_id"], &again["content"][1]["type"]),
        (&task["task_id"], &json!("image")),
        "{again}"
    );
    let other = caller.tool("generate_image", &json!({ "prompt": "a ship", "wait_seconds": 0 })).await;
    let more = caller.tool("generate_image", &json!({ "prompt": "a boat", "wait_seconds": 0 })).await;
    assert_ne!(task_in(&more)["task_id"], task["task_id"], "{more}");
    assert_ne!(task_in(&more)["task_id"], task_in(&other)["task_id"], "{more}");
    assert_eq!(caller.credits().await, 4);
}

/// A client that breaks off has no answer yet, however it wanted that to be coded.
#[tokio::test]
async fn a_client_that_breaks_off_within_an_answer_gets_its_task_by_the_same_call() {
    let (service, caller) = Service::with_caller(&[], 16).await;
    let (boats, memory) =
        (json!({ "prompt": "boats", "n": 4, "images": "png" }), service.api.encoder.memory_of_tools());
    let params = json!({ "name": "generate_image", "arguments": boats });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let begin = async {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4_096).expect("a small buffer");
        let mut stream = socket.connect(service.address).await.expect("the service listens");
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ncontent-type: application/json\r\n\
             accept: application/json\r\naccept-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
            caller.authorization(),
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.expect("the service reads");
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.expect("an answer");
        assert_eq!(&status, b"HTTP/1.1 200");
        stream
    };
    let work = async {
        service.waiting(1).await;
        service.work().await;
    };
    let (stream, ()) = tokio::join!(begin, work);
    assert!(memory.used() > 0, "what is not sent counts as memory");
    drop(stream);
    until(async || memory.used() == 0).await;
    let again = caller.tool("generate_image", &boats).await;
    assert_eq!((&task_in(&again)["status"], caller.credits().await), (&json!("completed"), 8), "{again}");
}

#[tokio::test]
async fn a_call_beyond_those_of_its_account_that_may_wait_returns_its_task_at_once() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let waiters = &service.shared.endings.waiters;
    let _held: Vec<_> = (0..MAX_SLOTS_OF_ACCOUNT).map(|_| waiters.slot(caller.account.id).expect("room")).collect();
    let made = caller.tool("generate_image", &json!({ "prompt": "a boat" })).await;
    assert_eq!((&task_in(&made)["status"], &made["isError"]), (&json!("processing"), &json!(false)), "{made}");
    assert!(made["content"][1]["text"].as_str().is_some_and(|advice| advice.contains("get_task")), "{made}");
}

#[tokio::test]
async fn a_tool_that_does_not_wait_returns_the_task_and_says_how_to_go_on() {
    let (service, caller) = Service::with_caller(&[], 10).await;
    let made = caller.tool("generate_image", &json!({ "prompt": "a boat", "wait_seconds": 0, "oddity": 1 })).await;
    assert_eq!(task_in(&made)["status"], "processing", "{made}");
    assert!(made["content"][1]["text"].as_str().is_some_and(|advice| advice.contains("get_task")), "{made}");
    let task = task_in(&made);
    let id = task["task_id"].as_str().expect("an id");
    service.work().await;
    let bare = caller.tool("get_task", &json!({ "task_id": id, "images": "none" })).await;
    assert_eq!((bare["content"].as_array().map(Vec::len), bare["isError"].as_bool()), (Some(1), Some(false)), "{bare}");
    assert_eq!(caller.task(id).await, task_in(&bare), "the same task as in the native API");

    let failing = caller.tool("generate_image", &json!({ "prompt": "a boat [[fail]]", "wait_seconds": 0 })).await;
    service.work().await;
    let id = &task_in(&failing)["task_id"];
    let failed = caller.tool("get_task", &json!({ "task_id": id })).await;
    let json = failed["content"][1]["text"].as_str().expect("a text");
    assert!(failed["isError"] == true && json.contains("\"status\": \"failed\""), "{failed}");
    assert!(failed["content"][0]["text"].as_str().is_some_and(|text| text.contains("failed: ")), "{failed}");
    assert_eq!(caller.credits().await, 8);
}

#[tokio::test]
async fn a_tool_does_not_wait_for_a_task_that_does_not_exist() {
    let service = Service::start_on_sqlite(&[]).await;
    let caller = service.caller("ada", 0).await;
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let arguments = json!({ "task_id": "imgmodel-AAAAAAAAAAAAAAAAAAAAA", "wait_seconds": 60 });
    let found = caller.tool("get_task", &arguments).await;
    assert_eq!(found["content"][0]["text"], "NOT_FOUND: There is no such task.");
    assert_eq!((begun.elapsed().as_secs(), service.shared.endings.waiters.slots()), (0, 0));
}

#[tokio::test]
async fn tools_keep_the_limits_of_the_key() {
    let (_, caller) = Service::with_caller(&["--submit-rate", "1"], 10).await;
    let boat = json!({ "prompt": "a boat", "wait_seconds": 0 });
    assert_eq!(caller.tool("generate_image", &boat).await["isError"], false);
    let refused = caller.tool("generate_image", &boat).await;
    let message = refused["content"][0]["text"].as_str().expect("text");
    assert!(message.starts_with("RATE_LIMITED") && message.ends_with("Retry after 60 s."), "{refused}");
    assert_eq!(caller.credits().await, 8, "one task was charged");
}

/// A program, the path and the headers of its requests, and the type of the answer.
type Program = (&'static str, &'static str, &'static [(&'static str, &'static str)], &'static str);

/// Requests as programs send them that follow a part of the protocol.
const PROGRAMS: [Program; 7] = [
    ("the official clients", "/mcp", &[("accept", "application/json, text/event-stream")], "text/event-stream"),
    ("curl, httpx, requests", "/mcp", &[("accept", "*/*")], "application/json"),
    ("axios", "/mcp", &[("accept", "application/json, text/plain, */*")], "application/json"),
    ("Go's net/http, which sends none (mcptools, issue 69)", "/mcp", &[], "application/json"),
    (
        "clients for JSON alone (dify-plugin-tools-mcp_sse, issue 70)",
        "/mcp",
        &[("accept", "application/json")],
        "application/json",
    ),
    (
        "clients for streams alone (composio, issue 2152)",
        "/mcp",
        &[("accept", "text/event-stream")],
        "text/event-stream",
    ),
    (
        "gateways that complete the path (fastmcp, issue 1867; mcpo, issue 209)",
        "/mcp/",
        &[("accept", "*/*")],
        "application/json",
    ),
];

#[tokio::test]
async fn programs_that_follow_a_part_of_the_protocol_get_their_answers() {
    let (service, caller) = Service::with_caller(&[], 100).await;
    for (what, path, headers, kind) in PROGRAMS {
        let params = json!({ "name": "get_credits", "arguments": null, "_meta": { "progressToken": 7 } });
        let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
        let answer = caller.post_json(path, headers, call).await;
        assert_eq!((answer.status, answer.header("content-type")), (StatusCode::OK, kind), "{what}: {answer:?}");
        assert!(String::from_utf8_lossy(&answer.body).contains("\"credits\":100"), "{what}: {answer:?}");
    }
    // One that takes no stream gets no report before its answer.
    let params = json!({
        "name": "generate_image", "arguments": { "prompt": "a boat", "images": "none" }, "_meta": { "progressToken": 7 },
    });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let answer = service.worked(caller.post_json("/mcp", &[("accept", "application/json")], call)).await;
    assert_eq!(task_in(&answer.json()["result"])["status"], "completed", "{answer:?}");
    let json = [("content-type", "application/json")];
    for method in ["GET", "DELETE"] {
        caller.call(method, "/mcp/", &json, "").await.assert_json_rpc_error(405, "INVALID_REQUEST");
        let keyless = service.call(method, "/mcp", &json, "").await;
        keyless.assert_json_rpc_error(401, "UNAUTHORIZED");
        assert_eq!(keyless.header("www-authenticate"), "Bearer");
    }
}

/// Models write null for what they leave out (SparkyFitness, issue 1540), and frameworks for all arguments (keeperhub, issue
/// 2108).
#[tokio::test]
async fn an_argument_that_is_null_or_empty_is_left_out() {
    let (_, caller) = Service::with_caller(&[], 100).await;
    let made = json!({
        "prompt": "a boat", "aspect_ratio": null, "n": null, "reference_images": null, "images": null,
        "wait_seconds": 0.0, "seed": null,
    });
    let made = task_in(&caller.tool("generate_image", &made).await);
    assert_eq!((&made["status"], &made["ignored_fields"]), (&json!("processing"), &Value::Null), "{made}");
    let id = &made["task_id"];
    // oh-my-pi#2981, xum#3893: or an empty text.
    let empty = json!({ "prompt": "a boat", "aspect_ratio": "", "n": "", "wait_seconds": "0", "images": "" });
    assert_eq!(task_in(&caller.tool("generate_image", &empty).await)["status"], "processing");
    // Or a number or a list as text, and one image without a list.
    let quoted = json!({ "prompt": "a boat", "n": "2", "seed": "7", "reference_images": "[]", "wait_seconds": 0 });
    assert_eq!(task_in(&caller.tool("generate_image", &quoted).await)["type"], "text-to-image");
    assert_eq!(caller.credits().await, 92);
    for (name, value, expected) in [
        ("n", json!("two"), "n must be an integer from 1 to 4."),
        ("n", json!("1.0000000000000000001"), "n must be an integer from 1 to 4."),
        ("reference_images", json!("http://example.com/a.png"), "reference_images[0] must use the https:// scheme."),
    ] {
        let refused = caller.tool("generate_image", &json!({ "prompt": "a boat", name: value })).await;
        assert_eq!(refused["content"][0]["text"], format!("INVALID_REQUEST: {expected}"));
    }
    let found = json!({ "task_id": id, "wait_seconds": null, "images": null });
    assert_eq!(caller.tool("get_task", &found).await["isError"], false);
    let listed = caller.tool("list_tasks", &json!({ "limit": null, "cursor": null })).await;
    assert_eq!(&listed["structuredContent"]["items"][2]["task_id"], id, "{listed}");
    let refused = caller.tool("generate_image", &json!({ "prompt": null })).await;
    assert_eq!(refused["content"][0]["text"], "INVALID_REQUEST: prompt is required.");
}

#[tokio::test]
async fn a_page_of_this_server_is_of_its_own_origin() {
    let named = Service::start_with(&["--public-url", "https://images.example.com"]).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    let caller = named.caller("ada", 0).await;
    let address = named.address.to_string();
    for (origin, status) in [
        (format!("http://{address}"), 200),
        ("https://images.example.com".into(), 200),
        ("https://IMAGES.example.com".into(), 200),
        ("https://images.example.com:8443".into(), 403),
        ("http://127.0.0.1:1".into(), 403),
        (address, 403),
    ] {
        assert_eq!(caller.message(&ping, &[("origin", &origin)]).await.status.as_u16(), status, "{origin}");
    }
    // A name that only the request knows may have been made to point here.
    let request = hyper::Request::post("/mcp").header("host", "evil.example.com:80");
    let request =
        request.header("origin", "http://evil.example.com:80").header("authorization", caller.authorization());
    let request = request.header("content-type", "application/json");
    let body = http_body_util::Full::new(bytes::Bytes::from(ping.to_string()));
    named.send(request.body(body).expect("a request")).await.assert_json_rpc_error(403, "INVALID_REQUEST");
}

#[tokio::test]
async fn a_message_that_is_none_is_refused_and_so_is_a_page_of_another_site() {
    let (_, caller) = Service::with_caller(&["--cors-origin", "https://app.example.com"], 10).await;
    let ping = json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" });
    assert_eq!(caller.message(&ping, &[("origin", "https://app.example.com")]).await.status, StatusCode::OK);
    for origin in ["https://evil.example.com", "null", "http://app.example.com", "https://app.example.com.evil.example"]
    {
        let refused = caller.message(&ping, &[("origin", origin)]).await;
        refused.assert_json_rpc_error(403, "INVALID_REQUEST");
    }
    for message in
        [json!(null), json!({}), json!([]), json!([ping]), json!({ "jsonrpc": "1.0", "id": 1, "method": "x" })]
    {
        let refused = caller.message(&message, &[]).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{message}: {refused:?}");
        assert!(refused.json()["error"].is_object(), "{message}: {refused:?}");
    }
    let batch = caller.message(&json!([ping]), &[]).await.assert_json_rpc_error(400, "INVALID_REQUEST");
    assert!(batch.contains("must be one message"), "{batch}");
    let listing = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let refused = caller.message(&listing, &[("mcp-protocol-version", "1999-01-01")]).await;
    let message = refused.assert_json_rpc_error(400, "INVALID_REQUEST");
    assert!(message.contains("1999-01-01"), "{message}");
    let version = json!({ "io.modelcontextprotocol/protocolVersion": "2099-01-01" });
    let newer = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": { "_meta": version } });
    let refused = caller.message(&newer, &[("mcp-protocol-version", "2099-01-01")]).await;
    assert_eq!(
        (refused.json()["jsonrpc"].as_str(), refused.json()["id"].as_i64()),
        (Some("2.0"), Some(7)),
        "{refused:?}"
    );
    let call = |params: Value| json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    for params in [json!({ "name": "generate_image", "arguments": [] }), json!({ "name": 1 }), json!("generate_image")]
    {
        let refused = caller.message(&call(params), &[]).await;
        assert!(!String::from_utf8_lossy(&refused.body).contains("\"result\""), "{refused:?}");
    }
    let long = call(json!({ "name": "generate_image", "arguments": { "prompt": "a".repeat(600_000) } }));
    caller.message(&long, &[]).await.assert_json_rpc_error(413, "INVALID_REQUEST");
    let page = caller.post_json("/mcp", &[("accept", "text/html")], ping.to_string()).await;
    page.assert_json_rpc_error(400, "INVALID_REQUEST");
    assert_eq!(caller.credits().await, 10);
}
