//! MariaDB for tests: a server with a data folder and a port of its own, which is gone when the tests end.
//!
//! As for PostgreSQL, all processes of one test run share a server ([`Server::shared`]); each test makes a database there
//! ([`Server::fresh_database`]). A test that stops or kills its server starts one for itself ([`Server::start`]). A small shell
//! script outlives the run and stops the server.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::system::{self, as_user, free_port, give_away, is_root};
use crate::install::with_apt;

const REMEDY: &str = "run `cargo xtask engines install`, or install Debian's mariadb-server";
/// The user that runs the server if we are root.
const USER: &str = "mysql";
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The database of [`Server::mount_database`].
const SMALL: &str = "small";
/// Another process may take a port between our finding it free and MariaDB listening on it.
const PORTS_MAX: u32 = 5;

/// Waits until the process `$1` is gone, then kills the server whose data is in `$2` and removes the folder.
const WATCH: &str = r#"
    while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
    kill -KILL "$(cat "$2/pid")" 2>/dev/null
    sleep 0.3
    rm -rf "$2" "$2.lock"
"#;

/// A running server.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    port: u16,
    /// The settings of every start.
    settings: Vec<String>,
    /// None if another process of this run has started it.
    process: Mutex<Option<Child>>,
}

/// Installs MariaDB where it is missing, by Debian's packages.
///
/// # Errors
///
/// Why it could not, and what to do.
pub fn install() -> Result<PathBuf, String> {
    if let Ok(found) = program("mariadbd") {
        return Ok(found);
    }
    if !is_root() {
        return Err(format!("MariaDB is missing, and only root can install it; {REMEDY}"));
    }
    let is_installed = || program("mariadbd").is_ok();
    with_apt("MariaDB", &["mariadb-server"], is_installed).map_err(|error| format!("{error:#}"))?;
    program("mariadbd")
}

/// A program of MariaDB. The server is not on the path of every user.
fn program(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/bin"].map(PathBuf::from));
    let found = folders.find_map(|folder| Some(folder.join(name)).filter(|file| file.exists()));
    found.ok_or_else(|| format!("MariaDB is not installed; {REMEDY}"))
}

