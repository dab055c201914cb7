//! `cargo xtask bench cache`: a Redis in front of PostgreSQL beside PostgreSQL alone.
//!
//! New keys pay a look into the cache for nothing. Replays on a node that has no copy of its own are what it is for: each key is
//! asked for once on each node, so that no copy in a node's own memory answers.

use anyhow::{Context, Result, anyhow, bail};
use onlyonce_testkit::engines::redis::{self, Owned};
use onlyonce_testkit::verdict::Verdict;
use serde_json::json;

use crate::figures::{Sample, Standing};
use crate::growth::Extent;
use crate::lines::{self, Bound, Line, Pair, medians, pairs, ratios, spread_words};
use crate::load::{self, Callers};
use crate::server::Server;
use crate::subjects::{LAYER_POSTGRES, POSTGRES};
use crate::tools::Tools;
use crate::write_json;

const LAYER_PACKAGE: &str = "bench-layer";
/// A cache as docs/engines.md recommends it.
const SETTINGS: [(&str, &str); 3] =
    [("appendonly", "no"), ("maxmemory", "512mb"), ("maxmemory-policy", "allkeys-lru")];
/// So many times as long as a measurement is written before it: replays are faster, and must not run out of keys.
const FILLED_FOR: u64 = 5;
const UNIQUE: Bound = Bound::AtLeast { floor: 0.85, goal: 0.85 };
const REPLAY: Bound = Bound::AtLeast { floor: 1.2, goal: 1.5 };

/// Everything, written and printed.
pub(crate) fn run(tools: &Tools, extent: Extent) -> Result<Verdict> {
    tools.build(LAYER_PACKAGE)?;
    redis::install().map_err(|reason| anyhow!(reason))?;
    let cache = redis::Server::start(&SETTINGS).map_err(|reason| anyhow!(reason))?;
    let bench = Bench { tools, extent, cache };
    let names = ["PostgreSQL alone", "with the cache"];
    let unique = pairs(extent.rounds, names, |round| bench.unique(round)).context("new keys")?;
    let replays = pairs(extent.rounds, names, |_| bench.replays()).context("replays on a new node")?;
    let lines = [
        line("new keys: RPS with the cache to that without", &unique, UNIQUE, "≥ 0.85"),
        line("replays that a node has no copy of: the same", &replays, REPLAY, "1.2 → ≥ 1.5"),
    ];
    let json = |pairs: &[Pair]| pairs.iter().map(Pair::json).collect::<Vec<_>>();
    let told = lines.iter().map(Line::json).collect::<Vec<_>>();
    write_json("cache.json", &json!({ "lines": told, "unique": json(&unique), "replays": json(&replays) }))?;
    eprintln!("\nwritten: bench/results/cache.json");
    print!("\n{}", lines::table(&lines));
    let is_kept = lines.iter().all(|line| line.standing != Standing::ShortOfPromise);
    Ok(if is_kept { Verdict::Yes } else { Verdict::No })
}

fn line(what: &str, measured: &[Pair], bound: Bound, target: &str) -> Line {
    let rps: fn(&Sample) -> f64 = |sample| sample.rps;
    let words = match (ratios(measured, rps), medians(measured, rps)) {
        (Some(ratio), Some([without, with])) => {
            format!("{} ({with:.0} to {without:.0})", spread_words(ratio, 2))
        }
        (_, _) => "nothing".to_owned(),
    };
    let ratio = ratios(measured, rps).map_or(f64::NAN, |ratio| ratio.median);
    let standing = bound.standing(ratio);
    Line { what: what.to_owned(), measured: words, target: target.to_owned(), standing }
}

struct Bench<'a> {
    tools: &'a Tools,
    extent: Extent,
    cache: Owned,
}

impl Bench<'_> {
    /// A node on this database.
    fn node(&self, url: &str, has_cache: bool) -> Result<Server> {
        let cache = self.cache.url();
        let flags: &[&str] = if has_cache { &["--cache", &cache] } else { &[] };
        Server::on_database(self.tools, LAYER_PACKAGE, url, flags)
    }

    /// New keys, on a database for each. Who begins changes from round to round.
    fn unique(&self, round: u32) -> Result<Pair> {
        let measure = |has_cache| {
            let database = self.tools.database()?;
            let node = self.node(&database.url(&database.fresh_for_one()), has_cache)?;
            load::wrk(&node, POSTGRES.named(LAYER_POSTGRES), self.extent.work("unique", "run", Callers::Many))
        };
        if round.is_multiple_of(2) {
            let with = measure(true)?;
            return Ok(Pair { without: measure(false)?, with });
        }
        Ok(Pair { without: measure(false)?, with: measure(true)? })
    }

    /// Replays on nodes that have just started, each key once on each of them.
    fn replays(&self) -> Result<Pair> {
        let database = self.tools.database()?;
        let url = database.url(&database.fresh_for_one());
        let work = self.extent.work("unique", "cold", Callers::Many);
        let on = |has_cache, work| -> Result<(Sample, u64)> {
            let node = self.node(&url, has_cache)?;
            let sample = load::wrk_once(&node, POSTGRES.named(LAYER_POSTGRES), work)?;
            Ok((sample, node.count()?))
        };
        on(false, load::Work { time: work.time * u32::try_from(FILLED_FOR)?, ..work })?;
        let (without, without_ran) = on(false, work)?;
        // Two nodes leave copies: what the first had too much to do for, the second makes up.
        for _ in 0..2 {
            on(true, load::Work { time: work.time * 2, ..work })?;
        }
        let (with, with_ran) = on(true, work)?;
        if without_ran + with_ran > 0 {
            bail!("void, {without_ran} and {with_ran} requests were no replays: too few keys were written");
        }
        Ok(Pair { without, with })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_costs_too_much_or_brings_too_little_falls_short() {
        let pair = |without, with| {
            let sample = |rps| Sample { rps, p50_ms: 1.0, p99_ms: 1.0, cpu_us: 1.0, requests: 1 };
            Pair { without: sample(without), with: sample(with) }
        };
        for (bound, ratio, standing) in [
            (UNIQUE, 0.85, Standing::Reached),
            (UNIQUE, 0.84, Standing::ShortOfPromise),
            (REPLAY, 1.5, Standing::Reached),
            (REPLAY, 1.2, Standing::ShortOfGoal),
            (REPLAY, 1.19, Standing::ShortOfPromise),
        ] {
            assert_eq!(line("it", &[pair(1.0, ratio)], bound, "").standing, standing, "{ratio}");
        }
        assert_eq!(line("it", &[], UNIQUE, "").standing, Standing::ShortOfPromise, "nothing was measured");
    }
}
