//! What must hold, told without the machine: of every step, and of every moment.

use onlyonce_core::machine::Force;
use onlyonce_core::record::Effects;
use stateright::Property;

use crate::row::{DONE, Heard, NOBODY, Row, Where};
use crate::rules::Rules;
use crate::world::{Universe, World, Writer};

pub(crate) const ONE_LIVE_LEASE: &str = "no lease is taken from an attempt while it lives";
pub(crate) const ANSWER_STANDS: &str = "a completed answer never changes while it is kept";
pub(crate) const UNKNOWN_WAITS: &str = "unknown work never runs without a verdict";
pub(crate) const FENCED: &str = "a superseded attempt writes nothing";
pub(crate) const TRUTH_COUNTS: &str = "what the last attempt knows to be done is on record";
pub(crate) const ONLY_SETTLED_GOES: &str = "only what is settled and expired is deleted or used anew";
pub(crate) const AT_MOST_ONCE: &str = "the work is done at most once per use of the key";
pub(crate) const DONE_MEANS_DONE: &str = "a stored 201 means that the work was done";
pub(crate) const GIVEN_UP_MEANS_NOTHING: &str =
    "a stored 408 means that nothing was done and nothing will be";
pub(crate) const FREE_MEANS_NOTHING: &str =
    "a record free of doubt runs again only if nothing was done and nothing will be";
pub(crate) const LOCAL_IS_CERTAIN: &str = "local work is never unknown";
pub(crate) const SETTLED_STANDS: &str = "no statement changes what may run again, but that it happened";
pub(crate) const STRONGEST_STANDS: &str = "evidence gives way only to stronger evidence";
pub(crate) const KNOWN_RESTS: &str = "what is known to have happened is not run again";
pub(crate) const FORGETTING_NEEDS_FORCE: &str = "what runs or is unknown is forgotten only by force";

/// A promise about a step that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    LiveLeaseTaken,
    AnswerChanged,
    UnknownRan,
    SupersededWrote,
    TruthThrownAway,
    UnsettledGone,
    SettledChanged,
    WeakerReplaced,
    KnownRan,
    DoubtForgotten,
}

/// Whether a reservation begins a new use of the key, rather than one more attempt of the last.
pub(crate) fn is_new_use(was: Option<&Row>, row: &Row, writer: Writer) -> bool {
    let Writer::Begin(_) = writer else { return false };
    let Some(was) = was else { return true };
    match (was.state, row.state) {
        (Where::Completed { .. }, _) => true,
        (Where::Pending { .. }, Where::Running { .. }) => false,
        (_, Where::Pending { .. }) => row.attempt == 0,
        (Where::Pending { .. } | Where::Running { .. } | Where::Retryable { .. } | Where::Unknown, _) => {
            row.attempt == 1
        }
    }
}

/// The promise that writing `row` over `was` broke.
pub(crate) fn of_a_write(
    was: Option<&Row>,
    row: &Row,
    writer: Writer,
    is_new: bool,
    rules: &Rules,
) -> Option<Broken> {
    let was = was?;
    let is_owner = writer == Writer::Attempt(usize::from(was.owner));
    if matches!(writer, Writer::Attempt(_)) && !is_owner {
        return Some(Broken::SupersededWrote);
    }
    match writer {
        Writer::Forget(Force::Yes) => return None,
        Writer::Forget(Force::No) => return is_in_question(was, rules).then_some(Broken::DoubtForgotten),
        Writer::Insists(_) => {}
        Writer::Begin(_) | Writer::Settle | Writer::Attempt(_) | Writer::Sweeper | Writer::Verdict(_) => {
            let stays_held = matches!(row.state, Where::Running { .. }) && row.token == was.token;
            if was.has_live_lease(rules.spans) && !is_owner && !stays_held {
                return Some(Broken::LiveLeaseTaken);
            }
        }
    }
    if matches!(was.state, Where::Completed { .. }) && !was.has_expired() && row.state != was.state {
        return Some(Broken::AnswerChanged);
    }
    if was.state == Where::Unknown && !leaves_unknown_rightly(row, writer, is_owner) {
        return Some(Broken::UnknownRan);
    }
    if let Writer::Verdict(heard) | Writer::Insists(heard) = writer
        && let Some(broken) = of_a_statement(was, row, heard)
    {
        return Some(broken);
    }
    (is_new && !was.has_expired()).then_some(Broken::UnsettledGone)
}

/// Whether a retry would run what somebody may be doing, or may have done.
fn is_in_question(was: &Row, rules: &Rules) -> bool {
    match (was.state, rules.effects) {
        (Where::Unknown, _) => true,
        (Where::Running { .. }, Effects::Queryable | Effects::Opaque) => true,
        (Where::Running { .. }, Effects::Local | Effects::Keyed) => was.has_live_lease(rules.spans),
        (Where::Pending { .. } | Where::Retryable { .. } | Where::Completed { .. }, _) => false,
    }
}

