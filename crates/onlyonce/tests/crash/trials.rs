//! The scenarios as tests with names.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};

use crate::failpoints::Engine;
use crate::order::Kind;
use crate::{coverage, load, pairs, planted, scenario, settling, torn};

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
        trial("load::what_was_answered_before_a_kill_is_answered_after", || {
            load::killed_at_any_moment(Engine::Sqlite)
        }),
        trial("postgres::load::what_was_answered_before_a_kill_is_answered_after", || {
            load::killed_at_any_moment(Engine::Postgres)
        }),
    ];
    trials.extend([
        trial("planted::a_second_charge_is_noticed", planted::a_second_charge_is_noticed),
        trial("planted::a_forgotten_answer_is_noticed", planted::a_forgotten_answer_is_noticed),
        trial("planted::a_step_never_reached_is_noticed", planted::a_step_never_reached_is_noticed),
    ]);
    for engine in [Engine::Sqlite, Engine::Postgres] {
        trials.extend(settling::STEPS.map(|(step, way)| {
            let name = format!("{}settling::killed_at_{}", prefix(engine), step.replace('.', "_"));
            trial(name, move || settling::killed_while_settling(engine, step, way))
        }));
    }
    for kind in Kind::ALL {
        trials.extend(single(Engine::Sqlite, kind));
        for tear in torn::Tear::ALL {
            let name = format!("{}::{}", kind.name(), tear.name());
            trials.push(trial(name, move || torn::opens_and_continues(tear, kind)));
        }
        if std::env::var_os(PAIRS).is_some() {
            trials.extend(pairs_of(Engine::Sqlite, kind));
            trials.extend(single(Engine::Postgres, kind));
            trials.extend(pairs_of(Engine::Postgres, kind));
        }
    }
    if std::env::var_os(PAIRS).is_none() {
        trials
            .extend([Kind::Opaque, Kind::Keyed].into_iter().flat_map(|kind| single(Engine::Postgres, kind)));
    }
    trials
}

/// One death each.
fn single(engine: Engine, kind: Kind) -> impl Iterator<Item = Trial> {
    engine.failpoints().map(move |failpoint| {
        let name = format!("{}{}::killed_at_{}", prefix(engine), kind.name(), failpoint.label());
        trial(name, move || scenario::killed_at(engine, failpoint, kind))
    })
}

/// What the names of scenarios on an engine begin with.
const fn prefix(engine: Engine) -> &'static str {
    match engine {
        Engine::Sqlite => "",
        Engine::Postgres => "postgres::",
    }
}

/// Apart from the others: they take minutes, and `cargo xtask crash --all` runs them.
fn pairs_of(engine: Engine, kind: Kind) -> impl Iterator<Item = Trial> {
    pairs::all(engine).map(move |(first, second)| {
        let (prefix, kind_name) = (prefix(engine), kind.name());
        let name = format!("{prefix}pairs::{kind_name}::{}_then_{}", first.label(), second.label());
        trial(name, move || pairs::killed_twice(engine, first, second, kind))
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
