//! One connection, carried by whoever waits for its answer.
//!
//! The driver wants its connection to be a task of its own, which is handed what is to be sent and hands back what came.
//! Each way is a task woken up, and with a few of them in a row tokio wakes another thread as well: for a lone write that
//! is a good part of its time. Nobody here asks two things of one connection at once, so whoever asks also sends and reads.
//! Only batches go several on one connection, and there a task is worth its while (`line.rs`).
//!
//! 1. While nobody asks, nobody reads. Whether the server has closed it is seen when it is taken again ([`Connection::is_open`]).
//! 2. What the server says in passing comes before the answer that it belongs to, and is heard before it.
//! 3. Dropped in the middle of an answer, it is closed with it: nobody else could make sense of what is still to come.

use std::pin::pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use onlyonce_core::record::Id;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, Error, Row, SimpleQueryMessage, Socket, Statement};

use super::care::Care;
use super::statement::{Statements, Verb};

/// Where the server warns that it has stopped waiting for its standby, in its own source: the message is translated.
const GAVE_UP_ON_STANDBY: &str = "SyncRepWaitForLSN";
/// How often the two ends of a connection are polled in turn before others have theirs.
const TURNS_MAX: u32 = 4;

/// One connection, with what belongs to it.
pub(super) struct Connection {
    client: Client,
    prepared: Vec<Option<Statement>>,
    wire: Wire,
}

impl Connection {
    pub(super) async fn open<T>(config: &Config, tls: T) -> Result<Self, Error>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let (client, mut connection) = config.connect(tls).await?;
        let carrier: Box<Carrier> = Box::new(move |context| connection.poll_message(context));
        let bell = Arc::new(Bell::default());
        let waker = bell.clone().into();
        let wire = Wire { carrier: Some(carrier), bell, waker, gave_up_on_standby: false };
        Ok(Self { client, prepared: Vec::new(), wire })
    }

    /// The rows of a statement; it is prepared the first time.
    pub(super) async fn query(
        &mut self,
        statements: &Statements,
        verb: Verb,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let statement = self.prepare(statements, verb).await?;
        self.wire.carry(|| self.client.query(&statement, parameters)).await
    }

    /// The rows of a statement; where it has none, those of a look at this record. Where care is taken, the look is sent right
    /// behind it: a statement of its own, which begins when the first has been committed. Where nobody needs it then, nobody
    /// waits for it, and what it finds is thrown away by who comes next.
    pub(super) async fn query_or_look(
        &mut self,
        care: Care,
        statements: &Statements,
        verb: Verb,
        parameters: &[&(dyn ToSql + Sync)],
        id: Id,
    ) -> Result<Vec<Row>, Error> {
        let statement = self.prepare(statements, verb).await?;
        let load = self.prepare(statements, Verb::Load).await?;
        let id = &id.0[..];
        let ids: [&(dyn ToSql + Sync); 1] = [&id];
        let mut asked = pin!(self.client.query(&statement, parameters));
        let mut looked = pin!(self.client.query(&load, &ids));
        let (mut is_sent, mut found) = (care == Care::None, Poll::Pending);
        let written = std::future::poll_fn(|context| {
            let answer = asked.as_mut().poll(context);
            if !std::mem::replace(&mut is_sent, true) {
                found = looked.as_mut().poll(context);
            }
            answer
        });
        let rows = self.wire.carry(|| written).await?;
        match found {
            _ if !rows.is_empty() => Ok(rows),
            Poll::Ready(answer) => answer,
            Poll::Pending => self.wire.carry(|| looked).await,
        }
    }

    /// A statement as this connection knows it.
    pub(super) async fn prepare(&mut self, statements: &Statements, verb: Verb) -> Result<Statement, Error> {
        match self.prepared.get(verb as usize) {
            Some(Some(statement)) => Ok(statement.clone()),
            // Apart: hardly anybody has need of the room for it.
            Some(None) | None => Box::pin(self.prepare_anew(statements, verb)).await,
        }
    }

    async fn prepare_anew(&mut self, statements: &Statements, verb: Verb) -> Result<Statement, Error> {
        let place = verb as usize;
        let prepared = self.wire.carry(|| self.client.prepare(statements.sql(verb))).await?;
        if self.prepared.len() <= place {
            self.prepared.resize(place + 1, None);
        }
        Ok(self.prepared[place].insert(prepared).clone())
    }

    pub(super) async fn simple_query(&mut self, sql: &str) -> Result<Vec<SimpleQueryMessage>, Error> {
        self.wire.carry(|| self.client.simple_query(sql)).await
    }

    /// False where the server has closed it, or the way to it is gone, as far as this node was told.
    pub(super) fn is_open(&mut self) -> bool {
        self.wire.is_open()
    }

    /// The server has said on it that it did not wait for its standby.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.wire.gave_up_on_standby
    }

    /// For who sends several things on it at once: whoever has the wire carries them all.
    pub(super) fn into_parts(self) -> (Client, Wire) {
        (self.client, self.wire)
    }

    /// For whoever says more than one thing on it: carried by a task, until the client is dropped.
    pub(super) fn into_client(self) -> Client {
        let Self { client, mut wire, .. } = self;
        tokio::spawn(async move { std::future::poll_fn(|context| wire.poll_until_closed(context)).await });
        client
    }
}

