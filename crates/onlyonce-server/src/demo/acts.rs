//! Failures between clients, the gateway and a payments service, one act each.
//!
//! No act depends on timing: where order matters, the bank or the server signals.

mod settling;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::bank::{Card, Payment};
use super::client::{Answer, Order, PAYMENTS};
use super::report::Act;
use super::stage::Stage;

/// How many concurrent clients.
const STORM: usize = 64;

type Played<'a> = Pin<Box<dyn Future<Output = Result<Act>> + 'a>>;

/// One act.
pub(crate) type Play = fn(&mut Stage) -> Played<'_>;

/// In order.
pub(crate) const ALL: [Play; 12] = [
    |stage| Box::pin(retry(stage)),
    |stage| Box::pin(storm(stage)),
    |stage| Box::pin(waiting_storm(stage)),
    |stage| Box::pin(reused_key(stage)),
    |stage| Box::pin(other_caller(stage)),
    |stage| Box::pin(hang_up(stage)),
    |stage| Box::pin(bank_closed(stage)),
    |stage| Box::pin(service_away(stage)),
    |stage| Box::pin(service_dies(stage)),
    |stage| Box::pin(settling::by_probe(stage)),
    |stage| Box::pin(settling::by_webhook(stage)),
    |stage| Box::pin(settling::by_person(stage)),
];
/// The last ones, which need a durable store.
pub(crate) const KILLED: [Play; 2] =
    [|stage| Box::pin(killed_afterwards(stage)), |stage| Box::pin(killed_in_the_middle(stage))];

async fn retry(stage: &Stage) -> Result<Act> {
    let mut act = Act::new("retry", "A client does not see the answer and sends its payment again");
    let order = order("retry-1", Card::Plain);
    let mut client = stage.client().await?;
    let first = client.pay(&order).await?;
    let again = client.pay(&order).await?;
    act.promise("the payment is made: 201", first.status == 201);
    act.promise("the retry gets the same answer, byte for byte", same(&first, &again));
    act.promise(
        "and is marked as a replay: Idempotent-Replayed: true",
        !first.is_replay() && again.is_replay(),
    );
    let expires = |answer: &Answer| answer.header("idempotency-key-expires").map(str::to_owned);
    act.promise(
        "both say how long the key is kept",
        expires(&first).is_some() && expires(&first) == expires(&again),
    );
    Ok(stage.counted(act, &order, 2, 1))
}

async fn storm(stage: &Stage) -> Result<Act> {
    let mut act = Act::new("storm", "64 clients send one payment at the same moment; the bank takes 50 ms");
    let order = order("storm-1", Card::Slow);
    let answers = stage.pay_at_once(&order).await?;
    let firsts = answers.iter().filter(|answer| answer.status == 201 && !answer.is_replay()).count();
    let refused = answers.iter().filter(|answer| is_refused(answer, 409, "idempotency_key_in_progress"));
    let refused: Vec<_> = refused.collect();
    // A client that came after the first request was done got its answer.
    let replays = answers.iter().filter(|answer| answer.status == 201 && answer.is_replay()).count();
    act.promise(format!("one ran, {} were refused with 409: {}", refused.len(), statuses(&answers)), {
        firsts == 1 && !refused.is_empty() && firsts + refused.len() + replays == STORM
    });
    let told = refused.iter().all(|answer| answer.header("retry-after").is_some());
    act.promise("each refusal says when to retry: Retry-After", told);
    let late = stage.client().await?.pay(&order).await?;
    act.promise(
        "a client that retries gets the answer of the one that ran",
        late.status == 201 && late.is_replay(),
    );
    Ok(stage.counted(act, &order, STORM + 1, 1))
}

async fn waiting_storm(stage: &Stage) -> Result<Act> {
    let mut act =
        Act::new("waiting_storm", "The same storm, but every client would rather wait (Prefer: wait=10)");
    let order = Order { wait: Some(10), ..order("storm-2", Card::Slow) };
    let answers = stage.pay_at_once(&order).await?;
    let ended = Instant::now();
    let first = answers.first().context("a storm has answers")?;
    act.promise(format!("all of them get the same 201: {}", statuses(&answers)), {
        answers.iter().all(|answer| answer.status == 201 && answer.body == first.body)
    });
    let replays = answers.iter().filter(|answer| answer.is_replay()).count();
    act.promise("one of them ran, 63 are marked as replays", replays == STORM - 1);
    let act = stage.counted(act, &order, STORM, 1);
    Ok(stage.woken(act, &order, ended))
}

async fn reused_key(stage: &Stage) -> Result<Act> {
    let mut act = Act::new("reused_key", "A client uses a key again, for another amount");
    let first = order("reused-1", Card::Plain);
    let mut other = first.clone();
    other.payment.amount += 7_800;
    let mut client = stage.client().await?;
    let paid = client.pay(&first).await?;
    let reused = client.pay(&other).await?;
    let unchanged = client.pay(&first).await?;
    act.promise("the other payment is refused: 422 idempotency_key_reused", {
        is_refused(&reused, 422, "idempotency_key_reused")
    });
    act.promise("the first one still answers as before", same(&paid, &unchanged));
    Ok(stage.counted(act, &first, 3, 1))
}