impl Server {
    /// The server of this test run: started by the first test that asks, and gone some moments after the run.
    ///
    /// # Panics
    ///
    /// With the reason and the remedy, where there is none to be had.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(|| shared().unwrap_or_else(|reason| panic!("no MariaDB to test on: {reason}")))
    }

    /// A server for one test, gone when it is dropped; with more settings, as on its command line without the dashes.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start(settings: &[&str]) -> Result<Owned, String> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = place()?.join(format!("own-{}-{number}", std::process::id()));
        let server = Self::in_folder(folder).create()?.launched(settings)?;
        Ok(Owned(server.watched_by(std::process::id())?))
    }

    /// The URL of this database for `root`, who needs no password.
    pub fn url(&self, database: &str) -> String {
        self.url_of("root", database)
    }

    /// The URL for `login`: a user, or a user and its password with a colon between them.
    pub fn url_of(&self, login: &str, database: &str) -> String {
        format!("mysql://{login}@127.0.0.1:{}/{database}", self.port)
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

    /// The name of a database that nobody else has.
    ///
    /// # Panics
    ///
    /// Where it cannot be created.
    pub fn fresh_database(&self) -> String {
        let database = system::fresh_name();
        self.sql("", &format!("CREATE DATABASE {database}"));
        database
    }

    /// Runs SQL as `root` in a database, and gives what it printed.
    ///
    /// # Panics
    ///
    /// Where it fails.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut client = self.client(database).unwrap_or_else(|reason| panic!("{reason}"));
        let output = client.args(["-e", sql]).output();
        let output = output.unwrap_or_else(|error| panic!("mariadb can be started: {error}"));
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A session of `root` in this database.
    fn client(&self, database: &str) -> Result<Command, String> {
        let mut client = Command::new(program("mariadb")?);
        let port = self.port.to_string();
        client.args(["--no-defaults", "-N", "-B", "-h", "127.0.0.1", "-P", &port, "-u", "root"]);
        if !database.is_empty() {
            client.arg(database);
        }
        Ok(client)
    }

    /// Ends it in order, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// Where it does not end.
    pub fn stop(&self) {
        self.send("-TERM");
        self.wait_until_gone();
    }

    /// Kills it, as a machine that loses its power does, and waits until it is gone. Nothing happens where it is gone already.
    ///
    /// # Panics
    ///
    /// Where it does not end.
    pub fn kill(&self) {
        self.send("-KILL");
        self.wait_until_gone();
    }

    /// Lets it stand still: it still takes connections, and answers nobody.
    pub fn freeze(&self) {
        self.send("-STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.send("-CONT");
    }

    /// Starts it again as it was, on the same port, and waits until it answers.
    ///
    /// # Panics
    ///
    /// Where it does not start, with the end of its log.
    pub fn start_again(&self) {
        let began = Instant::now();
        // What was killed may hold the port for a moment.
        while began.elapsed() < STARTS_WITHIN {
            if self.launch().unwrap_or_else(|reason| panic!("{reason}")) {
                return;
            }
            sleep(LOOK_EVERY);
        }
        panic!("MariaDB did not start again: {}", self.log());
    }

    /// A database on a small disk of its own, for a test that fills it: a folder is a database. It takes root to mount the disk, and
    /// it goes with the server.
    ///
    /// # Panics
    ///
    /// Where it cannot be mounted, with the reason.
    pub fn mount_database(&self, megabytes: u32) -> &'static str {
        system::mount_disk(&self.disk(), megabytes, USER);
        SMALL
    }

    /// Fills that disk, and gives the file that does it, for the test to remove.
    ///
    /// # Panics
    ///
    /// Where it does not get full.
    pub fn fill_disk(&self) -> PathBuf {
        system::fill_disk(&self.disk())
    }

    fn disk(&self) -> PathBuf {
        self.folder.join("data").join(SMALL)
    }

    fn in_folder(folder: PathBuf) -> Self {
        Self { folder, port: 0, settings: Vec::new(), process: Mutex::default() }
    }

    /// A data folder in which `root` needs no password: a copy of one that is made once, since that takes seconds.
    fn create(self) -> Result<Self, String> {
        let temporary = self.temporary();
        fs::create_dir_all(&temporary).map_err(|error| format!("{}: {error}", temporary.display()))?;
        give_away(&self.folder, USER)?;
        let template = template()?;
        let copied = Command::new("cp").arg("-a").arg(template.join("data")).arg(&self.folder).output();
        match copied {
            Ok(output) if output.status.success() => Ok(self),
            Ok(output) => Err(format!("cp: {}", String::from_utf8_lossy(&output.stderr).trim())),
            Err(error) => Err(format!("cp: {error}")),
        }
    }

    fn launched(mut self, settings: &[&str]) -> Result<Self, String> {
        self.settings = settings.iter().map(|setting| format!("--{setting}")).collect();
        for _ in 0..PORTS_MAX {
            self.port = free_port()?;
            if self.launch()? {
                return Ok(self);
            }
        }
        Err(format!("MariaDB did not start: {}", self.log()))
    }

    /// Starts the server and waits until it answers; false where it has ended.
    fn launch(&self) -> Result<bool, String> {
        let failed = |error: std::io::Error| format!("mariadbd: {error}");
        let log = File::create(self.folder.join("log")).map_err(failed)?;
        let mut server = as_user(USER, &program("mariadbd")?);
        server.env("TMPDIR", self.temporary());
        let files = [("datadir", "data"), ("socket", "socket"), ("pid-file", "pid")];
        server.arg("--no-defaults").args(files.map(|(name, file)| argument(name, &self.folder.join(file))));
        server.args(["--bind-address=127.0.0.1", "--skip-name-resolve", "--max-connections=300"]);
        server.arg(format!("--port={}", self.port)).args(&self.settings).current_dir("/");
        // A group of its own: what ends a test does not end the server in the middle of something.
        let output = (log.try_clone().map_err(failed)?, log);
        let server = server.stdin(Stdio::null()).stdout(output.0).stderr(output.1).process_group(0);
        let mut child = server.spawn().map_err(failed)?;
        let began = Instant::now();
        while began.elapsed() < STARTS_WITHIN {
            if child.try_wait().map_err(failed)?.is_some() {
                return Ok(false);
            }
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() && self.answers()? {
                *self.process() = Some(child);
                return Ok(true);
            }
            sleep(LOOK_EVERY);
        }
        Ok(false)
    }

    fn answers(&self) -> Result<bool, String> {
        let mut client = self.client("")?;
        client.args(["-e", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(client.status().is_ok_and(|status| status.success()))
    }

    /// Waits until a state that `SHOW STATUS` shows has this value.
    fn wait_for_state(&self, name: &str, value: &str) -> Result<(), String> {
        let (began, asked) = (Instant::now(), format!("SHOW GLOBAL STATUS LIKE '{name}'"));
        while began.elapsed() < STARTS_WITHIN {
            if self.sql("", &asked).split('\t').nth(1) == Some(value) {
                return Ok(());
            }
            sleep(LOOK_EVERY);
        }
        Err(format!("{name} does not become {value}: {}", self.log()))
    }

    /// A server that starts removes the temporary tables of every other one in the same folder.
    fn temporary(&self) -> PathBuf {
        self.folder.join("temporary")
    }

    fn watched_by(self, process: u32) -> Result<Self, String> {
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCH, "onlyonce-watch", &process.to_string()]).arg(&self.folder).current_dir("/");
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        shell.spawn().map_err(|error| format!("sh: {error}"))?;
        Ok(self)
    }

    fn send(&self, signal: &str) {
        if let Some(child) = self.process().as_ref() {
            // One that has just ended by itself is no failure.
            let _ =
                Command::new("kill").args([signal, &child.id().to_string()]).stderr(Stdio::null()).status();
        }
    }

    fn wait_until_gone(&self) {
        let is_gone = system::wait_until_gone(&mut self.process(), STARTS_WITHIN);
        assert!(is_gone, "MariaDB does not end: {}", self.log());
    }

    fn log(&self) -> String {
        system::last_lines(&self.folder.join("log"))
    }

    fn process(&self) -> MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Galera cluster of two nodes for one test, gone when it is dropped. The first has the majority by itself.
#[derive(Debug)]
pub struct Cluster {
    /// It keeps the majority.
    pub first: Owned,
    /// It can be cut off.
    pub second: Owned,
}

/// Where Debian's `galera-4` has it, which `mariadb-server` needs.
const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

impl Cluster {
    /// Starts the nodes, one after the other: the second copies the data of the first.
    ///
    /// # Errors
    ///
    /// Why there is none, and what to do.
    pub fn start() -> Result<Self, String> {
        install()?;
        if !Path::new(GALERA).exists() {
            return Err(format!("{GALERA} is missing; install Debian's galera-4"));
        }
        let [first_port, second_port] = [free_port()?, free_port()?];
        let first = Server::start(&galera(first_port, 2, "gcomm://")?.each_ref().map(String::as_str))?;
        let join = format!("gcomm://127.0.0.1:{first_port}");
        let second = Server::start(&galera(second_port, 1, &join)?.each_ref().map(String::as_str))?;
        for node in [&first, &second] {
            node.wait_for_state("wsrep_cluster_size", "2")?;
            node.wait_for_state("wsrep_ready", "ON")?;
        }
        Ok(Self { first, second })
    }

    /// Cuts the second node off from the first. Clients still reach both.
    ///
    /// # Panics
    ///
    /// Where the second does not notice.
    pub fn cut_off(&self) {
        self.second.sql("", "SET GLOBAL wsrep_provider_options = 'gmcast.isolate=1'");
        let noticed = self.second.wait_for_state("wsrep_ready", "OFF");
        noticed.unwrap_or_else(|reason| panic!("{reason}"));
    }
}

/// The settings of a node whose group speaks on this port. It notices the loss of another within two seconds.
fn galera(port: u16, weight: u8, cluster: &str) -> Result<[String; 9], String> {
    let (transfers, copies) = (free_port()?, free_port()?);
    let options = format!(
        "base_host=127.0.0.1;base_port={port};gmcast.listen_addr=tcp://127.0.0.1:{port};ist.recv_addr=127.0.0.1:{transfers};\
         pc.weight={weight};evs.keepalive_period=PT0.3S;evs.suspect_timeout=PT1S;evs.inactive_timeout=PT2S;\
         evs.inactive_check_period=PT0.3S;gcache.size=8M"
    );
    Ok([
        "wsrep-on=1".to_owned(),
        format!("wsrep-provider={GALERA}"),
        format!("wsrep-cluster-address={cluster}"),
        format!("wsrep-provider-options={options}"),
        format!("wsrep-node-address=127.0.0.1:{port}"),
        "wsrep-sst-method=rsync".to_owned(),
        format!("wsrep-sst-receive-address=127.0.0.1:{copies}"),
        "binlog-format=ROW".to_owned(),
        "innodb-autoinc-lock-mode=2".to_owned(),
    ])
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
        system::take_disk_away(&self.disk());
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
        return Ok(Server { port, ..Server::in_folder(folder) });
    }
    let server = Server::in_folder(folder).create()?.launched(&[])?.watched_by(watched)?;
    fs::write(noted, server.port.to_string()).map_err(failed)?;
    Ok(server)
}

