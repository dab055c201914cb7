//! What a setting of the gateway costs: the same load on a gateway with it and on one without it, in turns.

use std::time::Duration;

use anyhow::Result;

use crate::figures::Sample;
use crate::lines::{Bound, Line, Pair, medians, pairs, ratios, spread_words};
use crate::load::{self, Callers, Work};
use crate::server::Server;
use crate::subjects::{CALLER, Place, Program, Subject, subject};
use crate::tools::Tools;

/// What is promised of a setting.
struct Compared {
    what: &'static str,
    without: Subject,
    with: Subject,
    /// How often it is measured, for each round of the rest.
    turns: u32,
    of: Figure,
    bound: Bound,
    target: &'static str,
}

/// What is compared.
#[derive(Clone, Copy)]
enum Figure {
    Rps,
    /// The steadier figure: for what costs less than rounds differ by.
    Cpu,
}

const TIMED: &[&str] = &["Authorization: Bearer bench", "X-Request-Time: {now}"];
const IN_BODY: &[&str] = &["Authorization: Bearer bench", "X-Key-In-Body: yes"];
const KILOBYTE: &[&str] = &["Authorization: Bearer bench", "X-Answer-Bytes: 1024"];

/// Every limit, so high that nobody meets one.
const LIMITS: &str = r#"
[policy]
request_time_header = "X-Request-Time"
request_age_max = "1h"
[limits]
keys_per_second = 10000000
keys_per_second_total = 10000000
lookups_per_second = 10000000
lookups_per_second_total = 10000000
keys_alive = 1000000000
keys_alive_total = 1000000000
in_flight = 100000
in_flight_total = 100000
"#;
const JSON_KEY: &str = "[policy]\nkey_from = [\"json:/idempotency_key\"]\n";
const ENCRYPTED: &str = "[encryption]\nkeys = [\"env:ENCRYPTION_KEY\"]\n";
/// More may wait than is sent: what is accepted faster than it is run is not refused.
const ACCEPTING: &str = r#"
pending_max = 1000000
[policy]
accept = "always"
[encryption]
keys = ["env:ENCRYPTION_KEY"]
"#;

