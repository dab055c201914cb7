//! Checks the expectations of a step.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use onlyonce::store::clock::Clock;
use onlyonce_core::dialect::Dialect;
use onlyonce_core::refusal::Code;
use serde_json::Value;

use super::client::{Answer, Request};
use super::data::Expect;
use super::payload::{span, unescaped};
use super::step::Heard;
use super::store::MovedClock;
use super::upstream::Received;

/// What is known besides the answers.
pub(crate) struct Facts<'a> {
    pub(crate) exec: usize,
    /// `None` while other requests are in flight.
    pub(crate) exec_before: Option<usize>,
    pub(crate) records: usize,
    pub(crate) records_before: Option<usize>,
    pub(crate) states: BTreeMap<String, usize>,
    pub(crate) dump: String,
    pub(crate) store_calls: usize,
    pub(crate) received: Received,
    pub(crate) heard: &'a HashMap<String, Vec<Heard>>,
    pub(crate) secrets: &'a [String],
    pub(crate) clock: &'a MovedClock,
    pub(crate) dialect: Dialect,
}

/// Headers that a replay does not repeat, and framing headers.
const NOT_COMPARED: [&str; 20] = [
    "date",
    "age",
    "set-cookie",
    "authentication-info",
    "www-authenticate",
    "retry-after",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "server-timing",
    "connection",
    "transfer-encoding",
    "content-length",
    "keep-alive",
    "trailer",
    "idempotent-replayed",
    "idempotent-replay",
    "idempotency-key-created",
];

/// A second of rounding and one of running.
const CLOCK_SLACK: i64 = 2;

macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds { return Err(format!($($why)+)) }
    };
}

/// Compares a step with what it expects.
pub(crate) fn step(expect: &Expect, answers: &[Heard], facts: &Facts<'_>) -> Result<(), String> {
    if expect.no_answer == Some(true) {
        ensure!(answers.iter().all(Result::is_err), "answered: {answers:?}");
    } else {
        for (at, heard) in answers.iter().enumerate() {
            let checked = match heard {
                Ok(answer) => one(expect, answer, facts),
                Err(error) => Err(format!("no answer: {error}")),
            };
            checked.map_err(|error| format!("answer {} of {}: {error}", at + 1, answers.len()))?;
        }
    }
    tally(expect, answers, facts)?;
    around(expect, facts)
}

fn tally(expect: &Expect, answers: &[Heard], facts: &Facts<'_>) -> Result<(), String> {
    let answers: Vec<_> = answers.iter().filter_map(|heard| heard.as_ref().ok()).collect();
    if let Some(expected) = &expect.tally {
        let mut tally: BTreeMap<String, usize> = BTreeMap::new();
        for answer in &answers {
            *tally.entry(answer.status.to_string()).or_default() += 1;
        }
        ensure!(tally == *expected, "answers {tally:?}, expected {expected:?}");
    }
    let marked = answers.iter().filter(|answer| answer.header(facts.marker()).is_some()).count();
    let expected = match (expect.marked, &expect.replay_of) {
        (Some(marked), _) => marked,
        (None, Some(_)) => answers.len(),
        (None, None) => 0,
    };
    ensure!(marked == expected, "{marked} answers are marked as replays, expected {expected}");
    Ok(())
}

/// Checks that do not depend on a single answer.
fn around(expect: &Expect, facts: &Facts<'_>) -> Result<(), String> {
    if let Some(exec) = expect.exec {
        ensure!(facts.exec == exec, "exec is {}, expected {exec}", facts.exec);
    }
    if let Some(records) = expect.records {
        ensure!(facts.records == records, "{} records, expected {records}", facts.records);
    }
    if let Some(states) = &expect.states {
        ensure!(facts.states == *states, "states {:?}, expected {states:?}", facts.states);
    }
    if let Some(calls) = expect.store_calls {
        ensure!(facts.store_calls == calls, "{} store calls, expected {calls}", facts.store_calls);
    }
    for text in &expect.never_stored {
        ensure!(!facts.dump.contains(text), "the store holds {text:?}");
    }
    let received = &facts.received;
    for (name, value) in &expect.saw {
        let saw = received.headers.get(name).map(|saw| String::from_utf8_lossy(saw.as_bytes()).into_owned());
        ensure!(saw.as_deref() == Some(value), "U saw {name}: {saw:?}, expected {value:?}");
    }
    for name in &expect.saw_not {
        ensure!(!received.headers.contains_key(name), "U saw {name}: {:?}", received.headers.get(name));
    }
    if let Some(body) = &expect.saw_body {
        let body = body.bytes(str::to_owned);
        ensure!(
            received.body == body,
            "U saw a body of {} bytes, expected {}",
            received.body.len(),
            body.len()
        );
    }
    Ok(())
}

