//! The versioned rest of a record: fields that nobody queries and that have no column (`sql.rs` has the columns).
//!
//! 1. The first byte is the version. Every released version can be read; the newest is written.
//! 2. A rest has exactly one encoding: decoding and encoding again gives the same bytes.
//! 3. What cannot be decoded to its last byte is [`ErrorKind::Corrupt`], never a guess, a panic or a large allocation.
//! 4. It has no moments: one relative to the write is known only once the store has written, and so is a
//!    column.
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
//! | terms | as spans: lease, deadline, horizon, downstream retention |
//! | relies on memory | bool |
//! | progress | option of (text, effects) for the phase that is calling, option of response for what was found |
//! | evidence | option of (verdict, source) |
//! | retryable | option of span (retry after) |
//! | unknown | integer (how often it was asked about) |
//!
//! A *response* is its status, the number of headers, name and value of each as bytes, and the body as bytes.

mod reader;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use onlyonce_core::fingerprint::Fingerprint;
use onlyonce_core::record::{Calling, Effects, Evidence, Response, Source, Verdict};

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
    pub(crate) relies_on_memory: bool,
    pub(crate) calling: Option<Calling>,
    pub(crate) found: Option<Arc<Response>>,
    pub(crate) evidence: Option<Box<Evidence>>,
    /// Of a retryable record: the `Retry-After` for clients.
    pub(crate) retry_after: Option<Duration>,
    /// Of an unknown record: how often the reconciler has asked.
    pub(crate) asked: u32,
}

/// The blob of a rest.
pub(crate) fn encode(rest: &Rest) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    write_fingerprint(&mut out, &rest.fingerprint);
    for span in [rest.lease, rest.deadline, rest.horizon, rest.downstream_retention] {
        out.span(span);
    }
    out.flag(rest.relies_on_memory);
    out.option(rest.calling.as_ref(), |out, calling| {
        out.text(&calling.phase);
        write_effects(out, calling.effects);
    });
    out.option(rest.found.as_deref(), write_response);
    out.option(rest.evidence.as_deref(), write_evidence);
    out.option(rest.retry_after, Writer::span);
    out.integer(rest.asked.into());
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
        relies_on_memory: from.flag("relies_on_memory")?,
        calling: from.option("calling phase", |from| {
            Ok(Calling { phase: from.shared_text("calling phase")?, effects: read_effects(from)? })
        })?,
        found: from.option("found response", read_response)?,
        evidence: from.option("evidence", read_evidence)?,
        retry_after: from.option("retry_after", |from| from.span("retry_after"))?,
        asked: from.integer("asked")?,
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

#[cfg(test)]
mod tests;
