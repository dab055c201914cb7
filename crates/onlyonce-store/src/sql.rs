//! A record as a row of columns: the one layout of every SQL engine, table `onlyonce_record`.
//!
//! | column | what | null |
//! |---|---|---|
//! | `id` | SHA-256 of scope and key | |
//! | `revision` | changes with every write; all 64 bits, as a signed number | |
//! | `scope`, `label`, `key`, `route` | whose key it is, and where the request came in | label, route |
//! | `state` | pending, running, completed, retryable, unknown | |
//! | `attempt`, `token` | of the last attempt | |
//! | `effects`, `retention_us` | promised when the key was reserved | |
//! | `created_at`, `began_at`, `written_at` | the use of the key, its last attempt, the last write | |
//! | `due_at` | when it wants attention next | never |
//! | `lapses_at` | until when a running attempt is presumed alive | unless running |
//! | `expires_at` | when a pending record is given up, a completed or retryable one may be deleted | otherwise |
//! | `unknown_since`, `reason`, `dead_letter` | since when nobody knows, why, and whether asking was given up | unless unknown; `dead_letter` is false |
//! | `unknown_since`, `dead_letter` | of a retryable record: since when it is flagged, and that it is | otherwise |
//! | `completed_by` | who said that it was done | unless completed |
//! | `recovery_point` | the last phase that committed | none has |
//! | `status`, `headers`, `body` | the answer; headers as lines `name: value` | none is stored |
//! | `rest` | what nobody looks for by itself, versioned (`codec.rs`) | |
//! | `key_id` | with which key `headers` and `body` are encrypted (`sealing.rs`) | they stand in clear |
//! | `rest_key_id` | with which key answers in `rest` are encrypted; for those who count the uses of a key | none is |
//!
//! 1. Every moment is absolute. A draft may say "so long after the write"; the engine adds that to its own stamp in the
//!    statement that writes.
//! 2. A completed record has all that is about its state in columns, so a SQL function can complete a record without
//!    understanding `rest`. What `rest` says about a running attempt (evidence, how often it was asked about) does not count
//!    once the record is completed.
//! 3. A row whose encryption key is missing is `Undecryptable`, with what stands in clear: whether it has expired can be told.
//! 4. A row whose columns contradict each other is `Corrupt`: refused with its id and the column, and never guessed at.

mod sealing;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod swap;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::key::Key;
use onlyonce_core::record::{
    Asking, Draft, Effects, Id, Progress, Reason, Record, Response, Revision, Seen, Source, State, StateName,
    Terms, Token,
};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::{Due, Timestamp, When};

#[cfg(feature = "postgres")]
pub(crate) use self::sealing::answer_sealed;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use self::sealing::payload;
pub(crate) use self::sealing::{KEYS_IN_USE, Sealing, key_use, open_payload, open_request, open_result};
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) use self::swap::Swap;
use crate::codec::{self, Rest};
use crate::seal::{KeyId, Keyring, Kind, OVERHEAD_BYTES, Opener, Unsealable};
use crate::{Error, ErrorKind, Unreadable};

/// Every column, in the order in which engines read and write them.
pub(crate) const COLUMNS: &str = "id, revision, scope, label, key, route, state, attempt, token, effects, \
     retention_us, created_at, began_at, written_at, due_at, lapses_at, expires_at, unknown_since, reason, \
     dead_letter, completed_by, recovery_point, status, headers, body, rest, key_id, rest_key_id";

/// What a row costs beside what is counted, about.
const ROW_BYTES: usize = 320;
/// What an entry of the history costs beside its texts, about.
const ENTRY_BYTES: usize = 24;

/// The columns of a draft, before the store has said when it writes. Id and revision are the caller's.
#[derive(Debug)]
pub(crate) struct Columns<'a> {
    pub(crate) scope: &'a [u8; 32],
    pub(crate) label: Option<&'a str>,
    pub(crate) key: &'a str,
    pub(crate) route: Option<&'a str>,
    pub(crate) state: &'static str,
    pub(crate) attempt: i64,
    pub(crate) token: &'a [u8; 16],
    pub(crate) effects: &'static str,
    pub(crate) retention_us: i64,
    pub(crate) created_at: When,
    pub(crate) began_at: When,
    pub(crate) due: Due,
    pub(crate) lapses_at: Option<When>,
    pub(crate) expires_at: Option<When>,
    pub(crate) unknown_since: Option<When>,
    pub(crate) reason: Option<Cow<'static, str>>,
    pub(crate) dead_letter: bool,
    pub(crate) completed_by: Option<&'static str>,
    pub(crate) recovery_point: Option<&'a str>,
    pub(crate) status: Option<i32>,
    pub(crate) headers: Option<Cow<'a, [u8]>>,
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) rest: Vec<u8>,
    pub(crate) key_id: Option<&'a [u8]>,
    pub(crate) rest_key_id: Option<&'a [u8]>,
}

