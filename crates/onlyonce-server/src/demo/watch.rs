//! The terminal while somebody tries the demo: a line for each decision, and for an unknown outcome what settles it.
//!
//! The lines come from the decision log, which names a record by its digest; the key is looked up, as an operator would.
//! Lines are dropped while nobody reads them: the gateway never waits for the terminal.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};
use onlyonce::Engine;
use onlyonce::machine;
use onlyonce::record::{Id, Record};
use onlyonce::store::{Query, Search};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::interval;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context as Scope, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use super::report::Style;
use crate::admin::Admin;

/// The target of the decision log.
const TARGET: &str = "onlyonce::decisions";
/// How many lines may wait.
const WAITING_MAX: usize = 256;
/// How often requests are counted that have no line of their own, since they have no key.
const COUNT_EVERY: Duration = Duration::from_millis(500);
/// What such requests are counted as.
const KEYLESS: [&str; 3] = ["missing", "invalid", "scope_missing"];
/// How many records are looked through for one digest: another key may begin with the same digits.
const LOOKED_AT_MAX: usize = 10;

/// How much of a scope a command needs.
const SCOPE_DIGITS: usize = 12;

/// What the decision log says of a request.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    decision: String,
    route: String,
    record: String,
    attempt: Option<u64>,
    status: u64,
}

/// Begins to listen to the decision log. Once a process.
pub(crate) fn listen() -> Result<Receiver<Decided>> {
    let (sender, decided) = channel(WAITING_MAX);
    tracing_subscriber::registry().with(Decisions(sender)).try_init().context("something else logs here")?;
    Ok(decided)
}

struct Decisions(Sender<Decided>);

impl<S: Subscriber> Layer<S> for Decisions {
    fn enabled(&self, metadata: &Metadata<'_>, _: Scope<'_, S>) -> bool {
        metadata.target() == TARGET
    }

    fn on_event(&self, event: &Event<'_>, _: Scope<'_, S>) {
        let mut decided = Decided::default();
        event.record(&mut decided);
        // A full queue loses a line, and delays no request.
        let _ = self.0.try_send(decided);
    }
}

impl Visit for Decided {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "decision" => self.decision = value.to_owned(),
            "route" => self.route = value.to_owned(),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "attempt" => self.attempt = Some(value),
            "status" => self.status = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "record" {
            self.record = format!("{value:?}");
        }
    }
}

/// Whose decisions are told, and where they are settled.
pub(crate) struct Watch {
    pub(crate) engine: Arc<Engine>,
    pub(crate) operators: Arc<Admin>,
    pub(crate) admin: SocketAddr,
}

impl Watch {
    /// Prints until it is dropped.
    pub(crate) async fn tell(self, mut decided: Receiver<Decided>) {
        let out = printer();
        let style = Style::of_stdout();
        let mut keyless = self.keyless();
        let mut rounds = interval(COUNT_EVERY);
        loop {
            let text = tokio::select! {
                decided = decided.recv() => match decided {
                    Some(decided) => self.line(&decided, style).await,
                    None => return,
                },
                _ = rounds.tick() => {
                    let now = self.keyless();
                    let more = now.iter().zip(&keyless);
                    let lines = more.filter(|((_, now), (_, before))| now > before);
                    let text: String = lines.map(|((word, _), _)| keyless_line(word, style)).collect();
                    keyless = now;
                    text
                }
            };
            if !text.is_empty() {
                let _ = out.try_send(text);
                self.operators.refresh();
            }
        }
    }

    fn keyless(&self) -> Vec<(&'static str, u64)> {
        let decisions = self.engine.traffic().decisions.into_iter();
        decisions.filter(|(word, _)| KEYLESS.contains(word)).collect()
    }

    async fn line(&self, decided: &Decided, style: Style) -> String {
        let record = self.record(&decided.record).await;
        let key = record.as_deref().map_or("", |record| record.key.as_str());
        let says = says(decided);
        let Decided { decision, route, status, .. } = decided;
        let decision = style.strong(&format!("{decision:<11}"));
        let mut text = format!("{} {decision} {status}  {route:<20} {:<12} {says}\n", clock(), plain(key));
        if let Some(record) = record.filter(|record| record.state.name().as_str() == "unknown") {
            text.push_str(&self.settles(&record));
        }
        text
    }

    /// The record with this short digest.
    async fn record(&self, digest: &str) -> Option<Arc<Record>> {
        let query = Query { search: Some(Search::new(digest)), ..Query::all(LOOKED_AT_MAX) };
        let found = self.engine.list(query).await.ok()?.records;
        let mut records = found.into_iter().map(|(_, seen)| seen.record);
        records.find(|record| Id::of(&record.scope, &record.key).short().to_string() == digest)
    }

