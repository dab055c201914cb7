//! Which callers share a namespace, and which never do.

use onlyonce_core::key::Key;
use onlyonce_core::record::Id;
use onlyonce_core::scope::{Part, Scope, Source};
use proptest::prelude::*;

fn scope<'a>(service: &str, parts: impl IntoIterator<Item = Part<'a>>) -> Scope {
    Scope::of(service, parts).expect("no part is empty")
}

fn source(text: &str) -> Source {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

/// S01 S02 TEN-01
#[test]
fn two_callers_have_two_scopes_and_one_caller_has_one() {
    let authorization = source("header:authorization");
    let [one, again, other] = ["Bearer 1", "Bearer 1", "Bearer 2"]
        .map(|value| scope("shop", [authorization.part(value.as_bytes())]));
    assert_eq!(one, again);
    assert_ne!(one.digest(), other.digest());
    let key = Key::stored("k");
    assert_ne!(Id::of(&one, &key), Id::of(&other, &key));
}

/// S04 TEN-10
#[test]
fn services_that_share_a_store_have_scopes_of_their_own() {
    let tenant = source("trusted:x-tenant");
    assert_ne!(scope("shop", [tenant.part(b"acme")]), scope("bank", [tenant.part(b"acme")]));
    assert_ne!(Scope::shared("shop"), Scope::shared("bank"));
}

/// S04 TEN-09
#[test]
fn no_combination_of_sources_can_be_forged() {
    let part = |name, value: &'static str| Part::readable(name, value.as_bytes());
    let scopes = [
        scope("s", [part("a", "a"), part("b", "bc")]),
        scope("s", [part("a", "ab"), part("b", "c")]),
        scope("s", [part("a", "abc")]),
        scope("s", [part("aa", "bc")]),
        scope("s", [part("a", "a"), part("bb", "c")]),
        scope("s", [part("b", "bc"), part("a", "a")]),
        scope("sa", [part("a", "b"), part("b", "c")]),
        scope("s", [part("a", "a\0\0\0\0\0\0\0\u{1}b\0\0\0\0\0\0\0\u{2}bc")]),
        Scope::shared_with("s", [part("a", "abc")]),
        Scope::shared("s"),
    ];
    for (at, one) in scopes.iter().enumerate() {
        assert!(scopes[at + 1..].iter().all(|other| one.digest() != other.digest()), "scope {at} has a twin");
    }
}

/// S01 TEN-09
#[test]
fn a_scope_and_a_key_cannot_be_shifted_into_each_other() {
    let tenant = source("trusted:x-tenant");
    let id = |value: &[u8], key| Id::of(&scope("", [tenant.part(value)]), &Key::stored(key));
    assert_ne!(id(b"a", "bc"), id(b"ab", "c"));
}

/// S03
#[test]
fn the_route_divides_a_scope_where_it_is_a_source() {
    let tenant = source("trusted:x-tenant");
    let on = |route: &'static str| scope("", [tenant.part(b"acme"), Source::Route.part(route.as_bytes())]);
    assert_ne!(on("POST /orders"), on("POST /refunds"));
    let shared_on = |route: &'static str| Scope::shared_with("", [Source::Route.part(route.as_bytes())]);
    assert_ne!(shared_on("POST /orders"), shared_on("POST /refunds"));
}

/// S04
#[test]
fn one_value_from_two_sources_is_two_callers() {
    let texts = ["header:x-user", "trusted:x-user", "jwt:x-user"];
    let [header, trusted, jwt] = texts.map(|text| *scope("", [source(text).part(b"acme")]).digest());
    assert!(header != trusted && trusted != jwt && header != jwt);
}

/// S04
#[test]
fn a_credential_leaves_no_label_and_the_rest_does() {
    let authorization = source("header:authorization");
    let tenant = source("trusted:x-tenant");
    let secret = scope("", [authorization.part(b"Bearer hunter2")]);
    assert_eq!(secret.label(), None);
    assert!(!format!("{secret:?}").contains("hunter2"));
    assert_eq!(scope("", [authorization.part(b"hunter2"), tenant.part(b"acme")]).label(), Some("acme"));
    let parts = [tenant.part(b"acme"), Source::Route.part(b"POST /orders")];
    assert_eq!(scope("", parts).label(), Some("acme · POST /orders"));
}

/// S05
#[test]
fn nothing_to_tell_callers_apart_by_is_no_scope() {
    let [authorization, tenant] = [source("header:authorization"), source("trusted:x-tenant")];
    assert_eq!(Scope::of("shop", []), None);
    assert_eq!(Scope::of("shop", [authorization.part(b"")]), None);
    assert_eq!(Scope::of("shop", [tenant.part(b"acme"), authorization.part(b"")]), None);
}

/// S05
#[test]
fn the_shared_scope_is_nobodys_own() {
    let shared = Scope::shared("shop");
    assert_eq!(shared, Scope::shared("shop"));
    assert_eq!(shared.label(), Some("(shared)"));
    assert_ne!(shared.digest(), scope("shop", [source("trusted:x-tenant").part(b"(shared)")]).digest());
}

/// S01: records outlive the program that wrote them, so a scope is the same in every release.
///
/// The digests were computed apart from this code: SHA-256 over the tag, and each text after its length in eight
/// bytes, most significant first.
#[test]
fn a_scope_is_the_same_in_every_release() {
    let authorization = source("header:authorization");
    let caller = scope("shop", [authorization.part(b"Bearer t"), Source::Route.part(b"POST /orders")]);
    assert_eq!(caller.to_string(), "63aa59aec08f939a257379a3d6b4110e7c43aed1f2aaf454ee83e5d67193e35a");
    let shared = Scope::shared("shop");
    assert_eq!(shared.to_string(), "859eb69026e65ce28184532eef797120b4ab9ed7108ae6b06c888e3f74e40cb9");
}

/// S04
#[test]
fn a_source_survives_being_written_down() {
    for text in
        ["header:authorization", "trusted:x-tenant", "jwt:sub", "jwt:https://example.com/tenant", "route"]
    {
        assert_eq!(source(text).to_string(), text);
    }
    assert_eq!(source("header:Authorization"), source("header:authorization"));
}

/// S05
#[test]
fn only_a_route_does_not_name_the_caller() {
    assert!(["header:a", "trusted:a", "jwt:a"].iter().all(|text| source(text).names_caller()));
    assert!(!Source::Route.names_caller());
}

/// S04
#[test]
fn a_malformed_source_is_refused_with_its_text_and_the_remedy() {
    for (text, remedy) in [
        ("", "use header:NAME, trusted:NAME, jwt:CLAIM, certificate or route"),
        ("authorization", "use header:NAME"),
        ("cookie:session", "use header:NAME"),
        ("Header:authorization", "use header:NAME"),
        ("route:", "use header:NAME"),
        (" route", "use header:NAME"),
        ("header:", "like header:authorization"),
        ("header: authorization", "like header:authorization"),
        ("trusted:x tenant", "trusted:x-tenant"),
        ("jwt:", "like jwt:sub"),
        ("jwt: sub", "like jwt:sub"),
        ("jwt:a\nb", "like jwt:sub"),
    ] {
        let error = text.parse::<Source>().expect_err("the text is no source").to_string();
        assert!(error.contains(&format!("{text:?}")) && error.contains(remedy), "{error}");
    }
}

fn names_and_values() -> impl Strategy<Value = Vec<(String, Vec<u8>)>> {
    prop::collection::vec(("[ab]{0,2}", prop::collection::vec(0..3_u8, 1..12)), 1..4)
}

proptest! {
    /// S04 TEN-09
    #[test]
    fn scopes_agree_only_where_every_part_does(one in names_and_values(), other in names_and_values()) {
        let of = |parts: &[(String, Vec<u8>)]| {
            *scope("s", parts.iter().map(|(name, value)| Part::secret(name, value))).digest()
        };
        prop_assert_eq!(one == other, of(&one) == of(&other));
    }

    /// S04
    #[test]
    fn any_text_is_a_source_or_refused_and_never_a_panic(text in "((header|trusted|jwt|route):?)?.{0,12}") {
        if let Ok(source) = text.parse::<Source>() {
            prop_assert_eq!(source.to_string().parse(), Ok(source));
        }
    }

    /// S04
    #[test]
    fn no_label_carries_a_control_character(value in prop::collection::vec(any::<u8>(), 1..100)) {
        let scope = scope("", [Part::readable("jwt:sub", &value)]);
        prop_assert!(!scope.label().expect("the part is readable").chars().any(char::is_control));
    }
}
