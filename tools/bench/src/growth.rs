//! `cargo xtask bench growth`: what the durable store costs one caller, and what becomes of it as the work grows.
//!
//! Every pair of figures is measured in turns, like the rows of the table. The large file is filled once; a file of ten
//! thousand records is filled anew for each round, since the load itself makes it larger.

mod asking;
mod results;

use std::fs::{File, OpenOptions};
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use onlyonce_testkit::process::End;
use serde_json::Value;

use self::results::{Cost, Kill, Listing, OneCaller, Results, Written};
use crate::figures::Sample;
use crate::folder::Folder;
use crate::lines::{self, Pair};
use crate::load::{self, Callers, Work};
use crate::reaping::{self, Load, Reaping};
use crate::server::Server;
use crate::subjects::{GATEWAY, GATEWAY_SQLITE, HAND_SQLITE, LAYER, LAYER_SQLITE, PLAIN, Subject};
use crate::tools::{Tools, output_within};

/// What a large store is compared with.
pub(crate) const RECORDS_FEW: u64 = 10_000;
const DAY_SECONDS: u64 = 86_400;
/// A slower disk than this is not measured.
const FILLED_PER_SECOND_MIN: u64 = 1_000;
const GRACE: Duration = Duration::from_secs(60);
/// The load under which a server is killed; it dies half-way.
const KILL_LOAD: Duration = Duration::from_secs(4);
/// Bare durable writes. On a slow disk they take some seconds.
const WRITES: usize = 500;
const WRITE_BYTES: usize = 4096;
/// What has the layer on SQLite.
const PACKAGE: &str = "bench-layer";

/// How much is measured.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) records: u64,
    pub(crate) rounds: u32,
    pub(crate) seconds: u64,
}

impl Extent {
    /// A large store must not be smaller than the one it is compared with.
    pub(crate) fn check(self) -> Result<()> {
        if self.records < RECORDS_FEW {
            bail!("{} records are few already; use --records {RECORDS_FEW} or more", self.records);
        }
        Ok(())
    }

    /// A load that lasts as long as one measurement.
    pub(crate) fn work<'a>(self, workload: &'a str, run: &'a str, callers: Callers) -> Work<'a> {
        Work { workload, run, callers, time: Duration::from_secs(self.seconds) }
    }
}

pub(crate) fn measure(tools: &Tools, extent: Extent) -> Result<Results> {
    extent.check()?;
    for package in ["bench-plain", PACKAGE, "bench-hand-sqlite", "bench-fill"] {
        tools.build(package)?;
    }
    tools.provide(GATEWAY.named(GATEWAY_SQLITE).program)?;
    let growth = Growth { tools, extent };
    let cost = growth.cost().context("what a request costs")?;
    let one_caller = growth.one_caller().context("one caller at a time")?;
    let large = filled(tools, extent.records, DAY_SECONDS)?;
    let sizes = growth.sizes(&large).context("few records and many")?;
    let kills = growth.kills(&large).context("ready after a kill")?;
    let listings = growth.listings(&large).context("pages of listings")?;
    drop(large);
    let reaping = growth.reaping().context("reaping under load")?;
    let asking = growth.asking().context("asking probes under load")?;
    Ok(Results { extent, cost, one_caller, sizes, kills, listings, reaping, asking })
}

/// A folder with a store of so many records, closed.
pub(crate) fn filled(tools: &Tools, records: u64, retention_seconds: u64) -> Result<Folder> {
    let folder = Folder::new(tools)?;
    let mut command = tools.command(&tools.binary("bench-fill"), End::Kill);
    command.arg("fill").arg(folder.store()).args([records, retention_seconds].map(|n| n.to_string()));
    let time = Duration::from_secs(records / FILLED_PER_SECOND_MIN) + GRACE;
    let filled = load::last_line(&output_within(&mut command, time)?)?;
    if records > RECORDS_FEW {
        eprintln!("filled: {filled}");
    }
    Ok(folder)
}

struct Growth<'a> {
    tools: &'a Tools,
    extent: Extent,
}

