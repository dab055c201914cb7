//! Digest of the request: whether a key that comes back comes back with the same request.
//!
//! Two digests are kept beside a key. One is over the body's bytes as they came; the other, where the content type
//! allows it, over what the body says. A retry is usually the very same bytes, so the first digest is compared first
//! and the body is read only where that one differs.
//!
//! # Rules
//!
//! 1. What counts: method, path, query as sent, content type (type and subtype in lower case), the chosen headers and those
//!    that replace the method (`X-HTTP-Method-Override`, `X-HTTP-Method`, `X-Method-Override`) with each of their values in
//!    order, and the body. What is absent differs from what is empty.
//! 2. Every field carries its length, so no byte can move from one field into the next unseen, and the body carries
//!    a tag saying which form it is in, so bytes that happen to spell a canonical form are not taken for one.
//! 3. `application/json` and `…+json`: RFC 8785 layout. Member order, white space and the spelling of escapes and
//!    numbers do not count; the order of an array does. Unlike RFC 8785, numbers are compared exactly and never
//!    through a double: `9007199254740992` and `9007199254740993` differ; `1`, `1.0` and `1e0` agree; `-0` is `0`.
//! 4. Members and elements at an ignored JSON Pointer are left out of that form.
//! 5. `application/x-www-form-urlencoded`: names and values, decoded, in order. `multipart/form-data`: each part's
//!    name, file name, content type and bytes, in order, and not the boundary.
//! 6. Everything else is its bytes. So is a body that cannot be read without doubt: JSON with duplicate members, lone
//!    surrogates, nested deeper than 128 or with an exponent beyond 64 bits; a stray `%` in a form; a multipart body
//!    that breaks off; a charset that is not UTF-8; any `Content-Encoding`; more than one `Content-Type`. Doubt can
//!    only make two requests differ, never agree, and it is never an error.
//! 7. Bytes mean what their headers say: with them, every parameter of the content type counts, the charset and the
//!    boundary too, and so does `Content-Encoding`. With a canonical form, parameters count but for the boundary of a
//!    multipart body and a charset, which can only be UTF-8 there.
//! 8. Text is not normalised: two Unicode spellings of one word differ.
//! 9. With secrets, both digests are HMAC-SHA-256. The first secret signs and all of them verify, so a new one is
//!    put in front, and the old one is taken out once the records it signed have expired.
//!
//! # Caveats
//!
//! Records made without a secret do not match once a first secret is set, nor the other way round; nor do canonical digests
//! match once `ignore` changes, though the very same bytes still do.
//!
//! # Example
//!
//! ```
//! use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
//! use onlyonce_core::fingerprint::{Settings, Subject};
//!
//! let settings = Settings { ignore: vec!["/client_time".parse()?], ..Settings::default() };
//! let mut headers = HeaderMap::new();
//! headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
//! let pay = |body| Subject { method: "POST", path: "/payments", query: None, headers: &headers, body };
//!
//! let first = settings.candidates(pay(br#"{"amount": 100, "to": "Ann", "client_time": 1}"#)).fingerprint();
//! let retry = settings.candidates(pay(br#"{"client_time":2,"to":"\u0041nn","amount":1e2}"#));
//! let other = settings.candidates(pay(br#"{"client_time":2,"to":"Ann","amount":1000}"#));
//! assert!(retry.matches(&first));
//! assert!(!other.matches(&first));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod form;
pub(crate) mod json;
pub(crate) mod media;
mod multipart;
mod number;
pub(crate) mod pointer;
mod secret;

use std::sync::OnceLock;

use http::{HeaderMap, HeaderName, header};

pub use json::canonical_json;
pub use pointer::{MalformedPointer, Pointer};
pub use secret::{EmptySecret, Secret};

use media::Media;
use secret::Digester;

/// The version of the algorithm that new fingerprints are made with.
pub const VERSION: u8 = 1;

/// The digest of a request, as it is stored beside its key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Which version of the algorithm made it.
    pub version: u8,
    /// Over the body's bytes as they came.
    pub raw: [u8; 32],
    /// Over the body's canonical form; none where the bytes themselves are all there is.
    pub canonical: Option<[u8; 32]>,
}

/// What counts in a fingerprint, and what signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How bodies are read.
    pub body: BodyForm,
    /// What is left out of JSON bodies.
    pub ignore: Vec<Pointer>,
    /// The headers that count; their order here does not.
    pub headers: Vec<HeaderName>,
    /// The first signs, all verify; none means a plain SHA-256.
    pub secrets: Vec<Secret>,
}

