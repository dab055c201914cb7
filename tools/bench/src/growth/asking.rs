//! Probes are asked about ten thousand unknown outcomes while the gateway serves.
//!
//! The probes, at four addresses, always answer that they do not know, and the longest pause is a second: so there is always
//! something to ask about. The gateway it is compared with has the same settings and nothing to ask about.

use std::path::PathBuf;

use anyhow::{Result, bail};
use onlyonce_testkit::process::End;
use serde_json::{Value, json};

use super::{GRACE, Growth};
use crate::figures::Sample;
use crate::folder::Folder;
use crate::lines::{Bound, Line, Pair, grouped, medians, ratios, spread_words, tell};
use crate::load::{self, Callers, Work};
use crate::server::Server;
use crate::subjects::{GATEWAY, GATEWAY_SQLITE};
use crate::tools::output_within;

const UNKNOWN: u64 = 10_000;
/// As many as the routes of `bench-fill unknown`: four questions go to one host at once.
const PROBES: usize = 4;
const P99: Bound = Bound::AtMost { floor: 2.0, goal: 1.5 };

/// The load without anything to ask about, and with.
#[derive(Clone)]
pub(crate) struct Asking {
    pub(crate) pairs: Vec<Pair>,
    /// How many questions were asked while a load lasted, in each round.
    pub(crate) questions: Vec<u64>,
}

impl Growth<'_> {
    pub(super) fn asking(&self) -> Result<Asking> {
        let probes: Result<Vec<_>> =
            (1..=PROBES).map(|number| Server::probe(self.tools, &format!("127.0.0.{number}"))).collect();
        let probes = probes?;
        let mut asking = Asking { pairs: Vec::new(), questions: Vec::new() };
        for round in 1..=self.extent.rounds {
            let (empty, unknown) = (Folder::new(self.tools)?, Folder::new(self.tools)?);
            let mut command = self.tools.command(&self.tools.binary("bench-fill"), End::Kill);
            output_within(command.arg("unknown").arg(unknown.store()).arg(UNKNOWN.to_string()), GRACE)?;
            let (without, _) = self.asked_while_serving(&empty, &probes)?;
            let (with, questions) = self.asked_while_serving(&unknown, &probes)?;
            let pair = Pair { without, with };
            tell(round, ["nothing unknown", "ten thousand"], &pair);
            if questions == 0 {
                bail!("nothing was asked: the measurement is void");
            }
            asking.pairs.push(pair);
            asking.questions.push(questions);
        }
        Ok(asking)
    }

    /// The load on a gateway with this folder, and how many questions were asked meanwhile.
    fn asked_while_serving(&self, folder: &Folder, probes: &[Server]) -> Result<(Sample, u64)> {
        let server = Server::gateway_on(self.tools, &folder.store(), &settings(folder, probes)?)?;
        let subject = GATEWAY.named(GATEWAY_SQLITE);
        let work: Work<'_> = self.extent.work("unique", "asking", Callers::Many);
        load::warm_up(&server, subject, work)?;
        let count = || probes.iter().map(Server::count).sum::<Result<u64>>();
        let before = count()?;
        let sample = load::wrk_once(&server, subject, work)?;
        Ok((sample, count()? - before))
    }
}

/// Each probe has a route of its own.
fn settings(folder: &Folder, probes: &[Server]) -> Result<PathBuf> {
    let mut text =
        "[background]\nreconcile_first = \"1s\"\nreconcile_max = \"1s\"\nreconcile_tries_max = 1000\n"
            .to_owned();
    for (number, probe) in probes.iter().enumerate() {
        text += &format!(
            "[[route]]\nmatch = \"POST /asked/{number}\"\neffects = \"queryable\"\nprobe = \"http://{}/probe\"\n",
            probe.address
        );
    }
    let path = folder.path().join("onlyonce.toml");
    std::fs::write(&path, text)?;
    Ok(path)
}

impl Asking {
    pub(super) fn line(&self, seconds: u64) -> Option<Line> {
        let ratio = ratios(&self.pairs, |sample| sample.p99_ms)?;
        let [without, with] = medians(&self.pairs, |sample| sample.p99_ms)?;
        let [rps_without, rps_with] = medians(&self.pairs, |sample| sample.rps)?;
        let fewest = self.questions.iter().min().copied().unwrap_or_default() / seconds.max(1);
        Some(Line {
            what: format!(
                "gateway, p99 ms while probes are asked about {} unknown outcomes, to without",
                grouped(UNKNOWN)
            ),
            measured: format!(
                "{} ({with:.2} to {without:.2}; {rps_with:.0} RPS to {rps_without:.0}; at least {fewest} questions a second)",
                spread_words(ratio, 2)
            ),
            target: "2.0 → ≤ 1.5".to_owned(),
            standing: P99.standing(ratio.median),
        })
    }

    pub(super) fn json(&self) -> Value {
        json!({ "unknown": UNKNOWN, "questions": self.questions, "rounds": self.pairs.iter().map(Pair::json).collect::<Vec<_>>() })
    }
}
