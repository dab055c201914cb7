//! The audit log: an entry is there with its change or not at all; entries are listed newest first, and deleted by age alone.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use onlyonce_core::record::Id;
use onlyonce_core::time::{Timestamp, When};

use super::PATIENCE;
use super::world::{
    HOUR, MOMENT, Shared, applied, before, change, completed, draft, insert, look, lost, now, running, swap,
};
use crate::audit::{Entry, Page, Query, Written};
use crate::promises::Clock;
use crate::{Cursor, ErrorKind, Swapped};

/// More than any case writes.
const ALL: usize = 1_000;

fn entry(id: &str) -> Entry {
    Entry {
        id: id.into(),
        who: "ann".into(),
        role: "operate".into(),
        via: "api".into(),
        action: "verdict".into(),
        result: "applied".into(),
        ..Entry::default()
    }
}

/// Every field has a value of its own.
fn full(id: &str) -> Entry {
    Entry {
        claims: Some("Ann, on call".into()),
        from: Some("127.0.0.1:4711".into()),
        scope: Some([0xfe; 32]),
        scope_label: Some("acme ⚙ 'x'".into()),
        key: Some("order % _ \\ \" 7".into()),
        record: Some(Id([0x0a; 32])),
        reason: Some("checked with the bank\n{\"not\": \"json\"}".into()),
        forced: true,
        before: Some(r#"{"state":"unknown","attempt":1}"#.into()),
        after: Some(r#"{"state":"completed","attempt":1}"#.into()),
        code: Some("record_settled".into()),
        ..entry(id)
    }
}

async fn list(store: &Shared, query: Query) -> Page {
    store.audit().list(query).await.expect("the log answers")
}

/// Every entry that the query is about, page by page. Asserts that no page exceeds the limit.
async fn listed(store: &Shared, mut query: Query) -> Vec<Written> {
    let mut entries = Vec::new();
    for _ in 0..ALL {
        let page = list(store, query.clone()).await;
        assert!(page.entries.len() <= query.limit, "a page of {} for {}", page.entries.len(), query.limit);
        entries.extend(page.entries);
        let Some(next) = page.next else { return entries };
        query.after = Some(next);
    }
    panic!("a log of {ALL} pages did not end");
}

async fn all(store: &Shared) -> Vec<Written> {
    listed(store, Query { limit: ALL, ..Query::default() }).await
}

fn ids(entries: &[Written]) -> Vec<&str> {
    entries.iter().map(|written| &*written.entry.id).collect()
}

async fn write(store: &Shared, entry: Entry) {
    store.audit().write(entry).await.expect("the log takes an entry");
}

/// The entries, the newest first, have been stamped by the store's clock since `earliest`. Where the store has several clocks, as a cluster
/// has, they differ by what it says.
async fn assert_stamped(store: &Shared, earliest: Timestamp, entries: &[Written]) {
    let within = match store.promises().clock {
        Clock::One => Duration::ZERO,
        Clock::Told { within } => within,
    };
    let latest = now(store).await.plus(within);
    assert!(entries.is_sorted_by(|later, earlier| later.at >= earlier.at), "{entries:?}");
    for Written { at, .. } in entries {
        assert!(earliest <= at.plus(within) && *at <= latest, "{earliest:?} {at:?} {latest:?}");
    }
}

/// O01, U09
pub async fn an_entry_is_written_with_its_change(store: Shared) {
    let (id, next) = draft("k", running(When::AfterWrite(HOUR)));
    let earliest = now(&store).await;
    let seen = applied(swap(&store, id, change(None, next.clone()).with_audit(Some(full("e1")))).await);
    assert_eq!(look(&store, id).await.revision, seen.revision);
    let entries = all(&store).await;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].entry, full("e1"), "every field survives");
    assert_stamped(&store, earliest, &entries).await;
    // An update carries one as well as an insert.
    let next = change(Some(seen.revision), next).with_audit(Some(entry("e2")));
    applied(swap(&store, id, next).await);
    assert_eq!(ids(&all(&store).await), ["e2", "e1"]);
}

