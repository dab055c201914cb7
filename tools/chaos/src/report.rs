//! The report of a run, for people and for machines.

use anyhow::Result;
use onlyonce_testkit::history::History;
use serde_json::json;

use crate::run::{Run, Subject};
use crate::tally::Tally;

/// So many histories of broken keys are printed; all of them are in the folder of the run.
const SHOWN_BYTES_MAX: usize = 60_000;

pub(crate) struct Report {
    seed: u64,
    minutes: u64,
    requests: u32,
    tally: Tally,
    wrongs: Vec<String>,
    missing: Vec<String>,
    /// What happened to the keys of which a promise was broken.
    histories: String,
}

impl Report {
    pub(crate) fn new(run: &Run, tally: Tally, minutes: u64, histories: String) -> Self {
        let (seed, requests, wrongs) = (run.seed, run.requests(), run.wrongs());
        let missing = tally.missing(run.store, minutes);
        Self { seed, minutes, requests, tally, wrongs, missing, histories }
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.wrongs.is_empty() && self.missing.is_empty()
    }

    /// The table, what is wrong, and the verdict; on stdout the one that was asked for.
    pub(crate) fn tell(&self, as_json: bool) -> Result<()> {
        let Self { seed, minutes, requests, tally, wrongs, missing, .. } = self;
        if as_json {
            let verdict = self.verdict();
            let report = json!({
                "seed": seed, "minutes": minutes, "requests": requests, "verdict": verdict,
                "counts": tally.json(), "wrong": wrongs, "too_few": missing,
            });
            println!("{}", serde_json::to_string_pretty(&report)?);
            return Ok(());
        }
        println!("\nseed {seed}, {minutes} minutes, {requests} requests\n{}", tally.table());
        if !self.histories.is_empty() {
            println!("{}", shortened(&self.histories));
        }
        for wrong in wrongs {
            println!("WRONG: {wrong}");
        }
        for name in missing {
            println!("too few: {name}");
        }
        println!("{} (seed {seed})", self.verdict());
        Ok(())
    }

    fn verdict(&self) -> &'static str {
        match (self.wrongs.is_empty(), self.missing.is_empty()) {
            (false, _) => "BROKEN: a promise was not kept",
            (true, false) => "VOID: too little went wrong for this to prove anything",
            (true, true) => "kept: every promise held",
        }
    }
}

/// A key's whole history.
pub(crate) fn history_text(subject: &Subject, history: &History, broken: &[String], notes: &str) -> String {
    let Subject { caller, key, kind, .. } = subject;
    let events: String =
        history.events.iter().enumerate().map(|(index, event)| format!("{index:>5} {event}\n")).collect();
    let broken = broken.join("\n  ");
    format!(
        "\n== {caller}/{key}, {}\n  {broken}\n{events}what the store wrote for this key:\n{notes}\n",
        kind.name()
    )
}

fn shortened(histories: &str) -> &str {
    let end = (0..=histories.len().min(SHOWN_BYTES_MAX)).rev().find(|end| histories.is_char_boundary(*end));
    &histories[..end.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(wrongs: &[&str], missing: &[&str]) -> Report {
        let owned = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
        Report {
            seed: 7,
            minutes: 2,
            requests: 0,
            tally: Tally::default(),
            wrongs: owned(wrongs),
            missing: owned(missing),
            histories: String::new(),
        }
    }

    #[test]
    fn neither_a_broken_promise_nor_a_void_run_has_passed() {
        assert!(report(&[], &[]).has_passed());
        assert!(!report(&["it ran twice"], &[]).has_passed());
        assert!(!report(&[], &["a gateway is killed"]).has_passed());
        assert!(report(&[], &["x"]).verdict().starts_with("VOID"));
        assert!(report(&["x"], &["x"]).verdict().starts_with("BROKEN"));
    }

    #[test]
    fn a_long_story_is_cut_between_characters() {
        let story = "é".repeat(SHOWN_BYTES_MAX);
        assert!(shortened(&story).len() <= SHOWN_BYTES_MAX);
    }
}
