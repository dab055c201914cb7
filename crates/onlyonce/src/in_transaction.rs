//! Reservation, rows and completion in one transaction: one commit instead of two, for handlers that touch nothing else.
//!
//! ```text
//!  layer   ── copy of a completed record? replay │ the same key in progress here? wait for its end
//!  handler ── key.begin(&mut tx)      looks: runs, or is answered already
//!             rows
//!             attempt.complete_in(…)  the record, reserved and completed, as one row
//!             commit
//!  layer   ── has the transaction committed? the stored answer
//! ```
//!
//! [`InTransaction::run`] does all of it but the rows, in fewer round trips: the look beside BEGIN, the record together with COMMIT
//! where the driver can send both at once, and no look at the end, since it has heard the answer to COMMIT.
//!
//! 1. Nothing is on record before the commit. Rolled back, the request never was.
//! 2. Of duplicates on one node one at a time goes to the database, the others wait in memory. A duplicate on another node
//!    meets the uncommitted record when it completes: it waits for it a short while and is then told 409.
//! 3. Only what commits with the record is done exactly once, so the route's effects must be [`Effects::Local`]; anything else
//!    is a fault when the layer is made ([`crate::Onlyonce::in_transaction`]).
//! 4. A handler that returns without completing has nothing on record: its answer is marked `Idempotency-Stored: false`.
//!
//! [`Effects::Local`]: crate::Effects::Local

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use onlyonce_core::machine::{self, Decision as Decided};
use onlyonce_core::record::{Draft, Record, Seen, Token};
use onlyonce_core::refusal::{NoAnswer, Refusal, Resend};
#[cfg(feature = "_driver")]
use onlyonce_core::time::Timestamp;
#[cfg(feature = "sqlite")]
use onlyonce_store::Swapped;
use onlyonce_store::{Change, failpoint};
use tokio::time::{Instant, timeout, timeout_at};
use tower_service::Service;

use crate::attempt::Attempt;
use crate::body::{self, Body, Incoming, Read, read};
use crate::counts::Decision;
use crate::engine::{Finished, contended, store_unavailable};
use crate::inflight::{Joined, Leader};
use crate::keyed::{Call, Keyed, no_room};
use crate::limiter::Running;
use crate::message::{Key as MessageKey, Message};
#[cfg(feature = "_driver")]
use crate::transaction;
use crate::transaction::{Completion, Error, ErrorKind, Transaction};
use crate::{answer, headers, problem};

/// How often what is decided on may change before a handler has begun.
const LOOKS_MAX: u32 = 16;
/// What a client is told to wait whose duplicate has not committed yet.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The key of a request whose reservation is part of the handler's own transaction. An axum handler takes it as an argument, on
/// a route whose layer was made with [`crate::Onlyonce::in_transaction`].
///
/// Begin, rows, `complete_in`, commit, and then answer:
///
#[cfg_attr(feature = "sqlx", doc = "```")]
#[cfg_attr(not(feature = "sqlx"), doc = "```text")]
/// # use axum::extract::State;
/// # use http::Response;
/// # use onlyonce::{Begun, InTransaction, Problem};
/// # use sqlx::PgPool;
/// async fn transfer(State(db): State<PgPool>, key: InTransaction) -> Result<Response<String>, Problem> {
///     let mut tx = db.begin().await?;
///     let attempt = match key.begin(&mut tx).await? {
///         Begun::Run(attempt) => attempt,
///         Begun::Answered(response) => return Ok(response),
///     };
///     sqlx::query("UPDATE account SET balance = balance - 5").execute(&mut *tx).await?;
///     let response = Response::new("transferred".to_owned());
///     attempt.complete_in(&mut tx, &response).await?;
///     tx.commit().await?;
///     Ok(response)
/// }
/// # let _: axum::Router<PgPool> = axum::Router::new().route("/", axum::routing::post(transfer));
/// ```
#[derive(Clone)]
pub struct InTransaction {
    asked: Arc<Asked>,
}

