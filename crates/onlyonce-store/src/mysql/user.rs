//! Statements for transactions of the user's own, in whichever database of the server they began.

use std::sync::Arc;

use mysql_async::Value as Own;
use onlyonce_core::record::{Handle, Id, Response};

use super::{Mysql, grants, row, statement, write};
use crate::accepted::Request;
use crate::outbox::Message;
use crate::result::Results;
use crate::seal::Keyring;
use crate::sql::{self, Swap};
use crate::user::{Completion, LockWait, Statement, Value};
use crate::{Change, Error};

impl Mysql {
    /// A swap, and what is attached to it. The first statement changes a row, and its `LAST_INSERT_ID` is the moment of the
    /// write in microseconds; where the swap is lost it changes none, or is refused as a duplicate (1062). Then the others are
    /// not sent.
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
        let mut statements = vec![write_of(&swap, lock_wait, &self.texts)];
        statements.extend(result(&swap, &self.texts));
        statements.extend(request(&swap, &self.texts));
        Ok(statements)
    }

    /// Judges an attempt and locks its record, by `onlyonce_hold`.
    pub fn hold_statement(&self, handle: Handle) -> Statement {
        Statement { sql: self.texts.hold.clone(), values: vec![text(&handle.to_string())] }
    }

    /// Completes an attempt, by `onlyonce_complete`; with keys, by `onlyonce_complete_sealed`.
    pub fn complete_statement(&self, handle: Handle, completion: Completion) -> Statement {
        if let (Some(keyring), Some(response)) = (&self.keyring, &completion.response) {
            return self.complete_sealed(keyring, handle, response, completion.keep_us);
        }
        let values = vec![
            text(&handle.to_string()),
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
            text(&handle.to_string()),
            Value::Integer(Some(response.status.into())),
            Value::Bytes(Some(headers)),
            Value::Bytes(Some(body)),
            Value::Integer(keep_us),
            Value::Bytes(Some(keyring.first().0.to_vec())),
        ];
        Statement { sql: self.texts.complete_sealed.clone(), values }
    }

    /// Stores a message, by `onlyonce_send_sealed`: with keys encrypted, otherwise in clear. Unlike `onlyonce_send` it returns no
    /// row.
    pub fn send_statement(&self, handle: Handle, message: &Message) -> Statement {
        let keyring = self.keyring.as_ref();
        let sealed = keyring.map(|keyring| sql::payload(keyring, &message.key, &message.payload));
        let values = vec![
            text(&message.destination),
            Value::Bytes(Some(sealed.unwrap_or_else(|| message.payload.to_vec()))),
            text(&message.key),
            Value::Text(message.group.as_deref().map(str::to_owned)),
            Value::Integer(Some(row::span(message.delay))),
            text(&message.content_type),
            text(&handle.to_string()),
            Value::Bytes(keyring.map(|keyring| keyring.first().0.to_vec())),
        ];
        Statement { sql: self.texts.send.clone(), values }
    }
}

/// The texts of the statements on one database.
pub(super) struct Texts {
    insert: Arc<str>,
    insert_shortly: Arc<str>,
    update: Arc<str>,
    update_shortly: Arc<str>,
    add_result: Arc<str>,
    drop_results: Arc<str>,
    drop_request: Arc<str>,
    hold: Arc<str>,
    complete: Arc<str>,
    complete_sealed: Arc<str>,
    send: Arc<str>,
}

impl Texts {
    pub(super) fn of(database: &str) -> Self {
        let database = grants::quoted(database);
        let of = |sql: &str| -> Arc<str> { sql.replace("{database}", &database).into() };
        let on = |sql: &str| of(&sql.replace(" onlyonce_", " {database}.onlyonce_"));
        // Exact, where a division would round.
        let seconds = "? * 0.000001";
        let (insert, update) = (statement::plain_insert(), &*statement::UPDATE);
        Self {
            insert_shortly: on(&shortly(&insert)),
            insert: on(&insert),
            update_shortly: on(&shortly(update)),
            update: on(update),
            add_result: on(write::ADD_RESULT),
            drop_results: on(write::DROP_RESULTS),
            drop_request: on(write::DROP_REQUEST),
            hold: on("CALL onlyonce_hold(?)"),
            complete: on(&format!("CALL onlyonce_complete(?, ?, ?, ?, {seconds})")),
            complete_sealed: on(&format!("CALL onlyonce_complete_sealed(?, ?, ?, ?, {seconds}, ?)")),
            send: on(&format!("CALL onlyonce_send_sealed(?, ?, ?, ?, {seconds}, ?, ?, ?)")),
        }
    }
}

/// With a lock time-out of its own: by a prefix for MariaDB, which is a comment to MySQL, and by a hint for MySQL, which is a
/// comment to MariaDB.
fn shortly(sql: &str) -> String {
    let (verb, rest) = sql.split_once(' ').unwrap_or((sql, ""));
    format!(
        "/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */ {verb} /*+ SET_VAR(innodb_lock_wait_timeout = 1) */ {rest}"
    )
}

fn write_of(swap: &Swap, lock_wait: LockWait, texts: &Texts) -> Statement {
    let (values, [of_session, shortly]) = match swap.expected {
        None => (row::values(swap), [&texts.insert, &texts.insert_shortly]),
        Some(expected) => (write::changed(swap, expected), [&texts.update, &texts.update_shortly]),
    };
    let sql = match lock_wait {
        LockWait::OfSession => of_session,
        LockWait::Shortly => shortly,
    };
    Statement { sql: sql.clone(), values: values.into_iter().map(plain).collect() }
}

/// In a transaction of the user's own, accepted work only ends: nothing is accepted there.
fn request(swap: &Swap, texts: &Texts) -> Option<Statement> {
    match &swap.with.request {
        Request::Keep | Request::Put(_) => None,
        Request::Drop => {
            Some(Statement { sql: texts.drop_request.clone(), values: vec![plain(swap.id.0.into())] })
        }
    }
}

fn result(swap: &Swap, texts: &Texts) -> Option<Statement> {
    let (sql, values) = match &swap.with.results {
        Results::Keep => return None,
        Results::Drop => (&texts.drop_results, vec![swap.id.0.into()]),
        Results::Add(result) => (&texts.add_result, write::result_values(swap, result)),
    };
    Some(Statement { sql: sql.clone(), values: values.into_iter().map(plain).collect() })
}

fn text(text: &str) -> Value {
    Value::Text(Some(text.to_owned()))
}

/// A value of a statement of ours. What is added to a moment must not be taken for text, also where it is null.
fn plain(value: Own) -> Value {
    match value {
        Own::Bytes(bytes) => Value::Bytes(Some(bytes)),
        Own::Int(number) => Value::Integer(Some(number)),
        Own::UInt(number) => Value::Integer(Some(number.cast_signed())),
        Own::NULL | Own::Float(_) | Own::Double(_) | Own::Date(..) | Own::Time(..) => Value::Integer(None),
    }
}
