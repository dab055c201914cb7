//! What of a write is encrypted, before the write waits for its turn.
//!
//! It is made where the write is asked for, by as many threads as ask: the thread that writes a file, and the task that sends a
//! batch, are everybody's. Without keys nothing is made, and most writes have nothing to encrypt.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use onlyonce_core::record::{Draft, Id, Response, State, Verdict};

use super::lines;
use crate::accepted::Request;
use crate::codec::{self, Sealed};
use crate::result::{PhaseResult, Results};
use crate::seal::{KeyId, Keyring, Kind, Opener, Unsealable, message_id};
use crate::{Attached, Error, ErrorKind, KeyUse};

/// The encrypted parts of a write, all with one key.
#[derive(Debug)]
pub(crate) struct Sealing {
    key_id: KeyId,
    /// Of a completed record.
    pub(super) answer: Option<Answer>,
    pub(super) rest: Sealed,
    /// The result of a phase.
    pub(crate) result: Option<Vec<u8>>,
    has_payloads: bool,
    has_request: bool,
}

/// A stored answer. Its status stays in clear.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) headers: Vec<u8>,
    pub(super) body: Vec<u8>,
}

impl Sealing {
    /// Encrypts what is to be written, and puts encrypted payloads, and an encrypted request, in the place of those of `with`.
    pub(crate) fn of(
        keyring: Option<&Keyring>,
        id: &Id,
        draft: &Draft,
        with: &mut Attached,
    ) -> Option<Box<Self>> {
        let keyring = keyring?;
        for message in &mut with.messages {
            message.payload = payload(keyring, &message.key, &message.payload).into();
        }
        let has_request = seal_request(keyring, id, &mut with.request);
        let sealing = Self {
            key_id: keyring.first(),
            answer: answer(keyring, id, draft),
            rest: rest(keyring, id, draft),
            result: result(keyring, id, &with.results),
            has_payloads: !with.messages.is_empty(),
            has_request,
        };
        sealing.has_any().then(|| Box::new(sealing))
    }

    fn has_any(&self) -> bool {
        let has_attached = self.result.is_some() || self.has_payloads || self.has_request;
        self.answer.is_some() || self.rest_key().is_some() || has_attached
    }

    /// The column `key_id`.
    pub(super) fn answer_key(&self) -> Option<&[u8]> {
        self.answer.is_some().then_some(&self.key_id.0)
    }

    /// The column `rest_key_id`.
    pub(super) fn rest_key(&self) -> Option<&[u8]> {
        (self.rest.found.is_some() || self.rest.evidence.is_some()).then_some(&self.key_id.0)
    }

    /// The column `key_id` of the messages.
    pub(crate) fn payload_key(&self) -> Option<&[u8]> {
        self.has_payloads.then_some(&self.key_id.0)
    }
}

impl Sealing {
    /// The column `key_id` of the request of accepted work.
    pub(crate) fn request_key(&self) -> Option<&[u8]> {
        self.has_request.then_some(&self.key_id.0)
    }
}

/// Encrypts the request that is to be stored, where there is one.
fn seal_request(keyring: &Keyring, id: &Id, request: &mut Request) -> bool {
    match request {
        Request::Keep | Request::Drop => false,
        Request::Put(plain) => {
            *plain = keyring.seal(id, Kind::Request, plain).into();
            true
        }
    }
}

/// The request of accepted work as it is stored, opened.
///
/// # Errors
///
/// `Undecryptable` where the key is missing, `Corrupt` where it is not what was stored.
pub(crate) fn open_request(
    keyring: Option<&Keyring>,
    id: Id,
    stored: &[u8],
    key_id: Option<&[u8]>,
) -> Result<Bytes, Error> {
    if key_id.is_none() {
        return Ok(Bytes::copy_from_slice(stored));
    }
    let fault = |kind, how: Unsealable| {
        Error::new(kind, format!("the request of record {id} cannot be read: {how}")).having_written_nothing()
    };
    let mut opener = Opener::new(keyring, id);
    let altered = |altered| fault(ErrorKind::Corrupt, altered);
    let opened = opener.open(Kind::Request, stored).map_err(altered)?;
    if let Some(key_id) = opener.missing(|_| true) {
        return Err(fault(ErrorKind::Undecryptable, Unsealable::MissingKey(key_id)));
    }
    opened.map(Bytes::from).ok_or_else(|| altered(Unsealable::Altered))
}

/// How many rows each key is needed for. It reads every row, and no answer.
pub(crate) const KEYS_IN_USE: &str = "
    SELECT key_id, count(*) FROM (
        SELECT key_id FROM {schema}.onlyonce_record WHERE key_id IS NOT NULL
        UNION ALL
        SELECT rest_key_id FROM {schema}.onlyonce_record
        WHERE rest_key_id IS NOT NULL AND (key_id IS NULL OR key_id <> rest_key_id)
        UNION ALL
        SELECT key_id FROM {schema}.onlyonce_archive WHERE key_id IS NOT NULL
        UNION ALL
        SELECT rest_key_id FROM {schema}.onlyonce_archive
        WHERE rest_key_id IS NOT NULL AND (key_id IS NULL OR key_id <> rest_key_id)
        UNION ALL
        SELECT substr(sealed, 1, 8) FROM {schema}.onlyonce_result WHERE sealed IS NOT NULL
        UNION ALL
        SELECT key_id FROM {schema}.onlyonce_outbox WHERE key_id IS NOT NULL
        UNION ALL
        SELECT key_id FROM {schema}.onlyonce_request WHERE key_id IS NOT NULL
    ) AS used
    GROUP BY key_id ORDER BY key_id";

