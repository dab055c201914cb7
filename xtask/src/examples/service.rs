//! The services: what each needs, how it is started, and how often it says that it has charged.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onlyonce_testkit::http;
use onlyonce_testkit::install::{succeeds, with_apt};
use onlyonce_testkit::process::{End, Process, child_command, free_address};
use onlyonce_testkit::repository;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// An access log is written after its answer was sent.
const COUNTED_WITHIN: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What the examples listen on where nobody says otherwise.
const PORT: &str = "3000";

/// A folder of `examples/`.
pub(super) struct Service {
    pub(super) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Python,
    Node,
    Nginx,
    /// Python without anything installed; it can be asked whether a payment happened.
    Probe,
    /// Python and Node that complete their requests by SQL.
    Psycopg,
    Pg,
}

/// What is put around a service so that it can be killed at a step of its transaction.
const CRASH_PY: &str = include_str!("crash/crash.py");
const CRASH_CJS: &str = include_str!("crash/crash.cjs");

pub(super) const PROBE: Service = Service { name: "probe", kind: Kind::Probe };

pub(super) static SERVICES: [Service; 6] = [
    Service { name: "fastapi", kind: Kind::Python },
    Service { name: "express", kind: Kind::Node },
    Service { name: "nginx", kind: Kind::Nginx },
    PROBE,
    Service { name: "fastapi-postgres", kind: Kind::Psycopg },
    Service { name: "express-postgres", kind: Kind::Pg },
];

/// A service that listens.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    kind: Kind,
    process: Process,
}

impl Service {
    /// Copies it to where it may leave things behind, and installs what it needs.
    pub(super) fn prepare(&self, folder: &Path) -> Result<()> {
        copy(&repository::root().join("examples").join(self.name), folder)?;
        match self.kind {
            Kind::Python => prepare_python(folder),
            Kind::Node => prepare_node(folder),
            Kind::Psycopg => {
                std::fs::write(folder.join("crash.py"), CRASH_PY)?;
                prepare_python(folder)
            }
            Kind::Pg => {
                std::fs::write(folder.join("crash.cjs"), CRASH_CJS)?;
                prepare_node(folder)
            }
            Kind::Nginx => with_apt("nginx", &["nginx"], || succeeds("nginx", &["-v"])),
            Kind::Probe => with_apt("python3", &["python3"], || succeeds("python3", &["--version"])),
        }
    }

    /// Whether it completes its requests in its own transaction.
    pub(super) fn completes_by_sql(&self) -> bool {
        match self.kind {
            Kind::Psycopg | Kind::Pg => true,
            Kind::Python | Kind::Node | Kind::Nginx | Kind::Probe => false,
        }
    }

    pub(super) fn start(&self, folder: &Path) -> Result<Running> {
        self.start_at(folder, free_address()?, &[])
    }

    pub(super) fn start_at(
        &self,
        folder: &Path,
        address: SocketAddr,
        variables: &[(&str, &str)],
    ) -> Result<Running> {
        let mut command = match self.kind {
            Kind::Python => python(folder, "service:app", address),
            Kind::Psycopg => python(folder, "crash:app", address),
            Kind::Node => node(&[], address),
            Kind::Pg => node(&["--require", "./crash.cjs"], address),
            Kind::Nginx => nginx(folder, address)?,
            Kind::Probe => probe(folder, address)?,
        };
        let log = File::create(folder.join("service.log"))?;
        command.envs(variables.iter().copied());
        command.current_dir(folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut process = Process::start(self.name, &mut command, End::Terminate)?;
        process
            .wait_until_listening(address, READY_WITHIN)
            .with_context(|| format!("see {}", folder.join("service.log").display()))?;
        Ok(Running { address, kind: self.kind, process })
    }
}

impl Running {
    /// Whether it can be asked what became of a payment.
    pub(super) fn has_probe(&self) -> bool {
        match self.kind {
            Kind::Probe => true,
            Kind::Python | Kind::Node | Kind::Nginx | Kind::Psycopg | Kind::Pg => false,
        }
    }

    pub(super) fn has_died_within(&mut self, within: Duration) -> Result<bool> {
        Ok(self.process.exit_status_within(within)?.is_some())
    }

