//! `onlyonce conform`: whether an API, ours or not, is safe to retry, seen from outside.
//!
//! A scenario (`check/`) sends some requests and answers several questions. How often they ran is counted by somebody else
//! (`count.rs`), or follows from the answers; what follows from neither cannot be told. Nothing is sent that was not allowed by
//! `--allow-writes`.

mod check;
mod count;
mod har;
mod report;
mod subject;
mod wire;

use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use http::Uri;
use onlyonce::dialect::Dialect;
use onlyonce::key;
use serde_json::Value;

use self::check::{Found, GROUPS, Level, Scenario, Verdict, scenarios};
use self::count::Counter;
use self::report::{Judged, Report};
use self::subject::{Ask, Halt, Place, Said, Subject};
use super::audit::document::Document;
use super::failure::Failure;
use super::text::{Progress, clean, quoted};
use crate::Ended;
use crate::cli::Conform;
use crate::tls::Connector;

/// Requests that find out whether answers of different keys differ.
const WRITES_FIRST: u32 = 2;

pub(crate) async fn run(arguments: &Conform) -> Result<Ended, Failure> {
    let chosen = chosen(&arguments.only)?;
    let subject = subject(arguments)?;
    let writes: u32 = WRITES_FIRST + chosen.iter().map(|scenario| scenario.writes).sum::<u32>();
    if arguments.dry_run {
        write_plan(&mut io::stdout().lock(), &subject, &chosen, writes)?;
        return Ok(Ended::Yes);
    }
    if arguments.allow_writes.is_none() {
        return Err(Failure::arguments(format!(
            "this sends up to {writes} writes to {}; allow them with --allow-writes {writes}, or see the plan with --dry-run",
            subject.url
        )));
    }
    begin(&subject, writes).await?;
    let mut progress = Progress::new();
    let (mut judged, mut is_short) = (Vec::new(), false);
    for scenario in &chosen {
        progress.tell(&format!("{}: {} …", scenario.group, scenario.checks[0].what));
        let played = (scenario.play)(&subject).await;
        is_short |= matches!(played, Err(Halt::Writes));
        judged.extend(told(&subject, scenario, played));
    }
    drop(progress);
    let report = Report { subject: &subject, judged };
    if let Some(file) = &arguments.har {
        write_har(file, &report)?;
    }
    report.write(&mut io::stdout().lock(), arguments.form())?;
    let is_broken = report.count(Some(Level::Must), Verdict::Broken) > 0
        || (arguments.strict && report.count(Some(Level::Should), Verdict::Broken) > 0);
    match (is_broken, is_short) {
        (true, _) => Ok(Ended::No),
        (false, false) => Ok(Ended::Yes),
        // A check that was never made must not look like one that held.
        (false, true) => {
            let detail = format!(
                "--allow-writes {} is used up, and some checks were not made; all of them need up to {writes}",
                subject.writes_max
            );
            Err(Failure::new("writes_used_up", detail))
        }
    }
}

/// The scenarios of these groups; of all, where none is named.
fn chosen(only: &[String]) -> Result<Vec<&'static Scenario>, Failure> {
    if let Some(unknown) = only.iter().find(|group| !GROUPS.contains(&group.as_str())) {
        let detail = format!("--only {} is not a group; there are {}", quoted(unknown), GROUPS.join(", "));
        return Err(Failure::arguments(detail));
    }
    let is_chosen =
        |scenario: &&Scenario| only.is_empty() || only.iter().any(|group| group == scenario.group);
    Ok(scenarios().filter(is_chosen).collect())
}

fn subject(arguments: &Conform) -> Result<Subject, Failure> {
    let url = parsed("URL", &arguments.url)?;
    let dialect = Dialect::named(&arguments.profile).ok_or_else(|| {
        let names: Vec<_> = Dialect::names().collect();
        Failure::arguments(format!(
            "--profile {} is unknown; use {}",
            quoted(&arguments.profile),
            names.join(", ")
        ))
    })?;
    let method = http::Method::from_bytes(arguments.method.as_bytes())
        .map_err(|_| Failure::arguments(format!("--method {} is no method", quoted(&arguments.method))))?;
    let body = text_or_file("--body", &arguments.body)?;
    let other_body = match &arguments.other_body {
        Some(other) => Some(text_or_file("--other-body", other)?),
        None => changed(&body),
    };
    if other_body.as_ref() == Some(&body) {
        return Err(Failure::arguments("--other-body is the same as --body"));
    }
    let place = place(&dialect)?;
    if matches!(place, Place::Member(_)) && subject::with_member(&body, "key", "").is_none() {
        return Err(Failure::arguments(format!(
            "--body is not a JSON object, and the key of --profile {} is a member of it",
            dialect.name
        )));
    }
    let counter = counter(arguments)?;
    let is_listed = match (&arguments.openapi, &place) {
        (Some(file), Place::Header(header)) => Some(is_listed(file, &url, &method, header)?),
        (Some(_), Place::Member(_) | Place::Query(_)) | (None, _) => None,
    };
    Ok(Subject {
        connector: Connector::for_url(&url)?,
        url,
        method: method.to_string(),
        content_type: arguments.content_type.clone(),
        body,
        other_body,
        headers: arguments.header.clone(),
        other_caller: arguments.other_caller.clone(),
        place,
        dialect,
        counter,
        timeout: arguments.timeout,
        retention: arguments.retention,
        is_listed,
        run: format!("{:08x}", rand_u32()),
        writes_max: arguments.allow_writes.unwrap_or(0),
        said: Mutex::new(Said::default()),
    })
}

