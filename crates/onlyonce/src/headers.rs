//! Which headers pass, which are kept, and which are ours alone.

use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};
use onlyonce_core::outcome::{Said, SaidOutcome};
use onlyonce_core::policy::Policy;
use onlyonce_core::record::Reason;

use crate::problem::{CREATED, EXPIRES, STORED};

const OUTCOME: HeaderName = HeaderName::from_static("onlyonce-outcome");
const RETENTION: HeaderName = HeaderName::from_static("onlyonce-retention");
/// What only we may say to a handler or a service.
const OURS: &str = "onlyonce-";

const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// A client cannot say what only we may say.
pub(crate) fn strip_ours(headers: &mut HeaderMap) {
    drop_where(headers, |name| name.as_str().starts_with(OURS));
}

/// A write that runs once cannot turn into another protocol: the handler is not offered to.
pub(crate) fn strip_upgrade(headers: &mut HeaderMap) {
    if headers.remove(UPGRADE).is_some() {
        headers.remove(CONNECTION);
    }
}

/// What a handler says to us is not for the client.
pub(crate) fn strip_control(headers: &mut HeaderMap) {
    drop_where(headers, |name| *name == OUTCOME || *name == RETENTION);
}

/// What is about one connection, and what is ours to say, does not pass from a handler to a client.
pub(crate) fn clean(headers: &mut HeaderMap, policy: &Policy) {
    if headers.contains_key(CONNECTION) {
        for name in connection_named(headers) {
            headers.remove(name);
        }
    }
    drop_where(headers, |name| {
        HOP_BY_HOP.contains(name)
            || *name == policy.dialect.replayed
            || [OUTCOME, RETENTION, STORED, EXPIRES, CREATED].contains(name)
    });
}

/// Most maps hold nothing to drop, and a look at their few names is cheaper than a search for each that might be there.
fn drop_where(headers: &mut HeaderMap, drops: impl Fn(&HeaderName) -> bool) {
    if !headers.keys().any(&drops) {
        return;
    }
    let dropped: Vec<_> = headers.keys().filter(|name| drops(name)).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
}

/// Headers as small as they can be held, which is less than half: a map has room to grow and to be searched.
pub(crate) type Folded = Box<[(HeaderName, HeaderValue)]>;

/// Every header in its order, of whoever waits and may yet need them.
pub(crate) fn fold(headers: HeaderMap) -> Folded {
    let mut folded = Vec::with_capacity(headers.len());
    for (name, value) in headers {
        // The map names only the first of several values of one name.
        let name = name.or_else(|| folded.last().map(|(last, _): &(HeaderName, _)| last.clone()));
        folded.extend(name.map(|name| (name, value)));
    }
    folded.into_boxed_slice()
}

/// The headers that were folded.
pub(crate) fn unfold(folded: Folded) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(folded.len());
    for (name, value) in folded {
        headers.append(name, value);
    }
    headers
}

/// What a replay repeats, of headers that have been cleaned. The length follows from the body.
pub(crate) fn kept<'a>(
    headers: &'a HeaderMap,
    policy: &'a Policy,
) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
    headers.iter().filter(|(name, _)| **name != CONTENT_LENGTH && !policy.not_replayed.contains(name))
}

/// What the handler says of its own answer, in headers.
pub(crate) fn said(headers: &HeaderMap) -> Said {
    let outcome = headers.get(OUTCOME).map(|value| match value.as_bytes() {
        b"did-not-run" => SaidOutcome::DidNotRun,
        b"unknown" => SaidOutcome::Unknown(Reason::Said),
        // Whoever says something we do not understand does not say that all is well.
        other => {
            tracing::warn!(value = %String::from_utf8_lossy(other), "Onlyonce-Outcome is neither did-not-run nor unknown; it counts as unknown");
            SaidOutcome::Unknown(Reason::Said)
        }
    });
    Said { outcome, keep_for: headers.get(RETENTION).and_then(whole_seconds) }
}

/// What the client was told to wait, in whole seconds.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER).and_then(whole_seconds)
}