impl<'a> Columns<'a> {
    /// The columns of a draft, and what of them is encrypted.
    pub(crate) fn of(draft: &'a Draft, sealing: Option<&'a Sealing>) -> Self {
        let terms = &draft.terms;
        let mut rest = Rest {
            fingerprint: draft.fingerprint.clone(),
            lease: terms.lease,
            deadline: terms.deadline,
            horizon: terms.horizon,
            downstream_retention: terms.downstream_retention,
            reconcile_first: terms.reconcile_first,
            relies_on_memory: draft.relies_on_memory,
            calling: draft.progress.calling.clone(),
            found: draft.progress.found.clone(),
            evidence: draft.evidence.clone(),
            retry_after: None,
            asking: Asking::default(),
            accepted: draft.accepted,
            history: draft.history.clone(),
            trace: draft.trace,
        };
        let mut columns = Self {
            scope: draft.scope.digest(),
            label: draft.scope.label(),
            key: draft.key.as_str(),
            route: draft.route.as_deref(),
            state: draft.state.name().as_str(),
            attempt: draft.attempt.into(),
            token: &draft.token.0,
            effects: terms.effects.as_str(),
            retention_us: i64::try_from(terms.retention.as_micros()).unwrap_or(i64::MAX),
            created_at: draft.created_at,
            began_at: draft.began_at,
            due: draft.due(),
            lapses_at: None,
            expires_at: None,
            unknown_since: None,
            reason: None,
            dead_letter: false,
            completed_by: None,
            recovery_point: draft.progress.recovery_point.as_deref(),
            status: None,
            headers: None,
            body: None,
            rest: Vec::new(),
            key_id: sealing.and_then(Sealing::answer_key),
            rest_key_id: sealing.and_then(Sealing::rest_key),
        };
        match &draft.state {
            State::Pending { expires_at } => columns.expires_at = Some(*expires_at),
            State::Running { lapses_at } => columns.lapses_at = Some(*lapses_at),
            State::Completed { response, by, expires_at } => {
                columns.expires_at = Some(*expires_at);
                columns.completed_by = Some(by.as_str());
                // Evidence of a running attempt no longer counts, nor does an acceptance (rule 2).
                rest.evidence = None;
                rest.accepted = None;
                if let Some(response) = response {
                    columns.status = Some(response.status.into());
                    let sealed = sealing.and_then(|sealing| sealing.answer.as_ref());
                    columns.headers =
                        Some(sealed.map_or_else(
                            || lines(&response.headers).into(),
                            |answer| (&answer.headers).into(),
                        ));
                    columns.body = Some(sealed.map_or(&response.body, |answer| &answer.body));
                }
            }
            State::Retryable { retry_after, expires_at, stuck_since } => {
                columns.expires_at = Some(*expires_at);
                columns.unknown_since = *stuck_since;
                columns.dead_letter = stuck_since.is_some();
                rest.retry_after = *retry_after;
            }
            State::Unknown { reason, since, asking, ask_at: _, dead_letter } => {
                columns.unknown_since = Some(*since);
                columns.reason = Some(reason.to_string().into());
                columns.dead_letter = *dead_letter;
                rest.asking = *asking;
            }
        }
        let clear = codec::Sealed::default();
        columns.rest = codec::encode(&rest, sealing.map_or(&clear, |sealing| &sealing.rest));
        columns
    }
}

/// About how many bytes the row of a draft takes.
pub(crate) fn bytes(draft: &Draft) -> usize {
    let answer = match &draft.state {
        State::Completed { response: Some(response), .. } => response_bytes(response),
        State::Completed { response: None, .. }
        | State::Pending { .. }
        | State::Running { .. }
        | State::Retryable { .. }
        | State::Unknown { .. } => 0,
    };
    let found = draft.progress.found.as_deref().map_or(0, response_bytes);
    ROW_BYTES + draft.key.as_str().len() + answer + found + history_bytes(draft)
}

