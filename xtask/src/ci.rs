//! `cargo xtask ci`: what a change must pass before review.

use anyhow::Result;
use onlyonce_testkit::repository::cargo;
use onlyonce_testkit::verdict::Verdict;

use crate::arguments::Arguments;
use crate::steps::{Ending, Steps, has_cargo, pass};
use crate::test::{self, Count};

pub(crate) fn run(arguments: Arguments) -> Result<Verdict> {
    arguments.words(0)?;
    let mut steps = Steps::default();
    let mut count = Count::default();
    test::all(&mut steps, &mut count);
    steps.run("deny", deny);
    let verdict = steps.summary();
    println!("{count}");
    Ok(verdict)
}

/// Bans, licences, sources and advisories. Tidy checks the licences too, so those never go unseen.
fn deny() -> Result<Ending> {
    if !has_cargo("deny") {
        return Ok(Ending::NotRun(
            "cargo-deny is missing; `cargo install --locked cargo-deny` brings it".to_owned(),
        ));
    }
    pass(&mut cargo(&["deny", "check"]))
}
