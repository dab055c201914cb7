//! The world around the rules: a store with one row, its clock, clients, attempts, downstream, and those who clean up.
//!
//! What attempts do is in [`crate::attempts`], what is said about the work in [`crate::statements`].

use std::sync::atomic::{AtomicBool, Ordering};

use onlyonce_core::machine::{Admission, Force};
use onlyonce_core::record::{Draft, Effects};
use stateright::{Model, Property};

use crate::attempts::{Answer, Attempt, Step};
use crate::promises::{self, Broken};
use crate::row::{Heard, NOBODY, Row, Spans, Ticks, Where};
use crate::rules::{Fault, Rules, Said};
use crate::statements::Letter;

/// How many tokens are minted in one world at most: attempts and acceptances together, over all uses of the key. This is
/// the one bound of the search.
pub(crate) const TOKENS_MAX: usize = 3;

/// How old a view may be when something is written on its strength: half a lease, as the policy demands of a store.
pub(crate) const VIEW_AGE_MAX: Ticks = 1;

/// One moment of everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub row: Option<Row>,
    /// How often the key was reserved anew.
    pub uses: u8,
    /// Everyone who ever got a token, in order.
    pub attempts: Vec<Attempt>,
    /// Who has looked and not yet written. Those who do both at once need no place here; and of two who are slow at
    /// the same time one loses its swap, as it does against a quick one.
    pub slow: Slow,
    /// How often downstream did the work, by use of the key; it stops counting at two, and forgets a use that is over.
    pub executed: [u8; TOKENS_MAX],
    /// Whether keyed downstream ever did it.
    pub ever_executed: bool,
    /// For how long keyed downstream still remembers the key.
    pub memory: Ticks,
    /// A webhook about one attempt that was sent. It may arrive at any time, more than once, or never.
    pub letter: Option<Letter>,
    /// Whether the record was told that the work happened.
    pub is_known: bool,
    /// By use of the key: a person insisted that the work was not done, and it was, or may be yet.
    pub mistaken: [bool; TOKENS_MAX],
    /// The first broken promise about a step, rather than about a moment.
    pub broken: Option<Broken>,
}

/// Who has looked at the row some ticks ago. While nobody has written since, the row still is what they saw.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Slow {
    Nobody,
    Client {
        looked_at: Ticks,
        /// The row as it was; kept only where swaps do not compare revisions, as elsewhere an old view loses.
        copy: Option<Row>,
    },
    Reconciler {
        looked_at: Ticks,
        /// What downstream said when it was asked, after the look.
        heard: Option<Heard>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Tick,
    /// A client looks, decides and writes at once.
    Request(Admission),
    /// A client looks.
    Look,
    /// And writes what it decided then; it loses if anybody wrote in between.
    Write,
    Claim,
    Renew(usize),
    Send(usize),
    /// The request takes effect; its answer arrives or is lost.
    Act(usize, Answer),
    /// Downstream declines, truthfully: nothing was done.
    Decline(usize),
    /// The attempt stops waiting: before sending it knows that nothing ran, afterwards it does not.
    GiveUp(usize),
    /// The attempt writes down how it ended, and hears of it or not.
    Finish(usize, Answer),
    Crash(usize),
    Sweep,
    Reap,
    ReconcileLook,
    ReconcileAsk,
    ReconcileWrite,
    /// Somebody says that nobody knows.
    Shrug,
    /// Downstream says by webhook what is true of the work now.
    Webhook,
    /// Downstream sends a letter about one attempt.
    Post(usize, Heard),
    /// The letter arrives, and may arrive again.
    Deliver,
    /// The letter does not arrive any more.
    Lose,
    /// A person insists, against a live lease and against the hour.
    Insist(Heard),
    /// A person has the record forgotten.
    Forget(Force),
}

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writer {
    /// A reservation by this attempt.
    Begin(usize),
    /// A client that found the attempt lost.
    Settle,
    Attempt(usize),
    Sweeper,
    /// A statement that said so.
    Verdict(Heard),
    /// A person who insists.
    Insists(Heard),
    /// A person who has it forgotten.
    Forget(Force),
}

