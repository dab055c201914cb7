//! Rules about what clients are told.

use super::{Answer, Attempt, Broken, Checker, Completed, Effects, Said, Stored, Use, Verdict};

/// How soon a duplicate that waits hears of the answer, at the latest.
const WOKEN_WITHIN_MS: u64 = 1_000;
/// How soon after the last fault a node has found the store again, at the latest: the time that a breaker stays open, and
/// the longest pause between two tries of a write.
const FOUND_WITHIN_MS: u64 = 3_000;

impl Checker<'_> {
    pub(super) fn answered(&mut self, request: u32, answer: &Answer) {
        self.close(request);
        let present = self.uses.len() - 1;
        let Some(sent) = self.requests.get_mut(&request) else { return };
        sent.use_last = present;
        match &answer.code {
            Some(code) => self.refused(request, code),
            None if answer.is_replay => self.replayed(request, &answer.said),
            None => self.first(request, answer),
        }
    }

    fn refused(&mut self, request: u32, code: &str) {
        let sent = &self.requests[&request];
        let has_run = !sent.tokens.is_empty();
        let ended_in_doubt = code == "upstream_outcome_unknown";
        if has_run && !ended_in_doubt {
            self.broken(Broken::RefusedYetRan, format!("request {request}: {code}"));
        }
        if self.is_anothers(request)
            && !["idempotency_key_reused", "idempotency_store_unavailable"].contains(&code)
        {
            return self.broken(Broken::OtherBodyToldElse, format!("request {request}: {code}"));
        }
        let overlapped = self.overlapped(request);
        let name = match code {
            "idempotency_key_reused" => {
                if let Some(sent) = self.requests.get_mut(&request) {
                    sent.is_told_reused = true;
                }
                return;
            }
            "idempotency_key_in_progress" if !overlapped.iter().any(|used| used.was_running) => {
                self.watches_store.then_some(Broken::InProgressOfNothing)
            }
            "idempotency_key_in_progress" => self.waited_in_vain(request),
            "idempotency_outcome_unknown" => self.doubted(request),
            "idempotency_response_not_stored" => {
                let is_kept = |completed: &Completed| completed.said.is_some();
                let is_so =
                    overlapped.iter().any(|used| used.completed.as_ref().is_some_and(|c| !is_kept(c)));
                (self.watches_store && !is_so).then_some(Broken::NotStoredOfNothing)
            }
            // Between processes a request may be lost on its way to the handler, and that is doubt.
            "upstream_outcome_unknown" if !has_run => self.watches_store.then_some(Broken::NotItsOwn),
            _ => None,
        };
        if let Some(name) = name {
            self.broken(name, format!("request {request}: {code}"));
        }
    }

    /// Whether the key was another request's all the time, and known to be so before this one was sent.
    fn is_anothers(&self, request: u32) -> bool {
        let sent = &self.requests[&request];
        let had_it = |used: &Use| {
            used.owner.is_some_and(|owner| owner != sent.body)
                && used.owned_at.is_some_and(|owned_at| owned_at < sent.sent_index)
        };
        self.overlapped(request).iter().all(had_it)
    }

    /// A duplicate that waits is woken soon, once nothing fails any more.
    fn waited_in_vain(&self, request: u32) -> Option<Broken> {
        let sent_at = self.requests[&request].sent_at;
        let is_calm = self.healed_at.is_some_and(|healed_at| healed_at <= sent_at);
        let was_done = |used: &Use| {
            used.completed.as_ref().is_some_and(|completed| completed.at + WOKEN_WITHIN_MS < self.now)
        };
        let is_in_vain =
            is_calm && self.overlapped(request).iter().all(was_done) && !self.goes_on_after_commit();
        is_in_vain.then_some(Broken::WaitedInVain)
    }

    /// A local handler that has committed its completion and not come back yet: on its own node it still runs, and a
    /// duplicate there is told so until it ends, or its node ends it. What died with its node never comes back, and
    /// is no excuse after its deadline. One that has come back while the store was away is known to be over once its node
    /// has found the store again.
    fn goes_on_after_commit(&self) -> bool {
        let is_found = self.healed_at.is_some_and(|healed_at| healed_at + FOUND_WITHIN_MS < self.now);
        let may_go_on = |attempt: &Attempt| {
            let ended_by = attempt.began_at + self.history.deadline_ms + WOKEN_WITHIN_MS;
            let is_over = if attempt.ended.is_empty() { self.now > ended_by } else { is_found };
            !attempt.executed.is_empty() && !is_over
        };
        self.history.effects == Effects::Local && self.attempts.values().any(may_go_on)
    }

    fn doubted(&self, request: u32) -> Option<Broken> {
        let sent_at = self.requests[&request].sent_at;
        let overlapped = self.overlapped(request);
        let was_known = |used: &Use| {
            used.completed.as_ref().is_some_and(|known| known.at < sent_at && self.now < known.expires_at)
        };
        if self.history.effects == Effects::Local {
            Some(Broken::DoubtedLocal)
        } else if self.watches_store && !overlapped.iter().any(|used| used.was_unknown) {
            Some(Broken::DoubtWithoutCause)
        } else if overlapped.iter().all(was_known) {
            Some(Broken::WentBack)
        } else {
            None
        }
    }

    /// A replay: byte for byte what is on record, to the request that has the key, while it is kept.
    fn replayed(&mut self, request: u32, said: &Said) {
        let sent = &self.requests[&request];
        let (body, sent_at, first) = (sent.body, sent.sent_at, sent.use_index);
        let found = self.overlapped(request).iter().position(|used| used.has(said));
        let Some(found) = found else {
            return match self.given_in(request, said) {
                Ok(use_index) => self.learn(use_index, said),
                Err(name) => self.broken(name, format!("request {request}: {said:?}")),
            };
        };
        let used = &self.uses[first + found];
        let expires_at = used.completed.as_ref().map_or(u64::MAX, |completed| completed.expires_at);
        if used.owner.is_some_and(|owner| owner != body) {
            self.broken(Broken::AnsweredOtherBody, format!("request {request}"));
        }
        if sent_at >= expires_at {
            self.broken(
                Broken::ReplayedPastExpiry,
                format!("request {request}, sent at {sent_at}, expired at {expires_at}"),
            );
        }
        self.uses[first + found].told_at.get_or_insert(self.index);
    }

    /// For a replay that is on record in none of the uses that its request overlapped: the use in which an attempt gave that
    /// answer, or what is wrong with the replay. Where the store is not watched, a replay may be the first to show what is on
    /// record.
    fn given_in(&self, request: u32, said: &Said) -> Result<usize, Broken> {
        let gave = |attempt: &&Attempt| {
            attempt.executed.contains(said) || attempt.ended.iter().any(|(_, own)| own.as_ref() == Some(said))
        };
        let uses = self.attempts.values().filter(gave).map(|attempt| attempt.use_index);
        let latest = uses.max().ok_or(Broken::ForeignAnswer)?;
        if latest < self.requests[&request].use_index {
            return Err(Broken::ReplayedPastExpiry);
        }
        match (&self.uses[latest].completed, self.watches_store) {
            (Some(_), _) => Err(Broken::ReplayDiffers),
            (None, true) => Err(Broken::ReplayedNothing),
            (None, false) => Ok(latest),
        }
    }

    /// What is on record in this use, and was told.
    fn learn(&mut self, use_index: usize, said: &Said) {
        let (now, index) = (self.now, self.index);
        let used = &mut self.uses[use_index];
        used.completed = Some(Completed { said: Some(said.clone()), at: now, expires_at: u64::MAX });
        used.told_at.get_or_insert(index);
    }

    /// The answer of a run, to the client that began it.
    fn first(&mut self, request: u32, answer: &Answer) {
        let sent = &self.requests[&request];
        let (said, has_run, first) = (&answer.said, !sent.tokens.is_empty(), sent.use_index);
        let own = sent.tokens.iter().filter_map(|token| self.attempts.get(token));
        let own = own.filter(|attempt| attempt.ended.iter().any(|(_, own)| own.as_ref() == Some(said)));
        let own_use = own.map(|attempt| attempt.use_index).max();
        let own_use = own_use.or_else(|| self.committed_in(said)).or_else(|| self.ruled_in(said));
        let on_record = self.overlapped(request).iter().position(|used| used.has(said));
        if !has_run || (own_use.is_none() && on_record.is_none()) {
            self.broken(Broken::NotItsOwn, format!("request {request}: {said:?}"));
        }
        match (answer.stored, on_record) {
            (Stored::No, _) => {}
            (Stored::Silent, _) => self.broken(Broken::Unmarked, format!("request {request}")),
            (Stored::Yes, Some(found)) => {
                self.uses[first + found].told_at.get_or_insert(self.index);
            }
            (Stored::Yes, None) => {
                // Its answer may come after its use of the key has ended: a line can be slow.
                let use_index = own_use.unwrap_or(self.uses.len() - 1);
                if self.watches_store || self.uses[use_index].completed.is_some() {
                    self.broken(Broken::NotDurable, format!("request {request}: {said:?}"));
                } else {
                    self.learn(use_index, said);
                }
            }
        }
    }

    /// The use in which local work committed this answer, where the store is not watched: whoever is cut off or superseded is
    /// told it too.
    fn committed_in(&self, said: &Said) -> Option<usize> {
        let may_be_told = self.history.effects == Effects::Local && !self.watches_store;
        let committed = self.attempts.values().filter(|attempt| attempt.executed.contains(said));
        committed.map(|attempt| attempt.use_index).max().filter(|_| may_be_told)
    }

    /// The use in which a verdict said that the work happened, with this answer, where the store is not watched: an attempt that
    /// ends in doubt tells its client the answer that the verdict put on record.
    fn ruled_in(&self, said: &Said) -> Option<usize> {
        let found =
            |verdict: &Verdict| matches!(verdict, Verdict::Happened(found) if found.as_ref() == Some(said));
        let ruled = self.uses.iter().rposition(|used| used.verdicts.iter().any(found));
        ruled.filter(|_| !self.watches_store)
    }

    /// Told that the key is another's: judged at the end, when it is known whose it was.
    pub(super) fn refused_as_reused(&mut self) {
        let told = self.requests.iter().filter(|(_, sent)| sent.is_told_reused);
        let wrongly: Vec<_> = told
            .filter(|(_, sent)| {
                let overlapped = &self.uses[sent.use_index..=sent.use_last];
                overlapped.iter().all(|used| used.owner == Some(sent.body))
            })
            .map(|(request, _)| *request)
            .collect();
        for request in wrongly {
            self.broken(Broken::RefusedOwnBody, format!("request {request}"));
        }
    }

    /// The uses of the key that a request overlapped.
    fn overlapped(&self, request: u32) -> &[Use] {
        let sent = &self.requests[&request];
        &self.uses[sent.use_index..]
    }
}

impl Use {
    /// Whether this is the answer on record.
    fn has(&self, said: &Said) -> bool {
        self.completed.as_ref().is_some_and(|completed| completed.said.as_ref() == Some(said))
    }
}
