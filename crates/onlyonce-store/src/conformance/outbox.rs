//! Messages: stored with their record or not at all, delivered by the relay that holds the claim, in order within a group.
//!
//! A store without an outbox is only tested for refusing messages.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use onlyonce_core::record::{Id, Token};
use onlyonce_core::time::When;
use tokio::task::JoinSet;

use super::PATIENCE;
use super::world::{
    HOUR, MOMENT, Shared, applied, change, draft, insert, load, lost, message, mint_token, now, running, swap,
};
use crate::audit::{self, Entry};
use crate::outbox::{Changed, Claimed, Failed, Item, Message, OnDead, Outbox, Query, Settled, State, Wanted};
use crate::{Error, ErrorKind};

/// More than any case stores.
const ALL: usize = 1_000;
/// How many relays claim at once, and how many messages they share.
const RELAYS: usize = 8;
const MESSAGES: usize = 40;

/// Writes a record with these messages.
async fn store_all(store: &Shared, key: &str, messages: Vec<Message>) -> Id {
    let (id, next) = draft(key, running(When::AfterWrite(HOUR)));
    applied(swap(store, id, change(None, next).with_messages(messages)).await);
    id
}

async fn send(store: &Shared, key: &str, messages: &[&str]) -> Id {
    store_all(store, key, messages.iter().map(|key| message(key)).collect()).await
}

/// Writes messages of one group, in this order.
async fn send_in(store: &Shared, group: &str, messages: &[&str]) {
    store_all(store, messages[0], messages.iter().map(|key| in_group(key, group)).collect()).await;
}

fn in_group(key: &str, group: &str) -> Message {
    Message { group: Some(group.into()), ..message(key) }
}

fn wanted(lease: Duration, on_dead: OnDead) -> Wanted {
    Wanted { destination: message("any").destination, limit: ALL, lease, on_dead }
}

async fn claim(outbox: &dyn Outbox, token: Token, lease: Duration) -> Vec<Claimed> {
    claim_as(outbox, token, wanted(lease, OnDead::Block)).await
}

/// Claims until the outbox says that nothing more is due.
async fn claim_as(outbox: &dyn Outbox, token: Token, mut wanted: Wanted) -> Vec<Claimed> {
    let mut claimed = Vec::new();
    loop {
        let claims = outbox.claim(token, &[wanted.clone()]).await.expect("the outbox answers a claim");
        wanted.limit -= claims.claimed.len();
        claimed.extend(claims.claimed);
        if !claims.is_more || wanted.limit == 0 {
            return claimed;
        }
    }
}

/// Claims until a message can be claimed, after a pause or a lease by the store's clock.
async fn claim_when_due(outbox: &dyn Outbox, token: Token) -> Vec<Claimed> {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let claimed = claim(outbox, token, HOUR).await;
        if !claimed.is_empty() {
            return claimed;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("nothing was due within {PATIENCE:?}");
}

/// Claims what is due, which is this alone.
async fn claim_one(outbox: &dyn Outbox, key: &str) -> Claimed {
    let mut claimed = claim(outbox, mint_token(), HOUR).await;
    assert_eq!(keys(&claimed), [key]);
    claimed.remove(0)
}

async fn settle(outbox: &dyn Outbox, claimed: &Claimed, settled: Settled) -> bool {
    outbox.settle(claimed, settled).await.expect("the outbox answers a settlement")
}

async fn list(outbox: &dyn Outbox, state: Option<State>) -> Vec<Item> {
    let query = Query { state, limit: ALL, ..Query::default() };
    outbox.list(query).await.expect("the outbox answers a listing").items
}

async fn item(outbox: &dyn Outbox, claimed: &Claimed) -> Option<Item> {
    outbox.item(claimed.number).await.expect("the outbox answers a look")
}

fn delivered() -> Settled {
    Settled::Delivered { provider_id: Some("evt_1".into()) }
}

fn again(after: Duration, error: &str) -> Settled {
    Settled::Again { after, counts: true, failed: failed(None, error) }
}

fn dead() -> Settled {
    Settled::Dead { failed: failed(Some(410), "gone") }
}

fn failed(status: Option<u16>, error: &str) -> Failed {
    Failed { status, error: error.into() }
}

fn entry(id: &str) -> Entry {
    Entry { id: id.into(), who: "ann".into(), action: "redrive".into(), ..Entry::default() }
}

async fn entries(store: &Shared) -> Vec<Arc<str>> {
    let query = audit::Query { limit: ALL, ..audit::Query::default() };
    let page = store.audit().list(query).await.expect("the log is listed");
    page.entries.into_iter().map(|written| written.entry.id).collect()
}

fn keys(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|claimed| &*claimed.key).collect()
}