/// O01: with its messages too, where the store has any.
pub async fn an_entry_of_a_lost_swap_is_not_written(store: Shared) {
    let (id, next) = draft("k", running(When::AfterWrite(HOUR)));
    let seen = insert(&store, (id, next.clone())).await;
    for expected in [None, Some(super::world::mint())] {
        let change = change(expected, next.clone()).with_audit(Some(entry("lost")));
        let current = lost(swap(&store, id, change).await).expect("what is there is shown");
        assert_eq!(current.revision, seen.revision);
    }
    let (absent, next) = draft("gone", running(When::AfterWrite(HOUR)));
    let change = change(Some(super::world::mint()), next).with_audit(Some(entry("lost")));
    assert_eq!(lost(swap(&store, absent, change).await), None);
    assert_eq!(all(&store).await, []);
}

/// X05: an answer was lost, and the same is sent again.
pub async fn an_entry_that_is_sent_twice_is_written_once(store: Shared) {
    let (id, next) = draft("k", running(When::AfterWrite(HOUR)));
    let change = change(None, next).with_audit(Some(entry("with")));
    applied(swap(&store, id, change.clone()).await);
    let again = swap(&store, id, change.clone()).await;
    assert!(matches!(&again, Swapped::Lost(Some(seen)) if seen.revision == change.revision), "{again:?}");
    write(&store, entry("alone")).await;
    write(&store, Entry { reason: Some("other words".into()), ..entry("alone") }).await;
    let entries = all(&store).await;
    assert_eq!(ids(&entries), ["alone", "with"]);
    assert_eq!(entries[0].entry, entry("alone"), "the first one stands");
}

/// O01: a refused order changes no record.
pub async fn an_entry_can_be_written_by_itself(store: Shared) {
    let refused = Entry { result: "refused".into(), code: Some("record_running".into()), ..full("e1") };
    let earliest = now(&store).await;
    write(&store, refused.clone()).await;
    write(&store, entry("e2")).await;
    let entries = all(&store).await;
    let told: Vec<_> = entries.iter().map(|written| written.entry.clone()).collect();
    assert_eq!(told, [entry("e2"), refused]);
    assert_stamped(&store, earliest, &entries).await;
}

/// O01
pub async fn the_log_comes_newest_first(store: Shared) {
    let names: Vec<String> = (0..9).map(|number| format!("e{}", (number * 7) % 10)).collect();
    for name in &names {
        write(&store, entry(name)).await;
    }
    let newest_first: Vec<&str> = names.iter().rev().map(String::as_str).collect();
    for limit in [1, 2, 4, 9, 10] {
        let entries = listed(&store, Query { limit, ..Query::default() }).await;
        assert_eq!(ids(&entries), newest_first, "pages of {limit}");
        assert!(entries.is_sorted_by(|newer, older| newer.at >= older.at));
    }
}

/// O01
pub async fn the_log_is_narrowed_by_every_filter(store: Shared) {
    let other = |id: &str, change: fn(&mut Entry)| {
        let mut entry = full(id);
        change(&mut entry);
        entry
    };
    write(&store, full("mine")).await;
    write(&store, other("who", |entry| entry.who = "Ann".into())).await;
    write(&store, other("action", |entry| entry.action = "forget".into())).await;
    write(&store, other("scope", |entry| entry.scope = Some([0xfd; 32]))).await;
    write(&store, other("key", |entry| entry.key = Some("order".into()))).await;
    write(&store, entry("bare")).await;
    let everything = Query { limit: 2, ..Query::default() };
    let mine = full("mine");
    let queries = [
        (Query { who: Some(mine.who.clone()), ..everything.clone() }, "who"),
        (Query { action: Some(mine.action.clone()), ..everything.clone() }, "action"),
        (Query { scope: mine.scope, ..everything.clone() }, "scope"),
        (Query { key: mine.key.clone(), ..everything.clone() }, "key"),
    ];
    for (query, left_out) in queries {
        let entries = listed(&store, query).await;
        assert!(entries.iter().any(|written| *written.entry.id == *"mine"), "{left_out}");
        assert!(entries.iter().all(|written| *written.entry.id != *left_out), "{left_out}");
        assert_eq!(
            entries.len(),
            if left_out == "who" || left_out == "action" { 5 } else { 4 },
            "{left_out}"
        );
    }
    let all_of_them = Query {
        who: Some(mine.who.clone()),
        action: Some(mine.action.clone()),
        scope: mine.scope,
        key: mine.key.clone(),
        ..everything.clone()
    };
    assert_eq!(ids(&listed(&store, all_of_them.clone()).await), ["mine"]);
    let nobody = Query { who: Some("\u{0}".into()), ..all_of_them };
    assert_eq!(list(&store, nobody).await, Page { entries: Vec::new(), next: None });
}

