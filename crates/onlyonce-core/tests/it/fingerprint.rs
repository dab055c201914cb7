//! The fingerprint against published vectors, against another implementation, and against chance.
//!
//! `ONLYONCE_VECTORS` names a directory with `jcs` (the test data of RFC 8785) and `json-test-suite` (JSONTestSuite).
//! Without it the vectors written here run alone, and each test says so.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use std::fs;
use std::path::PathBuf;

use http::{HeaderMap, HeaderValue, header};
use onlyonce_core::fingerprint::{Candidates, Settings, Subject, canonical_json};
use proptest::prelude::*;
use serde_json::{Map, Number, Value};

mod vectors {
    use super::*;

    /// The published vectors below `folder`, by file name; none where they are not at hand. Said to be there but
    /// unreadable is a failure.
    fn published(folder: &str) -> Option<Vec<(String, Vec<u8>)>> {
        let Some(root) = std::env::var_os("ONLYONCE_VECTORS") else {
            println!("{folder}: our own vectors only, since ONLYONCE_VECTORS is not set");
            return None;
        };
        let folder = PathBuf::from(root).join(folder);
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> =
            entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
        files.sort();
        println!("{}: {} published vectors", folder.display(), files.len());
        assert!(!files.is_empty(), "{} is empty", folder.display());
        Some(files.into_iter().map(|path| (name(&path), fs::read(&path).unwrap())).collect())
    }

    fn name(path: &std::path::Path) -> String {
        path.file_name().unwrap().to_string_lossy().into_owned()
    }