fn history_bytes(draft: &Draft) -> usize {
    let text = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
    let entries = draft.history.entries.iter();
    entries.map(|entry| ENTRY_BYTES + text(&entry.who) + text(&entry.source) + text(&entry.detail)).sum()
}

fn response_bytes(response: &Response) -> usize {
    let headers = response.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 3);
    headers.sum::<usize>() + response.body.len()
}

/// A row as read, not yet decoded. Moments are microseconds since the epoch.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) id: &'a [u8],
    pub(crate) revision: i64,
    pub(crate) scope: &'a [u8],
    pub(crate) label: Option<&'a str>,
    pub(crate) key: &'a str,
    pub(crate) route: Option<&'a str>,
    pub(crate) state: &'a str,
    pub(crate) attempt: i64,
    pub(crate) token: &'a [u8],
    pub(crate) effects: &'a str,
    pub(crate) retention_us: i64,
    pub(crate) created_at: i64,
    pub(crate) began_at: i64,
    pub(crate) written_at: i64,
    pub(crate) due_at: Option<i64>,
    pub(crate) lapses_at: Option<i64>,
    pub(crate) expires_at: Option<i64>,
    pub(crate) unknown_since: Option<i64>,
    pub(crate) reason: Option<&'a str>,
    pub(crate) dead_letter: bool,
    pub(crate) completed_by: Option<&'a str>,
    pub(crate) recovery_point: Option<&'a str>,
    pub(crate) status: Option<i64>,
    pub(crate) headers: Option<&'a [u8]>,
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) rest: &'a [u8],
    pub(crate) key_id: Option<&'a [u8]>,
}

