//! DynamoDB for tests: moto's, a Python package, on a port of its own. AWS itself cannot be had where tests run.
//!
//! All processes of one test run share a server ([`Server::shared`]); each test has a table there ([`Server::fresh_table`]).
//! The server verifies signatures, and has calls about a table fail where a test wants that ([`Server::fault`]).
//!
//! A small shell script is started beside the server. It outlives a test that is killed and a run that is interrupted: it
//! waits until the run is over, ends the server and removes its folder.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::system;
use crate::http;
use crate::install::{has_pip_packages, with_pip};

/// With their exact versions: what tests run on does not change by itself.
const PACKAGES: [&str; 3] = ["moto[dynamodb]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"];
const SERVER: &str = include_str!("dynamodb/server.py");
const REMEDY: &str = "run `cargo xtask engines install`";
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Another process may take a port between our finding it free and the server listening on it.
const PORTS_MAX: u32 = 5;

/// Waits until the process `$1` is gone, then ends the server whose files are in `$2` and removes the folder.
const WATCH: &str = r#"
    while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
    server="$(cat "$2/pid" 2>/dev/null)"
    [ -n "$server" ] && kill -KILL "$server" 2>/dev/null
    rm -rf "$2" "$2.lock"
"#;

/// A running server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    folder: PathBuf,
    /// None where another process has started it.
    process: Mutex<Option<Child>>,
}

/// Installs moto where it is missing, into a folder beside what was built.
///
/// # Errors
///
/// Why it could not, and what to do.
pub fn install() -> Result<(), String> {
    with_pip(&place()?, &PACKAGES)
}

