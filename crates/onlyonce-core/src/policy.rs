//! What holds for a route: which requests are covered, how long things last, what an answer means.
//!
//! The names are those of the settings. A [`Policy`] is plain data; [`Policy::check`] finds every fault in it at once,
//! each with the setting's path, the value and the remedy.
//!
//! ```
//! use std::time::Duration;
//! use onlyonce_core::policy::Policy;
//!
//! let policy = Policy { lease: Duration::from_millis(5), retention: Duration::ZERO, ..Policy::default() };
//! let faults = policy.check().unwrap_err();
//! assert_eq!(faults.0.len(), 2);
//! assert_eq!(
//!     faults.0[0].to_string(),
//!     r#"policy.retention: "0s" is shorter than 1s; keep answers at least that long"#
//! );
//! ```

use std::fmt;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Method, header};

use crate::dialect::{Dialect, Preset};
use crate::fingerprint;
use crate::key::{self, PersonalData, Rules, Syntax};
use crate::record::{Effects, Terms};
use crate::scope::Source;

/// What holds for a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Whether what is decided also happens.
    pub mode: Mode,
    /// How refusals and markers look on the wire.
    pub dialect: Dialect,
    /// Where the key stands: all places that hold one must hold the same.
    pub key_from: Vec<key::Source>,
    /// What a key may look like.
    pub key: Rules,
    /// The methods that are covered; others pass as if we were not there.
    pub methods: Vec<Method>,
    /// The methods that must carry a key.
    pub required: Vec<Method>,
    /// What tells callers apart.
    pub scope: Vec<Source>,
    /// What happens to a caller that cannot be told apart.
    pub anonymous: Anonymous,
    /// What the work touches.
    pub effects: Effects,
    /// Keyed effects: how long downstream promises to remember the key. The last rerun ends within it.
    pub downstream_retention: Duration,
    /// How long a finished record is kept.
    pub retention: Duration,
    /// What happens to a key that has expired.
    pub on_expired: OnExpired,
    /// How long an attempt is presumed alive.
    pub lease: Duration,
    /// How long an attempt may take.
    pub deadline: Duration,
    /// How long after the deadline an effect may still turn up downstream.
    pub horizon: Duration,
    /// How long after an outcome became unknown the route's probe is first asked; none where it has no probe.
    pub reconcile_first: Option<Duration>,
    /// What happens to a duplicate of a request that still runs.
    pub in_flight: InFlight,
    /// The longest a duplicate waits.
    pub wait_max: Duration,
    /// Whether work is accepted with 202, and run by a worker.
    pub accept: Accept,
    /// Statuses that say that the work did not run.
    pub release: Vec<u16>,
    /// Statuses that leave open whether the work ran.
    pub unknown: Vec<u16>,
    /// What any other 5xx means.
    pub on_5xx: On5xx,
    /// What happens while the store cannot be reached.
    pub store_down: StoreDown,
    /// How long the store may take.
    pub store_timeout: Duration,
    /// The header that says when the client made the request; with [`Policy::request_age_max`], or neither.
    pub request_time_header: Option<HeaderName>,
    /// How old a request may be that would run.
    pub request_age_max: Option<Duration>,
    /// The largest body of a keyed request.
    pub request_bytes_max: u64,
    /// The largest answer that is kept: its body, and its headers.
    pub response_bytes_max: u64,
    /// Headers of the first answer that a replay does not repeat. Hop-by-hop headers never are.
    pub not_replayed: Vec<HeaderName>,
    /// What counts as the same request.
    pub fingerprint: fingerprint::Settings,
}

/// Whether what is decided also happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Every request runs as if we were not there; what would have been decided is counted.
    Observe,
    /// What is decided happens.
    Enforce,
}

/// What happens to a caller that cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// 401.
    Refuse,
    /// One namespace for all of them.
    Shared,
}

/// What happens to a key that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExpired {
    /// It is a new request.
    Run,
    /// 410, while the row is kept.
    Gone,
}

