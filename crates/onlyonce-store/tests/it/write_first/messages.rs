//! Messages that an application stores, by the function or procedure and by plain INSERTs.

use super::{Application, Sent, World, code, receipt};
use crate::sqlite::world::id;

/// How many messages are stored for which this holds.
async fn stored<A: Application>(world: &World<A>, holds: &str) -> i64 {
    world.app.number(&format!("SELECT count(*) FROM onlyonce_messages WHERE {holds}")).await
}

/// W05, W09: what is not said has its default, and a random key comes back.
pub(crate) async fn a_message_that_is_sent_returns_its_key<A: Application>() {
    let world = A::world().await;
    let key = world.app.send(&receipt()).await.unwrap();
    assert_eq!(key.len(), 36);
    let other = world.app.send(&receipt()).await.unwrap();
    assert_ne!(key, other);
    let all = "destination = 'receipts' AND group_key IS NULL AND record IS NULL AND state = 'waiting'";
    assert_eq!(stored(&world, all).await, 2);
    for key in [key, other] {
        assert_eq!(world.count(&format!("onlyonce_outbox WHERE {} = '{key}'", A::KEY)).await, 1);
    }
    assert_eq!(world.count("onlyonce_outbox WHERE content_type = 'application/json'").await, 2);
    assert!(world.app.number(A::DUE_IN_SECONDS).await <= 0, "it is due at once");
}

/// W05, W09: every argument; the record is told by the handle, which is not judged.
pub(crate) async fn a_message_has_its_own_key_group_delay_and_record<A: Application>() {
    let world = A::world().await;
    let (before, handle) = world.reserve("k").await;
    let whole = Sent {
        destination: Some("mail".to_owned()),
        payload: Some(vec![0, 0xff]),
        key: Some("order:7_a-B".to_owned()),
        group_key: Some("kunde 7é".to_owned()),
        delay: Some(25 * 3_600_000_000),
        content_type: Some("application/octet-stream".to_owned()),
        handle: Some(handle),
    };
    assert_eq!(world.app.send(&whole).await.unwrap(), "order:7_a-B");
    let record: String = id("k").0.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(stored(&world, &format!("group_key = 'kunde 7é' AND record = '{record}'")).await, 1);
    let rest = format!("content_type = 'application/octet-stream' AND payload = {}", A::bytes(&[0, 0xff]));
    assert_eq!(world.count(&format!("onlyonce_outbox WHERE {rest}")).await, 1);
    let due = world.app.number(A::DUE_IN_SECONDS).await;
    assert!((24 * 3600..=25 * 3600).contains(&due), "{due}");
    assert!(world.is_unchanged(id("k"), Some(&before)).await);
    let foreign = Some(format!("{}.{}", "0".repeat(64), "0".repeat(32)));
    world.app.send(&Sent { handle: foreign, ..receipt() }).await.unwrap();
    assert_eq!(world.count("onlyonce_outbox").await, 2);
}

/// W05, W09: the function ignores a key that is there already, and a plain INSERT is refused.
pub(crate) async fn a_key_that_is_there_already_is_stored_once<A: Application>() {
    let world = A::world().await;
    for payload in ["first", "second"] {
        let sent =
            Sent { key: Some("order-7".to_owned()), payload: Some(payload.as_bytes().to_vec()), ..receipt() };
        assert_eq!(world.app.send(&sent).await.unwrap(), "order-7");
    }
    let plain = format!(
        "INSERT INTO onlyonce_outbox ({}, destination, payload) VALUES ('order-7', 'receipts', 'third')",
        A::KEY
    );
    assert_eq!(code(world.app.sql(&plain).await), A::DUPLICATE);
    let first = format!("onlyonce_outbox WHERE payload = {}", A::bytes(b"first"));
    assert_eq!((world.count(&first).await, world.count("onlyonce_outbox").await), (1, 1));
}

/// W09: what breaks a rule of the table is 23514; nothing is stored, also not by a plain INSERT.
pub(crate) async fn what_breaks_a_rule_is_refused_and_nothing_is_stored<A: Application>() {
    let world = A::world().await;
    let texts = |text: &str| Some(text.to_owned());
    let faults = [
        Sent { key: texts(""), ..receipt() },
        Sent { key: texts("a.b"), ..receipt() },
        Sent { key: texts("a b"), ..receipt() },
        Sent { key: texts("é"), ..receipt() },
        Sent { key: texts("a\n"), ..receipt() },
        Sent { key: Some("k".repeat(129)), ..receipt() },
        Sent { destination: texts(""), ..receipt() },
        Sent { destination: Some("é".repeat(256)), ..receipt() },
        Sent { payload: None, ..receipt() },
        Sent { payload: Some(vec![b'x'; 1_048_577]), ..receipt() },
        Sent { group_key: texts(""), ..receipt() },
        Sent { group_key: Some("é".repeat(256)), ..receipt() },
        Sent { content_type: texts(""), ..receipt() },
        Sent { content_type: texts("text/plain\r\nx: y"), ..receipt() },
    ];
    for sent in &faults {
        assert_eq!(code(world.app.send(sent).await), "23514", "{:?} {:?}", sent.key, sent.group_key);
    }
    let faults = [
        (A::KEY, "'a.b'".to_owned()),
        (A::KEY, "'é'".to_owned()),
        (A::KEY, format!("'{}'", "k".repeat(129))),
        ("group_key", "''".to_owned()),
        ("group_key", format!("'{}'", "é".repeat(256))),
        ("content_type", "''".to_owned()),
        ("state", "'lost'".to_owned()),
    ];
    for (column, value) in &faults {
        let plain = format!(
            "INSERT INTO onlyonce_outbox (destination, payload, {column}) VALUES ('receipts', 'x', {value})"
        );
        assert!(!code(world.app.sql(&plain).await).is_empty(), "{column}");
    }
    let nothing = "INSERT INTO onlyonce_outbox (destination) VALUES ('receipts')";
    assert!(!code(world.app.sql(nothing).await).is_empty());
    let malformed = Sent { handle: texts("zz"), ..receipt() };
    assert_eq!(code(world.app.send(&malformed).await), "22023");
    assert_eq!(world.count("onlyonce_outbox").await, 0);
    let largest = Sent { payload: Some(vec![b'x'; 1 << 20]), key: Some("k".repeat(128)), ..receipt() };
    world.app.send(&largest).await.unwrap();
}
