//! `[policy]` and `[policy.fingerprint]`, and the same settings in a route.

use onlyonce::fingerprint::{self, BodyForm};
use onlyonce::key::{self, PersonalData, Rules, Syntax};
use onlyonce::policy::{Accept, Anonymous, InFlight, Mode, On5xx, OnExpired, StoreDown};
use onlyonce::scope::Source;
use onlyonce::{Dialect, Effects, Policy};

use crate::config::policy::{Chosen, Draft};
use crate::config::reader::Section;
use crate::config::secret::{self, Environment};
use crate::config::setting::form;
use crate::config::setting::kind::{BYTES, HEADER, Kind, List, REQUIRED, SPAN, Takes, Words};
use crate::config::tree::Node;
use crate::config::value::{self, Read};

pub(in crate::config) const SYNTAX: Words<Syntax> =
    Words(&[("either", Syntax::Either), ("sf-string", Syntax::SfString), ("bare", Syntax::Bare)]);
pub(in crate::config) const ON_5XX: Words<On5xx> =
    Words(&[("retry", On5xx::Retry), ("store", On5xx::Store), ("unknown", On5xx::Unknown)]);
const MODE: Words<Mode> = Words(&[("observe", Mode::Observe), ("enforce", Mode::Enforce)]);
pub(in crate::config) const ANONYMOUS: Words<Anonymous> =
    Words(&[("refuse", Anonymous::Refuse), ("shared", Anonymous::Shared)]);
pub(in crate::config) const ON_EXPIRED: Words<OnExpired> =
    Words(&[("run", OnExpired::Run), ("gone", OnExpired::Gone)]);
pub(in crate::config) const BODY: Words<BodyForm> =
    Words(&[("auto", BodyForm::Auto), ("bytes", BodyForm::Bytes)]);
const KEY_FROM: List<key::Source> = List(form::KEY_SOURCES, r#"["header:Idempotency-Key"]"#, value::parsed);
const PERSONAL_DATA: Words<PersonalData> =
    Words(&[("allow", PersonalData::Allow), ("warn", PersonalData::Warn), ("refuse", PersonalData::Refuse)]);
const EFFECTS: Words<Effects> = Words(&[
    ("local", Effects::Local),
    ("keyed", Effects::Keyed),
    ("queryable", Effects::Queryable),
    ("opaque", Effects::Opaque),
]);
const IN_FLIGHT: Words<InFlight> =
    Words(&[("refuse", InFlight::Refuse), ("accept", InFlight::Accept), ("wait", InFlight::Wait)]);
const ACCEPT: Words<Accept> =
    Words(&[("never", Accept::Never), ("allowed", Accept::Allowed), ("always", Accept::Always)]);
const SCOPE: List<Source> = List(form::SCOPE_SOURCES, r#"["header:authorization"]"#, value::parsed);
const CHARS: Kind<usize> =
    Kind(form::COUNT, |node, _| value::count(node).map(|count| usize::try_from(count).unwrap_or(usize::MAX)));

/// The name of a dialect: one that comes with the library, or a table of the user's own.
struct OneOf<'a>(&'a [Dialect]);

impl Takes for OneOf<'_> {
    type Value = Dialect;

    fn described(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|dialect| format!("`{}`", dialect.name)).collect();
        names.join(", ")
    }

    /// A dialect of the user's own may have any name, which the schema cannot know; an editor still proposes these.
    fn schema(&self) -> serde_json::Value {
        let known = form::words(self.0.iter().map(|dialect| &*dialect.name));
        serde_json::json!({"anyOf": [known, {"type": "string"}]})
    }

    fn read(&self, node: &Node, _: &Environment<'_>) -> Read<Dialect> {
        let names: Vec<_> = self.0.iter().enumerate().map(|(at, dialect)| (&*dialect.name, at)).collect();
        value::word(node, &names).map(|at| self.0[at].clone())
    }
}

