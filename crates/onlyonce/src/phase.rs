//! A handler of several steps: phases that commit on their own, and calls to others between them.
//!
//! ```text
//!  attempt.phase("ride_created")     rows, result and recovery point, one transaction
//!  attempt.foreign("charged")        "calling" committed ── the call, outside any transaction ── its result committed
//!  attempt.complete_in(…)            rows, messages and the completion, one transaction
//! ```
//!
//! 1. An attempt that dies is resumed by the next one, behind the last committed phase: a phase that has committed gives its
//!    stored result, and its work is not called again.
//! 2. "Calling" is committed before a foreign call is made. What a lost call leads to follows from its own [`Effects`]: keyed
//!    calls are made again with the same [`Call::key`], while [`Policy::downstream_retention`](crate::Policy::downstream_retention)
//!    lasts, others are unknown until somebody tells. The route's effects are
//!    [`Effects::Local`]; a call's [probe](crate::probe) is registered under the route and the call's name.
//!    A webhook about it brings the call's own [handle](Call::handle); behind a recovery point no other is believed.
//! 3. A provider's "no" is a result like another, and leads to a completed failure.
//! 4. Names are unique within a handler, and the order of phases depends on nothing but the request and earlier results. A
//!    name that is not the next one, since the handler was changed while a record was under way, is [`Error::Changed`]: the
//!    attempt ends unknown, and nothing runs. So it does where a handler completes before it has come to a phase that is on
//!    record: that is [`transaction::ErrorKind::Changed`], and an answer of such a handler is not stored.
//! 5. Results are JSON of at most 64 KiB. They are gone with the use of the key that they belong to.
//! 6. Work that stopped at a recovery point is never deleted by age: past its retention it is flagged for a person.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use onlyonce_core::machine;
use onlyonce_core::outcome::SaidOutcome;
use onlyonce_core::record::{Calling, Draft, Effects, Handle, Progress, Reason, Response, Seen, call_token};
#[cfg(any(feature = "_driver", feature = "sqlite"))]
use onlyonce_store::Change;
use onlyonce_store::result::{BYTES_MAX, PhaseResult, Results};
use onlyonce_store::{Swapped, failpoint};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::attempt::Attempt;
use crate::engine::contended;
use crate::transaction;

/// How often a phase is run again that the database asked for.
#[cfg(feature = "_driver")]
const RETRIES_MAX: u32 = 5;
/// How often a record may change under a phase that commits.
const SWAPS_MAX: u32 = 16;
/// The longest name of a phase, in characters.
const NAME_CHARS_MAX: usize = 128;

/// Why a phase has no result.
#[derive(Debug)]
pub enum Error<E> {
    /// The work of the phase failed. Nothing of it was committed.
    Work(E),
    /// The call was certainly not made: the request may be tried again at once.
    DidNotRun(E),
    /// The call may have been made. What follows is decided by its effects.
    Unknown(E),
    /// The handler's phases are not those that the record stopped at. The attempt ends unknown, and nothing runs.
    Changed(String),
    /// A later attempt has begun, or the record is gone.
    Superseded,
    /// The phase cannot be carried out as it was asked for: its name, its result, or its place.
    Invalid(String),
    /// The transaction of the phase failed. Nothing of it was committed, unless the answer to its COMMIT was lost; the next
    /// attempt knows.
    Database(transaction::Error),
    /// The store did not answer.
    Store(onlyonce_store::Error),
}

/// How a foreign call failed. `?` makes it unknown: honest by default.
#[derive(Debug)]
pub enum Called<E> {
    /// It was certainly not made: refused, or never sent.
    DidNotRun(E),
    /// It may have been made: timed out, cut off, or answered in a way that leaves it open.
    Unknown(E),
}

impl<E> From<E> for Called<E> {
    fn from(error: E) -> Self {
        Self::Unknown(error)
    }
}

/// What a foreign call is told.
#[derive(Clone, Debug)]
pub struct Call {
    key: String,
    handle: Handle,
    deadline: Instant,
}

