//! The versioned rest of a record: fields that nobody queries and that have no column (`sql.rs` has the columns).
//!
//! 1. The first byte is the version. Every released version can be read.
//! 2. A rest has exactly one encoding: decoding and encoding again gives the same bytes, unless an answer in it is encrypted.
//! 3. What cannot be decoded to its last byte is [`ErrorKind::Corrupt`], never a guess, a panic or a large allocation.
//! 4. Its moments are absolute, in microseconds: one relative to the write is known only once the store has written, and so
//!    is a column.
//!
//! # Version 1
//!
//! Integers are LEB128 varints in their shortest form; *text* and *bytes* are a length and so many bytes; an *option*
//! is 0, or 1 and the value; a *span* is seconds and nanoseconds. A response is an option of its own: 0, or 1 and the response,
//! or 2 and bytes: version and response, encrypted (`seal.rs`).
//!
//! | part | fields |
//! |---|---|
//! | version | 1 |
//! | fingerprint | version byte, 32 bytes, option of 32 bytes |
//! | terms | as spans: lease, deadline, horizon, downstream retention; option of span (first question) |
//! | relies on memory | bool |
//! | progress | option of (text, effects) for the phase that is calling, response for what was found |
//! | evidence | option of (verdict, source, moment, attempt, option of text) |
//! | retryable | option of span (retry after) |
//! | unknown | integers (answers, failures), option of moment (asked anew) |
//! | accepted | option of (moment until which it is run again, span of the longest pause) |
//! | history | number of entries, the entries, integer (left out), number of tokens, 16 bytes each |
//!
//! An *entry* is a moment, attempt, what, source, option of said, bool (contradicts), options of text (who, source, detail).
//! A *response* is its status, the number of headers, name and value of each as bytes, and the body as bytes.
//!
//! # Version 2
//!
//! Version 1 with the trace of the last attempt, 16 bytes, behind the version. Only what was traced is written so: without
//! `[telemetry]` every rest is of version 1.

pub(crate) mod reader;
pub(crate) mod writer;

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::history::{Entry, History, Said, What};
use onlyonce_core::record::{
    Accepted, Asking, Calling, Effects, Evidence, Response, Source, Token, TraceId, Verdict,
};
use onlyonce_core::time::Timestamp;

use self::reader::Reader;
use self::writer::Writer;
use crate::seal::{Kind, Opener};
use crate::{Error, ErrorKind};

/// The version of a rest without a trace, and of an answer by itself.
const VERSION: u8 = 1;
/// The version of a rest with a trace.
const VERSION_TRACED: u8 = 2;

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
    pub(crate) accepted: Option<Accepted>,
    pub(crate) history: History,
    pub(crate) trace: Option<TraceId>,
}

/// Encrypted answers, written in place of those of a rest.
#[derive(Debug, Default)]
pub(crate) struct Sealed {
    pub(crate) found: Option<Vec<u8>>,
    pub(crate) evidence: Option<Vec<u8>>,
}

/// An answer by itself, as it is encrypted.
pub(crate) fn encode_response(response: &Response) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    write_response(&mut out, response);
    out.finish()
}

/// The blob of a rest.
pub(crate) fn encode(rest: &Rest, sealed: &Sealed) -> Vec<u8> {
    let mut out = Writer::new(if rest.trace.is_some() { VERSION_TRACED } else { VERSION });
    if let Some(TraceId(trace)) = &rest.trace {
        out.array(trace);
    }
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
    write_answer(&mut out, rest.found.as_deref(), sealed.found.as_deref());
    out.option(rest.evidence.as_deref(), |out, evidence| {
        write_evidence(out, evidence, sealed.evidence.as_deref());
    });
    out.option(rest.retry_after, Writer::span);
    out.integer(rest.asking.answers.into());
    out.integer(rest.asking.failures.into());
    out.option(rest.asking.anew_at, write_moment);
    out.option(rest.accepted, |out, accepted| {
        write_moment(out, accepted.until);
        out.span(accepted.pause_max);
    });
    write_history(&mut out, &rest.history);
    out.finish()
}

