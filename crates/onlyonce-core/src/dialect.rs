//! Dialects: what an API documents about its idempotency keys, as data.
//!
//! A dialect is the shape of refusals and markers on the wire, and a preset of policy. Nothing branches on its name: those that
//! come with the library are entries of one table (`dialect/preset.rs`), and another one is a value of [`Dialect`], not code.
//!
//! ```
//! use onlyonce_core::dialect::{Dialect, Preset};
//! use onlyonce_core::policy::{On5xx, Policy};
//! use onlyonce_core::refusal::Code;
//!
//! let house = Dialect {
//!     name: "house".into(),
//!     content_type: "application/json".into(),
//!     body: r#"{"fault":{code},"help":{detail}}"#.into(),
//!     statuses: vec![(Code::KeyReused, 412)],
//!     codes: vec![(Code::KeyReused, "duplicate".into())],
//!     preset: Preset { on_5xx: Some(On5xx::Store), ..Preset::default() },
//!     ..Dialect::ietf()
//! };
//! assert_eq!(house.status(Code::KeyReused), 412);
//! assert_eq!(house.code(Code::KeyReused), "duplicate");
//! assert_eq!(house.status(Code::InProgress), 409);
//! assert_eq!(Policy::of(house).on_5xx, On5xx::Store);
//!
//! let acp = Dialect::named("acp").expect("it comes with the library");
//! assert_eq!(acp.version, "2026-04-17");
//! ```

mod preset;

use std::borrow::Cow;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

use crate::fingerprint::{BodyForm, Pointer};
use crate::json;
use crate::key::{Source, Syntax};
use crate::policy::{Anonymous, On5xx, OnExpired};
use crate::refusal::{Code, Refusal};
use crate::scope;

/// What an API documents about its idempotency keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Its name in settings.
    pub name: Cow<'static, str>,
    /// Which version of the API's own document it follows; empty where nobody says.
    pub version: Cow<'static, str>,
    /// The media type of a refusal.
    pub content_type: Cow<'static, str>,
    /// The body of a refusal: JSON with `{type}`, `{title}`, `{status}`, `{detail}`, `{code}`, `{kind}` and `{retryable}` in the
    /// places of values, and `{more}` where members may follow that only some refusals have: `,"limit":"in_flight"`.
    pub body: Cow<'static, str>,
    /// The header that marks a replay.
    pub replayed: HeaderName,
    /// The member, at the top of a JSON answer, that marks a replay too. See [`Dialect::marked`].
    pub replayed_member: Option<Cow<'static, str>>,
    /// The header in which answers repeat the key. Refusals never do.
    pub echo: Option<HeaderName>,
    /// The header that says whether a keyed request was accepted or rejected.
    pub result: Option<ResultHeader>,
    /// Where it answers with another status than [`Code::status`].
    pub statuses: Vec<(Code, u16)>,
    /// Where it has another word than [`Code::as_str`] for what clients branch on.
    pub codes: Vec<(Code, Cow<'static, str>)>,
    /// What `{kind}` is, which is how some APIs group their codes.
    pub kind: Cow<'static, str>,
    /// Where `{kind}` is something else.
    pub kinds: Vec<(Code, Cow<'static, str>)>,
    /// The policy it brings.
    pub preset: Preset,
}

/// A header that says whether a keyed request was accepted, on every answer to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultHeader {
    /// Its name.
    pub name: HeaderName,
    /// On the service's own answers and their replays.
    pub accepted: HeaderValue,
    /// On refusals.
    pub rejected: HeaderValue,
}

/// The settings a dialect brings; a setting of one's own beats them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// `key_from`
    pub key_from: Option<Vec<Source>>,
    /// `syntax`
    pub syntax: Option<Syntax>,
    /// `key_chars_min`
    pub key_chars_min: Option<usize>,
    /// `key_chars_max`
    pub key_chars_max: Option<usize>,
    /// `methods`
    pub methods: Option<Vec<Method>>,
    /// `required`
    pub required: Option<Vec<Method>>,
    /// `scope`
    pub scope: Option<PresetScope>,
    /// `anonymous`
    pub anonymous: Option<Anonymous>,
    /// `retention`
    pub retention: Option<Duration>,
    /// `on_expired`
    pub on_expired: Option<OnExpired>,
    /// `release`
    pub release: Option<Vec<u16>>,
    /// `unknown`
    pub unknown: Option<Vec<u16>>,
    /// `on_5xx`
    pub on_5xx: Option<On5xx>,
    /// `request_time_header`
    pub request_time_header: Option<HeaderName>,
    /// `request_age_max`
    pub request_age_max: Option<Duration>,
    /// `fingerprint.body`
    pub body: Option<BodyForm>,
    /// `fingerprint.ignore`
    pub ignore: Option<Vec<Pointer>>,
    /// `fingerprint.headers`
    pub headers: Option<Vec<HeaderName>>,
}

