//! A session of the application in PostgreSQL: the simple query protocol by hand, so that it can be dropped at any byte, with
//! a COMMIT under way too.
//!
//! Values are written into the statements: everything that comes here is made by this program.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Version 3.0, as in a startup message.
const PROTOCOL: u32 = 3 << 16;
const CONNECTED_WITHIN: Duration = Duration::from_secs(3);
/// An answer that takes longer will not come: statements take less long, and a database that stands still goes on sooner.
const ANSWERED_WITHIN: Duration = Duration::from_secs(8);
/// No answer here is larger than a row of text.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

pub(crate) struct Session {
    stream: TcpStream,
}

/// Why a statement has no result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection broke, or nothing came: nobody knows what the statement did.
    Lost,
    /// The server refused it, with an SQLSTATE and its words.
    Refused { state: String, says: String },
}

impl Session {
    /// Logs in without a password.
    pub(crate) fn open(address: SocketAddr, role: &str, database: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&address, CONNECTED_WITHIN).map_err(|_| Failure::Lost)?;
        let mut session = Self { stream };
        session.answered_within(ANSWERED_WITHIN)?;
        let parameters = format!("user\0{role}\0database\0{database}\0\0");
        let mut message = Vec::new();
        message.extend_from_slice(&length(4 + parameters.len()));
        message.extend_from_slice(&PROTOCOL.to_be_bytes());
        message.extend_from_slice(parameters.as_bytes());
        session.stream.write_all(&message).map_err(|_| Failure::Lost)?;
        session.result()?;
        Ok(session)
    }

    /// Runs statements: the first value of their last row, or how the last one is called where there is no row.
    pub(crate) fn run(&mut self, sql: &str) -> Result<String, Failure> {
        self.send(sql)?;
        self.result()
    }

    /// Sends statements, and does not wait.
    pub(crate) fn send(&mut self, sql: &str) -> Result<(), Failure> {
        let mut message = vec![b'Q'];
        message.extend_from_slice(&length(sql.len() + 1));
        message.extend_from_slice(sql.as_bytes());
        message.push(0);
        self.stream.write_all(&message).map_err(|_| Failure::Lost)
    }

    /// How long an answer is waited for, from now on.
    pub(crate) fn answered_within(&mut self, span: Duration) -> Result<(), Failure> {
        self.stream.set_read_timeout(Some(span)).map_err(|_| Failure::Lost)
    }

    /// The same as for a new session.
    pub(crate) fn patient(&mut self) -> Result<(), Failure> {
        self.answered_within(ANSWERED_WITHIN)
    }

    /// Reads until the server is ready for the next statement.
    fn result(&mut self) -> Result<String, Failure> {
        let (mut value, mut tag, mut refused) = (None, String::new(), None);
        loop {
            let (kind, body) = self.message()?;
            match kind {
                b'D' => value = first_value(&body),
                b'C' => tag = text(&body),
                b'E' => refused = Some(refusal(&body)),
                b'Z' => break,
                _ => {}
            }
        }
        match refused {
            Some(refused) => Err(refused),
            None => Ok(value.unwrap_or(tag)),
        }
    }

    fn message(&mut self) -> Result<(u8, Vec<u8>), Failure> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head).map_err(|_| Failure::Lost)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let length = length.checked_sub(4).filter(|length| *length <= MESSAGE_BYTES_MAX);
        let mut body = vec![0; length.ok_or(Failure::Lost)?];
        self.stream.read_exact(&mut body).map_err(|_| Failure::Lost)?;
        Ok((head[0], body))
    }
}

/// The length of a message with these bytes, which counts itself.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(4 + bytes).unwrap_or(u32::MAX).to_be_bytes()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned()
}

/// A row begins with the number of its columns; each is its length and its bytes.
fn first_value(row: &[u8]) -> Option<String> {
    let length = u32::from_be_bytes(row.get(2..6)?.try_into().ok()?) as usize;
    Some(text(row.get(6..6usize.checked_add(length)?)?))
}

/// Fields of a letter and a text each.
fn refusal(body: &[u8]) -> Failure {
    let field = |letter: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        fields.find(|field| field.first() == Some(&letter)).map(|field| text(&field[1..]))
    };
    Failure::Refused { state: field(b'C').unwrap_or_default(), says: field(b'M').unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use onlyonce_testkit::engines::postgres::Server;

    use super::*;

    fn session() -> Session {
        let address = SocketAddr::from(([127, 0, 0, 1], Server::shared().port()));
        Session::open(address, "postgres", "postgres").unwrap()
    }

    #[test]
    fn a_statement_gives_its_first_value_or_its_name() {
        let mut session = session();
        assert_eq!(session.run("BEGIN; SELECT 'a'; SELECT 41 + 1, 'b'"), Ok("42".to_owned()));
        assert_eq!(session.run("COMMIT"), Ok("COMMIT".to_owned()));
    }

    #[test]
    fn a_refusal_has_its_state_and_the_session_goes_on() {
        let mut session = session();
        let refused = session.run("SELECT 1 / 0");
        let says = "division by zero".to_owned();
        assert_eq!(refused, Err(Failure::Refused { state: "22012".to_owned(), says }));
        assert_eq!(session.run("SELECT 1"), Ok("1".to_owned()));
    }

    #[test]
    fn a_session_that_is_ended_is_lost() {
        let mut session = session();
        assert_eq!(session.run("SELECT pg_terminate_backend(pg_backend_pid())"), Err(Failure::Lost));
    }
}