/// How bodies are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BodyForm {
    /// By what they say, where the content type tells how to read it.
    #[default]
    Auto,
    /// Always by their bytes.
    Bytes,
}

/// The request a fingerprint is taken of.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The method.
    pub method: &'a str,
    /// The path, as it is forwarded.
    pub path: &'a str,
    /// The query as sent, without its `?`; none where there was no `?`.
    pub query: Option<&'a str>,
    /// All headers; only the content type, its encoding and the chosen ones are read.
    pub headers: &'a HeaderMap,
    /// The whole body.
    pub body: &'a [u8],
}

/// What a request's fingerprint may be: made only as far as a comparison needs it, and each part once.
pub struct Candidates<'a> {
    settings: &'a Settings,
    subject: Subject<'a>,
    /// All that is digested before the body: the head, digested with the first secret: both digests go on from here.
    headed: Digester,
    raw: OnceLock<[u8; 32]>,
    canonical: OnceLock<Option<Body>>,
}

/// A body in canonical form.
struct Body {
    tag: Tag,
    /// What else its headers say of it.
    description: Vec<u8>,
    bytes: Vec<u8>,
    /// By the first secret.
    digest: [u8; 32],
}

/// The digests of a request, made apart from any comparison: those of a large body on another thread.
pub struct Digested {
    raw: [u8; 32],
    canonical: Option<Body>,
}

/// Which form a digested body is in. Stored digests depend on these numbers.
#[derive(Clone, Copy)]
enum Tag {
    Bytes = 0,
    Json = 1,
    Form = 2,
    Multipart = 3,
}

impl Default for Settings {
    fn default() -> Self {
        // `If-Match` says which state the write was meant for, so another one is another request.
        Self {
            body: BodyForm::Auto,
            ignore: Vec::new(),
            headers: vec![header::IF_MATCH],
            secrets: Vec::new(),
        }
    }
}

impl Settings {
    /// What the fingerprint of `subject` may be under these settings.
    pub fn candidates<'a>(&'a self, subject: Subject<'a>) -> Candidates<'a> {
        let headed = headed(self, self.secrets.first(), &subject);
        Candidates { settings: self, subject, headed, raw: OnceLock::new(), canonical: OnceLock::new() }
    }

    /// The digests of `subject` under these settings, for [`Candidates::with`].
    pub fn digested(&self, subject: Subject<'_>) -> Digested {
        let candidates = self.candidates(subject);
        let raw = candidates.raw();
        candidates.canonical();
        Digested { raw, canonical: candidates.canonical.into_inner().flatten() }
    }
}

impl Candidates<'_> {
    /// The same with digests of the same subject under the same settings, which are then not made again.
    #[must_use]
    pub fn with(self, digested: Digested) -> Self {
        let Digested { raw, canonical } = digested;
        Self { raw: OnceLock::from(raw), canonical: OnceLock::from(canonical), ..self }
    }

    /// The fingerprint to store with a new record, by the current version and signed with the first secret.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint { version: VERSION, raw: self.raw(), canonical: self.canonical().map(|body| body.digest) }
    }

    /// Whether this is the request that `stored` was made of.
    ///
    /// The stored version says which algorithm has to answer, because a record outlives an upgrade: a version 2
    /// becomes another arm here, and the arm of version 1 stays for as long as its records may live.
    pub fn matches(&self, stored: &Fingerprint) -> bool {
        match stored.version {
            1 => self.matches_v1(stored),
            _ => false,
        }
    }

    fn matches_v1(&self, stored: &Fingerprint) -> bool {
        if self.raw() == stored.raw || self.verified_by_others(&stored.raw, |headed| self.raw_by(headed)) {
            return true;
        }
        let Some(digest) = &stored.canonical else { return false };
        let Some(body) = self.canonical() else { return false };
        body.digest == *digest
            || self
                .verified_by_others(digest, |headed| signed(headed, body.tag, &body.description, &body.bytes))
    }

    /// Whether a secret other than the first made `digest`.
    fn verified_by_others(&self, digest: &[u8; 32], by: impl Fn(&Digester) -> [u8; 32]) -> bool {
        let mut others = self.settings.secrets.iter().skip(1);
        others.any(|secret| by(&headed(self.settings, Some(secret), &self.subject)) == *digest)
    }

    fn raw(&self) -> [u8; 32] {
        *self.raw.get_or_init(|| self.raw_by(&self.headed))
    }

    fn raw_by(&self, headed: &Digester) -> [u8; 32] {
        let description = description(self.subject.headers, |_| true);
        signed(headed, Tag::Bytes, &description, self.subject.body)
    }

    fn canonical(&self) -> Option<&Body> {
        self.canonical.get_or_init(|| canonical(self.settings, &self.subject, &self.headed)).as_ref()
    }
}

