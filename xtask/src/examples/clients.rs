//! The clients of `clients/`: each makes its calls over a line that loses every second answer after the effect, and the service
//! must have charged as often as it was called.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use onlyonce_testkit::install::{succeeds, with_apt};
use onlyonce_testkit::lossy::Lossy;
use onlyonce_testkit::repository;

use super::play;
use super::service::{PROBE, copy, prepare_python};

const CALLS: usize = 12;

/// A folder of `clients/`.
pub(super) struct Client {
    pub(super) name: &'static str,
    folder: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Python,
    Node,
}

pub(super) static CLIENTS: [Client; 2] = [
    Client { name: "client-python", folder: "python", kind: Kind::Python },
    Client { name: "client-javascript", folder: "javascript", kind: Kind::Node },
];

impl Client {
    /// An error is also what was promised and did not hold.
    pub(super) fn play(&self, program: &Path) -> Result<()> {
        let folder = repository::target()?.join("examples").join(self.name);
        copy(&repository::root().join("clients").join(self.folder), &folder)?;
        match self.kind {
            Kind::Python => prepare_python(&folder)?,
            Kind::Node => with_apt("node", &["nodejs"], || succeeds("node", &["--version"]))?,
        }
        let service_folder = folder.join("service");
        PROBE.prepare(&service_folder)?;
        let service = PROBE.start(&service_folder)?;
        let store = format!("sqlite:{}", play::new_store(&service_folder)?.display());
        let gateway = play::start(service.address, program, &service_folder, &store)?;
        let lossy = Lossy::to(gateway.addresses.gateway.parse()?)?;
        let answers = self.call(&folder, &format!("http://{}/payments", lossy.address()))?;
        let different: BTreeSet<&str> = answers.lines().collect();
        let is_paid = |answer: &&str| answer.starts_with("201 ");
        ensure!(
            different.len() == CALLS && different.iter().all(is_paid),
            "{CALLS} calls were answered with {answers}"
        );
        let charges = service.charges(CALLS)?;
        ensure!(charges == CALLS, "{CALLS} calls charged {charges} times");
        ensure!(
            lossy.lost() >= CALLS as u64 / 2,
            "only {} answers were lost: nothing was shown",
            lossy.lost()
        );
        println!("  ok    {CALLS} calls, {} answers lost, {charges} charges", lossy.lost());
        Ok(())
    }

    /// What it prints: a line for each answer.
    fn call(&self, folder: &Path, url: &str) -> Result<String> {
        let mut command = match self.kind {
            Kind::Python => Command::new(folder.join("venv/bin/python")),
            Kind::Node => Command::new("node"),
        };
        command.arg(match self.kind {
            Kind::Python => "calls.py",
            Kind::Node => "calls.mjs",
        });
        command.current_dir(folder).env("URL", url).env("CALLS", CALLS.to_string()).stdin(Stdio::null());
        let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}: {}", self.name, output.status, said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
