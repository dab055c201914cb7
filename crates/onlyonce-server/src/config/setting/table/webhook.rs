//! `[webhooks.NAME]`. What is not set is the preset's.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderName;
use onlyonce::fingerprint::Pointer;

use crate::config::reader::Section;
use crate::config::secret::Environment;
use crate::config::setting::form::{self, Form};
use crate::config::setting::kind::{FLAG, HEADER, Kind, POINTER, SECRETS, Words};
use crate::config::tree::Node;
use crate::config::value::{self, Read, Wrong, wrong};
use crate::config::{Pointers, Scheme, Secret, Webhook, Word};
use crate::webhook::preset::{NONE, Preset, STRIPE};

const PRESET: Words<&'static Preset> = Words(&[("none", &NONE), ("stripe", &STRIPE)]);
const SCHEME: Words<Scheme> =
    Words(&[("onlyonce", Scheme::Onlyonce), ("stripe", Scheme::Stripe), ("standard", Scheme::Standard)]);
const TOLERANCE: Kind<Duration> = Kind(form::SPAN, tolerance);
const WORD_TABLE: Form = Form("table of words", || {
    let word = form::words(Word::ALL.iter().map(|(word, _)| *word));
    serde_json::json!({"type": "object", "additionalProperties": word})
});
const VERDICTS: Kind<BTreeMap<String, Word>> = Kind(WORD_TABLE, verdicts);
const DECLINED: Kind<u16> = Kind(form::ERROR, declined);
const NAME_CHARS_MAX: usize = 64;

