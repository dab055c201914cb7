//! The one spelling of a JSON number.
//!
//! A number is its sign, its significant digits and where the point stands among them; nothing is ever rounded or
//! turned into a double. The layout is that of ECMAScript, which RFC 8785 uses: plain digits while the point is near,
//! an exponent otherwise. So `1e999999999` stays eleven characters long, and for every number that a double holds
//! exactly as it is written in its shortest form, the spelling is that of RFC 8785.

use std::io::Write;

/// The most digits before the point that are written out; from ECMAScript.
const WHOLE_DIGITS_MAX: u8 = 21;
/// The most zeros after the point that are written out; from ECMAScript.
const LEADING_ZEROS_MAX: i64 = 5;

/// Writes the number that `text` starts with, and says how long it was; none where there is none, or where its
/// exponent is beyond 64 bits.
pub(super) fn copy(text: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let literal = Literal::scan(text)?;
    if literal.is_canonical_integer() {
        out.extend_from_slice(&text[..literal.length]);
    } else {
        write(&literal, out)?;
    }
    Some(literal.length)
}

/// A number as it was spelled.
struct Literal<'a> {
    negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    /// With its sign, without its `e`.
    exponent: &'a [u8],
    length: usize,
}

impl<'a> Literal<'a> {
    /// The grammar of RFC 8259. What follows the number is the caller's to judge.
    fn scan(text: &'a [u8]) -> Option<Self> {
        let negative = text.first() == Some(&b'-');
        let rest = &text[usize::from(negative)..];
        let (whole, rest) = match rest.first()? {
            b'0' => rest.split_at(1),
            _ => digits(rest)?,
        };
        let (fraction, rest) = match rest.first() {
            Some(b'.') => digits(&rest[1..])?,
            _ => (&rest[..0], rest),
        };
        let (exponent, rest) = match rest.first() {
            Some(b'e' | b'E') => signed_digits(&rest[1..])?,
            _ => (&rest[..0], rest),
        };
        Some(Self { negative, whole, fraction, exponent, length: text.len() - rest.len() })
    }

    /// Most numbers are: they are copied as they stand.
    fn is_canonical_integer(&self) -> bool {
        self.fraction.is_empty()
            && self.exponent.is_empty()
            && self.whole != b"0"
            && self.whole.len() <= usize::from(WHOLE_DIGITS_MAX)
    }

    /// The exponent's value; leading zeros are harmless, a value beyond 64 bits is none.
    fn exponent(&self) -> Option<i64> {
        if self.exponent.is_empty() {
            return Some(0);
        }
        std::str::from_utf8(self.exponent).ok()?.parse().ok()
    }
}

/// Splits off one digit or more.
fn digits(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    (length > 0).then(|| text.split_at(length))
}

fn signed_digits(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let (found, _) = digits(&text[sign..])?;
    Some(text.split_at(sign + found.len()))
}

fn write(literal: &Literal<'_>, out: &mut Vec<u8>) -> Option<()> {
    let (head, tail, point) = significant(literal);
    if head.is_empty() && tail.is_empty() {
        // Zero is zero, whatever its sign and exponent.
        out.push(b'0');
        return Some(());
    }
    let point = point.checked_add(literal.exponent()?)?;
    let count = i64::try_from(head.len() + tail.len()).ok()?;
    if literal.negative {
        out.push(b'-');
    }
    let first = out.len();
    if (1..=i64::from(WHOLE_DIGITS_MAX)).contains(&point) {
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
        put_zeros(out, point - count);
        if point < count {
            out.insert(first + usize::try_from(point).ok()?, b'.');
        }
    } else if (-LEADING_ZEROS_MAX..=0).contains(&point) {
        out.extend_from_slice(b"0.");
        put_zeros(out, -point);
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
    } else {
        out.extend_from_slice(head);
        out.extend_from_slice(tail);
        if count > 1 {
            out.insert(first + 1, b'.');
        }
        write!(out, "e{:+}", point.checked_sub(1)?).ok()?;
    }
    Some(())
}

