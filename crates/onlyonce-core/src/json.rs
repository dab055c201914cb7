//! One member of a JSON text, found without a tree.
//!
//! [`find`] reads a text once, checks all of it against RFC 8259, and says where the value at a pointer stands. Nothing is copied.
//! A name counts however it is escaped, and a name that is used twice on the way to the value is told: parsers differ on which
//! one counts.
//!
//! ```
//! use onlyonce_core::json::{Place, find, string};
//!
//! let body = br#"{"amount": 5, "\u0069d": "evt_1"}"#;
//! let Ok(Place::Once(at)) = find(body, &"/id".parse()?) else { panic!("it is there once") };
//! assert_eq!(string(&body[at]).as_deref(), Some("evt_1"));
//! # Ok::<(), onlyonce_core::fingerprint::MalformedPointer>(())
//! ```

use std::borrow::Cow;
use std::ops::Range;

use crate::fingerprint::Pointer;
use crate::fingerprint::json::{put_character, run};
use crate::fingerprint::pointer::Step;

/// How deep arrays and objects may be nested. The reader calls itself once a level, so this bounds its stack too.
const DEPTH_MAX: usize = 128;

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere.
    Missing,
    /// Here, its quotes or brackets included.
    Once(Range<usize>),
    /// A name on the way to it is used twice in its object.
    Twice,
}

/// The text is not JSON in UTF-8, or is nested deeper than 128.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotJson;

/// Where the value at `pointer` stands in `text`.
///
/// # Errors
///
/// Where the text is not JSON, also behind the value.
pub fn find(text: &[u8], pointer: &Pointer) -> Result<Place, NotJson> {
    search(text, &pointer.steps).ok_or(NotJson)
}

/// Whether all of `text` is JSON.
pub fn is_json(text: &[u8]) -> bool {
    search(text, &[]).is_some()
}

/// The text with `member` at the top of its object, as `value`, which is JSON: in the place of the value that is there, or in
/// front of all others. None where the text is not JSON object, or has the member twice.
///
/// ```
/// use onlyonce_core::json::with_member;
///
/// let marked = |text: &[u8]| with_member(text, "replayed", b"true");
/// assert_eq!(marked(br#" {"a":1}"#).as_deref(), Some(&br#" {"replayed":true,"a":1}"#[..]));
/// assert_eq!(marked(br#"{"replayed": false}"#).as_deref(), Some(&br#"{"replayed": true}"#[..]));
/// assert_eq!(marked(b"[]"), None);
/// ```
pub fn with_member(text: &[u8], member: &str, value: &[u8]) -> Option<Vec<u8>> {
    let step = Step::named(member);
    let place = search(text, std::slice::from_ref(&step))?;
    let open = text.iter().position(|byte| !is_space(*byte)).filter(|at| text[*at] == b'{')?;
    let mut out = Vec::with_capacity(text.len() + member.len() + value.len() + 4);
    match place {
        Place::Twice => return None,
        Place::Once(at) => {
            out.extend_from_slice(&text[..at.start]);
            out.extend_from_slice(value);
            out.extend_from_slice(&text[at.end..]);
        }
        Place::Missing => {
            let rest = &text[open + 1..];
            out.extend_from_slice(&text[..=open]);
            out.push(b'"');
            out.extend_from_slice(&step.name);
            out.extend_from_slice(b"\":");
            out.extend_from_slice(value);
            let is_empty = rest.iter().find(|byte| !is_space(**byte)) == Some(&b'}');
            if !is_empty {
                out.push(b',');
            }
            out.extend_from_slice(rest);
        }
    }
    Some(out)
}

/// The characters of a JSON string that [`find`] found; none where it is another value, or has half a surrogate pair.
pub fn string(value: &[u8]) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if !inner.contains(&b'\\') {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    let text = std::str::from_utf8(inner).ok()?;
    let mut decoded = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        decoded.push(if character == '\\' { escaped(&mut characters)? } else { character });
    }
    Some(Cow::Owned(decoded))
}

/// The character that an escape stands for, behind its backslash; none for half a surrogate pair.
fn escaped(characters: &mut std::str::Chars<'_>) -> Option<char> {
    Some(match characters.next()? {
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'u' => {
            let unit = hex4(characters)?;
            if !(0xd800..0xdc00).contains(&unit) {
                return char::from_u32(unit);
            }
            if characters.next()? != '\\' || characters.next()? != 'u' {
                return None;
            }
            let low = hex4(characters).filter(|low| (0xdc00..0xe000).contains(low))?;
            char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))?
        }
        same => same,
    })
}