/// What happens to a duplicate of a request that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// 409, come back later. A client may still ask to wait with `Prefer: wait=N`.
    Refuse,
    /// 202 with the place to ask.
    Accept,
    /// It waits for the answer.
    Wait,
}

/// Whether work is accepted with 202, and run by a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// It runs while its client waits.
    Never,
    /// Where the client asks for it with `Prefer: respond-async`.
    Allowed,
    /// Always.
    Always,
}

/// What any 5xx means that is in no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On5xx {
    /// The work was not done: the key may be tried again.
    Retry,
    /// It is the answer: keep it.
    Store,
    /// Nobody knows.
    Unknown,
}

/// What happens while the store cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreDown {
    /// 503: no reservation, no work.
    Refuse,
    /// The work runs unprotected, and its answer says so.
    Run,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: Mode::Enforce,
            dialect: Dialect::ietf(),
            key_from: vec![key::Source::Header(HeaderName::from_static("idempotency-key"))],
            key: Rules {
                syntax: Syntax::Either,
                chars_min: 1,
                chars_max: 255,
                personal_data: PersonalData::Warn,
            },
            methods: vec![Method::POST, Method::PATCH, Method::PUT, Method::DELETE],
            required: Vec::new(),
            scope: vec![Source::Header(header::AUTHORIZATION)],
            anonymous: Anonymous::Refuse,
            effects: Effects::Opaque,
            downstream_retention: Duration::from_secs(23 * 3600),
            retention: Duration::from_secs(24 * 3600),
            on_expired: OnExpired::Run,
            lease: Duration::from_secs(30),
            deadline: Duration::from_secs(5 * 60),
            horizon: Duration::from_secs(30),
            reconcile_first: None,
            in_flight: InFlight::Refuse,
            wait_max: Duration::from_secs(10),
            accept: Accept::Never,
            release: vec![401, 403, 425, 429],
            unknown: vec![408, 502, 504],
            on_5xx: On5xx::Retry,
            store_down: StoreDown::Refuse,
            store_timeout: Duration::from_secs(2),
            request_time_header: None,
            request_age_max: None,
            request_bytes_max: 1 << 20,
            response_bytes_max: 1 << 20,
            not_replayed: NOT_REPLAYED.map(HeaderName::from_static).to_vec(),
            fingerprint: fingerprint::Settings::default(),
        }
    }
}

/// What is true only of the first answer: its time, its cookies and credentials, the caller's quota at that moment.
const NOT_REPLAYED: [&str; 14] = [
    "date",
    "age",
    "set-cookie",
    "authorization",
    "authentication-info",
    "proxy-authentication-info",
    "www-authenticate",
    "retry-after",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "server-timing",
];

/// Which methods `required = true` is about: PUT and DELETE are idempotent already.
pub const REQUIRED: [Method; 2] = [Method::POST, Method::PATCH];

const RETENTION_MIN: Duration = Duration::from_secs(1);
/// A renewal takes a trip to the store and starts at half the lease: below this it comes too late.
const LEASE_MIN: Duration = Duration::from_secs(1);
/// A shorter age would refuse requests for the time they take to arrive.
const AGE_MIN: Duration = Duration::from_secs(1);
/// A longer span is a slip of the pen, and would run into the end of time.
const SPAN_MAX: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

