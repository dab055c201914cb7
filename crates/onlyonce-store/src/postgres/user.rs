//! Statements for transactions of the user's own, whichever driver they are made with.
//!
//! A driver needs to send a text and values of four types, and to read one number. Moments and spans go as microseconds, and
//! the statement turns them into what the columns have. Each text is spelled out once, when the store is opened.

use std::sync::Arc;

use onlyonce_core::record::{Handle, Id, Response};
use onlyonce_core::time::Timestamp;

use super::Postgres;
use super::row::{self, Swap, Values};
use super::statement::Verb;
use crate::accepted::Request;
use crate::outbox::Message;
use crate::result::{PhaseResult, Results};
use crate::seal::Keyring;
use crate::{Change, Error, sql};

pub use crate::user::{Completion, LockWait, Statement, Value};

impl Postgres {
    /// A swap, and what is attached to it. The first statement returns the moment of the write in microseconds, or no row
    /// where the swap is lost: then the others are not sent. A new record that is there already is refused as a duplicate
    /// (23505), which aborts the transaction.
    ///
    /// # Errors
    ///
    /// Where a newer release has changed the schema incompatibly.
    pub fn swap_statements(
        &self,
        id: Id,
        change: Change,
        lock_wait: LockWait,
    ) -> Result<Vec<Statement>, Error> {
        self.check_release()?;
        let swap = Swap::of(id, change, self.keyring.as_ref());
        let mut statements = vec![write(&swap, lock_wait, &self.texts)];
        statements.extend(result(&swap, &self.texts));
        statements.extend(request(&swap, &self.texts));
        Ok(statements)
    }

    /// Judges an attempt and locks its record, by `onlyonce_hold`.
    pub fn hold_statement(&self, handle: Handle) -> Statement {
        Statement { sql: self.texts.hold.clone(), values: vec![Value::Text(Some(handle.to_string()))] }
    }

    /// Completes an attempt, by `onlyonce_complete`; with keys, by `onlyonce_complete_sealed`.
    pub fn complete_statement(&self, handle: Handle, completion: Completion) -> Statement {
        if let (Some(keyring), Some(response)) = (&self.keyring, &completion.response) {
            return self.complete_sealed(keyring, handle, response, completion.keep_us);
        }
        let values = vec![
            Value::Text(Some(handle.to_string())),
            Value::Integer(Some(completion.status.into())),
            Value::Text(Some(completion.headers)),
            Value::Bytes(completion.response.map(|response| response.body.to_vec())),
            Value::Integer(completion.keep_us),
        ];
        Statement { sql: self.texts.complete.clone(), values }
    }

    fn complete_sealed(
        &self,
        keyring: &Keyring,
        handle: Handle,
        response: &Response,
        keep_us: Option<i64>,
    ) -> Statement {
        let (headers, body) = sql::answer_sealed(keyring, &handle.id, response);
        let values = vec![
            Value::Text(Some(handle.to_string())),
            Value::Integer(Some(response.status.into())),
            Value::Bytes(Some(headers)),
            Value::Bytes(Some(body)),
            Value::Integer(keep_us),
            Value::Bytes(Some(keyring.first().0.to_vec())),
        ];
        Statement { sql: self.texts.complete_sealed.clone(), values }
    }

    /// Stores a message, by `onlyonce_send`; with keys, by `onlyonce_send_sealed`.
    pub fn send_statement(&self, handle: Handle, message: &Message) -> Statement {
        let text = |text: &str| Value::Text(Some(text.to_owned()));
        let delay = i64::try_from(message.delay.as_micros()).unwrap_or(i64::MAX);
        let keyring = self.keyring.as_ref();
        let sealed = keyring.map(|keyring| sql::payload(keyring, &message.key, &message.payload));
        let mut values = vec![
            text(&message.destination),
            Value::Bytes(Some(sealed.unwrap_or_else(|| message.payload.to_vec()))),
            text(&message.key),
            Value::Text(message.group.as_deref().map(str::to_owned)),
            Value::Integer(Some(delay)),
            text(&message.content_type),
            Value::Text(Some(handle.to_string())),
        ];
        let Some(keyring) = keyring else {
            return Statement { sql: self.texts.send.clone(), values };
        };
        values.push(Value::Bytes(Some(keyring.first().0.to_vec())));
        Statement { sql: self.texts.send_sealed.clone(), values }
    }
}

/// The texts of the statements on one schema.
#[derive(Debug)]
pub(super) struct Texts {
    insert: Write,
    update: Write,
    add_result: Arc<str>,
    drop_results: Arc<str>,
    drop_request: Arc<str>,
    hold: Arc<str>,
    complete: Arc<str>,
    complete_sealed: Arc<str>,
    send: Arc<str>,
    send_sealed: Arc<str>,
}

/// The texts of a write of a record, by how long it waits for a lock.
#[derive(Debug)]
struct Write {
    of_session: Arc<str>,
    half_a_second: Arc<str>,
}