/// A folder with a data folder of the MariaDB that is installed. The first comer makes it while the others wait at the lock.
fn template() -> Result<PathBuf, String> {
    let server = program("mariadbd")?;
    let failed = |error: std::io::Error| format!("{}: {error}", server.display());
    let modified = fs::metadata(&server).and_then(|file| file.modified()).map_err(failed)?;
    let version = modified.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let folder = system::place("mariadb", USER)?.join(format!("template-{version}"));
    let lock = File::create(folder.with_extension("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if folder.join("made").exists() {
        return Ok(folder);
    }
    // One that was broken off is made anew.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(failed)?;
    give_away(&folder, USER)?;
    let mut install = as_user(USER, &program("mariadb-install-db")?);
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    install.arg(argument("datadir", &folder.join("data"))).current_dir("/").env("TMPDIR", &folder);
    let output = install.output().map_err(|error| format!("mariadb-install-db: {error}"))?;
    if !output.status.success() {
        return Err(format!("mariadb-install-db: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    File::create(folder.join("made")).map_err(failed)?;
    Ok(folder)
}

fn argument(name: &str, file: &Path) -> String {
    format!("--{name}={}", file.display())
}

fn place() -> Result<PathBuf, String> {
    system::named_place("mariadb").unwrap_or_else(|| system::place("mariadb", USER))
}
