//! What stands under which key, and a record as one value.
//!
//! | key | value |
//! |---|---|
//! | `{P.bb}r` and the id | a record |
//! | `{P.bb}d` | sorted set: every record's id by when to look at it, in microseconds; `+inf`: never due |
//! | `{P.bb}o` | sorted set: ids of records whose outcome is unknown, or that wait to begin, by since when |
//! | `{P.bb}p` and the id | hash: results of phases by their number |
//! | `{P.bb}q` and the id | the request of accepted work |
//! | `{P.bb}w` | set: ids of records with a stored request |
//! | `{P.bb}l`, `{P.bb}a` | the log: sorted set of its entries' ids by time, and hash of the entries |
//! | `{P.bb}m`, `{P}m` | `1`: written to be confirmed by replicas (`master.rs`) |
//! | `{P}layout`, `{P}epoch`, `{P}name` | `1`, the epoch, the store's 16 bytes |
//!
//! P is the prefix of the URL, bb the first byte of the id in hex: all that is written together has one hash tag. Nothing has
//! a time to live: Redis deletes nothing by itself.
//!
//! **The list of what is due is a hint that is never late**: an entry stands at or before the moment its record is due. It may be
//! early, or without a record. What counts is the record.
//!
//! A record begins with a head that scripts compare and people can read, as text of a fixed width:
//!
//! | characters | what |
//! |---|---|
//! | 16 | revision, in hex |
//! | 16 | `written_at`, in microseconds |
//! | 16 | `due_at`; `9999999999999999`: never |
//! | 16 | from when on age alone allows to delete it; `9999999999999999`: it does not |
//! | 1 | state: a letter, from `a`, by its place in [`StateName::ALL`] |
//! | 32 | scope, as bytes |
//!
//! Behind it stand the version and the columns of every SQL engine (`sql.rs`), in the encoding of `codec.rs`.

use onlyonce_core::record::{Id, Revision, StateName};
use onlyonce_core::time::{Timestamp, When};

use crate::codec::reader::Reader;
use crate::codec::writer::Writer;
use crate::result::PhaseResult;
use crate::sql::{Columns, Row};
use crate::{Error, ErrorKind};

/// The layout of this release.
pub(super) const LAYOUT: &str = "1";
/// How many parts the keys are divided into.
pub(super) const BUCKETS: usize = 256;
/// The head of a record.
pub(super) const HEAD_BYTES: usize = TEXT_BYTES + 32;
/// The part of it that is text.
const TEXT_BYTES: usize = 65;
const REVISION_BYTES: usize = 16;
const MOMENT_DIGITS: usize = 16;
/// A moment that never comes.
const NEVER: i64 = 9_999_999_999_999_999;
const VERSION: u8 = 1;

/// The keys of a store.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) prefix: String,
}

impl Keys {
    pub(super) fn layout(&self) -> String {
        format!("{{{}}}layout", self.prefix)
    }

    pub(super) fn epoch(&self) -> String {
        format!("{{{}}}epoch", self.prefix)
    }

    pub(super) fn name(&self) -> String {
        format!("{{{}}}name", self.prefix)
    }

    pub(super) fn record(&self, id: Id) -> Vec<u8> {
        self.of_record(id, b'r')
    }

    pub(super) fn results(&self, id: Id) -> Vec<u8> {
        self.of_record(id, b'p')
    }

    pub(super) fn request(&self, id: Id) -> Vec<u8> {
        self.of_record(id, b'q')
    }

    pub(super) fn due(&self, bucket: u8) -> Vec<u8> {
        self.of_bucket(bucket, b'd')
    }

    pub(super) fn open(&self, bucket: u8) -> Vec<u8> {
        self.of_bucket(bucket, b'o')
    }

    pub(super) fn requests(&self, bucket: u8) -> Vec<u8> {
        self.of_bucket(bucket, b'w')
    }

    pub(super) fn log(&self, bucket: u8) -> Vec<u8> {
        self.of_bucket(bucket, b'l')
    }

