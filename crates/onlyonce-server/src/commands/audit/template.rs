//! A path of a document, in which a `{…}` is a segment of any text, against the pattern of a route.
//!
//! The same rules as `gateway/route.rs`, about every path that a template stands for instead of one.

use std::borrow::Cow;

use http::Method;

use crate::config::{PathCase, Pattern, Segment};
use crate::gateway::path;

/// The segments of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// `{id}`
    Any,
    /// `{id}.json`: what stands between any texts.
    Between(Vec<String>),
}

/// How many of a template's paths a pattern matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    None,
    Some,
    All,
}

impl Template {
    /// Spelt as the gateway spells paths.
    pub(super) fn new(text: &str) -> Self {
        let encoded = encoded(text.split(['?', '#']).next().unwrap_or_default());
        let normalised = path::normalised(&encoded).map_or_else(|_| encoded.clone(), Cow::into_owned);
        let path = normalised.strip_prefix('/').unwrap_or(&normalised);
        Self(path.split('/').map(part).collect())
    }

    /// The `match` of a route for exactly these paths.
    pub(super) fn route(&self, method: &Method) -> String {
        let segments = self.0.iter().map(|part| match part {
            Part::Text(text) => &**text,
            Part::Any | Part::Between(_) => "*",
        });
        format!("{method} /{}", segments.collect::<Vec<_>>().join("/"))
    }

    /// How many of its paths this pattern matches.
    pub(super) fn share(&self, pattern: &Pattern, method: &Method, case: PathCase) -> Share {
        if pattern.method.as_ref().is_some_and(|wanted| wanted != method) {
            return Share::None;
        }
        let mut share = Share::All;
        let mut parts = self.0.iter();
        for wanted in &pattern.segments {
            share = match (wanted, parts.next()) {
                (Segment::Rest, _) => return share,
                (_, None) => return Share::None,
                (Segment::One, Some(Part::Text(text))) if text.is_empty() => return Share::None,
                (Segment::One, Some(Part::Text(_) | Part::Any | Part::Between(_))) => share,
                (Segment::Text(text), Some(Part::Text(own))) if is_same(text, own, case) => share,
                (Segment::Text(_), Some(Part::Text(_))) => return Share::None,
                (Segment::Text(text), Some(Part::Any)) if text.is_empty() => return Share::None,
                (Segment::Text(_), Some(Part::Any)) => Share::Some,
                (Segment::Text(text), Some(Part::Between(texts))) if fits(text, texts, case) => Share::Some,
                (Segment::Text(_), Some(Part::Between(_))) => return Share::None,
            };
        }
        let is_root = pattern.segments.is_empty() && self.0 == [Part::Text(String::new())];
        if parts.next().is_none() || is_root { share } else { Share::None }
    }
}

fn part(segment: &str) -> Part {
    match segment.contains("{}") {
        false => Part::Text(segment.to_owned()),
        true if segment == "{}" => Part::Any,
        true => Part::Between(segment.split("{}").map(str::to_owned).collect()),
    }
}

/// What clients send: a `{…}` becomes `{}`, and what paths carry only escaped is escaped.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        if character == '{'
            && let Some(end) = rest.find('}')
        {
            encoded.push_str("{}");
            rest = &rest[end + 1..];
            continue;
        }
        let bytes = &rest.as_bytes()[..character.len_utf8()];
        let is_plain = character.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@/%".contains(character);
        if is_plain {
            encoded.push(character);
        } else {
            encoded.extend(bytes.iter().map(|byte| format!("%{byte:02X}")));
        }
        rest = &rest[character.len_utf8()..];
    }
    encoded
}

fn is_same(one: &str, two: &str, case: PathCase) -> bool {
    match case {
        PathCase::Keep => one == two,
        PathCase::Fold => one.eq_ignore_ascii_case(two),
    }
}

