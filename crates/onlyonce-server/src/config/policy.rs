//! `[policy]` and what a route changes of it; its settings are read in `setting/table/policy.rs`.
//!
//! Of two, the more specific wins: a route's own setting, the preset of the route's dialect, a setting of `[policy]`, the
//! preset of its dialect, the default. So each is laid over the one before.
//!
//! A default never conflicts with a setting: where it would, another value is derived from that setting.

use std::time::Duration;

use http::Method;
use onlyonce::dialect::Preset;
use onlyonce::policy::{self, Anonymous, REQUIRED};
use onlyonce::scope::Source;
use onlyonce::{Dialect, Policy};

use super::reader::Section;
use super::setting::table::policy::{ANONYMOUS, BODY, ON_5XX, ON_EXPIRED, SYNTAX};
use super::value::Required;

/// A policy that is still being put together.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// Of what is in `chosen` too, it has the default.
    pub(super) policy: Policy,
    pub(super) chosen: Chosen,
    /// `required = true` is about the methods that are covered, which a route may change.
    pub(super) required: Required,
}

/// Settings that are derived from others unless somebody, or the dialect, says what they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Chosen {
    pub(super) methods: Option<Vec<Method>>,
    pub(super) chars_max: Option<usize>,
    pub(super) lease: Option<Duration>,
    pub(super) deadline: Option<Duration>,
    pub(super) store_timeout: Option<Duration>,
    pub(super) release: Option<Vec<u16>>,
    pub(super) unknown: Option<Vec<u16>>,
}

const LEASE_MIN: Duration = Duration::from_secs(1);
/// No lease is derived that is longer: a time-out of the store that asks for it is a mistake, and is reported.
const DERIVED_LEASE_MAX: Duration = Duration::from_secs(24 * 3600);

impl Draft {
    pub(super) fn default() -> Self {
        Self { policy: Policy::default(), chosen: Chosen::default(), required: Required::None }
    }

    /// Lays what `dialect` brings over what holds so far.
    pub(super) fn lay_dialect(&mut self, dialect: Dialect) {
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
        let Self { policy, chosen, .. } = self;
        policy.dialect = dialect;
        policy.key_from = key_from.unwrap_or_else(|| std::mem::take(&mut policy.key_from));
        policy.key.syntax = syntax.unwrap_or(policy.key.syntax);
        policy.key.chars_min = key_chars_min.unwrap_or(policy.key.chars_min);
        chosen.chars_max = key_chars_max.or(chosen.chars_max);
        chosen.methods = methods.or(chosen.methods.take());
        if let Some(scope) = scope {
            policy.scope = scope.over(std::mem::take(&mut policy.scope));
        }
        policy.anonymous = anonymous.unwrap_or(policy.anonymous);
        policy.retention = retention.unwrap_or(policy.retention);
        policy.on_expired = on_expired.unwrap_or(policy.on_expired);
        chosen.release = release.or(chosen.release.take());
        chosen.unknown = unknown.or(chosen.unknown.take());
        policy.on_5xx = on_5xx.unwrap_or(policy.on_5xx);
        policy.request_time_header = request_time_header.or(policy.request_time_header.take());
        policy.request_age_max = request_age_max.or(policy.request_age_max);
        policy.fingerprint.body = body.unwrap_or(policy.fingerprint.body);
        policy.fingerprint.ignore = ignore.unwrap_or_else(|| std::mem::take(&mut policy.fingerprint.ignore));
        policy.fingerprint.headers =
            headers.unwrap_or_else(|| std::mem::take(&mut policy.fingerprint.headers));
        if let Some(required) = required {
            self.required = Required::These(required);
        }
    }

