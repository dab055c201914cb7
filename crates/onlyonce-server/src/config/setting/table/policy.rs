//! `[policy]` and `[policy.fingerprint]`, and the same settings in a route.

use onlyonce::fingerprint::{self, BodyForm};
use onlyonce::key::{PersonalData, Rules, Syntax};
use onlyonce::policy::{Anonymous, InFlight, Mode, On5xx, OnExpired, StoreDown};
use onlyonce::scope::Source;
use onlyonce::{Dialect, Effects, Policy};

use crate::config::policy::{Chosen, Draft};
use crate::config::reader::Section;
use crate::config::secret::{self, Environment};
use crate::config::setting::kind::{BYTES, HEADER, Kind, List, REQUIRED, SPAN, Words};
use crate::config::tree::Node;
use crate::config::value::{self, Read, wrong};

pub(in crate::config) const SYNTAX: Words<Syntax> =
    Words(&[("either", Syntax::Either), ("sf-string", Syntax::SfString), ("bare", Syntax::Bare)]);
pub(in crate::config) const ON_5XX: Words<On5xx> =
    Words(&[("retry", On5xx::Retry), ("store", On5xx::Store), ("unknown", On5xx::Unknown)]);
const MODE: Words<Mode> = Words(&[("observe", Mode::Observe), ("enforce", Mode::Enforce)]);
const DIALECT: Words<fn() -> Dialect> =
    Words(&[("ietf", Dialect::ietf), ("stripe", Dialect::stripe), ("conflict", Dialect::conflict)]);
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
const SCOPE: List<Source> = List(
    "`header:NAME`, `trusted:NAME`, `jwt:CLAIM`, `certificate`, `route`",
    r#"["header:authorization"]"#,
    value::parsed,
);
const CHARS: Kind<usize> =
    Kind("number", |node, _| value::count(node).map(|count| usize::try_from(count).unwrap_or(usize::MAX)));

