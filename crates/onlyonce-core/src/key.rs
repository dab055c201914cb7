//! The client's key.
//!
//! [`Rules::parse`] turns the lines of the `Idempotency-Key` header into a [`Key`], or says what is wrong with them. Where else a
//! key may stand is what [`Source`] says.
//! A key is opaque: nothing is read out of it, and two keys are the same only where every character is.
//!
//! 1. No line is no key. Two lines are no key either, also where they agree: which of them a proxy in between
//!    would have kept is anyone's guess.
//! 2. White space around the value does not count.
//! 3. A String of RFC 9651 (`"abc"`) and a bare value (`abc`) are two spellings of one key. [`Syntax`] says which
//!    of them are accepted. Parameters after a String must be well formed, and are ignored.
//! 4. A String holds printable ASCII, with `"` and `\` escaped. A bare value holds visible ASCII without `,` and `;`,
//!    and without `"` unless [`Syntax::Bare`] makes that a character like any other.
//! 5. The length counts the characters of the key, not those of its spelling. An empty key is never valid.
//! 6. A key that looks like personal data is accepted, reported or refused, as [`PersonalData`] says.
//!
//! What looks like personal data is a guess, made so that the identifiers people use as keys (UUIDs, ULIDs, hex,
//! counters, timestamps, snowflakes) are left alone. See [`LooksLike`] for what each guess goes by. A guess that must
//! never be wrong needs `personal_data = "allow"`.
//!
//! ```
//! use onlyonce_core::key::{Invalid, Rules};
//!
//! let rules = Rules::default();
//! let bare = rules.parse(["8e03978e"])?.expect("one line is a key");
//! let quoted = rules.parse(["\"8e03978e\";v=1"])?.expect("one line is a key");
//! assert_eq!(bare.key, quoted.key);
//!
//! assert_eq!(rules.parse::<&str>([])?, None);
//! assert_eq!(rules.parse(["a", "a"]), Err(Invalid::SeveralLines));
//! # Ok::<(), Invalid>(())
//! ```

mod source;

use std::borrow::Cow;
use std::fmt;
use std::str;
use std::sync::Arc;

use sfv::{Parser, StringRef};
use sha2::{Digest, Sha256};

pub use source::{MalformedSource, Source, agreed};

/// A valid idempotency key: opaque, made by the client.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// A key as a store kept it: it was checked when it came in.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The key's characters, decoded.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What logs carry in the key's place.
    pub fn digest_short(&self) -> DigestShort {
        let [a, b, c, d, ..]: [u8; 32] = Sha256::digest(self.as_str()).into();
        DigestShort([a, b, c, d])
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

/// The first eight hex digits of a key's SHA-256: enough to join the log lines of one key, too few to be the key.
///
/// Who guesses a key can check the guess against it, so it hides a random key and not a house number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DigestShort([u8; 4]);

impl fmt::Display for DigestShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::record::hex(&self.0, f)
    }
}

impl fmt::Debug for DigestShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DigestShort({self})")
    }
}

/// What a key must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Which spellings are accepted.
    pub syntax: Syntax,
    /// The fewest characters; an empty key is invalid even where this is 0.
    pub chars_min: usize,
    /// The most characters.
    pub chars_max: usize,
    /// What happens to a key that looks like personal data.
    pub personal_data: PersonalData,
}

impl Default for Rules {
    fn default() -> Self {
        Self { syntax: Syntax::Either, chars_min: 1, chars_max: 255, personal_data: PersonalData::Warn }
    }
}

/// Which spellings of a key are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syntax {
    /// A value that starts with `"` is a String, any other is bare.
    Either,
    /// Only a String of RFC 9651, in double quotes.
    SfString,
    /// Every value is bare, and a quote is part of the key.
    Bare,
}

/// What happens to a key that looks like personal data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PersonalData {
    /// Nobody looks.
    Allow,
    /// It is accepted, and [`Parsed::looks_like`] says so.
    Warn,
    /// It is invalid.
    Refuse,
}

/// A header that held a valid key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// The key.
    pub key: Key,
    /// The personal data it looks like, under [`PersonalData::Warn`].
    pub looks_like: Option<LooksLike>,
}

