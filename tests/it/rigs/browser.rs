//! A headless Chromium that opens pages as a person does. It speaks the DevTools protocol over a pipe: messages of JSON,
//! each ended by a zero byte.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rigs::debian;

/// Programs that will do, the first one preferred. Debian's package of the first is installed if there is none.
const PROGRAMS: [&str; 2] = ["chromium-headless-shell", "chromium"];

/// Nothing of these reaches the network or needs a screen. A sandbox of Chromium's own does not run as root.
const FLAGS: [&str; 12] = [
    "--headless",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-crash-reporter",
    "--hide-scrollbars",
];

/// Longest wait for a page: until it has loaded, or fulfils a condition.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a word from the browser, which is silent while a page is awaited.
const SILENCE: Duration = Duration::from_secs(120);
/// Longest wait for its end.
const ENDING: Duration = Duration::from_secs(20);
/// Looks at an element, 20 ms apart, at which it must be in the same place before it is clicked.
const STILL: u32 = 10;

/// A browser with one page and a profile of its own. It ends with the thread that started it at the latest.
pub struct Browser {
    process: Child,
    input: ChildStdin,
    messages: Receiver<Vec<u8>>,
    calls: u64,
    /// The page; commands without one are for the browser.
    session: Option<String>,
    /// The URL of every request that the page sent.
    pub requests: Vec<String>,
    /// Errors on the page: uncaught exceptions, and complaints of the browser such as violations of the page's policy.
    pub errors: Vec<String>,
    loaded: bool,
    /// Whether pages run their scripts.
    scripts: bool,
    _profile: TempDir,
}

pub struct Tab(Option<String>);

