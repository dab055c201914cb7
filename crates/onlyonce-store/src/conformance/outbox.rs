//! Messages: stored with their record or not at all, delivered by the relay that holds the claim.
//!
//! A store without an outbox is only tested for refusing messages.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use onlyonce_core::record::Token;
use onlyonce_core::time::When;

use super::PATIENCE;
use super::world::{
    HOUR, MOMENT, Shared, applied, change, draft, insert, load, lost, message, mint_token, now, running, swap,
};
use crate::outbox::{Claimed, Message, Outbox, Settled};

/// More than any case stores.
const ALL: usize = 1_000;
/// How many relays claim at once, and how many messages they share.
const RELAYS: usize = 8;
const MESSAGES: usize = 40;

/// Writes a record with these messages.
async fn send(store: &Shared, key: &str, messages: &[&str]) {
    let (id, next) = draft(key, running(When::AfterWrite(HOUR)));
    let messages = messages.iter().map(|key| message(key)).collect();
    applied(swap(store, id, change(None, next).with_messages(messages)).await);
}

async fn claim(outbox: &dyn Outbox, token: Token, lease: Duration) -> Vec<Claimed> {
    outbox.claim(token, lease, ALL).await.expect("the outbox answers a claim")
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

async fn settle(outbox: &dyn Outbox, key: &str, token: Token, settled: Settled) -> bool {
    outbox.settle(key, token, settled).await.expect("the outbox answers a settlement")
}

fn delivered() -> Settled {
    Settled::Delivered { provider_id: Some("evt_1".into()) }
}

fn again(after: Duration, error: &str) -> Settled {
    Settled::Again { after, error: error.into() }
}

fn claimed_once(message: Message, token: Token) -> Claimed {
    let Message { key, destination, payload, content_type, group, delay: _ } = message;
    Claimed { key, destination, payload, content_type, group, delivery: 1, token }
}

fn keys(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|claimed| &*claimed.key).collect()
}

/// W01
pub async fn messages_are_stored_with_an_applied_swap(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m1", "m2"]).await;
    let token = mint_token();
    let mut claimed = claim(outbox, token, HOUR).await;
    claimed.sort_by(|a, b| a.key.cmp(&b.key));
    assert_eq!(claimed, ["m1", "m2"].map(|key| claimed_once(message(key), token)));
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
    let (first, second) = (mint_token(), mint_token());
    assert_eq!(claim(outbox, first, MOMENT).await.len(), 1);
    assert_eq!(claim_when_due(outbox, second).await.len(), 1);
    for settled in [delivered(), again(Duration::ZERO, "late"), Settled::Dead { error: "late".into() }] {
        assert!(!settle(outbox, "m", first, settled).await, "another relay has it");
    }
    assert!(!settle(outbox, "no such message", first, delivered()).await);
    assert!(settle(outbox, "m", second, delivered()).await);
    assert_eq!(outbox.dead_letters(ALL).await.expect("an answer"), []);
}

/// W05
pub async fn a_late_settlement_counts_while_nobody_else_has_the_message(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let token = mint_token();
    assert_eq!(claim(outbox, token, Duration::ZERO).await.len(), 1);
    assert!(settle(outbox, "m", token, delivered()).await);
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
}

/// W05
pub async fn a_failed_delivery_comes_again_after_its_pause(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let token = mint_token();
    claim(outbox, token, HOUR).await;
    assert!(settle(outbox, "m", token, again(HOUR, "busy")).await);
    assert!(!settle(outbox, "m", token, again(Duration::ZERO, "busy")).await, "it is settled");
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    send(&store, "other", &["soon"]).await;
    claim(outbox, token, HOUR).await;
    let before = now(&store).await;
    assert!(settle(outbox, "soon", token, again(MOMENT, "busy")).await);
    let claimed = claim_when_due(outbox, token).await;
    assert_eq!((keys(&claimed), claimed[0].delivery), (vec!["soon"], 2));
    assert!(now(&store).await >= before.plus(MOMENT), "it came again too early");
}

