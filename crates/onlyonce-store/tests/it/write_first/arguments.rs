//! Arguments: what is refused, by SQLSTATE, and what is left out of the headers.

use onlyonce_core::machine;

use super::{Answer, Application, code, created};
use crate::sqlite::world::id;

fn with_headers(headers: &str) -> Answer {
    Answer { headers: headers.to_owned(), ..created() }
}

/// W09: nothing is changed, and no message repeats a handle.
pub(crate) async fn a_fault_of_an_argument_is_refused_by_its_sqlstate_and_changes_nothing<A: Application>() {
    let world = A::world().await;
    let (before, handle) = world.reserve("k").await;
    let too_large = Answer { body: Some(vec![b'x'; (8 << 20) + 1]), ..created() };
    let many = format!("{{\"x\": [{}]}}", vec!["\"\""; 20_000].join(","));
    let long = format!("{{\"x\": \"{}\", \"y\": \"{}\"}}", "x".repeat(40_000), "y".repeat(40_000));
    for (answer, expected) in [
        (Answer { status: 199, ..created() }, "22023"),
        (Answer { status: 600, ..created() }, "22023"),
        (Answer { status: -1, ..created() }, "22023"),
        (with_headers("[]"), "22023"),
        (with_headers("null"), "22023"),
        (with_headers("\"content-type: text/plain\""), "22023"),
        (with_headers(r#"{"": "x"}"#), "22023"),
        (with_headers(r#"{"a b": "x"}"#), "22023"),
        (with_headers(r#"{"a:b": "x"}"#), "22023"),
        (with_headers(r#"{"a\nb": "x"}"#), "22023"),
        (with_headers(r#"{"x\n": "x"}"#), "22023"),
        (with_headers(r#"{"é": "x"}"#), "22023"),
        (with_headers(&format!("{{\"{}\": \"x\"}}", "n".repeat(257))), "22023"),
        (with_headers(r#"{"x": 7}"#), "22023"),
        (with_headers(r#"{"x": null}"#), "22023"),
        (with_headers(r#"{"x": {"y": "z"}}"#), "22023"),
        (with_headers(r#"{"x": ["y", 7]}"#), "22023"),
        (with_headers(r#"{"x": [["y"]]}"#), "22023"),
        (with_headers(r#"{"x": "a\r\nset-cookie: b"}"#), "22023"),
        (with_headers(r#"{"x": "a\nb"}"#), "22023"),
        (with_headers(r#"{"x": "a\u0001b"}"#), "22023"),
        (with_headers(r#"{"x": "a\u007fb"}"#), "22023"),
        (with_headers(r#"{"x": "a\u0000b"}"#), A::NUL),
        (Answer { retention: Some(-1), ..created() }, "22023"),
        (with_headers(&many), "54000"),
        (with_headers(&long), "54000"),
        (too_large, "54000"),
    ] {
        let error = world.app.complete(Some(&handle), &answer).await.unwrap_err();
        let told = error.whole.clone();
        assert_eq!(error.state, expected, "{}", answer.headers);
        assert!(!told.contains(&handle), "{told}");
    }
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
    world.app.complete(Some(&handle), &created()).await.unwrap();
}

/// R05, W09: forged, torn, or another's; and in no message.
pub(crate) async fn a_handle_that_is_malformed_is_told_from_one_that_is_void<A: Application>() {
    let world = A::world().await;
    let (before, handle) = world.reserve("k").await;
    let (left, right) = handle.split_once('.').unwrap();
    let torn = [
        String::new(),
        ".".to_owned(),
        left.to_owned(),
        format!("{left}.{}", &right[1..]),
        format!("{left}.{right}0"),
        format!("{right}.{left}"),
        handle.replace('.', ":"),
        handle.replace('.', "0"),
        handle.to_uppercase(),
        format!("{handle}\n"),
        format!(" {handle}"),
        format!("{}.{right}", left.replacen(char::is_alphanumeric, "g", 1)),
        format!("{}..{}", &left[..63], right),
        "é".repeat(97),
    ];
    for torn in torn {
        let held = world.app.hold(Some(&torn)).await;
        for raised in [held, world.app.complete(Some(&torn), &created()).await] {
            let error = raised.unwrap_err();
            let told = error.whole.clone();
            assert_eq!(error.state, "22023", "{torn:?}");
            assert!(torn.len() < 3 || !told.contains(torn.trim()), "{told}");
        }
    }
    assert_eq!(code(world.app.hold(None).await), "22023");
    assert_eq!(code(world.app.complete(None, &created()).await), "22023");
    let forged = format!("{left}.{}", "0".repeat(32));
    let absent = format!("{}.{right}", "0".repeat(64));
    let mut told = Vec::new();
    for void in [forged, absent] {
        let refused = world.app.complete(Some(&void), &created()).await.unwrap_err();
        let message = refused.message.clone();
        assert_eq!(refused.state, "OO001");
        assert!(!message.contains(left) && !message.contains(right), "{message}");
        told.push(message);
    }
    assert_eq!(told[0], told[1], "nobody learns which records exist");
    assert_eq!(
        told[0],
        "onlyonce: this attempt may no longer complete: a later attempt has begun, or the record is gone"
    );
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
}

/// P04, W09: what is about one connection, the first answer or a caller is not replayed; everything else is.
pub(crate) async fn headers_that_no_retry_should_see_are_left_out<A: Application>() {
    const LEFT_OUT: [&str; 21] = [
        "Connection",
        "keep-alive",
        "TE",
        "trailer",
        "Transfer-Encoding",
        "upgrade",
        "proxy-connection",
        "Content-Length",
        "date",
        "age",
        "Set-Cookie",
        "authorization",
        "www-authenticate",
        "authentication-info",
        "proxy-authentication-info",
        "onlyonce-token",
        "Onlyonce-Outcome",
        "onlyonce-retention",
        "Idempotency-Key",
        "idempotent-replayed",
        "IDEMPOTENCY-STORED",
    ];
    let world = A::world().await;
    let (_, handle) = world.reserve("k").await;
    let mut members: Vec<String> = LEFT_OUT.iter().map(|name| format!("\"{name}\": \"x\"")).collect();
    members.push(
        r#""Location": "/payments/7", "cache-control": "no-store", "Link": ["<b>", "<a>"], "x-empty": """#
            .into(),
    );
    let answer = with_headers(&format!("{{{}}}", members.join(",")));
    world.app.complete(Some(&handle), &answer).await.unwrap();
    let seen = world.load("k").await;
    let (response, _) = machine::stored(&seen.record).unwrap();
    let mut told: Vec<_> =
        response.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    // Names in an order of the server's, values in that of their list.
    told.sort_by_key(|(name, _)| (name.len(), *name));
    let expected = [
        ("link", "<b>"),
        ("link", "<a>"),
        ("x-empty", ""),
        ("location", "/payments/7"),
        ("cache-control", "no-store"),
    ];
    assert_eq!(told, expected);
}

/// P08, W09: completed, and no answer is stored; or an empty one.
pub(crate) async fn a_body_of_null_completes_without_an_answer<A: Application>() {
    let world = A::world().await;
    let (_, handle) = world.reserve("none").await;
    world.app.complete(Some(&handle), &Answer { body: None, ..created() }).await.unwrap();
    let seen = world.load("none").await;
    assert!(machine::stored(&seen.record).is_none());
    assert!(machine::withheld(&seen).is_some(), "completed without an answer");
    let (_, handle) = world.reserve("empty").await;
    let empty = Answer { status: 204, headers: "{}".to_owned(), body: Some(Vec::new()), retention: None };
    world.app.complete(Some(&handle), &empty).await.unwrap();
    let seen = world.load("empty").await;
    let (response, _) = machine::stored(&seen.record).unwrap();
    assert_eq!((response.status, response.headers.len(), response.body.len()), (204, 0, 0));
    let largest = Answer { body: Some(vec![0xff; 8 << 20]), ..created() };
    let (_, handle) = world.reserve("largest").await;
    world.app.complete(Some(&handle), &largest).await.unwrap();
    let seen = world.load("largest").await;
    assert_eq!(machine::stored(&seen.record).unwrap().0.body.len(), 8 << 20);
}