    /// F02: the layout is that of RFC 8785, but where a number is written with more digits than a double holds.
    #[test]
    fn the_layout_is_that_of_rfc_8785() {
        for (text, written) in [
            (r#"{"b":[ ],"a":{"z":null,"A":true}}"#, r#"{"a":{"A":true,"z":null},"b":[]}"#),
            (r#"["\u20ac\u000F\/",1E30,4.50,2e-3,1e-27]"#, r#"["€\u000f/",1e+30,4.5,0.002,1e-27]"#),
        ] {
            assert_eq!(canonical(text.as_bytes()).as_deref(), Some(written));
        }
        let Some(inputs) = published("jcs/testdata/input") else { return };
        let outputs = published("jcs/testdata/output").unwrap();
        assert_eq!(inputs.len(), outputs.len());
        for ((name, input), (output_name, output)) in inputs.iter().zip(&outputs) {
            assert_eq!(name, output_name);
            let expected = exact(name, std::str::from_utf8(output).unwrap());
            assert_eq!(canonical(input), Some(expected), "{name}");
        }
    }

    /// Our one deviation, by name: `values.json` spells a number with 17 digits, of which RFC 8785 keeps the 16 that
    /// its double needs. We keep all of them.
    fn exact(name: &str, output: &str) -> String {
        match name {
            "values.json" => {
                assert!(output.contains("[333333333.3333333,"));
                output.replace("[333333333.3333333,", "[333333333.33333329,")
            }
            _ => output.to_owned(),
        }
    }

    /// F02: every double in its shortest form is written as ECMAScript writes it.
    #[test]
    fn shortest_doubles_are_written_as_ecmascript_writes_them() {
        check_doubles(
            "own",
            "0,0\n1,5e-324\n7fefffffffffffff,1.7976931348623157e+308\n3ff0000000000000,1\nc04c000000000000,-56\n\
             3eb0c6f7a0b5ed8d,0.000001\n3e7ad7f29abcaf48,1e-7\n444b1ae4d6e2ef50,1e+21\n4415af1d78b58c40,100000000000000000000\n\
             7ff0000000000000,Infinity\n",
        );
        let Some(files) = published("jcs") else { return };
        for name in ["es6testfile1k.txt", "es6testfile10k.txt"] {
            let (_, lines) = files.iter().find(|(file, _)| file == name).expect(name);
            check_doubles(name, std::str::from_utf8(lines).unwrap());
        }
    }

    fn check_doubles(name: &str, lines: &str) {
        let (mut checked, mut skipped) = (0, 0);
        for line in lines.lines() {
            let (bits, expected) = line.split_once(',').unwrap();
            let double = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
            if !double.is_finite() {
                skipped += 1;
                continue;
            }
            // ECMAScript writes both zeros alike; all others come back as they were.
            assert!(
                expected == "0" || expected.parse::<f64>().unwrap().to_bits() == double.to_bits(),
                "{line}"
            );
            assert_eq!(canonical(expected.as_bytes()).as_deref(), Some(expected), "{line}");
            assert_eq!(canonical(respelled(expected).as_bytes()).as_deref(), Some(expected), "{line}");
            checked += 1;
        }
        println!("{name}: {checked} doubles, {skipped} skipped as no JSON numbers");
        assert!(checked > 0);
    }

    /// The same digits with needless zeros and an exponent.
    fn respelled(number: &str) -> String {
        let (digits, exponent) = number.split_once('e').unwrap_or((number, "+0"));
        let point = if digits.contains('.') { "" } else { "." };
        format!("{digits}{point}00E{}0{}", &exponent[..1], &exponent[1..])
    }

    /// F02, F05: what must parse has a canonical form unless a name is used twice; what must not parse has none; and
    /// whatever it is, a body matches itself.
    #[test]
    fn every_file_of_the_json_test_suite_is_judged_and_matches_itself() {
        for (text, parses) in [("[1]", true), ("[1,]", false), ("{\"a\":1,\"a\":1}", false), ("", false)] {
            assert_eq!(judged(text.as_bytes()), parses, "{text}");
        }
        assert!(!judged("[".repeat(100_000).as_bytes()));
        let Some(files) = published("json-test-suite/test_parsing") else { return };
        let (mut duplicates, mut implementation_defined) = (Vec::new(), 0);
        for (name, text) in &files {
            let has_form = judged(text);
            match name.split('_').next() {
                Some("y") if has_form => {}
                Some("y") => duplicates.push(name.as_str()),
                Some("n") => assert!(!has_form, "{name}"),
                Some("i") => implementation_defined += 1,
                _ => panic!("{name} says neither y, n nor i"),
            }
        }
        println!("{implementation_defined} of them implementation-defined");
        assert_eq!(duplicates, ["y_object_duplicated_key.json", "y_object_duplicated_key_and_value.json"]);
    }

    /// F02, F05: where parsers are known to change what they read, we keep it or leave it as it is.
    #[test]
    fn nothing_is_transformed() {
        for (text, written) in
            [("[1.000000000000000005]", "[1.000000000000000005]"), ("[1E-999]", "[1e-999]")]
        {
            assert_eq!(canonical(text.as_bytes()).as_deref(), Some(written));
        }
        let Some(files) = published("json-test-suite/test_transform") else { return };
        for (name, text) in &files {
            assert_eq!(judged(text), canonical(text).is_some(), "{name}");
            assert_eq!(canonical(text).as_deref(), transformed(name), "{name}");
        }
    }

    /// What we make of each file; none means its bytes.
    fn transformed(name: &str) -> Option<&'static str> {
        match name.trim_end_matches(".json") {
            "number_-9223372036854775808" => Some("[-9223372036854775808]"),
            "number_-9223372036854775809" => Some("[-9223372036854775809]"),
            "number_1.0" => Some("[1]"),
            "number_1.000000000000000005" => Some("[1.000000000000000005]"),
            "number_1000000000000000" => Some("[1000000000000000]"),
            "number_10000000000000000999" => Some("[10000000000000000999]"),
            "number_1e-999" => Some("[1e-999]"),
            "number_1e6" => Some("[1000000]"),
            "number_9223372036854775807" => Some("[9223372036854775807]"),
            "number_9223372036854775808" => Some("[9223372036854775808]"),
            "object_key_nfc_nfd" | "object_key_nfd_nfc" => Some("{\"e\u{301}\":\"NFD\",\"\u{e9}\":\"NFC\"}"),
            "string_with_escaped_NULL" => Some(r#"["A\u0000B"]"#),
            duplicate if duplicate.starts_with("object_same_key_") => None,
            invalid if invalid.contains("invalid_codepoint") => None,
            unknown => panic!("{unknown} is new: say here what becomes of it"),
        }
    }

    /// Whether the body has a canonical form; and it matches itself either way.
    fn judged(body: &[u8]) -> bool {
        let settings = Settings::default();
        let headers = typed("application/json");
        let made = candidates(&settings, &headers, body).fingerprint();
        assert!(candidates(&settings, &headers, body).matches(&made));
        assert_eq!(made.canonical.is_some(), canonical(body).is_some());
        made.canonical.is_some()
    }
}

fn typed(content_type: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))])
}

