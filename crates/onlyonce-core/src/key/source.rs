//! Where a key stands in a request.
//!
//! `policy.key_from` lists the places. Every place that holds a key is read, and all of them must agree: of two that differ nobody
//! can say which one the client will retry with.
//!
//! 1. `header:NAME` and `query:NAME` count once. Two lines or two parameters are no key, also where they agree.
//! 2. `json:/pointer` is one string of the body. Another value, and a name that is used twice on the way to it, are no key.
//! 3. A body is read as JSON whatever its content type says, since services do that too. One that says that it is JSON and is none
//!    is refused: a lenient parser behind might find a key in it.
//! 4. [`Syntax`](super::Syntax) is about headers. In a query or a body the key has printable ASCII, and is not trimmed.

use std::fmt;
use std::str::FromStr;

use http::{HeaderMap, HeaderName};

use super::{Invalid, Parsed, Rules};
use crate::fingerprint::{MalformedPointer, Pointer, media};
use crate::json::{self, Place};
use crate::percent::{self, Piece};

/// A place that a key may stand in.
///
/// ```
/// use onlyonce_core::key::Source;
///
/// let source: Source = "json:/idempotency_key".parse()?;
/// assert_eq!(source.to_string(), "json:/idempotency_key");
/// assert!("json:idempotency_key".parse::<Source>().is_err());
/// # Ok::<(), onlyonce_core::key::MalformedSource>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// `header:NAME`
    Header(HeaderName),
    /// `json:/pointer`: one string of a JSON body.
    Json(Pointer),
    /// `query:NAME`: a parameter of the query.
    Query(Box<str>),
}

impl Source {
    /// The key in these headers or this query; none where it is not there, and for a source in the body.
    ///
    /// # Errors
    ///
    /// What is there is no valid key.
    pub fn in_head(
        &self,
        rules: &Rules,
        headers: &HeaderMap,
        query: Option<&str>,
    ) -> Result<Option<Parsed>, Invalid> {
        match self {
            Self::Header(name) => rules.parse(headers.get_all(name)),
            Self::Query(name) => match parameter(query.unwrap_or_default(), name)? {
                Some(text) => rules.parse_text(&text).map(Some),
                None => Ok(None),
            },
            Self::Json(_) => Ok(None),
        }
    }

    /// The key in this body; none where it is not there, and for a source in the head.
    ///
    /// # Errors
    ///
    /// What is there is no valid key, or the body says that it is JSON and is none.
    pub fn in_body(
        &self,
        rules: &Rules,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Option<Parsed>, Invalid> {
        let Self::Json(pointer) = self else { return Ok(None) };
        if body.is_empty() {
            return Ok(None);
        }
        match json::find(body, pointer) {
            Ok(Place::Missing) => Ok(None),
            Ok(Place::Twice) => Err(Invalid::MemberTwice),
            Ok(Place::Once(at)) if body[at.start] != b'"' => Err(Invalid::MemberNotAString),
            Ok(Place::Once(at)) => {
                let text = json::string(&body[at]).ok_or(Invalid::Character)?;
                rules.parse_text(&text).map(Some)
            }
            Err(_) if media::says_json(headers) => Err(Invalid::BodyNotJson),
            Err(_) => Ok(None),
        }
    }
}

/// The one key of two places.
///
/// # Errors
///
/// [`Invalid::Differs`] where there are two.
pub fn agreed(one: Option<Parsed>, other: Option<Parsed>) -> Result<Option<Parsed>, Invalid> {
    match (one, other) {
        (Some(one), Some(other)) if one.key != other.key => Err(Invalid::Differs),
        (one, other) => Ok(one.or(other)),
    }
}

/// The value of the query's parameter of that name, decoded as a form's is.
fn parameter(query: &str, name: &str) -> Result<Option<String>, Invalid> {
    let mut found = None;
    for pair in query.split('&') {
        let (own, value) = pair.split_once('=').unwrap_or((pair, ""));
        // A name that cannot be read is not this one: this one can.
        if decoded(own).as_deref() != Some(name) {
            continue;
        }
        let value = decoded(value).ok_or(Invalid::Character)?;
        if found.replace(value).is_some() {
            return Err(Invalid::SeveralParameters);
        }
    }
    Ok(found)
}

/// Percent-decoded, with `+` for a space; none where that is not text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    for piece in percent::pieces(text.as_bytes()) {
        bytes.push(match piece {
            Piece::Plain(b'+') => b' ',
            Piece::Plain(byte) | Piece::Escaped(byte) => byte,
            Piece::Malformed => return None,
        });
    }
    String::from_utf8(bytes).ok()
}

impl FromStr for Source {
    type Err = MalformedSource;

    fn from_str(text: &str) -> Result<Self, MalformedSource> {
        let malformed = |fault| MalformedSource { text: text.into(), fault };
        let (kind, name) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "header" => name.parse().map(Self::Header).map_err(|_| malformed(Fault::Header)),
            "json" => name.parse().map(Self::Json).map_err(|error| malformed(Fault::Pointer(error))),
            "query" if name.is_empty() => Err(malformed(Fault::Query)),
            "query" => Ok(Self::Query(name.into())),
            _ => Err(malformed(Fault::Kind)),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::Query(name) => write!(f, "query:{name}"),
        }
    }
}

/// The text names no place of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedSource {
    text: Box<str>,
    fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    Kind,
    Header,
    Query,
    Pointer(MalformedPointer),
}

