//! The reader of one member against another implementation, and against chance.

#![allow(clippy::unwrap_used, reason = "a test's helpers may fail the test")]

use http::{HeaderMap, HeaderValue, header};
use onlyonce_core::fingerprint::Pointer;
use onlyonce_core::json::{NotJson, Place, find, is_json, string, with_member};
use onlyonce_core::key::{Invalid, Rules, Source};
use proptest::prelude::*;
use serde_json::Value;

/// Values with few names, so that pointers often lead somewhere.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[ab\"/~é]{0,2}", inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn pointer() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab\"é]{0,2}|~0|~1|[0-3]", 1..4).prop_map(|steps| format!("/{}", steps.join("/")))
}

/// The same text with some characters of its strings as escapes.
fn escaped(text: &str, every: usize) -> String {
    let (mut out, mut is_inside, mut count) = (String::new(), false, 0);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => {
                // An escape stays as it is.
                out.push(character);
                let kind = characters.next();
                out.extend(kind);
                let digits = if kind == Some('u') { 4 } else { 0 };
                out.extend(characters.by_ref().take(digits));
            }
            '"' => {
                is_inside = !is_inside;
                out.push(character);
            }
            _ if is_inside => {
                count += 1;
                if count % every == 0 {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                } else {
                    out.push(character);
                }
            }
            _ => out.push(character),
        }
    }
    out
}

proptest! {
    /// K01: however a body is spelt, what stands at a pointer is what another parser finds there.
    #[test]
    fn it_finds_what_another_parser_finds(value in value(), pointer in pointer(), every in 1_usize..5, is_pretty: bool) {
        let text = if is_pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
        let text = escaped(&text.unwrap(), every);
        let found = find(text.as_bytes(), &pointer.parse::<Pointer>().unwrap());
        let expected = value.pointer(&pointer);
        match found {
            Ok(Place::Missing) => prop_assert_eq!(expected, None),
            Ok(Place::Once(at)) => {
                let found: Value = serde_json::from_str(&text[at.clone()]).unwrap();
                prop_assert_eq!(Some(&found), expected);
                let characters = string(text[at].as_bytes());
                prop_assert_eq!(characters.as_deref(), found.as_str());
            }
            other => prop_assert!(false, "{other:?} in {text}"),
        }
    }

    /// K05: what is JSON to another parser is JSON here, and nothing panics. Half a surrogate pair is allowed: only strings that are
    /// looked at are decoded.
    #[test]
    fn it_agrees_with_another_parser_on_what_is_json(text in "[\\[\\]{}:,\"a\\\\u0-9eE+. tfn-]{0,24}") {
        let is_other = serde_json::from_str::<Value>(&text).is_ok();
        let is_ours = is_json(text.as_bytes());
        let differs_by_value = text.contains("\\u") || text.contains(['e', 'E']);
        prop_assert!(is_ours == is_other || (is_ours && differs_by_value), "{}: {} {}", text, is_ours, is_other);
    }

    /// K05
    #[test]
    fn bytes_that_are_cut_or_changed_are_no_json_or_another(value in value(), at: prop::sample::Index, byte: u8) {
        let whole = serde_json::to_vec(&serde_json::json!({ "id": "key", "x": value })).unwrap();
        let pointer: Pointer = "/id".parse().unwrap();
        let cut = &whole[..at.index(whole.len())];
        prop_assert_eq!(find(cut, &pointer), Err(NotJson));
        let mut changed = whole.clone();
        let at = at.index(whole.len());
        changed[at] = byte;
        if let Ok(Place::Once(at)) = find(&changed, &pointer) {
            prop_assert!(at.end <= changed.len());
        }
    }

    /// K01: a key in a body is a key, or it is refused; and a second one is always refused.
    #[test]
    fn a_doubled_name_is_never_a_key(key in "[ -~]{1,40}", value in value(), is_first: bool) {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        let source: Source = "json:/id".parse().unwrap();
        let rules = Rules::default();
        let (key_json, other) = (Value::from(key.clone()), value);
        let one = format!(r#"{{"x":{other},"id":{key_json}}}"#);
        let parsed = source.in_body(&rules, &headers, one.as_bytes()).unwrap().unwrap();
        prop_assert_eq!(parsed.key.as_str(), &key);
        let (a, b) = if is_first { (&key_json, &other) } else { (&other, &key_json) };
        let two = format!(r#"{{"id":{a},"id":{b}}}"#);
        prop_assert_eq!(source.in_body(&rules, &headers, two.as_bytes()), Err(Invalid::MemberTwice));
    }

    /// D04: marking a replay changes one member, and nothing else.
    #[test]
    fn a_marked_body_says_the_same_but_for_its_mark(value in value()) {
        let text = serde_json::to_vec(&value).unwrap();
        let marked = with_member(&text, "a", b"true").map(|marked| serde_json::from_slice::<Value>(&marked).unwrap());
        let expected = value.as_object().cloned().map(|mut members| {
            members.insert("a".to_owned(), Value::Bool(true));
            Value::Object(members)
        });
        prop_assert_eq!(marked, expected);
    }
}
