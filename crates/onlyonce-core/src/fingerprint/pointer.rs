//! Where in a JSON body something is left out.

use std::fmt;
use std::str::FromStr;

use super::json;

/// A JSON Pointer (RFC 6901) to a member or an element.
///
/// ```
/// use onlyonce_core::fingerprint::Pointer;
///
/// let pointer: Pointer = "/items/0/sent~1at".parse()?;
/// assert_eq!(pointer.as_str(), "/items/0/sent~1at");
/// assert!("client_time".parse::<Pointer>().is_err());
/// # Ok::<(), onlyonce_core::fingerprint::MalformedPointer>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: Box<str>,
    /// At least one: a pointer to the whole body is refused.
    pub(crate) steps: Vec<Step>,
}

/// One step down into a document.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Step {
    /// The member's name, spelled as the canonical writer spells it, so that a comparison is one of bytes.
    pub(crate) name: Vec<u8>,
    /// The element's index, where the step can be one.
    pub(crate) index: Option<usize>,
}

impl Pointer {
    /// The pointer as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Pointer {
    type Err = MalformedPointer;

    fn from_str(text: &str) -> Result<Self, MalformedPointer> {
        let malformed = |fault| MalformedPointer { text: text.into(), fault };
        if text.is_empty() {
            return Err(malformed(Fault::WholeBody));
        }
        let steps = text.strip_prefix('/').ok_or_else(|| malformed(Fault::NoSlash))?;
        let steps: Option<Vec<Step>> = steps.split('/').map(Step::parse).collect();
        Ok(Self { text: text.into(), steps: steps.ok_or_else(|| malformed(Fault::Tilde))? })
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Step {
    /// The step to the member of that name, which is no pointer's text.
    pub(crate) fn named(name: &str) -> Self {
        let mut spelt = Vec::with_capacity(name.len());
        name.chars().for_each(|character| json::put_character(&mut spelt, character));
        Self { name: spelt, index: None }
    }

    fn parse(token: &str) -> Option<Self> {
        let mut name = Vec::with_capacity(token.len());
        let mut characters = token.chars();
        while let Some(character) = characters.next() {
            json::put_character(
                &mut name,
                if character == '~' { tilde(characters.next()?)? } else { character },
            );
        }
        Some(Self { name, index: index(token) })
    }
}

fn tilde(escaped: char) -> Option<char> {
    match escaped {
        '0' => Some('~'),
        '1' => Some('/'),
        _ => None,
    }
}

/// An index has no sign and no leading zero, so `01` and `+1` can only be members.
fn index(token: &str) -> Option<usize> {
    let digits = token.bytes().all(|byte| byte.is_ascii_digit());
    let leading_zero = token.len() > 1 && token.starts_with('0');
    if digits && !leading_zero { token.parse().ok() } else { None }
}

/// The text is no pointer to a member or an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MalformedPointer {
    text: Box<str>,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    WholeBody,
    NoSlash,
    Tilde,
}

impl fmt::Display for MalformedPointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match self.fault {
            Fault::WholeBody => {
                write!(f, "pointer \"\" means the whole body; use a member, such as \"/client_time\"")
            }
            Fault::NoSlash => {
                write!(f, "pointer {text:?} does not start with a slash; write {:?}", format!("/{text}"))
            }
            Fault::Tilde => {
                write!(
                    f,
                    "pointer {text:?} has a lone tilde; write \"~0\" for a tilde and \"~1\" for a slash in a name"
                )
            }
        }
    }
}

impl std::error::Error for MalformedPointer {}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(text: &str) -> Vec<(String, Option<usize>)> {
        let pointer: Pointer = text.parse().unwrap();
        let told = |step: &Step| (String::from_utf8(step.name.clone()).unwrap(), step.index);
        pointer.steps.iter().map(told).collect()
    }

    /// F04
    #[test]
    fn a_pointer_is_read_as_rfc_6901_says() {
        assert_eq!(steps("/"), [(String::new(), None)]);
        assert_eq!(
            steps("/a~1b/m~0n/~01"),
            [("a/b".into(), None), ("m~n".into(), None), ("~1".into(), None)]
        );
        assert_eq!(
            steps("/0/10/01/-"),
            [("0".into(), Some(0)), ("10".into(), Some(10)), ("01".into(), None), ("-".into(), None)]
        );
        assert_eq!(steps("/k\"l\n"), [("k\\\"l\\n".into(), None)]);
        assert_eq!(steps("/99999999999999999999999"), [("99999999999999999999999".into(), None)]);
    }

    /// F04
    #[test]
    fn a_malformed_pointer_is_refused_with_the_remedy() {
        let fault = |text: &str| text.parse::<Pointer>().unwrap_err().to_string();
        assert_eq!(fault(""), r#"pointer "" means the whole body; use a member, such as "/client_time""#);
        assert_eq!(fault("a/b"), r#"pointer "a/b" does not start with a slash; write "/a/b""#);
        for text in ["/~", "/a~2", "/~/0"] {
            assert!(fault(text).contains("lone tilde"), "{text}");
        }
    }
}
