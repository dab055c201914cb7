//! What happens on this node, as server-sent events.
//!
//! 1. One task numbers what the engine tells and keeps the last 1,000 events. Numbers rise by one within one *stream*, which
//!    has a random name and lasts as long as the process.
//! 2. Whoever comes back with `Last-Event-ID` goes on where it was, or is told to load everything anew (`resync`).
//! 3. Figures are made only while somebody watches: every 5 s, and soon after another event, at most once a second.
//! 4. Whoever is so slow that what it has not seen is no longer kept is cut off, and comes back by itself.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use onlyonce::events::{Event, Transition};
use onlyonce::machine;
use onlyonce::operate::entry_id;
use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Interval, interval_at, sleep_until};

use super::call::Call;
use super::refusal::{Code, Refusal};
use super::{Admin, audit, overview};
use crate::view;

/// How many events are kept for those who come back.
const KEPT: usize = 1_000;
/// How many streams a node serves at once.
const STREAMS_MAX: usize = 64;
/// How often figures are told.
const FIGURES_EVERY: Duration = Duration::from_secs(5);
/// How soon after each other figures are told at most.
const FIGURES_APART: Duration = Duration::from_secs(1);
/// How often something is sent, so that nobody in between takes the connection for dead.
const COMMENT_EVERY: Duration = Duration::from_secs(15);
/// How many milliseconds a browser waits before it comes back.
const RETRY: &str = "retry: 2000\n";
const LAST_EVENT_ID: &str = "last-event-id";

/// The events of this node.
#[derive(Debug)]
pub(super) struct Events {
    /// The stream's name.
    stream: Arc<str>,
    log: Mutex<Log>,
    /// The number of the last event; every watcher holds a receiver.
    last: watch::Sender<u64>,
    /// Somebody began to watch, or wants new figures.
    joined: Notify,
    places: Arc<Semaphore>,
}

/// The last events.
#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Told>,
    /// The number of the last one; 0 before the first.
    last: u64,
}

#[derive(Clone, Debug)]
struct Told {
    number: u64,
    name: &'static str,
    data: Arc<str>,
}

/// What somebody wants who has seen this many is no longer kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Missed;

impl Log {
    fn push(&mut self, name: &'static str, data: &Value) -> u64 {
        self.last += 1;
        self.events.push_back(Told { number: self.last, name, data: data.to_string().into() });
        if self.events.len() > KEPT {
            self.events.pop_front();
        }
        self.last
    }

    /// Events were lost before they were numbered: nobody can go on from before them.
    fn lose(&mut self, lost: u64) -> u64 {
        self.events.clear();
        self.last += lost.max(1);
        self.last
    }

    /// What came after the event with this number.
    fn after(&self, number: u64) -> Result<impl Iterator<Item = &Told>, Missed> {
        let kept = self.events.len() as u64;
        let before_first = self.last - kept;
        if number < before_first || number > self.last {
            return Err(Missed);
        }
        let seen = usize::try_from(number - before_first).unwrap_or(usize::MAX);
        Ok(self.events.iter().skip(seen))
    }
}

impl Default for Events {
    fn default() -> Self {
        Self {
            stream: entry_id(),
            log: Mutex::default(),
            last: watch::channel(0).0,
            joined: Notify::new(),
            places: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }
}

impl Events {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, name: &'static str, data: &Value) {
        let number = self.log().push(name, data);
        self.last.send_replace(number);
    }

    fn lose(&self, lost: u64) {
        let number = self.log().lose(lost);
        self.last.send_replace(number);
    }

    fn is_watched(&self) -> bool {
        self.last.receiver_count() > 0
    }

    /// Figures are told soon.
    pub(super) fn refresh(&self) {
        self.joined.notify_one();
    }

    /// Where a watcher begins: after the event it names, where what came since is kept.
    fn begin(&self, last_event_id: Option<&str>) -> (u64, Begins) {
        let log = self.log();
        let Some(id) = last_event_id else { return (log.last, Begins::Here) };
        let number = id.split_once(':').filter(|(stream, _)| *stream == &*self.stream);
        let number = number.and_then(|(_, number)| number.parse().ok());
        match number.filter(|number| log.after(*number).is_ok()) {
            Some(number) => (number, Begins::Here),
            None => (log.last, Begins::Anew),
        }
    }

