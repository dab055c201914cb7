//! Parameters of a query: which there are, what they take, and everything that is wrong with those that came.
//!
//! A parameter that is not known is a fault, and so is one that comes twice: a filter that is silently dropped shows, and
//! then forgets, too much.

use std::collections::BTreeMap;
use std::sync::Arc;

use onlyonce::percent::{self, Piece};
use onlyonce::time::Timestamp;
use serde_json::{Value as Json, json};

/// The longest reason, in characters.
pub(super) const REASON_CHARS_MAX: usize = 1_000;
/// How many items a page may have.
pub(super) const LIMIT_MAX: usize = 500;
/// How many it has, unless somebody asks for another number.
pub(super) const LIMIT_DEFAULT: usize = 50;

/// A parameter of an endpoint's query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What it does, for people.
    pub(super) says: &'static str,
}

/// What a parameter takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// How many items a page has.
    Limit,
    /// 64 hex digits.
    Scope,
    /// A text of up to so many characters.
    Text(usize),
    /// RFC 3339.
    Moment,
    /// Why a change is made; it cannot be left out.
    Reason,
}

/// What is wrong with a part of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Where: `query.limit`, `path.scope`, `header.if-match`, `body.response.status`.
    pub(crate) path: String,
    /// What, and what to do.
    pub(crate) detail: String,
    /// It is about the reason of a change, which has a code of its own.
    pub(crate) is_reason: bool,
}

impl Fault {
    pub(super) fn new(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), detail: detail.into(), is_reason: false }
    }

    fn of_reason(path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { is_reason: true, ..Self::new(path, detail) }
    }
}

/// A parameter that came.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Word(&'static str),
    Flag(bool),
    Limit(usize),
    Scope([u8; 32]),
    Text(Arc<str>),
    Moment(Timestamp),
}

