//! A server under measurement: a process of its own on a free port, gone when this value is. One that forwards has the
//! plain handler behind it, a process of its own too.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use onlyonce_testkit::gateway::{self, Flags};
use onlyonce_testkit::http;
use onlyonce_testkit::process::{End, Process, free_address};
use onlyonce_testkit::repository;
use serde_json::Value;

use crate::folder::Folder;
use crate::subjects::{PLAIN_PACKAGE, Place, Program, Subject};
use crate::tools::{Fresh, Tools};

const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long a server may take to end: one with a file checkpoints its WAL first.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
/// Base64 of 32 bytes, for settings that say `env:ENCRYPTION_KEY`.
const ENCRYPTION_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub(crate) struct Server {
    process: Process,
    /// Where it listens, as `127.0.0.1:PORT`.
    pub(crate) address: String,
    /// Where operators come in, if it is a gateway.
    admin: Option<String>,
    /// From its start to its first line.
    pub(crate) ready_after: Duration,
    ticks_per_second: f64,
    /// What it forwards to, and where that listens.
    upstream: Option<(Process, String)>,
    /// The process of the database it uses.
    database: Option<u32>,
    /// The folder of its files, where that is its own. Dropped after the process has ended.
    _folder: Option<Folder>,
}

impl Server {
    /// Starts it, with a new file where it needs one, and waits until it listens.
    pub(crate) fn start(tools: &Tools, subject: &Subject) -> Result<Self> {
        match subject.program {
            Program::Handler { package, place: Place::Own } => Self::package(tools, package, &[]),
            Program::Handler { package, place: Place::Memory } => Self::package(tools, package, &["memory:"]),
            Program::Handler { package, place: Place::File } => {
                let folder = Folder::new(tools)?;
                let server = Self::package(tools, package, &[&sqlite(&folder.store())])?;
                Ok(Self { _folder: Some(folder), ..server })
            }
            Program::Handler {
                package,
                place: place @ (Place::Database | Place::Mariadb | Place::Redis),
            } => Self::on(tools, package, &tools.fresh(place)?, &[]),
            Program::Proxy { package } => {
                Self::before_plain(tools, |upstream| Self::package(tools, package, &[&upstream.to_string()]))
            }
            Program::Nginx => Self::before_plain(tools, |upstream| Self::nginx(tools, upstream)),
            Program::Gateway { place, settings } => {
                Self::before_plain(tools, |upstream| Self::gateway(tools, upstream, place, settings))
            }
        }
    }

    /// A handler of ours on the file at `path`, which stays when the server is gone.
    pub(crate) fn open(tools: &Tools, package: &str, path: &Path, flags: &[&str]) -> Result<Self> {
        Self::package(tools, package, &[&[sqlite(path).as_str()], flags].concat())
    }

    /// A handler of ours on the database at this URL, which stays when the server is gone.
    pub(crate) fn on_database(tools: &Tools, package: &str, url: &str, flags: &[&str]) -> Result<Self> {
        let pid = tools.database()?.pid()?;
        Self::on(tools, package, &Fresh { url: url.to_owned(), pid }, flags)
    }

    /// The same on any server.
    pub(crate) fn on(tools: &Tools, package: &str, store: &Fresh, flags: &[&str]) -> Result<Self> {
        let server = Self::package(tools, package, &[&[store.url.as_str()], flags].concat())?;
        Ok(Self { database: Some(store.pid), ..server })
    }

    fn before_plain(tools: &Tools, start: impl FnOnce(SocketAddr) -> Result<Self>) -> Result<Self> {
        let upstream = Self::package(tools, PLAIN_PACKAGE, &[])?;
        let server = start(upstream.address.parse()?)?;
        Ok(Self { upstream: Some((upstream.process, upstream.address)), ..server })
    }