fn keys_of(items: &[Item]) -> Vec<&str> {
    items.iter().map(|item| &*item.key).collect()
}

/// W01
pub async fn messages_are_stored_with_an_applied_swap(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let id = send(&store, "k", &["m1", "m2"]).await;
    let token = mint_token();
    let claimed = claim(outbox, token, HOUR).await;
    assert_eq!(keys(&claimed), ["m1", "m2"], "in their order");
    for claimed in &claimed {
        let Message { key, destination, payload, content_type, group, delay: _ } = message(&claimed.key);
        let sent = Claimed { key, destination, payload: Ok(payload), content_type, group, ..claimed.clone() };
        assert_eq!((claimed, claimed.delivery, claimed.failures, claimed.token), (&sent, 1, 0, token));
        let item = item(outbox, claimed).await.expect("it is there");
        assert_eq!((item.record, item.state, item.deliveries), (Some(id), State::Claimed, 1));
    }
}

/// W01
pub async fn messages_of_a_lost_swap_are_not_stored(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let (id, next) = draft("k", running(When::AfterWrite(HOUR)));
    let seen = insert(&store, (id, next.clone())).await;
    super::world::write(&store, id, &seen, next.clone()).await;
    for expected in [None, Some(seen.revision)] {
        let change = change(expected, next.clone()).with_messages(vec![message("m")]);
        lost(swap(&store, id, change).await);
    }
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
}

/// W01: silently dropping a message would be wrong.
pub async fn a_store_without_an_outbox_refuses_messages(store: Shared) {
    if store.outbox().is_some() {
        return;
    }
    let (id, next) = draft("k", running(When::AfterWrite(HOUR)));
    let change = change(None, next).with_messages(vec![message("m")]);
    assert!(store.swap(id, change).await.is_err());
    assert_eq!(load(&store, id).await, None);
}

/// W05
pub async fn a_claimed_message_is_nobody_elses_until_the_claim_lapses(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    assert_eq!(claim(outbox, mint_token(), HOUR).await.len(), 1);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    send(&store, "other", &["brief"]).await;
    let before = now(&store).await;
    assert_eq!(keys(&claim(outbox, mint_token(), MOMENT).await), ["brief"]);
    let claimed = claim_when_due(outbox, mint_token()).await;
    assert_eq!((keys(&claimed), claimed[0].delivery), (vec!["brief"], 2));
    assert!(now(&store).await >= before.plus(MOMENT), "the claim lapsed too early");
}

/// W05
pub async fn a_lapsed_claim_is_fenced(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let first = claim(outbox, mint_token(), MOMENT).await.remove(0);
    let second = claim_when_due(outbox, mint_token()).await.remove(0);
    for settled in [delivered(), again(Duration::ZERO, "late"), dead()] {
        assert!(!settle(outbox, &first, settled).await, "another relay has it");
    }
    let nobodys = Claimed { number: second.number + 1, ..second.clone() };
    assert!(!settle(outbox, &nobodys, delivered()).await, "there is no such message");
    assert!(settle(outbox, &second, delivered()).await);
    assert_eq!(list(outbox, Some(State::Dead)).await, []);
}