/// The parameters of a query.
#[derive(Debug, Default)]
pub(super) struct Parameters(BTreeMap<&'static str, Value>);

impl Parameters {
    /// Those of this query that are known, and everything that is wrong with it.
    pub(super) fn read(known: &[Parameter], query: &str, faults: &mut Vec<Fault>) -> Self {
        let mut came = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, text) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = decoded(name, Plus::Space) else {
                faults.push(Fault::new("query", format!("\"{name}\" is not percent-encoded UTF-8")));
                continue;
            };
            let path = format!("query.{name}");
            let Some(parameter) = known.iter().find(|parameter| parameter.name == name) else {
                faults.push(Fault::new(path, unknown(&name, known.iter().map(|parameter| parameter.name))));
                continue;
            };
            let value = match decoded(text, Plus::Space) {
                Some(text) => parameter.kind.read(&text, &path),
                None => Err(Fault::new(&path, format!("\"{text}\" is not percent-encoded UTF-8"))),
            };
            match value {
                Ok(value) if !came.contains_key(parameter.name) => {
                    came.insert(parameter.name, value);
                }
                Ok(_) => faults.push(Fault::new(path, "is present twice; give it once")),
                Err(fault) => faults.push(fault),
            }
        }
        for parameter in known {
            let is_told = faults.iter().any(|fault| fault.path == format!("query.{}", parameter.name));
            if matches!(parameter.kind, Kind::Reason) && !came.contains_key(parameter.name) && !is_told {
                faults.push(Fault::of_reason("query.reason", "is missing; give a reason for the audit log"));
            }
        }
        Self(came)
    }

    pub(super) fn word(&self, name: &str) -> Option<&'static str> {
        match self.0.get(name)? {
            Value::Word(word) => Some(word),
            Value::Flag(_) | Value::Limit(_) | Value::Scope(_) | Value::Text(_) | Value::Moment(_) => None,
        }
    }

    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        match self.0.get(name)? {
            Value::Flag(flag) => Some(*flag),
            Value::Word(_) | Value::Limit(_) | Value::Scope(_) | Value::Text(_) | Value::Moment(_) => None,
        }
    }

    pub(super) fn limit(&self) -> usize {
        match self.0.get("limit") {
            Some(Value::Limit(limit)) => *limit,
            Some(Value::Word(_) | Value::Flag(_) | Value::Scope(_) | Value::Text(_) | Value::Moment(_))
            | None => LIMIT_DEFAULT,
        }
    }

    pub(super) fn scope(&self) -> Option<[u8; 32]> {
        match self.0.get("scope")? {
            Value::Scope(scope) => Some(*scope),
            Value::Word(_) | Value::Flag(_) | Value::Limit(_) | Value::Text(_) | Value::Moment(_) => None,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<Arc<str>> {
        match self.0.get(name)? {
            Value::Text(text) => Some(text.clone()),
            Value::Word(_) | Value::Flag(_) | Value::Limit(_) | Value::Scope(_) | Value::Moment(_) => None,
        }
    }

    pub(super) fn moment(&self, name: &str) -> Option<Timestamp> {
        match self.0.get(name)? {
            Value::Moment(moment) => Some(*moment),
            Value::Word(_) | Value::Flag(_) | Value::Limit(_) | Value::Scope(_) | Value::Text(_) => None,
        }
    }

    /// What was asked for, apart from where a page begins and how long it is: two listings with the same text are the same
    /// listing.
    pub(super) fn filters(&self) -> String {
        let filters = self.0.iter().filter(|(name, _)| !matches!(**name, "cursor" | "limit"));
        filters.map(|(name, value)| format!("{name}={value:?}\n")).collect()
    }
}

impl Kind {
    fn read(self, text: &str, path: &str) -> Result<Value, Fault> {
        let fault = |detail: String| Fault::new(path, detail);
        match self {
            Self::Word(words) => {
                let word = words.iter().find(|word| **word == text);
                word.map(|word| Value::Word(word)).ok_or_else(|| fault(no_word(text, words)))
            }
            Self::Flag => match text {
                "true" => Ok(Value::Flag(true)),
                "false" => Ok(Value::Flag(false)),
                _ => Err(fault(no_word(text, &["true", "false"]))),
            },
            Self::Limit => {
                let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                limit
                    .map(Value::Limit)
                    .ok_or_else(|| fault(format!("\"{text}\" is not a number from 1 to {LIMIT_MAX}")))
            }
            Self::Scope => scope(text).map(Value::Scope).ok_or_else(|| fault(no_scope(text))),
            Self::Text(chars_max) => {
                let chars = text.chars().count();
                match chars {
                    0 => Err(fault("is empty; leave it out".to_owned())),
                    _ if chars > chars_max => {
                        Err(fault(format!("has {chars} characters; at most {chars_max} are allowed")))
                    }
                    _ => Ok(Value::Text(text.into())),
                }
            }
            Self::Moment => moment(text).map(Value::Moment).ok_or_else(|| {
                fault(format!("\"{text}\" is not a time; write it like 2026-11-17T02:03:04Z"))
            }),
            Self::Reason => reason(text, path).map(Value::Text),
        }
    }

    /// What it takes, as OpenAPI says it.
    pub(super) fn schema(self) -> Json {
        match self {
            Self::Word(words) => json!({ "type": "string", "enum": words }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::Limit => {
                json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT })
            }
            Self::Scope => json!({ "type": "string", "pattern": "^[0-9a-fA-F]{64}$" }),
            Self::Text(chars_max) => json!({ "type": "string", "minLength": 1, "maxLength": chars_max }),
            Self::Moment => json!({ "type": "string", "format": "date-time" }),
            Self::Reason => json!({ "type": "string", "minLength": 1, "maxLength": REASON_CHARS_MAX }),
        }
    }
}

/// A reason that says something.
pub(super) fn reason(text: &str, path: &str) -> Result<Arc<str>, Fault> {
    let chars = text.chars().count();
    if text.trim().is_empty() {
        return Err(Fault::of_reason(path, "is empty; give a reason for the audit log"));
    }
    if chars > REASON_CHARS_MAX {
        return Err(Fault::of_reason(
            path,
            format!("has {chars} characters; use at most {REASON_CHARS_MAX}"),
        ));
    }
    Ok(text.into())
}

/// A change whose reason is missing altogether.
pub(super) fn no_reason(path: &str) -> Fault {
    Fault::of_reason(path, "is missing; give a reason for the audit log")
}

/// The digest of a scope in hex, in either case.
pub(super) fn scope(text: &str) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text
        .chars()
        .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] * 16 + pair[1]).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

