//! `match` of a route, read: `POST /payments/*`.

use std::fmt;

use http::Method;
use onlyonce::percent::{self, Piece};

use super::tree::Node;
use super::value::{Read, text, wrong};
use super::{Pattern, Segment};

/// A method or none, and a path that is already as normalised paths of requests are.
pub(super) fn read(node: &Node) -> Read<Pattern> {
    let text = text(node)?;
    let told = |remedy: &str| wrong(&text, remedy);
    let mut words = text.split_ascii_whitespace();
    let (method, path) = match (words.next(), words.next(), words.next()) {
        (Some(path), None, _) => (None, path),
        (Some(method), Some(path), None) => (Some(method), path),
        _ => return told("is not a method and path; write it like \"POST /payments/*\""),
    };
    let method = match method {
        None | Some("*") => None,
        Some(name) if name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') => {
            match name.parse::<Method>() {
                Ok(method) => Some(method),
                Err(_) => return told("does not begin with a method; write it like \"POST /payments/*\""),
            }
        }
        Some(_) => {
            return told("does not begin with a method in capitals; write it like \"POST /payments/*\"");
        }
    };
    let Some(path) = path.strip_prefix('/') else {
        return told("has a path that does not begin with a slash; write it like \"POST /payments/*\"");
    };
    if path.contains(['?', '#']) {
        return told("has a query or a fragment, but routes match only the path; remove it");
    }
    let mut segments = Vec::new();
    let mut rest = path.split('/').peekable();
    while let Some(segment) = rest.next() {
        segments.push(match segment {
            "**" if rest.peek().is_none() => Segment::Rest,
            "**" => return told("has ** before its end; ** matches the rest of the path"),
            "*" => Segment::One,
            starred if starred.contains('*') => {
                return told(
                    "has a star inside a segment; * matches a whole segment, ** at the end the rest",
                );
            }
            "." | ".." => {
                return told("has a dot segment, which is removed from every request's path; write the path without it");
            }
            text => match normalised(text) {
                Ok(text) => Segment::Text(text),
                Err(remedy) => return told(remedy),
            },
        });
    }
    Ok(Pattern { method, segments })
}

/// RFC 3986: what needs no escape has none, and escapes are in capitals.
fn normalised(segment: &str) -> Result<String, &'static str> {
    let mut text = String::with_capacity(segment.len());
    for piece in percent::pieces(segment.as_bytes()) {
        match piece {
            Piece::Plain(byte) if is_path(byte) => text.push(char::from(byte)),
            Piece::Plain(_) => {
                return Err("has a character that must be percent-encoded; write it like %20");
            }
            Piece::Escaped(byte) if percent::is_unreserved(byte) => text.push(char::from(byte)),
            Piece::Escaped(byte) => text.push_str(&format!("%{byte:02X}")),
            Piece::Malformed => {
                return Err("has a % without two hex digits behind it; write %25 for the character itself");
            }
        }
    }
    if matches!(&*text, "." | "..") {
        return Err(
            "has a dot segment, which is removed from every request's path; write the path without it",
        );
    }
    Ok(text)
}

fn is_path(byte: u8) -> bool {
    percent::is_unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte)
}

impl Pattern {
    /// Whether every request that `other` matches is matched by this one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let has_method = self.method.is_none() || self.method == other.method;
        has_method && covers(&self.segments, &other.segments)
    }
}

fn covers(wide: &[Segment], narrow: &[Segment]) -> bool {
    match (wide, narrow) {
        ([Segment::Rest], _) | ([], []) => true,
        ([Segment::One, wide @ ..], [Segment::Text(text), narrow @ ..]) => {
            !text.is_empty() && covers(wide, narrow)
        }
        ([Segment::One, wide @ ..], [Segment::One, narrow @ ..]) => covers(wide, narrow),
        ([Segment::Text(one), wide @ ..], [Segment::Text(two), narrow @ ..]) => {
            one == two && covers(wide, narrow)
        }
        _ => false,
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = &self.method {
            write!(f, "{method} ")?;
        }
        self.segments.iter().try_for_each(|segment| match segment {
            Segment::Text(text) => write!(f, "/{text}"),
            Segment::One => f.write_str("/*"),
            Segment::Rest => f.write_str("/**"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::Place;
    use super::*;

    fn pattern(text: &str) -> Read<Pattern> {
        read(&Node::text(text, Place::Set))
    }

    #[test]
    fn patterns_are_read_as_normalised_paths() {
        for (text, shown) in [
            ("POST /payments/*", "POST /payments/*"),
            ("/a/**", "/a/**"),
            ("* /a", "/a"),
            ("/", "/"),
            ("PUT  /a//b/", "PUT /a//b/"),
            ("/%41%2f%7e", "/A%2F~"),
        ] {
            assert_eq!(pattern(text).unwrap().to_string(), shown, "{text}");
        }
        for text in [
            "", "POST", "post /a", "POST a", "/a*", "/**/a", "/a?b", "/a/../b", "/%2e%2E", "/%4", "/%+4",
            "/ä", "a b c", "/%é",
        ] {
            assert!(pattern(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_never_matches_is_seen() {
        let covers = |wide: &str, narrow: &str| pattern(wide).unwrap().covers(&pattern(narrow).unwrap());
        assert!(covers("/a/**", "POST /a/b"));
        assert!(covers("/a/**", "POST /a"));
        assert!(covers("POST /a/*", "POST /a/b"));
        assert!(!covers("POST /a/*", "/a/b"));
        assert!(!covers("POST /a/*", "POST /a/"));
        assert!(!covers("POST /a/*", "POST /a/**"));
        assert!(!covers("POST /a/b", "POST /a/*"));
    }
}
