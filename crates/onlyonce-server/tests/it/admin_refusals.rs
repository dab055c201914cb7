//! The table of refusals, row by row. Webhooks have a table of their own in `webhooks.rs`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use onlyonce::store::outbox::{Message, OnDead, Query, Wanted};
use onlyonce::store::{Change, Store};
use onlyonce_core::record::{Revision, StateName, Token};
use serde_json::{Value, json};

use crate::admin_world::{OPERATOR, READER, World, scope};
use crate::engines::{Engine, on_every_engine_with_messages};

on_every_engine_with_messages! {
    futures {
        every_refusal_has_its_status_members_and_headers_and_changes_nothing,
    }
}

/// A request that is refused, and how.
struct Row {
    status: u16,
    code: &'static str,
    members: &'static [&'static str],
    header: Option<(&'static str, &'static str)>,
    /// Whether it is in the audit log, as an order of somebody known.
    is_audited: bool,
    /// A request to a world with tokens.
    method: &'static str,
    target: String,
    headers: Vec<(&'static str, String)>,
    body: Value,
}

/// The numbers of two messages.
struct Messages {
    claimed: u64,
    waiting: u64,
}

impl Messages {
    async fn store(world: &World) -> Self {
        let made = world.record("acme", "sender", StateName::Completed).await;
        let messages = ["m-1", "m-2"].map(|key| Message::new(key, "mail", Bytes::from_static(b"{}")));
        let draft = made.seen.record.draft();
        let change = Change::new(Some(made.seen.revision), Revision(rand::random()), draft);
        world.store.swap(made.id, change.with_messages(messages.into())).await.unwrap();
        let outbox = world.store.outbox().unwrap();
        let lease = Duration::from_secs(3600);
        let wanted = Wanted { destination: "mail".into(), limit: 1, lease, on_dead: OnDead::Block };
        let claimed = outbox.claim(Token(rand::random()), &[wanted]).await.unwrap().claimed[0].number;
        let all = outbox.list(Query { state: None, destination: None, after: None, limit: 9 }).await.unwrap();
        let waiting = all.items.iter().map(|item| item.number).find(|number| *number != claimed).unwrap();
        Self { claimed, waiting }
    }
}

fn rows(messages: &Messages) -> Vec<Row> {
    let of = |key: &str| format!("/v1/keys/{}/{key}", scope("acme"));
    let verdict = |key: &str| format!("{}/verdict", of(key));
    let said = |verdict: &str| json!({ "verdict": verdict, "reason": "r" });
    let row = |status, code, method, target: String, body| Row {
        status,
        code,
        members: &[],
        header: None,
        is_audited: false,
        method,
        target,
        headers: vec![("Authorization", OPERATOR.to_owned())],
        body,
    };
    let reader = || vec![("Authorization", READER.to_owned())];
    let and = |name: &'static str, value: &str| {
        vec![("Authorization", OPERATOR.to_owned()), (name, value.to_owned())]
    };
    vec![
        Row {
            members: &["faults"],
            ..row(400, "admin_request_invalid", "GET", "/v1/keys?x=1".to_owned(), Value::Null)
        },
        Row {
            members: &["faults"],
            ..row(400, "reason_missing", "POST", verdict("unknown"), json!({ "verdict": "happened" }))
        },
        Row { members: &["faults"], ..row(400, "reason_missing", "DELETE", of("completed"), Value::Null) },
        Row {
            header: Some(("www-authenticate", "Bearer")),
            headers: Vec::new(),
            ..row(401, "admin_unauthorized", "DELETE", format!("{}?reason=r", of("completed")), Value::Null)
        },
        Row {
            members: &["needs"],
            is_audited: true,
            headers: reader(),
            ..row(403, "admin_forbidden", "DELETE", format!("{}?reason=r", of("completed")), Value::Null)
        },
        Row {
            members: &["needs"],
            is_audited: true,
            headers: and("Origin", "http://evil.example"),
            ..row(403, "admin_origin_refused", "DELETE", format!("{}?reason=r", of("completed")), Value::Null)
        },
        row(404, "record_not_found", "GET", of("nowhere"), Value::Null),
        row(404, "record_not_found", "POST", verdict("nowhere"), said("happened")),
        row(404, "admin_not_found", "GET", "/v1/nowhere".to_owned(), Value::Null),
        Row {
            header: Some(("allow", "GET, HEAD")),
            ..row(405, "admin_method", "DELETE", "/v1/audit".to_owned(), Value::Null)
        },
        Row {
            members: &["bytes_max"],
            ..row(
                413,
                "admin_body_too_large",
                "POST",
                verdict("unknown"),
                json!({ "x": "x".repeat(2 << 20) }),
            )
        },
        Row {
            headers: and("Content-Type", "text/plain"),
            ..row(415, "admin_content_type", "POST", verdict("unknown"), Value::Null)
        },
        Row {
            members: &["lapses_at", "deadline_at"],
            is_audited: true,
            ..row(409, "record_running", "POST", verdict("running"), said("happened"))
        },
        Row {
            members: &["lapses_at", "deadline_at"],
            is_audited: true,
            ..row(409, "record_running", "DELETE", format!("{}?reason=r", of("running")), Value::Null)
        },
        Row {
            members: &["earliest"],
            is_audited: true,
            ..row(409, "verdict_too_early", "POST", verdict("unknown"), said("did-not-happen"))
        },
        Row {
            members: &["state", "by"],
            is_audited: true,
            ..row(409, "record_settled", "POST", verdict("completed"), said("happened"))
        },
        Row {
            is_audited: true,
            ..row(409, "record_unknown", "DELETE", format!("{}?reason=r", of("unknown")), Value::Null)
        },
        Row { is_audited: true, ..row(409, "nothing_to_ask", "POST", verdict("unknown"), said("unknown")) },
        Row {
            members: &["revision"],
            is_audited: true,
            headers: and("If-Match", "\"0000000000000000\""),
            ..row(412, "record_changed", "POST", verdict("unknown"), said("happened"))
        },
        row(404, "message_not_found", "GET", "/v1/outbox/999999".to_owned(), Value::Null),
        Row {
            is_audited: true,
            ..row(
                409,
                "message_claimed",
                "DELETE",
                format!("/v1/outbox/{}?reason=r", messages.claimed),
                Value::Null,
            )
        },
        Row {
            is_audited: true,
            ..row(
                409,
                "message_not_dead",
                "POST",
                format!("/v1/outbox/{}/redrive", messages.waiting),
                json!({ "reason": "r" }),
            )
        },
    ]
}

