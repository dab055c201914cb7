//! The canonical form of a JSON text, written while it is read.
//!
//! One pass checks the text against RFC 8259 and writes it as RFC 8785 lays it out, without a tree in between. Only
//! where the members of an object come out of order are their finished spans put in order at its end. No text costs
//! more than its length times the depth that is allowed, plus the sorting.

use std::cmp::Ordering;
use std::ops::Range;

use super::number;
use super::pointer::{Pointer, Step};

/// How deep arrays and objects may be nested. The reader calls itself once a level, so this bounds its stack too.
const DEPTH_MAX: usize = 128;

/// The canonical form of a JSON text without what is at the pointers; none where the text is no I-JSON, is nested
/// too deep, or has an exponent beyond 64 bits. Numbers keep every digit: see rule 3 of the [module](super).
///
/// ```
/// use onlyonce_core::fingerprint::canonical_json;
///
/// let written = canonical_json(br#" {"b": [1.0, 2e-3], "a": "\u0041\/"} "#, &[]);
/// assert_eq!(written.as_deref(), Some(&br#"{"a":"A/","b":[1,0.002]}"#[..]));
/// assert_eq!(canonical_json(br#"{"a": 1, "\u0061": 2}"#, &[]), None);
/// ```
pub fn canonical_json(text: &[u8], ignore: &[Pointer]) -> Option<Vec<u8>> {
    // Everything that is compared or copied below may then take the bytes for characters.
    std::str::from_utf8(text).ok()?;
    let mut writer = Writer {
        text,
        at: 0,
        out: Vec::with_capacity(text.len() + 16),
        members: Vec::with_capacity(16),
        arranged: Vec::new(),
        ignore,
        watched: (0..ignore.len()).collect(),
    };
    writer.skip_space();
    writer.value(0, 0..ignore.len())?;
    writer.skip_space();
    (writer.at == text.len()).then_some(writer.out)
}