fn candidates<'a>(settings: &'a Settings, headers: &'a HeaderMap, body: &'a [u8]) -> Candidates<'a> {
    settings.candidates(Subject { method: "POST", path: "/", query: None, headers, body })
}

fn canonical(text: &[u8]) -> Option<String> {
    canonical_json(text, &[]).map(|written| String::from_utf8(written).unwrap())
}

/// Documents whose leaves `leaf` makes; small alphabets make equal names and values likely.
fn documents(leaf: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Value> {
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((text(), inner), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ab\"\\\\/\n\u{1}\u{7f}é€\u{fb33}\u{ffff}😂]{0,4}", any::<String>(), "[a-z]{6,20}",]
}

fn integer_leaf() -> impl Strategy<Value = Value> {
    let integer = prop_oneof![-3..=3_i64, -(1 << 53)..=(1_i64 << 53)];
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        integer.prop_map(|integer| Value::Number(integer.into())),
        text().prop_map(Value::String),
    ]
}

/// Integers, and floats of so few digits that their shortest form is exact.
fn leaf() -> impl Strategy<Value = Value> {
    let float = (-(1_i32 << 20)..1 << 20, 0..7_i32).prop_map(|(numerator, places)| {
        Value::Number(Number::from_f64(f64::from(numerator) / 2_f64.powi(places)).unwrap())
    });
    prop_oneof![integer_leaf(), float]
}

/// Decides how a document is spelled: a stream of choices from one seed, so that a failure can be told by it.
struct Speller(u64);

impl Speller {
    /// One of `count`, by Knuth's linear congruence.
    fn choose(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }

    fn spell(&mut self, value: &Value) -> String {
        let spelled = match value {
            Value::Null | Value::Bool(_) => value.to_string(),
            Value::Number(number) => self.spell_number(&number.to_string()),
            Value::String(text) => self.spell_string(text),
            Value::Array(elements) => {
                let elements: Vec<String> = elements.iter().map(|element| self.spell(element)).collect();
                format!("[{}{}]", self.space(), elements.join(","))
            }
            Value::Object(members) => self.spell_object(members),
        };
        format!("{}{spelled}{}", self.space(), self.space())
    }

    fn spell_object(&mut self, members: &Map<String, Value>) -> String {
        let mut spelled = Vec::new();
        for (name, value) in members {
            let member =
                format!("{}{}{}:{}", self.space(), self.spell_string(name), self.space(), self.spell(value));
            let at = self.choose(spelled.len() as u64 + 1);
            spelled.insert(usize::try_from(at).unwrap(), member);
        }
        format!("{{{}{}}}", self.space(), spelled.join(","))
    }

    fn spell_string(&mut self, text: &str) -> String {
        let mut spelled = String::from('"');
        for character in text.chars() {
            let must = character < ' ' || character == '"' || character == '\\';
            if !must && self.choose(3) > 0 {
                spelled.push(character);
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                spelled +=
                    &if self.choose(2) == 0 { format!("\\u{unit:04x}") } else { format!("\\u{unit:04X}") };
            }
        }
        spelled + "\""
    }

    fn spell_number(&mut self, digits: &str) -> String {
        match self.choose(5) {
            0 => format!("{digits}e0"),
            1 => format!("{digits}E+00"),
            2 if !digits.contains('.') => format!("{digits}.000"),
            3 if !digits.contains('.') && digits != "0" => format!("{digits}00e-2"),
            _ => digits.to_owned(),
        }
    }

    fn space(&mut self) -> &'static str {
        ["", "", "", " ", "\n", "\t\r\n "][usize::try_from(self.choose(6)).unwrap()]
    }
}