impl Texts {
    /// The schema's name is already quoted.
    pub(super) fn of(schema: &str) -> Self {
        let function = |call: String| -> Arc<str> { format!("SELECT count(*) FROM {schema}.{call}").into() };
        let by_id = |verb: Verb| -> Arc<str> { verb.sql(schema).replace("$1", "$1::bytea").into() };
        let (kept, delayed) = (interval(5), interval(5));
        let message = format!("$1::text, $2::bytea, $3::text, $4::text, {delayed}, $6::text, $7::text");
        let result = format!(
            "($1::bytea, $2::bigint::integer, timestamptz 'epoch' + {}, $4::text, $5::text, $6::bytea)",
            interval(3)
        );
        Self {
            insert: Write::of(Verb::Insert, INSERT, schema),
            update: Write::of(Verb::Update, UPDATE, schema),
            add_result: Verb::AddResult.sql(schema).replace("($1, $2, $3, $4, $5, $6)", &result).into(),
            drop_results: by_id(Verb::DropResults),
            drop_request: by_id(Verb::DropRequest),
            hold: function("onlyonce_hold($1::text)".to_owned()),
            complete: function(format!(
                "onlyonce_complete($1::text, $2::bigint::integer, $3::text::jsonb, $4::bytea, {kept})"
            )),
            complete_sealed: function(format!(
                "onlyonce_complete_sealed($1::text, $2::bigint::integer, $3::bytea, $4::bytea, {kept}, $6::bytea)"
            )),
            send: function(format!("onlyonce_send({message})")),
            send_sealed: function(format!("onlyonce_send_sealed({message}, $8::bytea)")),
        }
    }
}

impl Write {
    fn of(verb: Verb, sql: &str, schema: &str) -> Self {
        let filled = verb.filled(sql, |number, _, kind| match kind {
            "timestamptz" => format!("(timestamptz 'epoch' + {})", interval(number)),
            "interval" => interval(number),
            "integer" => format!("${number}::bigint::integer"),
            kind => format!("${number}::{kind}"),
        });
        let text = |wait| verb.spelled(&filled.replace("{from lock wait}", wait), schema).into();
        Self { of_session: text(""), half_a_second: text(FROM_LOCK_WAIT) }
    }
}

fn write(swap: &Swap, lock_wait: LockWait, texts: &Texts) -> Statement {
    let (verb, text) = match swap.expected {
        None => (Verb::Insert, &texts.insert),
        Some(_) => (Verb::Update, &texts.update),
    };
    let sql = match lock_wait {
        LockWait::OfSession => &text.of_session,
        LockWait::Shortly => &text.half_a_second,
    };
    let mut values = Values::of(swap).plain().to_vec();
    values.truncate(verb.parameters().len());
    Statement { sql: sql.clone(), values }
}

/// Microseconds as an interval. Seconds apart: a product with a span is computed in floating point, and stays exact so.
fn interval(number: usize) -> String {
    format!(
        "(${number}::bigint / 1000000 * interval '1 second' + ${number}::bigint % 1000000 * interval '1 microsecond')"
    )
}

/// Relies on the primary key: if the id is taken, it fails, and nothing of its transaction can commit, also where COMMIT was
/// sent with it. It waits for a concurrent insert of the same id.
const INSERT: &str = "
    INSERT INTO {schema}.onlyonce_record AS record ({all}) SELECT {id}, {values} {from lock wait}
    RETURNING (extract(epoch FROM written_at) * 1000000)::bigint";

/// Relies on the primary key and the row lock: it writes the row it compared.
const UPDATE: &str = "
    UPDATE {schema}.onlyonce_record AS record SET ({all but id}) = ROW ({values}) {from lock wait}
    WHERE id = {id} AND revision = {expected}
    RETURNING (extract(epoch FROM written_at) * 1000000)::bigint";

/// In the statement itself, so that it takes no round trip: its row is there before a lock is asked for.
const FROM_LOCK_WAIT: &str = "
    FROM (SELECT count(set_config('lock_timeout', '500ms', true)) WHERE current_setting('lock_timeout') = '0') AS lock_wait";

/// In a transaction of the user's own, accepted work only ends: nothing is accepted there.
fn request(swap: &Swap, texts: &Texts) -> Option<Statement> {
    match &swap.with.request {
        Request::Keep | Request::Put(_) => None,
        Request::Drop => {
            let values = vec![Value::Bytes(Some(swap.id.0.to_vec()))];
            Some(Statement { sql: texts.drop_request.clone(), values })
        }
    }
}

fn result(swap: &Swap, texts: &Texts) -> Option<Statement> {
    let record = Value::Bytes(Some(swap.id.0.to_vec()));
    match &swap.with.results {
        Results::Keep => None,
        Results::Drop => Some(Statement { sql: texts.drop_results.clone(), values: vec![record] }),
        Results::Add(PhaseResult { number, phase, json }) => {
            let used_at: Timestamp = row::used_at(&swap.next).0;
            let sealed = swap.sealing.as_deref().and_then(|sealing| sealing.result.as_deref());
            let values = vec![
                record,
                Value::Integer(Some((*number).into())),
                Value::Integer(Some(used_at.as_micros())),
                Value::Text(Some((**phase).to_owned())),
                Value::Text(sealed.is_none().then(|| (**json).to_owned())),
                Value::Bytes(sealed.map(<[u8]>::to_vec)),
            ];
            Some(Statement { sql: texts.add_result.clone(), values })
        }
    }
}
