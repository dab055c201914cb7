//! Percent-encoding (RFC 3986, section 2.1): the one decoder of the project.
//!
//! What a `%` without two hexadecimal digits behind it means differs from server to server, so it is a
//! [`Piece::Malformed`] here, and each caller has its own rule for that: keep it, refuse the text, or take the text as
//! it is. The same goes for `+`, which means a space in a form and itself in a path: it is [`Piece::Plain`].
//!
//! ```
//! use onlyonce_core::percent::{Piece, pieces};
//!
//! let found: Vec<_> = pieces(b"a%2Fb%").collect();
//! assert_eq!(found, [Piece::Plain(b'a'), Piece::Escaped(b'/'), Piece::Plain(b'b'), Piece::Malformed]);
//! ```

/// One byte of percent-encoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// It stands for itself.
    Plain(u8),
    /// It was written as an escape.
    Escaped(u8),
    /// A `%` without two hexadecimal digits behind it. What follows it is read on its own.
    Malformed,
}

/// The bytes that percent-encoded text stands for, in order.
pub fn pieces(text: &[u8]) -> impl Iterator<Item = Piece> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (&first, after) = rest.split_first()?;
        rest = after;
        if first != b'%' {
            return Some(Piece::Plain(first));
        }
        let Some((digits, behind)) = after.split_first_chunk() else { return Some(Piece::Malformed) };
        let Some(byte) = octet(*digits) else { return Some(Piece::Malformed) };
        rest = behind;
        Some(Piece::Escaped(byte))
    })
}

/// Whether a character never needs an escape, so that its escape and itself are two spellings of one thing
/// (RFC 3986, section 2.3).
pub fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn octet([high, low]: [u8; 2]) -> Option<u8> {
    Some(digit(high)? * 16 + digit(low)?)
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_back_from_its_escape_in_either_case() {
        for byte in 0..=u8::MAX {
            for escape in [format!("%{byte:02X}"), format!("%{byte:02x}")] {
                assert!(pieces(escape.as_bytes()).eq([Piece::Escaped(byte)]), "{escape}");
            }
        }
    }

    #[test]
    fn a_percent_sign_without_two_hexadecimal_digits_is_malformed_and_what_follows_is_read_on() {
        let malformed = |text: &str, behind: &[u8]| {
            let behind = behind.iter().map(|byte| Piece::Plain(*byte));
            let expected: Vec<_> = std::iter::once(Piece::Malformed).chain(behind).collect();
            assert_eq!(pieces(text.as_bytes()).collect::<Vec<_>>(), expected, "{text}");
        };
        malformed("%", b"");
        malformed("%4", b"4");
        malformed("%zz", b"zz");
        malformed("%4g", b"4g");
        malformed("%+1", b"+1");
        malformed("%é", "é".as_bytes());
        let doubled: Vec<_> = pieces(b"%%41").collect();
        assert_eq!(doubled, [Piece::Malformed, Piece::Escaped(b'A')]);
    }

    #[test]
    fn what_is_no_escape_stands_for_itself() {
        assert!(pieces(b"a+/ ").eq(b"a+/ ".map(Piece::Plain)));
        assert_eq!(pieces(b"").next(), None);
    }
}