/// One source of webhooks. None where a fault was found.
pub(super) fn webhook(section: &Section<'_>) -> Option<Webhook> {
    let name = section.path.strip_prefix("webhooks.").unwrap_or_default();
    if !is_name(name) {
        let remedy = "cannot be used in a path; use letters, digits, - and _, such as [webhooks.bank]";
        section.fault("", name.to_owned(), remedy);
    }
    let preset = section
        .setting("preset", "The defaults for the settings below. `stripe`: Stripe's pointers and events. It is the default of a source that is named `stripe`.")
        .given(&PRESET, r#""none""#)
        .unwrap_or(if name == STRIPE.name { &STRIPE } else { &NONE });
    let scheme = section
        .setting("scheme", "How requests are signed. `onlyonce`: `t=<unix seconds>,v1=<hex>`, HMAC-SHA-256 over `t`, a dot and the body. `stripe`: as Stripe does. `standard`: by Standard Webhooks.")
        .given(&SCHEME, r#""onlyonce""#)
        .unwrap_or(preset.scheme);
    let secrets = secrets(section, scheme);
    let header = section
        .setting("header", "The header of the signature. `stripe`: `Stripe-Signature`. `standard`: `webhook-signature`; the headers of id and time have the same prefix.")
        .given(&HEADER, r#""Onlyonce-Signature""#)
        .unwrap_or_else(|| HeaderName::from_static(usual_header(scheme)));
    let tolerance = section
        .setting("tolerance", "How far the time of a signature may be in the past or in the future.")
        .with_default(&TOLERANCE, r#""5m""#);
    let public = section
        .setting("public", "Whether it is also served on the gateway's port, at `/_onlyonce/webhooks/NAME`. On the admin port it is always served, at `/v1/webhooks/NAME`.")
        .with_default(&FLAG, "false");
    let pointers = pointers(section, preset);
    let declined_status = section
        .setting("declined_status", "The status of the answer that clients get if a webhook says `declined`.")
        .with_default(&DECLINED, "402");
    let verdicts = section
        .setting("verdicts", "The meaning of each value at `verdict_pointer`: `happened`, `declined`, `did-not-happen`, `did-not-happen-final`, `unknown` or `ignore`. Values that are not listed are ignored. With a preset, this table is added to the preset's. Without this table, the values must be these words.")
        .optional(&VERDICTS, r#"{ PAID = "happened", REFUSED = "declined" }"#);
    Some(Webhook {
        name: name.into(),
        preset,
        scheme,
        secrets: secrets?,
        header,
        tolerance,
        public,
        pointers,
        declined_status,
        verdicts: preset.verdicts_with(verdicts),
    })
}

fn secrets(section: &Section<'_>, scheme: Scheme) -> Option<Vec<Secret>> {
    const MISSING: &str = "has no secret, so anybody could settle records; write secrets = [\"env:NAME\"]";
    let secrets = section
        .setting("secrets", "The secrets that verify signatures; one match is enough. They are used as text, including a leading `whsec_`; `standard` decodes what follows `whsec_`.")
        .required(&SECRETS, r#"["env:WEBHOOK_SECRET"]"#, MISSING)?;
    if secrets.is_empty() {
        section.fault("secrets", None, MISSING);
    }
    let decoded = |secret: Secret| match (scheme, secret.bytes.strip_prefix(b"whsec_")) {
        (Scheme::Standard, Some(rest)) => match STANDARD.decode(rest) {
            Ok(bytes) => Secret { bytes, ..secret },
            Err(_) => {
                let remedy = "begins with whsec_, but what follows is not base64; copy the whole secret";
                section.fault("secrets", secret.source.clone(), remedy);
                secret
            }
        },
        (Scheme::Onlyonce | Scheme::Stripe | Scheme::Standard, _) => secret,
    };
    Some(secrets.into_iter().map(decoded).collect())
}

fn pointers(section: &Section<'_>, preset: &Preset) -> Pointers {
    let preset_has = |text: &str| text.parse::<Pointer>().expect("a preset's pointer is one");
    Pointers {
        token: section
            .setting("token_pointer", "Where the body has the value of `Onlyonce-Token`.")
            .given(&POINTER, r#""/token""#)
            .unwrap_or_else(|| preset_has(preset.token)),
        scope: section
            .setting("scope_pointer", "Where the body has the value of `Onlyonce-Scope`.")
            .given(&POINTER, r#""/scope""#)
            .unwrap_or_else(|| preset_has(preset.scope)),
        key: section
            .setting("key_pointer", "Where the body has the key. It counts only together with the scope.")
            .given(&POINTER, r#""/key""#)
            .unwrap_or_else(|| preset_has(preset.key)),
        verdict: section
            .setting("verdict_pointer", "Where the body says what became of the work.")
            .given(&POINTER, r#""/verdict""#)
            .unwrap_or_else(|| preset_has(preset.verdict)),
        never_will: section
            .setting("final_pointer", "Where the body has `true` if work that did not happen never will.")
            .given(&POINTER, r#""/final""#)
            .or_else(|| preset.never_will.map(preset_has)),
        response: section
            .setting("response_pointer", "Where the body may have the answer for the client: `{\"status\", \"headers\", \"body\"}`.")
            .given(&POINTER, r#""/response""#)
            .or_else(|| preset.response.map(preset_has)),
        id: section
            .setting("id_pointer", "Where the body has the id of the event.")
            .given(&POINTER, r#""/id""#)
            .unwrap_or_else(|| preset_has(preset.id)),
        time: section
            .setting("time_pointer", "Where the body has the time of the event, in unix seconds or RFC 3339. Without it, the signature's time is used.")
            .optional(&POINTER, r#""/created""#)
            .or_else(|| preset.time.map(preset_has)),
    }
}

fn usual_header(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Onlyonce => "onlyonce-signature",
        Scheme::Stripe => "stripe-signature",
        Scheme::Standard => "webhook-signature",
    }
}

fn is_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= NAME_CHARS_MAX
        && name.bytes().all(is_fit)
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
}

fn verdicts(node: &Node, _: &Environment<'_>) -> Read<BTreeMap<String, Word>> {
    let word = |name: &str, node: &Node| {
        let meant = value::word(node, &Word::ALL);
        meant.map_err(|wrongs| wrongs.into_iter().map(|wrong| of_member(name, wrong)).collect())
    };
    Ok(value::members(node, r#"{ PAID = "happened" }"#, word)?.into_iter().collect())
}

/// The fault of a table's member begins with the member.
fn of_member(name: &str, wrong: Wrong) -> Wrong {
    match wrong.value {
        Some(value) => Wrong { value: Some(format!("{name} = {value}")), ..wrong },
        None => Wrong { remedy: format!("{name} {}", wrong.remedy), ..wrong },
    }
}

fn tolerance(node: &Node, _: &Environment<'_>) -> Read<Duration> {
    let span = value::span(node)?;
    if span.is_zero() { wrong(&node.value, "would refuse every request; set 5m") } else { Ok(span) }
}

fn declined(node: &Node, _: &Environment<'_>) -> Read<u16> {
    match value::status(node)? {
        status @ 400.. => Ok(status),
        status => wrong(status, "is not an error status; use 400 to 599"),
    }
}