/// A request that waits for its handler's transaction.
struct Asked {
    keyed: Arc<Keyed>,
    parts: Parts,
    body: Bytes,
    stage: Mutex<Stage>,
    /// Its place among the attempts of this node, where those are counted.
    running: Mutex<Option<Running>>,
}

/// How far the handler has come.
#[derive(Default)]
enum Stage {
    #[default]
    Idle,
    /// The key was answered for: with this record, or with a refusal.
    Answered(Result<Arc<Record>, Refusal>),
    /// It works, and has completed nothing.
    Open,
    /// It has completed, if its transaction commits.
    Completed(Token, u32),
    /// It has completed and committed; its record, and when the database was asked to write it.
    #[cfg(feature = "_driver")]
    Committed(Seen, Instant),
    /// Another request with this key has committed, or is about to.
    Lost,
}

/// What a request may do in its handler's transaction.
#[derive(Debug)]
pub enum Begun {
    /// It runs, as this attempt.
    Run(OpenAttempt),
    /// It is answered already, or refused: return this, and do nothing.
    Answered(Response<String>),
}

/// An attempt that is reserved and completed by one write. Dropped, it never was.
#[must_use = "without complete_in nothing is on record, and a retry runs again"]
pub struct OpenAttempt {
    asked: Arc<Asked>,
    attempt: Attempt,
    seen: Option<Seen>,
    draft: Box<Draft>,
}

impl Stage {
    /// The attempt that has completed, if its transaction commits or has.
    fn completed(&self) -> Option<(Token, u32)> {
        match self {
            Self::Completed(token, number) => Some((*token, *number)),
            #[cfg(feature = "_driver")]
            Self::Committed(seen, _) => Some((seen.record.token, seen.record.attempt)),
            Self::Idle | Self::Answered(_) | Self::Open | Self::Lost => None,
        }
    }
}

impl fmt::Debug for InTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InTransaction").field("id", &self.asked.keyed.id).finish()
    }
}

impl fmt::Debug for OpenAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAttempt").field("attempt", &self.attempt).finish()
    }
}

impl InTransaction {
    /// Asks whether this request may run in `tx`.
    ///
    /// # Errors
    ///
    /// Where the store does not answer, or this key was begun already.
    pub fn begin<X: Transaction>(self, tx: X) -> X::Done<Begun> {
        tx.begin_at_once(self)
    }

    /// Decides on what is seen; a record to be settled first is given back.
    fn decide(&self, seen: Option<Seen>) -> Result<Begun, (Box<Draft>, Option<Seen>)> {
        let Asked { keyed, parts, body, .. } = &*self.asked;
        let candidates = keyed.candidates(parts, body);
        let (request, gate) = (keyed.request(&candidates), keyed.gate(parts));
        let answered = match machine::decide(seen.as_ref(), &request) {
            Decided::Begin(draft) => match gate.admit(&draft, request.admission) {
                Ok(pass) => {
                    self.asked.reach(Stage::Open);
                    *self.asked.running() = pass.used();
                    let attempt = Attempt::new(keyed.clone(), draft.token, draft.attempt);
                    return Ok(Begun::Run(OpenAttempt { asked: self.asked.clone(), attempt, seen, draft }));
                }
                Err(refusal) => Err(refusal),
            },
            Decided::Settle(draft) => return Err((draft, seen)),
            Decided::Replay => {
                let seen = seen.expect("a replay is decided on a record that was seen");
                gate.look_up().map(|()| seen.record)
            }
            Decided::Refuse(refusal) => Err(gate.look_up().err().unwrap_or(refusal)),
        };
        let response = match &answered {
            Ok(record) => text(&answer::replay::<()>(record, keyed.policy())),
            Err(refusal) => {
                let refused = problem::answer(refusal, &keyed.policy().dialect, Some(&keyed.key));
                refused.map(|body| String::from_utf8_lossy(&body).into_owned())
            }
        };
        self.asked.reach(Stage::Answered(answered));
        Ok(Begun::Answered(response))
    }

