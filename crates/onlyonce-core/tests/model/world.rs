//! The world around the rules: a store with one row, its clock, clients, attempts, downstream, and those who clean up.

use std::sync::atomic::{AtomicBool, Ordering};

use onlyonce_core::machine::{Admission, Decision, Finish};
use onlyonce_core::record::{Draft, Effects, Source, Verdict};
use stateright::{Model, Property};

use crate::promises;
use crate::row::{Heard, Row, Spans, Ticks, Where};
use crate::rules::{Fault, Rules, Said};

/// How many tokens are minted in one world: attempts and acceptances together, over all uses of the key. This is the
/// one bound of the search.
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
    /// A webhook that was sent and has not arrived; only where webhooks dawdle.
    pub letter: Option<Heard>,
    /// The first broken promise about a step, rather than about a moment.
    pub broken: Option<promises::Broken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub use_of_key: u8,
    pub token: u8,
    /// Ticks since the look its reservation was decided on: it counts its deadline from before it asked.
    pub age: Ticks,
    pub step: Step,
    /// Its request is under way to downstream and may still take effect.
    pub in_flight: bool,
}

/// How far an attempt is. A pause is a step that does not come for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Reserved,
    Sent,
    /// It knows what it ended with and has to write it down.
    Ended(Said),
    /// Finished, crashed, or never meant to run.
    Gone,
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
    /// Downstream says by webhook what is true now.
    Webhook,
    /// Downstream sends a webhook that arrives later.
    Post,
    Deliver,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Arrives,
    IsLost,
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
    Verdict,
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
}

impl Met {
    pub(crate) const ALL: [Self; 14] = [
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
    ];
}

/// The rules in their world, for one kind of effects.
pub(crate) struct Universe {
    pub rules: Rules,
    met: [AtomicBool; Met::ALL.len()],
}

impl Universe {
    pub(crate) fn new(rules: Rules) -> Self {
        Self { rules, met: Default::default() }
    }

    pub(crate) fn has_met(&self, met: Met) -> bool {
        self.met[met as usize].load(Ordering::Relaxed)
    }

    fn meet(&self, met: Met) {
        self.met[met as usize].store(true, Ordering::Relaxed);
    }

    fn spans(&self) -> Spans {
        self.rules.spans
    }

    /// Whether the effect is committed in one transaction with the completion.
    fn is_atomic(&self) -> bool {
        self.rules.effects == Effects::Local && !self.rules.has(Fault::LocalEffectOutside)
    }

    /// How long after it looked an attempt's request can take effect.
    fn acts_until(&self) -> Ticks {
        self.spans().settled_after() + if self.rules.has(Fault::EffectPastHorizon) { 1 } else { 0 }
    }

    /// How long downstream remembers: as it promised, to the tick, from when it first saw the key. The last rerun is
    /// decided a tick before its time is over, so a downstream that breaks its word is early by more than that.
    fn remembers_for(&self) -> Ticks {
        self.spans().downstream_retention - if self.rules.has(Fault::DownstreamForgetsEarly) { 2 } else { 0 }
    }

    /// How old a client's view may be when it writes.
    fn view_age_max(&self) -> Ticks {
        VIEW_AGE_MAX + if self.rules.has(Fault::DeadlineFromWrite) { 1 } else { 0 }
    }

