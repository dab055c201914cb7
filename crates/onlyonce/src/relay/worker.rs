//! The relay at work: one task claims, and each delivery is a task of its own.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use onlyonce_core::record::Token;
use onlyonce_store::outbox::{Claimed, Claims, Failed, OnDead, Outbox, Settled, Wanted};
use onlyonce_store::seal::Unsealable;
use onlyonce_store::{Error, failpoint};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{Delivered, Delivery, Destination, Exchanged, Relay};
use crate::counts::{self, Operation};
use crate::engine::{Engine, chain, fresh_token};
use crate::worker::STORE_TIMEOUT;

/// The time between two looks for what this process has stored.
const REST: Duration = Duration::from_millis(20);
/// How long a claim waits for more deliveries to end while most places of a destination are taken: one claim of many costs the
/// store little more than a claim of one.
const GATHER: Duration = Duration::from_millis(5);
/// The pause between two tries to settle.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a message waits whose encryption key is missing.
const KEY_PAUSE: Duration = Duration::from_secs(60);

/// A relay that runs. Dropped, it claims nothing more, and what is under way is finished and settled.
#[derive(Debug)]
#[must_use = "the relay stops when this is dropped"]
pub struct Running {
    stop: watch::Sender<bool>,
    worker: Option<JoinHandle<()>>,
}

impl Running {
    pub(super) fn start(relay: Relay) -> Self {
        let (stop, stopped) = watch::channel(false);
        let has_outbox = relay.engine.store().outbox().is_some() && !relay.destinations.is_empty();
        let worker = has_outbox.then(|| tokio::spawn(run(Arc::new(Work::new(relay)), stopped)));
        Self { stop, worker }
    }

    /// Claims nothing more, from now on.
    pub fn stop_claiming(&self) {
        self.stop.send_replace(true);
    }

    /// Claims nothing more, and waits for what is under way to be delivered and settled; at most so long. The rest lapses.
    pub async fn stop(mut self, within: Duration) {
        self.stop_claiming();
        let Some(mut worker) = self.worker.take() else { return };
        if timeout(within, &mut worker).await.is_err() {
            worker.abort();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_claiming();
    }
}

/// What the tasks share.
struct Work {
    engine: Arc<Engine>,
    destinations: Vec<Place>,
    every: Duration,
    /// A delivery has ended, and more may be due.
    ended: Notify,
    /// The same, where most places of its destination are still taken.
    few_ended: Notify,
}

/// A destination, and what is under way there.
struct Place {
    destination: Destination,
    under_way: AtomicUsize,
    /// The last claim got all that it wanted, so there may be more.
    may_have_more: AtomicBool,
}

impl Work {
    fn new(relay: Relay) -> Self {
        let place = |destination| Place {
            destination,
            under_way: AtomicUsize::new(0),
            may_have_more: AtomicBool::new(false),
        };
        relay.destinations.iter().for_each(|destination| counts::begin_messages(&destination.name));
        let destinations = relay.destinations.into_iter().map(place).collect();
        let (ended, few_ended) = (Notify::new(), Notify::new());
        Self { engine: relay.engine, destinations, every: relay.every, ended, few_ended }
    }

    fn outbox(&self) -> &dyn Outbox {
        self.engine.store().outbox().expect("a relay is not started on a store without an outbox")
    }

    /// What could begin now.
    fn wanted(&self) -> Vec<Wanted> {
        let wanted = self.destinations.iter().map(|place| {
            let Destination { name, terms, .. } = &place.destination;
            let limit = terms.at_once.saturating_sub(place.under_way.load(Ordering::Acquire));
            Wanted { destination: name.clone(), limit, lease: terms.lease(), on_dead: terms.on_dead }
        });
        wanted.filter(|wanted| wanted.limit > 0).collect()
    }

    fn place(&self, destination: &str) -> Option<&Place> {
        self.destinations.iter().find(|place| *place.destination.name == *destination)
    }

    async fn claim(&self, wanted: &[Wanted]) -> Result<Claims, Error> {
        if wanted.is_empty() {
            return Ok(Claims::default());
        }
        let token: Token = fresh_token();
        failpoint!("relay.claim.before");
        let claim = self.outbox().claim(token, wanted);
        let claims = self.engine.guarded(Operation::Outbox, STORE_TIMEOUT, claim).await?;
        failpoint!("relay.claim.after");
        for wanted in wanted {
            let got =
                claims.claimed.iter().filter(|claimed| claimed.destination == wanted.destination).count();
            if let Some(place) = self.place(&wanted.destination) {
                place.may_have_more.store(got >= wanted.limit, Ordering::Release);
            }
        }
        Ok(claims)
    }