/// The promise that a statement broke by writing `row` over `was`.
fn of_a_statement(was: &Row, row: &Row, heard: Heard) -> Option<Broken> {
    let is_completed = heard == Heard::Happened && matches!(row.state, Where::Completed { .. });
    match (was.state, row.state) {
        (Where::Retryable { .. } | Where::Pending { .. }, _) => {
            let is_as_before = was.state == row.state && was.relies_on_memory == row.relies_on_memory;
            (!is_as_before && !is_completed).then_some(Broken::SettledChanged)
        }
        (Where::Running { .. }, Where::Running { .. }) => {
            (row.evidence < was.evidence).then_some(Broken::WeakerReplaced)
        }
        (Where::Running { .. } | Where::Completed { .. } | Where::Unknown, _) => None,
    }
}

fn leaves_unknown_rightly(row: &Row, writer: Writer, is_owner: bool) -> bool {
    let is_told = matches!(writer, Writer::Verdict(_) | Writer::Insists(_));
    match row.state {
        Where::Unknown => true,
        Where::Completed { .. } | Where::Retryable { .. } => is_owner || is_told,
        Where::Pending { .. } | Where::Running { .. } => false,
    }
}

/// The promise that deleting `row` broke.
pub(crate) fn of_a_deletion(row: &Row) -> Option<Broken> {
    (!row.has_expired()).then_some(Broken::UnsettledGone)
}

/// Every promise, as the checker asks for it.
pub(crate) fn all() -> Vec<Property<Universe>> {
    vec![
        Property::always(ONE_LIVE_LEASE, |_, world: &World| world.broken != Some(Broken::LiveLeaseTaken)),
        Property::always(ANSWER_STANDS, |_, world: &World| world.broken != Some(Broken::AnswerChanged)),
        Property::always(UNKNOWN_WAITS, |_, world: &World| world.broken != Some(Broken::UnknownRan)),
        Property::always(FENCED, |_, world: &World| world.broken != Some(Broken::SupersededWrote)),
        Property::always(TRUTH_COUNTS, |_, world: &World| world.broken != Some(Broken::TruthThrownAway)),
        Property::always(ONLY_SETTLED_GOES, |_, world: &World| world.broken != Some(Broken::UnsettledGone)),
        Property::always(SETTLED_STANDS, |_, world: &World| world.broken != Some(Broken::SettledChanged)),
        Property::always(STRONGEST_STANDS, |_, world: &World| world.broken != Some(Broken::WeakerReplaced)),
        Property::always(KNOWN_RESTS, |_, world: &World| world.broken != Some(Broken::KnownRan)),
        Property::always(FORGETTING_NEEDS_FORCE, |_, world: &World| {
            world.broken != Some(Broken::DoubtForgotten)
        }),
        Property::always(AT_MOST_ONCE, at_most_once),
        Property::always(DONE_MEANS_DONE, done_means_done),
        Property::always(GIVEN_UP_MEANS_NOTHING, given_up_means_nothing),
        Property::always(FREE_MEANS_NOTHING, free_means_nothing),
        Property::always(LOCAL_IS_CERTAIN, local_is_certain),
    ]
}

/// Where a person insisted, against what was or came to be true, that the work was not done, doing it again was that
/// person's decision.
fn at_most_once(_: &Universe, world: &World) -> bool {
    world.executed.iter().zip(world.mistaken).all(|(times, mistaken)| *times <= 1 || mistaken)
}

fn done_means_done(universe: &Universe, world: &World) -> bool {
    let Some(row) = &world.row else { return true };
    if !matches!(row.state, Where::Completed { status: DONE, .. }) {
        return true;
    }
    match universe.rules.effects {
        // Downstream may know the key from an earlier use and answer with what it did then.
        Effects::Keyed => world.ever_executed,
        Effects::Local | Effects::Queryable | Effects::Opaque => {
            let use_of_key = usize::from(row.use_of_key);
            world.executed[use_of_key] == 1 || (world.mistaken[use_of_key] && world.executed[use_of_key] > 1)
        }
    }
}

fn given_up_means_nothing(_: &Universe, world: &World) -> bool {
    match &world.row {
        Some(row) if matches!(row.state, Where::Completed { status, .. } if status != DONE) => {
            nothing_was_or_will_be_done(row, world)
        }
        _ => true,
    }
}

fn free_means_nothing(_: &Universe, world: &World) -> bool {
    match &world.row {
        // What was forgotten is as good as absent.
        Some(row) if row.owner == NOBODY && row.has_expired() => true,
        Some(row) if matches!(row.state, Where::Retryable { .. }) && !row.relies_on_memory => {
            nothing_was_or_will_be_done(row, world)
        }
        _ => true,
    }
}

fn nothing_was_or_will_be_done(row: &Row, world: &World) -> bool {
    let is_under_way = |use_of_key| {
        world.attempts.iter().any(|attempt| attempt.in_flight && attempt.use_of_key == use_of_key)
    };
    let use_of_key = usize::from(row.use_of_key);
    world.mistaken[use_of_key] || (world.executed[use_of_key] == 0 && !is_under_way(row.use_of_key))
}

fn local_is_certain(universe: &Universe, world: &World) -> bool {
    match (universe.rules.effects, &world.row) {
        (Effects::Local, Some(row)) => row.state != Where::Unknown,
        (Effects::Local | Effects::Keyed | Effects::Queryable | Effects::Opaque, _) => true,
    }
}