/// Whether `Connection` names the header that carries the key: then the key was meant for one hop, not for us.
pub(crate) fn is_connection_named(headers: &HeaderMap, name: &HeaderName) -> bool {
    headers.contains_key(CONNECTION) && connection_named(headers).contains(name)
}

/// What `Connection` names: headers that are about one connection.
pub fn connection_named(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

fn whole_seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// How long the client would wait: `Prefer: wait=N` (RFC 7240). The first one counts.
pub(crate) fn prefers_wait(headers: &HeaderMap) -> Option<Duration> {
    headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split([',', ';']))
        .find_map(|preference| {
            let (name, value) = preference.split_once('=')?;
            let seconds = value.trim().trim_matches('"').parse().ok()?;
            name.trim().eq_ignore_ascii_case("wait").then_some(Duration::from_secs(seconds))
        })
}

/// Whether the client would rather not wait for the work: `Prefer: respond-async` (RFC 7240).
pub(crate) fn prefers_async(headers: &HeaderMap) -> bool {
    headers
        .get_all("prefer")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|preference| preference.split(';').next())
        .any(|preference| preference.trim().eq_ignore_ascii_case("respond-async"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn a_preference_to_wait_is_found_among_others() {
        let wait = |value| prefers_wait(&headers(&[("prefer", value)]));
        assert_eq!(wait("wait=5"), Some(Duration::from_secs(5)));
        assert_eq!(wait("respond-async, Wait = \"10\""), Some(Duration::from_secs(10)));
        for other in ["", "wait", "wait=", "wait=-1", "wait=soon", "awaiting=5"] {
            assert_eq!(wait(other), None, "{other:?}");
        }
    }

    #[test]
    fn a_preference_not_to_wait_is_found_among_others() {
        for asked in ["respond-async", "Respond-Async;x=1, wait=3", "wait=10 , respond-async"] {
            assert!(prefers_async(&headers(&[("prefer", asked)])), "{asked:?}");
        }
        for other in ["", "wait=5", "respond-asynchronously", "respond-async=1", "return=minimal"] {
            assert!(!prefers_async(&headers(&[("prefer", other)])), "{other:?}");
        }
    }

    #[test]
    fn a_word_we_do_not_know_is_doubt() {
        let said = said(&headers(&[("onlyonce-outcome", "fine")]));
        assert_eq!(said.outcome, Some(SaidOutcome::Unknown(Reason::Said)));
    }

    #[test]
    fn what_was_folded_is_what_it_was() {
        let mut all = headers(&[("x-b", "1"), ("host", "here"), ("x-a", "2"), ("x-b", "3")]);
        all.append("x-b", HeaderValue::from_static("4"));
        all.append("host", HeaderValue::from_static("there"));
        all.remove("x-a");
        let mut secret = HeaderValue::from_static("hunter2");
        secret.set_sensitive(true);
        all.insert("authorization", secret);
        let unfolded = unfold(fold(all.clone()));
        assert_eq!(unfolded.iter().collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
        assert_eq!(unfolded, all);
        assert!(unfolded["authorization"].is_sensitive());
    }

    /// P04
    #[test]
    fn what_is_about_one_connection_or_one_moment_is_not_kept() {
        let mut all = headers(&[
            ("connection", "x-hop, close"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "h2c"),
            ("content-type", "text/plain"),
            ("date", "today"),
            ("set-cookie", "a=b"),
            ("content-length", "5"),
            ("x-mine", "1"),
            ("onlyonce-retention", "5"),
        ]);
        all.append("x-mine", HeaderValue::from_static("2"));
        let policy = Policy::default();
        clean(&mut all, &policy);
        let mut kept: Vec<_> =
            kept(&all, &policy).map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        // Among different names order says nothing; the sort is stable for equal ones, so theirs still counts.
        kept.sort_by_key(|line| line.split(':').next().map(str::to_owned));
        assert_eq!(kept, ["content-type: text/plain", "x-mine: 1", "x-mine: 2"]);
    }
}