/// A row of [`KEYS_IN_USE`]; none where the id is none of a key.
pub(crate) fn key_use(key_id: &[u8], rows: i64, keyring: Option<&Keyring>) -> Option<KeyUse> {
    let id = KeyId(key_id.try_into().ok()?);
    let is_known = keyring.is_some_and(|keyring| keyring.has(id));
    Some(KeyUse { id, rows: rows.unsigned_abs(), is_known })
}

/// The payload of a message, encrypted.
pub(crate) fn payload(keyring: &Keyring, message_key: &str, payload: &[u8]) -> Vec<u8> {
    keyring.seal(&message_id(message_key), Kind::Payload, payload)
}

/// The payload of a message as it is stored, opened; none where it is gone.
///
/// # Errors
///
/// Why it is not opened.
pub(crate) fn open_payload(
    keyring: Option<&Keyring>,
    message_key: &str,
    stored: Option<&[u8]>,
    key_id: Option<&[u8]>,
) -> Result<Option<Bytes>, Unsealable> {
    let (Some(stored), Some(_)) = (stored, key_id) else { return Ok(stored.map(Bytes::copy_from_slice)) };
    let mut opener = Opener::new(keyring, message_id(message_key));
    let opened = opener.open(Kind::Payload, stored)?;
    match opener.missing(|_| true) {
        Some(key_id) => Err(Unsealable::MissingKey(key_id)),
        None => Ok(opened.map(Bytes::from)),
    }
}

/// The result of a phase, from the column that it stands in.
///
/// # Errors
///
/// `Undecryptable` where the key is missing, `Corrupt` where it is not what was stored.
pub(crate) fn open_result(
    keyring: Option<&Keyring>,
    id: Id,
    number: u32,
    clear: Option<&str>,
    sealed: Option<&[u8]>,
) -> Result<Arc<str>, Error> {
    let fault = |kind, how: &dyn fmt::Display| {
        let message = format!("result {number} of the phases of record {id} cannot be read: {how}");
        Error::new(kind, message).having_written_nothing()
    };
    let sealed = match (clear, sealed) {
        (Some(json), None) => return Ok(json.into()),
        (None, Some(sealed)) => sealed,
        (Some(_), Some(_)) | (None, None) => {
            return Err(fault(
                ErrorKind::Corrupt,
                &"one of the columns \"result\" and \"sealed\" must be null",
            ));
        }
    };
    let mut opener = Opener::new(keyring, id);
    let altered = |altered: Unsealable| fault(ErrorKind::Corrupt, &altered);
    let opened = opener.open(Kind::Phase(number), sealed).map_err(altered)?;
    if let Some(key_id) = opener.missing(|_| true) {
        return Err(fault(ErrorKind::Undecryptable, &Unsealable::MissingKey(key_id)));
    }
    let json = opened.and_then(|plain| String::from_utf8(plain).ok());
    json.map(Arc::from).ok_or_else(|| altered(Unsealable::Altered))
}

/// The columns `headers` and `body` of an answer.
pub(crate) fn answer_sealed(keyring: &Keyring, id: &Id, response: &Response) -> (Vec<u8>, Vec<u8>) {
    let headers = keyring.seal(id, Kind::Headers, &lines(&response.headers));
    (headers, keyring.seal(id, Kind::Body, &response.body))
}

fn answer(keyring: &Keyring, id: &Id, draft: &Draft) -> Option<Answer> {
    match &draft.state {
        State::Completed { response: Some(response), .. } => {
            let (headers, body) = answer_sealed(keyring, id, response);
            Some(Answer { headers, body })
        }
        State::Completed { response: None, .. }
        | State::Pending { .. }
        | State::Running { .. }
        | State::Retryable { .. }
        | State::Unknown { .. } => None,
    }
}

fn rest(keyring: &Keyring, id: &Id, draft: &Draft) -> Sealed {
    let seal = |kind, response| keyring.seal(id, kind, &codec::encode_response(response));
    // Evidence of a completed record is not written.
    let evidence = match (&draft.state, draft.evidence.as_deref().map(|evidence| &evidence.verdict)) {
        (State::Completed { .. }, _) => None,
        (_, Some(Verdict::Happened(response))) => response.as_deref(),
        (_, Some(Verdict::DidNotHappen { .. } | Verdict::StillUnknown) | None) => None,
    };
    Sealed {
        found: draft.progress.found.as_deref().map(|response| seal(Kind::Found, response)),
        evidence: evidence.map(|response| seal(Kind::Evidence, response)),
    }
}

fn result(keyring: &Keyring, id: &Id, results: &Results) -> Option<Vec<u8>> {
    match results {
        Results::Keep | Results::Drop => None,
        Results::Add(PhaseResult { number, json, .. }) => {
            Some(keyring.seal(id, Kind::Phase(*number), json.as_bytes()))
        }
    }
}
