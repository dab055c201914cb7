//! Which headers hold a key, and which key that is.

use std::borrow::Cow;
use std::env;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use http::{HeaderMap, HeaderValue};
use onlyonce_core::key::{Invalid, LooksLike, PersonalData, Rules, Syntax};
use proptest::prelude::*;
use serde_json::Value;
use sfv::StringRef;

/// The key that `value` spells, or why it spells none.
fn parse(syntax: Syntax, value: impl AsRef<[u8]>) -> Result<String, Invalid> {
    let rules = Rules { syntax, personal_data: PersonalData::Allow, ..Rules::default() };
    key_in(rules, [value])
}

fn key_in<L: AsRef<[u8]>>(rules: Rules, lines: impl IntoIterator<Item = L>) -> Result<String, Invalid> {
    rules.parse(lines).map(|parsed| parsed.expect("a line was given").key.as_str().to_owned())
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

const SYNTAXES: [Syntax; 3] = [Syntax::Either, Syntax::SfString, Syntax::Bare];

/// K05 KEY-28
#[test]
fn a_bare_and_a_quoted_spelling_name_one_key() {
    assert_eq!(parse(Syntax::Either, "abc"), Ok("abc".into()));
    assert_eq!(parse(Syntax::Either, "\"abc\""), Ok("abc".into()));
}

/// K05
#[test]
fn the_syntax_says_which_spellings_are_accepted() {
    assert_eq!(parse(Syntax::SfString, "\"abc\""), Ok("abc".into()));
    assert_eq!(parse(Syntax::SfString, "abc"), Err(Invalid::NotAString));
    assert_eq!(parse(Syntax::Bare, "abc"), Ok("abc".into()));
    assert_eq!(parse(Syntax::Bare, "\"abc\""), Ok("\"abc\"".into()));
}

/// K04 KEY-26
#[test]
fn a_key_is_opaque_and_its_case_counts() {
    assert_ne!(parse(Syntax::Either, "abc"), parse(Syntax::Either, "ABC"));
    for text in ["'; DROP TABLE--", "*", "../../x", "a:b:c", "%00", "{x}", "~"] {
        assert_eq!(parse(Syntax::Either, quoted(text)), Ok(text.into()));
    }
}

/// K07 KEY-01
#[test]
fn no_line_is_a_missing_key_and_not_an_invalid_one() {
    for syntax in SYNTAXES {
        assert_eq!(Rules { syntax, ..Rules::default() }.parse::<&[u8]>([]), Ok(None));
    }
}

/// K07 KEY-19 KEY-20
#[test]
fn two_lines_are_refused_also_where_they_agree() {
    for lines in [["\"a\"", "\"b\""], ["\"a\"", "\"a\""], ["a", ""], ["\"a", "b\""]] {
        assert_eq!(key_in(Rules::default(), lines), Err(Invalid::SeveralLines), "{lines:?}");
    }
}

/// K01 KEY-25
#[test]
fn the_values_of_a_header_map_are_lines() {
    let mut headers = HeaderMap::new();
    assert_eq!(Rules::default().parse(headers.get_all("Idempotency-Key")), Ok(None));
    headers.append("idempotency-key", HeaderValue::from_static("\"abc\""));
    assert_eq!(key_in(Rules::default(), headers.get_all("IDEMPOTENCY-KEY")), Ok("abc".into()));
    headers.append("Idempotency-Key", HeaderValue::from_static("\"abc\""));
    assert_eq!(key_in(Rules::default(), headers.get_all("idempotency-key")), Err(Invalid::SeveralLines));
}

/// K07 KEY-05
#[test]
fn an_empty_key_is_refused_however_it_is_spelt() {
    let rules = |syntax| Rules { syntax, chars_min: 0, ..Rules::default() };
    for (syntax, value) in [
        (Syntax::Either, ""),
        (Syntax::Either, " \t"),
        (Syntax::Either, "\"\""),
        (Syntax::Either, "\"\";v=1"),
        (Syntax::SfString, ""),
        (Syntax::SfString, " \"\" "),
        (Syntax::Bare, " "),
    ] {
        assert_eq!(key_in(rules(syntax), [value]), Err(Invalid::Empty), "{syntax:?} {value:?}");
    }
}

/// K05
#[test]
fn white_space_around_a_key_does_not_count() {
    for syntax in SYNTAXES {
        assert_eq!(parse(syntax, " \t\"abc\"\t "), parse(syntax, "\"abc\""));
    }
    assert_eq!(parse(Syntax::Either, "\tabc "), Ok("abc".into()));
    assert_eq!(parse(Syntax::Either, "\" abc \""), Ok(" abc ".into()));
}

/// K05 KEY-10 KEY-11
#[test]
fn escapes_are_decoded_and_others_refused() {
    assert_eq!(parse(Syntax::SfString, r#""a\"b""#), Ok("a\"b".into()));
    assert_eq!(parse(Syntax::SfString, r#""a\\b""#), Ok("a\\b".into()));
    assert_eq!(parse(Syntax::SfString, r#""a\nb""#), Err(Invalid::MalformedString));
    assert_eq!(parse(Syntax::Bare, r"a\nb"), Ok(r"a\nb".into()));
}

/// K05 KEY-16 KEY-17
#[test]
fn parameters_are_ignored_once_they_are_well_formed() {
    for value in ["\"k\"", "\"k\";foo=1", "\"k\";bar", "\"k\"; a=\"x;y\"; b=?0", "\"k\";a=tok;a=:YQ==:"] {
        assert_eq!(parse(Syntax::Either, value), Ok("k".into()), "{value}");
    }
    for value in
        ["\"k\";Foo=1", "\"k\";", "\"k\";=1", "\"k\";a=", "\"k\";a=(1 2)", "\"k\" ;a", "\"k\"a", "\"k\" x"]
    {
        assert_eq!(parse(Syntax::Either, value), Err(Invalid::MalformedString), "{value}");
    }
}

/// K05 KEY-07 KEY-08 KEY-22
#[test]
fn other_structured_fields_are_no_strings() {
    for value in
        ["e03978e4-40d5", "12345", "-1.5", "?1", ":YWJj:", "@1", "%\"a\"", "(\"a\")", "a=\"b\"", "'a'"]
    {
        assert_eq!(parse(Syntax::SfString, value), Err(Invalid::NotAString), "{value}");
    }
    for value in ["\"a\", \"b\"", "\"a\",", "\"a\" \"b\"", "\"a", "\"", "\"a\\\"", "\"a\\"] {
        assert_eq!(parse(Syntax::SfString, value), Err(Invalid::MalformedString), "{value}");
        assert_eq!(parse(Syntax::Either, value), Err(Invalid::MalformedString), "{value}");
    }
}

/// K05 KEY-29
#[test]
fn a_bare_key_is_visible_ascii_without_what_has_a_meaning_in_headers() {
    for syntax in [Syntax::Either, Syntax::Bare] {
        for value in ["a,b", "a;b", "a b", "a;foo=1", ",", "a\tb"] {
            assert_eq!(parse(syntax, value), Err(Invalid::BareCharacter { syntax }), "{value:?}");
        }
        let every: String = ('!'..='~').filter(|char| !"\",;".contains(*char)).collect();
        assert_eq!(parse(syntax, &every), Ok(every));
    }
    let syntax = Syntax::Either;
    assert_eq!(parse(syntax, "a\"b"), Err(Invalid::BareCharacter { syntax }));
    assert_eq!(parse(Syntax::Bare, "a\"b"), Ok("a\"b".into()));
}

/// K07 KEY-13 KEY-14
#[test]
fn what_is_not_printable_ascii_is_refused_in_every_spelling() {
    for inner in
        ["f\u{fc}\u{fc}".as_bytes(), b"f\xfc\xfc", b"a\x7f", b"a\0b", b"a\tb", b"a\nb", b"a\r\nb: c", b"\x1b"]
    {
        let quoted = [b"\"", inner, b"\""].concat();
        for syntax in SYNTAXES {
            assert!(parse(syntax, inner).is_err(), "{syntax:?} {inner:?}");
            assert!(parse(syntax, &quoted).is_err(), "{syntax:?} {quoted:?}");
        }
    }
}

/// K06 KEY-23 DIA-08
#[test]
fn the_length_counts_the_characters_of_the_key() {
    let rules = Rules { personal_data: PersonalData::Allow, ..Rules::default() };
    for (text, wanted) in [
        ("a".repeat(255), Ok("a".repeat(255))),
        ("a".repeat(256), Err(Invalid::TooLong { chars_max: 255 })),
        (quoted(&"a".repeat(255)), Ok("a".repeat(255))),
        (quoted(&"a".repeat(256)), Err(Invalid::TooLong { chars_max: 255 })),
        (quoted(&"\"".repeat(255)), Ok("\"".repeat(255))),
        (quoted(&"\"".repeat(256)), Err(Invalid::TooLong { chars_max: 255 })),
        (format!("\"a\";v={}", quoted(&"b".repeat(300))), Ok("a".into())),
    ] {
        assert_eq!(key_in(rules, [text]), wanted);
    }
}

/// K06
#[test]
fn both_limits_can_be_set() {
    let rules = Rules { chars_min: 16, chars_max: 20, ..Rules::default() };
    assert_eq!(key_in(rules, ["\"123456789abcdef\""]), Err(Invalid::TooShort { chars_min: 16 }));
    assert_eq!(key_in(rules, ["123456789abcdef0"]), Ok("123456789abcdef0".into()));
    assert_eq!(key_in(rules, ["123456789abcdef012345"]), Err(Invalid::TooLong { chars_max: 20 }));
}

/// K08
#[test]
fn personal_data_is_allowed_reported_or_refused() {
    for (value, looks_like) in [
        ("\"jane@example.com\"", LooksLike::EmailAddress),
        ("\"+1 (415) 555-2671\"", LooksLike::PhoneNumber),
        ("4111-1111-1111-1111", LooksLike::CardNumber),
    ] {
        let found = |personal_data| {
            let rules = Rules { personal_data, ..Rules::default() };
            rules.parse([value]).map(|parsed| parsed.expect("a line was given").looks_like)
        };
        assert_eq!(found(PersonalData::Allow), Ok(None));
        assert_eq!(found(PersonalData::Warn), Ok(Some(looks_like)));
        assert_eq!(found(PersonalData::Refuse), Err(Invalid::PersonalData(looks_like)));
    }
}

/// K06 K08
#[test]
fn a_refusal_names_its_limit_and_its_remedy() {
    for (invalid, wanted) in [
        (Invalid::TooLong { chars_max: 255 }, "at most 255"),
        (Invalid::TooShort { chars_min: 16 }, "at least 16"),
        (Invalid::PersonalData(LooksLike::CardNumber), "a card number"),
        (Invalid::NotAString, "double quotes"),
        (Invalid::BareCharacter { syntax: Syntax::Either }, "double quotes"),
        (Invalid::BareCharacter { syntax: Syntax::Bare }, "visible ASCII"),
        (Invalid::SeveralLines, "send one"),
        (Invalid::Empty, "send a random one"),
        (Invalid::MalformedString, "backslash"),
    ] {
        assert!(invalid.to_string().contains(wanted), "{invalid}");
    }
}

/// K09
#[test]
fn what_was_parsed_can_be_logged_without_its_key() {
    let parsed = Rules::default().parse(["hunter2"]).expect("the key is valid").expect("a line was given");
    assert!(!format!("{parsed:?}").contains("hunter2"));
    assert_eq!(parsed.key.digest_short().to_string().len(), 8);
}

/// A header, and the key it holds under `sf-string`; none where it must be refused.
struct Vector {
    name: String,
    lines: Vec<Vec<u8>>,
    wanted: Option<String>,
}

/// K05 K07
#[test]
fn structured_field_vectors_decode_to_their_strings_and_nothing_else() {
    let (set, vectors) = vectors();
    let rules = Rules {
        syntax: Syntax::SfString,
        chars_max: usize::MAX,
        personal_data: PersonalData::Allow,
        ..Rules::default()
    };
    for Vector { name, lines, wanted } in &vectors {
        let found = rules.parse(lines).map(|parsed| parsed.map(|parsed| parsed.key.as_str().to_owned()));
        match wanted {
            Some(text) => assert_eq!(found, Ok(Some(text.clone())), "{name}"),
            None => assert!(found.is_err(), "{name}: {found:?}"),
        }
    }
    let strings = vectors.iter().filter(|vector| vector.wanted.is_some()).count();
    assert!(
        0 < strings && strings < vectors.len(),
        "a set without Strings, or of nothing else, proves nothing"
    );
    // Written past the test harness, which keeps what passing tests print to itself.
    let refused = vectors.len() - strings;
    writeln!(std::io::stderr(), "structured-field vectors: {set}, {strings} Strings, {refused} refused")
        .expect("stderr can be written");
}

/// The vectors in the directory that `ONLYONCE_VECTORS` names, and our own where it names none.
fn vectors() -> (&'static str, Vec<Vector>) {
    match env::var_os("ONLYONCE_VECTORS") {
        Some(directory) => {
            ("those of ONLYONCE_VECTORS", stored_vectors(&Path::new(&directory).join("sf-tests")))
        }
        None => ("our own (ONLYONCE_VECTORS is not set)", own_vectors()),
    }
}

fn stored_vectors(directory: &Path) -> Vec<Vector> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut paths: Vec<_> =
        entries.map(|entry| entry.expect("a directory entry can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    paths.iter().flat_map(|path| vectors_of(path)).collect()
}

fn vectors_of(path: &Path) -> Vec<Vector> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let records: Vec<Value> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    records.iter().map(|record| vector_of(&path.display().to_string(), record)).collect()
}

fn vector_of(file: &str, record: &Value) -> Vector {
    let name = format!("{file}: {}", record["name"]);
    let raw = record["raw"].as_array().unwrap_or_else(|| panic!("{name}: raw is no list"));
    let line =
        |value: &Value| value.as_str().unwrap_or_else(|| panic!("{name}: no text")).as_bytes().to_vec();
    let lines: Vec<_> = raw.iter().map(line).collect();
    let wanted = wanted_of(&name, record).filter(|_| lines.len() == 1);
    Vector { name, lines, wanted }
}

/// The String a record stands for. A list of one Item is spelt as the Item is; a dictionary is never spelt as a
/// String; an empty String is well formed, and no key.
fn wanted_of(name: &str, record: &Value) -> Option<String> {
    if record["must_fail"] == true {
        return None;
    }
    let expected = &record["expected"];
    let bare_item = match record["header_type"].as_str() {
        Some("item") => &expected[0],
        Some("list") if expected.as_array().is_some_and(|members| members.len() == 1) => &expected[0][0],
        Some("list" | "dictionary") => return None,
        other => panic!("{name}: header type {other:?}"),
    };
    bare_item.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn own_vectors() -> Vec<Vector> {
    const STRINGS: [(&str, &str); 12] = [
        (r#""order 66""#, "order 66"),
        (r#""8e03978e-40d5-43dd-bc93-6894a57f9324""#, "8e03978e-40d5-43dd-bc93-6894a57f9324"),
        (r#""!#$%&'()*+,-./:;<=>?@[]^_`{|}~""#, "!#$%&'()*+,-./:;<=>?@[]^_`{|}~"),
        (r#""\\\"\\\"""#, r#"\"\""#),
        (r#"" ""#, " "),
        (r#""?1""#, "?1"),
        (r#""(a b)""#, "(a b)"),
        (r#"  "k"  "#, "k"),
        (r#""k";v"#, "k"),
        (r#""k";   v=1;w=2.5;x=a/b;y="\"";z=:aGk=:"#, "k"),
        (r#""k";v=@1714564800;w=%"z%c3%bc""#, "k"),
        (r#""k";*v=?0;v-1.a_b*=?1"#, "k"),
    ];
    const REFUSED: [&str; 34] = [
        "",
        "   ",
        "\"\"",
        "\"",
        "\"open",
        "open\"",
        "\"a\"b\"",
        "\"a\\\"",
        "\"a\\",
        "\"a\\tb\"",
        "\"a\\x41\"",
        "\"a\tb\"",
        "\"a\x7fb\"",
        "\"a\0b\"",
        "\"z\u{fc}rich\"",
        "\"\u{201c}k\u{201d}\"",
        "\u{201c}k\u{201d}",
        "'k'",
        "k",
        "*k/v:1",
        "42",
        "-4.25",
        "?0",
        ":aGVsbG8=:",
        "@0",
        "%\"k\"",
        "(\"k\")",
        "\"k\", \"l\"",
        "\"k\",",
        "k=\"l\"",
        "\"k\";",
        "\"k\";V=1",
        "\"k\";v=\"open",
        "\"k\";v =1",
    ];
    let string = |(value, text): (&'static str, &str)| (value, Some(text.to_owned()));
    let vectors = STRINGS.map(string).into_iter().chain(REFUSED.map(|value| (value, None)));
    vectors
        .map(|(value, wanted)| Vector { name: format!("{value:?}"), lines: vec![value.into()], wanted })
        .collect()
}

/// The bytes that structured fields and our own rules look at, more often than chance would bring them.
fn header_value() -> impl Strategy<Value = Vec<u8>> {
    let telling = prop::sample::select(b"\"\"\\;,= \t+@.-()09aZ\x7f\x00\xc3\xa4".as_slice());
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..300),
        prop::collection::vec(telling.clone(), 0..40),
        prop::collection::vec(telling, 0..40).prop_map(|inner| [b"\"", inner.as_slice(), b"\""].concat()),
    ]
}

fn rules() -> impl Strategy<Value = Rules> {
    let syntax = prop::sample::select(SYNTAXES.as_slice());
    let personal_data =
        prop_oneof![Just(PersonalData::Allow), Just(PersonalData::Warn), Just(PersonalData::Refuse)];
    (syntax, 0..20_usize, 0..300_usize, personal_data).prop_map(
        |(syntax, chars_min, chars_max, personal_data)| Rules { syntax, chars_min, chars_max, personal_data },
    )
}

proptest! {
    /// K07
    #[test]
    fn no_bytes_make_the_parser_panic_or_break_its_limits(
        rules in rules(),
        lines in prop::collection::vec(header_value(), 0..3),
    ) {
        match rules.parse(&lines) {
            Ok(None) => prop_assert!(lines.is_empty()),
            Ok(Some(parsed)) => {
                let text = parsed.key.as_str();
                prop_assert_eq!(lines.len(), 1);
                prop_assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
                prop_assert!(!text.is_empty() && (rules.chars_min..=rules.chars_max).contains(&text.len()));
            }
            Err(invalid) => prop_assert!(!invalid.to_string().is_empty()),
        }
    }

    /// K05
    #[test]
    fn quoting_a_key_and_parsing_it_gives_it_back(text in "[ -~]{1,255}") {
        for syntax in [Syntax::SfString, Syntax::Either] {
            prop_assert_eq!(parse(syntax, quoted(&text)), Ok(text.clone()));
        }
    }

    /// K05
    #[test]
    fn a_bare_key_and_its_quoted_spelling_agree(text in "[!#-+\\--:<-~]{1,255}") {
        prop_assert_eq!(parse(Syntax::Either, &text), Ok(text.clone()));
        prop_assert_eq!(parse(Syntax::Either, quoted(&text)), Ok(text.clone()));
        prop_assert_eq!(parse(Syntax::Bare, &text), Ok(text));
    }

    /// K05: the short way for plain keys decides as the parser of structured fields does.
    #[test]
    fn the_short_way_agrees_with_the_parser_of_structured_fields(value in header_value()) {
        let syntax = Syntax::SfString;
        let rules = Rules { syntax, chars_max: usize::MAX, personal_data: PersonalData::Allow, ..Rules::default() };
        // HTTP allows tabs around a value, structured fields only spaces.
        let tab_or_space = |byte: &u8| b" \t".contains(byte);
        let start = value.iter().position(|byte| !tab_or_space(byte)).unwrap_or(value.len());
        let end = value.iter().rposition(|byte| !tab_or_space(byte)).map_or(start, |last| last + 1);
        let parsed = sfv::Parser::new(&value[start..end]).parse_item::<Cow<'_, StringRef>>();
        let wanted = parsed.ok().map(|string| string.as_str().to_owned()).filter(|text| !text.is_empty());
        prop_assert_eq!(key_in(rules, [&value]).ok(), wanted);
    }

    /// K08: milliseconds from 2001 to 2039, microseconds and nanoseconds from 2001 to 2033.
    #[test]
    fn no_timestamp_is_personal_data(
        milliseconds in 1_000_000_000_000..2_199_999_999_999_u64,
        fraction in 1_000_000_000_000_000..2_000_000_000_000_000_u64,
    ) {
        let rules = Rules { personal_data: PersonalData::Refuse, ..Rules::default() };
        for text in [milliseconds.to_string(), fraction.to_string(), format!("{fraction}123"), format!("o-{fraction}")] {
            prop_assert_eq!(key_in(rules, [&text]), Ok(text.clone()));
        }
    }

    /// K08
    #[test]
    fn no_uuid_is_personal_data(bytes in any::<[u8; 16]>(), digits in "[0-9]{8}-[0-9]{4}-[47][0-9]{3}-[89][0-9]{3}-[0-9]{12}") {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let uuid = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        let rules = Rules { personal_data: PersonalData::Refuse, ..Rules::default() };
        for text in [uuid.clone(), format!("order-{uuid}"), digits] {
            prop_assert_eq!(key_in(rules, [&text]), Ok(text.clone()));
        }
    }
}