/// The kinds of personal data a key can look like. Each is looked for anywhere in the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LooksLike {
    /// A character that names can have, `@`, and a domain: a label, a dot, and two letters or more.
    EmailAddress,
    /// `+`, not after a letter or digit, then 8 to 15 digits of which the first is not 0. Between digits there may be
    /// spaces, `-`, `.`, `/` and parentheses, two at a time. Without the `+` a phone number is just a number.
    PhoneNumber,
    /// 13 to 19 digits that begin as a card network's do, have its length and pass the Luhn check; in one piece or
    /// in groups as they are embossed, with spaces or dashes. No letter or digit may touch them, so that hex, a UUID
    /// and a longer counter are no cards; no network begins with 1, so that timestamps are none. A counter that has
    /// grown into a network's numbers is taken for a card one time in ten.
    CardNumber,
}

/// Why a header holds no valid key. Its text is for the client: it names the remedy, and never the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Invalid {
    /// The header came more than once.
    SeveralLines,
    /// There is nothing in it.
    Empty,
    /// Only Strings are accepted, and this does not begin like one.
    NotAString,
    /// It begins like a String, and is not one, or what follows it is no parameter.
    MalformedString,
    /// A bare key has a character that it cannot have.
    BareCharacter {
        /// The spellings that are accepted.
        syntax: Syntax,
    },
    /// It has fewer characters than it must.
    TooShort {
        /// The fewest.
        chars_min: usize,
    },
    /// It has more characters than it may.
    TooLong {
        /// The most.
        chars_max: usize,
    },
    /// It looks like personal data, and that is refused.
    PersonalData(LooksLike),
    /// `Connection` names its header: it was meant for one hop only.
    ConnectionNamed,
    /// The query has its parameter more than once.
    SeveralParameters,
    /// A name on the way to it is in the JSON body twice.
    MemberTwice,
    /// What stands in its place of the JSON body is no string.
    MemberNotAString,
    /// In a query or a body it has a character that it cannot have.
    Character,
    /// The body says that it is JSON, and is none.
    BodyNotJson,
    /// Two places hold two keys.
    Differs,
}

impl Rules {
    /// The key in these header lines; none where there is no line.
    ///
    /// Lines are anything that lends its bytes: `headers.get_all("idempotency-key")` will do.
    ///
    /// # Errors
    /// The lines are there and hold no valid key. That is so whether or not a key is required.
    pub fn parse<L: AsRef<[u8]>>(
        &self,
        lines: impl IntoIterator<Item = L>,
    ) -> Result<Option<Parsed>, Invalid> {
        let mut lines = lines.into_iter();
        let Some(line) = lines.next() else { return Ok(None) };
        if lines.next().is_some() {
            return Err(Invalid::SeveralLines);
        }
        self.parse_line(line.as_ref()).map(Some)
    }

    fn parse_line(&self, line: &[u8]) -> Result<Parsed, Invalid> {
        let text = self.syntax.decode(trim(line))?;
        self.check_length(&text)?;
        let looks_like = self.check_personal_data(&text)?;
        Ok(Parsed { key: Key(Arc::from(&*text)), looks_like })
    }

    /// The key of these characters, from a place that has no spellings of its own.
    fn parse_text(&self, text: &str) -> Result<Parsed, Invalid> {
        if !text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(Invalid::Character);
        }
        self.check_length(text)?;
        let looks_like = self.check_personal_data(text)?;
        Ok(Parsed { key: Key(Arc::from(text)), looks_like })
    }

    fn check_length(&self, text: &str) -> Result<(), Invalid> {
        // Every spelling is ASCII, so a byte is a character.
        let chars = text.len();
        if chars == 0 {
            return Err(Invalid::Empty);
        }
        if chars < self.chars_min {
            return Err(Invalid::TooShort { chars_min: self.chars_min });
        }
        if chars > self.chars_max {
            return Err(Invalid::TooLong { chars_max: self.chars_max });
        }
        Ok(())
    }

    fn check_personal_data(&self, text: &str) -> Result<Option<LooksLike>, Invalid> {
        match self.personal_data {
            PersonalData::Allow => Ok(None),
            PersonalData::Warn => Ok(LooksLike::of(text)),
            PersonalData::Refuse => LooksLike::of(text).map_or(Ok(None), |it| Err(Invalid::PersonalData(it))),
        }
    }
}

