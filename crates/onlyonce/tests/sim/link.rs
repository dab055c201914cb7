//! A node's way to the store: slow, cut, or worse.
//!
//! A call is a message. Once it is on its way it arrives whether or not its sender still waits, or lives: that is how
//! a write comes after its time, and after others that were sent later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use onlyonce::store::{
    Audit, Change, Count as RecordCount, EpochSeen, Error, ErrorKind, Outbox, Page, Promises, Query, Store,
    Swapped, audit,
};
use onlyonce_core::record::{Id, Seen, StateName};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::node::Life;
use crate::stage::Stage;
use crate::tally::Count;
use crate::truth::Truth;

pub(crate) struct Link {
    pub(crate) stage: Arc<Stage>,
    pub(crate) truth: Truth,
    pub(crate) life: Arc<Life>,
}

/// What becomes of a call.
#[derive(Clone, Copy)]
enum Fate {
    Prompt,
    Slow,
    Refused,
    AnswerLost,
    Stalled,
    Late,
}

const FATES: [(u64, Fate); 6] = [
    (80, Fate::Prompt),
    (8, Fate::Slow),
    (3, Fate::Refused),
    (3, Fate::AnswerLost),
    (3, Fate::Stalled),
    (3, Fate::Late),
];

/// Of so many swaps one is sent twice, as by a client library that repeats what it had no answer to: the caller gets the
/// answer of the second, which finds what the first has written.
const REPEATED_ONE_IN: u64 = 8;

impl Link {
    async fn call<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Truth) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let millis = |range| self.stage.random().millis(range);
        self.stage.asked().await;
        self.reach().await?;
        match self.fate() {
            Fate::Prompt => Ok(operation(&self.truth)),
            Fate::Slow => {
                self.stage.count(Count::StoreSlow);
                self.send(operation, millis(1..=450), millis(1..=450)).await
            }
            Fate::Refused => {
                self.stage.count(Count::StoreRefused);
                let kind = self.stage.random().pick(&[ErrorKind::Unavailable, ErrorKind::Other]);
                Err(Error::new(kind, "the store failed before it wrote"))
            }
            Fate::AnswerLost => {
                self.stage.count(Count::StoreAnswerLost);
                drop(self.send(operation, millis(0..=200), Duration::ZERO).await?);
                Err(unavailable("the answer was lost"))
            }
            Fate::Stalled => {
                self.stage.count(Count::StoreStalled);
                std::future::pending().await
            }
            // Some past the end of a lease, when whoever sent it has stopped looking for it.
            Fate::Late => {
                self.stage.count(Count::StoreLate);
                self.send(operation, millis(800..=5_000), Duration::ZERO).await
            }
        }
    }

    /// Dead nodes reach nobody, and of those that are cut off, some do not even notice.
    async fn reach(&self) -> Result<(), Error> {
        if self.life.is_dead() {
            std::future::pending::<()>().await;
        }
        if self.life.is_cut_off() {
            if self.stage.random().percent(50) {
                return Err(unavailable("the network is partitioned"));
            }
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    fn fate(&self) -> Fate {
        match self.stage.is_faulty() {
            true => self.stage.random().weighed(&FATES),
            false => Fate::Prompt,
        }
    }

    /// On its way, whether or not anybody waits for the answer.
    async fn send<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Truth) -> T + Send + 'static,
        there: Duration,
        back: Duration,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let truth = self.truth.clone();
        tokio::spawn(async move {
            sleep(there).await;
            let result = operation(&truth);
            sleep(back).await;
            // Nobody may wait any more.
            drop(answer.send(result));
        });
        let answer = answered.await.map_err(|_| unavailable("the connection broke"));
        // The dead hear nothing.
        if self.life.is_dead() {
            std::future::pending::<()>().await;
        }
        answer
    }
}

fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message)
}

#[async_trait::async_trait]
impl Store for Link {
    async fn prepare(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn load(&self, id: Id) -> Result<Option<Seen>, Error> {
        self.call(move |truth| truth.load(id)).await
    }

    async fn swap(&self, id: Id, change: Change) -> Result<Swapped, Error> {
        let is_repeated = self.stage.random().within(1..=REPEATED_ONE_IN) == 1;
        let stage = self.stage.clone();
        self.call(move |truth| {
            if is_repeated && matches!(truth.swap(id, change.clone()), Swapped::Applied(_)) {
                stage.count(Count::SwapRepeated);
            }
            truth.swap(id, change)
        })
        .await
    }

    async fn scan(&self, query: Query) -> Result<Page, Error> {
        self.life.sweeps();
        self.call(move |truth| truth.scan(query)).await
    }

    async fn reap(&self, limit: usize) -> Result<usize, Error> {
        self.life.reaps();
        self.call(move |truth| truth.reap(limit)).await
    }

    async fn results(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Vec<onlyonce::store::result::PhaseResult>, Error> {
        self.call(move |truth| truth.results(id, used_at)).await
    }

    async fn request(
        &self,
        id: Id,
        used_at: onlyonce_core::time::Timestamp,
    ) -> Result<Option<bytes::Bytes>, Error> {
        self.call(move |truth| truth.request(id, used_at)).await
    }

    async fn requests(&self, limit: usize) -> Result<usize, Error> {
        self.call(move |truth| truth.requests(limit)).await
    }

    async fn count(&self) -> Result<Vec<(StateName, RecordCount)>, Error> {
        self.call(|truth| truth.count()).await
    }

    async fn epoch(&self) -> Result<EpochSeen, Error> {
        self.call(|truth| truth.epoch()).await
    }

    async fn raise_epoch(&self) -> Result<(), Error> {
        self.call(|truth| truth.raise_epoch()).await
    }

    fn promises(&self) -> Promises {
        self.truth.promises()
    }

    async fn erase(&self, _scope: [u8; 32], _limit: usize) -> Result<usize, Error> {
        unreachable!("nobody purges in this world")
    }

    fn outbox(&self) -> Option<&dyn Outbox> {
        None
    }

    fn audit(&self) -> &dyn Audit {
        self
    }
}

/// Nobody gives orders in this world, so the log stays empty.
#[async_trait::async_trait]
impl Audit for Link {
    async fn write(&self, _entry: audit::Entry) -> Result<(), Error> {
        unreachable!("nobody gives orders in this world")
    }

    async fn list(&self, _query: audit::Query) -> Result<audit::Page, Error> {
        Ok(audit::Page { entries: Vec::new(), next: None })
    }

    async fn prune(&self, _age: Duration, _limit: usize) -> Result<usize, Error> {
        unreachable!("there is nothing to prune in this world")
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}