/// Interesting steps. A search that has not met them all proves little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    LateTruth,
    Superseded,
    VerdictHappened,
    VerdictDidNotHappen,
    EvidenceApplied,
    KeyUsedAnew,
    Unknown,
    Rerun,
    Deduplicated,
    GivenUp,
    LostSwap,
    EffectAfterGivenUp,
    /// Work that may have been done ran again after the retention.
    OldDoubtRan,
    /// Or became unknown then.
    OldDoubtUnknown,
    /// A letter about an attempt that another one followed.
    AboutEarlierAttempt,
    /// A letter about an attempt of an earlier use of the key.
    AboutEarlierUse,
    /// Evidence gave way to stronger evidence.
    Strengthened,
    /// Weaker evidence came later, and changed nothing.
    WeakerCameLater,
    /// A statement completed a record that might have been run again.
    FreeCompleted,
    /// A statement said otherwise than the completed record.
    Contradicted,
    /// Evidence that it never will happen freed a lost attempt.
    FinalWordApplied,
    /// A person overruled an attempt that ran.
    Overruled,
    /// A person insisted on a verdict about what was unknown.
    Insisted,
    /// And was wrong, or could turn out to be.
    PersonMistaken,
    ForgottenByForce,
}

impl Met {
    pub(crate) const ALL: [Self; 25] = [
        Self::LateTruth,
        Self::Superseded,
        Self::VerdictHappened,
        Self::VerdictDidNotHappen,
        Self::EvidenceApplied,
        Self::KeyUsedAnew,
        Self::Unknown,
        Self::Rerun,
        Self::Deduplicated,
        Self::GivenUp,
        Self::LostSwap,
        Self::EffectAfterGivenUp,
        Self::OldDoubtRan,
        Self::OldDoubtUnknown,
        Self::AboutEarlierAttempt,
        Self::AboutEarlierUse,
        Self::Strengthened,
        Self::WeakerCameLater,
        Self::FreeCompleted,
        Self::Contradicted,
        Self::FinalWordApplied,
        Self::Overruled,
        Self::Insisted,
        Self::PersonMistaken,
        Self::ForgottenByForce,
    ];
}

/// Who takes part. Everybody at once would be too many worlds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cast {
    /// Clients and a reconciler that take their time between looking and writing.
    pub slow: bool,
    /// Requests that are accepted for later, and who runs them.
    pub accepted: bool,
    /// Letters about one attempt.
    pub letters: bool,
    /// A person who insists, and who has records forgotten.
    pub force: bool,
    /// How many tokens are minted in one world, at most [`TOKENS_MAX`].
    pub tokens: usize,
}

/// The rules in their world, for one kind of effects.
pub(crate) struct Universe {
    pub rules: Rules,
    pub cast: Cast,
    met: [AtomicBool; Met::ALL.len()],
}

impl Universe {
    pub(crate) fn new(rules: Rules, cast: Cast) -> Self {
        Self { rules, cast, met: Default::default() }
    }

