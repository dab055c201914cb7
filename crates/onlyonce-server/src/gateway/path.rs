//! Path normalisation (RFC 3986, section 6.2.2).
//!
//! Another spelling of a protected path must not bypass its protection, so the path that is matched is the path that the
//! service receives.
//!
//! 1. Escapes of unreserved characters are decoded: `/%6frders` is `/orders`. Other escapes stay, in upper case.
//! 2. Dot segments are removed, also escaped ones: `/a/%2e%2e/orders` is `/orders`.
//! 3. Slashes are kept: `//orders` and `/orders/` are other paths than `/orders`.
//! 4. Ambiguous paths are refused: an invalid escape, an escaped control character, and a dot segment next to an
//!    escaped slash, which some services resolve and others do not.

use std::borrow::Cow;

use onlyonce::percent::{self, Piece};

/// Why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `%` without two hexadecimal digits.
    Escape,
    /// A control character, escaped or not.
    Control,
    /// `..%2F`: a dot segment for services that decode the slash first.
    HiddenDots,
    /// It does not begin with a slash.
    Relative,
}

impl Fault {
    /// What a client is told.
    pub(crate) fn detail(self) -> &'static str {
        match self {
            Self::Escape => "The path has a percent sign that is not followed by two hexadecimal digits.",
            Self::Control => "The path has a control character.",
            Self::HiddenDots => "The path has a dot segment after an escaped slash.",
            Self::Relative => "The path does not begin with a slash.",
        }
    }
}

/// The normalised path; nothing is copied if it is normalised already, as most are.
pub(crate) fn normalised(path: &str) -> Result<Cow<'_, str>, Fault> {
    if !path.starts_with('/') {
        return Err(Fault::Relative);
    }
    if path.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(Fault::Control);
    }
    if is_plain(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decoded(path)?;
    Ok(Cow::Owned(without_dots(&decoded)?))
}

/// No escape and no segment that begins with a dot: nothing to normalise.
fn is_plain(path: &[u8]) -> bool {
    let mut after_slash = false;
    for byte in path {
        match byte {
            b'%' | b'\\' => return false,
            b'.' if after_slash => return false,
            _ => after_slash = *byte == b'/',
        }
    }
    true
}

fn decoded(path: &str) -> Result<String, Fault> {
    let mut text = Vec::with_capacity(path.len());
    for piece in percent::pieces(path.as_bytes()) {
        match piece {
            Piece::Plain(byte) => text.push(byte),
            Piece::Escaped(byte) if byte.is_ascii_control() => return Err(Fault::Control),
            Piece::Escaped(byte) if percent::is_unreserved(byte) => text.push(byte),
            Piece::Escaped(byte) => text.extend_from_slice(format!("%{byte:02X}").as_bytes()),
            Piece::Malformed => return Err(Fault::Escape),
        }
    }
    Ok(String::from_utf8(text).expect("text stays text where only ASCII is put into it"))
}

/// RFC 3986, 5.2.4, for a path that begins with a slash.
fn without_dots(path: &str) -> Result<String, Fault> {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            _ if hides_dots(segment) => return Err(Fault::HiddenDots),
            _ => kept.push(segment),
        }
    }
    let mut text = String::with_capacity(path.len());
    for segment in kept {
        text.push('/');
        text.push_str(segment);
    }
    if text.is_empty() {
        text.push('/');
    }
    Ok(text)
}

/// Whether a service that treats escaped slashes or backslashes as slashes would find a dot segment.
fn hides_dots(segment: &str) -> bool {
    let parts = segment.split("%2F").flat_map(|part| part.split("%5C")).flat_map(|part| part.split('\\'));
    let mut parts = parts.peekable();
    let first = parts.next();
    parts.peek().is_some() && first.into_iter().chain(parts).any(|part| matches!(part, "." | ".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(path: &str, expected: &str) {
        assert_eq!(normalised(path).as_deref(), Ok(expected), "{path}");
        // Normalising is idempotent.
        assert_eq!(normalised(expected).as_deref(), Ok(expected), "{expected}");
    }

    /// G01
    #[test]
    fn every_spelling_of_a_path_becomes_one() {
        for (path, expected) in [
            ("/orders", "/orders"),
            ("/%6frders", "/orders"),
            ("/%6Frders", "/orders"),
            ("/a/../orders", "/orders"),
            ("/a/%2e%2E/orders", "/orders"),
            ("/./orders/.", "/orders/"),
            ("/orders/..", "/"),
            ("/../../orders", "/orders"),
            ("/..", "/"),
            ("/.", "/"),
            ("/", "/"),
            ("/a//../b", "/a/b"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a/...", "/a/..."),
            ("/a.b/c.d", "/a.b/c.d"),
            ("/%7euser", "/~user"),
            ("/a%2fb", "/a%2Fb"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a%2Eb%2Fc", "/a.b%2Fc"),
        ] {
            is(path, expected);
        }
    }

    /// G01
    #[test]
    fn slashes_are_kept_as_they_come() {
        for path in ["//orders", "/orders/", "/a//b", "///"] {
            is(path, path);
        }
    }

    /// G01
    #[test]
    fn a_path_that_cannot_be_judged_is_refused() {
        for (path, fault) in [
            ("/%", Fault::Escape),
            ("/a%2", Fault::Escape),
            ("/%zz", Fault::Escape),
            ("/%+1", Fault::Escape),
            ("/%é", Fault::Escape),
            ("/%00", Fault::Control),
            ("/a%0d%0ab", Fault::Control),
            ("/%7f", Fault::Control),
            ("/a\u{1}", Fault::Control),
            ("/x/..%2Forders", Fault::HiddenDots),
            ("/x/%2e%2e%2forders", Fault::HiddenDots),
            ("/x%2F..", Fault::HiddenDots),
            ("/x/..%5corders", Fault::HiddenDots),
            ("/x/..\\orders", Fault::HiddenDots),
            ("orders", Fault::Relative),
            ("", Fault::Relative),
        ] {
            assert_eq!(normalised(path), Err(fault), "{path}");
        }
    }

    #[test]
    fn an_escaped_slash_without_dots_is_no_reason_to_refuse() {
        for path in ["/a%2Fb", "/..a%2Fb", "/a%5Cb", "/a%2F..b"] {
            is(path, path);
        }
    }
}
