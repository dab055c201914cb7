//! The namespace a key is unique in.
//!
//! A scope is a digest of who is calling: of the service's name and of every [`Source`] the settings list, each with
//! its value. Callers that differ in any of these never meet, whatever keys they choose.
//!
//! 1. Names and values are length-prefixed, so no caller can choose a value that reads as another combination.
//! 2. The order of the sources counts: a change of the list is a change of every scope, and forgets every key.
//! 3. Nothing to tell callers apart by is no scope: [`Scope::of`] gives none for no part and for an empty value.
//!    Only [`Scope::shared`], which the operator has to ask for, makes callers share their keys.
//! 4. A credential leaves nothing but its digest. What is no secret also leaves a label, for operators to read and
//!    for nothing else: two scopes can have one label.
//!
//! ```
//! use onlyonce_core::scope::{Scope, Source};
//!
//! let tenant: Source = "trusted:x-tenant".parse()?;
//! let route = Source::Route;
//! let scope = Scope::of("shop", [tenant.part(b"acme"), route.part(b"POST /orders")]).expect("nothing is empty");
//! assert_eq!(scope.label(), Some("acme · POST /orders"));
//!
//! assert_eq!(Scope::of("shop", [tenant.part(b"")]), None);
//! # Ok::<(), onlyonce_core::scope::MalformedSource>(())
//! ```

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use http::HeaderName;
use sha2::{Digest, Sha256};

/// The namespace a key is unique in, from the authenticated caller: a digest, and a label where that is no secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Scope {
    digest: [u8; 32],
    label: Option<Arc<str>>,
}

impl Scope {
    /// The scope of a caller of `service`, told by `parts`; none where there is no part, or an empty one.
    pub fn of<'a>(service: &str, parts: impl IntoIterator<Item = Part<'a>>) -> Option<Self> {
        let mut parts = parts.into_iter().peekable();
        parts.peek()?;
        let mut writer = Writer::new(TAG_CALLER, service);
        for part in parts {
            if part.value.is_empty() {
                return None;
            }
            writer.write(&part);
        }
        Some(writer.finish())
    }

    /// The scope that all callers of `service` share who cannot be told apart, where the settings ask for one.
    pub fn shared(service: &str) -> Self {
        Self::shared_with(service, [])
    }

    /// As [`Scope::shared`], divided by `parts` that do not tell callers apart, such as the route.
    pub fn shared_with<'a>(service: &str, parts: impl IntoIterator<Item = Part<'a>>) -> Self {
        let mut writer = Writer::new(TAG_SHARED, service);
        writer.write_label(LABEL_SHARED);
        parts.into_iter().for_each(|part| writer.write(&part));
        writer.finish()
    }

    /// The scope this one's requests are remembered under while they are only observed: it equals no scope that decides.
    #[must_use]
    pub fn observed(&self) -> Self {
        let digest = Sha256::new_with_prefix(TAG_OBSERVED).chain_update(self.digest);
        Self { digest: digest.finalize().into(), label: self.label.clone() }
    }

    /// A scope as a store kept it.
    pub fn stored(digest: [u8; 32], label: Option<Arc<str>>) -> Self {
        Self { digest, label }
    }

    /// The digest that tells scopes apart.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// What an operator reads, where the sources are no secret.
    pub fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::record::hex(&self.digest, f)
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope({self})")
    }
}

/// A name and a value that tell one caller from another.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The two halves of the name, so that a [`Source`] need not be written out for each request.
    name: [&'a str; 2],
    value: &'a [u8],
    secrecy: Secrecy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Secrecy {
    Secret,
    Readable,
}

impl<'a> Part<'a> {
    /// A value that must not be read anywhere again, such as a credential.
    pub fn secret(name: &'a str, value: &'a [u8]) -> Self {
        Self { name: ["", name], value, secrecy: Secrecy::Secret }
    }

    /// A value that operators may read, such as a tenant's name.
    pub fn readable(name: &'a str, value: &'a [u8]) -> Self {
        Self { name: ["", name], value, secrecy: Secrecy::Readable }
    }
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({}, …)", self.name.concat())
    }
}