    fn check(&self) -> Result<(), Error> {
        match &*self.asked.stage() {
            Stage::Idle => Ok(()),
            #[cfg(feature = "_driver")]
            Stage::Committed(..) => Err(begun_already()),
            Stage::Answered(_) | Stage::Open | Stage::Completed(..) | Stage::Lost => Err(begun_already()),
        }
    }

    /// Runs this request in a transaction of its own on `db`: the rows and messages of `work`, the reservation and the answer
    /// that it returns commit together. Whatever is wrong, nothing commits. A request that is answered already, or refused,
    /// gives that answer, and `work` is not called.
    ///
    /// Return what it gives: it has committed.
    ///
    #[cfg_attr(all(feature = "sqlx", feature = "axum"), doc = "```")]
    #[cfg_attr(not(all(feature = "sqlx", feature = "axum")), doc = "```text")]
    /// # use axum::extract::State;
    /// # use http::Response;
    /// # use onlyonce::{InTransaction, Message, Problem};
    /// # use sqlx::PgPool;
    /// async fn transfer(State(db): State<PgPool>, key: InTransaction) -> Result<Response<String>, Problem> {
    ///     key.run(&db, async |tx, attempt| {
    ///         sqlx::query("UPDATE account SET balance = balance - 5").execute(&mut **tx).await?;
    ///         attempt.send(&mut *tx, Message::to("receipts").json(&5)?).await?;
    ///         Ok(Response::new("transferred".to_owned()))
    ///     })
    ///     .await
    /// }
    /// # let _: axum::Router<PgPool> = axum::Router::new().route("/", axum::routing::post(transfer));
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `work`, and [`Error`] where nothing could be begun or committed. Where the answer to COMMIT was lost, the layer
    /// looks whether it went through.
    #[cfg(feature = "_driver")]
    pub async fn run<D, B, E, W>(self, db: &D, work: W) -> Result<Response<B>, E>
    where
        D: transaction::Database,
        B: AsRef<[u8]> + From<String>,
        E: From<Error>,
        W: AsyncFnOnce(
            &mut <D as transaction::begin::Begin>::Transaction,
            &OpenAttempt,
        ) -> Result<Response<B>, E>,
    {
        // Neither needs the other.
        let (begun, tx) = futures_util::future::join(self.begin_by_store(), D::begin(db)).await;
        let (open, mut tx) = match (begun, tx) {
            (Ok(Begun::Run(open)), Ok(tx)) => (open, tx),
            (Ok(Begun::Run(_)), Err(error)) => return Err(error.into()),
            (Ok(Begun::Answered(response)), tx) => {
                roll_back::<D>(tx).await;
                return Ok(response.map(B::from));
            }
            (Err(error), tx) => {
                roll_back::<D>(tx).await;
                return Err(error.into());
            }
        };
        match work(&mut tx, &open).await {
            Ok(response) => {
                open.commit::<D>(tx, open.attempt.completion(&response)).await?;
                Ok(response)
            }
            Err(error) => {
                roll_back::<D>(Ok(tx)).await;
                Err(error)
            }
        }
    }

    /// Looks by a connection of the store's own: the handler's transaction may have an older snapshot.
    #[cfg(feature = "_driver")]
    pub(crate) async fn begin_by_store(self) -> Result<Begun, Error> {
        self.check()?;
        let keyed = self.asked.keyed.clone();
        let store_timeout = keyed.policy().store_timeout;
        for _ in 0..LOOKS_MAX {
            let seen = keyed.engine().load(&keyed.id, store_timeout).await?;
            match self.decide(seen) {
                Ok(begun) => return Ok(begun),
                Err((draft, seen)) => {
                    keyed.engine().swap(&keyed.id, seen.as_ref(), draft, store_timeout).await?;
                }
            }
        }
        Err(contended().into())
    }

    /// The same on the writer's thread, where nobody comes between.
    #[cfg(feature = "sqlite")]
    pub(crate) fn begin_in(self, tx: &onlyonce_store::sqlite::Transaction<'_>) -> Result<Begun, Error> {
        self.check()?;
        let id = self.asked.keyed.id;
        for _ in 0..LOOKS_MAX {
            match self.decide(tx.load(id)?) {
                Ok(begun) => return Ok(begun),
                Err((draft, seen)) => {
                    tx.swap(id, change(seen.as_ref(), draft))?;
                }
            }
        }
        Err(contended().into())
    }
}