fn one(expect: &Expect, answer: &Answer, facts: &Facts<'_>) -> Result<(), String> {
    let shown = || {
        format!("{} {:?}", answer.status, String::from_utf8_lossy(&answer.body[..answer.body.len().min(400)]))
    };
    if let Some(status) = &expect.status {
        ensure!(
            status.as_slice().contains(&answer.status),
            "is {}, expected {:?}",
            shown(),
            status.as_slice()
        );
    }
    if let Some(code) = &expect.code {
        refusal(code, answer, facts).map_err(|error| format!("{error}: {}", shown()))?;
        if leaves_nothing(code) && expect.records.is_none() && expect.states.is_none() {
            left_nothing(facts)?;
        }
    }
    if let Some(first) = &expect.replay_of {
        replay(first, answer, facts)?;
    }
    headers(expect, answer)?;
    if let Some(body) = &expect.body {
        let body = body.bytes(str::to_owned);
        ensure!(answer.body == body, "the body has other bytes than expected: {}", shown());
    }
    for text in &expect.contains {
        let found = answer.body.windows(text.len().max(1)).any(|window| window == text.as_bytes());
        ensure!(found, "the body lacks {text:?}: {}", shown());
    }
    if let Some(interim) = &expect.interim {
        ensure!(answer.interim == *interim, "1xx in front: {:?}, expected {interim:?}", answer.interim);
    }
    if let Some(trailers) = &expect.trailers {
        ensure!(answer.trailers == *trailers, "trailers {:?}, expected {trailers:?}", answer.trailers);
    }
    if let Some(within) = &expect.within {
        ensure!(answer.took <= span(within), "took {:?}, expected at most {within}", answer.took);
    }
    dates(expect, answer, facts)
}

fn headers(expect: &Expect, answer: &Answer) -> Result<(), String> {
    for (name, values) in &expect.header {
        let lines: Vec<_> = answer.lines(name).collect();
        let expected: Vec<_> = values.as_slice().iter().map(|value| unescaped(value)).collect();
        let shown: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
        ensure!(lines == expected, "{name}: {shown:?}, expected {:?}", values.as_slice());
    }
    for name in &expect.present {
        ensure!(answer.header(name).is_some(), "{name} is missing");
    }
    for name in &expect.absent {
        ensure!(answer.header(name).is_none(), "{name} is there: {:?}", answer.text(name));
    }
    Ok(())
}

fn dates(expect: &Expect, answer: &Answer, facts: &Facts<'_>) -> Result<(), String> {
    if let Some(expires_in) = &expect.expires_in {
        let now = facts.clock.now().as_micros() / 1_000_000;
        let told = http_date(answer, "idempotency-key-expires")?;
        let expected = now + i64::try_from(span(expires_in).as_secs()).expect("a short span");
        ensure!((told - expected).abs() <= CLOCK_SLACK, "expires {} s off", told - expected);
    }
    if expect.date_is_now {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
        let off = http_date(answer, "date")? - i64::try_from(now).expect("before the end of time");
        ensure!(off.abs() <= CLOCK_SLACK, "the Date is {off} s off");
    }
    Ok(())
}

fn http_date(answer: &Answer, name: &str) -> Result<i64, String> {
    let text = answer.text(name).ok_or(format!("{name} is missing"))?;
    let parsed = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text);
    parsed.map(jiff::Timestamp::as_second).map_err(|error| format!("{name}: {text:?} is no date: {error}"))
}

/// The stored status, headers and bytes, and nothing executed.
fn replay(first: &str, answer: &Answer, facts: &Facts<'_>) -> Result<(), String> {
    let first = facts.heard.get(first).and_then(|heard| heard.first()).ok_or(format!("no step {first:?}"))?;
    let first = first.as_ref().map_err(|error| format!("the first has no answer: {error}"))?;
    ensure!(answer.status == first.status, "replays {} as {}", first.status, answer.status);
    let stored = facts.dialect.marked(&first.body).unwrap_or_else(|| first.body.clone());
    ensure!(answer.body == stored, "replays other bytes: {:?}", String::from_utf8_lossy(&answer.body));
    let (own, of_first) = (compared(answer), compared(first));
    ensure!(own == of_first, "replays other headers: {own:?}, first {of_first:?}");
    ensure!(answer.text(facts.marker()) == Some("true"), "{} is not true", facts.marker());
    ensure!(answer.header("idempotency-stored").is_none(), "a replay says that it is not stored");
    if let Some(before) = facts.exec_before {
        ensure!(facts.exec == before, "a replay executed: exec went from {before} to {}", facts.exec);
    }
    Ok(())
}

/// By name; lines of one name keep their order.
fn compared(answer: &Answer) -> Vec<(String, String)> {
    let mut lines: Vec<_> = answer
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), String::from_utf8_lossy(value).into_owned()))
        .filter(|(name, _)| !NOT_COMPARED.contains(&name.as_str()))
        .collect();
    lines.sort_by(|a, b| a.0.cmp(&b.0));
    lines
}

