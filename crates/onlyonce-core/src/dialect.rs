//! Dialects: what an API documents about its idempotency keys, as data.
//!
//! A dialect is the shape of refusals and markers on the wire, and a preset of policy. Nothing branches on its name:
//! a fourth one is a value of [`Dialect`], not code.
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
//!     preset: Preset { on_5xx: Some(On5xx::Store), ..Preset::default() },
//!     ..Dialect::ietf()
//! };
//! assert_eq!(house.status(Code::KeyReused), 412);
//! assert_eq!(house.status(Code::InProgress), 409);
//! assert_eq!(Policy::of(house).on_5xx, On5xx::Store);
//! ```

use std::borrow::Cow;

use http::HeaderName;

use crate::key::Syntax;
use crate::policy::On5xx;
use crate::refusal::{Code, Refusal};

/// What an API documents about its idempotency keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// Its name in settings.
    pub name: Cow<'static, str>,
    /// The media type of a refusal.
    pub content_type: Cow<'static, str>,
    /// The body of a refusal: JSON with `{type}`, `{title}`, `{status}`, `{detail}`, `{code}` and `{retryable}` in the
    /// places of values.
    pub body: Cow<'static, str>,
    /// The header that marks a replay.
    pub replayed: HeaderName,
    /// Where it answers with another status than [`Code::status`].
    pub statuses: Vec<(Code, u16)>,
    /// The policy it brings.
    pub preset: Preset,
}

/// The settings a dialect brings; a setting of one's own beats them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// `syntax`
    pub syntax: Option<Syntax>,
    /// `key_chars_max`
    pub key_chars_max: Option<usize>,
    /// `release`
    pub release: Option<Vec<u16>>,
    /// `unknown`
    pub unknown: Option<Vec<u16>>,
    /// `on_5xx`
    pub on_5xx: Option<On5xx>,
}

const PROBLEM: &str = r#"{"type":{type},"title":{title},"status":{status},"detail":{detail},"code":{code},"retryable":{retryable}}"#;
const STRIPE: &str = r#"{"error":{"type":"idempotency_error","code":{code},"message":{detail}}}"#;

impl Dialect {
    /// The IETF draft: problem details, 422 for a reused key.
    pub fn ietf() -> Self {
        Self {
            name: "ietf".into(),
            content_type: "application/problem+json".into(),
            body: PROBLEM.into(),
            replayed: HeaderName::from_static("idempotent-replayed"),
            statuses: Vec::new(),
            preset: Preset::default(),
        }
    }

    /// As Stripe documents it.
    pub fn stripe() -> Self {
        Self {
            name: "stripe".into(),
            content_type: "application/json".into(),
            body: STRIPE.into(),
            statuses: vec![(Code::KeyReused, 400)],
            preset: Preset {
                syntax: Some(Syntax::Bare),
                key_chars_max: Some(255),
                unknown: Some(Vec::new()),
                on_5xx: Some(On5xx::Store),
                release: None,
            },
            ..Self::ietf()
        }
    }

    /// A reused key is a 409, a replay is marked `Idempotent-Replay`, every client error is kept.
    pub fn conflict() -> Self {
        Self {
            name: "conflict".into(),
            replayed: HeaderName::from_static("idempotent-replay"),
            statuses: vec![(Code::KeyReused, 409)],
            preset: Preset {
                key_chars_max: Some(128),
                release: Some(Vec::new()),
                unknown: Some(vec![502, 504]),
                ..Preset::default()
            },
            ..Self::ietf()
        }
    }

    /// The status of a refusal.
    pub fn status(&self, code: Code) -> u16 {
        self.statuses.iter().find(|(own, _)| *own == code).map_or(code.status(), |(_, status)| *status)
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
                "code" => push_json(&mut body, code.as_str()),
                "retryable" => body.push_str(if code.is_retryable() { "true" } else { "false" }),
                // Braces of the JSON itself.
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