fn begun_already() -> Error {
    Error::new(ErrorKind::Invalid, "this key was begun already; call begin once, in one transaction")
}

/// Nothing was written: where this fails, the connection ends, and the transaction with it.
#[cfg(feature = "_driver")]
async fn roll_back<D: transaction::Database>(
    tx: Result<<D as transaction::begin::Begin>::Transaction, Error>,
) {
    if let Ok(tx) = tx {
        let _ = D::roll_back(tx).await;
    }
}

/// The stored answer as text, for the handler to return; the layer itself sends the bytes.
fn text(response: &Response<Body<()>>) -> Response<String> {
    let mut text =
        Response::new(String::from_utf8_lossy(response.body().held().unwrap_or_default()).into_owned());
    *text.status_mut() = response.status();
    *text.headers_mut() = response.headers().clone();
    text
}

fn change(seen: Option<&Seen>, draft: Box<Draft>) -> Change {
    Change::after(seen, onlyonce_core::record::Revision(rand::random()), draft)
}

impl OpenAttempt {
    /// Which attempt this is, from 1.
    pub fn number(&self) -> u32 {
        self.attempt.number()
    }

    /// What identifies this attempt, and its record: for rows that point at it.
    pub fn handle(&self) -> onlyonce_core::record::Handle {
        self.attempt.handle()
    }

    /// Keeps the answer for so long, instead of the route's retention.
    pub fn keep_for(&self, retention: Duration) {
        self.attempt.keep_for(retention);
    }

    /// Stores a message in the same transaction, and gives its key.
    ///
    /// # Errors
    ///
    /// See [`ErrorKind`].
    pub fn send<X: Transaction>(&self, tx: X, message: Message) -> X::Done<MessageKey> {
        self.attempt.send(tx, message)
    }

    /// Reserves the key and completes the request with this answer, in one write. Commit, then answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Completed`] where another request with this key has committed since: roll back, its answer goes out.
    /// [`ErrorKind::Again`] where one is about to. Else see [`ErrorKind`].
    pub fn complete_in<X: Transaction, B: AsRef<[u8]>>(self, tx: X, response: &Response<B>) -> X::Done<()> {
        let completion = self.attempt.completion(response);
        tx.complete_at_once(self, completion)
    }

    /// The write.
    pub(crate) fn write(&self, completion: Completion) -> Change {
        let Completion { response, keep_for } = completion;
        let is_kept = keep_for.is_none_or(|span| !span.is_zero());
        let (response, keep_for) = (Some(response).filter(|_| is_kept), keep_for.filter(|_| is_kept));
        change(self.seen.as_ref(), machine::complete_at_once(self.draft.clone(), response, keep_for))
    }

    pub(crate) fn id(&self) -> onlyonce_core::record::Id {
        self.asked.keyed.id
    }

    #[cfg(feature = "_driver")]
    pub(crate) fn attempt(&self) -> &Attempt {
        &self.attempt
    }