/// W05: an engine may write deliveries that end together in one commit; each still has an answer of its own.
pub async fn deliveries_that_end_together_are_each_settled(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let names: Vec<String> = (0..MESSAGES).map(|number| format!("m{number}")).collect();
    send(&store, "k", &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let claimed = claim(outbox, mint_token(), HOUR).await;
    let mut ends = JoinSet::new();
    for claimed in claimed {
        let store = store.clone();
        ends.spawn(async move {
            let outbox = store.outbox().expect("it has an outbox");
            // Every fourth is settled by a token that is not its claim's.
            let is_claims = claimed.number % 4 != 0;
            let token = if is_claims { claimed.token } else { mint_token() };
            let provider_id = (claimed.number % 3 == 0).then(|| claimed.key.clone());
            let by = Claimed { token, ..claimed.clone() };
            let answer = settle(outbox, &by, Settled::Delivered { provider_id: provider_id.clone() }).await;
            assert_eq!(answer, is_claims, "message {}", claimed.number);
            let known = item(outbox, &claimed).await.expect("it is known");
            let expected = if is_claims { (State::Delivered, provider_id) } else { (State::Claimed, None) };
            assert_eq!((known.state, known.provider_id), expected);
        });
    }
    ends.join_all().await;
}

/// W05
pub async fn a_late_settlement_counts_while_nobody_else_has_the_message(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let claimed =
        claim_as(outbox, mint_token(), Wanted { limit: 1, ..wanted(Duration::ZERO, OnDead::Block) });
    assert!(settle(outbox, &claimed.await[0], delivered()).await);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
}

/// W05
pub async fn a_failed_delivery_comes_again_after_its_pause(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let claimed = claim_one(outbox, "m").await;
    assert!(settle(outbox, &claimed, again(HOUR, "busy")).await);
    assert!(!settle(outbox, &claimed, again(Duration::ZERO, "busy")).await, "it is settled");
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    send(&store, "other", &["soon"]).await;
    let claimed = claim_one(outbox, "soon").await;
    let before = now(&store).await;
    assert!(settle(outbox, &claimed, again(MOMENT, "busy")).await);
    let claimed = claim_when_due(outbox, mint_token()).await;
    assert_eq!((keys(&claimed), claimed[0].delivery), (vec!["soon"], 2));
    assert!(now(&store).await >= before.plus(MOMENT), "it came again too early");
}

/// W05: the id is recorded in the write that settles the message, and the key stays known; the payload does not.
pub async fn a_delivered_message_keeps_the_providers_id(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let claimed = claim_one(outbox, "m").await;
    let payload = async || outbox.payload(claimed.number).await.expect("an answer").expect("it is there");
    assert_eq!(payload().await.bytes, Some(message("m").payload));
    assert!(settle(outbox, &claimed, delivered()).await);
    let known = item(outbox, &claimed).await.expect("it is known");
    assert_eq!((known.state, known.provider_id.as_deref()), (State::Delivered, Some("evt_1")));
    assert!(known.delivered_at.is_some());
    assert_eq!(payload().await.bytes, None);
    // A message whose key was delivered is the same message, so nothing is sent.
    send(&store, "other", &["m"]).await;
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    assert_eq!(list(outbox, None).await, [known]);
}

/// W05
pub async fn a_message_with_a_delay_waits_for_it(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let later = |key: &str, delay| Message { delay, group: Some(key.into()), ..message(key) };
    let before = now(&store).await;
    store_all(&store, "k", vec![later("soon", MOMENT), later("later", HOUR)]).await;
    let claimed = claim_when_due(outbox, mint_token()).await;
    assert_eq!((keys(&claimed), claimed[0].group.as_deref()), (vec!["soon"], Some("soon")));
    assert!(now(&store).await >= before.plus(MOMENT), "it came too early");
}

/// W05
pub async fn a_delivered_message_never_comes_again(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let brief = Wanted { limit: 1, ..wanted(Duration::ZERO, OnDead::Block) };
    let claimed = claim_as(outbox, mint_token(), brief).await.remove(0);
    assert!(settle(outbox, &claimed, delivered()).await);
    assert!(!settle(outbox, &claimed, delivered()).await, "it is settled");
    assert_eq!(claim(outbox, claimed.token, HOUR).await, []);
    assert_eq!(list(outbox, Some(State::Dead)).await, []);
}

/// W06
pub async fn dead_letters_keep_every_error(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let before = now(&store).await;
    for key in ["m1", "m2"] {
        send(&store, key, &[key]).await;
        let claimed = claim_one(outbox, key).await;
        assert!(settle(outbox, &claimed, again(Duration::ZERO, "busy")).await);
        let claimed = claim_one(outbox, key).await;
        assert_eq!((claimed.delivery, claimed.failures), (2, 1));
        assert!(settle(outbox, &claimed, dead()).await);
        assert!(!settle(outbox, &claimed, delivered()).await, "it is settled");
    }
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    let after = now(&store).await;
    let dead = list(outbox, Some(State::Dead)).await;
    assert_eq!(keys_of(&dead), ["m1", "m2"]);
    for dead in &dead {
        let errors = dead.errors.iter().map(|error| (error.delivery, error.status, &*error.error));
        assert_eq!(errors.collect::<Vec<_>>(), [(1, None, "busy"), (2, Some(410), "gone")]);
        assert!(before <= dead.errors[0].at && dead.errors[0].at <= dead.errors[1].at);
        assert!(dead.errors[1].at <= after, "an error is stamped by the store's clock");
        let kept = outbox.payload(dead.number).await.expect("an answer").expect("it is there").bytes;
        assert_eq!(kept, Some(message(&dead.key).payload));
    }
}

/// W06: one that asks to wait burns no attempt, and a day of it leaves one line.
pub async fn only_failures_that_count_are_counted(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let wait = Settled::Again { after: Duration::ZERO, counts: false, failed: failed(Some(429), "wait") };
    let mut ages = Vec::new();
    for (settled, failures) in [
        (wait.clone(), 0),
        (wait.clone(), 0),
        (again(Duration::ZERO, "busy"), 1),
        (wait.clone(), 1),
        (wait, 1),
    ] {
        let claimed = claim_one(outbox, "m").await;
        ages.push(claimed.age);
        assert!(settle(outbox, &claimed, settled).await);
        let claimed = claim_as(outbox, mint_token(), wanted(Duration::ZERO, OnDead::Block)).await;
        assert!(claimed.iter().all(|claimed| claimed.failures == failures), "{failures}: {claimed:?}");
    }
    assert!(ages.is_sorted() && ages[0] < ages[4], "its age goes on: {ages:?}");
    let errors = list(outbox, None).await.remove(0).errors;
    let told: Vec<_> = errors.iter().map(|error| (error.status, &*error.error)).collect();
    assert_eq!(told, [(Some(429), "wait"), (None, "busy"), (Some(429), "wait")]);
    assert!(errors[0].delivery < errors[1].delivery && errors[1].delivery + 2 < errors[2].delivery);
}

/// W05
pub async fn no_more_is_claimed_than_is_wanted_of_each_destination(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let to = |destination: &str, key: String| Message::new(key, destination, message("any").payload);
    let each = ["mail", "billing", "nobody"].map(|name| (0..3).map(move |n| (name, format!("{name}{n}"))));
    let messages = each.into_iter().flatten().map(|(name, key)| to(name, key)).collect();
    store_all(&store, "k", messages).await;
    let want = |destination: &str, limit| Wanted {
        destination: destination.into(),
        limit,
        lease: HOUR,
        on_dead: OnDead::Block,
    };
    let both = [want("mail", 2), want("billing", 1)];
    let mut got = HashMap::new();
    for round in 0..4 {
        let claimed = outbox.claim(mint_token(), &both).await.expect("an answer").claimed;
        for (destination, most) in [("mail", 2), ("billing", 1)] {
            let of = claimed.iter().filter(|claimed| &*claimed.destination == destination).count();
            assert!(of <= most, "{of} of {destination} in round {round}");
            *got.entry(destination).or_insert(0) += of;
        }
        assert!(claimed.iter().all(|claimed| &*claimed.destination != "nobody"));
    }
    assert_eq!(got, HashMap::from([("mail", 3), ("billing", 3)]));
    assert_eq!(outbox.claim(mint_token(), &[]).await.expect("an answer").claimed, []);
    assert_eq!(list(outbox, Some(State::Waiting)).await.len(), 3, "nobody knows the third, so it waits");
}

/// W05
pub async fn of_a_group_one_is_claimed_at_a_time_in_the_order_of_numbers(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send_in(&store, "ann", &["a1", "a2", "a3"]).await;
    send_in(&store, "bob", &["b1", "b2"]).await;
    let first = claim(outbox, mint_token(), HOUR).await;
    assert_eq!(keys(&first), ["a1", "b1"]);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, [], "both are under way");
    assert!(settle(outbox, &first[1], delivered()).await);
    let second = claim_one(outbox, "b2").await;
    assert!(settle(outbox, &first[0], again(Duration::ZERO, "busy")).await);
    let first = claim_one(outbox, "a1").await;
    assert!(settle(outbox, &first, delivered()).await);
    assert!(settle(outbox, &second, delivered()).await);
    for key in ["a2", "a3"] {
        let claimed = claim_one(outbox, key).await;
        assert!(settle(outbox, &claimed, delivered()).await);
    }
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
}

