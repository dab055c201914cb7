//! The versioned rest of a record: fields that nobody queries and that have no column (`sql.rs` has the columns).
//!
//! 1. The first byte is the version. Every released version can be read; the newest is written.
//! 2. A rest has exactly one encoding: decoding and encoding again gives the same bytes.
//! 3. What cannot be decoded to its last byte is [`ErrorKind::Corrupt`], never a guess, a panic or a large allocation.
//! 4. Its moments are absolute, in microseconds: one relative to the write is known only once the store has written, and so
//!    is a column.
//!
//! # Version 1
//!
//! Integers are LEB128 varints in their shortest form; *text* and *bytes* are a length and so many bytes; an *option*
//! is 0, or 1 and the value; a *span* is seconds and nanoseconds.
//!
//! | part | fields |
//! |---|---|
//! | version | 1 |
//! | fingerprint | version byte, 32 bytes, option of 32 bytes |
//! | terms | as spans: lease, deadline, horizon, downstream retention; option of span (first question) |
//! | relies on memory | bool |
//! | progress | option of (text, effects) for the phase that is calling, option of response for what was found |
//! | evidence | option of (verdict, source, moment, attempt, option of text) |
//! | retryable | option of span (retry after) |
//! | unknown | integers (answers, failures), option of moment (asked anew) |
//! | history | number of entries, the entries, integer (left out), number of tokens, 16 bytes each |
//!
//! An *entry* is a moment, attempt, what, source, option of said, bool (contradicts), options of text (who, source, detail).
//! A *response* is its status, the number of headers, name and value of each as bytes, and the body as bytes.

mod reader;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::{Entry, History, Said, What};
use onlyonce_core::record::{Asking, Calling, Effects, Evidence, Response, Source, Token, Verdict};
use onlyonce_core::time::Timestamp;

use self::reader::Reader;
use self::writer::Writer;
use crate::{Error, ErrorKind};

/// The version that is written.
pub(crate) const VERSION: u8 = 1;

/// Fields without a column. Those of one state are empty in the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rest {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) lease: Duration,
    pub(crate) deadline: Duration,
    pub(crate) horizon: Duration,
    pub(crate) downstream_retention: Duration,
    pub(crate) reconcile_first: Option<Duration>,
    pub(crate) relies_on_memory: bool,
    pub(crate) calling: Option<Calling>,
    pub(crate) found: Option<Arc<Response>>,
    pub(crate) evidence: Option<Box<Evidence>>,
    /// Of a retryable record: the `Retry-After` for clients.
    pub(crate) retry_after: Option<Duration>,
    /// Of an unknown record: how the reconciler has fared.
    pub(crate) asking: Asking,
    pub(crate) history: History,
}

/// The blob of a rest.
pub(crate) fn encode(rest: &Rest) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    write_fingerprint(&mut out, &rest.fingerprint);
    for span in [rest.lease, rest.deadline, rest.horizon, rest.downstream_retention] {
        out.span(span);
    }
    out.option(rest.reconcile_first, Writer::span);
    out.flag(rest.relies_on_memory);
    out.option(rest.calling.as_ref(), |out, calling| {
        out.text(&calling.phase);
        write_effects(out, calling.effects);
    });
    out.option(rest.found.as_deref(), write_response);
    out.option(rest.evidence.as_deref(), write_evidence);
    out.option(rest.retry_after, Writer::span);
    out.integer(rest.asking.answers.into());
    out.integer(rest.asking.failures.into());
    out.option(rest.asking.anew_at, write_moment);
    write_history(&mut out, &rest.history);
    out.finish()
}

/// The rest of a blob.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for whatever [`encode`] of this release and those before it did not write.
pub(crate) fn decode(blob: &[u8]) -> Result<Rest, Error> {
    let mut from = Reader::new(blob);
    match from.byte("version")? {
        1 => read_v1(from),
        0 => Err(Error::new(
            ErrorKind::Corrupt,
            "column \"rest\" has version 0, which no release has written; \
             restore the record from a backup, or forget its key",
        )),
        newer => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "column \"rest\" has version {newer}, this release reads up to {VERSION}: \
                 it was written by a newer release; upgrade this node"
            ),
        )),
    }
}

