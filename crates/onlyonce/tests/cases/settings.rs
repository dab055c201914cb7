//! A policy from settings by the names that configuration files use.

use std::str::FromStr;

use http::{HeaderName, Method};
use onlyonce::fingerprint::{BodyForm, Secret};
use onlyonce::key::{PersonalData, Syntax};
use onlyonce::policy::{Anonymous, InFlight, Mode, On5xx, OnExpired, REQUIRED, StoreDown};
use onlyonce::{Dialect, Effects, Limits, Policy};
use toml::{Table, Value};

use crate::runner::payload::span;

/// The defaults, `required = true`, and over them each of `overlays`, the later the stronger.
pub(crate) fn policy(overlays: &[&Table]) -> Policy {
    let mut all = Table::new();
    all.insert("required".into(), Value::Boolean(true));
    for overlay in overlays {
        all.extend((*overlay).clone());
    }
    // A preset first: a setting of its own beats it.
    let mut policy = match all.remove("dialect") {
        None => Policy::default(),
        Some(name) => Policy::of(dialect(text(&name))),
    };
    if let Some(methods) = all.remove("methods") {
        policy.methods = list(&methods);
    }
    for (name, value) in &all {
        set(&mut policy, name, value);
    }
    policy
}

/// The limits of a case.
pub(crate) fn limits(settings: &Table) -> Limits {
    let mut limits = Limits::default();
    for (name, value) in settings {
        let value = number(value);
        match name.as_str() {
            "keys_per_second" => limits.keys_per_second = Some(value),
            "keys_per_second_total" => limits.keys_per_second_total = Some(value),
            "lookups_per_second" => limits.lookups_per_second = Some(value),
            "lookups_per_second_total" => limits.lookups_per_second_total = Some(value),
            "keys_alive" => limits.keys_alive = Some(value),
            "keys_alive_total" => limits.keys_alive_total = Some(value),
            "in_flight" => limits.in_flight = Some(value),
            "in_flight_total" => limits.in_flight_total = Some(value),
            "nodes" => limits.nodes = value,
            other => panic!("there is no limit {other:?}"),
        }
    }
    limits
}

fn set(policy: &mut Policy, name: &str, value: &Value) {
    match name {
        "mode" => policy.mode = mode(text(value)),
        "header" => policy.key_from = vec![onlyonce::key::Source::Header(parsed(value))],
        "key_from" => policy.key_from = list(value),
        "syntax" => policy.key.syntax = syntax(text(value)),
        "key_chars_min" => policy.key.chars_min = chars(value),
        "key_chars_max" => policy.key.chars_max = chars(value),
        "personal_data" => policy.key.personal_data = personal_data(text(value)),
        "required" => policy.required = required(value, &policy.methods),
        "scope" => policy.scope = list(value),
        "anonymous" => policy.anonymous = anonymous(text(value)),
        "effects" => policy.effects = effects(text(value)),
        "downstream_retention" => policy.downstream_retention = span(text(value)),
        "retention" => policy.retention = span(text(value)),
        "on_expired" => policy.on_expired = on_expired(text(value)),
        "lease" => policy.lease = span(text(value)),
        "deadline" => policy.deadline = span(text(value)),
        "horizon" => policy.horizon = span(text(value)),
        "in_flight" => policy.in_flight = in_flight(text(value)),
        "wait_max" => policy.wait_max = span(text(value)),
        "release" => policy.release = statuses(value),
        "unknown" => policy.unknown = statuses(value),
        "on_5xx" => policy.on_5xx = on_5xx(text(value)),
        "store_down" => policy.store_down = store_down(text(value)),
        "store_timeout" => policy.store_timeout = span(text(value)),
        "request_time_header" => policy.request_time_header = Some(parsed(value)),
        "request_age_max" => policy.request_age_max = Some(span(text(value))),
        "request_bytes_max" => policy.request_bytes_max = bytes(text(value)),
        "response_bytes_max" => policy.response_bytes_max = bytes(text(value)),
        "not_replayed" => policy.not_replayed = list(value),
        "fingerprint" => set_fingerprint(policy, value.as_table().expect("fingerprint is a table")),
        other => panic!("unknown setting {other:?}"),
    }
}

fn set_fingerprint(policy: &mut Policy, settings: &Table) {
    for (name, value) in settings {
        match name.as_str() {
            "body" => policy.fingerprint.body = body_form(text(value)),
            "ignore" => policy.fingerprint.ignore = list(value),
            "headers" => policy.fingerprint.headers = list(value),
            "secrets" => {
                let secret =
                    |value| Secret::new(text(value).as_bytes()).expect("a secret of the data has bytes");
                policy.fingerprint.secrets = array(value).iter().map(secret).collect();
            }
            other => panic!("unknown setting fingerprint.{other:?}"),
        }
    }
}