impl Syntax {
    /// The characters of the key that `value` spells.
    fn decode(self, value: &[u8]) -> Result<Cow<'_, str>, Invalid> {
        match (self, value.first()) {
            (_, None) => Err(Invalid::Empty),
            (Self::SfString | Self::Either, Some(b'"')) => sf_string(value),
            (Self::SfString, Some(_)) => Err(Invalid::NotAString),
            (Self::Either | Self::Bare, Some(_)) => self.bare(value),
        }
    }

    fn bare(self, value: &[u8]) -> Result<Cow<'_, str>, Invalid> {
        let quote_allowed = self == Self::Bare;
        let allowed = |byte: &u8| match byte {
            b',' | b';' => false,
            b'"' => quote_allowed,
            byte => byte.is_ascii_graphic(),
        };
        if !value.iter().all(allowed) {
            return Err(Invalid::BareCharacter { syntax: self });
        }
        let text = str::from_utf8(value).map_err(|_| Invalid::BareCharacter { syntax: self })?;
        Ok(Cow::Borrowed(text))
    }
}

/// The characters of a String: almost every one is plain, and only the others are worth a parser.
fn sf_string(value: &[u8]) -> Result<Cow<'_, str>, Invalid> {
    if let Some(plain) = plain_string(value) {
        return Ok(Cow::Borrowed(plain));
    }
    let string: Cow<'_, StringRef> = Parser::new(value).parse_item().map_err(|_| Invalid::MalformedString)?;
    Ok(match string {
        Cow::Borrowed(string) => Cow::Borrowed(string.as_str()),
        Cow::Owned(string) => Cow::Owned(string.into()),
    })
}

/// What is between the quotes, where there is no escape, no parameter and nothing wrong.
fn plain_string(value: &[u8]) -> Option<&str> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    inner.iter().all(plain).then(|| str::from_utf8(inner).ok()).flatten()
}

/// `value` without the white space that HTTP allows around it. Servers remove it before us; not every caller is one.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

impl LooksLike {
    /// The personal data in `text`, if there is any.
    fn of(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if has_email_address(text) {
            Some(Self::EmailAddress)
        } else if has_phone_number(text) {
            Some(Self::PhoneNumber)
        } else if has_card_number(text) {
            Some(Self::CardNumber)
        } else {
            None
        }
    }
}

/// The positions of `sign` in `text`, each as what stands before it and what after.
fn around(text: &[u8], sign: u8) -> impl Iterator<Item = (&[u8], &[u8])> {
    let found = move |(at, byte): (usize, &u8)| (*byte == sign).then_some((&text[..at], &text[at + 1..]));
    text.iter().enumerate().filter_map(found)
}

fn has_email_address(text: &[u8]) -> bool {
    let local = |byte: &u8| byte.is_ascii_alphanumeric() || b".!#$%&'*+-/=?^_`{|}~".contains(byte);
    around(text, b'@').any(|(before, after)| before.last().is_some_and(local) && starts_with_domain(after))
}

/// Whether `text` starts with a label, a dot and a top-level domain; more labels may stand between them.
fn starts_with_domain(text: &[u8]) -> bool {
    // Cut off first, so that a key made of `@` is not read to its end for each of them.
    let outside = |byte: &u8| !byte.is_ascii_alphanumeric() && !b".-".contains(byte);
    let domain = &text[..text.iter().position(outside).unwrap_or(text.len())];
    let mut labels = domain.split(|byte| *byte == b'.').take_while(|label| !label.is_empty());
    let top_level =
        |label: &[u8]| matches!(label, [a, b, ..] if a.is_ascii_alphabetic() && b.is_ascii_alphabetic());
    labels.next().is_some() && labels.any(top_level)
}

const PHONE_DIGITS_MIN: usize = 8;
/// The longest number of E.164.
const PHONE_DIGITS_MAX: usize = 15;
/// As in `+1 (415) 555-2671`.
const PHONE_SEPARATORS_MAX: usize = 2;

fn has_phone_number(text: &[u8]) -> bool {
    around(text, b'+').any(|(before, after)| !touches(before.last()) && starts_with_phone_digits(after))
}

