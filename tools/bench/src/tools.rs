//! What the bench needs besides itself: wrk, the built servers, and enough open files.

use std::cell::OnceCell;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use onlyonce_testkit::engines::{mariadb, redis};
use onlyonce_testkit::install::{succeeds, with_apt};
use onlyonce_testkit::process::{End, child_command};
use onlyonce_testkit::repository::{self, cargo};

use crate::database::Database;
use crate::folder;
use crate::subjects::{Place, Program};

/// Open files we ask for where nothing limits them.
const FILES_ENOUGH: u64 = 100_000;

pub(crate) struct Tools {
    /// Where the product is built.
    product: PathBuf,
    /// Where the bench is built, beside it: profiles and features differ.
    target: PathBuf,
    /// How many files a process may open, once it has raised its own limit.
    pub(crate) files_max: u64,
    /// The unit of CPU time in /proc.
    pub(crate) ticks_per_second: f64,
    database: OnceCell<Database>,
    mariadb: OnceCell<mariadb::Owned>,
    redis: OnceCell<redis::Owned>,
}

/// A place on a server of this run that nobody else uses.
pub(crate) struct Fresh {
    pub(crate) url: String,
    /// The server's process.
    pub(crate) pid: u32,
}

impl Tools {
    pub(crate) fn prepare() -> Result<Self> {
        // wrk answers with its version and an exit code of 1.
        with_apt("wrk", &["wrk"], || Command::new("wrk").arg("-v").stdout(Stdio::null()).status().is_ok())?;
        let hard_limit = said(Command::new("sh").args(["-c", "ulimit -Hn"]))?;
        let ticks = said(Command::new("getconf").arg("CLK_TCK"))?;
        let product = repository::target()?;
        let target = product.join("bench");
        folder::remove_stale(&target.join("stores"))?;
        Ok(Self {
            product,
            target,
            files_max: hard_limit.parse().unwrap_or(FILES_ENOUGH).min(FILES_ENOUGH),
            ticks_per_second: ticks.parse().context("getconf CLK_TCK gave no number")?,
            database: OnceCell::new(),
            mariadb: OnceCell::new(),
            redis: OnceCell::new(),
        })
    }

    /// Builds or installs what a subject needs.
    pub(crate) fn provide(&self, program: Program) -> Result<()> {
        match program {
            Program::Handler { package, .. } | Program::Proxy { package } => self.build(package),
            Program::Nginx => with_apt("nginx", &["nginx"], || succeeds("nginx", &["-v"])),
            Program::Gateway { .. } => {
                build_in(&repository::root(), "onlyonce-server", "dist", &self.product)
            }
        }
    }

    /// Builds one package of the bench, for release.
    pub(crate) fn build(&self, package: &str) -> Result<()> {
        build_in(&repository::root().join("bench"), package, "release", &self.target)
    }

    /// The PostgreSQL of this run, started by whoever asks first.
    pub(crate) fn database(&self) -> Result<&Database> {
        first(&self.database, Database::start)
    }

    /// The same for MariaDB, with a usual amount of memory. All else is its default: each commit is flushed.
    pub(crate) fn mariadb(&self) -> Result<&mariadb::Server> {
        let started = first(&self.mariadb, || {
            mariadb::install().map_err(|reason| anyhow!(reason))?;
            let settings = ["innodb-buffer-pool-size=1G", "innodb-log-file-size=1G"];
            mariadb::Server::start(&settings).map_err(|reason| anyhow!(reason))
        });
        started.map(|server| &**server)
    }

    /// The same for Redis, which appends each write to its file and flushes it before it answers.
    pub(crate) fn redis(&self) -> Result<&redis::Server> {
        let started = first(&self.redis, || {
            redis::install().map_err(|reason| anyhow!(reason))?;
            redis::Server::start(&[]).map_err(|reason| anyhow!(reason))
        });
        started.map(|server| &**server)
    }

    /// An empty place on the server of this kind.
    pub(crate) fn fresh(&self, place: Place) -> Result<Fresh> {
        Ok(match place {
            Place::Database => {
                let database = self.database()?;
                Fresh { url: database.url(&database.fresh_for_one()), pid: database.pid()? }
            }
            Place::Mariadb => {
                let server = self.mariadb()?;
                let pid = server.pid().context("MariaDB is not running")?;
                Fresh { url: server.url(&server.fresh_database()), pid }
            }
            Place::Redis => {
                let server = self.redis()?;
                Fresh { url: server.fresh_prefix(), pid: server.pid().context("Redis is not running")? }
            }
            Place::Own | Place::Memory | Place::File => bail!("{place:?} is not on a server"),
        })
    }

    /// Where servers may keep files: on the disk that the project is built on, which a temporary folder may not be.
    pub(crate) fn stores(&self) -> PathBuf {
        self.target.join("stores")
    }

    /// The log of a server that is not a program of the bench; each start begins it anew.
    pub(crate) fn log(&self, name: &str) -> Result<File> {
        let path = self.target.join(format!("{name}.log"));
        File::create(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// A binary of the bench.
    pub(crate) fn binary(&self, package: &str) -> PathBuf {
        self.target.join("release").join(package)
    }

    /// The product's own program.
    pub(crate) fn product(&self) -> PathBuf {
        self.product.join("dist/onlyonce")
    }

    /// A command for a program that may open as many files as the machine lets it.
    pub(crate) fn command(&self, program: &Path, end: End) -> Command {
        let mut command = child_command(Path::new("sh"), end);
        command.args(["-c", "ulimit -n \"$0\" && exec \"$@\"", &self.files_max.to_string()]).arg(program);
        command
    }
}

/// What is in the cell, made by whoever asks first.
fn first<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if cell.get().is_none() {
        // Nobody else has set it: a `OnceCell` is used by one thread.
        let _ = cell.set(make()?);
    }
    Ok(cell.get().expect("it was set"))
}

fn build_in(workspace: &Path, package: &str, profile: &str, target: &Path) -> Result<()> {
    eprintln!("building {package}");
    let mut build = cargo(&["build", "--profile", profile, "--quiet", "--package", package, "--target-dir"]);
    let status = build.arg(target).current_dir(workspace).status()?;
    if !status.success() {
        bail!("{package} does not build; see above");
    }
    Ok(())
}

fn said(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Runs a load and gives its output. One that does not end in time is stopped: the bench always ends.
pub(crate) fn output_within(command: &mut Command, time: Duration) -> Result<String> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().expect("stdout was piped");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > time {
            child.kill()?;
            child.wait()?;
            bail!("{:?} did not end within {time:?}", command.get_program());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = reader.join().expect("a reader of text does not panic")?;
    if !status.success() {
        bail!("{:?}: {status}: {text}", command.get_program());
    }
    Ok(text)
}
