//! Rules about what runs and what takes effect.

use super::{Attempt, Broken, Checker, Effects, Meaning, Said, Verdict};

impl Checker<'_> {
    pub(super) fn began(&mut self, request: u32, token: u32) {
        let is_doubtful = self.is_doubtful();
        let (present, is_calm, now) = (self.uses.len() - 1, self.healed_at.is_some(), self.now);
        let attempt = self.attempts.entry(token).or_insert_with(|| Attempt::of(present));
        let (use_index, is_reserved) = (attempt.use_index, attempt.is_reserved);
        let (has_begun, is_released) = (attempt.has_begun, attempt.is_released);
        (attempt.has_begun, attempt.is_calm, attempt.began_at) = (true, is_calm, now);
        if has_begun {
            self.broken(Broken::BeganTwice, format!("token {token}"));
        }
        // Where another attempt is safe, a slow one may begin after its record was released: it is superseded.
        if self.watches_store && (!is_reserved || (is_doubtful && is_released)) {
            self.broken(Broken::RanUnreserved, format!("token {token}"));
        }
        self.began_for(request, token, use_index);
    }

    fn began_for(&mut self, request: u32, token: u32, use_index: usize) {
        let Some(sent) = self.requests.get_mut(&request) else { return };
        sent.tokens.push(token);
        let (body, sent_index, index) = (sent.body, sent.sent_index, self.index);
        let used = &mut self.uses[use_index];
        let owner = *used.owner.get_or_insert(body);
        used.owned_at.get_or_insert(index);
        let was_told = used.told_at.is_some_and(|told_at| told_at < sent_index);
        if owner != body {
            self.broken(
                Broken::OtherBodyRan,
                format!("request {request}: body {body} under that of {owner}"),
            );
        }
        if was_told {
            self.broken(
                Broken::RanAfterCompleted,
                format!("request {request} came after the answer was stored"),
            );
        }
    }

    pub(super) fn ended(&mut self, token: u32, meaning: Meaning, said: Option<Said>) {
        if let Some(attempt) = self.attempts.get_mut(&token) {
            attempt.ended.push((meaning, said));
        }
    }

    pub(super) fn executed(&mut self, token: u32, said: &Said) {
        let now = self.now;
        let Some(attempt) = self.attempts.get_mut(&token).filter(|attempt| attempt.has_begun) else {
            self.broken(Broken::ExecutedUnasked, format!("token {token}"));
            return;
        };
        attempt.executed.push(said.clone());
        let (use_index, is_ruled_out) = (attempt.use_index, attempt.is_ruled_out);
        let said_nothing_ran = attempt.ended.iter().any(|(meaning, _)| *meaning == Meaning::DidNotRun);
        self.uses[use_index].executed.push(token);
        let is_again = self.uses[use_index].executed.len() > 1;
        let broke_its_word = self.history.effects == Effects::Keyed
            && self.executed_at.iter().any(|at| now < at + self.history.remembers_ms);
        self.executed_at.push(now);
        if said_nothing_ran {
            self.broken(Broken::HandlerLied, format!("token {token}"));
        }
        if is_ruled_out {
            self.broken(Broken::VerdictBelied, format!("token {token}"));
        }
        if broke_its_word {
            self.broken(Broken::ForgotTooSoon, format!("token {token}"));
        } else if is_again {
            let name = match self.history.effects {
                Effects::Local => Broken::CommittedTwice,
                Effects::Keyed | Effects::Queryable | Effects::Opaque => Broken::RanTwice,
            };
            self.broken(name, format!("tokens {:?}", self.uses[use_index].executed));
        }
    }

    pub(super) fn ruled(&mut self, verdict: &Verdict) {
        let has_happened = self.has_happened();
        let is_true = match verdict {
            Verdict::Happened(_) => has_happened,
            Verdict::DidNotHappen => self.present().executed.is_empty(),
        };
        if !is_true {
            self.broken(Broken::VerdictUntrue, format!("{verdict:?}"));
        }
        if *verdict == Verdict::DidNotHappen {
            let present = self.uses.len() - 1;
            let ruled_out = self.attempts.values_mut().filter(|attempt| attempt.use_index == present);
            ruled_out.for_each(|attempt| attempt.is_ruled_out = true);
        }
        self.present_mut().verdicts.push(verdict.clone());
    }

    /// Whether an effect stands behind this use. A keyed downstream may answer from an earlier use of the key.
    pub(super) fn has_happened(&self) -> bool {
        match self.history.effects {
            Effects::Keyed => !self.executed_at.is_empty(),
            Effects::Local | Effects::Queryable | Effects::Opaque => !self.present().executed.is_empty(),
        }
    }
}

impl Attempt {
    pub(super) fn of(use_index: usize) -> Self {
        Self {
            use_index,
            is_reserved: false,
            has_begun: false,
            began_at: 0,
            is_calm: false,
            is_released: false,
            is_ruled_out: false,
            ended: Vec::new(),
            executed: Vec::new(),
        }
    }

    /// Whether this attempt gave that answer.
    pub(super) fn gave(&self, said: Option<&Said>) -> bool {
        let completed = self.ended.iter().filter(|(meaning, _)| *meaning == Meaning::Completed);
        match said {
            Some(said) => {
                completed.clone().any(|(_, own)| own.as_ref() == Some(said)) || self.executed.contains(said)
            }
            None => completed.count() > 0,
        }
    }
}