/// Whether a group of digits ends where a phone number may end. What follows, say `-1`, may be the client's own.
fn starts_with_phone_digits(text: &[u8]) -> bool {
    let (mut digits, mut separators) = (0, 0);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'0' if digits == 0 => return false,
            b'0'..=b'9' => (digits, separators) = (digits + 1, 0),
            b' ' | b'-' | b'.' | b'/' | b'(' | b')' => separators += 1,
            _ => return false,
        }
        if digits > PHONE_DIGITS_MAX || separators > PHONE_SEPARATORS_MAX {
            return false;
        }
        if digits >= PHONE_DIGITS_MIN && !touches(text.get(at + 1)) {
            return true;
        }
    }
    false
}

/// Whether a neighbour makes digits part of something longer.
fn touches(neighbour: Option<&u8>) -> bool {
    neighbour.is_some_and(u8::is_ascii_alphanumeric)
}

const CARD_DIGITS_MIN: usize = 13;
/// 19 digits, and the separators of five groups.
const CARD_CHARS_MAX: usize = 23;

fn has_card_number(text: &[u8]) -> bool {
    let starts = |at: &usize| text[*at].is_ascii_digit() && !touches(text[..*at].last());
    (0..text.len()).filter(starts).any(|at| starts_with_card(&text[at..]))
}

fn starts_with_card(text: &[u8]) -> bool {
    let part = |byte: &&u8| byte.is_ascii_digit() || is_card_separator(byte);
    let chars_max = text.iter().take(CARD_CHARS_MAX).take_while(part).count();
    (CARD_DIGITS_MIN..=chars_max).any(|chars| !touches(text.get(chars)) && is_card(&text[..chars]))
}

fn is_card_separator(byte: &u8) -> bool {
    matches!(byte, b' ' | b'-')
}

fn is_card(text: &[u8]) -> bool {
    is_grouped_as_a_card(text) && begins_as_a_network(text) && passes_luhn(text)
}

/// One piece, fours, or the 4-6-4 and 4-6-5 of Diners Club and American Express.
///
/// Other groups would match the 8-4-4 and 4-12 of a UUID in which these happen to be all digits.
fn is_grouped_as_a_card(text: &[u8]) -> bool {
    let mut lengths = [0; 5];
    let mut groups = 0;
    for group in text.split(is_card_separator) {
        let Some(length) = lengths.get_mut(groups) else { return false };
        *length = group.len();
        groups += 1;
    }
    matches!(lengths[..groups], [13..=19] | [4, 4, 4, 1..=4] | [4, 4, 4, 4, 1..=3] | [4, 6, 4 | 5])
}

/// Whether the first four digits belong to a card network, and the length is one that it issues.
fn begins_as_a_network(text: &[u8]) -> bool {
    let prefix = digits(text).take(4).fold(0, |prefix, digit| prefix * 10 + digit);
    let lengths = match prefix {
        4000..=4999 => return matches!(digits(text).count(), 13 | 16 | 19), // Visa
        3400..=3499 | 3700..=3799 => 15..=15,                               // American Express
        2221..=2720 | 5100..=5599 => 16..=16,                               // Mastercard
        3000..=3059 | 3095 | 3600..=3699 | 3800..=3999 => 14..=19,          // Diners Club
        2200..=2204 | 3528..=3589 => 16..=19,                               // Mir, JCB
        5000..=5099 | 5600..=6999 | 8100..=8299 => 16..=19, // Maestro, Discover, UnionPay, RuPay
        9792 => 16..=16,                                    // Troy
        _ => return false,
    };
    lengths.contains(&digits(text).count())
}