    /// Looks at what is behind dead letters, where the settings say that they are skipped: they may have said otherwise before.
    async fn pass_dead(&self) -> Result<(), Error> {
        for place in &self.destinations {
            match place.destination.terms.on_dead {
                OnDead::Block => {}
                OnDead::Skip => {
                    let pass = self.outbox().pass_dead(&place.destination.name);
                    self.engine.guarded(Operation::Outbox, STORE_TIMEOUT, pass).await?;
                }
            }
        }
        Ok(())
    }
}

/// Claims until it is stopped; then waits for what is under way.
async fn run(work: Arc<Work>, mut stopped: watch::Receiver<bool>) {
    let mut under_way = JoinSet::new();
    let mut passed = false;
    while !*stopped.borrow_and_update() {
        let began = Instant::now();
        let claims = async {
            if !passed {
                work.pass_dead().await?;
            }
            work.claim(&work.wanted()).await
        };
        let is_more = match claims.await {
            Ok(claims) => {
                passed = true;
                begin(&work, claims.claimed, began, &mut under_way);
                work.engine.rounds.ended("relay", began);
                claims.is_more
            }
            Err(error) => {
                tracing::warn!(worker = "relay", error = %chain(&error), "the store did not answer; the worker tries again at its next round");
                false
            }
        };
        while under_way.try_join_next().is_some() {}
        if is_more {
            continue;
        }
        tokio::select! {
            _ = stopped.changed() => {}
            () = work.ended.notified() => {}
            () = gathered(&work) => {}
            () = stored(&work.engine, began) => {}
            () = sleep(work.every) => {}
        }
    }
    while under_way.join_next().await.is_some() {}
}

/// This process has stored a message. However many it stores, the store is asked at most every [`REST`].
async fn stored(engine: &Engine, last: Instant) {
    engine.stored.notified().await;
    sleep_until(last + REST).await;
}

/// Few deliveries have ended, and no more of them within [`GATHER`].
async fn gathered(work: &Work) {
    work.few_ended.notified().await;
    sleep(GATHER).await;
}

/// As [`Relay::once`].
pub(super) async fn once(relay: Relay) -> Result<usize, Error> {
    let work = Arc::new(Work::new(relay));
    work.pass_dead().await?;
    let mut deliveries = 0;
    loop {
        let began = Instant::now();
        let claims = work.claim(&work.wanted()).await?;
        let (count, is_more) = (claims.claimed.len(), claims.is_more);
        let mut under_way = JoinSet::new();
        begin(&work, claims.claimed, began, &mut under_way);
        while under_way.join_next().await.is_some() {}
        deliveries += count;
        if count == 0 && !is_more {
            return Ok(deliveries);
        }
    }
}

/// Begins the deliveries of a claim that was asked for at `asked_at`.
fn begin(work: &Arc<Work>, claimed: Vec<Claimed>, asked_at: Instant, under_way: &mut JoinSet<()>) {
    for claimed in claimed {
        let Some(place) = work.place(&claimed.destination) else { continue };
        place.under_way.fetch_add(1, Ordering::AcqRel);
        let work = work.clone();
        under_way.spawn(async move {
            let _counted = Counted { work: &work, claimed: &claimed };
            carry_out(&work, &claimed, asked_at).await;
        });
    }
}

/// One delivery that is under way. Its place is free again however it ends.
struct Counted<'a> {
    work: &'a Work,
    claimed: &'a Claimed,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        let Some(place) = self.work.place(&self.claimed.destination) else { return };
        let under_way = place.under_way.fetch_sub(1, Ordering::AcqRel) - 1;
        // The next of its group may go now.
        if self.claimed.group.is_some() || place.may_have_more.load(Ordering::Acquire) {
            let is_half_free = 2 * under_way <= place.destination.terms.at_once;
            if is_half_free { self.work.ended.notify_one() } else { self.work.few_ended.notify_one() }
        }
    }
}

