//! What is tested: a folder of `examples/field/`, how it is started, and what the tester is told.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use onlyonce_testkit::engines::redis;
use onlyonce_testkit::gateway::{self, Flags};
use onlyonce_testkit::process::{End, Process, child_command, free_address};
use onlyonce_testkit::repository;
use serde_json::{Value, json};

use crate::examples::service::{copy, prepare_node, prepare_python, prepare_python_with};

const READY_WITHIN: Duration = Duration::from_secs(60);
/// More than all checks send.
const WRITES: &str = "200";
/// Longer than any handler works, and shorter than a library's time-out for those who wait.
const ANSWER_WITHIN_SECONDS: &str = "20";
/// The form that its sessions have: anything else begins a new one.
const SESSION: &str = "Cookie: session=00000000000000000001AA";
const OTHER_SESSION: &str = "Cookie: session=00000000000000000002AA";
/// How many lines of a service's log are a reason.
const LINES_REPEATED: usize = 1;

/// A library with its settings.
pub(super) struct Subject {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
    /// Where it was published.
    pub(super) from: &'static str,
    pub(super) settings: &'static str,
    /// In `examples/field/`.
    pub(super) folder: &'static str,
    kind: Kind,
    is_best: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Python,
    /// A library that does not start on later ones.
    Python310,
    Node,
    /// A package of its own, with the name of its folder behind `field-`.
    Rust,
    /// The service without a library, in Python, behind our gateway.
    Gateway,
}

const fn python(
    name: &'static str,
    version: &'static str,
    folder: &'static str,
    settings: &'static str,
) -> Subject {
    Subject { name, version, from: "PyPI", settings, folder, kind: Kind::Python, is_best: false }
}

const fn node(
    name: &'static str,
    version: &'static str,
    folder: &'static str,
    settings: &'static str,
) -> Subject {
    Subject { name, version, from: "npm", settings, folder, kind: Kind::Node, is_best: false }
}

const fn best(subject: &Subject, settings: &'static str) -> Subject {
    Subject { settings, is_best: true, ..*subject }
}

const FASTAPI_IDEMPOTENCY: Subject =
    python("fastapi-idempotency", "0.1.1", "fastapi-idempotency", "defaults, in memory");
const DJANGO: Subject =
    python("django-idempotency-key", "1.3.0", "django-idempotency-key", "defaults, in memory");
const IDEMPTX: Subject = python("idemptx", "0.2.2", "idemptx", "defaults, Redis");
const KIT: Subject = python("idempotency-kit", "0.5.0", "idempotency-kit", "defaults, Redis");

pub(super) static SUBJECTS: [Subject; 17] = [
    Subject {
        name: "Onlyonce gateway",
        version: env!("CARGO_PKG_VERSION"),
        from: "this repository",
        settings: "defaults, `--store memory:`, in front of the service without a library",
        folder: "plain",
        kind: Kind::Gateway,
        is_best: false,
    },
    python("asgi-idempotency-header", "0.2.0", "asgi-idempotency-header", "defaults, Redis"),
    FASTAPI_IDEMPOTENCY,
    best(&FASTAPI_IDEMPOTENCY, "`scope` by `Authorization`, in memory"),
    Subject {
        kind: Kind::Python310,
        ..python(
            "fastapi-idempotent",
            "0.0.3",
            "fastapi-idempotent",
            "defaults, Redis; on Python 3.10, since it does not start on 3.11; keys are passed on as `X-Idempotent-Key`, made longer",
        )
    },
    DJANGO,
    best(&DJANGO, "`CONFLICT_STATUS_CODE` none, in memory"),
    python("drf-idempotency", "1.0.0", "drf-idempotency", "defaults, SQLite"),
    IDEMPTX,
    best(&IDEMPTX, "defaults, Redis; the service answers its exceptions with 400, 409 and 422"),
    python(
        "Flask-Idempotent",
        "0.1.0",
        "flask-idempotent",
        "defaults, Redis; `key_finder` for `Idempotency-Key`",
    ),
    KIT,
    best(&KIT, "`fingerprint_params` of body and caller, Redis"),
    node("express-idempotency", "1.0.6", "express-idempotency", "defaults, in memory"),
    node("@node-idempotency/nestjs", "1.0.4", "node-idempotency-nestjs", "defaults, in memory"),
    Subject {
        name: "axum-idempotent",
        version: "0.6.0",
        from: "crates.io",
        settings: "with `Idempotency-Key`, in memory; each caller has a session cookie, in which the library keeps answers",
        folder: "axum-idempotent",
        kind: Kind::Rust,
        is_best: false,
    },
    Subject {
        name: "no library",
        version: "",
        from: "",
        settings: "the service of every row, unprotected",
        folder: "plain",
        kind: Kind::Python,
        is_best: false,
    },
];

impl Subject {
    /// Whether this result is about it.
    pub(super) fn is_of(&self, result: &Value) -> bool {
        result["name"] == self.name
            && result["settings"] == self.settings
            && result["version"] == self.version
    }