/// Writes a character of a string in its one spelling.
pub(crate) fn put_character(out: &mut Vec<u8>, character: char) {
    match character {
        '"' => out.extend_from_slice(b"\\\""),
        '\\' => out.extend_from_slice(b"\\\\"),
        '\u{8}' => out.extend_from_slice(b"\\b"),
        '\t' => out.extend_from_slice(b"\\t"),
        '\n' => out.extend_from_slice(b"\\n"),
        '\u{c}' => out.extend_from_slice(b"\\f"),
        '\r' => out.extend_from_slice(b"\\r"),
        '\0'..='\u{1f}' => {
            let code = character as u32;
            out.extend_from_slice(if code < 0x10 { b"\\u000" } else { b"\\u001" });
            out.extend(char::from_digit(code % 0x10, 16).map(|digit| digit as u8));
        }
        _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

struct Writer<'a> {
    text: &'a [u8],
    at: usize,
    out: Vec<u8>,
    /// The finished members of the objects that are open, the innermost last.
    members: Vec<Member>,
    /// Where members are put in order before they go back.
    arranged: Vec<u8>,
    ignore: &'a [Pointer],
    /// Which pointers lead into the values that are open, the innermost last.
    watched: Vec<usize>,
}

/// Where a member stands in what is written.
struct Member {
    /// Its quote.
    start: usize,
    /// The closing quote of its name.
    name_end: usize,
    end: usize,
    /// Whether the name's bytes are in the order of its UTF-16 units: no escapes, and nothing beyond ASCII.
    plain: bool,
    ignored: bool,
}

/// A child: how a pointer would name it.
enum Child {
    Member(Range<usize>),
    Element(usize),
}

/// What the pointers say of a child.
struct Watch {
    ignored: bool,
    /// Those that lead on into it.
    pointers: Range<usize>,
}

impl Writer<'_> {
    fn value(&mut self, depth: usize, watched: Range<usize>) -> Option<()> {
        match self.peek()? {
            b'"' => self.string().map(drop),
            b'{' => self.object(depth, watched),
            b'[' => self.array(depth, watched),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize, watched: Range<usize>) -> Option<()> {
        let start = self.open(b'{', depth)?;
        let first = self.members.len();
        let mut in_place = true;
        if !self.eat(b'}') {
            loop {
                let member = self.member(depth, watched.clone())?;
                // Once one is out of place all are put in order at the end, and duplicates are found there.
                in_place = in_place && self.is_in_place(first, &member)?;
                self.members.push(member);
                if self.ends(b'}')? {
                    break;
                }
                self.out.push(b',');
            }
        }
        if in_place {
            self.out.push(b'}');
        } else {
            self.arrange(start, first)?;
        }
        self.members.truncate(first);
        Some(())
    }

    fn member(&mut self, depth: usize, watched: Range<usize>) -> Option<Member> {
        let start = self.out.len();
        if self.peek()? != b'"' {
            return None;
        }
        let plain = self.string()?;
        let name_end = self.out.len() - 1;
        self.skip_space();
        if !self.eat(b':') {
            return None;
        }
        self.out.push(b':');
        let ignored = self.child(depth, watched, &Child::Member(start + 1..name_end))?;
        Some(Member { start, name_end, end: self.out.len(), plain, ignored })
    }

    /// Whether the member may stay where it was written; none where its name has just been used.
    fn is_in_place(&self, first: usize, member: &Member) -> Option<bool> {
        if member.ignored {
            return Some(false);
        }
        match self.members[first..].last() {
            None => Some(true),
            Some(last) => match order(&self.out, last, member) {
                Ordering::Less => Some(true),
                Ordering::Equal => None,
                Ordering::Greater => Some(false),
            },
        }
    }

    /// Writes the object's members again, in order and without the ignored; none where a name is used twice.
    fn arrange(&mut self, start: usize, first: usize) -> Option<()> {
        let Self { out, members, arranged, .. } = self;
        let members = &mut members[first..];
        members.sort_unstable_by(|one, other| order(out, one, other));
        if members.windows(2).any(|pair| pair[0].name(out) == pair[1].name(out)) {
            return None;
        }
        arranged.clear();
        arranged.reserve(out.len() - start + 1);
        arranged.push(b'{');
        for member in members.iter().filter(|member| !member.ignored) {
            if arranged.len() > 1 {
                arranged.push(b',');
            }
            arranged.extend_from_slice(&out[member.start..member.end]);
        }
        arranged.push(b'}');
        out.truncate(start);
        out.extend_from_slice(arranged);
        Some(())
    }

    fn array(&mut self, depth: usize, watched: Range<usize>) -> Option<()> {
        let first = self.open(b'[', depth)? + 1;
        if !self.eat(b']') {
            for index in 0.. {
                let start = self.out.len();
                if start > first {
                    self.out.push(b',');
                }
                if self.child(depth, watched.clone(), &Child::Element(index))? {
                    self.out.truncate(start);
                }
                if self.ends(b']')? {
                    break;
                }
            }
        }
        self.out.push(b']');
        Some(())
    }

    /// Writes the value of a member or an element, and says whether it is to be left out.
    fn child(&mut self, depth: usize, watched: Range<usize>, child: &Child) -> Option<bool> {
        self.skip_space();
        let watch = self.watch(depth, watched, child);
        let pointers_start = watch.pointers.start;
        self.value(depth + 1, watch.pointers)?;
        self.watched.truncate(pointers_start);
        Some(watch.ignored)
    }

    fn watch(&mut self, depth: usize, watched: Range<usize>, child: &Child) -> Watch {
        let start = self.watched.len();
        let mut ignored = false;
        for at in watched {
            let pointer = self.watched[at];
            let steps = &self.ignore[pointer].steps[depth..];
            if child.is_at(&steps[0], &self.out) {
                if steps.len() == 1 {
                    ignored = true;
                } else {
                    self.watched.push(pointer);
                }
            }
        }
        Watch { ignored, pointers: start..self.watched.len() }
    }

    /// Whether it was written without escapes, and in ASCII.
    fn string(&mut self) -> Option<bool> {
        self.at += 1;
        self.out.push(b'"');
        let mut is_plain = true;
        loop {
            let rest = &self.text[self.at..];
            let Run { length, is_ascii } = run(rest)?;
            self.out.extend_from_slice(&rest[..length]);
            self.at += length + 1;
            is_plain &= is_ascii;
            match rest[length] {
                b'"' => break,
                b'\\' => self.escape()?,
                // A control character has to be escaped.
                _ => return None,
            }
            is_plain = false;
        }
        self.out.push(b'"');
        Some(is_plain)
    }

    fn escape(&mut self) -> Option<()> {
        let character = match self.next()? {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.unicode()?,
            same @ (b'"' | b'\\' | b'/') => char::from(same),
            _ => return None,
        };
        put_character(&mut self.out, character);
        Some(())
    }

    /// The character of one `\u` escape or of a pair of them; none for half a pair.
    fn unicode(&mut self) -> Option<char> {
        let unit = self.hex4()?;
        if !(0xd800..0xdc00).contains(&unit) {
            return char::from_u32(unit);
        }
        if !(self.eat(b'\\') && self.eat(b'u')) {
            return None;
        }
        let low = self.hex4().filter(|low| (0xdc00..0xe000).contains(low))?;
        char::from_u32(0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00))
    }

    fn hex4(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |unit, _| Some(unit * 16 + char::from(self.next()?).to_digit(16)?))
    }

    fn number(&mut self) -> Option<()> {
        self.at += number::copy(&self.text[self.at..], &mut self.out)?;
        Some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        if !self.text[self.at..].starts_with(word) {
            return None;
        }
        self.at += word.len();
        self.out.extend_from_slice(word);
        Some(())
    }

    /// Reads and writes the bracket that opens an array or object, and says where; none where it is too deep.
    fn open(&mut self, bracket: u8, depth: usize) -> Option<usize> {
        if depth == DEPTH_MAX {
            return None;
        }
        let start = self.out.len();
        self.out.push(bracket);
        self.at += 1;
        self.skip_space();
        Some(start)
    }

    /// Reads what follows a child: whether it was the last one; none where neither comma nor bracket follows.
    fn ends(&mut self, bracket: u8) -> Option<bool> {
        self.skip_space();
        let ends = match self.next()? {
            b',' => false,
            byte if byte == bracket => return Some(true),
            _ => return None,
        };
        self.skip_space();
        Some(ends)
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
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

impl Member {
    /// The name as it is written, without its quotes.
    fn name<'a>(&self, out: &'a [u8]) -> &'a [u8] {
        &out[self.start + 1..self.name_end]
    }
}

