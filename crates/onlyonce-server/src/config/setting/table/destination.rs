//! `[destinations.NAME]`

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use http::HeaderName;
use onlyonce::fingerprint::Pointer;
use onlyonce::relay::Terms;
use onlyonce::store::outbox::OnDead;

use super::EVERY;
use crate::config::reader::Section;
use crate::config::secret::Environment;
use crate::config::setting::form;
use crate::config::setting::kind::{HEADER, Kind, List, SECRETS, URL, Whole, Words};
use crate::config::tree::Node;
use crate::config::value::{self, Read, Wrong, wrong};
use crate::config::{Destination, ProviderId, Secret};

/// How many bytes a secret has.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Headers of a delivery that are not its key.
const TAKEN: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "onlyonce-delivery",
    "transfer-encoding",
    "user-agent",
    "webhook-signature",
    "webhook-timestamp",
];
const ATTEMPTS: Whole<u32> = Whole::new(1, 10_000, 15);
const AT_ONCE: Whole<usize> = Whole::new(1, 1_024, 8);
const PROVIDER_ID: Kind<Option<ProviderId>> = Kind(form::PROVIDER_ID, provider_id);
const ON_DEAD: Words<OnDead> = Words(&[("block", OnDead::Block), ("skip", OnDead::Skip)]);
const STATUSES: List<u16> = List(form::FAILURES, "[400, 410]", status);

/// One destination. None where a fault was found.
pub(super) fn destination(section: &Section<'_>) -> Option<Destination> {
    let name = section.path.strip_prefix("destinations.").unwrap_or_default();
    let uri =
        section.setting("url", "The URL that messages are POSTed to. Redirects are not followed.").required(
            &URL,
            r#""https://mail.example.org/receipts""#,
            "is missing; write url = \"https://HOST/PATH\"",
        );
    let secrets = section
        .setting("secrets", "The secrets that sign messages, by Standard Webhooks: 24 to 64 bytes in base64 each, with or without `whsec_`. Every secret signs, so a receiver can change to a new one at any time. Without secrets, messages are not signed.")
        .optional(&SECRETS, r#"["env:RECEIPTS_SECRET"]"#)
        .unwrap_or_default();
    let secrets = secrets.into_iter().filter_map(|secret| decoded(section, secret)).collect();
    let destination = Destination {
        name: name.into(),
        uri: uri.clone().unwrap_or_default(),
        secrets,
        terms: terms(section),
        dead: section
            .setting("dead", "Statuses that make a message a dead letter at once, because a retry would not help.")
            .with_default(&STATUSES, "[400, 402, 405, 406, 410, 413, 414, 415, 422, 451]"),
        provider_id: section
            .setting("provider_id", "Where a 2xx answer has the receiver's id of the message, which is stored with it: `header:NAME`, or `json:/pointer` into the body. Empty: no id.")
            .with_default(&PROVIDER_ID, r#""""#),
        key_header: section
            .setting("key_header", "The header that carries the message's key, the same at every delivery.")
            .with_default(&HEADER, r#""Idempotency-Key""#),
    };
    if TAKEN.contains(&destination.key_header.as_str()) {
        let remedy = "is a header that says something else in every delivery; use another";
        section.fault("key_header", destination.key_header.to_string(), remedy);
    }
    if destination.terms.retry_max < destination.terms.retry_first {
        let told = onlyonce::policy::span(destination.terms.retry_max);
        section.fault("retry_max", told, "is shorter than retry_first; raise it");
    }
    uri.map(|_| destination)
}

fn terms(section: &Section<'_>) -> Terms {
    let span = |name, meaning, default| section.setting(name, meaning).with_default(&EVERY, default);
    Terms {
        timeout: span("timeout", "How long a whole delivery may take. A message is claimed for twice as long, at least 5s.", r#""10s""#),
        attempts_max: section
            .setting("attempts_max", "After how many failed deliveries, since it was stored or redriven, a message is a dead letter. An answer with `Retry-After` (429, 503) does not count.")
            .with_default(&ATTEMPTS, "15"),
        give_up_after: span("give_up_after", "A message that fails this long after it first fell due, or was redriven, is a dead letter, whatever the count.", r#""7d""#),
        retry_first: span("retry_first", "The pause before the second delivery. Each pause is three times the one before, plus or minus up to a fifth at random.", r#""5s""#),
        retry_max: span("retry_max", "The longest pause. With the defaults, 15 deliveries last a little over three days: a receiver that breaks on Friday can be fixed on Monday.", r#""12h""#),
        at_once: section
            .setting("at_once", "How many deliveries each node makes at once.")
            .with_default(&AT_ONCE, "8"),
        on_dead: section
            .setting("on_dead", "What happens to the messages behind a dead letter in its group. `block`: they wait until it is redriven or discarded. `skip`: they are delivered.")
            .with_default(&ON_DEAD, r#""block""#),
    }
}

/// The bytes that a secret stands for.
fn decoded(section: &Section<'_>, secret: Secret) -> Option<Secret> {
    let text = secret.bytes.strip_prefix(b"whsec_").unwrap_or(&secret.bytes);
    let bytes = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text));
    match bytes {
        Ok(bytes) if SECRET_BYTES.contains(&bytes.len()) => Some(Secret { bytes, ..secret }),
        Ok(bytes) => {
            let remedy = format!(
                "has {} bytes, but Standard Webhooks needs 24 to 64; make one with `openssl rand -base64 32`",
                bytes.len()
            );
            section.fault("secrets", secret.source, remedy);
            None
        }
        Err(_) => {
            let remedy = "is not base64; make one with `openssl rand -base64 32`";
            section.fault("secrets", secret.source, remedy);
            None
        }
    }
}

fn status(node: &Node) -> Read<u16> {
    let count = value::count(node)?;
    match u16::try_from(count) {
        Ok(status @ 300..=599) => Ok(status),
        _ => wrong(count, "is not a status of a failure; use 300 to 599"),
    }
}

fn provider_id(node: &Node, _: &Environment<'_>) -> Read<Option<ProviderId>> {
    let text = value::text(node)?;
    let told = |remedy: String| Err(vec![Wrong { value: Some(text.clone()), remedy }]);
    match text.split_once(':') {
        None if text.is_empty() => Ok(None),
        Some(("header", name)) => match name.parse::<HeaderName>() {
            Ok(name) => Ok(Some(ProviderId::Header(name))),
            Err(_) => told("is not a header name; write it like header:X-Message-Id".to_owned()),
        },
        Some(("json", pointer)) => match pointer.parse::<Pointer>() {
            Ok(pointer) => Ok(Some(ProviderId::Json(pointer))),
            Err(error) => told(format!("is not a JSON Pointer: {error}")),
        },
        Some(_) | None => told("is neither header:NAME nor json:/pointer; write one of these".to_owned()),
    }
}
