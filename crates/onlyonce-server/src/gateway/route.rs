//! Matches requests to routes: the first match in the file wins.

use http::Method;

use crate::config::{PathCase, Pattern, Segment};

/// Whether a pattern matches this request. `path` is normalised.
pub(crate) fn matches(pattern: &Pattern, method: &Method, path: &str, case: PathCase) -> bool {
    let is_same = match case {
        PathCase::Keep => |text: &str, segment: &str| text == segment,
        PathCase::Fold => |text: &str, segment: &str| text.eq_ignore_ascii_case(segment),
    };
    pattern.method.as_ref().is_none_or(|wanted| wanted == method)
        && is_along(&pattern.segments, path, is_same)
}

fn is_along(pattern: &[Segment], path: &str, is_same: fn(&str, &str) -> bool) -> bool {
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/');
    for wanted in pattern {
        match (wanted, segments.next()) {
            // Also an empty rest: `/b/**` matches `/b`.
            (Segment::Rest, _) => return true,
            (_, None) => return false,
            (Segment::One, Some("")) => return false,
            (Segment::One, Some(_)) => {}
            (Segment::Text(text), Some(segment)) if !is_same(text, segment) => return false,
            (Segment::Text(_), Some(_)) => {}
        }
    }
    match segments.next() {
        None => true,
        // The root has one empty segment, and its pattern may be written without any.
        Some(rest) => pattern.is_empty() && rest.is_empty() && segments.next().is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(path: &str) -> Pattern {
        let segments = path[1..].split('/').map(|segment| match segment {
            "*" => Segment::One,
            "**" => Segment::Rest,
            text => Segment::Text(text.into()),
        });
        Pattern { method: None, segments: segments.collect() }
    }

    /// G01
    #[test]
    fn a_star_is_one_segment_and_two_are_the_rest() {
        for (path, along, not) in [
            (
                "/orders",
                &["/orders"][..],
                &["/orders/", "/orders/1", "/", "/order", "//orders", "/Orders"][..],
            ),
            (
                "/orders/*",
                &["/orders/1", "/orders/a%2Fb"],
                &["/orders", "/orders/", "/orders/1/", "/orders/1/2"],
            ),
            (
                "/orders/*/lines",
                &["/orders/1/lines"],
                &["/orders/lines", "/orders//lines", "/orders/1/2/lines"],
            ),
            ("/b/**", &["/b", "/b/", "/b/1", "/b/1/2", "/b//"], &["/", "/bb", "/a/b"]),
            ("/**", &["/", "/a", "/a/b", "//"], &[]),
            ("/", &["/"], &["/a", "//"]),
            ("/orders/", &["/orders/"], &["/orders", "/orders//"]),
        ] {
            let pattern = pattern(path);
            for way in along {
                assert!(matches(&pattern, &Method::POST, way, PathCase::Keep), "{path} is about {way}");
            }
            for way in not {
                assert!(!matches(&pattern, &Method::POST, way, PathCase::Keep), "{path} is not about {way}");
            }
        }
    }

    #[test]
    fn the_root_may_be_written_without_segments() {
        let root = Pattern { method: None, segments: Vec::new() };
        assert!(matches(&root, &Method::GET, "/", PathCase::Keep));
        assert!(!matches(&root, &Method::GET, "/a", PathCase::Keep));
    }

    /// G01
    #[test]
    fn the_case_of_a_path_counts_unless_it_is_folded() {
        let pattern = pattern("/Orders/*/lines");
        for path in ["/orders/A/lines", "/ORDERS/a/Lines"] {
            assert!(!matches(&pattern, &Method::POST, path, PathCase::Keep), "{path}");
            assert!(matches(&pattern, &Method::POST, path, PathCase::Fold), "{path}");
        }
        assert!(!matches(&pattern, &Method::POST, "/order/a/lines", PathCase::Fold));
    }

    #[test]
    fn a_method_is_the_one_named_or_any() {
        let post = Pattern { method: Some(Method::POST), ..pattern("/orders") };
        assert!(matches(&post, &Method::POST, "/orders", PathCase::Keep));
        assert!(!matches(&post, &Method::PUT, "/orders", PathCase::Keep));
        assert!(matches(&pattern("/orders"), &Method::PUT, "/orders", PathCase::Keep));
    }
}