/// The common shape of refusals (O06), and what they must not contain.
fn refusal(code: &str, answer: &Answer, facts: &Facts<'_>) -> Result<(), String> {
    let known = Code::ALL.into_iter().find(|known| known.as_str() == code);
    let known = known.ok_or(format!("there is no code {code:?}"))?;
    let own = facts.dialect.code(known);
    ensure!(code_of(answer).as_deref() == Some(own), "the code is {:?}, expected {own:?}", code_of(answer));
    let json: Value = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    ensure!(answer.text("content-type") == Some(&*facts.dialect.content_type), "content type");
    match &*facts.dialect.name {
        "stripe" => {
            ensure!(json["error"]["type"] == "idempotency_error", "error.type");
            ensure!(json["error"]["message"].is_string(), "error.message");
        }
        _ if facts.dialect.content_type == "application/problem+json" => {
            let page = format!("https://onlyonce.dev/problems/{}", code.replace('_', "-"));
            ensure!(json["type"] == page, "type");
            ensure!(json["status"] == answer.status, "status");
            ensure!(json["title"].is_string() && json["detail"].is_string(), "title and detail");
            ensure!(json["retryable"] == known.is_retryable(), "retryable");
        }
        // The cases of a preset say themselves what its errors look like.
        _ => {}
    }
    if let Some(result) = &facts.dialect.result {
        ensure!(answer.header(result.name.as_str()) == Some(result.rejected.as_bytes()), "{}", result.name);
    }
    ensure!(answer.text("cache-control") == Some("no-store"), "Cache-Control is not no-store");
    let body = String::from_utf8_lossy(&answer.body);
    let told = facts.secrets.iter().find(|secret| body.contains(&***secret));
    ensure!(told.is_none(), "the body echoes {told:?}");
    let ends_an_attempt = code.starts_with("upstream_");
    if known.is_retryable() && !ends_an_attempt {
        let wait = answer.text("retry-after").and_then(|wait| wait.parse::<u32>().ok());
        ensure!(wait.is_some_and(|wait| wait >= 1), "Retry-After: {:?}", answer.text("retry-after"));
    }
    if ends_an_attempt {
        ensure!(answer.text("idempotency-stored") == Some("false"), "Idempotency-Stored is not false");
    }
    if known == Code::OutcomeUnknown {
        let link = answer.text("link").unwrap_or_default();
        ensure!(link.contains("rel=\"status\""), "Link: {link:?}");
    }
    Ok(())
}

/// Refused before anything was looked up or reserved.
fn leaves_nothing(code: &str) -> bool {
    ["key_missing", "key_invalid", "scope_missing", "body_too_large", "store_unavailable", "limit_reached"]
        .iter()
        .any(|ending| code.ends_with(ending))
}

fn left_nothing(facts: &Facts<'_>) -> Result<(), String> {
    let (Some(exec), Some(records)) = (facts.exec_before, facts.records_before) else { return Ok(()) };
    ensure!(facts.exec == exec, "it was refused, and executed: exec went from {exec} to {}", facts.exec);
    ensure!(facts.records == records, "it was refused, and left a record: {:?}", facts.states);
    Ok(())
}

/// The `code` of an error, in whichever dialect.
pub(crate) fn code_of(answer: &Answer) -> Option<String> {
    let json: Value = serde_json::from_slice(&answer.body).ok()?;
    let places = ["/code", "/error/code", "/errors/0/code", "/details/0/issue", "/error/details/0/reason"];
    let code = places.iter().find_map(|place| json.pointer(place)?.as_str());
    code.map(str::to_owned)
}

pub(crate) fn expects_an_error(expect: &Expect) -> bool {
    let status = expect.status.as_ref().map_or(&[][..], |status| status.as_slice());
    expect.code.is_some() || status.iter().any(|status| *status >= 400)
}

/// Keys that are long enough to search for in other text: what stands in the key's header, and fresh keys wherever they stand.
pub(crate) fn keys_of(request: &Request, fresh: &[String]) -> Vec<String> {
    const CHARS_MIN: usize = 8;
    let is_key = |name: &str| name.eq_ignore_ascii_case("idempotency-key");
    let keys = request.headers.iter().filter(|(name, _)| is_key(name));
    let named = keys.map(|(_, value)| String::from_utf8_lossy(value).trim_matches('"').to_owned());
    let body = String::from_utf8_lossy(&request.body);
    let is_in = |key: &&String| {
        let mut values = request.headers.iter().map(|(_, value)| String::from_utf8_lossy(value));
        request.target.contains(&***key)
            || body.contains(&***key)
            || values.any(|value| value.contains(&***key))
    };
    named.chain(fresh.iter().filter(is_in).cloned()).filter(|key| key.len() >= CHARS_MIN).collect()
}

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
    text.unwrap_or("panicked").to_owned()
}

impl Facts<'_> {
    fn marker(&self) -> &str {
        self.dialect.replayed.as_str()
    }
}
