//! Rules about what the store wrote.

use super::{Attempt, Broken, By, Checker, Completed, Effects, Meaning, Said, State, Verdict, Written};

impl Checker<'_> {
    pub(super) fn wrote(&mut self, written: &Written) {
        self.swept_in_time();
        let before = self.present().record.clone();
        self.lapsed_alive(before.as_ref(), written);
        let begins = before.as_ref().is_none_or(|before| before.token != written.token)
            && matches!(written.state, State::Running { .. });
        if begins {
            self.reserved(before.as_ref(), written);
        } else {
            self.moved(before.as_ref(), written);
        }
        self.remember(written);
    }

    /// A new attempt.
    fn reserved(&mut self, before: Option<&Written>, written: &Written) {
        let Written { token, attempt, .. } = *written;
        let expected = before.map_or(1, |before| before.attempt + 1);
        if attempt != expected {
            self.broken(Broken::AttemptOutOfOrder, format!("attempt {attempt} where {expected} was next"));
        }
        let present = self.uses.len() - 1;
        let known = self.attempts.entry(token).or_insert_with(|| Attempt::of(present));
        if std::mem::replace(&mut known.is_reserved, true) {
            self.broken(Broken::TokenReused, format!("token {token}"));
        }
        match before.map(|before| &before.state) {
            None | Some(State::Retryable { .. }) => {}
            Some(State::Completed { .. }) => self.broken(Broken::RanAfterCompleted, format!("token {token}")),
            Some(State::Unknown) => self.broken(Broken::RanWithoutVerdict, format!("token {token}")),
            Some(State::Running { .. }) if self.is_doubtful() => {
                self.broken(Broken::RanWithoutVerdict, format!("token {token}"));
            }
            Some(State::Running { until }) if self.now < *until => {
                self.broken(Broken::SupersededAlive, format!("token {token}, {until} was its end"));
            }
            Some(State::Running { .. }) => {}
        }
    }

    /// A write of the attempt that has the record, or about it.
    fn moved(&mut self, before: Option<&Written>, written: &Written) {
        let Some(before) = before.filter(|before| before.token == written.token) else {
            self.broken(Broken::SupersededWrote, format!("token {}", written.token));
            return;
        };
        if before.attempt != written.attempt {
            self.broken(Broken::AttemptOutOfOrder, format!("token {} changed its number", written.token));
        }
        match (&before.state, &written.state) {
            (State::Completed { said: was, .. }, State::Completed { said, .. }) if was == said => {}
            (State::Completed { .. }, state) => self.broken(Broken::AnswerChanged, format!("to {state:?}")),
            (_, State::Completed { said, by, .. }) => self.completed(written.token, said.as_ref(), *by),
            (was, State::Retryable { .. }) => self.released(written.token, was),
            (_, State::Unknown) if self.history.effects == Effects::Local => {
                self.broken(Broken::DoubtedLocal, format!("token {}", written.token));
            }
            // Only a reservation runs again; a renewal renews what runs.
            (State::Unknown | State::Retryable { .. }, State::Running { .. }) => {
                self.broken(Broken::TokenReused, format!("token {} runs again", written.token));
            }
            (State::Running { .. }, State::Running { .. } | State::Unknown)
            | (State::Unknown | State::Retryable { .. }, State::Unknown) => {}
        }
    }

    fn completed(&mut self, token: u32, said: Option<&Said>, by: By) {
        let gave = |attempt: &Attempt| attempt.gave(said);
        let is_true = match by {
            By::Attempt => self.attempts.get(&token).is_some_and(gave),
            By::Verdict => self
                .present()
                .verdicts
                .iter()
                .any(|verdict| matches!(verdict, Verdict::Happened(found) if found.as_ref() == said)),
        };
        if !is_true {
            let is_anothers = by == By::Attempt && self.attempts.values().any(gave);
            let name = if is_anothers { Broken::SupersededWrote } else { Broken::CompletedWithoutTruth };
            self.broken(name, format!("token {token}: {said:?}"));
        }
        // An answer that was not kept was a success unless its attempt said otherwise.
        let ended = self.attempts.get(&token).and_then(|attempt| attempt.ended.last());
        let said_last = said.or(ended.and_then(|(_, said)| said.as_ref()).filter(|_| by == By::Attempt));
        let is_success = said_last.is_none_or(|said| said.status < 300);
        if is_success && !self.has_happened() {
            self.broken(Broken::CompletedUnexecuted, format!("token {token}: {said:?}"));
        }
    }

    fn released(&mut self, token: u32, was: &State) {
        let attempt = self.attempts.get(&token);
        let nothing_sent = attempt.is_none_or(|attempt| !attempt.has_begun);
        let said_so = attempt
            .is_some_and(|attempt| attempt.ended.iter().any(|(meaning, _)| *meaning == Meaning::DidNotRun));
        let is_ruled = self.present().verdicts.contains(&Verdict::DidNotHappen);
        let is_safe = !self.is_doubtful() && !matches!(was, State::Unknown);
        if !(nothing_sent || said_so || is_ruled || is_safe) {
            self.broken(Broken::ReleasedInDoubt, format!("token {token}"));
        }
    }

    /// Nothing failed and the handler was alive: its lease was to be renewed.
    fn lapsed_alive(&mut self, before: Option<&Written>, written: &Written) {
        let Some(Written { token, state: State::Running { until }, .. }) = before else { return };
        let is_renewal = *token == written.token && matches!(written.state, State::Running { .. });
        let attempt = self.attempts.get(token);
        let is_alive = attempt.is_some_and(|attempt| attempt.is_calm && attempt.ended.is_empty());
        if self.now >= *until && !is_renewal && is_alive {
            self.broken(Broken::LapsedAlive, format!("token {token} at {until}"));
        }
    }

    fn remember(&mut self, written: &Written) {
        let now = self.now;
        let released = matches!(written.state, State::Retryable { .. });
        if let Some(attempt) = self.attempts.get_mut(&written.token) {
            attempt.is_released |= released;
        }
        let used = self.present_mut();
        match &written.state {
            State::Running { .. } => used.was_running = true,
            State::Unknown => used.was_unknown = true,
            State::Retryable { .. } => used.verdicts.clear(),
            State::Completed { said, expires_at, .. } => {
                let completed = Completed { said: said.clone(), at: now, expires_at: *expires_at };
                used.completed.get_or_insert(completed);
            }
        }
        used.record = Some(written.clone());
    }

    /// Once the faults have stopped, a lapsed lease is found soon.
    pub(super) fn swept_in_time(&mut self) {
        let (Some(healed_at), Some(record)) = (self.healed_at, &self.present().record) else { return };
        let State::Running { until } = record.state else { return };
        let found_by = until.max(healed_at) + self.history.swept_within_ms;
        if self.now > found_by {
            let says = format!("token {} lapsed at {until}", record.token);
            self.broken(Broken::Unswept, says);
        }
    }
}