impl crate::machine::Prints for Candidates<'_> {
    fn fingerprint(&self) -> Fingerprint {
        Candidates::fingerprint(self)
    }

    fn matches(&self, stored: &Fingerprint) -> bool {
        Candidates::matches(self, stored)
    }
}

/// The body in canonical form; none where its bytes are all there is.
fn canonical(settings: &Settings, subject: &Subject<'_>, headed: &Digester) -> Option<Body> {
    match settings.body {
        BodyForm::Bytes => return None,
        BodyForm::Auto => {}
    }
    let (tag, bytes) = match Media::of(subject.headers) {
        Media::Json => (Tag::Json, canonical_json(subject.body, &settings.ignore)?),
        Media::Form => (Tag::Form, form::canonical(subject.body)?),
        Media::Multipart { boundary } => (Tag::Multipart, multipart::canonical(subject.body, boundary)?),
        Media::Other => return None,
    };
    let is_multipart = matches!(tag, Tag::Multipart);
    let description = description(subject.headers, |name| {
        // A canonical form has no other charset than UTF-8, and no boundary.
        let is_boundary = is_multipart && name.eq_ignore_ascii_case(b"boundary");
        !is_boundary && !name.eq_ignore_ascii_case(b"charset")
    });
    let digest = signed(headed, tag, &description, &bytes);
    Some(Body { tag, description, bytes, digest })
}

/// The digest of a head, of what it says of the body beyond its type, and of the body.
fn signed(headed: &Digester, tag: Tag, description: &[u8], body: &[u8]) -> [u8; 32] {
    let mut digester = headed.clone();
    if description.is_empty() {
        let mut prefix = [tag as u8; 9];
        prefix[1..].copy_from_slice(&length(body));
        digester.update(&prefix);
    } else {
        digester.update(&[tag as u8 | DESCRIBED]);
        digester.update(&length(description));
        digester.update(description);
        digester.update(&length(body));
    }
    digester.update(body);
    digester.finish()
}

/// What the headers say of the body beyond its type: the parameters of the content type that count, and every
/// `Content-Encoding`. Empty for most requests.
fn description(headers: &HeaderMap, counts: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, value) in headers.get_all(header::CONTENT_TYPE).iter().enumerate() {
        let mut entry = |kind: u8, name: &[u8], value: &[u8]| {
            out.push(kind);
            out.extend_from_slice(&(at as u64).to_be_bytes());
            put(&mut out, &name.to_ascii_lowercase());
            put(&mut out, value);
        };
        for parameter in media::parameters(value.as_bytes()) {
            match parameter {
                Some((name, value)) if name.eq_ignore_ascii_case(b"charset") && counts(name) => {
                    entry(PARAMETER, name, &value.to_ascii_lowercase());
                }
                Some((name, value)) if counts(name) => entry(PARAMETER, name, value),
                Some(_) => {}
                None => entry(UNREADABLE, b"", value.as_bytes()),
            }
        }
    }
    for value in headers.get_all(header::CONTENT_ENCODING) {
        out.push(ENCODING);
        put(&mut out, &value.as_bytes().trim_ascii().to_ascii_lowercase());
    }
    out
}

/// A digest that has come past the head: all that is digested before the body.
fn headed(settings: &Settings, secret: Option<&Secret>, subject: &Subject<'_>) -> Digester {
    let mut head = Head { digester: Digester::new(secret), bytes: [0; HEAD_BYTES_USUAL], length: 0 };
    head.put_raw(&[VERSION]);
    head.put(subject.method.as_bytes());
    head.put(subject.path.as_bytes());
    match subject.query {
        None => head.put_raw(&[ABSENT]),
        Some(query) => {
            head.put_raw(&[PRESENT]);
            head.put(query.as_bytes());
        }
    }
    for value in subject.headers.get_all(header::CONTENT_TYPE) {
        head.put_raw(&[PRESENT]);
        let essence = media::essence(value.as_bytes());
        head.put_raw(&length(essence));
        essence.iter().for_each(|byte| head.put_raw(&[byte.to_ascii_lowercase()]));
    }
    head.put_raw(&[ABSENT]);
    put_headers(&mut head, settings, subject.headers);
    head.flush();
    head.digester
}

/// What is digested first, gathered: a digest is fastest when it is fed in few pieces.
struct Head {
    digester: Digester,
    bytes: [u8; HEAD_BYTES_USUAL],
    length: usize,
}

