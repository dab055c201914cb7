//! `onlyonce ledger`: compares the records here with a provider's export.
//!
//! 1. The export is read as a stream; of each row its record's id and its place in the file are kept (`rows.rs`).
//! 2. Records are listed page by page. Each is compared with its rows and let go.
//! 3. What differs is written to a [`Spool`] for each group, and printed at the end. Memory grows by less than 100 bytes a row.
//!
//! `--from`, `--to` and `--route` say which records are missed in the export. A row finds its record also beyond them: a record is
//! reserved before its effect has a time.

mod export;
mod rows;
mod spool;

use std::io::{self, Write};

use onlyonce::key::Key;
use onlyonce::record::{Handle, Id};
use onlyonce::scope::Scope;
use serde_json::{Value, json};

use self::export::{Cells, Export, Field, Wanted};
use self::rows::{Outcome, Row, Rows};
use self::spool::Spool;
use super::failure::Failure;
use super::keys::{closing, command, named_short};
use super::target::{Filter, Purpose, Target, digest};
use super::text::{Progress, clean, member};
use crate::Ended;
use crate::cli::{Ledger, Where};

/// How many rows of one record are named.
const ROWS_NAMED: usize = 1_000;
/// After so many rows the progress is told.
const TELL_EVERY: u32 = 10_000;

pub(crate) async fn run(arguments: &Ledger) -> Result<Ended, Failure> {
    let export = Export::open(&arguments.file, wanted(arguments))?;
    let mut found = Found::default();
    let (rows, window) = read(&export, arguments, &mut found)?;
    let target = Target::open(&arguments.place, Purpose::Reading).await?;
    let compared = compare(&target, &export, rows, &window, &mut found).await;
    closing(target, compared).await?;
    export.is_unchanged()?;
    let ended = if found.differs() { Ended::No } else { Ended::Yes };
    let mut out = io::BufWriter::new(io::stdout().lock());
    match arguments.place.json {
        true => found.write_json(&mut out)?,
        false => found.write_text(&mut out, &arguments.place)?,
    }
    out.flush()?;
    Ok(ended)
}

fn wanted(arguments: &Ledger) -> Wanted {
    let columns = [
        (Field::Token, &arguments.token_column),
        (Field::Scope, &arguments.scope_column),
        (Field::Key, &arguments.key_column),
        (Field::Id, &arguments.id),
        (Field::Outcome, &arguments.outcome),
        (Field::Time, &arguments.time),
    ];
    columns.into_iter().filter_map(|(field, column)| Some((field, column.clone()?))).collect()
}

/// What was found.
#[derive(Default)]
struct Found {
    rows: u32,
    records: u64,
    agree: u64,
    twice: Spool,
    unknown: Spool,
    differ: Spool,
    only_here: Spool,
    only_there: Spool,
    unreadable: Spool,
}

/// Which records are missed in the export.
struct Window {
    from: Option<jiff::Timestamp>,
    to: Option<jiff::Timestamp>,
    route: Option<String>,
}

impl Window {
    fn covers(&self, item: &Value) -> bool {
        let created: Option<jiff::Timestamp> = item["created_at"].as_str().and_then(|at| at.parse().ok());
        let is_within = created.is_none_or(|created| {
            self.from.is_none_or(|from| from <= created) && self.to.is_none_or(|to| created <= to)
        });
        is_within && self.route.as_deref().is_none_or(|route| item["route"] == route)
    }
}