/// W05: the id is recorded in the write that settles the message, and the key stays known.
pub async fn a_delivered_message_keeps_the_providers_id(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let provider_id = async |key: &str| outbox.provider_id(key).await.expect("the outbox answers");
    let token = mint_token();
    claim(outbox, token, HOUR).await;
    assert_eq!(provider_id("m").await, None);
    assert!(settle(outbox, "m", token, delivered()).await);
    assert_eq!(provider_id("m").await.as_deref(), Some("evt_1"));
    assert_eq!(provider_id("no such message").await, None);
    // A message whose key was delivered is the same message, so nothing is sent.
    send(&store, "other", &["m"]).await;
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    assert_eq!(provider_id("m").await.as_deref(), Some("evt_1"));
}

/// W05
pub async fn a_message_with_a_delay_waits_for_it(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let later = |key: &str, delay| Message { delay, group: Some("ann".into()), ..message(key) };
    let (id, next) = draft("k", running(When::AfterWrite(HOUR)));
    let before = now(&store).await;
    let messages = vec![later("soon", MOMENT), later("later", HOUR)];
    applied(swap(&store, id, change(None, next).with_messages(messages)).await);
    let claimed = claim_when_due(outbox, mint_token()).await;
    assert_eq!((keys(&claimed), claimed[0].group.as_deref()), (vec!["soon"], Some("ann")));
    assert!(now(&store).await >= before.plus(MOMENT), "it came too early");
}

/// W05
pub async fn a_delivered_message_never_comes_again(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    send(&store, "k", &["m"]).await;
    let token = mint_token();
    claim(outbox, token, Duration::ZERO).await;
    assert!(settle(outbox, "m", token, delivered()).await);
    assert!(!settle(outbox, "m", token, delivered()).await, "it is settled");
    assert_eq!(claim(outbox, token, HOUR).await, []);
    assert_eq!(outbox.dead_letters(ALL).await.expect("an answer"), []);
}

/// W06
pub async fn dead_letters_keep_every_error(store: Shared) {
    let Some(outbox) = store.outbox() else { return };
    let before = now(&store).await;
    for key in ["m1", "m2"] {
        send(&store, key, &[key]).await;
        let token = mint_token();
        claim(outbox, token, HOUR).await;
        assert!(settle(outbox, key, token, again(Duration::ZERO, "busy")).await);
        assert_eq!(claim_when_due(outbox, token).await[0].delivery, 2);
        assert!(settle(outbox, key, token, Settled::Dead { error: "gone".into() }).await);
        assert!(!settle(outbox, key, token, delivered()).await, "it is settled");
    }
    assert_eq!(claim(outbox, mint_token(), HOUR).await, []);
    let after = now(&store).await;
    let dead = outbox.dead_letters(ALL).await.expect("an answer");
    assert_eq!(dead.iter().map(|dead| &*dead.key).collect::<Vec<_>>(), ["m1", "m2"]);
    for dead in &dead {
        let sent = message(&dead.key);
        assert_eq!((&dead.destination, &dead.payload), (&sent.destination, &sent.payload));
        let errors: Vec<_> = dead.errors.iter().map(|error| (error.delivery, &*error.error)).collect();
        assert_eq!(errors, [(1, "busy"), (2, "gone")]);
        assert!(before <= dead.errors[0].at && dead.errors[0].at <= dead.errors[1].at);
        assert!(dead.errors[1].at <= after, "an error is stamped by the store's clock");
    }
    assert_eq!(outbox.dead_letters(1).await.expect("an answer"), dead[..1]);
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
    let mut claimed = Vec::new();
    loop {
        let three = outbox.claim(mint_token(), HOUR, 3).await.expect("the outbox answers a claim");
        assert!(three.len() <= 3);
        if three.is_empty() {
            return claimed;
        }
        claimed.extend(three);
    }
}
