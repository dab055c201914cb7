//! The product's own program as a gateway, `onlyonce serve`, in front of a service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::Process;
use crate::repository::{self, cargo};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// The flags of every gateway that is started here.
#[derive(Debug)]
pub struct Flags<'a> {
    /// The file with its settings.
    pub config: Option<&'a Path>,
    /// The service behind it.
    pub upstream: SocketAddr,
    /// The URL of its store.
    pub store: &'a str,
}

/// Where a gateway listens, as `127.0.0.1:PORT`.
#[derive(Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For clients.
    pub gateway: String,
    /// For operators.
    pub admin: String,
}

impl Flags<'_> {
    /// Adds the flags to a command for the program.
    pub fn add_to(&self, command: &mut Command) {
        command.arg("serve").args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.arg("--upstream").arg(format!("http://{}", self.upstream)).args(["--store", self.store]);
        if let Some(config) = self.config {
            command.arg("--config").arg(config);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    }
}

/// Builds the program from this working tree, and gives its path.
///
/// # Errors
///
/// Where it does not build.
pub fn build() -> Result<PathBuf> {
    build_with(&[])
}

/// The same with every engine.
///
/// # Errors
///
/// Where it does not build.
pub fn build_with_all_stores() -> Result<PathBuf> {
    build_with(&["--features", "all-stores"])
}

fn build_with(flags: &[&str]) -> Result<PathBuf> {
    let mut build = cargo(&["build", "--quiet", "--package", "onlyonce-server"]);
    build.args(flags);
    let status = build.stdin(Stdio::null()).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("the program does not build; see above");
    }
    Ok(repository::target()?.join("debug/onlyonce"))
}

/// Waits for the line that says where the gateway listens.
///
/// # Errors
///
/// Where it ends before that, or says something else.
pub fn ready(process: &mut Process) -> Result<Addresses> {
    let line = process.first_line(READY_WITHIN)?;
    addresses(&line).with_context(|| format!("the gateway said {line:?}"))
}

/// `ready: gateway http://… admin http://… store …`
fn addresses(line: &str) -> Option<Addresses> {
    let mut words = line.strip_prefix("ready: ")?.split(' ');
    let mut address = |name| {
        let url = words.next().filter(|word| *word == name).and_then(|_| words.next())?;
        url.strip_prefix("http://").map(str::to_owned)
    };
    Some(Addresses { gateway: address("gateway")?, admin: address("admin")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_tells_where_it_listens() {
        let line =
            "ready: gateway http://127.0.0.1:8080 admin http://127.0.0.1:8081 store sqlite:onlyonce.db";
        let expected = Addresses { gateway: "127.0.0.1:8080".into(), admin: "127.0.0.1:8081".into() };
        assert_eq!(addresses(line), Some(expected));
        assert_eq!(addresses("ready: admin http://127.0.0.1:8081 gateway http://127.0.0.1:8080"), None);
        assert_eq!(addresses("error: no"), None);
    }
}
