//! Counts of faults, answers and transitions: a run with too few of any kind proves nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::behaviour::Behaviour;
use crate::destination::Manner;
use crate::fault::Fault;
use crate::store::Store;

/// What the product must have been driven into in a minute, at least so often; in [`Tally::missing`].
const DRIVEN_PER_MINUTE: [(&str, u64); 13] = [
    ("a lease lapsed", 3),
    ("ran again", 5),
    ("became unknown", 5),
    ("settled by the probe: happened", 5),
    ("settled: did not happen", 3),
    ("a lease was renewed", 3),
    ("expired, and reaped", 5),
    ("expired, and used anew", 5),
    ("replayed", 50),
    ("idempotency_key_in_progress", 10),
    ("idempotency_key_reused", 10),
    ("idempotency_store_unavailable", 5),
    ("the client hung up", 10),
];
/// The same of local work and its messages.
const DRIVEN_LOCAL_PER_MINUTE: [(&str, u64); 7] = [
    ("a row was committed", 30),
    ("a session was lost before COMMIT", 3),
    ("a COMMIT was not answered", 3),
    ("OO002: the COMMIT that was not answered went through", 1),
    ("a message was delivered again", 10),
    ("a message was taken twice", 3),
    ("a claim lapsed", 1),
];
/// Every kind of fault and every behaviour fires so often in a minute, at least.
const FIRED_PER_MINUTE: u64 = 1;

/// By what was counted, in the order of their names.
type Counts = BTreeMap<String, u64>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// What became of requests: statuses and codes, and what clients did.
    answers: Counts,
    faults: Counts,
    behaviours: Counts,
    nodes: Counts,
    /// What the store was seen to write.
    writes: Counts,
    /// How the keys ended, by kind.
    ends: Counts,
    /// Work done, by kind.
    effects: Counts,
    /// Transactions of the application, and their messages.
    messages: Counts,
    /// How the destination behaved.
    destination: Counts,
    replays: u64,
}

impl Tally {
    pub(crate) fn answer(&mut self, status: u16, code: Option<&str>, is_replay: bool) {
        let name = match code {
            Some(code) => format!("{status} {code}"),
            None if is_replay => format!("{status} replayed"),
            None => format!("{status} of the service"),
        };
        self.replays += u64::from(is_replay);
        add(&mut self.answers, &name, 1);
    }

    /// What a client did other than wait for its answer.
    pub(crate) fn client(&mut self, what: &str) {
        add(&mut self.answers, what, 1);
    }

    /// What a gateway did that is neither an answer nor our doing.
    pub(crate) fn node(&mut self, what: &str) {
        add(&mut self.nodes, what, 1);
    }

    pub(crate) fn fault(&mut self, fault: Fault) {
        add(&mut self.faults, &fault.to_string(), 1);
    }

    pub(crate) fn behaviour(&mut self, behaviour: Behaviour) {
        add(&mut self.behaviours, &behaviour.to_string(), 1);
    }

    pub(crate) fn delivery(&mut self, manner: Manner) {
        add(&mut self.destination, &manner.to_string(), 1);
    }

    /// To a transaction of the application, or to a message.
    pub(crate) fn happened(&mut self, what: &str) {
        add(&mut self.messages, what, 1);
    }

    pub(crate) fn wrote(&mut self, what: &str, times: u64) {
        add(&mut self.writes, what, times);
    }

    pub(crate) fn end(&mut self, kind: &str, end: &str) {
        add(&mut self.ends, &format!("{kind}: {end}"), 1);
    }

    pub(crate) fn effects(&mut self, kind: &str, times: u64) {
        add(&mut self.effects, kind, times);
    }

    pub(crate) fn fired(&self) -> u64 {
        self.faults.values().sum()
    }

    /// What happened too seldom for so many minutes: with this the run is void.
    pub(crate) fn missing(&self, store: Store, minutes: u64) -> Vec<String> {
        let short = |name: &str, times: u64, floor: u64| {
            (times < floor).then(|| format!("{name}: {times} times, and {floor} are the least"))
        };
        let of = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or(0);
        let fired = FIRED_PER_MINUTE * minutes;
        let faults = Fault::of(store).into_iter().map(|fault| {
            let name = fault.to_string();
            short(&name, of(&self.faults, &name), fired)
        });
        let behaviours = Behaviour::ALL.iter().map(|behaviour| {
            let name = behaviour.to_string();
            short(&format!("the service {name}"), of(&self.behaviours, &name), fired)
        });
        let manners = manners(store).iter().map(|manner| {
            let name = manner.to_string();
            short(&format!("the destination {name}"), of(&self.destination, &name), fired)
        });
        let driven = driven(store).map(|(name, floor)| short(name, self.driven(name), floor * minutes));
        faults.chain(behaviours).chain(manners).chain(driven).flatten().collect()
    }

