//! Values in short notation: generated bodies, bytes, spans.

use serde::Deserialize;

/// A body, literal or generated.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(crate) enum Payload {
    Text(String),
    Repeat {
        #[serde(default)]
        before: String,
        repeat: String,
        times: usize,
        #[serde(default)]
        after: String,
    },
    /// Pseudo-random bytes, the same on every run.
    Noise {
        noise: usize,
    },
    Hex {
        hex: String,
    },
}

impl Payload {
    pub(crate) fn bytes(&self, fill: impl Fn(&str) -> String) -> Vec<u8> {
        match self {
            Self::Text(text) => unescaped(&fill(text)),
            Self::Repeat { before, repeat, times, after } => {
                format!("{}{}{}", fill(before), repeat.repeat(*times), fill(after)).into_bytes()
            }
            Self::Noise { noise } => noise_of(*noise),
            Self::Hex { hex } => hex_bytes(hex),
        }
    }
}

/// Meaningless headers.
pub(crate) fn padding(headers: usize) -> impl Iterator<Item = (String, String)> {
    (0..headers).map(|i| (format!("x-pad-{i}"), "0123456789abcdef".to_owned()))
}

/// xorshift: incompressible, and no dependency.
fn noise_of(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
    .take(length)
    .collect()
}

fn hex_bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<_> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).expect("two digits are a byte"))
        .collect()
}

/// Text in which `\xNN` is one byte: the only escape, since most cases are about backslashes and quotes themselves.
pub(crate) fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.extend(hex_bytes(std::str::from_utf8(&[*high, *low]).expect("two hex digits")));
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// `"1900ms"`, `"2s"`, `"5m"`, `"25h"`.
pub(crate) fn span(text: &str) -> std::time::Duration {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or_else(|| panic!("span {text:?} has no unit"));
    let number: u64 = text[..at].parse().unwrap_or_else(|_| panic!("span {text:?} has no number"));
    let millis = match &text[at..] {
        "ms" => number,
        "s" => number * 1_000,
        "m" => number * 60_000,
        "h" => number * 3_600_000,
        unit => panic!("span {text:?} has the unit {unit:?}; use ms, s, m or h"),
    };
    std::time::Duration::from_millis(millis)
}