type Carrier = dyn FnMut(&mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> + Send;

/// What sends and reads.
pub(super) struct Wire {
    /// None once the connection has ended: whoever waits for an answer then finds that there will be none.
    carrier: Option<Box<Carrier>>,
    bell: Arc<Bell>,
    waker: Waker,
    pub(super) gave_up_on_standby: bool,
}

impl Wire {
    /// The answer to what is asked, sending and reading until it is there. It is asked here: handed in, it would have its room
    /// twice.
    async fn carry<T, F>(&mut self, ask: impl FnOnce() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut asked = pin!(ask());
        std::future::poll_fn(|context| self.poll(context, |_, bell| asked.as_mut().poll(bell))).await
    }

    /// Sends and reads whatever there is, until the connection has ended.
    pub(super) fn poll_until_closed(&mut self, context: &Context<'_>) -> Poll<()> {
        self.poll(context, |wire, _| if wire.carrier.is_none() { Poll::Ready(()) } else { Poll::Pending })
    }

    fn poll<T>(
        &mut self,
        context: &Context<'_>,
        mut asked: impl FnMut(&Self, &mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        self.bell.attend(context.waker());
        for _ in 0..TURNS_MAX {
            let answer = asked(self, &mut Context::from_waker(&self.waker));
            if answer.is_ready() {
                self.bell.leave_for_good();
                return answer;
            }
            // What it has rung for so far, such as what was asked just now, is seen by listening.
            self.bell.hush();
            self.listen();
            if self.bell.leave_if_silent() {
                return Poll::Pending;
            }
        }
        // It rings all the time: tokio says so that this task has had its share.
        self.bell.leave();
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// False where the server has closed it, or the way to it is gone, as far as this node was told.
    pub(super) fn is_open(&mut self) -> bool {
        self.listen();
        self.carrier.is_some()
    }

    /// Closes it. Whoever waits for an answer is told that there will be none.
    pub(super) fn hang_up(&mut self) {
        self.carrier = None;
        self.bell.wake_by_ref();
    }

    /// Sends what is to be sent, and reads what has come.
    fn listen(&mut self) {
        let Some(carrier) = &mut self.carrier else { return };
        let mut context = Context::from_waker(&self.waker);
        loop {
            match carrier(&mut context) {
                Poll::Ready(Some(Ok(AsyncMessage::Notice(notice)))) => {
                    self.gave_up_on_standby |= notice.routine() == Some(GAVE_UP_ON_STANDBY);
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => {
                    self.hang_up();
                    return;
                }
                Poll::Pending => return,
            }
        }
    }
}

/// What a connection wakes: whoever waits for its answer, but where it is they who make it ring. A task that is woken while
/// it runs would be put at the end of the queue, and another thread woken for it.
#[derive(Default)]
struct Bell {
    state: AtomicU8,
    waits: Mutex<Option<Waker>>,
}

/// Nobody is at the bell: it wakes.
const AWAY: u8 = 0;
/// Somebody is, and looks before they leave.
const ATTENDED: u8 = 1;
/// Somebody is, and it has rung since they looked.
const RUNG: u8 = 2;

impl Bell {
    fn attend(&self, waker: &Waker) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        if !waits.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *waits = Some(waker.clone());
        }
        drop(waits);
        self.hush();
    }

    /// Whatever it has rung for so far is about to be looked at.
    fn hush(&self) {
        self.state.store(ATTENDED, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.state.store(AWAY, Ordering::SeqCst);
    }

    /// The same, and it wakes nobody from now on: what comes next is for somebody else.
    fn leave_for_good(&self) {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.leave();
    }

    /// False where it has rung meanwhile: one has to look again.
    fn leave_if_silent(&self) -> bool {
        self.state.compare_exchange(ATTENDED, AWAY, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let rung = |state| (state != AWAY).then_some(RUNG);
        if self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, rung).is_ok() {
            return;
        }
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waits {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_bell_wakes_only_who_is_not_there_and_tells_who_is() {
        let (bell, count) = (Arc::new(Bell::default()), Arc::new(Count::default()));
        let woken = || count.0.load(Ordering::SeqCst);
        bell.wake_by_ref();
        bell.attend(&count.clone().into());
        assert!(bell.leave_if_silent(), "what rang before anybody came is seen by who comes");
        bell.wake_by_ref();
        assert_eq!(woken(), 1);
        bell.attend(&count.clone().into());
        bell.wake_by_ref();
        bell.wake_by_ref();
        assert!(!bell.leave_if_silent());
        bell.wake_by_ref();
        bell.hush();
        assert!(bell.leave_if_silent(), "told once, and not of what was looked at since");
        assert_eq!(woken(), 1);
        bell.wake_by_ref();
        assert_eq!(woken(), 2);
    }

    /// An answer that is ready whenever it was rung for, from another thread: none of them is missed.
    #[test]
    fn no_ringing_is_lost_between_looking_and_leaving() {
        const ROUNDS: u32 = 20_000;
        let bell = Arc::new(Bell::default());
        let rung = Arc::new(AtomicU32::new(0));
        let ringer = std::thread::spawn({
            let (bell, rung) = (bell.clone(), rung.clone());
            move || {
                for _ in 0..ROUNDS {
                    rung.fetch_add(1, Ordering::SeqCst);
                    bell.wake_by_ref();
                }
            }
        });
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Arc::new(Unpark(std::thread::current())).into();
        loop {
            bell.attend(&waker);
            let has_seen_all = loop {
                let seen = rung.load(Ordering::SeqCst);
                if seen == ROUNDS {
                    break true;
                }
                if bell.leave_if_silent() {
                    break false;
                }
                bell.hush();
            };
            if has_seen_all {
                break;
            }
            std::thread::park();
        }
        ringer.join().unwrap();
    }
}