fn read_v1(mut from: Reader<'_>) -> Result<Rest, Error> {
    let from = &mut from;
    // Fields are read in the order in which they are written here.
    let rest = Rest {
        fingerprint: read_fingerprint(from)?,
        lease: from.span("lease")?,
        deadline: from.span("deadline")?,
        horizon: from.span("horizon")?,
        downstream_retention: from.span("downstream_retention")?,
        reconcile_first: from.option("reconcile_first", |from| from.span("reconcile_first"))?,
        relies_on_memory: from.flag("relies_on_memory")?,
        calling: from.option("calling phase", |from| {
            Ok(Calling { phase: from.shared_text("calling phase")?, effects: read_effects(from)? })
        })?,
        found: from.option("found response", read_response)?,
        evidence: from.option("evidence", read_evidence)?,
        retry_after: from.option("retry_after", |from| from.span("retry_after"))?,
        asking: Asking {
            answers: from.integer("number of answers")?,
            failures: from.integer("number of failures")?,
            anew_at: from
                .option("moment it was asked anew", |from| read_moment(from, "moment it was asked anew"))?,
        },
        history: read_history(from)?,
    };
    from.end()?;
    Ok(rest)
}

fn write_fingerprint(out: &mut Writer, fingerprint: &Fingerprint) {
    out.byte(fingerprint.version);
    out.array(&fingerprint.raw);
    out.option(fingerprint.canonical.as_ref(), |out, digest| out.array(digest));
}

fn read_fingerprint(from: &mut Reader<'_>) -> Result<Fingerprint, Error> {
    Ok(Fingerprint {
        version: from.byte("fingerprint version")?,
        raw: from.array("fingerprint")?,
        canonical: from.option("fingerprint", |from| from.array("fingerprint"))?,
    })
}

fn write_effects(out: &mut Writer, effects: Effects) {
    out.byte(match effects {
        Effects::Local => 0,
        Effects::Keyed => 1,
        Effects::Queryable => 2,
        Effects::Opaque => 3,
    });
}

fn read_effects(from: &mut Reader<'_>) -> Result<Effects, Error> {
    match from.byte("effects")? {
        0 => Ok(Effects::Local),
        1 => Ok(Effects::Keyed),
        2 => Ok(Effects::Queryable),
        3 => Ok(Effects::Opaque),
        tag => Err(reader::unknown_tag("effects", tag)),
    }
}

fn write_response(out: &mut Writer, response: &Response) {
    out.integer(response.status.into());
    out.integer(response.headers.len() as u64);
    for (name, value) in &response.headers {
        out.text(name.as_str());
        out.bytes(value.as_bytes());
    }
    out.bytes(&response.body);
}

fn read_response(from: &mut Reader<'_>) -> Result<Arc<Response>, Error> {
    let status = from.integer("status")?;
    let count: u64 = from.integer("number of headers")?;
    // Nothing is preallocated: the number is untrusted.
    let mut headers = Vec::new();
    for _ in 0..count {
        headers.push(from.header()?);
    }
    Ok(Arc::new(Response { status, headers, body: from.shared_bytes("response body")? }))
}

fn write_source(out: &mut Writer, source: Source) {
    out.byte(match source {
        Source::Attempt => 0,
        Source::Probe => 1,
        Source::Webhook => 2,
        Source::Operator => 3,
        Source::Sweeper => 4,
    });
}

fn read_source(from: &mut Reader<'_>) -> Result<Source, Error> {
    match from.byte("source")? {
        0 => Ok(Source::Attempt),
        1 => Ok(Source::Probe),
        2 => Ok(Source::Webhook),
        3 => Ok(Source::Operator),
        4 => Ok(Source::Sweeper),
        tag => Err(reader::unknown_tag("source", tag)),
    }
}

