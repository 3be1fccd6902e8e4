//! A hub on loopback that speaks the protocol of Hugging Face's, and misbehaves on request.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use crate::rigs::binary::{Ran as _, TINTYPE, run_with, tintype};

pub const REPOSITORY: &str = "painter/Tiny-Model";
/// The name under which it is installed.
pub const NAME: &str = "tiny-model";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The largest file of the model.
pub const WEIGHTS: &str = "unet/diffusion_pytorch_model.safetensors";
pub const WEIGHT_BYTES: usize = 300_000;

/// The list of files, for [`Hub::plan`]. Of the faults only [`Fault::Status`] is for it.
pub const LIST: &str = "";

/// Something that the hub does wrong with one request for a file.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Closes the connection after this number of bytes of the body.
    Cut(usize),
    /// Sends this number of bytes of the body, and then nothing until the hub is gone.
    Hold(usize),
    /// Answers with this status and these headers.
    Status(u16, Vec<(&'static str, String)>),
    /// Changes one byte.
    Wrong,
    /// Announces and sends more bytes than the file has.
    Longer,
    /// Announces and sends fewer bytes than the file has.
    Shorter,
    /// Sends data without a length and without end.
    Endless,
    /// Names another range than the one that it was asked for.
    Elsewhere,
    /// Sends the whole file, whatever part was asked for.
    Whole,
    /// Reads the request and sends nothing.
    Silence,
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub path: String,
    pub headers: HashMap<String, String>,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    /// Sent in place of the list of files.
    list: Option<Vec<u8>>,
    /// Entries beside those of the files.
    more: Vec<Value>,
    faults: HashMap<String, VecDeque<Fault>>,
    /// A request without this token is refused.
    token: Option<String>,
    /// Where files are redirected to.
    store: Option<SocketAddr>,
    asked: Vec<Asked>,
    holding: usize,
}

pub struct Hub {
    pub address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

/// The content of a file that looks random and is always the same.
pub fn content(bytes: usize) -> Vec<u8> {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file in a list of files.
pub fn entry(path: &str, content: &[u8]) -> Value {
    let git = |content: &[u8]| {
        let head = format!("blob {}\0", content.len());
        hexadecimal(&Sha1::new().chain_update(head).chain_update(content).finalize())
    };
    if !path.ends_with(".safetensors") {
        return json!({ "rfilename": path, "size": content.len(), "blobId": git(content) });
    }
    let lfs = json!({ "sha256": hexadecimal(&Sha256::digest(content)), "size": content.len(), "pointerSize": 134 });
    json!({ "rfilename": path, "size": content.len(), "blobId": git(b"a pointer"), "lfs": lfs })
}

impl Hub {
    pub fn start() -> Self {
        let text = |text: &str| text.as_bytes().to_vec();
        let files = BTreeMap::from([
            ("model_index.json".to_owned(), text(r#"{"_class_name": "StableDiffusionPipeline"}"#)),
            ("README.md".to_owned(), text("# A model")),
            ("unet/code.py".to_owned(), text("import os")),
            ("scheduler/scheduler_config.json".to_owned(), text("{}")),
            ("tokenizer/merges.txt".to_owned(), text("a b\n")),
            ("tokenizer/vocab.json".to_owned(), text(r#"{"a": 1}"#)),
            ("unet/config.json".to_owned(), text(r#"{"sample_size": 64}"#)),
            (WEIGHTS.to_owned(), content(WEIGHT_BYTES)),
            ("vae/config.json".to_owned(), text("{ }")),
            ("vae/diffusion_pytorch_model.safetensors".to_owned(), content(5_000)),
        ]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new((Mutex::new(State { files, ..State::default() }), Condvar::new()));
        let shared = state.clone();
        // Ends with the process of the tests.
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                std::thread::spawn(move || answer(stream, &shared));
            }
        });
        Self { address, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().expect("no test panics with the lock")
    }

    /// Does this with the next request for a file.
    pub fn plan(&self, path: &str, fault: Fault) {
        self.state().faults.entry(path.to_owned()).or_default().push_back(fault);
    }

    /// Changes, adds or removes a file.
    pub fn put(&self, path: &str, content: Option<Vec<u8>>) {
        let files = &mut self.state().files;
        match content {
            Some(content) => drop(files.insert(path.to_owned(), content)),
            None => drop(files.remove(path)),
        }
    }

    pub fn send_list(&self, list: Vec<u8>) {
        self.state().list = Some(list);
    }

    pub fn list_more(&self, more: Vec<Value>) {
        self.state().more = more;
    }

    pub fn gate(&self, token: &str) {
        self.state().token = Some(token.to_owned());
    }

    /// Redirects requests for files to another server.
    pub fn redirect_to(&self, store: &Self) {
        self.state().store = Some(store.address);
    }

    /// Every request so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// The ranges that were asked of a file, an empty one for the whole.
    pub fn ranges(&self, path: &str) -> Vec<String> {
        let of_file = |asked: &Asked| asked.path.ends_with(&format!("/{path}"));
        let range = |asked: Asked| asked.headers.get("range").cloned().unwrap_or_default();
        self.asked().into_iter().filter(of_file).map(range).collect()
    }

    /// Waits until the hub holds an answer back.
    pub fn until_held(&self) {
        let (state, changed) = &*self.state;
        let state = state.lock().expect("no test panics with the lock");
        let (_state, waited) = changed
            .wait_timeout_while(state, Duration::from_secs(60), |state| state.holding == 0)
            .expect("no test panics with the lock");
        assert!(!waited.timed_out(), "nobody asked for the file");
    }

    fn variables(&self) -> Vec<(String, String)> {
        vec![("HF_ENDPOINT".into(), format!("http://{}", self.address))]
    }

    /// `tintype model ...` with this hub.
    pub fn run(&self, data: &Path, arguments: &[&str]) -> Output {
        run_with(Path::new(TINTYPE), data, self.variables(), ["model"].iter().chain(arguments))
    }

    /// `tintype model pull` of the small model, with further flags.
    pub fn pull(&self, data: &Path, flags: &[&str]) -> Output {
        self.run(data, &[&["pull", REPOSITORY, "--accept-licence", "--test-pause", "1ms"], flags].concat())
    }

    #[track_caller]
    pub fn pulled(&self, data: &Path, flags: &[&str]) -> PathBuf {
        self.pull(data, flags).succeeded();
        self.assert_whole(data)
    }

    /// A pull that fails, and its reason.
    #[track_caller]
    pub fn refused(&self, data: &Path, flags: &[&str]) -> String {
        let output = self.pull(data, flags);
        assert!(!output.status.success(), "{output:?}");
        assert!(!data.join("models").join(NAME).exists(), "{output:?}");
        output.errors()
    }

    /// Starts a pull, which the caller kills.
    pub fn begin(&self, data: &Path) -> Child {
        let mut command: Command = tintype();
        command.args(["model", "pull", REPOSITORY, "--accept-licence", "--data"]).arg(data);
        command.envs(self.variables()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts")
    }

    /// Checks that the small model is installed as the hub has it.
    #[track_caller]
    pub fn assert_whole(&self, data: &Path) -> PathBuf {
        let folder = data.join("models").join(NAME);
        let names = std::fs::read_dir(data.join("models")).expect("a folder");
        let names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(names, [NAME], "nothing else is left");
        let manifest: Value =
            serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).expect("a manifest")).expect("JSON");
        let listed = manifest["files"].as_array().expect("files").iter();
        let listed: Vec<_> = listed.map(|file| file["path"].as_str().expect("a path").to_owned()).collect();
        for (path, content) in &self.state().files {
            let fetched = !path.ends_with(".md") && !path.ends_with(".py");
            assert_eq!(std::fs::read(folder.join(path)).ok().as_ref(), fetched.then_some(content), "{path}");
            assert_eq!(listed.contains(path), fetched, "{path}");
        }
        folder
    }
}

fn head(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let mut byte = [0; 1];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).expect("a head in ASCII");
    let mut lines = head.lines();
    let target = lines.next()?.split(' ').nth(1)?;
    // A proxy is asked for a whole URL.
    let path = target.strip_prefix("http://").and_then(|rest| rest.split_once('/')).map(|(_, path)| format!("/{path}"));
    let path = path.unwrap_or_else(|| target.to_owned());
    let headers = lines.filter_map(|line| line.split_once(": "));
    Some(Asked { path, headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect() })
}

fn send(stream: &mut TcpStream, status: u16, headers: &[(&str, String)], body: &[u8]) {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("HTTP/1.1 {status} x\r\nconnection: close\r\n{headers}\r\n");
    // The caller may have gone.
    drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)));
}

fn length(bytes: usize) -> (&'static str, String) {
    ("content-length", bytes.to_string())
}

fn answer(mut stream: TcpStream, shared: &(Mutex<State>, Condvar)) {
    let Some(asked) = head(&mut stream) else { return };
    let mut state = shared.0.lock().expect("no test panics with the lock");
    state.asked.push(asked.clone());
    let given = asked.headers.get("authorization").map(String::as_str);
    if state.token.as_ref().is_some_and(|token| given != Some(&format!("Bearer {token}"))) {
        return send(&mut stream, 401, &[length(0)], b"");
    }
    if asked.path.starts_with("/api/models/") {
        if let Some(Fault::Status(status, mut headers)) = state.faults.get_mut(LIST).and_then(VecDeque::pop_front) {
            headers.push(length(0));
            return send(&mut stream, status, &headers, b"");
        }
        let listed = state.files.iter().map(|(path, content)| entry(path, content)).chain(state.more.clone());
        let list = json!({ "sha": COMMIT, "cardData": { "license": "mit" }, "siblings": listed.collect::<Vec<_>>() });
        let list = state.list.clone().unwrap_or_else(|| list.to_string().into_bytes());
        drop(state);
        return send(&mut stream, 200, &[length(list.len())], &list);
    }
    let prefix = format!("/{REPOSITORY}/resolve/{COMMIT}/");
    let path = asked.path.strip_prefix(&prefix).or_else(|| asked.path.strip_prefix("/store/")).unwrap_or_default();
    if let Some(store) = state.store {
        let target = format!("http://{store}/store/{path}");
        return send(&mut stream, 302, &[length(0), ("location", target)], b"");
    }
    let fault = state.faults.get_mut(path).and_then(VecDeque::pop_front);
    let Some(content) = state.files.get(path).cloned() else {
        return send(&mut stream, 404, &[length(0)], b"");
    };
    if let Some(Fault::Hold(_)) = fault {
        state.holding += 1;
        shared.1.notify_all();
    }
    drop(state);
    let from =
        asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    send_file(&mut stream, &content, from, fault);
}

/// Sends a file from byte `from` on, or does something wrong.
fn send_file(stream: &mut TcpStream, content: &[u8], from: Option<usize>, fault: Option<Fault>) {
    let whole = content.len();
    let range = |from: usize| ("content-range", format!("bytes {from}-{}/{whole}", whole - 1));
    let (status, headers, body) = match from.filter(|_| !matches!(fault, Some(Fault::Whole))) {
        Some(from) if from < whole => (206, vec![length(whole - from), range(from)], &content[from..]),
        Some(_) => return send(stream, 416, &[length(0)], b""),
        None => (200, vec![length(whole)], content),
    };
    match fault {
        None | Some(Fault::Whole) => send(stream, status, &headers, body),
        Some(Fault::Cut(bytes)) => send(stream, status, &headers, &body[..bytes.min(body.len())]),
        Some(Fault::Hold(bytes)) => {
            send(stream, status, &headers, &body[..bytes.min(body.len())]);
            // Until the caller has gone.
            drop(stream.read(&mut [0; 1]));
        }
        Some(Fault::Status(status, mut headers)) => {
            headers.push(length(0));
            send(stream, status, &headers, b"");
        }
        Some(Fault::Wrong) => {
            let mut wrong = body.to_vec();
            wrong[0] ^= 1;
            send(stream, status, &headers, &wrong);
        }
        Some(Fault::Longer) => send(stream, 200, &[length(whole + 1)], &[content, b"x"].concat()),
        Some(Fault::Shorter) => send(stream, 200, &[length(whole - 1)], &content[..whole - 1]),
        Some(Fault::Endless) => {
            send(stream, 200, &[], content);
            while stream.write_all(&[0; 65_536]).is_ok() {}
        }
        Some(Fault::Elsewhere) => send(stream, 206, &[length(body.len()), range(1)], body),
        Some(Fault::Silence) => drop(stream.read(&mut [0; 1])),
    }
}