    pub(super) fn entries(&self, bucket: u8) -> Vec<u8> {
        self.of_bucket(bucket, b'a')
    }

    pub(super) fn marker(&self, bucket: u8) -> Vec<u8> {
        self.of_bucket(bucket, b'm')
    }

    fn of_bucket(&self, bucket: u8, kind: u8) -> Vec<u8> {
        let mut key = format!("{{{}.{bucket:02x}}}", self.prefix).into_bytes();
        key.push(kind);
        key
    }

    fn of_record(&self, id: Id, kind: u8) -> Vec<u8> {
        let mut key = self.of_bucket(bucket_of(id), kind);
        key.extend_from_slice(&id.0);
        key
    }
}

/// The key of a write that is only there to be confirmed by replicas: with the hash tag of this key, else with the prefix.
pub(super) fn marker(key: Option<&[u8]>, prefix: &str) -> Vec<u8> {
    let tag = key.and_then(|key| Some(&key[..=key.iter().position(|byte| *byte == b'}')?]));
    let mut marker = tag.map_or_else(|| format!("{{{prefix}}}").into_bytes(), <[u8]>::to_vec);
    marker.push(b'm');
    marker
}

/// The part that a record is in.
pub(super) fn bucket_of(id: Id) -> u8 {
    id.0[0]
}

/// Every part, in order.
pub(super) fn buckets() -> impl Iterator<Item = u8> {
    u8::MIN..=u8::MAX
}

/// A moment as a score: where it lies outside of what a head can say, the nearest that it can.
pub(super) fn score(moment: Option<Timestamp>) -> String {
    match moment {
        Some(moment) => clamped(moment).to_string(),
        None => "+inf".to_owned(),
    }
}

fn clamped(moment: Timestamp) -> i64 {
    moment.as_micros().clamp(0, NEVER - 1)
}

/// What can be told of a record without reading the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) revision: Revision,
    pub(super) written_at: Timestamp,
    pub(super) due_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) state: StateName,
    pub(super) scope: [u8; 32],
}

impl Head {
    /// # Errors
    ///
    /// `Corrupt` where the value does not begin with a head.
    pub(super) fn read(id: Id, value: &[u8]) -> Result<Self, Error> {
        parse_head(value).ok_or_else(|| corrupt(id, "its value does not begin with a head"))
    }

    /// Whether age alone allows to delete it.
    pub(super) fn may_reap(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= now)
    }
}

fn parse_head(value: &[u8]) -> Option<Head> {
    let (head, scope) = value.get(..HEAD_BYTES)?.split_at(TEXT_BYTES);
    let head = str::from_utf8(head).ok()?;
    let (revision, head) = head.split_at_checked(REVISION_BYTES)?;
    let (written_at, head) = moment(head)?;
    let (due_at, head) = moment(head)?;
    let (expires_at, head) = moment(head)?;
    let place = head.as_bytes().first()?.checked_sub(b'a')?;
    Some(Head {
        revision: Revision(u64::from_str_radix(revision, 16).ok()?),
        written_at: written_at?,
        due_at,
        expires_at,
        state: *StateName::ALL.get(usize::from(place))?,
        scope: scope.try_into().ok()?,
    })
}

/// The moment that a head goes on with; none where it never comes.
fn moment(head: &str) -> Option<(Option<Timestamp>, &str)> {
    let (digits, rest) = head.split_at_checked(MOMENT_DIGITS)?;
    let micros: i64 = digits.parse().ok()?;
    Some((Some(micros).filter(|micros| *micros != NEVER).map(Timestamp::from_micros), rest))
}

/// A revision as it stands in a head.
pub(super) fn revision_text(revision: Revision) -> String {
    format!("{:016x}", revision.0)
}