impl Growth<'_> {
    /// On a new file: what many callers, one caller and replays write, and how large the file is then.
    fn cost(&self) -> Result<Cost> {
        let folder = Folder::new(self.tools)?;
        let server = Server::open(self.tools, PACKAGE, &folder.store(), &[])?;
        let unique = self.extent.work("unique", "many", Callers::Many);
        load::warm_up(&server, named(LAYER_SQLITE), unique)?;
        let many = written(&server, unique)?;
        let one = written(&server, self.extent.work("unique", "one", Callers::One))?;
        let replay = self.extent.work("replay", "replay", Callers::Many);
        load::warm_up(&server, named(LAYER_SQLITE), replay)?;
        let replay = written(&server, replay)?;
        server.stop()?;
        let counted = self.count(&folder.store())?;
        let file_bytes = std::fs::metadata(folder.store())?.len();
        let cost = Cost { many, one, replay, file_bytes, records: number(&counted, "records")? };
        eprintln!("cost: {cost:?}");
        Ok(cost)
    }

    fn one_caller(&self) -> Result<Vec<OneCaller>> {
        let work = self.extent.work("unique", "one", Callers::One);
        let p50_ms = |name| -> Result<f64> {
            let server = Server::start(self.tools, named(name))?;
            Ok(load::wrk(&server, named(name), work)?.p50_ms)
        };
        let mut rounds = Vec::new();
        for round in 1..=self.extent.rounds {
            let [append_ms, overwrite_ms] = bare_writes_ms(&Folder::new(self.tools)?)?;
            let one = OneCaller {
                append_ms,
                overwrite_ms,
                plain_ms: p50_ms(PLAIN)?,
                layer_ms: p50_ms(LAYER_SQLITE)?,
                hand_ms: p50_ms(HAND_SQLITE)?,
            };
            eprintln!("round {round} one caller: {one:?}");
            rounds.push(one);
        }
        Ok(rounds)
    }

    fn sizes(&self, large: &Folder) -> Result<Vec<Pair>> {
        lines::pairs(self.extent.rounds, ["few records", "many records"], |round| {
            let few = filled(self.tools, RECORDS_FEW, DAY_SECONDS)?;
            let run = format!("sizes-{round}");
            let work = self.extent.work("unique", &run, Callers::Many);
            Ok(Pair {
                without: self.sample(&few.store(), work, &[])?,
                with: self.sample(&large.store(), work, &[])?,
            })
        })
    }

    /// Killed under load, and started again.
    fn kills(&self, large: &Folder) -> Result<Vec<Kill>> {
        let mut kills = Vec::new();
        for round in 1..=self.extent.rounds {
            let run = format!("kill-{round}");
            let subject = named(LAYER_SQLITE);
            let server = Server::open(self.tools, PACKAGE, &large.store(), &[])?;
            let work = Work { time: KILL_LOAD, ..self.extent.work("unique", &run, Callers::Many) };
            load::kill_under_load(server, subject, work);
            let wal = large.store().with_extension("db-wal");
            let wal_bytes = std::fs::metadata(wal).map_or(0, |metadata| metadata.len());
            let server = Server::open(self.tools, PACKAGE, &large.store(), &[])?;
            let abandoned = number(&server.figures()?, "abandoned")?;
            let ready_ms = server.ready_after.as_secs_f64() * 1e3;
            server.stop()?;
            let plain_ready_ms = Server::start(self.tools, named(PLAIN))?.ready_after.as_secs_f64() * 1e3;
            let kill = Kill { ready_ms, plain_ready_ms, wal_bytes, abandoned };
            eprintln!("round {round} kill: {kill:?}");
            kills.push(kill);
        }
        Ok(kills)
    }

    /// Pages of each listing, by the engine itself.
    fn listings(&self, large: &Folder) -> Result<Vec<Listing>> {
        let mut command = self.tools.command(&self.tools.binary("bench-fill"), End::Kill);
        let told = load::last_line(&output_within(command.arg("list").arg(large.store()), GRACE)?)?;
        let limit = number(&told, "limit")?;
        let listings = told["listings"].as_array().with_context(|| format!("no listings in {told}"))?;
        let listing = |listing: &Value| {
            let pages = listing["pages_ms"].as_array();
            Some(Listing {
                what: listing["what"].as_str()?.to_owned(),
                limit,
                pages_ms: pages?.iter().filter_map(Value::as_f64).collect(),
            })
        };
        let listings: Option<Vec<_>> = listings.iter().map(listing).collect();
        eprintln!("listings: {listings:?}");
        listings.with_context(|| format!("a listing without its pages in {told}"))
    }

    fn reaping(&self) -> Result<Reaping> {
        let folder = filled(self.tools, reaping::expired(self.extent.records), 0)?;
        let load = |Load { run, flags, time }: Load<'_>| {
            let work = Work { time, ..self.extent.work("unique", run, Callers::Many) };
            self.sample(&folder.store(), work, flags)
        };
        reaping::measure(self.extent, load, || number(&self.count(&folder.store())?, "expired"))
    }

    fn sample(&self, path: &Path, work: Work<'_>, flags: &[&str]) -> Result<Sample> {
        let server = Server::open(self.tools, PACKAGE, path, flags)?;
        let sample = load::wrk(&server, named(LAYER_SQLITE), work)?;
        server.stop()?;
        Ok(sample)
    }

    fn count(&self, path: &Path) -> Result<Value> {
        let mut command = self.tools.command(&self.tools.binary("bench-fill"), End::Kill);
        load::last_line(&output_within(command.arg("count").arg(path), GRACE)?)
    }
}

/// What one load made the server write.
fn written(server: &Server, work: Work<'_>) -> Result<Written> {
    let (before, bytes_before) = (server.figures()?, server.written_bytes()?);
    let sample = load::wrk_once(server, named(LAYER_SQLITE), work)?;
    let (after, bytes_after) = (server.figures()?, server.written_bytes()?);
    let counted = |name| Ok::<_, anyhow::Error>(number(&after, name)? - number(&before, name)?);
    Ok(Written {
        requests: sample.requests,
        commits: counted("commits")?,
        checkpoints: counted("checkpoints")?,
        bytes: bytes_after - bytes_before,
    })
}

/// The bare disk, a page at a time: the middle of many appends, each synced, and of as many writes over the pages that
/// are there by then. The latter leave the file's size alone, as most commits to a WAL do, and may cost less.
fn bare_writes_ms(folder: &Folder) -> Result<[f64; 2]> {
    let mut file = OpenOptions::new().create_new(true).write(true).open(folder.path().join("bare"))?;
    let append = middle_ms(&mut file, File::sync_all)?;
    file.rewind()?;
    Ok([append, middle_ms(&mut file, File::sync_data)?])
}

fn middle_ms(file: &mut File, sync: fn(&File) -> std::io::Result<()>) -> Result<f64> {
    let mut spans = Vec::new();
    for _ in 0..WRITES {
        let began = Instant::now();
        file.write_all(&[7; WRITE_BYTES])?;
        sync(file)?;
        spans.push(began.elapsed());
    }
    spans.sort_unstable();
    Ok(spans[spans.len() / 2].as_secs_f64() * 1e3)
}

fn named(name: &str) -> &'static Subject {
    LAYER.named(name)
}

fn number(value: &Value, name: &str) -> Result<u64> {
    value[name].as_u64().with_context(|| format!("no {name} in {value}"))
}