fn hex4(characters: &mut std::str::Chars<'_>) -> Option<u32> {
    (0..4).try_fold(0, |unit, _| Some(unit * 16 + characters.next()?.to_digit(16)?))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Without steps nothing is found, and the text is only checked.
fn search(text: &[u8], steps: &[Step]) -> Option<Place> {
    std::str::from_utf8(text).ok()?;
    let mut scanner = Scanner { text, at: 0, steps, place: Place::Missing };
    scanner.skip_space();
    scanner.value(0, if steps.is_empty() { None } else { Some(0) })?;
    scanner.skip_space();
    (scanner.at == text.len()).then_some(scanner.place)
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    steps: &'a [Step],
    place: Place,
}

impl Scanner<'_> {
    /// Reads a value. `step` is which step of the pointer its children are compared with; none where no step leads here.
    fn value(&mut self, depth: usize, step: Option<usize>) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => self.object(depth, step),
            b'[' => self.array(depth, step),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize, step: Option<usize>) -> Option<()> {
        self.open(depth)?;
        if self.eat(b'}') {
            return Some(());
        }
        let mut is_met = false;
        loop {
            if self.peek()? != b'"' {
                return None;
            }
            let name = self.string()?;
            self.skip_space();
            if !self.eat(b':') {
                return None;
            }
            self.skip_space();
            let met = step.filter(|step| self.is_named(&name, &self.steps[*step]));
            self.child(depth, met)?;
            if met.is_some() {
                if is_met {
                    self.place = Place::Twice;
                }
                is_met = true;
            }
            if self.ends(b'}')? {
                return Some(());
            }
        }
    }

    fn array(&mut self, depth: usize, step: Option<usize>) -> Option<()> {
        self.open(depth)?;
        if self.eat(b']') {
            return Some(());
        }
        for index in 0.. {
            let met = step.filter(|step| self.steps[*step].index == Some(index));
            self.child(depth, met)?;
            if self.ends(b']')? {
                break;
            }
        }
        Some(())
    }

    /// Reads a member's value or an element, which the step `met` led to.
    fn child(&mut self, depth: usize, met: Option<usize>) -> Option<()> {
        let start = self.at;
        let next = met.map(|step| step + 1);
        let is_last = next == Some(self.steps.len());
        self.value(depth + 1, next.filter(|_| !is_last))?;
        if is_last && self.place == Place::Missing {
            self.place = Place::Once(start..self.at);
        }
        Some(())
    }

    /// Whether the name at this range, without its quotes, is the step's, however it is escaped.
    fn is_named(&self, name: &Range<usize>, step: &Step) -> bool {
        let raw = &self.text[name.clone()];
        if !raw.contains(&b'\\') {
            return raw == step.name;
        }
        let quoted = &self.text[name.start - 1..=name.end];
        let Some(decoded) = string(quoted) else { return false };
        let mut spelt = Vec::with_capacity(decoded.len());
        decoded.chars().for_each(|character| put_character(&mut spelt, character));
        spelt == step.name
    }

    /// Reads a string, and says where its characters are.
    fn string(&mut self) -> Option<Range<usize>> {
        self.at += 1;
        let start = self.at;
        loop {
            let length = run(&self.text[self.at..])?.length;
            self.at += length + 1;
            match self.text[self.at - 1] {
                b'"' => return Some(start..self.at - 1),
                b'\\' => self.escape()?,
                // A control character has to be escaped.
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.next()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => (0..4).try_for_each(|_| self.next().filter(u8::is_ascii_hexdigit).map(drop)),
            _ => None,
        }
    }

    fn number(&mut self) -> Option<()> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _signed = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
        }
        Some(())
    }

    /// At least one.
    fn digits(&mut self) -> Option<()> {
        let count = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        (count > 0).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        if !self.text[self.at..].starts_with(word) {
            return None;
        }
        self.at += word.len();
        Some(())
    }

    fn open(&mut self, depth: usize) -> Option<()> {
        if depth == DEPTH_MAX {
            return None;
        }
        self.at += 1;
        self.skip_space();
        Some(())
    }

    /// Reads what follows a child: whether it was the last one; none where neither comma nor bracket follows.
    fn ends(&mut self, bracket: u8) -> Option<bool> {
        self.skip_space();
        match self.next()? {
            b',' => {
                self.skip_space();
                Some(false)
            }
            byte if byte == bracket => Some(true),
            _ => None,
        }
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let eaten = self.peek() == Some(byte);
        self.at += usize::from(eaten);
        eaten
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, pointer: &str) -> Result<Option<String>, &'static str> {
        match find(text.as_bytes(), &pointer.parse().unwrap()) {
            Ok(Place::Missing) => Ok(None),
            Ok(Place::Once(at)) => Ok(Some(text[at].to_owned())),
            Ok(Place::Twice) => Err("twice"),
            Err(NotJson) => Err("no JSON"),
        }
    }

    fn is_at(text: &str, pointer: &str, value: &str) {
        assert_eq!(found(text, pointer), Ok(Some(value.to_owned())), "{text} {pointer}");
    }

    /// K01
    #[test]
    fn a_value_is_found_wherever_it_stands_and_however_its_name_is_escaped() {
        is_at(r#"{"id":"a"}"#, "/id", r#""a""#);
        is_at(" { \"x\" : [1, {\"id\":0}] ,\n\"id\" : \"a\\\"b\" } ", "/id", r#""a\"b""#);
        is_at(r#"{"\u0069\u0064":"a"}"#, "/id", r#""a""#);
        is_at(r#"{"a":{"b":[0,{"c":null}]}}"#, "/a/b/1/c", "null");
        is_at(r#"{"a/b":{"m~n":[]}}"#, "/a~1b/m~0n", "[]");
        is_at(r#"{"a\nb":-1.5e+3}"#, "/a\nb", "-1.5e+3");
        is_at(r#"["x",{"0":1}]"#, "/0", r#""x""#);
        is_at(r#"{"":true}"#, "/", "true");
        for (text, pointer) in [
            (r#"{"ID":"a"}"#, "/id"),
            (r#"{"x":{"id":"a"}}"#, "/id"),
            (r#"[{"id":"a"}]"#, "/id"),
            (r#""id""#, "/id"),
            ("{}", "/id"),
            (r#"{"id":"a"}"#, "/id/x"),
            (r#"{"id":["a"]}"#, "/id/1"),
            (r#"{"\ud800":1}"#, "/id"),
        ] {
            assert_eq!(found(text, pointer), Ok(None), "{text} {pointer}");
        }
    }

    /// K01
    #[test]
    fn a_name_that_is_used_twice_on_the_way_is_told() {
        for (text, pointer) in [
            (r#"{"id":"a","id":"a"}"#, "/id"),
            (r#"{"id":"a","\u0069d":"b"}"#, "/id"),
            (r#"{"a":{"id":"a"},"a":{}}"#, "/a/id"),
            (r#"{"a":{},"a":{"id":"a"}}"#, "/a/id"),
            (r#"{"a":1,"a":1}"#, "/a/id"),
        ] {
            assert_eq!(found(text, pointer), Err("twice"), "{text}");
        }
        is_at(r#"{"x":1,"x":1,"id":"a","b":{"id":"b","id":"c"}}"#, "/id", r#""a""#);
    }

    /// K05
    #[test]
    fn what_is_no_json_is_told_wherever_it_is_wrong() {
        for text in [
            "",
            " ",
            "{",
            r#"{"id":"a""#,
            r#"{"id":"a"}x"#,
            r#"{"id":"a",}"#,
            r#"{"id":"a"}{"#,
            r#"{"id":01}"#,
            r#"{"id":1.}"#,
            r#"{"id":1e}"#,
            r#"{"id":+1}"#,
            r#"{"id":-}"#,
            r#"{"id":tru}"#,
            r#"{"id":'a'}"#,
            r#"{id:"a"}"#,
            r#"{"id":"\x"}"#,
            r#"{"id":"\u12"}"#,
            "{\"id\":\"\n\"}",
            "\u{feff}{}",
        ] {
            assert_eq!(found(text, "/id"), Err("no JSON"), "{text:?}");
        }
        assert_eq!(find(b"{\"id\":\"\xff\"}", &"/id".parse().unwrap()), Err(NotJson));
    }

    /// K05
    #[test]
    fn nesting_is_read_to_a_depth_of_128() {
        let nested = |depth| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert_eq!(found(&nested(128), "/id"), Ok(None));
        assert_eq!(found(&nested(129), "/id"), Err("no JSON"));
        assert_eq!(found(&"[".repeat(100_000), "/id"), Err("no JSON"));
    }

    #[test]
    fn a_string_is_decoded_and_other_values_are_none() {
        for (value, text) in [
            (r#""abc""#, Some("abc")),
            (r#""""#, Some("")),
            (r#""\u0041\/\b\f\n\r\t\"\\""#, Some("A/\u{8}\u{c}\n\r\t\"\\")),
            (r#""\ud83d\ude02""#, Some("😂")),
            (r#""\ud83d""#, None),
            (r#""\udc00\ud800""#, None),
            (r#""\ud800x""#, None),
            ("1", None),
            ("null", None),
            ("{}", None),
        ] {
            assert_eq!(string(value.as_bytes()).as_deref(), text, "{value}");
        }
    }

    /// D01
    #[test]
    fn a_member_is_set_at_the_top_and_everything_else_stays() {
        for (text, marked) in [
            ("{}", Some(r#"{"r":true}"#)),
            (" { } ", Some(r#" {"r":true } "#)),
            (r#"{"a":{"r":1}}"#, Some(r#"{"r":true,"a":{"r":1}}"#)),
            (r#"{"a":1,"r" : false ,"b":2}"#, Some(r#"{"a":1,"r" : true ,"b":2}"#)),
            (r#"{"\u0072":[1]}"#, Some(r#"{"\u0072":true}"#)),
            (r#"{"r":1,"r":2}"#, None),
            ("[]", None),
            ("1", None),
            ("{", None),
            ("", None),
        ] {
            let found = with_member(text.as_bytes(), "r", b"true");
            assert_eq!(found.as_deref(), marked.map(str::as_bytes), "{text}");
        }
    }
}