impl Policy {
    /// The defaults with what `dialect` brings.
    pub fn of(dialect: Dialect) -> Self {
        let mut policy = Self::default();
        let Preset {
            key_from,
            syntax,
            key_chars_min,
            key_chars_max,
            methods,
            required,
            scope,
            anonymous,
            retention,
            on_expired,
            release,
            unknown,
            on_5xx,
            request_time_header,
            request_age_max,
            body,
            ignore,
            headers,
        } = dialect.preset.clone();
        policy.dialect = dialect;
        policy.key_from = key_from.unwrap_or(policy.key_from);
        policy.key.syntax = syntax.unwrap_or(policy.key.syntax);
        policy.key.chars_min = key_chars_min.unwrap_or(policy.key.chars_min);
        policy.key.chars_max = key_chars_max.unwrap_or(policy.key.chars_max);
        policy.methods = methods.unwrap_or(policy.methods);
        policy.required = required.unwrap_or(policy.required);
        if let Some(scope) = scope {
            policy.scope = scope.over(policy.scope);
        }
        policy.anonymous = anonymous.unwrap_or(policy.anonymous);
        policy.retention = retention.unwrap_or(policy.retention);
        policy.on_expired = on_expired.unwrap_or(policy.on_expired);
        policy.release = release.unwrap_or(policy.release);
        policy.unknown = unknown.unwrap_or(policy.unknown);
        policy.on_5xx = on_5xx.unwrap_or(policy.on_5xx);
        policy.request_time_header = request_time_header.or(policy.request_time_header);
        policy.request_age_max = request_age_max.or(policy.request_age_max);
        policy.fingerprint.body = body.unwrap_or(policy.fingerprint.body);
        policy.fingerprint.ignore = ignore.unwrap_or(policy.fingerprint.ignore);
        policy.fingerprint.headers = headers.unwrap_or(policy.fingerprint.headers);
        policy
    }

