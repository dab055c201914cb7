//! `onlyonce log`: what operators changed. The audit log is shown in the order of time, so that the newest is at the end.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

use serde_json::Value;

use super::failure::Failure;
use super::keys::{label, print_json};
use super::target::{LogFilter, Purpose, Target};
use super::text::{Colour, Table, member};
use crate::Ended;
use crate::cli::Log;
use crate::config;

/// How often what is new is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How far back each look goes: of two nodes, the entry that is seen later may have the earlier time.
const OVERLAP: Duration = Duration::from_secs(10);
/// How many entries are remembered as shown.
const SHOWN_MAX: usize = 10_000;

pub(crate) async fn run(arguments: &Log) -> Result<Ended, Failure> {
    let target = Target::open(&arguments.place, Purpose::Reading).await?;
    let shown = show(&target, arguments).await;
    let closed = target.close().await;
    let ended = shown?;
    closed?;
    Ok(ended)
}

async fn show(target: &Target, arguments: &Log) -> Result<Ended, Failure> {
    let filter = filter(target, arguments).await?;
    if arguments.follow {
        return tokio::select! {
            followed = follow(target, filter, arguments) => followed,
            interrupted = tokio::signal::ctrl_c() => Ok(interrupted.map(|()| Ended::Yes)?),
        };
    }
    let listed = target.log(&filter, arguments.limit).await?;
    if arguments.place.json {
        return print_json(&listed.into_json());
    }
    print(&listed.items, &listed.next)?;
    Ok(Ended::Yes)
}

async fn filter(target: &Target, arguments: &Log) -> Result<LogFilter, Failure> {
    let after = match &arguments.since {
        Some(text) => Some(since(text)?),
        None => None,
    };
    let scope = match &arguments.scope {
        Some(text) => Some(target.scope(text).await?),
        None => None,
    };
    let (who, action, key) = (arguments.who.clone(), arguments.action.clone(), arguments.key.clone());
    Ok(LogFilter { who, action, scope, key, after })
}

fn since(text: &str) -> Result<jiff::Timestamp, Failure> {
    let span =
        config::span(text).map_err(|remedy| Failure::arguments(format!("--since \"{text}\" {remedy}")))?;
    let longest = || Failure::arguments(format!("--since \"{text}\" is too long; shorten it"));
    jiff::Timestamp::now().checked_sub(span).map_err(|_| longest())
}

/// Shows what there is, and then what comes.
async fn follow(target: &Target, mut filter: LogFilter, arguments: &Log) -> Result<Ended, Failure> {
    let mut shown = Shown::default();
    let mut limit = arguments.limit;
    loop {
        let listed = target.log(&filter, limit).await?;
        for entry in listed.items.iter().rev() {
            if shown.is_new(entry) {
                print_line(entry, arguments.place.json)?;
            }
        }
        limit = 0;
        // By the clock of the store, which stamps the entries; before the first of them, by this machine's.
        filter.after = match listed.items.first().and_then(|entry| entry["at"].as_str()?.parse().ok()) {
            Some(newest) => earlier(newest),
            None => filter.after.or_else(|| earlier(jiff::Timestamp::now())),
        };
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn earlier(at: jiff::Timestamp) -> Option<jiff::Timestamp> {
    at.checked_sub(OVERLAP).ok()
}

/// The ids of the entries that were shown last.
#[derive(Default)]
struct Shown(VecDeque<String>);

impl Shown {
    fn is_new(&mut self, entry: &Value) -> bool {
        let id = member(entry, "id");
        if self.0.contains(&id) {
            return false;
        }
        if self.0.len() == SHOWN_MAX {
            self.0.pop_front();
        }
        self.0.push_back(id);
        true
    }
}

fn print(entries: &[Value], next: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if entries.is_empty() {
        return writeln!(out, "no entries");
    }
    let mut table = Table::new(["WHEN", "WHO", "ACTION", "RESULT", "SCOPE", "KEY", "REASON"]);
    for entry in entries.iter().rev() {
        table.push(row(entry));
    }
    if !next.is_null() {
        writeln!(out, "… and older ones; --limit 0 shows all")?;
    }
    let colour = Colour::of_stdout();
    table.write(&mut out, |row, _, cell| if row == 0 { colour.bold(&cell) } else { cell })
}

fn print_line(entry: &Value, as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{entry}")?;
    } else {
        writeln!(out, "{}", row(entry).join("  "))?;
    }
    // Whoever follows wants to see it now.
    out.flush()
}

fn row(entry: &Value) -> [String; 7] {
    let target = &entry["target"];
    let who = match member(entry, "as") {
        claims if claims.is_empty() => member(entry, "who"),
        claims => format!("{} ({claims})", member(entry, "who")),
    };
    let forced = if entry["forced"] == true { ", forced" } else { "" };
    let result = match member(entry, "code") {
        code if code.is_empty() => format!("{}{forced}", member(entry, "result")),
        code => format!("{}{forced}: {code}", member(entry, "result")),
    };
    let scope = label(target);
    [
        member(entry, "at"),
        who,
        member(entry, "action"),
        result,
        scope,
        member(target, "key"),
        member(entry, "reason"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_says_who_did_what_and_why() {
        let entry = json!({
            "id": "01J", "at": "2026-11-17T02:03:04.567Z", "who": "on-call", "as": "ann", "action": "verdict",
            "target": { "scope": "ab".repeat(32), "scope_label": null, "key": "order-17" }, "reason": "in the\nstatement",
            "forced": true, "result": "refused", "code": "record_settled",
        });
        let expected = [
            "2026-11-17T02:03:04.567Z",
            "on-call (ann)",
            "verdict",
            "refused, forced: record_settled",
            "abababababab",
            "order-17",
            "in the\\nstatement",
        ];
        assert_eq!(row(&entry), expected.map(str::to_owned));
    }

    #[test]
    fn an_entry_is_shown_once() {
        let mut shown = Shown::default();
        assert!(shown.is_new(&json!({ "id": "a" })));
        assert!(shown.is_new(&json!({ "id": "b" })));
        assert!(!shown.is_new(&json!({ "id": "a" })));
    }
}
