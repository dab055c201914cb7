//! How lenient services read a path, and whether that would lead to another route.
//!
//! Servers and frameworks differ in what they take for one path. Some join slashes, decode escaped ones, take a backslash for a slash,
//! cut off `;` and what follows it in a segment, ignore a slash at the end, or ignore case. If a path could be read so and would then be
//! of another route, its policy may not be the one that the service's own path deserves.

use http::Method;

use super::route;
use crate::config::{PathCase, Pattern, Segment};

/// The path as the most lenient service reads it; none where every service reads the same. `path` is normalised.
pub(crate) fn reading(path: &str) -> Option<String> {
    let is_plain = |byte: u8| !(byte.is_ascii_uppercase() || matches!(byte, b';' | b'\\' | b'%'));
    let ends = path.len() > 1 && path.ends_with('/');
    if path.bytes().all(is_plain) && !ends && !path.contains("//") {
        return None;
    }
    let path = path.replace("%2F", "/").replace("%5C", "/").replace('\\', "/").replace("%3B", ";");
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            name => kept.push(name),
        }
    }
    Some(format!("/{}", kept.join("/")))
}

/// Whether a pattern is about a path that was read so.
pub(crate) fn matches(pattern: &Pattern, method: &Method, reading: &str) -> bool {
    let pattern =
        Pattern { method: pattern.method.clone(), segments: without_empty(pattern).cloned().collect() };
    route::matches(&pattern, method, reading, PathCase::Fold)
}

/// Whether two patterns differ only in what lenient services ignore.
pub(crate) fn is_same(one: &Pattern, other: &Pattern) -> bool {
    let is_same = |(one, other): (&Segment, &Segment)| match (one, other) {
        (Segment::Text(one), Segment::Text(other)) => one.eq_ignore_ascii_case(other),
        (one, other) => one == other,
    };
    without_empty(one).count() == without_empty(other).count()
        && without_empty(one).zip(without_empty(other)).all(is_same)
}

fn without_empty(pattern: &Pattern) -> impl Iterator<Item = &Segment> {
    pattern.segments.iter().filter(|segment| !matches!(segment, Segment::Text(text) if text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// G01
    #[test]
    fn spellings_of_one_path_are_read_as_one() {
        for path in [
            "/Payments",
            "//payments",
            "/payments/",
            "/payments//",
            "/payments;x",
            "/payments;jsessionid=1/",
            "/;/payments",
            "/a/..;/payments",
            "/a/..;x=1/payments",
            "/%2Fpayments",
            "/payments%2F",
            "/payments%3Bx",
            "/.;/payments",
            "/\\payments",
            "/a%5Cb;x/..;/..;/payments",
        ] {
            let read = reading(path).unwrap_or_else(|| panic!("{path} has several spellings"));
            assert!(read.eq_ignore_ascii_case("/payments"), "{path} is read as {read}");
        }
        for path in ["/", "/payments", "/payments/1.2/x-y_z~", "/a,b/c@d"] {
            assert_eq!(reading(path), None, "{path}");
        }
        assert_eq!(reading("//").as_deref(), Some("/"));
    }
}