    fn has_webhooks(&self) -> bool {
        match self.rules.effects {
            Effects::Queryable | Effects::Opaque => true,
            Effects::Local | Effects::Keyed => false,
        }
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
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // One broken promise is enough.
        if world.broken.is_some() {
            return;
        }
        actions.extend([Action::Tick, Action::Request(Admission::Run), Action::Request(Admission::Accept)]);
        match world.slow {
            Slow::Nobody => actions.push(Action::Look),
            Slow::Client { .. } => actions.push(Action::Write),
            Slow::Reconciler { heard: None, .. } => actions.push(Action::ReconcileAsk),
            Slow::Reconciler { heard: Some(_), .. } => actions.push(Action::ReconcileWrite),
        }
        for (index, attempt) in world.attempts.iter().enumerate() {
            self.attempt_actions(index, attempt, actions);
        }
        let Some(row) = &world.row else { return };
        actions.extend([Action::Sweep, Action::Reap, Action::Claim, Action::Shrug]);
        let is_open = matches!(row.state, Where::Unknown | Where::Running { .. });
        if is_open && self.has_webhooks() {
            actions.push(Action::Webhook);
            if self.rules.has(Fault::WebhookDawdles) {
                actions.push(if world.letter.is_none() { Action::Post } else { Action::Deliver });
            }
        }
        if is_open && !self.is_atomic() && world.slow == Slow::Nobody {
            actions.push(Action::ReconcileLook);
        }
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
            Action::Shrug => {
                let draft =
                    self.rules.verdict(world.row.as_ref()?, 0, Verdict::StillUnknown, Source::Operator)?;
                self.write(&mut next, Writer::Verdict, draft);
            }
            Action::Webhook => self.webhook(&mut next, self.truth(world))?,
            Action::Post => next.letter = Some(self.truth(world)),
            Action::Deliver => {
                let heard = next.letter.take()?;
                self.webhook(&mut next, heard)?;
            }
        }
        next.forget_what_no_longer_matters(self.rules.effects, self.acts_until());
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Universe {
    fn attempt_actions(&self, index: usize, attempt: &Attempt, actions: &mut Vec<Action>) {
        if attempt.in_flight {
            actions.extend([Action::Act(index, Answer::Arrives), Action::Act(index, Answer::IsLost)]);
            actions.push(Action::Decline(index));
        }
        match attempt.step {
            Step::Gone => return,
            Step::Reserved if self.is_atomic() => {
                // A local handler does its work inside the transaction that completes the record.
                actions.extend([Action::Act(index, Answer::Arrives), Action::Act(index, Answer::IsLost)]);
                actions.push(Action::GiveUp(index));
            }
            Step::Reserved => {
                actions.push(Action::GiveUp(index));
                if attempt.age < self.acts_until() {
                    actions.push(Action::Send(index));
                }
            }
            Step::Sent => actions.push(Action::GiveUp(index)),
            Step::Ended(_) => {
                actions
                    .extend([Action::Finish(index, Answer::Arrives), Action::Finish(index, Answer::IsLost)]);
            }
        }
        actions.extend([Action::Crash(index), Action::Renew(index)]);
    }

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
    }

    /// A client decides on what it sees and writes that.
    fn request(&self, world: &mut World, seen: Option<&Row>, now: Ticks, admission: Admission) -> Option<()> {
        let number = self.mint(world);
        match self.rules.decide(seen, now, number, admission) {
            Decision::Begin(draft) => self.begin(world, draft, number, now),
            Decision::Settle(draft) => {
                self.write(world, Writer::Settle, draft);
                Some(())
            }
            Decision::Replay | Decision::Refuse(_) => None,
        }
    }

    /// A token nobody has used before.
    fn mint(&self, world: &World) -> u8 {
        let number = match &world.row {
            Some(row) if self.rules.has(Fault::TokenUsedAgain) && !row.has_expired() => {
                usize::from(row.attempt)
            }
            _ if self.rules.has(Fault::TokenUsedAgain) => 0,
            _ => world.attempts.len(),
        };
        u8::try_from(number + 1).expect("tokens are few")
    }

    fn begin(&self, world: &mut World, draft: Box<Draft>, number: u8, looked_at: Ticks) -> Option<()> {
        if world.attempts.len() == TOKENS_MAX {
            return None;
        }
        let index = world.attempts.len();
        self.write(world, Writer::Begin(index), draft);
        let row = world.row.as_ref().expect("it was just written");
        let step = if matches!(row.state, Where::Pending { .. }) { Step::Gone } else { Step::Reserved };
        if row.attempt > 1 {
            self.meet(Met::Rerun);
        }
        if row.use_of_key > 0 {
            self.meet(Met::KeyUsedAnew);
        }
        let use_of_key = row.use_of_key;
        let age = if self.rules.has(Fault::DeadlineFromWrite) { 0 } else { -looked_at };
        world.attempts.push(Attempt { use_of_key, token: number, age, step, in_flight: false });
        Some(())
    }