impl Child {
    fn is_at(&self, step: &Step, out: &[u8]) -> bool {
        match self {
            Self::Member(name) => out[name.clone()] == step.name,
            Self::Element(index) => step.index == Some(*index),
        }
    }
}

/// The bytes at the start of a string's rest that are copied as they stand.
pub(crate) struct Run {
    pub(crate) length: usize,
    is_ascii: bool,
}

/// Up to the first stop; none where there is none, and the string never ends. Eight bytes are looked at together.
pub(crate) fn run(rest: &[u8]) -> Option<Run> {
    let (words, last) = rest.as_chunks();
    let mut seen = 0;
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let stops = stops(word);
        if stops != 0 {
            // The bits below the first stop are those of the bytes before it.
            let before = (stops & stops.wrapping_neg()) - 1;
            let bytes = usize::try_from(stops.trailing_zeros() / 8).expect("at most eight bytes");
            return Some(Run { length: 8 * index + bytes, is_ascii: (seen | word & before) & TOPS == 0 });
        }
        seen |= word;
    }
    let bytes = last.iter().position(|&byte| STOPS[usize::from(byte)])?;
    let is_ascii = seen & TOPS == 0 && last[..bytes].is_ascii();
    Some(Run { length: 8 * words.len() + bytes, is_ascii })
}

const ONES: u64 = u64::from_le_bytes([0x01; 8]);
const TOPS: u64 = u64::from_le_bytes([0x80; 8]);

/// Has the top bit of the first byte that is a stop, and none below it. A byte is zero or less than `n` where subtracting
/// borrows into its top bit that was not set before; bytes beyond ASCII are never stops. What is borrowed comes from
/// the bytes after it, so only the first one counts.
fn stops(word: u64) -> u64 {
    let control = word.wrapping_sub(ONES * 0x20);
    let quote = (word ^ (ONES * u64::from(b'"'))).wrapping_sub(ONES);
    let backslash = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
    (control | quote | backslash) & !word & TOPS
}

/// What ends a run of bytes that are copied as they stand: quotes, backslashes and control characters.
const STOPS: [bool; 256] = {
    let mut stops = [false; 256];
    let mut control = 0;
    while control < 0x20 {
        stops[control] = true;
        control += 1;
    }
    stops[b'"' as usize] = true;
    stops[b'\\' as usize] = true;
    stops
};