fn passes_luhn(text: &[u8]) -> bool {
    let weigh = |(at, digit): (usize, u32)| match at % 2 {
        0 => digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    };
    digits(text).rev().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

fn digits(text: &[u8]) -> impl DoubleEndedIterator<Item = u32> {
    text.iter().filter_map(|byte| char::from(*byte).to_digit(10))
}

impl fmt::Display for LooksLike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EmailAddress => "an e-mail address",
            Self::PhoneNumber => "a phone number",
            Self::CardNumber => "a card number",
        })
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SeveralLines => f.write_str("the key was sent in more than one header line; send one"),
            Self::Empty => f.write_str("the key is empty; send a random one, such as a UUID"),
            Self::NotAString => f.write_str("the key is not a string; put it in double quotes"),
            Self::MalformedString => f.write_str(
                "the key is not a well-formed string; between the quotes send printable ASCII, with a backslash \
                 before each quote and backslash, and after them nothing or well-formed parameters",
            ),
            Self::BareCharacter { syntax } => f.write_str(syntax.remedy()),
            Self::TooShort { chars_min } => {
                write!(f, "the key is too short; send at least {chars_min} characters")
            }
            Self::TooLong { chars_max } => write!(f, "the key is too long; send at most {chars_max} characters"),
            Self::PersonalData(it) => {
                write!(f, "the key looks like {it}; send a random one, such as a UUID")
            }
            Self::ConnectionNamed => f.write_str("the Connection header lists the key's header; remove it there"),
            Self::SeveralParameters => {
                f.write_str("the key was sent in more than one query parameter; send one")
            }
            Self::MemberTwice => f.write_str(
                "the JSON body has a name twice on the way to the key, and it is not clear which one counts; send it once",
            ),
            Self::MemberNotAString => {
                f.write_str("the key in the JSON body is not a string; send it in double quotes")
            }
            Self::Character => {
                f.write_str("the key has a character that is not allowed; send printable ASCII")
            }
            Self::BodyNotJson => f.write_str(
                "the body is not valid JSON, or is encoded or nested too deep, so no key can be read from it; send plain JSON in UTF-8",
            ),
            Self::Differs => f.write_str(
                "the request carries two keys that differ, and it is not clear which one counts; send one key",
            ),
        }
    }
}

impl Syntax {
    /// What to do about a character that a bare key cannot have.
    const fn remedy(self) -> &'static str {
        match self {
            Self::Bare => {
                "the key has a character that is not allowed; send visible ASCII without spaces, commas and semicolons"
            }
            Self::Either | Self::SfString => {
                "the key has a character that is not allowed outside quotes; send visible ASCII without spaces, \
                 commas, semicolons and quotes, or a string of printable ASCII in double quotes"
            }
        }
    }
}