    fn id(&self, number: u64) -> String {
        format!("{}:{number}", self.stream)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begins {
    Here,
    /// It missed something, and must load everything anew.
    Anew,
}

/// Numbers what the engine tells, and makes figures while somebody watches. For as long as the node serves.
pub(super) async fn run(admin: Arc<Admin>, mut told: Receiver<Arc<Event>>) {
    let events = &admin.events;
    let mut figures_told_at = Instant::now();
    let mut figures_at = figures_told_at;
    let mut making: Option<Pin<Box<dyn Future<Output = Value> + Send>>> = None;
    // Something happened while figures were being made: they may be from before it.
    let mut is_outdated = false;
    let mut ended = pin!(admin.ended());
    loop {
        let soon = |told_at: Instant| Instant::now().max(told_at + FIGURES_APART);
        let is_idle = making.is_none();
        tokio::select! {
            event = told.recv() => {
                match event {
                    Ok(event) => events.tell_event(&event),
                    Err(RecvError::Lagged(lost)) => events.lose(lost),
                    Err(RecvError::Closed) => return,
                }
                figures_at = figures_at.min(soon(figures_told_at));
                is_outdated = making.is_some();
            }
            () = events.joined.notified() => figures_at = figures_at.min(soon(figures_told_at)),
            () = sleep_until(figures_at), if is_idle && events.is_watched() => {
                let admin = admin.clone();
                making = Some(Box::pin(async move { overview::figures(&admin).await }));
            }
            figures = made(&mut making) => {
                making = None;
                events.tell("figures", &figures);
                figures_told_at = Instant::now();
                figures_at = figures_told_at + if is_outdated { FIGURES_APART } else { FIGURES_EVERY };
                is_outdated = false;
            }
            () = &mut ended => return,
        }
    }
}

/// Ready when what is being made is.
async fn made(making: &mut Option<Pin<Box<dyn Future<Output = Value> + Send>>>) -> Value {
    match making {
        Some(making) => making.await,
        None => std::future::pending().await,
    }
}

impl Events {
    fn tell_event(&self, event: &Event) {
        match event {
            Event::Record(transition) => self.tell("record", &record(transition)),
            Event::Change(written) => self.tell("change", &Value::Object(audit::told(written))),
        }
    }
}

/// What became of a record, without anything of its request or answer.
fn record(transition: &Transition) -> Value {
    let record = &*transition.record;
    let facts = machine::facts(record);
    let is_forgotten = machine::may_reap(record, transition.at);
    json!({
        "scope": record.scope.to_string(),
        "scope_label": record.scope.label(),
        "key": record.key.as_str(),
        "route": record.route.as_deref(),
        "from": transition.from.as_str(),
        "to": if is_forgotten { "forgotten" } else { record.state.name().as_str() },
        "attempt": record.attempt,
        "reason": facts.reason.map(|reason| reason.to_string()),
        "dead_letter": facts.dead_letter,
        "by": transition.by.as_str(),
        "at": view::moment(transition.at),
    })
}

/// `GET /v1/events`
pub(super) fn watch(call: &Call) -> Result<Response, Refusal> {
    call.check()?;
    let admin = &call.admin;
    let Ok(place) = admin.events.places.clone().try_acquire_owned() else {
        let detail = format!("{STREAMS_MAX} streams are open, which is the maximum; close one");
        return Err(Refusal::new(Code::StreamsTaken, detail));
    };
    let last_event_id = call.head.headers.get(LAST_EVENT_ID).map(|id| id.to_str().unwrap_or_default());
    let news = admin.events.last.subscribe();
    let (seen, begins) = admin.events.begin(last_event_id);
    admin.events.refresh();
    let watcher = Watcher {
        opening: Some(opening(admin, seen, begins)),
        admin: admin.clone(),
        seen,
        news,
        comments: interval_at(Instant::now() + COMMENT_EVERY, COMMENT_EVERY),
        ended: Box::pin(admin.ended()),
        _place: place,
    };
    let body = stream::unfold(watcher, |mut watcher| async move {
        let bytes = watcher.next().await?;
        Some((Ok::<_, Infallible>(bytes), watcher))
    });
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    Ok(response)
}

fn opening(admin: &Admin, seen: u64, begins: Begins) -> Bytes {
    let hello = json!({
        "stream": &*admin.events.stream,
        "node": &*admin.node,
        "version": env!("CARGO_PKG_VERSION"),
    });
    let mut text = RETRY.to_owned();
    text.push_str(&format!("id: {}\nevent: hello\ndata: {hello}\n\n", admin.events.id(seen)));
    match begins {
        Begins::Here => {}
        Begins::Anew => text.push_str("event: resync\ndata: {}\n\n"),
    }
    text.into()
}

/// Somebody who watches.
struct Watcher {
    admin: Arc<Admin>,
    opening: Option<Bytes>,
    /// The number of the last event that was sent.
    seen: u64,
    news: watch::Receiver<u64>,
    comments: Interval,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    _place: OwnedSemaphorePermit,
}

impl Watcher {
    /// What is sent next; none where the stream ends.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.opening.take() {
            return Some(opening);
        }
        loop {
            // Before the look: what comes after it is news.
            self.news.mark_unchanged();
            let unseen = self.unseen().ok()?;
            if !unseen.is_empty() {
                return Some(unseen.into());
            }
            tokio::select! {
                changed = self.news.changed() => changed.ok()?,
                _ = self.comments.tick() => return Some(Bytes::from_static(b":\n\n")),
                () = &mut self.ended => return None,
            }
        }
    }