impl Server {
    /// The server of this test run: started by the first test that asks, and gone some moments after the run.
    ///
    /// # Panics
    ///
    /// With the reason and the remedy, where there is none to be had.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| shared().unwrap_or_else(|reason| panic!("no DynamoDB to test on: {reason}")))
    }

    /// A server for one test. It keeps what it answered in a file: killed and started again, it has it all, as DynamoDB would.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start() -> Result<Owned, String> {
        let folder = place()?.join(system::fresh_name());
        let server = Self::launched(folder)?;
        watch(&server.folder, std::process::id())?;
        Ok(Owned(server))
    }

    fn launched(folder: PathBuf) -> Result<Self, String> {
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for _ in 0..PORTS_MAX {
            let port = system::free_port()?;
            if let Some(process) = launch(&folder, port, Some(&folder.join("journal")))? {
                return Ok(Self { port, folder, process: Mutex::new(Some(process)) });
            }
        }
        Err(format!("moto did not start: {}", system::last_lines(&folder.join("log"))))
    }

    /// Its folder, with its log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends it, and waits until it is gone. It has no other way to end than [`Server::kill`].
    pub fn stop(&self) {
        self.signal("-TERM");
        self.is_gone();
    }

    /// Kills it, and waits until it is gone.
    pub fn kill(&self) {
        self.signal("-KILL");
        self.is_gone();
    }

    fn is_gone(&self) {
        let is_gone = system::wait_until_gone(&mut self.process(), STARTS_WITHIN);
        assert!(is_gone, "moto does not end: {}", system::last_lines(&self.folder.join("log")));
    }

    /// Starts it again on the same port, with what it had, and waits until it answers.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start_again(&self) {
        let started = launch(&self.folder, self.port, Some(&self.folder.join("journal")));
        let started = started.unwrap_or_else(|reason| panic!("moto: {reason}"));
        let process = started.unwrap_or_else(|| {
            panic!("moto does not start again: {}", system::last_lines(&self.folder.join("log")))
        });
        *self.process() = Some(process);
    }

    /// Lets it stand still: it still takes connections, and answers nobody.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        if let Some(process) = self.process().as_ref().map(Child::id) {
            // One that has just ended by itself is no failure.
            let _ = Command::new("kill").arg(signal).arg(process.to_string()).stderr(Stdio::null()).status();
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The URL of a table that nobody else has, as `onlyonce migrate` makes it.
    ///
    /// # Panics
    ///
    /// Where it cannot be created.
    pub fn made_table(&self) -> String {
        let url = self.fresh_table();
        let schema = |[hash, range]: [&str; 2]| json!([{ "AttributeName": hash, "KeyType": "HASH" }, { "AttributeName": range, "KeyType": "RANGE" }]);
        let types = [
            ("id", "B"),
            ("part", "S"),
            ("due_shard", "S"),
            ("due_at", "N"),
            ("open_shard", "S"),
            ("open_since", "N"),
        ];
        let index = |name: &str, key| json!({ "IndexName": name, "KeySchema": schema(key), "Projection": { "ProjectionType": "KEYS_ONLY" } });
        self.call(
            "CreateTable",
            &json!({
                "TableName": table(&url),
                "KeySchema": schema(["id", "part"]),
                "AttributeDefinitions": types.map(|(name, kind)| json!({ "AttributeName": name, "AttributeType": kind })),
                "BillingMode": "PAY_PER_REQUEST",
                "GlobalSecondaryIndexes":
                    [index("due", ["due_shard", "due_at"]), index("open", ["open_shard", "open_since"])],
            }),
        );
        url
    }

    /// How many records with this key are in this state in the table of a URL.
    ///
    /// # Panics
    ///
    /// Where the server does not say.
    pub fn records(&self, url: &str, key: &str, state: &str) -> usize {
        let items = self.items(url);
        items.iter().filter(|item| item["key"]["S"] == key && item["state"]["S"] == state).count()
    }

    /// The URL of a table that nobody else has, and that is not there yet.
    pub fn fresh_table(&self) -> String {
        self.url_of(&system::fresh_name())
    }

    /// The URL of a table, whose records the reaper deletes.
    pub fn url_of(&self, table: &str) -> String {
        url(table, self.port)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Has calls fail, as `server.py` describes; `fault` has the JSON members beside `table`.
    ///
    /// # Panics
    ///
    /// Where the server does not take it.
    pub fn fault(&self, url: &str, fault: &str) {
        let table = table(url);
        let body = format!(r#"{{"table":"{table}",{fault}}}"#);
        self.post("/faults", &[], &body);
    }

    /// How many calls wait, as a fault of the table has it.
    ///
    /// # Panics
    ///
    /// Where the server does not say.
    pub fn held(&self, url: &str) -> u64 {
        let told = self.post("/faults", &[], &format!(r#"{{"table":"{}"}}"#, table(url)));
        let told: Value = serde_json::from_slice(&told).unwrap_or_default();
        told["held"].as_u64().expect("the server says how many calls it holds")
    }

    /// Calls an operation, as another program would that has the same table.
    ///
    /// # Panics
    ///
    /// Where the server refuses it.
    pub fn call(&self, operation: &str, body: &Value) -> Value {
        let target = format!("DynamoDB_20120810.{operation}");
        let scope = "AWS4-HMAC-SHA256 Credential=x/20260101/eu-central-1/dynamodb/aws4_request, Signature=x";
        let headers = [
            ("Content-Type", "application/x-amz-json-1.0"),
            ("X-Amz-Target", &*target),
            ("Authorization", scope),
        ];
        serde_json::from_slice(&self.post("/call", &headers, &body.to_string())).unwrap_or_default()
    }

    /// The operations that programs have called about the table of a URL, in order.
    ///
    /// # Panics
    ///
    /// Where the server does not tell them.
    pub fn calls(&self, url: &str) -> Vec<String> {
        let answer = http::get(&format!("127.0.0.1:{}", self.port), &format!("/calls/{}", table(url)));
        let answer = answer.unwrap_or_else(|error| panic!("{error:#}"));
        serde_json::from_slice(&answer.body).unwrap_or_else(|error| panic!("{error}"))
    }

    /// All items of the table of a URL.
    ///
    /// # Panics
    ///
    /// Where the server refuses to show them.
    pub fn items(&self, url: &str) -> Vec<Value> {
        let (mut items, mut body) = (Vec::new(), json!({ "TableName": table(url) }));
        loop {
            let told = self.call("Scan", &body);
            items.extend(told["Items"].as_array().into_iter().flatten().cloned());
            if told["LastEvaluatedKey"].is_null() {
                return items;
            }
            body["ExclusiveStartKey"] = told["LastEvaluatedKey"].clone();
        }
    }

    fn post(&self, path: &str, headers: &[(&str, &str)], body: &str) -> Vec<u8> {
        let request = http::Request { method: "POST", path, headers, body };
        let answer = http::send(&format!("127.0.0.1:{}", self.port), request);
        let answer = answer.unwrap_or_else(|error| panic!("{error:#}"));
        assert_eq!(answer.status, 200, "{body}: {}", String::from_utf8_lossy(&answer.body));
        answer.body
    }
}

/// The URL of a table behind another port of this machine: a wire to the server.
pub fn url(table: &str, port: u16) -> String {
    format!("dynamodb://{table}?region=eu-central-1&endpoint=http://127.0.0.1:{port}&reap=index")
}

/// The table of a URL.
pub fn table(url: &str) -> &str {
    let rest = url.strip_prefix("dynamodb://").unwrap_or(url);
    rest.split('?').next().unwrap_or(rest)
}

/// A server for one test.
#[derive(Debug)]
pub struct Owned(Server);

impl std::ops::Deref for Owned {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.kill();
        // What cannot be removed is what the watch removes.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The server of this run, or a new one: the first comer starts it while the others wait at the lock.
fn shared() -> Result<Server, String> {
    let (run, watched) = system::run();
    let place = place()?;
    let failed = |error: std::io::Error| format!("{}: {error}", place.display());
    let lock = File::create(place.join(format!("{run}.lock"))).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let folder = place.join(&run);
    let noted = folder.join("port");
    if let Ok(port) = fs::read_to_string(&noted) {
        let port = port.parse().map_err(|_| format!("{} holds no port", noted.display()))?;
        return Ok(Server { port, folder, process: Mutex::default() });
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    for _ in 0..PORTS_MAX {
        let port = system::free_port()?;
        if launch(&folder, port, None)?.is_some() {
            watch(&folder, watched)?;
            fs::write(noted, port.to_string()).map_err(failed)?;
            return Ok(Server { port, folder, process: Mutex::default() });
        }
    }
    Err(format!("moto did not start: {}", system::last_lines(&folder.join("log"))))
}

/// Starts the server and waits until it answers; none where it has ended.
fn launch(folder: &Path, port: u16, journal: Option<&Path>) -> Result<Option<Child>, String> {
    let place = place()?;
    if !has_pip_packages(&place, &PACKAGES) {
        return Err(format!("moto is not installed; {REMEDY}"));
    }
    let python = place.join("venv/bin/python");
    let failed = |error: std::io::Error| format!("{}: {error}", python.display());
    let log = File::create(folder.join("log")).map_err(failed)?;
    let script = folder.join("server.py");
    fs::write(&script, SERVER).map_err(failed)?;
    let mut server = Command::new(&python);
    // A group of its own: what ends a test does not end the server in the middle of something.
    server.arg(&script).arg(port.to_string()).args(journal).env("TZ", "UTC").process_group(0);
    server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let mut child = server.spawn().map_err(failed)?;
    fs::write(folder.join("pid"), child.id().to_string()).map_err(failed)?;
    let began = Instant::now();
    while began.elapsed() < STARTS_WITHIN {
        if child.try_wait().map_err(failed)?.is_some() {
            return Ok(None);
        }
        if http::get(&format!("127.0.0.1:{port}"), "/").is_ok() {
            return Ok(Some(child));
        }
        sleep(LOOK_EVERY);
    }
    child.kill().and_then(|()| child.wait()).map_err(failed)?;
    Ok(None)
}

fn watch(folder: &Path, process: u32) -> Result<(), String> {
    let mut shell = Command::new("sh");
    shell.args(["-c", WATCH, "onlyonce-watch", &process.to_string()]).arg(folder).current_dir("/");
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    shell.spawn().map_err(|error| format!("sh: {error}"))?;
    Ok(())
}

/// Beside what was built; else among the temporary files.
fn place() -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let built = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    let folder = built
        .map_or_else(|| std::env::temp_dir().join("onlyonce-dynamodb"), |folder| folder.join("dynamodb"));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}
