//! How old a request may be that would run.
//!
//! A captured request is stopped by its key's record for as long as that is kept. Where the client says when it made the
//! request, in a header that its signature covers, an old one can be refused after that too. Verifying the signature is
//! somebody else's part.
//!
//! Three spellings: unix seconds (`1763350000`, a fraction may follow), RFC 3339 with any offset
//! (`2026-11-17T03:26:40Z`), and an HTTP-date (`Tue, 17 Nov 2026 03:26:40 GMT`).
//!
//! ```
//! use http::{HeaderMap, HeaderName, HeaderValue};
//! use onlyonce_core::age::{Untimely, judge};
//! use onlyonce_core::policy::Policy;
//! use onlyonce_core::time::Timestamp;
//! use std::time::Duration;
//!
//! let policy = Policy {
//!     request_time_header: Some(HeaderName::from_static("x-request-time")),
//!     request_age_max: Some(Duration::from_secs(300)),
//!     ..Policy::default()
//! };
//! let mut headers = HeaderMap::new();
//! assert!(matches!(judge(&headers, &policy, Timestamp::from_micros(0)), Err(Untimely::Missing { .. })));
//! headers.insert("x-request-time", HeaderValue::from_static("1763350000"));
//! let made_at = Timestamp::from_micros(1_763_350_000_000_000);
//! assert_eq!(judge(&headers, &policy, made_at), Ok(()));
//! assert!(matches!(judge(&headers, &policy, made_at.plus(Duration::from_secs(301))), Err(Untimely::Old { .. })));
//! ```

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName};

use crate::policy::{Policy, span};
use crate::time::Timestamp;

/// How far ahead of this node's clock a client's may be.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// Why a request is not young enough to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Untimely {
    /// It does not say when it was made.
    Missing {
        /// The header in which it would.
        header: HeaderName,
    },
    /// It says so more than once.
    Repeated {
        /// The header in which it does.
        header: HeaderName,
    },
    /// What it says is no time.
    Unreadable {
        /// The header in which it is.
        header: HeaderName,
    },
    /// It is older than allowed.
    Old {
        /// How old it may be.
        age_max: Duration,
    },
    /// It was made in the future.
    Ahead,
}

/// What the client is told; never what it sent.
impl fmt::Display for Untimely {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { header } => {
                write!(f, "The {header} header is missing; it says when the request was made.")
            }
            Self::Repeated { header } => {
                write!(f, "The {header} header is present more than once; send it once.")
            }
            Self::Unreadable { header } => write!(
                f,
                "The {header} header is not a time; send unix seconds, an RFC 3339 time or an HTTP-date."
            ),
            Self::Old { age_max } => {
                write!(f, "The request is older than {}, which is the maximum.", span(*age_max))
            }
            Self::Ahead => write!(
                f,
                "The request was made more than {} in the future; check the client's clock.",
                span(AHEAD_MAX)
            ),
        }
    }
}

/// Whether a request with these headers may run now, as far as its age goes. Judged where something would run: what is on
/// record is answered however old the request is.
///
/// # Errors
///
/// Where the policy asks for its time, and that is missing, twice there, unreadable, too long ago or ahead.
pub fn judge(headers: &HeaderMap, policy: &Policy, now: Timestamp) -> Result<(), Untimely> {
    let (Some(header), Some(age_max)) = (&policy.request_time_header, policy.request_age_max) else {
        return Ok(());
    };
    let mut values = headers.get_all(header).iter();
    let Some(value) = values.next() else { return Err(Untimely::Missing { header: header.clone() }) };
    if values.next().is_some() {
        return Err(Untimely::Repeated { header: header.clone() });
    }
    let made_at = value.to_str().ok().and_then(moment);
    let Some(made_at) = made_at else { return Err(Untimely::Unreadable { header: header.clone() }) };
    if made_at.plus(age_max) < now {
        return Err(Untimely::Old { age_max });
    }
    if now.plus(AHEAD_MAX) < made_at {
        return Err(Untimely::Ahead);
    }
    Ok(())
}

/// The moment that a text in one of the three spellings says.
fn moment(text: &str) -> Option<Timestamp> {
    let text = text.trim_matches([' ', '\t']);
    unix_seconds(text).or_else(|| rfc_3339(text)).or_else(|| http_date(text))
}

/// Enough for any moment that is not a mistake, and too few to overflow.
const UNIX_DIGITS_MAX: usize = 12;

/// `1763350000`, `1763350000.25`
fn unix_seconds(text: &str) -> Option<Timestamp> {
    let (seconds, fraction) = match text.split_once('.') {
        Some((seconds, fraction)) => (seconds, micros(fraction)?),
        None => (text, 0),
    };
    if seconds.len() > UNIX_DIGITS_MAX {
        return None;
    }
    Some(Timestamp::from_micros(number(seconds)? * 1_000_000 + fraction))
}

