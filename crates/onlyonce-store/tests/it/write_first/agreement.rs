//! A function leads to the record that `machine::finish` leads to, or raises where that writes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use onlyonce_core::machine::{self, Finish};
use onlyonce_core::outcome::Outcome;
use onlyonce_core::record::{
    Asking, Draft, Effects, Id, Reason, Response, Revision, Seen, Source, State, Token,
};
use onlyonce_core::time::{Timestamp, When};
use onlyonce_store::Change;
use onlyonce_store::conformance::random::Random;

use super::{Answer, Application, World, code, created, handle, stored};
use crate::sqlite::world::{HOUR, draft, id};

/// How many random records are completed.
const RANDOM: u64 = 300;
const FOREIGN: Token = Token([6; 16]);
const LONG_AGO: When = When::At(Timestamp::from_micros(1_700_000_000_000_000));

/// Calls both functions, and compares with the rule.
pub(crate) async fn agrees<A: Application>(
    world: &World<A>,
    id: Id,
    token: Token,
    answer: &Answer,
    response: Option<Arc<Response>>,
) -> &'static str {
    let before = world.store.load(id).await.unwrap();
    let keep_for = answer.retention.map(|span| Duration::from_micros(span.unsigned_abs()));
    let outcome = Outcome::Completed { response, keep_for };
    let rule = machine::finish(before.as_ref(), token, &outcome);
    let handle = handle(id, token);
    let held = code(world.app.hold(Some(&handle)).await);
    assert!(world.is_unchanged(id, before.as_ref()).await, "holding writes nothing");
    let raised = code(world.app.complete(Some(&handle), answer).await);
    assert_eq!(held, raised, "{before:?}");
    match rule {
        Finish::Write(draft) => {
            assert_eq!(raised, "", "{before:?}");
            check_written(world, id, &before.unwrap(), *draft).await;
            "completed"
        }
        Finish::Already => {
            assert_eq!(raised, "OO002", "{before:?}");
            assert!(world.is_unchanged(id, before.as_ref()).await);
            "OO002"
        }
        Finish::Superseded => {
            assert_eq!(raised, "OO001", "{before:?}");
            assert!(world.is_unchanged(id, before.as_ref()).await);
            "OO001"
        }
        Finish::Known => panic!("a completion is news: {before:?}"),
    }
}

async fn check_written<A: Application>(world: &World<A>, id: Id, before: &Seen, draft: Draft) {
    let after = world.store.load(id).await.unwrap().unwrap();
    assert_eq!(*after.record, draft.clone().stamp(after.record.written_at));
    assert!(after.record.written_at >= before.record.written_at);
    assert_ne!(after.revision, before.revision);
    let due = format!(
        "SELECT count(*) FROM onlyonce_record WHERE id = {} AND due_at = expires_at",
        A::bytes(&id.0)
    );
    assert_eq!(world.app.number(&due).await, 1, "due when it expires");
    // What the row has beside its columns does not get in the way: it can be written again by a node.
    let next = after.record.draft();
    let change = Change::new(Some(after.revision), Revision(3), next);
    world.store.swap(id, change).await.unwrap();
    let again = world.store.load(id).await.unwrap().unwrap();
    assert_eq!((&again.record.state, &again.record.history), (&after.record.state, &after.record.history));
}

fn unknown(dead_letter: bool) -> State<When> {
    let asking = Asking { answers: 3, failures: 1, anew_at: None };
    State::Unknown { reason: Reason::Lapsed, since: LONG_AGO, asking, ask_at: Some(LONG_AGO), dead_letter }
}

fn completed(response: Option<Arc<Response>>, by: Source) -> State<When> {
    State::Completed { response, by, expires_at: When::AfterWrite(HOUR) }
}

/// R05, W09: every line of the table in the guide.
pub(crate) async fn every_state_of_a_record_is_judged_as_by_the_rules<A: Application>() {
    let world = A::world().await;
    let retryable = |expires_at| State::Retryable { retry_after: Some(HOUR), expires_at, stuck_since: None };
    let cases = [
        ("running", State::Running { lapses_at: When::AfterWrite(HOUR) }, "completed"),
        ("lapsed", State::Running { lapses_at: LONG_AGO }, "completed"),
        ("past its deadline", State::Running { lapses_at: When::AfterWrite(HOUR) }, "completed"),
        ("unknown", unknown(false), "completed"),
        ("dead letter", unknown(true), "completed"),
        ("retryable", retryable(When::AfterWrite(HOUR)), "completed"),
        ("retryable, expired", retryable(LONG_AGO), "completed"),
        ("completed by itself", completed(Some(stored()), Source::Attempt), "OO002"),
        ("completed bare", completed(None, Source::Attempt), "OO002"),
        ("completed by a probe", completed(Some(stored()), Source::Probe), "OO002"),
        ("completed by a webhook", completed(None, Source::Webhook), "OO002"),
        ("completed by a person", completed(None, Source::Operator), "OO002"),
        ("completed by the sweeper", completed(Some(stored()), Source::Sweeper), "OO002"),
        ("pending", State::Pending { expires_at: When::AfterWrite(HOUR) }, "OO001"),
    ];
    for effects in Effects::ALL {
        for (name, state, expected) in &cases {
            for (token, expected) in [(FOREIGN, "OO001"), (Token([5; 16]), *expected)] {
                let key = format!("{name}, {effects:?}, {token}");
                let (id, mut draft) = draft(&key, effects, state.clone());
                if *name == "past its deadline" {
                    draft.began_at = LONG_AGO;
                }
                world.insert((id, draft)).await;
                let told = agrees(&world, id, token, &created(), Some(stored())).await;
                assert_eq!(told, expected, "{key}");
            }
        }
    }
    assert_eq!(agrees(&world, id("absent"), FOREIGN, &created(), Some(stored())).await, "OO001");
}