/// W05: one that waits for its time, or is tried again, holds up its own group.
pub async fn a_message_holds_up_those_behind_it_and_nobody_else(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let delayed = Message { delay: HOUR, ..in_group("a1", "ann") };
    store_all(&store, "ann", vec![delayed, in_group("a2", "ann")]).await;
    send_in(&store, "bob", &["b1", "b2"]).await;
    send(&store, "free", &["free"]).await;
    // The same group of another destination is another group.
    let elsewhere = Message { destination: "mail".into(), ..in_group("elsewhere", "ann") };
    store_all(&store, "elsewhere", vec![elsewhere]).await;
    let claimed = claim(outbox, mint_token(), HOUR).await;
    assert_eq!(keys(&claimed), ["b1", "free"]);
    let mail = Wanted { destination: "mail".into(), ..wanted(HOUR, OnDead::Block) };
    assert_eq!(keys(&claim_as(outbox, mint_token(), mail).await), ["elsewhere"]);
    assert!(settle(outbox, &claimed[0], again(HOUR, "busy")).await);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    // What comes later to a group that is held up waits as well.
    send_in(&store, "bob", &["b3"]).await;
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
}

/// W05, W10
pub async fn a_dead_letter_blocks_its_group_or_is_passed(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send_in(&store, "ann", &["a1", "a2", "a3"]).await;
    let first = claim_one(outbox, "a1").await;
    assert!(settle(outbox, &first, dead()).await);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, [], "it blocks");
    outbox.pass_dead(&first.destination).await.expect("an answer");
    let skip = || wanted(HOUR, OnDead::Skip);
    let second = claim_as(outbox, mint_token(), skip()).await;
    assert_eq!(keys(&second), ["a2"], "it is passed");
    assert!(settle(outbox, &second[0], dead()).await);
    let third = claim_as(outbox, mint_token(), skip()).await;
    assert_eq!(keys(&third), ["a3"]);
    assert!(settle(outbox, &third[0], again(Duration::ZERO, "busy")).await);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, [], "who does not skip them is blocked again");
}