    /// The headers that may carry the key.
    pub fn key_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.key_from.iter().filter_map(|source| match source {
            key::Source::Header(name) => Some(name),
            key::Source::Json(_) | key::Source::Query(_) => None,
        })
    }

    /// Whether a key may stand in the body, which is then read before anything is known of the key.
    pub fn has_key_in_body(&self) -> bool {
        self.key_from.iter().any(|source| matches!(source, key::Source::Json(_)))
    }

    /// Whether a covered request with this head may carry a key.
    pub fn may_carry_key(&self, headers: &HeaderMap, query: Option<&str>) -> bool {
        self.key_from.iter().any(|source| match source {
            key::Source::Header(name) => headers.contains_key(name),
            key::Source::Query(_) => query.is_some(),
            key::Source::Json(_) => true,
        })
    }

    /// What a record is promised when it is reserved under this policy.
    pub fn terms(&self) -> Terms {
        Terms {
            effects: self.effects,
            lease: self.lease,
            deadline: self.deadline,
            horizon: self.horizon,
            retention: self.retention,
            downstream_retention: self.downstream_retention,
            reconcile_first: self.reconcile_first,
        }
    }

    /// Every fault at once.
    pub fn check(&self) -> Result<(), Faults> {
        let mut faults = Vec::new();
        let mut fault = |path: &'static str, value: String, remedy: String| {
            faults.push(Fault { path, value, remedy });
        };
        if self.key.chars_min == 0 {
            fault("policy.key_chars_min", "0".into(), "allows an empty key; set at least 1".into());
        }
        if self.key.chars_max < self.key.chars_min {
            let remedy = format!("is below key_chars_min {}; raise it", self.key.chars_min);
            fault("policy.key_chars_max", self.key.chars_max.to_string(), remedy);
        }
        if self.key_from.is_empty() {
            let remedy = "has no place for a key; add at least one, such as header:Idempotency-Key";
            fault("policy.key_from", "[]".into(), remedy.into());
        }
        for (at, source) in self.key_from.iter().enumerate() {
            if self.key_from[..at].contains(source) {
                fault("policy.key_from", source.to_string(), "is listed twice; remove one".into());
            }
        }
        if self.methods.is_empty() {
            fault("policy.methods", "[]".into(), "has no method; add at least one, such as POST".into());
        }
        for method in self.methods.iter().filter(|method| method.is_safe()) {
            let remedy = "is a safe method, which always runs and is never stored; remove it";
            fault("policy.methods", method.to_string(), remedy.into());
        }
        for method in self.required.iter().filter(|method| !self.methods.contains(method)) {
            fault("policy.required", method.to_string(), "is not among policy.methods; add it there".into());
        }
        if self.scope.is_empty() && self.anonymous == Anonymous::Refuse {
            let remedy = "does not identify a caller; add a source such as header:authorization, or set policy.anonymous to \"shared\"";
            fault("policy.scope", "[]".into(), remedy.into());
        }
        if self.retention < RETENTION_MIN {
            fault(
                "policy.retention",
                span(self.retention),
                "is shorter than 1s; keep answers at least that long".into(),
            );
        }
        if self.lease < LEASE_MIN {
            fault(
                "policy.lease",
                span(self.lease),
                "is too short to be renewed in time; set at least 1s".into(),
            );
        }
        if self.deadline < self.lease {
            let remedy = format!("is shorter than policy.lease {}; set at least that", span(self.lease));
            fault("policy.deadline", span(self.deadline), remedy);
        }
        let rerun = self.deadline.saturating_add(self.horizon);
        if self.effects == Effects::Keyed && self.downstream_retention <= rerun {
            let remedy = format!(
                "leaves no time for a rerun within policy.deadline plus policy.horizon ({}); raise it or set policy.effects to \"opaque\"",
                span(rerun)
            );
            fault("policy.downstream_retention", span(self.downstream_retention), remedy);
        }
        let is_renewable = self.lease >= LEASE_MIN;
        if self.store_timeout.is_zero() || (is_renewable && self.store_timeout.saturating_mul(2) > self.lease)
        {
            let remedy = format!("must be above 0s and at most half of policy.lease {}", span(self.lease));
            fault("policy.store_timeout", span(self.store_timeout), remedy);
        }
        match (&self.request_time_header, self.request_age_max) {
            (None, None) => {}
            (Some(_), Some(age_max)) if age_max >= AGE_MIN => {}
            (Some(_), Some(age_max)) => {
                let remedy = "is too short for a request to arrive; set at least 1s";
                fault("policy.request_age_max", span(age_max), remedy.into());
            }
            (Some(header), None) => {
                let remedy = "has no effect without policy.request_age_max; set that too, such as \"5m\"";
                fault("policy.request_time_header", header.to_string(), remedy.into());
            }
            (None, Some(age_max)) => {
                let remedy = "has no effect without policy.request_time_header; set that to the header with the request's time";
                fault("policy.request_age_max", span(age_max), remedy.into());
            }
        }
        for (path, value) in [
            ("policy.request_age_max", self.request_age_max.unwrap_or_default()),
            ("policy.retention", self.retention),
            ("policy.downstream_retention", self.downstream_retention),
            ("policy.deadline", self.deadline),
            ("policy.horizon", self.horizon),
            ("policy.lease", self.lease),
            ("policy.wait_max", self.wait_max),
        ] {
            if value > SPAN_MAX {
                fault(path, span(value), "is longer than a hundred years; shorten it".into());
            }
        }
        for (path, statuses) in [("policy.release", &self.release), ("policy.unknown", &self.unknown)] {
            for status in statuses.iter().filter(|status| !(200..=599).contains(*status)) {
                fault(path, status.to_string(), "is not a final HTTP status; use 200 to 599".into());
            }
        }
        for status in self.release.iter().filter(|status| self.unknown.contains(status)) {
            let remedy = "is also in policy.release; a status means either that the work was not done or that the outcome is unknown; remove it from one";
            fault("policy.unknown", status.to_string(), remedy.into());
        }
        for (path, value) in [
            ("policy.request_bytes_max", self.request_bytes_max),
            ("policy.response_bytes_max", self.response_bytes_max),
        ] {
            if value == 0 || value > BYTES_MAX {
                fault(path, value.to_string(), "must be from 1 byte to 1GiB: it is held in memory".into());
            }
        }
        for (_, value, remedy) in self.dialect.faults() {
            fault("policy.dialect", value, remedy);
        }
        if faults.is_empty() { Ok(()) } else { Err(Faults(faults)) }
    }
}

const BYTES_MAX: u64 = 1 << 30;

/// A span as settings write it.
pub fn span(duration: Duration) -> String {
    let millis = duration.as_millis();
    match millis {
        _ if millis.is_multiple_of(3_600_000) && millis > 0 => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(60_000) && millis > 0 => format!("{}m", millis / 60_000),
        _ if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        _ => format!("{millis}ms"),
    }
}