impl std::error::Error for Invalid {}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_like(text: &str) -> Option<LooksLike> {
        LooksLike::of(text)
    }

    /// K05
    #[test]
    fn a_plain_key_is_borrowed_from_its_header() {
        for (syntax, value) in [
            (Syntax::Either, "8e03978e-40d5-43dd-bc93-6894a57f9324"),
            (Syntax::Either, "\"8e03978e-40d5-43dd-bc93-6894a57f9324\""),
            (Syntax::SfString, "\"a b, c; d\""),
            (Syntax::SfString, "\"abc\";v=1"),
            (Syntax::Bare, "\"abc\""),
        ] {
            assert!(matches!(syntax.decode(value.as_bytes()), Ok(Cow::Borrowed(_))), "{value}");
        }
    }

    #[test]
    fn white_space_is_trimmed_at_both_ends_only() {
        assert_eq!(trim(b" \t a b\t "), b"a b");
        assert_eq!(trim(b" \t "), b"");
        assert_eq!(trim(b"\na"), b"\na");
    }

    /// K09
    #[test]
    fn a_key_is_logged_as_eight_hex_digits_of_its_digest() {
        // The SHA-256 of "abc" is the example of FIPS 180.
        assert_eq!(Key::stored("abc").digest_short().to_string(), "ba7816bf");
        assert_eq!(format!("{:?}", Key::stored("abc")), "Key(…)");
    }

    /// K08
    #[test]
    fn an_e_mail_address_is_found_anywhere_in_a_key() {
        for text in [
            "jane@example.com",
            "Jane.Doe+orders@mail.example.co.uk",
            "order-7:jane@example.com",
            "jane@example.com-2024-05-01",
            "jane_doe@x1.io/42",
            "a@@b@example.org",
            "jane@m.x.example.com",
        ] {
            assert_eq!(looks_like(text), Some(LooksLike::EmailAddress), "{text}");
        }
    }

    /// K08
    #[test]
    fn an_at_sign_alone_is_no_e_mail_address() {
        for text in [
            "@",
            "a@",
            "@example.com",
            "left-pad@1.3.0",
            "user@host",
            "a@b.c",
            "a@.com",
            "a@b..com",
            "a@b c.de",
        ] {
            assert_eq!(looks_like(text), None, "{text}");
        }
    }

    /// K08
    #[test]
    fn a_phone_number_with_its_plus_is_found() {
        for text in [
            "+4915112345678",
            "+1 (415) 555-2671",
            "+44-20-7946-0958",
            "+49.30.1234567",
            "+49 (0)30/1234567",
            "tel:+4915112345678",
            "+4915112345678-20240501123456",
            "order:+12345678",
        ] {
            assert_eq!(looks_like(text), Some(LooksLike::PhoneNumber), "{text}");
        }
    }

    /// K08
    #[test]
    fn other_numbers_are_no_phone_numbers() {
        for text in [
            "+1234567",
            "+1234567890123456",
            "+0123456789",
            "4915112345670",
            "2024-05-01T12:00:00+01:00",
            "a+12345678",
            "+12345678a",
            "+1 ( - 2345678",
            "+",
            "2+2",
        ] {
            assert_eq!(looks_like(text), None, "{text}");
        }
    }

    /// K08
    #[test]
    fn a_card_number_is_found_in_one_piece_and_in_groups() {
        // The numbers that payment providers publish for testing.
        for text in [
            "4111111111111111",
            "4111 1111 1111 1111",
            "4111-1111-1111-1111",
            "4222222222222",
            "5555555555554444",
            "2223003122003222",
            "378282246310005",
            "3782 822463 10005",
            "30569309025904",
            "3056-930902-5904",
            "6011111111111117",
            "3530111333300000",
            "6205500000000000004",
            "6205 5000 0000 0000 004",
            "pay_4111111111111111_1",
            "order-7-4111-1111-1111-1111-2",
        ] {
            assert_eq!(looks_like(text), Some(LooksLike::CardNumber), "{text}");
        }
    }

    /// K08
    #[test]
    fn digits_that_are_no_card_are_left_alone() {
        for text in [
            "4111111111111112",       // Luhn fails
            "41111111111111111111",   // 20 digits
            "a4111111111111111",      // hex
            "4111111111111111f",      // hex
            "1714564800006",          // milliseconds, and Luhn passes
            "1714564800000002",       // microseconds, and Luhn passes
            "4111.1111.1111.1111",    // not how a card is written
            "4111--1111-1111-1111",   // nor this
            "41111111-1111-1111",     // nor this: the 8-4-4 of a UUID
            "4111-111111111111",      // nor this: its 4-12
            "7111111111111112347",    // no network, and Luhn passes
            "5123456789002",          // a network that has no cards of 13 digits, and Luhn passes
            "0000004111111111111111", // a counter filled with zeros
        ] {
            assert_eq!(looks_like(text), None, "{text}");
        }
    }

    #[test]
    fn the_numbers_that_are_no_cards_are_so_for_the_reason_given() {
        for text in [
            "1714564800006",
            "1714564800000002",
            "41111111-1111-1111",
            "4111-111111111111",
            "7111111111111112347",
            "5123456789002",
        ] {
            assert!(passes_luhn(text.as_bytes()), "{text}");
        }
    }

    /// K08
    #[test]
    fn the_identifiers_people_use_as_keys_are_no_personal_data() {
        for text in [
            "8e03978e-40d5-43dd-bc93-6894a57f9324", // UUID version 4
            "018f3a5c-7b1e-7c3d-9a4b-2f1e0d9c8b7a", // UUID version 7
            "41111111-1111-4111-8111-111111111111", // a UUID of digits only
            "41111111-1111-1111-a111-111111111111",
            "8e03978e40d543ddbc936894a57f9324",
            "01HX3Q2V9K7M4N8P6R5S1T0W2Y",  // ULID
            "2fYkXJ9qGZ1bT7wN5rC8dVhE3sL", // KSUID
            "order-123456",
            "1714564800",           // seconds
            "1714564800000",        // milliseconds
            "1714564800000000",     // microseconds
            "1714564800000000000",  // nanoseconds
            "00000000000000012345", // a counter of 20 digits
            "18446744073709551615",
            "1790000000000000001", // a snowflake
            "2024-05-01T12:00:00Z-000123",
            "20240501120000", // the same moment without its signs
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        ] {
            assert_eq!(looks_like(text), None, "{text}");
        }
    }
}