/// Bytes of all kinds: any, and such as look much like one of the forms.
fn bodies() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        any::<Vec<u8>>(),
        "[\\[\\]{}\",:\\\\u0-9a-fA-F.+\\- \n]{0,64}".prop_map(String::into_bytes),
        "(\\[|\\{\"a\":|\"|\\\\ud83d|\\\\ude02|1|e|-|\\.|,|\\]|\\}){0,40}".prop_map(String::into_bytes),
        "(a|=|&|%|%41|\\+|é){0,30}".prop_map(String::into_bytes),
        "(--b|--|\r\n|\n|Content-Disposition: form-data; name=|\"|x|:|;){0,30}".prop_map(String::into_bytes),
    ]
}

const CONTENT_TYPES: [&str; 4] = [
    "application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=b",
    "application/octet-stream",
];

proptest! {
    /// F05
    #[test]
    fn any_bytes_match_themselves_and_never_panic(body in bodies()) {
        let settings = Settings { ignore: vec!["/a".parse().unwrap(), "/0/a".parse().unwrap()], ..Settings::default() };
        for headers in CONTENT_TYPES.map(typed) {
            let made = candidates(&settings, &headers, &body).fingerprint();
            prop_assert!(candidates(&settings, &headers, &body).matches(&made));
        }
    }

    /// F05: another strict parser reads it too, but for numbers that are too large for its doubles.
    #[test]
    fn what_has_a_canonical_form_is_json(body in bodies()) {
        if canonical_json(&body, &[]).is_some() {
            match serde_json::from_slice::<Value>(&body) {
                Ok(_) => {}
                Err(error) => prop_assert!(error.to_string().contains("number out of range"), "{}", error),
            }
        }
    }

    /// F02
    #[test]
    fn the_canonical_form_is_its_own_canonical_form(value in documents(leaf()), seed: u64) {
        let once = canonical(Speller(seed).spell(&value).as_bytes()).unwrap();
        prop_assert_eq!(canonical(once.as_bytes()), Some(once));
    }

    /// F02
    #[test]
    fn every_spelling_of_a_document_agrees(value in documents(leaf()), one: u64, other: u64) {
        let settings = Settings::default();
        let headers = typed("application/json");
        let (one, other) = (Speller(one).spell(&value), Speller(other).spell(&value));
        let made = candidates(&settings, &headers, one.as_bytes()).fingerprint();
        prop_assert!(made.canonical.is_some());
        prop_assert!(candidates(&settings, &headers, other.as_bytes()).matches(&made), "{} {}", one, other);
    }

    /// F02: where exact and shortest digits are the same, we write what another implementation of RFC 8785 writes.
    #[test]
    fn another_implementation_writes_the_same(value in documents(leaf()), seed: u64) {
        let expected = serde_json_canonicalizer::to_string(&value).unwrap();
        prop_assert_eq!(canonical(Speller(seed).spell(&value).as_bytes()), Some(expected));
    }

    /// F02
    #[test]
    fn documents_agree_only_where_their_values_do(one in documents(integer_leaf()), other in documents(integer_leaf())) {
        let written = |value: &Value| canonical(value.to_string().as_bytes()).unwrap();
        prop_assert_eq!(written(&one) == written(&other), one == other);
    }

    /// F02: one small change somewhere in a document is seen.
    #[test]
    fn a_changed_leaf_is_seen(value in documents(integer_leaf()), seed: u64) {
        let mut changed = value.clone();
        change(&mut changed, &mut Speller(seed));
        let written = |value: &Value| canonical(value.to_string().as_bytes()).unwrap();
        prop_assert_ne!(written(&value), written(&changed));
    }
}

/// Changes one value inside, wherever the choices lead.
fn change(value: &mut Value, choices: &mut Speller) {
    let length = match &*value {
        Value::Array(elements) => elements.len(),
        Value::Object(members) => members.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    };
    let at = usize::try_from(choices.choose(length as u64 + 1)).unwrap();
    match value {
        Value::Array(elements) if at < length => change(&mut elements[at], choices),
        Value::Object(members) if at < length => change(members.values_mut().nth(at).unwrap(), choices),
        Value::Array(_) | Value::Object(_) | Value::Null | Value::Bool(_) => {
            *value = Value::String("changed".into());
        }
        Value::Number(number) => *value = Value::Number((number.as_i64().unwrap() + 1).into()),
        Value::String(text) => text.push('!'),
    }
}