    /// How often it has charged, once that is `expected` or has had the time to become so.
    pub(super) fn charges(&self, expected: usize) -> Result<usize> {
        let asked = Instant::now();
        loop {
            let count = self.charges_now()?;
            if count == expected || asked.elapsed() > COUNTED_WITHIN {
                return Ok(count);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Asked at the service itself, not through the gateway.
    fn charges_now(&self) -> Result<usize> {
        let answer = http::get(&self.address.to_string(), "/charges")?;
        let text = String::from_utf8_lossy(&answer.body);
        let count = match self.kind {
            Kind::Python | Kind::Node | Kind::Probe | Kind::Psycopg | Kind::Pg => counted(&text),
            Kind::Nginx => Some(text.lines().count()),
        };
        count
            .filter(|_| answer.status == 200)
            .with_context(|| format!("GET /charges: {} {text}", answer.status))
    }
}

/// `{"charges":3}`
fn counted(text: &str) -> Option<usize> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    usize::try_from(json["charges"].as_u64()?).ok()
}

/// The files of a folder, none of which has folders of its own.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    let files = std::fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))?;
    for file in files {
        let file = file?;
        if file.file_type()?.is_file() {
            std::fs::copy(file.path(), to.join(file.file_name()))?;
        }
    }
    Ok(())
}

pub(crate) fn prepare_python(folder: &Path) -> Result<()> {
    prepare_python_with(folder, "python3")
}

/// With the command of a version, such as `python3.10`, which must be there already.
pub(crate) fn prepare_python_with(folder: &Path, python: &str) -> Result<()> {
    // Debian has Python without what makes a virtual environment; importing both is how that shows.
    let has_venv = || succeeds("python3", &["-c", "import venv, ensurepip"]);
    with_apt("python3 with venv", &["python3", "python3-venv"], has_venv)?;
    unless_done(folder, "requirements.txt", "venv", || {
        let mut venv = Command::new(python);
        // Where pyenv has several versions, its commands ask which one is meant.
        if let Some(version) = python.strip_prefix("python").filter(|version| version.contains('.')) {
            venv.env("PYENV_VERSION", version);
        }
        run(venv.args(["-m", "venv", "--clear", "venv"]).current_dir(folder))?;
        let mut pip = Command::new(folder.join("venv/bin/pip"));
        run(pip.args(["install", "--quiet", "--requirement", "requirements.txt"]).current_dir(folder))
    })
}

pub(crate) fn prepare_node(folder: &Path) -> Result<()> {
    with_apt("node and npm", &["nodejs", "npm"], || {
        succeeds("node", &["--version"]) && succeeds("npm", &["--version"])
    })?;
    unless_done(folder, "package-lock.json", "node_modules", || {
        run(Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(folder))
    })
}

/// Does it where the list of what is needed has changed since it was last done, or the result is gone.
fn unless_done(folder: &Path, list: &str, result: &str, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = folder.join(format!("{list}.installed"));
    let wanted = std::fs::read(folder.join(list))?;
    if folder.join(result).is_dir() && std::fs::read(&stamp).is_ok_and(|done| done == wanted) {
        return Ok(());
    }
    eprintln!("installing what {list} names");
    install()?;
    Ok(std::fs::write(&stamp, wanted)?)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{:?}: {}: {}", command.get_program(), output.status, said.trim());
    }
    Ok(())
}

fn python(folder: &Path, app: &str, address: SocketAddr) -> Command {
    let mut command = child_command(&folder.join("venv/bin/uvicorn"), End::Terminate);
    command.args([app, "--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command
}

fn node(flags: &[&str], address: SocketAddr) -> Command {
    let mut command = child_command(Path::new("node"), End::Terminate);
    command.args(flags).arg("service.js").env("PORT", address.port().to_string());
    command
}

/// Its settings name its port too, for the probe.
fn probe(folder: &Path, address: SocketAddr) -> Result<Command> {
    let path = folder.join("onlyonce.toml");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replace(&format!("127.0.0.1:{PORT}"), &address.to_string()))?;
    let mut command = child_command(Path::new("python3"), End::Terminate);
    command.arg("service.py").env("PORT", address.port().to_string()).env("DATABASE", ":memory:");
    Ok(command)
}

/// nginx cannot be told its port, so it is given a copy of its file with the other one.
fn nginx(folder: &Path, address: SocketAddr) -> Result<Command> {
    let path = folder.join("nginx.conf");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, on_port(&text, address)?)?;
    let prefix = folder.join("run");
    if prefix.exists() {
        std::fs::remove_dir_all(&prefix)?;
    }
    std::fs::create_dir(&prefix)?;
    let mut command = child_command(Path::new("nginx"), End::Terminate);
    command.arg("-p").arg(&prefix).arg("-c").arg(&path);
    Ok(command)
}

fn on_port(text: &str, address: SocketAddr) -> Result<String> {
    let usual = format!("127.0.0.1:{PORT};");
    if text.matches(&usual).count() != 1 {
        bail!("nginx.conf does not listen on \"{usual}\" once; correct it there or here");
    }
    Ok(text.replace(&usual, &format!("{address};")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_replaced_once_or_not_at_all() {
        let address = "127.0.0.1:4711".parse().unwrap();
        assert_eq!(on_port("listen 127.0.0.1:3000;", address).unwrap(), "listen 127.0.0.1:4711;");
        assert!(on_port("listen 3000;", address).is_err());
    }

    #[test]
    fn what_changed_is_installed_again() {
        let folder = std::env::temp_dir().join(format!("onlyonce-xtask-installed-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("result")).unwrap();
        let mut times = 0;
        let mut install = |text: &str| {
            std::fs::write(folder.join("list"), text).unwrap();
            unless_done(&folder, "list", "result", || {
                times += 1;
                Ok(())
            })
            .unwrap();
            times
        };
        assert_eq!([install("a"), install("a"), install("b")], [1, 1, 2]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