/// The significant digits in two pieces, without zeros before or after, and how many of them stand before the point:
/// a negative count means so many zeros between the point and the first.
fn significant<'a>(literal: &Literal<'a>) -> (&'a [u8], &'a [u8], i64) {
    let tail = without_trailing_zeros(literal.fraction);
    if literal.whole == b"0" {
        let zeros = tail.iter().take_while(|&&digit| digit == b'0').count();
        return (&[], &tail[zeros..], -length(zeros));
    }
    let head = if tail.is_empty() { without_trailing_zeros(literal.whole) } else { literal.whole };
    (head, tail, length(literal.whole.len()))
}

fn length(count: usize) -> i64 {
    i64::try_from(count).expect("a slice is shorter than i64::MAX")
}

fn without_trailing_zeros(mut digits: &[u8]) -> &[u8] {
    while let [rest @ .., b'0'] = digits {
        digits = rest;
    }
    digits
}

/// At most [`WHOLE_DIGITS_MAX`] by the callers' conditions; none where `count` is negative.
fn put_zeros(out: &mut Vec<u8>, count: i64) {
    out.resize(out.len() + usize::try_from(count).unwrap_or(0), b'0');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        let mut out = Vec::new();
        let length = copy(text.as_bytes(), &mut out)?;
        (length == text.len()).then(|| String::from_utf8(out).unwrap())
    }

    /// F02
    #[test]
    fn every_spelling_of_a_number_is_written_the_same() {
        for (spellings, written) in [
            (&["0", "-0", "0.0", "-0e5", "0e99999999999999999999", "-0.000E-7"][..], "0"),
            (&["1", "1.0", "1e0", "10e-1", "0.1e1", "1e-0", "0.01E+2", "1.000e00000000000000000000000"], "1"),
            (&["100", "1e2", "1E2", "1e+2", "100.00", "0.001e5", "1e0000000000000000000000002"], "100"),
            (&["-4.5", "-4.50", "-45e-1", "-0.45e1"], "-4.5"),
            (&["1e21", "1000000000000000000000", "0.1e22"], "1e+21"),
            (&["1e20", "100000000000000000000"], "100000000000000000000"),
            (&["0.000001", "1e-6", "10e-7"], "0.000001"),
            (&["0.0000001", "1e-7"], "1e-7"),
            (&["123e-9", "0.000000123"], "1.23e-7"),
            (&["1E400", "10e399", "0.1e401"], "1e+400"),
            (&["-1e999999999", "-10e999999998"], "-1e+999999999"),
            (&["120.05", "12005e-2"], "120.05"),
        ] {
            for spelling in spellings {
                assert_eq!(canonical(spelling).as_deref(), Some(written), "{spelling}");
            }
        }
    }

    /// F02
    #[test]
    fn numbers_that_share_a_double_still_differ() {
        for (one, other) in [
            ("9007199254740992", "9007199254740993"),
            ("0.1", "0.1000000000000000055"),
            ("1E400", "1E401"),
            ("1e-400", "0"),
            ("1.000000000000000005", "1"),
            ("10000000000000000999", "10000000000000001000"),
            ("1234567890123456789012345", "1234567890123456789012346"),
        ] {
            assert_ne!(canonical(one).unwrap(), canonical(other).unwrap(), "{one} {other}");
        }
    }

    /// F05
    #[test]
    fn an_exponent_beyond_64_bits_has_no_canonical_form() {
        for text in [
            "1e9223372036854775808",
            "1e-9223372036854775809",
            "10e9223372036854775807",
            "1e99999999999999999999",
        ] {
            assert_eq!(canonical(text), None, "{text}");
        }
        assert_eq!(canonical("1e9223372036854775806").unwrap(), "1e+9223372036854775806");
        // The first digit is written before the point, which takes one more from the exponent than there is.
        assert_eq!(canonical("0.1e-9223372036854775808"), None);
    }

    /// F05
    #[test]
    fn what_is_no_json_number_is_refused() {
        for text in
            ["", "-", "+1", "01", "-01", ".5", "1.", "1.e1", "1e", "1e+", "1e1.5", "0x1", "NaN", "1_0", "1 "]
        {
            assert_eq!(canonical(text), None, "{text}");
        }
    }
}