/// The order of two members by their names' UTF-16 units, as RFC 8785 wants it.
fn order(out: &[u8], one: &Member, other: &Member) -> Ordering {
    let (name, other_name) = (one.name(out), other.name(out));
    if one.plain && other.plain {
        return name.cmp(other_name);
    }
    ranks(name).cmp(ranks(other_name))
}

/// A written name's bytes without escapes, changed so that their order is that of its UTF-16 units.
///
/// UTF-8 sorts by code point. UTF-16 does too, but for U+E000 to U+FFFF, which come after everything beyond them:
/// those begin with the bytes EE and EF, and are lifted over F0 to F4.
fn ranks(name: &[u8]) -> impl Iterator<Item = u8> {
    let mut bytes = name.iter().copied();
    std::iter::from_fn(move || match bytes.next()? {
        b'\\' => unescaped(&mut bytes),
        lifted @ (0xee | 0xef) => Some(lifted + 0x10),
        byte => Some(byte),
    })
}

/// The byte behind an escape of ours: see [`put_character`].
fn unescaped(bytes: &mut impl Iterator<Item = u8>) -> Option<u8> {
    Some(match bytes.next()? {
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'f' => 0x0c,
        b'r' => b'\r',
        b'u' => {
            bytes.take(4).fold(0, |code, digit| code * 16 + (digit & 0x0f) + if digit > b'9' { 9 } else { 0 })
        }
        same => same,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> Option<String> {
        canonical_without(text, &[])
    }

    fn canonical_without(text: &str, ignore: &[&str]) -> Option<String> {
        let ignore: Vec<Pointer> = ignore.iter().map(|pointer| pointer.parse().unwrap()).collect();
        canonical_json(text.as_bytes(), &ignore).map(|written| String::from_utf8(written).unwrap())
    }

    fn check(text: &str, written: &str) {
        assert_eq!(canonical(text).as_deref(), Some(written), "{text}");
    }

    /// F02
    #[test]
    fn white_space_and_member_order_do_not_count() {
        check(" {\t\"b\" :\r\n[ 1 , 2 ] , \"a\":{ } } \n", r#"{"a":{},"b":[1,2]}"#);
        check(
            r#"{"c":{"z":1,"y":[{"b":2,"a":1}]},"b":true,"a":null}"#,
            r#"{"a":null,"b":true,"c":{"y":[{"a":1,"b":2}],"z":1}}"#,
        );
        check("[ ]", "[]");
        check(" false ", "false");
    }

    /// F02
    #[test]
    fn every_spelling_of_a_string_is_written_the_same() {
        check(r#""\u0041\/\u00e9\uD83D\uDE02\u007f""#, "\"A/é😂\u{7f}\"");
        check(r#""\u0008\u0009\u000A\u000c\u000d\u0022\u005C""#, r#""\b\t\n\f\r\"\\""#);
        check(r#""\u0000\u000B\u001F""#, r#""\u0000\u000b\u001f""#);
        check(
            "\"long enough for two words, é and an \\u0065nd\"",
            "\"long enough for two words, é and an end\"",
        );
    }

    /// F02
    #[test]
    fn members_are_sorted_by_utf_16_units() {
        // In code points U+1F602 comes after U+FB33; its first UTF-16 unit comes before.
        check(
            "{\"\u{fb33}\":1,\"😂\":2,\"é\":3,\"\\r\":4,\"1\":5,\"\":6,\"~\":7,\"\\u001f\":8,\"\\\\\":9,\" \":0}",
            "{\"\":6,\"\\r\":4,\"\\u001f\":8,\" \":0,\"1\":5,\"\\\\\":9,\"~\":7,\"é\":3,\"😂\":2,\"\u{fb33}\":1}",
        );
        check("{\"aa\":1,\"a\":2,\"a!\":3,\"a\\\"\":4}", "{\"a\":2,\"a!\":3,\"a\\\"\":4,\"aa\":1}");
    }

    /// F05
    #[test]
    fn a_name_used_twice_has_no_canonical_form() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"{"a":1,"\u0061":1}"#,
            r#"{"a":1,"b":1,"a":1}"#,
            r#"{"b":1,"a":1,"b":1}"#,
            r#"[{"x":{"\n":1,"\u000a":1}}]"#,
            r#"{"":0,"":0}"#,
        ] {
            assert_eq!(canonical(text), None, "{text}");
        }
        assert_eq!(canonical_without(r#"{"a":1,"a":2}"#, &["/a"]), None);
        check(r#"{"a":{"a":1},"b":{"a":1}}"#, r#"{"a":{"a":1},"b":{"a":1}}"#);
    }

    /// F05
    #[test]
    fn half_a_surrogate_pair_has_no_canonical_form() {
        for text in [
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\ud800""#,
            r#""\ud800\u0041""#,
            r#""\ud800x""#,
            r#""\udc00\ud800""#,
            r#""\ud800\n""#,
        ] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    /// F05
    #[test]
    fn what_is_no_json_has_no_canonical_form() {
        for text in [
            "",
            " ",
            "\u{feff}1",
            "1 2",
            "[1,]",
            "[,1]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{\"a\" 1}",
            "[",
            "{",
            "]",
            "[}",
            "tru",
            "truex",
            "nul",
            "True",
            "\"",
            "\"\\",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "\"\t\"",
            "'a'",
            "//",
            "\u{a0}1",
            "1,",
            "\"a\"b",
        ] {
            assert_eq!(canonical(text), None, "{text:?}");
        }
        assert_eq!(canonical_json(b"\"\xff\"", &[]), None);
        assert_eq!(canonical_json(b"\"\xed\xa0\x80\"", &[]), None);
    }

    /// F05
    #[test]
    fn nesting_is_read_to_a_depth_of_128() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check(&nested(128), &nested(128));
        assert_eq!(canonical(&nested(129)), None);
        assert_eq!(canonical(&nested(100_000)), None);
        assert_eq!(canonical(&"{\"a\":".repeat(100_000)), None);
        let objects = |depth| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        check(&objects(128), &objects(128));
        assert_eq!(canonical(&objects(129)), None);
    }

    /// F04
    #[test]
    fn ignored_members_and_elements_are_left_out() {
        let text = r#"{"a":1,"b":[10,11,[12],13],"c":{"a":2,"0":3},"d/e":4}"#;
        for (ignore, written) in [
            (&["/a"][..], r#"{"b":[10,11,[12],13],"c":{"0":3,"a":2},"d/e":4}"#),
            (&["/b/0", "/b/2/0"], r#"{"a":1,"b":[11,[],13],"c":{"0":3,"a":2},"d/e":4}"#),
            (&["/b/3", "/c/0"], r#"{"a":1,"b":[10,11,[12]],"c":{"a":2},"d/e":4}"#),
            (&["/a", "/b", "/c", "/d~1e"], "{}"),
            (&["/b", "/b/0", "/c/a", "/c/0"], r#"{"a":1,"c":{},"d/e":4}"#),
            (
                &["/x", "/b/9", "/b/-", "/b/00", "/a/0", "/b/0/0/0/0"],
                r#"{"a":1,"b":[10,11,[12],13],"c":{"0":3,"a":2},"d/e":4}"#,
            ),
        ] {
            assert_eq!(canonical_without(text, ignore).as_deref(), Some(written), "{ignore:?}");
        }
        assert_eq!(canonical_without("{\"\\n\":1,\"b\":2}", &["/\n"]).as_deref(), Some("{\"b\":2}"));
        assert_eq!(canonical_without("[1,2]", &["/0", "/1"]).as_deref(), Some("[]"));
        assert_eq!(canonical_without("1", &["/0"]).as_deref(), Some("1"));
    }

    /// F05: what is left out is still read.
    #[test]
    fn an_ignored_member_that_is_no_json_has_no_canonical_form() {
        assert_eq!(canonical_without(r#"{"a":[}]}"#, &["/a"]), None);
    }

    #[test]
    fn a_run_ends_at_its_first_stop_wherever_that_stands() {
        for byte in 0..=u8::MAX {
            for (at, other) in
                (0..19).flat_map(|at| [b'a', 0x1f, b'"', b'\\', b'!', 0xff].map(|other| (at, other)))
            {
                let mut rest = [b'a'; 20];
                rest[at] = byte;
                rest[at + 1] = other;
                let found = run(&rest).map(|run| (run.length, run.is_ascii));
                let stop = rest.iter().position(|&byte| byte < 0x20 || byte == b'"' || byte == b'\\');
                assert_eq!(
                    found,
                    stop.map(|stop| (stop, rest[..stop].is_ascii())),
                    "{byte} at {at}, {other}"
                );
            }
        }
    }
}
