//! What the handlers call: a downstream of each of the four kinds, which acts late, dies and loses answers.
//!
//! 1. `opaque` and `queryable` act every time they are called. `queryable` can be asked, and can swear that a token
//!    will never act.
//! 2. `keyed` acts once while it remembers the key. It remembers from when it acted.
//! 3. `local` is the user's transaction: the effect and the completion are written in one step of the store, or
//!    neither is. The rule by which the record is completed is the machine's, as it would be inside the store.
//!
//! Like the store's links, a call is a message: it arrives whether or not its sender still waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use onlyonce::Effects;
use onlyonce_core::machine::{self, Finish};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::record::{Id, Response, Token};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::history::{Said, What};
use crate::operator;
use crate::stage::{DEADLINE, DOWNSTREAM_REMEMBERS, LATE_MS, Stage};
use crate::tally::Count;
use crate::truth::Truth;

pub(crate) struct Bank {
    pub(crate) stage: Arc<Stage>,
    pub(crate) truth: Truth,
    ledger: Mutex<Ledger>,
}

#[derive(Default)]
struct Ledger {
    /// What took effect, for whom and when.
    effects: Vec<(Id, Instant, Said)>,
    /// By downstream key.
    remembered: BTreeMap<String, Remembered>,
    fenced: BTreeSet<u32>,
}

struct Remembered {
    until: Instant,
    /// None while it is under way.
    said: Option<Said>,
}

#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) id: Id,
    pub(crate) token: Token,
    pub(crate) downstream_key: String,
    /// What the request asks for.
    pub(crate) body: u32,
}

pub(crate) enum Reply {
    Done(Said),
    /// The same key is under way.
    Busy,
    /// Nothing was done, and nothing will be.
    Refused,
}

impl Bank {
    pub(crate) fn new(stage: Arc<Stage>, truth: Truth) -> Arc<Self> {
        Arc::new(Self { stage, truth, ledger: Mutex::default() })
    }

    /// Calls, and waits for the reply; none where it was lost.
    pub(crate) async fn call(self: &Arc<Self>, call: Call) -> Option<Reply> {
        let (reply, replied) = oneshot::channel();
        let bank = self.clone();
        tokio::spawn(async move {
            let answer = bank.serve(&call).await;
            // A lost answer is noticed at once, or never.
            if answer.is_none() && bank.stage.random().percent(40) {
                sleep(2 * DEADLINE).await;
            }
            if let Some(answer) = answer {
                drop(reply.send(answer));
            }
        });
        replied.await.ok()
    }

    async fn serve(self: &Arc<Self>, call: &Call) -> Option<Reply> {
        let stage = &self.stage;
        if stage.fault(6) {
            stage.count(Count::CallLost);
            return None;
        }
        if stage.fault(8) {
            stage.count(Count::ActedLate);
            stage.pass(LATE_MS).await;
        } else {
            stage.pass(1..=20).await;
        }
        let reply = match stage.subject(call.id).effects {
            Effects::Local => Some(self.commit(call)),
            Effects::Keyed => self.act_once(call).await,
            Effects::Queryable | Effects::Opaque => self.act(call),
        };
        if stage.fault(8) {
            stage.count(Count::AnswerLost);
            return None;
        }
        stage.pass(0..=10).await;
        reply
    }

    fn act(self: &Arc<Self>, call: &Call) -> Option<Reply> {
        if self.dies() {
            return None;
        }
        if self.ledger.lock().unwrap().fenced.contains(&self.stage.token(call.token)) {
            return Some(Reply::Refused);
        }
        if self.declines() {
            return Some(Reply::Done(self.said(402, "declined", call)));
        }
        let said = self.said(201, "done", call);
        self.stage.note(self.stage.subject(call.id).number, self.execution(call, &said));
        self.book(call, &said);
        if self.stage.subject(call.id).effects == Effects::Queryable {
            tokio::spawn(operator::webhook(self.clone(), call.clone(), said.clone()));
        }
        Some(Reply::Done(said))
    }