    /// Reserves and completes in `tx`, and commits it.
    #[cfg(feature = "_driver")]
    async fn commit<D: transaction::Database>(
        &self,
        mut tx: <D as transaction::begin::Begin>::Transaction,
        completion: Result<Completion, Error>,
    ) -> Result<(), Error> {
        type Store<D> = <D as transaction::begin::Begin>::Store;
        let asked_at = Instant::now();
        let prepared = completion.and_then(|completion| {
            let change = self.write(completion);
            let (revision, draft) = (change.revision, change.next.clone());
            Ok((transaction::at_once::<Store<D>>(self, change)?, revision, draft))
        });
        let ((write, rest), revision, draft) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                roll_back::<D>(Ok(tx)).await;
                return Err(error);
            }
        };
        failpoint!("complete.before");
        // It may commit without this process hearing of it: unless more is heard, the layer looks.
        self.written();
        let written = if self.seen.is_none() && rest.is_empty() {
            transaction::written::<Store<D>>(self, D::insert_and_commit(tx, write).await)?
        } else {
            let written = async {
                let written = transaction::written::<Store<D>>(self, D::run(&mut tx, write).await)?;
                for statement in rest {
                    D::run(&mut tx, statement).await?;
                }
                Ok::<_, Error>(written)
            };
            match written.await {
                Ok(written) => {
                    D::commit(tx).await?;
                    written
                }
                Err(error) => {
                    roll_back::<D>(Ok(tx)).await;
                    return Err(error);
                }
            }
        };
        failpoint!("commit.after");
        let now = Timestamp::from_micros(written);
        let seen = Seen { record: Arc::new(draft.stamp(now)), revision, now };
        self.asked.reach(Stage::Committed(seen, asked_at));
        Ok(())
    }

    /// The write is in the transaction.
    pub(crate) fn written(&self) {
        self.asked.reach(Stage::Completed(self.draft.token, self.draft.attempt));
    }

    /// Another request has the key.
    pub(crate) fn lost(&self) -> Error {
        self.asked.reach(Stage::Lost);
        let message =
            "another request with this key has committed since this one began; roll back: its answer is sent";
        Error::new(ErrorKind::Completed, message)
    }

    /// Another request may have the key.
    #[cfg(feature = "_driver")]
    pub(crate) fn failed(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Again {
            self.asked.reach(Stage::Lost);
        }
        error
    }

    #[cfg(feature = "sqlite")]
    pub(crate) fn complete_by(
        &self,
        tx: &onlyonce_store::sqlite::Transaction<'_>,
        completion: Completion,
    ) -> Result<(), Error> {
        match tx.swap(self.id(), self.write(completion))? {
            Swapped::Applied(_) => {
                self.written();
                Ok(())
            }
            Swapped::Lost(_) => Err(self.lost()),
        }
    }
}

impl Asked {
    fn stage(&self) -> std::sync::MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reach(&self, stage: Stage) {
        *self.stage() = stage;
    }
}

/// Answers a keyed request whose handler reserves and completes in its own transaction.
pub(crate) async fn answer<S, B, R>(
    keyed: Arc<Keyed>,
    mut call: Box<Call<S>>,
    body: Incoming<B>,
) -> Result<Response<Body<R>>, S::Error>
where
    S: Service<Request<Body<B>>, Response = Response<R>>,
    B: HttpBody<Data = Bytes> + Unpin,
    R: HttpBody<Data = Bytes> + Unpin,
{
    let bytes_max = keyed.policy().request_bytes_max;
    call.body = match keyed.received(body).await {
        Ok(body::Request::Whole(bytes)) => bytes,
        Ok(body::Request::TooLarge) => {
            return Ok(keyed.refused(&Refusal::BodyTooLarge { bytes_max }, Instant::now()));
        }
        Ok(body::Request::NoRoom) => return Ok(keyed.refused(&no_room(), Instant::now())),
        Err(_) => return Ok(answer::unreadable()),
    };
    let began = Instant::now();
    let until = began + keyed.policy().wait_max;
    let leader = loop {
        if let Some(answered) = keyed.answer_from_copy(&call.parts, &call.body, began) {
            return Ok(answered);
        }
        match keyed.engine().join(&keyed.id) {
            Joined::Leader(leader) => break leader,
            Joined::Follower(in_progress) => {
                if timeout_at(until, in_progress.ended()).await.is_err() {
                    let refusal = keyed.gate(&call.parts).look_up().err();
                    let refusal = refusal.unwrap_or(Refusal::InProgress { retry_after: RETRY_AFTER });
                    return Ok(keyed.refused(&refusal, began));
                }
            }
        }
    };
    let gate = keyed.gate(&call.parts);
    if gate.counts_records() && Box::pin(keyed.engine().count_records(&gate)).await.is_err() {
        return Ok(keyed.refused(&store_unavailable(), began));
    }
    // A commit may be on its way: its client may hang up, the handler goes on.
    keyed.hold.set(true);
    let (parts, body) = (call.parts.clone(), call.body.clone());
    let (stage, running) = (Mutex::default(), Mutex::default());
    let asked = Arc::new(Asked { keyed: keyed.clone(), parts, body, stage, running });
    headers::strip_upgrade(&mut call.parts.headers);
    call.parts.extensions.insert(InTransaction { asked: asked.clone() });
    // It has no token yet, so what follows is part of the request's own span.
    if let Some(trace) = &keyed.trace {
        trace.pass_on_from_here(&mut call.parts.headers);
    }
    let (worked_since, span) = (Instant::now(), keyed.begin_span());
    failpoint!("run.before");
    let ran = timeout(keyed.policy().deadline, AssertUnwindSafe(call.made()).catch_unwind()).await;
    failpoint!("run.after");
    let worked = worked_since.elapsed();
    let own = match ran {
        Ok(Ok(Ok(response))) => Ok(keyed.whole(response).await),
        Ok(Ok(Err(error))) => Err(error),
        Ok(Err(_)) => Ok(keyed.no_answer(NoAnswer::Lost)),
        Err(_) => Ok(keyed.no_answer(NoAnswer::TimedOut)),
    };
    let stage = std::mem::take(&mut *asked.stage());
    if let Some((token, _)) = stage.completed() {
        keyed.called(token, span, own.as_ref().ok().map(Response::status));
    }
    let told = keyed.tell_stage(stage, own, &leader).await;
    keyed.hold.set(false);
    let (decision, attempt, answer) = told?;
    keyed.decided(decision, began.elapsed().saturating_sub(worked), attempt, answer.status());
    Ok(answer)
}

