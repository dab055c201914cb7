//! Attempts and what they do: reserve, send, take effect downstream, renew, crash, and write down how they ended.

use onlyonce_core::machine::{Admission, Decision, Finish};
use onlyonce_core::record::{Draft, Effects};

use crate::promises;
use crate::row::{Row, Ticks, Where};
use crate::rules::{Fault, Said};
use crate::world::{Action, Met, Slow, Universe, World, Writer};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Attempt {
    pub use_of_key: u8,
    pub token: u8,
    /// Ticks since the look its reservation was decided on: it counts its deadline from before it asked.
    pub age: Ticks,
    pub step: Step,
    /// Its request is under way to downstream and may still take effect.
    pub in_flight: bool,
    /// It was meant to run, and is no acceptance. Only where letters tell of it.
    pub has_begun: bool,
    /// Its request took effect. Only where letters tell of it.
    pub acted: bool,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Arrives,
    IsLost,
}

impl Universe {
    pub(crate) fn attempt_actions(&self, index: usize, attempt: &Attempt, actions: &mut Vec<Action>) {
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

    /// A client decides on what it sees and writes that.
    pub(crate) fn request(
        &self,
        world: &mut World,
        seen: Option<&Row>,
        now: Ticks,
        admission: Admission,
    ) -> Option<()> {
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
        if world.attempts.len() == self.cast.tokens {
            return None;
        }
        let index = world.attempts.len();
        self.write(world, Writer::Begin(index), draft);
        let row = world.row.as_ref().expect("it was just written");
        let has_begun = !matches!(row.state, Where::Pending { .. });
        let step = if has_begun { Step::Reserved } else { Step::Gone };
        if row.attempt > 1 {
            self.meet(Met::Rerun);
        }
        if row.use_of_key > 0 {
            self.meet(Met::KeyUsedAnew);
        }
        let use_of_key = row.use_of_key;
        let age = if self.rules.has(Fault::DeadlineFromWrite) { 0 } else { -looked_at };
        let has_begun = has_begun && self.cast.letters;
        let attempt =
            Attempt { use_of_key, token: number, age, step, in_flight: false, has_begun, acted: false };
        world.attempts.push(attempt);
        Some(())
    }

    pub(crate) fn look(&self, world: &mut World) {
        let copy = if self.rules.has(Fault::SwapWithoutRevision) { world.row.clone() } else { None };
        world.slow = Slow::Client { looked_at: 0, copy };
    }

    pub(crate) fn write_view(&self, world: &mut World) -> Option<()> {
        let Slow::Client { looked_at, copy } = std::mem::replace(&mut world.slow, Slow::Nobody) else {
            return None;
        };
        let seen = if self.rules.has(Fault::SwapWithoutRevision) { copy } else { world.row.clone() };
        // A refusal is an answer too, and ends the client's errand.
        let _ = self.request(world, seen.as_ref(), looked_at, Admission::Run);
        Some(())
    }

    pub(crate) fn claim(&self, world: &mut World) -> Option<()> {
        let number = self.mint(world);
        let draft = self.rules.claim(world.row.as_ref()?, number)?;
        self.begin(world, draft, number, 0)
    }

    pub(crate) fn renew(&self, world: &mut World, index: usize) -> Option<()> {
        let draft = self.rules.renew(world.row.as_ref(), world.attempts[index].token)?;
        self.write(world, Writer::Attempt(index), draft);
        Some(())
    }

    /// Downstream does what it was asked, unless it remembers that it has; or a local handler commits.
    pub(crate) fn act(&self, world: &mut World, index: usize, answer: Answer) {
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
            world.attempts[index].acted = self.cast.letters;
            if self.rules.effects == Effects::Keyed {
                world.memory = self.remembers_for();
                world.ever_executed = true;
            }
        }
        if answer == Answer::Arrives {
            world.attempts[index].end(Said::Done);
        }
    }

    pub(crate) fn finish(&self, world: &mut World, index: usize, answer: Answer) {
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
}

impl Attempt {
    /// Whether it may still do the work: its request is under way, or it may still send one.
    pub(crate) fn may_act(&self, acts_until: Ticks) -> bool {
        self.in_flight || (self.step == Step::Reserved && self.age < acts_until)
    }

    pub(crate) fn forget_what_no_longer_matters(&mut self, effects: Effects, acts_until: Ticks) {
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
    pub(crate) fn end(&mut self, said: Said) {
        if self.step == Step::Sent {
            self.step = Step::Ended(said);
        }
    }

    pub(crate) fn give_up(&mut self) {
        self.step = match self.step {
            Step::Reserved => Step::Ended(Said::DidNotRun),
            Step::Sent => Step::Ended(Said::Unknown),
            step @ (Step::Ended(_) | Step::Gone) => step,
        };
    }
}
