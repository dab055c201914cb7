//! A real browser for tests of the dashboard: Chromium from Debian's packages, driven by its DevTools protocol.
//!
//! The protocol is spoken over two pipes (`--remote-debugging-pipe`): no port, no driver beside the browser, no websocket.
//! Tests find elements as a person with a screen reader does, by role and name in the accessibility tree ([`Browser::tree`]),
//! and press and type with events of a mouse and a keyboard. They wait for changes of the page, not for time to pass.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::install;
use crate::process::{End, child_command};

/// The browser, for machines that have it in an unusual place.
const PROGRAM_VARIABLE: &str = "ONLYONCE_CHROMIUM";
const PROGRAMS: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
/// The browser, and fonts: without them every text is a row of boxes.
const PACKAGES: [&str; 4] =
    ["chromium-headless-shell", "fonts-inter", "fonts-dejavu-core", "fonts-noto-color-emoji"];
const REMEDY: &str = "run `cargo xtask engines install`, or set ONLYONCE_CHROMIUM to a Chromium";
/// How long a command may take, and how long a test waits for the page to become as it expects.
const WITHIN: Duration = Duration::from_secs(40);

/// Installs the browser where it is missing, by Debian's packages.
///
/// # Errors
///
/// Why it could not, and what to do.
pub fn install() -> Result<String, String> {
    if let Some(found) = program() {
        return Ok(found);
    }
    install::with_apt("Chromium", &PACKAGES, || program().is_some()).map_err(|error| format!("{error:#}"))?;
    program().ok_or_else(|| format!("Chromium is not installed; {REMEDY}"))
}

fn program() -> Option<String> {
    let told = std::env::var(PROGRAM_VARIABLE).ok();
    let mut programs = told.into_iter().chain(PROGRAMS.map(str::to_owned));
    programs.find(|program| install::succeeds(program, &["--version"]))
}

/// A browser with one page, gone when it is dropped.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    folder: PathBuf,
    /// What went wrong on the page: exceptions, console errors, violations of its policy.
    problems: Vec<String>,
    /// Every request that the page has made: its number, and the URL.
    requests: Vec<(String, String)>,
    /// The numbers of requests that have ended.
    ended: Vec<String>,
}

/// An element as the accessibility tree has it.
#[derive(Clone, Debug)]
pub struct Node {
    /// `button`, `link`, `heading` …
    pub role: String,
    /// What it is called.
    pub name: String,
    /// What is said about it beyond its name.
    pub description: String,
    /// What a field holds.
    pub value: String,
    /// Of a heading.
    pub level: Option<u64>,
    /// Whether it cannot be used.
    pub is_disabled: bool,
    /// Whether it has the focus.
    pub is_focused: bool,
    element: i64,
}

