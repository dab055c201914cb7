//! The stored shape of a record. Nothing else knows it.
//!
//! An engine keeps a record as one blob: [`encode`] makes it from a [`Draft`], before the store has said when it
//! writes, and [`decode`] gives that draft back. The engine keeps `written_at` in a column of its own, stamped by the
//! store's clock, and stamps on load:
//!
//! ```
//! # use onlyonce_core::record::{Draft, Record};
//! # use onlyonce_core::time::Timestamp;
//! # use onlyonce_store::{Error, codec};
//! fn load(blob: &[u8], written_at: Timestamp) -> Result<Record, Error> {
//!     Ok(codec::decode(blob)?.stamp(written_at))
//! }
//! # assert!(load(&[], Timestamp::from_micros(0)).is_err());
//! ```
//!
//! 1. The first byte is the schema version. Every version ever released can be read; the newest is written.
//! 2. One draft has one encoding, and what decodes encodes to the very same bytes again.
//! 3. What cannot be read to its last byte is [`ErrorKind::Corrupt`], never a guess, a panic or a large allocation.
//! 4. The state stands last, so that what comes before it does not move when a record is settled.
//!
//! There is no checksum: the engines below have theirs, and the plain SQL that completes a record inside a user's own
//! transaction could not compute it. A byte that was changed inside a stored body is therefore not noticed here.
//!
//! # Version 1
//!
//! Integers are LEB128 varints in their shortest form; *text* and *bytes* are a length and so many bytes; an *option*
//! is 0, or 1 and the value; a *span* is seconds and nanoseconds; a *moment* is 0 and microseconds since the epoch
//! (zigzag), or 1 and a span after the write.
//!
//! | part | fields |
//! |---|---|
//! | version | 1 |
//! | scope | 32 bytes, option of text (label) |
//! | key, route | text; option of text |
//! | fingerprint | version byte, 32 bytes, option of 32 bytes |
//! | terms | effects, then as spans: lease, deadline, horizon, retention, downstream retention |
//! | attempt | integer, 16 bytes (token), bool (relies on memory) |
//! | moments | created, began, written |
//! | progress | option of text (recovery point), option of (text, effects), option of response |
//! | evidence | option of (verdict, source) |
//! | state | tag, fields in the order of their declaration |
//!
//! A *response* is its status, the number of headers, name and value of each as bytes, and the body as bytes.

mod reader;
mod writer;

use std::sync::Arc;

use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Calling, Draft, Effects, Evidence, Progress, Reason, Record, Response, Source, State, Terms, Token,
    Verdict,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;

use self::reader::Reader;
use self::writer::Writer;
use crate::{Error, ErrorKind};

/// The schema version that is written.
pub const VERSION: u8 = 1;

/// The blob of a draft.
pub fn encode(draft: &Draft) -> Vec<u8> {
    let mut out = Writer::new(VERSION, answer_bytes(draft));
    write_scope(&mut out, &draft.scope);
    out.text(draft.key.as_str());
    out.option(draft.route.as_deref(), Writer::text);
    write_fingerprint(&mut out, &draft.fingerprint);
    write_terms(&mut out, &draft.terms);
    out.integer(draft.attempt.into());
    out.array(&draft.token.0);
    out.flag(draft.relies_on_memory);
    for moment in [draft.created_at, draft.began_at, draft.written_at] {
        out.moment(moment);
    }
    write_progress(&mut out, &draft.progress);
    out.option(draft.evidence.as_deref(), write_evidence);
    write_state(&mut out, &draft.state);
    out.finish()
}

/// About how many bytes its answer is written with.
fn answer_bytes(draft: &Draft) -> usize {
    const LENGTHS: usize = 2;
    let State::Completed { response: Some(response), .. } = &draft.state else { return 0 };
    let headers = response.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + LENGTHS);
    headers.sum::<usize>() + response.body.len()
}

/// The draft of a blob.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for whatever [`encode`] of this release and those before it did not write.
pub fn decode(blob: &[u8]) -> Result<Draft, Error> {
    let mut from = Reader::new(blob);
    match from.byte("schema version")? {
        1 => read_v1(from),
        0 => Err(Error::new(
            ErrorKind::Corrupt,
            "stored record has schema version 0, which no release has written; \
             restore the record from a backup, or forget its key",
        )),
        newer => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "stored record has schema version {newer}, this release reads up to {VERSION}: \
                 it was written by a newer release; upgrade this node"
            ),
        )),
    }
}

fn read_v1(mut from: Reader<'_>) -> Result<Draft, Error> {
    let from = &mut from;
    // Fields are read in the order in which they are written here.
    let draft = Record {
        scope: read_scope(from)?,
        key: Key::stored(from.text("key")?),
        route: from.option("route", |from| from.shared_text("route"))?,
        fingerprint: read_fingerprint(from)?,
        terms: read_terms(from)?,
        attempt: from.integer("attempt")?,
        token: Token(from.array("token")?),
        relies_on_memory: from.flag("relies_on_memory")?,
        created_at: from.moment("created_at")?,
        began_at: from.moment("began_at")?,
        written_at: from.moment("written_at")?,
        progress: read_progress(from)?,
        evidence: from.option("evidence", read_evidence)?,
        state: read_state(from)?,
    };
    from.end()?;
    Ok(draft)
}

