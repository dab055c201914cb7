//! PostgreSQL for tests: a server with a data folder and a port of its own, which is gone when the tests end.
//!
//! All processes of one test run share a server ([`Server::shared`]); each test makes a schema there
//! ([`Server::fresh_schema`]). A test that stops or kills its server starts one for itself ([`Server::start`]).
//!
//! A small shell script is started beside each server. It outlives a test that is killed and a run that is interrupted: it
//! waits until the run is over, stops the server and removes its folder.
//!
//! Faults of a server are in `fault.rs`, a standby that takes over in `standby.rs`.

mod fault;
mod standby;

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use self::fault::Stop;
use super::system::{as_user, free_port, give_away, is_root};
use crate::install::with_apt;

/// The folder of the binaries, for machines that have them in an unusual place.
const FOLDER_VARIABLE: &str = "ONLYONCE_POSTGRES";
const REMEDY: &str =
    "run `cargo xtask engines install`, or set ONLYONCE_POSTGRES to the folder of its binaries";
/// The user that runs the server if we are root: PostgreSQL refuses to run as root.
const USER: &str = "postgres";
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Another process may take a port between our finding it free and PostgreSQL listening on it.
const PORTS_MAX: u32 = 5;

/// Waits until the process `$1` is gone, then stops the server whose data is in `$2` and removes the folder.
const WATCH: &str = r#"
    while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
    postmaster="$(head -n 1 "$2/data/postmaster.pid" 2>/dev/null)"
    if [ -n "$postmaster" ]; then
        kill -CONT "$postmaster" $(cat "/proc/$postmaster/task/$postmaster/children") 2>/dev/null
        kill -QUIT "$postmaster" 2>/dev/null
    fi
    for i in 1 2 3 4 5 6 7 8 9 10; do [ -e "$2/data/postmaster.pid" ] || break; sleep 0.3; done
    umount "$2/disk" 2>/dev/null
    rm -rf "$2" "$2.lock"
"#;

/// A running server.
#[derive(Debug)]
pub struct Server {
    binaries: PathBuf,
    folder: PathBuf,
    port: u16,
    /// The settings of every start.
    settings: Vec<(String, String)>,
    /// None if another process of this run has started it.
    process: Mutex<Option<Child>>,
}

/// Installs PostgreSQL where it is missing, by Debian's packages.
///
/// # Errors
///
/// Why it could not, and what to do.
pub fn install() -> Result<PathBuf, String> {
    if let Ok(found) = binaries() {
        return Ok(found);
    }
    if !is_root() {
        return Err(format!("PostgreSQL is missing, and only root can install it; {REMEDY}"));
    }
    with_apt("PostgreSQL", &["postgresql"], || binaries().is_ok()).map_err(|error| format!("{error:#}"))?;
    binaries()
}

/// The folder of `postgres`, `initdb` and `psql`.
fn binaries() -> Result<PathBuf, String> {
    let told = std::env::var_os(FOLDER_VARIABLE).map(PathBuf::from);
    let on_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let on_path = on_path
        .filter_map(|folder| Some(fs::canonicalize(folder.join("postgres")).ok()?.parent()?.to_owned()));
    let mut debian: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .collect();
    debian.sort();
    let mut folders = told.into_iter().chain(on_path).chain(debian.into_iter().rev());
    let is_whole =
        |folder: &PathBuf| ["postgres", "initdb", "psql"].iter().all(|name| folder.join(name).exists());
    folders.find(is_whole).ok_or_else(|| format!("PostgreSQL is not installed; {REMEDY}"))
}