/// The value of a record that is written at `at`. `expires` is when age alone allows to delete it.
pub(super) fn encode(
    columns: &Columns<'_>,
    revision: Revision,
    expires: Option<When>,
    at: Timestamp,
) -> Vec<u8> {
    let due_at = columns.due.stamp(at);
    let digits = |moment: Option<Timestamp>| moment.map_or(NEVER, clamped);
    let state = StateName::ALL.iter().position(|state| state.as_str() == columns.state);
    let state = state.and_then(|place| u8::try_from(place).ok()).expect("every state is among all five");
    let head = format!(
        "{}{:016}{:016}{:016}{}",
        revision_text(revision),
        clamped(at),
        digits(due_at),
        digits(expires.map(|expires| expires.stamp(at))),
        char::from(b'a' + state),
    );
    let mut out = Writer::after(&[head.as_bytes(), columns.scope], VERSION);
    out.option(columns.label, Writer::text);
    out.text(columns.key);
    out.option(columns.route, Writer::text);
    out.array(&columns.attempt.to_be_bytes());
    out.bytes(columns.token);
    out.text(columns.effects);
    out.array(&columns.retention_us.to_be_bytes());
    write_moment(&mut out, columns.created_at.stamp(at));
    write_moment(&mut out, columns.began_at.stamp(at));
    out.option(due_at, write_moment);
    for moment in [columns.lapses_at, columns.expires_at, columns.unknown_since] {
        out.option(moment.map(|moment| moment.stamp(at)), write_moment);
    }
    out.option(columns.reason.as_deref(), Writer::text);
    out.flag(columns.dead_letter);
    out.option(columns.completed_by, Writer::text);
    out.option(columns.recovery_point, Writer::text);
    out.option(columns.status, |out, status| out.array(&i64::from(status).to_be_bytes()));
    out.option(columns.headers.as_deref(), Writer::bytes);
    out.option(columns.body, Writer::bytes);
    out.bytes(&columns.rest);
    out.option(columns.key_id, Writer::bytes);
    out.option(columns.rest_key_id, Writer::bytes);
    out.finish()
}

fn write_moment(out: &mut Writer, moment: Timestamp) {
    out.array(&moment.as_micros().to_be_bytes());
}

/// The columns of a value, and with which key answers in the rest are encrypted.
///
/// # Errors
///
/// `Corrupt` where it is none that this release or one before it has written.
pub(super) fn decode<'a>(id: &'a Id, value: &'a [u8]) -> Result<(Row<'a>, Option<&'a [u8]>), Error> {
    let head = Head::read(*id, value)?;
    let (scope, rest) = value[TEXT_BYTES..].split_at(HEAD_BYTES - TEXT_BYTES);
    let mut from = Reader::new(rest);
    match from.byte("version") {
        Ok(VERSION) => {}
        Ok(other) => {
            let fault = format!(
                "its value has version {other}, this release reads up to {VERSION}; upgrade this node"
            );
            return Err(corrupt(*id, &fault));
        }
        Err(_) => return Err(corrupt(*id, "its value ends after its head")),
    }
    let read = columns(id, &head, scope, from);
    read.map_err(|error| corrupt(*id, "its value was cut short or altered").because(error))
}

fn columns<'a>(
    id: &'a Id,
    head: &Head,
    scope: &'a [u8],
    mut from: Reader<'a>,
) -> Result<(Row<'a>, Option<&'a [u8]>), Error> {
    fn text<'a>(from: &mut Reader<'a>, what: &str) -> Result<Option<&'a str>, Error> {
        from.option(what, |from| from.text(what))
    }
    fn bytes<'a>(from: &mut Reader<'a>, what: &str) -> Result<Option<&'a [u8]>, Error> {
        from.option(what, |from| from.bytes(what))
    }
    fn integer(from: &mut Reader<'_>, what: &str) -> Result<i64, Error> {
        from.array(what).map(i64::from_be_bytes)
    }
    fn moment(from: &mut Reader<'_>, what: &str) -> Result<Option<i64>, Error> {
        from.option(what, |from| integer(from, what))
    }
    let from = &mut from;
    // Fields are read in the order in which they are written here.
    let row = Row {
        id: &id.0,
        revision: head.revision.0.cast_signed(),
        scope,
        label: text(from, "label")?,
        key: from.text("key")?,
        route: text(from, "route")?,
        state: head.state.as_str(),
        attempt: integer(from, "attempt")?,
        token: from.bytes("token")?,
        effects: from.text("effects")?,
        retention_us: integer(from, "retention_us")?,
        created_at: integer(from, "created_at")?,
        began_at: integer(from, "began_at")?,
        written_at: head.written_at.as_micros(),
        due_at: moment(from, "due_at")?,
        lapses_at: moment(from, "lapses_at")?,
        expires_at: moment(from, "expires_at")?,
        unknown_since: moment(from, "unknown_since")?,
        reason: text(from, "reason")?,
        dead_letter: from.flag("dead_letter")?,
        completed_by: text(from, "completed_by")?,
        recovery_point: text(from, "recovery_point")?,
        status: moment(from, "status")?,
        headers: bytes(from, "headers")?,
        body: bytes(from, "body")?,
        rest: from.bytes("rest")?,
        key_id: bytes(from, "key_id")?,
    };
    let rest_key_id = bytes(from, "rest_key_id")?;
    from.end()?;
    Ok((row, rest_key_id))
}

