//! `cargo xtask bench dashboard`: what an open dashboard costs a loaded gateway, and how long its first screen takes on a large
//! store.
//!
//! The tab is not a browser: that would take the processor from the gateway that is measured. It asks as the page "Keys" does, the
//! costliest that stays open: one stream of events, and its list again with each event of figures.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use onlyonce_testkit::http;
use onlyonce_testkit::verdict::Verdict;
use serde_json::{Value, json};

use crate::figures::{Sample, Standing, cores, spread};
use crate::folder::Folder;
use crate::growth::{self, Extent};
use crate::lines::{self, Bound, Line, Pair, grouped, judge, medians, ratios, spread_words};
use crate::load::{self, Callers};
use crate::page::Part;
use crate::server::Server;
use crate::subjects::{GATEWAY, GATEWAY_SQLITE};
use crate::tools::Tools;
use crate::{write_json, write_page};

const RPS: Bound = Bound::AtLeast { floor: 0.98, goal: 0.98 };
const FIRST_SCREEN_MS: Bound = Bound::AtMost { floor: 100.0, goal: 100.0 };
const RECORDS_PROMISED: u64 = 1_000_000;
/// What a browser loads to show the first screen.
const FIRST_SCREEN: [&str; 5] =
    ["/", "/assets/style.css", "/assets/app.js", "/assets/icon.svg", "/v1/overview"];
const FIRST_SCREENS: u32 = 20;
/// The page costs less than rounds differ by, so there are more of them than elsewhere.
const TURNS: u32 = 5;
const DAY_SECONDS: u64 = 86_400;

/// Everything, written and printed.
pub(crate) fn run(tools: &Tools, extent: Extent) -> Result<Verdict> {
    extent.check()?;
    for package in ["bench-plain", "bench-fill"] {
        tools.build(package)?;
    }
    tools.provide(GATEWAY.named(GATEWAY_SQLITE).program)?;
    let results = Results {
        extent,
        watched: watched(tools, extent).context("an open page")?,
        first_screens_ms: first_screens(tools, extent.records).context("the first screen")?,
    };
    write_json("dashboard.json", &results.json())?;
    let lines = results.lines();
    write_page(Part::Dashboard, &lines::section("the gateway on SQLite", &lines))?;
    eprintln!("\nwritten: bench/results/dashboard.json, docs/performance.md");
    print!("\n{}", lines::table(&lines));
    let falls_short = lines.iter().any(|line| line.standing == Standing::ShortOfPromise);
    Ok(if falls_short { Verdict::No } else { Verdict::Yes })
}

/// The same load without and with an open page, each on a gateway of its own. Who begins changes from round to round.
fn watched(tools: &Tools, extent: Extent) -> Result<Vec<Pair>> {
    lines::pairs(extent.rounds * TURNS, ["no page", "an open page"], |round| {
        let (without, with);
        if round % 2 == 0 {
            without = sample(tools, extent, Dashboard::Closed)?;
            with = sample(tools, extent, Dashboard::Open)?;
        } else {
            with = sample(tools, extent, Dashboard::Open)?;
            without = sample(tools, extent, Dashboard::Closed)?;
        }
        Ok(Pair { without, with })
    })
}

#[derive(Clone, Copy)]
enum Dashboard {
    Closed,
    Open,
}

fn sample(tools: &Tools, extent: Extent, dashboard: Dashboard) -> Result<Sample> {
    let subject = GATEWAY.named(GATEWAY_SQLITE);
    let server = Server::start(tools, subject)?;
    let work = extent.work("unique", "run", Callers::Many);
    load::warm_up(&server, subject, work)?;
    match dashboard {
        Dashboard::Closed => load::wrk_once(&server, subject, work),
        Dashboard::Open => {
            let tab = Tab::open(server.admin()?)?;
            let sample = load::wrk_once(&server, subject, work)?;
            tab.close()?;
            Ok(sample)
        }
    }
}

/// The page "Keys", open.
struct Tab {
    stream: TcpStream,
    /// How often it loaded its list.
    reading: JoinHandle<Result<u32>>,
}

impl Tab {
    fn open(admin: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(admin).with_context(|| format!("cannot connect to {admin}"))?;
        write!(stream, "GET /v1/events HTTP/1.1\r\nhost: {admin}\r\n\r\n")?;
        let (events, admin) = (BufReader::new(stream.try_clone()?), admin.to_owned());
        let reading = std::thread::spawn(move || {
            let mut loads = 0;
            for line in events.lines() {
                if line? == "event: figures" {
                    load_page(&admin, "/v1/keys?limit=50")?;
                    loads += 1;
                }
            }
            Ok(loads)
        });
        Ok(Self { stream, reading })
    }