    pub(super) fn finish(&self) -> Policy {
        let mut policy = self.policy.clone();
        let Chosen { methods, chars_max, lease, deadline, store_timeout, release, unknown } =
            self.chosen.clone();
        policy.methods = methods.unwrap_or_else(|| covered(&policy.methods, &self.required));
        policy.required = match &self.required {
            Required::None => Vec::new(),
            Required::Usual => {
                REQUIRED.into_iter().filter(|method| policy.methods.contains(method)).collect()
            }
            Required::These(methods) => methods.clone(),
        };
        policy.key.chars_max = chars_max.unwrap_or(policy.key.chars_max.max(policy.key.chars_min));
        policy.lease = lease.unwrap_or_else(|| {
            let at_most = deadline.unwrap_or(Duration::MAX).max(LEASE_MIN);
            let at_least = store_timeout.unwrap_or_default().saturating_mul(2).min(DERIVED_LEASE_MAX);
            policy.lease.min(at_most).max(at_least)
        });
        policy.deadline = deadline.unwrap_or(policy.deadline.max(policy.lease));
        // A lease below its least is a fault of its own, and nothing can be derived from it.
        let at_most = if policy.lease < LEASE_MIN { Duration::MAX } else { half(policy.lease) };
        policy.store_timeout = store_timeout.unwrap_or(policy.store_timeout.min(at_most));
        let without = |statuses: &[u16], others: &Option<Vec<u16>>| {
            let is_free = |status: &&u16| others.as_ref().is_none_or(|others| !others.contains(*status));
            statuses.iter().filter(is_free).copied().collect()
        };
        policy.release = release.clone().unwrap_or_else(|| without(&policy.release, &unknown));
        policy.unknown = unknown.unwrap_or_else(|| without(&policy.unknown, &release));
        policy
    }
}

/// In whole milliseconds, as settings are written.
fn half(span: Duration) -> Duration {
    Duration::from_millis(u64::try_from(span.as_millis() / 2).unwrap_or(u64::MAX))
}

/// `methods`, and those that must carry a key. Those that cannot be covered are left out, and reported with `required`.
fn covered(methods: &[Method], required: &Required) -> Vec<Method> {
    let mut covered = methods.to_vec();
    if let Required::These(required) = required {
        let can_be = |method: &&Method| !method.is_safe() && **method != Method::CONNECT;
        let new = |method: &&Method| !methods.contains(*method);
        covered.extend(required.iter().filter(can_be).filter(new).cloned());
    }
    covered
}

/// The settings that [`Draft::finish`] may derive; `key_from` is, from `header`.
pub(super) const DERIVED: [&str; 8] =
    ["key_from", "methods", "key_chars_max", "lease", "deadline", "release", "unknown", "store_timeout"];

/// A setting as it is written in TOML, if it is one of [`DERIVED`] and `policy` has it otherwise than `below`.
pub(super) fn derived(name: &str, policy: &Policy, below: &Policy) -> Option<String> {
    let span = |span| format!("\"{}\"", policy::span(span));
    let written = |policy: &Policy| match name {
        "key_from" => texts(&policy.key_from),
        "methods" => texts(&policy.methods),
        "key_chars_max" => policy.key.chars_max.to_string(),
        "lease" => span(policy.lease),
        "deadline" => span(policy.deadline),
        "release" => format!("{:?}", policy.release),
        "unknown" => format!("{:?}", policy.unknown),
        "store_timeout" => span(policy.store_timeout),
        _ => String::new(),
    };
    let value = written(policy);
    (value != written(below)).then_some(value)
}

