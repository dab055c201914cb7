//! The event stream: what it tells, how it goes on, and when it ends.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

use std::time::Duration;

use onlyonce_core::record::StateName;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::admin_world::{Made, READER, SOON, World, moment, scope};
use crate::engines::{Engine, on_every_engine};

on_every_engine! {
    futures {
        whoever_watches_is_told_what_becomes_of_records_and_what_operators_change,
        streams_end_when_the_node_stops,
        events_hold_nothing_of_an_answer_and_need_a_token_where_there_are_tokens,
    }
}

/// Somebody who watches.
struct Watching {
    stream: TcpStream,
    /// The head of the answer, then what is left of the last read.
    text: String,
}

/// An event, or a comment.
#[derive(Clone, Debug, Default, PartialEq)]
struct Event {
    id: Option<String>,
    name: String,
    data: Value,
}

impl Event {
    fn number(&self) -> u64 {
        let id = self.id.as_deref().unwrap_or_else(|| panic!("{self:?}"));
        id.split_once(':').and_then(|(_, number)| number.parse().ok()).unwrap_or_else(|| panic!("{id}"))
    }
}

impl Watching {
    async fn begin(world: &World, last_event_id: Option<&str>) -> Self {
        let mut ask = world.ask("GET", "/v1/events");
        if let Some(id) = last_event_id {
            ask = ask.header("Last-Event-ID", id);
        }
        let mut watching = Self { stream: ask.begin().await, text: String::new() };
        let head = watching.until("\r\n\r\n").await.expect("an answer").to_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream"), "{head}");
        assert!(head.contains("cache-control: no-store"), "{head}");
        watching
    }

    /// What comes before this; none where the stream ends before it.
    async fn until(&mut self, end: &str) -> Option<String> {
        loop {
            if let Some((before, after)) = self.text.split_once(end) {
                let (before, after) = (before.to_owned(), after.to_owned());
                self.text = after;
                return Some(before);
            }
            let mut bytes = [0; 8192];
            let read =
                timeout(SOON, self.stream.read(&mut bytes)).await.expect("something comes").unwrap_or(0);
            if read == 0 {
                return None;
            }
            self.text.push_str(std::str::from_utf8(&bytes[..read]).expect("it is text"));
        }
    }

    /// The next event; none where the stream ends. Chunks and their lengths lie between.
    async fn next(&mut self) -> Option<Event> {
        loop {
            let block = self.until("\n\n").await?;
            let mut event = Event::default();
            for line in block.lines() {
                if let Some(id) = line.strip_prefix("id: ") {
                    event.id = Some(id.to_owned());
                } else if let Some(name) = line.strip_prefix("event: ") {
                    event.name = name.to_owned();
                } else if let Some(data) = line.strip_prefix("data: ") {
                    event.data = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
                }
            }
            if !event.name.is_empty() {
                return Some(event);
            }
        }
    }

    /// The next event of this name.
    async fn named(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("it ended before {name}"));
            if event.name == name {
                return event;
            }
        }
    }
}