/// Two keys, so that it is known whether the request works at all, and whether answers tell runs apart.
async fn begin(subject: &Subject, writes: u32) -> Result<(), Failure> {
    let mut answers = Vec::new();
    for _ in 0..WRITES_FIRST {
        let key = subject.key("first");
        answers.push(subject.call(Ask::with(&key)).await.map_err(|halt| match halt {
            Halt::Writes => {
                let detail = format!("--allow-writes is below {WRITES_FIRST}, which is the least; all checks need up to {writes}");
                Failure::arguments(detail)
            }
            Halt::Lost(why) => {
                Failure::new("api_unanswered", format!("{} does not answer: {why}", subject.url))
            }
        })?);
    }
    if let Some(answer) = answers.iter().find(|answer| !answer.is_success()) {
        let says = clean(&String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]));
        return Err(Failure::new(
            "request_refused",
            format!(
                "the request itself is answered with {}: {says}; give what it needs with --method, --body and --header",
                answer.status
            ),
        ));
    }
    subject.said().has_identity = answers[0].body != answers[1].body;
    subject.count().await.map_err(|halt| match halt {
        Halt::Lost(why) => Failure::new("count_unreadable", why),
        Halt::Writes => Failure::new("count_unreadable", "a count is no write"),
    })?;
    Ok(())
}

/// All findings of a scenario. One that came to no end has told nothing.
fn told(
    subject: &Subject,
    scenario: &'static Scenario,
    played: Result<Vec<Found>, Halt>,
) -> impl Iterator<Item = Judged> {
    let found = match played {
        Ok(found) => found,
        Err(halt) => {
            let why = match halt {
                Halt::Writes => format!("--allow-writes {} is used up", subject.writes_max),
                Halt::Lost(why) => why,
            };
            vec![Found::unclear(why); scenario.checks.len()]
        }
    };
    let judge = |(check, found)| Judged { group: scenario.group, check, found };
    scenario.checks.iter().copied().zip(found).map(judge)
}

fn write_plan(
    out: &mut impl Write,
    subject: &Subject,
    chosen: &[&'static Scenario],
    writes: u32,
) -> io::Result<()> {
    writeln!(out, "{} {}", subject.method, subject.url)?;
    writeln!(
        out,
        "  {:>3} requests: whether it works, and whether answers of different keys differ",
        WRITES_FIRST
    )?;
    for scenario in chosen {
        let ids: Vec<_> = scenario.checks.iter().map(|check| check.id).collect();
        writeln!(out, "  {:>3} requests: {}: {}", scenario.writes, scenario.group, ids.join(", "))?;
    }
    writeln!(
        out,
        "at most {writes} requests, under keys that begin with conform-; send them with --allow-writes {writes}"
    )
}

fn write_har(file: &Path, report: &Report<'_>) -> Result<(), Failure> {
    let cannot = |error: io::Error| {
        Failure::new(
            "har_unwritable",
            format!("{} cannot be written: {error}", clean(&file.display().to_string())),
        )
    };
    std::fs::write(file, format!("{:#}\n", report.har())).map_err(cannot)
}

fn parsed(name: &str, text: &str) -> Result<Uri, Failure> {
    let uri: Option<Uri> = text.parse().ok();
    let uri = uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some());
    uri.ok_or_else(|| {
        Failure::arguments(format!("{name} {} is not a URL; use http://HOST:PORT/PATH", quoted(text)))
    })
}

