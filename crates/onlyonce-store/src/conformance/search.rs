//! Searches and dead letters: listings narrowed by what somebody has in hand.

use onlyonce_core::record::{Id, State, StateName};
use onlyonce_core::scope::Scope;
use onlyonce_core::time::When;

use super::world::{
    HOUR, Shared, completed, draft, draft_in, everything, insert, list, running, scope, unknown,
};
use crate::{Order, Query, Search};

const LATER: When = When::AfterWrite(HOUR);
/// No record has such a scope unless a case wants it to.
const MARKED: [u8; 32] = {
    let mut digest = [0; 32];
    (digest[0], digest[1], digest[2], digest[3], digest[4]) = (0xab, 0xcd, 0xef, 0x01, 0x2f);
    digest
};

/// The keys of what a search finds, in order, by pages of each size.
async fn keys(store: &Shared, query: Query) -> Vec<String> {
    let mut found: Vec<Vec<String>> = Vec::new();
    for limit in [1, 3, 100] {
        let listed = list(store, Query { limit, ..query.clone() }).await;
        let mut keys: Vec<String> =
            listed.iter().map(|(_, seen)| seen.record.key.as_str().to_owned()).collect();
        keys.sort_unstable();
        found.push(keys);
    }
    assert!(found.iter().all(|keys| *keys == found[0]), "pages of another size show others: {found:?}");
    found.remove(0)
}

async fn search(store: &Shared, text: &str) -> Vec<String> {
    keys(store, Query { search: Some(Search::new(text)), ..everything(1) }).await
}

/// O02
pub async fn a_search_finds_a_key_and_the_beginning_of_one(store: Shared) {
    for key in ["order-7", "order-77", "Order-7", "or", "x order-7", "ordér-1", "ordér-2"] {
        insert(&store, draft(key, running(LATER))).await;
    }
    assert_eq!(search(&store, "order-77").await, ["order-77"]);
    assert_eq!(search(&store, "order-7").await, ["order-7", "order-77"]);
    assert_eq!(search(&store, "ord").await, ["order-7", "order-77", "ordér-1", "ordér-2"]);
    assert_eq!(search(&store, "ordé").await, ["ordér-1", "ordér-2"]);
    assert_eq!(search(&store, "or").await, ["or"], "a short text is a whole key");
    assert_eq!(search(&store, "order-777").await, [""; 0]);
}

/// O02: nothing in a text is a pattern.
pub async fn a_search_takes_its_text_as_it_is(store: Shared) {
    let odd = ["100%", "100_", "100\\", "100'", "1000", "100\"x", "100é", "[100]", "100*", "100?"];
    for key in odd {
        insert(&store, draft(key, running(LATER))).await;
    }
    for key in ["100%", "100_", "100\\", "100'", "100\"", "[100", "100*", "100?"] {
        let found = search(&store, key).await;
        assert_eq!(found.len(), 1, "{key} finds {found:?}");
        assert!(found[0].starts_with(key), "{key} finds {found:?}");
    }
    assert_eq!(search(&store, "100").await.len(), odd.len() - 1);
    for text in ["", "%", "%%%", "___", "1%0", "100\u{0}", "\u{0}\u{0}\u{0}"] {
        assert_eq!(search(&store, text).await, [""; 0], "{text:?}");
    }
}

/// O02
pub async fn a_search_finds_a_label(store: Shared) {
    let labelled = |number: u8, label: &str| Scope::stored([number; 32], Some(label.into()));
    insert(&store, draft_in(labelled(1, "acme"), "a", running(LATER))).await;
    insert(&store, draft_in(labelled(2, "acme"), "b", completed(LATER))).await;
    insert(&store, draft_in(labelled(3, "acme gmbh"), "c", running(LATER))).await;
    insert(&store, draft_in(scope(4), "acme", running(LATER))).await;
    assert_eq!(search(&store, "acme").await, ["a", "acme", "b"]);
    assert_eq!(search(&store, "acme g").await, [""; 0], "a label is looked for as a whole");
}

/// O02
pub async fn a_search_finds_a_scope_in_hex(store: Shared) {
    let marked = Scope::stored(MARKED, None);
    for key in ["a", "b"] {
        insert(&store, draft_in(marked.clone(), key, running(LATER))).await;
    }
    insert(&store, draft_in(scope(1), "abcdef012f", running(LATER))).await;
    insert(&store, draft_in(scope(1), "other", running(LATER))).await;
    let whole = marked.to_string();
    for text in [&whole, &whole[..40], &whole[..11], &whole[..11].to_uppercase()] {
        assert_eq!(search(&store, text).await, ["a", "b"], "{text}");
    }
    assert_eq!(search(&store, &whole[..10]).await, ["a", "abcdef012f", "b"], "a key begins so too");
    assert_eq!(search(&store, &whole[..7]).await, ["abcdef012f"], "too short for a scope");
    assert_eq!(search(&store, "abcdef013").await, [""; 0]);
}