pub(super) fn no_scope(text: &str) -> String {
    format!("\"{text}\" is not a scope; write its 64 hex digits, as in Onlyonce-Scope")
}

fn moment(text: &str) -> Option<Timestamp> {
    let moment: jiff::Timestamp = text.parse().ok()?;
    Some(Timestamp::from_micros(moment.as_microsecond()))
}

fn no_word(text: &str, words: &[&str]) -> String {
    format!("\"{text}\" is none of {}", words.join(", "))
}

/// Says that a name is not known, and which are.
pub(super) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.collect();
    match known.is_empty() {
        true => format!("\"{name}\" is unknown; there are no parameters here"),
        false => format!("\"{name}\" is unknown; use {}", known.join(", ")),
    }
}

/// What a plus stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Plus {
    /// In a query: a space.
    Space,
    /// In a path: itself.
    Itself,
}

/// The text that was percent-encoded; none where an escape is malformed or it is no UTF-8.
pub(super) fn decoded(text: &str, plus: Plus) -> Option<String> {
    let bytes: Option<Vec<u8>> = percent::pieces(text.as_bytes())
        .map(|piece| match piece {
            Piece::Plain(b'+') if plus == Plus::Space => Some(b' '),
            Piece::Plain(byte) | Piece::Escaped(byte) => Some(byte),
            Piece::Malformed => None,
        })
        .collect();
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[Parameter] = &[
        Parameter { name: "state", kind: Kind::Word(&["unknown", "running"]), says: "" },
        Parameter { name: "force", kind: Kind::Flag, says: "" },
        Parameter { name: "limit", kind: Kind::Limit, says: "" },
        Parameter { name: "scope", kind: Kind::Scope, says: "" },
        Parameter { name: "q", kind: Kind::Text(5), says: "" },
        Parameter { name: "after", kind: Kind::Moment, says: "" },
    ];

    fn faults(query: &str) -> Vec<String> {
        let mut faults = Vec::new();
        Parameters::read(KNOWN, query, &mut faults);
        faults.into_iter().map(|fault| fault.path).collect()
    }

    #[test]
    fn what_is_understood_is_read() {
        let mut faults = Vec::new();
        let scope = "Ab".repeat(32);
        let query = format!(
            "state=unknown&force=true&limit=500&scope={scope}&q=%C3%A4+b%2B&after=2026-11-17T02:03:04.5Z&"
        );
        let read = Parameters::read(KNOWN, &query, &mut faults);
        assert_eq!(faults, []);
        assert_eq!(
            (read.word("state"), read.flag("force"), read.limit()),
            (Some("unknown"), Some(true), 500)
        );
        assert_eq!((read.scope(), read.text("q").as_deref()), (Some([0xab; 32]), Some("ä b+")));
        assert_eq!(read.moment("after"), Some(Timestamp::from_micros(1_794_880_984_500_000)));
        assert_eq!(Parameters::read(KNOWN, "", &mut faults).limit(), LIMIT_DEFAULT);
    }

    /// O06
    #[test]
    fn everything_that_is_not_understood_is_told() {
        for query in [
            "state=",
            "state",
            "state=Unknown",
            "force=1",
            "limit=0",
            "limit=501",
            "limit=-1",
            "limit=x",
            "scope=ab",
            "q=",
            "q=123456",
            "q=%",
            "q=%ff",
            "after=yesterday",
            "after=2026-11-17",
            "state=unknown&state=unknown",
        ] {
            let name = query.split('=').next().unwrap_or_default();
            assert_eq!(faults(query), [format!("query.{name}")], "{query}");
        }
        assert_eq!(faults("sate=unknown&limit=0&=x"), ["query.sate", "query.limit", "query."]);
        assert_eq!(faults("%ff=1"), ["query"]);
    }

    #[test]
    fn a_listing_is_told_by_its_filters_and_not_by_its_page() {
        let filters = |query: &str| Parameters::read(KNOWN, query, &mut Vec::new()).filters();
        assert_eq!(filters("state=unknown&q=a"), filters("q=a&limit=5&state=unknown"));
        assert_ne!(filters("state=unknown&q=a"), filters("state=running&q=a"));
        assert_ne!(filters("q=a"), filters(""));
    }
}