impl Server {
    /// The server of this test run: started by the first test that asks, and gone some moments after the run.
    ///
    /// # Panics
    ///
    /// With the reason and the remedy, where there is none to be had.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| shared().unwrap_or_else(|reason| panic!("no PostgreSQL to test on: {reason}")))
    }

    /// A server for one test, gone when it is dropped; with more settings, as in `postgresql.conf`.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start(settings: &[(&str, &str)]) -> Result<Owned, String> {
        let server = Self::in_folder(own_folder()?)?.create()?;
        Ok(Owned(server.launched(settings)?.watched_by(std::process::id())?))
    }

    /// A server for one test that is a standby: nothing can be written there.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start_in_recovery() -> Result<Owned, String> {
        let server = Self::in_folder(own_folder()?)?.create()?;
        let signal = server.folder.join("data/standby.signal");
        fs::write(&signal, "").map_err(|error| format!("{}: {error}", signal.display()))?;
        give_away(&server.folder, USER)?;
        Ok(Owned(server.launched(&[])?.watched_by(std::process::id())?))
    }

    /// The URL of this database for the superuser, who needs no password.
    pub fn url(&self, database: &str) -> String {
        self.url_of(USER, database)
    }

    /// The URL for `login`: a role, or a role and its password with a colon between them.
    pub fn url_of(&self, login: &str, database: &str) -> String {
        format!("postgres://{login}@127.0.0.1:{}/{database}", self.port)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder with all its files, which is removed with it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The URL of a schema that nobody else has.
    ///
    /// # Panics
    ///
    /// Where it cannot be created.
    pub fn fresh_schema(&self) -> String {
        let schema = self.fresh_name();
        self.sql(&format!("CREATE SCHEMA {schema}"));
        format!("{}?schema={schema}", self.url(USER))
    }

    /// A name that no other test uses.
    pub fn fresh_name(&self) -> String {
        super::system::fresh_name()
    }

    /// Runs SQL as the superuser, and gives what it printed.
    ///
    /// # Panics
    ///
    /// Where it fails.
    pub fn sql(&self, sql: &str) -> String {
        self.sql_in(USER, sql)
    }

    /// The same in another database.
    ///
    /// # Panics
    ///
    /// Where it fails.
    pub fn sql_in(&self, database: &str, sql: &str) -> String {
        let mut psql = self.psql(database);
        psql.args(["-c", sql]);
        let output = psql.output().unwrap_or_else(|error| panic!("psql can be started: {error}"));
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A `psql` session of the superuser in this database, for a test that keeps it open.
    pub fn psql(&self, database: &str) -> Command {
        let mut psql = Command::new(self.binaries.join("psql"));
        psql.args(["-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1", &self.url(database)]);
        psql
    }

    fn in_folder(folder: PathBuf) -> Result<Self, String> {
        Ok(Self { binaries: binaries()?, folder, port: 0, settings: Vec::new(), process: Mutex::default() })
    }

    /// A data folder, as `initdb` makes it: the superuser needs no password, others do.
    fn create(self) -> Result<Self, String> {
        let data = self.folder.join("data");
        fs::create_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))?;
        give_away(&self.folder, USER)?;
        let mut initdb = as_user(USER, &self.binaries.join("initdb"));
        initdb.args([
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            "--auth=trust",
            "--username",
            USER,
            "--pgdata",
        ]);
        let output =
            initdb.arg(&data).current_dir("/").output().map_err(|error| format!("initdb: {error}"))?;
        if !output.status.success() {
            return Err(format!("initdb: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let rules = format!(
            "host all {USER} 127.0.0.1/32 trust\nhost replication {USER} 127.0.0.1/32 trust\n\
             host all all 127.0.0.1/32 scram-sha-256\n"
        );
        fs::write(data.join("pg_hba.conf"), rules).map_err(|error| format!("pg_hba.conf: {error}"))?;
        Ok(self)
    }

    fn launched(mut self, settings: &[(&str, &str)]) -> Result<Self, String> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.settings = settings.iter().map(owned).collect();
        for _ in 0..PORTS_MAX {
            self.port = free_port()?;
            if self.launch()? {
                return Ok(self);
            }
        }
        Err(format!("PostgreSQL did not start: {}", self.log()))
    }

    /// Starts the server and waits until it answers; false where it has ended.
    fn launch(&self) -> Result<bool, String> {
        let failed = |error: std::io::Error| format!("postgres: {error}");
        let log = File::create(self.folder.join("log")).map_err(failed)?;
        let mut postgres = as_user(USER, &self.binaries.join("postgres"));
        postgres.arg("-D").arg(self.folder.join("data")).current_dir("/");
        let port = self.port.to_string();
        let ours = [
            ("port", &*port),
            ("listen_addresses", "127.0.0.1"),
            ("unix_socket_directories", ""),
            ("max_connections", "300"),
            ("fsync", "on"),
        ];
        let settings = self.settings.iter().map(|(name, value)| (&**name, &**value));
        for (name, value) in ours.into_iter().chain(settings) {
            postgres.arg("-c").arg(format!("{name}={value}"));
        }
        // A group of its own: what ends a test does not end the server in the middle of something.
        let output = (log.try_clone().map_err(failed)?, log);
        let mut child = postgres
            .stdin(Stdio::null())
            .stdout(output.0)
            .stderr(output.1)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let began = Instant::now();
        while began.elapsed() < STARTS_WITHIN {
            if child.try_wait().map_err(failed)?.is_some() {
                return Ok(false);
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() && self.answers() {
                *self.process() = Some(child);
                return Ok(true);
            }
            sleep(LOOK_EVERY);
        }
        Ok(false)
    }

    fn answers(&self) -> bool {
        let mut psql = self.psql(USER);
        psql.args(["-c", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
        psql.status().is_ok_and(|status| status.success())
    }

    fn watched_by(self, process: u32) -> Result<Self, String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCH, "onlyonce-watch", &process.to_string()]).arg(&self.folder).current_dir("/");
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        shell.spawn().map_err(|error| format!("sh: {error}"))?;
        Ok(self)
    }

    fn log(&self) -> String {
        super::system::last_lines(&self.folder.join("log"))
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
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
        self.thaw();
        self.stop(Stop::Immediate);
        self.take_disk_away();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The server of this run, or a new one: the first comer starts it while the others wait at the lock.
fn shared() -> Result<Server, String> {
    let (run, watched) = super::system::run();
    let place = place()?;
    let lock = File::create(place.join(format!("{run}.lock")))
        .map_err(|error| format!("{}: {error}", place.display()))?;
    lock.lock().map_err(|error| format!("{}: {error}", place.display()))?;
    let folder = place.join(&run);
    let noted = folder.join("port");
    if let Ok(port) = fs::read_to_string(&noted) {
        let port = port.parse().map_err(|_| format!("{} holds no port", noted.display()))?;
        return Ok(Server { port, ..Server::in_folder(folder)? });
    }
    let server = Server::in_folder(folder)?.create()?.launched(&[])?.watched_by(watched)?;
    fs::write(noted, server.port.to_string()).map_err(|error| format!("{}: {error}", place.display()))?;
    Ok(server)
}

fn own_folder() -> Result<PathBuf, String> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    Ok(place()?.join(format!("own-{}-{number}", std::process::id())))
}

fn place() -> Result<PathBuf, String> {
    super::system::named_place("postgres").unwrap_or_else(|| super::system::place("postgres", USER))
}