impl Row<'_> {
    /// The record as it is shown, at the store's `now`.
    ///
    /// # Errors
    ///
    /// As for [`Row::record`].
    pub(crate) fn seen(&self, now: Timestamp, keyring: Option<&Keyring>) -> Result<Seen, Error> {
        let revision = Revision(self.revision.cast_unsigned());
        let (record, missing) = self.understand(keyring).map_err(|fault| self.fault(&fault))?;
        let record = Arc::new(record);
        match missing {
            None => Ok(Seen { record, revision, now }),
            Some(key_id) => Err(self.undecryptable(key_id, record, now)),
        }
    }

    /// The record.
    ///
    /// # Errors
    ///
    /// `Corrupt` where a column cannot be understood or contradicts another: it names the record and the column.
    /// `Undecryptable` where the key is missing.
    pub(crate) fn record(&self, keyring: Option<&Keyring>) -> Result<Record, Error> {
        let seen = self.seen(Timestamp::from_micros(self.written_at), keyring)?;
        Ok(Arc::unwrap_or_clone(seen.record))
    }

    /// Whether the row can be understood, and is due when its record says. A key that is missing is no damage.
    ///
    /// # Errors
    ///
    /// As for [`Row::record`].
    #[cfg(any(feature = "sqlite", test))]
    pub(crate) fn check(&self, keyring: Option<&Keyring>) -> Result<(), Error> {
        let (record, _missing) = self.understand(keyring).map_err(|fault| self.fault(&fault))?;
        let due_at = record.draft().due().stamp(record.written_at).map(Timestamp::as_micros);
        if due_at == self.due_at {
            return Ok(());
        }
        Err(self.fault("column \"due_at\" is not when its state says that it is due"))
    }

    fn undecryptable(&self, key_id: KeyId, record: Arc<Record>, now: Timestamp) -> Error {
        let message = format!("record {} cannot be read: {}", self.hex_id(), Unsealable::MissingKey(key_id));
        let revision = Revision(self.revision.cast_unsigned());
        let status = self.status.and_then(|status| u16::try_from(status).ok());
        let body_bytes = self.body.map(|body| match self.key_id {
            Some(_) => body.len().saturating_sub(OVERHEAD_BYTES),
            None => body.len(),
        });
        Error::undecryptable(message, Unreadable { key_id, record, status, body_bytes, revision, now })
    }

    fn hex_id(&self) -> String {
        self.id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn fault(&self, fault: &str) -> Error {
        let id = self.hex_id();
        let message = format!(
            "record {id} cannot be read: {fault}; nothing was changed: restore the row from a backup, correct it, or \
             delete it if its key may be used anew"
        );
        Error::new(ErrorKind::Corrupt, message)
    }

    /// The record as far as it can be read, and the key that is missing for the rest.
    fn understand(&self, keyring: Option<&Keyring>) -> Result<(Record, Option<KeyId>), String> {
        let mut opener = Opener::new(keyring, Id(exactly(self.id, "id")?));
        let rest = codec::decode(self.rest, &mut opener).map_err(|error| error.to_string())?;
        let scope = exactly(self.scope, "scope")?;
        let state = StateName::named(self.state).ok_or_else(|| unknown_word("state", self.state))?;
        let record = Record {
            scope: Scope::stored(scope, self.label.map(Arc::from)),
            key: Key::stored(self.key),
            route: self.route.map(Arc::from),
            fingerprint: rest.fingerprint.clone(),
            terms: Terms {
                effects: Effects::named(self.effects).ok_or_else(|| unknown_word("effects", self.effects))?,
                lease: rest.lease,
                deadline: rest.deadline,
                horizon: rest.horizon,
                retention: span(self.retention_us).ok_or("column \"retention_us\" is negative")?,
                downstream_retention: rest.downstream_retention,
                reconcile_first: rest.reconcile_first,
            },
            attempt: u32::try_from(self.attempt).map_err(|_| out_of_range("attempt", self.attempt))?,
            token: Token(exactly(self.token, "token")?),
            relies_on_memory: rest.relies_on_memory,
            created_at: Timestamp::from_micros(self.created_at),
            began_at: Timestamp::from_micros(self.began_at),
            written_at: Timestamp::from_micros(self.written_at),
            progress: Progress {
                recovery_point: self.recovery_point.map(Arc::from),
                calling: rest.calling.clone(),
                found: rest.found.clone(),
            },
            evidence: None,
            accepted: None,
            state: self.state_of(state, &rest, &mut opener)?,
            history: rest.history,
            trace: rest.trace,
        };
        if Id::of(&record.scope, &record.key).0 != self.id {
            return Err("columns \"scope\" and \"key\" are not those of its id".to_owned());
        }
        // Evidence of a running attempt, and an acceptance, no longer count once the record is completed.
        let is_completed = self.completed_by.is_some();
        let missing = opener.missing(|kind| kind != Kind::Evidence || !is_completed);
        if is_completed {
            return Ok((record, missing));
        }
        Ok((Record { evidence: rest.evidence, accepted: rest.accepted, ..record }, missing))
    }

    /// The state, from the columns that belong to it; those that belong to others must be empty.
    fn state_of(&self, state: StateName, rest: &Rest, opener: &mut Opener<'_>) -> Result<State, String> {
        self.check_emptiness(state)?;
        let moment = |value: Option<i64>, column| {
            value.map(Timestamp::from_micros).ok_or_else(|| missing(column, state))
        };
        let expires_at = || moment(self.expires_at, "expires_at");
        Ok(match state {
            StateName::Pending => State::Pending { expires_at: expires_at()? },
            StateName::Running => State::Running { lapses_at: moment(self.lapses_at, "lapses_at")? },
            StateName::Completed => {
                let by = self.completed_by.ok_or_else(|| missing("completed_by", state))?;
                let by = Source::named(by).ok_or_else(|| unknown_word("completed_by", by))?;
                State::Completed { response: self.response(opener)?, by, expires_at: expires_at()? }
            }
            StateName::Retryable => {
                let stuck_since = self.unknown_since.map(Timestamp::from_micros);
                if stuck_since.is_some() != self.dead_letter {
                    return Err(
                        "columns \"unknown_since\" and \"dead_letter\" contradict each other".to_owned()
                    );
                }
                State::Retryable { retry_after: rest.retry_after, expires_at: expires_at()?, stuck_since }
            }
            StateName::Unknown => {
                let reason = self.reason.ok_or_else(|| missing("reason", state))?;
                State::Unknown {
                    reason: Reason::named(reason).ok_or_else(|| unknown_word("reason", reason))?,
                    since: moment(self.unknown_since, "unknown_since")?,
                    asking: rest.asking,
                    ask_at: self.due_at.map(Timestamp::from_micros),
                    dead_letter: self.dead_letter,
                }
            }
        })
    }

    /// What belongs to another state must be null.
    fn check_emptiness(&self, state: StateName) -> Result<(), String> {
        let is_completed = state == StateName::Completed;
        let is_unknown = state == StateName::Unknown;
        let is_retryable = state == StateName::Retryable;
        let expires = is_completed || is_retryable || state == StateName::Pending;
        let belongs = [
            ("lapses_at", self.lapses_at.is_some(), state == StateName::Running),
            ("expires_at", self.expires_at.is_some(), expires),
            ("unknown_since", self.unknown_since.is_some(), is_unknown || is_retryable),
            ("reason", self.reason.is_some(), is_unknown),
            ("dead_letter", self.dead_letter, is_unknown || is_retryable),
            ("completed_by", self.completed_by.is_some(), is_completed),
            ("status", self.status.is_some(), is_completed),
            ("headers", self.headers.is_some(), is_completed),
            ("body", self.body.is_some(), is_completed),
        ];
        match belongs.into_iter().find(|(_, is_set, may_be)| *is_set && !may_be) {
            Some((column, ..)) => Err(format!(
                "column \"state\" is \"{state}\", and column \"{column}\", which no {state} record has, is set"
            )),
            None => Ok(()),
        }
    }

    /// Status, headers and body are there together, or none of them. `None` also if the key is missing.
    fn response(&self, opener: &mut Opener<'_>) -> Result<Option<Arc<Response>>, String> {
        let (status, headers, body) = match (self.status, self.headers, self.body) {
            (None, None, None) => return Ok(None),
            (Some(status), Some(headers), Some(body)) => (status, headers, body),
            _ => {
                return Err(
                    "of the columns \"status\", \"headers\" and \"body\" some are null and some are not"
                        .to_owned(),
                );
            }
        };
        let status = u16::try_from(status).map_err(|_| out_of_range("status", status))?;
        let (headers, body) = match self.key_id {
            None => (parse_lines(headers)?, Bytes::copy_from_slice(body)),
            Some(_) => {
                let altered = |column| move |_| format!("the encrypted column \"{column}\" was altered");
                let lines = opener.open(Kind::Headers, headers).map_err(altered("headers"))?;
                let body = opener.open(Kind::Body, body).map_err(altered("body"))?;
                let (Some(lines), Some(body)) = (lines, body) else { return Ok(None) };
                (parse_lines(&lines)?, Bytes::from(body))
            }
        };
        Ok(Some(Arc::new(Response { status, headers, body })))
    }
}

