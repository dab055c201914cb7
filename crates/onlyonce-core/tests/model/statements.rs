//! What is said about the work: by a reconciler that asks, by webhooks, by letters about one attempt, and by a person who
//! insists or has the record forgotten.

use onlyonce_core::machine::Force;
use onlyonce_core::record::{Effects, Source};

use crate::attempts::Attempt;
use crate::row::{Heard, Row, Where};
use crate::rules::{Fault, Word};
use crate::world::{Action, Met, Slow, Universe, World, Writer};

/// A webhook about one attempt that was sent and may arrive at any time, more than once, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Letter {
    /// Which attempt, counted from 0 over all uses of the key.
    pub about: u8,
    pub heard: Heard,
}

impl Universe {
    pub(crate) fn statement_actions(&self, world: &World, row: &Row, actions: &mut Vec<Action>) {
        let is_open = matches!(row.state, Where::Unknown | Where::Running { .. });
        if is_open && self.has_webhooks() {
            actions.push(Action::Webhook);
        }
        if self.cast.letters {
            self.letter_actions(world, actions);
        }
        if self.cast.force {
            actions.extend([Action::Forget(Force::No), Action::Forget(Force::Yes)]);
            if is_open {
                actions.push(Action::Insist(Heard::DidNotHappen));
                if self.truth(world) == Heard::Happened {
                    actions.push(Action::Insist(Heard::Happened));
                }
            }
        }
        if is_open && self.cast.slow && !self.is_atomic() && world.slow == Slow::Nobody {
            actions.push(Action::ReconcileLook);
        }
    }

