//! One request on a connection of its own, by a client that may lose its patience: no library that could retry behind
//! its back.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use onlyonce_testkit::history::{self, Said, Stored};
use onlyonce_testkit::http;

use crate::settings::PATIENCE;

const CONNECTED_WITHIN: Duration = Duration::from_secs(3);

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Patient,
    /// Goes away after so long.
    HangsUp(Duration),
    /// Goes away in the middle of its own request.
    BreaksOff,
}

/// What is sent.
pub(crate) struct Request<'a> {
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
}

/// Sends it and reads the answer; none where it was not waited for, or was lost on its way.
pub(crate) fn exchange(address: SocketAddr, request: &Request<'_>, manner: Manner) -> Option<http::Answer> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECTED_WITHIN).ok()?;
    let Request { path, headers, body } = request;
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let text = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         {headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let (sent, patience) = match manner {
        Manner::Patient => (text.as_str(), PATIENCE),
        Manner::HangsUp(patience) => (text.as_str(), patience),
        Manner::BreaksOff => (&text[..text.len() - body.len() / 2], Duration::ZERO),
    };
    stream.write_all(sent.as_bytes()).ok()?;
    let until = Instant::now() + patience;
    let mut bytes = Vec::new();
    let mut chunk = [0; 8 << 10];
    loop {
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        stream.set_read_timeout(Some(left)).ok()?;
        match stream.read(&mut chunk).ok()? {
            0 => return http::parse(&bytes).ok(),
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
}

/// What a client was told, as the checker reads it.
pub(crate) fn told(answer: &http::Answer) -> history::Answer {
    let stored = match (answer.header("idempotency-key-expires"), answer.header("idempotency-stored")) {
        (Some(_), None) => Stored::Yes,
        (None, Some("false")) => Stored::No,
        _ => Stored::Silent,
    };
    let is_problem = answer.header("content-type") == Some("application/problem+json");
    let code = is_problem.then(|| code(&answer.body));
    let body = match code {
        Some(_) => String::new(),
        None => String::from_utf8_lossy(&answer.body).into_owned(),
    };
    let is_replay = answer.header("idempotent-replayed") == Some("true");
    history::Answer { said: Said { status: answer.status, body }, code, is_replay, stored }
}

fn code(problem: &[u8]) -> String {
    let problem: Option<serde_json::Value> = serde_json::from_slice(problem).ok();
    let code = problem.as_ref().and_then(|problem| problem["code"].as_str());
    code.unwrap_or("a problem without a code").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> history::Answer {
        told(&http::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn an_answer_is_told_by_its_markers() {
        let replay = parsed(
            "HTTP/1.1 201 Created\r\nIdempotent-Replayed: true\r\nIdempotency-Key-Expires: x\r\ncontent-length: 2\r\n\r\nok",
        );
        assert_eq!((replay.is_replay, replay.stored, replay.code), (true, Stored::Yes, None));
        assert_eq!(replay.said, Said { status: 201, body: "ok".to_owned() });
        let released = parsed("HTTP/1.1 429 No\r\nIdempotency-Stored: false\r\ncontent-length: 0\r\n\r\n");
        assert_eq!((released.is_replay, released.stored), (false, Stored::No));
        let body = r#"{"code":"idempotency_key_reused"}"#;
        let refused = parsed(&format!(
            "HTTP/1.1 422 No\r\nContent-Type: application/problem+json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        assert_eq!(refused.code.as_deref(), Some("idempotency_key_reused"));
    }
}
