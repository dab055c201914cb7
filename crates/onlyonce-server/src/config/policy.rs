//! `[policy]` and what a route changes of it.
//!
//! Of two, the more specific wins: a route's own setting, the preset of the route's dialect, a setting of `[policy]`, the
//! preset of its dialect, the default. So each is laid over the one before.

use http::Method;
use onlyonce::fingerprint::{self, BodyForm};
use onlyonce::key::{PersonalData, Syntax};
use onlyonce::policy::{Anonymous, InFlight, Mode, On5xx, OnExpired, REQUIRED, StoreDown};
use onlyonce::scope::Source;
use onlyonce::{Dialect, Effects, Policy, policy};

use super::reader::{Reader, Section};
use super::value::{self, Required};

/// A policy that is still being put together.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    policy: Policy,
    /// `required = true` is about the methods that are covered, which a route may change.
    requires_usual: bool,
}

impl Draft {
    pub(super) fn default() -> Self {
        Self { policy: Policy::default(), requires_usual: false }
    }

    /// With what stands in `section` laid over it.
    pub(super) fn with(mut self, section: &Section<'_>, reader: &mut Reader<'_>) -> Self {
        self.lay_dialect(section, reader);
        self.lay_requests(section, reader);
        self.lay_times(section, reader);
        self.lay_answers(section, reader);
        self.lay_fingerprint(&section.inner("fingerprint"), reader);
        self
    }

    pub(super) fn finish(&self) -> Policy {
        let mut policy = self.policy.clone();
        if self.requires_usual {
            policy.required = REQUIRED.into_iter().filter(|method| policy.methods.contains(method)).collect();
        }
        policy
    }

    fn lay_dialect(&mut self, section: &Section<'_>, reader: &mut Reader<'_>) {
        const DIALECTS: [fn() -> Dialect; 3] = [Dialect::ietf, Dialect::stripe, Dialect::conflict];
        let words = [("ietf", 0), ("stripe", 1), ("conflict", 2)];
        let Some(at) = reader.word(section, "dialect", &words) else { return };
        let dialect = DIALECTS[at]();
        let preset = dialect.preset.clone();
        let policy = &mut self.policy;
        policy.dialect = dialect;
        lay(&mut policy.key.syntax, preset.syntax);
        lay(&mut policy.key.chars_max, preset.key_chars_max);
        lay(&mut policy.release, preset.release);
        lay(&mut policy.unknown, preset.unknown);
        lay(&mut policy.on_5xx, preset.on_5xx);
    }

    fn lay_requests(&mut self, section: &Section<'_>, reader: &mut Reader<'_>) {
        let policy = &mut self.policy;
        let modes = [("observe", Mode::Observe), ("enforce", Mode::Enforce)];
        lay(&mut policy.mode, reader.word(section, "mode", &modes));
        lay(&mut policy.header, reader.read(section, "header", value::header));
        let syntaxes = [("either", Syntax::Either), ("sf-string", Syntax::SfString), ("bare", Syntax::Bare)];
        lay(&mut policy.key.syntax, reader.word(section, "syntax", &syntaxes));
        lay(&mut policy.methods, reader.list(section, "methods", "[\"POST\"]", value::method));
        match reader.read(section, "required", value::required) {
            None => {}
            Some(Required::None) => self.require(Vec::new(), false),
            Some(Required::Usual) => self.require(Vec::new(), true),
            Some(Required::These(methods)) => self.require(methods, false),
        }
        let policy = &mut self.policy;
        lay(&mut policy.key.chars_min, chars(section, "key_chars_min", reader));
        lay(&mut policy.key.chars_max, chars(section, "key_chars_max", reader));
        let personal_data =
            [("allow", PersonalData::Allow), ("warn", PersonalData::Warn), ("refuse", PersonalData::Refuse)];
        lay(&mut policy.key.personal_data, reader.word(section, "personal_data", &personal_data));
        lay(&mut policy.scope, reader.list(section, "scope", "[\"header:authorization\"]", value::parsed));
        let anonymous = [("refuse", Anonymous::Refuse), ("shared", Anonymous::Shared)];
        lay(&mut policy.anonymous, reader.word(section, "anonymous", &anonymous));
        lay(&mut policy.request_bytes_max, reader.read(section, "request_bytes_max", value::bytes));
    }

    fn require(&mut self, methods: Vec<Method>, usual: bool) {
        self.policy.required = methods;
        self.requires_usual = usual;
    }