    fn look(&self, world: &mut World) {
        let copy = if self.rules.has(Fault::SwapWithoutRevision) { world.row.clone() } else { None };
        world.slow = Slow::Client { looked_at: 0, copy };
    }

    fn write_view(&self, world: &mut World) -> Option<()> {
        let Slow::Client { looked_at, copy } = std::mem::replace(&mut world.slow, Slow::Nobody) else {
            return None;
        };
        let seen = if self.rules.has(Fault::SwapWithoutRevision) { copy } else { world.row.clone() };
        // A refusal is an answer too, and ends the client's errand.
        let _ = self.request(world, seen.as_ref(), looked_at, Admission::Run);
        Some(())
    }

    fn claim(&self, world: &mut World) -> Option<()> {
        let number = self.mint(world);
        let draft = self.rules.claim(world.row.as_ref()?, number)?;
        self.begin(world, draft, number, 0)
    }

    fn renew(&self, world: &mut World, index: usize) -> Option<()> {
        let draft = self.rules.renew(world.row.as_ref(), world.attempts[index].token)?;
        self.write(world, Writer::Attempt(index), draft);
        Some(())
    }

    /// Downstream does what it was asked, unless it remembers that it has; or a local handler commits.
    fn act(&self, world: &mut World, index: usize, answer: Answer) {
        if self.is_atomic() {
            world.attempts[index].step = Step::Ended(Said::Done);
            return self.finish(world, index, answer);
        }
        let use_of_key = world.attempts[index].use_of_key;
        world.attempts[index].in_flight = false;
        if world.attempts[index].step == Step::Gone {
            self.meet(Met::EffectAfterGivenUp);
        }
        if self.rules.effects == Effects::Keyed && world.memory > 0 {
            self.meet(Met::Deduplicated);
        } else {
            world.execute(use_of_key);
            if self.rules.effects == Effects::Keyed {
                world.memory = self.remembers_for();
                world.ever_executed = true;
            }
        }
        if answer == Answer::Arrives {
            world.attempts[index].end(Said::Done);
        }
    }