/// A setting that cannot stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The setting.
    pub path: &'static str,
    /// What it is set to.
    pub value: String,
    /// What is wrong with it and what to do.
    pub remedy: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: \"{}\" {}", self.path, self.value, self.remedy)
    }
}

/// Every fault of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(pub Vec<Fault>);

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut faults = self.0.iter();
        if let Some(first) = faults.next() {
            first.fmt(f)?;
        }
        faults.try_for_each(|fault| write!(f, "\n{fault}"))
    }
}

impl std::error::Error for Faults {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_and_every_preset_are_without_fault() {
        assert_eq!(Policy::default().check(), Ok(()));
        for name in Dialect::names() {
            let dialect = Dialect::named(name).unwrap();
            assert_eq!(Policy::of(dialect).check(), Ok(()), "{name}");
        }
    }

    /// K01
    #[test]
    fn a_key_has_at_least_one_place_and_each_once() {
        let told = |key_from: &[&str]| {
            let key_from = key_from.iter().map(|source| source.parse().unwrap()).collect();
            Policy { key_from, ..Policy::default() }.check().map_err(|faults| faults.to_string())
        };
        assert_eq!(told(&["header:a", "header:b", "json:/a", "query:a"]), Ok(()));
        assert!(told(&[]).unwrap_err().contains("policy.key_from: \"[]\" has no place for a key"));
        let twice = told(&["header:X-Key", "json:/a", "header:x-key"]).unwrap_err();
        assert_eq!(twice, "policy.key_from: \"header:x-key\" is listed twice; remove one");
    }

    #[test]
    fn all_faults_are_reported_at_once_each_with_its_path() {
        let policy = Policy {
            methods: vec![Method::POST, Method::GET],
            required: vec![Method::PUT],
            scope: Vec::new(),
            retention: Duration::from_millis(999),
            lease: Duration::from_secs(60),
            deadline: Duration::from_secs(59),
            store_timeout: Duration::from_secs(31),
            release: vec![99, 408],
            request_bytes_max: 0,
            ..Policy::default()
        };
        let faults = policy.check().unwrap_err();
        let paths: Vec<_> = faults.0.iter().map(|fault| fault.path).collect();
        assert_eq!(
            paths,
            [
                "policy.methods",
                "policy.required",
                "policy.scope",
                "policy.retention",
                "policy.deadline",
                "policy.store_timeout",
                "policy.release",
                "policy.unknown",
                "policy.request_bytes_max",
            ]
        );
        assert!(faults.to_string().contains("\"59s\" is shorter than policy.lease 1m"), "{faults}");
    }

    /// U04: a rerun takes up to the deadline and the horizon, here 5 min 30 s.
    #[test]
    fn downstream_must_remember_longer_than_a_rerun_takes() {
        let keyed = |seconds| Policy {
            effects: Effects::Keyed,
            downstream_retention: Duration::from_secs(seconds),
            ..Policy::default()
        };
        assert_eq!(keyed(331).check(), Ok(()));
        let faults = keyed(330).check().unwrap_err();
        assert_eq!(
            faults.to_string(),
            r#"policy.downstream_retention: "330s" leaves no time for a rerun within policy.deadline plus policy.horizon (330s); raise it or set policy.effects to "opaque""#
        );
        for effects in [Effects::Local, Effects::Queryable, Effects::Opaque] {
            assert_eq!(Policy { effects, ..keyed(330) }.check(), Ok(()), "{effects:?} relies on no memory");
        }
    }

    #[test]
    fn spans_that_add_up_past_the_end_of_time_are_faults_and_no_panic() {
        let policy = Policy { effects: Effects::Keyed, deadline: Duration::MAX, ..Policy::default() };
        let faults = policy.check().unwrap_err();
        let paths: Vec<_> = faults.0.iter().map(|fault| fault.path).collect();
        assert_eq!(paths, ["policy.downstream_retention", "policy.deadline"]);
    }
}