/// Where a part of a scope comes from, as the `scope` setting lists it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// `header:NAME`: a credential in a header. Kept only as a digest.
    Header(HeaderName),
    /// `trusted:NAME`: a header that an authenticating proxy sets.
    Trusted(HeaderName),
    /// `jwt:CLAIM`: a claim of a verified token.
    Jwt(Arc<str>),
    /// `certificate`: who a verified client certificate was issued to, and by whom.
    Certificate,
    /// `route`: the method and route, so that one key on two endpoints is two operations.
    Route,
}

impl Source {
    /// This source with the value it has in a request.
    pub fn part<'a>(&'a self, value: &'a [u8]) -> Part<'a> {
        Part { name: self.name(), value, secrecy: self.secrecy() }
    }

    /// Whether it tells callers apart; a scope of routes alone is shared by all callers.
    pub fn names_caller(&self) -> bool {
        match self {
            Self::Header(_) | Self::Trusted(_) | Self::Jwt(_) | Self::Certificate => true,
            Self::Route => false,
        }
    }

    /// Whether a request alone cannot prove it: somebody must have verified it first.
    pub fn needs_verifying(&self) -> bool {
        match self {
            Self::Trusted(_) | Self::Jwt(_) | Self::Certificate => true,
            Self::Header(_) | Self::Route => false,
        }
    }

    fn secrecy(&self) -> Secrecy {
        match self {
            Self::Header(_) => Secrecy::Secret,
            Self::Trusted(_) | Self::Jwt(_) | Self::Certificate | Self::Route => Secrecy::Readable,
        }
    }

    fn name(&self) -> [&str; 2] {
        match self {
            Self::Header(name) => ["header:", name.as_str()],
            Self::Trusted(name) => ["trusted:", name.as_str()],
            Self::Jwt(claim) => ["jwt:", claim],
            Self::Certificate => ["certificate", ""],
            Self::Route => ["route", ""],
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().into_iter().try_for_each(|half| f.write_str(half))
    }
}

impl FromStr for Source {
    type Err = MalformedSource;

    fn from_str(text: &str) -> Result<Self, MalformedSource> {
        let malformed = |fault| MalformedSource { text: text.into(), fault };
        let header = |name: &str| name.parse().map_err(|_| malformed(Fault::HeaderName));
        match text.split_once(':') {
            None if text == "route" => Ok(Self::Route),
            None if text == "certificate" => Ok(Self::Certificate),
            Some(("header", name)) => Ok(Self::Header(header(name)?)),
            Some(("trusted", name)) => Ok(Self::Trusted(header(name)?)),
            Some(("jwt", claim)) if is_claim(claim) => Ok(Self::Jwt(claim.into())),
            Some(("jwt", _)) => Err(malformed(Fault::Claim)),
            None | Some(_) => Err(malformed(Fault::Kind)),
        }
    }
}

/// A claim's name can be any text, a URL for one; what is empty or begins or ends with white space is a slip.
fn is_claim(text: &str) -> bool {
    !text.is_empty() && text.trim() == text && !text.chars().any(char::is_control)
}

/// The text is no source of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedSource {
    text: String,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kind,
    HeaderName,
    Claim,
}

impl fmt::Display for MalformedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self.fault {
            Fault::Kind => "is unknown; use header:NAME, trusted:NAME, jwt:CLAIM, certificate or route",
            Fault::HeaderName => {
                "is not a header name; write it like header:authorization or trusted:x-tenant"
            }
            Fault::Claim => "has no claim; write it like jwt:sub",
        };
        write!(f, "scope source {:?} {remedy}", self.text)
    }
}

impl std::error::Error for MalformedSource {}

/// What a digest is of: no other digest of ours begins like this, and a caller's never equals a shared one.
const TAG_CALLER: &[u8] = b"onlyonce scope 1 caller\0";
const TAG_OBSERVED: &[u8] = b"onlyonce scope 1 observed\0";
const TAG_SHARED: &[u8] = b"onlyonce scope 1 shared\0";