async fn other_caller(stage: &Stage) -> Result<Act> {
    let mut act = Act::new("other_caller", "Two callers happen to choose the same key");
    let ann = order("shared-1", Card::Plain);
    let bob = Order { caller: "bob", ..ann.clone() };
    let mut client = stage.client().await?;
    let (paid_by_ann, paid_by_bob) = (client.pay(&ann).await?, client.pay(&bob).await?);
    act.promise("each makes a payment of its own", {
        paid_by_bob.status == 201 && !paid_by_bob.is_replay() && paid_by_ann.body != paid_by_bob.body
    });
    let eve = client.ask("eve", "/_onlyonce/keys/shared-1/response").await?;
    act.promise("a third who asks for that key finds nothing: 404", eve.status == 404);
    Ok(stage.counted(act, &ann, 2, 2))
}

async fn hang_up(stage: &Stage) -> Result<Act> {
    let mut act = Act::new("hang_up", "A client hangs up while the bank is at work");
    let order = order("hang-up-1", Card::Held);
    let client = stage.client().await?;
    client.pay_and_hang_up(&order, stage.bank.arrived.notified()).await?;
    act.promise(
        "the client is gone before anything is charged",
        stage.bank.charged(&order.payment.order) == 0,
    );
    let mut client = stage.client().await?;
    let meanwhile = client.pay(&order).await?;
    act.promise("a retry in the meantime is refused, because the first still runs: 409", {
        is_refused(&meanwhile, 409, "idempotency_key_in_progress")
    });
    stage.bank.go_on.notify_one();
    stage.bank.charged_one.notified().await;
    let retried = client.pay(&Order { wait: Some(10), ..order.clone() }).await?;
    act.promise(
        "the work went on; a retry that waits gets its answer",
        retried.status == 201 && retried.is_replay(),
    );
    Ok(stage.counted(act, &order, 3, 1))
}

async fn bank_closed(stage: &Stage) -> Result<Act> {
    let mut act =
        Act::new("bank_closed", "The bank is closed at first: the service says 503, nothing was charged");
    let order = order("closed-1", Card::Closed);
    let mut client = stage.client().await?;
    let closed = client.pay(&order).await?;
    act.promise("the 503 reaches the client, and is not kept: Idempotency-Stored: false", {
        closed.status == 503 && closed.header("idempotency-stored") == Some("false")
    });
    act.promise("nothing was charged", stage.bank.charged(&order.payment.order) == 0);
    let retried = client.pay(&order).await?;
    act.promise("the same key runs again, and pays", retried.status == 201 && !retried.is_replay());
    let again = client.pay(&order).await?;
    act.promise("from then on it is a replay", same(&retried, &again) && again.is_replay());
    Ok(stage.counted(act, &order, 3, 1))
}

async fn service_away(stage: &mut Stage) -> Result<Act> {
    let mut act = Act::new("service_away", "The service is down: its port is closed");
    let order = order("away-1", Card::Plain);
    stage.service.kill().await;
    let mut client = stage.client().await?;
    let away = client.pay(&order).await?;
    act.promise("nothing was sent, and the answer says so: 502 upstream_unreachable", {
        is_refused(&away, 502, "upstream_unreachable") && away.header("idempotency-stored") == Some("false")
    });
    act.promise("nothing was charged", stage.bank.charged(&order.payment.order) == 0);
    stage.service.start_again().await?;
    let retried = client.pay(&order).await?;
    act.promise("the service is back: the same key runs, and pays", {
        retried.status == 201 && !retried.is_replay()
    });
    Ok(stage.counted(act, &order, 2, 1))
}

async fn service_dies(stage: &mut Stage) -> Result<Act> {
    let mut act =
        Act::new("service_dies", "The service dies after it has charged the card, before it answers");
    let order = order("dies-1", Card::Crashing);
    let mut client = stage.client().await?;
    let lost = client.pay(&order).await?;
    act.promise("the client gets the truth, that nobody knows: 502 upstream_outcome_unknown", {
        is_refused(&lost, 502, "upstream_outcome_unknown")
            && lost.header("idempotency-stored") == Some("false")
    });
    stage.service.kill().await;
    stage.service.start_again().await?;
    let again = client.pay(&order).await?;
    act.promise("its retry is refused, because nobody knows: 409 idempotency_outcome_unknown", {
        is_refused(&again, 409, "idempotency_outcome_unknown")
    });
    let path = again.header("link").and_then(status_link).map(str::to_owned);
    let state = match &path {
        Some(path) => client.ask(order.caller, path).await?.body,
        None => bytes::Bytes::new(),
    };
    act.promise("with a link to its status, which says unknown", {
        serde_json::from_slice(&state).is_ok_and(|state: serde_json::Value| state["state"] == "unknown")
    });
    Ok(stage.counted(act, &order, 2, 1))
}