    /// The page and the command that settle an unknown outcome.
    fn settles(&self, record: &Record) -> String {
        let (admin, scope, key) = (self.admin, record.scope.to_string(), record.key.as_str());
        let next = match machine::facts(record).ask_at {
            Some(_) => "The probe of its route is asked in a moment. You can also settle it",
            None => "Look at the ledger, then settle it",
        };
        let verdict = "happened --reason 'the ledger has it' --status 201 --body '{}'";
        format!(
            "         The outcome is unknown. {next}, on the page or by a command:\n           \
             http://{admin}/#/keys/{scope}/{}\n           \
             {} keys verdict {} {} {verdict} --admin http://{admin}\n",
            encoded(key),
            program(),
            &scope[..SCOPE_DIGITS],
            quoted(key),
        )
    }
}

/// This program, as a shell started in this folder finds it.
pub(crate) fn program() -> String {
    let Ok(program) = std::env::current_exe() else { return "onlyonce".to_owned() };
    let folder = std::env::current_dir().unwrap_or_default();
    let inside = program.strip_prefix(&folder).map(|path| Path::new(".").join(path));
    quoted(&inside.unwrap_or(program).display().to_string())
}

/// Writes what it is sent, on a thread of its own: where nobody reads, only that thread waits.
fn printer() -> SyncSender<String> {
    let (sender, lines) = sync_channel::<String>(WAITING_MAX);
    std::thread::spawn(move || {
        for text in lines {
            let mut out = io::stdout().lock();
            if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
                return;
            }
        }
    });
    sender
}

fn says(decided: &Decided) -> String {
    let attempt = decided.attempt.unwrap_or(1);
    match (&*decided.decision, decided.status) {
        ("executed" | "retried", 502 | 504) => format!("attempt {attempt} was sent; the answer is lost"),
        ("executed", 503) => "the service did not run it; a retry may".to_owned(),
        ("executed", _) => "ran".to_owned(),
        ("retried", _) => format!("ran, as attempt {attempt}"),
        ("replayed", _) => "answered from the record; nothing ran".to_owned(),
        ("accepted", _) => "accepted; a worker runs it".to_owned(),
        ("in_progress", _) => "refused: the first one still runs".to_owned(),
        ("key_reused", _) => "refused: this key belongs to another request".to_owned(),
        ("unknown", _) => "refused: whether it ran is unknown; nothing ran".to_owned(),
        (other, _) => other.replace('_', " "),
    }
}

fn keyless_line(word: &str, style: Style) -> String {
    let (status, says) = match word {
        "missing" => (400, "refused: no Idempotency-Key; nothing ran"),
        "scope_missing" => (401, "refused: nobody said who calls; nothing ran"),
        _ => (400, "refused: the Idempotency-Key is malformed; nothing ran"),
    };
    format!("{} {} {status}  {:<20} {:<12} {says}\n", clock(), style.strong(&format!("{word:<11}")), "", "")
}

/// The time of day, in UTC.
fn clock() -> String {
    jiff::Timestamp::now().strftime("%H:%M:%S").to_string()
}

/// A key without what would move the terminal's cursor.
fn plain(key: &str) -> String {
    key.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

/// As a shell takes it.
fn quoted(key: &str) -> String {
    let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte));
    if is_plain { key.to_owned() } else { format!("'{}'", plain(key).replace('\'', r"'\''")) }
}

/// As the part of a URL.
fn encoded(key: &str) -> String {
    let part = |byte: u8| match byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    key.bytes().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_does_not_reach_the_terminal_or_a_shell_as_anything_but_text() {
        assert_eq!(plain("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
        assert_eq!(quoted("lost-1"), "lost-1");
        assert_eq!(quoted("a'; rm -rf /"), r"'a'\''; rm -rf /'");
        assert_eq!(encoded("a/b ü"), "a%2Fb%20%C3%BC");
    }

    #[test]
    fn every_decision_is_told_in_words() {
        let says = |decision: &str, status| {
            says(&Decided { decision: decision.to_owned(), status, attempt: Some(2), ..Decided::default() })
        };
        assert_eq!(says("executed", 201), "ran");
        assert_eq!(says("retried", 201), "ran, as attempt 2");
        assert_eq!(says("replayed", 503), "answered from the record; nothing ran");
        assert_eq!(says("executed", 502), "attempt 2 was sent; the answer is lost");
        assert_eq!(says("store_unavailable", 503), "store unavailable");
    }
}