/// What a dialect says of the scope. Who calls is for the service to say, so most say nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PresetScope {
    /// These, whatever the scope is otherwise.
    Only(Vec<scope::Source>),
    /// These besides what the scope is otherwise.
    Also(Vec<scope::Source>),
}

impl PresetScope {
    /// The scope with this in it.
    pub fn over(self, below: Vec<scope::Source>) -> Vec<scope::Source> {
        match self {
            Self::Only(sources) => sources,
            Self::Also(sources) => {
                let mut all = below;
                all.extend(sources.into_iter().filter(|source| !all.contains(source)).collect::<Vec<_>>());
                all
            }
        }
    }
}

impl Dialect {
    /// The IETF draft: problem details, 422 for a reused key.
    pub fn ietf() -> Self {
        preset::IETF.dialect()
    }

    /// As Stripe documents it.
    pub fn stripe() -> Self {
        preset::STRIPE.dialect()
    }

    /// A reused key is a 409, a replay is marked `Idempotent-Replay`, every client error is kept.
    pub fn conflict() -> Self {
        preset::CONFLICT.dialect()
    }

    /// One of those that come with the library.
    pub fn named(name: &str) -> Option<Self> {
        preset::TABLE.iter().find(|entry| entry.name == name).map(preset::Entry::dialect)
    }

    /// The names of those that come with the library, in the order of the reference.
    pub fn names() -> impl Iterator<Item = &'static str> {
        preset::TABLE.iter().map(|entry| entry.name)
    }

    /// What clients branch on.
    pub fn code(&self, code: Code) -> &str {
        own(&self.codes, code).map_or(code.as_str(), |own| own)
    }

    /// What `{kind}` is of a refusal.
    pub fn kind(&self, code: Code) -> &str {
        own(&self.kinds, code).map_or(&*self.kind, |own| own)
    }

    /// A replayed body with its mark in it; none where the body stays as it is: the dialect marks headers only, or the body is no
    /// JSON object.
    pub fn marked(&self, body: &[u8]) -> Option<Vec<u8>> {
        json::with_member(body, self.replayed_member.as_deref()?, b"true")
    }

    /// What cannot stand in it: the field, its value, and what to do about it.
    pub fn faults(&self) -> Vec<(&'static str, String, String)> {
        let mut faults = Vec::new();
        for (code, status) in self.statuses.iter().filter(|(_, status)| !(400..=599).contains(status)) {
            let remedy = format!("is not an error status for {code}; use 400 to 599");
            faults.push(("statuses", status.to_string(), remedy));
        }
        let mut rest = &*self.body;
        while let Some((_, name, after)) = placeholder(rest) {
            if !PLACEHOLDERS.contains(&name) {
                let remedy = format!("is no placeholder; use one of {}", PLACEHOLDERS.join(", "));
                faults.push(("body", format!("{{{name}}}"), remedy));
            }
            rest = after;
        }
        if faults.is_empty() && !json::is_json(self.render(&Refusal::Expired).as_bytes()) {
            let remedy = "is not JSON once its placeholders are filled; write each without quotes, like {\"error\":{code}}";
            faults.push(("body", self.body.to_string(), remedy.to_owned()));
        }
        if HeaderValue::from_str(&self.content_type).is_err() {
            let remedy = "is no media type; use application/json".to_owned();
            faults.push(("content_type", self.content_type.to_string(), remedy));
        }
        faults
    }

    /// The status of a refusal.
    pub fn status(&self, code: Code) -> u16 {
        own(&self.statuses, code).map_or(code.status(), |status| *status)
    }

    /// The body of a refusal.
    pub fn render(&self, refusal: &Refusal) -> String {
        let code = refusal.code();
        let mut body = String::with_capacity(self.body.len() + 320);
        let mut rest = &*self.body;
        while let Some((before, name, after)) = placeholder(rest) {
            body.push_str(before);
            match name {
                "type" => push_json(&mut body, &problem_type(code)),
                "title" => push_json(&mut body, code.title()),
                "status" => body.push_str(&self.status(code).to_string()),
                "detail" => push_json(&mut body, &refusal.to_string()),
                "code" => push_json(&mut body, self.code(code)),
                "kind" => push_json(&mut body, self.kind(code)),
                "retryable" => body.push_str(if code.is_retryable() { "true" } else { "false" }),
                "more" => {
                    if let Refusal::LimitReached { limit, .. } = refusal {
                        body.push_str(",\"limit\":");
                        push_json(&mut body, limit.as_str());
                    }
                }
                // What the check found to be none of them stays as it is.
                other => {
                    body.push('{');
                    body.push_str(other);
                    body.push('}');
                }
            }
            rest = after;
        }
        body.push_str(rest);
        body
    }
}