type Told<R> = (Decision, Option<u32>, Response<Body<R>>);

impl Keyed {
    fn refused<R>(&self, refusal: &Refusal, began: Instant) -> Response<Body<R>> {
        let answer = self.refuse(refusal);
        self.decided(Decision::from(refusal), began.elapsed(), None, answer.status());
        answer
    }

    /// The answer of a copy of a completed record, where there is one that may be used.
    fn answer_from_copy<R>(&self, parts: &Parts, body: &Bytes, began: Instant) -> Option<Response<Body<R>>> {
        let copied = self.engine().copy_of(&self.id, Instant::now())?;
        let candidates = self.candidates(parts, body);
        let answered = machine::answer_from_copy(&copied, &self.request(&candidates));
        if !matches!(answered, machine::FromCopy::AskStore)
            && let Err(refusal) = self.gate(parts).look_up()
        {
            return Some(self.refused(&refusal, began));
        }
        match answered {
            machine::FromCopy::Replay => {
                let answer = answer::replay(&copied.record, self.policy());
                self.saw(&copied.record);
                let attempt = Some(copied.record.attempt);
                self.decided(Decision::Replayed, began.elapsed(), attempt, answer.status());
                Some(answer)
            }
            machine::FromCopy::Refuse(refusal) => Some(self.refused(&refusal, began)),
            machine::FromCopy::AskStore => None,
        }
    }

    /// The handler's own answer, read as far as it may be stored.
    async fn whole<R>(&self, response: Response<R>) -> Response<Body<R>>
    where
        R: HttpBody<Data = Bytes> + Unpin,
    {
        let (mut head, body) = response.into_parts();
        headers::clean(&mut head.headers, self.policy());
        match read(body, self.policy().response_bytes_max, |bytes| self.holds_anyway(bytes)).await {
            Ok(Read::Whole(bytes)) => Response::from_parts(head, Body::whole(bytes)),
            Ok(Read::Beyond(body)) => Response::from_parts(head, body),
            Err(_) => self.no_answer(NoAnswer::Lost),
        }
    }

    fn no_answer<R>(&self, why: NoAnswer) -> Response<Body<R>> {
        self.refuse(&Refusal::UpstreamOutcomeUnknown(why, Resend::of(self.policy().effects)))
    }