/// What the policy's dialect brings: the settings of its preset, by name, each as it is written in TOML.
pub(super) fn brought(policy: &Policy) -> Vec<(&'static str, String)> {
    let preset = &policy.dialect.preset;
    let span = |span: &Duration| format!("\"{}\"", policy::span(*span));
    let brought = [
        ("key_from", preset.key_from.as_ref().map(|sources| texts(sources))),
        ("syntax", preset.syntax.map(|syntax| SYNTAX.written(syntax))),
        ("methods", preset.methods.as_ref().map(|methods| texts(methods))),
        ("required", preset.required.as_ref().map(|methods| texts(methods))),
        ("key_chars_min", preset.key_chars_min.map(|chars| chars.to_string())),
        ("key_chars_max", preset.key_chars_max.map(|chars| chars.to_string())),
        // It may only add to what is set otherwise.
        ("scope", preset.scope.as_ref().map(|_| texts(&policy.scope))),
        ("anonymous", preset.anonymous.map(|anonymous| ANONYMOUS.written(anonymous))),
        ("retention", preset.retention.as_ref().map(span)),
        ("on_expired", preset.on_expired.map(|on_expired| ON_EXPIRED.written(on_expired))),
        ("release", preset.release.as_ref().map(|statuses| format!("{statuses:?}"))),
        ("unknown", preset.unknown.as_ref().map(|statuses| format!("{statuses:?}"))),
        ("on_5xx", preset.on_5xx.map(|on_5xx| ON_5XX.written(on_5xx))),
        ("request_time_header", preset.request_time_header.as_ref().map(|name| format!("\"{name}\""))),
        ("request_age_max", preset.request_age_max.as_ref().map(span)),
        ("fingerprint.body", preset.body.map(|body| BODY.written(body))),
        ("fingerprint.ignore", preset.ignore.as_ref().map(|pointers| texts(pointers))),
        ("fingerprint.headers", preset.headers.as_ref().map(|headers| texts(headers))),
    ];
    brought.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// A list of strings as it is written in TOML.
fn texts(list: &[impl ToString]) -> String {
    format!("{:?}", list.iter().map(ToString::to_string).collect::<Vec<_>>())
}

/// What `[policy]` says that cannot stand together.
pub(super) fn check(policy: &Policy, section: &Section<'_>) {
    faults_of(policy).into_iter().for_each(|fault| tell(fault, section));
}

/// What a route makes of it that cannot stand together; what is wrong in `[policy]` already is told there.
pub(super) fn check_route(policy: &Policy, base: &Policy, section: &Section<'_>) {
    let told = faults_of(base);
    for mut fault in faults_of(policy).into_iter().filter(|fault| !told.contains(fault)) {
        fault.remedy = fault.remedy.replace("policy.", "");
        tell(fault, section);
    }
}

fn faults_of(policy: &Policy) -> Vec<policy::Fault> {
    let mut faults = policy.check().err().map(|faults| faults.0).unwrap_or_default();
    let names_nobody = !policy.scope.is_empty() && !policy.scope.iter().any(|source| source.names_caller());
    if names_nobody && policy.anonymous == Anonymous::Refuse {
        let remedy = "does not identify a caller, so all would share their answers; add a source such as \
                      header:authorization, or set policy.anonymous to \"shared\" if you want that";
        faults.push(policy::Fault { path: "policy.scope", value: "route".into(), remedy: remedy.into() });
    }
    let by_key = |source: &&Source| match source {
        Source::Header(name) | Source::Trusted(name) => policy.key_headers().any(|key| key == name),
        Source::Jwt(_) | Source::Certificate | Source::Route => false,
    };
    if let Some(source) = policy.scope.iter().find(by_key) {
        let remedy = "is the header of the key, which does not identify a caller; use a credential instead";
        faults.push(policy::Fault { path: "policy.scope", value: source.to_string(), remedy: remedy.into() });
    }
    faults
}

fn tell(fault: policy::Fault, section: &Section<'_>) {
    let name = fault.path.strip_prefix("policy.").unwrap_or(fault.path);
    // Nobody set how long downstream remembers, and nothing can be derived for it: what was set is told instead.
    let touched = ["deadline", "horizon", "lease"].into_iter().find(|name| section.has(name));
    match touched {
        Some(touched) if name == "downstream_retention" && !section.has(name) => {
            let value = section.node(touched).map(|node| node.value.to_string());
            let value = value.map(|value| value.trim_matches('"').to_owned());
            let remedy = format!(
                "leaves no time for a rerun while downstream surely remembers a key, which is {} unless downstream_retention says \
                 otherwise; set that to what downstream promises, or shorten this",
                fault.value
            );
            section.fault(touched, value, remedy);
        }
        Some(_) | None => section.fault(name, fault.value, fault.remedy),
    }
}