/// Headers as HTTP writes them: a line `name: value` each, ended by a line feed.
fn lines(headers: &[(HeaderName, HeaderValue)]) -> Vec<u8> {
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 3).sum();
    let mut lines = Vec::with_capacity(bytes);
    for (name, value) in headers {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.push(b'\n');
    }
    lines
}

/// A value has no line feed, so a line ends its header.
fn parse_lines(lines: &[u8]) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let Some((last, lines)) = lines.split_last() else { return Ok(Vec::new()) };
    if *last != b'\n' {
        return Err("column \"headers\" does not end with a line feed".to_owned());
    }
    lines.split(|byte| *byte == b'\n').map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Result<(HeaderName, HeaderValue), String> {
    let fault = || {
        format!("column \"headers\" has the line {:?}, which is not a header", String::from_utf8_lossy(line))
    };
    let colon = line.windows(2).position(|pair| pair == b": ").ok_or_else(fault)?;
    let name = HeaderName::from_lowercase(&line[..colon]).map_err(|_| fault())?;
    let value = HeaderValue::from_bytes(&line[colon + 2..]).map_err(|_| fault())?;
    Ok((name, value))
}

fn exactly<const N: usize>(bytes: &[u8], column: &str) -> Result<[u8; N], String> {
    bytes.try_into().map_err(|_| format!("column \"{column}\" has {} bytes instead of {N}", bytes.len()))
}

fn span(micros: i64) -> Option<Duration> {
    u64::try_from(micros).ok().map(Duration::from_micros)
}

fn missing(column: &str, state: StateName) -> String {
    format!(
        "column \"state\" is \"{state}\", and column \"{column}\", which every {state} record has, is null"
    )
}

fn unknown_word(column: &str, word: &str) -> String {
    format!("column \"{column}\" is \"{word}\", which this release does not know")
}

fn out_of_range(column: &str, number: i64) -> String {
    format!("column \"{column}\" is {number}, which is out of range")
}

#[cfg(test)]
mod tests;