    fn lay_times(&mut self, section: &Section<'_>, reader: &mut Reader<'_>) {
        let policy = &mut self.policy;
        for (name, span) in [
            ("downstream_retention", &mut policy.downstream_retention),
            ("retention", &mut policy.retention),
            ("lease", &mut policy.lease),
            ("deadline", &mut policy.deadline),
            ("horizon", &mut policy.horizon),
            ("wait_max", &mut policy.wait_max),
            ("store_timeout", &mut policy.store_timeout),
        ] {
            lay(span, reader.read(section, name, value::span));
        }
        let effects = [
            ("local", Effects::Local),
            ("keyed", Effects::Keyed),
            ("queryable", Effects::Queryable),
            ("opaque", Effects::Opaque),
        ];
        lay(&mut policy.effects, reader.word(section, "effects", &effects));
        let on_expired = [("run", OnExpired::Run), ("gone", OnExpired::Gone)];
        lay(&mut policy.on_expired, reader.word(section, "on_expired", &on_expired));
    }

    fn lay_answers(&mut self, section: &Section<'_>, reader: &mut Reader<'_>) {
        let policy = &mut self.policy;
        let in_flight =
            [("refuse", InFlight::Refuse), ("accept", InFlight::Accept), ("wait", InFlight::Wait)];
        lay(&mut policy.in_flight, reader.word(section, "in_flight", &in_flight));
        let accepts = [("never", false), ("allowed", true), ("always", true)];
        if reader.word(section, "accept", &accepts) == Some(true) {
            let remedy = "needs accepted work and [encryption], which are not in this release; take it out";
            let value = section.node("accept").map(|node| node.value.to_string());
            reader.fault(section, "accept", value, remedy);
        }
        lay(&mut policy.release, reader.list(section, "release", "[401, 403]", value::status));
        lay(&mut policy.unknown, reader.list(section, "unknown", "[502, 504]", value::status));
        let on_5xx = [("retry", On5xx::Retry), ("store", On5xx::Store), ("unknown", On5xx::Unknown)];
        lay(&mut policy.on_5xx, reader.word(section, "on_5xx", &on_5xx));
        let store_down = [("refuse", StoreDown::Refuse), ("run", StoreDown::Run)];
        lay(&mut policy.store_down, reader.word(section, "store_down", &store_down));
        lay(&mut policy.response_bytes_max, reader.read(section, "response_bytes_max", value::bytes));
        lay(&mut policy.not_replayed, reader.list(section, "not_replayed", "[\"date\"]", value::header));
    }

    fn lay_fingerprint(&mut self, section: &Section<'_>, reader: &mut Reader<'_>) {
        let settings = &mut self.policy.fingerprint;
        let forms = [("auto", BodyForm::Auto), ("bytes", BodyForm::Bytes)];
        lay(&mut settings.body, reader.word(section, "body", &forms));
        lay(&mut settings.ignore, reader.list(section, "ignore", "[\"/client_time\"]", value::parsed));
        lay(&mut settings.headers, reader.list(section, "headers", "[\"if-match\"]", value::header));
        let secrets = reader.secrets(section, "secrets").map(|secrets| {
            let secret = |secret: super::Secret| {
                fingerprint::Secret::new(&secret.bytes).expect("a secret that was read is not empty")
            };
            secrets.into_iter().map(secret).collect()
        });
        lay(&mut settings.secrets, secrets);
    }
}

fn lay<T>(below: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *below = value;
    }
}

fn chars(section: &Section<'_>, name: &str, reader: &mut Reader<'_>) -> Option<usize> {
    let count = reader.read(section, name, value::count)?;
    Some(usize::try_from(count).unwrap_or(usize::MAX))
}

/// What `[policy]` says that cannot stand together.
pub(super) fn check(policy: &Policy, section: &Section<'_>, reader: &mut Reader<'_>) {
    faults_of(policy).into_iter().for_each(|fault| tell(fault, section, reader));
}

/// What a route makes of it that cannot stand together; what is wrong in `[policy]` already is told there.
pub(super) fn check_route(policy: &Policy, base: &Policy, section: &Section<'_>, reader: &mut Reader<'_>) {
    let told = faults_of(base);
    for mut fault in faults_of(policy).into_iter().filter(|fault| !told.contains(fault)) {
        fault.remedy = fault.remedy.replace("policy.", "");
        tell(fault, section, reader);
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

fn tell(fault: policy::Fault, section: &Section<'_>, reader: &mut Reader<'_>) {
    let name = fault.path.strip_prefix("policy.").unwrap_or(fault.path);
    reader.fault(section, name, fault.value, fault.remedy);
}