impl Head {
    /// A field, with its length before it.
    fn put(&mut self, field: &[u8]) {
        self.put_raw(&length(field));
        self.put_raw(field);
    }

    fn put_raw(&mut self, bytes: &[u8]) {
        if bytes.len() > self.bytes.len() - self.length {
            self.flush();
        }
        match self.bytes.get_mut(self.length..self.length + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.digester.update(bytes),
        }
    }

    fn flush(&mut self) {
        self.digester.update(&self.bytes[..self.length]);
        self.length = 0;
    }
}

/// The chosen headers by name: neither the order of the setting counts nor a header that the request does not have,
/// so counting another one in leaves the fingerprints of requests without it as they are.
fn put_headers(head: &mut Head, settings: &Settings, headers: &HeaderMap) {
    let counted = settings.headers.iter().chain(&METHOD_OVERRIDES);
    let mut names: Vec<&HeaderName> = counted.filter(|name| headers.contains_key(*name)).collect();
    names.sort_unstable_by_key(|name| name.as_str());
    names.dedup();
    for name in names {
        for value in headers.get_all(name) {
            head.put_raw(&[PRESENT]);
            head.put(name.as_str().as_bytes());
            head.put(value.as_bytes());
        }
    }
    head.put_raw(&[ABSENT]);
}

/// Large enough that the head of a usual request is digested in one piece.
const HEAD_BYTES_USUAL: usize = 192;
/// Headers by which a client asks for another method than the request's. Services that know one obey it, so they always count.
pub static METHOD_OVERRIDES: [HeaderName; 3] = [
    HeaderName::from_static("x-http-method-override"),
    HeaderName::from_static("x-http-method"),
    HeaderName::from_static("x-method-override"),
];
/// Added to the tag of a body of which its headers say more than its type.
const DESCRIBED: u8 = 0x80;
const PARAMETER: u8 = 1;
const UNREADABLE: u8 = 2;
const ENCODING: u8 = 3;
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;

fn put_optional(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        None => out.push(ABSENT),
        Some(field) => {
            out.push(PRESENT);
            put(out, field);
        }
    }
}

fn put(out: &mut Vec<u8>, field: &[u8]) {
    out.extend_from_slice(&length(field));
    out.extend_from_slice(field);
}