const PLACEHOLDERS: [&str; 8] = ["type", "title", "status", "detail", "code", "kind", "retryable", "more"];

/// What a list says of a code.
fn own<T>(list: &[(Code, T)], code: Code) -> Option<&T> {
    list.iter().find(|(own, _)| *own == code).map(|(_, value)| value)
}

/// The page that explains a code.
pub fn problem_type(code: Code) -> String {
    format!("https://onlyonce.dev/problems/{}", code.as_str().replace('_', "-"))
}

/// The next `{name}` of lower-case letters.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let open = from + text[from..].find('{')?;
        let inside = &text[open + 1..];
        let letters = inside.bytes().take_while(u8::is_ascii_lowercase).count();
        if letters > 0 && inside[letters..].starts_with('}') {
            return Some((&text[..open], &inside[..letters], &inside[letters + 1..]));
        }
        from = open + 1;
    }
}

/// A JSON string. Every text here is ours, so only quotes and backslashes need care.
fn push_json(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            out.push('\\');
        }
        out.push(if character.is_control() { ' ' } else { character });
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D04
    #[test]
    fn every_refusal_of_every_preset_is_json_and_names_its_code() {
        for dialect in Dialect::names().map(|name| Dialect::named(name).unwrap()) {
            assert_eq!(dialect.faults(), [], "{}", dialect.name);
            assert!(!dialect.version.is_empty(), "{}", dialect.name);
            for code in Code::ALL {
                let body = dialect.render(&crate::refusal::example(code));
                assert!(json::is_json(body.as_bytes()), "{} {body}", dialect.name);
                assert!(body.contains(&format!("\"{}\"", dialect.code(code))), "{} {body}", dialect.name);
            }
        }
    }

    /// D04
    #[test]
    fn a_dialect_of_ones_own_is_checked() {
        let told = |dialect: Dialect| {
            let faults = dialect.faults();
            assert_eq!(faults.len(), 1, "{faults:?}");
            format!("{}: {} {}", faults[0].0, faults[0].1, faults[0].2)
        };
        let with_body = |body: &'static str| Dialect { body: body.into(), ..Dialect::ietf() };
        assert!(told(with_body(r#"{"a":{cod}}"#)).contains("body: {cod} is no placeholder; use one of type"));
        assert!(told(with_body(r#"{"a":"{code}"}"#)).contains("write each without quotes"));
        let status = Dialect { statuses: vec![(Code::KeyReused, 200)], ..Dialect::ietf() };
        assert!(told(status).contains("is not an error status for idempotency_key_reused"));
        let content_type = Dialect { content_type: "a\nb".into(), ..Dialect::ietf() };
        assert!(told(content_type).contains("is no media type"));
    }

    /// S04
    #[test]
    fn what_a_preset_adds_to_a_scope_leaves_the_caller_in_it() {
        let also = PresetScope::Also(vec![scope::Source::Route]);
        let claim = scope::Source::Jwt("sub".into());
        assert_eq!(also.clone().over(vec![claim.clone()]), [claim.clone(), scope::Source::Route]);
        assert_eq!(also.over(vec![scope::Source::Route]), [scope::Source::Route]);
        assert_eq!(PresetScope::Only(vec![scope::Source::Route]).over(vec![claim]), [scope::Source::Route]);
    }
}