/// W06: the key, the place, the errors and the numbers of deliveries stay; failures and age count anew.
pub async fn a_redriven_dead_letter_keeps_its_key_and_its_place(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let redrive = async |number, id: &str| outbox.redrive(number, entry(id)).await.expect("an answer");
    send_in(&store, "ann", &["a1", "a2"]).await;
    let first = claim_one(outbox, "a1").await;
    assert_eq!(redrive(first.number, "claimed").await, Changed::Refused);
    assert!(settle(outbox, &first, again(Duration::ZERO, "busy")).await);
    assert_eq!(redrive(first.number, "waiting").await, Changed::Refused);
    let first = claim_one(outbox, "a1").await;
    assert!(settle(outbox, &first, dead()).await);
    let redriven_at = now(&store).await;
    assert_eq!(redrive(first.number, "e1").await, Changed::Applied);
    assert_eq!(redrive(first.number, "again").await, Changed::Refused);
    assert_eq!(redrive(first.number + 100, "absent").await, Changed::Absent);
    assert_eq!(entries(&store).await, [Arc::<str>::from("e1")]);
    let again = claim_one(outbox, "a1").await;
    let passed = now(&store).await.since(redriven_at);
    assert_eq!((again.delivery, again.failures, &again.payload), (3, 0, &first.payload));
    assert!(again.age <= passed, "{:?} of {passed:?}", again.age);
    assert_eq!(item(outbox, &again).await.expect("it is there").errors.len(), 2);
    assert!(settle(outbox, &again, delivered()).await);
    claim_one(outbox, "a2").await;
}

/// W06
pub async fn a_discarded_message_is_gone_and_frees_its_group(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let discard = async |number, id: &str| outbox.discard(number, entry(id)).await.expect("an answer");
    send_in(&store, "ann", &["a1", "a2", "a3"]).await;
    let first = claim_one(outbox, "a1").await;
    assert_eq!(discard(first.number, "claimed").await, Changed::Refused);
    assert!(settle(outbox, &first, dead()).await);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    assert_eq!(discard(first.number, "e1").await, Changed::Applied);
    assert_eq!(discard(first.number, "absent").await, Changed::Absent);
    assert_eq!(item(outbox, &first).await, None);
    // A claim that has lapsed holds nobody up.
    let second = claim(outbox, mint_token(), Duration::ZERO).await.remove(0);
    assert_eq!(discard(second.number, "e2").await, Changed::Applied);
    assert!(!settle(outbox, &second, delivered()).await, "it is gone");
    claim_one(outbox, "a3").await;
    assert_eq!(entries(&store).await, ["e2", "e1"].map(Arc::<str>::from));
}