impl Call {
    /// The key to send downstream: the same on every attempt of this request, and no other's.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What a webhook about this call has to bring as its token, where the handler makes more than this one or commits phases before
    /// it. The attempt's own handle does not tell which call is meant.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// When the attempt must have ended: an answer that comes later is not waited for.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

/// How far an attempt has come. It lives with its request.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    /// The last phase that earlier attempts have committed, or may have called.
    reached: Option<Arc<str>>,
    /// The record, as this attempt last saw or wrote it; none before the first phase.
    seen: Option<Seen>,
    /// The results that are on record.
    results: Vec<PhaseResult>,
    /// The phase at the recovery point whose result a verdict found.
    found: Option<(Arc<str>, Option<Arc<Response>>)>,
    /// How many phases this attempt has passed.
    passed: usize,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Ready,
    /// A phase is under way; or was, and was given up with its future.
    Busy,
    /// The attempt has ended, unknown or not run.
    Ended,
}

impl Phases {
    /// Of an attempt that goes on behind these, if any.
    pub(crate) fn resumed(progress: &Progress) -> Option<Box<Self>> {
        let calling = progress.calling.as_ref().map(|calling| &calling.phase);
        let reached = calling.or(progress.recovery_point.as_ref())?.clone();
        Some(Box::new(Self { reached: Some(reached), ..Self::default() }))
    }

    /// The phase that earlier attempts have come to, and this one has not.
    pub(crate) fn missing(&self) -> Option<&Arc<str>> {
        let passed = self.results.get(..self.passed).unwrap_or_default();
        self.reached.as_ref().filter(|reached| !passed.iter().any(|result| result.phase == **reached))
    }

    /// What stands in the place of the next phase.
    fn next(&self, name: &str, is_call: bool) -> Result<Next, String> {
        if let Some(result) = self.results.get(self.passed) {
            return if *result.phase == *name {
                Ok(Next::Stored(result.json.clone()))
            } else {
                Err(changed(name, &result.phase))
            };
        }
        if let Some((phase, response)) = &self.found {
            return if **phase == *name {
                Ok(Next::Found(response.clone()))
            } else {
                Err(changed(name, phase))
            };
        }
        if self.results.iter().any(|result| *result.phase == *name) {
            return Err(format!(
                "phase \"{name}\" has committed already; use a different name for each phase"
            ));
        }
        match self.calling() {
            Some(calling) if !is_call || *calling.phase != *name => Err(changed(name, &calling.phase)),
            Some(_) | None => Ok(Next::Run),
        }
    }

    /// The call whose result is not on record.
    fn calling(&self) -> Option<&Calling> {
        self.seen.as_ref().and_then(|seen| seen.record.progress.calling.as_ref())
    }

    fn number(&self) -> u32 {
        u32::try_from(self.passed).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// A phase has committed, as shown.
    fn committed(&mut self, seen: Seen, result: PhaseResult) {
        self.seen = Some(seen);
        self.results.push(result);
        self.found = None;
        self.pass();
    }

    fn pass(&mut self) {
        self.passed += 1;
        self.standing = Standing::Ready;
    }
}

fn changed(name: &str, expected: &str) -> String {
    format!(
        "phase \"{name}\" is not the next one: the record is at \"{expected}\"; the handler was changed while the work was in progress"
    )
}

/// What becomes of a phase.
enum Next {
    /// It has committed: its result.
    Stored(Arc<str>),
    /// A verdict has found that it happened: the answer, where that is known.
    Found(Option<Arc<Response>>),
    /// It is run.
    Run,
}

/// A failure that has nothing to do with the user's own work.
pub(crate) enum Failure {
    Changed(String),
    Superseded,
    Invalid(String),
    Store(onlyonce_store::Error),
}

impl From<onlyonce_store::Error> for Failure {
    fn from(error: onlyonce_store::Error) -> Self {
        Self::Store(error)
    }
}

impl<E> From<Failure> for Error<E> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Changed(says) => Self::Changed(says),
            Failure::Superseded => Self::Superseded,
            Failure::Invalid(says) => Self::Invalid(says),
            Failure::Store(error) => Self::Store(error),
        }
    }
}