impl Browser {
    /// Starts it with an empty page of 1,280 by 900 pixels.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    pub fn start_with(flags: &[&str]) -> Self {
        let profile = TempDir::new().expect("a directory");
        // The protocol is on descriptors 3 and 4. `setpriv`, from util-linux, ends the browser when the test is killed.
        let script = r#"exec setpriv --pdeathsig KILL "$@" 3<&0 4>&1 </dev/null >/dev/null 2>&1"#;
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", program()]).args(FLAGS).args(flags);
        command.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        // Caches of fonts and the like go into the profile.
        command.env("HOME", profile.path()).env("TMPDIR", profile.path());
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        let input = process.stdin.take().expect("a pipe");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let (read, messages) = mpsc::channel();
        std::thread::spawn(move || output.split(0).map_while(Result::ok).try_for_each(|message| read.send(message)));
        let (requests, errors) = (Vec::new(), Vec::new());
        let mut browser = Self {
            process,
            input,
            messages,
            calls: 0,
            session: None,
            requests,
            errors,
            loaded: false,
            scripts: true,
            _profile: profile,
        };
        browser.open_tab("about:blank");
        browser
    }

    /// Opens a page in a tab of its own, which all calls are about from now on. Returns the tab before it, for
    /// [`Browser::turn_to`]. A page may not do this by itself: Chromium takes it for an advertisement.
    pub fn open_tab(&mut self, url: &str) -> Tab {
        let before = self.session.take();
        let page = self.call("Target.createTarget", json!({ "url": url }));
        let attached = json!({ "targetId": page["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", attached);
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
        self.resize(1_280, 900);
        Tab(before)
    }

    /// Makes all calls be about this tab. Returns the one before it.
    pub fn turn_to(&mut self, tab: Tab) -> Tab {
        let before = std::mem::replace(&mut self.session, tab.0);
        self.call("Page.bringToFront", json!({}));
        Tab(before)
    }

    /// Suspends the tab at its next line of script, as phones suspend those that nobody sees.
    pub fn suspend(&mut self) {
        self.call("Debugger.enable", json!({}));
        self.call("Debugger.pause", json!({}));
    }

    pub fn resume(&mut self) {
        self.call("Debugger.disable", json!({}));
    }

    /// Changes the size of the page, in pixels.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700 });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Makes the page larger, as two fingers do.
    pub fn enlarge(&mut self, scale: u32) {
        self.call("Emulation.setPageScaleFactor", json!({ "pageScaleFactor": scale }));
        self.until(&format!("visualViewport.scale === {scale}"));
    }

    /// Prefers dark pages, or bright ones.
    pub fn prefer_dark(&mut self, dark: bool) {
        let scheme = json!({ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [scheme] }));
    }

    /// Prefers pages on which nothing moves.
    pub fn prefer_no_motion(&mut self) {
        let motion = json!({ "name": "prefers-reduced-motion", "value": "reduce" });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [motion] }));
    }

    /// Has a touchscreen in place of a mouse from now on, or a mouse again.
    pub fn touch(&mut self, enabled: bool) {
        self.call("Emulation.setTouchEmulationEnabled", json!({ "enabled": enabled }));
    }

    /// Asks for pages in this language from now on.
    pub fn speak(&mut self, language: &str) {
        self.call("Network.setExtraHTTPHeaders", json!({ "headers": { "Accept-Language": language } }));
    }

    /// Runs a script before every page from now on.
    pub fn run_first(&mut self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script }));
    }

    /// Sends no request whose URL fits one of these patterns from now on.
    pub fn block(&mut self, patterns: &[&str]) {
        self.call("Network.setBlockedURLs", json!({ "urls": patterns }));
    }

    /// Receives at most `bytes` a second from now on.
    pub fn slow_down(&mut self, bytes: u32) {
        let limits = json!({ "offline": false, "latency": 0, "downloadThroughput": bytes, "uploadThroughput": -1 });
        self.call("Network.emulateNetworkConditions", limits);
    }

    /// Opens a page and waits until it has loaded.
    pub fn open(&mut self, url: &str) {
        self.loaded = false;
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.until_loaded();
    }

    #[expect(clippy::disallowed_methods, reason = "a browser moves by the real clock")]
    fn until_loaded(&mut self) {
        let begin = Instant::now();
        while !self.loaded {
            assert!(begin.elapsed() < PATIENCE, "no page loads after {:?}", self.requests.last());
            let message = self.read();
            self.note(&message);
        }
    }

    /// The value of an expression in JavaScript on the page; promises are awaited.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let question = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", question);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        answer["result"]["value"].clone()
    }

    /// [`Browser::evaluate`]; null while the page goes away.
    fn evaluate_while_leaving(&mut self, expression: &str) -> Value {
        let question = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        match self.try_call("Runtime.evaluate", question) {
            Ok(answer) => {
                assert!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
                answer["result"]["value"].clone()
            }
            Err(error) if error["message"] == "Inspected target navigated or closed" => Value::Null,
            Err(error) => panic!("{expression}: {error}"),
        }
    }

    /// Forgets all cookies, as if every session had ended.
    pub fn forget_cookies(&mut self) {
        self.call("Network.clearBrowserCookies", json!({}));
    }

    /// Runs no script of any page from now on.
    pub fn forbid_scripts(&mut self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({ "value": true }));
        self.scripts = false;
    }

    /// Asks the page until an expression is true, and does `between` after every other answer.
    #[expect(clippy::disallowed_methods, reason = "a browser moves by the real clock")]
    pub fn until_asked(&mut self, expression: &str, mut between: impl FnMut(&mut Self)) -> Value {
        let begin = Instant::now();
        loop {
            let value = self.evaluate_while_leaving(expression);
            let is_true = !matches!(value, Value::Null | Value::Bool(false));
            if is_true || begin.elapsed() > PATIENCE {
                assert!(is_true, "{expression} stays {value}");
                return value;
            }
            between(self);
        }
    }

    /// Waits until an expression is true for JavaScript, and returns its value. A page that never fulfils it is
    /// photographed.
    pub fn until(&mut self, expression: &str) -> Value {
        let wait = format!(
            "new Promise((fulfil) => {{
                const ask = () => {{
                    const value = ({expression});
                    if (value || performance.now() > end) fulfil(value); else setTimeout(ask, 20);
                }};
                const end = performance.now() + {};
                ask();
            }})",
            PATIENCE.as_millis()
        );
        if !self.scripts {
            // Timers are scripts.
            return self.until_asked(expression, |_| std::thread::yield_now());
        }
        let value = self.evaluate(&wait);
        if matches!(value, Value::Null | Value::Bool(false)) {
            let picture = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page.png");
            self.photograph(&picture);
            let text = self.evaluate("document.body.innerText");
            panic!("{expression} stays {value}; see {}: {text}\n{:#?}", picture.display(), self.errors);
        }
        value
    }

    /// Clicks in the middle of the element that an expression gives, once there is one and it has stopped moving: parts of
    /// a page that appear later shift the others.
    pub fn click(&mut self, element: &str) {
        let middle = format!(
            "(() => {{
                const element = ({element});
                if (!element) return null;
                element.scrollIntoView({{ block: 'center', behavior: 'instant' }});
                const box = element.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                const still = window.lastMiddle?.x === x && window.lastMiddle.y === y ? window.lastMiddle.still + 1 : 0;
                window.lastMiddle = {{ x, y, still }};
                const hit = document.elementFromPoint(x, y);
                return still >= {STILL} && hit && (element.contains(hit) || hit.contains(element)) ? {{ x, y }} : null;
            }})()"
        );
        let at = self.until(&middle);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": at["x"], "y": at["y"], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Clicks on an element that leads to another page, and waits until that has loaded.
    pub fn follow(&mut self, element: &str) {
        self.loaded = false;
        self.click(element);
        self.until_loaded();
    }

    /// Clicks into the field that an expression gives, and pastes text over its content. A page that still loads may move
    /// the field away from the click.
    pub fn paste(&mut self, field: &str, text: &str) {
        let has_focus = format!("document.activeElement === {field}");
        self.click(field);
        self.until_asked(&has_focus, |browser| browser.click(field));
        self.evaluate("document.execCommand('selectAll')");
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key by its name, such as `Tab` or `ArrowRight`.
    pub fn press(&mut self, key: &str) {
        self.hold(key, 0);
    }

    /// Holds a key down, so that it repeats itself `repeats` times.
    pub fn hold(&mut self, key: &str, repeats: usize) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "ArrowLeft" => 37,
            "ArrowUp" => 38,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            "Escape" => 27,
            "Delete" => 46,
            " " => 32,
            "s" => 83,
            other => panic!("give the code of {other} here"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        for repeat in 0..=repeats {
            let down = json!({
                "type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "text": text, "autoRepeat": repeat > 0,
            });
            self.call("Input.dispatchKeyEvent", down);
        }
        let up = json!({ "type": "keyUp", "key": key, "windowsVirtualKeyCode": code });
        self.call("Input.dispatchKeyEvent", up);
    }

    /// Writes a picture of what is visible, as PNG.
    pub fn photograph(&mut self, path: &Path) {
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let png = BASE64_STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("Base64");
        std::fs::write(path, png).expect("a writable path");
    }

    /// Sends a command and returns its result.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.try_call(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_call(&mut self, method: &str, parameters: Value) -> Result<Value, Value> {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        write!(self.input, "{message}\0").expect("the browser reads");
        loop {
            let mut answer = self.read();
            if answer["id"] == self.calls {
                return if answer["error"].is_null() {
                    Ok(answer["result"].take())
                } else {
                    Err(answer["error"].take())
                };
            }
            self.note(&answer);
        }
    }

    fn read(&mut self) -> Value {
        let message = self.messages.recv_timeout(SILENCE).expect("the browser has ended, or says nothing");
        serde_json::from_slice(&message).expect("JSON")
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str() {
            Some("Page.loadEventFired") => self.loaded = true,
            Some("Network.requestWillBeSent") => {
                self.requests.push(parameters["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            Some("Runtime.exceptionThrown") => self.errors.push(parameters["exceptionDetails"].to_string()),
            Some("Log.entryAdded") if parameters["entry"]["level"] == "error" => {
                self.errors.push(parameters["entry"].to_string());
            }
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // A browser that ends by itself leaves no process behind that still writes to the profile.
        self.session = None;
        drop(write!(self.input, "{}\0", json!({ "id": 0, "method": "Browser.close" })));
        for _ in 0..ENDING.as_millis() / 10 {
            if self.process.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn program() -> &'static str {
    let is_there = |program: &&&str| {
        let find = format!("command -v {program} >/dev/null");
        Command::new("sh").args(["-c", &find]).status().expect("a shell").success()
    };
    PROGRAMS.iter().find(is_there).copied().unwrap_or_else(|| {
        debian::needs(PROGRAMS[0], PROGRAMS[0]);
        PROGRAMS[0]
    })
}