    async fn act_once(self: &Arc<Self>, call: &Call) -> Option<Reply> {
        match self.arrive(call) {
            Some(Some(said)) => {
                self.stage.count(Count::Deduplicated);
                return Some(Reply::Done(said));
            }
            Some(None) => return Some(Reply::Busy),
            None => {}
        }
        let millis = if self.stage.fault(15) { 500..=1_900 } else { 0..=30 };
        self.stage.pass(millis).await;
        let reply = self.act(call);
        let mut ledger = self.ledger.lock().unwrap();
        match &reply {
            Some(Reply::Done(said)) => {
                let entry = ledger.remembered.get_mut(&call.downstream_key).expect("it has arrived");
                (entry.said, entry.until) = (Some(said.clone()), Instant::now() + DOWNSTREAM_REMEMBERS);
            }
            Some(Reply::Busy | Reply::Refused) | None => drop(ledger.remembered.remove(&call.downstream_key)),
        }
        reply
    }

    /// What is remembered of this key; from now on something is.
    fn arrive(&self, call: &Call) -> Option<Option<Said>> {
        let mut ledger = self.ledger.lock().unwrap();
        ledger.remembered.retain(|_, entry| Instant::now() < entry.until);
        if let Some(entry) = ledger.remembered.get(&call.downstream_key) {
            return Some(entry.said.clone());
        }
        let entry = Remembered { until: Instant::now() + DOWNSTREAM_REMEMBERS, said: None };
        ledger.remembered.insert(call.downstream_key.clone(), entry);
        None
    }

    /// The user's transaction with the completion in it.
    fn commit(&self, call: &Call) -> Reply {
        let said = self.said(201, "committed", call);
        let response =
            Response { status: said.status, headers: Vec::new(), body: Bytes::from(said.body.clone()) };
        let outcome = Outcome::Completed { response: Some(Arc::new(response)), keep_for: None };
        let seen = self.truth.load(call.id);
        match (machine::finish(seen.as_ref(), call.token, &outcome), seen) {
            (Finish::Write(draft), Some(seen)) => {
                let is_written = self.truth.write(&seen, draft, Some(self.execution(call, &said)));
                assert!(is_written, "nothing comes between a look and a write in one step");
                self.book(call, &said);
                Reply::Done(said)
            }
            (Finish::Write(_) | Finish::Already | Finish::Known | Finish::Superseded, _) => {
                self.stage.count(Count::RolledBack);
                Reply::Refused
            }
        }
    }

    fn dies(&self) -> bool {
        let dies = self.stage.fault(5);
        if dies {
            self.stage.count(Count::DiedMidway);
        }
        dies
    }

    fn declines(&self) -> bool {
        self.stage.random().percent(8)
    }

    fn said(&self, status: u16, what: &str, call: &Call) -> Said {
        let subject = self.stage.subject(call.id);
        let (caller, key, token) = (&subject.caller, &subject.key, self.stage.token(call.token));
        Said { status, body: format!("{what} for {caller}, {key}, body {}, by t{token}", call.body) }
    }

    fn execution(&self, call: &Call, said: &Said) -> What {
        What::Executed { token: self.stage.token(call.token), said: said.clone() }
    }

    fn book(&self, call: &Call, said: &Said) {
        self.ledger.lock().unwrap().effects.push((call.id, Instant::now(), said.clone()));
    }

    /// What took effect for a key in the last so long: the truth that verdicts are made of.
    pub(crate) fn found(&self, id: Id, within: Duration) -> Option<Said> {
        let ledger = self.ledger.lock().unwrap();
        let mut effects = ledger.effects.iter().rev();
        effects.find(|(of, at, _)| *of == id && at.elapsed() <= within).map(|(.., said)| said.clone())
    }

    /// From now on this token is refused.
    pub(crate) fn fence(&self, token: Token) {
        self.stage.count(Count::Fenced);
        self.ledger.lock().unwrap().fenced.insert(self.stage.token(token));
    }
}
