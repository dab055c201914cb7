//! Counts of faults, answers and transitions: a run with too few of any kind proves nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::behaviour::Behaviour;
use crate::fault::Fault;

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
    pub(crate) fn missing(&self, minutes: u64) -> Vec<String> {
        let short = |name: &str, times: u64, floor: u64| {
            (times < floor).then(|| format!("{name}: {times} times, and {floor} are the least"))
        };
        let of = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or(0);
        let fired = FIRED_PER_MINUTE * minutes;
        let faults = Fault::all().into_iter().map(|fault| {
            let name = fault.to_string();
            short(&name, of(&self.faults, &name), fired)
        });
        let behaviours = Behaviour::ALL.iter().map(|behaviour| {
            let name = behaviour.to_string();
            short(&format!("the service {name}"), of(&self.behaviours, &name), fired)
        });
        let driven =
            DRIVEN_PER_MINUTE.iter().map(|(name, floor)| short(name, self.driven(name), floor * minutes));
        faults.chain(behaviours).chain(driven).flatten().collect()
    }

    fn driven(&self, name: &str) -> u64 {
        if name == "replayed" {
            return self.replays;
        }
        let told = self.answers.iter().filter(|(own, _)| own.ends_with(name)).map(|(_, times)| times);
        told.sum::<u64>() + self.writes.get(name).copied().unwrap_or(0)
    }

    fn groups(&self) -> [(&'static str, &Counts); 7] {
        [
            ("answers", &self.answers),
            ("faults", &self.faults),
            ("the service", &self.behaviours),
            ("gateways", &self.nodes),
            ("the store", &self.writes),
            ("ends of keys", &self.ends),
            ("effects", &self.effects),
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

fn add(counts: &mut Counts, name: &str, times: u64) {
    *counts.entry(name.to_owned()).or_default() += times;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::OfNode;

    /// A run in which everything fired as often as it must in these minutes.
    fn enough(minutes: u64) -> Tally {
        let mut tally = Tally::default();
        for _ in 0..minutes {
            Fault::all().into_iter().for_each(|fault| tally.fault(fault));
            Behaviour::ALL.iter().for_each(|behaviour| tally.behaviour(*behaviour));
        }
        for (name, floor) in DRIVEN_PER_MINUTE {
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
        assert_eq!(enough(2).missing(2), [""; 0]);
    }

    #[test]
    fn a_kind_that_fired_too_seldom_makes_a_run_void() {
        let missing = enough(1).missing(2);
        let expected = Fault::all().len() + Behaviour::ALL.len() + DRIVEN_PER_MINUTE.len();
        assert_eq!(missing.len(), expected, "{missing:#?}");
        let mut one_short = enough(2);
        one_short.faults.remove(&Fault::Node(OfNode::Frozen).to_string());
        assert_eq!(one_short.missing(2), ["a gateway stands still: 0 times, and 2 are the least"]);
    }
}
