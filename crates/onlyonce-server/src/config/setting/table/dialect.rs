//! `[dialects.NAME]`: a dialect of the user's own. What is not set is as in the one it is like.

use std::borrow::Cow;

use http::HeaderValue;
use onlyonce::Dialect;
use onlyonce::dialect::ResultHeader;
use onlyonce::refusal::Code;

use crate::config::names;
use crate::config::reader::Section;
use crate::config::secret::Environment;
use crate::config::setting::form::{self, Form};
use crate::config::setting::kind::{HEADER, Kind, TEXT};
use crate::config::tree::Node;
use crate::config::value::{self, Read, Wrong};

const STATUS_TABLE: Form =
    Form("table of HTTP statuses by code", || form::table(Code::ALL.map(Code::as_str), &form::STATUSES.1()));
const TEXT_TABLE: Form =
    Form("table of texts by code", || form::table(Code::ALL.map(Code::as_str), &form::TEXT.1()));
const PRESET: Form = Form("name of a preset", || form::words(Dialect::names()));
const STATUSES: Kind<Vec<(Code, u16)>> =
    Kind(STATUS_TABLE, |node, _| by_code(node, "{ idempotency_key_reused = 412 }", status));
const TEXTS: Kind<Vec<(Code, String)>> = Kind(TEXT_TABLE, texts);
const LIKE: Kind<Dialect> = Kind(PRESET, like);
const VALUE: Kind<HeaderValue> = Kind(form::HEADER_VALUE, header_value);

/// Those that come with the library, and the user's own.
pub(super) fn all(top: &Section<'_>) -> Vec<Dialect> {
    let own: Vec<_> = top.named_tables("dialects").iter().map(dialect).collect();
    // The reference names what comes with the library, and no dialect "*".
    let own = own.into_iter().filter(|_| top.reader.listed.is_none());
    Dialect::names().filter_map(Dialect::named).chain(own).collect()
}