/// P01, W09: whatever the record and the answer.
pub(crate) async fn random_records_are_completed_as_by_the_rules<A: Application>() {
    let world = A::world().await;
    let seed = Random::new(u64::from(std::process::id())).number();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut written = 0;
    for _ in 0..RANDOM {
        let draft = random.draft();
        let id = Id::of(&draft.scope, &draft.key);
        let token = if random.one_in(8) { FOREIGN } else { draft.token };
        world.insert((id, draft)).await;
        let (answer, response) = any_answer(&mut random);
        let told = agrees(&world, id, token, &answer, response).await;
        written += u64::from(told == "completed");
    }
    assert!(written > RANDOM / 4, "{written} of {RANDOM} were completed");
}

/// An answer, and the same as it is stored: names in lower case, in the order of the server's JSON.
fn any_answer(random: &mut Random) -> (Answer, Option<Arc<Response>>) {
    const NAMES: [&str; 6] = ["X", "ETag", "Content-Type", "x-request-id", "LINK", "!#$%&'*+-.^_`|~9"];
    const CHARACTERS: [char; 10] = ['a', 'Z', ' ', '\t', '"', '\\', '/', 'é', '猫', '🔑'];
    let mut names: Vec<&str> = NAMES.into_iter().filter(|_| random.one_in(2)).collect();
    names.sort_by_key(|name| (name.len(), *name));
    let text = |random: &mut Random| {
        let length = random.below(20);
        (0..length).map(|_| random.pick(&CHARACTERS)).collect::<String>()
    };
    let quoted = |value: &String| {
        let escaped = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\t', "\\t");
        format!("\"{escaped}\"")
    };
    let (mut headers, mut members) = (Vec::new(), Vec::new());
    for name in names {
        let is_list = random.one_in(3);
        let count = if is_list { random.below(4) } else { 1 };
        let values: Vec<String> = (0..count).map(|_| text(random)).collect();
        let told: Vec<String> = values.iter().map(quoted).collect();
        let told = if is_list { format!("[{}]", told.join(",")) } else { told.concat() };
        members.push(format!("\"{name}\": {told}"));
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.extend(
            values.iter().map(|value| (name.clone(), HeaderValue::from_bytes(value.as_bytes()).unwrap())),
        );
    }
    let status = u16::try_from(200 + random.below(400)).unwrap();
    let length = random.below(300);
    let body: Option<Vec<u8>> =
        (!random.one_in(5)).then(|| (0..length).map(|_| random.number().to_be_bytes()[0]).collect());
    let spans = [Duration::ZERO, Duration::from_micros(1), HOUR, 1_000 * 366 * 24 * HOUR];
    let retention = random.one_in(2).then(|| i64::try_from(random.pick(&spans).as_micros()).unwrap());
    let response = body.clone().map(|body| Arc::new(Response { status, headers, body: Bytes::from(body) }));
    (
        Answer { status: status.into(), headers: format!("{{{}}}", members.join(",")), body, retention },
        response,
    )
}

/// W09, X04: nothing but the row is written, and no node is told to distrust its copies.
pub(crate) async fn a_completion_writes_one_row_and_nothing_else<A: Application>() {
    let world = A::world().await;
    let epoch = world.store.epoch().await.unwrap().epoch;
    let (_, handle) = world.reserve("k").await;
    let (other, _) = world.reserve("other").await;
    world.app.complete(Some(&handle), &created()).await.unwrap();
    assert_eq!(world.store.epoch().await.unwrap().epoch, epoch);
    assert!(world.is_unchanged(id("other"), Some(&other)).await);
    for table in ["onlyonce_outbox", "onlyonce_archive", "onlyonce_audit"] {
        assert_eq!(world.count(table).await, 0, "{table}");
    }
}
