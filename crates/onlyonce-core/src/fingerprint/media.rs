//! What the content type says about a body.

use http::{HeaderMap, header};

/// How a body is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Media<'a> {
    Json,
    Form,
    Multipart {
        boundary: &'a [u8],
    },
    /// By its bytes.
    Other,
}

impl<'a> Media<'a> {
    /// What the headers say; by its bytes where they leave any doubt.
    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        Self::told(headers).unwrap_or(Self::Other)
    }

    fn told(headers: &'a HeaderMap) -> Option<Self> {
        // What looks like a form may be the compressed bytes of one, and those have only one spelling.
        if headers.contains_key(header::CONTENT_ENCODING) {
            return None;
        }
        let mut values = headers.get_all(header::CONTENT_TYPE).iter();
        let value = values.next()?.as_bytes();
        if values.next().is_some() {
            return None;
        }
        let kind = Kind::of(essence(value))?;
        let mut boundary = None;
        for parameter in parameters(value) {
            let (name, value) = parameter?;
            if name.eq_ignore_ascii_case(b"charset") && !is_utf8(value) {
                return None;
            }
            if name.eq_ignore_ascii_case(b"boundary") && boundary.replace(value).is_some() {
                return None;
            }
        }
        Some(match kind {
            Kind::Json => Self::Json,
            Kind::Form => Self::Form,
            Kind::Multipart => Self::Multipart { boundary: boundary? },
        })
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Json,
    Form,
    Multipart,
}

impl Kind {
    fn of(essence: &[u8]) -> Option<Self> {
        let suffix = essence.len().checked_sub(b"+json".len()).map(|at| &essence[at..]);
        if essence.eq_ignore_ascii_case(b"application/json")
            || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case(b"+json"))
        {
            Some(Self::Json)
        } else if essence.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") {
            Some(Self::Form)
        } else if essence.eq_ignore_ascii_case(b"multipart/form-data") {
            Some(Self::Multipart)
        } else {
            None
        }
    }
}

/// Whether any content type says that the body is JSON, whatever else is said of it.
pub(crate) fn says_json(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    values.any(|value| matches!(Kind::of(essence(value.as_bytes())), Some(Kind::Json)))
}

/// Type and subtype of a content type, as they were spelled.
pub(super) fn essence(value: &[u8]) -> &[u8] {
    let end = value.iter().position(|&byte| byte == b';').unwrap_or(value.len());
    value[..end].trim_ascii()
}

/// The parameters after the first `;` of a header's value: name and value, the latter without its quotes and
/// otherwise as it was spelled. A parameter that cannot be read is none.
pub(super) fn parameters(value: &[u8]) -> impl Iterator<Item = Option<(&[u8], &[u8])>> {
    let start = value.iter().position(|&byte| byte == b';').unwrap_or(value.len());
    let mut rest = &value[start..];
    std::iter::from_fn(move || {
        // Clients do end a content type in a semicolon; that is no parameter.
        while let [b';' | b' ' | b'\t', tail @ ..] = rest {
            rest = tail;
        }
        if rest.is_empty() {
            return None;
        }
        match parameter(rest) {
            Some((name, value, tail)) => {
                rest = tail;
                Some(Some((name, value)))
            }
            None => {
                rest = &[];
                Some(None)
            }
        }
    })
}

type Parameter<'a> = (&'a [u8], &'a [u8], &'a [u8]);

/// A parameter's name and value, and what comes after it: nothing, or a `;`.
fn parameter(text: &[u8]) -> Option<Parameter<'_>> {
    let equals = text.iter().position(|&byte| byte == b'=')?;
    let name = &text[..equals];
    let (value, rest) = match &text[equals + 1..] {
        [b'"', quoted @ ..] => {
            let end = closing_quote(quoted)?;
            (&quoted[..end], &quoted[end + 1..])
        }
        token => token.split_at(token.iter().position(|byte| b"; \t".contains(byte)).unwrap_or(token.len())),
    };
    let rest = rest.trim_ascii_start();
    let ends = matches!(rest, [] | [b';', ..]);
    (is_token(name) && ends).then_some((name, value, rest))
}

/// Where the quoted string ends; a quote after a backslash does not end it.
fn closing_quote(quoted: &[u8]) -> Option<usize> {
    let mut escaped = false;
    quoted.iter().position(|&byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

pub(super) fn is_token(name: &[u8]) -> bool {
    !name.is_empty()
        && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

fn is_utf8(charset: &[u8]) -> bool {
    charset.eq_ignore_ascii_case(b"utf-8") || charset.eq_ignore_ascii_case(b"utf8")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (header::CONTENT_TYPE, HeaderValue::from_str(value).unwrap())).collect()
    }

    /// F02
    #[test]
    fn json_is_known_by_its_name_or_suffix() {
        for value in [
            "application/json",
            "Application/JSON",
            "application/problem+json",
            "application/merge-patch+JSON ; charset=UTF-8",
            "application/json;charset=\"utf-8\"",
            "application/json;",
            "application/json; profile=\"a;b=\\\"c\"; charset=utf8",
        ] {
            assert_eq!(Media::of(&headers(&[value])), Media::Json, "{value}");
        }
    }

    /// F03
    #[test]
    fn what_leaves_doubt_is_read_by_its_bytes() {
        for values in [
            &["text/plain"][..],
            &[""],
            &[],
            &["application/json", "application/json"],
            &["application/json; charset=latin1"],
            &["application/json; charset=utf-8; charset=utf-16"],
            &["application/json; charset"],
            &["application/json; a=\"b"],
            &["application/json, text/plain"],
            &["application/json-seq"],
            &["+json/x"],
            &["multipart/form-data"],
            &["multipart/form-data; boundary=a; boundary=b"],
            &["multipart/mixed; boundary=a"],
        ] {
            assert_eq!(Media::of(&headers(values)), Media::Other, "{values:?}");
        }
        let mut compressed = headers(&["application/json"]);
        compressed.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        assert_eq!(Media::of(&compressed), Media::Other);
    }

    /// F03
    #[test]
    fn a_boundary_is_read_quoted_or_not() {
        for value in [
            "multipart/form-data; boundary=a-b_1",
            "Multipart/Form-Data;BOUNDARY=\"a-b_1\"",
            "multipart/form-data; charset=utf-8; boundary=a-b_1",
        ] {
            assert_eq!(Media::of(&headers(&[value])), Media::Multipart { boundary: b"a-b_1" }, "{value}");
        }
    }
}
