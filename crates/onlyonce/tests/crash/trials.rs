//! The scenarios as tests with names.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use onlyonce_testkit::engines::server;

use crate::failpoints::Engine;
use crate::order::Kind;
use crate::{accepted, coverage, load, pairs, planted, scenario, settling, torn};

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
    ];
    trials.extend([
        trial("planted::a_second_charge_is_noticed", planted::a_second_charge_is_noticed),
        trial("planted::a_forgotten_answer_is_noticed", planted::a_forgotten_answer_is_noticed),
        trial("planted::a_step_never_reached_is_noticed", planted::a_step_never_reached_is_noticed),
    ]);
    for kind in Kind::ALL {
        for tear in torn::Tear::ALL {
            let name = format!("{}::{}", kind.name(), tear.name());
            trials.push(trial(name, move || torn::opens_and_continues(tear, kind)));
        }
    }
    for engine in Engine::ALL.iter().copied() {
        trials.extend(on(engine, extent(engine)));
    }
    trials
}

/// How much of the list an engine has. Everything above the engines is the same code on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// Every step, for every kind of effects.
    Whole,
    /// Every step, for work that runs again and work that does not.
    TwoKinds,
    /// The steps of the engine itself, for those two kinds, and [`OTHERS`].
    Own,
}

fn extent(engine: Engine) -> Extent {
    match engine {
        _ if std::env::var_os(PAIRS).is_some() => Extent::Whole,
        Engine::Sqlite => Extent::Whole,
        Engine::Server(server::Engine::Postgres) => Extent::TwoKinds,
        Engine::Server(server::Engine::Mysql | server::Engine::Redis | server::Engine::Dynamodb) => {
            Extent::Own
        }
    }
}

/// With [`Extent::Own`]: one step each of those who renew, sweep, settle and forget.
const OTHERS: [&str; 7] = [
    "renew.after",
    "sweep.after",
    "reconcile.write.after",
    "webhook.after",
    "verdict.after",
    "forget.after",
    "purge.erase.after",
];

fn on(engine: Engine, extent: Extent) -> Vec<Trial> {
    let load = format!("{}load::what_was_answered_before_a_kill_is_answered_after", prefix(engine));
    let mut trials = vec![trial(load, move || load::killed_at_any_moment(engine))];
    let is_wanted = |step: &str| extent != Extent::Own || engine.has(step) || OTHERS.contains(&step);
    let settling = settling::STEPS.into_iter().filter(|(step, _)| is_wanted(step));
    trials.extend(settling.map(|(step, way)| {
        let label = step.replace('.', "_");
        let name = format!("{}settling::{}::killed_at_{label}", prefix(engine), way.name());
        trial(name, move || settling::killed_while_settling(engine, step, way))
    }));
    let kinds = match extent {
        Extent::Whole => &Kind::ALL[..],
        Extent::TwoKinds | Extent::Own => &[Kind::Opaque, Kind::Keyed],
    };
    for kind in kinds.iter().copied() {
        if matches!(kind, Kind::Opaque | Kind::Keyed) {
            let accepted = accepted::steps(engine).filter(|(step, _)| is_wanted(step));
            trials.extend(accepted.map(|(step, left)| {
                let label = step.replace(['.', ':'], "_");
                let name = format!("{}accepted::{}::killed_at_{label}", prefix(engine), kind.name());
                trial(name, move || accepted::killed_at(engine, step, left, kind))
            }));
        }
        let steps = engine.failpoints().filter(|failpoint| is_wanted(failpoint.name));
        trials.extend(steps.map(|failpoint| {
            let name = format!("{}{}::killed_at_{}", prefix(engine), kind.name(), failpoint.label());
            trial(name, move || scenario::killed_at(engine, failpoint, kind))
        }));
        if std::env::var_os(PAIRS).is_some() {
            trials.extend(pairs_of(engine, kind));
        }
    }
    trials
}

/// What the names of scenarios on an engine begin with.
fn prefix(engine: Engine) -> String {
    match engine {
        Engine::Sqlite => String::new(),
        Engine::Server(engine) => format!("{}::", engine.name()),
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
