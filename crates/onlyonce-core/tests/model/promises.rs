//! What must hold, told without the machine: of every step, and of every moment.

use onlyonce_core::record::Effects;
use stateright::Property;

use crate::row::{DONE, Row, Spans, Where};
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

/// A promise about a step that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    LiveLeaseTaken,
    AnswerChanged,
    UnknownRan,
    SupersededWrote,
    TruthThrownAway,
    UnsettledGone,
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
    spans: Spans,
) -> Option<Broken> {
    let was = was?;
    let is_owner = writer == Writer::Attempt(usize::from(was.owner));
    if matches!(writer, Writer::Attempt(_)) && !is_owner {
        return Some(Broken::SupersededWrote);
    }
    let was_held = was.has_live_lease(spans);
    let stays_held = matches!(row.state, Where::Running { .. }) && row.token == was.token;
    if was_held && !is_owner && !stays_held {
        return Some(Broken::LiveLeaseTaken);
    }
    if matches!(was.state, Where::Completed { .. }) && !was.has_expired() && row.state != was.state {
        return Some(Broken::AnswerChanged);
    }
    if was.state == Where::Unknown && !leaves_unknown_rightly(row, writer, is_owner) {
        return Some(Broken::UnknownRan);
    }
    (is_new && !was.has_expired()).then_some(Broken::UnsettledGone)
}

fn leaves_unknown_rightly(row: &Row, writer: Writer, is_owner: bool) -> bool {
    match row.state {
        Where::Unknown => true,
        Where::Completed { .. } | Where::Retryable { .. } => is_owner || writer == Writer::Verdict,
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
        Property::always(AT_MOST_ONCE, |_, world: &World| world.executed.iter().all(|times| *times <= 1)),
        Property::always(DONE_MEANS_DONE, done_means_done),
        Property::always(GIVEN_UP_MEANS_NOTHING, given_up_means_nothing),
        Property::always(FREE_MEANS_NOTHING, free_means_nothing),
        Property::always(LOCAL_IS_CERTAIN, local_is_certain),
    ]
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
            world.executed[usize::from(row.use_of_key)] == 1
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
    world.executed[usize::from(row.use_of_key)] == 0 && !is_under_way(row.use_of_key)
}

fn local_is_certain(universe: &Universe, world: &World) -> bool {
    match (universe.rules.effects, &world.row) {
        (Effects::Local, Some(row)) => row.state != Where::Unknown,
        (Effects::Local | Effects::Keyed | Effects::Queryable | Effects::Opaque, _) => true,
    }
}