/// Whether a text begins with the first of these, ends with the last, and has the others in between.
fn fits(text: &str, texts: &[String], case: PathCase) -> bool {
    let folded = |text: &str| match case {
        PathCase::Keep => text.to_owned(),
        PathCase::Fold => text.to_ascii_lowercase(),
    };
    let text = folded(text);
    let [first, between @ .., last] = texts else { return false };
    let Some(mut rest) = text.strip_prefix(&folded(first)) else { return false };
    for part in between {
        let part = folded(part);
        let Some(at) = rest.find(&part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(&folded(last))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::gateway::route;
    use proptest::prelude::*;

    fn share(pattern: &str, template: &str) -> Share {
        let pattern = config::pattern(pattern).unwrap();
        Template::new(template).share(&pattern, &Method::POST, PathCase::Keep)
    }

    /// O08
    #[test]
    fn a_template_stands_for_every_text_in_its_braces() {
        for (pattern, template, expected) in [
            ("POST /payments", "/payments", Share::All),
            ("PUT /payments", "/payments", Share::None),
            ("/payments", "/payments/", Share::None),
            ("/payments/*", "/payments/{id}", Share::All),
            ("/payments/42", "/payments/{id}", Share::Some),
            ("/payments/*/lines", "/payments/{id}", Share::None),
            ("/payments/**", "/payments/{id}/lines/{n}", Share::All),
            ("/payments/**", "/payments", Share::All),
            ("/**", "/", Share::All),
            ("/", "/", Share::All),
            ("/a/b", "/{x}/{y}", Share::Some),
            ("/a/b", "/{x}/c", Share::None),
            ("/payments/*", "/payments/{id}.json", Share::All),
            ("/payments/7.json", "/payments/{id}.json", Share::Some),
            ("/payments/7.xml", "/payments/{id}.json", Share::None),
            ("/payments/*", "/payments/{id}:cancel", Share::All),
            ("/caf%C3%A9/*", "/café/{id}", Share::All),
            ("/a/b", "/x/../a/%62", Share::All),
            ("/payments", "/payments?x={y}", Share::All),
        ] {
            assert_eq!(share(pattern, template), expected, "{pattern} about {template}");
        }
    }

    #[test]
    fn the_route_for_a_template_matches_all_of_it() {
        for (template, expected) in [
            ("/payments/{id}/refunds", "POST /payments/*/refunds"),
            ("/a/{b}.json", "POST /a/*"),
            ("/", "POST /"),
        ] {
            let template = Template::new(template);
            assert_eq!(template.route(&Method::POST), expected);
            let pattern = config::pattern(expected).unwrap();
            assert_eq!(template.share(&pattern, &Method::POST, PathCase::Keep), Share::All);
        }
    }

    proptest! {
        /// O08: a path without braces is judged as the gateway judges it, and one with braces as all its paths together.
        #[test]
        fn routes_are_matched_as_the_gateway_matches_them(
            pattern in "(/(a|B|x\\.json|\\*)){0,3}(/\\*\\*)?",
            template in "(/(a|B|b|x\\.json|\\{p\\}|\\{p\\}\\.json)){1,3}/?",
            fold in any::<bool>(),
        ) {
            let case = if fold { PathCase::Fold } else { PathCase::Keep };
            let pattern = config::pattern(if pattern.is_empty() { "/" } else { &pattern }).unwrap();
            let template_of = Template::new(&template);
            let paths = ["a", "B", "b", "x.json", "q"].map(|text| template.replace("{p}.json", "{q}").replace("{p}", text));
            let paths: Vec<_> = paths.iter().flat_map(|path| ["x", "q"].map(|text| path.replace("{q}", &format!("{text}.json")))).collect();
            let matched = paths.iter().filter(|path| route::matches(&pattern, &Method::POST, path, case)).count();
            match template_of.share(&pattern, &Method::POST, case) {
                Share::All => prop_assert_eq!(matched, paths.len()),
                Share::None => prop_assert_eq!(matched, 0),
                Share::Some => prop_assert!(matched < paths.len()),
            }
        }
    }
}