    fn close(self) -> Result<()> {
        self.stream.shutdown(Shutdown::Both)?;
        let loads = self.reading.join().expect("a reader of events does not panic")?;
        ensure!(loads > 0, "void, the page was told nothing; use more --seconds");
        Ok(())
    }
}

/// How long each of many first screens took, in milliseconds. The first of them finds nothing in the store's cache.
fn first_screens(tools: &Tools, records: u64) -> Result<Vec<f64>> {
    let folder = growth::filled(tools, records, DAY_SECONDS)?;
    let settings = Folder::new(tools)?;
    let config = settings.path().join("onlyonce.toml");
    std::fs::write(&config, "")?;
    let server = Server::gateway_on(tools, &folder.store(), &config)?;
    let admin = server.admin()?;
    let mut screens = Vec::new();
    for _ in 0..FIRST_SCREENS {
        let began = Instant::now();
        for path in FIRST_SCREEN {
            load_page(admin, path)?;
        }
        screens.push(milliseconds(began.elapsed()));
    }
    eprintln!("first screens: {screens:.1?} ms");
    Ok(screens)
}

fn load_page(admin: &str, path: &str) -> Result<()> {
    let answer = http::get(admin, path)?;
    if answer.status != 200 {
        bail!("{path} answered {}: {}", answer.status, String::from_utf8_lossy(&answer.body));
    }
    Ok(())
}

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

struct Results {
    extent: Extent,
    /// Without and with an open page.
    watched: Vec<Pair>,
    first_screens_ms: Vec<f64>,
}

impl Results {
    fn lines(&self) -> Vec<Line> {
        self.watched_line().into_iter().chain(self.first_screen_line()).collect()
    }

    fn watched_line(&self) -> Option<Line> {
        let ratio = ratios(&self.watched, |sample| sample.rps)?;
        let cpu = ratios(&self.watched, |sample| sample.cpu_us)?;
        let [without, with] = medians(&self.watched, |sample| sample.rps)?;
        Some(Line {
            what: "unique, with the page and its stream open: RPS to without".to_owned(),
            measured: format!(
                "{} ({with:.0} to {without:.0}; CPU {})",
                spread_words(ratio, 3),
                spread_words(cpu, 3)
            ),
            target: "≥ 0.98".to_owned(),
            standing: RPS.standing(ratio.median),
        })
    }

    fn first_screen_line(&self) -> Option<Line> {
        let screens = spread(self.first_screens_ms.iter().copied())?;
        let first = self.first_screens_ms.first()?;
        Some(Line {
            what: format!("the first screen with {} records: ms", grouped(self.extent.records)),
            measured: format!("{} (the very first {first:.1})", spread_words(screens, 1)),
            target: "≤ 100, the slowest too".to_owned(),
            standing: judge(FIRST_SCREEN_MS, screens.high, self.extent.records >= RECORDS_PROMISED),
        })
    }

    fn json(&self) -> Value {
        json!({
            "cores": cores(),
            "records": self.extent.records,
            "rounds": self.extent.rounds,
            "seconds": self.extent.seconds,
            "lines": self.lines().iter().map(Line::json).collect::<Vec<_>>(),
            "watched": self.watched.iter().map(Pair::json).collect::<Vec<_>>(),
            "first_screens_ms": self.first_screens_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standings(rps: f64, screen_ms: f64, records: u64) -> Vec<Standing> {
        let sample = |rps| Sample { rps, p50_ms: 1.0, p99_ms: 1.0, cpu_us: 1.0, requests: 1 };
        let results = Results {
            extent: Extent { records, rounds: 1, seconds: 1 },
            watched: vec![Pair { without: sample(100.0), with: sample(rps) }],
            first_screens_ms: vec![5.0, screen_ms],
        };
        results.lines().into_iter().map(|line| line.standing).collect()
    }

    #[test]
    fn a_page_that_costs_too_much_falls_short() {
        assert_eq!(standings(98.0, 100.0, RECORDS_PROMISED), [Standing::Reached, Standing::Reached]);
        assert_eq!(
            standings(97.9, 100.1, RECORDS_PROMISED),
            [Standing::ShortOfPromise, Standing::ShortOfPromise]
        );
        assert_eq!(standings(98.0, 100.0, 10_000)[1], Standing::Shown, "promised for a million");
    }
}