const LABEL_SHARED: &str = "(shared)";
const LABEL_SEPARATOR: &str = " · ";
/// A label is stored with every record: a tenant's name fits, a token that was called trusted by mistake need not.
const LABEL_PART_CHARS_MAX: usize = 64;

/// Writes the digest and the label of a scope side by side.
struct Writer {
    digest: Sha256,
    label: String,
}

impl Writer {
    fn new(tag: &[u8], service: &str) -> Self {
        let mut writer = Self { digest: Sha256::new_with_prefix(tag), label: String::new() };
        writer.write_prefixed(&[service.as_bytes()]);
        writer
    }

    fn write(&mut self, part: &Part<'_>) {
        self.write_prefixed(&part.name.map(str::as_bytes));
        self.write_prefixed(&[part.value]);
        match part.secrecy {
            Secrecy::Secret => {}
            Secrecy::Readable => self.write_label(&String::from_utf8_lossy(part.value)),
        }
    }

    /// The halves as one string, after its length: eight bytes, so that no length can be cut short.
    fn write_prefixed(&mut self, halves: &[&[u8]]) {
        let bytes = halves.iter().map(|half| half.len() as u64).sum::<u64>();
        self.digest.update(bytes.to_be_bytes());
        halves.iter().for_each(|half| self.digest.update(half));
    }

    fn write_label(&mut self, text: &str) {
        if !self.label.is_empty() {
            self.label.push_str(LABEL_SEPARATOR);
        }
        let mut chars = text.chars();
        self.label.extend(chars.by_ref().take(LABEL_PART_CHARS_MAX).map(readable));
        if chars.next().is_some() {
            self.label.push('…');
        }
    }

    fn finish(self) -> Scope {
        let label = (!self.label.is_empty()).then(|| self.label.into());
        Scope { digest: self.digest.finalize().into(), label }
    }
}

/// `char`, unless it would act on the operator's screen instead of standing on it: controls, line ends, and the
/// marks that hide text or turn it around.
fn readable(char: char) -> char {
    let acts = char.is_control()
        || matches!(char, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(char, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    if acts { char::REPLACEMENT_CHARACTER } else { char }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(value: &[u8]) -> String {
        let scope = Scope::of("", [Part::readable("trusted:x", value)]).expect("the value is not empty");
        scope.label().expect("the part is readable").to_owned()
    }

    #[test]
    fn a_label_shows_no_control_characters() {
        assert_eq!(label(b"ac\x1b[2Jme\r\n"), "ac\u{fffd}[2Jme\u{fffd}\u{fffd}");
        assert_eq!(label("ac\u{202e}me\u{2028}".as_bytes()), "ac\u{fffd}me\u{fffd}");
        assert_eq!(label(b"ac\xffme"), "ac\u{fffd}me");
        assert_eq!(label("Zoë".as_bytes()), "Zoë");
    }

    #[test]
    fn a_long_value_is_cut_in_the_label_and_counts_whole_in_the_digest() {
        let long = "a".repeat(LABEL_PART_CHARS_MAX);
        assert_eq!(label(long.as_bytes()), long);
        let [longer, other] = [format!("{long}b"), format!("{long}c")];
        assert_eq!(label(longer.as_bytes()), format!("{long}…"));
        assert_ne!(
            Scope::of("", [Part::readable("x", longer.as_bytes())]),
            Scope::of("", [Part::readable("x", other.as_bytes())]),
        );
    }

    /// S04
    #[test]
    fn a_source_and_its_written_name_make_one_scope() {
        for text in ["header:authorization", "trusted:x-tenant", "jwt:sub", "certificate", "route"] {
            let source: Source = text.parse().expect("the text is a source");
            let by_source = Scope::of("s", [source.part(b"v")]).expect("the value is not empty");
            let by_name = Scope::of("s", [Part::secret(text, b"v")]).expect("the value is not empty");
            assert_eq!(by_source.digest(), by_name.digest(), "{text}");
        }
    }

    #[test]
    fn no_part_shows_its_value() {
        assert_eq!(
            format!("{:?}", Part::secret("header:authorization", b"hunter2")),
            "Part(header:authorization, …)"
        );
    }
}