/// O02: also one that is the beginning of a key, or of a scope.
pub async fn a_search_finds_an_id_in_hex(store: Shared) {
    let mut drafts = Vec::new();
    for number in 0..20 {
        let draft = draft(&format!("key {number}"), running(LATER));
        drafts.push((draft.0, format!("key {number}")));
        insert(&store, draft).await;
    }
    for (id, key) in &drafts[..4] {
        for digits in [8, 9, 31, 64] {
            assert_eq!(
                search(&store, &id.to_string()[..digits]).await,
                std::slice::from_ref(key),
                "{digits} digits"
            );
        }
        assert_eq!(search(&store, &id.to_string()[..7]).await, [""; 0], "too short");
    }
    let hex = drafts[0].0.to_string();
    insert(&store, draft(&hex[..12], running(LATER))).await;
    insert(&store, draft_in(Scope::stored(drafts[0].0.0, None), "in a scope", running(LATER))).await;
    let mut expected = [&hex[..12], "in a scope", "key 0"];
    expected.sort_unstable();
    assert_eq!(search(&store, &hex[..12]).await, expected);
}

/// O02: a search narrows what the other filters leave.
pub async fn a_search_goes_with_every_other_filter(store: Shared) {
    for (number, state) in [running(LATER), completed(LATER), unknown(None)].into_iter().enumerate() {
        for in_scope in [1, 2] {
            let (id, mut draft) = draft_in(scope(in_scope), &format!("order {number}"), state.clone());
            draft.route = Some(format!("POST /{in_scope}").into());
            insert(&store, (id, draft)).await;
        }
    }
    let orders = Query { search: Some(Search::new("order")), ..everything(1) };
    assert_eq!(keys(&store, orders.clone()).await.len(), 6);
    let of_scope = Query { scope: Some([1; 32]), ..orders.clone() };
    assert_eq!(keys(&store, of_scope.clone()).await, ["order 0", "order 1", "order 2"]);
    let of_route = Query { route: Some("POST /2".into()), ..of_scope.clone() };
    assert_eq!(keys(&store, of_route).await, [""; 0]);
    let of_state = Query { states: StateName::Completed.into(), ..of_scope.clone() };
    assert_eq!(keys(&store, of_state).await, ["order 1"]);
    let of_unknown = Query { order: Order::UnknownSince, ..of_scope };
    assert_eq!(keys(&store, of_unknown).await, ["order 2"]);
    let one = Query { search: Some(Search::new("order 0")), order: Order::UnknownSince, ..orders };
    assert_eq!(keys(&store, one).await, [""; 0]);
    let id = Id::of(&scope(1), &onlyonce_core::key::Key::stored("order 1"));
    let by_id = Query { search: Some(Search::new(id.to_string())), ..everything(1) };
    assert_eq!(keys(&store, by_id.clone()).await, ["order 1"]);
    assert_eq!(keys(&store, Query { scope: Some([2; 32]), ..by_id }).await, [""; 0]);
}

/// U05
pub async fn dead_letters_are_listed_alone(store: Shared) {
    for number in 0..3 {
        for is_dead in [false, true] {
            let key = format!("{number} {is_dead}");
            let (id, mut draft) = draft(&key, unknown(None));
            let State::Unknown { dead_letter, .. } = &mut draft.state else { unreachable!("made unknown") };
            *dead_letter = is_dead;
            insert(&store, (id, draft)).await;
        }
        insert(&store, draft(&format!("{number} done"), completed(LATER))).await;
    }
    for order in [Order::Any, Order::UnknownSince] {
        let dead = Query { dead_letter: true, order, ..everything(1) };
        assert_eq!(keys(&store, dead.clone()).await, ["0 true", "1 true", "2 true"], "{order:?}");
        let one = Query { search: Some(Search::new("1 true")), ..dead.clone() };
        assert_eq!(keys(&store, one).await, ["1 true"], "{order:?}");
        let done = Query { states: StateName::Completed.into(), ..dead };
        assert_eq!(keys(&store, done).await, [""; 0], "{order:?}");
    }
}