fn text_or_file(name: &str, text: &str) -> Result<Vec<u8>, Failure> {
    let Some(file) = text.strip_prefix('@') else { return Ok(text.as_bytes().to_vec()) };
    std::fs::read(file)
        .map_err(|error| Failure::arguments(format!("{name} {} cannot be read: {error}", quoted(text))))
}

/// The body with a number in it changed; none where there is no number.
fn changed(body: &[u8]) -> Option<Vec<u8>> {
    fn change(value: &mut Value) -> bool {
        match value {
            Value::Number(number) => {
                let Some(more) = number.as_u64().and_then(|number| number.checked_add(1)) else {
                    return false;
                };
                *value = Value::from(more);
                true
            }
            Value::Array(items) => items.iter_mut().any(change),
            Value::Object(members) => members.values_mut().any(change),
            Value::Null | Value::Bool(_) | Value::String(_) => false,
        }
    }
    let mut json: Value = serde_json::from_slice(body).ok()?;
    change(&mut json).then(|| json.to_string().into_bytes())
}

/// Where the dialect has its key.
fn place(dialect: &Dialect) -> Result<Place, Failure> {
    let first = dialect.preset.key_from.as_ref().and_then(|sources| sources.first());
    Ok(match first {
        None => Place::Header("Idempotency-Key".to_owned()),
        Some(key::Source::Header(name)) => Place::Header(name.to_string()),
        Some(key::Source::Query(name)) => Place::Query(name.to_string()),
        Some(key::Source::Json(pointer)) => match pointer.as_str().strip_prefix('/') {
            Some(member) if !member.contains(['/', '~']) => Place::Member(member.to_owned()),
            _ => {
                let detail =
                    format!("the key of --profile {} is deeper in the body than can be sent", dialect.name);
                return Err(Failure::arguments(detail));
            }
        },
    })
}

fn counter(arguments: &Conform) -> Result<Option<Counter>, Failure> {
    if let Some(command) = &arguments.count_command {
        return Ok(Some(Counter::Command(command.clone())));
    }
    let Some(text) = &arguments.count else { return Ok(None) };
    let url = parsed("--count", text)?;
    let pointer = arguments.count_pointer.clone();
    if let Some(pointer) = pointer.as_ref().filter(|pointer| !pointer.is_empty() && !pointer.starts_with('/'))
    {
        return Err(Failure::arguments(format!(
            "--count-pointer {} is not a JSON Pointer; it begins with a slash, like /count",
            quoted(pointer)
        )));
    }
    Ok(Some(Counter::Url { connector: Connector::for_url(&url)?, url, pointer }))
}

/// Whether the operation that is tested lists the header as a parameter.
fn is_listed(file: &Path, url: &Uri, method: &http::Method, header: &str) -> Result<bool, Failure> {
    let document = Document::open(file, None)?;
    let is_tested = |path: &str| {
        let [own, tested] = [path, url.path()].map(|path| path.split('/').collect::<Vec<_>>());
        own.len() == tested.len()
            && own.iter().zip(&tested).all(|(own, tested)| own == tested || own.starts_with('{'))
    };
    let operation = document
        .operations
        .iter()
        .find(|operation| operation.method == method && is_tested(&operation.whole));
    let operation = operation
        .ok_or_else(|| Failure::arguments(format!("--openapi lists no {method} {}", quoted(url.path()))))?;
    Ok(operation.headers.iter().any(|listed| listed.eq_ignore_ascii_case(header)))
}

/// What tells the keys of this test from those of the last.
fn rand_u32() -> u32 {
    let mut bytes = [0; 4];
    // Without randomness, the time of day tells them apart as well.
    match ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes) {
        Ok(()) => u32::from_be_bytes(bytes),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_body_has_another_number() {
        assert_eq!(changed(br#"{"a":"x","b":{"c":[7]}}"#), Some(br#"{"a":"x","b":{"c":[8]}}"#.to_vec()));
        for body in [r#"{"a":"x"}"#, "a=1", "", r#"{"a":-1.5}"#] {
            assert_eq!(changed(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn every_scenario_has_a_group_and_every_rule_its_own_name() {
        let mut ids: Vec<_> =
            scenarios().flat_map(|scenario| scenario.checks).map(|check| check.id).collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert!((35..=50).contains(&count), "{count}");
        for group in GROUPS {
            assert!(scenarios().any(|scenario| scenario.group == group), "{group}");
        }
    }

    #[test]
    fn a_group_that_is_unknown_is_refused() {
        assert!(chosen(&["replay".to_owned(), "reply".to_owned()]).is_err());
        assert_eq!(chosen(&["replay".to_owned()]).map(|chosen| chosen.len()).ok(), Some(1));
    }
}
