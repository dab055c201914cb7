//! `[policy]` and what a route changes of it; its settings are read in `setting/table/policy.rs`.
//!
//! Of two, the more specific wins: a route's own setting, the preset of the route's dialect, a setting of `[policy]`, the
//! preset of its dialect, the default. So each is laid over the one before.

use onlyonce::policy::{self, Anonymous, REQUIRED};
use onlyonce::scope::Source;
use onlyonce::{Dialect, Policy};

use super::reader::Section;
use super::setting::table::policy::{ON_5XX, SYNTAX};
use super::value::Required;

/// A policy that is still being put together.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) policy: Policy,
    /// `required = true` is about the methods that are covered, which a route may change.
    pub(super) required: Required,
}

impl Draft {
    pub(super) fn default() -> Self {
        Self { policy: Policy::default(), required: Required::None }
    }

    /// Lays what `dialect` brings over what holds so far.
    pub(super) fn lay_dialect(&mut self, dialect: Dialect) {
        let preset = dialect.preset.clone();
        let policy = &mut self.policy;
        policy.dialect = dialect;
        lay(&mut policy.key.syntax, preset.syntax);
        lay(&mut policy.key.chars_max, preset.key_chars_max);
        lay(&mut policy.release, preset.release);
        lay(&mut policy.unknown, preset.unknown);
        lay(&mut policy.on_5xx, preset.on_5xx);
    }

    pub(super) fn finish(&self) -> Policy {
        let mut policy = self.policy.clone();
        policy.required = match &self.required {
            Required::None => Vec::new(),
            Required::Usual => {
                REQUIRED.into_iter().filter(|method| policy.methods.contains(method)).collect()
            }
            Required::These(methods) => methods.clone(),
        };
        policy
    }
}

fn lay<T>(below: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *below = value;
    }
}

/// What a dialect brings: the settings of its preset, by name, each as it is written in TOML.
pub(super) fn brought(dialect: &Dialect) -> Vec<(&'static str, String)> {
    let preset = &dialect.preset;
    let brought = [
        ("syntax", preset.syntax.map(|syntax| SYNTAX.written(syntax))),
        ("key_chars_max", preset.key_chars_max.map(|chars| chars.to_string())),
        ("release", preset.release.as_ref().map(|statuses| format!("{statuses:?}"))),
        ("unknown", preset.unknown.as_ref().map(|statuses| format!("{statuses:?}"))),
        ("on_5xx", preset.on_5xx.map(|on_5xx| ON_5XX.written(on_5xx))),
    ];
    brought.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
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
        let remedy = "tells no caller from another, so all would share their answers; add a source such as \
                      header:authorization, or set policy.anonymous to \"shared\" if that is meant";
        faults.push(policy::Fault { path: "policy.scope", value: "route".into(), remedy: remedy.into() });
    }
    let by_key = |source: &&Source| match source {
        Source::Header(name) | Source::Trusted(name) => *name == policy.header,
        Source::Jwt(_) | Source::Certificate | Source::Route => false,
    };
    if let Some(source) = policy.scope.iter().find(by_key) {
        let remedy =
            "is the header of the key itself, which tells no caller from another; name a credential instead";
        faults.push(policy::Fault { path: "policy.scope", value: source.to_string(), remedy: remedy.into() });
    }
    faults
}

fn tell(fault: policy::Fault, section: &Section<'_>) {
    let name = fault.path.strip_prefix("policy.").unwrap_or(fault.path);
    section.fault(name, fault.value, fault.remedy);
}