/// O09
pub async fn messages_are_listed_by_state_and_destination(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "delivered", &["d1", "d2", "d3"]).await;
    for claimed in claim(outbox, mint_token(), HOUR).await {
        assert!(settle(outbox, &claimed, delivered()).await);
    }
    send(&store, "dead", &["x1", "x2"]).await;
    for claimed in claim(outbox, mint_token(), HOUR).await {
        assert!(settle(outbox, &claimed, dead()).await);
    }
    send(&store, "claimed", &["c1"]).await;
    claim_one(outbox, "c1").await;
    send(&store, "waiting", &["w1"]).await;
    store_all(&store, "mail", vec![Message { destination: "mail".into(), ..message("w2") }]).await;
    let of = [
        (None, None, vec!["d1", "d2", "d3", "x1", "x2", "c1", "w1", "w2"]),
        (Some(State::Delivered), None, vec!["d1", "d2", "d3"]),
        (Some(State::Dead), None, vec!["x1", "x2"]),
        (Some(State::Claimed), None, vec!["c1"]),
        (Some(State::Waiting), None, vec!["w1", "w2"]),
        (Some(State::Waiting), Some("mail"), vec!["w2"]),
        (None, Some("mail"), vec!["w2"]),
        (Some(State::Dead), Some("mail"), vec![]),
    ];
    for (state, destination, expected) in of {
        for limit in [1, 2, 3, 9] {
            let query = Query { state, destination: destination.map(Arc::from), after: None, limit };
            assert_eq!(keys_of(&pages(outbox, query.clone()).await), expected, "{query:?}");
        }
    }
    let foreign = Query { after: Some(crate::Cursor(Box::new([1, 2, 3]))), limit: 1, ..Query::default() };
    assert!(outbox.list(foreign).await.is_err());
}

async fn pages(outbox: &dyn Outbox, mut query: Query) -> Vec<Item> {
    let mut items = Vec::new();
    loop {
        let page = outbox.list(query.clone()).await.expect("the outbox answers a listing");
        assert!(page.items.len() <= query.limit);
        items.extend(page.items);
        let Some(next) = page.next else { return items };
        query.after = Some(next);
    }
}

/// O02: neither a claim nor a failure makes it younger, and a dead letter is not undelivered.
pub async fn the_oldest_message_counts_from_when_it_was_first_due(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let census = async || outbox.census().await.expect("the outbox answers");
    assert_eq!(census().await.oldest, None);
    let later = Message { delay: HOUR, ..message("later") };
    store_all(&store, "later", vec![later]).await;
    assert_eq!(census().await.oldest, None, "it is not due");
    send(&store, "first", &["first"]).await;
    let oldest = census().await.oldest.expect("one is due");
    assert_eq!((&*oldest.key, &*oldest.destination), ("first", &*message("first").destination));
    send(&store, "second", &["second"]).await;
    let claimed = claim(outbox, mint_token(), HOUR).await;
    let same = census().await.oldest.expect("one is due");
    assert_eq!((same.number, same.since), (oldest.number, oldest.since));
    assert!(settle(outbox, &claimed[0], again(HOUR, "busy")).await);
    let same = census().await.oldest.expect("one is due");
    assert_eq!((same.number, same.since), (oldest.number, oldest.since));
    assert!(settle(outbox, &claimed[1], dead()).await);
    let counts: Vec<_> =
        census().await.counts.iter().map(|(state, count)| (*state, count.number())).collect();
    let expected = [(State::Waiting, 2), (State::Claimed, 0), (State::Delivered, 0), (State::Dead, 1)];
    assert_eq!(counts, expected.map(|(state, count)| (state, Some(count))));
}