impl Browser {
    /// Starts a browser with an empty page.
    ///
    /// # Panics
    ///
    /// With the reason and the remedy, where there is none to be had.
    pub fn start() -> Self {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let program = program().unwrap_or_else(|| panic!("no browser to test with; {REMEDY}"));
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("onlyonce-browser-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        // The protocol wants descriptors 3 and 4, and a shell gives them away without unsafe code.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>/dev/null";
        let mut command = child_command(Path::new("sh"), End::Kill);
        command.args(["-c", script, &program, "--headless", "--remote-debugging-pipe"]);
        // The sandbox of Chromium refuses to run as root, and in many containers; the only page is our own.
        command.args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]);
        command.arg(format!("--user-data-dir={}", folder.display())).arg("about:blank");
        let mut child = spawn(&mut command);
        let commands = child.stdin.take().expect("it is a pipe");
        let output = child.stdout.take().expect("it is a pipe");
        let (sender, messages) = mpsc::channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { continue };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Self {
            child,
            commands,
            messages,
            session: None,
            last_id: 0,
            folder,
            problems: Vec::new(),
            requests: Vec::new(),
            ended: Vec::new(),
        };
        browser.attach();
        browser
    }

    fn attach(&mut self) {
        let target = self.command("Target.createTarget", &json!({ "url": "about:blank" }));
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let session = self.command("Target.attachToTarget", &target);
        self.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "DOM", "Accessibility"] {
            self.command(&format!("{domain}.enable"), &json!({}));
        }
    }

    /// Sends a command of the protocol and gives its result.
    ///
    /// # Panics
    ///
    /// Where the browser refuses it, or is gone.
    pub fn command(&mut self, method: &str, parameters: &Value) -> Value {
        self.try_command(method, parameters).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_command(&mut self, method: &str, parameters: &Value) -> Result<Value, String> {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands
            .write_all(&bytes)
            .and_then(|()| self.commands.flush())
            .map_err(|error| error.to_string())?;
        loop {
            let mut message = self.messages.recv_timeout(WITHIN).map_err(|_| "no answer".to_owned())?;
            if message["id"] != id {
                self.take(&message);
                continue;
            }
            return match message.get("error") {
                Some(error) => Err(error.to_string()),
                None => Ok(message["result"].take()),
            };
        }
    }

    /// Remembers what an event tells.
    fn take(&mut self, event: &Value) {
        let parameters = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.problems.push(parameters["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if parameters["type"] == "error" => {
                self.problems.push(parameters["args"].to_string());
            }
            "Log.entryAdded" if parameters["entry"]["level"] == "error" => {
                self.problems.push(parameters["entry"].to_string());
            }
            "Network.requestWillBeSent" => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                self.requests.push((text(&parameters["requestId"]), text(&parameters["request"]["url"])));
            }
            "Network.loadingFinished" | "Network.loadingFailed" => {
                self.ended.extend(parameters["requestId"].as_str().map(str::to_owned));
            }
            _ => {}
        }
    }

    /// What went wrong since the last call.
    pub fn problems(&mut self) -> Vec<String> {
        self.js("0");
        std::mem::take(&mut self.problems)
    }

    /// Every URL that was asked for.
    pub fn requested(&mut self) -> Vec<String> {
        self.js("0");
        self.requests.iter().map(|(_, url)| url.clone()).collect()
    }

    /// How many requests for URLs that end so were made, and how many of them are under way.
    pub fn under_way(&mut self, end: &str) -> (usize, usize) {
        self.js("0");
        let made = self.requests.iter().filter(|(_, url)| url.ends_with(end));
        let open = made.clone().filter(|(number, _)| !self.ended.contains(number));
        (made.count(), open.count())
    }

    /// Loads a page.
    pub fn open(&mut self, url: &str) {
        let opened = self.command("Page.navigate", &json!({ "url": url }));
        assert!(opened.get("errorText").is_none(), "{url}: {opened}");
    }

    /// The value of an expression in the page; of a promise, what it becomes.
    ///
    /// # Panics
    ///
    /// Where it throws.
    pub fn js(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut evaluated = match self.try_command("Runtime.evaluate", &parameters) {
            Ok(evaluated) => evaluated,
            // The page was left while it was evaluated: asked again in the next one.
            Err(error) if error.contains("ontext was destroyed") || error.contains("navigated") => {
                self.command("Runtime.evaluate", &parameters)
            }
            Err(error) => panic!("{expression}: {error}"),
        };
        assert!(evaluated.get("exceptionDetails").is_none(), "{expression}: {evaluated}");
        evaluated["result"]["value"].take()
    }

    /// Every element that assistive technology is told about, in the order of the page.
    pub fn tree(&mut self) -> Vec<Node> {
        let tree = self.command("Accessibility.getFullAXTree", &json!({}));
        let nodes = tree["nodes"].as_array().cloned().unwrap_or_default();
        nodes.iter().filter(|node| node["ignored"] != true).map(Node::of).collect()
    }

    /// Waits until the tree is so that `look` finds something in it.
    ///
    /// # Panics
    ///
    /// Where that takes too long, with the tree as it is then.
    pub fn wait<T>(&mut self, what: &str, look: impl Fn(&[Node]) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            let tree = self.tree();
            if let Some(found) = look(&tree) {
                return found;
            }
            let problems = &self.problems;
            assert!(began.elapsed() < WITHIN, "{what}: not there; {problems:?}\n{}", told(&tree));
            self.wait_for_change();
        }
    }

    /// Waits until an expression is true.
    ///
    /// # Panics
    ///
    /// Where that takes too long.
    pub fn wait_js(&mut self, expression: &str) {
        let began = Instant::now();
        while self.js(expression) != true {
            if began.elapsed() >= WITHIN {
                let text = self.js("document.body?.innerText");
                panic!("{expression} does not come true; {:?}\n{text}", self.problems);
            }
            self.wait_for_change();
        }
    }

    /// Ready at the next change of the page, and soon in any case: what is about to be drawn is no change of the document.
    fn wait_for_change(&mut self) {
        self.js("new Promise((resolve) => {
            const observer = new MutationObserver(done);
            const timer = setTimeout(done, 100);
            function done() { observer.disconnect(); clearTimeout(timer); resolve(0); }
            observer.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
        })");
    }

    /// The element with this role whose name contains this text.
    pub fn find(&mut self, role: &str, name: &str) -> Node {
        self.wait(&format!("{role} \"{name}\""), |tree| {
            tree.iter().find(|node| node.role == role && node.name.contains(name)).cloned()
        })
    }

    /// The same with exactly this name.
    pub fn named(&mut self, role: &str, name: &str) -> Node {
        self.wait(&format!("{role} \"{name}\""), |tree| {
            tree.iter().find(|node| node.role == role && node.name == name).cloned()
        })
    }

    /// Waits for a text that can be seen.
    pub fn see(&mut self, text: &str) {
        let text = Value::from(text).to_string();
        self.wait_js(&format!("(document.body?.innerText ?? '').includes({text})"));
    }

    /// Clicks on the middle of an element.
    pub fn click(&mut self, node: &Node) {
        let element = json!({ "backendNodeId": node.element });
        // One that was replaced in between is looked for again.
        if self.try_command("DOM.scrollIntoViewIfNeeded", &element).is_err() {
            let again = self.named(&node.role, &node.name);
            return self.click(&again);
        }
        let quads = self.command("DOM.getContentQuads", &element);
        let quad = quads["quads"][0].as_array().cloned().unwrap_or_default();
        let corner = |at: usize| quad.get(at).and_then(Value::as_f64).unwrap_or_default();
        let (x, y) = ((corner(0) + corner(4)) / 2.0, (corner(1) + corner(5)) / 2.0);
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": x, "y": y, "button": "left", "clickCount": 1 });
            self.command("Input.dispatchMouseEvent", &event);
        }
    }

    /// Clicks on the element with this role and name.
    pub fn press(&mut self, role: &str, name: &str) {
        let node = self.named(role, name);
        self.click(&node);
    }

    /// Presses a key: `Tab`, `Enter`, `Escape`, or a character.
    pub fn key(&mut self, key: &str) {
        self.key_with(key, 0);
    }

    /// The same with Shift.
    pub fn shift_key(&mut self, key: &str) {
        self.key_with(key, 8);
    }

    fn key_with(&mut self, key: &str, modifiers: u8) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            " " => (32, " "),
            other => (0, other),
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event = json!({ "type": kind, "key": key, "modifiers": modifiers });
            if code != 0 {
                event["windowsVirtualKeyCode"] = code.into();
            }
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.command("Input.dispatchKeyEvent", &event);
        }
    }

    /// Types into the field with this role and name, instead of what it holds.
    pub fn fill(&mut self, role: &str, name: &str, text: &str) {
        let node = self.named(role, name);
        self.click(&node);
        self.js("document.activeElement.select()");
        self.command("Input.insertText", &json!({ "text": text }));
    }

    /// How large the page is seen.
    pub fn size(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.command("Emulation.setDeviceMetricsOverride", &size);
    }

    /// Whether the person prefers `light` or `dark`.
    pub fn scheme(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.command("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
    }

    /// A picture of the whole page, as base64 of a PNG.
    pub fn picture(&mut self) -> String {
        let picture = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.command("Page.captureScreenshot", &picture);
        picture["data"].as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        // Its other processes may still write there for a moment; what stays lies in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(command: &mut Command) -> Child {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("the browser cannot be started: {error}; {REMEDY}"))
}

impl Node {
    fn of(node: &Value) -> Self {
        // Of a number too: the value of a field may be one.
        let text = |name: &str| {
            let value = &node[name]["value"];
            value
                .as_str()
                .map_or_else(|| value.as_f64().map_or_else(String::new, |_| value.to_string()), str::to_owned)
        };
        let properties = node["properties"].as_array().cloned().unwrap_or_default();
        let property = |name: &str| {
            let found = properties.iter().find(|property| property["name"] == name);
            found.map(|property| property["value"]["value"].clone())
        };
        Self {
            role: text("role"),
            name: text("name"),
            description: text("description"),
            value: text("value"),
            level: property("level").and_then(|level| level.as_u64()),
            is_disabled: property("disabled") == Some(Value::Bool(true)),
            is_focused: property("focused") == Some(Value::Bool(true)),
            element: node["backendDOMNodeId"].as_i64().unwrap_or_default(),
        }
    }
}

/// The tree, a line an element that has a name.
fn told(tree: &[Node]) -> String {
    let named = tree.iter().filter(|node| !node.name.is_empty() && node.role != "InlineTextBox");
    named.map(|node| format!("{} {:?}", node.role, node.name)).collect::<Vec<_>>().join("\n")
}