/// Reads the whole export once.
fn read(export: &Export, arguments: &Ledger, found: &mut Found) -> Result<(Rows, Window), Failure> {
    let mut progress = Progress::new();
    let mut rows = Vec::new();
    let mut times: Option<(jiff::Timestamp, jiff::Timestamp)> = None;
    let mut seen = Vec::new();
    let mut reading = export.rows()?;
    while let Some(read) = reading.next()? {
        found.rows =
            found.rows.checked_add(1).ok_or_else(|| export.failed("it has more than 4,294,967,295 rows"))?;
        let number = found.rows;
        if number.is_multiple_of(TELL_EVERY) {
            progress.tell(&format!("{number} rows, {} % of the file", read.at * 100 / export.bytes().max(1)));
        }
        let cells = match read.cells {
            Ok(cells) => cells,
            Err(why) => {
                found.unreadable.push(&json!({ "row": number, "why": why }))?;
                continue;
            }
        };
        export.note(&cells, &mut seen);
        if let Some(time) = cells.get(Field::Time) {
            let time = moment(time).ok_or_else(|| {
                export.failed(&format!(
                    "the time \"{}\" of row {number} is neither RFC 3339 nor unix seconds",
                    clean(time)
                ))
            })?;
            times = Some(times.map_or((time, time), |(first, last)| (first.min(time), last.max(time))));
        }
        match id(&cells) {
            Ok(id) => rows.push(Row::new(id, read.at, number, outcome(&cells, arguments))),
            Err(why) => found.unreadable.push(&json!({ "row": number, "why": why }))?,
        }
    }
    if found.rows > 0 {
        export.has_all(&seen)?;
    }
    let window = Window {
        from: arguments.from.or(times.map(|(first, _)| first)),
        to: arguments.to.or(times.map(|(_, last)| last)),
        route: arguments.route.clone(),
    };
    Ok((Rows::new(rows), window))
}

/// The record of a row, or why there is none.
fn id(cells: &Cells) -> Result<Id, String> {
    if let Some(token) = cells.get(Field::Token) {
        let handle = token.trim().to_ascii_lowercase().parse::<Handle>();
        return Ok(handle.map_err(|error| format!("\"{}\" is {error}", clean(token)))?.id);
    }
    let (Some(scope), Some(key)) = (cells.get(Field::Scope), cells.get(Field::Key)) else {
        let missing = match (cells.get(Field::Scope), cells.get(Field::Key)) {
            (None, Some(_)) => "no scope",
            (Some(_), None) => "no key",
            (None, None) | (Some(_), Some(_)) => "no token or key",
        };
        return Err(format!("it has {missing}"));
    };
    let hex = scope.trim().to_ascii_lowercase();
    let is_scope = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    match digest(&hex) {
        Ok(digest) if is_scope => Ok(Id::of(&Scope::stored(digest, None), &Key::stored(key))),
        Ok(_) | Err(_) => Err(format!("the scope \"{}\" does not have 64 hex digits", clean(scope))),
    }
}

fn outcome(cells: &Cells, arguments: &Ledger) -> Outcome {
    if arguments.outcome.is_none() {
        return Outcome::Happened;
    }
    let said = cells.get(Field::Outcome).unwrap_or_default().trim();
    let is_among = |values: &[String]| values.iter().any(|value| value.trim() == said);
    if is_among(&arguments.happened) {
        Outcome::Happened
    } else if is_among(&arguments.declined) {
        Outcome::Declined
    } else {
        Outcome::Other
    }
}

fn moment(text: &str) -> Option<jiff::Timestamp> {
    let text = text.trim();
    text.parse().ok().or_else(|| jiff::Timestamp::from_second(text.parse().ok()?).ok())
}

async fn compare(
    target: &Target,
    export: &Export,
    mut rows: Rows,
    window: &Window,
    found: &mut Found,
) -> Result<(), Failure> {
    let look = |item: &Value| {
        let id = item["id"].as_str().and_then(|id| digest(id).ok()).map(Id);
        let rows = id.map(|id| rows.take(id)).unwrap_or_default();
        found.judge(export, item, rows, window)
    };
    target.each(&Filter::default(), look).await?;
    found.rest(export, &rows)
}

/// What a record says became of its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Happened,
    Declined,
    Unknown,
    /// A retry runs it.
    Retryable,
    /// It has not ended.
    Open,
}

