//! `onlyonce keys show`: one record, what happened to it, and what can be done about it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde_json::Value;

use super::super::target::{Name, Purpose, Stored, Target, claims};
use super::super::text::{Colour, Table, age, clean, member, quoted, span};
use super::{Failure, closing, label, print_json};
use crate::Ended;
use crate::cli::{Show, Where};

pub(crate) async fn run(arguments: &Show) -> Result<Ended, Failure> {
    let is_alone = arguments.response.as_deref().is_some_and(is_stdout);
    if is_alone && arguments.place.json {
        return Err(Failure::arguments(
            "--response - and --json both write to stdout; write the answer to a file",
        ));
    }
    // Looking at a stored answer leaves an entry in the audit log.
    let purpose = if arguments.response.is_some() { Purpose::Changing } else { Purpose::Reading };
    let target = Target::open(&arguments.place, purpose).await?;
    let found = find(&target, arguments).await;
    let (record, stored) = closing(target, found).await?;
    if let (Some(file), Some(stored)) = (&arguments.response, &stored) {
        write_answer(file, stored)?;
    }
    if is_alone {
        return Ok(Ended::Yes);
    }
    if arguments.place.json {
        return print_json(&record);
    }
    print(&mut io::stdout().lock(), &record, &arguments.place)?;
    Ok(Ended::Yes)
}

async fn find(target: &Target, arguments: &Show) -> Result<(Value, Option<Stored>), Failure> {
    let name = match &arguments.key {
        Some(key) => target.name(&arguments.scope, key).await?,
        None => target.by_id(&arguments.scope).await?,
    };
    let record = target.show(&name).await?;
    let stored = match &arguments.response {
        Some(_) => Some(response(target, &name, arguments).await?),
        None => None,
    };
    Ok((record, stored))
}

async fn response(target: &Target, name: &Name, arguments: &Show) -> Result<Stored, Failure> {
    let claims = claims(arguments.claims.as_deref())?;
    target.response(name, claims.as_deref()).await
}