fn write_evidence(out: &mut Writer, evidence: &Evidence) {
    match &evidence.verdict {
        Verdict::Happened(response) => {
            out.byte(0);
            out.option(response.as_deref(), write_response);
        }
        Verdict::DidNotHappen { never_will } => {
            out.byte(1);
            out.flag(*never_will);
        }
        Verdict::StillUnknown => out.byte(2),
    }
    write_source(out, evidence.by);
    write_moment(out, evidence.at);
    out.integer(evidence.attempt.into());
    out.option(evidence.source.as_deref(), Writer::text);
}

fn read_evidence(from: &mut Reader<'_>) -> Result<Box<Evidence>, Error> {
    let verdict = match from.byte("verdict")? {
        0 => Verdict::Happened(from.option("verdict's response", read_response)?),
        1 => Verdict::DidNotHappen { never_will: from.flag("never_will")? },
        2 => Verdict::StillUnknown,
        tag => return Err(reader::unknown_tag("verdict", tag)),
    };
    Ok(Box::new(Evidence {
        verdict,
        by: read_source(from)?,
        at: read_moment(from, "evidence's moment")?,
        attempt: from.integer("evidence's attempt")?,
        source: from.option("evidence's source", |from| from.shared_text("evidence's source"))?,
    }))
}

fn write_moment(out: &mut Writer, moment: Timestamp) {
    out.array(&moment.as_micros().to_be_bytes());
}

fn read_moment(from: &mut Reader<'_>, what: &str) -> Result<Timestamp, Error> {
    from.array(what).map(i64::from_be_bytes).map(Timestamp::from_micros)
}

fn write_history(out: &mut Writer, history: &History) {
    out.integer(history.entries.len() as u64);
    history.entries.iter().for_each(|entry| write_entry(out, entry));
    out.integer(history.left_out.into());
    out.integer(history.tokens.len() as u64);
    history.tokens.iter().for_each(|token| out.array(&token.0));
}

fn read_history(from: &mut Reader<'_>) -> Result<History, Error> {
    let mut history = History::default();
    // Nothing is preallocated: the numbers are untrusted.
    for _ in 0..from.integer::<u64>("number of entries")? {
        history.entries.push(read_entry(from)?);
    }
    history.left_out = from.integer("number of entries left out")?;
    for _ in 0..from.integer::<u64>("number of tokens")? {
        history.tokens.push(Token(from.array("token of an earlier attempt")?));
    }
    Ok(history)
}

fn write_entry(out: &mut Writer, entry: &Entry) {
    write_moment(out, entry.at);
    out.integer(entry.attempt.into());
    out.byte(number(What::ALL, entry.what));
    write_source(out, entry.by);
    out.option(entry.said, |out, said| out.byte(number(Said::ALL, said)));
    out.flag(entry.contradicts);
    for text in [&entry.who, &entry.source, &entry.detail] {
        out.option(text.as_deref(), Writer::text);
    }
}

fn read_entry(from: &mut Reader<'_>) -> Result<Entry, Error> {
    let text = |from: &mut Reader<'_>, what| from.option(what, |from| from.shared_text(what));
    Ok(Entry {
        at: read_moment(from, "entry's moment")?,
        attempt: from.integer("entry's attempt")?,
        what: numbered(What::ALL, from.byte("entry's kind")?, "entry's kind")?,
        by: read_source(from)?,
        said: from.option("entry's statement", |from| {
            numbered(Said::ALL, from.byte("entry's statement")?, "entry's statement")
        })?,
        contradicts: from.flag("entry's contradiction")?,
        who: text(from, "entry's operator")?,
        source: text(from, "entry's webhook")?,
        detail: text(from, "entry's detail")?,
    })
}

/// A word by its place in the list of its kind: words are only ever added at the end.
fn number<T: Copy + PartialEq>(all: &[T], word: T) -> u8 {
    let place = all.iter().position(|other| *other == word);
    place.and_then(|place| u8::try_from(place).ok()).expect("every word is in the list of its kind")
}

fn numbered<T: Copy>(all: &[T], number: u8, what: &str) -> Result<T, Error> {
    all.get(usize::from(number)).copied().ok_or_else(|| reader::unknown_tag(what, number))
}

#[cfg(test)]
mod tests;