async fn killed_afterwards(stage: &mut Stage) -> Result<Act> {
    let mut act = Act::new(
        "killed_afterwards",
        "The gateway is killed with SIGKILL after a payment, and started again",
    );
    let paid = order("killed-1", Card::Plain);
    let first = stage.client().await?.pay(&paid).await?;
    stage.kill_gateway().await?;
    let mut client = stage.client().await?;
    let again = client.pay(&paid).await?;
    act.promise("a retry after that gets the same answer, byte for byte", {
        first.status == 201 && same(&first, &again) && again.is_replay()
    });
    let lost = order("dies-1", Card::Crashing);
    let unknown = client.pay(&lost).await?;
    act.promise("what nobody knew is still unknown, and did not run again: 409", {
        is_refused(&unknown, 409, "idempotency_outcome_unknown")
            && stage.bank.charged(&lost.payment.order) == 1
    });
    Ok(stage.counted(act, &paid, 3, 1))
}

async fn killed_in_the_middle(stage: &mut Stage) -> Result<Act> {
    let mut act =
        Act::new("killed_in_the_middle", "The gateway is killed with SIGKILL while the bank is at work");
    let order = order("killed-2", Card::Held);
    let mut client = stage.client().await?;
    let paying = order.clone();
    let paid = tokio::spawn(async move { client.pay(&paying).await });
    stage.bank.arrived.notified().await;
    stage.kill_gateway().await?;
    act.promise("the client loses its connection, and knows nothing", paid.await?.is_err());
    stage.bank.go_on.notify_one();
    stage.bank.charged_one.notified().await;
    let retried = stage.client().await?.pay(&order).await?;
    // The next owner of a file knows that the last one is dead. On a shared store only the lease tells.
    let (promise, code) = if stage.url.has_one_owner() {
        let promise = "the gateway that took over does not guess: 409 idempotency_outcome_unknown";
        (promise, "idempotency_outcome_unknown")
    } else {
        let promise =
            "until its lease lapses, the gateway that died may still be running it: 409 in progress";
        (promise, "idempotency_key_in_progress")
    };
    act.promise(promise, is_refused(&retried, 409, code));
    Ok(stage.counted(act, &order, 2, 1))
}

impl Stage {
    /// All clients are connected before the first request is sent.
    async fn pay_at_once(&self, order: &Order) -> Result<Vec<Answer>> {
        let start = Arc::new(Barrier::new(STORM));
        let mut paying = JoinSet::new();
        for _ in 0..STORM {
            let (mut client, order) = (self.client().await?, order.clone());
            let start = start.clone();
            paying.spawn(async move {
                start.wait().await;
                client.pay(&order).await
            });
        }
        paying.join_all().await.into_iter().collect()
    }

    fn counted(&self, mut act: Act, order: &Order, requests: usize, charged_expected: usize) -> Act {
        act.requests = requests;
        act.charged = self.bank.charged(&order.payment.order);
        act.charged_expected = charged_expected;
        act
    }

    /// How long after the charge the last client got its answer.
    fn woken(&self, mut act: Act, order: &Order, ended: Instant) -> Act {
        let charges = self.bank.charges();
        let charge = charges.iter().find(|charge| charge.payment.order == order.payment.order);
        act.woken_after = charge.map(|charge| ended.saturating_duration_since(charge.at));
        act
    }
}

/// Ann pays an order named like its key.
fn order(key: &'static str, card: Card) -> Order {
    let payment = Payment { order: format!("order-of-{key}"), card, amount: 1_200, token: None };
    Order { caller: "ann", key, path: PAYMENTS, payment, wait: None }
}

/// Status, body, and what the service itself said in headers.
fn same(first: &Answer, second: &Answer) -> bool {
    let own =
        |answer: &Answer| ["content-type", "location"].map(|name| answer.header(name).map(str::to_owned));
    first.status == second.status && first.body == second.body && own(first) == own(second)
}

fn is_refused(answer: &Answer, status: u16, code: &str) -> bool {
    answer.status == status && answer.code().as_deref() == Some(code)
}

/// `1 × 201, 63 × 409`
fn statuses(answers: &[Answer]) -> String {
    let mut counts = BTreeMap::new();
    for answer in answers {
        *counts.entry(answer.status).or_insert(0) += 1;
    }
    let counts: Vec<_> =
        counts.iter().map(|(status, count): (&u16, &usize)| format!("{count} × {status}")).collect();
    counts.join(", ")
}

/// The target of `<…>; rel="status"`.
fn status_link(link: &str) -> Option<&str> {
    let (target, parameters) = link.strip_prefix('<')?.split_once('>')?;
    parameters.contains("rel=\"status\"").then_some(target)
}