fn here(item: &Value) -> Here {
    match (item["state"].as_str().unwrap_or_default(), item["status"].as_u64()) {
        ("completed", None | Some(200..=399)) => Here::Happened,
        ("completed", Some(_)) => Here::Declined,
        ("unknown", _) => Here::Unknown,
        ("retryable", _) => Here::Retryable,
        _ => Here::Open,
    }
}

impl Found {
    /// Whether anything is to be looked at.
    fn differs(&self) -> bool {
        let Self { twice, unknown, differ, only_here, only_there, unreadable, .. } = self;
        [twice, unknown, differ, only_here, only_there, unreadable].iter().any(|group| group.count > 0)
    }

    /// Compares a record with its rows.
    fn judge(&mut self, export: &Export, item: &Value, rows: &[Row], window: &Window) -> Result<(), Failure> {
        let here = here(item);
        let Some(first) = said(rows) else {
            if window.covers(item) {
                self.records += 1;
                let is_missed =
                    here == Here::Happened && item["status"].as_u64().is_none_or(|status| status < 300);
                if is_missed {
                    self.only_here.push(&json!({
                        "scope": item["scope"], "key": item["key"], "status": item["status"], "created_at": item["created_at"],
                    }))?;
                }
            }
            return Ok(());
        };
        self.records += 1;
        let is_twice = self.doubled(export, rows, (&item["scope"], &item["key"]))?;
        match (here, first.outcome) {
            (Here::Happened, Outcome::Happened) if is_twice => {}
            (Here::Happened, Outcome::Happened) | (Here::Declined, Outcome::Declined) => self.agree += 1,
            (Here::Unknown, Outcome::Happened) => self.settles(export, item, first, "happened")?,
            (Here::Unknown, Outcome::Declined) => self.settles(export, item, first, "did-not-happen")?,
            (Here::Happened, Outcome::Declined | Outcome::Other)
            | (Here::Declined | Here::Retryable, Outcome::Happened) => {
                self.differs_in(export, item, first)?;
            }
            // Neither side says anything that the other denies.
            (Here::Declined | Here::Unknown, Outcome::Other)
            | (Here::Retryable, Outcome::Declined | Outcome::Other)
            | (Here::Open, _) => {}
        }
        Ok(())
    }

    /// Whether more than one row happened: the work ran more than once.
    fn doubled(
        &mut self,
        export: &Export,
        rows: &[Row],
        (scope, key): (&Value, &Value),
    ) -> Result<bool, Failure> {
        let happened = || rows.iter().filter(|row| row.outcome == Outcome::Happened);
        let count = happened().count();
        if count < 2 {
            return Ok(false);
        }
        let (mut numbers, mut ids, mut token) = (Vec::new(), Vec::new(), Value::Null);
        for row in happened().take(ROWS_NAMED) {
            let cells = export.cells(row.at)?;
            numbers.push(row.number);
            ids.push(text(&cells, Field::Id));
            if token.is_null() {
                token = text(&cells, Field::Token);
            }
        }
        self.twice.push(&json!({
            "scope": scope, "key": key, "token": token, "rows": numbers, "ids": ids, "count": count,
        }))?;
        Ok(true)
    }

    fn settles(&mut self, export: &Export, item: &Value, row: Row, suggested: &str) -> Result<(), Failure> {
        let cells = export.cells(row.at)?;
        self.unknown.push(&json!({
            "scope": item["scope"], "key": item["key"], "row": row.number, "id": text(&cells, Field::Id),
            "suggested": suggested,
        }))?;
        Ok(())
    }

