//! `[[route]]`: which requests, where they go, and what holds for them.

use onlyonce::Policy;

use super::policy::{self, Draft};
use super::reader::{Reader, Section};
use super::tree::Value;
use super::{Protocol, Route, Upstream, pattern, value};

/// What holds where a route says nothing.
pub(super) struct Base {
    pub(super) upstream: Upstream,
    pub(super) draft: Draft,
    pub(super) policy: Policy,
}

/// The name of a route: its `match` text.
pub(super) fn name(section: &Section<'_>) -> Option<String> {
    match &section.node("match")?.value {
        Value::Text(text) => Some(text.clone()),
        Value::Integer(_) | Value::Flag(_) | Value::List(_) | Value::Table(_) | Value::Odd(_) => None,
    }
}

/// One route; none where its `match` is not right, which has been told then.
pub(super) fn read(section: &Section<'_>, base: &Base, reader: &mut Reader<'_>) -> Option<Route> {
    let upstream = Upstream {
        uri: reader.read(section, "upstream", value::service).unwrap_or_else(|| base.upstream.uri.clone()),
        protocol: protocol(section, reader).unwrap_or(base.upstream.protocol),
    };
    let policy = base.draft.clone().with(section, reader).finish();
    policy::check_route(&policy, &base.policy, section, reader);
    if !section.has("match") {
        reader.fault(
            section,
            "match",
            None,
            "says which requests it is about; write it like \"POST /payments/*\"",
        );
    }
    let pattern = reader.read(section, "match", pattern::read)?;
    let name = name(section)?.into();
    Some(Route { name, pattern: Some(pattern), upstream, policy })
}

pub(super) fn protocol(section: &Section<'_>, reader: &mut Reader<'_>) -> Option<Protocol> {
    let protocols = [("auto", Protocol::Auto), ("http1", Protocol::Http1), ("http2", Protocol::Http2)];
    reader.word(section, "upstream_protocol", &protocols)
}

/// A route that an earlier one leaves nothing to.
pub(super) fn check_order(routes: &[(Section<'_>, Route)], reader: &mut Reader<'_>) {
    for (index, (section, route)) in routes.iter().enumerate() {
        let Some(pattern) = &route.pattern else { continue };
        let earlier = &routes[..index];
        let covering = earlier
            .iter()
            .find(|(_, other)| other.pattern.as_ref().is_some_and(|other| other.covers(pattern)));
        let Some((other_section, other)) = covering else { continue };
        let value = route.name.to_string();
        if other.pattern == route.pattern {
            let remedy = format!(
                "is the match of {} too, and the first wins; take one of them out",
                other_section.path
            );
            reader.fault(section, "match", value, remedy);
        } else {
            let remedy = format!(
                "never matches: {} \"{}\" comes first and covers all of it; move this one up",
                other_section.path, other.name
            );
            reader.warn(section, "match", value, remedy);
        }
    }
}