    /// The handler's answer, which is not stored.
    fn own<R>(&self, response: Response<Body<R>>) -> Response<Body<R>> {
        answer::own(response, None, self.policy(), &self.key)
    }

    /// What the client is told, by how far the handler came.
    async fn tell_stage<R, E>(
        &self,
        stage: Stage,
        own: Result<Response<Body<R>>, E>,
        leader: &Leader,
    ) -> Result<Told<R>, E> {
        let (token, number) = stage.completed().unzip();
        match stage {
            Stage::Answered(Ok(record)) => {
                let answer = answer::replay(&record, self.policy());
                self.saw(&record);
                return Ok((Decision::Replayed, Some(record.attempt), answer));
            }
            Stage::Answered(Err(refusal)) => {
                return Ok((Decision::from(&refusal), None, self.refuse(&refusal)));
            }
            // Nothing of it is on record.
            Stage::Idle | Stage::Open => return Ok((Decision::Executed, None, self.own(own?))),
            #[cfg(feature = "_driver")]
            Stage::Committed(seen, asked_at) => {
                return Ok(self.tell_record(seen, asked_at, token, own, leader));
            }
            Stage::Completed(..) | Stage::Lost => {}
        }
        let asked_at = Instant::now();
        let seen = match self.engine().load(&self.id, self.policy().store_timeout).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::error!(record = %self.id.short(), error = %crate::engine::chain(&error), "it is not known whether the handler's transaction committed");
                // The handler may have committed: nobody may say that it did not run.
                return Ok((Decision::StoreUnavailable, number, self.no_answer(NoAnswer::Lost)));
            }
        };
        let Some(seen) = seen.filter(machine::is_replayable) else {
            return Ok(match token {
                // Rolled back after all.
                Some(_) => (Decision::Executed, number, self.own(own?)),
                None => {
                    let refusal = Refusal::InProgress { retry_after: RETRY_AFTER };
                    (Decision::InProgress, None, self.refuse(&refusal))
                }
            });
        };
        Ok(self.tell_record(seen, asked_at, token, own, leader))
    }

    /// What the client is told of a record that has an answer: its own, where `token` wrote it.
    fn tell_record<R, E>(
        &self,
        seen: Seen,
        asked_at: Instant,
        token: Option<Token>,
        own: Result<Response<Body<R>>, E>,
        leader: &Leader,
    ) -> Told<R> {
        // Followers are about to ask for this answer.
        if leader.has_followers() {
            self.engine().cache.keep(self.id, &seen, asked_at);
        }
        self.saw(&seen.record);
        let attempt = seen.record.attempt;
        if token == Some(seen.record.token) {
            // Its transaction may have stored messages too.
            self.engine().wake_relay();
            let finished = Finished::Already(seen);
            let answer = match own {
                Ok(own) => answer::finished(own, &finished, self.policy(), &self.key),
                Err(_) => {
                    let lost = self.no_answer(NoAnswer::Lost);
                    answer::finished(lost, &finished, self.policy(), &self.key)
                }
            };
            return (Decision::run(attempt), Some(attempt), answer);
        }
        (Decision::Replayed, Some(attempt), answer::replay(&seen.record, self.policy()))
    }
}

#[cfg(feature = "axum")]
mod extract {
    use axum::extract::FromRequestParts;
    use axum::response::{IntoResponse, Response};
    use http::request::Parts;

    use super::InTransaction;
    use crate::attempt::Attempt;
    use crate::transaction::{Error, ErrorKind};

    impl<S: Sync> FromRequestParts<S> for InTransaction {
        type Rejection = Response;

        async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
            if let Some(key) = parts.extensions.get::<Self>() {
                return Ok(key.clone());
            }
            // Without a key it is refused as any handler that needs one.
            let _reserved = <Attempt as FromRequestParts<S>>::from_request_parts(parts, state).await?;
            let message = "this handler takes InTransaction, and its layer reserves keys itself; make the layer with \
                           Onlyonce::in_transaction";
            Err(Error::new(ErrorKind::Invalid, message).into_response())
        }
    }
}