    fn differs_in(&mut self, export: &Export, item: &Value, row: Row) -> Result<(), Failure> {
        let cells = export.cells(row.at)?;
        let outcome = match (row.outcome, cells.get(Field::Outcome)) {
            (_, Some(said)) => said,
            (Outcome::Happened, None) => "happened",
            (Outcome::Declined | Outcome::Other, None) => "",
        };
        self.differ.push(&json!({
            "scope": item["scope"], "key": item["key"], "state": item["state"], "status": item["status"], "row": row.number,
            "id": text(&cells, Field::Id), "outcome": outcome,
        }))?;
        Ok(())
    }

    /// Rows of which there is no record, in the order of the file.
    fn rest(&mut self, export: &Export, rows: &Rows) -> Result<(), Failure> {
        let mut is_rest = vec![0_u64; self.rows as usize / 64 + 1];
        let mut left = 0_u64;
        for rows in rows.unmatched() {
            if rows.len() > 1 {
                let cells = export.cells(rows[0].at)?;
                self.doubled(export, rows, (&text(&cells, Field::Scope), &text(&cells, Field::Key)))?;
            }
            for row in rows {
                is_rest[row.number as usize / 64] |= 1 << (row.number % 64);
                left += 1;
            }
        }
        let mut reading = export.rows()?;
        let mut number = 0_u32;
        while left > 0 {
            let Some(read) = reading.next()? else { break };
            number += 1;
            if is_rest[number as usize / 64] & (1 << (number % 64)) == 0 {
                continue;
            }
            left -= 1;
            let cells = read.cells.unwrap_or_default();
            self.only_there.push(&json!({
                "row": number, "id": text(&cells, Field::Id), "key": text(&cells, Field::Key),
            }))?;
        }
        Ok(())
    }

    fn write_json(self, out: &mut impl Write) -> io::Result<()> {
        let Self { rows, records, agree, twice, unknown, differ, only_here, only_there, unreadable } = self;
        write!(out, "{{\n  \"rows\": {rows},\n  \"records\": {records},\n  \"agree\": {agree}")?;
        for (name, group) in [
            ("twice", twice),
            ("unknown", unknown),
            ("differ", differ),
            ("only_here", only_here),
            ("only_there", only_there),
            ("unreadable", unreadable),
        ] {
            write!(out, ",\n  \"{name}\": [")?;
            let mut end = "]";
            for (place, finding) in group.findings()?.enumerate() {
                write!(out, "{}\n    {}", if place == 0 { "" } else { "," }, finding?)?;
                end = "\n  ]";
            }
            write!(out, "{end}")?;
        }
        writeln!(out, "\n}}")
    }

    fn write_text(self, out: &mut impl Write, place: &Where) -> io::Result<()> {
        let differs = self.differs();
        let Self { rows, records, agree, twice, unknown, differ, only_here, only_there, unreadable } = self;
        writeln!(out, "{rows} rows, {records} records: {agree} agree")?;
        if !differs {
            return writeln!(out, "nothing differs");
        }
        let head = |out: &mut dyn Write, group: &Spool, says: &str| match group.count {
            0 => Ok(()),
            count => writeln!(out, "\n{count} {says}"),
        };
        head(out, &twice, "done more than once: several rows happened for one record")?;
        for finding in twice.findings()? {
            let finding = finding?;
            let ids = list(&finding["ids"]);
            let ids = if ids.is_empty() { ids } else { format!(" ({ids})") };
            writeln!(out, "  {}: rows {}{ids}", named_short(&finding), list(&finding["rows"]))?;
        }
        head(out, &differ, "differ: the record and the export disagree about the same work")?;
        for finding in differ.findings()? {
            let finding = finding?;
            let state = [member(&finding, "state"), member(&finding, "status")].join(" ");
            let danger = if finding["state"] == "retryable" { "; a retry would run it again" } else { "" };
            let outcome = member(&finding, "outcome");
            let (name, there) = (named_short(&finding), row(&finding));
            writeln!(out, "  {name}: {} here, {outcome} in {there}{danger}", state.trim_end())?;
        }
        head(out, &unknown, "unknown here and known there; settle each with its command")?;
        for finding in unknown.findings()? {
            let finding = finding?;
            let suggested = finding["suggested"].as_str().unwrap_or_default();
            writeln!(out, "  {}: {} says {suggested}", named_short(&finding), row(&finding))?;
            writeln!(out, "    {}", command(&finding, suggested, place))?;
        }
        head(out, &only_here, "only here: completed, and the export has no row")?;
        for finding in only_here.findings()? {
            let finding = finding?;
            let (status, created) = (member(&finding, "status"), member(&finding, "created_at"));
            writeln!(out, "  {}: {}", named_short(&finding), format!("{status} {created}").trim_start())?;
        }
        head(
            out,
            &only_there,
            "only there: no record here; it expired, or was sent through another gateway or none",
        )?;
        for finding in only_there.findings()? {
            let finding = finding?;
            let key = member(&finding, "key");
            let key = if key.is_empty() { key } else { format!(", key \"{key}\"") };
            writeln!(out, "  {}{key}", row(&finding))?;
        }
        head(out, &unreadable, "unreadable: rows without a usable token or key")?;
        for finding in unreadable.findings()? {
            let finding = finding?;
            writeln!(out, "  row {}: {}", member(&finding, "row"), member(&finding, "why"))?;
        }
        Ok(())
    }
}

