//! Whether every row's message was delivered, in order, and no other; judged once nothing fails any more.
//!
//! 1. A row and its message are there together or not at all.
//! 2. Within a group a message first arrives after those before it were taken. One is before another if its COMMIT was
//!    acknowledged before the other transaction began; for transactions that overlap there is no order.
//! 3. Each delivery has a number of its own: one for each claim. That no claim is made while another holds is judged by what
//!    the database recorded, in `audit.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use onlyonce_testkit::engines::postgres::Server;

use crate::application::{Commit, Row};
use crate::destination::Arrival;
use crate::run::Run;

/// Nothing fails any more: what was not delivered within this never will be.
const DELIVERED_WITHIN: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(250);
const WAITING: &str = "SELECT count(*) FROM onlyonce_messages WHERE state <> 'delivered'";
const STORED: &str = "SELECT key, state, deliveries FROM onlyonce_messages";

/// A message as the store has it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    key: String,
    state: String,
    deliveries: u32,
}

/// All that is known about rows and messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) rows: Vec<Row>,
    pub(crate) commits: Vec<Commit>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) stored: Vec<Stored>,
}

/// Waits until everything is delivered.
pub(crate) fn settle(server: &Server, run: &Run) {
    let began = Instant::now();
    loop {
        let waiting = server.sql(WAITING);
        if waiting == "0" {
            return;
        }
        if began.elapsed() > DELIVERED_WITHIN {
            return run.wrong(format!("{waiting} messages are not delivered after {DELIVERED_WITHIN:?}"));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// All messages, as the store has them.
pub(crate) fn stored(server: &Server) -> Result<Vec<Stored>> {
    let read = |line: &str| {
        let mut parts = line.split('|');
        let (key, state) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        Some(Stored { key, state, deliveries: parts.next()?.parse().ok()? })
    };
    server
        .sql(STORED)
        .lines()
        .map(|line| read(line).with_context(|| format!("no message: {line:?}")))
        .collect()
}

/// Counts what must have happened for this to prove anything.
pub(crate) fn count(evidence: &Evidence, run: &Run) {
    let mut taken = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for arrival in &evidence.arrivals {
        let mut tally = run.tally();
        if !seen.insert(&arrival.key) {
            tally.happened("a message was delivered again");
        }
        if arrival.manner.takes() && !taken.insert(&arrival.key) {
            tally.happened("a message was taken twice");
        }
    }
}

/// What is broken; nothing where every promise was kept.
pub(crate) fn judge(evidence: &Evidence) -> Vec<String> {
    let mut broken = rows(evidence);
    broken.extend(stored_all(evidence));
    let by_payment = by_payment(&evidence.arrivals);
    broken.extend(delivered(evidence, &by_payment));
    for (payment, arrivals) in &by_payment {
        broken.extend(same(arrivals).into_iter().map(|why| format!("payment {payment}: {why}")));
    }
    broken.extend(order(evidence, &by_payment));
    broken
}

type ByPayment<'a> = BTreeMap<u64, Vec<&'a Arrival>>;

fn by_payment(arrivals: &[Arrival]) -> ByPayment<'_> {
    let mut by_payment: ByPayment<'_> = BTreeMap::new();
    for arrival in arrivals {
        by_payment.entry(arrival.payment).or_default().push(arrival);
    }
    by_payment
}

/// Each key has one row, and what was acknowledged is there.
fn rows(evidence: &Evidence) -> Vec<String> {
    let mut broken = Vec::new();
    let mut by_subject: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for row in &evidence.rows {
        by_subject.entry(row.subject).or_default().push(row.id);
    }
    for (subject, ids) in by_subject.iter().filter(|(_, ids)| ids.len() > 1) {
        broken.push(format!("key {subject} has rows {ids:?}"));
    }
    let tokens: BTreeSet<_> = evidence.rows.iter().map(|row| row.token).collect();
    let lost = evidence.commits.iter().filter(|commit| !tokens.contains(&commit.token));
    broken.extend(
        lost.map(|commit| {
            format!("token {}: its COMMIT was acknowledged, and there is no row", commit.token)
        }),
    );
    broken
}

/// A message for each row, and each is delivered.
fn stored_all(evidence: &Evidence) -> Vec<String> {
    let Evidence { rows, stored, arrivals, .. } = evidence;
    let mut broken = Vec::new();
    if rows.len() != stored.len() {
        broken.push(format!("{} rows have {} messages", rows.len(), stored.len()));
    }
    let by_key: BTreeMap<_, _> = stored.iter().map(|stored| (stored.key.as_str(), stored)).collect();
    let ended = stored.iter().filter(|stored| stored.state != "delivered");
    broken.extend(ended.map(|stored| format!("message {} is {} in the end", stored.key, stored.state)));
    for arrival in arrivals {
        let Arrival { key, number, .. } = arrival;
        match by_key.get(key.as_str()) {
            None => broken.push(format!("message {key} arrived, and is not stored")),
            Some(stored) if *number > stored.deliveries => {
                broken.push(format!(
                    "delivery {number} of {key} arrived, and {} are stored",
                    stored.deliveries
                ));
            }
            Some(_) => {}
        }
    }
    broken
}

/// What has a row was taken, and nothing else arrived.
fn delivered(evidence: &Evidence, by_payment: &ByPayment<'_>) -> Vec<String> {
    let mut broken = Vec::new();
    let rows: BTreeMap<_, _> = evidence.rows.iter().map(|row| (row.id, row)).collect();
    for id in rows.keys() {
        let is_taken =
            by_payment.get(id).is_some_and(|arrivals| arrivals.iter().any(|own| own.manner.takes()));
        if !is_taken {
            broken.push(format!("payment {id}: its message was lost"));
        }
    }
    for (payment, arrivals) in by_payment {
        match rows.get(payment) {
            None => broken.push(format!("payment {payment}: a message of a row that is not there")),
            Some(row) if arrivals.iter().any(|arrival| arrival.customer != row.customer) => {
                broken.push(format!("payment {payment}: a message for another customer"));
            }
            Some(_) => {}
        }
    }
    broken
}

/// The deliveries of one message have one key, and numbers of their own.
fn same(arrivals: &[&Arrival]) -> Option<String> {
    let keys: BTreeSet<_> = arrivals.iter().map(|arrival| &arrival.key).collect();
    let numbers: BTreeSet<_> = arrivals.iter().map(|arrival| arrival.number).collect();
    if keys.len() > 1 {
        return Some(format!("keys {keys:?}"));
    }
    (numbers.len() < arrivals.len()).then(|| {
        let all: Vec<_> = arrivals.iter().map(|arrival| arrival.number).collect();
        format!("deliveries {all:?}: one number twice")
    })
}

fn order(evidence: &Evidence, by_payment: &ByPayment<'_>) -> Vec<String> {
    let commits: BTreeMap<_, _> = evidence.commits.iter().map(|commit| (commit.token, commit)).collect();
    let mut groups: BTreeMap<&str, Vec<(u64, &Commit, u64, u64)>> = BTreeMap::new();
    for row in &evidence.rows {
        let arrivals = by_payment.get(&row.id).map(Vec::as_slice).unwrap_or_default();
        let first = arrivals.iter().map(|arrival| arrival.tick).min();
        let taken =
            arrivals.iter().filter(|arrival| arrival.manner.takes()).map(|arrival| arrival.tick).min();
        if let (Some(commit), Some(first), Some(taken)) = (commits.get(&row.token), first, taken) {
            groups.entry(&row.customer).or_default().push((row.id, commit, first, taken));
        }
    }
    let mut broken = Vec::new();
    for (customer, messages) in groups {
        for (early, before, _, taken) in &messages {
            let overtaken = messages
                .iter()
                .filter(|(_, after, first, _)| before.acknowledged < after.began && first < taken);
            broken.extend(overtaken.map(|(late, ..)| {
                format!("customer {customer}: payment {late} arrived before payment {early} was taken")
            }));
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use onlyonce_testkit::history::Said;

    use super::*;
    use crate::destination::Manner;

    fn row(id: u64) -> Row {
        let said = Said { status: 201, body: String::new() };
        let number = usize::try_from(id).unwrap();
        Row {
            id,
            at: 0,
            subject: number,
            token: u32::try_from(id).unwrap(),
            customer: "ann-1".to_owned(),
            said,
        }
    }

    fn arrival(tick: u64, payment: u64, number: u32, manner: Manner) -> Arrival {
        let (key, customer) = (format!("k-{payment}"), "ann-1".to_owned());
        Arrival { tick, key, number, payment, customer, manner }
    }

    /// Two payments of one customer, one after the other; the message of the first is delivered twice.
    fn kept() -> Evidence {
        let commit = |token, began, acknowledged| Commit { token, began, acknowledged };
        let stored =
            |id, deliveries| Stored { key: format!("k-{id}"), state: "delivered".to_owned(), deliveries };
        Evidence {
            rows: vec![row(1), row(2)],
            commits: vec![commit(1, 1, 2), commit(2, 3, 4)],
            arrivals: vec![
                arrival(5, 1, 1, Manner::Fails),
                arrival(6, 1, 2, Manner::Takes),
                arrival(7, 1, 3, Manner::Takes),
                arrival(8, 2, 1, Manner::Takes),
            ],
            stored: vec![stored(1, 3), stored(2, 1)],
        }
    }

    #[track_caller]
    fn is_found(words: &str, plant: impl Fn(&mut Evidence)) {
        let mut evidence = kept();
        plant(&mut evidence);
        let broken = judge(&evidence);
        assert!(broken.iter().any(|broken| broken.contains(words)), "{words}: {broken:?}");
    }

    /// W01, W05
    #[test]
    fn messages_that_arrived_in_order_are_in_order() {
        assert_eq!(judge(&kept()), [""; 0]);
        let mut overlapping = kept();
        overlapping.commits[1].began = 1;
        overlapping.arrivals[3].tick = 4;
        assert_eq!(judge(&overlapping), [""; 0], "transactions that overlap have no order");
    }

    /// Each is planted, and each is found.
    #[test]
    fn planted_faults_of_rows_and_messages_are_found() {
        is_found("key 1 has rows [1, 2]", |evidence| evidence.rows[1].subject = 1);
        is_found("and there is no row", |evidence| {
            evidence.rows.pop();
        });
        is_found("its message was lost", |evidence| {
            evidence.arrivals.pop();
        });
        is_found("its message was lost", |evidence| evidence.arrivals[3].manner = Manner::Fails);
        is_found("2 rows have 1 messages", |evidence| {
            evidence.stored.pop();
        });
        is_found("is waiting in the end", |evidence| evidence.stored[1].state = "waiting".to_owned());
        is_found("arrived before payment 1 was taken", |evidence| evidence.arrivals[3].tick = 5);
        is_found("a row that is not there", |evidence| evidence.arrivals[3].payment = 9);
        is_found("for another customer", |evidence| evidence.arrivals[3].customer = "bob-1".to_owned());
        is_found("keys", |evidence| evidence.arrivals[2].key = "k-2".to_owned());
        is_found("one number twice", |evidence| evidence.arrivals[2].number = 2);
        is_found("and 1 are stored", |evidence| evidence.arrivals[3].number = 2);
    }
}