fn write_scope(out: &mut Writer, scope: &Scope) {
    out.array(scope.digest());
    out.option(scope.label(), Writer::text);
}

fn read_scope(from: &mut Reader<'_>) -> Result<Scope, Error> {
    let digest = from.array("scope")?;
    let label = from.option("scope label", |from| from.shared_text("scope label"))?;
    Ok(Scope::stored(digest, label))
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

fn write_terms(out: &mut Writer, terms: &Terms) {
    write_effects(out, terms.effects);
    for span in [terms.lease, terms.deadline, terms.horizon, terms.retention, terms.downstream_retention] {
        out.span(span);
    }
}

fn read_terms(from: &mut Reader<'_>) -> Result<Terms, Error> {
    Ok(Terms {
        effects: read_effects(from)?,
        lease: from.span("lease")?,
        deadline: from.span("deadline")?,
        horizon: from.span("horizon")?,
        retention: from.span("retention")?,
        downstream_retention: from.span("downstream_retention")?,
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

fn write_progress(out: &mut Writer, progress: &Progress) {
    out.option(progress.recovery_point.as_deref(), Writer::text);
    out.option(progress.calling.as_ref(), |out, calling| {
        out.text(&calling.phase);
        write_effects(out, calling.effects);
    });
    out.option(progress.found.as_deref(), write_response);
}

fn read_progress(from: &mut Reader<'_>) -> Result<Progress, Error> {
    Ok(Progress {
        recovery_point: from.option("recovery point", |from| from.shared_text("recovery point"))?,
        calling: from.option("calling phase", |from| {
            Ok(Calling { phase: from.shared_text("calling phase")?, effects: read_effects(from)? })
        })?,
        found: from.option("found response", read_response)?,
    })
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
    // No room is reserved: the number is only what the blob claims.
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
}

fn read_evidence(from: &mut Reader<'_>) -> Result<Box<Evidence>, Error> {
    let verdict = match from.byte("verdict")? {
        0 => Verdict::Happened(from.option("verdict's response", read_response)?),
        1 => Verdict::DidNotHappen { never_will: from.flag("never_will")? },
        2 => Verdict::StillUnknown,
        tag => return Err(reader::unknown_tag("verdict", tag)),
    };
    Ok(Box::new(Evidence { verdict, by: read_source(from)? }))
}

fn write_reason(out: &mut Writer, reason: Reason) {
    out.byte(match reason {
        Reason::Lapsed => 0,
        Reason::Deadline => 1,
        Reason::Panicked => 2,
        Reason::ConnectionLost => 3,
        Reason::AnswerBroken => 4,
        Reason::Status(_) => 5,
        Reason::Said => 6,
        Reason::Stopped => 7,
        Reason::DownstreamForgot => 8,
    });
    if let Reason::Status(status) = reason {
        out.integer(status.into());
    }
}

fn read_reason(from: &mut Reader<'_>) -> Result<Reason, Error> {
    match from.byte("reason")? {
        0 => Ok(Reason::Lapsed),
        1 => Ok(Reason::Deadline),
        2 => Ok(Reason::Panicked),
        3 => Ok(Reason::ConnectionLost),
        4 => Ok(Reason::AnswerBroken),
        5 => Ok(Reason::Status(from.integer("reason's status")?)),
        6 => Ok(Reason::Said),
        7 => Ok(Reason::Stopped),
        8 => Ok(Reason::DownstreamForgot),
        tag => Err(reader::unknown_tag("reason", tag)),
    }
}

fn write_state(out: &mut Writer, state: &State<When>) {
    match state {
        State::Pending { expires_at } => {
            out.byte(0);
            out.moment(*expires_at);
        }
        State::Running { lapses_at } => {
            out.byte(1);
            out.moment(*lapses_at);
        }
        State::Completed { response, by, expires_at } => {
            out.byte(2);
            out.option(response.as_deref(), write_response);
            write_source(out, *by);
            out.moment(*expires_at);
        }
        State::Retryable { retry_after, expires_at } => {
            out.byte(3);
            out.option(*retry_after, Writer::span);
            out.moment(*expires_at);
        }
        State::Unknown { reason, since, asked, ask_at, dead_letter } => {
            out.byte(4);
            write_reason(out, *reason);
            out.moment(*since);
            out.integer((*asked).into());
            out.option(*ask_at, Writer::moment);
            out.flag(*dead_letter);
        }
    }
}

fn read_state(from: &mut Reader<'_>) -> Result<State<When>, Error> {
    match from.byte("state")? {
        0 => Ok(State::Pending { expires_at: from.moment("expires_at")? }),
        1 => Ok(State::Running { lapses_at: from.moment("lapses_at")? }),
        2 => Ok(State::Completed {
            response: from.option("response", read_response)?,
            by: read_source(from)?,
            expires_at: from.moment("expires_at")?,
        }),
        3 => Ok(State::Retryable {
            retry_after: from.option("retry_after", |from| from.span("retry_after"))?,
            expires_at: from.moment("expires_at")?,
        }),
        4 => Ok(State::Unknown {
            reason: read_reason(from)?,
            since: from.moment("since")?,
            asked: from.integer("asked")?,
            ask_at: from.option("ask_at", |from| from.moment("ask_at"))?,
            dead_letter: from.flag("dead_letter")?,
        }),
        tag => Err(reader::unknown_tag("state", tag)),
    }
}