    /// A binary of the bench. It ends when its stdin closes, and its first line says where it listens.
    fn package(tools: &Tools, package: &str, arguments: &[&str]) -> Result<Self> {
        let mut command = tools.command(&tools.binary(package), End::Kill);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self::run(tools, package, &mut command, End::Kill, |process| {
            let line = process.first_line(READY_WITHIN)?;
            let address = line.trim().strip_prefix("ready ");
            Ok(address.with_context(|| format!("{package} said {line:?}"))?.to_owned())
        })
    }

    /// The product's own program with these settings, before the plain handler, on the file at `path`, which stays when the
    /// server is gone.
    pub(crate) fn gateway_on(tools: &Tools, path: &Path, config: &Path) -> Result<Self> {
        let start =
            |upstream| Self::program(tools, &Flags { config: Some(config), upstream, store: &sqlite(path) });
        Self::before_plain(tools, start)
    }

    /// A probe at this address of the machine.
    pub(crate) fn probe(tools: &Tools, address: &str) -> Result<Self> {
        Self::package(tools, PLAIN_PACKAGE, &[address])
    }

    /// How often the handler, or the probe, was asked.
    pub(crate) fn count(&self) -> Result<u64> {
        let answer = http::get(&self.address, "/_count")?;
        String::from_utf8_lossy(&answer.body).parse().with_context(|| format!("no count in {answer:?}"))
    }

    fn gateway(tools: &Tools, upstream: SocketAddr, place: Place, settings: &str) -> Result<Self> {
        let folder = Folder::new(tools)?;
        let config = folder.path().join("onlyonce.toml");
        std::fs::write(&config, settings)?;
        let store = match place {
            Place::Own | Place::Memory => "memory:".to_owned(),
            Place::File => sqlite(&folder.store()),
            Place::Database | Place::Mariadb | Place::Redis => tools.fresh(place)?.url,
        };
        let server = Self::program(tools, &Flags { config: Some(&config), upstream, store: &store })?;
        Ok(Self { _folder: Some(folder), ..server })
    }

    fn program(tools: &Tools, flags: &Flags<'_>) -> Result<Self> {
        let mut command = tools.command(&tools.product(), End::Kill);
        flags.add_to(&mut command);
        command.env("ENCRYPTION_KEY", ENCRYPTION_KEY).stderr(tools.log("gateway")?);
        let mut admin = None;
        let server = Self::run(tools, "the gateway", &mut command, End::Kill, |process| {
            let addresses = gateway::ready(process)?;
            admin = Some(addresses.admin);
            Ok(addresses.gateway)
        })?;
        Ok(Self { admin, ..server })
    }

    /// It cannot choose its port, and ends its workers only when it is asked to end.
    fn nginx(tools: &Tools, upstream: SocketAddr) -> Result<Self> {
        let folder = Folder::new(tools)?;
        let address = free_address()?;
        let settings = std::fs::read_to_string(repository::root().join("bench/nginx/nginx.conf"))?;
        let settings =
            settings.replace("LISTEN", &address.to_string()).replace("UPSTREAM", &upstream.to_string());
        let path = folder.path().join("nginx.conf");
        std::fs::write(&path, settings)?;
        let mut command = tools.command(Path::new("nginx"), End::Terminate);
        command
            .arg("-p")
            .arg(folder.path())
            .arg("-c")
            .arg(&path)
            .stdin(Stdio::null())
            .stderr(tools.log("nginx")?);
        let server = Self::run(tools, "nginx", &mut command, End::Terminate, |process| {
            process.wait_until_listening(address, READY_WITHIN)?;
            Ok(address.to_string())
        })?;
        Ok(Self { _folder: Some(folder), ..server })
    }

    fn run(
        tools: &Tools,
        name: &str,
        command: &mut Command,
        end: End,
        ready: impl FnOnce(&mut Process) -> Result<String>,
    ) -> Result<Self> {
        let started = Instant::now();
        let mut process = Process::start(name, command, end)?;
        let address = ready(&mut process)?;
        Ok(Self {
            process,
            address,
            admin: None,
            ready_after: started.elapsed(),
            ticks_per_second: tools.ticks_per_second,
            upstream: None,
            database: None,
            _folder: None,
        })
    }