    fn driven(&self, name: &str) -> u64 {
        if name == "replayed" {
            return self.replays;
        }
        let told = self.answers.iter().filter(|(own, _)| own.ends_with(name)).map(|(_, times)| times);
        let of = |counts: &Counts| counts.get(name).copied().unwrap_or(0);
        told.sum::<u64>() + of(&self.writes) + of(&self.messages)
    }

    fn groups(&self) -> [(&'static str, &Counts); 9] {
        [
            ("answers", &self.answers),
            ("faults", &self.faults),
            ("the service", &self.behaviours),
            ("gateways", &self.nodes),
            ("the store", &self.writes),
            ("ends of keys", &self.ends),
            ("effects", &self.effects),
            ("transactions and messages", &self.messages),
            ("the destination", &self.destination),
        ]
    }

    pub(crate) fn json(&self) -> Value {
        self.groups().into_iter().map(|(name, counts)| (name.to_owned(), json!(counts))).collect()
    }

    /// A table for people.
    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        for (name, counts) in self.groups() {
            table.push_str(&format!("\n{name}, {}\n", counts.values().sum::<u64>()));
            for (what, times) in counts {
                table.push_str(&format!("{times:>9}  {what}\n"));
            }
        }
        table
    }
}

/// What the product must have been driven into on this store.
fn driven(store: Store) -> impl Iterator<Item = (&'static str, u64)> {
    let local = DRIVEN_LOCAL_PER_MINUTE.into_iter().filter(move |_| store.has_local_work());
    DRIVEN_PER_MINUTE.into_iter().chain(local)
}

/// How the destination must have behaved: without local work there are no messages.
fn manners(store: Store) -> &'static [Manner] {
    if store.has_local_work() { &Manner::ALL } else { &[] }
}

fn add(counts: &mut Counts, name: &str, times: u64) {
    *counts.entry(name.to_owned()).or_default() += times;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::OfNode;

    const ALL: [Store; 3] = [Store::Postgres, Store::Mysql, Store::Redis];

    /// A run in which everything fired as often as it must in these minutes.
    fn enough(store: Store, minutes: u64) -> Tally {
        let mut tally = Tally::default();
        for _ in 0..minutes {
            Fault::of(store).into_iter().for_each(|fault| tally.fault(fault));
            Behaviour::ALL.iter().for_each(|behaviour| tally.behaviour(*behaviour));
            manners(store).iter().for_each(|manner| tally.delivery(*manner));
        }
        for (name, floor) in driven(store) {
            for _ in 0..floor * minutes {
                match name {
                    "replayed" => tally.answer(201, None, true),
                    _ => tally.client(name),
                }
            }
        }
        tally
    }

    #[test]
    fn a_run_with_enough_faults_of_every_kind_counts() {
        for store in ALL {
            assert_eq!(enough(store, 2).missing(store, 2), [""; 0]);
        }
    }

    #[test]
    fn a_kind_that_fired_too_seldom_makes_a_run_void() {
        for store in ALL {
            let missing = enough(store, 1).missing(store, 2);
            let expected =
                Fault::of(store).len() + Behaviour::ALL.len() + manners(store).len() + driven(store).count();
            assert_eq!(missing.len(), expected, "{missing:#?}");
            let mut one_short = enough(store, 2);
            one_short.faults.remove(&Fault::Node(OfNode::Frozen).to_string());
            assert_eq!(one_short.missing(store, 2), ["a gateway stands still: 0 times, and 2 are the least"]);
        }
    }

    #[test]
    fn what_a_store_cannot_do_is_not_asked_of_it() {
        let missing = enough(Store::Redis, 1).missing(Store::Postgres, 1);
        assert!(missing.iter().any(|name| name.starts_with("a row was committed")), "{missing:#?}");
        assert!(missing.iter().any(|name| name.contains("from the service to the server")), "{missing:#?}");
    }
}