impl<E> From<onlyonce_store::Error> for Error<E> {
    fn from(error: onlyonce_store::Error) -> Self {
        Self::Store(error)
    }
}

impl<E> From<transaction::Error> for Error<E> {
    fn from(error: transaction::Error) -> Self {
        match error.kind() {
            transaction::ErrorKind::Superseded => Self::Superseded,
            transaction::ErrorKind::Completed
            | transaction::ErrorKind::Again
            | transaction::ErrorKind::Changed
            | transaction::ErrorKind::Invalid
            | transaction::ErrorKind::Database => Self::Database(error),
        }
    }
}

impl Attempt {
    /// Runs a phase: the rows of `work`, its result and the recovery point commit in one transaction of `db`. On a resumed
    /// attempt a phase that has committed gives its stored result, and `work` is not called. Run again, a few times, where
    /// the database asks for it (40001, 40P01; on MySQL 1020, 1205, 1213): so `work` does nothing but use the transaction.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Nothing of the phase was committed.
    #[cfg(feature = "_driver")]
    pub async fn phase<D, T, E, W>(&self, db: &D, name: &'static str, work: W) -> Result<T, Error<E>>
    where
        D: transaction::Database,
        T: Serialize + DeserializeOwned,
        E: std::error::Error + 'static,
        W: AsyncFnOnce(&mut <D as transaction::begin::Begin>::Transaction) -> Result<T, E> + Clone,
    {
        if let Some(stored) = self.enter(name, false).await? {
            return Ok(self.decode(name, &stored)?);
        }
        let mut retries = 0;
        loop {
            let mut tx = D::begin(db).await.inspect_err(|_| self.leave())?;
            failpoint!("phase.begun");
            let failed = match work.clone()(&mut tx).await {
                Ok(value) => match self.commit_in::<D, E>(tx, name, &value).await {
                    Ok(()) => return Ok(value),
                    Err(failed) => failed,
                },
                Err(error) => {
                    let is_again = transaction::asks_again(&error);
                    let _ = D::roll_back(tx).await;
                    Failed { is_again, error: Error::Work(error) }
                }
            };
            if !failed.is_again || retries == RETRIES_MAX {
                self.leave();
                return Err(failed.error);
            }
            retries += 1;
        }
    }

    /// Commits a transaction of the user's own with the recovery point.
    #[cfg(feature = "_driver")]
    async fn commit_in<D, E>(
        &self,
        mut tx: <D as transaction::begin::Begin>::Transaction,
        name: &str,
        value: &impl Serialize,
    ) -> Result<(), Failed<E>>
    where
        D: transaction::Database,
    {
        let written = async {
            let result = self.result(name, value)?;
            let seen = self.write_in::<D, E>(&mut tx, &result).await?;
            Ok::<_, Failed<E>>((seen, result))
        };
        let (seen, result) = match written.await {
            Ok(written) => written,
            Err(failed) => {
                let _ = D::roll_back(tx).await;
                return Err(failed);
            }
        };
        failpoint!("phase.commit.before");
        D::commit(tx).await?;
        failpoint!("phase.commit.after");
        self.phases(|phases| phases.committed(seen, result));
        Ok(())
    }

    /// The recovery point and the result, in a transaction of the user's own. A renewal in between is no reason to lose.
    #[cfg(feature = "_driver")]
    async fn write_in<D, E>(
        &self,
        tx: &mut <D as transaction::begin::Begin>::Transaction,
        result: &PhaseResult,
    ) -> Result<Seen, Failed<E>>
    where
        D: transaction::Database,
    {
        use onlyonce_core::record::Revision;
        use onlyonce_core::time::Timestamp;
        use onlyonce_store::user::LockWait;
        use transaction::Server as _;

        let store = transaction::store::<<D as transaction::begin::Begin>::Store>(self)?;
        let mut seen = self.last_seen().await?;
        for _ in 0..SWAPS_MAX {
            let draft = self.next_point(&seen, result)?;
            let revision = Revision(rand::random());
            let change = Change::new(Some(seen.revision), revision, draft.clone());
            let change = change.with_results(Results::Add(result.clone()));
            let mut statements = store.swap(self.handle().id, change, LockWait::OfSession)?.into_iter();
            let write = statements.next().expect("a swap is at least one statement");
            if let Some(written_at) = D::run(tx, write).await? {
                for statement in statements {
                    D::run(tx, statement).await?;
                }
                let now = Timestamp::from_micros(written_at);
                return Ok(Seen { record: Arc::new(draft.stamp(now)), revision, now });
            }
            let now = self.look().await?;
            // Lost on what stands there: the snapshot of a stricter isolation level is older, and stays so.
            if now.revision == seen.revision {
                return Err(Failed { is_again: true, error: contended().into() });
            }
            seen = now;
        }
        Err(Failure::from(contended()).into())
    }

    /// The recovery point of a phase that is about to commit. Refused where the record is not at the phase before it: then an
    /// earlier commit of this very phase, whose answer was lost, went through after all.
    #[cfg(any(feature = "_driver", feature = "sqlite"))]
    fn next_point(&self, seen: &Seen, result: &PhaseResult) -> Result<Box<Draft>, Failure> {
        let before = self.phases(|phases| phases.results.last().map(|result| result.phase.clone()));
        if seen.record.progress.recovery_point != before {
            let says = format!(
                "phase \"{}\" has committed already, and the answer to its COMMIT was lost; the next attempt resumes behind it",
                result.phase
            );
            return Err(Failure::Invalid(says));
        }
        machine::commit_phase(seen, self.token(), &result.phase).ok_or(Failure::Superseded)
    }

    /// As `Attempt::phase` on PostgreSQL, on the embedded store: `work` is run on the writer's thread, in one transaction with the
    /// recovery point. `store` is the layer's own.
    ///
    /// # Errors
    ///
    /// See [`Error`]. Nothing of the phase was committed.
    #[cfg(feature = "sqlite")]
    pub async fn phase_blocking<T, E>(
        &self,
        store: &onlyonce_store::sqlite::Sqlite,
        name: &'static str,
        work: impl FnOnce(&onlyonce_store::sqlite::Transaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, Error<E>>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        E: Send + 'static,
    {
        use onlyonce_core::record::Revision;
        use onlyonce_store::sqlite::Sqlite;

        let own = self.keyed.engine().store().as_any().and_then(|own| own.downcast_ref::<Sqlite>());
        if !own.is_some_and(|own| std::ptr::eq(own, store)) {
            let says = "the phase's store is not the layer's store, so they cannot commit together; pass the layer's store";
            return Err(Error::Invalid(says.to_owned()));
        }
        if let Some(stored) = self.enter(name, false).await? {
            return Ok(self.decode(name, &stored)?);
        }
        let attempt = self.clone();
        let written = store.write(move |tx| {
            failpoint!("phase.begun");
            let value = work(tx).map_err(Error::Work)?;
            let result = attempt.result(name, &value)?;
            let handle = attempt.handle();
            let seen = tx.load(handle.id)?.ok_or(Error::Superseded)?;
            let draft = attempt.next_point(&seen, &result)?;
            let change = Change::new(Some(seen.revision), Revision(rand::random()), draft);
            let swapped = tx.swap(handle.id, change.with_results(Results::Add(result.clone())))?;
            failpoint!("phase.commit.before");
            match swapped {
                Swapped::Applied(seen) => Ok((value, seen, result)),
                Swapped::Lost(_) => Err(Error::Superseded),
            }
        });
        match written.await {
            Ok((value, seen, result)) => {
                failpoint!("phase.commit.after");
                self.phases(|phases| phases.committed(seen, result));
                Ok(value)
            }
            Err(error) => {
                self.leave();
                Err(error)
            }
        }
    }

    /// Calls somebody else, outside any transaction. "Calling" is committed before the call, and its result as the recovery
    /// point after it. On a resumed attempt a call whose result is on record is not made again.
    ///
    /// ```
    /// # use onlyonce::{Attempt, Effects, phase::{Called, Error}};
    /// # async fn bank_charge(_: u32, _: &str) -> Result<String, std::io::Error> { Ok("ch_1".into()) }
    /// async fn charge(attempt: &Attempt) -> Result<String, Error<std::io::Error>> {
    ///     attempt.foreign("charged", Effects::Keyed, async |call| {
    ///         bank_charge(1200, call.key()).await.map_err(|error| match error.kind() {
    ///             std::io::ErrorKind::ConnectionRefused => Called::DidNotRun(error),
    ///             _ => Called::Unknown(error),
    ///         })
    ///     }).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// See [`Error`]. After [`Error::DidNotRun`] and [`Error::Unknown`] the attempt has ended: it runs no other phase, it cannot
    /// be completed in a transaction, and whatever the handler answers, the record says so.
    pub async fn foreign<T, E>(
        &self,
        name: &'static str,
        effects: Effects,
        call: impl AsyncFnOnce(Call) -> Result<T, Called<E>>,
    ) -> Result<T, Error<E>>
    where
        T: Serialize + DeserializeOwned,
    {
        if effects == Effects::Local {
            let says = format!(
                "the foreign call \"{name}\" has the effects local, but a call is not part of the transaction; declare other effects"
            );
            return Err(Error::Invalid(says));
        }
        if let Some(stored) = self.enter(name, true).await? {
            return Ok(self.decode(name, &stored)?);
        }
        let calling = Calling { phase: name.into(), effects };
        // Counted from before the write, so that what the call takes for its deadline is never after the store's.
        let asked_at = Instant::now();
        failpoint!("foreign.calling.before");
        let begun = self
            .write(Results::Keep, |seen| machine::call(seen, self.token(), calling.clone()))
            .await
            .inspect_err(|_| self.leave())?;
        failpoint!("foreign.calling.after");
        let left = begun.record.deadline_at().since(begun.now);
        let own = self.handle();
        let handle = Handle { token: call_token(own.token, name), ..own };
        let told = Call { key: self.downstream_key(name), handle, deadline: asked_at + left };
        self.phases(|phases| phases.seen = Some(begun));
        // Until its result is on record nobody may say that the call was not made: not a handler that stops waiting for it,
        // and not a store that does not take the result.
        let said = self.say(Some(SaidOutcome::Unknown(Reason::Said)));
        let value = match call(told).await {
            Ok(value) => value,
            Err(Called::DidNotRun(error)) => {
                self.did_not_run();
                self.end();
                return Err(Error::DidNotRun(error));
            }
            Err(Called::Unknown(error)) => {
                self.end();
                return Err(Error::Unknown(error));
            }
        };
        failpoint!("foreign.called");
        let result = self.result(name, &value).inspect_err(|_| self.end())?;
        failpoint!("foreign.result.before");
        let committed = self
            .write(Results::Add(result.clone()), |seen| {
                machine::commit_phase(seen, self.token(), &result.phase)
            })
            .await
            .inspect_err(|_| self.end())?;
        failpoint!("foreign.result.after");
        self.say(said);
        self.phases(|phases| phases.committed(committed, result));
        Ok(value)
    }

    /// The stored result of a phase that has committed; none where it is to be run.
    async fn enter(&self, name: &str, is_call: bool) -> Result<Option<Arc<str>>, Failure> {
        check_name(name)?;
        self.begin_phase()?;
        let entered = self.find(name, is_call).await;
        match &entered {
            Ok(None) => {}
            Ok(Some(_)) => self.phases(Phases::pass),
            Err(Failure::Changed(_)) => {
                self.unknown_because(Reason::Changed);
                self.end();
            }
            Err(Failure::Superseded | Failure::Invalid(_) | Failure::Store(_)) => self.leave(),
        }
        entered
    }

    async fn find(&self, name: &str, is_call: bool) -> Result<Option<Arc<str>>, Failure> {
        if self.phases(|phases| phases.seen.is_none()) {
            self.load_results().await?;
        }
        match self.phases(|phases| phases.next(name, is_call)).map_err(Failure::Changed)? {
            Next::Stored(json) => Ok(Some(json)),
            Next::Found(response) => self.keep_found(name, response).await.map(Some),
            Next::Run => Ok(None),
        }
    }

    /// What the earlier attempts of this use of the key have left.
    async fn load_results(&self) -> Result<(), Failure> {
        let seen = self.look().await?;
        let progress = &seen.record.progress;
        let results = match progress.recovery_point {
            Some(_) => self.keyed.engine().store().results(self.handle().id, seen.record.created_at).await?,
            None => Vec::new(),
        };
        let last = results.last().map(|result| &result.phase);
        let found = progress.recovery_point.clone().filter(|phase| last != Some(phase));
        let found = found.map(|phase| (phase, progress.found.clone()));
        self.phases(|phases| {
            phases.seen = Some(seen);
            phases.results = results;
            phases.found = found;
        });
        Ok(())
    }

    /// A verdict has told the result of a call: it is kept like one that the call gave.
    async fn keep_found(&self, name: &str, response: Option<Arc<Response>>) -> Result<Arc<str>, Failure> {
        let body = response.as_ref().map_or(&b"null"[..], |response| &response.body[..]);
        let json = serde_json::from_slice::<serde_json::Value>(body).map_err(|_| {
            Failure::Changed(format!("the verdict about call \"{name}\" has an answer that is not JSON"))
        })?;
        let result = self.result(name, &json)?;
        let committed = self
            .write(Results::Add(result.clone()), |seen| {
                machine::commit_phase(seen, self.token(), &result.phase)
            })
            .await?;
        let json = result.json.clone();
        self.phases(|phases| {
            phases.seen = Some(committed);
            phases.results.push(result);
            phases.found = None;
        });
        Ok(json)
    }

    /// A write of the record by this attempt, and what becomes of its results. A renewal in between is no reason to lose.
    async fn write(
        &self,
        results: Results,
        next: impl Fn(&Seen) -> Option<Box<Draft>>,
    ) -> Result<Seen, Failure> {
        let (engine, id) = (self.keyed.engine(), self.handle().id);
        let store_timeout = self.keyed.policy().store_timeout;
        let mut seen = self.last_seen().await?;
        for _ in 0..SWAPS_MAX {
            let draft = next(&seen).ok_or(Failure::Superseded)?;
            match engine.swap_phase(&id, &seen, draft, results.clone(), store_timeout).await? {
                Swapped::Applied(now) => return Ok(now),
                Swapped::Lost(Some(now)) => seen = now,
                Swapped::Lost(None) => return Err(Failure::Superseded),
            }
        }
        Err(contended().into())
    }

    async fn last_seen(&self) -> Result<Seen, Failure> {
        match self.phases(|phases| phases.seen.clone()) {
            Some(seen) => Ok(seen),
            None => self.look().await,
        }
    }

    async fn look(&self) -> Result<Seen, Failure> {
        let store_timeout = self.keyed.policy().store_timeout;
        let seen = self.keyed.engine().load(&self.handle().id, store_timeout).await?;
        seen.filter(|seen| seen.record.token == self.token()).ok_or(Failure::Superseded)
    }

    fn result(&self, name: &str, value: &impl Serialize) -> Result<PhaseResult, Failure> {
        let json = serde_json::to_string(value).map_err(|error| {
            Failure::Invalid(format!("the result of phase \"{name}\" cannot be written as JSON: {error}"))
        })?;
        if json.len() > BYTES_MAX {
            let says = format!(
                "the result of phase \"{name}\" has {} bytes of JSON; at most {BYTES_MAX} are stored: keep it in a row of \
                 your own, and return its id",
                json.len()
            );
            return Err(Failure::Invalid(says));
        }
        Ok(PhaseResult {
            number: self.phases(|phases| phases.number()),
            phase: name.into(),
            json: json.into(),
        })
    }

    fn decode<T: DeserializeOwned>(&self, name: &str, json: &str) -> Result<T, Failure> {
        serde_json::from_str(json).map_err(|error| {
            self.unknown_because(Reason::Changed);
            self.end();
            Failure::Changed(format!("the stored result of phase \"{name}\" is of another type: {error}"))
        })
    }

    /// Whether every phase that is on record was passed, and no call is open. Otherwise the attempt ends unknown: completed, what
    /// the missing phase or the call has done would be forgotten.
    pub(crate) fn has_passed_all(&self) -> Result<(), transaction::Error> {
        let (has_ended, missing, is_calling) = self.phases(|phases| {
            (phases.standing == Standing::Ended, phases.missing().cloned(), phases.calling().is_some())
        });
        if let Some(missing) = missing.filter(|_| !has_ended) {
            self.unknown_because(Reason::Changed);
            self.end();
            let says = format!(
                "phase \"{missing}\" is on record, but the handler completes without it; the handler was changed while the work \
                 was under way"
            );
            return Err(transaction::Error::new(transaction::ErrorKind::Changed, says));
        }
        if has_ended || is_calling {
            let says = "a call of this attempt has failed or not ended, or a phase of it was changed; return that error instead of \
                        completing";
            return Err(transaction::Error::new(transaction::ErrorKind::Invalid, says));
        }
        Ok(())
    }

    fn begin_phase(&self) -> Result<(), Failure> {
        self.phases(|phases| match phases.standing {
            Standing::Ready => {
                phases.standing = Standing::Busy;
                Ok(())
            }
            Standing::Busy => Err(Failure::Invalid(
                "another phase of this attempt is running, or was abandoned; run phases one after the other".to_owned(),
            )),
            Standing::Ended => Err(Failure::Invalid(
                "this attempt has ended with a call that failed, or at a phase that was changed; return its error".to_owned(),
            )),
        })
    }

    /// The phase failed. Where the answer to its COMMIT was lost it may have committed all the same, so the next phase of
    /// this attempt looks again.
    fn leave(&self) {
        self.phases(|phases| {
            phases.standing = Standing::Ready;
            phases.seen = None;
        });
    }

    /// No other phase of this attempt runs.
    fn end(&self) {
        self.phases(|phases| phases.standing = Standing::Ended);
    }
}

fn check_name(name: &str) -> Result<(), Failure> {
    let is_fine =
        !name.is_empty() && name.chars().count() <= NAME_CHARS_MAX && !name.chars().any(char::is_control);
    if is_fine {
        return Ok(());
    }
    let says = format!(
        "\"{}\" is not a valid phase name; use 1 to {NAME_CHARS_MAX} characters without control characters",
        name.escape_debug()
    );
    Err(Failure::Invalid(says))
}

/// Why a phase did not commit, and whether the database asks for it to be run again.
#[cfg(feature = "_driver")]
struct Failed<E> {
    is_again: bool,
    error: Error<E>,
}

#[cfg(feature = "_driver")]
impl<E> From<Failure> for Failed<E> {
    fn from(failure: Failure) -> Self {
        Self { is_again: false, error: failure.into() }
    }
}

#[cfg(feature = "_driver")]
impl<E> From<onlyonce_store::Error> for Failed<E> {
    fn from(error: onlyonce_store::Error) -> Self {
        Self { is_again: false, error: error.into() }
    }
}

#[cfg(feature = "_driver")]
impl<E> From<transaction::Error> for Failed<E> {
    fn from(error: transaction::Error) -> Self {
        Self { is_again: error.kind() == transaction::ErrorKind::Again, error: error.into() }
    }
}

impl<E: fmt::Display> fmt::Display for Error<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work(error) => write!(f, "the phase failed: {error}"),
            Self::DidNotRun(error) => write!(f, "the call was not made: {error}"),
            Self::Unknown(error) => write!(f, "the call may have been made: {error}"),
            Self::Changed(says) | Self::Invalid(says) => f.write_str(says),
            Self::Superseded => f.write_str("a later attempt has begun, or the record is gone"),
            Self::Database(error) => write!(f, "the phase did not commit: {error}"),
            Self::Store(error) => write!(f, "the phase did not commit: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Error<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Work(error) | Self::DidNotRun(error) | Self::Unknown(error) => Some(error),
            Self::Database(error) => Some(error),
            Self::Store(error) => Some(error),
            Self::Changed(_) | Self::Superseded | Self::Invalid(_) => None,
        }
    }
}