const fn gateway(place: Place, settings: &'static str, headers: &'static [&'static str]) -> Subject {
    Subject { headers, ..subject("gateway", Program::Gateway { place, settings }) }
}

static COMPARED: [Compared; 4] = [
    Compared {
        what: "limits and request age, memory, unique: CPU a request to that without",
        without: gateway(Place::Memory, "", TIMED),
        with: gateway(Place::Memory, LIMITS, TIMED),
        turns: 5,
        of: Figure::Cpu,
        bound: Bound::AtMost { floor: 1.01, goal: 1.01 },
        target: "≤ 1.01",
    },
    Compared {
        what: "a key in JSON, memory, unique: CPU a request to the same key in the header",
        without: gateway(Place::Memory, "", IN_BODY),
        with: gateway(Place::Memory, JSON_KEY, IN_BODY),
        turns: 5,
        of: Figure::Cpu,
        bound: Bound::AtMost { floor: 1.02, goal: 1.02 },
        target: "≤ 1.02",
    },
    Compared {
        what: "answers of 1 KB encrypted, SQLite, unique: RPS to that without",
        without: gateway(Place::File, "", KILOBYTE),
        with: gateway(Place::File, ENCRYPTED, KILOBYTE),
        turns: 2,
        of: Figure::Rps,
        bound: Bound::AtLeast { floor: 0.95, goal: 0.95 },
        target: "≥ 0.95",
    },
    Compared {
        what: "accepting, with workers running beside it, SQLite: RPS to unique",
        without: gateway(Place::File, "", CALLER),
        with: gateway(Place::File, ACCEPTING, CALLER),
        turns: 2,
        of: Figure::Rps,
        bound: Bound::AtLeast { floor: 1.0, goal: 1.0 },
        target: "≥ 1.00",
    },
];

/// All of them.
pub(crate) fn measure(tools: &Tools, rounds: u32, seconds: u64) -> Result<Vec<Line>> {
    COMPARED.iter().map(|compared| compared.measured(tools, rounds, Duration::from_secs(seconds))).collect()
}

impl Compared {
    fn measured(&self, tools: &Tools, rounds: u32, time: Duration) -> Result<Line> {
        eprintln!("{}", self.what);
        let mut ran = 0.0;
        let measured = pairs(rounds * self.turns, ["without", "with"], |round| {
            let (without, with);
            // Who begins changes from round to round.
            if round % 2 == 0 {
                without = sample(tools, &self.without, time)?;
                with = sample(tools, &self.with, time)?;
            } else {
                with = sample(tools, &self.with, time)?;
                without = sample(tools, &self.without, time)?;
            }
            ran = with.runs_per_second;
            Ok(Pair { without: without.sample, with: with.sample })
        })?;
        Ok(self.line(&measured, ran))
    }

    fn line(&self, measured: &[Pair], ran: f64) -> Line {
        let of: fn(&Sample) -> f64 = match self.of {
            Figure::Rps => |sample| sample.rps,
            Figure::Cpu => |sample| sample.cpu_us,
        };
        let words = |of, digits| match (ratios(measured, of), medians(measured, of)) {
            (Some(ratio), Some([without, with])) => {
                format!("{} ({with:.0} to {without:.0})", spread_words(ratio, digits))
            }
            (_, _) => "nothing".to_owned(),
        };
        let other = match self.of {
            Figure::Rps => format!("CPU {}", words(|sample| sample.cpu_us, 2)),
            Figure::Cpu => format!("RPS {}", words(|sample| sample.rps, 3)),
        };
        let ratio = ratios(measured, of).map_or(f64::NAN, |ratio| ratio.median);
        Line {
            what: self.what.to_owned(),
            measured: format!("{}; {other}; the handler ran {ran:.0} times a second", words(of, 3)),
            target: self.target.to_owned(),
            standing: self.bound.standing(ratio),
        }
    }
}

struct Ran {
    sample: Sample,
    runs_per_second: f64,
}

/// On a gateway of its own: what one leaves to be done later is no burden on the next.
fn sample(tools: &Tools, subject: &Subject, time: Duration) -> Result<Ran> {
    let server = Server::start(tools, subject)?;
    let work = Work { workload: "unique", run: "run", callers: Callers::Many, time };
    load::warm_up(&server, subject, work)?;
    let before = server.runs()?;
    let sample = load::wrk_once(&server, subject, work)?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let runs_per_second = (server.runs()? - before) as f64 / time.as_secs_f64();
    Ok(Ran { sample, runs_per_second })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(without: f64, with: f64) -> Pair {
        let sample = |figure| Sample { rps: figure, p50_ms: 1.0, p99_ms: 1.0, cpu_us: figure, requests: 1 };
        Pair { without: sample(without), with: sample(with) }
    }

    #[test]
    fn a_setting_that_costs_too_much_falls_short() {
        use crate::figures::Standing;
        let [limits, json_key, encrypted, accepting] = &COMPARED;
        for (compared, kept, broken) in [
            (limits, 100.9, 101.1),
            (json_key, 101.9, 102.1),
            (encrypted, 95.0, 94.9),
            (accepting, 100.0, 99.9),
        ] {
            assert_eq!(
                compared.line(&[pair(100.0, kept)], 1.0).standing,
                Standing::Reached,
                "{}",
                compared.what
            );
            assert_eq!(
                compared.line(&[pair(100.0, broken)], 1.0).standing,
                Standing::ShortOfPromise,
                "{}",
                compared.what
            );
        }
        assert_eq!(limits.line(&[], 0.0).standing, Standing::ShortOfPromise, "nothing was measured");
    }
}
