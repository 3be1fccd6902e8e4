//! `tintype mcp`: carries messages between an agent, over standard input and output, and the tools of a server.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use clap::Args;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tintype_client::{Client, ClientError, Labels};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Stdin};
use tokio::task::{AbortHandle, JoinSet};

use super::complain;
use super::following::{self, Stop};
use tintype_config::{ClientSettings, MAX_BODY};
use tintype_system::locked::Locked as _;

const PARSE_ERROR: i64 = -32700;
const SERVER_ERROR: i64 = -32000;
/// Where a self-contained request names the protocol version.
const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";

#[derive(Debug, Args)]
pub(super) struct McpArgs {
    #[command(flatten)]
    server: ClientSettings,
}

/// The agent at the other end of standard input and output.
#[derive(Debug)]
struct Agent {
    client: Client,
    url: String,
    /// The revision of the protocol that agent and server agreed on.
    agreed: Mutex<Option<String>>,
}

/// Carries messages until the agent closes standard input and has all answers.
pub(super) async fn run(args: McpArgs) -> ExitCode {
    let client = match following::client(&args.server) {
        Ok(client) => client,
        Err(Stop(code, message)) => {
            complain(&format!("tintype: {message}"));
            return ExitCode::from(code);
        }
    };
    let agent = Arc::new(Agent { client, url: args.server.url, agreed: Mutex::default() });
    let mut input = BufReader::new(tokio::io::stdin());
    let mut calls = JoinSet::new();
    let mut abandon: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        let mut line = Vec::new();
        // One byte more reveals a message that is too long.
        let read = (&mut input).take(MAX_BODY as u64 + 1).read_until(b'\n', &mut line).await;
        match read {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                complain(&format!("tintype: cannot read standard input: {error}"));
                return ExitCode::FAILURE;
            }
        }
        if line.len() > MAX_BODY {
            print(&failure(&Value::Null, PARSE_ERROR, "A message must not be longer than 512 KiB."));
            if skip_line(&mut input, &line).await.is_err() {
                break;
            }
            continue;
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Ok(message) = serde_json::from_slice::<Value>(&line) else {
            print(&failure(&Value::Null, PARSE_ERROR, "This line is not JSON."));
            continue;
        };
        if message["method"] == "notifications/cancelled" {
            // The server sees the disconnect. The task of the call continues.
            abandon.remove(&message["params"]["requestId"].to_string()).inspect(AbortHandle::abort);
            continue;
        }
        // The server asks the agent nothing, so it takes no responses, and a response to one would look like an answer.
        if message.get("method").is_none() && (message.get("result").is_some() || message.get("error").is_some()) {
            continue;
        }
        let id = message["id"].to_string();
        let call = calls.spawn(agent.clone().carry(message));
        abandon.retain(|_, call| !call.is_finished());
        abandon.insert(id, call);
        while calls.try_join_next().is_some() {}
    }
    while calls.join_next().await.is_some() {}
    ExitCode::SUCCESS
}

/// Skips the rest of a line that begins with `read`.
async fn skip_line(input: &mut BufReader<Stdin>, read: &[u8]) -> io::Result<()> {
    let mut ended = read.ends_with(b"\n");
    while !ended {
        let part = input.fill_buf().await?;
        let end = part.iter().position(|byte| *byte == b'\n');
        ended = end.is_some() || part.is_empty();
        let length = end.map_or(part.len(), |end| end + 1);
        input.consume(length);
    }
    Ok(())
}

impl Agent {
    /// Sends a message to the server, and its answers to the agent.
    async fn carry(self: Arc<Self>, message: Value) {
        let (id, method) = (message.get("id").cloned(), message["method"].as_str().unwrap_or_default());
        let own = message["params"]["_meta"][META_VERSION].as_str().map(str::to_owned);
        // The handshake is about the revision, so it names none.
        let version = own.or_else(|| (method != "initialize").then(|| self.agreed()).flatten());
        let labels = Labels {
            protocol_version: version.as_deref(),
            method: message["method"].as_str(),
            name: message["params"]["name"].as_str(),
        };
        let mut answered = id.is_none();
        let sent = self.client.send_message(message.to_string(), labels, |answer| {
            if method == "initialize" {
                self.agree(answer);
            }
            answered |= is_answer(answer, id.as_ref());
            print(answer);
        });
        let message = match sent.await {
            Err(error) => self.explain(method, &error),
            // The stream of messages has ended early.
            Ok(()) if !answered => self.explain(method, &ClientError::NoAnswer("its end is missing".into())),
            Ok(()) => return,
        };
        match id {
            Some(_) if answered => {}
            Some(id) => print(&failure(&id, SERVER_ERROR, &message)),
            None => complain(&format!("tintype: {message}")),
        }
    }

    fn explain(&self, method: &str, error: &ClientError) -> String {
        match error {
            ClientError::Refused(refusal) => refusal.message.clone(),
            ClientError::NoAnswer(_) if method == "tools/call" => {
                format!("{}: {error}; a task may exist: call list_tasks before generate_image", self.url)
            }
            other => format!("{}: {other}", self.url),
        }
    }

    fn agreed(&self) -> Option<String> {
        self.agreed.locked().clone()
    }

    fn agree(&self, answer: &str) {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        if let Some(version) = answer["result"]["protocolVersion"].as_str() {
            *self.agreed.locked() = Some(version.to_owned());
        }
    }
}

/// Whether a message is the answer to a request, and not one on the way to it.
fn is_answer(message: &str, id: Option<&Value>) -> bool {
    #[derive(Deserialize)]
    struct Head {
        id: Option<Value>,
        method: Option<IgnoredAny>,
    }
    serde_json::from_str(message).is_ok_and(|head: Head| head.method.is_none() && head.id.as_ref() == id)
}

fn failure(id: &Value, code: i64, message: &str) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } }).to_string()
}

/// Writes one message. An agent that is gone also closes standard input, which ends the command.
fn print(message: &str) {
    let mut output = io::stdout().lock();
    drop(writeln!(output, "{message}").and_then(|()| output.flush()));
}