/// What stands in `section`, laid over `draft`. `dialects` are all there are.
pub(super) fn laid_over(mut draft: Draft, section: &Section<'_>, dialects: &[Dialect]) -> Draft {
    section
        .setting("mode", "`observe`: every request is forwarded, and the metrics count what would have been decided. `enforce`: the decisions take effect.")
        .over(&mut draft.policy.mode, &MODE, r#""enforce""#);
    let dialect = section
        .setting(
            "dialect",
            "The format of refusals and of the headers of replays, and a preset of settings: see [dialects](#dialects) and [presets](presets.md). A dialect of your own is a table `[dialects.NAME]`.",
        )
        .given(&OneOf(dialects), r#""ietf""#);
    // Before the settings of its preset: they are laid over it.
    if let Some(dialect) = dialect {
        draft.lay_dialect(dialect);
    }
    // Every field by its name, so that a new one without an entry does not compile. Those with `_` were read above, or are in
    // other fields of the draft.
    let Policy {
        mode: _,
        dialect: _,
        key_from,
        key: Rules { syntax, chars_min, chars_max: _, personal_data },
        methods: _,
        required: _,
        scope,
        anonymous,
        effects,
        downstream_retention,
        retention,
        on_expired,
        lease: _,
        deadline: _,
        horizon,
        reconcile_first: _,
        in_flight,
        wait_max,
        accept,
        release: _,
        unknown: _,
        on_5xx,
        store_down,
        store_timeout: _,
        request_time_header,
        request_age_max,
        request_bytes_max,
        response_bytes_max,
        not_replayed,
        fingerprint,
    } = &mut draft.policy;
    let Chosen { methods, chars_max, lease, deadline, store_timeout, release, unknown } = &mut draft.chosen;
    let header = section
        .setting("header", "The header that carries the key; short for `key_from` with one header.")
        .given(&HEADER, r#""Idempotency-Key""#);
    let listed = section
        .setting("key_from", "Where the key stands. `header:NAME`: a header. `json:/POINTER`: one string of a JSON body, found by a JSON Pointer. `query:NAME`: a parameter of the query. All places that hold a key must hold the same one: two that differ are 400. With `json:`, the body of every covered request is read first, with or without a key: above `request_bytes_max` it is 413.")
        .given(&KEY_FROM, r#"["header:Idempotency-Key"]"#);
    *key_from = match (header.map(key::Source::Header), listed) {
        (Some(header), Some(listed)) if !listed.contains(&header) => {
            let remedy = format!("is not among key_from; add {header} there, or remove header");
            section.fault("header", header.to_string().trim_start_matches("header:").to_owned(), remedy);
            listed
        }
        (_, Some(listed)) => listed,
        (Some(header), None) => vec![header],
        (None, None) => std::mem::take(key_from),
    };
    section
        .setting("syntax", r#"`either`: `"abc"` and `abc` name one key. `sf-string`: only in double quotes. `bare`: a quote is a character like any other."#)
        .over(syntax, &SYNTAX, r#""either""#);
    section.setting("methods", "The methods whose keys count. GET and other safe methods are not allowed. If not set, the methods of `required` are included.").over_derived(
        methods,
        &List(form::METHODS, r#"["POST"]"#, value::method),
        r#"["POST", "PATCH", "PUT", "DELETE"]"#,
    );
    section
        .setting(
            "required",
            "The methods that need a key; without one the answer is 400. `true`: POST and PATCH.",
        )
        .over(&mut draft.required, &REQUIRED, "false");
    section
        .setting("key_chars_min", "The minimum length of a key, in characters. 16 rules out counters.")
        .over(chars_min, &CHARS, "1");
    section
        .setting(
            "key_chars_max",
            "The maximum length of a key, in characters. At least `key_chars_min`, also if not set.",
        )
        .over_derived(chars_max, &CHARS, "255");
    section
        .setting("personal_data", "Keys that look like an e-mail address, a phone number or a card number. `allow`: not checked. `warn`: logged with a short digest. `refuse`: 400.")
        .over(personal_data, &PERSONAL_DATA, r#""warn""#);
    section
        .setting("scope", "What identifies a caller. `header:NAME`: a credential, stored only as a digest. `trusted:NAME`: a header set by a proxy in `trusted_from`. `jwt:CLAIM`: a claim of a token that `[jwt]` verified. `certificate`: the client's certificate, verified by `tls.client_ca`. `route`: one key on two routes is two operations.")
        .over(scope, &SCOPE, r#"["header:authorization"]"#);
    section
        .setting(
            "anonymous",
            "Callers that cannot be identified. `refuse`: 401. `shared`: one scope for all of them.",
        )
        .over(anonymous, &ANONYMOUS, r#""refuse""#);
    section
        .setting("effects", "What the work touches. It decides what happens to a lost attempt: see [choosing effects](guide.md#choosing-effects).")
        .over(effects, &EFFECTS, r#""opaque""#);
    section
        .setting(
            "downstream_retention",
            "For `keyed` work: how long downstream remembers the key at least, from its first use.",
        )
        .over(downstream_retention, &SPAN, r#""23h""#);
    section
        .setting("retention", "How long a finished record is kept, from the end of its attempt. At least `1s`. Replays do not prolong it.")
        .over(retention, &SPAN, r#""24h""#);
    section
        .setting(
            "on_expired",
            "A request whose record has expired. `run`: it is a new request. `gone`: 410, until the record is deleted.",
        )
        .over(on_expired, &ON_EXPIRED, r#""run""#);
    section
        .setting("lease", "How long an attempt is presumed alive. It is renewed after half of it. At least `1s`. If not set: at most the deadline, and at least twice `store_timeout`.")
        .over_derived(lease, &SPAN, r#""30s""#);
    section
        .setting(
            "deadline",
            "How long an attempt may take, even if its lease is renewed; also how long the upstream may take. At least the lease, also if not set.",
        )
        .over_derived(deadline, &SPAN, r#""5m""#);
    section
        .setting("horizon", "How long after the deadline the work may still take effect downstream. Until then the verdict `did-not-happen` is refused, unless it is final.")
        .over(horizon, &SPAN, r#""30s""#);
    section
        .setting("in_flight", "Duplicates of a running request. `refuse`: 409. `accept`: 202 with a status link. `wait`: they wait for the answer. A client may always ask to wait with `Prefer: wait=N`.")
        .over(in_flight, &IN_FLIGHT, r#""refuse""#);
    section.setting("wait_max", "How long a duplicate may wait.").over(wait_max, &SPAN, r#""10s""#);
    section
        .setting("accept", "Whether a request is stored, answered with 202 and run by a worker. `allowed`: if the client asks for it with `Prefer: respond-async`. It needs `[encryption]`, since credentials are stored too. See [long work](guide.md#long-work).")
        .over(accept, &ACCEPT, r#""never""#);
    section
        .setting("release", "Statuses which mean that the work was not done: the answer is passed on, and a retry runs. After 401 and 403 the record is kept for 5 minutes only. If not set, without the statuses of `unknown`.")
        .over_derived(release, &List(form::STATUSES, "[401, 403]", value::status), "[401, 403, 425, 429]");
    section.setting("unknown", "Statuses that leave the outcome unknown. `keyed` and `local` work is retryable instead. If not set, without the statuses of `release`.").over_derived(
        unknown,
        &List(form::STATUSES, "[502, 504]", value::status),
        "[408, 502, 504]",
    );
    section
        .setting("on_5xx", "What any other 5xx means. `retry`: the work was not done, and a retry runs. `store`: it is the answer, and is replayed. `unknown`: the outcome is unknown. For `queryable` work, `retry` is the same as `unknown`.")
        .over(on_5xx, &ON_5XX, r#""retry""#);
    section
        .setting("store_down", "While the store cannot be reached. `refuse`: 503, and nothing runs. `run`: requests run unprotected, and their answers are marked `Idempotency-Stored: false`.")
        .over(store_down, &Words(&[("refuse", StoreDown::Refuse), ("run", StoreDown::Run)]), r#""refuse""#);
    section
        .setting("store_timeout", "How long the store may take. At most half the lease, also if not set.")
        .over_derived(store_timeout, &SPAN, r#""2s""#);
    section
        .setting(
            "request_bytes_max",
            "The largest body of a keyed request, which is held in memory. Above it: 413.",
        )
        .over(request_bytes_max, &BYTES, r#""1MiB""#);
    section
        .setting("response_bytes_max", "The largest answer that is stored, body and headers. Larger ones are passed on completely but not replayed.")
        .over(response_bytes_max, &BYTES, r#""1MiB""#);
    section
        .setting("not_replayed", "Headers of the first answer that a replay leaves out. Headers about one connection (`connection` and those it lists, `keep-alive`, `te`, `trailer`, `transfer-encoding`, `upgrade` …) are never stored.")
        .over(
            not_replayed,
            &List(form::HEADERS, r#"["date"]"#, value::header),
            r#"["date", "age", "set-cookie", "authorization", "authentication-info", "proxy-authentication-info", "www-authenticate", "retry-after", "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "server-timing"]"#,
        );
    *request_time_header = section
        .setting("request_time_header", "The header with the time at which the client made a keyed request: unix seconds, RFC 3339 or an HTTP-date. Needs `request_age_max`. It protects only if a signature covers it, and the service or a proxy in front must verify that signature.")
        .optional(&HEADER, r#""X-Request-Time""#)
        .or(request_time_header.take());
    *request_age_max = section
        .setting("request_age_max", "How old a request that would run may be. Above it: 400; also without a time, or with a time more than 60 s in the future. Requests whose answer is stored are answered as usual.")
        .optional(&SPAN, r#""5m""#)
        .or(request_age_max.take());
    fingerprint_over(fingerprint, &section.inner("fingerprint"));
    draft
}

fn fingerprint_over(below: &mut fingerprint::Settings, section: &Section<'_>) {
    let fingerprint::Settings { body, ignore, headers, secrets } = below;
    section
        .setting(
            "body",
            "`auto`: JSON, form and multipart bodies are compared by their content. `bytes`: all bodies are compared byte by byte.",
        )
        .over(body, &BODY, r#""auto""#);
    section
        .setting("ignore", "JSON Pointers to members that are not compared, such as `/client_time`.")
        .over(ignore, &List(form::POINTER_LIST, r#"["/client_time"]"#, value::parsed), "[]");
    section.setting("headers", "Headers that are compared.").over(
        headers,
        &List(form::HEADERS, r#"["if-match"]"#, value::header),
        r#"["if-match"]"#,
    );
    section
        .setting("secrets", "With a secret, fingerprints are HMACs. The first secret signs, all verify.")
        .over(secrets, &Kind(form::SECRETS, fingerprint_secrets), "[]");
}

fn fingerprint_secrets(node: &Node, environment: &Environment<'_>) -> Read<Vec<fingerprint::Secret>> {
    let secret = |secret: crate::config::Secret| {
        fingerprint::Secret::new(&secret.bytes).expect("a secret that was read is not empty")
    };
    Ok(secret::list(node, environment)?.into_iter().map(secret).collect())
}