/// W10: what is not delivered is never deleted by age.
pub async fn only_delivered_messages_are_pruned_and_by_age(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let prune = async |age, limit| outbox.prune(age, limit).await.expect("the outbox answers");
    send(&store, "k", &["m1", "m2", "m3", "dead", "claimed"]).await;
    let claimed = claim(outbox, mint_token(), HOUR).await;
    for claimed in &claimed[..3] {
        assert!(settle(outbox, claimed, delivered()).await);
    }
    assert!(settle(outbox, &claimed[3], dead()).await);
    send(&store, "waiting", &["waiting"]).await;
    assert_eq!(prune(HOUR, ALL).await, 0, "they were delivered just now");
    let all = now(&store).await;
    while now(&store).await <= all {}
    assert_eq!(prune(Duration::ZERO, 2).await, 2);
    assert_eq!(prune(Duration::ZERO, ALL).await, 1);
    assert_eq!(prune(Duration::ZERO, ALL).await, 0);
    assert_eq!(keys_of(&list(outbox, None).await), ["dead", "claimed", "waiting"]);
}

/// M04
pub async fn concurrent_relays_never_share_a_message(store: Shared) {
    if store.outbox().is_none() {
        return;
    }
    for number in 0..MESSAGES {
        send(&store, &number.to_string(), &[&format!("m{number}")]).await;
    }
    let relays: Vec<_> = (0..RELAYS).map(|_| tokio::spawn(claim_in_threes(store.clone()))).collect();
    let mut claimed = Vec::new();
    for relay in relays {
        claimed.extend(relay.await.expect("a relay ends"));
    }
    let distinct: HashSet<_> = claimed.iter().map(|claimed| claimed.key.clone()).collect();
    assert_eq!((claimed.len(), distinct.len()), (MESSAGES, MESSAGES));
}

async fn claim_in_threes(store: Shared) -> Vec<Claimed> {
    let outbox = store.outbox().expect("asked before");
    let three = Wanted { limit: 3, ..wanted(HOUR, OnDead::Block) };
    let mut claimed = Vec::new();
    loop {
        let three = outbox.claim(mint_token(), std::slice::from_ref(&three)).await;
        let three = three.expect("the outbox answers a claim").claimed;
        assert!(three.len() <= 3);
        if three.is_empty() {
            return claimed;
        }
        claimed.extend(three);
    }
}

/// W05, M04: whoever delivers, each group comes in its order, and no message of a long group is forgotten.
pub async fn concurrent_relays_keep_the_order_of_groups(store: Shared) {
    if store.outbox().is_none() {
        return;
    }
    for number in 0..MESSAGES {
        let group = format!("g{}", number % 3);
        store_all(&store, &number.to_string(), vec![in_group(&format!("m{number}"), &group)]).await;
    }
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let relays: Vec<_> =
        (0..RELAYS).map(|_| tokio::spawn(deliver_in_order(store.clone(), order.clone()))).collect();
    for relay in relays {
        relay.await.expect("a relay ends");
    }
    let order = order.lock().expect("nobody panicked").clone();
    assert_eq!(order.len(), MESSAGES, "each was delivered once");
    for group in 0..3 {
        let of: Vec<usize> = order.iter().copied().filter(|number| number % 3 == group).collect();
        assert!(of.is_sorted(), "g{group}: {of:?}");
    }
}

/// Relays that claim all the time hold locks that others wait for. One that waited too long asks again, as the relay does.
fn unless_busy<T>(answered: Result<T, Error>) -> Option<T> {
    match answered {
        Err(error) if error.kind() == ErrorKind::Busy => None,
        answered => Some(answered.expect("the outbox answers")),
    }
}

/// Delivers until all is delivered.
async fn deliver_in_order(store: Shared, order: Arc<std::sync::Mutex<Vec<usize>>>) {
    let outbox = store.outbox().expect("asked before");
    let two = [Wanted { limit: 2, ..wanted(HOUR, OnDead::Block) }];
    while order.lock().expect("nobody panicked").len() < MESSAGES {
        let Some(claims) = unless_busy(outbox.claim(mint_token(), &two).await) else { continue };
        for claimed in &claims.claimed {
            let number = claimed.key[1..].parse().expect("it was made of a number");
            order.lock().expect("nobody panicked").push(number);
            let is_settled = loop {
                if let Some(is_settled) = unless_busy(outbox.settle(claimed, delivered()).await) {
                    break is_settled;
                }
            };
            assert!(is_settled);
        }
        tokio::task::yield_now().await;
    }
}