    fn finish(&self, world: &mut World, index: usize, answer: Answer) {
        let (token, use_of_key) = (world.attempts[index].token, world.attempts[index].use_of_key);
        let Step::Ended(said) = world.attempts[index].step else { return };
        let was = world.row.clone();
        match self.rules.finish(was.as_ref(), token, said) {
            Finish::Write(draft) => {
                if was.as_ref().is_some_and(|row| row.state == Where::Unknown) {
                    self.meet(Met::LateTruth);
                }
                self.write(world, Writer::Attempt(index), draft);
                if self.is_atomic() && said == Said::Done {
                    world.execute(use_of_key);
                }
            }
            Finish::Superseded => self.meet(Met::Superseded),
            Finish::Already | Finish::Known => {}
        }
        let is_owner = was.is_some_and(|row| usize::from(row.owner) == index);
        let is_done = world.row.as_ref().is_some_and(|row| matches!(row.state, Where::Completed { .. }));
        if said == Said::Done && is_owner && !is_done {
            world.broken.get_or_insert(promises::Broken::TruthThrownAway);
        }
        // A local handler that does not hear of its commit looks again, and does not work again.
        if answer == Answer::Arrives {
            world.attempts[index].step = Step::Gone;
        }
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

    /// What downstream would say now if it were asked about this use of the key.
    fn truth(&self, world: &World) -> Heard {
        let use_of_key = world.row.as_ref().map_or(0, |row| usize::from(row.use_of_key));
        let happened = world.executed[use_of_key] > 0 || world.memory > 0;
        if happened { Heard::Happened } else { Heard::DidNotHappen }
    }

    fn ask(&self, world: &mut World) {
        let truth = self.truth(world);
        if let Slow::Reconciler { heard, .. } = &mut world.slow {
            *heard = Some(truth);
        }
    }

    /// The answer is judged by the time before it was asked for; if anybody wrote since, it is asked for again.
    fn reconcile(&self, world: &mut World) {
        let Slow::Reconciler { looked_at, heard: Some(heard) } = world.slow else { return };
        world.slow = Slow::Nobody;
        let Some(row) = &world.row else { return };
        let now = if self.rules.has(Fault::AnswerJudgedWhenWritten) { 0 } else { looked_at };
        let by = if self.rules.effects == Effects::Queryable { Source::Probe } else { Source::Operator };
        if let Some(draft) = self.rules.verdict(row, now, heard.verdict(), by) {
            self.write(world, Writer::Verdict, draft);
        }
    }

    fn webhook(&self, world: &mut World, heard: Heard) -> Option<()> {
        let draft = self.rules.verdict(world.row.as_ref()?, 0, heard.verdict(), Source::Webhook)?;
        self.write(world, Writer::Verdict, draft);
        Some(())
    }

    /// The store applies a swap.
    fn write(&self, world: &mut World, writer: Writer, draft: Box<Draft>) {
        let was = world.row.take();
        let mut row = Row::written(draft, 0, 0);
        let is_new = promises::is_new_use(was.as_ref(), &row, writer);
        row.use_of_key = match &was {
            Some(was) if !is_new => was.use_of_key,
            _ => world.uses,
        };
        row.owner = match (&was, writer) {
            (_, Writer::Begin(index)) => u8::try_from(index).expect("attempts are few"),
            (Some(was), _) => was.owner,
            (None, _) => 0,
        };
        world.uses += u8::from(is_new);
        if let Some(broken) = promises::of_a_write(was.as_ref(), &row, writer, is_new, self.spans()) {
            world.broken.get_or_insert(broken);
        }
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
            (Some(Where::Unknown), Where::Completed { .. }, Writer::Verdict) => {
                self.meet(Met::VerdictHappened);
            }
            (Some(Where::Unknown), Where::Retryable { .. }, Writer::Verdict) => {
                self.meet(Met::VerdictDidNotHappen);
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

impl World {
    fn execute(&mut self, use_of_key: u8) {
        let executed = &mut self.executed[usize::from(use_of_key)];
        *executed = (*executed + 1).min(2);
    }

    /// Worlds that differ only in what nobody can ever ask about again are one world.
    fn forget_what_no_longer_matters(&mut self, effects: Effects, acts_until: Ticks) {
        for attempt in &mut self.attempts {
            attempt.forget_what_no_longer_matters(effects, acts_until);
        }
        let use_of_key = self.row.as_ref().map(|row| row.use_of_key);
        for (past, executed) in (0..).zip(&mut self.executed) {
            let is_over = Some(past) != use_of_key
                && !self.attempts.iter().any(|attempt| attempt.use_of_key == past && attempt.in_flight);
            if is_over && *executed == 1 {
                *executed = 0;
            }
        }
        let Some(row) = &mut self.row else { return };
        if effects != Effects::Keyed {
            // Only the memory of keyed downstream is counted from there.
            row.created_at = 0;
        }
        match row.state {
            Where::Completed { .. } => {
                row.began_at = 0;
                row.created_at = 0;
                row.relies_on_memory = false;
            }
            Where::Retryable { .. } | Where::Pending { .. } if !row.relies_on_memory => row.began_at = 0,
            Where::Retryable { .. } | Where::Pending { .. } | Where::Running { .. } | Where::Unknown => {}
        }
    }
}

impl Attempt {
    fn forget_what_no_longer_matters(&mut self, effects: Effects, acts_until: Ticks) {
        if self.step == Step::Sent && !self.in_flight {
            // No answer will come.
            self.step = Step::Ended(Said::Unknown);
        }
        if self.step == Step::Reserved && self.age == acts_until && effects != Effects::Local {
            // Nothing it sends now would arrive.
            self.step = Step::Ended(Said::DidNotRun);
        }
        if self.step != Step::Reserved && !self.in_flight {
            self.age = acts_until;
        }
        if self.step == Step::Gone {
            self.token = 0;
        }
    }

    /// It hears how it ended, if it still listens.
    fn end(&mut self, said: Said) {
        if self.step == Step::Sent {
            self.step = Step::Ended(said);
        }
    }

    fn give_up(&mut self) {
        self.step = match self.step {
            Step::Reserved => Step::Ended(Said::DidNotRun),
            Step::Sent => Step::Ended(Said::Unknown),
            step @ (Step::Ended(_) | Step::Gone) => step,
        };
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