    fn unseen(&mut self) -> Result<String, Missed> {
        let events = &self.admin.events;
        let log = events.log();
        let mut text = String::new();
        for Told { number, name, data } in log.after(self.seen)? {
            text.push_str(&format!("id: {}\nevent: {name}\ndata: {data}\n\n", events.id(*number)));
        }
        self.seen = log.last;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(log: &Log, after: u64) -> Result<Vec<u64>, Missed> {
        Ok(log.after(after)?.map(|told| told.number).collect())
    }

    #[test]
    fn whoever_comes_back_goes_on_or_is_told_that_it_missed_something() {
        let mut log = Log::default();
        assert_eq!(numbers(&log, 0), Ok(vec![]));
        assert_eq!(numbers(&log, 1), Err(Missed), "what has not happened yet");
        for _ in 0..3 {
            log.push("record", &json!({}));
        }
        assert_eq!(numbers(&log, 0), Ok(vec![1, 2, 3]));
        assert_eq!(numbers(&log, 2), Ok(vec![3]));
        assert_eq!(numbers(&log, 3), Ok(vec![]));
        assert_eq!(numbers(&log, 4), Err(Missed));
        for _ in 0..KEPT {
            log.push("record", &json!({}));
        }
        assert_eq!(numbers(&log, 2), Err(Missed));
        assert_eq!(numbers(&log, 3).unwrap().len(), KEPT);
        assert_eq!(log.lose(5), 1_008);
        assert_eq!(numbers(&log, 1_007), Err(Missed));
        assert_eq!(numbers(&log, 1_008), Ok(vec![]));
    }

    #[test]
    fn a_stream_goes_on_only_after_an_event_of_its_own() {
        let events = Events::default();
        for _ in 0..3 {
            events.tell("record", &json!({}));
        }
        let id = |number: u64| format!("{}:{number}", events.stream);
        assert_eq!(events.begin(None), (3, Begins::Here));
        assert_eq!(events.begin(Some(&id(1))), (1, Begins::Here));
        assert_eq!(events.begin(Some(&id(3))), (3, Begins::Here));
        for foreign in
            ["", "1", "x:1", &id(4), &format!("{}:", events.stream), &format!("{}:-1", events.stream)]
        {
            assert_eq!(events.begin(Some(foreign)), (3, Begins::Anew), "{foreign:?}");
        }
    }
}