    /// What the tester found.
    pub(super) fn checks(&self, program: &Path) -> Result<Vec<Value>> {
        let folder = repository::target()?.join("field").join(self.folder);
        copy(&repository::root().join("examples/field").join(self.folder), &folder)?;
        match self.kind {
            Kind::Python | Kind::Gateway => prepare_python(&folder),
            Kind::Python310 => prepare_python_with(&folder, "python3.10"),
            Kind::Node => prepare_node(&folder),
            Kind::Rust => build(&folder),
        }
        .context("cannot be installed")?;
        let redis = redis::Server::start(&[]).map_err(anyhow::Error::msg)?;
        let address = free_address()?;
        let _service = self.start(&folder, address, &redis.url())?;
        if self.kind != Kind::Gateway {
            return conform(program, &address.to_string(), address, self.kind);
        }
        let mut command = child_command(program, End::Terminate);
        Flags { config: None, upstream: address, store: "memory:" }.add_to(&mut command);
        command.current_dir(&folder).stderr(File::create(folder.join("gateway.log"))?);
        let mut gateway = Process::start("gateway", &mut command, End::Terminate)?;
        let addresses = gateway::ready(&mut gateway)?;
        conform(program, &addresses.gateway, address, self.kind)
    }

    fn start(&self, folder: &Path, address: SocketAddr, redis_url: &str) -> Result<Process> {
        let mut command = match self.kind {
            Kind::Python | Kind::Python310 | Kind::Gateway => {
                let mut command = child_command(&folder.join("venv/bin/python"), End::Terminate);
                command.arg("service.py");
                command
            }
            Kind::Node => {
                let mut command = child_command(Path::new("node"), End::Terminate);
                command.arg("service.js");
                command
            }
            Kind::Rust => {
                let binary = folder.join("target/debug").join(format!("field-{}", self.folder));
                child_command(&binary, End::Terminate)
            }
        };
        let path = folder.join("service.log");
        let log = File::create(&path)?;
        command.env("PORT", address.port().to_string()).env("REDIS_URL", redis_url);
        command.env("SETTINGS", if self.is_best { "best" } else { "defaults" });
        command.current_dir(folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut process = Process::start(self.name, &mut command, End::Terminate)?;
        if process.wait_until_listening(address, READY_WITHIN).is_err() {
            bail!("cannot be started on {}: {}", self.runtime(folder)?, last_lines(&path));
        }
        Ok(process)
    }

    /// What the service runs on, as `Python 3.11.7`.
    fn runtime(&self, folder: &Path) -> Result<String> {
        let (name, program) = match self.kind {
            Kind::Python | Kind::Python310 | Kind::Gateway => ("", folder.join("venv/bin/python")),
            Kind::Node => ("Node.js ", PathBuf::from("node")),
            Kind::Rust => ("", PathBuf::from("rustc")),
        };
        let said = Command::new(program).arg("--version").output()?;
        Ok(format!("{name}{}", String::from_utf8_lossy(&said.stdout).trim()))
    }
}

/// Below its own folder, so that nothing of the product's build is touched.
fn build(folder: &Path) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--locked"]).current_dir(folder);
    let output =
        command.env("CARGO_TARGET_DIR", folder.join("target")).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// The tester's checks, with what is the same in every run.
fn conform(program: &Path, tested: &str, service: SocketAddr, kind: Kind) -> Result<Vec<Value>> {
    let mut command = Command::new(program);
    command.arg("conform").arg(format!("http://{tested}/payments")).args([
        "--json",
        "--allow-writes",
        WRITES,
    ]);
    command.args(["--header", "Authorization: Bearer ann", "--other-caller", "Authorization: Bearer bob"]);
    if kind == Kind::Rust {
        command.args(["--header", SESSION, "--other-caller", OTHER_SESSION]);
    }
    command.args(["--count", &format!("http://{service}/count"), "--count-pointer", "/count"]);
    command.args(["--timeout", ANSWER_WITHIN_SECONDS]).stdin(Stdio::null());
    let output = command.output().context("cannot start the tester")?;
    let report: Option<Value> = serde_json::from_slice(&output.stdout).ok();
    match report.as_ref().and_then(|report| report["checks"].as_array()) {
        Some(checks) if matches!(output.status.code(), Some(0 | 1)) => Ok(checks.iter().map(kept).collect()),
        _ => {
            let error: Option<Value> = serde_json::from_slice(&output.stderr).ok();
            let detail = error.as_ref().and_then(|error| error["error"]["detail"].as_str());
            let said = String::from_utf8_lossy(&output.stderr);
            bail!("the tester: {}", detail.unwrap_or(said.trim()).replace(&service.to_string(), "HOST"))
        }
    }
}

fn kept(check: &Value) -> Value {
    json!({
        "id": check["id"],
        "level": check["level"],
        "what": check["what"],
        "verdict": check["verdict"],
        "why": check["why"],
    })
}

fn last_lines(log: &PathBuf) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(LINES_REPEATED)..].join(" | ")
}