fn dialect(section: &Section<'_>) -> Dialect {
    let name = section.path.strip_prefix("dialects.").unwrap_or_default().to_owned();
    if Dialect::named(&name).is_some() {
        section.fault(
            "",
            name.clone(),
            "is the name of a preset; give your own another name, and set like = to the preset",
        );
    }
    let like = section
        .setting("like", "The preset that this dialect starts from, with the settings it brings.")
        .given(&LIKE, r#""ietf""#)
        .unwrap_or_else(Dialect::ietf);
    let mut dialect = Dialect { name: name.into(), ..like };
    let Dialect {
        name: _,
        version,
        content_type,
        body,
        replayed,
        replayed_member,
        echo,
        result,
        statuses,
        codes,
        kind,
        kinds,
        preset: _,
    } = &mut dialect;
    let text = |setting: Option<String>, into: &mut Cow<'static, str>| {
        if let Some(text) = setting {
            *into = text.into();
        }
    };
    let given = section
        .setting("version", "The version of the document that this dialect follows. It is only published.")
        .optional(&TEXT, r#""2026-04-17""#);
    text(given, version);
    let given = section
        .setting("content_type", "The content type of refusals.")
        .optional(&TEXT, r#""application/json""#);
    text(given, content_type);
    let given = section
        .setting("body", "The body of refusals: JSON with `{type}`, `{title}`, `{status}`, `{detail}`, `{code}`, `{kind}` and `{retryable}` in the places of values, without quotes.")
        .optional(&TEXT, r#"'{"error":{"code":{code},"message":{detail}}}'"#);
    text(given, body);
    if let Some(name) = section
        .setting("replayed_header", "The header that marks a replay, with the value `true`.")
        .optional(&HEADER, r#""Idempotent-Replayed""#)
    {
        *replayed = name;
    }
    if let Some(member) = section
        .setting("replayed_member", "A member of a JSON answer that marks a replay too: `true`, at the top of the object. Answers with a digest, a signature, an entity tag or a content coding stay as they are.")
        .optional(&TEXT, r#""replayed""#)
    {
        *replayed_member = Some(member.into());
    }
    if let Some(name) = section
        .setting("echo_header", "A header in which answers below 400 repeat the key.")
        .optional(&HEADER, r#""Idempotency-Key""#)
    {
        *echo = Some(name);
    }
    *result = result_header(section, result.take());
    over(
        statuses,
        section
            .setting("statuses", "The status of refusals, by their code: see [errors](errors.md).")
            .optional(&STATUSES, "{ idempotency_key_reused = 412 }"),
    );
    over(
        codes,
        owned(
            section
                .setting("codes", "What `{code}` is, by our code.")
                .optional(&TEXTS, r#"{ idempotency_key_reused = "DUPLICATE" }"#),
        ),
    );
    let given = section
        .setting("kind", "What `{kind}` is: how some APIs group their codes.")
        .optional(&TEXT, r#""invalid_request""#);
    text(given, kind);
    over(
        kinds,
        owned(
            section
                .setting("kinds", "The same by code.")
                .optional(&TEXTS, r#"{ idempotency_store_unavailable = "api_error" }"#),
        ),
    );
    for (field, value, remedy) in dialect.faults() {
        section.fault(field, value, remedy);
    }
    dialect
}

/// All of it, or what holds without.
fn result_header(section: &Section<'_>, below: Option<ResultHeader>) -> Option<ResultHeader> {
    let name = section
        .setting("result_header", "A header that says whether a keyed request was accepted or rejected.")
        .optional(&HEADER, r#""Repeatability-Result""#);
    let accepted = section
        .setting("result_accepted", "Its value on the service's answers and their replays.")
        .given(&VALUE, r#""accepted""#);
    let rejected =
        section.setting("result_rejected", "Its value on refusals.").given(&VALUE, r#""rejected""#);
    let mut result = match (name, below) {
        (Some(name), Some(below)) => ResultHeader { name, ..below },
        (Some(name), None) => ResultHeader {
            name,
            accepted: HeaderValue::from_static("accepted"),
            rejected: HeaderValue::from_static("rejected"),
        },
        (None, Some(below)) => below,
        (None, None) => {
            for name in ["result_accepted", "result_rejected"].into_iter().filter(|name| section.has(name)) {
                section.warn(name, None, "has no effect without result_header; set that too");
            }
            return None;
        }
    };
    result.accepted = accepted.unwrap_or(result.accepted);
    result.rejected = rejected.unwrap_or(result.rejected);
    Some(result)
}

/// What is set comes first, so that it is found first.
fn over<T>(below: &mut Vec<(Code, T)>, set: Option<Vec<(Code, T)>>) {
    if let Some(mut set) = set {
        set.append(below);
        *below = set;
    }
}

fn owned(texts: Option<Vec<(Code, String)>>) -> Option<Vec<(Code, Cow<'static, str>)>> {
    texts.map(|texts| texts.into_iter().map(|(code, text)| (code, text.into())).collect())
}

fn like(node: &Node, _: &Environment<'_>) -> Read<Dialect> {
    let names: Vec<_> = Dialect::names().map(|name| (name, name)).collect();
    let name = value::word(node, &names)?;
    Ok(Dialect::named(name).expect("it is one of the names"))
}

fn header_value(node: &Node, _: &Environment<'_>) -> Read<HeaderValue> {
    let text = value::text(node)?;
    HeaderValue::from_str(&text).or_else(|_| value::wrong(text, "is not a header value; use visible ASCII"))
}

fn texts(node: &Node, _: &Environment<'_>) -> Read<Vec<(Code, String)>> {
    by_code(node, r#"{ idempotency_key_reused = "DUPLICATE" }"#, value::text)
}

fn status(node: &Node) -> Read<u16> {
    value::status(node)
}

/// A table whose names are codes. Two codes of ours have one name.
fn by_code<T: Clone>(node: &Node, expected: &str, read: fn(&Node) -> Read<T>) -> Read<Vec<(Code, T)>> {
    let member = |name: &str, node: &Node| {
        let codes: Vec<_> = Code::ALL.into_iter().filter(|code| code.as_str() == name).collect();
        if codes.is_empty() {
            let near = names::nearest(name, Code::ALL.iter().map(|code| code.as_str()));
            let hint = near.map_or_else(
                || "docs/errors.md lists them".to_owned(),
                |near| format!("did you mean {near}?"),
            );
            return Err(vec![Wrong {
                value: Some(name.to_owned()),
                remedy: format!("is not one of our codes; {hint}"),
            }]);
        }
        let value = read(node)?;
        Ok(codes.into_iter().map(|code| (code, value.clone())).collect::<Vec<_>>())
    };
    Ok(value::members(node, expected, member)?.into_iter().flat_map(|(_, codes)| codes).collect())
}
