//! A key that comes back with another request.

use onlyonce::fingerprint::BodyForm;
use onlyonce::refusal::Code;
use serde_json::Value;

use super::super::subject::{Ask, Subject};
use super::replay::is_same_body;
use super::{Findings, Found, Scenario, answered, may, must, should};

/// A shorter answer could be part of a refusal by chance.
const LEAK_BYTES_MIN: usize = 12;

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        group: "body",
        checks: &[
            must("reuse-refused", "A key with another body is refused"),
            must("reuse-not-run", "Nothing runs for it"),
            must("reuse-untouched", "The first request still gets its answer"),
            must("reuse-no-leak", "The refusal does not give away the first answer"),
            should("reuse-status", "The refusal has the documented status"),
            should("reuse-form", "The refusal is JSON of the documented media type"),
        ],
        writes: 3,
        play: |subject| Box::pin(reuse(subject)),
    },
    Scenario {
        group: "body",
        checks: &[may(
            "json-meaning",
            "The same JSON in another order is the same request, or another where bytes are compared",
        )],
        writes: 2,
        play: |subject| Box::pin(json_meaning(subject)),
    },
    Scenario {
        group: "body",
        checks: &[may("reuse-query", "A key with another query does not get the first answer")],
        writes: 2,
        play: |subject| Box::pin(query(subject)),
    },
];

async fn reuse(subject: &Subject) -> Findings {
    let Some(other) = &subject.other_body else {
        return Ok(vec![Found::unclear("no other body is known; name one with --other-body"); 6]);
    };
    let key = subject.key("reuse");
    let first = subject.call(Ask::with(&key)).await?;
    let before = subject.count().await?;
    let reused = subject.call(Ask { body: Some(other), ..Ask::with(&key) }).await?;
    let again = subject.call(Ask::with(&key)).await?;
    let ran = subject.ran_since(before).await?;
    let is_leaked = first.body.len() >= LEAK_BYTES_MIN
        && reused.body.windows(first.body.len()).any(|window| window == first.body);
    let expected = subject.dialect.status(Code::KeyReused);
    let media = |text: &str| text.split(';').next().unwrap_or_default().trim().to_lowercase();
    let is_form = media(reused.header("content-type").unwrap_or_default())
        == media(&subject.dialect.content_type)
        && serde_json::from_slice::<Value>(&reused.body).is_ok();
    Ok(vec![
        Found::when(reused.is_refusal(), answered(&reused)),
        match ran {
            Some(ran) => Found::when(ran == 0, format!("the count rose by {ran}")),
            None if reused.is_success() && !is_same_body(subject, &first, &reused) => {
                Found::broken("it has an answer of its own")
            }
            None => Found::unclear("nothing counts the runs; use --count"),
        },
        Found::when(again.status == first.status && is_same_body(subject, &first, &again), answered(&again)),
        Found::when(!is_leaked, answered(&reused)),
        Found::when(reused.status == expected, format!("{}, {expected} is documented", answered(&reused))),
        Found::when(is_form, format!("content type {}", reused.header("content-type").unwrap_or("none"))),
    ])
}

async fn json_meaning(subject: &Subject) -> Findings {
    let Some(other) = reordered(&subject.body) else {
        return Ok(vec![Found::unclear("--body is not a JSON object with several members")]);
    };
    let key = subject.key("order");
    let first = subject.call(Ask::with(&key)).await?;
    let second = subject.call(Ask { body: Some(&other), ..Ask::with(&key) }).await?;
    let is_same = second.status == first.status && is_same_body(subject, &first, &second);
    Ok(vec![match subject.dialect.preset.body {
        Some(BodyForm::Bytes) => {
            Found::when(second.is_refusal(), format!("{}, bytes are compared there", answered(&second)))
        }
        Some(_) | None => Found::when(is_same, answered(&second)),
    }])
}

async fn query(subject: &Subject) -> Findings {
    let key = subject.key("query");
    let first = subject.call(Ask::with(&key)).await?;
    let other = subject.call(Ask { query: Some("conform=1"), ..Ask::with(&key) }).await?;
    Ok(vec![match other.is_success() && is_same_body(subject, &first, &other) {
        false => Found::held(answered(&other)),
        true if subject.has_identity() => Found::broken("it got the first answer"),
        true => Found::unclear("answers of different requests are alike"),
    }])
}

/// The same JSON object with its members in the opposite order, and spaces.
fn reordered(body: &[u8]) -> Option<Vec<u8>> {
    let Value::Object(object) = serde_json::from_slice(body).ok()? else { return None };
    if object.len() < 2 {
        return None;
    }
    let mut members: Vec<_> =
        object.iter().map(|(name, value)| format!("{} : {value}", Value::from(name.as_str()))).collect();
    members.reverse();
    let text = format!("{{ {} }}", members.join(" , "));
    (text.as_bytes() != body).then(|| text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_change_places_and_mean_the_same() {
        let other = reordered(br#"{"a":1,"b":{"c":[2]}}"#).unwrap();
        let [one, two]: [Value; 2] = [
            serde_json::from_slice(br#"{"a":1,"b":{"c":[2]}}"#).unwrap(),
            serde_json::from_slice(&other).unwrap(),
        ];
        assert_eq!(one, two);
        assert!(other.starts_with(b"{ \"b\""), "{other:?}");
        assert_eq!([&b"{}"[..], b"[1,2]", b"a=1"].map(reordered), [None, None, None]);
    }
}