impl fmt::Display for MalformedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match &self.fault {
            Fault::Kind => {
                write!(f, "{text:?} is not a place of a key; write header:NAME, json:/POINTER or query:NAME")
            }
            Fault::Header => {
                write!(f, "{text:?} has no header name; write it like header:Idempotency-Key")
            }
            Fault::Query => write!(f, "{text:?} has no parameter name; write it like query:request_id"),
            Fault::Pointer(error) => write!(f, "{text:?} has no JSON Pointer: {error}"),
        }
    }
}

impl std::error::Error for MalformedSource {}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::CONTENT_TYPE;

    use super::*;

    fn source(text: &str) -> Source {
        text.parse().unwrap()
    }

    fn key_in(body: &str, content_type: &'static str) -> Result<Option<String>, Invalid> {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let found = source("json:/id").in_body(&Rules::default(), &headers, body.as_bytes());
        found.map(|parsed| parsed.map(|parsed| parsed.key.as_str().to_owned()))
    }

    /// K01
    #[test]
    fn a_key_in_a_body_is_one_string() {
        let key = |text: &str| key_in(text, "application/json");
        assert_eq!(key(r#"{"id":"a b,\u0063"}"#), Ok(Some("a b,c".to_owned())));
        for body in ["", "{}", "[]", r#"{"x":{"id":"a"}}"#] {
            assert_eq!(key(body), Ok(None), "{body}");
        }
        for value in ["1", "null", "true", "{}", r#"["a"]"#] {
            assert_eq!(key(&format!(r#"{{"id":{value}}}"#)), Err(Invalid::MemberNotAString), "{value}");
        }
        assert_eq!(key(r#"{"id":"a","id":"a"}"#), Err(Invalid::MemberTwice));
        assert_eq!(key(r#"{"id":""}"#), Err(Invalid::Empty));
        for value in ["é", "\\u0000", "\\ud800", "\\u007f"] {
            assert_eq!(key(&format!(r#"{{"id":"{value}"}}"#)), Err(Invalid::Character), "{value}");
        }
        let long = format!(r#"{{"id":"{}"}}"#, "a".repeat(256));
        assert_eq!(key(&long), Err(Invalid::TooLong { chars_max: 255 }));
    }

    /// K01, K05
    #[test]
    fn a_body_is_read_whatever_its_content_type_says_and_refused_where_it_says_json_in_vain() {
        for content_type in ["text/plain", "application/json; charset=utf-16", "application/vnd.api+json", ""]
        {
            assert_eq!(key_in(r#"{"id":"a"}"#, content_type), Ok(Some("a".to_owned())), "{content_type}");
        }
        assert_eq!(key_in("id=a", "application/x-www-form-urlencoded"), Ok(None));
        for content_type in ["application/json", "Application/JSON;x", "application/problem+json"] {
            assert_eq!(key_in("id=a", content_type), Err(Invalid::BodyNotJson), "{content_type}");
        }
    }

    /// K01
    #[test]
    fn a_key_in_a_query_is_one_parameter() {
        let key = |query: &str| {
            let found = source("query:request_id").in_head(&Rules::default(), &HeaderMap::new(), Some(query));
            found.map(|parsed| parsed.map(|parsed| parsed.key.as_str().to_owned()))
        };
        for query in ["request_id=a-1", "x=1&request_id=a%2D1&y", "%72equest_id=a-1"] {
            assert_eq!(key(query), Ok(Some("a-1".to_owned())), "{query}");
        }
        for query in ["", "request_ids=a", "requestid=a", "x=request_id"] {
            assert_eq!(key(query), Ok(None), "{query}");
        }
        assert_eq!(key("request_id=a&request_id=a"), Err(Invalid::SeveralParameters));
        assert_eq!(key("request_id"), Err(Invalid::Empty));
        for query in ["request_id=%", "request_id=%ff", "request_id=%C3%A9", "request_id=a%00"] {
            assert_eq!(key(query), Err(Invalid::Character), "{query}");
        }
    }

    /// K01
    #[test]
    fn keys_of_two_places_are_one_key_or_none() {
        let key = |text: &str| Rules::default().parse([text]).unwrap();
        assert_eq!(agreed(key("\"a\""), key("a")), Ok(key("a")));
        assert_eq!(agreed(None, key("a")), Ok(key("a")));
        assert_eq!(agreed(key("a"), None), Ok(key("a")));
        assert_eq!(agreed(None, None), Ok(None));
        assert_eq!(agreed(key("a"), key("b")), Err(Invalid::Differs));
    }

    #[test]
    fn a_malformed_source_is_refused_with_the_remedy() {
        for (text, told) in [
            ("", "write header:NAME, json:/POINTER or query:NAME"),
            ("Idempotency-Key", "write header:NAME"),
            ("body:/id", "write header:NAME"),
            ("header:", "has no header name"),
            ("header:a b", "has no header name"),
            ("query:", "has no parameter name"),
            ("json:id", "does not start with a slash; write \"/id\""),
            ("json:", "means the whole body"),
            ("json:/a~b", "lone tilde"),
        ] {
            let error = text.parse::<Source>().unwrap_err().to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
        for text in ["header:x-key", "json:/a/0/b~1c", "query:request_id"] {
            assert_eq!(source(text).to_string(), text);
        }
    }
}
