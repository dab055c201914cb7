//! The product's own program as a gateway, `onlyonce serve`, started before a service.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::process::Process;
use crate::repository;
use crate::steps::{Ending, cargo, pass};

const READY_WITHIN: Duration = Duration::from_secs(30);

/// What every gateway of ours is told; the rest is the caller's.
pub(crate) struct Flags<'a> {
    pub(crate) config: Option<&'a Path>,
    pub(crate) upstream: SocketAddr,
    pub(crate) store: &'a str,
}

/// Where one listens, as `127.0.0.1:PORT`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) gateway: String,
    pub(crate) admin: String,
}

impl Flags<'_> {
    /// Adds them to a command for the program.
    pub(crate) fn give(&self, command: &mut Command) {
        command.arg("serve").args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.arg("--upstream").arg(format!("http://{}", self.upstream)).args(["--store", self.store]);
        if let Some(config) = self.config {
            command.arg("--config").arg(config);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
    }
}

/// The program as this working tree has it, built where it is not.
pub(crate) fn build() -> Result<PathBuf> {
    let built = pass(cargo(&["build", "--quiet", "--package", "onlyonce-server"]).stdin(Stdio::null()))?;
    if built != Ending::Passed {
        bail!("the program does not build; see above");
    }
    Ok(repository::target()?.join("debug/onlyonce"))
}

/// Waits for its ready line.
pub(crate) fn ready(process: &mut Process) -> Result<Addresses> {
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