/// Delivers and settles. The claim lapses, by the store's clock, no earlier than a lease after it was asked for.
async fn carry_out(work: &Work, claimed: &Claimed, asked_at: Instant) {
    let Some(place) = work.place(&claimed.destination) else { return };
    let terms = &place.destination.terms;
    let lapses_at = asked_at + terms.lease();
    let settled = match &claimed.payload {
        Ok(payload) => {
            let exchanged = deliver(&place.destination, claimed, payload, lapses_at).await;
            terms.settled(claimed, asked_at.elapsed(), exchanged, rand::random())
        }
        Err(unsealable) => unread(*unsealable),
    };
    match settle(work, claimed, &settled, lapses_at).await {
        Some(true) => tell(claimed, &settled),
        Some(false) => {
            counts::message("superseded", &claimed.destination);
            tracing::warn!(
                message = claimed.number,
                destination = &*claimed.destination,
                delivery = claimed.delivery,
                "a delivery ended after another relay had claimed its message; its result is not stored"
            );
        }
        None => tracing::error!(
            message = claimed.number,
            destination = &*claimed.destination,
            delivery = claimed.delivery,
            "the result of a delivery could not be stored before its claim lapsed; the message will be delivered again"
        ),
    }
}

/// A payload that cannot be read waits until this node has its key, without a failure that counts; one that was altered is a
/// dead letter.
fn unread(unsealable: Unsealable) -> Settled {
    let failed = Failed { status: None, error: format!("the payload cannot be read: {unsealable}").into() };
    match unsealable {
        Unsealable::MissingKey(_) => {
            counts::undecryptable();
            Settled::Again { after: KEY_PAUSE, counts: false, failed }
        }
        Unsealable::Altered => Settled::Dead { failed },
    }
}

/// Delivers, within the time for it and before the claim lapses.
async fn deliver(
    destination: &Destination,
    claimed: &Claimed,
    payload: &Bytes,
    lapses_at: Instant,
) -> Exchanged {
    let delivery = Delivery {
        key: claimed.key.clone(),
        destination: claimed.destination.clone(),
        payload: payload.clone(),
        content_type: claimed.content_type.clone(),
        group: claimed.group.clone(),
        number: claimed.delivery,
    };
    let within = destination.terms.timeout.min(lapses_at.saturating_duration_since(Instant::now()));
    let delivering = AssertUnwindSafe(destination.deliver.exchange(&delivery)).catch_unwind();
    let failed = |error: String| Exchanged::from(Delivered::Again { after: None, error });
    match timeout(within, delivering).await {
        Ok(Ok(exchanged)) => exchanged,
        Ok(Err(_)) => failed("the delivery panicked".to_owned()),
        Err(_) => failed(format!("no answer within {} ms", within.as_millis())),
    }
}

/// Settles, again and again until the claim lapses. False where another relay has the message; none where the store did not
/// answer.
async fn settle(work: &Work, claimed: &Claimed, settled: &Settled, lapses_at: Instant) -> Option<bool> {
    let (mut pause, mut is_in_doubt) = (PAUSE, false);
    loop {
        failpoint!("relay.settle.before");
        let settling = work.outbox().settle(claimed, settled.clone());
        let answered = work.engine.guarded(Operation::Outbox, STORE_TIMEOUT, settling).await;
        failpoint!("relay.settle.after");
        match answered {
            Ok(true) => return Some(true),
            Ok(false) => return Some(is_in_doubt && nobody_else_claimed(work, claimed).await),
            Err(error) if Instant::now() < lapses_at => {
                is_in_doubt |= !error.wrote_nothing();
                tracing::warn!(message = claimed.number, error = %chain(&error), "the result of a delivery is not stored yet");
            }
            Err(_) => return None,
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// A settlement whose answer was lost was stored, where nobody has claimed the message since.
async fn nobody_else_claimed(work: &Work, claimed: &Claimed) -> bool {
    let item = work.engine.guarded(Operation::Scan, STORE_TIMEOUT, work.outbox().item(claimed.number)).await;
    item.ok().flatten().is_some_and(|item| item.deliveries == claimed.delivery)
}

fn tell(claimed: &Claimed, settled: &Settled) {
    let (message, destination, delivery) = (claimed.number, &*claimed.destination, claimed.delivery);
    let result = match settled {
        Settled::Delivered { .. } => "delivered",
        Settled::Again { after, failed, .. } => {
            tracing::info!(
                message,
                destination,
                delivery,
                status = failed.status,
                after_ms = after.as_millis(),
                error = &*failed.error,
                "a delivery failed; it will be tried again"
            );
            "retried"
        }
        Settled::Dead { failed } => {
            tracing::warn!(
                message,
                destination,
                delivery,
                status = failed.status,
                error = &*failed.error,
                "a message is a dead letter; a person has to redrive or discard it"
            );
            "dead"
        }
    };
    counts::message(result, &claimed.destination);
}