/// The rest of a blob. An answer whose key is missing is left out, and `opener` knows it.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for whatever [`encode`] of this release and those before it did not write.
pub(crate) fn decode(blob: &[u8], opener: &mut Opener<'_>) -> Result<Rest, Error> {
    let mut from = Reader::new(blob);
    match from.byte("version")? {
        VERSION => read_fields(from, None, opener),
        VERSION_TRACED => {
            let trace = from.array("trace").map(TraceId)?;
            read_fields(from, Some(trace), opener)
        }
        0 => Err(Error::new(
            ErrorKind::Corrupt,
            "column \"rest\" has version 0, which no release has written; \
             restore the record from a backup, or forget its key",
        )),
        newer => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "column \"rest\" has version {newer}, this release reads up to {VERSION_TRACED}: \
                 it was written by a newer release; upgrade this node"
            ),
        )),
    }
}

fn read_fields(mut from: Reader<'_>, trace: Option<TraceId>, opener: &mut Opener<'_>) -> Result<Rest, Error> {
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
        found: read_answer(from, "found response", Kind::Found, opener)?,
        evidence: from.option("evidence", |from| read_evidence(from, opener))?,
        retry_after: from.option("retry_after", |from| from.span("retry_after"))?,
        asking: Asking {
            answers: from.integer("number of answers")?,
            failures: from.integer("number of failures")?,
            anew_at: from
                .option("moment it was asked anew", |from| read_moment(from, "moment it was asked anew"))?,
        },
        accepted: from.option("acceptance", |from| {
            let until = read_moment(from, "end of the acceptance")?;
            Ok(Accepted { until, pause_max: from.span("longest pause")? })
        })?,
        history: read_history(from)?,
        trace,
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

fn write_answer(out: &mut Writer, response: Option<&Response>, sealed: Option<&[u8]>) {
    match (response, sealed) {
        (None, _) => out.byte(0),
        (Some(response), None) => {
            out.byte(1);
            write_response(out, response);
        }
        (Some(_), Some(sealed)) => {
            out.byte(2);
            out.bytes(sealed);
        }
    }
}

fn read_answer(
    from: &mut Reader<'_>,
    what: &str,
    kind: Kind,
    opener: &mut Opener<'_>,
) -> Result<Option<Arc<Response>>, Error> {
    match from.byte(what)? {
        0 => Ok(None),
        1 => read_response(from).map(Some),
        2 => {
            let opened = opener.open(kind, from.bytes(what)?);
            let opened = opened.map_err(|_| reader::corrupt(&format!("has a {what} that was altered")))?;
            opened.map(|plain| decode_response(&plain)).transpose()
        }
        tag => Err(reader::unknown_tag(what, tag)),
    }
}

fn decode_response(plain: &[u8]) -> Result<Arc<Response>, Error> {
    let mut from = Reader::new(plain);
    match from.byte("version of an encrypted answer")? {
        VERSION => {}
        other => return Err(reader::unknown_tag("version of an encrypted answer", other)),
    }
    let response = read_response(&mut from)?;
    from.end()?;
    Ok(response)
}

fn write_source(out: &mut Writer, source: Source) {
    out.byte(match source {
        Source::Attempt => 0,
        Source::Probe => 1,
        Source::Webhook => 2,
        Source::Operator => 3,
        Source::Sweeper => 4,
        Source::Caller => 5,
    });
}

fn read_source(from: &mut Reader<'_>) -> Result<Source, Error> {
    match from.byte("source")? {
        0 => Ok(Source::Attempt),
        1 => Ok(Source::Probe),
        2 => Ok(Source::Webhook),
        3 => Ok(Source::Operator),
        4 => Ok(Source::Sweeper),
        5 => Ok(Source::Caller),
        tag => Err(reader::unknown_tag("source", tag)),
    }
}

fn write_evidence(out: &mut Writer, evidence: &Evidence, sealed: Option<&[u8]>) {
    match &evidence.verdict {
        Verdict::Happened(response) => {
            out.byte(0);
            write_answer(out, response.as_deref(), sealed);
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

fn read_evidence(from: &mut Reader<'_>, opener: &mut Opener<'_>) -> Result<Box<Evidence>, Error> {
    let verdict = match from.byte("verdict")? {
        0 => Verdict::Happened(read_answer(from, "verdict's response", Kind::Evidence, opener)?),
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
