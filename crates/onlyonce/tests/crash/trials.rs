//! The scenarios as tests with names.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::failpoints::ALL;
use crate::order::Kind;
use crate::{coverage, load, pairs, planted, scenario, torn};

/// Most of a scenario is waiting: for a process to start, for an fsync, for a lease. So there are more at once than
/// processors.
const AT_ONCE: usize = 6;

/// Set it to have the pairs as well.
const PAIRS: &str = "ONLYONCE_CRASH_PAIRS";

pub(crate) fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    libtest_mimic::run(&arguments, all()).exit_code()
}

fn all() -> Vec<Trial> {
    let mut trials = vec![
        trial("coverage::every_failpoint_in_the_source_is_listed", async || {
            coverage::every_failpoint_in_the_source_is_listed();
        }),
        trial("coverage::every_migration_is_listed", async || coverage::every_migration_is_listed()),
        trial("load::what_was_answered_before_a_kill_is_answered_after", load::killed_at_any_moment),
    ];
    trials.extend([
        trial("planted::a_second_charge_is_noticed", planted::a_second_charge_is_noticed),
        trial("planted::a_forgotten_answer_is_noticed", planted::a_forgotten_answer_is_noticed),
        trial("planted::a_step_never_reached_is_noticed", planted::a_step_never_reached_is_noticed),
    ]);
    for kind in Kind::ALL {
        for failpoint in &ALL {
            let name = format!("{}::killed_at_{}", kind.name(), failpoint.label());
            trials.push(trial(name, move || scenario::killed_at(failpoint, kind)));
        }
        for tear in torn::Tear::ALL {
            let name = format!("{}::{}", kind.name(), tear.name());
            trials.push(trial(name, move || torn::opens_and_continues(tear, kind)));
        }
        if std::env::var_os(PAIRS).is_some() {
            trials.extend(pairs_of(kind));
        }
    }
    trials
}

/// Apart from the others: they take minutes, and `cargo xtask crash --all` runs them.
fn pairs_of(kind: Kind) -> impl Iterator<Item = Trial> {
    pairs::all().map(move |(first, second)| {
        let name = format!("pairs::{}::{}_then_{}", kind.name(), first.label(), second.label());
        trial(name, move || pairs::killed_twice(first, second, kind))
    })
}

/// Each on a runtime of its own, which ends with it, and with it every process that it started.
fn trial<F: Future<Output = ()>>(
    name: impl Into<String>,
    scenario: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    Trial::test(name, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(Failed::from)?.block_on(scenario());
        Ok(())
    })
}