/// The row that says most: one that happened, or else one that was declined.
fn said(rows: &[Row]) -> Option<Row> {
    let of = |outcome| rows.iter().find(|row| row.outcome == outcome).copied();
    of(Outcome::Happened).or_else(|| of(Outcome::Declined)).or_else(|| of(Outcome::Other))
}

fn text(cells: &Cells, field: Field) -> Value {
    cells.get(field).map_or(Value::Null, Value::from)
}

/// A row as people name it: by its number and the provider's id.
fn row(finding: &Value) -> String {
    match member(finding, "id") {
        id if id.is_empty() => format!("row {}", member(finding, "row")),
        id => format!("row {} ({id})", member(finding, "row")),
    }
}

fn list(values: &Value) -> String {
    let shown = values.as_array().into_iter().flatten().filter(|value| !value.is_null());
    let shown: Vec<_> = shown.map(|value| value.as_str().map_or_else(|| value.to_string(), clean)).collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rfc_3339_or_unix_seconds() {
        for text in ["2025-11-17T02:03:20Z", "2025-11-17T03:03:20+01:00", "1763345000", " 1763345000 "] {
            assert_eq!(moment(text).map(jiff::Timestamp::as_second), Some(1_763_345_000), "{text}");
        }
        for text in ["", "yesterday", "17.11.2025", "1763345000000000000000"] {
            assert_eq!(moment(text), None, "{text}");
        }
    }

    #[test]
    fn a_record_says_what_became_of_its_work() {
        for (state, status, expected) in [
            ("completed", json!(201), Here::Happened),
            ("completed", json!(303), Here::Happened),
            ("completed", Value::Null, Here::Happened),
            ("completed", json!(402), Here::Declined),
            ("completed", json!(500), Here::Declined),
            ("unknown", Value::Null, Here::Unknown),
            ("retryable", Value::Null, Here::Retryable),
            ("running", Value::Null, Here::Open),
            ("pending", Value::Null, Here::Open),
        ] {
            assert_eq!(here(&json!({ "state": state, "status": status })), expected, "{state} {status}");
        }
    }

    #[test]
    fn the_row_that_says_most_counts() {
        let row = |number: u32, outcome| Row::new(Id([1; 32]), 0, number, outcome);
        let rows = [row(1, Outcome::Other), row(2, Outcome::Declined), row(3, Outcome::Happened)];
        assert_eq!(said(&rows).map(|row| row.number), Some(3));
        assert_eq!(said(&rows[..2]).map(|row| row.number), Some(2));
        assert_eq!(said(&[]).map(|row| row.number), None);
    }
}