/// O06, U06, L04
async fn every_refusal_has_its_status_members_and_headers_and_changes_nothing(engine: Engine) {
    let world = World::with_tokens(engine).await;
    let states = [StateName::Running, StateName::Completed, StateName::Unknown];
    let mut made = Vec::new();
    for state in states {
        made.push(world.record("acme", state.as_str(), state).await);
    }
    let messages = Messages::store(&world).await;
    let mut told = BTreeSet::new();
    for row in rows(&messages) {
        let before = world.audit().await.len();
        let mut ask = world.ask(row.method, &*row.target);
        for (name, value) in &row.headers {
            ask = ask.header(name, &**value);
        }
        if !row.body.is_null() {
            ask = ask.json(&row.body);
        }
        let answer = ask.send().await;
        let at = format!("{} {} {}: {}", row.code, row.method, row.target, answer.body);
        assert_eq!(answer.told(), (row.status, row.code.to_owned()), "{at}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{at}");
        let body = answer.json();
        for member in ["type", "title", "detail"].iter().chain(row.members) {
            assert!(!body[member].is_null(), "{member}: {at}");
        }
        assert_eq!(body["status"], row.status, "{at}");
        if let Some((name, value)) = row.header {
            assert_eq!(answer.header(name), Some(value), "{at}");
        }
        let log = world.audit().await;
        assert_eq!(log.len(), before + usize::from(row.is_audited), "{at}");
        if row.is_audited {
            assert_eq!(log.last().unwrap().code.as_deref(), Some(row.code), "{at}");
        }
        told.insert(row.code);
    }
    for made in &made {
        assert_eq!(world.seen(made).await.unwrap().revision, made.seen.revision, "nothing was changed");
    }
    let document = world.ask("GET", "/v1/openapi.json").token(READER).send().await.json();
    let schemas = document["components"]["schemas"].as_object().unwrap().iter();
    let described = schemas.filter(|(_, schema)| schema["properties"]["code"].is_object());
    let described: BTreeSet<_> = described.map(|(code, _)| &**code).collect();
    // A host is looked at where there is no token, a store that is away, a missing key and streams are about the node.
    told.extend(["admin_host_refused", "store_unavailable", "record_undecryptable", "admin_streams_taken"]);
    assert_eq!(told, described.into_iter().filter(|code| code.contains('_')).collect());

    let local = World::new(engine).await;
    let answer = local.ask("GET", "/v1/keys").header("host", "127.0.0.1.evil.example").send().await;
    assert_eq!(answer.told(), (421, "admin_host_refused".to_owned()));
    local.switch_off();
    let answer = local.get("/v1/keys").await;
    assert_eq!(answer.told(), (503, "store_unavailable".to_owned()));
    assert_eq!(answer.header("retry-after"), Some("1"));
}