fn is_stdout(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// For whoever asked alone: the answer may hold what a customer bought.
fn write_answer(file: &Path, stored: &Stored) -> Result<(), Failure> {
    if is_stdout(file) {
        return Ok(io::stdout().lock().write_all(&stored.body)?);
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(file).and_then(|mut opened| opened.write_all(&stored.body));
    written.map_err(|error| {
        Failure::new(
            "output_failed",
            format!("\"{}\" cannot be written: {error}; use another file", file.display()),
        )
    })?;
    eprintln!(
        "the stored answer, {} with {} bytes, is in \"{}\"",
        stored.status,
        stored.body.len(),
        file.display()
    );
    Ok(())
}

fn print(out: &mut impl Write, record: &Value, place: &Where) -> io::Result<()> {
    let colour = Colour::of_stdout();
    let now = jiff::Timestamp::now();
    writeln!(out, "{}", colour.bold(&format!("key {}", member(record, "key"))))?;
    for (name, value) in facts(record, now) {
        let value = if name == "state" { colour.state(&member(record, "state"), &value) } else { value };
        writeln!(out, "  {name:<11} {value}")?;
    }
    writeln!(out, "\n{}", colour.bold("Time line"))?;
    time_line(record).write(out, |_, _, cell| cell)?;
    if let Some(count) = record["evidence_left_out"].as_u64().filter(|count| *count > 0) {
        writeln!(out, "  ({count} more were left out)")?;
    }
    writeln!(out, "\n{}", member(record, "why"))?;
    for action in record["actions"].as_array().into_iter().flatten() {
        write_action(out, record, action, place)?;
    }
    Ok(())
}

fn facts(record: &Value, now: jiff::Timestamp) -> Vec<(&'static str, String)> {
    let at = |name: &str| member(record, name);
    let ago = |name: &str| match age(&record[name], now) {
        Some(age) => format!("{} ({} ago)", at(name), span(age)),
        None => String::new(),
    };
    let state = match at("since") {
        since if since.is_empty() => at("state"),
        _ => format!("{}, since {}", at("state"), ago("since")),
    };
    let dead_letter = if record["dead_letter"] == true { ", a dead letter" } else { "" };
    let attempt = match at("began_at") {
        began if began.is_empty() => at("attempt"),
        _ => format!("{}, began {}", at("attempt"), ago("began_at")),
    };
    let scope = match record["scope_label"].as_str() {
        None => at("scope"),
        Some(_) => format!("{} ({})", at("scope"), label(record)),
    };
    let facts = [
        ("state", format!("{state}{dead_letter}")),
        ("scope", scope),
        ("route", at("route")),
        ("effects", at("effects")),
        ("attempt", attempt),
        ("lapses", at("lapses_at")),
        ("deadline", at("deadline_at")),
        (
            "believed",
            Some(at("believed_at")).filter(|at| !at.is_empty()).map_or_else(String::new, |at| believed(&at)),
        ),
        ("answer", answer(record)),
        ("created", ago("created_at")),
        ("updated", ago("updated_at")),
        ("expires", at("expires_at")),
        ("record", at("id")),
        ("token", at("token")),
    ];
    facts.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn believed(at: &str) -> String {
    format!("\"did not happen\" from {at} on")
}

fn answer(record: &Value) -> String {
    let response = &record["response"];
    if response.is_null() {
        return String::new();
    }
    let headers: Vec<_> =
        response["headers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let by = match member(record, "by") {
        by if by.is_empty() => by,
        by => format!(", by {by}"),
    };
    let headers =
        if headers.is_empty() { String::new() } else { format!("; headers: {}", clean(&headers.join(", "))) };
    format!("{}, {} bytes{by}{headers}", member(response, "status"), member(response, "bytes"))
}

fn time_line(record: &Value) -> Table<4> {
    let mut table = Table::new(["  WHEN", "TRY", "WHAT", "MORE"]);
    for entry in record["evidence"].as_array().into_iter().flatten() {
        let said = match member(entry, "said") {
            said if said.is_empty() => member(entry, "what"),
            said => format!("{}: {said}", member(entry, "what")),
        };
        let contradicts = if entry["contradicts"] == true { "CONTRADICTS THE RECORD" } else { "" };
        let more =
            [member(entry, "who"), member(entry, "source"), member(entry, "detail"), contradicts.to_owned()];
        let more: Vec<_> = more.into_iter().filter(|word| !word.is_empty()).collect();
        table.push([format!("  {}", member(entry, "at")), member(entry, "attempt"), said, more.join(" · ")]);
    }
    table
}

/// What an operator can do now, with the command for it; else from when on.
fn write_action(out: &mut impl Write, record: &Value, action: &Value, place: &Where) -> io::Result<()> {
    let name = member(action, "action");
    let says = match &*name {
        "happened" => "it happened; add --status, --header and --body if you have the answer",
        "did-not-happen" => "it did not happen, and the next retry runs it",
        "ask" => "call the probe at once",
        "forget" => "forget the key, and the next request with it runs the work",
        other => other,
    };
    if action["allowed"] == true {
        return writeln!(out, "\n# {says}\n{}", command(record, &name, place));
    }
    match action["from"].as_str() {
        Some(from) => writeln!(out, "\n# {says}: from {} on", clean(from)),
        None => Ok(()),
    }
}

/// A command that can be pasted into a shell.
pub(in crate::commands) fn command(record: &Value, action: &str, place: &Where) -> String {
    let [scope, key] = ["scope", "key"].map(|name| record[name].as_str().unwrap_or_default());
    let (verb, word) = match action {
        "forget" => ("forget", ""),
        "ask" => ("verdict", " unknown"),
        "happened" => ("verdict", " happened"),
        _ => ("verdict", " did-not-happen"),
    };
    let named = format!("{} {}{word}", quoted(scope), quoted(&clean(key)));
    let mut flags = String::from("--reason 'WHY'");
    if verb == "verdict" && record["state"] == "retryable" {
        flags = format!("{flags} --attempt {}", member(record, "token"));
    }
    for (flag, value) in given(place) {
        flags = format!("{flags} {flag} {}", quoted(&value));
    }
    if key.starts_with('-') {
        return format!("onlyonce keys {verb} {flags} -- {named}");
    }
    format!("onlyonce keys {verb} {named} {flags}")
}

/// Where, as it was said; without a password.
fn given(place: &Where) -> Vec<(&'static str, String)> {
    let config = place.config.as_ref().map(|file| file.display().to_string());
    let store = place.store.as_deref().map(without_password);
    let given = [
        ("--admin", place.admin.clone()),
        ("--token", place.token.clone()),
        ("--store", store),
        ("--config", config),
    ];
    given.into_iter().filter_map(|(flag, value)| Some((flag, value?))).collect()
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let shown = match authority.rsplit_once('@') {
        Some((user, host)) => match user.split_once(':') {
            Some((user, _)) => format!("{user}:PASSWORD@{host}"),
            None => authority.to_owned(),
        },
        None => authority.to_owned(),
    };
    let path = match path.split_once('?') {
        Some((path, query)) => {
            let hidden = |member: &str| match member.split_once('=') {
                Some(("password", _)) => "password=PASSWORD".to_owned(),
                Some(_) | None => member.to_owned(),
            };
            format!("{path}?{}", query.split('&').map(hidden).collect::<Vec<_>>().join("&"))
        }
        None => path.to_owned(),
    };
    format!("{scheme}://{shown}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn place(admin: Option<&str>, store: Option<&str>) -> Where {
        let text = |text: Option<&str>| text.map(str::to_owned);
        Where { admin: text(admin), token: None, store: text(store), config: None, json: false }
    }

    #[test]
    fn a_command_names_what_is_meant_whatever_the_key() {
        let record =
            |key: &str, state: &str| json!({ "scope": "ab12", "key": key, "state": state, "token": "t.t" });
        let none = place(None, None);
        assert_eq!(
            command(&record("order-17", "unknown"), "happened", &none),
            "onlyonce keys verdict ab12 order-17 happened --reason 'WHY'"
        );
        assert_eq!(
            command(&record("it's $5", "unknown"), "forget", &place(Some("http://ops:8081"), None)),
            r"onlyonce keys forget ab12 'it'\''s $5' --reason 'WHY' --admin http://ops:8081"
        );
        assert_eq!(
            command(&record("-rf", "retryable"), "happened", &none),
            "onlyonce keys verdict --reason 'WHY' --attempt t.t -- ab12 -rf happened"
        );
        assert_eq!(
            command(&record("k", "unknown"), "ask", &place(None, Some("sqlite:a b.db"))),
            "onlyonce keys verdict ab12 k unknown --reason 'WHY' --store 'sqlite:a b.db'"
        );
    }

    #[test]
    fn a_password_is_not_shown() {
        for (url, shown) in [
            ("sqlite:onlyonce.db", "sqlite:onlyonce.db"),
            ("postgres://ann@db/pay", "postgres://ann@db/pay"),
            ("postgres://ann:s3c@ret@db:5433/pay?schema=x", "postgres://ann:PASSWORD@db:5433/pay?schema=x"),
            ("postgres://db/pay?user=ann&password=s3cret", "postgres://db/pay?user=ann&password=PASSWORD"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn a_record_is_told_with_its_time_line_and_what_can_be_done() {
        let record = json!({
            "key": "order\u{7}17", "scope": "ab".repeat(32), "scope_label": "acme", "state": "unknown", "attempt": 1,
            "since": "2026-11-17T02:03:05.000Z", "dead_letter": true, "route": "POST /pay", "effects": "opaque",
            "began_at": "2026-11-17T02:03:04.000Z", "believed_at": "2026-11-17T03:00:00.000Z", "response": null,
            "created_at": "2026-11-17T02:03:04.000Z", "updated_at": "2026-11-17T02:03:05.000Z", "id": "cd".repeat(32),
            "why": "Nobody knows whether attempt 1 ran.", "evidence_left_out": 3,
            "evidence": [
                { "at": "2026-11-17T02:03:04.000Z", "what": "attempt", "attempt": 1, "by": "attempt", "said": null },
                { "at": "2026-11-17T02:04:04.000Z", "what": "webhook", "attempt": 1, "by": "webhook", "said": "happened",
                  "source": "bank", "detail": "evt\u{1b}[2J", "contradicts": true },
            ],
            "actions": [
                { "action": "happened", "allowed": true },
                { "action": "did-not-happen", "allowed": false, "code": "verdict_too_early", "from": "2026-11-17T03:00:00.000Z" },
                { "action": "forget", "allowed": false, "code": "record_unknown", "from": null },
            ],
        });
        let mut out = Vec::new();
        print(&mut out, &record, &place(None, None)).unwrap();
        let told = String::from_utf8(out).unwrap();
        for line in [
            "key order\\u{7}17",
            "  believed    \"did not happen\" from 2026-11-17T03:00:00.000Z on",
            "  2026-11-17T02:03:04.000Z  1    attempt",
            "  2026-11-17T02:04:04.000Z  1    webhook: happened  bank · evt\\u{1b}[2J · CONTRADICTS THE RECORD",
            "  (3 more were left out)",
            "Nobody knows whether attempt 1 ran.",
            "# it did not happen, and the next retry runs it: from 2026-11-17T03:00:00.000Z on",
        ] {
            assert!(told.lines().any(|told| told == line), "{line}\n{told}");
        }
        assert!(told.contains(", a dead letter\n"), "{told}");
        assert!(!told.contains("onlyonce keys forget"), "{told}");
        assert!(!told.contains('\u{1b}'), "{told}");
    }
}