/// `2026-11-17T04:26:40.5+01:00`
fn rfc_3339(text: &str) -> Option<Timestamp> {
    let (date, rest) = text.split_at_checked(10)?;
    let date = Date { year: part(date, 0, 4)?, month: part(date, 5, 2)?, day: part(date, 8, 2)? };
    let separators = [text.as_bytes()[4], text.as_bytes()[7], *text.as_bytes().get(10)?];
    if separators[..2] != *b"--" || !matches!(separators[2], b'T' | b't' | b' ') {
        return None;
    }
    let (clock, rest) = rest.get(1..)?.split_at_checked(8)?;
    let (fraction, offset) = match rest.strip_prefix('.') {
        Some(rest) => {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            (micros(&rest[..digits])?, &rest[digits..])
        }
        None => (0, rest),
    };
    let seconds = date.seconds()? + time_of_day(clock)? - offset_seconds(offset)?;
    Some(Timestamp::from_micros(seconds * 1_000_000 + fraction))
}

/// `Z`, `+01:00`
fn offset_seconds(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (part(text, 1, 2)?, part(text, 4, 2)?);
    let is_whole = text.len() == 6 && text.as_bytes()[3] == b':' && hours <= 23 && minutes <= 59;
    is_whole.then_some(sign * (hours * 3600 + minutes * 60))
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Tue, 17 Nov 2026 03:26:40 GMT`
fn http_date(text: &str) -> Option<Timestamp> {
    let (day_name, rest) = text.split_once(", ")?;
    let mut parts = rest.split(' ');
    let [day, month, year, clock, zone] =
        [parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    if text.len() != 29 || zone != "GMT" || parts.next().is_some() {
        return None;
    }
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let date = Date { year: part(year, 0, 4)?, month: i64::try_from(month).ok()?, day: part(day, 0, 2)? };
    let midnight = date.seconds()?;
    // The epoch was a Thursday.
    let names_its_day = DAYS.iter().position(|name| *name == day_name).and_then(|at| i64::try_from(at).ok())
        == Some((midnight / DAY).rem_euclid(7));
    names_its_day.then_some(Timestamp::from_micros((midnight + time_of_day(clock)?) * 1_000_000))
}

const DAY: i64 = 24 * 3600;

/// `03:26:40`; a leap second is the one before it.
fn time_of_day(text: &str) -> Option<i64> {
    let (hours, minutes, seconds) = (part(text, 0, 2)?, part(text, 3, 2)?, part(text, 6, 2)?);
    let colons = text.len() == 8 && text.as_bytes()[2] == b':' && text.as_bytes()[5] == b':';
    let is_time = colons && hours <= 23 && minutes <= 59 && seconds <= 60;
    is_time.then_some(hours * 3600 + minutes * 60 + seconds.min(59))
}

struct Date {
    year: i64,
    month: i64,
    day: i64,
}

impl Date {
    /// Seconds from the epoch to its midnight, by the Gregorian calendar; none where there is no such day.
    fn seconds(&self) -> Option<i64> {
        let Self { year, month, day } = *self;
        let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let days = match month {
            1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
            4 | 6 | 9 | 11 => 30,
            2 if is_leap => 29,
            2 => 28,
            _ => return None,
        };
        if !(1..=days).contains(&day) {
            return None;
        }
        // Counted from March, a leap day is the last of its year.
        let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let before_year = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
        let before_month = (153 * month + 2) / 5;
        /// From the first of March of the year 0 to the epoch.
        const EPOCH: i64 = 719_468;
        Some((before_year + before_month + day - 1 - EPOCH) * DAY)
    }
}

/// The number of exactly `digits` digits at `from`.
fn part(text: &str, from: usize, digits: usize) -> Option<i64> {
    number(text.get(from..from + digits)?)
}

fn number(text: &str) -> Option<i64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// The digits after a point, in microseconds; finer ones are dropped.
fn micros(digits: &str) -> Option<i64> {
    const DIGITS_MAX: usize = 30;
    let is_fraction =
        (1..=DIGITS_MAX).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_fraction.then(|| number(&format!("{:0<6.6}", digits)))?
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_763_350_000_000_000);

    fn seconds(text: &str) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "moments of this century fit")]
        moment(text).map(|moment| moment.as_micros() as f64 / 1e6)
    }

    /// T06: three spellings say the same moment.
    #[test]
    fn a_time_is_unix_seconds_rfc_3339_or_an_http_date() {
        for text in [
            "1763350000",
            "1763350000.0",
            " 1763350000\t",
            "2025-11-17T03:26:40Z",
            "2025-11-17t03:26:40z",
            "2025-11-17 03:26:40.000Z",
            "2025-11-17T04:26:40+01:00",
            "2025-11-16T21:56:40-05:30",
            "Mon, 17 Nov 2025 03:26:40 GMT",
        ] {
            assert_eq!(moment(text), Some(NOW), "{text}");
        }
        assert_eq!(seconds("1763350000.25"), Some(1_763_350_000.25));
        assert_eq!(seconds("2025-11-17T03:26:40.250000999999Z"), Some(1_763_350_000.25));
        assert_eq!(seconds("2024-02-29T00:00:00Z"), Some(1_709_164_800.0));
        assert_eq!(seconds("2000-03-01T00:00:00Z"), Some(951_868_800.0));
        assert_eq!(seconds("1970-01-01T00:00:00Z"), Some(0.0));
        assert_eq!(seconds("2016-12-31T23:59:60Z"), Some(1_483_228_799.0));
    }

    /// T06: whatever else is sent is no time, and no panic.
    #[test]
    fn what_is_none_of_the_three_is_no_time() {
        for text in [
            "",
            "now",
            "-1",
            "+1763350000",
            "1763350000.",
            ".5",
            "1e9",
            "1763350000000000000000",
            "99999999999999999999999999999999",
            "2025-11-17",
            "2025-11-17T03:26:40",
            "2025-11-17T03:26Z",
            "2025-11-17T03:26:40+0100",
            "2025-11-17T03:26:40+1:00",
            "2025-11-17T03:26:40.Z",
            "2025-13-17T03:26:40Z",
            "2025-02-29T03:26:40Z",
            "2025-11-00T03:26:40Z",
            "2025-11-17T24:26:40Z",
            "2025-11-17T03:26:40Z[UTC]",
            "Tue, 17 Nov 2025 03:26:40 GMT",
            "Mon, 17 Nov 2025 03:26:40 UTC",
            "Mon, 17 Nov 2025 03:26:40 +0000",
            "Monday, 17-Nov-25 03:26:40 GMT",
            "Mon Nov 17 03:26:40 2025",
            "ä025-11-17T03:26:40Z",
            "2025-11-17Tä3:26:40Z",
        ] {
            assert_eq!(moment(text), None, "{text}");
        }
    }

    fn policy() -> Policy {
        Policy {
            request_time_header: Some(HeaderName::from_static("x-request-time")),
            request_age_max: Some(Duration::from_secs(300)),
            ..Policy::default()
        }
    }

    fn judged(values: &[&str]) -> Result<(), Untimely> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("x-request-time", HeaderValue::from_str(value).expect("a header's value"));
        }
        judge(&headers, &policy(), NOW)
    }

    /// T06: the bounds are allowed, what is beyond them is not.
    #[test]
    fn a_request_may_be_as_old_as_the_policy_says_and_a_minute_ahead() {
        assert_eq!(judged(&["1763350000"]), Ok(()));
        assert_eq!(judged(&["1763349700"]), Ok(()));
        assert_eq!(judged(&["1763349699.999999"]), Err(Untimely::Old { age_max: Duration::from_secs(300) }));
        assert_eq!(judged(&["1763350060"]), Ok(()));
        assert_eq!(judged(&["1763350060.000001"]), Err(Untimely::Ahead));
        assert_eq!(judged(&["0"]), Err(Untimely::Old { age_max: Duration::from_secs(300) }));
    }

    /// T06: the client is told which, and never what it sent.
    #[test]
    fn a_missing_a_repeated_and_an_unreadable_time_are_told_apart() {
        let header = HeaderName::from_static("x-request-time");
        assert_eq!(judged(&[]), Err(Untimely::Missing { header: header.clone() }));
        let twice = Err(Untimely::Repeated { header: header.clone() });
        assert_eq!(judged(&["1763350000", "1763350000"]), twice);
        let unreadable = judged(&["yesterday"]);
        assert_eq!(unreadable, Err(Untimely::Unreadable { header }));
        assert!(!unreadable.unwrap_err().to_string().contains("yesterday"));
        assert_eq!(judge(&HeaderMap::new(), &Policy::default(), NOW), Ok(()));
    }

    /// T06: one setting without the other is a fault.
    #[test]
    fn the_header_and_the_age_are_set_together() {
        assert_eq!(policy().check(), Ok(()));
        for (policy, path) in [
            (Policy { request_age_max: None, ..policy() }, "policy.request_time_header"),
            (Policy { request_time_header: None, ..policy() }, "policy.request_age_max"),
            (Policy { request_age_max: Some(Duration::ZERO), ..policy() }, "policy.request_age_max"),
        ] {
            let faults = policy.check().unwrap_err();
            assert_eq!(faults.0.iter().map(|fault| fault.path).collect::<Vec<_>>(), [path]);
        }
    }
}