/// `true` is POST and PATCH, as far as they are covered.
fn required(value: &Value, methods: &[Method]) -> Vec<Method> {
    match value.as_bool() {
        Some(true) => REQUIRED.into_iter().filter(|method| methods.contains(method)).collect(),
        Some(false) => Vec::new(),
        None => list(value),
    }
}

fn mode(name: &str) -> Mode {
    match name {
        "observe" => Mode::Observe,
        "enforce" => Mode::Enforce,
        other => panic!("there is no mode {other:?}"),
    }
}

fn dialect(name: &str) -> Dialect {
    Dialect::named(name).unwrap_or_else(|| panic!("there is no dialect {name:?}"))
}

fn syntax(name: &str) -> Syntax {
    match name {
        "either" => Syntax::Either,
        "sf-string" => Syntax::SfString,
        "bare" => Syntax::Bare,
        other => panic!("there is no syntax {other:?}"),
    }
}

fn personal_data(name: &str) -> PersonalData {
    match name {
        "allow" => PersonalData::Allow,
        "warn" => PersonalData::Warn,
        "refuse" => PersonalData::Refuse,
        other => panic!("there is no personal_data {other:?}"),
    }
}

fn anonymous(name: &str) -> Anonymous {
    match name {
        "refuse" => Anonymous::Refuse,
        "shared" => Anonymous::Shared,
        other => panic!("there is no anonymous {other:?}"),
    }
}

fn effects(name: &str) -> Effects {
    match name {
        "local" => Effects::Local,
        "keyed" => Effects::Keyed,
        "queryable" => Effects::Queryable,
        "opaque" => Effects::Opaque,
        other => panic!("there are no effects {other:?}"),
    }
}

fn on_expired(name: &str) -> OnExpired {
    match name {
        "run" => OnExpired::Run,
        "gone" => OnExpired::Gone,
        other => panic!("there is no on_expired {other:?}"),
    }
}

fn in_flight(name: &str) -> InFlight {
    match name {
        "refuse" => InFlight::Refuse,
        "accept" => InFlight::Accept,
        "wait" => InFlight::Wait,
        other => panic!("there is no in_flight {other:?}"),
    }
}

fn on_5xx(name: &str) -> On5xx {
    match name {
        "retry" => On5xx::Retry,
        "store" => On5xx::Store,
        "unknown" => On5xx::Unknown,
        other => panic!("there is no on_5xx {other:?}"),
    }
}

fn store_down(name: &str) -> StoreDown {
    match name {
        "refuse" => StoreDown::Refuse,
        "run" => StoreDown::Run,
        other => panic!("there is no store_down {other:?}"),
    }
}

fn body_form(name: &str) -> BodyForm {
    match name {
        "auto" => BodyForm::Auto,
        "bytes" => BodyForm::Bytes,
        other => panic!("there is no fingerprint.body {other:?}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is not a string"))
}

fn number(value: &Value) -> u64 {
    value
        .as_integer()
        .and_then(|number| number.try_into().ok())
        .unwrap_or_else(|| panic!("{value} is not a number"))
}

fn chars(value: &Value) -> usize {
    usize::try_from(number(value)).expect("a number of characters fits every address space")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("{value} is no list"))
}

fn statuses(value: &Value) -> Vec<u16> {
    array(value).iter().map(|status| u16::try_from(number(status)).expect("a status")).collect()
}

fn list<T: FromStr>(value: &Value) -> Vec<T> {
    array(value).iter().map(parsed).collect()
}

fn parsed<T: FromStr>(value: &Value) -> T {
    text(value).parse().unwrap_or_else(|_| panic!("{value} cannot be read"))
}

/// `"64KiB"`, `"1MiB"`, `"17B"`.
fn bytes(text: &str) -> u64 {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..at].parse().unwrap_or_else(|_| panic!("{text:?} has no number"));
    match &text[at..] {
        "B" => number,
        "KiB" => number << 10,
        "MiB" => number << 20,
        unit => panic!("{text:?} has the unit {unit:?}; use B, KiB or MiB"),
    }
}

/// The header that tells callers apart where a setting names a verified source: in the layer's tests it stands for
/// what an authenticating middleware in front has found out.
pub(crate) fn verified_source(policy: &Policy) -> Option<HeaderName> {
    use onlyonce::scope::Source;
    policy.scope.iter().find_map(|source| match source {
        Source::Trusted(name) => Some(name.clone()),
        Source::Jwt(_) => Some(HeaderName::from_static("x-tenant")),
        Source::Header(_) | Source::Certificate | Source::Route => None,
    })
}