    /// Lets it end by itself, which leaves its file at rest. Dropping the value instead kills it.
    pub(crate) fn stop(self) -> Result<()> {
        self.process.close(ENDED_WITHIN)
    }

    /// Where operators come in, as `127.0.0.1:PORT`.
    pub(crate) fn admin(&self) -> Result<&str> {
        self.admin.as_deref().context("it has no admin port")
    }

    /// What its engine has done so far.
    pub(crate) fn figures(&self) -> Result<Value> {
        let answer = http::get(&self.address, "/_figures")?;
        serde_json::from_slice(&answer.body).with_context(|| format!("no figures in {answer:?}"))
    }

    /// How often the handler behind it has run.
    pub(crate) fn runs(&self) -> Result<u64> {
        let (_, address) = self.upstream.as_ref().context("it forwards to nothing")?;
        let answer = http::get(address, "/_count")?;
        let count = std::str::from_utf8(&answer.body).ok().and_then(|count| count.parse().ok());
        count.with_context(|| format!("no count in {answer:?}"))
    }

    /// What it has caused to be written to disks so far, by the kernel's count.
    pub(crate) fn written_bytes(&self) -> Result<u64> {
        written_bytes(self.pid())
    }

    /// What it holds in memory now.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).context("cannot read /proc")?;
        let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().split(' ').next());
        let kibibytes: Option<u64> = kibibytes.and_then(|number| number.parse().ok());
        Ok(kibibytes.with_context(|| format!("cannot understand {status:?}"))? * 1024)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// CPU time used so far, user and system, in seconds: its own, its workers', what it forwards to, and its database.
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        self.cpu_seconds_beside(self.database)
    }

    /// The same without its database, for one of several nodes on it.
    pub(crate) fn own_cpu_seconds(&self) -> Result<f64> {
        self.cpu_seconds_beside(None)
    }

    fn cpu_seconds_beside(&self, database: Option<u32>) -> Result<f64> {
        let upstream = self.upstream.as_ref().map(|(process, _)| process.pid());
        let roots = [Some(self.pid()), upstream, database];
        let mut ticks = 0.0;
        for root in roots.into_iter().flatten() {
            ticks += stat(root).with_context(|| format!("cannot read /proc/{root}/stat"))?.ticks;
            ticks += children(root)?;
        }
        Ok(ticks / self.ticks_per_second)
    }
}

/// What a process has caused to be written to disks so far, by the kernel's count.
pub(crate) fn written_bytes(pid: u32) -> Result<u64> {
    let io = std::fs::read_to_string(format!("/proc/{pid}/io")).context("cannot read /proc")?;
    let bytes = io.lines().find_map(|line| line.strip_prefix("write_bytes: ")?.parse().ok());
    bytes.with_context(|| format!("cannot understand {io:?}"))
}

fn sqlite(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

/// What /proc tells of a process.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    ticks: f64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The ticks of its children that live. Ours start theirs once and keep them.
fn children(parent: u32) -> Result<f64> {
    let pids =
        std::fs::read_dir("/proc")?.filter_map(|folder| folder.ok()?.file_name().to_str()?.parse().ok());
    let stats = pids.filter_map(stat).filter(|stat| stat.parent == parent);
    Ok(stats.map(|stat| stat.ticks).sum())
}

/// The parent is field 4; utime and stime are 14 and 15, and 16 and 17 those of its children that have ended; the second
/// is the name in parentheses, which may contain anything.
fn parse(stat: &str) -> Option<Stat> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let mut fields = fields.skip(9);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    let ended_user: f64 = fields.next()?.parse().ok()?;
    let ended_system: f64 = fields.next()?.parse().ok()?;
    Some(Stat { parent, ticks: user + system + ended_user + ended_system })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_behind_any_name() {
        let text = "42 (a ) b) S 7 2 3 4 5 6 7 8 9 10 250 50 30 3 20 0 3 0 1 1 1";
        assert_eq!(parse(text), Some(Stat { parent: 7, ticks: 333.0 }));
    }
}