async fn settle(world: &World, made: &Made) {
    let answer = world.verdict(made, "", &json!({ "verdict": "happened", "reason": "r" })).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// U05
async fn whoever_watches_is_told_what_becomes_of_records_and_what_operators_change(engine: Engine) {
    let world = World::new(engine).await;
    // A node tells what it does itself.
    world.keep_to_one_node();
    let made = world.record("acme", "k-1", StateName::Unknown).await;
    let mut watching = Watching::begin(&world, None).await;
    assert!(watching.until("\n").await.is_some_and(|line| line.len() < 8), "the length of a chunk");
    assert_eq!(watching.until("\n").await.as_deref(), Some("retry: 2000"));
    let hello = watching.next().await.unwrap();
    assert_eq!(hello.name, "hello");
    assert_eq!(hello.data["version"], env!("CARGO_PKG_VERSION"));
    assert!(hello.id.as_ref().unwrap().starts_with(hello.data["stream"].as_str().unwrap()), "{hello:?}");
    let figures = watching.named("figures").await;
    assert_eq!(figures.data["oldest_unknown"]["key"], "k-1");
    assert_eq!(figures.data["oldest_unknown"].get("age_seconds"), None, "that would change with every event");
    settle(&world, &made).await;
    let record = watching.named("record").await;
    assert_eq!(
        record.data,
        json!({
            "scope": scope("acme").to_string(), "scope_label": "acme", "key": "k-1", "route": "POST /payments/*",
            "from": "unknown", "to": "completed", "attempt": 1, "reason": null, "dead_letter": false, "by": "operator",
            "at": moment(world.seen(&made).await.unwrap().record.written_at),
        })
    );
    let change = watching.named("change").await;
    assert_eq!((&change.data["action"], &change.data["who"]), (&json!("verdict"), &json!("local")));
    assert_eq!(change.data["at"], record.data["at"]);
    assert_eq!(change.number(), record.number() + 1);
    let figures = watching.named("figures").await;
    assert_eq!(figures.data["oldest_unknown"], Value::Null, "soon after a change");
    assert_eq!(figures.number(), change.number() + 1);
    let delete = world.ask("DELETE", format!("{}?reason=r", made.path())).send();
    let (answer, record) = tokio::join!(delete, watching.named("record"));
    assert_eq!(answer.status, 200);
    assert_eq!((&record.data["from"], &record.data["to"]), (&json!("completed"), &json!("forgotten")));
}

/// U05: what is kept of events is the process' own, whatever its store.
#[tokio::test]
async fn whoever_comes_back_misses_nothing_or_is_told_to_load_anew() {
    let world = World::new(Engine::Memory).await;
    let mut first = Watching::begin(&world, None).await;
    let hello = first.next().await.unwrap();
    drop(first);
    for key in ["k-1", "k-2"] {
        let made = world.record("acme", key, StateName::Unknown).await;
        settle(&world, &made).await;
    }
    let mut again = Watching::begin(&world, hello.id.as_deref()).await;
    assert_eq!(again.next().await.unwrap().id, hello.id, "it goes on where it was");
    let mut last = hello.number();
    let mut names = Vec::new();
    while names.len() < 4 {
        let event = again.next().await.unwrap();
        assert_eq!(event.number(), last + 1, "numbers rise by one");
        last = event.number();
        if event.name != "figures" {
            names.push((event.name, event.data["key"].as_str().map(str::to_owned)));
        }
    }
    let record = |key: &str| ("record".to_owned(), Some(key.to_owned()));
    let change = ("change".to_owned(), None);
    assert_eq!(names, [record("k-1"), change.clone(), record("k-2"), change]);
    let stream = hello.data["stream"].as_str().unwrap();
    for foreign in ["x:1", "", &format!("{stream}:999999"), &format!("{stream}:x"), stream] {
        let mut watching = Watching::begin(&world, Some(foreign)).await;
        assert_eq!(watching.next().await.unwrap().name, "hello", "{foreign}");
        let resync = watching.next().await.unwrap();
        assert_eq!((&*resync.name, &resync.data), ("resync", &json!({})), "{foreign}");
    }
    // More than are kept have happened since.
    for number in 0..501 {
        let made = world.record("acme", &format!("many-{number}"), StateName::Unknown).await;
        settle(&world, &made).await;
    }
    let mut late = Watching::begin(&world, hello.id.as_deref()).await;
    assert_eq!(late.next().await.unwrap().name, "hello");
    assert_eq!(late.next().await.unwrap().name, "resync");
}

/// L06: so are streams.
#[tokio::test]
async fn as_many_streams_as_there_may_be_and_no_more() {
    let world = World::new(Engine::Memory).await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(Watching::begin(&world, None).await);
    }
    let refused = world.get("/v1/events").await;
    assert_eq!(refused.told(), (503, "admin_streams_taken".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert_eq!(world.get("/v1/overview").await.status, 200, "nothing else is refused");
    // A head alone keeps no place, and one that left gives its own back.
    open.pop();
    let freed = async {
        while world.ask("HEAD", "/v1/events").send().await.status != 200 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, freed).await.expect("its place is free");
}

/// G04: streams end with the node, and do not keep its store open.
async fn streams_end_when_the_node_stops(engine: Engine) {
    let world = World::new(engine).await;
    let mut watching = Watching::begin(&world, None).await;
    watching.named("hello").await;
    timeout(Duration::from_secs(5), world.stop()).await.expect("it stops");
    while watching.next().await.is_some() {}
}

/// L04: nothing of a request or an answer is told.
async fn events_hold_nothing_of_an_answer_and_need_a_token_where_there_are_tokens(engine: Engine) {
    let world = World::with_tokens(engine).await;
    world.keep_to_one_node();
    assert_eq!(world.get("/v1/events").await.status, 401);
    let made = world.record("acme", "k", StateName::Unknown).await;
    let mut stream = world.ask("GET", "/v1/events").token(READER).begin().await;
    let body = json!({ "verdict": "happened", "reason": "r", "response": { "status": 200, "headers": { "x-secret": "hidden-1" }, "body": "hidden-2" } });
    let ask =
        world.ask("POST", format!("{}/verdict", made.path())).token(crate::admin_world::OPERATOR).json(&body);
    assert_eq!(ask.send().await.status, 200);
    let mut text = String::new();
    while !text.contains("event: change") {
        let mut bytes = [0; 8192];
        let read = timeout(SOON, stream.read(&mut bytes)).await.expect("something comes").unwrap();
        assert!(read > 0, "it ended: {text}");
        text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
    }
    assert!(!text.contains("hidden"), "{text}");
}
