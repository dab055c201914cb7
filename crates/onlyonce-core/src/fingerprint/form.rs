//! The canonical form of a URL-encoded form.
//!
//! Names and values in order, decoded, each with its length. A name without `=` is told from one with an empty value,
//! and an empty piece between two `&` is kept, because there are servers that tell them apart.

use super::{ABSENT, PRESENT};
use crate::percent::{self, Piece};

/// The fields of a form; none where a `%` is not followed by two hex digits, since servers differ in what that means.
pub(super) fn canonical(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len() + 64);
    if body.is_empty() {
        return Some(out);
    }
    for piece in body.split(|&byte| byte == b'&') {
        let mut halves = piece.splitn(2, |&byte| byte == b'=');
        put_decoded(&mut out, halves.next().unwrap_or_default())?;
        match halves.next() {
            None => out.push(ABSENT),
            Some(value) => {
                out.push(PRESENT);
                put_decoded(&mut out, value)?;
            }
        }
    }
    Some(out)
}

/// Decodes in place and fills the length in afterwards, so that a field costs no buffer of its own.
fn put_decoded(out: &mut Vec<u8>, encoded: &[u8]) -> Option<()> {
    let length_at = out.len();
    out.extend_from_slice(&[0; 8]);
    let start = out.len();
    for piece in percent::pieces(encoded) {
        out.push(match piece {
            Piece::Plain(b'+') => b' ',
            Piece::Plain(byte) | Piece::Escaped(byte) => byte,
            Piece::Malformed => return None,
        });
    }
    let length = super::length(&out[start..]);
    out[length_at..start].copy_from_slice(&length);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Vec<u8> {
        canonical(text.as_bytes()).unwrap()
    }

    /// F03
    #[test]
    fn fields_are_compared_decoded() {
        assert_eq!(form("a=1+2&b=%C3%A9"), form("%61=1%202&b=%c3%a9"));
        assert_eq!(form("a=b=c"), form("a=b%3Dc"));
        assert_eq!(form("a=é"), form("a=%C3%A9"));
    }

    /// F03
    #[test]
    fn different_fields_differ() {
        for (one, other) in [
            ("a=1&b=2", "b=2&a=1"),
            ("a=1&b=2", "a=1%26b=2"),
            ("ab=", "a=b"),
            ("a", "a="),
            ("a=1", "a=1&"),
            ("", "="),
            ("a=+", "a=%2B"),
        ] {
            assert_ne!(form(one), form(other), "{one} {other}");
        }
    }

    /// F05
    #[test]
    fn a_stray_percent_sign_has_no_canonical_form() {
        for text in ["a=%", "a=%4", "a=%zz", "%=1", "a=%+1", "a=100%&b=1"] {
            assert_eq!(canonical(text.as_bytes()), None, "{text}");
        }
    }
}
