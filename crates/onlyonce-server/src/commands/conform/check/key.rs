//! What is a key, and what is none.

use onlyonce::key::Syntax;
use onlyonce::refusal::Code;

use super::super::subject::{Ask, Caller, Key, Place, Subject};
use super::super::wire::{Answer, Manner};
use super::{Check, Findings, Found, Scenario, answered, may, must, ran_times, should};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        group: "key",
        checks: &[
            must("key-taken", "A request with a key is carried out"),
            must("key-separate", "Another key is another request, also with the same body"),
        ],
        writes: 2,
        play: |subject| Box::pin(taken(subject)),
    },
    Scenario {
        group: "key",
        checks: &[must("key-case", "Keys that differ only in upper and lower case are two keys")],
        writes: 2,
        play: |subject| Box::pin(case(subject)),
    },
    Scenario {
        group: "key",
        checks: &[should("key-length", "The longest key that is documented is a key")],
        writes: 1,
        play: |subject| Box::pin(length(subject)),
    },
    Scenario { group: "key", checks: MALFORMED, writes: 6, play: |subject| Box::pin(malformed(subject)) },
    Scenario {
        group: "key",
        checks: &[may("key-missing", "Without a key it is carried out, or refused as documented")],
        writes: 1,
        play: |subject| Box::pin(missing(subject)),
    },
];

const MALFORMED: &[Check] = &[
    should("key-empty", "An empty key is refused"),
    should("key-two", "Two keys are refused"),
    should("key-too-long", "A key of 5,000 characters is refused"),
    should("key-unclosed", "A quoted key without its end is refused"),
    must("key-no-5xx", "A malformed key is never a 5xx"),
    should("key-malformed-says-why", "The refusal of a malformed key has the documented status"),
];

async fn taken(subject: &Subject) -> Findings {
    let before = subject.count().await?;
    let keys = [subject.key("one"), subject.key("another")];
    let first = subject.call(Ask::with(&keys[0])).await?;
    let second = subject.call(Ask::with(&keys[1])).await?;
    let ran = subject.ran_since(before).await?;
    let both = first.is_success() && second.is_success();
    let separate = match ran {
        Some(ran) => Found::when(ran == 2, format!("two keys, and the count rose by {ran}")),
        None if first.body != second.body => Found::held("the answers differ"),
        None => Found::unclear("the answers are alike, and nothing counts the runs; use --count"),
    };
    Ok(vec![Found::when(both, format!("{} and {}", answered(&first), second.status)), separate])
}

async fn case(subject: &Subject) -> Findings {
    let before = subject.count().await?;
    let key = subject.key("case");
    let first = subject.call(Ask::with(&key)).await?;
    let second = subject.call(Ask::with(&key.to_uppercase())).await?;
    let ran = subject.ran_since(before).await?;
    Ok(vec![match ran {
        Some(ran) => Found::when(ran == 2, format!("two keys, and the count rose by {ran}")),
        None if !second.is_success() => Found::broken(format!("the second was {}", answered(&second))),
        None if first.body != second.body => Found::held("the answers differ"),
        None if subject.has_identity() => Found::broken("the second got the answer of the first"),
        None => ran_times(subject, None, 2, &[]),
    }])
}

async fn length(subject: &Subject) -> Findings {
    let longest = subject.dialect.preset.key_chars_max.unwrap_or(255);
    let mut key = subject.key("long");
    key.extend(std::iter::repeat_n('k', longest.saturating_sub(key.len())));
    key.truncate(longest);
    let answer = subject.call(Ask::with(&key)).await?;
    Ok(vec![Found::when(answer.is_success(), format!("{longest} characters were {}", answered(&answer)))])
}

async fn malformed(subject: &Subject) -> Findings {
    if !matches!(subject.place, Place::Header(_)) {
        return Ok(vec![Found::unclear("the key is not in a header"); MALFORMED.len()]);
    }
    let long = "k".repeat(5_000);
    let names = [subject.key("two-a"), subject.key("two-b")];
    let two: [&[u8]; 2] = [names[0].as_bytes(), names[1].as_bytes()];
    let lines: [&[&[u8]]; 6] =
        [&[b""], &two, &[long.as_bytes()], &[b"\"unclosed"], &[b"a\x01b"], &["ключ".as_bytes()]];
    let mut answers = Vec::new();
    for lines in lines {
        let ask = Ask {
            key: Key::Lines(lines),
            body: None,
            caller: Caller::First,
            manner: Manner::Patient,
            query: None,
        };
        answers.push(subject.call(ask).await?);
    }
    let refused = |answer: &Answer| Found::when(answer.is_refusal(), answered(answer));
    let mut found: Vec<_> = answers[..4].iter().map(refused).collect();
    let worst = answers.iter().find(|answer| answer.status >= 500);
    found.push(match worst {
        Some(answer) => Found::broken(answered(answer)),
        None => Found::held("six malformed keys, none of them a 5xx"),
    });
    let expected = subject.dialect.status(Code::KeyInvalid);
    let two = &answers[1];
    found.push(Found::when(two.status == expected, format!("{}, {expected} is documented", answered(two))));
    if subject.dialect.preset.syntax == Some(Syntax::Bare) {
        found[3] = Found::unclear("a quote is an ordinary character of a key there");
    }
    Ok(found)
}

async fn missing(subject: &Subject) -> Findings {
    let ask = Ask { key: Key::None, body: None, caller: Caller::First, manner: Manner::Patient, query: None };
    let answer = subject.call(ask).await?;
    let expected = subject.dialect.status(Code::KeyMissing);
    let is_held = answer.is_success() || answer.status == expected;
    Ok(vec![Found::when(
        is_held,
        format!("{}; {expected} is documented for a missing key", answered(&answer)),
    )])
}