fn length(field: &[u8]) -> [u8; 8] {
    (field.len() as u64).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const JSON: (&str, &str) = ("content-type", "application/json");

    /// A request to pay; tests change what they are about.
    #[derive(Clone)]
    struct Request {
        method: &'static str,
        path: &'static str,
        query: Option<&'static str>,
        headers: HeaderMap,
        body: Vec<u8>,
    }

    fn request(body: &str) -> Request {
        let request = Request {
            method: "POST",
            path: "/payments",
            query: None,
            headers: HeaderMap::new(),
            body: body.as_bytes().into(),
        };
        request.with(JSON)
    }

    impl Request {
        fn with(mut self, (name, value): (&'static str, &'static str)) -> Self {
            self.headers.append(name, HeaderValue::from_static(value));
            self
        }

        fn of_type(mut self, content_type: &'static str) -> Self {
            self.headers.remove(header::CONTENT_TYPE);
            self.with(("content-type", content_type))
        }

        fn candidates<'a>(&'a self, settings: &'a Settings) -> Candidates<'a> {
            settings.candidates(Subject {
                method: self.method,
                path: self.path,
                query: self.query,
                headers: &self.headers,
                body: &self.body,
            })
        }

        fn fingerprint(&self, settings: &Settings) -> Fingerprint {
            self.candidates(settings).fingerprint()
        }
    }

    /// Whether the second request would be taken for the first, which is asked both ways.
    fn agree(settings: &Settings, one: &Request, other: &Request) -> bool {
        let agreed = other.candidates(settings).matches(&one.fingerprint(settings));
        assert_eq!(
            agreed,
            one.candidates(settings).matches(&other.fingerprint(settings)),
            "agreeing is mutual"
        );
        agreed
    }

    fn bodies_agree(settings: &Settings, one: &str, other: &str) -> bool {
        agree(settings, &request(one), &request(other))
    }

    fn secret(key: &str) -> Secret {
        Secret::new(key.as_bytes()).unwrap()
    }

    fn signing_with(keys: &[&str]) -> Settings {
        Settings { secrets: keys.iter().map(|key| secret(key)).collect(), ..Settings::default() }
    }

    fn hex(digest: [u8; 32]) -> String {
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// F01: made by another program from the description, so that records outlive our changes.
    #[test]
    fn version_1_is_what_it_was() {
        let mut request = request(r#"{"b":1.0,"a":"x"}"#).with(("if-match", "\"v1\""));
        request.query = Some("q=1");
        let made = request.fingerprint(&Settings::default());
        assert_eq!(made.version, 1);
        assert_eq!(hex(made.raw), "88eeac48e88a1cb6df03bf9f16f3654eb7d2dd1c0e080555699e0fece5459342");
        assert_eq!(
            hex(made.canonical.unwrap()),
            "b1cdcb5a3fa53c9d255ea661ffb29102064e24b9c11c199e3aa21d9c1d9f3256"
        );
        let made = request.fingerprint(&signing_with(&["k1"]));
        assert_eq!(hex(made.raw), "f9ff05eec53cf8fcc4eef319a0d56c9f111ea41841f65b2c03de815e71557e0a");
        assert_eq!(
            hex(made.canonical.unwrap()),
            "94190e1ad4cf56ab5755ff76b0096521cb246428b6d9f7d2ccc60f763754c46c"
        );
    }

    /// F01
    #[test]
    fn a_fingerprint_of_an_unknown_version_matches_nothing() {
        let settings = Settings::default();
        let mut stored = request("{}").fingerprint(&settings);
        stored.version = VERSION + 1;
        assert!(!request("{}").candidates(&settings).matches(&stored));
    }

    /// F01
    #[test]
    fn method_path_query_and_content_type_count() {
        let settings = Settings::default();
        let sent = request("{}");
        assert!(agree(&settings, &sent, &sent.clone()));
        assert!(!agree(&settings, &sent, &Request { method: "PUT", ..sent.clone() }));
        assert!(!agree(&settings, &sent, &Request { path: "/payment", ..sent.clone() }));
        assert!(!agree(&settings, &sent, &Request { query: Some("a=1"), ..sent.clone() }));
        assert!(!agree(&settings, &sent, &sent.clone().of_type("application/problem+json")));
        assert!(!agree(&settings, &sent, &sent.clone().with(JSON)));
        assert!(agree(&settings, &sent, &sent.clone().of_type("Application/JSON; charset=utf-8")));
    }

    /// F01
    #[test]
    fn an_absent_query_differs_from_an_empty_one_and_order_counts() {
        let settings = Settings::default();
        let asking = |query| Request { query, ..request("{}") };
        assert!(!agree(&settings, &asking(None), &asking(Some(""))));
        assert!(!agree(&settings, &asking(Some("a=1&b=2")), &asking(Some("b=2&a=1"))));
    }

    /// F01
    #[test]
    fn no_byte_moves_from_one_field_into_the_next() {
        let settings = Settings::default();
        let of = |method, path, query, body: &str| Request {
            method,
            path,
            query,
            ..request(body).of_type("text/plain")
        };
        let all = [
            of("POST", "/ab", Some("c"), "d"),
            of("POST", "/a", Some("bc"), "d"),
            of("POST", "/ab", Some("cd"), ""),
            of("POST", "/abc", Some(""), "d"),
            of("POST/", "ab", Some("c"), "d"),
        ];
        for (at, one) in all.iter().enumerate() {
            for (other_at, other) in all.iter().enumerate() {
                assert_eq!(agree(&settings, one, other), at == other_at, "{at} {other_at}");
            }
        }
    }

    /// F01: a field of any length counts to its last byte. Around 192 bytes, the head no longer fits its buffer.
    #[test]
    fn long_fields_of_the_head_count_as_short_ones_do() {
        let settings = Settings::default();
        let long =
            |length: usize, last: char| format!("/{}{last}", "x".repeat(length)).leak() as &'static str;
        for length in (100..300).chain([5_000]) {
            let (one, other) = (long(length, '1'), long(length, '2'));
            let sent = request("{}");
            let at = |path| Request { path, ..sent.clone() };
            assert!(!agree(&settings, &at(one), &at(other)), "a path of {length} bytes");
            let asking = |query| Request { query: Some(query), ..sent.clone() };
            assert!(!agree(&settings, &asking(one), &asking(other)), "a query of {length} bytes");
            let matching = |value| sent.clone().with(("if-match", value));
            assert!(!agree(&settings, &matching(one), &matching(other)), "a header of {length} bytes");
            // What stands before a long field counts beside it, and so does what comes after.
            let both = |query, value| Request { query: Some(query), ..matching(value) };
            assert!(!agree(&settings, &both(one, one), &both(other, one)), "{length} bytes");
            assert!(!agree(&settings, &both(one, one), &both(one, other)), "{length} bytes");
        }
    }

    /// F01: made by another program from the description, with a path and a header longer than the buffer of the head.
    #[test]
    fn version_1_of_a_long_head_is_what_it_was() {
        let value = "v".repeat(500).leak() as &'static str;
        let mut request = request("[1.0]").with(("if-match", value)).with(("if-match", "w"));
        request.path = format!("/{}", "p".repeat(300)).leak();
        let made = request.fingerprint(&Settings::default());
        assert_eq!(hex(made.raw), "a6216d4cdfcc003518aca0f4bf5077ec44523bc90daf01180229ab70abd5fa64");
        assert_eq!(
            hex(made.canonical.unwrap()),
            "09b634ae919231bad0ebb176b7eec5427c3232b23dd244ce5811a583540da763"
        );
    }

    /// F01: doubt makes two requests differ.
    #[test]
    fn the_same_bytes_that_may_mean_something_else_are_another_request() {
        let settings = Settings::default();
        let part = "\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\nx\r\n";
        let body = format!("--a{part}--b{part}--a--\r\n");
        let form = |content_type| request(&body).of_type(content_type);
        let by_a = form("multipart/form-data; boundary=a");
        assert!(agree(&settings, &by_a, &form("multipart/form-data; boundary=\"a\"")));
        assert!(!agree(&settings, &by_a, &form("multipart/form-data; boundary=b")));
        let text = |content_type| request("caf\u{e9}").of_type(content_type);
        let utf8 = text("text/plain; charset=utf-8");
        assert!(agree(&settings, &utf8, &text("text/plain;charset=UTF-8")));
        assert!(!agree(&settings, &utf8, &text("text/plain; charset=latin1")));
        assert!(!agree(&settings, &utf8, &text("text/plain")));
        assert!(!agree(&settings, &utf8, &text("text/plain; charset=utf-8; format=flowed")));
        assert!(!agree(&settings, &utf8, &text("text/plain; charset")));
        assert!(!agree(
            &settings,
            &request("{}"),
            &request("{}").of_type("application/json; charset=utf-16")
        ));
        assert!(!agree(&settings, &request("{}"), &request("{}").of_type("application/json; version=2")));
        assert!(!agree(
            &settings,
            &request("{ }").of_type("application/json; v=1"),
            &request("{}").of_type("application/json; v=2")
        ));
        assert!(agree(
            &settings,
            &request("{ }").of_type("application/json; v=1"),
            &request("{}").of_type("application/json;V=1")
        ));
        let packed = |coding| request("{}").with(("content-encoding", coding));
        assert!(!agree(&settings, &request("{}"), &packed("gzip")));
        assert!(!agree(&settings, &packed("br"), &packed("gzip")));
        assert!(agree(&settings, &packed("gzip"), &packed(" GZIP ")));
        for name in ["x-http-method-override", "x-http-method", "x-method-override"] {
            let bytes = Settings { headers: Vec::new(), ..Settings::default() };
            assert!(!agree(&bytes, &request("{}"), &request("{}").with((name, "DELETE"))), "{name}");
            let (put, delete) = (request("{}").with((name, "PUT")), request("{}").with((name, "DELETE")));
            assert!(!agree(&bytes, &put, &delete), "{name}");
        }
    }

    /// F01: made by another program from the description.
    #[test]
    fn version_1_of_a_described_body_is_what_it_was() {
        let described = request("caf\u{e9}").of_type("text/plain; Charset=Latin1; x=\"y\"");
        let described = described.with(("content-encoding", "gzip")).with(("x-http-method-override", "PUT"));
        let made = described.fingerprint(&Settings::default());
        assert_eq!(hex(made.raw), "82c405277c630eb10d7698609e68beee7fa5a048bf64e733a0c11e3971e603d1");
        assert_eq!(made.canonical, None);
        let made = request("[1.0]")
            .of_type("application/json; charset=utf-8; v=2")
            .fingerprint(&Settings::default());
        assert_eq!(hex(made.raw), "8a940770054091bb4209db3365f5acea822c88a1c7752406bf3e4114da1f2705");
        assert_eq!(
            hex(made.canonical.unwrap()),
            "c4538ea16700bdc78ea76655ac550dc68afaade436b040e510a178d86e7d58f5"
        );
    }

    /// F01
    #[test]
    fn digests_made_ahead_are_the_same() {
        for settings in [Settings::default(), signing_with(&["new", "old"])] {
            for request in [request("[1.0]"), request("x").of_type("text/plain; charset=utf-8")] {
                let subject = || request.candidates(&settings).subject;
                let ahead = request.candidates(&settings).with(settings.digested(subject()));
                assert_eq!(ahead.fingerprint(), request.fingerprint(&settings));
                assert!(ahead.matches(&request.fingerprint(&settings)));
                assert!(
                    ahead.matches(&request.fingerprint(&signing_with(&["old"])))
                        || settings.secrets.is_empty()
                );
            }
        }
    }

    /// F02
    #[test]
    fn json_agrees_however_it_is_spelled() {
        let settings = Settings::default();
        let sent = r#"{"amount":1,"name":"A","list":[1,2]}"#;
        assert!(bodies_agree(
            &settings,
            sent,
            r#" { "list": [1e0, 2.0], "name": "\u0041", "amount": 1.0 } "#
        ));
        assert!(!bodies_agree(&settings, sent, r#"{"amount":1,"name":"A","list":[2,1]}"#));
        assert!(!bodies_agree(&settings, sent, r#"{"amount":1,"name":"A","list":[1,2],"more":null}"#));
        assert!(bodies_agree(&settings, "1E400", "10E399"));
        assert!(bodies_agree(&settings, "-0", "0"));
        assert!(!bodies_agree(&settings, "9007199254740992", "9007199254740993"));
        assert!(!bodies_agree(&settings, "0.1", "0.1000000000000000055"));
        assert!(!bodies_agree(&settings, "\"\u{e9}\"", "\"e\u{301}\""));
    }

    /// F02
    #[test]
    fn json_types_are_read_as_json_and_text_is_not() {
        let settings = Settings::default();
        let agree_as = |content_type| {
            let of = |body| request(body).of_type(content_type);
            agree(&settings, &of("[1]"), &of("[1.0]"))
        };
        assert!(agree_as("application/problem+json"));
        assert!(agree_as("application/json;charset=utf-8"));
        assert!(!agree_as("application/json;charset=utf-16"));
        assert!(!agree_as("text/plain"));
    }

    /// F03
    #[test]
    fn forms_agree_by_content() {
        let settings = Settings::default();
        let form = |body| request(body).of_type("application/x-www-form-urlencoded");
        assert!(agree(&settings, &form("a=1+2"), &form("a=1%202")));
        assert!(!agree(&settings, &form("a=1&b=2"), &form("b=2&a=1")));
        let part = "\r\nContent-Disposition: form-data; name=\"f\"; filename=\"x\"\r\n\r\n";
        let multipart = |content_type, boundary, bytes| {
            request(&format!("--{boundary}{part}{bytes}\r\n--{boundary}--\r\n")).of_type(content_type)
        };
        let sent = multipart("multipart/form-data; boundary=aaa", "aaa", "file");
        let retry = multipart("multipart/form-data; boundary=\"bbb\"", "bbb", "file");
        assert!(agree(&settings, &sent, &retry));
        assert!(!agree(&settings, &sent, &multipart("multipart/form-data; boundary=bbb", "bbb", "life")));
    }

    /// F03
    #[test]
    fn bodies_without_a_canonical_form_are_their_bytes() {
        let settings = Settings::default();
        let bytes_only = |request: &Request| {
            assert!(agree(&settings, request, &request.clone()));
            request.fingerprint(&settings).canonical.is_none()
        };
        assert!(bytes_only(&request("plain").of_type("text/plain")));
        assert!(bytes_only(&request("a=%").of_type("application/x-www-form-urlencoded")));
        assert!(bytes_only(&request("--b").of_type("multipart/form-data; boundary=b")));
        assert!(bytes_only(&request("")));
        assert!(bytes_only(&request("{}").with(("content-encoding", "gzip"))));
        assert!(!bytes_only(&request("{}")));
        let bytes = Settings { body: BodyForm::Bytes, ..Settings::default() };
        assert_eq!(request("{}").fingerprint(&bytes).canonical, None);
        assert!(!bodies_agree(&bytes, "{}", "{ }"));
    }

    /// F03
    #[test]
    fn bytes_that_spell_a_canonical_form_are_not_taken_for_one() {
        let made = request("{}").fingerprint(&Settings::default());
        assert_ne!(Some(made.raw), made.canonical);
    }

    /// F04
    #[test]
    fn ignored_members_and_elements_do_not_count() {
        let ignore = ["/client_time", "/items/0", "/a~1b/c"].map(|pointer| pointer.parse().unwrap()).into();
        let settings = Settings { ignore, ..Settings::default() };
        let sent = r#"{"x":1,"client_time":1,"items":[1,2],"a/b":{"c":1,"d":2}}"#;
        assert!(bodies_agree(&settings, sent, r#"{"x":1,"client_time":2,"items":[9,2],"a/b":{"d":2}}"#));
        assert!(!bodies_agree(
            &settings,
            sent,
            r#"{"x":1,"client_time":1,"items":[1,9],"a/b":{"c":1,"d":2}}"#
        ));
        assert!(!bodies_agree(
            &settings,
            sent,
            r#"{"x":2,"client_time":1,"items":[1,2],"a/b":{"c":1,"d":2}}"#
        ));
        assert!(!bodies_agree(
            &settings,
            sent,
            r#"{"x":1,"client_time":1,"items":[1,2],"a/b":{"c":1,"d":3}}"#
        ));
    }

    /// F04
    #[test]
    fn the_very_same_bytes_match_after_the_ignored_members_change() {
        let stored = request(r#"{"a":1,"t":2}"#).fingerprint(&Settings::default());
        let settings = Settings { ignore: vec!["/t".parse().unwrap()], ..Settings::default() };
        assert!(request(r#"{"a":1,"t":2}"#).candidates(&settings).matches(&stored));
    }

    /// F04
    #[test]
    fn chosen_headers_count_and_others_do_not() {
        let settings = Settings::default();
        let sent = request("{}");
        let matching = |value| sent.clone().with(("if-match", value));
        assert!(!agree(&settings, &sent, &matching("\"a\"")));
        assert!(!agree(&settings, &sent, &matching("")));
        assert!(!agree(&settings, &matching("\"a\""), &matching("\"b\"")));
        assert!(!agree(
            &settings,
            &matching("a").with(("if-match", "b")),
            &matching("b").with(("if-match", "a"))
        ));
        assert!(!agree(&settings, &matching("a").with(("if-match", "b")), &matching("ab")));
        assert!(!agree(&settings, &matching("a").with(("if-match", "b")), &matching("a")));
        assert!(!agree(
            &settings,
            &matching("a").with(("if-match", "b")),
            &matching("a").with(("if-match", "c"))
        ));
        assert!(agree(&settings, &sent, &sent.clone().with(("traceparent", "00-1-1-00"))));
    }

    /// F04
    #[test]
    fn the_order_of_the_header_setting_and_absent_headers_do_not_count() {
        let choosing = |names: &[&'static str]| Settings {
            headers: names.iter().map(|name| HeaderName::from_static(name)).collect(),
            ..Settings::default()
        };
        let sent = request("{}").with(("x-b", "1")).with(("x-a", "2"));
        let stored = sent.fingerprint(&choosing(&["x-a", "x-b"]));
        assert!(sent.candidates(&choosing(&["x-b", "x-a", "x-b", "x-c"])).matches(&stored));
        assert!(!sent.candidates(&choosing(&["x-a"])).matches(&stored));
    }

    /// F05
    #[test]
    fn a_body_that_is_no_i_json_is_its_bytes() {
        let settings = Settings::default();
        assert!(!bodies_agree(&settings, r#"{"a":1,"a":2}"#, r#"{"a":2}"#));
        assert!(!bodies_agree(&settings, r#"{"a":1,"a":2}"#, r#"{"a":1, "a":2}"#));
        assert!(bodies_agree(&settings, r#"["\ud800"]"#, r#"["\ud800"]"#));
        assert!(!bodies_agree(&settings, r#"["\ud800"]"#, r#"["\uD800"]"#));
    }

    /// F08
    #[test]
    fn a_secret_can_be_rotated_without_invalidating_anything() {
        let (before, during, after) =
            (signing_with(&["old"]), signing_with(&["new", "old"]), signing_with(&["new"]));
        let plain = |body| request(body).of_type("text/plain");
        let signed_old = plain("a").fingerprint(&before);
        assert!(plain("a").candidates(&during).matches(&signed_old), "bytes that have no other form");
        assert!(!plain("b").candidates(&during).matches(&signed_old));
        assert!(!plain("a").candidates(&after).matches(&signed_old));
        let (sent, respelled, other) = (request("[1]"), request("[1.0]"), request("[2]"));
        let signed_old = sent.fingerprint(&before);
        for retry in [&sent, &respelled] {
            assert!(retry.candidates(&during).matches(&signed_old));
            assert!(!retry.candidates(&after).matches(&signed_old));
            for settings in [&during, &after] {
                assert!(retry.candidates(settings).matches(&sent.fingerprint(&during)));
            }
        }
        assert!(!other.candidates(&during).matches(&signed_old));
        assert_ne!(signed_old, sent.fingerprint(&during));
    }

    /// F08
    #[test]
    fn settings_never_show_their_secrets() {
        assert!(format!("{:?}", signing_with(&["hunter2"])).contains("Secret(…)"));
    }
}