/// O01: from a moment on, and before another.
pub async fn the_log_is_narrowed_by_time(store: Shared) {
    let mut moments = Vec::new();
    for name in ["e1", "e2", "e3"] {
        write(&store, entry(name)).await;
        moments.push(all(&store).await[0].at);
        while now(&store).await <= moments[moments.len() - 1] {}
    }
    let within = async |from: Option<usize>, until: Option<usize>| {
        let [from, until] = [from, until].map(|number| number.map(|number| moments[number]));
        let query = Query { from, until, limit: 1, ..Query::default() };
        ids(&listed(&store, query).await).join(" ")
    };
    assert_eq!(within(Some(1), None).await, "e3 e2");
    assert_eq!(within(None, Some(1)).await, "e1");
    assert_eq!(within(Some(0), Some(2)).await, "e2 e1");
    assert_eq!(within(Some(2), Some(1)).await, "");
}

/// O01: whatever is written meanwhile, each entry that was there is shown once.
pub async fn pages_of_the_log_show_each_entry_once_while_more_are_written(store: Shared) {
    let names: Vec<String> = (0..11).map(|number| format!("old {number}")).collect();
    for name in &names {
        write(&store, entry(name)).await;
    }
    for filter in [None, Some(Arc::from("ann"))] {
        let mut query = Query { who: filter, limit: 2, ..Query::default() };
        let mut shown = Vec::new();
        for number in 0..ALL {
            let page = list(&store, query.clone()).await;
            shown.extend(page.entries.into_iter().map(|written| written.entry.id));
            let name = format!("new {number} {}", query.who.is_some());
            write(&store, entry(&name)).await;
            let Some(next) = page.next else { break };
            query.after = Some(next);
        }
        let old: Vec<&str> = shown.iter().map(|id| &**id).filter(|id| id.starts_with("old")).collect();
        let newest_first: Vec<&str> = names.iter().rev().map(String::as_str).collect();
        assert_eq!(old, newest_first);
        assert_eq!(shown.iter().collect::<BTreeSet<_>>().len(), shown.len(), "none is shown twice");
    }
}

/// O01
pub async fn entries_are_deleted_by_age(store: Shared) {
    for name in ["e1", "e2", "e3"] {
        write(&store, entry(name)).await;
    }
    let reap = async |age, limit| store.audit().prune(age, limit).await.expect("an answer");
    // Longer than any store takes to write an entry and to prune.
    let age = 25 * MOMENT;
    assert_eq!(reap(HOUR, ALL).await, 0);
    assert_eq!(reap(Duration::MAX, ALL).await, 0);
    let last = all(&store).await[0].at;
    let started = Instant::now();
    while now(&store).await <= last.plus(age) {
        assert!(started.elapsed() < PATIENCE, "the store's clock stands still");
    }
    assert_eq!(reap(age, 0).await, 0);
    assert_eq!(reap(age, 2).await, 2);
    assert_eq!(ids(&all(&store).await), ["e3"], "the oldest go first");
    write(&store, entry("e4")).await;
    assert_eq!(reap(age, ALL).await, 1);
    assert_eq!(ids(&all(&store).await), ["e4"]);
}

/// O01: nothing else deletes them.
pub async fn entries_outlive_their_records(store: Shared) {
    let hour_ago = When::At(before(now(&store).await, HOUR));
    let (id, next) = draft("k", completed(hour_ago));
    applied(swap(&store, id, change(None, next).with_audit(Some(full("e1")))).await);
    store.reap(ALL).await.expect("an answer");
    assert_eq!(all(&store).await[0].entry, full("e1"));
}

/// O01
pub async fn a_foreign_cursor_of_the_log_is_refused(store: Shared) {
    write(&store, entry("e1")).await;
    let query = Query { after: Some(Cursor(Box::from(&b"?"[..]))), limit: 1, ..Query::default() };
    let error = store.audit().list(query).await.expect_err("it is no cursor");
    assert_eq!(error.kind(), ErrorKind::Other, "{error}");
}
