//! `onlyonce keys list`: records, a line each.

use std::io::{self, Write};

use serde_json::Value;

use super::super::target::{Filter, Listing, Purpose, Target};
use super::super::text::{Colour, Table, age, member, span};
use super::{Failure, closing, label, print_json};
use crate::Ended;
use crate::cli::List;

pub(crate) async fn run(arguments: &List) -> Result<Ended, Failure> {
    let target = Target::open(&arguments.place, Purpose::Reading).await?;
    let listed = list(&target, arguments).await;
    let listed = closing(target, listed).await?;
    if arguments.place.json {
        return print_json(&listed.into_json());
    }
    print(&listed)
}

async fn list(target: &Target, arguments: &List) -> Result<Listing, Failure> {
    let scope = match &arguments.scope {
        Some(text) => Some(target.scope(text).await?),
        None => None,
    };
    let filter = Filter {
        state: arguments.state.clone(),
        scope,
        route: arguments.route.clone(),
        query: arguments.query.clone(),
        dead: arguments.dead,
    };
    target.list(&filter, arguments.limit).await
}

fn print(listed: &Listing) -> Result<Ended, Failure> {
    let mut out = io::stdout().lock();
    if listed.items.is_empty() {
        writeln!(out, "no records")?;
        return Ok(Ended::Yes);
    }
    let now = jiff::Timestamp::now();
    let mut table = Table::new(["STATE", "AGE", "TRY", "ROUTE", "SCOPE", "KEY", "WHY"]);
    for item in &listed.items {
        table.push(row(item, now));
    }
    let colour = Colour::of_stdout();
    let paint = |row: usize, column: usize, cell: String| match (row, column) {
        (0, _) => colour.bold(&cell),
        (_, 0) => colour.state(&cell, &cell),
        (_, _) => cell,
    };
    table.write(&mut out, paint)?;
    if !listed.next.is_null() {
        writeln!(out, "… and more; --limit 0 shows all")?;
    }
    Ok(Ended::Yes)
}

fn row(item: &Value, now: jiff::Timestamp) -> [String; 7] {
    let since = if item["since"].is_null() { &item["created_at"] } else { &item["since"] };
    [
        member(item, "state"),
        age(since, now).map(span).unwrap_or_default(),
        member(item, "attempt"),
        member(item, "route"),
        label(item),
        member(item, "key"),
        why(item, now),
    ]
}

/// What an item tells of how it came to stand as it does.
fn why(item: &Value, now: jiff::Timestamp) -> String {
    let mut words = Vec::new();
    if !item["unreadable"].is_null() {
        words.push("encryption key missing".to_owned());
    }
    if item["dead_letter"] == true {
        words.push("dead letter".to_owned());
    }
    words.extend(Some(member(item, "reason")).filter(|reason| !reason.is_empty()));
    if let Some(status) = item["status"].as_u64() {
        words.push(status.to_string());
    }
    match item["by"].as_str() {
        None | Some("attempt") => {}
        Some(_) => words.push(format!("by {}", member(item, "by"))),
    }
    if let Some(asked) = item["asked"].as_u64().filter(|asked| *asked > 0) {
        words.push(format!("asked {asked} times"));
    }
    if let Some(ask_at) = item["ask_at"].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok()) {
        let left = std::time::Duration::try_from(ask_at.duration_since(now)).unwrap_or_default();
        words.push(format!("next in {}", span(left)));
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_says_how_a_record_stands_and_why() {
        let now: jiff::Timestamp = "2026-11-17T02:15:00Z".parse().unwrap();
        let unknown = json!({
            "state": "unknown", "attempt": 2, "route": "POST /payments/*", "scope": "ab".repeat(32), "scope_label": null,
            "key": "order\u{1b}17", "created_at": "2026-11-17T01:00:00.000Z", "since": "2026-11-17T02:02:00.000Z",
            "reason": "connection_lost", "dead_letter": false, "asked": 3, "ask_at": "2026-11-17T02:16:10.000Z",
            "status": null, "by": null,
        });
        let expected = [
            "unknown",
            "13 min",
            "2",
            "POST /payments/*",
            "abababababab",
            "order\\u{1b}17",
            "connection_lost, asked 3 times, next in 1 min",
        ];
        assert_eq!(row(&unknown, now), expected.map(str::to_owned));
        let completed = json!({
            "state": "completed", "attempt": 1, "route": null, "scope": "cd", "scope_label": "acme · x", "key": "k",
            "created_at": "2026-11-17T02:14:58.000Z", "since": null, "reason": null, "dead_letter": false, "asked": 0,
            "ask_at": null, "status": 201, "by": "operator",
        });
        let expected = ["completed", "2 s", "1", "", "acme · x", "k", "201, by operator"];
        assert_eq!(row(&completed, now), expected.map(str::to_owned));
    }
}