/// The result of a phase: of which use of the key, its name, and what it returned, in clear or encrypted.
pub(super) fn encode_result(used_at: Timestamp, result: &PhaseResult, sealed: Option<&[u8]>) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    write_moment(&mut out, used_at);
    out.text(&result.phase);
    out.option(Some(&*result.json).filter(|_| sealed.is_none()), Writer::text);
    out.option(sealed, Writer::bytes);
    out.finish()
}

/// The result of a phase as it stands there.
pub(super) struct StoredResult<'a> {
    pub(super) used_at: Timestamp,
    pub(super) phase: &'a str,
    pub(super) clear: Option<&'a str>,
    pub(super) sealed: Option<&'a [u8]>,
}

/// # Errors
///
/// `Corrupt` where it cannot be understood.
pub(super) fn decode_result(id: Id, value: &[u8]) -> Result<StoredResult<'_>, Error> {
    let read = || {
        let mut from = Reader::new(value);
        from.version(VERSION)?;
        let stored = StoredResult {
            used_at: read_moment(&mut from)?,
            phase: from.text("phase")?,
            clear: from.option("result", |from| from.text("result"))?,
            sealed: from.option("result", |from| from.bytes("result"))?,
        };
        from.end()?;
        Ok(stored)
    };
    read().map_err(|error: Error| corrupt(id, "the result of a phase was altered").because(error))
}

/// The request of accepted work: of which use of the key, with which key it is encrypted, and its bytes.
pub(super) fn encode_request(used_at: Timestamp, request: &[u8], key_id: Option<&[u8]>) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    write_moment(&mut out, used_at);
    out.option(key_id, Writer::bytes);
    out.bytes(request);
    out.finish()
}

/// The request of accepted work as it stands there.
pub(super) struct StoredRequest<'a> {
    pub(super) used_at: Timestamp,
    pub(super) key_id: Option<&'a [u8]>,
    pub(super) request: &'a [u8],
}

/// # Errors
///
/// `Corrupt` where it cannot be understood.
pub(super) fn decode_request(id: Id, value: &[u8]) -> Result<StoredRequest<'_>, Error> {
    let read = || {
        let mut from = Reader::new(value);
        from.version(VERSION)?;
        let stored = StoredRequest {
            used_at: read_moment(&mut from)?,
            key_id: from.option("key_id", |from| from.bytes("key_id"))?,
            request: from.bytes("request")?,
        };
        from.end()?;
        Ok(stored)
    };
    read().map_err(|error: Error| corrupt(id, "its request was altered").because(error))
}

fn read_moment(from: &mut Reader<'_>) -> Result<Timestamp, Error> {
    from.array("moment").map(i64::from_be_bytes).map(Timestamp::from_micros)
}

fn corrupt(id: Id, fault: &str) -> Error {
    let message = format!(
        "record {id} cannot be read: {fault}; nothing was changed: restore it from a backup, or delete it if its key may be \
         used anew"
    );
    Error::new(ErrorKind::Corrupt, message)
}