/// What stands in `section`, laid over `draft`.
pub(super) fn laid_over(mut draft: Draft, section: &Section<'_>) -> Draft {
    section
        .setting("mode", "`observe`: every request goes upstream as if we were not there, and what would have been decided is counted. `enforce`: it happens.")
        .over(&mut draft.policy.mode, &MODE, r#""enforce""#);
    let dialect = section
        .setting(
            "dialect",
            "The shape of refusals and markers, and a preset of settings: see [dialects](#dialects).",
        )
        .given(&DIALECT, r#""ietf""#);
    // Before the settings of its preset: they are laid over it.
    if let Some(dialect) = dialect {
        draft.lay_dialect(dialect());
    }
    // Every field by its name, so that a new one without an entry does not compile. Those with `_` were read above, or are in
    // other fields of the draft.
    let Policy {
        mode: _,
        dialect: _,
        header,
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
        release: _,
        unknown: _,
        on_5xx,
        store_down,
        store_timeout: _,
        request_bytes_max,
        response_bytes_max,
        not_replayed,
        fingerprint,
    } = &mut draft.policy;
    let Chosen { methods, chars_max, lease, deadline, store_timeout, release, unknown } = &mut draft.chosen;
    section.setting("header", "The header that carries the key.").over(
        header,
        &HEADER,
        r#""Idempotency-Key""#,
    );
    section
        .setting("syntax", r#"`either`: `"abc"` and `abc` name one key. `sf-string`: only in double quotes. `bare`: a quote is a character like any other."#)
        .over(syntax, &SYNTAX, r#""either""#);
    section.setting("methods", "The methods that are covered. Safe methods cannot be. Where it is not set, methods of `required` are covered too.").over_derived(
        methods,
        &List("methods", r#"["POST"]"#, value::method),
        r#"["POST", "PATCH", "PUT", "DELETE"]"#,
    );
    section
        .setting("required", "The methods that must carry a key: 400 without. `true`: POST and PATCH.")
        .over(&mut draft.required, &REQUIRED, "false");
    section
        .setting("key_chars_min", "The fewest characters of a key. 16 keeps counters out.")
        .over(chars_min, &CHARS, "1");
    section
        .setting(
            "key_chars_max",
            "The most characters of a key. At least `key_chars_min`, also where it is not set.",
        )
        .over_derived(chars_max, &CHARS, "255");
    section
        .setting("personal_data", "What becomes of a key that looks like an e-mail address, a phone or card number: nobody looks, a log line with a short digest, or 400.")
        .over(personal_data, &PERSONAL_DATA, r#""warn""#);
    section
        .setting("scope", "What tells callers apart. `header:NAME`: a credential, kept only as a digest. `trusted:NAME`: a header set by a proxy of `trusted_from`. `jwt:CLAIM`: a claim of a token that `[jwt]` verified. `certificate`: the client's, verified by `tls.client_ca`. `route`: one key on two routes is two operations.")
        .over(scope, &SCOPE, r#"["header:authorization"]"#);
    section
        .setting(
            "anonymous",
            "What becomes of a caller that cannot be told apart: 401, or one scope for all of them.",
        )
        .over(
            anonymous,
            &Words(&[("refuse", Anonymous::Refuse), ("shared", Anonymous::Shared)]),
            r#""refuse""#,
        );
    section
        .setting("effects", "What the work touches. Decides what may be done when an attempt is lost: see [choosing effects](guide.md#choosing-effects).")
        .over(effects, &EFFECTS, r#""opaque""#);
    section
        .setting(
            "downstream_retention",
            "Keyed work: how long downstream surely remembers the key, from its first use.",
        )
        .over(downstream_retention, &SPAN, r#""23h""#);
    section
        .setting("retention", "How long a finished record is kept, from the end of its attempt. At least `1s`. Replays do not prolong it.")
        .over(retention, &SPAN, r#""24h""#);
    section
        .setting(
            "on_expired",
            "What a key is after that: a new request, or 410 while the record is still there.",
        )
        .over(on_expired, &Words(&[("run", OnExpired::Run), ("gone", OnExpired::Gone)]), r#""run""#);
    section
        .setting("lease", "How long an attempt is presumed alive. Renewed at half. At least `1s`. Where it is not set: at most the deadline, and at least twice `store_timeout`.")
        .over_derived(lease, &SPAN, r#""30s""#);
    section
        .setting(
            "deadline",
            "When an attempt ends, renewed or not; also how long the upstream may take. At least the lease, also where it is not set.",
        )
        .over_derived(deadline, &SPAN, r#""5m""#);
    section
        .setting("horizon", "How long after the deadline an effect may still turn up downstream. Before then, the verdict `did-not-happen` is not believed unless it is final.")
        .over(horizon, &SPAN, r#""30s""#);
    section
        .setting("in_flight", "Duplicates of what still runs: 409, 202 with the place to ask, or they wait. A client may always ask to wait with `Prefer: wait=N`.")
        .over(in_flight, &IN_FLIGHT, r#""refuse""#);
    section.setting("wait_max", "The longest wait.").over(wait_max, &SPAN, r#""10s""#);
    // It fills no field: there is nothing to say but `never`.
    section
        .setting(
            "accept",
            "Whether work is taken over and answered with 202 at once. Only `never` is in this release.",
        )
        .over(&mut (), &Kind("`never`, `allowed`, `always`", accept), r#""never""#);
    section
        .setting("release", "Nothing was done: the answer is passed on and the key may be tried again. After 401 and 403 the record is kept for 5 minutes only. Where it is not set, without the statuses of `unknown`.")
        .over_derived(release, &List("HTTP statuses", "[401, 403]", value::status), "[401, 403, 425, 429]");
    section.setting("unknown", "Doubt: unknown, or retryable where running again is safe. Where it is not set, without the statuses of `release`.").over_derived(
        unknown,
        &List("HTTP statuses", "[502, 504]", value::status),
        "[408, 502, 504]",
    );
    section
        .setting("on_5xx", "Any other 5xx: nothing was done, it is the answer, or doubt. Queryable work is in doubt under `retry` too.")
        .over(on_5xx, &ON_5XX, r#""retry""#);
    section
        .setting("store_down", "While the store cannot be reached: 503 and no work, or the work runs unprotected and its answer says so.")
        .over(store_down, &Words(&[("refuse", StoreDown::Refuse), ("run", StoreDown::Run)]), r#""refuse""#);
    section
        .setting(
            "store_timeout",
            "How long the store may take. At most half the lease, also where it is not set.",
        )
        .over_derived(store_timeout, &SPAN, r#""2s""#);
    section
        .setting("request_bytes_max", "The largest body of a keyed request: 413 above. It is held in memory.")
        .over(request_bytes_max, &BYTES, r#""1MiB""#);
    section
        .setting("response_bytes_max", "The largest answer that is kept, body and headers. Larger ones are passed on whole and not replayed.")
        .over(response_bytes_max, &BYTES, r#""1MiB""#);
    section
        .setting("not_replayed", "Headers of the first answer that were true only then: a replay leaves them out. What is about one connection (`connection` and what it names, `keep-alive`, `te`, `trailer`, `transfer-encoding`, `upgrade` …) is never kept.")
        .over(
            not_replayed,
            &List("headers", r#"["date"]"#, value::header),
            r#"["date", "age", "set-cookie", "authorization", "authentication-info", "proxy-authentication-info", "www-authenticate", "retry-after", "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "server-timing"]"#,
        );
    let refused = |name, meaning| section.setting(name, meaning).refused();
    refused("request_time_header", "The header that says when the client made the request.")
        .optional(&HEADER, r#""X-Request-Time""#);
    refused("request_age_max", "How old such a request may be.").optional(&SPAN, r#""5m""#);
    fingerprint_over(fingerprint, &section.inner("fingerprint"));
    draft
}

fn accept(node: &Node, _: &Environment<'_>) -> Read<()> {
    if value::word(node, &[("never", true), ("allowed", false), ("always", false)])? {
        return Ok(());
    }
    wrong(&node.value, "needs accepted work and [encryption], which are not in this release; take it out")
}

fn fingerprint_over(below: &mut fingerprint::Settings, section: &Section<'_>) {
    let fingerprint::Settings { body, ignore, headers, secrets } = below;
    section
        .setting(
            "body",
            "`auto`: JSON, form and multipart bodies by what they say. `bytes`: always by their bytes.",
        )
        .over(body, &Words(&[("auto", BodyForm::Auto), ("bytes", BodyForm::Bytes)]), r#""auto""#);
    section.setting("ignore", "JSON Pointers to members that do not count, such as `/client_time`.").over(
        ignore,
        &List("JSON Pointers", r#"["/client_time"]"#, value::parsed),
        "[]",
    );
    section.setting("headers", "Headers that count.").over(
        headers,
        &List("headers", r#"["if-match"]"#, value::header),
        r#"["if-match"]"#,
    );
    section.setting("secrets", "With one, fingerprints are HMACs. The first signs, all verify.").over(
        secrets,
        &Kind("list of secrets", fingerprint_secrets),
        "[]",
    );
}

fn fingerprint_secrets(node: &Node, environment: &Environment<'_>) -> Read<Vec<fingerprint::Secret>> {
    let secret = |secret: crate::config::Secret| {
        fingerprint::Secret::new(&secret.bytes).expect("a secret that was read is not empty")
    };
    Ok(secret::list(node, environment)?.into_iter().map(secret).collect())
}