    pub(crate) fn has_met(&self, met: Met) -> bool {
        self.met[met as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn meet(&self, met: Met) {
        self.met[met as usize].store(true, Ordering::Relaxed);
    }

    pub(crate) fn spans(&self) -> Spans {
        self.rules.spans
    }

    /// Whether the effect is committed in one transaction with the completion.
    pub(crate) fn is_atomic(&self) -> bool {
        self.rules.effects == Effects::Local && !self.rules.has(Fault::LocalEffectOutside)
    }

    /// How long after it looked an attempt's request can take effect.
    pub(crate) fn acts_until(&self) -> Ticks {
        self.spans().settled_after() + if self.rules.has(Fault::EffectPastHorizon) { 1 } else { 0 }
    }

    /// How long downstream remembers: as it promised, to the tick, from when it first saw the key. The last rerun is
    /// decided a tick before its time is over, so a downstream that breaks its word is early by more than that.
    pub(crate) fn remembers_for(&self) -> Ticks {
        self.spans().downstream_retention - if self.rules.has(Fault::DownstreamForgetsEarly) { 2 } else { 0 }
    }

    /// How old a client's view may be when it writes.
    fn view_age_max(&self) -> Ticks {
        VIEW_AGE_MAX + if self.rules.has(Fault::DeadlineFromWrite) { 1 } else { 0 }
    }
}

impl Model for Universe {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            row: None,
            uses: 0,
            attempts: Vec::new(),
            slow: Slow::Nobody,
            executed: [0; TOKENS_MAX],
            ever_executed: false,
            memory: 0,
            letter: None,
            is_known: false,
            mistaken: [false; TOKENS_MAX],
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // One broken promise is enough.
        if world.broken.is_some() {
            return;
        }
        actions.extend([Action::Tick, Action::Request(Admission::Run)]);
        if self.cast.accepted {
            actions.push(Action::Request(Admission::Accept));
        }
        match world.slow {
            Slow::Nobody if self.cast.slow => actions.push(Action::Look),
            Slow::Nobody => {}
            Slow::Client { .. } => actions.push(Action::Write),
            Slow::Reconciler { heard: None, .. } => actions.push(Action::ReconcileAsk),
            Slow::Reconciler { heard: Some(_), .. } => actions.push(Action::ReconcileWrite),
        }
        for (index, attempt) in world.attempts.iter().enumerate() {
            self.attempt_actions(index, attempt, actions);
        }
        let Some(row) = &world.row else { return };
        actions.extend([Action::Sweep, Action::Reap, Action::Claim, Action::Shrug]);
        self.statement_actions(world, row, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Tick => self.tick(&mut next),
            Action::Request(admission) => self.request(&mut next, world.row.as_ref(), 0, admission)?,
            Action::Look => self.look(&mut next),
            Action::Write => self.write_view(&mut next)?,
            Action::Claim => self.claim(&mut next)?,
            Action::Renew(index) => self.renew(&mut next, index)?,
            Action::Send(index) => {
                next.attempts[index].step = Step::Sent;
                next.attempts[index].in_flight = true;
            }
            Action::Act(index, answer) => self.act(&mut next, index, answer),
            Action::Decline(index) => {
                next.attempts[index].in_flight = false;
                next.attempts[index].end(Said::DidNotRun);
            }
            Action::GiveUp(index) => next.attempts[index].give_up(),
            Action::Finish(index, answer) => self.finish(&mut next, index, answer),
            Action::Crash(index) => next.attempts[index].step = Step::Gone,
            Action::Sweep => {
                let draft = self.rules.sweep(world.row.as_ref()?)?;
                self.write(&mut next, Writer::Sweeper, draft);
            }
            Action::Reap => self.reap(&mut next)?,
            Action::ReconcileLook => next.slow = Slow::Reconciler { looked_at: 0, heard: None },
            Action::ReconcileAsk => self.ask(&mut next),
            Action::ReconcileWrite => self.reconcile(&mut next),
            Action::Shrug => self.shrug(&mut next)?,
            Action::Webhook => self.webhook(&mut next)?,
            Action::Post(index, heard) => self.post(&mut next, index, heard),
            Action::Deliver => self.deliver(&mut next)?,
            Action::Lose => next.letter = None,
            Action::Insist(heard) => self.insist(&mut next, heard)?,
            Action::Forget(force) => self.forget(&mut next, force)?,
        }
        if self.cast.letters {
            next.forget_who_brings_no_news();
        }
        next.forget_what_no_longer_matters(self.rules.effects, self.acts_until());
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Universe {
    fn tick(&self, world: &mut World) {
        let spans = self.spans();
        if let Some(row) = &mut world.row {
            row.age(spans);
        }
        for attempt in &mut world.attempts {
            attempt.age = (attempt.age + 1).min(self.acts_until());
            // Whatever was not done by now never will be.
            attempt.in_flight &= attempt.age < self.acts_until();
        }
        world.memory = (world.memory - 1).max(0);
        world.slow.age(spans, self.view_age_max());
        self.withdraw_what_is_out_of_date(world);
    }

    fn reap(&self, world: &mut World) -> Option<()> {
        let row = world.row.as_ref()?;
        if !self.rules.may_reap(row) {
            return None;
        }
        if let Some(broken) = promises::of_a_deletion(row) {
            world.broken.get_or_insert(broken);
        }
        world.row = None;
        self.outdate(world);
        Some(())
    }

    /// The store applies a swap.
    pub(crate) fn write(&self, world: &mut World, writer: Writer, draft: Box<Draft>) {
        let was = world.row.take();
        let mut row = Row::written(draft, 0, 0);
        let is_new = promises::is_new_use(was.as_ref(), &row, writer);
        row.use_of_key = match &was {
            Some(was) if !is_new => was.use_of_key,
            _ => world.uses,
        };
        row.owner = owner(was.as_ref(), writer);
        if !self.cast.letters {
            // Nobody ever names an attempt.
            row.earlier = 0;
        }
        world.uses += u8::from(is_new);
        let broken = promises::of_a_write(was.as_ref(), &row, writer, is_new, &self.rules).or_else(|| {
            let runs_again = matches!(writer, Writer::Begin(_)) && !is_new;
            (runs_again && world.is_known).then_some(Broken::KnownRan)
        });
        if let Some(broken) = broken {
            world.broken.get_or_insert(broken);
        }
        world.is_known &= !is_new && !matches!(writer, Writer::Forget(_));
        self.note(was.as_ref(), &row, writer);
        world.row = Some(row);
        self.outdate(world);
    }

    fn note(&self, was: Option<&Row>, row: &Row, writer: Writer) {
        if was.is_some_and(|was| was.is_in_doubt() && was.is_past_retention()) {
            match row.state {
                Where::Running { .. } => self.meet(Met::OldDoubtRan),
                Where::Unknown => self.meet(Met::OldDoubtUnknown),
                Where::Pending { .. } | Where::Completed { .. } | Where::Retryable { .. } => {}
            }
        }
        match (was.map(|was| was.state), row.state, writer) {
            (Some(Where::Unknown), Where::Completed { .. }, Writer::Verdict(_)) => {
                self.meet(Met::VerdictHappened);
            }
            (Some(Where::Unknown), Where::Retryable { .. }, Writer::Verdict(_)) => {
                self.meet(Met::VerdictDidNotHappen);
            }
            (Some(Where::Retryable { .. }), Where::Completed { .. }, Writer::Verdict(_)) => {
                self.meet(Met::FreeCompleted);
            }
            (Some(Where::Running { .. }), Where::Running { .. }, Writer::Verdict(heard)) => {
                let is_stronger =
                    was.is_some_and(|was| was.evidence.is_some() && was.evidence < row.evidence);
                let is_weaker = Some(heard) < row.evidence;
                if is_stronger {
                    self.meet(Met::Strengthened);
                }
                if is_weaker {
                    self.meet(Met::WeakerCameLater);
                }
            }
            (Some(Where::Running { .. }), Where::Retryable { .. }, Writer::Sweeper)
                if was.is_some_and(|was| was.evidence == Some(Heard::NeverWill)) && !row.relies_on_memory =>
            {
                self.meet(Met::FinalWordApplied);
            }
            (Some(Where::Running { .. }), Where::Completed { .. }, Writer::Sweeper) => {
                self.meet(Met::EvidenceApplied);
            }
            (Some(Where::Pending { .. }), Where::Completed { .. }, Writer::Sweeper) => {
                self.meet(Met::GivenUp);
            }
            (_, Where::Unknown, _) => self.meet(Met::Unknown),
            _ => {}
        }
    }

    /// Whoever looked before a write loses its swap, and looks again.
    fn outdate(&self, world: &mut World) {
        match world.slow {
            Slow::Nobody => return,
            Slow::Client { .. } if self.rules.has(Fault::SwapWithoutRevision) => return,
            Slow::Client { .. } => self.meet(Met::LostSwap),
            Slow::Reconciler { .. } => {}
        }
        world.slow = Slow::Nobody;
    }
}

/// Whose token stands in the row after a write. Who was overruled or forgotten has none there any more.
fn owner(was: Option<&Row>, writer: Writer) -> u8 {
    match (was, writer) {
        (_, Writer::Begin(index)) => u8::try_from(index).expect("attempts are few"),
        (_, Writer::Forget(_)) => NOBODY,
        (Some(was), Writer::Insists(_)) if matches!(was.state, Where::Running { .. }) => NOBODY,
        (Some(was), _) => was.owner,
        (None, _) => NOBODY,
    }
}

impl World {
    pub(crate) fn execute(&mut self, use_of_key: u8) {
        let executed = &mut self.executed[usize::from(use_of_key)];
        *executed = (*executed + 1).min(2);
    }

    /// Whoever was superseded and did not do the work has nothing to say that matters; in worlds full of letters it is as
    /// good as gone.
    fn forget_who_brings_no_news(&mut self) {
        let owner = self.row.as_ref().map_or(NOBODY, |row| row.owner);
        for (index, attempt) in (0..).zip(&mut self.attempts) {
            if index != owner && matches!(attempt.step, Step::Ended(Said::DidNotRun | Said::Unknown)) {
                attempt.step = Step::Gone;
            }
        }
    }

    /// Worlds that differ only in what nobody can ever ask about again are one world.
    fn forget_what_no_longer_matters(&mut self, effects: Effects, acts_until: Ticks) {
        for attempt in &mut self.attempts {
            attempt.forget_what_no_longer_matters(effects, acts_until);
        }
        let use_of_key = self.row.as_ref().map(|row| row.use_of_key);
        for (past, (executed, mistaken)) in (0..).zip(self.executed.iter_mut().zip(&mut self.mistaken)) {
            let may_act = |attempt: &Attempt| attempt.use_of_key == past && attempt.may_act(acts_until);
            let is_over = Some(past) != use_of_key && !self.attempts.iter().any(may_act);
            if is_over && (*executed == 1 || *mistaken) {
                *executed = 0;
            }
            *mistaken &= !is_over;
        }
        let Some(row) = &mut self.row else {
            self.is_known = false;
            return;
        };
        if effects != Effects::Keyed {
            // Only the memory of keyed downstream is counted from there.
            row.created_at = 0;
        }
        match row.state {
            Where::Completed { .. } => {
                self.is_known = false;
                row.began_at = 0;
                row.created_at = 0;
                row.relies_on_memory = false;
                row.earlier = 0;
            }
            Where::Retryable { .. } | Where::Pending { .. } if !row.relies_on_memory => row.began_at = 0,
            Where::Retryable { .. } | Where::Pending { .. } | Where::Running { .. } | Where::Unknown => {}
        }
    }
}

impl Slow {
    fn age(&mut self, spans: Spans, view_age_max: Ticks) {
        match self {
            Self::Nobody => {}
            Self::Client { looked_at, .. } | Self::Reconciler { looked_at, .. }
                if *looked_at == -view_age_max =>
            {
                *self = Self::Nobody;
            }
            Self::Client { looked_at, copy } => {
                *looked_at -= 1;
                if let Some(row) = copy {
                    row.age(spans);
                }
            }
            Self::Reconciler { looked_at, .. } => *looked_at -= 1,
        }
    }
}
