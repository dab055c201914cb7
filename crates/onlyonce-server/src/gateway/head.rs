//! Parts of a request's head that hyper does not expose.
//!
//! If a message has both a length and a transfer coding, hyper drops the length, reads the chunks and closes the connection
//! afterwards. That is unambiguous, but a proxy in front of us may have read it otherwise, so such a message is refused. To
//! detect it, the bytes of each head are kept until the next one; they are parsed only if the request has a transfer
//! coding.
//!
//! A pipelined request, sent before the previous answer was read, begins inside bytes already read and is not seen here.
//! hyper's reading of it is unambiguous.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The largest head that is accepted, 431 above it.
pub(crate) const BYTES_MAX: usize = 64 * 1024;
const HTTP2: &[u8] = b"PRI * HTTP/2.0";

/// The head last read from one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// An answer was written, so the next read begins a message.
    is_over: AtomicBool,
    text: Mutex<Text>,
}

#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    /// Where the current line begins.
    line: usize,
    is_whole: bool,
    is_http2: bool,
    /// Something was written before it: which HTTP it is was decided.
    is_later: bool,
}

impl Head {
    /// Records bytes that were read, and says whether the connection speaks HTTP/2.
    pub(crate) fn read(&self, bytes: &[u8]) -> bool {
        let mut text = self.0.text.lock().unwrap_or_else(PoisonError::into_inner);
        if text.is_http2 {
            return true;
        }
        if self.0.is_over.swap(false, Ordering::Relaxed) {
            text.bytes.clear();
            text.line = 0;
            text.is_whole = false;
            text.is_later = true;
        }
        if !text.is_whole {
            text.append(bytes);
        }
        text.is_http2
    }

    /// Records that something was written.
    pub(crate) fn wrote(&self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }

    /// Whether it has both a length and a transfer coding.
    pub(crate) fn is_ambiguous(&self) -> bool {
        let text = self.0.text.lock().unwrap_or_else(PoisonError::into_inner);
        text.has("content-length") && text.has("transfer-encoding")
    }
}

impl Text {
    fn append(&mut self, bytes: &[u8]) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.bytes.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                break;
            }
            // Empty lines in front of a request are skipped, as hyper does.
            let is_empty = self.bytes[self.line..].trim_ascii().is_empty();
            if is_empty && self.line > 0 {
                self.is_whole = true;
                break;
            }
            if is_empty {
                self.bytes.clear();
            }
            self.line = self.bytes.len();
        }
        self.is_http2 = !self.is_later && self.bytes.starts_with(HTTP2);
        self.is_whole |= self.bytes.len() > BYTES_MAX;
    }

    fn has(&self, name: &str) -> bool {
        self.bytes.split(|byte| *byte == b'\n').skip(1).any(|line| {
            let (start, rest) = line.split_at(name.len().min(line.len()));
            start.eq_ignore_ascii_case(name.as_bytes()) && rest.first() == Some(&b':')
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(pieces: &[&str]) -> bool {
        let head = Head::default();
        for piece in pieces {
            head.read(piece.as_bytes());
        }
        head.is_ambiguous()
    }

    #[test]
    fn a_length_and_a_coding_in_one_head_are_seen_in_any_order_and_in_any_pieces() {
        let text =
            "POST / HTTP/1.1\r\nHost: a\r\nCONTENT-length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert!(reads(&[text]));
        for at in 1..text.len() {
            assert!(reads(&[&text[..at], &text[at..]]), "{at}");
        }
        assert!(reads(&["POST / HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length: 5\n\n"]));
        assert!(reads(&[
            "\r\n\r\nPOST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
        ]));
    }

    #[test]
    fn what_stands_in_a_body_is_not_the_head() {
        assert!(!reads(&[
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n14\r\nContent-Length: 5\r\n\r\n\r\n"
        ]));
        assert!(!reads(&[
            "POST / HTTP/1.1\r\nContent-Length: 90\r\n\r\n",
            "Transfer-Encoding: chunked\r\n\r\n"
        ]));
    }

    #[test]
    fn a_body_that_begins_like_http2_changes_nothing() {
        let head = Head::default();
        assert!(!head.read(b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 18\r\n\r\n"));
        head.wrote();
        assert!(!head.read(b"PRI * HTTP/2.0\r\n\r\n"));
        head.wrote();
        head.read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n");
        assert!(head.is_ambiguous());
        let head = Head::default();
        assert!(!head.read(b"PRI * HT") && head.read(b"TP/2.0\r\n\r\n"));
    }

    #[test]
    fn each_head_is_judged_alone() {
        let head = Head::default();
        head.read(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}");
        head.wrote();
        head.read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert!(!head.is_ambiguous());
        head.wrote();
        head.read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n");
        assert!(head.is_ambiguous());
    }
}