    fn letter_actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.letter.is_some() {
            actions.extend([Action::Deliver, Action::Lose]);
            return;
        }
        let owner = world.row.as_ref().map(|row| usize::from(row.owner));
        // Nobody outside ever hears of the token of an acceptance.
        let attempts = world.attempts.iter().enumerate().filter(|(_, attempt)| attempt.has_begun);
        for (index, attempt) in attempts {
            if attempt.acted {
                actions.push(Action::Post(index, Heard::Happened));
            } else if owner == Some(index) {
                // It may arrive once another attempt has begun; sent only then, it would say no more.
                let words = [Heard::DidNotHappen, Heard::NeverWill];
                actions.extend(words.map(|heard| Action::Post(index, heard)));
            }
        }
    }

    fn has_webhooks(&self) -> bool {
        match self.rules.effects {
            Effects::Queryable | Effects::Opaque => true,
            Effects::Keyed => self.cast.letters,
            Effects::Local => false,
        }
    }

    /// What downstream would say now if it were asked about this use of the key.
    pub(crate) fn truth(&self, world: &World) -> Heard {
        let use_of_key = world.row.as_ref().map_or(0, |row| usize::from(row.use_of_key));
        let happened = world.executed[use_of_key] > 0 || world.memory > 0;
        if happened { Heard::Happened } else { Heard::DidNotHappen }
    }

    pub(crate) fn ask(&self, world: &mut World) {
        let truth = self.truth(world);
        if let Slow::Reconciler { heard, .. } = &mut world.slow {
            *heard = Some(truth);
        }
    }

    /// The answer is judged by the time before it was asked for; if anybody wrote since, it is asked for again.
    pub(crate) fn reconcile(&self, world: &mut World) {
        let Slow::Reconciler { looked_at, heard: Some(heard) } = world.slow else { return };
        world.slow = Slow::Nobody;
        let Some(row) = &world.row else { return };
        let now = if self.rules.has(Fault::AnswerJudgedWhenWritten) { 0 } else { looked_at };
        let by = if self.rules.effects == Effects::Queryable { Source::Probe } else { Source::Operator };
        if let Some(draft) = self.rules.verdict(row, now, Word::of(by, heard)) {
            self.write(world, Writer::Verdict(heard), draft);
        }
    }

    /// A person says that nobody knows.
    pub(crate) fn shrug(&self, world: &mut World) -> Option<()> {
        let word = Word::of(Source::Operator, Heard::Unknown);
        let draft = self.rules.verdict(world.row.as_ref()?, 0, word)?;
        self.write(world, Writer::Verdict(Heard::Unknown), draft);
        Some(())
    }

    /// Downstream says by webhook what is true of the work now.
    pub(crate) fn webhook(&self, world: &mut World) -> Option<()> {
        let heard = self.truth(world);
        self.tell(world, Word::of(Source::Webhook, heard))
    }

    /// Downstream writes about one attempt what is true of it now. That it never will happen is a promise: from now on it
    /// refuses that attempt.
    pub(crate) fn post(&self, world: &mut World, index: usize, heard: Heard) {
        world.letter = Some(Letter { about: u8::try_from(index).expect("attempts are few"), heard });
        if heard == Heard::NeverWill && !self.rules.has(Fault::FinalWordBroken) {
            let acts_until = self.acts_until();
            let attempt = &mut world.attempts[index];
            attempt.in_flight = false;
            attempt.age = acts_until;
        }
    }

    /// The letter arrives; it may do so again.
    pub(crate) fn deliver(&self, world: &mut World) -> Option<()> {
        let letter = world.letter?;
        let row = world.row.as_ref()?;
        if usize::from(letter.about) != usize::from(row.owner) {
            let is_same_use = world.attempts[usize::from(letter.about)].use_of_key == row.use_of_key;
            self.meet(if is_same_use { Met::AboutEarlierAttempt } else { Met::AboutEarlierUse });
        }
        let about = Some(letter.about + 1);
        self.tell(world, Word { about, ..Word::of(Source::Webhook, letter.heard) })
    }

    fn tell(&self, world: &mut World, word: Word) -> Option<()> {
        let row = world.row.as_ref()?;
        let is_about_this_use = word
            .about
            .is_none_or(|number| world.attempts[usize::from(number) - 1].use_of_key == row.use_of_key);
        let counts = is_about_this_use && !row.has_expired();
        if counts && word.heard < Heard::Happened && matches!(row.state, Where::Completed { .. }) {
            self.meet(Met::Contradicted);
        }
        let draft = self.rules.verdict(row, 0, word);
        world.is_known |= self.cast.letters && counts && word.heard == Heard::Happened;
        if let Some(draft) = draft {
            self.write(world, Writer::Verdict(word.heard), draft);
        }
        Some(())
    }

    /// A person insists. Where that person is wrong, or turns out to be, it is that person who did the work twice.
    pub(crate) fn insist(&self, world: &mut World, heard: Heard) -> Option<()> {
        let word = Word { force: Force::Yes, ..Word::of(Source::Operator, heard) };
        let row = world.row.as_ref()?;
        let draft = self.rules.verdict(row, 0, word)?;
        let use_of_key = row.use_of_key;
        let was_running = matches!(row.state, Where::Running { .. });
        if heard == Heard::DidNotHappen && self.may_be_done(world, use_of_key) {
            world.mistaken[usize::from(use_of_key)] = true;
            self.meet(Met::PersonMistaken);
        }
        self.meet(if was_running { Met::Overruled } else { Met::Insisted });
        self.write(world, Writer::Insists(heard), draft);
        Some(())
    }

    fn may_be_done(&self, world: &World, use_of_key: u8) -> bool {
        let may_act =
            |attempt: &Attempt| attempt.use_of_key == use_of_key && attempt.may_act(self.acts_until());
        world.executed[usize::from(use_of_key)] > 0 || world.attempts.iter().any(may_act)
    }

    pub(crate) fn forget(&self, world: &mut World, force: Force) -> Option<()> {
        let row = world.row.as_ref()?;
        let draft = self.rules.forget(row, force)?;
        if force == Force::Yes && matches!(row.state, Where::Unknown | Where::Running { .. }) {
            self.meet(Met::ForgottenByForce);
        }
        self.write(world, Writer::Forget(force), draft);
        Some(())
    }

    /// A word that is not final and not true any more arrives while its attempt may still act, or not at all.
    pub(crate) fn withdraw_what_is_out_of_date(&self, world: &mut World) {
        let (Some(letter), Some(row)) = (world.letter, &world.row) else { return };
        let is_out_of_date =
            letter.heard == Heard::DidNotHappen && world.attempts[usize::from(letter.about)].acted;
        let is_over = row.began_at + self.rules.spans.settled_after() <= 0;
        if is_out_of_date && is_over && !self.rules.has(Fault::WebhookDawdles) {
            world.letter = None;
        }
    }
}
